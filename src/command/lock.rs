//! `csalock lock`

use std::time::Duration;

use nix::sys::signal::Signal;

use super::keep::{Keeping, leave_behind};
use super::onlooker::Teller;
use super::targets::{Opened, Targets};
use super::world::{World, json_line, print_until, refusal};
use crate::cli::{Common, Lock, Taking};
use crate::engine::{AllTaken, Applicant, OUTAGE};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::{Called, Caller, caller, may_end_with_call};
use crate::lease_end::LeaseEnd;
use crate::lock::{Ending, Grant, Handle, Tenure};
use crate::name::shown;
use crate::report::LockJson;
use crate::signals::Signals;

pub(super) fn run(world: &World, asked: &Lock) -> anyhow::Result<Exit> {
    take(world, asked, true)
}

/// The same, silent unless it fails.
pub(super) fn run_silently(world: &World, asked: &Lock) -> anyhow::Result<Exit> {
    take(world, asked, false)
}

fn take(world: &World, asked: &Lock, prints: bool) -> anyhow::Result<Exit> {
    let targets = Targets::new(world, &asked.common, &asked.names)?;
    if prints && world.inherited.closed(1) {
        let what = "stdout is closed, so nobody would get the handle";
        return Err(Error::new(Exit::InputOutput, what, "send it to /dev/null if nobody needs it").into());
    }
    let handle = Handle::new(world.host.random()?);
    // Should we be killed, or fail, before the handle is printed, then nobody was told of the lock: it is held only afterwards.
    let applicant = Applicant { tentative: true, ..applicant(world, &asked.taking, asked.pid, &handle)? };
    let opened = targets.open(world)?;
    let signals = Signals::listen(world.inherited)?;
    let mut teller = Teller::new(&asked.common);
    let patience = asked.taking.waiting.patience();
    let until = world.end_of(&patience);
    let taken = opened.take(&applicant, &patience, Some(signals.interrupt()), &mut |at, waiting| {
        teller.look(&targets.all[at], &opened.reporter(at), waiting)
    })?;
    drop(teller);
    match taken {
        AllTaken::Interrupted => Ok(signals.exit()),
        AllTaken::Granted(grants, evicted) => {
            warn_of_owner(&asked.common, asked.pid, &targets, &applicant);
            let printed = match prints {
                true => answer(world, asked, &targets, &opened, &handle, &grants, evicted.as_ref())
                    .and_then(|text| print_until(world, until, &text)),
                false => Ok(()),
            };
            // A handle that cannot be printed is of use to nobody.
            if let Err(error) = printed {
                opened.give_back(handle.proof()).into_iter().collect::<Result<Vec<_>>>()?;
                let names = targets.all.iter().map(|target| shown(&target.known_as)).collect::<Vec<_>>().join(", ");
                return Err(error.context(format!("lock {names} was given back")));
            }
            let go_on = || signals.quiet_for(OUTAGE) && world.host.boottime() < until;
            confirm_and_keep(world, &targets, &opened, &applicant, grants, &go_on)?;
            Ok(Exit::Done)
        }
        AllTaken::Refused(at, outcome) => {
            let busy = asked.taking.waiting.conflict_exit_code;
            let (text, exit) = refusal(&outcome, &targets.all[at], &opened.reporter(at), busy);
            // Of options nobody has heard who calls us by CSA's names.
            asked.common.tell(&if prints { text } else { text.replace("with -w,", "with CSALOCK_TIMEOUT,") });
            Ok(exit)
        }
    }
}

/// What is to be printed: the handle.
fn answer(
    world: &World,
    asked: &Lock,
    targets: &Targets,
    opened: &Opened<'_>,
    handle: &Handle,
    grants: &[Grant],
    evicted: Option<&(usize, Ending)>,
) -> anyhow::Result<String> {
    told(&asked.common, targets, opened, grants, evicted);
    if !asked.common.json {
        return Ok(format!("{handle}\n"));
    }
    let names: Vec<&[u8]> = targets.all.iter().map(|target| target.known_as.as_slice()).collect();
    let (at, ending) = evicted.map_or((0, None), |(at, ending)| (*at, Some(ending)));
    // Its time begins when it is confirmed.
    let expires = asked.taking.ttl.map(|span| world.host.wall().saturating_add(span));
    let document = LockJson::new(&names, handle, grants, ending, expires, &opened.reporter(at));
    json_line(&document)
}

/// Says so where the lock may end with this very call, which the caller will hardly have meant.
pub(super) fn warn_of_owner(common: &Common, pid: Option<i32>, targets: &Targets, applicant: &Applicant) {
    let (process, party) = (applicant.process, &applicant.party);
    let Some(owner) = party.owners.last().filter(|_| pid.is_none() && applicant.tenure == Tenure::OwnerLives) else {
        return;
    };
    if may_end_with_call(process.pid, owner) {
        common.tell(&format!(
            "lock {} ends with process {} ({}), maybe right after this call; name another owner with --pid PID, or keep the \
             lock until it is given back with --forever",
            shown(&targets.all[0].known_as),
            owner.pid,
            shown(&party.command)
        ));
    }
}

