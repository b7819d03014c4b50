//! The process that stays behind, waits for the command's end and gives the lock back.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::flock_compat::FlockCompat;
use crate::child::{Deadline, EventSource, ExitReport, Report, Running, StopReason};
use crate::cli::{OnLost, RunWithLock};
use crate::command::context::{Context, LockRef};
use crate::command::keepalive::{Keeper, KeeperConfig};
use crate::command::lock_set::{LockSet, OpenLockSet};
use crate::detach;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::WakeSocket;
use crate::lock::{self, Grant, Handle, Lifetime, ProcessId, Request, Response};
use crate::name::escape;
use crate::shared_deadline::SharedDeadline;
use crate::signals::{FORWARDED, Signals};
use crate::store::answers;

/// Two looks at one lease may differ by this much.
const ROUNDING: Duration = Duration::from_millis(5);

/// So long a shared store may be silent before we end without having given back: a dead NFS server holds up whoever asks
/// it until it is back. A slow one answers each call within this time, and is waited for.
const SILENCE: Duration = Duration::from_secs(5);

/// So often it is looked at whether the store has answered.
const LOOK: Duration = Duration::from_millis(250);

/// Longest time that a store may take to answer a release, however long the lease is.
const TO_RELEASE: Duration = Duration::from_secs(10);

/// Everything that it needs.
pub(super) struct Supervisor<'a> {
    pub(super) context: &'a Context,
    pub(super) asked: &'a RunWithLock,
    pub(super) targets: &'a LockSet,
    pub(super) handle: &'a Handle,
    /// Should it not be possible to open a store, the child says so as well.
    pub(super) opened: Result<OpenLockSet<'a>>,
    pub(super) flock_compat: Option<&'a FlockCompat>,
    /// Where we see when the lease ends, if it has one from the beginning.
    pub(super) shared_deadline: Option<SharedDeadline>,
    /// By which we hear of it if the command renews or gives back, unless a keeper does.
    pub(super) bell: Option<WakeSocket>,
    /// Which of the locks the command released itself.
    pub(super) released: RefCell<BTreeSet<usize>>,
}

/// The lease of what is held, as last seen.
#[derive(Clone, Copy)]
struct Lease {
    /// When it ends, on CLOCK_BOOTTIME.
    ends: Duration,
    /// How long it was when it was last begun.
    span: Duration,
}

