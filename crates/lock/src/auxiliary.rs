//! Objects beside the records: commit records and wait edges.
//!
//! **Commit records** are the two-phase commit of several names: all of them or none, even if the caller is killed.
//!
//! A caller that acquires several names gets *provisional* grants, which end with it. It then commits them together:
//!
//! 1. The caller writes an uncommitted commit record, under a store name derived from the grants' handle hash.
//! 2. The caller replaces that record by a *committed* one; from this step on all the grants are valid.
//! 3. The caller confirms the grants one by one and removes the commit record.
//!
//! A release of several claims reverses this. The caller writes a committed record, makes each claim depend on it, and
//! removes it in one step.
//!
//! A process that finds a provisional grant of a dead caller reads the commit record. It first removes an uncommitted
//! one, so that a late NFS request of the dead caller cannot commit it; the grant is then over. If the record is
//! committed, the grant is valid and the next writer confirms it.
//!
//! **Wait edges** are edges of the wait-for graph that waiters publish, so that other waiters can find a cycle. A
//! record lists the holders and waiters of a lock, but not the other waits of its holders. So a waiter that may hold
//! other locks publishes edges under each process that continues only after the wait, and under each enclosing grant. A
//! waiter for a lock of that process reads the edges there. An edge is only a hint; the record that it leads to counts,
//! so an edge that a dead waiter left misleads no process.

use serde::{Deserialize, Serialize};

use super::{Grant, HandleHash, PidDomain, ProcessId, Waiter, text};

/// Commit record of a caller that acquires several names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitRecord {
    pub committed: bool,
    #[serde(with = "text")]
    pub names: Vec<Vec<u8>>,
}

impl CommitRecord {
    /// Store name of a commit record. A user cannot type this name, because it contains a NUL byte.
    pub fn key(proof: &HandleHash) -> Vec<u8> {
        [proof.to_string().as_bytes(), b"\0decision"].concat()
    }

    /// Handle hash of the commit record with this store name; `None` for other names.
    pub fn of_key(key: &[u8]) -> Option<HandleHash> {
        HandleHash::parse(std::str::from_utf8(key.strip_suffix(b"\0decision")?).ok()?)
    }
}

/// Waits of one process, or under one grant.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WaitEdges {
    pub waits: Vec<WaitEdge>,
}

/// Name of the lock, and handle hash of the queue entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WaitEdge(#[serde(with = "text")] pub Vec<u8>, pub HandleHash);

impl WaitEdges {
    /// Store names of a waiter's edges.
    pub fn keys(waiter: &Waiter) -> Vec<Vec<u8>> {
        let of_processes =
            waiter.blocked_processes.iter().map(|process| WaitEdges::of_process(&waiter.owner.domain, process));
        waiter.enclosing_grants.iter().map(WaitEdges::under).chain(of_processes).collect()
    }

    /// Store names under which the edges of a holder's waits may be.
    pub fn keys_of_holder(grant: &Grant) -> Vec<Vec<u8>> {
        let of_owners = grant.owner.processes.iter().map(|owner| WaitEdges::of_process(&grant.owner.domain, owner));
        std::iter::once(WaitEdges::under(&grant.proof)).chain(of_owners).collect()
    }

    fn of_process(domain: &PidDomain, process: &ProcessId) -> Vec<u8> {
        format!("\0{}:{}:{}:{}", domain.boot, domain.pids, process.pid, process.start).into_bytes()
    }

    fn under(proof: &HandleHash) -> Vec<u8> {
        format!("\0{proof}").into_bytes()
    }
}
