//! The history of ended grants. Its lines are effects of the commit that ends them, and their loss affects no process.

use std::time::Duration;

use super::Engine;
use crate::error::Result;
use crate::history::{Limits, Past, Who};
use crate::lock::{EndReason, EndedGrant, Owner, Record};
use crate::store::HistoryCursor;

impl Engine {
    /// Returns the lines about the grants in `before` that have ended in `after`, at `now` on the wall clock; `by` is the
    /// owner that broke them.
    pub(super) fn endings(&self, before: &Record, after: &Record, by: Option<&Owner>, now: Duration) -> Vec<String> {
        if self.remembers.are_off() || before.holders.is_empty() {
            return Vec::new();
        }
        let now = now.as_millis() as u64;
        let was_held = |ending: &&EndedGrant| before.holder(&ending.grant.proof).is_some();
        let line = |ending: &EndedGrant| {
            let mut past = Past::ended(&before.name, ending, self.pid(&ending.grant.owner), now);
            if ending.reason == EndReason::Broken {
                past.broken_by = by.map(|by| Who::new(by, self.pid(by)));
            }
            past.line()
        };
        after.ended_grants.iter().filter(was_held).map(line).collect()
    }

    /// Visits every ended grant still kept, in the order of their ends. Returns `false` if this store has no history.
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

    /// Visits the grants whose ends were added to the history since the last call with this cursor, however old they
    /// are. Returns `false` if this store has no history.
    pub fn each_new_past(&self, cursor: &mut HistoryCursor, visit: &mut dyn FnMut(Past)) -> Result<bool> {
        self.store.read_new_history(cursor, &mut |line| {
            if let Some(past) = Past::read(line) {
                visit(past);
            }
        })
    }

    /// Returns the pid of the effective owner: the first process that is not dead. A single process needs no check.
    pub fn pid(&self, party: &Owner) -> Option<i32> {
        let lives = |owner: &&crate::lock::ProcessId| {
            party.processes.len() == 1 || self.host.liveness(&party.domain, owner, self.store.scope()).may_live_here()
        };
        party.processes.iter().find(lives).or(party.processes.last()).map(|owner| owner.pid)
    }
}
