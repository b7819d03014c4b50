//! Requests that need no waiting: apply, release, break, and the decision that all requests share.

use std::time::Duration;

use super::commit::{CasRetry, Committed};
use super::history::Remark;
use super::{Engine, Released};
use lock::error::{ErrorKind, Result};
use lock::history::Use;
use lock::{
    self, Break, Credentials, EndedGrant, Facts, Grant, HandleHash, NotHolder, Owner, Query, Record, Release,
    ReportSuccess, Request, Transition, decide,
};
use store::{Call, CommitResult, Durability, Scope, Version, WriteOptions};

/// Maximum time of one try to record a success.
const TO_REPORT: Duration = Duration::from_secs(10);

/// Maximum time for retries to remove an unreadable record, if the store reports changes all the time.
const REMOVAL_LIMIT: Duration = Duration::from_secs(5);

/// The grants that were broken, or were stale and have been removed; or else the place to which an unreadable record
/// was moved, `None` if the store could not read its bytes.
pub type Broken = std::result::Result<std::result::Result<Vec<EndedGrant>, Option<String>>, NotHolder>;

impl Engine {
    pub fn apply<R: Request>(&self, name: &[u8], ask: &R) -> Result<R::Response> {
        self.apply_as(name, ask, Remark::default())
    }

    fn apply_as<R: Request>(&self, name: &[u8], ask: &R, remark: Remark<'_>) -> Result<R::Response> {
        loop {
            if let Some(response) = self.try_apply(self.cas_retry_for::<R>(name), ask, remark)? {
                return Ok(response);
            }
        }
    }

