//! `csalock unlock`: releases or breaks locks: those with the given names, all held ones, or all of the caller.

use std::ffi::{OsStr, OsString};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::acquire::command_of_caller;
use super::context::{Context, LockRef, Results, print};
use super::descriptor;
use super::end_holder::{HolderEnd, live_owners};
use crate::cli::{Unlock, Waiting};
use crate::exit::Exit;
use crate::glob;
use crate::report::{RefusalReport, RefusedLock, Reporter, Zone, is_of_descriptor, json};
use engine::environment::{store_for_files, variable};
use engine::{Broken, Engine, WaitPolicy};
use host::{ThisProcess, texts_of_witnesses};
use lock::duration::Backoff;
use lock::name::{escape, shell_quote};
use lock::{
    AskToEnd, EndReason, EndRequest, EndedGrant, Error, ErrorKind, Grant, HandleHash, Lifetime, Liveness, NotHolder,
    Owner, ProcessId, Release, Result, Standing,
};
use store::Location;

/// Interval between two looks at a process that is about to end, and at the grant of a holder that is.
const TO_LOOK_AT_PROCESS: Duration = Duration::from_millis(10);
const LOOK: Duration = Duration::from_millis(100);

/// The result of unlocking one lock.
#[derive(Default)]
struct Freed {
    result: &'static str,
    /// Grants that were released or broken, or whose holders have ended or lost their leases.
    grants: Vec<Grant>,
    /// For people, on stdout and on stderr.
    lines: Vec<String>,
    notes: Vec<String>,
    /// The place to which `--force` moved an unreadable record.
    kept_in: Option<String>,
}

type Unlocked = std::result::Result<Freed, NotHolder>;

pub(super) fn run(context: &Context, options: &Unlock) -> anyhow::Result<Exit> {
    if let Some(number) = options.fd {
        return descriptor::unlock(context, number);
    }
    check_force(options)?;
    let this = ThisProcess::default();
    let mut results = Results::new(&context.common);
    let targets = match options.all {
        true => everything_owned(context, options, &mut results)?,
        false => named(context, options, &mut results)?,
    };
    let breaker = if options.force { breaker(context, &this) } else { None };
    // The process ends soon, and the kernel closes its descriptors.
    let mut opened: ManuallyDrop<Option<(Location, Engine)>> = ManuallyDrop::new(None);
    for (target, why) in &targets {
        // Only the engine of the last location stays open.
        let known = opened.take_if(|(known, _)| *known == target.location);
        let engine = known.map_or_else(|| context.engine(&target.location), |(_, engine)| Ok(engine))?;
        let engine = &opened.insert((target.location.clone(), engine)).1;
        let (name, by) = (escape(&target.display_name), breaker.as_ref());
        let call = Call { context, options, by, engine, target, why, name, reporter: Reporter::new(engine) };
        let response = if options.end {
            call.end()
        } else if options.force {
            call.force()
        } else {
            call.release(&this)
        };
        let is_matched = *why == Chosen::Pattern;
        match response {
            Ok(Ok(freed)) => {
                results.add(|| {
                    let document = json::outcome(&target.display_name, freed.result, &freed.grants, &call.reporter);
                    document.with_some("kept_in", freed.kept_in.as_deref())
                });
                if !context.common.json {
                    call.tell(&freed)?;
                }
            }
            // The holder may have released the lock before it could be broken.
            Ok(Err(not_holder)) if is_matched => {
                results.add(|| json::not_done(&target.display_name, &not_holder.holders, None, &call.reporter));
            }
            Ok(Err(not_holder)) => results.refuse(target, &call.refused(&not_holder), &call.reporter),
            Err(error) if is_matched && error.is_of_one_record() => {
                context.common.note_unless_json(&format!("passed over: {error}"));
                results.add(|| json::unreadable(&error));
                results.exit = error.kind().into();
            }
            Err(error) => return Err(error.into()),
        }
    }
    results.print()
}