/// Takes for good what has been told, unless it was given back since, and sees that it lasts.
pub(super) fn confirm_and_keep(
    world: &World,
    targets: &Targets,
    opened: &Opened<'_>,
    applicant: &Applicant,
    grants: Vec<Grant>,
    go_on: &dyn Fn() -> bool,
) -> Result<()> {
    match opened.confirm(applicant, grants, go_on)? {
        Some(grants) => keep_for(world, targets, opened, applicant, &grants),
        None => Ok(()),
    }
}

/// Leaves somebody behind who renews, where that is needed; else gives back.
fn keep_for(
    world: &World,
    targets: &Targets,
    opened: &Opened<'_>,
    applicant: &Applicant,
    grants: &[Grant],
) -> Result<()> {
    if !opened.are_shared() {
        return Ok(());
    }
    let keeping = || {
        Ok(Keeping {
            world,
            targets,
            proof: applicant.handle.proof(),
            owners: applicant.party.owners.clone(),
            lease_end: LeaseEnd::new()?,
            kills: false,
            timed: false,
        })
    };
    // Nobody is to renew late what the script is told that it lost.
    // (A time that somebody set is rounded up by a store that counts in seconds.)
    let is_renewed = grants.iter().any(|grant| matches!(grant.tenure, Tenure::Renewed(_)));
    let most = if is_renewed { Duration::ZERO } else { Duration::from_secs(1) };
    let over = opened.lease_ends(grants).is_some_and(|ends| ends + most <= world.host.boottime());
    let kept = if over {
        let what = "the lock was lost before it could be used: its lease was over when the store said that it is taken";
        Err(Error::new(Exit::Lost, what, "take it again; see `csalock doctor`"))
    } else {
        keeping().and_then(|keeping| leave_behind(&keeping, opened, grants))
    };
    if kept.is_err() {
        opened.give_back(applicant.handle.proof()).into_iter().try_for_each(|answer| answer.map(drop))?;
    }
    kept
}

/// Says from whom a lock was taken, if that one had not given it back.
pub(super) fn told(
    common: &Common,
    targets: &Targets,
    opened: &Opened<'_>,
    grants: &[Grant],
    evicted: Option<&(usize, Ending)>,
) {
    if let Some((at, ending)) = evicted {
        let (name, ending) = (shown(&targets.all[*at].known_as), opened.reporter(*at).ending(ending));
        common.tell(&format!("lock {name} was taken over from {ending}"));
    }
    for (at, (target, grant)) in targets.all.iter().zip(grants).enumerate() {
        if common.verbose && evicted.is_none_or(|(evicted, _)| *evicted != at) {
            let name = shown(&target.known_as);
            common.tell(&format!("lock {name} is taken, token {}", grant.token.unwrap_or_default()));
        }
    }
}

/// Somebody who takes a lock for the calling script, or for the process with that pid.
pub(super) fn applicant(
    world: &World,
    taking: &Taking,
    pid: Option<i32>,
    handle: &Handle,
) -> anyhow::Result<Applicant> {
    let process = world.host.this_process()?;
    let tenure = taking.tenure();
    let Caller { owners, command, .. } = match pid {
        Some(pid) => owner_with_pid(world, pid)?,
        None => match caller(process.pid) {
            // Nobody's life is needed where the lock ends otherwise.
            Err(error) if error.exit() == Exit::Usage && tenure != Tenure::OwnerLives => {
                Caller { command: b"?".to_vec(), ..Caller::default() }
            }
            found => found?,
        },
    };
    Ok(Applicant {
        handle: handle.clone(),
        share: taking.share(),
        party: world.party(owners, command, taking.waiting.label.as_ref())?,
        process,
        outlived: true,
        yields: false,
        claim: None,
        tenure,
        slots: taking.slots,
        refuse_stale: taking.waiting.fail_on_stale,
        tentative: false,
        confirming: false,
        under: world.under(),
        called: Some(Called { pid: process.pid, ignores_interrupt: world.inherited.ignored(Signal::SIGINT) }),
    })
}

fn owner_with_pid(world: &World, pid: i32) -> anyhow::Result<Caller> {
    let process = world.host.process(pid)?.ok_or_else(|| {
        Error::new(Exit::Usage, format!("there is no process {pid}"), "--pid names the process that owns the lock")
    })?;
    Ok(Caller { owners: vec![process], command: crate::host::command_of(pid), ..Caller::default() })
}
