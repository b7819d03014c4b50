//! `csalock unlock`

mod selection;

use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;

use self::selection::{everything_held, everything_owned, named};
use super::context::{Context, LockRef, eprint_line, print, print_json};
use crate::cli::Unlock;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::host::{Caller, ThisProcess, command_of};
use crate::lock::{EndReason, EndedGrant, Grant, HandleHash, NotHolder, Owner, Release};
use crate::name::escape;
use crate::report::{Document, RefusalReport, RefusedLock, Reporter, Settings, json};
use crate::store::Location;

enum Freed {
    Released(Grant),
    /// The grants that `--force` broke or found ended; none for an unreadable record.
    Broken(Vec<EndedGrant>),
}

type Unlocked = std::result::Result<Freed, NotHolder>;

/// Releases or breaks the locks. Hints name these settings.
pub(super) fn run(context: &Context, asked: &Unlock, settings: &'static Settings) -> anyhow::Result<Exit> {
    check_force(asked)?;
    let mut documents = Vec::new();
    let (targets, mut exit) = match (asked.all, asked.force) {
        (true, true) => everything_held(context, asked, &mut documents)?,
        (true, false) => everything_owned(context, asked, &mut documents)?,
        (false, _) => (named(context, asked)?, Exit::Done),
    };
    let breaker = asked.force.then(|| breaker(context)).flatten();
    // The process ends soon, and the kernel closes its descriptors.
    let mut opened = ManuallyDrop::new(None);
    for (target, proof) in &targets {
        let engine = engine_of(context, &target.location, &mut opened)?;
        let reporter = Reporter::new(engine);
        let response = if asked.force {
            force(engine, asked, target, breaker.as_ref())
        } else {
            release(context, asked, engine, target, *proof)
        };
        let outcome = match response {
            Err(error) if asked.force && asked.all && error.is_of_one_record() => {
                exit = pass_over(asked, &error, &mut documents);
                continue;
            }
            outcome => outcome?,
        };
        let refusal = match &outcome {
            // The holder released the lock before it could be broken.
            Err(_) if asked.force && asked.all => None,
            Err(not_holder) => {
                let mut lock = RefusedLock::new(target, &reporter);
                lock.settings = settings;
                lock.presented = context.presented_handle(asked.handle.as_deref());
                lock.elsewhere = context.elsewhere(target, not_holder);
                Some(match asked.token.filter(|_| !not_holder.holders.is_empty()) {
                    Some(token) => lock.other_token(&not_holder.holders, token),
                    None if asked.force && !not_holder.holders.is_empty() => lock.changed_hands(&not_holder.holders),
                    None => lock.not_holder(not_holder),
                })
            }
            Ok(_) => None,
        };
        exit = exit.or(refusal.as_ref().map_or(Exit::Done, |refusal| refusal.kind.into()));
        if asked.common.json {
            documents.push(document(target, &outcome, refusal.as_ref(), &reporter));
        } else {
            tell(asked, target, &outcome, refusal.as_ref(), &reporter)?;
        }
    }
    if asked.common.json {
        print_json(&documents)?;
    }
    Ok(exit)
}

/// Returns the engine of the store at a location. Only the last one stays open.
fn engine_of<'a>(
    context: &Context,
    location: &Location,
    opened: &'a mut Option<(Location, Engine)>,
) -> Result<&'a Engine> {
    let known = opened.take_if(|(known, _)| known == location);
    let engine = known.map_or_else(|| context.engine(location), |(_, engine)| Ok(engine))?;
    Ok(&opened.insert((location.clone(), engine)).1)
}

/// Rejects what clap cannot: names for which --force has another meaning.
fn check_force(asked: &Unlock) -> Result<()> {
    let (what, cure) = match asked.names.as_slice() {
        [name, ..] if asked.force && asked.all => (
            format!("--force --all breaks all locks, and {} is one", escape(name.as_bytes())),
            "leave out --all, or the names",
        ),
        [_, other, ..] if asked.token.is_some() => (
            format!("a token belongs to one name, and {} is another", escape(other.as_bytes())),
            "unlock one name at a time",
        ),
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::InvalidInput, what, cure))
}