/// Rejects what clap cannot: what --force would break without a question, and several names of one token.
fn check_force(options: &Unlock) -> Result<()> {
    let (what, cure) = match options.names.as_slice() {
        _ if options.force && options.all => (
            "--force --all would end the locks of all users".to_string(),
            "name the locks, or use '*', which is every lock of the store except claims",
        ),
        [_, other, ..] if options.token.is_some() => (
            format!("a token belongs to one name, and {} is another", escape(other.as_bytes())),
            "unlock one name at a time",
        ),
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::InvalidInput, what, cure))
}

/// What is done to one lock, and `by` which script.
struct Call<'a> {
    context: &'a Context,
    options: &'a Unlock,
    by: Option<&'a Owner>,
    engine: &'a Engine,
    target: &'a LockRef,
    why: &'a Chosen,
    /// For display.
    name: String,
    reporter: Reporter<'a>,
}

impl<'a> Call<'a> {
    fn refused(&self, not_holder: &NotHolder) -> RefusalReport {
        let Call { context, options, target, reporter, .. } = self;
        let holders = &not_holder.holders;
        let mut lock = RefusedLock::new(target, reporter);
        (lock.settings, lock.is_unlocked) = (context.settings, true);
        lock.presented = context.presented_handle(options.handle.as_deref());
        lock.similar = context.similar(target, not_holder);
        lock.file = if holders.is_empty() { None } else { reporter.file_lock(target, holders) };
        let mut refusal = match options.token.filter(|_| !holders.is_empty()) {
            Some(token) => lock.other_token(holders, token),
            None if options.force && !holders.is_empty() => lock.changed_hands(holders),
            None => lock.not_holder(not_holder),
        };
        refusal.add_file_lock(lock.file.as_ref());
        refusal
    }

    /// Names other processes that have locked the file of a lock whose holders have lost it: the holders may have waited
    /// for that file, and the next holder waits, too.
    fn tell(&self, freed: &Freed) -> anyhow::Result<()> {
        print(freed.lines.concat())?;
        freed.notes.iter().for_each(|note| self.context.common.note(note));
        if freed.result != "released"
            && !freed.grants.is_empty()
            && let Some(file) = self.reporter.file_lock(self.target, &freed.grants)
        {
            self.context.common.note(&format!("lock {}: its file is still {file}; see lslocks(8)", self.name));
        }
        Ok(())
    }

    fn release(&self, this: &ThisProcess) -> Result<Unlocked> {
        let Call { context, engine, target, .. } = self;
        let credentials = match self.why {
            Chosen::Grant(proof) => engine.by_proof(*proof)?,
            _ => context.credentials(engine, self.options.handle.as_deref(), this)?,
        };
        let owners = credentials.owners.clone();
        let grants = match engine.apply(&target.name, &Release(credentials))? {
            Ok(grant) => {
                engine.leave_release(&target.name, &grant);
                vec![grant]
            }
            Err(NotHolder { ending: None, .. }) if engine.has_released(&target.name, &owners) => Vec::new(),
            Err(not_holder) => {
                not_holder.ending.iter().for_each(|ending| engine.note_late(&target.name, ending));
                return Ok(Err(not_holder));
            }
        };
        let note = context.common.verbose.then(|| format!("lock {} is released", self.name));
        Ok(Ok(Freed { result: "released", grants, notes: note.into_iter().collect(), ..Freed::default() }))
    }

    /// Claims are permanent: only a name or token breaks them, and no pattern.
    fn is_meant(&self, grant: &Grant) -> bool {
        let may_be_claim = *self.why != Chosen::Pattern;
        self.options.token.is_none_or(|token| grant.token == Some(token)) && (may_be_claim || grant.claim.is_none())
    }

    /// Breaks the grants that the options mean.
    fn force(&self) -> Result<Unlocked> {
        let is_meant = |grant: &Grant| self.is_meant(grant);
        let are_all_meant = self.options.token.is_none() && *self.why == Chosen::Name;
        let meant: Option<&dyn Fn(&Grant) -> bool> = if are_all_meant { None } else { Some(&is_meant) };
        Ok(self.of_broken(self.engine.break_lock(&self.target.name, meant, self.by)?))
    }

