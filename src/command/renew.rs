//! `csalock renew`

use super::world::{World, print_json, refusal_of, say};
use crate::cli::Renew;
use crate::exit::Exit;
use crate::lock::{Ask, Outcome, Tenure};
use crate::name::shown;
use crate::report::{Reporter, UnlockJson};

pub(super) fn run(world: &World, asked: &Renew) -> anyhow::Result<Exit> {
    let targets = asked.names.iter().map(|name| world.target(&asked.common, name)).collect::<Result<Vec<_>, _>>()?;
    let mut exit = Exit::Done;
    let mut documents = Vec::new();
    for target in &targets {
        let engine = world.engine(&target.location)?;
        let reporter = Reporter { host: engine.host(), reach: engine.store().reach() };
        let claimant = world.claimant(&engine, asked.handle.as_deref())?;
        let tenure = engine.begin(&Tenure::AtMost((asked.ttl.as_millis() as u64).max(1)))?;
        let outcome = engine.settle(&target.name, &Ask::Renew(claimant, tenure))?;
        let (word, grants) = match &outcome {
            Outcome::Renewed(grant) => {
                if asked.common.verbose {
                    say(&format!("lock {} lasts: {}", shown(&target.known_as), reporter.holder(grant)));
                }
                ("renewed", vec![grant.clone()])
            }
            refused => {
                let (text, code) = refusal_of(asked.handle.as_deref(), refused, target, &reporter);
                asked.common.tell(&text);
                exit = if exit == Exit::Done { code } else { exit };
                match refused {
                    Outcome::NotOwner(grants, _) => ("not the owner", grants.clone()),
                    _ => ("not held", Vec::new()),
                }
            }
        };
        documents.push(UnlockJson::new(&target.known_as, word, &grants, &reporter));
    }
    if asked.common.json {
        print_json(&documents)?;
    }
    Ok(exit)
}
