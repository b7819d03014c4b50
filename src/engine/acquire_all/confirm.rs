//! The end of an acquisition of several names: confirm all grants or release them.

use super::{MultiAcquire, StoredLock};
use crate::engine::{AcquireRequest, EndsWith, Engine, WaitPolicy, Waiting};
use crate::error::Result;
use crate::lock::{CommitRecord, Grant, Phase};
use crate::store::Durability;

/// Confirms all provisional grants permanently, or none. Returns `None` if a grant was lost in the meantime. A new
/// grant has another token, which is of no use to a caller that knows the old one.
/// Fails if a store cannot be read or written. Some of the grants may be permanent then.
pub fn confirm_all(locks: &[StoredLock<'_>], request: &AcquireRequest, grants: &[Grant]) -> Result<Option<Vec<Grant>>> {
    let held = if let [StoredLock { engine, name }] = locks {
        engine.confirm(name, request)?.map(|grant| vec![grant])
    } else {
        let mut on_wait = |_: usize, _: &Waiting<'_>| None;
        let mut several = MultiAcquire::new(locks, request, &WaitPolicy::NONE, None, &mut on_wait);
        several.held = grants.iter().cloned().map(Some).collect();
        several.confirm()?.then(|| several.held.into_iter().flatten().collect())
    };
    let are_the_same =
        |held: &Vec<Grant>| held.iter().map(|grant| grant.token).eq(grants.iter().map(|grant| grant.token));
    Ok(held.filter(are_the_same))
}

impl MultiAcquire<'_, '_> {
    /// Makes the grants permanent. Returns `false` if a grant was lost in the meantime.
    pub(super) fn confirm(&mut self) -> Result<bool> {
        if self.are_one_change() {
            // A later call of [`confirm_all`] accepts no new grant.
            let phase = if self.request.phase == Phase::Provisional { Phase::Confirm } else { Phase::Direct };
            let all_permanent = self.held.iter().all(|held| held.as_ref().is_some_and(|it| it.provisional.is_none()));
            return Ok(all_permanent || self.take_together(phase)?.is_none());
        }
        // Grants that end with this process anyway need no commit record to end together.
        if self.request.ends_with != EndsWith::Owner {
            return self.confirm_each();
        }
        let proof = self.request.handle.proof();
        let durability = self.request.claim.as_ref().map_or(Durability::Volatile, |_| Durability::Durable);
        let mut decided = Ok(true);
        for (engine, names) in self.stores() {
            decided = decided.and_then(|so_far| Ok(so_far && engine.commit_all(&proof, &names, durability)?));
        }
        let confirmed = decided.and_then(|decided| Ok(decided && self.confirm_each()?));
        for (engine, _) in self.stores() {
            let forgotten = engine.remove_auxiliary(&CommitRecord::key(&proof), Durability::Volatile);
            // A commit record that was carried out does no harm; `gc` removes it.
            if !matches!(confirmed, Ok(true)) {
                forgotten?;
            }
        }
        confirmed
    }

    /// Makes each grant permanent by a commit of its own. Returns `false` if a grant was lost in the meantime.
    fn confirm_each(&mut self) -> Result<bool> {
        for (StoredLock { engine, name }, held) in self.locks.iter().zip(&mut self.held) {
            match engine.confirm(name, self.request)? {
                Some(grant) => *held = Some(grant),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Returns the stores with several grants of ours. A process killed during its commit may have decided for some.
    fn stores(&self) -> Vec<(&Engine, Vec<&[u8]>)> {
        let mut stores: Vec<(&Engine, Vec<&[u8]>)> = Vec::new();
        for (StoredLock { engine, name }, held) in self.locks.iter().zip(&self.held) {
            // A name that is claimed under the same id already has another handle hash.
            if held.as_ref().is_none_or(|grant| grant.proof != self.request.handle.proof()) {
                continue;
            }
            match stores.iter_mut().find(|(known, _)| std::ptr::eq(*known, *engine)) {
                Some((_, names)) => names.push(name),
                None => stores.push((engine, vec![name])),
            }
        }
        stores.retain(|(_, names)| names.len() > 1);
        stores
    }

    /// Releases all grants, the last one first. Tries each of them, even if an earlier release failed.
    pub(super) fn release(&mut self) -> Result<()> {
        let mut done = Ok(());
        for (StoredLock { engine, name }, held) in self.locks.iter().zip(&mut self.held).rev() {
            if held.take().is_some() {
                done = done.and(engine.release(name, self.request.handle.proof()).map(drop));
            }
        }
        done
    }
}
