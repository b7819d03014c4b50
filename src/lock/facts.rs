//! What the engine found out about the world, as data for [`super::decide`].

#[cfg(debug_assertions)]
pub(super) mod trace;

use std::collections::BTreeMap;

use super::handle::HandleHash;
use super::record::{Lease, PidDomain, ProcessId, Waiter};

/// What is known of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub enum Liveness {
    /// It lives.
    Alive,
    /// It is gone for sure.
    Dead,
    /// It cannot be seen from here, which is never taken for death.
    Unknown,
    /// It is not there, but a copy of this machine may run it, on a store that both use. So it is not taken for death; but
    /// it is not the owner that counts as long as another one may live.
    Missing,
}

impl Liveness {
    /// Whether it may live, as far as this machine can tell.
    pub fn may_live_here(self) -> bool {
        matches!(self, Liveness::Alive | Liveness::Unknown)
    }
}

/// A question that must be answered before the protocol can decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// Does this process live?
    Liveness(PidDomain, ProcessId),
    /// Is this lease over?
    LeaseExpired(Lease),
    /// Does this lease last longer than the asker is willing to wait?
    Outlasts(Lease),
    /// Which lease of so many milliseconds begins now?
    NewLease(u64),
    /// Who waits on this page of the queue? From now on, nobody may enter it.
    Page(u64),
    /// Has whoever was granted several names under this proof, and is dead, decided that the grants stand? If not, he must
    /// not be able to any more.
    Committed(HandleHash),
}

/// The answers so far. They hold for one look at the record; the next look starts afresh.
#[derive(Debug, Clone, Default)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(debug_assertions, serde(from = "trace::Answers", into = "trace::Answers"))]
pub struct Facts {
    /// Wall clock, milliseconds since 1970: goes into records to be shown.
    pub wall: u64,
    /// By pid and start, for a record may have thousands of them.
    fates: BTreeMap<(i32, u64), Vec<(PidDomain, Liveness)>>,
    /// By the end.
    over: BTreeMap<u64, Vec<(Lease, bool)>>,
    outlasts: Vec<(Lease, bool)>,
    pages: BTreeMap<u64, Vec<Waiter>>,
    decided: Vec<(HandleHash, bool)>,
    /// By how long they last.
    lent: Vec<(u64, Lease)>,
}

impl Facts {
    /// Nothing known but the time to show.
    pub fn at(wall: u64) -> Facts {
        Facts { wall, ..Facts::default() }
    }

    /// Writes down what became of a process.
    pub fn insert_liveness(&mut self, domain: PidDomain, process: ProcessId, liveness: Liveness) {
        self.fates.entry((process.pid, process.start)).or_default().push((domain, liveness));
    }

    /// Writes down whether a lease is over.
    pub fn insert_expired(&mut self, lease: Lease, over: bool) {
        self.over.entry(lease.ends).or_default().push((lease, over));
    }

    /// Writes down whether a lease lasts longer than the asker is willing to wait.
    pub fn insert_outlasts(&mut self, lease: Lease, outlasts: bool) {
        self.outlasts.push((lease, outlasts));
    }

    pub(crate) fn outlasts(&self, lease: &Lease) -> Result<bool, Query> {
        let known = self.outlasts.iter().find(|(known, _)| known == lease);
        known.map(|(_, outlasts)| *outlasts).ok_or_else(|| Query::Outlasts(lease.clone()))
    }

    /// Writes down who waits on a page.
    pub fn insert_page(&mut self, number: u64, waiters: Vec<Waiter>) {
        self.pages.insert(number, waiters);
    }

    /// The waiters on all pages that were written down.
    pub fn waiters_on_pages(&self) -> impl Iterator<Item = &Waiter> {
        self.pages.values().flatten()
    }

    pub(crate) fn page(&self, number: u64) -> Result<&[Waiter], Query> {
        self.pages.get(&number).map(Vec::as_slice).ok_or(Query::Page(number))
    }

    /// Writes down whether somebody has decided that his grants stand.
    pub fn insert_committed(&mut self, proof: HandleHash, decided: bool) {
        self.decided.push((proof, decided));
    }

    pub(crate) fn committed(&self, proof: &HandleHash) -> Result<bool, Query> {
        let known = self.decided.iter().find(|(known, _)| known == proof);
        known.map(|(_, decided)| *decided).ok_or(Query::Committed(*proof))
    }

    /// Writes down a lease of so many milliseconds that begins now.
    pub fn insert_new_lease(&mut self, span: u64, lease: Lease) {
        self.lent.push((span, lease));
    }

    pub(crate) fn new_lease(&self, span: u64) -> Result<&Lease, Query> {
        let known = self.lent.iter().find(|(known, _)| *known == span);
        known.map(|(_, lease)| lease).ok_or(Query::NewLease(span))
    }

    pub(crate) fn liveness(&self, domain: &PidDomain, process: &ProcessId) -> Result<Liveness, Query> {
        let known =
            self.fates.get(&(process.pid, process.start)).and_then(|known| known.iter().find(|(at, _)| at == domain));
        known.map(|(_, liveness)| *liveness).ok_or_else(|| Query::Liveness(domain.clone(), *process))
    }

    /// The leases that are over.
    pub(crate) fn expired_leases(&self) -> impl Iterator<Item = &Lease> {
        self.over.values().flatten().filter(|(_, over)| *over).map(|(lease, _)| lease)
    }

    pub(crate) fn lease_expired(&self, lease: &Lease) -> Result<bool, Query> {
        let known = self.over.get(&lease.ends).and_then(|known| known.iter().find(|(known, _)| known == lease));
        known.map(|(_, over)| *over).ok_or_else(|| Query::LeaseExpired(lease.clone()))
    }
}
