//! The data of a lock and the rules for changing it: pure data and one pure function.
//!
//! The rules read no clock, file or process. A store keeps a [`Record`] under a name, [`decide`] contains every
//! rule, and the engine passes its findings as [`Facts`].

mod acquire;
mod auxiliary;
pub mod codec;
mod deadlock;
pub mod duration;
mod ending;
#[deny(missing_docs)]
pub mod error;
pub mod escape;
mod facts;
mod grant;
mod handle;
pub mod history;
mod job;
mod lifetime;
pub mod line;
pub mod name;
mod owner;
mod protocol;
mod queue;
mod record;
mod release;
mod request;
mod runs;
pub mod text;
mod value;
mod version;
mod waiter;
mod write;

pub use auxiliary::{CommitRecord, WaitEdge, WaitEdges};
pub use codec::{
    Auxiliary, MOST_BYTES, committed, decode, decode_auxiliary, decode_value, encode, encode_auxiliary, encode_damaged,
    encode_value, is_auxiliary, name_of_auxiliary,
};
pub use deadlock::{Cycle, WaitNode, find_cycle};
pub use error::{Error, ErrorKind, Result};
pub use facts::{Facts, Liveness, Query};
pub use grant::{EndReason, EndRequest, EndedGrant, Grant, MOST_SLOTS, Mode};
pub use handle::{Handle, HandleHash};
pub use job::{JobState, Promise, Runs, Success};
pub use lifetime::{
    ClockReading, DescriptorLock, Lease, LeaseClock, LeaseStart, Lifetime, MOST_SIGHTINGS, Sighting, age, boot_of,
};
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
pub use version::Version;
pub use waiter::{Page, Pages, QueuePlace, QueuePosition, Replacement, Waiter};
pub use write::{Precondition, SetValue, WriteRefusal, Written};
