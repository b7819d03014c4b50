//! Prefetching facts about many holders and waiters. A decision restarts after each answer, which is cheap for sixteen
//! waiters and a few holders. A shared lock or untrusted input may have thousands, and each of them would cost as much
//! as all of them.

use std::time::Duration;

use super::Engine;
use crate::error::Result;
use crate::lock::{Facts, Query, Record, grant_status};

/// Maximum number of entries whose liveness is queried only on demand.
const CROWD: usize = 64;

/// Maximum number of holders whose leases are queried one by one.
const FEW_LEASES: usize = 4;

impl Engine {
    /// Finds out about the leases of the holders at once, if they are many, and inserts the liveness of all holders and
    /// waiters of a record, if they are many.
    pub(super) fn prefetch(&self, record: &Record, facts: &mut Facts, limit: Option<Duration>) -> Result<()> {
        if record.holders.len() > FEW_LEASES {
            let leases: Vec<_> = record.holders.iter().filter_map(|grant| grant.lifetime.lease()).collect();
            self.store.leases().look_ahead(&leases)?;
        }
        if record.holders.len() + record.waiters.len() <= CROWD {
            return Ok(());
        }
        for grant in &record.holders {
            while let Err(query) = grant_status(grant, facts) {
                // This query is not prefetched, because its answer may force a decision about the commit.
                if matches!(query, Query::Committed(_)) {
                    break;
                }
                self.learn(record, facts, query, limit)?;
            }
        }
        for waiter in &record.waiters {
            if let Err(query) = facts.liveness(&waiter.owner.domain, &waiter.process) {
                self.learn(record, facts, query, limit)?;
            }
        }
        Ok(())
    }
}
