//! The record of one name: its holders, its waiters and the last grants that ended.
//!
//! [`super::decide`] keeps these invariants; a record that violates the first or the fourth is unreadable:
//! - `holders` fit together: one exclusive, any number of shared, or at most `slots` with distinct slots;
//! - `waiters` are in order of arrival, and the first of them does not fit beside `holders`;
//! - a waiter that came when `waiters` was full is on one of the `pages` ([`super::Page`]), behind all of `waiters`;
//! - a handle hash occurs once, in one of the two lists;
//! - tokens grow in the order of granting.

use std::collections::HashSet;

use super::handle::HandleHash;
use super::sighting::Sighting;
use super::value::Value;

/// Number of past grants that a record always keeps.
const ENDINGS_KEPT: usize = 4;

/// Maximum number of past grants in a record, including those that stay until a process has learned of them.
const MOST_ENDINGS: usize = 256;

/// State of one lock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// Name of the lock, stored so that a reader detects a record that two names share.
    pub name: Vec<u8>,
    /// Maximum number of holders if they have [`Mode::Slot`].
    pub slots: Option<u32>,
    /// Grants in the order of granting.
    pub holders: Vec<Grant>,
    /// First waiters of the queue, in order of arrival.
    pub waiters: Vec<Waiter>,
    /// Pages with the other waiters of the queue.
    pub pages: Option<Pages>,
    /// Value that the lock guards, if the name has a value.
    pub value: Option<Value>,
    /// Last grants that ended, oldest first, for retries after a lost reply and for late holders. An ending that [is
    /// owed](EndedGrant::is_owed) stays until its process learns of it or dies. After a decision the list has all
    /// endings of that decision; a store keeps only the last few.
    pub ended_grants: Vec<EndedGrant>,
    /// Leases of other hosts that callers on any host saw in this record. The store keeps only the sightings whose
    /// lease is still in the record.
    pub sightings: Vec<Sighting>,
}

/// Numbers of the pages that the end of a long queue is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pages {
    /// Number of the page that is served next.
    pub first: u64,
    /// Number of the page that newcomers enter.
    pub last: u64,
}

/// Part of the lock that a caller wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub enum Mode {
    /// The whole lock.
    Exclusive,
    /// A share beside any number of other readers.
    Shared,
    /// A slot out of `slots`.
    Slot,
}

/// Entry of one holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Hash of the handle that proves the grant.
    pub proof: HandleHash,
    /// Fencing token. `None` only in a record that is not stored yet; the token is then the version of that record.
    pub token: Option<u64>,
    /// Part of the lock that the holder has.
    pub mode: Mode,
    /// Slot number, from 0; 0 unless the mode is [`Mode::Slot`].
    pub slot: u32,
    /// Owner of the grant.
    pub owner: Owner,
    /// Lifetime of the grant.
    pub lifetime: Lifetime,
    /// Time of granting, in milliseconds since 1970 on the writer's clock; for display only, never compared.
    pub since: u64,
    /// Time that the holder waited, in milliseconds on that clock; for display only.
    pub waited: u64,
    /// Waiter that another process granted the lock to, until the waiter confirms. The grant ends with that process,
    /// unless a commit record keeps it ([`super::CommitRecord`]).
    pub provisional: Option<ProcessId>,
    /// True if the owner's end releases the grant and does not count as a loss.
    pub release_on_exit: bool,
    /// Id of the claim, if the name is claimed. A claim is permanent and depends on no process.
    pub claim: Option<Vec<u8>>,
}

