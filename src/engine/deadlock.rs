//! Deadlock detection: publishing the edges of waits that other waits may depend on, and following these edges.

use std::time::Duration;

use super::Engine;
use crate::error::Result;
use crate::lock::{Cycle, Facts, HandleHash, Liveness, Record, WaitEdges, WaitNode, Waiter, find_cycle};

/// Delay after which a wait publishes its edges and checks for a deadlock. Most waits are shorter.
pub(super) const DEADLOCK_DELAY: Duration = Duration::from_millis(1000);

/// Time between the two checks of a victim. By the second check, members that are not blocked any more have said so.
pub(super) const SECOND_CHECK_DELAY: Duration = Duration::from_millis(100);

/// Maximum number of waits that are followed.
const MOST_WAITS: usize = 2000;

/// Maximum number of published waits of one process for one lock, and of those under one grant. If one of these waits
/// is stuck, all waits behind it are stuck too and block the same processes. A thousand edges under one key would cost
/// each of their waiters a thousand times as much.
const MOST_OF_A_LOCK: usize = 4;

/// Maximum number of differing reads of the same waits before the check is left to the next process.
const MOST_LOOKS: usize = 20;

impl Engine {
    /// Publishes this wait under every key that other processes read, unless a key has enough similar waits. Returns
    /// true if it is published under one key at least.
    pub(super) fn publish(&self, name: &[u8], waiter: &Waiter) -> Result<bool> {
        let edge = (name.to_vec(), waiter.proof);
        let add = |edges: &mut WaitEdges| {
            let alike = edges.waits.iter().filter(|(of, _)| of == name).count();
            if alike < MOST_OF_A_LOCK && !edges.waits.contains(&edge) {
                edges.waits.push(edge.clone());
            }
        };
        let mut is_published = false;
        for key in WaitEdges::keys(waiter) {
            let mut edges = self.change_edges(&key, &add)?;
            if !edges.waits.contains(&edge) {
                let gone = self.gone(&edges)?;
                edges = self.change_edges(&key, &|edges| {
                    edges.waits.retain(|edge| !gone.contains(edge));
                    add(edges);
                })?;
            }
            is_published |= edges.waits.contains(&edge);
        }
        Ok(is_published)
    }

    /// Returns the edges of waits that no longer exist.
    pub(super) fn gone(&self, edges: &WaitEdges) -> Result<Vec<(Vec<u8>, HandleHash)>> {
        let mut gone = Vec::new();
        for (name, proof) in &edges.waits {
            let waits = match self.read(name).and_then(|(_, record)| self.entry(record, proof)) {
                // The unreadable record may still contain the waiter.
                Err(error) if error.is_of_one_record() => continue,
                waits => waits?,
            };
            let lives = waits.is_some_and(|(record, waiter)| {
                self.liveness(&record, &waiter.owner.domain, &waiter.process) != Liveness::Dead
            });
            if !lives {
                gone.push((name.clone(), *proof));
            }
        }
        Ok(gone)
    }

    /// Removes the published edges of a wait.
    pub(super) fn retract(&self, name: &[u8], waiter: &Waiter) -> Result<()> {
        WaitEdges::keys(waiter).iter().try_for_each(|key| {
            self.change_edges(key, &|edges| edges.waits.retain(|(of, proof)| *proof != waiter.proof || of != name))
                .map(drop)
        })
    }

    /// Changes the edges under this key and returns them. An unreadable object is removed, unless it gets edges.
    pub(super) fn change_edges(&self, key: &[u8], change: &dyn Fn(&mut WaitEdges)) -> Result<WaitEdges> {
        self.change_auxiliary(key, &mut |found: &WaitEdges| {
            let mut next = found.clone();
            change(&mut next);
            (next != *found || next.waits.is_empty()).then_some(next)
        })
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
            let mut edges = Vec::new();
            for key in record.holders.iter().flat_map(WaitEdges::keys_of_holder) {
                edges.extend(self.auxiliary::<WaitEdges>(&key)?.1.waits);
            }
            // Holders that wait for no lock release this one, so the wait is not stuck. Most checks end here.
            if edges.is_empty() {
                continue;
            }
            let Some((record, waiter)) = self.entry(record, &proof)? else { continue };
            to_look_at.extend(edges);
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
        if let Some(waiter) = record.waiter(proof).cloned() {
            return Ok(Some((record, waiter)));
        }
        if record.pages.is_none() {
            return Ok(None);
        }
        let whole = self.whole(record)?;
        Ok(whole.waiter(proof).cloned().map(|waiter| (whole, waiter)))
    }
}
