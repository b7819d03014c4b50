//! The time while the command runs: the supervisor forwards signals, starts the keeper and ends the command at its
//! limits.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::exit::Exit;
use crate::run::child::RunningCommand;
use crate::run::guarded_command::GuardedCommand;
use crate::run::keeper::{Keeper, pause};
use crate::run::shared_lease_end::{CommandPause, SharedLeaseEnd};
use crate::run::timer::{boottime_timer, set_timer, wait_readable};
use crate::run::tree::{Tree, descendants_of};
use engine::cleaners::{self, CleanerGuard};
use engine::lease_schedule::{IDLE_BEFORE_REST, LeaseSchedule, StopReason, StopTimes};
use engine::{Engine, LockRef, OpenLockSet};
use host::{WakeSocket, is_stopped};
use lock::history::RunEnd;
use lock::{EndReason, ErrorKind, Lifetime, ProcessId, Result};
use store::Scope;

/// Maximum time of a wait without a timer: it does not notice that the machine was suspended.
const LONGEST_WAIT_WITHOUT_TIMER: Duration = Duration::from_secs(1);

/// Time that a child has to end by a signal before it has executed the command. Its program may be on a file system that
/// does not answer, and the sender must not wait for that.
const LONGEST_END_BEFORE_EXEC: Duration = Duration::from_millis(20);

/// Maximum time between two looks at processes that go on after their command has ended.
const TREE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// With `--tree`, these reach the whole tree.
const ENDING_SIGNALS: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// How the command ended.
#[derive(Default)]
pub(super) struct ExitReport {
    pub(super) not_executed: Option<Errno>,
    /// How csalock ends.
    pub(super) exit: Exit,
    /// For the history.
    pub(super) run: RunEnd,
    /// Last signal that the terminal sent, or that came before the child had executed the command; at the end, only if that
    /// signal ended the child. csalock then ends by it, too.
    pub(super) shared_signal: Option<i32>,
    /// If csalock ended the command: the reason, and true if SIGKILL was necessary.
    pub(super) stopped: Option<(StopReason, bool)>,
    /// It runs as another user by now.
    pub(super) out_of_reach: bool,
    /// End of the lease of the locks on CLOCK_BOOTTIME, as last read.
    pub(super) lease_ends: Option<Duration>,
    /// Until its lease was renewed.
    pub(super) was_paused: bool,
    /// Processes that the command had started when it was asked to end, without `--tree`.
    pub(super) descendants: BTreeSet<ProcessId>,
    /// Indices of the locks that the command is known to have released, without a keeper.
    pub(super) released: BTreeSet<usize>,
}

pub(super) struct EventLoop<'a> {
    guarded: &'a GuardedCommand<'a>,
    opened: &'a OpenLockSet<'a>,
    command: &'a mut RunningCommand,
    process: ProcessId,
    tree: Option<&'a Tree>,
    keeper: Option<&'a Keeper<'a>>,
    wake_socket: Option<&'a WakeSocket>,
    /// Start of the command on CLOCK_BOOTTIME.
    began: Duration,
    /// When the supervisor gives its connections back.
    rests_at: Option<Duration>,
    lease: Option<LeaseSchedule>,
    /// Deadlines of the command. The term of a deadline whose SIGTERM was sent is `Duration::MAX`.
    limits: Vec<StopTimes>,
    pause: CommandPause,
    /// Next check of a command that must not run now.
    next_check: Option<Duration>,
    child_ended: bool,
    tree_outlives_command: bool,
    /// A signal that arrived before the child had executed the command, and when the child must have ended.
    ends_before_exec: Option<(i32, Duration)>,
    report: ExitReport,
}

impl<'a> EventLoop<'a> {
    pub(super) fn new(
        guarded: &'a GuardedCommand<'a>,
        opened: &'a OpenLockSet<'a>,
        command: &'a mut RunningCommand,
        (process, tree): (ProcessId, Option<&'a Tree>),
        keeper: Option<&'a Keeper<'a>>,
        wake_socket: Option<&'a WakeSocket>,
    ) -> EventLoop<'a> {
        let began = guarded.context.host.boottime();
        EventLoop {
            guarded,
            opened,
            command,
            process,
            tree,
            keeper,
            wake_socket,
            began,
            rests_at: keeper.map(|_| began + IDLE_BEFORE_REST),
            lease: None,
            limits: Vec::new(),
            pause: CommandPause::default(),
            next_check: None,
            child_ended: false,
            tree_outlives_command: false,
            ends_before_exec: None,
            report: ExitReport::default(),
        }
    }

