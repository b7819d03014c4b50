//! The supervisor: the process that waits for the command's end and releases the locks, even if a store does not answer
//! then.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use self::while_running::{EventLoop, ExitReport};
use super::child::SleepingChild;
use super::exec::GrantNumbers;
use super::flock::Flock;
use super::guarded_command::GuardedCommand;
use super::keeper::{Keeper, KeeperConfig, new_event};
use super::shared_lease_end::SharedLeaseEnd;
use super::tree::{Tree, survivors};
use crate::exit::Exit;
use crate::run::detach;
use engine::lease_schedule::{LONGEST_RELEASE, LONGEST_SILENCE, LeaseSchedule, SILENCE_CHECK_INTERVAL, StopReason};
use engine::{Engine, LockRef, OpenLockSet, RETRY_INTERVAL, Released};
use host::{WakeAddress, WakeSocket};
use lock::history::Use;
use lock::{EndReason, Error, ErrorKind, Grant, Lifetime, NotHolder, ProcessId, Result};
use store::Call;

mod while_running;

pub struct Supervisor<'a> {
    guarded: &'a GuardedCommand<'a>,
    opened: &'a OpenLockSet<'a>,
    /// Receives a wake-up when the command or another process changes or ends a grant. The keeper reads it, if there is one.
    pub wake_socket: Option<WakeSocket>,
    /// An eventfd for the reports of the keeper, if there must be one.
    lease_changed: Option<OwnedFd>,
    report: &'a (dyn Fn(&Notice<'_>) + Sync),
}

