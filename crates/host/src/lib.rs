//! Access to the machine: its identity, its clocks and its processes. Only this crate accesses them.
//!
//! Two hosts exist: [`Unix`] is the real host, and a test controls the clock and processes of [`Fake`].

use std::sync::OnceLock;

mod callers;
mod databases;
#[cfg(any(test, fuzzing, debug_assertions))]
mod fake;
mod file_locks;
mod interface;
mod machine;
pub mod processes;
mod programs;
pub mod signals;
mod unix;
mod wake_set;

pub use callers::{Caller, ThisProcess, may_end_with_call, new_owner};
pub use databases::{addresses_of, group_name, home_of, homes, user_name};
#[cfg(any(test, fuzzing, debug_assertions))]
pub use fake::Fake;
pub use file_locks::{FileLock, descriptor_lock, file_locks, is_file_locked, posix_holders, try_flock};
pub use interface::{Host, Scope, Subscription, WakeAddress, WakeReason, WakeSet, Watched};
#[cfg(any(test, debug_assertions))]
pub use machine::OFFSETS;
pub use machine::{file_time, server_time};
pub use processes::{
    OF_OTHER_USER, end_abandoned, is_at_work, is_csalock, is_stopped, liveness_of, pidfd_of, send, send_for, start_of,
    user_of,
};
pub use programs::command_of;
#[cfg(any(test, debug_assertions))]
pub use unix::FIRST_PIDS;
pub use unix::{Unix, random_bytes, texts_of_witnesses};
pub use wake_set::WakeSocket;

/// Learns a fact that cannot change, if it is not known yet.
fn known<T, E>(fact: &OnceLock<T>, learn: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
    match fact.get() {
        Some(known) => Ok(known),
        None => learn().map(|found| fact.get_or_init(|| found)),
    }
}
