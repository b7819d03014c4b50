//! Breaking a lock, whoever holds it.

use super::Engine;
use crate::error::Result;
use crate::exit::Exit;
use crate::lock::{Ask, Outcome, Party};
use crate::store::Swap;

impl Engine {
    /// Ends the grants that one read finds, and remembers who did so. A record that is unreadable is removed, and no grant
    /// is told of then. Grants that came after that read stay: they are the answer, if there are any.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked or told, or when it does not know the version of an unreadable record.
    pub fn break_lock(&self, name: &[u8], by: Option<&Party>) -> Result<Outcome> {
        let mut race = self.race(name);
        let mut was_unreadable = false;
        loop {
            let error = match self.read(name) {
                Ok((_, record)) if was_unreadable => {
                    return Ok(match record.holders {
                        // Another process removed it, or we did and the reply was lost.
                        none if none.is_empty() => Outcome::Broken(none),
                        holders => Outcome::NotOwner(holders, None),
                    });
                }
                Ok((_, record)) => {
                    let proofs = record.holders.iter().map(|grant| grant.proof).collect();
                    return self.settle_for(name, &Ask::Break(proofs), by);
                }
                Err(error) if error.exit() == Exit::Corrupt => error,
                Err(error) => return Err(error),
            };
            let Some(version) = error.version() else { return Err(error) };
            if let Swap::Stored(_) = self.store.swap(name, Some(&version), None)? {
                return Ok(Outcome::Broken(Vec::new()));
            }
            was_unreadable = true;
            race.lost()?;
        }
    }
}
