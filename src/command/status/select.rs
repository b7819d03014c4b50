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

/// Returns true if the lock has no holder, no waiter and no value.
fn nothing_to_show(status: &LockStatus) -> bool {
    status.record.is_free() && status.record.value.is_none()
}

/// Results of a selection so far, which decide the exit of `status`.
struct Found {
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
    let mut found = Found { unreadable: None, all_held: true };
    let patterns = visit_names(context, asked, &mut found, visit)?;
    if asked.names.is_empty() || !patterns.is_empty() {
        visit_matches(context, asked, &patterns, &mut found, visit)?;
    }
    Ok(match found.unreadable {
        Some(exit) => exit,
        None if found.all_held => Exit::Done,
        None => ErrorKind::NotHeld.into(),
    })
}

/// Shows the locks that the arguments name. Returns the patterns among the arguments: a lock whose name looks like a
/// pattern comes first.
fn visit_names<'a>(
    context: &Context,
    asked: &'a Status,
    found: &mut Found,
    visit: &mut dyn FnMut(Selected<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<&'a [u8]>> {
    let mut patterns = Vec::new();
    for typed in &asked.names {
        let target = match context.target(&asked.common, typed) {
            Err(error) if glob::is_pattern(typed.as_bytes()) && error.kind() == ErrorKind::Unavailable => {
                patterns.push(typed.as_bytes());
                continue;
            }
            target => target?,
        };
        let engine = context.engine(&target.location)?;
        match engine.inspect(&target.name) {
            Ok(status) if glob::is_pattern(typed.as_bytes()) && nothing_to_show(&status) => {
                patterns.push(typed.as_bytes());
            }
            Ok(status) => {
                found.all_held &= status.is_held();
                visit(Ok((&target.display_name, &status, &Reporter::new(&engine))))?;
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                found.unreadable = Some(Exit::from(error.kind()));
                visit(Err(error))?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(patterns)
}

/// Shows the locks of the store whose name matches one of the patterns, or all locks if there are no patterns.
fn visit_matches(
    context: &Context,
    asked: &Status,
    patterns: &[&[u8]],
    found: &mut Found,
    visit: &mut dyn FnMut(Selected<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let engine = context.engine(&context.store(&asked.common)?)?;
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
                found.unreadable = Some(Exit::from(error.kind()));
                Err(error.clone())
            }
        };
        if failed.is_none() {
            failed = visit(selected).err();
        }
        Ok(())
    })?;
    found.all_held &= found_held || patterns.is_empty();
    failed.map_or(Ok(()), Err)
}
