//! The request of a caller for a lock, and its translation for the protocol.

use super::{Engine, WaitPolicy};
use crate::host::Invocation;
use crate::lock::{Acquire, Handle, HandleHash, Lifetime, Mode, Owner, Phase, ProcessId, Waiter};
use crate::store::Scope;

/// The end of a grant that no process releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndsWith {
    /// The grant ends with the process that acquires it. Its end without a release leaves a stale lock.
    Process,
    /// The grant ends with the process that acquires it, and that end is a normal release.
    Exit,
    /// The grant ends with its owner, which outlives the process. The process has to confirm a grant that it waited for.
    Owner,
}

/// A request for a lock, and its terms.
#[derive(Debug, Clone)]
pub struct AcquireRequest {
    /// The secret that will prove the grant.
    pub handle: Handle,
    pub mode: Mode,
    pub owner: Owner,
    /// The process that waits.
    pub process: ProcessId,
    /// The end of the grant if no process releases it.
    pub ends_with: EndsWith,
    /// The id under which the request claims the name, if it does.
    pub claim: Option<Vec<u8>>,
    /// True if a newer request of this kind takes the place of this one in the queue.
    pub latest_only: bool,
    pub lifetime: Lifetime,
    /// Maximum number of holders, for [`Mode::Slot`].
    pub slots: Option<u32>,
    /// True if the request fails when the holder ended without a release.
    pub refuse_stale: bool,
    pub phase: Phase,
    /// The grants that do not end before this wait: the enclosing grants of the caller, and its own while it acquires
    /// several names in order.
    pub enclosing_grants: Vec<HandleHash>,
    /// The process whose caller waits for it; a wait derives [`Waiter::blocked_processes`] from it.
    pub invocation: Option<Invocation>,
}

impl AcquireRequest {
    /// Creates the request of a process that acquires an exclusive lock for itself, for as long as it lives.
    pub fn for_itself(handle: Handle, owner: Owner, process: ProcessId) -> AcquireRequest {
        AcquireRequest {
            handle,
            mode: Mode::Exclusive,
            owner,
            process,
            ends_with: EndsWith::Process,
            claim: None,
            latest_only: false,
            lifetime: Lifetime::WhileOwnerLives,
            slots: None,
            refuse_stale: false,
            phase: Phase::Direct,
            enclosing_grants: Vec::new(),
            invocation: None,
        }
    }
}

impl Engine {
    /// Returns the terms of a request for the rules of locking, in a store with the scope `scope`. The caller asks the
    /// store once, because each answer costs three system calls while a directory does not exist.
    pub(super) fn acquire_terms(&self, scope: Scope, request: &AcquireRequest, policy: &WaitPolicy) -> Acquire {
        let needs_leases = self.needs_leases_in(scope);
        let lifetime = match request.phase == Phase::Provisional && needs_leases {
            // Not all users of the store can see whether the process of a provisional grant lives.
            true => Lifetime::KeepalivePending(self.lease.as_millis() as u64),
            false => self.lifetime_in_store(needs_leases, &request.lifetime),
        };
        let confirms = request.ends_with == EndsWith::Owner
            || matches!(lifetime, Lifetime::Ttl(_) | Lifetime::KeepalivePending(_));
        let entry = Waiter {
            mode: request.mode,
            lifetime,
            needs_confirmation: confirms,
            release_on_exit: request.ends_with == EndsWith::Exit,
            claim: request.claim.clone(),
            latest_only: request.latest_only,
            enclosing_grants: request.enclosing_grants.clone(),
            since: self.host.wall().as_millis() as u64,
            ..Waiter::new(request.handle.proof(), request.owner.clone(), request.process)
        };
        Acquire {
            slots: request.slots,
            queue: !policy.is_none(),
            refuse_stale: request.refuse_stale,
            phase: request.phase,
            ..Acquire::new(entry)
        }
    }
}
