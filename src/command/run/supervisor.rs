//! The supervisor: the process that waits for the command's end and releases the lock.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::flock_compat::FlockCompat;
use crate::child::{Deadline, EventSource, ExitReport, Report, RunningCommand, StopReason};
use crate::cli::{OnLost, RunWithLock};
use crate::command::context::{Context, LockRef};
use crate::command::keepalive::{Keeper, KeeperConfig};
use crate::command::lock_set::{LockSet, OpenLockSet};
use crate::detach;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::host::WakeSocket;
use crate::lock::{self, Grant, Handle, Lifetime, ProcessId, Request, Response};
use crate::name::escape;
use crate::shared_deadline::SharedDeadline;
use crate::signals::{FORWARDED, Signals};
use crate::store::answers;

/// Maximum difference between two readings of the same lease.
const ROUNDING: Duration = Duration::from_millis(5);

/// Maximum time that a shared store may be silent before we exit without a release. A dead NFS server blocks its
/// callers until it is back. A slow store answers each call within this time, and the supervisor waits for it.
const SILENCE: Duration = Duration::from_secs(5);

/// Interval between checks that the store has answered.
const LOOK: Duration = Duration::from_millis(250);

/// Maximum time that a store may take to answer a release, however long the lease is.
const TO_RELEASE: Duration = Duration::from_secs(10);

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

/// The lease of the held locks, as last read.
#[derive(Clone, Copy)]
struct Lease {
    /// End of the lease on CLOCK_BOOTTIME.
    ends: Duration,
    /// Length of the lease when it last started.
    span: Duration,
}

