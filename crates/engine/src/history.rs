//! The history of ended grants. Its lines are effects of the commit that ends them, and their loss affects no process.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Engine;
use lock::history::{EndedBy, Past, Use, Who};
use lock::{EndReason, EndRequest, EndedGrant, Grant, HandleHash, Owner, Record, Result};
use store::{LinesOfHistory, WriteSet};

/// A caller's knowledge of the grants that it ends, for the history.
#[derive(Clone, Copy, Default)]
pub(super) struct Remark<'a> {
    pub(super) by: Option<&'a Owner>,
    /// How the holder used the grant with this hash.
    pub(super) used: Option<(HandleHash, Use)>,
}

impl Engine {
    /// Lines about the grants in `before` that have ended in `after`, at `now` on the wall clock.
    pub(super) fn endings(&self, before: &Record, after: &Record, remark: Remark<'_>, now: Duration) -> Vec<String> {
        if self.history_limits.are_off() || before.holders.is_empty() {
            return Vec::new();
        }
        // The commit that ends a grant may make the next one: that grant does not begin before the end.
        let is_new = |grant: &&Grant| before.holder(&grant.proof).is_none();
        let begins = after.holders.iter().filter(is_new).map(|grant| grant.since).min();
        let now = begins.unwrap_or(u64::MAX).min(now.as_millis() as u64);
        // A caller may hold the lock again by the handle of an earlier grant, whose ending the record still keeps.
        let was_held = |ending: &&EndedGrant| {
            before.holder(&ending.grant.proof).is_some_and(|grant| grant.token == ending.grant.token)
        };
        let line = |ending: &EndedGrant| -> Option<String> {
            let mut past = Past::ended(&before.name, ending, self.pid(&ending.grant.owner), now);
            match ending.reason {
                EndReason::Broken => past.broken_by = remark.by.map(|by| Who::new(by, self.pid(by))),
                EndReason::Released => {
                    let used = remark.used.filter(|(proof, _)| *proof == ending.grant.proof);
                    match used.map_or(Use::Unknown, |(_, used)| used) {
                        Use::Run(run) => past.run = Some(run),
                        Use::Nothing if ending.grant.end_request.is_none() => return None,
                        // The process that ended the holder finds its trace.
                        Use::Unknown | Use::Nothing => {}
                    }
                }
                EndReason::Died | EndReason::Ended | EndReason::Expired => {}
            }
            past.ended_by = ending.grant.end_request.as_deref().map(|request| self.ended_by(request));
            Some(past.line())
        };
        after.ended_grants.iter().filter(was_held).filter_map(line).collect()
    }

    /// Adds that the holder of a grant that was lost before has released it only now.
    pub fn note_late(&self, name: &[u8], ending: &EndedGrant) {
        let is_lost = matches!(ending.reason, EndReason::Expired | EndReason::Broken);
        if !is_lost || self.history_limits.are_off() {
            return;
        }
        let (now, held) = (self.host.wall(), Past::held(name, &ending.grant, self.pid(&ending.grant.owner)));
        let past = Past { to: Some(now.as_millis() as u64), how: Some(ending.reason), late: true, ..held };
        let history = LinesOfHistory::new(|| vec![past.line()]);
        let set = WriteSet { history, limits: self.history_limits, ..WriteSet::default() };
        // The loss of a line of history affects no process.
        if self.store.commit(self.call, &set).is_ok() {
            self.store.finish(self.call, &set);
        }
    }

    /// Visits the ended grants in the order of their ends. Returns `false` if this store has no history.
    pub fn each_past(&self, visit: &mut dyn FnMut(Past)) -> Result<bool> {
        self.read_past(false, visit)
    }

    /// Visits the ended grants or, with `late`, the late ends of grants ([`Past::late`]).
    pub fn read_past(&self, late: bool, visit: &mut dyn FnMut(Past)) -> Result<bool> {
        let now = self.host.wall();
        self.store.read_history(self.call, &mut |line| {
            if let Some(past) = Past::read(line)
                && past.late == late
                && self.history_limits.keep(&past, now)
            {
                visit(past);
            }
        })
    }

    /// Without a readable history there are none.
    pub fn last_runs(&self) -> BTreeMap<Vec<u8>, Past> {
        let mut runs = BTreeMap::new();
        if !self.history_limits.are_off() {
            let _ = self.each_past(&mut |past| {
                if past.is_run() {
                    runs.insert(past.name.clone(), past);
                }
            });
        }
        runs
    }

    pub fn ended_by(&self, EndRequest { by, replaces }: &EndRequest) -> EndedBy {
        EndedBy { who: Who::new(by, self.pid(by)), replaces: *replaces }
    }

    /// Pid of the effective owner: the first process that is not dead. A single process needs no check.
    pub fn pid(&self, party: &Owner) -> Option<i32> {
        let lives = |owner: &&lock::ProcessId| {
            party.processes.len() == 1 || self.host.liveness(&party.domain, owner, self.store.scope()).may_live_here()
        };
        party.processes.iter().find(lives).or(party.processes.last()).map(|owner| owner.pid)
    }
}
