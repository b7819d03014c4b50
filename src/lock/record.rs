//! The record of one name: who holds it, who waits, and how the last grants ended.
//!
//! Invariants, kept by [`super::decide`]; a record in which the first or the fourth does not hold is unreadable:
//! - `holders` fit together: one exclusive, or any number of shared, or at most `slots` with distinct slots;
//! - `waiters` stand in order of arrival, and the first of them does not fit beside `holders`;
//! - who came when `waiters` was full stands in one of the `pages` ([`super::Page`]), behind all of `waiters`;
//! - a proof stands once, in one of the two lists;
//! - tokens rise in the order of granting.

use std::collections::HashSet;

use super::handle::HandleHash;
use super::sighting::Sighting;
use super::value::Value;

/// How many past grants a record remembers.
const ENDINGS_KEPT: usize = 4;

/// Maximum number of past grants in a record, those included that stay until somebody has heard of them.
const MOST_ENDINGS: usize = 256;

/// Everything that is known under one name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// The name itself, so that two names can never share a record unseen.
    pub name: Vec<u8>,
    /// How many may hold at once where the holders have [`Mode::Slot`]s.
    pub slots: Option<u32>,
    /// Those who hold, in order of granting.
    pub holders: Vec<Grant>,
    /// Those who wait, in order of arrival: the first of them.
    pub waiters: Vec<Waiter>,
    /// Where the others wait.
    pub pages: Option<Pages>,
    /// What the lock guards, where that is kept here.
    pub value: Option<Value>,
    /// The last grants that ended, oldest first, so that a lost reply and a late holder can be told. One that
    /// [is owed](EndedGrant::is_owed) stays until that process has heard of it, or died. Of a record that was decided about just now they are all that
    /// ended thereby; of these only the last few are written.
    pub ended_grants: Vec<EndedGrant>,
    /// Leases of other hosts that callers of this host or another one saw here. Only those whose lease is still in the
    /// record are written.
    pub sightings: Vec<Sighting>,
}

/// The pages that the end of a long queue is on, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pages {
    /// The one that is served next.
    pub first: u64,
    /// The one that newcomers go to.
    pub last: u64,
}

/// How much of the lock somebody wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub enum Mode {
    /// All of it.
    Exclusive,
    /// Together with any number of other readers.
    Shared,
    /// One of `slots` places.
    Slot,
}

/// One holder's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// What its handle hashes to.
    pub proof: HandleHash,
    /// The fencing number. `None` only in a record on its way to the store: the version that it gets there.
    pub token: Option<u64>,
    /// How much it holds.
    pub mode: Mode,
    /// Which place it has, from 0; 0 unless [`Mode::Slot`].
    pub slot: u32,
    /// Whose it is.
    pub owner: Owner,
    /// How long it lasts.
    pub lifetime: Lifetime,
    /// When it was granted: milliseconds since 1970 on the clock of whoever wrote it. To be shown, never compared.
    pub since: u64,
    /// How long it was waited for, in milliseconds, by the same clock. To be shown.
    pub waited: u64,
    /// Granted on behalf of this process, which has not yet said that it knows. Till then its life is the grant's,
    /// unless it has decided otherwise ([`super::CommitRecord`]).
    pub provisional: Option<ProcessId>,
    /// Its owner's end gives it back, and is no loss.
    pub release_on_exit: bool,
    /// The id under which the name is claimed, if it is: for good then, and nobody's life counts.
    pub claim: Option<Vec<u8>>,
}

/// One who waits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Waiter {
    /// What its handle hashes to; also where it is woken.
    pub proof: HandleHash,
    /// How much it wants.
    pub mode: Mode,
    /// For whom.
    pub owner: Owner,
    /// The process that waits. When it is dead, so is the wait.
    pub process: ProcessId,
    /// What its grant is to last.
    pub lifetime: Lifetime,
    /// Whether it must confirm a grant before its party is taken for the owner.
    pub needs_confirmation: bool,
    /// As [`Grant::release_on_exit`].
    pub release_on_exit: bool,
    /// As [`Grant::claim`].
    pub claim: Option<Vec<u8>>,
    /// The grants that the waiter already works under, here or under other names: they do not end before this wait does.
    pub enclosing_grants: Vec<HandleHash>,
    /// The processes, innermost first, that go on only when this wait is over: the scripts that wait.
    pub blocked_processes: Vec<ProcessId>,
    /// Where others cannot see its process: until when it is taken for alive.
    pub lease: Option<Lease>,
    /// When it came, as [`Grant::since`].
    pub since: u64,
}

