//! The details of one lock on a terminal: its record and its last grants.

use crate::command::context::{Context, LockRef};
use crate::engine::{Engine, LockStatus};
use crate::history::{HoldTimes, Past};
use crate::lock::HandleHash;
use crate::report::{LockBlock, OutputStyle, Reporter};

/// Number of past grants that are kept for the display.
const KEPT: usize = 3;

/// The last grants of one lock, which are read again when the record has new ones.
#[derive(Default)]
pub(super) struct Details {
    past: Vec<Past>,
    times: HoldTimes,
    /// The grants that the record showed when the history was read.
    grants: Option<Vec<HandleHash>>,
}

impl Details {
    /// Returns the lines about a lock.
    pub(super) fn lines(
        &mut self,
        context: &Context,
        (lock, engine): (&LockRef, &Engine),
        status: &LockStatus,
        reporter: &Reporter<'_>,
        style: OutputStyle,
    ) -> Vec<String> {
        let ended = status.record.ended_grants.iter().map(|ending| &ending.grant);
        let grants = Some(status.record.holders.iter().chain(ended).map(|grant| grant.proof).collect());
        if self.grants != grants {
            self.grants = grants;
            self.read_past(context, lock, engine);
        }
        LockBlock { lock, status, reporter, past: &self.past, times: &self.times, style }.lines()
    }

    /// Reads the last grants of a lock. Without a readable history there are none: the status is more important.
    fn read_past(&mut self, context: &Context, lock: &LockRef, engine: &Engine) {
        (self.past, self.times) = Default::default();
        let limits = context.environment.history().unwrap_or_default();
        let _ = engine.each_past(&limits, &mut |ended| {
            if ended.name == lock.name {
                self.times.add(&ended);
                self.past.push(ended);
                self.past.drain(..self.past.len().saturating_sub(KEPT));
            }
        });
    }
}
