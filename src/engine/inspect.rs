//! A record with the liveness of its holders and waiters, for display.

use super::prefetch::prefetch_liveness;
use crate::error::Result;
use crate::lock::{EndReason, Facts, Liveness, Query, Record, grant_status};

/// A record with the liveness of its holders and waiters.
#[derive(Debug, Clone)]
pub struct LockStatus {
    /// The record.
    pub record: Record,
    /// For each holder: the liveness of its owner, or the reason why its grant has ended.
    pub holders: Vec<std::result::Result<Liveness, EndReason>>,
    /// For each holder: the index of its effective owner.
    pub owners: Vec<usize>,
    /// For each waiter: its liveness.
    pub waiters: Vec<Liveness>,
}

impl LockStatus {
    pub(super) fn of(record: Record, mut learn: impl FnMut(&mut Facts, Query) -> Result<()>) -> Result<LockStatus> {
        let mut facts = Facts::default();
        prefetch_liveness(&record, &mut facts, &mut learn)?;
        loop {
            match look(&record, &facts) {
                Ok((holders, owners, waiters)) => return Ok(LockStatus { record, holders, owners, waiters }),
                Err(query) => learn(&mut facts, query)?,
            }
        }
    }

    /// Returns true if the lock has a holder whose grant has not ended.
    pub fn is_held(&self) -> bool {
        self.holders.iter().any(std::result::Result::is_ok)
    }
}

type Found = (Vec<std::result::Result<Liveness, EndReason>>, Vec<usize>, Vec<Liveness>);

fn look(record: &Record, facts: &Facts) -> std::result::Result<Found, Query> {
    let holders =
        record.holders.iter().map(|grant| grant_status(grant, facts)).collect::<std::result::Result<_, _>>()?;
    let mut owners = Vec::new();
    for grant in &record.holders {
        let mut effective = 0;
        for (at, owner) in grant.owner.processes.iter().enumerate() {
            effective = at;
            if facts.liveness(&grant.owner.domain, owner)?.may_live_here() {
                break;
            }
        }
        owners.push(effective);
    }
    let liveness = |waiter: &crate::lock::Waiter| facts.liveness(&waiter.owner.domain, &waiter.process);
    let waiters = record.waiters.iter().map(liveness).collect::<std::result::Result<_, _>>()?;
    Ok((holders, owners, waiters))
}
