//! A value that a lock guards, and the rules of writing it.
//!
//! A record bears its name's value, or says where it is: so whoever writes it and whoever takes or gives back the lock swap
//! the same record, and "written only by the holder", "read as the lock is taken" and "written as it is given back" are each
//! one swap. Long values, and those that not everybody may read, are *apart*: stored first, under a name of their own that
//! never comes back, and never changed; the record then names it. One that no record names was left by somebody who died.
//!
//! **Versions** grow by one with each write. The first has the number of the record's own version, which in every store is
//! above all that this name ever had; so no number comes back, also not after the value was deleted.
//!
//! **Who may write.** The holder, if nobody holds together with him; and where nobody holds or waits, anybody, in the same
//! swap. A holder whose grant is over may not. He may say `--even-if-stale`, if nobody has had the lock since.

use super::ask::{Credentials, Response, Transition};
use super::facts::{Facts, Query};
use super::protocol::{Found, find, grant_status, refuse, write};
use super::queue::{end, evict, grant_waiting};
use super::record::{EndReason, EndedGrant, Record};

/// The most bytes that a value may have.
pub const MOST_VALUE: usize = 1 << 20;

/// Of so many bytes it is in the record itself.
const MOST_WITHIN: usize = 1024;

/// What a name has, beside the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Value {
    /// Which version. `None` only in a record on its way to the store: the version that it gets there.
    pub version: Option<u64>,
    /// The fencing token of the grant under which it was written; or as `version`, if it was written under none.
    pub token: Option<u64>,
    /// How many bytes.
    pub size: u64,
    /// What makes this write unlike any other: random.
    pub write_id: u64,
    /// Who may read it: the permission bits of a file. `None`: whoever may read the store.
    pub mode: Option<u32>,
    /// The bytes, unless they are apart.
    pub inline: Option<Vec<u8>>,
}

/// A wish to write a value, or to delete it.
#[derive(Debug, Clone)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Writing {
    /// Who wants that.
    pub credentials: Credentials,
    /// The value, its version and token left out; `None`: there is to be none.
    pub value: Option<Value>,
    /// What must be so.
    pub precondition: Option<Precondition>,
    /// Only as the holder; else also where nobody holds it.
    pub require_lock: bool,
    /// And give back the lock, as its holder.
    pub release: bool,
    /// Also when the grant is over, if nobody has had the lock since.
    pub even_if_stale: bool,
}

/// What must be so for a value to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub enum Precondition {
    /// There is none.
    Absent,
    /// It has this version.
    Version(u64),
}

impl Value {
    /// These bytes, before they are written.
    pub fn new(bytes: &[u8], mark: u64, mode: Option<u32>) -> Value {
        let within = (bytes.len() <= MOST_WITHIN && mode.is_none()).then(|| bytes.to_vec());
        Value { version: None, token: None, size: bytes.len() as u64, write_id: mark, mode, inline: within }
    }

    /// The name that one is stored under that is apart: no name that anybody could type.
    pub fn key(name: &[u8], mark: u64) -> Vec<u8> {
        [name, b"\0value.", format!("{mark:016x}").as_bytes()].concat()
    }

    /// The name and mark of the value that is stored under this name, if one is.
    pub fn of_key(key: &[u8]) -> Option<(&[u8], u64)> {
        let nul = key.iter().position(|byte| *byte == 0)?;
        let mark = std::str::from_utf8(key[nul..].strip_prefix(b"\0value.")?).ok()?;
        let (name, mark) = (&key[..nul], u64::from_str_radix(mark, 16).ok()?);
        (Value::key(name, mark) == key).then_some((name, mark))
    }
}

