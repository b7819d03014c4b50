//! What is asked about a crowd at once. To decide is to begin anew after each answer, which is cheap while a record has
//! sixteen waiters and a few holders; of the thousands that shared locks may have, or that a stranger wrote, each would cost as
//! much as all of them.

use crate::error::Result;
use crate::lock::{Facts, Query, Record, grant_status};

/// Fewer are asked about when it is their turn, and perhaps never.
const CROWD: usize = 64;

/// Learns what has become of all who stand in a record, if they are many.
pub(super) fn prefetch_liveness(
    record: &Record,
    facts: &mut Facts,
    learn: &mut dyn FnMut(&mut Facts, Query) -> Result<()>,
) -> Result<()> {
    if record.holders.len() + record.waiters.len() <= CROWD {
        return Ok(());
    }
    for grant in &record.holders {
        while let Err(query) = grant_status(grant, facts) {
            // That is more than a question: it may make up somebody's mind.
            if matches!(query, Query::Committed(_)) {
                break;
            }
            learn(facts, query)?;
        }
    }
    for waiter in &record.waiters {
        if let Err(wanted) = facts.liveness(&waiter.owner.domain, &waiter.process) {
            learn(facts, wanted)?;
        }
    }
    Ok(())
}