/// A grant that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedGrant {
    /// What it was.
    pub grant: Grant,
    /// How it ended.
    pub reason: EndReason,
}

impl EndedGrant {
    /// Whether a process has yet to hear of it: the supervisor, which takes a grant without a trace for lost; or the owner of
    /// a grant that was broken.
    pub fn is_owed(&self) -> bool {
        let owner = &self.grant.owner;
        match self.reason {
            EndReason::Released | EndReason::Died => owner.supervisor.is_some(),
            // Its supervisor needs no trace of that.
            EndReason::Expired => false,
            // A claim has neither, and no process asks after it.
            EndReason::Broken => owner.supervisor.is_some() || !owner.processes.is_empty(),
        }
    }
}

/// How a grant ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// Given back by its holder.
    Released,
    /// Its owner died.
    Died,
    /// Its lease was over.
    Expired,
    /// Broken with `--force`.
    Broken,
}

/// Whose a grant is: the processes whose life it shares, and what a person wants to know about them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Owner {
    /// Where the processes run.
    pub domain: PidDomain,
    /// The effective owner is the first that lives. Empty: nobody's life counts.
    pub processes: Vec<ProcessId>,
    /// The supervisor: the process that waits for the owner's end, releases the lock then, and reports a lost lock. Only
    /// `run-with-lock` has one.
    pub supervisor: Option<ProcessId>,
    /// The host's name, to be shown.
    pub host: String,
    /// The numeric user.
    pub uid: u32,
    /// What runs, or asked.
    pub command: Vec<u8>,
    /// What `--label` said.
    pub label: Option<Vec<u8>>,
}

/// Where pids mean something: one boot of one kernel, one pid namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct PidDomain {
    /// Which machine, over all its boots: from machine-id(5), or else the host name.
    pub machine: String,
    /// Which boot: /proc/sys/kernel/random/boot_id.
    pub boot: String,
    /// Which pid and time namespace: only within one do pids and start times mean the same.
    pub pids: String,
    /// Which network namespace: only within one can a waiter be rung.
    pub net: u64,
}

impl Waiter {
    /// The process that waits, and where it runs.
    pub fn waits_where(&self) -> (PidDomain, ProcessId) {
        (self.owner.domain.clone(), self.process)
    }
}

impl Pages {
    /// Whether a page with this number is one of them.
    pub fn has(&self, number: u64) -> bool {
        (self.first..=self.last).contains(&number)
    }
}

impl PidDomain {
    /// Whether pids and start times there are pids and start times here.
    pub fn shares_pids_with(&self, other: &PidDomain) -> bool {
        self.boot == other.boot && self.pids == other.pids
    }
}

/// A process, so that another one with the same pid is not taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct ProcessId {
    /// Its pid.
    pub pid: i32,
    /// When it started: clock ticks since boot, field 22 of proc_pid_stat(5).
    pub start: u64,
}

/// How long a grant lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub enum Lifetime {
    /// While its owner lives.
    WhileOwnerLives,
    /// While its owner lives, and at most this long from granting on, in milliseconds: not yet begun.
    Ttl(u64),
    /// While its owner lives, and until the lease is over.
    ExpiresAt(Lease),
    /// While its owner lives, by leases of so many milliseconds that are renewed as long as it does: not yet begun.
    KeepalivePending(u64),
    /// While its owner lives, and until the lease is over, which is renewed before.
    Keepalive(Lease),
    /// It is over: whoever renewed it saw its owner die.
    OwnerDied,
    /// Until it is given back.
    UntilReleased,
}

/// An end, on a clock that all who use the store share.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Lease {
    /// Whose clock counts.
    pub clock: LeaseClock,
    /// The end on that clock, in milliseconds.
    pub ends: u64,
    /// The end on the wall clock of who began it, milliseconds since 1970: shown, and after a reboot believed.
    pub wall: u64,
}

/// The clocks that a lease may count on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub enum LeaseClock {
    /// CLOCK_BOOTTIME of one boot.
    Boot(String),
    /// CLOCK_BOOTTIME of each host that sees it, because the clock of a file system may be set: a host takes the lease for
    /// over when that has been in the record for its whole span. The end is told on the clock that the store's file
    /// system stamps fresh files with.
    FileSystem(Begun),
    /// etcd's own: the lease with this id. It alone knows when that ends.
    Etcd(u64),
}

