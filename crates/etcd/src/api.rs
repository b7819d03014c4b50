//! Requests and answers of etcd's JSON gateway: base64 for bytes, strings for 64-bit numbers, and omitted fields for
//! zero, empty and false.
//!
//! An answer is untrusted input. The parser refuses every answer that etcd never gives. Each of etcd's answers, and
//! each key, has a revision above zero. An answer `{}` from another program therefore never means "no such key".

use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::errors::{EtcdCause, EtcdError};
use net::{CallError, NetError};

pub(super) const LONGEST_TOKEN: usize = 8192;

/// Maximum number of keys in one request.
pub(super) const MOST_PAIRS: usize = 10_000;

/// Maximum number of characters shown of a server's message.
const MOST_SAID: usize = 300;

pub(super) fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub(super) fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // etcd's value for "to the end of all keys".
    vec![0]
}

pub(super) fn put(key: &[u8], value: &[u8], lease: Option<u64>) -> Value {
    let lease = lease.unwrap_or_default().to_string();
    json!({"request_put": {"key": encoded(key), "value": encoded(value), "lease": lease}})
}

pub(super) fn delete(key: &[u8]) -> Value {
    json!({"request_delete_range": {"key": encoded(key)}})
}

pub(super) fn range(key: &[u8], keys_only: bool) -> Value {
    json!({"request_range": {"key": encoded(key), "keys_only": keys_only}})
}

/// Comparison that a key still has this revision; 0: the key does not exist.
pub(super) fn is_at(key: &[u8], revision: u64) -> Value {
    json!({"target": "MOD", "result": "EQUAL", "key": encoded(key), "mod_revision": revision.to_string()})
}

/// Comparison that a key has not changed after this revision; it may be absent.
pub(super) fn is_unchanged(key: &[u8], since: u64) -> Value {
    let next = since.saturating_add(1);
    json!({"target": "MOD", "result": "LESS", "key": encoded(key), "mod_revision": next.to_string()})
}

pub(super) fn understood<A: DeserializeOwned>(status: u16, body: &[u8]) -> std::result::Result<A, EtcdError> {
    if status == 200 {
        return serde_json::from_slice(body)
            .map_err(|error| NetError::Strange(begin_of(&format!("a strange answer: {error}"))).into());
    }
    if let Ok(refusal) = serde_json::from_slice::<Refusal>(body)
        && (refusal.code > 0 || !refusal.message.is_empty())
    {
        let said = if refusal.message.is_empty() { refusal.error.to_string() } else { refusal.message };
        return Err(CallError::Server(EtcdCause::Said(refusal.code, begin_of(&said))));
    }
    Err(CallError::Server(match status {
        404 => EtcdCause::NoGateway,
        400 if body.windows(12).any(|part| part == b"HTTPS server") => EtcdCause::WantsTls,
        502..=504 => EtcdCause::Said(14, format!("it answers with HTTP status {status}")),
        _ => return Err(NetError::Strange(format!("it answers with HTTP status {status}")).into()),
    }))
}

fn begin_of(said: &str) -> String {
    said.chars().take(MOST_SAID).collect()
}

