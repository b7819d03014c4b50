//! The JSON documents of the commands that acquire, release, write and claim.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::{HolderJson, text};
use crate::duration::rfc3339_millis;
use crate::engine::LockRef;
use crate::error::Error;
use crate::exit::Exit;
use crate::lock::{EndReason, EndedGrant, Grant, Handle, Liveness, Mode, NotHolder, Value};
use crate::report::{RefusalJson, RefusalReport, Reporter};

/// The output of `get --json`, `put --json` and `del --json`.
#[derive(Debug, Serialize)]
pub struct ValueJson {
    name: String,
    version: Option<u64>,
    bytes: u64,
    /// Token of the grant that the value was read under with `--lock`, else of the grant that wrote it.
    token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    handle: Option<String>,
    /// The value of `get`, if it is valid UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// The value of `get` in base64 (RFC 4648), if it is not valid UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
}

/// The output of `get --lock --json` if the value does not exist: the lock is held all the same.
#[derive(Debug, Serialize)]
pub struct NoValueJson {
    #[serde(flatten)]
    refusal: RefusalJson,
    handle: String,
    token: Option<u64>,
}

/// The output of `claim --json`.
#[derive(Debug, Serialize)]
pub struct ClaimJson {
    names: Vec<String>,
    id: String,
    tokens: Vec<Option<u64>>,
}

/// The output of `claim --json` if no name was claimed.
#[derive(Debug, Serialize)]
pub struct TakenJson {
    /// The names that are claimed already, each with its id.
    taken: Vec<LookupJson>,
    #[serde(flatten)]
    refusal: RefusalJson,
}

/// The output of `lookup --json`.
#[derive(Debug, Serialize)]
pub struct LookupJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<Vec<String>>,
    /// The records that cannot be read, and may have the id too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    passed_over: Vec<RefusalJson>,
}

/// The output of `lock --json`.
#[derive(Debug, Serialize)]
pub struct LockJson {
    /// The name, if there is exactly one lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The names, if there are several locks.
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<Vec<String>>,
    handle: String,
    /// The token; for several locks, the highest token.
    token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Vec<Option<u64>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
    expires: Option<String>,
    took_over: Option<Evicted>,
}

/// The former holder of a lock that was taken over.
#[derive(Debug, Serialize)]
pub struct Evicted {
    how: &'static str,
    #[serde(flatten)]
    holder: HolderJson,
}

/// The output of `unlock --json`, `renew --json` and `gc --json` for each lock.
#[derive(Debug, Serialize)]
pub struct UnlockJson {
    name: String,
    /// The result: `released`, `renewed`, `broken`, `removed`, `not held` or `not the owner`.
    outcome: &'static str,
    holders: Vec<HolderJson>,
    /// The problem, the next step and the exit code, if the request was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
}

/// An entry of a list: a result, or the reason why there is none.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Entry<T> {
    /// A result.
    Result(T),
    /// A record that cannot be read.
    Refusal(RefusalJson),
}

impl<T> Entry<T> {
    /// Returns the entry for a record that cannot be read.
    pub fn unreadable(error: &Error) -> Entry<T> {
        Entry::Refusal(RefusalReport::from(error).json(error.kind().into(), None))
    }
}

impl ValueJson {
    /// Returns the document for a value, with the handle and token of the grant that it was read under.
    pub fn new(name: &[u8], value: &Value, taken: Option<(&Handle, Option<u64>)>) -> ValueJson {
        let token = taken.map_or(value.token, |(_, token)| token);
        let handle = taken.map(|(handle, _)| handle.to_string());
        let (name, version) = (text(name), value.version);
        ValueJson { name, version, bytes: value.size, token, handle, value: None, value_base64: None }
    }

    /// Returns the document with the bytes of the value.
    #[must_use]
    pub fn with_bytes(self, bytes: Vec<u8>) -> ValueJson {
        match String::from_utf8(bytes) {
            Ok(value) => ValueJson { value: Some(value), ..self },
            Err(error) => ValueJson { value_base64: Some(STANDARD.encode(error.as_bytes())), ..self },
        }
    }
}

impl NoValueJson {
    /// Returns the document for a refusal under the grant with this handle and token.
    pub fn new(refusal: RefusalJson, (handle, token): (&Handle, Option<u64>)) -> NoValueJson {
        NoValueJson { refusal, handle: handle.to_string(), token }
    }
}