/// How a lease began for its holder. No two leases agree in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Begun {
    /// The boot of the host that began it ([`super::boot_of`]).
    pub boot: u64,
    /// When, in microseconds on that host's CLOCK_BOOTTIME.
    pub at: u64,
    /// How long it lasts, in milliseconds.
    pub span: u64,
}

impl Lifetime {
    /// The lease that ends it, if one has begun.
    pub fn lease(&self) -> Option<&Lease> {
        match self {
            Lifetime::ExpiresAt(lease) | Lifetime::Keepalive(lease) => Some(lease),
            Lifetime::WhileOwnerLives
            | Lifetime::Ttl(_)
            | Lifetime::KeepalivePending(_)
            | Lifetime::OwnerDied
            | Lifetime::UntilReleased => None,
        }
    }
}

impl Record {
    /// A record in which nobody holds and nobody waits.
    pub fn free(name: &[u8]) -> Record {
        Record { name: name.to_vec(), ..Record::default() }
    }

    /// Who releases for this process when it has ended.
    pub(crate) fn supervisor_of(&self, domain: &PidDomain, process: &ProcessId) -> Option<ProcessId> {
        let parties =
            self.holders.iter().map(|grant| &grant.owner).chain(self.waiters.iter().map(|waiter| &waiter.owner));
        let mut of_it = parties.filter(|owner| owner.processes.contains(process) && owner.domain == *domain);
        of_it.find_map(|party| party.supervisor)
    }

    /// Whether nobody holds and nobody waits.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty() && self.pages.is_none()
    }

    /// Which invariant does not hold, of those that can be seen in the record alone. csalock writes no such record, and
    /// nothing that follows from it can be trusted.
    pub(crate) fn broken_invariant(&self) -> Option<&'static str> {
        let mut proofs = HashSet::new();
        let all = self.holders.iter().map(|grant| grant.proof).chain(self.waiters.iter().map(|waiter| waiter.proof));
        if !all.into_iter().all(|proof| proofs.insert(proof)) {
            return Some("a holder or waiter is there twice");
        }
        let [first, others @ ..] = self.holders.as_slice() else { return None };
        if others.iter().any(|grant| grant.mode != first.mode) {
            return Some("its holders exclude each other");
        }
        let is_claimed = self.holders.iter().any(|grant| grant.claim.is_some());
        if !others.is_empty() && (first.mode == Mode::Exclusive || is_claimed) {
            return Some("it has two exclusive holders");
        }
        let mut places = HashSet::new();
        let places = self.holders.iter().all(|grant| match grant.mode {
            Mode::Slot => self.slots.is_some_and(|slots| grant.slot < slots) && places.insert(grant.slot),
            Mode::Exclusive | Mode::Shared => grant.slot == 0,
        });
        (!places).then_some("a holder has a slot that it cannot have")
    }

    /// The endings that are kept when it is written.
    pub(super) fn kept_endings(&self) -> impl Iterator<Item = &EndedGrant> {
        let [recent, owed] = [ENDINGS_KEPT, MOST_ENDINGS].map(|kept| self.ended_grants.len().saturating_sub(kept));
        let kept = move |(at, ending): &(usize, &EndedGrant)| *at >= recent || (*at >= owed && ending.is_owed());
        self.ended_grants.iter().enumerate().filter(kept).map(|(_, ending)| ending)
    }

    /// All leases in it.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        let of_holders = self.holders.iter().filter_map(|grant| grant.lifetime.lease());
        let of_waiters = self.waiters.iter().filter_map(|waiter| waiter.lease.as_ref());
        of_holders.chain(of_waiters)
    }

    /// Whether it bears this grant, or remembers how it ended.
    pub fn knows(&self, proof: &HandleHash) -> bool {
        let mut known = self.holders.iter().chain(self.ended_grants.iter().map(|ending| &ending.grant));
        known.any(|grant| grant.proof == *proof)
    }

    /// Whether nothing in it needs keeping: it is free and guards no value, and no process has yet to hear how its grant ended.
    pub fn is_removable(&self) -> bool {
        self.is_free() && self.value.is_none() && !self.kept_endings().any(EndedGrant::is_owed)
    }
}
