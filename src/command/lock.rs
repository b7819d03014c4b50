//! `csalock lock`

use std::time::Duration;

use nix::sys::signal::Signal;

use super::context::{Context, json_line, print_before, refusal};
use super::keepalive::{KeeperConfig, spawn_detached};
use super::lock_set::{LockSet, OpenLockSet};
use super::wait_progress::WaitProgress;
use crate::cli::{Common, Lock, Taking};
use crate::engine::{AcquireAllResult, AcquireRequest, RETRY_INTERVAL};
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::host::{Caller, Invocation, caller, may_end_with_call};
use crate::lock::{EndedGrant, Grant, Handle, Lifetime};
use crate::name::escape;
use crate::report::LockJson;
use crate::shared_deadline::SharedDeadline;
use crate::signals::Signals;

pub(super) fn run(context: &Context, asked: &Lock) -> anyhow::Result<Exit> {
    take(context, asked, true)
}

/// Acquires a lock like `lock`, but prints no output unless it fails.
pub(super) fn run_silently(context: &Context, asked: &Lock) -> anyhow::Result<Exit> {
    take(context, asked, false)
}

fn take(context: &Context, asked: &Lock, prints: bool) -> anyhow::Result<Exit> {
    let targets = LockSet::new(context, &asked.common, &asked.names)?;
    if prints && context.inherited.closed(1) {
        let what = "stdout is closed, so nobody would get the handle";
        return Err(Error::new(ErrorKind::InputOutput, what, "send it to /dev/null if nobody needs it").into());
    }
    let handle = Handle::new(context.host.random()?);
    // If we fail or die before the handle is printed, no caller knows of the lock. The lock is held only afterwards.
    let request = AcquireRequest { provisional: true, ..acquire_request(context, &asked.taking, asked.pid, &handle)? };
    let opened = targets.open(context)?;
    let signals = Signals::listen(context.inherited)?;
    let mut teller = WaitProgress::new(&asked.common);
    let policy = asked.taking.waiting.wait_policy();
    let until = context.deadline(&policy);
    let taken = opened.acquire(&request, &policy, Some(signals.interrupt()), &mut |at, waiting| {
        teller.update(&targets.all[at], &opened.reporter(at), waiting)
    })?;
    drop(teller);
    match taken {
        AcquireAllResult::Interrupted => Ok(signals.exit()),
        AcquireAllResult::Granted(grants, evicted) => {
            warn_of_owner(&asked.common, asked.pid, &targets, &request);
            let printed = match prints {
                true => answer(context, asked, &targets, &opened, &handle, &grants, evicted.as_ref())
                    .and_then(|text| print_before(context, until, &text)),
                false => Ok(()),
            };
            // A handle that cannot be printed is useless.
            if let Err(error) = printed {
                opened.release(handle.proof()).into_iter().collect::<Result<Vec<_>>>()?;
                let names =
                    targets.all.iter().map(|target| escape(&target.display_name)).collect::<Vec<_>>().join(", ");
                return Err(error.context(format!("lock {names} was given back")));
            }
            let go_on = || signals.no_signal_within(RETRY_INTERVAL) && context.host.boottime() < until;
            confirm_and_keep(context, &targets, &opened, &request, grants, &go_on)?;
            Ok(Exit::Done)
        }
        AcquireAllResult::Refused(at, response) => {
            let busy = asked.taking.waiting.conflict_exit_code;
            let (text, exit) = refusal(&response, &targets.all[at], &opened.reporter(at), busy);
            // Callers that use CSA's names know no options.
            asked.common.note(&if prints { text } else { text.replace("with -w,", "with CSALOCK_TIMEOUT,") });
            Ok(exit)
        }
    }
}

/// Returns the text to print: the handle.
fn answer(
    context: &Context,
    asked: &Lock,
    targets: &LockSet,
    opened: &OpenLockSet<'_>,
    handle: &Handle,
    grants: &[Grant],
    evicted: Option<&(usize, EndedGrant)>,
) -> anyhow::Result<String> {
    report_taken(&asked.common, targets, opened, grants, evicted);
    if !asked.common.json {
        return Ok(format!("{handle}\n"));
    }
    let names: Vec<&[u8]> = targets.all.iter().map(|target| target.display_name.as_slice()).collect();
    let (at, ending) = evicted.map_or((0, None), |(at, ending)| (*at, Some(ending)));
    // The time limit starts when the grant is confirmed.
    let expires = asked.taking.ttl.map(|span| context.host.wall().saturating_add(span));
    let document = LockJson::new(&names, handle, grants, ending, expires, &opened.reporter(at));
    json_line(&document)
}

/// Warns if the lock may end with this very call, which the caller hardly intends.
pub(super) fn warn_of_owner(common: &Common, pid: Option<i32>, targets: &LockSet, request: &AcquireRequest) {
    let (process, party) = (request.process, &request.owner);
    let Some(owner) = party.processes.last().filter(|_| pid.is_none() && request.lifetime == Lifetime::WhileOwnerLives)
    else {
        return;
    };
    if may_end_with_call(process.pid, owner) {
        common.note(&format!(
            "lock {} ends with process {} ({}), maybe right after this call; name another owner with --pid PID, or keep the \
             lock until it is given back with --forever",
            escape(&targets.all[0].display_name),
            owner.pid,
            escape(&party.command)
        ));
    }
}

