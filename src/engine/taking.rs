//! Taking a lock, with all the waiting that this may need.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::patience::Clock;
use super::{Engine, MOST_CONFLICTS, Patience, with_token};
use crate::error::Result;
use crate::host::{Vigil, Woken};
use crate::lock::{
    Application, Ask, Handle, Home, Lease, Outcome, Party, Process, Proof, Record, Share, Step, Tenure, Waiter,
};
use crate::store::Reach;

/// On a store that other hosts may use, a waiter is taken for alive this long after it last said so.
const WAITERS_LEASE: Duration = Duration::from_secs(60);

/// A lease that is over by this much is over on every clock that rounds.
const ROUNDING: Duration = Duration::from_millis(1);

/// Who wants a lock, and on what terms.
#[derive(Debug, Clone)]
pub struct Applicant {
    /// The secret that will prove the grant.
    pub handle: Handle,
    /// How much of it.
    pub share: Share,
    /// For whom.
    pub party: Party,
    /// The process that waits.
    pub process: Process,
    /// Whether that process may end without the party losing what it waited for: then a grant must be confirmed.
    pub outlived: bool,
    /// Whether the party's end gives the lock back, as a matter of course.
    pub yields: bool,
    /// How long the grant is to last.
    pub tenure: Tenure,
    /// How many may hold at once, for [`Share::Slot`].
    pub slots: Option<u32>,
    /// Refuse when the holder is gone without having given back.
    pub refuse_stale: bool,
    /// The grant that the applicant already works under.
    pub carried: Option<Proof>,
}

/// How an attempt to take a lock ended.
#[derive(Debug)]
pub enum Taken {
    /// With this answer.
    Answer(Outcome),
    /// Not at all: the interrupt came. Nothing is held, nothing is queued.
    Interrupted,
}

impl Engine {
    /// Takes a lock, waiting for it as long as `patience` lasts. `waiting` is told once, when the wait begins, who is in
    /// the way.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked or told. Should the lock be taken all the same, then by a grant that dies with the
    /// applicant.
    pub fn take(
        &self,
        name: &[u8],
        applicant: &Applicant,
        patience: &Patience,
        interrupt: Option<BorrowedFd<'_>>,
        waiting: &mut dyn FnMut(&Record),
    ) -> Result<Taken> {
        let me = applicant.handle.proof();
        let mut clock = patience.begin(self.host.boottime(), self.store.reach());
        let mut application = self.application(applicant, patience);
        let mut vigil: Option<Box<dyn Vigil + '_>> = None;
        let mut current = None;
        let mut told = false;
        let mut conflicts = 0;
        loop {
            application.tenure = self.begin(&applicant.tenure)?;
            self.keep_waiters_lease(&mut application)?;
            let (version, record) = match current.take() {
                Some(current) => current,
                None => self.read(name)?,
            };
            match self.decide(&record, &Ask::Take(application.clone()))? {
                Step::Done(outcome) => return Ok(Taken::Answer(outcome)),
                Step::Write { record, outcome, wake } => {
                    if outcome.is_none() && vigil.is_none() {
                        // Who is in the queue can be rung, so we listen before we are.
                        vigil = Some(self.host.vigil(&me, interrupt)?);
                    }
                    let stored = self.swap(name, version.as_ref(), &record, &wake)?;
                    match (stored, outcome) {
                        (Some(version), Some(outcome)) => return Ok(Taken::Answer(with_token(outcome, &version))),
                        (Some(version), None) => current = Some((Some(version), record)),
                        (None, _) if conflicts == MOST_CONFLICTS => return Err(self.overtaken(name)),
                        (None, _) => conflicts += 1,
                    }
                }
                Step::Wait { processes, leases, ahead } => {
                    conflicts = 0;
                    if !std::mem::replace(&mut told, true) {
                        waiting(&record);
                    }
                    let Some(pause) = self.pause(&mut clock, &leases)? else {
                        match self.settle(name, &Ask::Withdraw(me))? {
                            Outcome::GrantedMeanwhile(_) => continue,
                            _ => return Ok(Taken::Answer(Outcome::Busy(record.holders))),
                        }
                    };
                    let vigil = match &mut vigil {
                        Some(vigil) => vigil,
                        none => none.insert(self.host.vigil(&me, interrupt)?),
                    };
                    if self.wait(name, vigil.as_mut(), &processes, ahead, pause)? == Woken::Interrupted {
                        self.abandon(name, &me)?;
                        return Ok(Taken::Interrupted);
                    }
                }
            }
        }
    }

    /// How long to wait at most; `None` when patience is over.
    fn pause(&self, clock: &mut Clock, leases: &[Lease]) -> Result<Option<Duration>> {
        let Some(mut pause) = clock.next_pause(self.host.boottime()) else { return Ok(None) };
        for lease in leases {
            pause = pause.min(self.store.remaining(lease)? + ROUNDING);
        }
        Ok(Some(pause))
    }

    fn wait(
        &self,
        name: &[u8],
        vigil: &mut dyn Vigil,
        processes: &[(Home, Process)],
        ahead: usize,
        at_most: Duration,
    ) -> Result<Woken> {
        let here = self.host.home()?;
        let visible = processes.iter().filter(|(home, _)| here.shares_pids_with(home));
        let visible: Vec<Process> = visible.map(|(_, process)| *process).collect();
        // Who runs in another network namespace cannot ring us, but we may see what it writes.
        let deaf = ahead == 0 && processes.iter().any(|(home, _)| home.net != here.net);
        let doorway = deaf.then(|| self.store.doorway(name)).flatten();
        vigil.wait(&visible, doorway.as_deref(), at_most)
    }

    /// Leaves the queue, and gives back what was granted in the meantime.
    fn abandon(&self, name: &[u8], me: &Proof) -> Result<()> {
        if let Outcome::GrantedMeanwhile(_) = self.settle(name, &Ask::Withdraw(*me))? {
            self.settle(name, &Ask::Release(self.claimant(Some(*me), Vec::new())?))?;
        }
        Ok(())
    }

    fn application(&self, applicant: &Applicant, patience: &Patience) -> Application {
        let confirms = applicant.outlived || matches!(applicant.tenure, Tenure::AtMost(_));
        let entry = Waiter {
            proof: applicant.handle.proof(),
            share: applicant.share,
            party: applicant.party.clone(),
            process: applicant.process,
            tenure: applicant.tenure.clone(),
            confirms,
            yields: applicant.yields,
            lease: None,
            since: self.host.wall().as_millis() as u64,
        };
        Application {
            entry,
            tenure: applicant.tenure.clone(),
            slots: applicant.slots,
            queue: !patience.is_none(),
            refuse_stale: applicant.refuse_stale,
            carried: applicant.carried,
        }
    }

    /// Where other hosts cannot see whether a waiter lives, it says so from time to time.
    fn keep_waiters_lease(&self, application: &mut Application) -> Result<()> {
        if !application.queue || self.store.reach() == Reach::ThisHost {
            return Ok(());
        }
        let has = |lease: &Lease| self.store.remaining(lease);
        if application.entry.lease.as_ref().map(has).transpose()?.unwrap_or_default() < WAITERS_LEASE / 2 {
            application.entry.lease = Some(self.store.lend(WAITERS_LEASE)?);
        }
        Ok(())
    }
}