    fn of_broken(&self, broken: Broken) -> Unlocked {
        let Call { name, reporter, .. } = self;
        let mut freed = Freed { result: "removed", ..Freed::default() };
        match broken? {
            Err(place) => {
                let kept = place.as_ref().map_or(String::new(), |place| format!("; its bytes are kept in {place}"));
                freed.lines.push(format!("removed {name}: its record was unreadable{kept}\n"));
                freed.kept_in = place;
            }
            Ok(endings) => {
                for ending in endings {
                    let (done, holder) = match ending.reason {
                        EndReason::Broken => ("broke", reporter.holder(&ending.grant)),
                        _ => ("removed", reporter.ending(&ending)),
                    };
                    if ending.reason == EndReason::Broken {
                        freed.result = "broken";
                    }
                    freed.lines.push(format!("{done} {name}: held by {holder}\n"));
                    freed.notes.extend(reporter.left_by_break(&ending).map(|left| format!("lock {name}: {left}")));
                    freed.grants.push(ending.grant);
                }
            }
        }
        Ok(freed)
    }

    /// Ends the holders whose grants the options mean, and breaks each grant only when its holder has ended or its lease is
    /// over. A grant that comes after the first look stays.
    fn end(&self) -> Result<Unlocked> {
        let Call { engine, target, name, reporter, .. } = self;
        let record = engine.record(&target.name)?;
        let meant = record.holders.iter().filter(|grant| self.is_meant(grant));
        let proofs: Vec<HandleHash> = meant.map(|grant| grant.proof).collect();
        let standing = |engine: &Engine| -> Result<Vec<Grant>> {
            let status = engine.inspect(&target.name)?;
            let holders = status.record.holders.into_iter().zip(status.holders);
            let stands = |(grant, standing): &(Grant, Standing)| {
                // The end of a grant without a process needs no end of a holder.
                !grant.owner.processes.is_empty()
                    && proofs.contains(&grant.proof)
                    && !matches!(standing, Standing::Ended(_) | Standing::Holds(Liveness::Dead))
            };
            Ok(holders.filter(stands).map(|(grant, _)| grant).collect())
        };
        let request = self.by.map(|by| Arc::new(EndRequest { by: by.clone(), replaces: false }));
        let mut ends = Vec::new();
        for grant in standing(engine)? {
            let end = self.end_holder(grant.clone(), request.clone())?;
            ends.push((grant, end));
        }
        let until_ended = WaitPolicy { limit: None, backoff: Some(Backoff { min: LOOK, max: LOOK }) };
        engine.poll(&target.name, &until_ended, &mut |engine| standing(engine).map(|left| (left.is_empty(), ())))?;
        let is_meant = |grant: &Grant| proofs.contains(&grant.proof);
        let broken = engine.break_lock(&target.name, Some(&is_meant), self.by)?;
        if ends.is_empty() {
            return Ok(self.of_broken(broken));
        }
        let endings = engine.record(&target.name).map(|record| record.ended_grants).unwrap_or_default();
        let mut freed = Freed { result: "ended", ..Freed::default() };
        for (grant, end) in ends {
            // It has neither ended nor released the lock before the end of the lease.
            let is_over = |ending: &EndedGrant| {
                ending.grant.proof == grant.proof && matches!(ending.reason, EndReason::Expired | EndReason::Broken)
            };
            let is_not_stopped = end.is_none() && !ends_with_lease(&grant.owner) && endings.iter().any(is_over);
            end.into_iter().for_each(HolderEnd::tell_of_remaining);
            let done = if is_not_stopped { "broke" } else { "ended" };
            freed.lines.push(format!("{done} {name}: held by {}\n", reporter.grant(&grant, "")));
            if is_not_stopped {
                freed.result = "broken";
                let what = reporter.not_stopped(&grant.owner);
                freed.notes.push(format!("lock {name}: its lease is over, and {what}"));
            }
            freed.grants.push(grant);
        }
        Ok(Ok(freed))
    }

