//! The supervisor: the process that waits for the command's end and releases the locks.

mod event_loop;
mod release;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

use self::event_loop::{EventLoop, ExitReport};
use super::child::{Report, RunningCommand};
use super::flock::FdChannel;
use super::job::Job;
use super::keepalive::Keeper;
use super::schedule::StopReason;
use crate::engine::{Engine, LockRef, OpenLockSet, Released};
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::host::WakeSocket;
use crate::lock::{EndReason, Grant, Lifetime};
use crate::signals::FORWARDED;
use crate::store::Scope;

/// Everything that the supervisor needs.
pub struct Supervisor<'a> {
    job: &'a Job<'a>,
    /// If a store cannot be opened, the child reports the error too.
    opened: Result<OpenLockSet<'a>>,
    /// Receives a wake-up when the command renews or releases. The keeper reads it, if there is one.
    bell: Option<WakeSocket>,
    /// An eventfd for the reports of the keeper, if there must be one. It exists before the command starts, too.
    news: Option<OwnedFd>,
    /// Files that the child locked with flock(2).
    files: Option<&'a FdChannel>,
    tell: &'a (dyn Fn(&Notice<'_>) + Sync),
    /// Indices of the locks that the command released itself.
    released: RefCell<BTreeSet<usize>>,
}

/// A message for the user about the command or its locks.
pub enum Notice<'a> {
    /// The command was ended for this reason; true if a time limit that a caller set was over.
    Ended(StopReason, bool),
    /// The command was ended because a lock was lost, which was told already.
    EndedAfterLoss,
    /// The command could not be ended because it runs as another user.
    OutOfReach,
    /// This lock was lost while the command ran: the engine of its store, and the result of the release.
    Lost(&'a LockRef, &'a Engine, &'a Result<Released>),
    /// The success of the command could not be recorded under this lock.
    NotReported(&'a LockRef, &'a Error),
    /// This lock could not be released; `None` means all locks.
    NotReleased(Option<&'a LockRef>, &'a Error),
    /// The locks could not be released, because the store is silent.
    Silent,
}

