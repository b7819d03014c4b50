//! Who wants a lock, and what he asks the protocol for.

use super::{Engine, WaitPolicy};
use crate::host::Invocation;
use crate::lock::{Acquire, Handle, HandleHash, Lifetime, Mode, Owner, ProcessId, Waiter};
use crate::store::Scope;

/// Who wants a lock, and on what terms.
#[derive(Debug, Clone)]
pub struct AcquireRequest {
    /// The secret that will prove the grant.
    pub handle: Handle,
    /// How much of it.
    pub mode: Mode,
    /// For whom.
    pub owner: Owner,
    /// The process that waits.
    pub process: ProcessId,
    /// Whether that process may end without the party losing what it waited for: then a grant must be confirmed.
    pub owner_outlives_process: bool,
    /// Whether the party's end gives the lock back, as a matter of course.
    pub release_on_exit: bool,
    /// The id under which the name is to be claimed, if it is.
    pub claim: Option<Vec<u8>>,
    /// How long the grant is to last.
    pub lifetime: Lifetime,
    /// How many may hold at once, for [`Mode::Slot`].
    pub slots: Option<u32>,
    /// Refuse when the holder is gone without having given back.
    pub refuse_stale: bool,
    /// What is granted depends on the waiting process until it is asked for again without this.
    pub provisional: bool,
    /// Take nothing that is not granted already.
    pub confirming: bool,
    /// The grants that do not end before this wait does: those that the applicant works under, and its own where it
    /// takes several names one after the other.
    pub enclosing_grants: Vec<HandleHash>,
    /// The process whose caller waits for it: [`Waiter::blocked_processes`] is found out when there is a wait.
    pub invocation: Option<Invocation>,
}

impl AcquireRequest {
    /// A process that takes a lock for itself alone, while it lives.
    pub fn for_itself(handle: Handle, owner: Owner, process: ProcessId) -> AcquireRequest {
        AcquireRequest {
            handle,
            mode: Mode::Exclusive,
            owner,
            process,
            owner_outlives_process: false,
            release_on_exit: false,
            claim: None,
            lifetime: Lifetime::WhileOwnerLives,
            slots: None,
            refuse_stale: false,
            provisional: false,
            confirming: false,
            enclosing_grants: Vec::new(),
            invocation: None,
        }
    }
}

impl Engine {
    pub(super) fn application(&self, request: &AcquireRequest, policy: &WaitPolicy) -> Acquire {
        let lifetime = match (&request.lifetime, self.store.scope()) {
            // Other hosts cannot see whether the owner lives.
            (Lifetime::WhileOwnerLives, Scope::Shared) => Lifetime::KeepalivePending(self.lease.as_millis() as u64),
            // Nor whether the process lives that has not yet said that it knows of its grant.
            (_, Scope::Shared) if request.provisional => Lifetime::KeepalivePending(self.lease.as_millis() as u64),
            (tenure, _) => tenure.clone(),
        };
        let confirms =
            request.owner_outlives_process || matches!(lifetime, Lifetime::Ttl(_) | Lifetime::KeepalivePending(_));
        let entry = Waiter {
            proof: request.handle.proof(),
            mode: request.mode,
            owner: request.owner.clone(),
            process: request.process,
            lifetime: lifetime.clone(),
            needs_confirmation: confirms,
            release_on_exit: request.release_on_exit,
            claim: request.claim.clone(),
            enclosing_grants: request.enclosing_grants.clone(),
            blocked_processes: Vec::new(),
            lease: None,
            since: self.host.wall().as_millis() as u64,
        };
        Acquire {
            entry,
            lifetime,
            slots: request.slots,
            queue: !policy.is_none(),
            refuse_stale: request.refuse_stale,
            provisional: request.provisional,
            confirming: request.confirming,
            position: None,
            full: None,
        }
    }
}