pub enum Notice<'a> {
    /// True if a time limit that a caller set was over, false if a renewal failed.
    Ended(StopReason, bool),
    /// Stopped because its lease could be over unnoticed, and continued after a renewal.
    Paused,
    /// Ended before a time limit that another process set for its lock.
    EndedByOther,
    /// Ended because a lock was lost; `Lost` was reported before.
    EndedAfterLoss,
    /// It runs as another user, so csalock could not end it.
    OutOfReach,
    /// This lock was lost while the command ran: the engine of its store, and the result of the release.
    Lost(&'a LockRef, &'a Engine, &'a Result<Released>),
    NotReported(&'a LockRef, &'a Error),
    NotReleased(&'a LockRef, &'a Error),
    /// Not released, because the store is silent.
    Silent,
    /// These processes, which the ended command had started, go on without its locks.
    Survivors(&'a [ProcessId]),
}

impl<'a> Supervisor<'a> {
    /// Before the locks are acquired: it must not miss that another process ends a grant.
    pub fn new(
        guarded: &'a GuardedCommand<'a>,
        opened: &'a OpenLockSet<'a>,
        report: &'a (dyn Fn(&Notice<'_>) + Sync),
    ) -> Result<Supervisor<'a>> {
        let wake_socket = WakeSocket::new(WakeAddress::Supervisor(&guarded.handle.proof()));
        let lease_changed = guarded.shared_lease_end.map(|_| new_event()).transpose()?;
        Ok(Supervisor { guarded, opened, wake_socket, lease_changed, report })
    }

    /// Makes the child, whose id is `process`, the command under these grants, with these locked files. Waits for its end
    /// and releases the locks, even if the command could not be executed, which is an error.
    pub fn run(
        mut self,
        child: SleepingChild<'_>,
        process: ProcessId,
        grants: &[Grant],
        files: Vec<Flock>,
        numbers: GrantNumbers,
    ) -> Result<Exit> {
        let (wake_socket, lease_changed) = (self.wake_socket.take(), self.lease_changed.take());
        let tree = self.guarded.supervisor.filter(|_| self.guarded.limits.tree);
        let tree = match tree.map(|supervisor| Tree::adopt(supervisor, process)).transpose() {
            Ok(tree) => tree,
            Err(error) => return self.give_up(None, error),
        };
        let keeper = self.guarded.keeper(process, self.opened, grants).zip(lease_changed);
        let keeper = keeper.map(|(config, lease_changed)| {
            Keeper::new(KeeperConfig { tree: tree.as_ref(), ..config }, wake_socket.as_ref(), lease_changed)
        });
        let inherited: Vec<&Flock> = files.iter().filter(|file| file.is_inherited).collect();
        let mut command =
            match self.start_keeper(keeper.as_ref(), grants).and_then(|()| child.start(numbers, &inherited)) {
                Ok(command) => command,
                Err(error) => return self.give_up(keeper.as_ref(), error),
            };
        // The host caches the answer now, while the command runs, so that the release need not wait for it.
        let _ = self.guarded.context.host.domain();
        let watched = (process, tree.as_ref());
        let event_loop =
            EventLoop::new(self.guarded, self.opened, &mut command, watched, keeper.as_ref(), wake_socket.as_ref());
        // The command has started, so it need not wait for this.
        self.opened.each().for_each(|(_, engine)| engine.retract_granted());
        let ended = event_loop.run()?;
        files.into_iter().for_each(Flock::unlock);
        let exit = match (ended.not_executed, keeper) {
            (Some(errno), keeper) => self.give_up(keeper.as_ref(), self.guarded.command_line.cannot_execute(errno)),
            (None, Some(keeper)) => Ok(self.release_and_report(&ended, Some(&keeper), None)),
            (None, None) => Ok(self.release_and_report(&ended, None, wake_socket)),
        };
        command.reap();
        let survivors = survivors(self.guarded.context.host.as_ref(), ended.descendants);
        if !survivors.is_empty() {
            (self.report)(&Notice::Survivors(&survivors));
        }
        exit
    }

    /// Starts the keeper, if the locks need one, before the command: no command runs without its keeper.
    fn start_keeper(&self, keeper: Option<&Keeper<'_>>, grants: &[Grant]) -> Result<()> {
        let (Some(keeper), Some(shared_lease_end)) = (keeper, self.guarded.shared_lease_end) else { return Ok(()) };
        shared_lease_end.store(self.opened.lease_ends(grants));
        if !keeper.ensure_running() {
            let what = "the process that renews its lease could not start, so the command was not run";
            let hint = "see the limit of processes (ulimit -u) and the free memory, then try again";
            return Err(Error::new(ErrorKind::System, what, hint));
        }
        // A command whose time is over would have to end before it starts.
        let span = self.guarded.limits.ttl.unwrap_or(self.opened.span());
        let ends = shared_lease_end.load().unwrap_or(Duration::MAX);
        let last_start = LeaseSchedule { ends, span }.last_start();
        if last_start <= self.guarded.context.host.boottime() {
            let what = "its lease was over before the command could begin; it was not run";
            return Err(Error::new(ErrorKind::Lost, what, "try again"));
        }
        Ok(())
    }

    fn give_up(&self, keeper: Option<&Keeper<'_>>, why: Error) -> Result<Exit> {
        let released = self.guarded.release(self.opened, Some(&why));
        keeper.inspect(|keeper| keeper.stop());
        // The reason why the command does not run matters more.
        if let Err(error) = released {
            (self.report)(&Notice::NotReleased(self.opened.target(0), &error));
        }
        Err(why)
    }

    /// Releases the locks after the end of the command, and reports why csalock ended it or lost a lock.
    fn release_and_report(&self, ended: &ExitReport, keeper: Option<&Keeper<'_>>, spare: Option<WakeSocket>) -> Exit {
        // Without a keeper no lease is renewed, so every lease is a time limit that a caller set.
        let has_limit = self.guarded.limits.ttl.is_some() || keeper.is_none();
        let release = || {
            self.report_success(ended);
            self.release(ended, spare)
        };
        // The keeper goes on if the store does not answer.
        let (lost, had_limit) = if keeper.is_some() { self.or_exit_if_silent(ended, release) } else { release() };
        keeper.inspect(|keeper| keeper.stop());
        let why = match ended.stopped {
            // The reason was reported already.
            Some((StopReason::Lease, _)) if lost => Some(Notice::EndedAfterLoss),
            _ => self.why(ended, has_limit || had_limit),
        };
        ended.was_paused.then_some(Notice::Paused).iter().chain(&why).for_each(self.report);
        if lost && ended.stopped.is_none() && ended.shared_signal.is_none() {
            ErrorKind::Lost.into()
        } else {
            ended.exit
        }
    }

    /// Runs `what`. If no store answers for [`LONGEST_SILENCE`], ends the process: with the exit for the end of the command,
    /// or for a success that is not on record.
    fn or_exit_if_silent<T>(&self, ended: &ExitReport, what: impl FnOnce() -> T) -> T {
        let (exit, report, why) = (ended.exit, self.report, self.why(ended, self.guarded.limits.ttl.is_some()));
        let (guarded, opened) = (self.guarded, self.opened);
        let (done, is_done) = channel::<()>();
        let watch = move || {
            let (mut heard, mut looks) = (opened.answers(), 0);
            while is_done.recv_timeout(SILENCE_CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let now = opened.answers();
                looks = if now == heard && !guarded.awaits_record() { looks + 1 } else { 0 };
                heard = now;
                if SILENCE_CHECK_INTERVAL * looks < LONGEST_SILENCE {
                    continue;
                }
                let is_unrecorded = guarded.shared_lease_end.is_some_and(|shared| shared.is_unrecorded.load(SeqCst));
                let silent = Error::new(ErrorKind::Unavailable, "the store does not answer", "");
                let not_reported = is_unrecorded.then_some(Notice::NotReported(opened.target(0), &silent));
                [not_reported, Some(Notice::Silent), why].iter().flatten().for_each(report);
                detach::exit_now(if is_unrecorded { guarded.exit_without_record() } else { exit }.code());
            }
        };
        std::thread::scope(|scope| {
            let watching = std::thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, watch);
            let result = what();
            drop((done, watching));
            result
        })
    }

    /// Records under the lock that the command has succeeded, if it has. The lock is still held, so the next holder knows.
    fn report_success(&self, ended: &ExitReport) {
        if !self.guarded.records_success || ended.exit.code() != 0 {
            return;
        }
        let (engine, target) = (self.opened.engine(0), self.opened.target(0));
        let shared = self.guarded.shared_lease_end.filter(|_| self.guarded.has_period);
        shared.inspect(|shared| shared.is_unrecorded.store(true, SeqCst));
        let go_on = || self.guarded.awaits_record() && self.guarded.signals.no_signal_within(RETRY_INTERVAL);
        match engine.report_success(&target.name, self.guarded.handle.proof(), self.guarded.has_period, &go_on) {
            Err(error) => {
                (self.report)(&Notice::NotReported(target, &error));
                if shared.is_some() {
                    // The keeper goes on while the lease lasts.
                    detach::exit_now(self.guarded.exit_without_record().code());
                }
            }
            Ok(Err(NotHolder { ending, .. })) => {
                let is_released =
                    ending.map_or(self.is_released(ended, 0), |ending| ending.reason == EndReason::Released);
                let (what, hint) = if is_released {
                    ("the command had released the lock itself", "let csalock release it when the command ends")
                } else {
                    ("the lock was lost before", "see `csalock history`")
                };
                (self.report)(&Notice::NotReported(target, &Error::new(ErrorKind::NotHeld, what, hint)));
            }
            Ok(Ok(())) => {}
        }
        shared.inspect(|shared| shared.is_unrecorded.store(false, SeqCst));
    }

    /// If descriptors are scarce, the release takes that of the `spare` socket. Returns whether a lock was lost while
    /// the command ran, and whether the last lease of a lock was a time limit that a caller set.
    fn release(&self, ended: &ExitReport, spare: Option<WakeSocket>) -> (bool, bool) {
        let now = self.guarded.context.host.boottime();
        let opened = self.opened;
        // The keeper may have renewed the lease while the success was recorded.
        let lease_ends = self.guarded.shared_lease_end.map_or(ended.lease_ends, SharedLeaseEnd::load);
        // A release after the end of the lease is not needed any more.
        let call = Call { until: lease_ends.map(|ends| ends.min(now + LONGEST_RELEASE)), interruptible: false };
        let (mut lost, mut had_limit) = (false, false);
        let (proof, used) = (self.guarded.handle.proof(), Use::Run(ended.run));
        let mut released = opened.release(call, proof, used);
        // The first release of a database opens more files than the acquisition that created it.
        let is_of_system = |error: &Error| error.kind() == ErrorKind::System;
        if spare.is_some() && released.iter().any(|released| released.as_ref().is_err_and(is_of_system)) {
            drop(spare);
            for (answer, (target, engine)) in released.iter_mut().zip(opened.each()) {
                if answer.as_ref().is_err_and(is_of_system) {
                    *answer = engine.during(call).release_after(&target.name, proof, used);
                }
            }
        } else {
            // The process ends soon, and the kernel closes its descriptors.
            std::mem::forget(spare);
        }
        for (at, ((target, engine), released)) in opened.each().zip(&released).enumerate() {
            match released {
                Ok(Ok(grant)) => had_limit |= matches!(grant.lifetime, Lifetime::ExpiresAt(_)),
                // The command released the lock, and the supervisor or the keeper knows it.
                Ok(Err(NotHolder { ending: None, .. })) if self.is_released(ended, at) => {}
                // The command released the lock, or another process saw its end before the supervisor did.
                Ok(Err(NotHolder { ending: Some(ending), .. }))
                    if matches!(ending.reason, EndReason::Died | EndReason::Released) => {}
                Err(error) if lease_ends.is_none_or(|ends| now < ends) => {
                    (self.report)(&Notice::NotReleased(target, error));
                }
                lost_by => {
                    (self.report)(&Notice::Lost(target, engine, lost_by));
                    lost = true;
                }
            }
        }
        (lost, had_limit)
    }

    fn is_released(&self, ended: &ExitReport, at: usize) -> bool {
        ended.released.contains(&at) || self.guarded.shared_lease_end.is_some_and(|shared| shared.is_released(at))
    }

    /// `by_time` means that a lease without renewal ended the command.
    fn why(&self, ended: &ExitReport, by_time: bool) -> Option<Notice<'static>> {
        match ended.stopped {
            _ if ended.out_of_reach => Some(Notice::OutOfReach),
            _ if ended.shared_signal.is_some() => None,
            Some((StopReason::Lease, _)) if by_time && self.guarded.limits.ttl.is_none() => Some(Notice::EndedByOther),
            stopped => stopped.map(|(stop, _)| Notice::Ended(stop, by_time)),
        }
    }
}
