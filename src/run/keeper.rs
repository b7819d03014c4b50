//! The keeper: a background process that renews leases. Shared stores need it: other hosts cannot see that an owner
//! lives.
//!
//! `lock` and `run -F` leave a keeper behind, which records the owner's end and ends then, or when no lock is held any
//! more. `csalock run` has a keeper while its command runs, even for a `--ttl` on this host's own store. So neither a
//! stopped or killed supervisor nor a silent store lets a second holder in while the command runs. The keeper goes on without its supervisor and records when the command has
//! ended. The supervisor never waits for the store while the command runs, and ends the command before the lease ends.
//! Both know the end of the lease by [`SharedLeaseEnd`]. If the supervisor cannot end the command, the keeper does. If
//! the keeper dies, the supervisor starts another one.
//!
//! A keeper without a supervisor has a parent that does nothing but wait for it. If the keeper is killed, the parent
//! starts another one. If the parent is killed, the keeper becomes the parent of another keeper.

use std::cell::Cell;
use std::fs;
use std::iter::once;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use nix::sys::prctl::set_name;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, read, write};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, getrlimit};

use crate::run::child::in_spite_of_signals;
use crate::run::detach;
use crate::run::shared_lease_end::SharedLeaseEnd;
use crate::run::timer::wait_readable;
use crate::run::tree::Tree;
use engine::lease_schedule::POLL_INTERVAL;
use engine::{Context, LockSet, OpenLockSet};
use host::WakeSocket;
use lock::{Error, ErrorKind, Grant, HandleHash, Lease, ProcessId, Result};

mod renew_or_kill;

/// Number of descriptors of a keeper: ten of its own, and those that a call of the store needs at the same time.
const DESCRIPTORS: u64 = 20;

pub struct KeeperConfig<'a> {
    pub context: &'a Context,
    pub targets: &'a LockSet,
    pub proof: HandleHash,
    /// When all of them have ended, the keeper's work ends.
    pub owners: Vec<ProcessId>,
    pub shared_lease_end: &'static SharedLeaseEnd,
    /// Leases of the locks when the keeper's work began, each with its end on CLOCK_BOOTTIME.
    pub first_leases: Vec<Option<(Lease, Duration)>>,
    /// Length of the shortest leases.
    pub lease: Duration,
    pub kills: bool,
    /// Locks are held until the supervisor has recorded the success of the owners' work.
    pub is_reported: bool,
    /// Each lock has a lease, even if its store belongs to this host alone.
    pub timed: bool,
    /// Processes that are killed, if those are more than the owners. The supervisor is one of the owners then.
    pub tree: Option<&'a Tree>,
}

/// Fails if no keeper could do its work. It closes what it inherits, so the open files of this process do not count
/// against the limit.
pub fn check_room() -> Result<()> {
    // The parent of a first process, as `unshare -p` without `--fork` makes it, knows the command by another pid.
    if let [Ok(own), Ok(of_children)] =
        ["pid", "pid_for_children"].map(|of| fs::read_link(format!("/proc/self/ns/{of}")))
        && own != of_children
    {
        let what = "no process could renew the lease of a command in another pid namespace";
        return Err(Error::new(ErrorKind::System, what, "start csalock in that namespace too (unshare --pid --fork)"));
    }
    let Some(limit) = getrlimit(Resource::Nofile).current.filter(|limit| *limit < DESCRIPTORS) else { return Ok(()) };
    let what = format!("a lock with a lease needs {DESCRIPTORS} open files for its renewal, and the limit is {limit}");
    Err(Error::new(ErrorKind::System, what, "raise the limit of open files (ulimit -n)"))
}

/// Starts a keeper if only a keeper can record the death of the owner: not all users of the store see it.
pub fn spawn_detached(keeping: &KeeperConfig<'_>, opened: &OpenLockSet<'_>, grants: &[Grant]) -> Result<()> {
    // Without an owner, no owner's death can end the grants.
    let has_lease = grants.iter().any(|grant| grant.lifetime.lease().is_some());
    if opened.lease().is_none() || !has_lease || keeping.owners.is_empty() {
        return Ok(());
    }
    keeping.shared_lease_end.store(opened.lease_ends(grants));
    // No process received a change that came since the grant, and only a keeper that kills need know it at once.
    detach::spawn_orphan(|| keeping.run_in_child(keeping.kills))
}

/// eventfd(2), because a pipe takes two descriptors, and they may be scarce.
pub(super) fn new_event() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| Error::new(ErrorKind::System, format!("cannot make an eventfd: {errno}"), ""))
}

/// Makes the eventfd readable. If its counter cannot grow, an unread notification is there.
fn notify(event: &OwnedFd) {
    let _ = write(event, &1_u64.to_ne_bytes());
}

