//! The supervisor: the process that waits for the command's end and releases the lock.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::flock_compat::FlockCompat;
use crate::cli::{OnLost, RunWithLock};
use crate::command::context::Context;
use crate::engine::{LockSet, OpenLockSet};
use crate::error::{ErrorKind, Result};
use crate::exit::Exit;
use crate::host::WakeSocket;
use crate::lock::{self, Grant, Handle, Lifetime, ProcessId};
use crate::run::deadline::SharedDeadline;
use crate::run::keepalive::{Keeper, KeeperConfig};
use crate::run::schedule::{Deadline, LeaseSchedule, StopReason};
use crate::run::spawn::Report;
use crate::run::{EventSource, ExitReport, RunningCommand};
use crate::signals::{FORWARDED, Signals};

/// Everything that the supervisor needs.
pub(super) struct Supervisor<'a> {
    pub(super) context: &'a Context,
    pub(super) asked: &'a RunWithLock,
    pub(super) targets: &'a LockSet,
    pub(super) handle: &'a Handle,
    /// If a store cannot be opened, the child reports the error too.
    pub(super) opened: Result<OpenLockSet<'a>>,
    pub(super) flock_compat: Option<&'a FlockCompat>,
    /// Shows when the lease ends, if there is a lease from the beginning.
    pub(super) shared_deadline: Option<SharedDeadline>,
    /// Receives a wake-up when the command renews or releases, unless a keeper receives it.
    pub(super) bell: Option<WakeSocket>,
    /// Indices of the locks that the command released itself.
    pub(super) released: RefCell<BTreeSet<usize>>,
}

