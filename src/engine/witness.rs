//! Proof of death on a store that other hosts may share. A process that is absent here is not proof: a copy of this
//! machine may run it. So a process leaves a witness in this machine's memory before it writes an entry into such a
//! store. An entry is dead if its witness is here and its process is not. Without a witness the lease decides.

use sha2::{Digest, Sha256};

use super::Engine;
use super::gc::OLD_WITNESS;
use crate::lock::{Facts, HandleHash, Liveness, Owner, PidDomain, ProcessId, Record, Waiter};
use crate::store::Scope;

impl Engine {
    pub(super) fn liveness(&self, record: &Record, domain: &PidDomain, process: &ProcessId) -> Liveness {
        self.fate_in(record, &Facts::default(), domain, process)
    }

    /// Returns the liveness of a process with entries in this record, or among the waiters fetched from its pages.
    pub(super) fn fate_in(
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

    /// Leaves a witness of an entry that this host is about to write under this name, in a store with the scope `scope`.
    pub(super) fn leave_witness(&self, scope: Scope, name: &[u8], proof: &HandleHash) {
        if scope == Scope::Shared {
            let key = key(name, proof);
            self.host.leave_witness(&key);
            // The keys are random, so one of 256 processes does this, even where no process calls `gc`.
            if key.starts_with("00") {
                self.host.remove_old_witnesses(OLD_WITNESS);
            }
        }
    }

    pub(super) fn remove_witness(&self, name: &[u8], proof: &HandleHash) {
        if self.store.scope() == Scope::Shared {
            self.host.remove_witness(&key(name, proof));
        }
    }

    /// Leaves a witness of value bytes that this host is about to write under this key.
    pub(super) fn leave_witness_of_value(&self, key: &[u8]) {
        if self.store.scope() == Scope::Shared {
            self.host.leave_witness(&hash(&[key]));
        }
    }

    pub(super) fn remove_witness_of_value(&self, key: &[u8]) {
        if self.store.scope() == Scope::Shared {
            self.host.remove_witness(&hash(&[key]));
        }
    }

    /// Returns true if the writer of these bytes may still make a record reference them.
    pub(super) fn may_be_writing(&self, key: &[u8], writer: &Owner) -> bool {
        writer.processes.iter().any(|owner| match self.host.liveness(&writer.domain, owner, self.store.scope()) {
            Liveness::Dead => false,
            Liveness::Missing => !self.host.has_witness(&hash(&[key]), writer.uid),
            Liveness::Alive | Liveness::Unknown => true,
        })
    }

    pub(super) fn remove_witnesses(&self, before: &Record, now: &Record) {
        if self.store.scope() == Scope::Shared {
            let gone = entries(before).map(|(proof, ..)| proof).filter(|proof| !now.has_entry(proof));
            gone.for_each(|proof| self.host.remove_witness(&key(&before.name, &proof)));
        }
    }

    /// Returns true if this host wrote all entries that depend on this process.
    fn is_witnessed(&self, record: &Record, fetched: &Facts, domain: &PidDomain, process: &ProcessId) -> bool {
        let of_it = |at: &PidDomain, processes: &[ProcessId]| at == domain && processes.contains(process);
        let all = entries(record).chain(fetched.waiters_on_pages().map(of_waiter));
        let mut all = all.filter(|(_, at, _, processes)| of_it(at, processes)).peekable();
        all.peek().is_some() && all.all(|(proof, _, uid, _)| self.host.has_witness(&key(&record.name, &proof), uid))
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

/// Returns the name of an entry's witness. A user who cannot read the record cannot guess the name.
fn key(name: &[u8], proof: &HandleHash) -> String {
    hash(&[proof.to_string().as_bytes(), name])
}

fn hash(parts: &[&[u8]]) -> String {
    let digest = parts.iter().fold(Sha256::new(), |digest, part| digest.chain_update(part)).finalize();
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