/// Retries `make` until it succeeds. The keeper cannot work without the result, and descriptors may be exhausted now.
fn retry_until_ok<T, E>(make: impl Fn() -> std::result::Result<T, E>) -> T {
    loop {
        match make() {
            Ok(made) => return made,
            Err(_) => pause(),
        }
    }
}

pub(super) fn pause() {
    let _ = wait_readable([], Some(POLL_INTERVAL));
}

/// Tells if there were notifications, and discards them.
fn drain(event: &OwnedFd) -> bool {
    read(event, &mut [0; 8]).is_ok()
}

pub struct Keeper<'a> {
    config: KeeperConfig<'a>,
    /// Receives a wake-up when the command renews or releases. It is older than the command, and keepers inherit it.
    wake_socket: Option<&'a WakeSocket>,
    /// An eventfd by which the keeper reports a new end of the lease.
    lease_changed: OwnedFd,
    pid: Cell<Option<Pid>>,
    was_started: Cell<bool>,
    /// It ended by itself because no lease is left to renew.
    done: Cell<bool>,
}

impl<'a> Keeper<'a> {
    pub fn new(config: KeeperConfig<'a>, wake_socket: Option<&'a WakeSocket>, lease_changed: OwnedFd) -> Keeper<'a> {
        let (pid, was_started, done) = (Cell::new(None), Cell::new(false), Cell::new(false));
        Keeper { config, wake_socket, lease_changed, pid, was_started, done }
    }

    /// Starts the keeper unless it runs or has finished its work. Returns true if it runs or has finished.
    pub fn ensure_running(&self) -> bool {
        if self.pid.get().is_none() && !self.done.get() {
            let supervisor = Pid::this();
            // An earlier keeper may have received a wake-up that it did not handle, and a socket of its own comes later.
            let is_late = self.was_started.replace(true) || self.wake_socket.is_none();
            let work = || self.config.run(supervisor, Some(self), is_late);
            let keep: Vec<_> = once(self.lease_changed.as_fd()).chain(self.wake_socket.map(AsFd::as_fd)).collect();
            // If the keeper does not start, the supervisor ends the command before the lease ends.
            self.pid.set(detach::spawn(&keep, work).ok());
        }
        self.pid.get().is_some() || self.done.get()
    }

    pub fn stop(&self) {
        if let Some(pid) = self.pid.take() {
            let _ = kill(pid, Signal::SIGKILL);
            let _ = waitpid(pid, None);
        }
    }

    /// Readable when the lease has a new end, or the keeper has ended.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.lease_changed.as_fd()
    }

    /// Tells if that happened since the last call, and reaps a keeper that has ended.
    pub fn drain(&self) -> bool {
        let is_new = drain(&self.lease_changed);
        let status = self.pid.get().map(|pid| waitpid(pid, Some(WaitPidFlag::WNOHANG)));
        let ended = status.is_some_and(|status| status != Ok(WaitStatus::StillAlive));
        if ended {
            self.pid.set(None);
            self.done.set(matches!(status, Some(Ok(WaitStatus::Exited(_, 0)))));
        }
        is_new || ended
    }

    pub fn process(&self) -> Option<Pid> {
        self.pid.get()
    }
}

impl KeeperConfig<'_> {
    /// Replaces a keeper that is killed; `is_late` means that one was there before. Returns when one ends by itself.
    fn run_in_child(&self, mut is_late: bool) {
        let _ = set_name(detach::PARENT_NAME);
        let this = Pid::this();
        loop {
            let keep = || {
                self.run(this, None, is_late);
                // The parent was killed, and the threads of this keeper have ended.
                self.run_in_child(true);
            };
            match detach::spawn(&[], keep).map(has_finished) {
                Ok(true) => return,
                Ok(false) if !is_late => {}
                // A keeper that is killed again and again must not keep a processor busy, or there is no memory or no
                // process for a keeper at the moment.
                _ => pause(),
            }
            is_late = true;
        }
    }

    /// Records the success of the owners' work in its slot, if the supervisor could not.
    fn record_success(&self, opened: &OpenLockSet<'_>) -> Result<()> {
        if self.shared_lease_end.is_unrecorded.load(SeqCst) {
            let _ = opened.engine(0).report_success(&opened.target(0).name, self.proof, true, &|| false)?;
            self.shared_lease_end.is_unrecorded.store(false, SeqCst);
        }
        Ok(())
    }
}

/// Waits for the end of a keeper. Returns false if a signal ended it, or if it could not start.
fn has_finished(keeper: Pid) -> bool {
    let status = in_spite_of_signals(|| waitpid(keeper, None));
    !matches!(status, Ok(WaitStatus::Signaled(..) | WaitStatus::Exited(_, 1..)))
}
