//! `csalock claim` and `csalock unclaim`

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use nix::sys::signal::Signal;

use super::lookup::names_of;
use super::onlooker::Teller;
use super::targets::{Opened, Targets};
use super::world::{Target, World, json_line, print_json, print_until, refusal, say};
use crate::cli::{Claim, Unclaim};
use crate::engine::{AllTaken, Applicant, Sight};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::{Called, caller, command_of};
use crate::lock::{Grant, Handle, Outcome, Share, Tenure};
use crate::name::{quoted, shown};
use crate::report::{ClaimJson, Reporter, TakenJson, UnlockJson};
use crate::signals::Signals;

/// An id has no more bytes.
const LONGEST_ID: usize = 255;

pub(super) fn claim(world: &World, asked: &Claim) -> anyhow::Result<Exit> {
    let targets = Targets::new(world, &asked.common, &asked.names)?;
    let id = asked.id.as_deref().map_or_else(|| fresh_id(world), given_id)?;
    if world.inherited.closed(1) {
        let what = "stdout is closed, so nobody would get the id";
        return Err(Error::new(Exit::InputOutput, what, "send it to /dev/null if nobody needs it").into());
    }
    let opened = targets.open(world)?;
    let patience = asked.waiting.patience();
    let until = world.end_of(&patience);
    opened.each().for_each(|(_, engine)| engine.bound_by(&patience));
    let taken = match taken(&opened, &id) {
        // To take them is to wait for the store as well, and finds out the same.
        Err(error) if error.is_unreached() && !patience.is_none() => Vec::new(),
        taken => taken?,
    };
    if !taken.is_empty() {
        return not_unique(asked, &taken);
    }
    let handle = Handle::new(world.host.random()?);
    let applicant = applicant(world, asked, &handle, &id)?;
    let signals = Signals::listen(world.inherited)?;
    let mut teller = Teller::new(&asked.common);
    let done = opened.take(&applicant, &patience, Some(signals.interrupt()), &mut |at, waiting| {
        teller.look(&targets.all[at], &opened.reporter(at), waiting)
    })?;
    drop(teller);
    match done {
        AllTaken::Interrupted => Ok(signals.exit()),
        AllTaken::Granted(grants, _) => {
            let known_as: Vec<&[u8]> = targets.all.iter().map(|target| target.known_as.as_slice()).collect();
            let text = match asked.common.json {
                true => json_line(&ClaimJson::new(&known_as, &id, &grants))?,
                false => format!("{}\n", String::from_utf8_lossy(&id)),
            };
            // An id that nobody gets is of use to nobody. What was claimed under it before has other handles.
            if let Err(error) = print_until(world, until, &text) {
                opened.give_back(handle.proof()).into_iter().try_for_each(|answer| answer.map(drop))?;
                return Err(error.context("nothing was claimed"));
            }
            Ok(Exit::Done)
        }
        AllTaken::Refused(at, Outcome::Claimed(grant)) => {
            let mut taken = self::taken(&opened, &id)?;
            if taken.is_empty() {
                // It was given up this moment.
                taken.push((targets.all[at].known_as.clone(), grant));
            }
            not_unique(asked, &taken)
        }
        AllTaken::Refused(at, outcome) => {
            let busy = asked.waiting.conflict_exit_code;
            let (text, exit) = refusal(&outcome, &targets.all[at], &opened.reporter(at), busy);
            asked.common.tell(&text);
            Ok(exit)
        }
    }
}

pub(super) fn unclaim(world: &World, asked: &Unclaim) -> anyhow::Result<Exit> {
    let id = given_id(&asked.id)?;
    let targets = match asked.all {
        true => Targets::of_store(&world.store(&asked.common)?, names_of(world, &asked.common, &id)?.0),
        false => Targets::new(world, &asked.common, &asked.names)?,
    };
    if targets.all.is_empty() {
        asked.common.tell(&format!("nothing is claimed under id {}", shown(&id)));
        return Ok(Exit::NotHeld);
    }
    let opened = targets.open(world)?;
    // All or none: what the id does not have is found out before anything is given up.
    let mut exit = Exit::Done;
    let mut grants = Vec::new();
    for (at, (target, engine)) in opened.each().enumerate() {
        let sight = engine.sight(&target.name)?;
        let claim = engine.claim_in(&sight).filter(|grant| grant.claim.as_ref() == Some(&id));
        if claim.is_none() {
            let (text, refused) = not_claimed(&target.known_as, &id, &sight, &opened.reporter(at));
            asked.common.tell(&text);
            exit = if exit == Exit::Done { refused } else { exit };
        }
        grants.push(claim.into_iter().collect::<Vec<_>>());
    }
    if exit != Exit::Done {
        return Ok(exit);
    }
    for (engine, names) in opened.stores() {
        // Somebody else may be giving them up as well, which is as good.
        if !engine.give_up_claims(&names, &id)? && !names.iter().all(|name| matches!(engine.claim_of(name), Ok(None))) {
            let what = "somebody else changed one of the claims meanwhile; those in this store were kept";
            return Err(Error::new(Exit::NotOwner, what, "see `csalock lookup`, then try again").into());
        }
    }
    if asked.common.verbose {
        targets.all.iter().for_each(|target| say(&format!("the claim on {} is given up", shown(&target.known_as))));
    }
    if asked.common.json {
        let document = |(at, target): (usize, &Target)| {
            UnlockJson::new(&target.known_as, "released", &grants[at], &opened.reporter(at))
        };
        print_json(&targets.all.iter().enumerate().map(document).collect::<Vec<_>>())?;
    }
    Ok(Exit::Done)
}

