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
use crate::lock::{Ask, Ended, Grant, Outcome, Party, Proof};
use crate::name::shown;
use crate::report::{Reporter, UnlockJson};
use crate::store::{Layout, Location};

pub(super) fn run(world: &World, asked: &Unlock) -> anyhow::Result<Exit> {
    check_force(asked)?;
    let (targets, mut exit) = match (asked.all, asked.force) {
        (true, true) => everything_held(world, asked)?,
        (true, false) => everything_owned(world, asked)?,
        (false, _) => (named(world, asked)?, Exit::Done),
    };
    let breaker = asked.force.then(|| breaker(world)).flatten();
    let mut documents = Vec::new();
    for (target, proof) in &targets {
        let engine = world.engine(&target.location)?;
        let reporter = Reporter { host: engine.host(), reach: engine.store().reach() };
        let outcome = if asked.force {
            force(&engine, asked, target, breaker.as_ref())
        } else {
            give_back(world, asked, &engine, target, *proof)
        };
        let outcome = match outcome {
            Err(error) if asked.force && asked.all && error.is_of_one_record() => {
                exit = pass_over(asked, &error);
                continue;
            }
            outcome => outcome?,
        };
        let refused = tell(asked, target, &outcome, &reporter)?;
        exit = if exit == Exit::Done { refused } else { exit };
        if asked.common.json {
            documents.push(document(asked, target, &outcome, &reporter));
        }
    }
    if asked.common.json {
        print_json(&documents)?;
    }
    Ok(exit)
}

/// Refuses what clap cannot: names for which --force has another meaning.
fn check_force(asked: &Unlock) -> Result<()> {
    let (what, cure) = match asked.names.as_slice() {
        [name, ..] if asked.force && asked.all => (
            format!("--force --all breaks all locks, and {} is one", shown(name.as_bytes())),
            "leave out --all, or the names",
        ),
        [_, other, ..] if asked.token.is_some() => (
            format!("a token belongs to one name, and {} is another", shown(other.as_bytes())),
            "unlock one name at a time",
        ),
        _ => return Ok(()),
    };
    Err(Error::new(Exit::Usage, what, cure))
}

/// Says what became of one lock. Returns the exit code of a refusal, or 0.
fn tell(asked: &Unlock, target: &Target, outcome: &Outcome, reporter: &Reporter<'_>) -> anyhow::Result<Exit> {
    let name = shown(&target.known_as);
    match outcome {
        Outcome::Released(_) if asked.common.verbose => say(&format!("lock {name} is given back")),
        Outcome::Released(_) => {}
        Outcome::Broken(_) if asked.common.json => {}
        Outcome::Broken(endings) if endings.is_empty() => print(&format!("{name}: its record was unreadable\n"))?,
        Outcome::Broken(endings) => {
            for ending in endings {
                let holder = match ending.how {
                    Ended::Broken => reporter.holder(&ending.grant),
                    _ => reporter.ending(ending),
                };
                print(&format!("{name}: was held by {holder}\n"))?;
            }
        }
        // It was released before it could be broken.
        Outcome::NotHeld(_) | Outcome::NotOwner(..) if asked.force && asked.all => {}
        refused => {
            let (text, exit) = match (asked.token, refused) {
                (Some(token), Outcome::NotOwner(grants, _)) => {
                    let held = |grant: &Grant| {
                        format!("with token {} it is {}", grant.token.unwrap_or_default(), reporter.holding(grant))
                    };
                    let held = grants.iter().map(held).collect::<Vec<_>>().join("; and ");
                    let typed = &target.to_type;
                    let text =
                        format!("lock {name} is not held with token {token}: {held}; check `csalock status {typed}`");
                    (text, Exit::NotHeld)
                }
                _ => refusal_of(asked.handle.as_deref(), refused, target, reporter),
            };
            asked.common.tell(&text);
            return Ok(exit);
        }
    }
    Ok(Exit::Done)
}

fn document(asked: &Unlock, target: &Target, outcome: &Outcome, reporter: &Reporter<'_>) -> UnlockJson {
    let (word, grants) = match outcome {
        Outcome::Released(grant) => ("released", vec![grant.clone()]),
        Outcome::Broken(endings) => ("broken", endings.iter().map(|ending| ending.grant.clone()).collect()),
        Outcome::NotOwner(grants, _) if asked.token.is_some() => ("not held", grants.clone()),
        Outcome::NotOwner(grants, _) => ("not the owner", grants.clone()),
        _ => ("not held", Vec::new()),
    };
    UnlockJson::new(&target.known_as, word, &grants, reporter)
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

/// Breaks what `asked` means by one target. Claims are permanent, so that only their name or token breaks them.
fn force(engine: &Engine, asked: &Unlock, target: &Target, by: Option<&Party>) -> Result<Outcome> {
    let is_lock = |grant: &Grant| grant.claim.is_none();
    let has_token = |grant: &Grant| grant.token == asked.token;
    let meant: Option<&dyn Fn(&Grant) -> bool> = match (asked.all, asked.token) {
        (true, _) => Some(&is_lock),
        (_, Some(_)) => Some(&has_token),
        (false, None) => None,
    };
    engine.break_lock(&target.name, meant, by)
}

/// Who breaks it, for those who look at the history: the calling script, or whoever it can be said to be.
fn breaker(world: &World) -> Option<Party> {
    let this = world.host.this_process().ok()?;
    let nobody = || Caller { owners: vec![this], command: crate::host::command_of(this.pid), ..Caller::default() };
    let Caller { owners, command, .. } = caller(this.pid).unwrap_or_else(|_| nobody());
    world.party(owners, command, None).ok()
}

/// Says why one record stays as it is. Returns the exit code of that.
fn pass_over(asked: &Unlock, error: &Error) -> Exit {
    asked.common.tell(&format!("passed over: {error}"));
    error.exit()
}

/// Every lock of the store that is held or was left, without claims; and how to exit at best: an unreadable record stays.
fn everything_held(world: &World, asked: &Unlock) -> Result<(Targets, Exit)> {
    let (mut targets, mut exit) = (Vec::new(), Exit::Done);
    let location = world.store(&asked.common)?;
    world.engine(&location)?.each_sight(&mut |sight| {
        match sight {
            Ok(sight) if sight.record.holders.iter().any(|grant| grant.claim.is_none()) => {
                let (name, to_type) = (sight.record.name.clone(), crate::name::quoted(&sight.record.name));
                targets.push((Target { location: location.clone(), known_as: name.clone(), name, to_type }, None));
            }
            Ok(_) => {}
            Err(error) => {
                exit = pass_over(asked, &error);
            }
        }
        Ok(())
    })?;
    Ok((targets, exit))
}

/// Every grant that is the caller's, in each store that can be reached from here: the one of bare names, the one of the
/// lock that we run under, and those beside the files in the current directory and beside the named ones. Proof is being
/// the owner, or `--handle`; the locks that the caller was started under are not its own. And how to exit at best: a record
/// that makes no sense, or that belongs to another user and cannot be read, is not the caller's. Any other record that cannot
/// be read may be.
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
            if !matches!(error.exit(), Exit::Corrupt | Exit::Permission) || error.is_own() {
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
