//! The facts that a decision about a record asks for.
//!
//! A decision restarts after each answer, which is cheap for sixteen waiters and a few holders. A shared lock or untrusted
//! input may have thousands, and each of them would cost as much as all of them. Facts about many are therefore fetched
//! before the decision.

use std::time::Duration;

use super::Engine;
use crate::error::Result;
use crate::lock::{Facts, Grant, HandleHash, Liveness, Owner, PidDomain, ProcessId, Query, Record, grant_status};

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

    /// Answers a query of the decision about this record, as it was read, and adds the answer to the facts.
    pub(super) fn learn(
        &self,
        record: &Record,
        facts: &mut Facts,
        query: Query,
        time_left: Option<Duration>,
    ) -> Result<()> {
        match query {
            Query::Outlasts(lease) => {
                let left = self.store.leases().time_to_expiry(&lease, &record.sightings)?;
                facts.insert_outlasts(lease, time_left.is_some_and(|time_left| left > time_left));
            }
            Query::Committed(proof) => facts.insert_committed(proof, self.has_committed(&proof)?),
            Query::NewLease(span) => {
                facts.insert_new_lease(span, self.store.leases().grant(Duration::from_millis(span))?)
            }
            Query::Page(number) => facts.insert_page(number, self.seal(&record.name, number)?),
            Query::Liveness(domain, process) => {
                let liveness = self.fate_in(record, facts, &domain, &process);
                let is_released = || {
                    let depends = |owner: &&Owner| owner.domain == domain && owner.processes.contains(&process);
                    let supervisor = record.owners().filter(depends).find_map(|owner| owner.supervisor);
                    supervisor.is_some_and(|supervisor| self.host.is_released_by(&supervisor, &domain, &process))
                };
                let lived = liveness == Liveness::Dead
                    && (is_released() || self.was_confirmed_since(record, &domain, &process)?);
                facts.insert_liveness(domain, process, if lived { Liveness::Alive } else { liveness });
            }
            Query::LeaseExpired(lease) => {
                let over = self.lease_expired(record, &lease)?;
                facts.insert_expired(lease, over);
            }
        }
        Ok(())
    }

    /// Returns true if a grant of this record depended on this process at the read and no longer does. The process then
    /// confirmed that grant before it ended, so its end proves nothing.
    fn was_confirmed_since(&self, record: &Record, domain: &PidDomain, process: &ProcessId) -> Result<bool> {
        let depend = |record: &Record| -> Vec<HandleHash> {
            let on_it = |grant: &&Grant| grant.provisional.as_ref() == Some(process) && grant.owner.domain == *domain;
            record.holders.iter().filter(on_it).map(|grant| grant.proof).collect()
        };
        let before = depend(record);
        Ok(!before.is_empty() && depend(&self.read(&record.name)?.1) != before)
    }
}