impl Supervisor<'_> {
    pub(super) fn supervise(&self, running: &RunningCommand, signals: &Signals) -> anyhow::Result<Exit> {
        // The host caches the answer now, while the command runs, so that the release need not wait for it.
        let _ = self.context.host.domain();
        let began = OnceCell::new();
        let lease: Cell<Option<Lease>> = Cell::new(None);
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
            let same = |known: &Lease, ends: Duration| known.ends.abs_diff(ends) < ROUNDING;
            lease.set(ends.map(|ends| match lease.get() {
                Some(known) if same(&known, ends) => known,
                _ => Lease { ends, span: ends.saturating_sub(now) },
            }));
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
        let exit = exit_of(&ended);
        let lease_ends = self.shared_deadline.map_or_else(|| lease.get().map(|lease| lease.ends), SharedDeadline::load);
        // Without a keeper no lease is renewed, so every lease is a time limit that a caller set.
        let by_time = Cell::new(self.asked.taking.ttl.is_some() || keeper.is_none());
        let release = || self.release(lease_ends, &by_time);
        // The keeper goes on if the store does not answer.
        let lost = if keeper.is_some() { self.in_time(&ended, exit, release) } else { release() };
        keeper.inspect(Keeper::stop);
        let why = match ended.stopped {
            // The reason was reported already.
            Some((StopReason::Lease, _)) if lost => Some("the command was ended".to_string()),
            _ => self.why(&ended, by_time.get()),
        };
        why.inspect(|why| self.asked.common.note(why));
        Ok(if lost && ended.stopped.is_none() && ended.of_terminal.is_none() { Exit::Lost } else { exit })
    }

    /// Runs `what`. Ends the process with `exit` if a store is silent for too long.
    fn in_time<T>(&self, ended: &ExitReport, exit: Exit, what: impl FnOnce() -> T) -> T {
        let (common, names) = (&self.asked.common, self.targets.shown_names());
        let why = self.why(ended, self.asked.taking.ttl.is_some());
        let (done, is_done) = channel::<()>();
        let watch = move || {
            let (mut heard, mut looks) = (answers(), 0);
            while is_done.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                let now = answers();
                looks = if now == heard { looks + 1 } else { 0 };
                heard = now;
                if LOOK * looks < SILENCE {
                    continue;
                }
                common.note(&format!(
                    "lock {names} could not be released: the store does not answer; it is released when that \
                     answers again, and at the latest its lease ends it"
                ));
                why.inspect(|why| common.note(why));
                detach::exit_now(exit.code());
            }
        };
        std::thread::scope(|scope| {
            let watching = std::thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, watch);
            let result = what();
            drop((done, watching));
            result
        })
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

    /// Releases the locks, whose lease, if any, ends at `lease_ends`. Returns true if a lock was lost while the command
    /// ran. Sets `by_time` if a lease that is not renewed was the last, so that it ended the command.
    fn release(&self, lease_ends: Option<Duration>, by_time: &Cell<bool>) -> bool {
        let over = lease_ends.is_some_and(|ends| ends <= self.context.host.boottime());
        let opened = match &self.opened {
            Ok(opened) => opened,
            Err(error) => {
                self.tell_kept(&self.targets.shown_names(), error);
                return false;
            }
        };
        // A release after the end of the lease is not needed any more.
        let until = lease_ends.map(|ends| ends.min(self.context.host.boottime() + TO_RELEASE));
        opened.each().for_each(|(_, engine)| engine.store().set_deadline(until));
        let mut lost = false;
        for (at, released) in opened.release(self.handle.proof()).into_iter().enumerate() {
            let name = escape(&self.targets.all[at].display_name);
            let text = match released {
                Ok(Response::Released(grant)) => {
                    by_time.set(by_time.get() || matches!(grant.lifetime, Lifetime::ExpiresAt(_)));
                    continue;
                }
                // The command released the lock, and the supervisor or the keeper knows it.
                Ok(Response::NotHeld(None) | Response::NotOwner(_, None)) if self.is_released(at) => continue,
                // The command released the lock, or another process saw its end before the supervisor did.
                Ok(Response::NotHeld(Some(ending)) | Response::NotOwner(_, Some(ending)))
                    if matches!(ending.reason, lock::EndReason::Died | lock::EndReason::Released) =>
                {
                    continue;
                }
                Ok(Response::NotHeld(Some(ending)) | Response::NotOwner(_, Some(ending))) => {
                    format!("it was held by {}", opened.reporter(at).ending(&ending))
                }
                Ok(_) => "its record has no trace of the grant".to_string(),
                Err(error) if !over => {
                    self.tell_kept(&name, &error);
                    continue;
                }
                Err(error) => format!("its lease is over, and it could not be released: {error}"),
            };
            self.asked.common.note(&format!(
                "lost while the command ran: lock {name}: {text}; what the command did after that was not guarded"
            ));
            lost = true;
        }
        lost
    }

    /// Reports a failed release. The command's status counts; the next caller finds a lock whose owner is dead.
    fn tell_kept(&self, name: &str, error: &Error) {
        self.asked.common.note(&format!("lock {name} could not be released: {error}"));
    }

    fn clean_up(&self) -> Result<()> {
        let opened = self.opened.as_ref().map_err(Clone::clone)?;
        let proof = self.handle.proof();
        for (target, engine) in opened.each() {
            engine.store().set_deadline(Some(self.context.host.boottime()));
            engine.apply(&target.name, &Request::Cancel(proof, None))?;
            // This releases a grant made meanwhile, or collects what other processes recorded of its end.
            engine.apply(&target.name, &Request::Release(engine.supervisor(proof)?))?;
        }
        Ok(())
    }

    /// Returns the message about a command that we ended; `by_time` means that a lease without renewal ended it.
    fn why(&self, ended: &ExitReport, by_time: bool) -> Option<String> {
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
    fn limits(&self, began: Duration, lease: Option<Lease>) -> Vec<Deadline> {
        let mut limits = Vec::new();
        if let Some(span) = self.asked.max_hold {
            let term = began.saturating_add(span);
            limits.push(Deadline { term, kill: term.saturating_add(self.asked.kill_after), why: StopReason::MaxHold });
        }
        if let Some(Lease { ends, span }) = lease
            && self.asked.on_lost == OnLost::Kill
        {
            // The command must be dead before the lease ends: SIGKILL comes a tenth before it, SIGTERM earlier.
            let kill = ends.saturating_sub(span / 10);
            let grace = self.asked.kill_after.min(span / 5);
            limits.push(Deadline { term: kill.saturating_sub(grace), kill, why: StopReason::Lease });
        }
        limits
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

    /// Returns true if the command is known to have released this lock itself.
    fn is_released(&self, at: usize) -> bool {
        self.released.borrow().contains(&at)
            || self.shared_deadline.is_some_and(|shared_deadline| shared_deadline.is_released(at))
    }

    /// Notes that the command released this lock, so that the record need not keep its end any longer.
    fn hear_of_release(&self, at: usize, target: &LockRef, engine: &Engine) {
        self.released.borrow_mut().insert(at);
        let hear = |credentials| engine.apply(&target.name, &Request::Release(credentials));
        // If that fails, the record keeps it until the command has ended.
        let _ = engine.supervisor(self.handle.proof()).and_then(hear);
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