/// Confirms grants that the caller knows, unless they were released since, and ensures that they last.
pub(super) fn confirm_and_keep(
    world: &Context,
    targets: &LockSet,
    opened: &OpenLockSet<'_>,
    applicant: &AcquireRequest,
    grants: Vec<Grant>,
    go_on: &dyn Fn() -> bool,
) -> Result<()> {
    match opened.confirm(applicant, grants, go_on)? {
        Some(grants) => keep_for(world, targets, opened, applicant, &grants),
        None => Ok(()),
    }
}

/// Starts a keeper if the grants need renewal; if that fails, releases them.
fn keep_for(
    world: &Context,
    targets: &LockSet,
    opened: &OpenLockSet<'_>,
    applicant: &AcquireRequest,
    grants: &[Grant],
) -> Result<()> {
    if !opened.are_shared() {
        return Ok(());
    }
    let keeping = || {
        Ok(KeeperConfig {
            context: world,
            targets,
            proof: applicant.handle.proof(),
            owners: applicant.owner.processes.clone(),
            shared_deadline: SharedDeadline::new()?,
            kills: false,
            timed: false,
        })
    };
    // A keeper must not renew late a lock that the script is told to be lost. (A store that counts in seconds rounds up
    // a time limit that a caller set.)
    let is_renewed = grants.iter().any(|grant| matches!(grant.lifetime, Lifetime::Keepalive(_)));
    let most = if is_renewed { Duration::ZERO } else { Duration::from_secs(1) };
    let over = opened.lease_ends(grants).is_some_and(|ends| ends + most <= world.host.boottime());
    let kept = if over {
        let what = "the lock was lost before it could be used: its lease was over when the store said that it is taken";
        Err(Error::new(ErrorKind::Lost, what, "take it again; see `csalock doctor`"))
    } else {
        keeping().and_then(|keeping| spawn_detached(&keeping, opened, grants))
    };
    if kept.is_err() {
        opened.release(applicant.handle.proof()).into_iter().try_for_each(|answer| answer.map(drop))?;
    }
    kept
}

/// Reports from which holder a lock was taken over, if that holder had not released it.
pub(super) fn report_taken(
    common: &Common,
    targets: &LockSet,
    opened: &OpenLockSet<'_>,
    grants: &[Grant],
    evicted: Option<&(usize, EndedGrant)>,
) {
    if let Some((at, ending)) = evicted {
        let (name, ending) = (escape(&targets.all[*at].display_name), opened.reporter(*at).ending(ending));
        common.note(&format!("lock {name} was taken over from {ending}"));
    }
    for (at, (target, grant)) in targets.all.iter().zip(grants).enumerate() {
        if common.verbose && evicted.is_none_or(|(evicted, _)| *evicted != at) {
            let name = escape(&target.display_name);
            common.note(&format!("lock {name} is taken, token {}", grant.token.unwrap_or_default()));
        }
    }
}

/// Returns a request to acquire a lock for the calling script, or for the process with this pid.
pub(super) fn acquire_request(
    world: &Context,
    taking: &Taking,
    pid: Option<i32>,
    handle: &Handle,
) -> anyhow::Result<AcquireRequest> {
    let process = world.host.this_process()?;
    let tenure = taking.lifetime();
    let Caller { owners, command, .. } = match pid {
        Some(pid) => owner_with_pid(world, pid)?,
        None => match caller(process.pid) {
            // The lock ends in another way, so it needs no owner's life.
            Err(error) if error.kind() == ErrorKind::InvalidInput && tenure != Lifetime::WhileOwnerLives => {
                Caller { command: b"?".to_vec(), ..Caller::default() }
            }
            found => found?,
        },
    };
    Ok(AcquireRequest {
        handle: handle.clone(),
        mode: taking.mode(),
        owner: world.owner(owners, command, taking.waiting.label.as_ref())?,
        process,
        owner_outlives_process: true,
        release_on_exit: false,
        claim: None,
        lifetime: tenure,
        slots: taking.slots,
        refuse_stale: taking.waiting.fail_on_stale,
        provisional: false,
        confirming: false,
        enclosing_grants: world.enclosing_grants(),
        invocation: Some(Invocation { pid: process.pid, ignores_interrupt: world.inherited.ignored(Signal::SIGINT) }),
    })
}

fn owner_with_pid(world: &Context, pid: i32) -> anyhow::Result<Caller> {
    let process = world.host.process(pid)?.ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidInput,
            format!("there is no process {pid}"),
            "--pid names the process that owns the lock",
        )
    })?;
    Ok(Caller { owners: vec![process], command: crate::host::command_of(pid), ..Caller::default() })
}
