//! What the engine writes down of grants that are over. It does so when the lock has moved on and those whom that concerns
//! have been rung, and whatever goes wrong here concerns nobody.

use super::Engine;
use crate::error::Result;
use crate::history::{Limits, Past, Who};
use crate::lock::{Owner, Record};

impl Engine {
    /// Writes down the grants that stood in `before` and had ended in what took its place; if they were broken, by whom.
    pub(super) fn log_endings(&self, before: &Record, after: &Record, by: Option<&Owner>) {
        if self.remembers.are_off() || before.holders.is_empty() {
            return;
        }
        let now = self.host.wall().as_millis() as u64;
        let was_held = |proof| before.holders.iter().any(|grant| grant.proof == proof);
        for ending in after.ended_grants.iter().filter(|ending| was_held(ending.grant.proof)) {
            let mut past = Past::ended(&before.name, ending, self.pid(&ending.grant.owner), now);
            if ending.reason == crate::lock::EndReason::Broken {
                past.broken_by = by.map(|by| Who::new(by, self.pid(by)));
            }
            self.store.append_history(past.line().as_bytes(), &self.remembers);
        }
    }

    /// Visits every grant that is over and not forgotten, in the order of their ends. `false`: this store keeps no history.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked.
    pub fn each_past(&self, limits: &Limits, visit: &mut dyn FnMut(Past)) -> Result<bool> {
        let kept_since = self.host.wall().saturating_sub(limits.age).as_millis() as u64;
        self.store.read_history(&mut |line| {
            if let Some(past) = Past::read(line)
                && past.to.is_some_and(|to| to >= kept_since)
            {
                visit(past);
            }
        })
    }

    /// The process that counts: the first that is not dead. Where there is but one, nobody needs to be asked.
    pub fn pid(&self, party: &Owner) -> Option<i32> {
        let lives = |owner: &&crate::lock::ProcessId| {
            party.processes.len() == 1 || self.host.liveness(&party.domain, owner, self.store.scope()).may_live_here()
        };
        party.processes.iter().find(lives).or(party.processes.last()).map(|owner| owner.pid)
    }
}
