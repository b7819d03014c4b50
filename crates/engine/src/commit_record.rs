//! Creation of a [`CommitRecord`], and queries about the commit records of other processes.

use super::Engine;
use super::facts::Witnessed;
use lock::error::Result;
use lock::{self, CommitRecord, Credentials, HandleHash, Lifetime, Liveness, Prepare, Release, Sweep};
use store::{Durability, Version, WriteOptions};

impl Engine {
    /// Decides by one commit that all these grants stand. Returns `false` if another process considered this one dead.
    pub(super) fn commit_all(&self, proof: &HandleHash, names: &[&[u8]], durability: Durability) -> Result<bool> {
        let names: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
        let uncommitted = CommitRecord { committed: false, names };
        let Some(version) = self.write_commit_record(proof, None, &uncommitted, durability)? else {
            // An earlier try of this process may have committed them.
            return self.has_committed(proof);
        };
        // An earlier eviction leaves a gap; a later one first removes the commit record, so that the commit fails.
        for name in &uncommitted.names {
            if self.record(name)?.holder(proof).is_none() {
                return Ok(false);
            }
        }
        let committed = CommitRecord { committed: true, ..uncommitted };
        Ok(self.write_commit_record(proof, Some(version), &committed, durability)?.is_some())
    }

    /// `None` if another process has changed the commit record.
    fn write_commit_record(
        &self,
        proof: &HandleHash,
        expect: Option<Version>,
        record: &CommitRecord,
        durability: Durability,
    ) -> Result<Option<Version>> {
        let key = CommitRecord::key(proof);
        let body = lock::encode_auxiliary(&key, record);
        self.write_auxiliary(&key, expect, &body, WriteOptions { durability, mode: None })
    }

    /// Releases these claims of one id, all of them or none. Returns `false` if the id has lost one of them.
    pub fn give_up_claims(&self, names: &[&[u8]], id: &[u8]) -> Result<bool> {
        let of_id = || Ok(Credentials { claim: Some(id.to_vec()), ..self.credentials(None, Vec::new())? });
        if let [name] = names {
            return Ok(self.apply(name, &Release(of_id()?))?.is_ok());
        }
        let (proof, process) = (self.host.new_handle()?.proof(), self.host.this_process()?);
        let names_of = names.iter().map(|name| name.to_vec()).collect();
        let (key, keep) = (CommitRecord::key(&proof), WriteOptions { durability: Durability::Durable, mode: None });
        let body = lock::encode_auxiliary(&key, &CommitRecord { committed: true, names: names_of });
        self.create_auxiliary(&key, &body, keep)?;
        let scope = self.store.scope();
        for name in names {
            // Each grant has its own lease, because the commit that ends a grant ends its lease in the store.
            let lifetime = if self.needs_leases_in(scope) {
                Lifetime::ExpiresAt(self.grant_lease(self.lease)?)
            } else {
                Lifetime::UntilReleased
            };
            self.leave_witness(scope, Witnessed::Entry(name, &proof));
            // If this process ends, the next writer of each earlier name confirms its grant again.
            if self.apply(name, &Prepare { credentials: of_id()?, proof, process, lifetime })?.is_err() {
                return Ok(false);
            }
        }
        self.remove_auxiliary(&key, keep.durability)?;
        for name in names {
            let _ = self.apply(name, &Release(self.by_proof(proof)?))?;
        }
        Ok(true)
    }

    /// A process, which is dead, has committed the grants with this handle hash.
    pub(super) fn has_committed(&self, proof: &HandleHash) -> Result<bool> {
        Ok(self.commit_record(proof)?.is_some_and(|(_, decision)| decision.committed))
    }

    /// True if the grants with this handle hash are committed, and makes the answer final: if their process
    /// `may_commit` them later, a commit record without names bars its way until they are taken back.
    pub(super) fn has_committed_finally(&self, proof: &HandleHash, may_commit: bool) -> Result<bool> {
        loop {
            match self.commit_record(proof)? {
                Some((_, record)) if record.committed => return Ok(true),
                Some((_, record)) if may_commit && record.names.is_empty() => return Ok(false),
                Some((version, _)) => {
                    self.commit_beside(&CommitRecord::key(proof), Some(&version), None, WriteOptions::default())?;
                }
                None if !may_commit => return Ok(false),
                None => {
                    let bar = CommitRecord { committed: false, names: Vec::new() };
                    self.write_commit_record(proof, None, &bar, Durability::Volatile)?;
                }
            }
        }
    }

    fn commit_record(&self, proof: &HandleHash) -> Result<Option<(Version, CommitRecord)>> {
        let key = CommitRecord::key(proof);
        let Some(stored) = self.store.read(self.call, &key)? else { return Ok(None) };
        let found = lock::decode_auxiliary(&stored.body).map_err(|error| error.in_place(&self.store.describe(&key)))?;
        Ok(found.map(|found| (stored.version, found)))
    }

    /// A dead process left this commit record, and all grants that depend on it are confirmed.
    pub(super) fn is_orphaned_commit_record(&self, proof: &HandleHash, dry_run: bool) -> Result<bool> {
        let Some((_, decision)) = self.commit_record(proof)? else { return Ok(false) };
        for name in &decision.names {
            if !dry_run {
                self.apply(name, &Sweep)?;
            }
            let (_, record) = self.read(name)?;
            if let Some(grant) = record.holder(proof)
                && let Some(process) = &grant.provisional
                && (!dry_run || self.liveness(&record, &grant.owner.domain, process) != Liveness::Dead)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
