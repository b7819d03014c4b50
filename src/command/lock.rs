//! `csalock lock`

use anyhow::Context as _;

use super::acquire::{ForScript, Granted, report_taken};
use super::context::{Context, json_line, print_before};
use crate::cli::Lock;
use crate::engine::LockSet;
use crate::exit::Exit;
use crate::report::LockJson;

/// Acquires locks and prints their handle. Without `prints` it prints no output unless it fails: its callers use CSA's
/// names and know no options.
pub(super) fn run(context: &Context, asked: &Lock, prints: bool) -> anyhow::Result<Exit> {
    let targets = &context.lock_set(&asked.common, &asked.names)?;
    if prints {
        context.require_stdout("the handle", "send it to /dev/null if you do not need it")?;
    }
    let Lock { common, taking, pid, .. } = asked;
    let timeout_setting = if prints { "-w" } else { "CSALOCK_TIMEOUT" };
    ForScript { context, common, taking, pid: *pid, targets, timeout_setting }.acquire(|granted| {
        if !prints {
            return Ok(Exit::Done);
        }
        report_taken(common, granted.opened, granted.grants, granted.evicted);
        let printed =
            answer(context, asked, targets, granted).and_then(|text| print_before(context, granted.until, &text));
        // A handle that cannot be printed is useless.
        printed.with_context(|| format!("lock {} was released", targets.shown_names()))?;
        Ok(Exit::Done)
    })
}

/// Returns the text to print: the handle.
fn answer(context: &Context, asked: &Lock, targets: &LockSet, granted: &Granted<'_>) -> anyhow::Result<String> {
    let Granted { opened, handle, grants, evicted, .. } = *granted;
    if !asked.common.json {
        return Ok(format!("{handle}\n"));
    }
    let names: Vec<&[u8]> = targets.all.iter().map(|target| target.display_name.as_slice()).collect();
    let (at, ending) = evicted.map_or((0, None), |(at, ending)| (*at, Some(ending)));
    // The time limit starts when the grant is confirmed.
    let expires = asked.taking.ttl.map(|span| context.host.wall().saturating_add(span));
    json_line(&LockJson::new(&names, handle, grants, ending, expires, &opened.reporter(at)))
}
