//! The selection of locks by the arguments: names, patterns, or all locks of the store.

use std::os::unix::ffi::OsStrExt;

use crate::cli::Status;
use crate::command::context::Context;
use crate::engine::LockStatus;
use crate::error::{ErrorKind, Result};
use crate::exit::Exit;
use crate::glob;
use crate::report::Reporter;

/// A selected lock: its name for display, its status and its reporter.
pub(super) type Selected<'a> = Result<(&'a [u8], &'a LockStatus, &'a Reporter<'a>)>;

/// A selection, and its results so far, which decide the exit of `status`.
struct Selection<'a> {
    context: &'a Context,
    asked: &'a Status,
    visit: &'a mut dyn FnMut(Selected<'_>) -> anyhow::Result<()>,
    /// The exit for the last unreadable record.
    unreadable: Option<Exit>,
    /// True if all named locks are held and, if there are patterns, one lock that matches them.
    all_held: bool,
}

/// Shows the locks to `visit` as they are found; an `Err` is an unreadable record. Returns the exit of `status`.
pub(super) fn select(
    context: &Context,
    asked: &Status,
    visit: &mut dyn FnMut(Selected<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<Exit> {
    let mut selection = Selection { context, asked, visit, unreadable: None, all_held: true };
    let patterns = selection.visit_names()?;
    if asked.names.is_empty() || !patterns.is_empty() {
        selection.visit_matches(&patterns)?;
    }
    Ok(match selection.unreadable {
        Some(exit) => exit,
        None if selection.all_held => Exit::Done,
        None => ErrorKind::NotHeld.into(),
    })
}

impl<'a> Selection<'a> {
    /// Shows the locks that the arguments name. Returns the patterns among the arguments: a lock whose name looks like
    /// a pattern comes first.
    fn visit_names(&mut self) -> anyhow::Result<Vec<&'a [u8]>> {
        let mut patterns = Vec::new();
        for typed in &self.asked.names {
            let is_pattern = glob::is_pattern(typed.as_bytes());
            let target = match self.context.target(&self.asked.common, typed) {
                Err(error) if is_pattern && error.kind() == ErrorKind::Unavailable => {
                    patterns.push(typed.as_bytes());
                    continue;
                }
                target => target?,
            };
            let engine = self.context.engine(&target.location)?;
            match engine.inspect(&target.name) {
                Ok(status) if is_pattern && nothing_to_show(&status) => patterns.push(typed.as_bytes()),
                Ok(status) => {
                    self.all_held &= status.is_held();
                    (self.visit)(Ok((&target.display_name, &status, &Reporter::new(&engine))))?;
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    self.unreadable = Some(error.kind().into());
                    (self.visit)(Err(error))?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(patterns)
    }

    /// Shows the locks of the store whose name matches one of the patterns, or all locks if there are no patterns.
    fn visit_matches(&mut self, patterns: &[&[u8]]) -> anyhow::Result<()> {
        let engine = self.context.engine(&self.context.store(&self.asked.common)?)?;
        let reporter = Reporter::new(&engine);
        let mut failed: Option<anyhow::Error> = None;
        let mut found_held = false;
        engine.for_each_lock(&mut |status| {
            let selected = match &status {
                Ok(status) => {
                    let name = status.record.name.as_slice();
                    let wanted = patterns.is_empty() || patterns.iter().any(|pattern| glob::matches(pattern, name));
                    if !wanted || nothing_to_show(status) {
                        return Ok(());
                    }
                    found_held |= status.is_held();
                    Ok((name, status, &reporter))
                }
                Err(error) => {
                    self.unreadable = Some(error.kind().into());
                    Err(error.clone())
                }
            };
            if failed.is_none() {
                failed = (self.visit)(selected).err();
            }
            Ok(())
        })?;
        self.all_held &= found_held || patterns.is_empty();
        failed.map_or(Ok(()), Err)
    }
}

/// Returns true if the lock has no holder, no waiter and no value.
fn nothing_to_show(status: &LockStatus) -> bool {
    status.record.is_free() && status.record.value.is_none()
}
