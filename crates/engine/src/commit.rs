//! Commits and their effects: the only place in which the engine changes a store.

use std::time::Duration;

use super::facts::Witnessed;
use super::history::Remark;
use super::{Engine, VersionedRecord};
use host::WakeAddress;
use lock::error::{Error, ErrorKind, Result};
use lock::{self, CommitRecord, EndReason, EndedGrant, Grant, HandleHash, Lease, Record, Request, Waiter};
use store::{CommitResult, Durability, LinesOfHistory, Scope, Version, Write, WriteOptions, WriteSet};

pub(super) enum Committed {
    Done(Version),
    /// Another writer committed first. The record as it is, if the store returned it.
    Conflict(Option<VersionedRecord>),
    /// A conflict, or the reply was lost.
    Unclear,
}

impl Engine {
    pub(super) fn commit_beside(
        &self,
        name: &[u8],
        expect: Option<&Version>,
        body: Option<&[u8]>,
        options: WriteOptions,
    ) -> Result<CommitResult> {
        let set = WriteSet::from(Write { name, expect: expect.copied(), body, options });
        let done = self.store.commit(self.call, &set)?;
        if done.is_done() {
            self.store.finish(self.call, &set);
        }
        Ok(done)
    }

    /// Known even if the bytes of the record cannot be read.
    pub(super) fn version(&self, name: &[u8]) -> Result<Option<Version>> {
        match self.store.read(self.call, name) {
            Err(error) => error.version().map_or(Err(error), |version| Ok(Some(version))),
            Ok(stored) => Ok(stored.map(|stored| stored.version)),
        }
    }

    /// Commits the record that replaces `before`, wakes the waiters concerned and logs the ended grants. The store must
    /// have the version `expect`, or no record if that is `None`. The ends of the leases `expired` justify the change.
    pub(super) fn commit_update(
        &self,
        (expect, before): (Option<Version>, &Record),
        record: &Record,
        wake: &[HandleHash],
        expired: &[Lease],
        remark: Remark<'_>,
    ) -> Result<Committed> {
        let body = (!record.is_removable()).then(|| lock::encode(record));
        self.check_size(&record.name, body.as_deref())?;
        // The next holder may end before this process runs again. Its end must not seem to come first.
        let ended_at = self.host.wall();
        let options = WriteOptions { durability: durability(before, record), mode: None };
        let mut set = WriteSet {
            change: Some(Write { name: &record.name, expect, body: body.as_deref(), options }),
            expired: expired.iter().collect(),
            ended: before.leases().filter(|lease| !record.leases().any(|other| other == *lease)).collect(),
            closed: departed(&before.waiters, record).map(|waiter| waiter.proof.channel()).collect(),
            history: LinesOfHistory::new(|| self.endings(before, record, remark, ended_at)),
            limits: self.history_limits,
            ..WriteSet::default()
        };
        for proof in wake {
            let waiter = before.waiter(proof);
            if waiter.is_none_or(|waiter| !self.can_wake(waiter)) {
                set.wake.push((proof.channel(), waiter.and_then(|waiter| waiter.lease.as_ref())));
            }
        }
        let version = match self.store.commit(self.call, &set)? {
            CommitResult::Done(version) => version,
            CommitResult::Conflict(found) => {
                let found = found.and_then(|found| self.record_of(&record.name, Some(found)).ok());
                return Ok(Committed::Conflict(found));
            }
            CommitResult::Unclear => return Ok(Committed::Unclear),
        };
        // A command whose grant was broken should end before the next one starts.
        self.wake_supervisors(before, record);
        self.wake_waiters(wake);
        self.store.finish(self.call, &set);
        self.remove_witnesses(before, record);
        // Leftovers of a failed removal do no harm, and the record is committed already.
        let _ = self.remove_leftovers(before, record);
        Ok(Committed::Done(version))
    }

    /// Wakes the next holders, which start while the store cleans up and writes the history.
    fn wake_waiters(&self, waiters: &[HandleHash]) {
        let awake = waiters.iter().filter(|proof| self.host.wake(WakeAddress::Waiter(proof))).count();
        if awake > 0 {
            self.host.give_way();
        }
    }

    /// Only the store can wake a waiter on another host or in another network namespace. Two copies of one virtual
    /// machine seem to be one host, so a waiter on the other copy notices the change at its next look: a wake-up
    /// through the store, too, would add a write to every handover.
    fn can_wake(&self, waiter: &Waiter) -> bool {
        let there = &waiter.owner.domain;
        self.host.domain().is_ok_and(|here| here.boot == there.boot && here.net == there.net)
    }

    /// Fails if the record is too large to be read again.
    fn check_size(&self, name: &[u8], body: Option<&[u8]>) -> Result<()> {
        if body.is_none_or(|body| body.len() <= lock::MOST_BYTES) {
            return Ok(());
        }
        let what = format!("{} has no room for so many holders", self.store.describe(name));
        Err(Error::new(ErrorKind::System, what, "nothing was changed; try again when some of them are gone"))
    }

    pub(super) fn wake_supervisor(&self, proof: &HandleHash) {
        self.host.wake(WakeAddress::Supervisor(proof));
    }

    /// Wakes the supervisors and keepers of ended grants, except for what a supervisor knows: its own releases, and the
    /// death of its command. A break wakes in any case: a caller without either may wait for the file of its lock.
    fn wake_supervisors(&self, before: &Record, after: &Record) {
        let is_heard = |grant: &Grant| grant.owner.supervisor.is_some() || grant.lifetime.lease().is_some();
        let is_over = |grant: &&Grant| after.holder(&grant.proof).is_none();
        for grant in before.holders.iter().filter(is_over) {
            let ending = after.ended_grants.iter().rev().find(|ending| ending.grant.proof == grant.proof);
            let is_known = |ending: &EndedGrant| match ending.reason {
                EndReason::Died | EndReason::Ended => true,
                EndReason::Released => ending.grant.owner.supervisor != grant.owner.supervisor,
                EndReason::Expired | EndReason::Broken => false,
            };
            let is_broken = ending.is_some_and(|ending| ending.reason == EndReason::Broken);
            if is_broken || (is_heard(grant) && !ending.is_some_and(is_known)) {
                self.wake_supervisor(&grant.proof);
            }
        }
    }

