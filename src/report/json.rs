//! The JSON documents. They are a stable interface: fields may be added, but never renamed or removed.

mod answers;
mod files;

use serde::Serialize;

pub use answers::{ClaimJson, Entry, Evicted, LockJson, LookupJson, NoValueJson, TakenJson, UnlockJson, ValueJson};
pub use files::{FenceJson, NewestJson};

use super::{ExpectedJson, JobJson, Reporter, user};
use crate::duration::rfc3339_millis;
use crate::engine::LockStatus;
use crate::history::ExpectedTurn;
use crate::lock::{EndReason, Grant, Lease, Lifetime, Liveness, Mode, Owner, Value};
use crate::name::is_invisible;
use crate::store::Location;
use std::fmt::Write as _;
use std::time::Duration;

/// A lock, as `status --json` shows it.
#[derive(Debug, Serialize)]
pub struct SightJson {
    name: String,
    state: &'static str,
    mode: Option<&'static str>,
    slots: Option<u32>,
    token: Option<u64>,
    holders: Vec<HolderJson>,
    waiters: Vec<HolderJson>,
    /// The value that the lock guards, if there is a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<GuardedJson>,
    /// The job that runs under the lock, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<JobJson>,
    /// The turn of a caller that comes now, if the lock is not free and its history has enough grants.
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<ExpectedJson>,
    /// The store, if the locks of several stores are shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<String>,
}

/// A value in the document of the lock that guards it.
#[derive(Debug, Serialize)]
struct GuardedJson {
    version: Option<u64>,
    bytes: u64,
    token: Option<u64>,
    /// File mode in octal, if it differs from the store's.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
}

/// A holder or a waiter.
#[derive(Debug, Default, Serialize)]
pub struct HolderJson {
    pid: Option<i32>,
    host: String,
    user: String,
    command: String,
    label: Option<String>,
    since: String,
    expires: Option<String>,
    token: Option<u64>,
    alive: &'static str,
    /// The mode, unless it is `exclusive`.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
    /// Id of the claim, if the grant is a claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    claim: Option<String>,
    /// End of a lease that is renewed while the owner lives.
    #[serde(skip_serializing_if = "Option::is_none")]
    renewed_until: Option<String>,
}

/// Returns a document as text. JSON escapes ASCII controls; this function escapes other controls and characters that
/// reorder or hide text too, because terminals show documents. Such characters occur only within strings.
/// Returns an error if the document cannot be serialized.
pub fn json(document: &impl Serialize) -> serde_json::Result<String> {
    let text = serde_json::to_string(document)?;
    if !text.contains(is_invisible) {
        return Ok(text);
    }
    let mut escaped = String::with_capacity(2 * text.len());
    for char in text.chars() {
        match is_invisible(char) {
            false => escaped.push(char),
            true => char.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                let _ = write!(escaped, "\\u{unit:04x}");
            }),
        }
    }
    Ok(escaped)
}

impl SightJson {
    /// Returns the document for a lock, under the name for display.
    pub fn new(name: &[u8], status: &LockStatus, reporter: &Reporter<'_>) -> SightJson {
        let record = &status.record;
        // A grant whose end released the lock is not a holder any more.
        let all = record.holders.iter().zip(&status.holders);
        let held: Vec<_> = all.filter(|(_, standing)| **standing != Err(EndReason::Released)).collect();
        let holders = held.iter().map(|(grant, standing)| {
            let alive = match standing {
                Ok(liveness) => *liveness,
                Err(EndReason::Died) => Liveness::Dead,
                Err(_) => reporter.liveness(&grant.owner),
            };
            HolderJson::of_grant(grant, alive, reporter)
        });
        let waiters =
            record.waiters.iter().zip(&status.waiters).map(|(waiter, liveness)| {
                HolderJson::new(&waiter.owner, waiter.mode, waiter.since, *liveness, reporter)
            });
        SightJson {
            name: text(name),
            state: state(status),
            mode: held.first().map(|(grant, _)| mode(grant.mode)),
            slots: record.slots,
            token: held.iter().filter_map(|(grant, _)| grant.token).max(),
            holders: holders.collect(),
            waiters: waiters.collect(),
            value: record.value.as_ref().map(GuardedJson::new),
            job: record.job.as_ref().map(|job| JobJson::new(job, reporter.host.wall())),
            expected: None,
            store: None,
        }
    }

    /// Returns the document with the turn of a caller that comes now.
    #[must_use]
    pub fn with_turn(self, expected: Option<&ExpectedTurn>) -> SightJson {
        SightJson { expected: expected.map(|expected| ExpectedJson::new(expected, None)), ..self }
    }

    /// Returns the document with its store, if that is not the only one.
    pub fn in_store(self, store: Option<&Location>) -> SightJson {
        SightJson { store: store.map(|store| text(store.url().as_encoded_bytes())), ..self }
    }
}

/// Returns `free`, `held` or `abandoned`.
pub(super) fn state(status: &LockStatus) -> &'static str {
    if status.is_held() {
        "held"
    } else if status.holders.iter().all(|standing| *standing == Err(EndReason::Released)) {
        "free"
    } else {
        "abandoned"
    }
}

pub(super) fn mode(share: Mode) -> &'static str {
    match share {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Slot => "slots",
    }
}

impl HolderJson {
    /// Returns the document for a holder.
    pub fn of_grant(grant: &Grant, alive: Liveness, reporter: &Reporter<'_>) -> HolderJson {
        let slot = (grant.mode == Mode::Slot).then_some(grant.slot);
        let claim = grant.claim.as_deref().map(text);
        let end = |lease: &Lease| Some(rfc3339_millis(Duration::from_millis(lease.wall)));
        let (expires, renewed_until) = match &grant.lifetime {
            Lifetime::ExpiresAt(lease) => (end(lease), None),
            Lifetime::Keepalive(lease) => (None, end(lease)),
            _ => (None, None),
        };
        let shown = HolderJson::new(&grant.owner, grant.mode, grant.since, alive, reporter);
        HolderJson { token: grant.token, slot, claim, expires, renewed_until, ..shown }
    }

    fn new(party: &Owner, share: Mode, since: u64, alive: Liveness, reporter: &Reporter<'_>) -> HolderJson {
        HolderJson {
            pid: reporter.owner(party).map(|owner| owner.pid),
            host: party.host.clone(),
            user: user(party.uid),
            command: text(&party.command),
            label: party.label.as_deref().map(text),
            since: rfc3339_millis(Duration::from_millis(since)),
            alive: match alive {
                Liveness::Alive => "yes",
                Liveness::Dead => "no",
                Liveness::Unknown | Liveness::Missing => "unknown",
            },
            mode: (share != Mode::Exclusive).then(|| mode(share)),
            ..HolderJson::default()
        }
    }
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl GuardedJson {
    fn new(value: &Value) -> GuardedJson {
        let mode = value.mode.map(|mode| format!("{mode:04o}"));
        GuardedJson { version: value.version, bytes: value.size, token: value.token, mode }
    }
}

impl Reporter<'_> {
    pub(super) fn liveness(&self, party: &Owner) -> Liveness {
        let owner = self.owner(party);
        owner.map_or(Liveness::Unknown, |owner| self.host.liveness(&party.domain, &owner, self.scope))
    }
}