/// Reports the result for one lock to people.
fn tell(
    asked: &Unlock,
    target: &LockRef,
    outcome: &Unlocked,
    refusal: Option<&RefusalReport>,
    reporter: &Reporter<'_>,
) -> anyhow::Result<()> {
    let name = escape(&target.display_name);
    match outcome {
        Ok(Freed::Released(_)) if asked.common.verbose => eprint_line(&format!("lock {name} is released")),
        Ok(Freed::Released(_)) => {}
        Ok(Freed::Broken(endings)) if endings.is_empty() => {
            print(format!("removed {name}: its record was unreadable\n"))?
        }
        Ok(Freed::Broken(endings)) => {
            for ending in endings {
                let (done, holder) = match ending.reason {
                    EndReason::Broken => ("broke", reporter.holder(&ending.grant)),
                    _ => ("removed", reporter.ending(ending)),
                };
                print(format!("{done} {name}: held by {holder}\n"))?;
                if let Some(left) = reporter.left_by_break(ending) {
                    asked.common.note(&format!("lock {name}: {left}"));
                }
            }
        }
        Err(_) => refusal.into_iter().for_each(|refusal| asked.common.note(&refusal.to_string())),
    }
    Ok(())
}

fn document(
    target: &LockRef,
    outcome: &Unlocked,
    refusal: Option<&RefusalReport>,
    reporter: &Reporter<'_>,
) -> Document {
    let name = &target.display_name;
    match outcome {
        Ok(Freed::Released(grant)) => json::outcome(name, "released", [grant], reporter),
        Ok(Freed::Broken(endings)) => {
            let is_broken = endings.iter().any(|ending| ending.reason == EndReason::Broken);
            let result = if is_broken { "broken" } else { "removed" };
            json::outcome(name, result, endings.iter().map(|ending| &ending.grant), reporter)
        }
        Err(not_holder) => json::not_done(name, &not_holder.holders, refusal, reporter),
    }
}

fn release(
    context: &Context,
    asked: &Unlock,
    engine: &Engine,
    target: &LockRef,
    proof: Option<HandleHash>,
) -> Result<Unlocked> {
    let credentials = match proof {
        Some(proof) => engine.by_proof(proof)?,
        None => context.credentials(engine, asked.handle.as_deref())?,
    };
    Ok(engine.apply(&target.name, &Release(credentials))?.map(Freed::Released))
}

/// Breaks the grants that `asked` means in one target. Claims are permanent: only a name or token breaks them.
fn force(engine: &Engine, asked: &Unlock, target: &LockRef, by: Option<&Owner>) -> Result<Unlocked> {
    let is_lock = |grant: &Grant| grant.claim.is_none();
    let has_token = |grant: &Grant| grant.token == asked.token;
    let meant: Option<&dyn Fn(&Grant) -> bool> = match (asked.all, asked.token) {
        (true, _) => Some(&is_lock),
        (_, Some(_)) => Some(&has_token),
        (false, None) => None,
    };
    Ok(engine.break_lock(&target.name, meant, by)?.map(Freed::Broken))
}

/// Returns the breaker for the history: the calling script, or this process if the script is unknown.
fn breaker(context: &Context) -> Option<Owner> {
    let this = ThisProcess::look().ok()?;
    let itself = || Caller { owners: vec![this.id()], command: command_of(this.id().pid), ..Caller::default() };
    let Caller { owners, command, .. } = this.caller().unwrap_or_else(|_| itself());
    context.owner(owners, command, None).ok()
}

/// Reports why a record stays as it is. Returns the exit code for that.
fn pass_over(asked: &Unlock, error: &Error, documents: &mut Vec<Document>) -> Exit {
    asked.common.note_unless_json(&format!("passed over: {error}"));
    documents.push(json::unreadable(error));
    Exit::from(error.kind())
}