impl ClaimJson {
    /// Returns the document for names, in the order of their grants, and the id that they are claimed under.
    pub fn new(names: &[&[u8]], id: &[u8], grants: &[Grant]) -> ClaimJson {
        let tokens = grants.iter().map(|grant| grant.token).collect();
        ClaimJson { names: names.iter().map(|name| text(name)).collect(), id: text(id), tokens }
    }
}

impl TakenJson {
    /// Returns the document for names that are claimed, with these grants.
    pub fn new(taken: &[(LockRef, Grant)], refusal: RefusalJson) -> TakenJson {
        let of = |(lock, grant): &(LockRef, Grant)| {
            LookupJson::of_name(&lock.display_name, grant.claim.as_deref().unwrap_or_default())
        };
        TakenJson { taken: taken.iter().map(of).collect(), refusal }
    }
}

impl LookupJson {
    /// Returns the document for the id of a name.
    pub fn of_name(name: &[u8], id: &[u8]) -> LookupJson {
        LookupJson { name: Some(text(name)), id: text(id), names: None, passed_over: Vec::new() }
    }

    /// Returns the document for the names of an id, and the records that cannot be read.
    pub fn of_id(id: &[u8], names: &[Vec<u8>], unreadable: &[Error]) -> LookupJson {
        let passed_over = |error: &Error| RefusalReport::from(error).json(error.kind().into(), None);
        LookupJson {
            name: None,
            id: text(id),
            names: Some(names.iter().map(|name| text(name)).collect()),
            passed_over: unreadable.iter().map(passed_over).collect(),
        }
    }
}

impl LockJson {
    /// Returns the document for acquired locks, each with its grant; `expires` is the wall-clock time of expiry.
    pub fn new(
        names: &[&[u8]],
        handle: &Handle,
        grants: &[Grant],
        evicted: Option<&EndedGrant>,
        expires: Option<Duration>,
        reporter: &Reporter<'_>,
    ) -> LockJson {
        let mut all = names.iter().map(|name| text(name));
        let several = grants.len() > 1;
        let slot = grants.first().filter(|grant| grant.mode == Mode::Slot).map(|grant| grant.slot);
        LockJson {
            name: if several { None } else { all.next() },
            names: several.then(|| all.collect()),
            handle: handle.to_string(),
            token: grants.iter().filter_map(|grant| grant.token).max(),
            tokens: several.then(|| grants.iter().map(|grant| grant.token).collect()),
            slot: slot.filter(|_| !several),
            expires: expires.map(rfc3339_millis),
            took_over: evicted.map(|ending| Evicted::new(ending, reporter)),
        }
    }
}

impl Evicted {
    fn new(ending: &EndedGrant, reporter: &Reporter<'_>) -> Evicted {
        let died = ending.reason == EndReason::Died;
        let alive = if died { Liveness::Dead } else { reporter.liveness(&ending.grant.owner) };
        Evicted { how: ending.reason.word(), holder: HolderJson::of_grant(&ending.grant, alive, reporter) }
    }
}

impl UnlockJson {
    /// Returns the word for a lock that the caller does not hold.
    pub fn word(not_holder: &NotHolder) -> &'static str {
        if not_holder.holders.is_empty() { "not held" } else { "not the owner" }
    }

    /// Returns the document for the result of one lock, with its former or present holders.
    pub fn new<'a>(
        name: &[u8],
        outcome: &'static str,
        grants: impl IntoIterator<Item = &'a Grant>,
        reporter: &Reporter<'_>,
    ) -> UnlockJson {
        let holder = |grant: &Grant| HolderJson::of_grant(grant, reporter.liveness(&grant.owner), reporter);
        let holders = grants.into_iter().map(holder).collect();
        UnlockJson { name: text(name), outcome, holders, message: None, hint: None, exit_code: None }
    }

    /// Returns the document with the reason for a refusal.
    #[must_use]
    pub fn refused(self, refusal: &RefusalReport) -> UnlockJson {
        UnlockJson {
            message: Some(refusal.message.clone()),
            hint: Some(refusal.hint.clone()).filter(|hint| !hint.is_empty()),
            exit_code: Some(Exit::from(refusal.kind).code()),
            ..self
        }
    }
}
