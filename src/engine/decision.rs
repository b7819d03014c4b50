//! Making a [`Decision`], and asking for somebody else's.

use std::time::Duration;

use super::Engine;
use super::together::Together;
use crate::error::Result;
use crate::lock::{self, Ask, Claimant, Decision, Doubt, Fate, Outcome, Proof, Record, Tenure};
use crate::store::{Durability, Keep, Reach, Swap, Version};

impl Engine {
    /// Decides that all these grants stand. `false`: somebody took us for dead.
    pub(super) fn decide_for(&self, proof: &Proof, names: &[&[u8]], durability: Durability) -> Result<bool> {
        let key = Decision::key(proof);
        let mut decision = Decision { made: false, names: names.iter().map(|name| name.to_vec()).collect() };
        let mut version = None;
        for made in [false, true] {
            decision.made = made;
            let body = lock::encode_decision(&key, &decision);
            let keep = Keep { durability, mode: None };
            // Whoever takes us for dead, and our grants away, before this has left a gap; after this he ends the decision.
            if made && !self.holds_all(names, proof)? {
                return Ok(false);
            }
            match self.decide_once(proof, version.as_ref(), &decision, &body, keep)? {
                Some(stored) => version = Some(stored),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Swaps a decision. `None`: somebody else did.
    fn decide_once(
        &self,
        proof: &Proof,
        expect: Option<&Version>,
        decision: &Decision,
        body: &[u8],
        keep: Keep,
    ) -> Result<Option<Version>> {
        let key = Decision::key(proof);
        let mut race = self.race(&key);
        loop {
            if let Swap::Stored(stored) = self.commit_beside(&key, expect, Some(body), keep)? {
                return Ok(Some(stored));
            }
            match self.decision(proof)? {
                // The reply was lost.
                Some((stored, found)) if found == *decision => return Ok(Some(stored)),
                // A conflict with nobody: a directory was not where it is.
                found if found.as_ref().map(|(version, _)| version) == expect => {
                    race.lost()?;
                }
                _ => return Ok(None),
            }
        }
    }

    /// Gives up these claims of one id, all of them or none. `false`: one of them is its no more.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked or told.
    pub fn give_up_claims(&self, names: &[&[u8]], id: &[u8]) -> Result<bool> {
        let of_id = || Ok(Claimant { claim: Some(id.to_vec()), ..self.claimant(None, Vec::new())? });
        if let [name] = names {
            return Ok(matches!(self.settle(name, &Ask::Release(of_id()?))?, Outcome::Released(_)));
        }
        if self.changes_at_once(names.len()) {
            let of_id = of_id()?;
            let mut decide = |_, record: &Record| self.decide(record, &Ask::Release(of_id.clone()), None);
            let done = self.change_together(
                names,
                &mut decide,
                &|outcome| matches!(outcome, Outcome::Released(_)),
                Duration::MAX,
            )?;
            return Ok(matches!(done, Together::Done(_)));
        }
        let tenure = match self.store.reach() {
            Reach::ThisHost => Tenure::Forever,
            Reach::ManyHosts => Tenure::Until(self.lend(self.lease)?),
        };
        let doubt = Doubt { proof: self.new_handle()?.proof(), process: self.host.this_process()?, tenure };
        let names_of = names.iter().map(|name| name.to_vec()).collect();
        let (key, keep) = (Decision::key(&doubt.proof), Keep { durability: Durability::Lasting, mode: None });
        let body = lock::encode_decision(&key, &Decision { made: true, names: names_of });
        self.commit_beside(&key, None, Some(&body), keep)?;
        for name in names {
            self.leave_witness(name, &doubt.proof);
            // Those before are confirmed again by whoever writes them next, once we are gone.
            if !matches!(self.settle(name, &Ask::Doubt(of_id()?, doubt.clone()))?, Outcome::Renewed(_)) {
                return Ok(false);
            }
        }
        self.remove_beside(&key, keep.durability)?;
        for name in names {
            self.settle(name, &Ask::Release(self.claimant(Some(doubt.proof), Vec::new())?))?;
        }
        Ok(true)
    }

    fn holds_all(&self, names: &[&[u8]], proof: &Proof) -> Result<bool> {
        for name in names {
            let (_, record) = self.read(name)?;
            if record.holders.iter().all(|grant| grant.proof != *proof) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes a decision away that nobody needs any more.
    pub(super) fn forget_decision(&self, proof: &Proof) -> Result<()> {
        self.remove_beside(&Decision::key(proof), Durability::Boot)
    }

    /// Whether somebody, who is dead, has decided that his grants stand.
    pub(super) fn has_decided(&self, proof: &Proof) -> Result<bool> {
        Ok(self.decision(proof)?.is_some_and(|(_, decision)| decision.made))
    }

    /// The same, and it stays like that.
    pub(super) fn has_decided_for_good(&self, proof: &Proof) -> Result<bool> {
        if !self.has_decided(proof)? {
            self.forget_decision_unless_made(proof)?;
        }
        self.has_decided(proof)
    }

    fn forget_decision_unless_made(&self, proof: &Proof) -> Result<()> {
        while let Some((version, Decision { made: false, .. })) = self.decision(proof)? {
            self.commit_beside(&Decision::key(proof), Some(&version), None, Keep::default())?;
        }
        Ok(())
    }

    fn decision(&self, proof: &Proof) -> Result<Option<(Version, Decision)>> {
        let stored = self.store.read(&Decision::key(proof))?;
        Ok(stored.and_then(|stored| Some((stored.version, lock::decode_decision(&stored.body)?))))
    }

    /// Whether a decision was left by somebody who died, once all the grants that depend on it are confirmed.
    pub(super) fn is_left_decision(&self, proof: &Proof, dry_run: bool) -> Result<bool> {
        let Some((_, decision)) = self.decision(proof)? else { return Ok(false) };
        for name in &decision.names {
            if !dry_run {
                self.settle(name, &Ask::Collect)?;
            }
            let (_, record) = self.read(name)?;
            for grant in record.holders.iter().filter(|grant| grant.proof == *proof) {
                if let Some(process) = &grant.unconfirmed
                    && (!dry_run || self.fate(&record, &grant.party.home, process) != Fate::Dead)
                {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}
