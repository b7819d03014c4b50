//! Deadlock detection: publishing the edges of waits that other waits may depend on, and following these edges.

use super::Engine;
use crate::error::Result;
use crate::lock::{self, Cycle, Facts, HandleHash, Liveness, Record, WaitEdges, WaitNode, Waiter, find_cycle};
use crate::store::{CommitResult, WriteOptions};

/// Maximum number of waits that are followed.
const MOST_WAITS: usize = 2000;

/// Maximum number of published waits of one process for one lock, and of those under one grant. If one of these waits
/// is stuck, all waits behind it are stuck too and block the same processes. More edges would only cost reads and
/// writes, for a thousand waits at every step of each.
const MOST_OF_A_LOCK: usize = 4;

/// Maximum number of differing reads of the same waits before the check is left to the next process.
const MOST_LOOKS: usize = 20;

/// Extent to which a wait is published under the keys that other processes read. A key with enough similar waits gets
/// no further one; when those waits end, the publication must be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Published {
    Nowhere,
    Somewhere,
    Everywhere,
}

impl Engine {
    /// Publishes this wait under every key that other processes read.
    pub(super) fn publish(&self, name: &[u8], waiter: &Waiter) -> Result<Published> {
        let wait = (name.to_vec(), waiter.proof);
        let keys = WaitEdges::keys(waiter);
        let mut notes = 0;
        for key in &keys {
            let noted = self.waits(key)?.waits;
            if noted.contains(&wait) {
                notes += 1;
                continue;
            }
            let alike: Vec<HandleHash> =
                noted.into_iter().filter(|(of, _)| of == name).map(|(_, proof)| proof).collect();
            let mut gone = Vec::new();
            if alike.len() >= MOST_OF_A_LOCK {
                for proof in alike {
                    if !self.is_waiting(name, &proof)? {
                        gone.push(proof);
                    }
                }
                if gone.is_empty() {
                    continue;
                }
            }
            self.change_edges(key, &|notes| {
                notes.waits.retain(|(of, proof)| of != name || !gone.contains(proof));
                if !notes.waits.contains(&wait) {
                    notes.waits.push(wait.clone());
                }
            })?;
            notes += 1;
        }
        Ok(match notes {
            all if all == keys.len() => Published::Everywhere,
            0 => Published::Nowhere,
            _ => Published::Somewhere,
        })
    }

    fn waits(&self, key: &[u8]) -> Result<WaitEdges> {
        Ok(self.store.read(key)?.and_then(|stored| lock::decode_auxiliary(&stored.body)).unwrap_or_default())
    }

    /// Returns true if this waiter is in the queue and is not known to be dead.
    fn is_waiting(&self, name: &[u8], proof: &HandleHash) -> Result<bool> {
        let (_, record) = self.read(name)?;
        let Some((record, waiter)) = self.entry(record, proof)? else { return Ok(false) };
        Ok(self.liveness(&record, &waiter.owner.domain, &waiter.process) != Liveness::Dead)
    }

    /// Removes the published edges of a wait.
    pub(super) fn retract(&self, name: &[u8], waiter: &Waiter) -> Result<()> {
        WaitEdges::keys(waiter).iter().try_for_each(|key| {
            self.change_edges(key, &|notes| notes.waits.retain(|(of, proof)| *proof != waiter.proof || of != name))
        })
    }

    pub(super) fn change_edges(&self, key: &[u8], change: &dyn Fn(&mut WaitEdges)) -> Result<()> {
        let mut race = self.race(key);
        loop {
            let stored = self.store.read(key)?;
            let found: WaitEdges =
                stored.as_ref().and_then(|stored| lock::decode_auxiliary(&stored.body)).unwrap_or_default();
            let mut next = found.clone();
            change(&mut next);
            if next == found && (stored.is_none() || !next.waits.is_empty()) {
                return Ok(());
            }
            let body = (!next.waits.is_empty()).then(|| lock::encode_auxiliary(key, &next));
            let version = stored.as_ref().map(|stored| &stored.version);
            if self.commit_beside(key, version, body.as_deref(), WriteOptions::default())? == CommitResult::Conflict {
                race.backoff()?;
            }
        }
    }

    /// Returns the cycle that this wait closes, if there is one. All its edges existed at one moment.
    pub(super) fn find_deadlock(&self, name: &[u8], me: &HandleHash) -> Result<Option<Cycle>> {
        let mut before = None;
        for _ in 0..MOST_LOOKS {
            let found = self.look_for_cycle(name, me)?;
            if found.is_none() || found == before {
                return Ok(found);
            }
            before = found;
        }
        Ok(None)
    }

    fn look_for_cycle(&self, name: &[u8], me: &HandleHash) -> Result<Option<Cycle>> {
        let mut waits: Vec<WaitNode> = Vec::new();
        let mut to_look_at = vec![(name.to_vec(), *me)];
        let mut looked_at = std::collections::HashSet::new();
        while let Some((name, proof)) = to_look_at.pop() {
            if waits.len() >= MOST_WAITS || !looked_at.insert((name.clone(), proof)) {
                continue;
            }
            let (_, record) = match self.read(&name) {
                // An unreadable record of another lock does not fail this wait.
                Err(error) if !waits.is_empty() && error.is_of_one_record() => continue,
                read => read?,
            };
            let Some((record, waiter)) = self.entry(record, &proof)? else { continue };
            for key in record.holders.iter().flat_map(WaitEdges::keys_of_holder) {
                to_look_at.extend(self.waits(&key)?.waits);
            }
            waits.push(WaitNode { name, record, waiter });
        }
        if waits.first().is_none_or(|first| first.waiter.proof != *me) {
            return Ok(None);
        }
        let mut facts = Facts::default();
        loop {
            match find_cycle(&waits, &facts) {
                Ok(found) => return Ok(found),
                Err(query) => self.learn(&Record::default(), &mut facts, query, None)?,
            }
        }
    }

    /// Returns a waiter's entry from any part of the queue, and the record with that part.
    pub(super) fn entry(&self, record: Record, proof: &HandleHash) -> Result<Option<(Record, Waiter)>> {
        let of = |record: &Record| record.waiters.iter().find(|waiter| waiter.proof == *proof).cloned();
        if let Some(waiter) = of(&record) {
            return Ok(Some((record, waiter)));
        }
        if record.pages.is_none() {
            return Ok(None);
        }
        let whole = self.whole(record)?;
        Ok(of(&whole).map(|waiter| (whole, waiter)))
    }
}
