//! `csalock lock`

use super::world::{Target, World, print, print_json, refusal};
use crate::cli::{Common, Lock};
use crate::engine::{Applicant, Engine, Taken};
use crate::error::Error;
use crate::exit::Exit;
use crate::host::{Caller, caller};
use crate::lock::{Ask, Ending, Grant, Handle, Outcome, Share};
use crate::name::shown;
use crate::report::{LockJson, Reporter};
use crate::signals::Signals;

pub(super) fn run(world: &World, asked: &Lock) -> anyhow::Result<Exit> {
    let [typed] = asked.names.as_slice() else {
        let what = "lock takes one name at a time, and options go before it";
        return Err(Error::new(Exit::Usage, what, "see `csalock lock --help`").into());
    };
    let target = world.target(&asked.common, typed)?;
    let applicant = applicant(world, asked)?;
    let engine = world.engine(&target.location)?;
    let applicant = Applicant { handle: engine.new_handle()?, ..applicant };
    let reporter = Reporter { host: engine.host(), reach: engine.store().reach() };
    let signals = Signals::listen(world.inherited)?;
    let taken = engine.take(
        &target.name,
        &applicant,
        &asked.taking.patience(),
        Some(std::os::fd::AsFd::as_fd(&signals)),
        &mut |record| asked.common.tell_waiting(&target, record, &reporter),
    )?;
    match taken {
        Taken::Interrupted => Ok(signals.next().map_or(Exit::System, |came| Exit::Raised(came.signal as i32))),
        Taken::Answer(Outcome::Granted(grant, evicted)) => {
            told(&asked.common, &target, &reporter, &grant, evicted.as_ref());
            hand_over(asked, &target, &engine, &applicant.handle, &grant, evicted.as_ref(), &reporter)
        }
        Taken::Answer(outcome) => {
            let (text, exit) = refusal(&outcome, &target, &reporter, asked.taking.conflict_exit_code);
            asked.common.tell(&text);
            Ok(exit)
        }
    }
}

/// Prints the handle. A handle that cannot be printed is of use to nobody: then the lock is given back.
fn hand_over(
    asked: &Lock,
    target: &Target,
    engine: &Engine,
    handle: &Handle,
    grant: &Grant,
    evicted: Option<&Ending>,
    reporter: &Reporter<'_>,
) -> anyhow::Result<Exit> {
    let printed = if asked.common.json {
        print_json(&LockJson::new(&target.known_as, handle, grant, evicted, reporter))
    } else {
        print(&format!("{handle}\n"))
    };
    if let Err(error) = printed {
        let claimant = engine.claimant(Some(handle.proof()), Vec::new())?;
        engine.settle(&target.name, &Ask::Release(claimant))?;
        return Err(error.context(format!("lock {} was given back", shown(&target.known_as))));
    }
    Ok(Exit::Done)
}

/// Says from whom the lock was taken, if that one had not given it back.
pub(super) fn told(common: &Common, target: &Target, reporter: &Reporter<'_>, grant: &Grant, evicted: Option<&Ending>) {
    let name = shown(&target.known_as);
    if let Some(ending) = evicted {
        common.tell(&format!("lock {name} was taken over from {}", reporter.ending(ending)));
    } else if common.verbose {
        common.tell(&format!("lock {name} is taken, token {}", grant.token.unwrap_or_default()));
    }
}

fn applicant(world: &World, asked: &Lock) -> anyhow::Result<Applicant> {
    let process = world.host.this_process()?;
    let tenure = asked.taking.tenure();
    let Caller { owners, command } = match asked.pid {
        Some(pid) => owner_with_pid(world, pid)?,
        None => match caller(process.pid) {
            // Nobody's life is needed where the lock ends otherwise.
            Err(error) if error.exit() == Exit::Usage && tenure != crate::lock::Tenure::OwnerLives => {
                Caller { owners: Vec::new(), command: b"?".to_vec() }
            }
            found => found?,
        },
    };
    Ok(Applicant {
        handle: Handle::new([0; 16]),
        share: Share::Exclusive,
        party: world.party(owners, command, asked.taking.label.as_ref())?,
        process,
        outlived: true,
        yields: false,
        tenure,
        slots: None,
        refuse_stale: asked.taking.fail_on_stale,
        carried: world.carried(),
    })
}

fn owner_with_pid(world: &World, pid: i32) -> anyhow::Result<Caller> {
    let process = world.host.process(pid)?.ok_or_else(|| {
        Error::new(Exit::Usage, format!("there is no process {pid}"), "--pid names the process that owns the lock")
    })?;
    Ok(Caller { owners: vec![process], command: crate::host::command_of(pid) })
}