    /// Ends a holder. Of a holder that cannot be seen here, it ends the renewal of the lease, and returns `None`: the
    /// csalock there then ends its command, unless that outlives the lock.
    fn end_holder(&self, grant: Grant, request: Option<Arc<EndRequest>>) -> Result<Option<HolderEnd<'a>>> {
        let Call { context, engine, target, .. } = *self;
        let owner = &grant.owner;
        let is_dead =
            |process| engine.host().liveness(&owner.domain, process, engine.store().scope()) == Liveness::Dead;
        // The processes of a grant are of one host.
        if live_owners(engine, owner).is_empty() && !owner.processes.iter().any(is_dead) {
            return self.end_elsewhere(&grant, request).map(|()| None);
        }
        let mut end = HolderEnd::new((&context.common, engine, target), grant, request, self.options.kill_after);
        while end.step(engine.call())?.is_some() {
            engine.host().sleep(TO_LOOK_AT_PROCESS);
        }
        Ok(Some(end))
    }

    /// Ends the renewal of a grant whose holder cannot be seen here. Fails if the grant would go on for longer than a
    /// lease.
    fn end_elsewhere(&self, grant: &Grant, request: Option<Arc<EndRequest>>) -> Result<()> {
        let Call { engine, target, name, .. } = self;
        let host = escape(grant.owner.host.as_bytes());
        let lease = match &grant.lifetime {
            Lifetime::Keepalive(lease) => lease,
            Lifetime::ExpiresAt(lease) if engine.store().leases().ttl(engine.call(), lease)? <= engine.lease() => lease,
            _ => {
                let what =
                    format!("lock {name}: its holder cannot be ended from here: {}", self.reporter.holder(grant));
                let hint = format!("on {host}: csalock unlock --force --end {}", target.shell_arg);
                return Err(Error::new(ErrorKind::NotOwner, what, hint));
            }
        };
        engine.apply(&target.name, &AskToEnd { proof: grant.proof, request, ends_renewal: true })?;
        let until = Zone::Local.full(Duration::from_millis(lease.wall));
        let is_asked = match ends_with_lease(&grant.owner) {
            true => "is asked to end",
            false if grant.owner.outlives_lock => "goes on (--on-lost warn)",
            false => "cannot be stopped from here",
        };
        let what = format!("its holder on {host} {is_asked}, and has the lock until {until} at the latest");
        self.context.common.note_unless_json(&format!("lock {name}: {what}"));
        Ok(())
    }
}

/// csalock ends the command of such an owner before the end of its lease.
fn ends_with_lease(owner: &Owner) -> bool {
    owner.supervisor.is_some() && !owner.outlives_lock
}

/// For the history: the calling script, or this process if the script is unknown.
fn breaker(context: &Context, this: &ThisProcess) -> Option<Owner> {
    let owners = this.caller().map_or_else(|_| this.id().map(|id| vec![id]), |caller| Ok(caller.owners.clone()));
    context.owner(owners.ok()?, command_of_caller(this).ok()?, &Waiting::default()).ok()
}

/// Why this call concerns a lock.
#[derive(PartialEq, Eq)]
enum Chosen {
    Name,
    /// With --force.
    Pattern,
    /// With --all: the grant of the caller.
    Grant(HandleHash),
}

type ChosenLocks = Vec<(LockRef, Chosen)>;

fn named(context: &Context, options: &Unlock, results: &mut Results<'_>) -> Result<ChosenLocks> {
    let mut targets = Vec::new();
    for name in &options.names {
        if options.force && glob::is_pattern(name.as_bytes()) {
            let literal = context.target(name)?;
            if context.engine(&literal.location)?.record(&literal.name)?.holders.is_empty() {
                targets.extend(everything_held(context, name, results)?);
                continue;
            }
        }
        let target = context.known_target(name)?;
        if !options.reentrant || !context.is_held_around(&target, None)? {
            targets.push((target, Chosen::Name));
        }
    }
    Ok(targets)
}