    /// Deadlines are read at the start, at a deadline, which may have moved, and after an event.
    pub(super) fn run(mut self) -> Result<ExitReport> {
        let limits = &self.guarded.limits;
        if limits.max_hold.is_some() || limits.ttl.is_some() || self.keeper.is_some() {
            self.read_limits();
        }
        let mut timer = None;
        let mut cleaners = CleanerGuard::of(self.opened.each().map(|(_, engine)| engine));
        loop {
            let next = self.next_limit();
            if next.is_some() && timer.is_none() {
                timer = boottime_timer().ok();
            }
            timer.iter().for_each(|timer| set_timer(timer, next));
            let signals = self.guarded.signals.all_events()?.as_fd();
            let events = [Some(signals), self.events(), timer.as_ref().map(AsFd::as_fd)];
            // Without a descriptor for the timer, the wait is short, and the command keeps its supervisor.
            let left = |next: Duration| next.saturating_sub(self.boottime()).min(LONGEST_WAIT_WITHOUT_TIMER);
            let at_most = next.filter(|_| timer.is_none()).map(left);
            let at_most = at_most.into_iter().chain(self.tree_outlives_command.then_some(TREE_CHECK_INTERVAL));
            let unprotected = cleaners.is_needed().then_some(cleaners::UNPROTECTED_TIME);
            match wait_readable(events.into_iter().flatten(), at_most.chain(unprotected).min()) {
                Ok(true) => {}
                Ok(false) => cleaners.protect(),
                Err(_) => pause(),
            }
            self.forward_signal();
            if let Some(status) = self.command.ended()? {
                self.tree_outlives_command = self.tree_has_survivors();
                if !self.tree_outlives_command {
                    return Ok(self.exit_report(status.exit_status(), status.terminating_signal()));
                }
            }
            if let Some(signal) = self.killed_before_exec() {
                return Ok(self.exit_report(None, Some(signal)));
            }
            self.react()?;
        }
    }

    fn react(&mut self) -> Result<()> {
        let event = self.drain();
        if std::mem::take(&mut self.child_ended) {
            self.command.reap_adopted(self.keeper_pid());
        }
        // A process that was killed may have forked before.
        if let (Some(tree), Some((_, true))) = (self.tree, self.report.stopped) {
            tree.send(Signal::SIGKILL as i32, self.keeper_pid());
        }
        let now = self.boottime();
        let mut due = self.limits.iter().map(|limit| limit.term).chain(self.next_check);
        if self.report.stopped.is_none() && (event || due.any(|next| next <= now)) {
            self.read_limits();
        }
        if self.rests_at.take_if(|at| *at <= now).is_some() {
            self.opened.rest();
        }
        self.send_due_signals(self.boottime())
    }

    fn tree_has_survivors(&self) -> bool {
        self.tree.is_some_and(|tree| tree.has_survivors(self.keeper_pid()))
    }

    fn keeper_pid(&self) -> Option<Pid> {
        self.keeper.and_then(Keeper::process)
    }

    /// Sends a signal to the command, or to its tree. Returns false if permission is denied.
    fn send(&mut self, signal: Signal) -> bool {
        // The parents may end now, and without --tree nothing tells later that their children came from the command.
        if self.tree.is_none() && matches!(signal, Signal::SIGTERM | Signal::SIGKILL) {
            self.report.descendants.extend(descendants_of(self.process));
        }
        let (is_allowed, keeper) = (self.command.send(signal as i32), self.keeper_pid());
        self.tree.is_none_or(|tree| tree.send(signal as i32, keeper)) && is_allowed
    }

    fn boottime(&self) -> Duration {
        self.guarded.context.host.boottime()
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        match self.keeper {
            Some(keeper) => Some(keeper.descriptor()),
            None => self.wake_socket.map(AsFd::as_fd),
        }
    }

    fn drain(&self) -> bool {
        match self.keeper {
            Some(keeper) => keeper.drain(),
            None => self.wake_socket.is_some_and(WakeSocket::was_woken),
        }
    }

