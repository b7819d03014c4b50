//! What a lock is and what may happen to it: pure data and one pure function.
//!
//! Nothing in here reads a clock, a file or a process. [`Record`] is what a store keeps under a name,
//! [`decide`] is every rule there is, [`Facts`] is what the engine found out for it.

mod ask;
mod codec;
mod facts;
mod handle;
mod protocol;
mod queue;
mod record;

pub use ask::{Application, Ask, Claimant, Outcome, Step};
pub(crate) use codec::MOST_BYTES;
pub use codec::{decode, encode};
pub use facts::{Facts, Fate, Wanted};
pub use handle::{Handle, Proof};
pub use protocol::{decide, standing};
pub use record::{Ended, Ending, Grant, Home, Lease, LeaseClock, Party, Process, Record, Share, Tenure, Waiter};
