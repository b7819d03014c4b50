//! Reasons to refuse a lock. [`crate::report`] has their words.

use super::ending::EndedGrant;
use super::queue::Successor;
use super::record::Grant;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// These grants hold the lock, and the caller does not queue.
    Busy(Vec<Grant>),
    /// The holders of these grants are gone without a release, and `refuse_stale` was set.
    Stale(Vec<EndedGrant>),
    /// The wait would never end. The caller waits for the first edge, whose holder waits for the second, and so on; the
    /// last edge is the caller's own grant.
    Deadlock(Vec<Edge>),
    /// Another id has claimed the name permanently.
    Claimed(Box<Grant>),
    /// A newer caller has the caller's place in the queue, or the caller lost its place for an unknown reason.
    Replaced(Option<Box<Successor>>),
    /// The caller had the lock and only confirms that, but the grant has ended.
    Lost(Box<NotHolder>),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NotHolder {
    pub holders: Vec<Grant>,
    /// Ending of the caller's grant, if the record still has it.
    pub ending: Option<EndedGrant>,
    /// Ending of another grant that is still in the record, although its owner died or its lease expired.
    pub stale: Option<EndedGrant>,
    /// True if the store with the caller's grant is not at its place any more.
    pub store_was_replaced: bool,
}

/// Edge of a cycle in the wait-for graph: a lock that the previous waiter waits for, and its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    pub name: Vec<u8>,
    /// Grant of the holder, which does not release the lock before its own wait is over.
    pub grant: Grant,
}