/// Why there is nothing to be given up.
fn not_claimed(name: &[u8], id: &[u8], sight: &Sight, reporter: &Reporter<'_>) -> (String, Exit) {
    let name = shown(name);
    let held = sight.record.holders.iter().zip(&sight.holders).filter(|(_, standing)| standing.is_ok());
    let held: Vec<String> = held.map(|(grant, _)| reporter.holding(grant)).collect();
    match held.is_empty() {
        true => (format!("{name} is not claimed; nothing was given up"), Exit::NotHeld),
        false => (
            format!("{name} is not claimed under id {}: {}; nothing was given up", shown(id), held.join("; and ")),
            Exit::NotOwner,
        ),
    }
}

/// Those of the names that are claimed under another id, with that claim.
fn taken(opened: &Opened<'_>, id: &[u8]) -> Result<Vec<(Vec<u8>, Grant)>> {
    let mut taken = Vec::new();
    for (target, engine) in opened.each() {
        let claim = engine.claim_of(&target.name)?.filter(|grant| grant.claim.as_deref() != Some(id));
        taken.extend(claim.map(|grant| (target.known_as.clone(), grant)));
    }
    Ok(taken)
}

/// A line for each name that is taken.
fn not_unique(asked: &Claim, taken: &[(Vec<u8>, Grant)]) -> anyhow::Result<Exit> {
    if asked.common.json {
        print_json(&TakenJson::new(taken))?;
    }
    for (name, grant) in taken {
        let id = shown(grant.claim.as_deref().unwrap_or_default());
        asked.common.tell(&format!("{} is claimed under id {id}; nothing was claimed", shown(name)));
    }
    Ok(Exit::NotUnique)
}

fn applicant(world: &World, asked: &Claim, handle: &Handle, id: &[u8]) -> Result<Applicant> {
    let process = world.host.this_process()?;
    let command = caller(process.pid).map_or_else(|_| command_of(process.pid), |caller| caller.command);
    let label: Option<&OsString> = asked.waiting.label.as_ref();
    Ok(Applicant {
        handle: handle.clone(),
        share: Share::Exclusive,
        party: world.party(Vec::new(), command, label)?,
        process,
        outlived: true,
        yields: false,
        claim: Some(id.to_vec()),
        tenure: Tenure::Forever,
        slots: None,
        refuse_stale: asked.waiting.fail_on_stale,
        tentative: false,
        confirming: false,
        under: world.under(),
        called: Some(Called { pid: process.pid, ignores_interrupt: world.inherited.ignored(Signal::SIGINT) }),
    })
}

/// What `--id` says: one line, so that whoever reads it gets exactly the id.
pub(super) fn given_id(id: &OsStr) -> Result<Vec<u8>> {
    let id = id.as_bytes();
    let wrong = |what: String| Error::new(Exit::Usage, what, "name one of 1 to 255 bytes without control characters");
    match id {
        [] => Err(wrong("an id must not be empty".to_string())),
        _ if id.len() > LONGEST_ID => Err(wrong(format!("the id has {} bytes", id.len()))),
        _ if id.iter().any(u8::is_ascii_control) => {
            Err(wrong(format!("the id {} is not one line of text", quoted(id))))
        }
        _ => Ok(id.to_vec()),
    }
}

/// A random UUID, version 4 (RFC 9562).
fn fresh_id(world: &World) -> Result<Vec<u8>> {
    let mut random = world.host.random()?;
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    let mut id = String::new();
    for (at, byte) in random.iter().enumerate() {
        let dash = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
        id.push_str(&format!("{dash}{byte:02x}"));
    }
    Ok(id.into_bytes())
}