    /// Removes auxiliary objects that the new record no longer needs.
    fn remove_leftovers(&self, before: &Record, now: &Record) -> Result<()> {
        let fetched = self.remove_pages(before, now)?;
        self.remove_old_value(before, now)?;
        for grant in before.holders.iter().filter(|grant| now.waiter(&grant.proof).is_some()) {
            self.remove_auxiliary(&CommitRecord::key(&grant.proof), Durability::Volatile)?;
        }
        let fetched: Vec<&Waiter> = departed(&fetched, now).collect();
        fetched.iter().for_each(|waiter| self.remove_witness(Witnessed::Entry(&now.name, &waiter.proof)));
        if !fetched.is_empty() {
            let closed = fetched.iter().map(|waiter| waiter.proof.channel()).collect();
            let set = WriteSet { closed, ..WriteSet::default() };
            // A store behind ssh(1) carries out the effects with the commit, other stores when it is finished.
            self.store.commit(self.call, &set)?;
            self.store.finish(self.call, &set);
        }
        departed(&before.waiters, now).chain(fetched).try_for_each(|waiter| self.retract(&now.name, waiter))
    }
}

/// Those of these waiters that neither wait nor hold. (A waiter with a grant retracts its published edges itself.)
fn departed<'a>(waiters: &'a [Waiter], now: &'a Record) -> impl Iterator<Item = &'a Waiter> {
    waiters.iter().filter(|waiter| !now.has_entry(&waiter.proof))
}

/// Values, claims and the runs of jobs must survive a power cut, and a power cut must not tear a record with them.
fn durability(before: &Record, now: &Record) -> Durability {
    let claims = |record: &Record| -> Vec<(HandleHash, bool)> {
        let claims = record.holders.iter().filter(|grant| grant.claim.is_some());
        claims.map(|grant| (grant.proof, grant.provisional.is_some())).collect()
    };
    if before.value != now.value || before.job != now.job || claims(before) != claims(now) {
        Durability::Durable
    } else if now.value.is_some() || now.job.is_some() || !claims(now).is_empty() {
        Durability::Atomic
    } else {
        Durability::Volatile
    }
}

/// Number of consecutive lost tries after which the retries fail with an error.
const MOST_LOST: u32 = 50_000;

/// Number of tries that the deadline does not limit: a try may be lost without a rival, as when a directory moves.
const LEAST_TRIES: u32 = 3;

/// Leaves room for some dozens of simultaneous tries.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// State of the tries to change one record, which other processes may change between our read and our commit.
///
/// Each conflict has a winner, so all processes together make progress. On a local store a lost try costs next to
/// nothing, and the next try follows at once. On a shared store a try is several exchanges with the store. Of forty
/// simultaneous tries, thirty-nine are in vain and delay the holder that all of them wait for. So a loser pauses for a
/// random time within a span that doubles each time. A release, renewal or confirmation has a single caller and
/// priority, so it does not pause. A mere try does not pause either: its next read most likely reports busy.
pub(crate) struct CasRetry<'a> {
    engine: &'a Engine,
    pub(super) key: &'a [u8],
    lost: u32,
    /// Start of this try on CLOCK_BOOTTIME.
    began: Duration,
    /// Time on CLOCK_BOOTTIME after which no further try follows.
    deadline: Duration,
    pub(super) has_priority: bool,
}

impl Engine {
    pub(crate) fn cas_retry<'a>(&'a self, key: &'a [u8]) -> CasRetry<'a> {
        let began = self.host.boottime();
        CasRetry { engine: self, key, lost: 0, began, deadline: Duration::MAX, has_priority: false }
    }

    pub(super) fn cas_retry_for<'a, R: Request>(&'a self, key: &'a [u8]) -> CasRetry<'a> {
        CasRetry { has_priority: R::HAS_PRIORITY, ..self.cas_retry(key) }
    }
}

impl CasRetry<'_> {
    pub(super) fn until(self, give_up_at: Duration) -> Self {
        CasRetry { deadline: give_up_at, ..self }
    }

    /// Counts a lost try and pauses if necessary. Returns true if there is time for another read, now.
    /// Fails if the number of lost tries exceeds any plausible number of rivals.
    pub(crate) fn backoff(&mut self) -> Result<bool> {
        self.lost += 1;
        if self.lost >= MOST_LOST {
            let what = format!("{} changes faster than it can be followed", self.engine.store().describe(self.key));
            return Err(Error::new(ErrorKind::System, what, "see what else is at work there, then try again"));
        }
        let host = self.engine.host();
        let now = host.boottime();
        if !self.has_priority && self.engine.store().scope() == Scope::Shared {
            let span = now.saturating_sub(self.began).saturating_mul(1 << self.lost.min(8)).min(LONGEST_PAUSE);
            let drawn = host.random()?.into_iter().fold(0, |drawn, byte| drawn ^ byte);
            let pause = span.mul_f64(f64::from(drawn) / 255.0).min(self.deadline.saturating_sub(now));
            host.sleep(pause);
        }
        self.began = host.boottime();
        Ok(self.began < self.deadline || self.lost < LEAST_TRIES)
    }
}

#[cfg(test)]
mod tests;
