//! What a lock is and what may happen to it: pure data and one pure function.
//!
//! Nothing in here reads a clock, a file or a process. [`Record`] is what a store keeps under a name,
//! [`decide`] is every rule there is, [`Facts`] is what the engine found out for it.

mod ask;
pub(crate) mod codec;
mod cycle;
mod decision;
mod facts;
mod handle;
mod page;
mod protocol;
mod queue;
mod record;
mod sighting;
mod value;
mod waits;

pub use ask::{Application, Ask, Claimant, Doubt, Link, Outcome, Place, Step};
pub use codec::beside::is_internal;
pub(crate) use codec::beside::{
    decode_decision, decode_page, decode_value, decode_waits, encode_decision, encode_page, encode_value, encode_waits,
    name_of_internal,
};
pub(crate) use codec::{MOST_BYTES, number};
pub use codec::{decode, encode};
pub use cycle::{Circle, Wait, circle};
pub use decision::Decision;
#[cfg(debug_assertions)]
pub use facts::trace::Answers;
pub use facts::{Facts, Fate, Wanted};
pub use handle::{Handle, Proof};
pub use page::{Joined, Page};
pub use protocol::{decide, standing};
pub use record::{
    Begun, Ended, Ending, Grant, Home, Lease, LeaseClock, Pages, Party, Process, Record, Share, Tenure, Waiter,
};
pub use sighting::{MOST_SIGHTINGS, Moment, Sighting, age, boot_of};
pub use value::{MOST_VALUE, OnlyIf, Value, Writing};
pub use waits::Waits;