/// Decides about a write; see the module's own words.
pub(super) fn decide_write(record: &Record, writing: &Writing, facts: &Facts) -> Result<Transition, Query> {
    let mut next = record.clone();
    let mut wake = Vec::new();
    let (mut mine, mut stale) = (None, None);
    match find(record, &writing.credentials, facts)? {
        Found::Mine(_) if writing.credentials.repeated && !writing.release && is_this(record, writing) => {
            return Ok(Transition::Done(Response::Written(record.value.clone(), None)));
        }
        Found::Mine(at) => mine = Some(at),
        Found::Ended(ending) if ending.reason != EndReason::Released => {
            let may = writing.even_if_stale && ending.reason != EndReason::Broken;
            if !may || !nobody_since(&mut next, &ending, facts)? {
                // Whoever wants to write believes that he holds it; that nobody else does is no better.
                return Ok(match refuse(record, Found::Ended(ending), facts)? {
                    Transition::Done(Response::NotHeld(ending)) => {
                        Transition::Done(Response::NotOwner(Vec::new(), ending))
                    }
                    other => other,
                });
            }
            stale = Some(ending);
        }
        found => {
            if writing.credentials.repeated && was_written(record, writing, &found) {
                return Ok(Transition::Done(Response::Written(record.value.clone(), None)));
            }
            if writing.require_lock {
                return refuse(record, found, facts);
            }
            wake = grant_waiting(&mut next, facts)?;
        }
    }
    if !holds(writing.precondition, record.value.as_ref()) {
        return Ok(Transition::Done(Response::VersionMismatch(record.value.clone())));
    }
    let Some(written) = writing.value.clone().or_else(|| record.value.clone()) else {
        return Ok(Transition::Done(Response::NoValue));
    };
    let mut others = Vec::new();
    for (at, grant) in next.holders.iter().enumerate() {
        // Whoever shares the lock and is gone is in nobody's way.
        if Some(at) != mine && grant_status(grant, facts)?.is_ok() {
            others.push(grant.clone());
        }
    }
    if !others.is_empty() {
        return Ok(Transition::Done(if mine.is_some() { Response::Shared(others) } else { Response::Busy(others) }));
    }
    let before = record.value.as_ref().and_then(|value| value.version);
    let token = mine.and_then(|at| next.holders[at].token);
    next.value = writing.value.as_ref().map(|_| Value { version: before.map(|it| it + 1), token, ..written.clone() });
    if let (Some(at), true) = (mine, writing.release) {
        end(&mut next, at, EndReason::Released);
        wake = grant_waiting(&mut next, facts)?;
    }
    let written = next.value.clone().unwrap_or(written);
    Ok(write(next, Response::Written(Some(written), stale), wake))
}

/// Whether nobody has had the lock since this grant was over, which is now ended; nor has written for a moment, which
/// leaves a younger token.
fn nobody_since(record: &mut Record, ending: &EndedGrant, facts: &Facts) -> Result<bool, Query> {
    evict(record, facts)?;
    let last = record.ended_grants.iter().max_by_key(|other| other.grant.token);
    let written_since = record.value.as_ref().is_some_and(|value| value.token > ending.grant.token);
    let is_last = last.is_none_or(|last| last.grant.proof == ending.grant.proof);
    Ok(record.holders.is_empty() && is_last && !written_since)
}

/// Whether the store did what it was told, and its reply was lost.
fn was_written(record: &Record, writing: &Writing, found: &Found) -> bool {
    is_this(record, writing) || (writing.release && matches!(found, Found::Ended(_)))
}

fn is_this(record: &Record, writing: &Writing) -> bool {
    match (&writing.value, &record.value) {
        (Some(query), Some(value)) => query.write_id == value.write_id,
        (wanted, value) => wanted.is_none() && value.is_none(),
    }
}

fn holds(only_if: Option<Precondition>, value: Option<&Value>) -> bool {
    match only_if {
        None => true,
        Some(Precondition::Absent) => value.is_none(),
        Some(Precondition::Version(version)) => value.is_some_and(|value| value.version == Some(version)),
    }
}

#[cfg(test)]
mod tests;
