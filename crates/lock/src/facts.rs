//! Facts that the engine found out about the world, as data for [`super::decide`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{DescriptorLock, HandleHash, Lease, Owner, PidDomain, ProcessId, Record, Waiter};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Liveness {
    Alive,
    /// Lives here, but a signal or a debugger has stopped it.
    Stopped,
    Dead,
    /// This host cannot see the process, which never counts as dead.
    Unknown,
    /// The process is not there, but a copy of this machine may run it on a store that both use. It does not count as
    /// dead; it is not the effective owner while another process may live.
    Missing,
}

impl Liveness {
    /// As far as this machine can tell.
    pub fn may_live_here(self) -> bool {
        self.is_seen_alive() || self == Liveness::Unknown
    }

    pub fn is_seen_alive(self) -> bool {
        matches!(self, Liveness::Alive | Liveness::Stopped)
    }
}

/// A question that the engine must answer before [`super::decide`] can decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    Liveness(PidDomain, ProcessId),
    Frozen(PidDomain, ProcessId),
    /// Does this process, or any, have this lock, which a process of the domain took?
    Descriptor(PidDomain, DescriptorLock, Option<ProcessId>),
    LeaseExpired(Lease),
    /// Does this lease last longer than the caller is willing to wait?
    Outlasts(Lease),
    /// Which lease of this many milliseconds starts now?
    NewLease(u64),
    /// Which waiters are on this page of the queue? From now on, no waiter may enter the page.
    Page(u64),
    /// Did the dead process with this hash commit its grants of several names? If not, it must never be able to.
    Committed(HandleHash),
}

/// Answers so far, valid for one read of the record.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Facts {
    /// Wall clock in milliseconds since 1970, which records contain for display.
    pub wall: u64,
    /// A repeated request looks for the trace of the first, because the store may lose the reply to a commit.
    pub replies_get_lost: bool,
    /// Liveness by process, because a record may have thousands of processes.
    pub liveness: BTreeMap<ProcessId, Vec<(PidDomain, Liveness)>>,
    pub frozen: Vec<(PidDomain, ProcessId, bool)>,
    pub descriptors: Vec<(PidDomain, DescriptorLock, Option<ProcessId>, Liveness)>,
    /// Leases by their end, each with true if it is over.
    pub lease_expired: BTreeMap<u64, Vec<(Lease, bool)>>,
    pub outlasts: Vec<(Lease, bool)>,
    pub pages: BTreeMap<u64, Vec<Waiter>>,
    pub committed: Vec<(HandleHash, bool)>,
    /// New leases, with their duration in milliseconds.
    pub new_lease: Vec<(u64, Lease)>,
}

impl Facts {
    pub fn at(wall: u64) -> Facts {
        Facts { wall, ..Facts::default() }
    }

    pub fn insert_liveness(&mut self, domain: PidDomain, process: ProcessId, liveness: Liveness) {
        self.liveness.entry(process).or_default().push((domain, liveness));
    }

    pub(crate) fn frozen(&self, domain: &PidDomain, process: &ProcessId) -> Result<bool, Query> {
        let known = self.frozen.iter().find(|(at, known, _)| known == process && at == domain);
        known.map(|(.., is_frozen)| *is_frozen).ok_or_else(|| Query::Frozen(domain.clone(), *process))
    }

    pub(crate) fn descriptor(
        &self,
        domain: &PidDomain,
        lock: &DescriptorLock,
        by: Option<ProcessId>,
    ) -> Result<Liveness, Query> {
        let known = self.descriptors.iter().find(|(at, known, of, _)| known == lock && at == domain && *of == by);
        known.map(|(.., liveness)| *liveness).ok_or_else(|| Query::Descriptor(domain.clone(), lock.clone(), by))
    }

    pub fn insert_expired(&mut self, lease: Lease, over: bool) {
        self.lease_expired.entry(lease.ends).or_default().push((lease, over));
    }

    pub(crate) fn outlasts(&self, lease: &Lease) -> Result<bool, Query> {
        let known = self.outlasts.iter().find(|(known, _)| known == lease);
        known.map(|(_, outlasts)| *outlasts).ok_or_else(|| Query::Outlasts(lease.clone()))
    }

    pub(crate) fn page(&self, number: u64) -> Result<&[Waiter], Query> {
        self.pages.get(&number).map(Vec::as_slice).ok_or(Query::Page(number))
    }

    pub fn committed(&self, proof: &HandleHash) -> Result<bool, Query> {
        let known = self.committed.iter().find(|(known, _)| known == proof);
        known.map(|(_, is_committed)| *is_committed).ok_or(Query::Committed(*proof))
    }

    pub(crate) fn new_lease(&self, span: u64) -> Result<&Lease, Query> {
        let known = self.new_lease.iter().find(|(known, _)| *known == span);
        known.map(|(_, lease)| lease).ok_or(Query::NewLease(span))
    }

    pub fn liveness(&self, domain: &PidDomain, process: &ProcessId) -> Result<Liveness, Query> {
        let known = self.liveness.get(process).and_then(|known| known.iter().find(|(at, _)| at == domain));
        known.map(|(_, liveness)| *liveness).ok_or_else(|| Query::Liveness(domain.clone(), *process))
    }

    /// This grant is unconfirmed, and its waiter is seen alive.
    pub fn is_awaited(&self, record: &Record, proof: &HandleHash) -> bool {
        let waiter = record.holder(proof).and_then(|grant| Some((&grant.owner.domain, grant.provisional?)));
        waiter.is_some_and(|(domain, process)| self.liveness(domain, &process).is_ok_and(Liveness::is_seen_alive))
    }

    pub(crate) fn lease_expired(&self, lease: &Lease) -> Result<bool, Query> {
        let known =
            self.lease_expired.get(&lease.ends).and_then(|known| known.iter().find(|(known, _)| known == lease));
        known.map(|(_, over)| *over).ok_or_else(|| Query::LeaseExpired(lease.clone()))
    }

    /// First owner process that may live, or else the last missing one. `None` if all are surely dead.
    pub fn effective_owner(&self, owner: &Owner) -> Result<Option<(ProcessId, Liveness)>, Query> {
        let mut missing = None;
        for process in &owner.processes {
            match self.liveness(&owner.domain, process)? {
                Liveness::Dead => {}
                Liveness::Missing => missing = Some((*process, Liveness::Missing)),
                liveness => return Ok(Some((*process, liveness))),
            }
        }
        Ok(missing)
    }
}
