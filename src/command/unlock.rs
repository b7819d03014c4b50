//! `csalock unlock`

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::world::{Target, World, print, print_json, refusal_of, say};
use crate::cli::Unlock;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::{Caller, caller};
use crate::lock::{Ask, Grant, Outcome, Party, Proof};
use crate::name::shown;
use crate::report::{Reporter, UnlockJson};
use crate::store::{Layout, Location};

pub(super) fn run(world: &World, asked: &Unlock) -> anyhow::Result<Exit> {
    let breaker = asked.force.then(|| breaker(world)).flatten();
    let (targets, mut exit) =
        if asked.all { everything_owned(world, asked)? } else { (named(world, asked)?, Exit::Done) };
    let mut documents = Vec::new();
    for (target, proof) in &targets {
        let engine = world.engine(&target.location)?;
        let reporter = Reporter { host: engine.host(), reach: engine.store().reach() };
        let outcome = if asked.force {
            engine.break_lock(&target.name, breaker.as_ref())?
        } else {
            give_back(world, asked, &engine, target, *proof)?
        };
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
                let (text, refused) = refusal_of(asked.handle.as_deref(), refused, target, &reporter);
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

/// Locks to give back; of those that were found, by which proof.
type Targets = Vec<(Target, Option<Proof>)>;

fn named(world: &World, asked: &Unlock) -> Result<Targets> {
    asked.names.iter().map(|name| Ok((world.target(&asked.common, name)?, None))).collect()
}

fn give_back(world: &World, asked: &Unlock, engine: &Engine, target: &Target, proof: Option<Proof>) -> Result<Outcome> {
    let claimant = match proof {
        Some(proof) => engine.claimant(Some(proof), Vec::new())?,
        None => world.claimant(engine, asked.handle.as_deref())?,
    };
    engine.settle(&target.name, &Ask::Release(claimant))
}

/// Who breaks it, for those who look at the history: the calling script, or whoever it can be said to be.
fn breaker(world: &World) -> Option<Party> {
    let this = world.host.this_process().ok()?;
    let nobody = || Caller { owners: vec![this], command: crate::host::command_of(this.pid) };
    let Caller { owners, command } = caller(this.pid).unwrap_or_else(|_| nobody());
    world.party(owners, command, None).ok()
}

/// Every grant that is the caller's, in each store that can be reached from here: the one of bare names, the one of the
/// lock that we run under, and those beside the files in the current directory and beside the named ones. Proof is being
/// the owner, or `--handle`; the locks that the caller was started under are not its own. And how to exit at best: what
/// makes no sense, or is not for us to read, is nobody's whom we know; but what could not be read just now may be ours.
fn everything_owned(world: &World, asked: &Unlock) -> Result<(Targets, Exit)> {
    let (mut targets, mut exit) = (Vec::new(), Exit::Done);
    let (owners, under) = (world.script()?, world.under());
    for (location, directory) in stores(world, asked)? {
        let engine = world.engine(&location)?;
        let claimant = match &asked.handle {
            Some(handle) => world.claimant(&engine, Some(handle))?,
            None => engine.claimant(None, owners.clone())?,
        };
        let mut unreadable: Option<Error> = None;
        engine.each_sight(&mut |sight| {
            let sight = match sight {
                Ok(sight) => sight,
                Err(error) => {
                    unreadable = Some(error);
                    return Ok(());
                }
            };
            let is_mine = |at: usize, grant: &Grant| {
                claimant.proof == Some(grant.proof)
                    || (grant.party.home.shares_pids_with(&claimant.home)
                        && !under.contains(&grant.proof)
                        && grant
                            .party
                            .owners
                            .get(sight.owners[at])
                            .is_some_and(|owner| claimant.owners.contains(owner)))
            };
            for (_, grant) in sight.record.holders.iter().enumerate().filter(|(at, grant)| is_mine(*at, grant)) {
                let name = sight.record.name.clone();
                let known_as = directory.as_ref().map_or_else(
                    || name.clone(),
                    |directory| directory.join(OsStr::from_bytes(&name)).into_os_string().into_vec(),
                );
                let to_type = crate::name::quoted(&known_as);
                targets.push((Target { location: location.clone(), name, known_as, to_type }, Some(grant.proof)));
            }
            Ok(())
        })?;
        if let Some(error) = unreadable {
            asked.common.tell(&format!("passed over: {error}"));
            if !matches!(error.exit(), Exit::Corrupt | Exit::Permission) {
                exit = error.exit();
            }
        }
    }
    Ok((targets, exit))
}

/// The stores to look through, and for those beside files the directory of these.
fn stores(world: &World, asked: &Unlock) -> Result<Vec<(Location, Option<PathBuf>)>> {
    let mut stores = vec![(world.store(&asked.common)?, None)];
    let mut add = |location: Location, directory: Option<PathBuf>| {
        if stores.iter().all(|(known, _)| *known != location) {
            stores.push((location, directory));
        }
    };
    let current = &world.environment.current;
    if asked.common.store.is_none() && current.is_absolute() {
        add(Location::beside(current), Some(current.clone()));
    }
    for name in &asked.names {
        let target = world.target(&asked.common, name)?;
        let directory = Path::new(OsStr::from_bytes(&target.known_as)).parent().map(Path::to_path_buf);
        add(target.location, directory.filter(|_| target.name != target.known_as));
    }
    if let Some(location) = world.environment.store.as_deref() {
        let location = Location::parse(location, current)?;
        let directory = match &location {
            Location::Directory { path, layout: Layout::Beside, .. } => path.parent().map(Path::to_path_buf),
            _ => None,
        };
        add(location, directory);
    }
    Ok(stores)
}
