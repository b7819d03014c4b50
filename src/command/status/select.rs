//! The selection of locks by the arguments: names, patterns, or all locks of the store.

use std::os::unix::ffi::OsStrExt;

use crate::cli::Status;
use crate::command::context::Context;
use crate::engine::{Engine, LockStatus};
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

/// Shows the locks to `visit` as they are found; an `Err` is an unreadable record. Returns the exit of `status`.
pub(super) fn select(
    context: &Context,
    asked: &Status,
    visit: &mut dyn FnMut(Selected<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<Exit> {
    let mut unreadable: Option<Exit> = None;
    let mut patterns: Vec<&[u8]> = Vec::new();
    let mut all_held = true;
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
            Ok(sight) => {
                all_held &= sight.is_held();
                visit(Ok((&target.display_name, &sight, &reporter(&engine))))?;
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                unreadable = Some(Exit::from(error.kind()));
                visit(Err(error))?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if asked.names.is_empty() || !patterns.is_empty() {
        let engine = context.engine(&context.store(&asked.common)?)?;
        let reporter = reporter(&engine);
        let mut failed: Option<anyhow::Error> = None;
        let mut found_held = false;
        engine.for_each_lock(&mut |sight| {
            let seen = match &sight {
                Ok(sight) => {
                    let name = sight.record.name.as_slice();
                    let wanted = patterns.is_empty() || patterns.iter().any(|pattern| glob::matches(pattern, name));
                    if !wanted || nothing_to_show(sight) {
                        return Ok(());
                    }
                    found_held |= sight.is_held();
                    Ok((name, sight, &reporter))
                }
                Err(error) => {
                    unreadable = Some(Exit::from(error.kind()));
                    Err(error.clone())
                }
            };
            if failed.is_none() {
                failed = visit(seen).err();
            }
            Ok(())
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        all_held &= found_held || patterns.is_empty();
    }
    Ok(match unreadable {
        Some(exit) => exit,
        None if all_held => Exit::Done,
        None => Exit::NotHeld,
    })
}

fn reporter(engine: &Engine) -> Reporter<'_> {
    Reporter::new(engine)
}
