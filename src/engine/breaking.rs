//! Breaking a lock, regardless of its holder.

use std::time::Duration;

use super::Engine;
use crate::error::{ErrorKind, Result};
use crate::lock::{Break, EndedGrant, Grant, NotHolder, Owner};
use crate::store::{CommitResult, WriteOptions};

/// Maximum time for retries to remove an unreadable record, if the store reports changes all the time.
const REMOVAL_LIMIT: Duration = Duration::from_secs(5);

/// The grants that were broken, or were stale and have been removed; none for an unreadable record.
pub type Broken = std::result::Result<Vec<EndedGrant>, NotHolder>;

impl Engine {
    /// Ends the grants that one read finds, or those of them that are `meant`, and records the breaker. Grants that
    /// came after that read stay; the response contains them, if there are any. If every grant is meant, the call
    /// removes an unreadable record, and the response contains no grant.
    /// Fails if the store cannot be read or written. An unreadable record is an error if only some grants are meant, or
    /// if the store does not know its version.
    pub fn break_lock(
        &self,
        name: &[u8],
        meant: Option<&dyn Fn(&Grant) -> bool>,
        by: Option<&Owner>,
    ) -> Result<Broken> {
        let mut race = self.race(name).until(self.host.boottime().saturating_add(REMOVAL_LIMIT));
        let mut was_unreadable = false;
        loop {
            let error = match self.read(name) {
                Ok((_, record)) if was_unreadable => {
                    return Ok(match record.holders {
                        // Another process removed the record, or this process did and the reply was lost.
                        none if none.is_empty() => Ok(Vec::new()),
                        holders => Err(NotHolder { holders, ..NotHolder::default() }),
                    });
                }
                Ok((_, record)) => {
                    let meant = record.holders.iter().filter(|grant| meant.is_none_or(|meant| meant(grant)));
                    let proofs = meant.map(|grant| grant.proof).collect();
                    return self.apply_as(name, &Break(proofs), by);
                }
                Err(error) if error.kind() == ErrorKind::Corrupt && meant.is_none() => error,
                Err(error) => return Err(error),
            };
            let Some(version) = error.version() else { return Err(error) };
            if let CommitResult::Done(_) = self.commit_beside(name, Some(&version), None, WriteOptions::default())? {
                return Ok(Ok(Vec::new()));
            }
            was_unreadable = true;
            if !race.backoff()? {
                return Err(error);
            }
        }
    }
}
