//! `csalock claim`, `csalock unclaim` and `csalock lookup`

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::acquire::{Acquisition, command_of_caller, request, standing};
use super::context::{Context, LockRef, Results, json_line, print_before, print_json};
use crate::cli::{Claim, Lookup, Unclaim};
use crate::exit::Exit;
use crate::report::{RefusalReport, RefusedLock, Reporter, json, name_and_store};
use engine::{AcquireResult, LockSet, OpenLockSet};
use host::ThisProcess;
use host::signals::Signals;
use lock::name::{escape, shell_quote};
use lock::{Error, ErrorKind, Grant, Lifetime, Refusal, Result};
use store::Call;

/// Maximum length of an id in bytes.
const LONGEST_ID: usize = 255;

pub(super) fn claim(context: &Context, options: &Claim) -> anyhow::Result<Exit> {
    let targets = context.lock_set(&options.names)?;
    let id = options.id.as_deref().map_or_else(|| fresh_id(context), given_id)?;
    context.require_stdout("the id", "send it to /dev/null if you do not need it")?;
    let opened = targets.open(context)?;
    let (policy, began) = (options.waiting.wait_policy(opened.lease()), context.host.boottime());
    let until = policy.end(began);
    let opened = opened.during(Call::until(until));
    let taken = match taken(&opened, &id) {
        // Acquiring the names waits for the store too, and finds out the same.
        Err(error) if error.is_unreached && !policy.is_none() => Vec::new(),
        taken => taken?,
    };
    if !taken.is_empty() {
        return not_unique(context, &taken);
    }
    let this = ThisProcess::default();
    let (handle, process, command) = (context.host.new_handle()?, this.id()?, command_of_caller(&this)?);
    let mut request = request(context, &options.waiting, handle, process, Vec::new(), command)?;
    request.outlives_process = true;
    (request.entry.claim, request.entry.lifetime) = (Some(id.clone()), Lifetime::UntilReleased);
    let signals = Signals::listen()?;
    let acquisition = Acquisition { began, ..Acquisition::new(context, &options.waiting, &signals, opened.lease()) };
    match acquisition.acquire(&opened, &request)? {
        AcquireResult::Granted(grants, _) => {
            let text = format!("{}\n", String::from_utf8_lossy(&id));
            let document = context.common.json.then(|| json_line(&json::claimed(&targets.all, &id, &grants)));
            // An id that is not printed is useless. Earlier claims under the same id have other handles, so they stay.
            if let Err(error) = print_before(context, until, &document.unwrap_or(text)) {
                opened.release_all(request.handle.proof())?;
                return Err(error.context("nothing was claimed"));
            }
            Ok(Exit::Done)
        }
        AcquireResult::Refused(at, Refusal::Claimed(grant)) => {
            let mut taken = self::taken(&opened, &id).unwrap_or_default();
            if taken.is_empty() {
                // The claim was given up at this moment, or the store does not answer now.
                taken.push((targets.all[at].clone(), *grant));
            }
            not_unique(context, &taken)
        }
        ended => acquisition.end(&opened, &ended),
    }
}

pub(super) fn unclaim(context: &Context, options: &Unclaim) -> anyhow::Result<Exit> {
    let id = given_id(&options.id)?;
    let mut results = Results::new(&context.common);
    let targets = match options.all {
        true => {
            let (names, unreadable) = names_of(context, &id)?;
            unreadable.iter().for_each(|error| results.add(|| json::unreadable(error)));
            LockSet::of_store(&context.store()?, names)
        }
        false => context.lock_set(&options.names)?,
    };
    if targets.all.is_empty() {
        return context.common.refuse(&nothing_claimed(&id), ErrorKind::NotHeld.into(), None);
    }
    let opened = targets.open(context)?;
    // The command gives up all claims or none, so it checks the id of each name before the first change.
    let mut claims = Vec::new();
    for (target, engine) in opened.each() {
        let status = engine.inspect(&target.name)?;
        if let Some(claim) = engine.claim_in(&status).filter(|grant| grant.claim.as_ref() == Some(&id)) {
            claims.push(claim);
            continue;
        }
        let reporter = Reporter::new(engine);
        let refusal = RefusedLock::new(target, &reporter).not_claimed(&id, &standing(status));
        results.refuse(target, &refusal, &reporter);
    }
    if results.exit != Exit::Done {
        return results.print();
    }
    for (engine, names) in opened.stores() {
        // Another process may give up the same claims now, which is as good.
        if !engine.give_up_claims(&names, &id)? && !names.iter().all(|name| matches!(engine.claim_of(name), Ok(None))) {
            let what = "another caller changed one of the claims meanwhile; those in this store were kept";
            return Err(Error::new(ErrorKind::NotOwner, what, "see `csalock lookup`, then try again").into());
        }
    }
    for ((target, engine), claim) in opened.each().zip(&claims) {
        context.common.note_step(|| format!("the claim on {} is given up", escape(&target.display_name)));
        results.done(target, "released", std::slice::from_ref(claim), &Reporter::new(engine));
    }
    results.print()
}