/// Entry of one waiter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Waiter {
    /// Hash of the waiter's handle; the waiter's channel is derived from it.
    pub proof: HandleHash,
    /// Part of the lock that the waiter wants.
    pub mode: Mode,
    /// Owner of the future grant.
    pub owner: Owner,
    /// Process that waits; its death ends the wait.
    pub process: ProcessId,
    /// Lifetime of the future grant.
    pub lifetime: Lifetime,
    /// True if the waiter must confirm a grant before its owner counts as the owner of the lock.
    pub needs_confirmation: bool,
    /// True if the owner's end will release the grant ([`Grant::release_on_exit`]).
    pub release_on_exit: bool,
    /// Id of the claim, if the waiter claims the name ([`Grant::claim`]).
    pub claim: Option<Vec<u8>>,
    /// Grants that the waiter works under, here or under other names; they do not end before this wait does.
    pub enclosing_grants: Vec<HandleHash>,
    /// Processes, innermost first, that continue only when this wait is over: the scripts that wait.
    pub blocked_processes: Vec<ProcessId>,
    /// Lease until which the waiter counts as alive, if other hosts cannot see its process.
    pub lease: Option<Lease>,
    /// Time of arrival, in milliseconds since 1970 ([`Grant::since`]).
    pub since: u64,
}

/// A grant that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedGrant {
    /// The grant.
    pub grant: Grant,
    /// Reason for the end.
    pub reason: EndReason,
}

impl EndedGrant {
    /// Returns true if a process must still learn of this ending. The supervisor takes a grant without a trace for
    /// lost; the owner of a broken grant must learn of the break.
    pub fn is_owed(&self) -> bool {
        let owner = &self.grant.owner;
        match self.reason {
            EndReason::Released | EndReason::Died => owner.supervisor.is_some(),
            // A supervisor takes a grant without a trace for lost, so an expired grant needs no trace.
            EndReason::Expired => false,
            // A claim has neither a supervisor nor a process, so no process asks for its ending.
            EndReason::Broken => owner.supervisor.is_some() || !owner.processes.is_empty(),
        }
    }
}

/// Reason why a grant ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// The holder released the grant.
    Released,
    /// The owner died.
    Died,
    /// The lease expired.
    Expired,
    /// A user broke the grant with `--force`.
    Broken,
}

/// Owner of a grant: the processes that the grant depends on, and details about them for display.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Owner {
    /// Domain that the processes run in.
    pub domain: PidDomain,
    /// Processes of the owner; the first live one is the effective owner. Empty if the grant depends on no process.
    pub processes: Vec<ProcessId>,
    /// Process that waits for the owner's end, then releases the lock, and reports a lost lock. Only `run-with-lock`
    /// has a supervisor.
    pub supervisor: Option<ProcessId>,
    /// Host name, for display.
    pub host: String,
    /// Numeric user id.
    pub uid: u32,
    /// Command that runs, or that made the request.
    pub command: Vec<u8>,
    /// Text of `--label`.
    pub label: Option<Vec<u8>>,
}

/// Domain in which pids are unique: one boot of one kernel and one pid namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct PidDomain {
    /// Machine, the same for all its boots: machine-id(5) or, if that is missing, the host name.
    pub machine: String,
    /// Boot id from /proc/sys/kernel/random/boot_id.
    pub boot: String,
    /// Pid and time namespace; pids and start times are comparable only within one namespace.
    pub pids: String,
    /// Network namespace; csalock can wake a waiter only within one namespace.
    pub net: u64,
}

impl Waiter {
    /// Returns the waiting process and its pid domain.
    pub fn waits_where(&self) -> (PidDomain, ProcessId) {
        (self.owner.domain.clone(), self.process)
    }
}

impl Pages {
    /// Returns true if the range contains the page with this number.
    pub fn has(&self, number: u64) -> bool {
        (self.first..=self.last).contains(&number)
    }
}

impl PidDomain {
    /// Returns true if pids and start times have the same meaning in both domains.
    pub fn shares_pids_with(&self, other: &PidDomain) -> bool {
        self.boot == other.boot && self.pids == other.pids
    }
}

/// Identity of a process, which differs from that of a later process with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct ProcessId {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot, field 22 of proc_pid_stat(5).
    pub start: u64,
}