    /// Ensures that a keeper runs, if there must be one, and reads the deadlines of the command.
    fn read_limits(&mut self) {
        let guarded = self.guarded;
        if let Some(keeper) = self.keeper {
            keeper.ensure_running();
        }
        let now = self.boottime();
        let ends = match guarded.shared_lease_end {
            Some(shared_lease_end) => shared_lease_end.load(),
            None => {
                let known = self.lease.map(|lease| lease.ends.saturating_sub(now));
                // Of the shortest lease.
                let locks = self.opened.each().enumerate();
                let left = locks.filter_map(|(at, lock)| self.left_of_lock(at, lock, known)).min();
                left.map(|left| now + left)
            }
        };
        self.lease = ends.map(|ends| LeaseSchedule::seen(self.lease, ends, now));
        self.limits.clear();
        if self.is_paused(now) {
            return;
        }
        let limits = &guarded.limits;
        let max_hold = limits.max_hold.map(|max_hold| StopTimes::of_max_hold(self.began, max_hold));
        let lease = self.lease.filter(|_| limits.kills).map(|lease| lease.supervisor(limits.kill_after));
        self.limits = max_hold.into_iter().chain(lease).collect();
    }

    /// Zero if its lease is over, the grant was lost, or the store did not answer, but `known` if this process only
    /// lacks a descriptor. `None`: it has no lease, or the command released it.
    fn left_of_lock(&mut self, at: usize, lock: (&LockRef, &Engine), known: Option<Duration>) -> Option<Duration> {
        let (target, engine) = lock;
        if self.report.released.contains(&at) {
            return None;
        }
        let proof = self.guarded.handle.proof();
        let record = match engine.read(&target.name) {
            Ok((_, record)) => record,
            // The store has no leases of its own, so other callers see that the owner lives.
            Err(error) if engine.store().scope() == Scope::Local || error.kind() == ErrorKind::System => return known,
            Err(_) => return Some(Duration::ZERO),
        };
        match record.holder(&proof).map(|grant| &grant.lifetime) {
            Some(Lifetime::ExpiresAt(lease)) => {
                Some(engine.store().leases().ttl(engine.call(), lease).unwrap_or_default())
            }
            Some(_) => None,
            None => {
                let ending = record.ended_grants.into_iter().find(|ending| ending.grant.proof == proof);
                if ending.is_none_or(|ending| ending.reason != EndReason::Released) {
                    return Some(Duration::ZERO);
                }
                self.report.released.insert(at);
                // The record need not keep this end any longer. If that fails, it does until the command has ended.
                let _ = engine.release(&target.name, proof);
                None
            }
        }
    }

    /// Its lease may be over unnoticed. Without a keeper no lease is renewed, and one with a time limit never is.
    fn is_paused(&mut self, now: Duration) -> bool {
        let limits = &self.guarded.limits;
        let shared = self.guarded.shared_lease_end.filter(|_| limits.kills && limits.ttl.is_none());
        let Some(shared) = shared else { return false };
        let lease = self.lease.map(|lease| (lease, lease.supervisor(limits.kill_after)));
        let (tree, process, keeper) = (self.tree, self.process, self.keeper_pid());
        let is_stopped = || tree.map_or_else(|| is_stopped(process.pid), |tree| tree.is_stopped(keeper));
        let (signal, next_check) = self.pause.step(shared, lease, now, is_stopped);
        if let Some(signal) = signal {
            self.send(signal);
            self.report.was_paused |= signal == Signal::SIGCONT;
        }
        self.next_check = next_check;
        next_check.is_some()
    }

    fn send_due_signals(&mut self, now: Duration) -> Result<()> {
        if let Some(due) = self.limits.iter().find(|limit| limit.kill <= now) {
            // The loop reports a command that has ended by itself.
            if self.command.ended()?.is_some() && !self.tree_has_survivors() {
                return Ok(());
            }
            let why = self.report.stopped.map_or(due.why, |(why, _)| why);
            let is_allowed = self.send(Signal::SIGKILL);
            // Of a tree, some are ended all the same.
            let is_killed = is_allowed || self.tree.is_some();
            if is_killed || why == StopReason::MaxHold {
                self.report.stopped = Some((why, is_killed));
            }
            self.report.out_of_reach = !is_allowed;
            self.limits.clear();
        }
        for at in 0..self.limits.len() {
            if self.limits[at].term <= now {
                let (why, is_allowed) = (self.limits[at].why, self.send(Signal::SIGTERM));
                // The time of --max-hold is over, even for a command that goes on.
                self.report.out_of_reach |= why == StopReason::MaxHold && !is_allowed;
                if is_allowed || self.tree.is_some() || why == StopReason::MaxHold {
                    self.report.stopped.get_or_insert((why, false));
                    self.send(Signal::SIGCONT);
                }
                self.limits[at].term = Duration::MAX;
                let kill = now.saturating_add(self.guarded.limits.kill_after);
                self.limits[at].kill = self.limits[at].kill.min(kill);
            }
        }
        Ok(())
    }