/// Each held or abandoned lock of the store whose name matches, except claims. An unreadable record stays, and decides
/// the exit code.
fn everything_held(context: &Context, pattern: &OsStr, results: &mut Results<'_>) -> Result<ChosenLocks> {
    let mut targets = Vec::new();
    let location = context.store()?;
    let unreadable = context.each_readable(&context.engine(&location)?, &mut |status| {
        let is_held = status.record.holders.iter().any(|grant| grant.claim.is_none());
        if is_held && glob::matches(pattern.as_bytes(), &status.record.name) {
            targets.push((LockRef::in_store(&location, status.record.name), Chosen::Pattern));
        }
    })?;
    for error in &unreadable {
        results.add(|| json::unreadable(error));
        results.exit = error.kind().into();
    }
    Ok(targets)
}

/// Each grant of the caller in every store that can be reached from here. The stores are those of bare names, of the
/// enclosing lock, and beside the files that the caller has locked, that are in the current directory or that are named.
/// The caller proves a grant as its owner, or by `--handle`; the locks that the caller was started under are not its own.
/// An unreadable record may be the caller's, unless it is another user's.
fn everything_owned(context: &Context, options: &Unlock, results: &mut Results<'_>) -> Result<ChosenLocks> {
    let (mut targets, mut of_descriptors, this) = (Vec::new(), Vec::new(), ThisProcess::default());
    let (owners, under) = (context.caller_processes(&this)?, context.enclosing_grants());
    for location in stores(context, options, &owners)? {
        let found = context.engine(&location).and_then(|engine| {
            let by_handle = options.handle.as_deref().map(|handle| context.credentials(&engine, Some(handle), &this));
            let credentials = by_handle.unwrap_or_else(|| engine.credentials(None, owners.clone()))?;
            context.each_readable(&engine, &mut |status| {
                for (grant, owner) in status.record.holders.iter().zip(&status.owners) {
                    let is_owned = credentials.space.contains(&grant.owner.domain)
                        && !under.contains(&grant.proof)
                        && owner.is_some_and(|owner| credentials.owners.contains(&owner));
                    if !is_owned && credentials.proof != Some(grant.proof) {
                        continue;
                    }
                    let mut target = LockRef::in_store(&location, status.record.name.clone());
                    if let Some(directory) = location.directory_of_files() {
                        target.display_name =
                            directory.join(OsStr::from_bytes(&target.name)).into_os_string().into_vec();
                        target.shell_arg = shell_quote(&target.display_name);
                    }
                    match is_of_descriptor(grant) {
                        true => of_descriptors.push(escape(&target.display_name)),
                        false => targets.push((target, Chosen::Grant(grant.proof))),
                    }
                }
            })
        });
        let unreadable = match found {
            // The locks in other stores are released all the same.
            Err(error) if location.is_beside() && error.kind() == ErrorKind::Denied => {
                context.common.note_unless_json(&format!("passed over: {error}"));
                results.exit = error.kind().into();
                vec![error]
            }
            found => found?,
        };
        for error in unreadable {
            results.add(|| json::unreadable(&error));
            if !error.is_of_one_record() || error.is_own {
                results.exit = error.kind().into();
            }
        }
    }
    if let (Some(name), true) = (of_descriptors.first(), targets.is_empty()) {
        let what = format!("lock {name} is that of a descriptor, which --all does not release");
        context.common.note_unless_json(&format!("{what}; close it, or use `csalock unlock --fd N`"));
    }
    Ok(targets)
}

fn stores(context: &Context, options: &Unlock, owners: &[ProcessId]) -> Result<Vec<Location>> {
    let mut stores = vec![context.store()?];
    if context.common.store.is_none() {
        // A store that is chosen has the locks of files, too.
        let owners = owners.iter().filter(|_| store_for_files().is_none());
        let locked = owners.flat_map(texts_of_witnesses).map(|path| OsString::from_vec(path).into());
        let directories = locked.chain([context.current.as_ref().to_path_buf()]);
        stores.extend(directories.filter(|path| path.is_absolute()).map(|path: PathBuf| Location::beside(&path)));
    }
    for name in &options.names {
        stores.push(context.target(name)?.location);
    }
    stores.extend(variable("CSALOCK_STORE").map(|url| engine::location(&url, &context.current)).transpose()?);
    let is_new = |at: &usize| !stores[..*at].contains(&stores[*at]);
    Ok((0..stores.len()).filter(is_new).map(|at| stores[at].clone()).collect())
}