impl Supervisor<'_> {
    pub(super) fn supervise(&self, running: &RunningCommand, signals: &Signals) -> anyhow::Result<Exit> {
        // The host caches the answer now, while the command runs, so that the release need not wait for it.
        let _ = self.context.host.domain();
        let began = OnceCell::new();
        let lease: Cell<Option<LeaseSchedule>> = Cell::new(None);
        let keeper = self.shared_deadline.map(|_| Keeper::new()).transpose()?;
        let process = || self.context.host.process(running.pid().as_raw()).unwrap_or(None);
        let command = keeper.as_ref().and_then(|_| process());
        let limits = || {
            if let Some((shared_deadline, keeper)) = self.shared_deadline.zip(keeper.as_ref()) {
                running.send_go(self.keep(shared_deadline, keeper, command));
            }
            let now = self.context.host.boottime();
            let ends = match self.shared_deadline {
                Some(lease_end) => lease_end.load(),
                None => self.lease_left().map(|left| now + left),
            };
            lease.set(ends.map(|ends| LeaseSchedule::seen(lease.get(), ends, now)));
            self.limits(*began.get_or_init(|| now), lease.get())
        };
        let limited = self.asked.max_hold.is_some() || self.asked.taking.ttl.is_some() || keeper.is_some();
        let news: &dyn EventSource = keeper.as_ref().map_or(&self.bell, |keeper| keeper);
        let mut ended = running.supervise(signals, limited, &limits, news, self.context.host.as_ref())?;
        ended.stopped = ended.stopped.or_else(|| self.stopped_by_keeper(&ended));
        self.flock_compat.inspect(|flock_compat| flock_compat.end());
        match ended.told {
            Some(Report::Exit(code)) => {
                keeper.inspect(Keeper::stop);
                return Ok(Exit::Code(code));
            }
            Some(Report::Granted) => {}
            None => {
                // The child was killed while it waited, or just as it was granted the lock. A grant that cannot be
                // released at once ends by itself.
                match self.clean_up() {
                    Err(error) if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy) => {
                        return Err(error.into());
                    }
                    _ => return Ok(interrupted(&ended).unwrap_or(exit_of(&ended))),
                }
            }
        }
        let lease_ends = self.shared_deadline.map_or_else(|| lease.get().map(|lease| lease.ends), SharedDeadline::load);
        Ok(self.release_and_report(&ended, lease_ends, keeper.as_ref()))
    }

    /// Releases the locks after the end of the command, and reports why csalock ended it or lost a lock.
    fn release_and_report(&self, ended: &ExitReport, lease_ends: Option<Duration>, keeper: Option<&Keeper>) -> Exit {
        let exit = exit_of(ended);
        // Without a keeper no lease is renewed, so every lease is a time limit that a caller set.
        let by_time = Cell::new(self.asked.taking.ttl.is_some() || keeper.is_none());
        let release = || self.release(lease_ends, &by_time);
        // The keeper goes on if the store does not answer.
        let lost = if keeper.is_some() { self.in_time(ended, exit, release) } else { release() };
        keeper.inspect(|keeper| keeper.stop());
        let why = match ended.stopped {
            // The reason was reported already.
            Some((StopReason::Lease, _)) if lost => Some("the command was ended".to_string()),
            _ => self.why(ended, by_time.get()),
        };
        why.inspect(|why| self.asked.common.note(why));
        if lost && ended.stopped.is_none() && ended.of_terminal.is_none() { Exit::Lost } else { exit }
    }

    /// Ensures that a keeper renews, and notices when the command renews or releases. Returns true if it runs.
    fn keep(&self, lease_end: SharedDeadline, keeper: &Keeper, command: Option<ProcessId>) -> bool {
        let Some(command) = command else { return false };
        keeper.ensure_running(&KeeperConfig {
            context: self.context,
            targets: self.targets,
            proof: self.handle.proof(),
            owners: vec![command],
            shared_deadline: lease_end,
            kills: self.asked.on_lost == OnLost::Kill,
            timed: self.asked.taking.ttl.is_some(),
        })
    }

    /// Returns the stop reason if the keeper had to kill the command because the supervisor did not in time.
    fn stopped_by_keeper(&self, ended: &ExitReport) -> Option<(StopReason, bool)> {
        let killed = self.shared_deadline.is_some_and(SharedDeadline::was_killed);
        (killed && ended.exit == Exit::signalled(Signal::SIGKILL as i32)).then_some((StopReason::Lease, true))
    }

    /// Returns the message about a command that we ended; `by_time` means that a lease without renewal ended it.
    pub(super) fn why(&self, ended: &ExitReport, by_time: bool) -> Option<String> {
        let name = self.targets.shown_names();
        if ended.out_of_reach {
            return Some(format!(
                "the command could not be ended when its time under lock {name} was over: it runs as another user"
            ));
        }
        let (stop, _) = ended.stopped.filter(|_| ended.of_terminal.is_none())?;
        Some(match stop {
            StopReason::MaxHold => format!("the command was ended: it held lock {name} longer than --max-hold"),
            StopReason::Lease if by_time => format!("the command was ended before the --ttl of lock {name} was over"),
            StopReason::Lease => format!(
                "the command was ended before the lease of lock {name} was over: it could not be renewed; see \
                 `csalock doctor`"
            ),
        })
    }

    /// Returns the deadlines of a command that started at `began` and has this lease.
    fn limits(&self, began: Duration, lease: Option<LeaseSchedule>) -> Vec<Deadline> {
        let kill_after = self.asked.kill_after;
        let max_hold = self.asked.max_hold.map(|max_hold| Deadline::of_max_hold(began, max_hold, kill_after));
        let lease = lease.filter(|_| self.asked.on_lost == OnLost::Kill).map(|lease| lease.supervisor(kill_after));
        max_hold.into_iter().chain(lease).collect()
    }

    /// Returns the remaining time of the shortest lease: zero if it is over, the grant was lost, or the store did not
    /// answer. `None` means that there is no lease, or that the command released the lock that had it.
    fn lease_left(&self) -> Option<Duration> {
        let Ok(opened) = &self.opened else { return Some(Duration::ZERO) };
        let lefts = opened.each().enumerate().map(|(at, (target, engine))| {
            let mine = |grant: &Grant| grant.proof == self.handle.proof();
            if self.is_released(at) {
                return None;
            }
            let Ok(status) = engine.inspect(&target.name) else { return Some(Duration::ZERO) };
            match status.record.holders.into_iter().find(mine).map(|grant| grant.lifetime) {
                Some(Lifetime::ExpiresAt(lease)) => Some(engine.store().lease_ttl(&lease).unwrap_or_default()),
                Some(_) => None,
                None => {
                    let ending = status.record.ended_grants.into_iter().find(|ending| mine(&ending.grant));
                    let is_released = ending.is_some_and(|ending| ending.reason == lock::EndReason::Released);
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

/// Returns our exit if a forwarded signal ended the wait.
fn interrupted(ended: &ExitReport) -> Option<Exit> {
    let by = |signal: &Signal| ended.exit == Exit::signalled(*signal as i32);
    FORWARDED.into_iter().find(by).map(|signal| Exit::Signal(signal as i32))
}

/// Returns our exit if the release shows no loss.
fn exit_of(ended: &ExitReport) -> Exit {
    match (ended.of_terminal, ended.stopped) {
        (Some(signal), _) => Exit::Signal(signal as i32),
        (None, Some((StopReason::MaxHold, true))) => Exit::signalled(nix::libc::SIGKILL),
        (None, Some((StopReason::MaxHold, false))) => Exit::MaxHold,
        (None, Some((StopReason::Lease, _))) => Exit::Lost,
        (None, None) => ended.exit,
    }
}