/// Lifetime of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub enum Lifetime {
    /// The grant lasts while its owner lives.
    WhileOwnerLives,
    /// The grant lasts while its owner lives, for at most this many milliseconds; the lease has not started yet.
    Ttl(u64),
    /// The grant lasts while its owner lives, until the lease is over.
    ExpiresAt(Lease),
    /// The grant lasts while its owner lives, by renewed leases of this many milliseconds; none has started yet.
    KeepalivePending(u64),
    /// The grant lasts while its owner lives, until the lease is over; the keeper renews the lease before that.
    Keepalive(Lease),
    /// The grant is over: the process that renewed it saw its owner die.
    OwnerDied,
    /// The grant lasts until it is released.
    UntilReleased,
}

/// An end time on a clock that all users of the store share.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Lease {
    /// Clock that the lease counts on.
    pub clock: LeaseClock,
    /// End on that clock, in milliseconds.
    pub ends: u64,
    /// End in milliseconds since 1970, on the starter's wall clock: for display, and for decisions after a reboot.
    pub wall: u64,
}

/// Clocks that a lease may count on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub enum LeaseClock {
    /// CLOCK_BOOTTIME of one boot.
    Boot(String),
    /// CLOCK_BOOTTIME of each host that sees the lease, because a user may set the clock of a file system. A host takes
    /// the lease for over after it was in the record for its whole span. The end is on the clock by which the store's
    /// file system stamps new files.
    FileSystem(Begun),
    /// etcd's clock, for the lease with this id. Only etcd knows when that lease ends.
    Etcd(u64),
}

/// Start of a lease on its holder's host. No two leases have the same start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Begun {
    /// Boot of the host that started the lease ([`super::boot_of`]).
    pub boot: u64,
    /// Start in microseconds on that host's CLOCK_BOOTTIME.
    pub at: u64,
    /// Duration of the lease in milliseconds.
    pub span: u64,
}

impl Lifetime {
    /// Returns the lease that limits this lifetime, if the lease has started.
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
    /// Creates a record without holders and waiters.
    pub fn free(name: &[u8]) -> Record {
        Record { name: name.to_vec(), ..Record::default() }
    }

    /// Returns the supervisor that releases the grant when this process has ended.
    pub(crate) fn supervisor_of(&self, domain: &PidDomain, process: &ProcessId) -> Option<ProcessId> {
        let parties =
            self.holders.iter().map(|grant| &grant.owner).chain(self.waiters.iter().map(|waiter| &waiter.owner));
        let mut of_it = parties.filter(|owner| owner.processes.contains(process) && owner.domain == *domain);
        of_it.find_map(|party| party.supervisor)
    }

    /// Returns true if the record has no holders and no waiters.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty() && self.pages.is_none()
    }

    /// Returns the violated invariant, among those that the record alone reveals. csalock writes no such record, and a
    /// reader cannot trust any conclusion from it.
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

    /// Returns the endings that the stored record keeps.
    pub(super) fn kept_endings(&self) -> impl Iterator<Item = &EndedGrant> {
        let [recent, owed] = [ENDINGS_KEPT, MOST_ENDINGS].map(|kept| self.ended_grants.len().saturating_sub(kept));
        let kept = move |(at, ending): &(usize, &EndedGrant)| *at >= recent || (*at >= owed && ending.is_owed());
        self.ended_grants.iter().enumerate().filter(kept).map(|(_, ending)| ending)
    }

    /// Returns all leases of holders and waiters.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        let of_holders = self.holders.iter().filter_map(|grant| grant.lifetime.lease());
        let of_waiters = self.waiters.iter().filter_map(|waiter| waiter.lease.as_ref());
        of_holders.chain(of_waiters)
    }

    /// Returns true if the record contains this grant or its ending.
    pub fn knows(&self, proof: &HandleHash) -> bool {
        let mut known = self.holders.iter().chain(self.ended_grants.iter().map(|ending| &ending.grant));
        known.any(|grant| grant.proof == *proof)
    }

    /// Returns true if the record may be removed: it is free, has no value and owes no process an ending.
    pub fn is_removable(&self) -> bool {
        self.is_free() && self.value.is_none() && !self.kept_endings().any(EndedGrant::is_owed)
    }
}
