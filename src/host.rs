//! What machine this is, what time it is there, and what becomes of its processes: the one seam to all of that.
//!
//! Two hosts exist: [`Unix`], the real one, and [`Fake`], whose clock and processes a test decides about.

pub mod boot_lease;
mod fake;
mod owner;
pub(crate) mod proc_stat;
mod programs;
mod startup_state;
mod unix;
mod wait_set;

use std::os::fd::BorrowedFd;
use std::time::Duration;

pub use fake::Fake;
pub use owner::{Caller, Invocation, caller, may_end_with_call};
pub use proc_stat::start_of;
pub use programs::command_of;
pub use startup_state::StartupState;
pub use unix::{Unix, is_at_work};
pub use wait_set::{WakeAddress, WakeSocket};

use crate::error::Result;
use crate::lock::{HandleHash, Liveness, PidDomain, ProcessId};
use crate::store::{Scope, Subscription};

/// Clock, identity and fate of processes, and waiting.
pub trait Host: Send + Sync {
    /// CLOCK_BOOTTIME: counts suspend, and nobody can set it.
    fn boottime(&self) -> Duration;

    /// The wall clock, since 1970: to be shown, and the floor of new tokens.
    fn wall(&self) -> Duration;

    /// Where this process lives.
    fn domain(&self) -> Result<PidDomain>;

    /// The host's name, to be shown.
    fn name(&self) -> String;

    /// The numeric user that this process acts as.
    fn uid(&self) -> u32;

    /// This process.
    fn this_process(&self) -> Result<ProcessId>;

    /// The process with this pid, or `None` if there is none.
    fn process(&self, pid: i32) -> Result<Option<ProcessId>>;

    /// The processes that may hold something and go on only when this one ends, innermost first, as far as that can be seen:
    /// `some_time_later` it can be seen better.
    fn blocked_callers(&self, called: &Invocation, some_time_later: bool) -> Vec<ProcessId>;

    /// What is known of a process that lived at `home`, for a store that reaches so far.
    fn liveness(&self, domain: &PidDomain, process: &ProcessId, reach: Scope) -> Liveness;

    /// Whether a process that lived at `home` has ended, and this parent of it has not yet waited for it and is at work: then
    /// the parent is about to release what the process held.
    fn is_released_by(&self, supervisor: &ProcessId, domain: &PidDomain, process: &ProcessId) -> bool;

    /// Does nothing for this long.
    fn sleep(&self, span: Duration);

    /// Whether a signal came that ends the waits of this process and that nothing has heard yet.
    fn is_interrupted(&self) -> bool;

    /// Notes in this machine's memory, for as long as it runs, that an entry with this key was written from here.
    fn leave_witness(&self, key: &str);

    /// Whether that was noted, by this user. No other machine has the note: also none that was resumed from the same
    /// snapshot, if the entry is younger than that.
    fn has_witness(&self, key: &str, uid: u32) -> bool;

    /// Forgets it.
    fn remove_witness(&self, key: &str);

    /// Forgets all of this user that are as old as this, of whatever store.
    fn remove_old_witnesses(&self, age: Duration);

    /// Random bytes that nobody can guess.
    fn random(&self) -> Result<[u8; 16]>;

    /// Begins to wait: from now on [`Host::wake`] with this proof reaches the vigil. `interrupt` ends its waits when it
    /// becomes readable.
    fn wait_set<'a>(&self, proof: &HandleHash, interrupt: Option<BorrowedFd<'a>>) -> Result<Box<dyn WaitSet + 'a>>;

    /// Wakes whoever listens there, if it is in reach, and says whether anybody does. Nobody may rely on it: a ring can be
    /// lost.
    fn wake(&self, listener: WakeAddress<'_>) -> bool;
}

/// One waiter's ears. What happened before a wait, but after the vigil began, ends that wait at once.
pub trait WaitSet {
    /// Waits until one of the signs, the interrupt, or `at_most` is over.
    fn wait(&mut self, signs: &mut WaitSources<'_>, at_most: Duration) -> Result<WakeReason>;

    /// From now on, a ring for [`WakeAddress::OnBehalf`] of one of these keys ends a wait as well. `false`: somebody else
    /// hears those for one of them.
    fn answer(&mut self, keys: &[Vec<u8>]) -> bool;
}

/// What a waiter looks out for, beside its own bell.
pub struct WaitSources<'a> {
    /// One of these processes ends.
    pub processes: &'a [ProcessId],
    /// The parents that release when one of these processes ends.
    pub supervisors: &'a [ProcessId],
    /// Its bell in the store rings. What has rung is heard no longer.
    pub subscription: &'a mut Option<Box<dyn Subscription>>,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeReason {
    /// There may be something new to see.
    LookAgain,
    /// The interrupt came.
    Interrupted,
    /// Somebody wants to know what we wait for.
    Asked,
    /// The time was over.
    TimeOver,
}

/// Does nothing for so long.
///
/// # Errors
///
/// When the system cannot wait.
pub fn pause(host: &dyn Host, span: Duration) -> Result<()> {
    let nobodys = crate::lock::Handle::new(host.random()?).proof();
    let mut signs = WaitSources { processes: &[], supervisors: &[], subscription: &mut None };
    host.wait_set(&nobodys, None)?.wait(&mut signs, span).map(drop)
}