    /// On CLOCK_BOOTTIME.
    fn next_limit(&self) -> Option<Duration> {
        let times = self.limits.iter().flat_map(|limit| [limit.term, limit.kill]);
        let times = times.chain(self.next_check).chain(self.rests_at);
        times.chain(self.ends_before_exec.map(|(_, at)| at)).min().filter(|next| *next < Duration::MAX)
    }

    /// Forwards one signal: to the whole tree if it asks to end. The terminal sends its signals to the command itself.
    fn forward_signal(&mut self) {
        if let Some(came) = self.guarded.signals.next() {
            self.child_ended |= came.signal == Signal::SIGCHLD as i32;
            let comes_first = came.ends() && self.command.is_starting();
            let is_repeated = self.report.shared_signal == Some(came.signal);
            if came.ends() && (came.from_terminal || comes_first) {
                self.report.shared_signal = Some(came.signal);
            }
            match ENDING_SIGNALS.into_iter().find(|signal| *signal as i32 == came.signal) {
                // Background jobs of a script ignore SIGINT, so a second Ctrl-C sends them SIGTERM.
                Some(_) if self.tree_outlives_command && is_repeated => _ = self.send(Signal::SIGTERM),
                // Those that are left may not be in the process group of the terminal.
                Some(signal) if came.is_forwarded() || self.tree_outlives_command => _ = self.send(signal),
                None if came.is_forwarded() => _ = self.command.send(came.signal),
                _ => {}
            }
            if comes_first {
                // A stopped child hears no other signal.
                self.command.send(Signal::SIGCONT as i32);
                let at = self.boottime() + LONGEST_END_BEFORE_EXEC;
                self.ends_before_exec.get_or_insert((came.signal, at));
            }
        }
    }

    /// Kills a child that has still not executed the command when it must have ended. Returns the signal for that, if the
    /// child had not executed the command even after the kill: then it never will, because the kernel runs nothing of a
    /// killed process. Otherwise its end must be awaited.
    fn killed_before_exec(&mut self) -> Option<i32> {
        let now = self.boottime();
        let (signal, _) = self.ends_before_exec.take_if(|(_, at)| *at <= now)?;
        if !self.command.is_starting() {
            return None;
        }
        self.command.send(Signal::SIGKILL as i32);
        self.command.is_starting().then_some(signal)
    }

    /// The command ended with this code or by this signal.
    fn exit_report(self, code: Option<i32>, by_signal: Option<i32>) -> ExitReport {
        let exit = match (code, by_signal) {
            (Some(code), _) => Exit::Code(code as u8),
            (None, Some(signal)) => Exit::signalled(signal),
            (None, None) => ErrorKind::Bug.into(),
        };
        let ran = self.boottime().saturating_sub(self.began).as_millis() as u64;
        let (guarded, report) = (self.guarded, self.report);
        // The signal that ended the command may have reached csalock too, still unread.
        let last =
            std::iter::from_fn(|| guarded.signals.next()).filter(|came| came.from_terminal && came.ends()).last();
        let shared_signal = last.map(|came| came.signal).or(report.shared_signal);
        let shared_signal = shared_signal.filter(|came| by_signal == Some(*came));
        // The keeper kills a command that the supervisor did not end in time.
        let killed = guarded.shared_lease_end.is_some_and(|shared| shared.was_killed.load(SeqCst));
        let by_keeper = killed && (exit == Exit::signalled(Signal::SIGKILL as i32) || self.tree.is_some());
        let stopped = report.stopped.or(by_keeper.then_some((StopReason::Lease, true)));
        let end = match (shared_signal, stopped) {
            (Some(signal), _) => Exit::Signal(signal),
            (None, Some((StopReason::MaxHold, true))) => Exit::signalled(Signal::SIGKILL as i32),
            (None, Some((StopReason::MaxHold, false))) => Exit::MaxHold,
            (None, Some((StopReason::Lease, _))) => ErrorKind::Lost.into(),
            (None, None) => exit,
        };
        // A command that csalock ended has the exit of csalock: its own may be a success, if it had left others behind.
        let on_record = if stopped.is_some() { end } else { exit };
        ExitReport {
            // A child that could not execute the command has not ended with 0.
            not_executed: if exit.code() == 0 { None } else { self.command.exec_error(exit, by_signal) },
            exit: end,
            run: RunEnd { exit: on_record.code(), signal: by_signal, ran },
            shared_signal,
            stopped,
            lease_ends: guarded.shared_lease_end.map_or(self.lease.map(|lease| lease.ends), SharedLeaseEnd::load),
            ..report
        }
    }
}
