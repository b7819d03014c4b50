//! The details of one lock on a terminal: its record, its last grants, and other locks of its file.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::command::context::{Context, LockRef};
use crate::engine::{Engine, LockStatus};
use crate::history::{HoldTimes, Past};
use crate::host::{command_of, flock_holders};
use crate::report::{LockBlock, OutputStyle, Reporter, flocked_by};
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
    pub(super) fn lines(
        &mut self,
        context: &Context,
        (lock, engine): (&LockRef, &Engine),
        status: &LockStatus,
        reporter: &Reporter<'_>,
        style: OutputStyle,
        file: Option<&str>,
    ) -> Vec<String> {
        self.read_past(context, lock, engine);
        LockBlock { lock, status, reporter, past: &self.past, times: &self.times, file, style }.lines()
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

/// Returns which processes have locked the file of a lock with flock(2), unless the holder of the lock is one of them:
/// the holder may wait for that file. The search takes time on a host with many open files.
pub(super) fn file_lock(lock: &LockRef, status: &LockStatus, reporter: &Reporter<'_>) -> Option<String> {
    let path = Path::new(OsStr::from_bytes(&lock.display_name));
    let pids = if path.is_absolute() { flock_holders(path) } else { Vec::new() };
    let mut owners = status.record.holders.iter().filter_map(|grant| reporter.owner(&grant.owner));
    let is_foreign = !pids.is_empty() && !owners.any(|owner| pids.contains(&owner.pid));
    is_foreign.then(|| flocked_by(pids.into_iter().map(|pid| (pid, command_of(pid)))))
}