impl Supervisor<'_> {
    pub(super) fn supervise(&self, running: &Running, signals: &Signals) -> anyhow::Result<Exit> {
        // Asked now, while the command runs, so that giving back need not wait for it.
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
                // It was killed while it waited, or just as it was granted the lock. What cannot be said at once ends
                // by itself.
                match self.clean_up() {
                    Err(error) if !matches!(error.exit(), Exit::Unreachable | Exit::Busy) => return Err(error.into()),
                    _ => return Ok(interrupted(&ended).unwrap_or(exit_of(&ended))),
                }
            }
        }
        let exit = exit_of(&ended);
        let lease_ends = self.shared_deadline.map_or_else(|| lease.get().map(|lease| lease.ends), SharedDeadline::load);
        // Where nobody renews, every lease is one that somebody set.
        let by_time = Cell::new(self.asked.taking.ttl.is_some() || keeper.is_none());
        let release = || self.release(lease_ends, &by_time);
        // The keeper goes on when we do not get through.
        let lost = if keeper.is_some() { self.in_time(&ended, exit, release) } else { release() };
        keeper.inspect(Keeper::stop);
        let why = match ended.stopped {
            // Why has been said.
            Some((StopReason::Lease, _)) if lost => Some("the command was ended".to_string()),
            _ => self.why(&ended, by_time.get()),
        };
        why.inspect(|why| self.asked.common.note(why));
        Ok(if lost && ended.stopped.is_none() && ended.of_terminal.is_none() { Exit::Lost } else { exit })
    }

    /// Does that, and ends the process like this if a store is silent for too long.
    fn in_time<T>(&self, ended: &ExitReport, exit: Exit, what: impl FnOnce() -> T) -> T {
        let (common, names) = (&self.asked.common, self.names());
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
                    "lock {names} could not be given back: the store does not answer; it is given back when that \
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

    /// Sees to it that somebody renews, and hears of it if the command renews or gives back. Whether it is so.
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

    /// Whether the keeper had to end the command, because we did not in time.
    fn stopped_by_keeper(&self, ended: &ExitReport) -> Option<(StopReason, bool)> {
        let killed = self.shared_deadline.is_some_and(SharedDeadline::was_killed);
        (killed && ended.exit == Exit::signalled(Signal::SIGKILL as i32)).then_some((StopReason::Lease, true))
    }

    /// Gives the locks back, whose lease, if they had one, was to end there. Whether one was lost while the command
    /// ran; and if a lease that nobody renews was the last, it is `by_time` that the command had to end.
    fn release(&self, lease_ends: Option<Duration>, by_time: &Cell<bool>) -> bool {
        let over = lease_ends.is_some_and(|ends| ends <= self.context.host.boottime());
        let opened = match &self.opened {
            Ok(opened) => opened,
            Err(error) => {
                self.tell_kept(&self.names(), error);
                return false;
            }
        };
        // Who cannot give it back before its lease is over need not give it back any more.
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
                // The command released it, which we or the keeper heard of.
                Ok(Response::NotHeld(None) | Response::NotOwner(_, None)) if self.is_released(at) => continue,
                // The command released it, or another process saw its end before we did.
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
                Err(error) => format!("its lease is over, and it could not be given back: {error}"),
            };
            self.asked.common.note(&format!(
                "lost while the command ran: lock {name}: {text}; what the command did after that was not guarded"
            ));
            lost = true;
        }
        lost
    }

    /// The command's own status counts; the next one finds a lock whose owner is dead.
    fn tell_kept(&self, name: &str, error: &Error) {
        self.asked.common.note(&format!("lock {name} could not be given back: {error}"));
    }

    fn clean_up(&self) -> Result<()> {
        let opened = self.opened.as_ref().map_err(Clone::clone)?;
        let proof = self.handle.proof();
        for (target, engine) in opened.each() {
            engine.store().set_deadline(Some(self.context.host.boottime()));
            engine.apply(&target.name, &Request::Cancel(proof, None))?;
            // What was granted meanwhile, and what others saw of its end.
            engine.apply(&target.name, &Request::Release(engine.supervisor(proof)?))?;
        }
        Ok(())
    }

    fn names(&self) -> String {
        self.targets.all.iter().map(|target| escape(&target.display_name)).collect::<Vec<_>>().join(", ")
    }

    /// What there is to say of a command that we ended; `by_time`: by a lease that nobody renews.
    fn why(&self, ended: &ExitReport, by_time: bool) -> Option<String> {
        let name = self.names();
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

    /// When a command is to be ended that began then and has this lease.
    fn limits(&self, began: Duration, lease: Option<Lease>) -> Vec<Deadline> {
        let mut limits = Vec::new();
        if let Some(span) = self.asked.max_hold {
            let term = began.saturating_add(span);
            limits.push(Deadline { term, kill: term.saturating_add(self.asked.kill_after), why: StopReason::MaxHold });
        }
        if let Some(Lease { ends, span }) = lease
            && self.asked.on_lost == OnLost::Kill
        {
            // Dead before the lease is over: killed a tenth of it before, asked to end before that.
            let kill = ends.saturating_sub(span / 10);
            let grace = self.asked.kill_after.min(span / 5);
            limits.push(Deadline { term: kill.saturating_sub(grace), kill, why: StopReason::Lease });
        }
        limits
    }

    /// What is left of the shortest lease: nothing if it is over, the grant was lost, or we could not find out. `None`: there
    /// is no lease, or the command released what had one.
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

    /// Whether the command released this lock itself, as far as we have heard.
    fn is_released(&self, at: usize) -> bool {
        self.released.borrow().contains(&at)
            || self.shared_deadline.is_some_and(|shared_deadline| shared_deadline.is_released(at))
    }

    /// The record need not keep any longer that the command released this lock.
    fn hear_of_release(&self, at: usize, target: &LockRef, engine: &Engine) {
        self.released.borrow_mut().insert(at);
        let hear = |credentials| engine.apply(&target.name, &Request::Release(credentials));
        // Where that fails it is kept until the command has ended.
        let _ = engine.supervisor(self.handle.proof()).and_then(hear);
    }
}

/// As we exit when one of the signals that we pass on ended the wait.
fn interrupted(ended: &ExitReport) -> Option<Exit> {
    let by = |signal: &Signal| ended.exit == Exit::signalled(*signal as i32);
    FORWARDED.into_iter().find(by).map(|signal| Exit::Signal(signal as i32))
}

/// How we exit if giving back shows nothing else.
fn exit_of(ended: &ExitReport) -> Exit {
    match (ended.of_terminal, ended.stopped) {
        (Some(signal), _) => Exit::Signal(signal as i32),
        (None, Some((StopReason::MaxHold, true))) => Exit::signalled(nix::libc::SIGKILL),
        (None, Some((StopReason::MaxHold, false))) => Exit::MaxHold,
        (None, Some((StopReason::Lease, _))) => Exit::Lost,
        (None, None) => ended.exit,
    }
}
