//! What the JSON gateway of etcd is told and answers: base64 for bytes, strings for 64-bit numbers, and nothing at all
//! for what is zero, empty or false.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// Bytes, as the gateway writes them.
pub(super) fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// What follows all keys that begin like this.
pub(super) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // etcd's word for "to the end of all keys".
    vec![0]
}

/// A put, as one of the steps of a transaction.
pub(super) fn put(key: &[u8], value: &[u8], lease: Option<u64>) -> Value {
    let lease = lease.unwrap_or_default().to_string();
    json!({"request_put": {"key": encoded(key), "value": encoded(value), "lease": lease}})
}

/// A removal, as one of the steps of a transaction.
pub(super) fn delete(key: &[u8]) -> Value {
    json!({"request_delete_range": {"key": encoded(key)}})
}

/// That a key is still as this revision left it; 0: that it is not there.
pub(super) fn is_at(key: &[u8], revision: u64) -> Value {
    json!({"target": "MOD", "result": "EQUAL", "key": encoded(key), "mod_revision": revision.to_string()})
}

/// What every answer begins with.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    #[serde(deserialize_with = "number")]
    pub(super) revision: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Found {
    pub(super) kvs: Vec<Pair>,
    pub(super) more: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pair {
    #[serde(deserialize_with = "bytes")]
    pub(super) key: Vec<u8>,
    #[serde(deserialize_with = "bytes")]
    pub(super) value: Vec<u8>,
    #[serde(deserialize_with = "number")]
    pub(super) mod_revision: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Done {
    pub(super) header: Header,
    pub(super) succeeded: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Granted {
    /// In seconds; below zero for a lease that is not there.
    #[serde(rename = "TTL", deserialize_with = "signed")]
    pub(super) ttl: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Authenticated {
    pub(super) token: String,
}

/// What the gateway says when it refuses something. Old ones say it twice.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Refusal {
    pub(super) error: Value,
    pub(super) message: String,
    pub(super) code: u32,
}

/// An answer of which nothing is wanted.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Anything {}

/// A number, which stands there as a string.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Text(String),
    Plain(i64),
}

pub(super) fn signed<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    match Number::deserialize(from)? {
        Number::Plain(number) => Ok(number),
        Number::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

pub(super) fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    match Number::deserialize(from)? {
        Number::Plain(number) => u64::try_from(number).map_err(serde::de::Error::custom),
        Number::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    STANDARD.decode(String::deserialize(from)?).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_zero_empty_or_false() {
        let done: Done =
            serde_json::from_str(r#"{"header":{"cluster_id":"1","revision":"9223372036854775807"}}"#).unwrap();
        assert_eq!((done.header.revision, done.succeeded), (i64::MAX as u64, false));
        let found: Found = serde_json::from_str(r#"{"kvs":[{"key":"AGE=","mod_revision":"7"}]}"#).unwrap();
        assert_eq!((&found.kvs[0].key[..], found.kvs[0].mod_revision), (&b"\0a"[..], 7));
        assert!(found.kvs[0].value.is_empty() && !found.more);
        let gone: Granted = serde_json::from_str(r#"{"ID":"5","TTL":"-1"}"#).unwrap();
        assert_eq!(gone.ttl, -1);
    }

    #[test]
    fn the_end_of_a_prefix_is_the_first_key_behind_it() {
        assert_eq!(end_of(b"p/records/"), b"p/records0");
        assert_eq!(end_of(b"a\xff\xff"), b"b");
        assert_eq!(end_of(b"\xff"), b"\0");
    }
}
