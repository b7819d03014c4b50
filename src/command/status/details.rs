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
        let (limits, now) = (context.environment.history().unwrap_or_default(), context.host.wall());
        let read = engine.each_new_past(&mut self.cursor, &mut |ended| {
            if ended.name == lock.name && limits.keep(&ended, now) {
                self.times.add(&ended);
                self.past.push(ended);
                self.past.drain(..self.past.len().saturating_sub(KEPT));
            }
        });
        if read.is_err() {
            // Otherwise the next look could read some of them twice.
            *self = Details::default();
        }
    }
}
