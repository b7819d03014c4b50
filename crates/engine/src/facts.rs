//! The facts that a decision about a record asks for.
//!
//! A decision restarts after each answer, which is cheap for sixteen waiters and a few holders. A shared lock or
//! untrusted input may have thousands, and each of them would cost as much as all of them. Facts about many are
//! therefore fetched before the decision.
//!
//! On a store that other hosts may share, a process that is absent here is not proof of death: a copy of this machine
//! may run it. So a process leaves a witness in this machine's memory before it writes an entry into such a store. An
//! entry is dead if its witness is here and its process is not. Without a witness the lease decides.
//!
//! A store may keep nothing of a lock that was released. Such a witness proves that a script has released it.

use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::Engine;
use lock::{Facts, Grant, HandleHash, Liveness, Owner, PidDomain, ProcessId, Query, Record, Result, Standing, Waiter};
use store::{Location, Scope};

/// Maximum number of entries whose liveness is queried only on demand.
const CROWD: usize = 64;

/// Maximum number of holders whose leases are queried one by one.
const FEW_LEASES: usize = 4;

/// Age of witnesses that `gc` removes, and a few of the processes that leave one. The host of a witness removes it with
/// the entry, but not if another host has removed the entry or the store is gone. If an entry is older than that, its
/// lease alone decides whether its owner is dead.
pub(super) const OLD_WITNESS: Duration = Duration::from_secs(24 * 3600);

impl Engine {
    /// Collects facts about the leases of the holders, and about all processes of a record, if they are many.
    pub(super) fn prefetch(&self, record: &Record, facts: &mut Facts) -> Result<()> {
        if record.holders.len() > FEW_LEASES {
            let leases: Vec<_> = record.holders.iter().filter_map(|grant| grant.lifetime.lease()).collect();
            self.store.leases().look_ahead(self.call, &leases)?;
        }
        if record.holders.len() + record.waiters.len() <= CROWD {
            return Ok(());
        }
        for grant in &record.holders {
            while let Err(query) = Standing::of(grant, facts) {
                // This query is not prefetched, because its answer may force a decision about the commit.
                if matches!(query, Query::Committed(_)) {
                    break;
                }
                self.learn(record, facts, query, None)?;
            }
        }
        for waiter in &record.waiters {
            if let Err(query) = facts.liveness(&waiter.owner.domain, &waiter.process) {
                self.learn(record, facts, query, None)?;
            }
        }
        Ok(())
    }

    /// Answers a query of the decision about this record, as it was read, and adds the answer to the facts.
    pub(super) fn learn(
        &self,
        record: &Record,
        facts: &mut Facts,
        query: Query,
        time_left: Option<Duration>,
    ) -> Result<()> {
        match query {
            Query::Outlasts(lease) => {
                let left = self.store.leases().time_to_expiry(self.call, &lease, &record.sightings)?;
                facts.outlasts.push((lease, time_left.is_some_and(|time_left| left > time_left)));
            }
            // For display and deadlock checks only: the answer for a decision is final, and may take a write.
            Query::Committed(proof) => facts.committed.push((proof, self.has_committed(&proof)?)),
            Query::NewLease(span) => {
                facts.new_lease.push((span, self.store.leases().grant(self.call, Duration::from_millis(span))?))
            }
            Query::Page(number) => _ = facts.pages.insert(number, self.seal(&record.name, number)?),
            Query::Liveness(domain, process) => {
                let liveness = self.liveness_with(record, facts, &domain, &process);
                let is_released = || {
                    let depends = |owner: &&Owner| owner.domain == domain && owner.processes.contains(&process);
                    let supervisor = record.owners().filter(depends).find_map(|owner| owner.supervisor);
                    supervisor.is_some_and(|supervisor| self.host.is_released_by(&supervisor, &domain, &process))
                };
                let lived = liveness == Liveness::Dead
                    && (is_released() || self.was_confirmed_since(record, &domain, &process)?);
                facts.insert_liveness(domain, process, if lived { Liveness::Alive } else { liveness });
            }
            Query::Frozen(domain, process) => {
                let is_frozen = self.host.is_frozen(&domain, &process);
                facts.frozen.push((domain, process, is_frozen));
            }
            Query::Descriptor(domain, lock, by) => {
                let liveness = match by {
                    Some(process) => self.host.descriptor_of(&process, &lock),
                    None => self.host.descriptor(&domain, &lock, self.store.scope()),
                };
                facts.descriptors.push((domain, lock, by, liveness));
            }
            Query::LeaseExpired(lease) => {
                let over = self.lease_expired(record, &lease)?;
                facts.insert_expired(lease, over);
            }
        }
        Ok(())
    }

    /// Returns true if a grant of this record depended on this process at the read and no longer does. The process then
    /// confirmed that grant before it ended, so its end proves nothing.
    fn was_confirmed_since(&self, record: &Record, domain: &PidDomain, process: &ProcessId) -> Result<bool> {
        let depend = |record: &Record| -> Vec<HandleHash> {
            let on_it = |grant: &&Grant| grant.provisional.as_ref() == Some(process) && grant.owner.domain == *domain;
            record.holders.iter().filter(on_it).map(|grant| grant.proof).collect()
        };
        let before = depend(record);
        Ok(!before.is_empty() && depend(&self.read(&record.name)?.1) != before)
    }

    pub(super) fn liveness(&self, record: &Record, domain: &PidDomain, process: &ProcessId) -> Liveness {
        self.liveness_with(record, &Facts::default(), domain, process)
    }

