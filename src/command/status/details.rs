//! The details of one lock on a terminal: its record and its last grants.

use crate::command::context::{Context, LockRef};
use crate::engine::{Engine, LockStatus};
use crate::history::{HoldTimes, Past};
use crate::report::{LockBlock, OutputStyle, Reporter};
use crate::store::HistoryCursor;

/// Number of past grants that are kept for the display.
const KEPT: usize = 3;

/// The last grants of one lock. The history may learn of an ending later than the record, so each look reads what is new.
#[derive(Default)]
pub(super) struct Details {
    past: Vec<Past>,
    times: HoldTimes,
    cursor: HistoryCursor,
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
        self.read_past(context, lock, engine);
        LockBlock { lock, status, reporter, past: &self.past, times: &self.times, style }.lines()
    }

    /// Reads the new grants of a lock. Without a readable history there are none: the status is more important.
    fn read_past(&mut self, context: &Context, lock: &LockRef, engine: &Engine) {
        let limits = context.environment.history().unwrap_or_default();
        let kept_since = context.host.wall().saturating_sub(limits.age).as_millis() as u64;
        let _ = engine.each_new_past(&mut self.cursor, &mut |ended| {
            if ended.name == lock.name && ended.to.is_some_and(|to| to >= kept_since) {
                self.times.add(&ended);
                self.past.push(ended);
                self.past.drain(..self.past.len().saturating_sub(KEPT));
            }
        });
    }
}
