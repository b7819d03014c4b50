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
mod handle;
mod job;
mod lifetime;
mod owner;
mod protocol;
mod queue;
mod record;
mod refusal;
mod release;
mod request;
mod value;

pub use auxiliary::{CommitRecord, WaitEdges};
pub(crate) use codec::{
    Auxiliary, MOST_BYTES, committed, decode_auxiliary, decode_value, encode_auxiliary, encode_damaged, encode_value,
    name_of_auxiliary,
};
pub use codec::{decode, encode, is_auxiliary};
pub use deadlock::{Cycle, WaitNode, find_cycle};
pub use ending::{EndReason, EndRequest, EndedGrant};
pub use facts::{Facts, Liveness, Query};
pub use handle::{Handle, HandleHash};
pub use job::{
    BeginRun, Complain, Complaint, ForgetJob, GiveUp, JobState, Promise, ReportSuccess, RunStart, Runs, Success,
};
pub use lifetime::{Begun, Lease, LeaseClock, Lifetime, MOST_SIGHTINGS, Moment, Sighting, age, boot_of};
pub use owner::{Owner, PidDomain, PidSpace, ProcessId};
pub use protocol::{Standing, decide};
pub use queue::{Page, Pages, is_free, is_gone};
pub use queue::{Replacement, Successor, effective_owner};
pub use record::{Grant, MOST_SLOTS, Mode, Record, Waiter};
pub use refusal::{Edge, NotHolder, Refusal};
pub use request::{
    Acquire, AcquireStep, AskToEnd, Break, Cancel, Credentials, Gc, Note, Orphan, OwnerDied, Phase, Prepare,
    QueuePlace, QueuePosition, Release, Renew, Request, Transition,
};
pub use value::{MOST_VALUE, Precondition, Value, WriteRefusal, Writing, Written};
