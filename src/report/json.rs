//! The JSON documents. They are a stable interface: fields may be added, but never renamed or removed.

use serde::Serialize;

use super::{Reporter, user};
use crate::duration::rfc3339;
use crate::engine::LockStatus;
use crate::lock::{EndReason, EndedGrant, Grant, Handle, Lifetime, Liveness, Mode, Owner, Value, Waiter};
use crate::name::is_invisible;
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
#[derive(Debug, Serialize)]
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
}

/// The output of `lookup --json`.
#[derive(Debug, Serialize)]
pub struct LookupJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<Vec<String>>,
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
        let waiters = record.waiters.iter().zip(&status.waiters);
        SightJson {
            name: text(name),
            state: state(status),
            mode: held.first().map(|(grant, _)| mode(grant.mode)),
            slots: record.slots,
            token: held.iter().filter_map(|(grant, _)| grant.token).max(),
            holders: holders.collect(),
            waiters: waiters.map(|(waiter, fate)| HolderJson::of_waiter(waiter, *fate, reporter)).collect(),
            value: record.value.as_ref().map(GuardedJson::new),
        }
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

fn not_alone(share: Mode) -> Option<&'static str> {
    (share != Mode::Exclusive).then(|| mode(share))
}

impl HolderJson {
    /// Returns the document for a holder.
    pub fn of_grant(grant: &Grant, alive: Liveness, reporter: &Reporter<'_>) -> HolderJson {
        let slot = (grant.mode == Mode::Slot).then_some(grant.slot);
        let shown = HolderJson::new(&grant.owner, grant.since, &grant.lifetime, alive, reporter);
        let claim = grant.claim.as_deref().map(text);
        let renewed_until = match &grant.lifetime {
            Lifetime::Keepalive(lease) => Some(rfc3339(Duration::from_millis(lease.wall))),
            _ => None,
        };
        HolderJson { token: grant.token, mode: not_alone(grant.mode), slot, claim, renewed_until, ..shown }
    }

    fn of_waiter(waiter: &Waiter, alive: Liveness, reporter: &Reporter<'_>) -> HolderJson {
        let shown = HolderJson::new(&waiter.owner, waiter.since, &Lifetime::WhileOwnerLives, alive, reporter);
        HolderJson { mode: not_alone(waiter.mode), ..shown }
    }

    fn new(party: &Owner, since: u64, lifetime: &Lifetime, alive: Liveness, reporter: &Reporter<'_>) -> HolderJson {
        HolderJson {
            pid: reporter.owner(party).map(|owner| owner.pid),
            host: party.host.clone(),
            user: user(party.uid),
            command: text(&party.command),
            label: party.label.as_deref().map(text),
            since: rfc3339(Duration::from_millis(since)),
            expires: expires(lifetime),
            token: None,
            alive: match alive {
                Liveness::Alive => "yes",
                Liveness::Dead => "no",
                Liveness::Unknown | Liveness::Missing => "unknown",
            },
            mode: None,
            slot: None,
            claim: None,
            renewed_until: None,
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl GuardedJson {
    fn new(value: &Value) -> GuardedJson {
        let mode = value.mode.map(|mode| format!("{mode:04o}"));
        GuardedJson { version: value.version, bytes: value.size, token: value.token, mode }
    }
}

impl ValueJson {
    /// Returns the document for a value, with the handle and token of the grant that it was read under.
    pub fn new(name: &[u8], value: &Value, taken: Option<(&Handle, Option<u64>)>) -> ValueJson {
        let token = taken.map_or(value.token, |(_, token)| token);
        let handle = taken.map(|(handle, _)| handle.to_string());
        ValueJson { name: text(name), version: value.version, bytes: value.size, token, handle }
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
    pub fn new(taken: &[(Vec<u8>, Grant)]) -> TakenJson {
        let of =
            |(name, grant): &(Vec<u8>, Grant)| LookupJson::of_name(name, grant.claim.as_deref().unwrap_or_default());
        TakenJson { taken: taken.iter().map(of).collect() }
    }
}

impl LookupJson {
    /// Returns the document for the id of a name.
    pub fn of_name(name: &[u8], id: &[u8]) -> LookupJson {
        LookupJson { name: Some(text(name)), id: text(id), names: None }
    }

    /// Returns the document for the names of an id.
    pub fn of_id(id: &[u8], names: &[Vec<u8>]) -> LookupJson {
        LookupJson { name: None, id: text(id), names: Some(names.iter().map(|name| text(name)).collect()) }
    }
}

fn expires(lifetime: &Lifetime) -> Option<String> {
    match lifetime {
        Lifetime::ExpiresAt(lease) => Some(rfc3339(Duration::from_millis(lease.wall))),
        _ => None,
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
        let mut all = names.iter().map(|name| String::from_utf8_lossy(name).into_owned());
        let several = grants.len() > 1;
        let slot = grants.first().filter(|grant| grant.mode == Mode::Slot).map(|grant| grant.slot);
        LockJson {
            name: if several { None } else { all.next() },
            names: several.then(|| all.collect()),
            handle: handle.to_string(),
            token: grants.iter().filter_map(|grant| grant.token).max(),
            tokens: several.then(|| grants.iter().map(|grant| grant.token).collect()),
            slot: slot.filter(|_| !several),
            expires: expires.map(rfc3339),
            took_over: evicted.map(|ending| Evicted::new(ending, reporter)),
        }
    }
}

impl Evicted {
    fn new(ending: &EndedGrant, reporter: &Reporter<'_>) -> Evicted {
        let how = match ending.reason {
            EndReason::Released => "released",
            EndReason::Died => "died",
            EndReason::Expired => "expired",
            EndReason::Broken => "broken",
        };
        let died = ending.reason == EndReason::Died;
        let alive = if died { Liveness::Dead } else { reporter.liveness(&ending.grant.owner) };
        Evicted { how, holder: HolderJson::of_grant(&ending.grant, alive, reporter) }
    }
}

impl UnlockJson {
    /// Returns the document for the result of one lock, with its former or present holders.
    pub fn new(name: &[u8], outcome: &'static str, grants: &[Grant], reporter: &Reporter<'_>) -> UnlockJson {
        let holder = |grant: &Grant| HolderJson::of_grant(grant, reporter.liveness(&grant.owner), reporter);
        let name = String::from_utf8_lossy(name).into_owned();
        UnlockJson { name, outcome, holders: grants.iter().map(holder).collect() }
    }
}

impl Reporter<'_> {
    pub(super) fn liveness(&self, party: &Owner) -> Liveness {
        let owner = self.owner(party);
        owner.map_or(Liveness::Unknown, |owner| self.host.liveness(&party.domain, &owner, self.scope))
    }
}