impl<'a> Supervisor<'a> {
    /// Creates the supervisor before the command starts. It passes messages to `tell`.
    pub fn new(
        job: &'a Job<'a>,
        opened: Result<OpenLockSet<'a>>,
        bell: Option<WakeSocket>,
        files: Option<&'a FdChannel>,
        tell: &'a (dyn Fn(&Notice<'_>) + Sync),
    ) -> Result<Supervisor<'a>> {
        let news = job.shared_deadline.map(|_| Keeper::news()).transpose()?;
        Ok(Supervisor { job, opened, bell, news, files, tell, released: RefCell::default() })
    }

    /// Returns the open stores of the locks.
    pub fn opened(&self) -> &Result<OpenLockSet<'a>> {
        &self.opened
    }

    /// Waits for the end of the command and releases the locks. Returns the exit of csalock.
    pub fn supervise(mut self, command: &RunningCommand) -> Result<Exit> {
        let (bell, news) = (self.bell.take(), self.news.take());
        let exit = self.wait_and_release(command, bell, news);
        command.reap();
        // The process ends here, and the kernel closes a database faster than SQLite does.
        std::mem::forget(self);
        exit
    }

    fn wait_and_release(
        &self,
        command: &RunningCommand,
        bell: Option<WakeSocket>,
        news: Option<OwnedFd>,
    ) -> Result<Exit> {
        // The host caches the answer now, while the command runs, so that the release need not wait for it.
        let _ = self.job.context.host.domain();
        let process = || self.job.context.host.process(command.pid().as_raw()).unwrap_or(None);
        let config = || process().and_then(|command| self.job.keeper(command));
        let keeper = news.map(|news| Keeper::new(config(), bell.as_ref(), news));
        let ended = EventLoop::new(self, command, keeper.as_ref(), bell.as_ref()).run()?;
        self.files.inspect(|files| files.unlock_all());
        match ended.told {
            Some(Report::Exit(code)) => {
                keeper.as_ref().inspect(|keeper| keeper.stop());
                Ok(Exit::Code(code))
            }
            Some(Report::Granted) => Ok(match keeper {
                Some(keeper) => self.release_and_report(&ended, Some(&keeper), None),
                None => self.release_and_report(&ended, None, bell),
            }),
            // The child was killed while it waited, or just as it was granted the lock. A grant that cannot be
            // released at once ends by itself.
            None => match self.clean_up() {
                Err(error) if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy) => Err(error),
                _ => Ok(interrupted(&ended).unwrap_or(exit_of(&ended))),
            },
        }
    }

    /// Releases the locks after the end of the command, and reports why csalock ended it or lost a lock.
    fn release_and_report(&self, ended: &ExitReport, keeper: Option<&Keeper<'_>>, spare: Option<WakeSocket>) -> Exit {
        let exit = exit_of(ended);
        // Without a keeper no lease is renewed, so every lease is a time limit that a caller set.
        let has_limit = self.job.limits.ttl.is_some() || keeper.is_none();
        let release = || {
            self.report_success(exit);
            self.release(ended.lease_ends, spare)
        };
        // The keeper goes on if the store does not answer.
        let (lost, had_limit) = if keeper.is_some() { self.in_time(ended, exit, release) } else { release() };
        keeper.inspect(|keeper| keeper.stop());
        let why = match ended.stopped {
            // The reason was reported already.
            Some((StopReason::Lease, _)) if lost => Some(Notice::EndedAfterLoss),
            _ => why(ended, has_limit || had_limit),
        };
        why.inspect(self.tell);
        if lost && ended.stopped.is_none() && ended.of_terminal.is_none() { ErrorKind::Lost.into() } else { exit }
    }

    /// Returns the remaining time of the shortest lease: zero if it is over, the grant was lost, or the store did not
    /// answer, but `known` if this process only lacks a descriptor. `None` means that no lock has a lease, or that the
    /// command released the locks with leases.
    fn lease_left(&self, known: Option<Duration>) -> Option<Duration> {
        let Ok(opened) = &self.opened else { return Some(Duration::ZERO) };
        let lefts = opened.each().enumerate().map(|(at, (target, engine))| {
            let mine = |grant: &Grant| grant.proof == self.job.handle.proof();
            if self.is_released(at) {
                return None;
            }
            let is_local = engine.store().scope() == Scope::Local;
            let (version, record) = match engine.read(&target.name) {
                Ok(read) => read,
                // The store has no leases of its own, so other callers see that the owner lives.
                Err(error) if is_local || error.kind() == ErrorKind::System => return known,
                Err(_) => return Some(Duration::ZERO),
            };
            match record.holders.iter().find(|grant| mine(grant)).map(|grant| &grant.lifetime) {
                Some(Lifetime::ExpiresAt(lease)) => Some(engine.store().leases().ttl(lease).unwrap_or_default()),
                Some(_) => {
                    // The release of the lock needs no read if the first waiter stays the only one.
                    if is_local {
                        engine.expect_release((version, record));
                    }
                    None
                }
                None => {
                    let ending = record.ended_grants.into_iter().find(|ending| mine(&ending.grant));
                    let is_released = ending.is_some_and(|ending| ending.reason == EndReason::Released);
                    if is_released {
                        self.hear_of_release(at, target, engine);
                    }
                    (!is_released).then_some(Duration::ZERO)
                }
            }
        });
        lefts.flatten().min()
    }
}

/// Returns the message about a command that csalock ended; `by_time` means that a lease without renewal ended it.
fn why(ended: &ExitReport, by_time: bool) -> Option<Notice<'static>> {
    if ended.out_of_reach {
        return Some(Notice::OutOfReach);
    }
    let (stop, _) = ended.stopped.filter(|_| ended.of_terminal.is_none())?;
    Some(Notice::Ended(stop, by_time))
}

/// Returns our exit if a forwarded signal ended the wait.
fn interrupted(ended: &ExitReport) -> Option<Exit> {
    let by = |signal: &nix::sys::signal::Signal| ended.exit == Exit::signalled(*signal as i32);
    FORWARDED.into_iter().find(by).map(Exit::Signal)
}

/// Returns our exit if the release shows no loss.
fn exit_of(ended: &ExitReport) -> Exit {
    match (ended.of_terminal, ended.stopped) {
        (Some(signal), _) => Exit::Signal(signal),
        (None, Some((StopReason::MaxHold, true))) => Exit::signalled(nix::libc::SIGKILL),
        (None, Some((StopReason::MaxHold, false))) => Exit::MaxHold,
        (None, Some((StopReason::Lease, _))) => ErrorKind::Lost.into(),
        (None, None) => ended.exit,
    }
}
