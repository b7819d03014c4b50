//! The data of a lock and the rules for changing it: pure data and one pure function.
//!
//! This module reads no clock, file or process. A store keeps a [`Record`] under a name, [`decide`] contains every
//! rule, and the engine passes its findings as [`Facts`].

mod acquire;
mod auxiliary;
pub(crate) mod codec;
mod deadlock;
mod ending;
mod facts;
mod grant;
mod handle;
mod job;
mod lifetime;
pub(crate) mod line;
mod owner;
mod protocol;
mod queue;
mod record;
mod release;
mod request;
mod runs;
pub(crate) mod text;
mod value;
mod waiter;
mod write;

pub use auxiliary::{CommitRecord, WaitEdge, WaitEdges};
pub(crate) use codec::{
    Auxiliary, MOST_BYTES, committed, decode_auxiliary, decode_value, encode_auxiliary, encode_damaged, encode_value,
    name_of_auxiliary,
};
pub use codec::{decode, encode, is_auxiliary};
pub use deadlock::{Cycle, WaitNode, find_cycle};
pub use facts::{Facts, Liveness, Query};
pub use grant::{EndReason, EndRequest, EndedGrant, Grant, MOST_SLOTS, Mode};
pub use handle::{Handle, HandleHash};
pub use job::{JobState, Promise, Runs, Success};
pub use lifetime::{ClockReading, Lease, LeaseClock, LeaseStart, Lifetime, MOST_SIGHTINGS, Sighting, age, boot_of};
pub use owner::{Owner, PidDomain, PidSpace, ProcessId};
pub use protocol::{Standing, decide};
pub use queue::{is_free, is_gone};
pub use record::Record;
pub use request::{
    Acquire, AcquireStep, AskToEnd, Awaited, Break, Cancel, Credentials, Edge, NotHolder, Note, Orphan, OwnerDied,
    Phase, Prepare, Refusal, Release, RenewGrant, Request, Successor, Sweep, Transition,
};
pub use runs::{BeginRun, Complain, Complaint, ForgetJob, GiveUp, ReportSuccess, RunStart};
pub use value::{MOST_VALUE, Value};
pub use waiter::{Page, Pages, QueuePlace, QueuePosition, Replacement, Waiter};
pub use write::{Precondition, SetValue, WriteRefusal, Written};
