//! The keeper: a background process that renews leases. Shared stores need it: other hosts cannot see that an owner
//! lives.
//!
//! `lock` leaves a keeper behind, and its parent (`parent.rs`): each of them replaces the other if that is killed. The
//! keeper records the owner's end and ends then, or when no lock is held any more.
//! `csalock run` has a keeper while its command runs, even for a `--ttl` on this host's own store. So neither a
//! stopped or killed supervisor nor a silent store lets a second holder in while the command runs. The keeper goes on
//! without its supervisor and records when the command has ended. The supervisor never waits for the store while the
//! command runs, and ends the command before the lease ends. Both know the end of the lease by [`SharedDeadline`]. If
//! the supervisor cannot end the command, the keeper does. If the keeper dies, the supervisor starts another one.
//!
//! The first thread renews and may wait for the store. The second thread watches processes and clock and never waits.

mod changes;
mod handle;
mod process;
mod renew_loop;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::unistd::{read, write};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, getrlimit};

use crate::engine::{Context, LockSet, OpenLockSet};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::{Grant, HandleHash, ProcessId};
use crate::run::deadline::SharedDeadline;
use crate::run::detach::{self, Detach};
use crate::run::timer::wait_readable;

pub use handle::Keeper;

/// Interval between checks that the supervisor is at work, and between calls to a store that did not answer.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Number of descriptors of a keeper: ten of its own, and those that a call of the store needs at the same time.
const DESCRIPTORS: u64 = 20;

/// The locks that a keeper renews, and the owners that it watches.
pub struct KeeperConfig<'a> {
    pub context: &'a Context,
    pub targets: &'a LockSet,
    pub proof: HandleHash,
    /// The owners; the keeper's work ends when all of them have ended.
    pub owners: Vec<ProcessId>,
    /// Publishes the end of the lease to the other processes that must know it.
    pub shared_deadline: SharedDeadline,
    /// True if the keeper kills the owners before their lease ends.
    pub kills: bool,
    /// True if the locks are held until the supervisor has recorded the success of the owners' work.
    pub is_reported: bool,
    /// True if each lock has a lease, even if its store belongs to this host alone.
    pub timed: bool,
}

/// Returns an error if a keeper could not renew leases, because the limit of open files is too low. A keeper closes what
/// it inherits, so the open files of this process do not matter.
pub fn check_limit() -> Result<()> {
    let Some(limit) = getrlimit(Resource::Nofile).current.filter(|limit| *limit < DESCRIPTORS) else { return Ok(()) };
    let what = format!("a lock with a lease needs {DESCRIPTORS} open files for its renewal, and the limit is {limit}");
    Err(Error::new(ErrorKind::System, what, "raise the limit of open files (ulimit -n)"))
}

/// Starts a keeper for the holder of these grants if only a keeper can record that the owner died. Stores whose
/// users cannot all see the owner need it, unless the owner's life does not count.
pub fn spawn_detached(keeping: &KeeperConfig<'_>, opened: &OpenLockSet<'_>, grants: &[Grant]) -> Result<()> {
    // Without an owner, no owner's death can end the grants.
    let has_lease = grants.iter().any(|grant| grant.lifetime.lease().is_some());
    if !opened.need_leases() || !has_lease || keeping.owners.is_empty() {
        return Ok(());
    }
    keeping.shared_deadline.start(opened, grants);
    detach::spawn(Detach::Orphan, &[], || keeping.run_in_child(false)).map(drop)
}

/// Returns a new eventfd(2) for notifications. A pipe takes two descriptors, and they may be scarce.
fn new_event() -> rustix::io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Makes the eventfd readable. If its counter cannot grow, an unread notification is there.
fn notify(event: BorrowedFd<'_>) {
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

/// Waits for [`POLL_INTERVAL`].
pub(super) fn pause() {
    let _ = wait_readable([], Some(POLL_INTERVAL));
}

/// Discards all notifications. Returns true if there were any.
fn drain(event: BorrowedFd<'_>) -> bool {
    read(event, &mut [0; 8]).is_ok()
}