/// Names that are claimed under another id, each with that claim.
fn taken(opened: &OpenLockSet<'_>, id: &[u8]) -> Result<Vec<(LockRef, Grant)>> {
    let mut taken = Vec::new();
    for (target, engine) in opened.each() {
        let claim = engine.claim_of(&target.name)?.filter(|grant| grant.claim.as_deref() != Some(id));
        taken.extend(claim.map(|grant| (target.clone(), grant)));
    }
    Ok(taken)
}

/// Reports each name that is claimed already, on a line of its own.
fn not_unique(context: &Context, taken: &[(LockRef, Grant)]) -> anyhow::Result<Exit> {
    let refusal = |(target, grant): &(LockRef, Grant)| {
        let id = escape(grant.claim.as_deref().unwrap_or_default());
        let message = format!("{} is claimed under id {id}", name_and_store(target));
        RefusalReport::new(ErrorKind::NotUnique, message, "nothing was claimed").about(&target.display_name)
    };
    match taken.first() {
        Some(first) if context.common.json => print_json(&json::taken(taken, &refusal(first)))?,
        _ => taken.iter().map(refusal).for_each(|refusal| context.common.note(&refusal.to_string())),
    }
    Ok(ErrorKind::NotUnique.into())
}

/// An id must be one line, so that its reader gets exactly the id.
fn given_id(id: &OsStr) -> Result<Vec<u8>> {
    let id = id.as_bytes();
    let what = match id {
        [] => "an id must not be empty".to_string(),
        _ if id.len() > LONGEST_ID => format!("the id has {} bytes", id.len()),
        _ if id.iter().any(u8::is_ascii_control) => format!("the id {} is not one line of text", shell_quote(id)),
        _ => return Ok(id.to_vec()),
    };
    Err(Error::invalid(what, "name one of 1 to 255 bytes without control characters"))
}

/// A random UUID, version 4 (RFC 9562).
fn fresh_id(context: &Context) -> Result<Vec<u8>> {
    let mut random = context.host.random()?;
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    let mut id = format!("{:032x}", u128::from_be_bytes(random));
    [20, 16, 12, 8].into_iter().for_each(|at| id.insert(at, '-'));
    Ok(id.into_bytes())
}

pub(super) fn lookup(context: &Context, options: &Lookup) -> anyhow::Result<Exit> {
    if let Some(id) = &options.id {
        return tell_names(context, &given_id(id)?);
    }
    // clap requires one of them.
    id_of(context, options.name.as_deref().unwrap_or_default())
}

fn id_of(context: &Context, name: &OsStr) -> anyhow::Result<Exit> {
    let target = context.target(name)?;
    let claim = context.engine(&target.location)?.claim_of(&target.name)?;
    let Some(id) = claim.and_then(|grant| grant.claim) else {
        let message = format!("{} is not claimed", name_and_store(&target));
        let refusal = RefusalReport::new(ErrorKind::NotHeld, message, "").about(&target.display_name);
        return context.common.refuse(&refusal, refusal.kind.into(), None);
    };
    context.common.print(&json::id_of(&target.display_name, &id), [&id, b"\n".as_slice()].concat())?;
    Ok(Exit::Done)
}

fn tell_names(context: &Context, id: &[u8]) -> anyhow::Result<Exit> {
    let (names, unreadable) = names_of(context, id)?;
    let exit = unreadable.last().map_or(Exit::Done, |error| error.kind().into());
    if names.is_empty() {
        // People have been told of the records that cannot be read.
        let refusal = match unreadable.last() {
            Some(error) if context.common.json => RefusalReport::from(error),
            _ => nothing_claimed(id),
        };
        return context.common.refuse(&refusal, exit.or(ErrorKind::NotHeld), None);
    }
    let lines: String = names.iter().map(|name| escape(name) + "\n").collect();
    context.common.print(&json::names_of(id, &names, &unreadable), lines)?;
    Ok(exit)
}

fn nothing_claimed(id: &[u8]) -> RefusalReport {
    RefusalReport::new(ErrorKind::NotHeld, format!("nothing is claimed under id {}", escape(id)), "")
}

/// The names in order, and the errors of unreadable records, which are reported to people here. All records are read,
/// because a separate list could be wrong.
fn names_of(context: &Context, id: &[u8]) -> Result<(Vec<Vec<u8>>, Vec<Error>)> {
    let engine = context.engine(&context.store()?)?;
    let mut names = Vec::new();
    let unreadable = context.each_readable(&engine, &mut |status| {
        if engine.claim_in(&status).is_some_and(|grant| grant.claim.as_deref() == Some(id)) {
            names.push(status.record.name);
        }
    })?;
    if !names.is_empty() {
        engine.settle()?;
    }
    names.sort();
    Ok((names, unreadable))
}
