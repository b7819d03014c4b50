//! The end of an acquisition of several names: confirm all grants or release them.

use super::{MultiAcquire, StoredLock};
use crate::engine::Engine;
use crate::error::Result;
use crate::lock::CommitRecord;
use crate::store::Durability;

impl MultiAcquire<'_, '_> {
    /// Makes the grants permanent. Until now each one depended on the waiting process, so none outlives it alone, and a
    /// wait for the last name uses up no lease. Returns `false` if a grant was lost in the meantime.
    pub(super) fn confirm(&mut self) -> Result<bool> {
        if self.locks.len() == 1 {
            return if self.until_confirmed { self.confirm_each() } else { Ok(true) };
        }
        if self.are_one_change() {
            let all_permanent = self.held.iter().all(|held| held.as_ref().is_some_and(|it| it.provisional.is_none()));
            return Ok(all_permanent || self.take_together(false)?.is_none());
        }
        // Grants that end with this process anyway need no commit record to end together.
        if !self.alone.owner_outlives_process {
            return self.confirm_each();
        }
        let proof = self.alone.handle.proof();
        let durability = self.alone.claim.as_ref().map_or(Durability::Volatile, |_| Durability::Durable);
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
            match engine.confirm(name, &self.alone)? {
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
            if held.as_ref().is_none_or(|grant| grant.proof != self.alone.handle.proof()) {
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
                done = done.and(engine.release(name, self.alone.handle.proof()).map(drop));
            }
        }
        done
    }
}
