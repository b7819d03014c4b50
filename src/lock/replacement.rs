//! Rule for callers of which only the newest waits (`run --busy latest`): a newcomer takes the place of the one before.
//!
//! The newcomer takes that place, and not the end of the queue, so that a queue of other callers serves the newest even
//! if newcomers come faster than it moves. For the same reason such a caller waits in the record, never on a page.
//!
//! The record names the replaced waiters until their successor has gone, so that a waiter whose entry is missing learns
//! why. A waiter without that trace has lost its place all the same: it does not queue again, because a newer caller may
//! have run already.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::handle::HandleHash;
use super::owner::Owner;
use super::record::{Record, Waiter};
use super::request::{Acquire, Refusal};

/// Maximum number of replaced waiters that a record names.
const MOST_NAMED: usize = 16;

/// Waiters that lost their place, and the caller that has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replacement {
    /// Handle hash of the newest caller.
    pub by: HandleHash,
    /// Handle hashes of the replaced waiters, oldest first.
    pub waiters: Vec<HandleHash>,
}

/// Caller that has the place of a replaced waiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Successor {
    pub owner: Arc<Owner>,
    /// Time of its arrival or, if it has the lock, of its grant ([`super::Grant::since`]).
    pub since: u64,
    pub waits: bool,
}

/// Enters the queue in the place of the waiter before, or at the end if there is none. Returns the waiters to wake: the
/// replaced one, and the next one, which watched its process.
pub(super) fn enter(next: &mut Record, entry: Waiter) -> Vec<HandleHash> {
    let Some(at) = next.waiters.iter().position(|waiter| waiter.latest_only) else {
        next.waiters.push(entry);
        return Vec::new();
    };
    let by = entry.proof;
    let replaced = std::mem::replace(&mut next.waiters[at], entry).proof;
    let mut waiters = next.replacement.take().map(|earlier| earlier.waiters).unwrap_or_default();
    waiters.push(replaced);
    waiters.drain(..waiters.len().saturating_sub(MOST_NAMED));
    next.replacement = Some(Replacement { by, waiters });
    [Some(replaced), next.waiters.get(at + 1).map(|waiter| waiter.proof)].into_iter().flatten().collect()
}

/// Returns the refusal of a caller that was in the queue and has lost its place there.
pub(super) fn refusal(record: &Record, request: &Acquire) -> Option<Refusal> {
    let me = &request.entry.proof;
    let replacement = record.replacement.as_ref().filter(|replacement| replacement.waiters.contains(me));
    let is_lost = replacement.is_some()
        || (request.entry.latest_only && request.place.is_queued() && record.waiter(me).is_none());
    is_lost.then(|| {
        Refusal::Replaced(replacement.and_then(|replacement| successor(record, &replacement.by)).map(Box::new))
    })
}

fn successor(record: &Record, by: &HandleHash) -> Option<Successor> {
    let ended = record.ended_grants.iter().map(|ending| &ending.grant);
    let grants = record.holders.iter().chain(ended).filter(|grant| grant.proof == *by);
    let granted = grants.map(|grant| Successor { owner: grant.owner.clone(), since: grant.since, waits: false }).next();
    granted.or_else(|| {
        let waiter = record.waiter(by)?;
        Some(Successor { owner: waiter.owner.clone(), since: waiter.since, waits: true })
    })
}
