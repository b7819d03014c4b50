//! The details of one lock on a terminal: its record and its last grants.

use crate::command::context::{Context, LockRef};
use crate::engine::{Engine, LockStatus};
use crate::history::Past;
use crate::lock::HandleHash;
use crate::report::{LockBlock, OutputStyle, Reporter};

/// Number of past grants that are kept for the display.
const KEPT: usize = 3;

/// The last grants of one lock, which are read again when the record has new ones.
#[derive(Default)]
pub(super) struct Details {
    past: Vec<Past>,
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
            (self.grants, self.past) = (grants, past_of(context, lock, engine));
        }
        LockBlock { lock, status, reporter, past: &self.past, style }.lines()
    }
}

/// Returns the last grants of a lock. Without a readable history there are none: the status is more important.
fn past_of(context: &Context, lock: &LockRef, engine: &Engine) -> Vec<Past> {
    let mut past = Vec::new();
    let limits = context.environment.history().unwrap_or_default();
    let _ = engine.each_past(&limits, &mut |ended| {
        if ended.name == lock.name {
            past.push(ended);
            past.drain(..past.len().saturating_sub(KEPT));
        }
    });
    past
}