    /// `None` if other writers win until `retry` ends.
    pub(super) fn try_apply<R: Request>(
        &self,
        mut retry: CasRetry<'_>,
        ask: &R,
        remark: Remark<'_>,
    ) -> Result<Option<R::Response>> {
        let name = retry.key;
        let mut ask = ask.clone();
        // The record that a commit conflicted with, if the store returned it.
        let mut found = None;
        // A commit that conflicted, but may have succeeded without a reply: the grants that it ended, and its response.
        let mut conflicted: Option<(Vec<HandleHash>, R::Response)> = None;
        loop {
            let (version, record) = found.take().map_or_else(|| self.read(name), Ok)?;
            // A grant that another process ends leaves its ending in the record. If the record has neither the grant
            // nor the ending, our own commit has succeeded.
            if let Some((ended, response)) = conflicted.take()
                && !ended.iter().any(|proof| record.knows(proof))
            {
                ended.iter().for_each(|proof| self.wake_supervisor(proof));
                return Ok(Some(response));
            }
            match self.decide(&record, &ask, None)? {
                Transition::Done(response) => return Ok(Some(response)),
                Transition::Write { record: next, response, wake, expired } => {
                    match self.commit_update((version, &record), &next, &wake, &expired, remark)? {
                        Committed::Done(version) => {
                            R::changed(&response).iter().for_each(|proof| self.wake_supervisor(proof));
                            return Ok(Some(R::with_tokens(response, version.number)));
                        }
                        // A request that pauses reads again after its pause.
                        Committed::Conflict(now) if R::HAS_PRIORITY => found = now,
                        Committed::Conflict(_) | Committed::Unclear => {}
                    }
                    let ended = R::ended(&response, &next);
                    if !ended.is_empty() {
                        conflicted = Some((ended, response));
                    }
                    ask.repeat();
                    if !retry.backoff()? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Releases the grant with this hash for the process on this host that acquired it or supervises its owner.
    pub fn release(&self, name: &[u8], proof: HandleHash) -> Result<Released> {
        self.release_after(name, proof, Use::Unknown)
    }

    /// Releases a grant like [`Engine::release`], after this use of the lock. If the store was replaced meanwhile, the
    /// grant was lost, because other callers did not see it.
    pub fn release_after(&self, name: &[u8], proof: HandleHash, used: Use) -> Result<Released> {
        let is_replaced = self.store.is_replaced();
        let ask = Release(Credentials { supervises: true, ..self.by_proof(proof)? });
        let released = self.apply_as(name, &ask, Remark { by: None, used: Some((proof, used)) })?;
        self.retract_granted();
        if let Err(NotHolder { ending: Some(ending), .. }) = &released {
            self.note_late(name, ending);
        }
        Ok(if is_replaced { Err(NotHolder { store_was_replaced: true, ..NotHolder::default() }) } else { released })
    }

    /// Records that the run under the grant with this hash has succeeded. Tries again while the store does not answer
    /// or refuses the change, as long as `go_on` returns true.
    pub fn report_success(
        &self,
        name: &[u8],
        proof: HandleHash,
        in_slot: bool,
        go_on: &dyn Fn() -> bool,
    ) -> Result<std::result::Result<(), NotHolder>> {
        loop {
            let engine = self.during(Call::until(self.host.boottime() + TO_REPORT));
            let reported = engine.time().and_then(|now| {
                let (credentials, at) = (self.by_proof(proof)?, now.as_millis() as u64);
                engine.apply(name, &ReportSuccess { credentials, in_slot, at, host: self.host.name() })
            });
            match reported {
                Err(error) if (error.kind() == ErrorKind::Unavailable || error.is_refused_change()) && go_on() => {}
                reported => return reported,
            }
        }
    }

    /// Ends the grants that one read finds, or those of them that are `meant`, and records the breaker. Grants that
    /// came after that read stay; if there are any, the response contains them.
    ///
    /// If every grant is meant, an unreadable record is moved aside. It is an error if only some grants are meant, if
    /// the store does not know its version, or if another version of csalock wrote it: it may be a live lock.
    pub fn break_lock(
        &self,
        name: &[u8],
        meant: Option<&dyn Fn(&Grant) -> bool>,
        by: Option<&Owner>,
    ) -> Result<Broken> {
        let mut retry = self.cas_retry(name).until(self.host.boottime().saturating_add(REMOVAL_LIMIT));
        let mut moved: Option<Option<String>> = None;
        loop {
            let error = match (self.read(name), &moved) {
                (Ok((_, record)), Some(place)) => {
                    return Ok(match record.holders {
                        // Another process removed the record, or this process did and the reply was lost.
                        none if none.is_empty() => Ok(Err(place.clone())),
                        holders => Err(NotHolder { holders, ..NotHolder::default() }),
                    });
                }
                (Ok((_, record)), None) => {
                    let meant = record.holders.iter().filter(|grant| meant.is_none_or(|meant| meant(grant)));
                    let proofs = meant.map(|grant| grant.proof).collect();
                    return Ok(self.apply_as(name, &Break(proofs), Remark { by, used: None })?.map(Ok));
                }
                (Err(error), _) if error.kind() == ErrorKind::Corrupt && meant.is_none() => error,
                (Err(error), _) => return Err(error),
            };
            let Some(version) = error.version() else { return Err(error) };
            let place = self.copy_aside(name, version)?;
            if let CommitResult::Done(_) = self.commit_beside(name, Some(&version), None, WriteOptions::default())? {
                return Ok(Ok(Err(place)));
            }
            moved = Some(place);
            if !retry.backoff()? {
                return Err(error);
            }
        }
    }

    /// Stores the bytes of a damaged record in this version where no reader takes them for a lock. Returns their place,
    /// or `None` if the store cannot read them. The record is removed after that, so a kill in between loses nothing.
    fn copy_aside(&self, name: &[u8], version: Version) -> Result<Option<String>> {
        let stored = match self.store.read(self.call, name) {
            Err(error) if error.kind() == ErrorKind::Corrupt => None,
            read => read?.filter(|stored| stored.version == version),
        };
        let Some(stored) = stored else { return Ok(None) };
        let (key, body) = lock::encode_damaged(name, version.number, &stored.body);
        // Another process may have stored the same bytes there.
        self.write_auxiliary(&key, None, &body, WriteOptions { durability: Durability::Durable, mode: None })?;
        Ok(Some(self.store.describe(&key)))
    }

    /// Decides about a request whose caller waits for `time_left` at most; `None` means no limit.
    pub(super) fn decide<R: Request>(
        &self,
        record: &Record,
        ask: &R,
        time_left: Option<Duration>,
    ) -> Result<Transition<R::Response>> {
        let mut facts = Facts::at(self.host.wall().as_millis() as u64);
        facts.replies_get_lost = self.store.scope() == Scope::Shared;
        self.prefetch(record, &mut facts)?;
        loop {
            match decide(record, ask, &facts) {
                Ok(step) => {
                    #[cfg(any(test, debug_assertions))]
                    if matches!(step, Transition::Write { .. }) {
                        crate::trace::decided(self.host.as_ref(), record, ask, &facts);
                    }
                    if matches!(&step, Transition::Done(response) if R::promises(response)) {
                        self.settle()?;
                    }
                    return Ok(step);
                }
                Err(Query::Committed(proof)) => {
                    let may_commit = facts.is_awaited(record, &proof);
                    facts.committed.push((proof, self.has_committed_finally(&proof, may_commit)?));
                }
                Err(query) => self.learn(record, &mut facts, query, time_left)?,
            }
        }
    }
}
