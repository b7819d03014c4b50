//! `csalock renew`

use super::context::{Context, eprint_line, print_json};
use crate::cli::Renew;
use crate::exit::Exit;
use crate::lock::{self, Lifetime};
use crate::name::escape;
use crate::report::{RefusedLock, Reporter, json};

pub(super) fn run(context: &Context, asked: &Renew) -> anyhow::Result<Exit> {
    let targets = asked.names.iter().map(|name| context.target(&asked.common, name)).collect::<Result<Vec<_>, _>>()?;
    let mut exit = Exit::Done;
    let mut documents = Vec::new();
    for target in &targets {
        let engine = context.engine(&target.location)?;
        let reporter = Reporter::new(&engine);
        let credentials = context.credentials(&engine, asked.handle.as_deref())?;
        let lifetime = engine.start(&Lifetime::Ttl((asked.ttl.as_millis() as u64).max(1)))?;
        let response = engine.apply(&target.name, &lock::Renew(credentials, lifetime))?;
        documents.push(match &response {
            Ok(grant) => {
                if asked.common.verbose {
                    eprint_line(&format!("lock {} lasts: {}", escape(&target.display_name), reporter.holder(grant)));
                }
                json::outcome(&target.display_name, "renewed", [grant], &reporter)
            }
            Err(not_holder) => {
                let mut lock = RefusedLock::new(target, &reporter);
                lock.presented = context.presented_handle(asked.handle.as_deref());
                lock.elsewhere = context.elsewhere(target, not_holder);
                let refusal = lock.not_holder(not_holder);
                exit = exit.or(refusal.kind);
                asked.common.note_unless_json(&refusal);
                json::not_done(&target.display_name, &not_holder.holders, Some(&refusal), &reporter)
            }
        });
    }
    if asked.common.json {
        print_json(&documents)?;
    }
    Ok(exit)
}
