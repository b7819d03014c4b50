//! `csalock wait`: waits until locks are free, and acquires none of them.

use super::context::{Context, eprint_line, print_json};
use crate::cli::Wait;
use crate::engine::LockStatus;
use crate::exit::Exit;
use crate::lock::{Grant, Refusal};
use crate::name::escape;
use crate::report::{RefusedLock, json};

/// Waits for each lock in turn. It ends with busy at the first lock that is not free at the timeout.
pub(super) fn run(context: &Context, asked: &Wait) -> anyhow::Result<Exit> {
    let targets = context.lock_set(&asked.common, &asked.names)?;
    let opened = targets.open(context)?;
    let (whole, began) = (asked.waiting.wait_policy(opened.lease()), context.host.boottime());
    let mut documents = Vec::new();
    for (at, (target, engine)) in opened.each().enumerate() {
        let reporter = opened.reporter(at);
        let policy = whole.rest(whole.end(began), context.host.boottime());
        let status = engine.wait_until_free(&target.name, &policy)?;
        if !status.is_free() {
            let refusal = RefusedLock::new(target, &reporter).refusal(&Refusal::Busy(standing(status)));
            return asked.common.refuse(&refusal, asked.waiting.busy_exit(), Some(&reporter));
        }
        if asked.common.verbose {
            eprint_line(&format!("lock {} is free", escape(&target.display_name)));
        }
        documents.push(json::outcome(&target.display_name, "free", [], &reporter));
    }
    if asked.common.json {
        print_json(&documents)?;
    }
    Ok(Exit::Done)
}

/// Returns the grants that have not ended.
fn standing(status: LockStatus) -> Vec<Grant> {
    let all = status.record.holders.into_iter().zip(status.holders);
    all.filter_map(|(grant, holds)| holds.is_ok().then_some(grant)).collect()
}
