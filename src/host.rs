//! What machine this is, what time it is there, and what becomes of its processes: the one seam to all of that.
//!
//! Two hosts exist: [`Unix`], the real one, and [`Fake`], whose clock and processes a test decides about.

pub mod boot_lease;
mod fake;
mod inherited;
mod owner;
pub(crate) mod proc_stat;
mod programs;
mod unix;
mod vigil;

use std::os::fd::BorrowedFd;
use std::time::Duration;

pub use fake::Fake;
pub use inherited::Inherited;
pub use owner::{Called, Caller, caller, may_end_with_call};
pub use proc_stat::start_of;
pub use programs::command_of;
pub use unix::{Unix, is_at_work};
pub use vigil::{Bell, Listener};

use crate::error::Result;
use crate::lock::{Fate, Home, Process, Proof};
use crate::store::{Hearing, Reach};

/// Clock, identity and fate of processes, and waiting.
pub trait Host: Send + Sync {
    /// CLOCK_BOOTTIME: counts suspend, and nobody can set it.
    fn boottime(&self) -> Duration;

    /// The wall clock, since 1970: to be shown, and the floor of new tokens.
    fn wall(&self) -> Duration;

    /// Where this process lives.
    fn home(&self) -> Result<Home>;

    /// The host's name, to be shown.
    fn name(&self) -> String;

    /// The numeric user that this process acts as.
    fn uid(&self) -> u32;

    /// This process.
    fn this_process(&self) -> Result<Process>;

    /// The process with this pid, or `None` if there is none.
    fn process(&self, pid: i32) -> Result<Option<Process>>;

    /// The processes that may hold something and go on only when this one ends, innermost first, as far as that can be seen:
    /// `some_time_later` it can be seen better.
    fn held_up_by(&self, called: &Called, some_time_later: bool) -> Vec<Process>;

    /// What is known of a process that lived at `home`, for a store that reaches so far.
    fn fate(&self, home: &Home, process: &Process, reach: Reach) -> Fate;

    /// Whether a process that lived at `home` has ended, and this parent of it has not yet waited for it and is at work: then
    /// the parent is about to release what the process held.
    fn is_released_by(&self, supervisor: &Process, home: &Home, process: &Process) -> bool;

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

    /// Begins to wait: from now on [`Host::ring`] with this proof reaches the vigil. `interrupt` ends its waits when it
    /// becomes readable.
    fn vigil<'a>(&self, proof: &Proof, interrupt: Option<BorrowedFd<'a>>) -> Result<Box<dyn Vigil + 'a>>;

    /// Wakes whoever listens there, if it is in reach, and says whether anybody does. Nobody may rely on it: a ring can be
    /// lost.
    fn ring(&self, listener: Listener<'_>) -> bool;
}

/// One waiter's ears. What happened before a wait, but after the vigil began, ends that wait at once.
pub trait Vigil {
    /// Waits until one of the signs, the interrupt, or `at_most` is over.
    fn wait(&mut self, signs: &mut Signs<'_>, at_most: Duration) -> Result<Woken>;

    /// From now on, a ring for [`Listener::OnBehalf`] of one of these keys ends a wait as well. `false`: somebody else
    /// hears those for one of them.
    fn answer(&mut self, keys: &[Vec<u8>]) -> bool;
}

/// What a waiter looks out for, beside its own bell.
pub struct Signs<'a> {
    /// One of these processes ends.
    pub processes: &'a [Process],
    /// The parents that release when one of these processes ends.
    pub supervisors: &'a [Process],
    /// Its bell in the store rings. What has rung is heard no longer.
    pub hearing: &'a mut Option<Box<dyn Hearing>>,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
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
    let mut signs = Signs { processes: &[], supervisors: &[], hearing: &mut None };
    host.vigil(&nobodys, None)?.wait(&mut signs, span).map(drop)
}
