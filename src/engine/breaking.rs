//! Breaking a lock, whoever holds it.

use std::time::Duration;

use super::Engine;
use crate::error::Result;
use crate::exit::Exit;
use crate::lock::{Grant, Owner, Request, Response};
use crate::store::{CommitResult, WriteOptions};

/// How long the removal of an unreadable record is tried again, when the store says that it changes all the time.
const REMOVAL_LIMIT: Duration = Duration::from_secs(5);

impl Engine {
    /// Ends the grants that one read finds, or those of them that are `meant`, and remembers who did so. Grants that came
    /// after that read stay: they are the answer, if there are any. If every grant is meant, an unreadable record is
    /// removed; the answer then names no grant.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked or told; when the record is unreadable and only some grants are meant, or the store
    /// does not know its version.
    pub fn break_lock(
        &self,
        name: &[u8],
        meant: Option<&dyn Fn(&Grant) -> bool>,
        by: Option<&Owner>,
    ) -> Result<Response> {
        let mut race = self.race(name).until(self.host.boottime().saturating_add(REMOVAL_LIMIT));
        let mut was_unreadable = false;
        loop {
            let error = match self.read(name) {
                Ok((_, record)) if was_unreadable => {
                    return Ok(match record.holders {
                        // Another process removed it, or we did and the reply was lost.
                        none if none.is_empty() => Response::Broken(Vec::new()),
                        holders => Response::NotOwner(holders, None),
                    });
                }
                Ok((_, record)) => {
                    let meant = record.holders.iter().filter(|grant| meant.is_none_or(|meant| meant(grant)));
                    let proofs = meant.map(|grant| grant.proof).collect();
                    return self.apply_as(name, &Request::Break(proofs), by);
                }
                Err(error) if error.exit() == Exit::Corrupt && meant.is_none() => error,
                Err(error) => return Err(error),
            };
            let Some(version) = error.version() else { return Err(error) };
            if let CommitResult::Done(_) = self.commit_beside(name, Some(&version), None, WriteOptions::default())? {
                return Ok(Response::Broken(Vec::new()));
            }
            was_unreadable = true;
            if !race.backoff()? {
                return Err(error);
            }
        }
    }
}