#[derive(Debug, Deserialize)]
pub(super) struct Header {
    #[serde(deserialize_with = "revision")]
    pub(super) revision: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct RangeAnswer {
    pub(super) header: Header,
    #[serde(default, deserialize_with = "pairs")]
    pub(super) kvs: Vec<Pair>,
    #[serde(default)]
    pub(super) more: bool,
    /// Number of keys on this page and after it.
    #[serde(default, deserialize_with = "number")]
    pub(super) count: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Pair {
    #[serde(deserialize_with = "bytes")]
    pub(super) key: Vec<u8>,
    #[serde(default, deserialize_with = "bytes")]
    pub(super) value: Vec<u8>,
    #[serde(deserialize_with = "revision")]
    pub(super) mod_revision: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Done {
    pub(super) header: Header,
    #[serde(default)]
    pub(super) succeeded: bool,
    #[serde(default)]
    pub(super) responses: Vec<Response>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Response {
    response_range: Listed,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Listed {
    #[serde(deserialize_with = "pairs")]
    kvs: Vec<Pair>,
}

impl Response {
    pub(super) fn found(&self) -> Option<&Pair> {
        self.response_range.kvs.first()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Granted {
    /// ttl in seconds; below zero for a lease that does not exist.
    #[serde(rename = "TTL", deserialize_with = "number")]
    pub(super) ttl: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Authenticated {
    #[serde(deserialize_with = "token")]
    pub(super) token: String,
}

/// Old versions give the message twice.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Refusal {
    error: Value,
    message: String,
    code: u32,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Anything {}

/// A number, which the gateway encodes as a string.
pub(super) fn number<'de, D: Deserializer<'de>, N: FromStr>(from: D) -> Result<N, D::Error> {
    let text = <&RawValue>::deserialize(from)?.get();
    text.trim_matches('"').parse().map_err(|_| D::Error::custom("a number out of range"))
}

/// Revisions are above zero, and at most etcd's maximum.
fn revision<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let revision: i64 = number(from)?;
    if revision < 1 { Err(D::Error::custom(format!("revision {revision}"))) } else { Ok(revision as u64) }
}

/// A token must be valid in an HTTP header.
fn token<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let token = String::deserialize(from)?;
    let is_valid = token.len() <= LONGEST_TOKEN && token.bytes().all(|byte| byte.is_ascii_graphic());
    if is_valid { Ok(token) } else { Err(D::Error::custom("a token that cannot be sent back")) }
}

/// At most as many pairs as a request asks for.
fn pairs<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Pair>, D::Error> {
    let pairs = Vec::<Pair>::deserialize(from)?;
    if pairs.len() > MOST_PAIRS {
        return Err(D::Error::custom(format!("more than {MOST_PAIRS} keys")));
    }
    Ok(pairs)
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    STANDARD.decode(String::deserialize(from)?).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omitted_fields_are_zero_empty_or_false() {
        let done: Done =
            serde_json::from_str(r#"{"header":{"cluster_id":"1","revision":"9223372036854775807"}}"#).unwrap();
        assert_eq!((done.header.revision, done.succeeded), (i64::MAX as u64, false));
        let found: RangeAnswer =
            serde_json::from_str(r#"{"header":{"revision":"9"},"kvs":[{"key":"AGE=","mod_revision":"7"}]}"#).unwrap();
        assert_eq!((&found.kvs[0].key[..], found.kvs[0].mod_revision), (&b"\0a"[..], 7));
        assert!(found.kvs[0].value.is_empty() && !found.more);
        let gone: Granted = serde_json::from_str(r#"{"ID":"5","TTL":"-1"}"#).unwrap();
        assert_eq!(gone.ttl, -1);
    }

    #[test]
    fn an_impossible_reply_of_etcd_is_an_error() {
        for found in [
            "{}",
            "[]",
            "null",
            r#"{"header":{}}"#,
            r#"{"header":{"revision":"0"}}"#,
            r#"{"header":{"revision":"-1"}}"#,
            r#"{"header":{"revision":"9223372036854775808"}}"#,
            r#"{"header":{"revision":"1"},"kvs":{}}"#,
            r#"{"header":{"revision":"1"},"kvs":[{}]}"#,
            r#"{"header":{"revision":"1"},"kvs":[{"key":"AGE="}]}"#,
            r#"{"header":{"revision":"1"},"kvs":[{"key":"AGE=","mod_revision":"0"}]}"#,
            r#"{"header":{"revision":"1"},"kvs":[{"key":"not base64","mod_revision":"1"}]}"#,
        ] {
            assert!(serde_json::from_str::<RangeAnswer>(found).is_err(), "{found}");
        }
        for done in ["{}", r#"{"succeeded":true}"#, r#"{"header":{"revision":"0"},"succeeded":true}"#] {
            assert!(serde_json::from_str::<Done>(done).is_err(), "{done}");
        }
        let pair = r#"{"key":"AGE=","mod_revision":"1"}"#;
        let many =
            format!(r#"{{"header":{{"revision":"1"}},"kvs":[{}{pair}]}}"#, format!("{pair},").repeat(MOST_PAIRS));
        assert!(serde_json::from_str::<RangeAnswer>(&many).is_err());
        assert!(serde_json::from_str::<Authenticated>(r#"{"token":"a\r\nX: y"}"#).is_err());
    }

    #[test]
    fn the_end_of_a_prefix_is_the_first_key_after_it() {
        assert_eq!(prefix_end(b"p/records/"), b"p/records0");
        assert_eq!(prefix_end(b"a\xff\xff"), b"b");
        assert_eq!(prefix_end(b"\xff"), b"\0");
    }
}
