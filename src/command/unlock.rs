//! `csalock unlock`

use super::world::{Target, World, print, print_json, refusal, say};
use crate::cli::Unlock;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lock::{Ask, Grant, Outcome, Process};
use crate::name::shown;
use crate::report::{Reporter, UnlockJson};
use crate::store::Location;

pub(super) fn run(world: &World, asked: &Unlock) -> anyhow::Result<Exit> {
    let targets = if asked.all { everything_owned(world, asked)? } else { named(world, asked)? };
    let mut exit = Exit::Done;
    let mut documents = Vec::new();
    for target in &targets {
        let engine = world.engine(&target.location)?;
        let reporter = Reporter { host: engine.host(), reach: engine.store().reach() };
        let outcome = if asked.force { force(&engine, target)? } else { give_back(world, asked, &engine, target)? };
        let (word, grants): (_, &[Grant]) = match &outcome {
            Outcome::Released(grant) => ("released", std::slice::from_ref(grant)),
            Outcome::Broken(grants) => ("broken", grants),
            Outcome::NotOwner(grants, _) => ("not the owner", grants),
            _ => ("not held", &[]),
        };
        let name = shown(&target.known_as);
        match &outcome {
            Outcome::Released(_) if asked.common.verbose => say(&format!("lock {name} is given back")),
            Outcome::Released(_) => {}
            Outcome::Broken(_) if asked.common.json => {}
            Outcome::Broken(grants) if grants.is_empty() => print(&format!("{name}: its record was unreadable\n"))?,
            Outcome::Broken(grants) => {
                for grant in grants {
                    print(&format!("{name}: was held by {}\n", reporter.holder(grant)))?;
                }
            }
            refused => {
                let (text, refused) = refusal(refused, target, &reporter, None);
                asked.common.tell(&text);
                exit = if exit == Exit::Done { refused } else { exit };
            }
        }
        documents.push(UnlockJson::new(&target.known_as, word, grants, &reporter));
    }
    if asked.common.json {
        print_json(&documents)?;
    }
    Ok(exit)
}

fn named(world: &World, asked: &Unlock) -> Result<Vec<Target>> {
    asked.names.iter().map(|name| world.target(&asked.common, name)).collect()
}

fn give_back(world: &World, asked: &Unlock, engine: &Engine, target: &Target) -> Result<Outcome> {
    let claimant = world.claimant(engine, asked.handle.as_deref())?;
    engine.settle(&target.name, &Ask::Release(claimant))
}

/// Breaks what is seen now, and only that; a record that nobody can read is removed.
fn force(engine: &Engine, target: &Target) -> Result<Outcome> {
    match engine.sight(&target.name) {
        Ok(sight) => {
            let proofs = sight.record.holders.iter().map(|grant| grant.proof).collect();
            engine.settle(&target.name, &Ask::Break(proofs))
        }
        Err(error) if error.exit() == Exit::Corrupt && engine.remove_unreadable(&target.name)? => {
            Ok(Outcome::Broken(Vec::new()))
        }
        Err(error) => Err(error),
    }
}

/// Every lock in the store that is the caller's.
fn everything_owned(world: &World, asked: &Unlock) -> Result<Vec<Target>> {
    let location: Location = world.store(&asked.common)?;
    let engine = world.engine(&location)?;
    let claimant = world.claimant(&engine, asked.handle.as_deref())?;
    let mut targets = Vec::new();
    let mut unreadable: Option<Error> = None;
    engine.each_sight(&mut |sight| {
        let sight = match sight {
            Ok(sight) => sight,
            Err(error) => {
                unreadable = Some(error);
                return Ok(());
            }
        };
        let owner = |at: usize, grant: &Grant| -> Option<Process> { grant.party.owners.get(sight.owners[at]).copied() };
        let mine = sight.record.holders.iter().enumerate().any(|(at, grant)| {
            claimant.proof == Some(grant.proof)
                || (grant.party.home.shares_pids_with(&claimant.home)
                    && owner(at, grant).is_some_and(|owner| claimant.owners.contains(&owner)))
        });
        if mine {
            let name = sight.record.name.clone();
            targets.push(Target { location: location.clone(), known_as: name.clone(), name });
        }
        Ok(())
    })?;
    if let Some(error) = unreadable {
        asked.common.tell(&format!("passed over: {error}"));
    }
    Ok(targets)
}