    /// Liveness of a process with entries in this record, or among the waiters fetched from its pages.
    pub(super) fn liveness_with(
        &self,
        record: &Record,
        fetched: &Facts,
        domain: &PidDomain,
        process: &ProcessId,
    ) -> Liveness {
        match self.host.liveness(domain, process, self.store.scope()) {
            Liveness::Missing if self.is_witnessed(record, fetched, domain, process) => Liveness::Dead,
            liveness => liveness,
        }
    }

    /// Leaves a witness of an object that this host is about to write into a store of this scope.
    pub(super) fn leave_witness(&self, scope: Scope, of: Witnessed<'_>) {
        if scope == Scope::Shared {
            self.leave(&of.key(), b"");
        }
    }

    fn leave(&self, key: &str, text: &[u8]) {
        self.host.leave_witness(key, text);
        // The keys are random, so one of 256 processes does this, even where no process calls `gc`.
        if key.ends_with("00") {
            self.host.remove_old_witnesses(OLD_WITNESS);
        }
    }

    /// For [`Engine::has_released`] by the script that has released this grant.
    pub fn leave_release(&self, name: &[u8], grant: &Grant) {
        let place = self.store.describe(name);
        let processes = grant.owner.processes.iter();
        processes.for_each(|process| self.leave(&Witnessed::Place(place.as_bytes(), process).key(), b""));
    }

    /// For a later `unlock --all` of the owner, which may then be in another directory.
    pub(super) fn leave_directory(&self, owner: &Owner) {
        if let Some(directory) = self.location.as_ref().and_then(Location::directory_of_files) {
            let place = directory.as_os_str().as_bytes();
            owner.processes.iter().for_each(|process| self.leave(&Witnessed::Place(place, process).key(), place));
        }
    }

    /// One of these processes has released a lock of this name before.
    pub fn has_released(&self, name: &[u8], owners: &[ProcessId]) -> bool {
        let (place, uid) = (self.store.describe(name), self.host.uid());
        owners.iter().any(|owner| self.host.has_witness(&Witnessed::Place(place.as_bytes(), owner).key(), uid))
    }

    pub(super) fn remove_witness(&self, of: Witnessed<'_>) {
        if self.store.scope() == Scope::Shared {
            self.host.remove_witness(&of.key());
        }
    }

    /// A writer at work may still make a record reference its bytes.
    pub(super) fn may_be_writing(&self, key: &[u8], writer: &Owner) -> bool {
        writer.processes.iter().any(|owner| match self.host.liveness(&writer.domain, owner, self.store.scope()) {
            Liveness::Dead => false,
            Liveness::Missing => !self.host.has_witness(&Witnessed::Value(key).key(), writer.uid),
            Liveness::Alive | Liveness::Stopped | Liveness::Unknown => true,
        })
    }

    pub(super) fn remove_witnesses(&self, before: &Record, now: &Record) {
        if self.store.scope() == Scope::Shared {
            let gone = entries(before).map(|(proof, ..)| proof).filter(|proof| !now.has_entry(proof));
            gone.for_each(|proof| self.host.remove_witness(&Witnessed::Entry(&before.name, &proof).key()));
        }
    }

    /// This host wrote all entries that depend on this process.
    fn is_witnessed(&self, record: &Record, fetched: &Facts, domain: &PidDomain, process: &ProcessId) -> bool {
        let of_it = |at: &PidDomain, processes: &[ProcessId]| at == domain && processes.contains(process);
        let all = entries(record).chain(fetched.pages.values().flatten().map(of_waiter));
        let mut all = all.filter(|(_, at, _, processes)| of_it(at, processes)).peekable();
        all.peek().is_some()
            && all.all(|(proof, _, uid, _)| self.host.has_witness(&Witnessed::Entry(&record.name, &proof).key(), uid))
    }
}

/// Handle hash, pid domain and user id of an entry, and the processes that it depends on.
type Entry<'a> = (HandleHash, &'a PidDomain, u32, Vec<ProcessId>);

fn entries(record: &Record) -> impl Iterator<Item = Entry<'_>> {
    let holders = record.holders.iter().map(|grant| entry(grant.proof, &grant.owner, grant.provisional));
    holders.chain(record.waiters.iter().map(of_waiter))
}

fn of_waiter(waiter: &Waiter) -> Entry<'_> {
    entry(waiter.proof, &waiter.owner, Some(waiter.process))
}

fn entry(proof: HandleHash, owner: &Owner, process: Option<ProcessId>) -> Entry<'_> {
    (proof, &owner.domain, owner.uid, owner.processes.iter().copied().chain(process).collect())
}

/// An object of which a host keeps a witness.
#[derive(Clone, Copy)]
pub(super) enum Witnessed<'a> {
    /// Grant or waiter of this name.
    Entry(&'a [u8], &'a HandleHash),
    /// Bytes of an external value, by their store name.
    Value(&'a [u8]),
    /// Place of a record whose lock this process has released, or directory in which it has locked files. The host
    /// removes it after the process.
    Place(&'a [u8], &'a ProcessId),
}

impl Witnessed<'_> {
    /// A user who cannot read the record cannot guess this name of a witness.
    fn key(self) -> String {
        let mut key = String::new();
        let digest = match self {
            Witnessed::Entry(name, proof) => Sha256::new().chain_update(proof.to_string()).chain_update(name),
            Witnessed::Value(key) => Sha256::new().chain_update(key),
            Witnessed::Place(place, process) => {
                key = format!("{process}:");
                Sha256::new().chain_update(place)
            }
        };
        key.extend(digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")));
        key
    }
}
