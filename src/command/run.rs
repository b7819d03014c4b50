//! `csalock run-with-lock`

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use super::lock::told;
use super::world::{Target, World, refusal};
use crate::child::{Limits, Parked, Plan, Stop};
use crate::cli::{OnLost, RunWithLock};
use crate::engine::{Applicant, Engine, Taken};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lock::{Ask, Ended, Grant, Handle, Outcome, Process, Share, Tenure};
use crate::name::shown;
use crate::report::Reporter;
use crate::signals::{Came, Signals};

pub(super) fn run(world: &World, asked: &RunWithLock) -> anyhow::Result<Exit> {
    let (typed, plan) = plan(asked)?;
    let target = world.target(&asked.common, &typed)?;
    let signals = Signals::listen(world.inherited)?;
    if asked.no_fork {
        return become_command(world, asked, &target, &plan, &signals);
    }
    let line = plan.line();
    // The fork comes before the store is opened: SQLite's connections do not survive one.
    let parked = plan.park(&signals, world.inherited)?;
    let taken = world
        .host
        .process(parked.pid.as_raw())
        .and_then(|process| process.ok_or_else(|| Error::new(Exit::System, "the command died before it began", "")))
        .and_then(|process| Taking::begin(world, asked, &target, process, line))
        .and_then(|taking| taking.take(asked, &signals).map(|taken| (taking, taken)));
    match taken {
        Err(error) => {
            parked.dismiss();
            Err(error.into())
        }
        Ok((taking, Taken::Answer(Outcome::Granted(grant, evicted)))) => {
            told(&asked.common, &target, &taking.reporter(), &grant, evicted.as_ref());
            taking.supervise(asked, parked, &grant, &signals)
        }
        Ok((taking, Taken::Answer(outcome))) => {
            parked.dismiss();
            Ok(taking.refuse(asked, &outcome))
        }
        Ok((_, Taken::Interrupted)) => {
            parked.dismiss();
            Ok(interrupted(&signals))
        }
    }
}

/// The name, and what is to be run: `NAME COMMAND...`, `NAME -- COMMAND...`, `NAME -c STRING`.
fn plan(asked: &RunWithLock) -> Result<(OsString, Plan)> {
    let usage = |what: &str| Error::new(Exit::Usage, what, "say: csalock run-with-lock NAME COMMAND [ARGUMENT]...");
    let (typed, mut words) = asked.words.split_first().ok_or_else(|| usage("the name is missing"))?;
    let mut shell = asked.shell.clone();
    match words {
        [dashes, rest @ ..] if dashes == "--" => words = rest,
        // As flock(1) has it: after the name.
        [dash_c, string] if shell.is_none() && (dash_c == "-c" || dash_c == "--command") => {
            shell = Some(string.clone());
            words = &[];
        }
        _ => {}
    }
    match (shell, words) {
        (Some(_), [_, ..]) => Err(usage("-c STRING and a command cannot both be run")),
        (Some(string), []) => Ok((typed.clone(), Plan::new(["/bin/sh".into(), "-c".into(), string]))),
        (None, []) => Err(usage("the command is missing")),
        (None, [program, ..]) if program.is_empty() => Err(usage("the command's name is empty")),
        (None, words) => Ok((typed.clone(), Plan::new(words.iter().cloned()))),
    }
}

/// `-F`: take the lock for this process and become the command. The lock ends with it.
fn become_command(
    world: &World,
    asked: &RunWithLock,
    target: &Target,
    plan: &Plan,
    signals: &Signals,
) -> anyhow::Result<Exit> {
    let taking = Taking::begin(world, asked, target, world.host.this_process()?, plan.line())?;
    match taking.take(asked, signals)? {
        Taken::Answer(Outcome::Granted(grant, evicted)) => {
            told(&asked.common, target, &taking.reporter(), &grant, evicted.as_ref());
            let error = plan.execute(&taking.variables(&grant), signals, world.inherited);
            taking.release()?;
            Err(error.into())
        }
        Taken::Answer(outcome) => Ok(taking.refuse(asked, &outcome)),
        Taken::Interrupted => Ok(interrupted(signals)),
    }
}

/// A signal came while we waited for the lock; or the parked child died, of a signal of its own.
fn interrupted(signals: &Signals) -> Exit {
    let came: Vec<Came> = std::iter::from_fn(|| signals.next()).collect();
    let ending = came.iter().find(|came| came.signal != nix::sys::signal::Signal::SIGCHLD);
    ending.map_or(Exit::signalled(nix::libc::SIGKILL), |came| Exit::Raised(came.signal as i32))
}

/// A lock that is being taken, or was, for a command.
struct Taking<'a> {
    engine: Engine,
    applicant: Applicant,
    target: &'a Target,
}

impl<'a> Taking<'a> {
    fn begin(
        world: &World,
        asked: &RunWithLock,
        target: &'a Target,
        command: Process,
        line: Vec<u8>,
    ) -> Result<Taking<'a>> {
        let engine = world.engine(&target.location)?;
        let applicant = Applicant {
            handle: engine.new_handle()?,
            share: Share::Exclusive,
            party: world.party(vec![command], line, asked.taking.label.as_ref())?,
            process: command,
            outlived: false,
            tenure: asked.taking.tenure(),
            slots: None,
            refuse_stale: asked.taking.fail_on_stale,
            carried: world.carried(),
        };
        Ok(Taking { engine, applicant, target })
    }

    fn reporter(&self) -> Reporter<'_> {
        Reporter { host: self.engine.host(), reach: self.engine.store().reach() }
    }

    fn take(&self, asked: &RunWithLock, signals: &Signals) -> Result<Taken> {
        let patience = asked.taking.patience();
        self.engine.take(&self.target.name, &self.applicant, &patience, Some(signals.as_fd()), &mut |record| {
            asked.common.tell_waiting(self.target, record, &self.reporter());
        })
    }

    fn refuse(&self, asked: &RunWithLock, outcome: &Outcome) -> Exit {
        let (text, exit) = refusal(outcome, self.target, &self.reporter(), asked.taking.conflict_exit_code);
        asked.common.tell(&text);
        exit
    }

    /// What tells the command of its lock.
    fn variables(&self, grant: &Grant) -> Vec<(&'static str, OsString)> {
        let handle: &Handle = &self.applicant.handle;
        vec![
            ("CSALOCK_NAME", OsString::from_vec(self.target.known_as.clone())),
            ("CSALOCK_STORE", self.target.location.url()),
            ("CSALOCK_HANDLE", handle.to_string().into()),
            ("CSALOCK_TOKEN", grant.token.unwrap_or_default().to_string().into()),
        ]
    }

    fn release(&self) -> Result<Outcome> {
        let claimant = self.engine.claimant(Some(self.applicant.handle.proof()), Vec::new())?;
        self.engine.settle(&self.target.name, &Ask::Release(claimant))
    }

    /// Lets the command run, waits for its end, gives the lock back.
    fn supervise(
        &self,
        asked: &RunWithLock,
        parked: Parked,
        grant: &Grant,
        signals: &Signals,
    ) -> anyhow::Result<Exit> {
        let limits = self.limits(asked, grant)?;
        let running = parked.go(&self.variables(grant))?;
        let ended = running.watch(signals, &limits, self.engine.host())?;
        let name = shown(&self.target.known_as);
        let kept = match self.release() {
            Ok(Outcome::Released(_)) => true,
            // It outlived its command by the moment that we needed to see the end of that.
            Ok(Outcome::NotHeld(Some(ending)) | Outcome::NotOwner(_, Some(ending))) if ending.how == Ended::Died => true,
            Ok(outcome) => {
                let (text, _) = refusal(&outcome, self.target, &self.reporter(), None);
                asked.common.tell(&format!("lost while the command ran: {text}"));
                false
            }
            Err(error) => {
                // The command's own status counts; the next one finds a lock whose owner is dead.
                asked.common.tell(&format!("lock {name} could not be given back: {error}"));
                true
            }
        };
        if let Some(signal) = ended.of_terminal {
            return Ok(Exit::Raised(signal as i32));
        }
        Ok(match ended.stopped {
            Some((Stop::MaxHold, killed)) => {
                asked.common.tell(&format!("the command was ended: it held lock {name} longer than --max-hold"));
                if killed { Exit::signalled(nix::libc::SIGKILL) } else { Exit::MaxHold }
            }
            Some((Stop::Lease, _)) => {
                asked.common.tell(&format!("the command was ended before the --ttl of lock {name} was over"));
                Exit::Lost
            }
            None if !kept => Exit::Lost,
            None => ended.exit,
        })
    }

    fn limits(&self, asked: &RunWithLock, grant: &Grant) -> Result<Vec<Limits>> {
        let now = self.engine.host().boottime();
        let mut limits = Vec::new();
        if let Some(span) = asked.max_hold {
            let term = now.saturating_add(span);
            limits.push(Limits { term, kill: term.saturating_add(asked.kill_after), why: Stop::MaxHold });
        }
        if let (Tenure::Until(lease), OnLost::Kill) = (&grant.tenure, asked.on_lost) {
            // Dead before the lease is over: killed at nine tenths of it, asked to end before that.
            let left = self.engine.store().remaining(lease)?;
            let kill = left * 9 / 10;
            let grace = asked.kill_after.min(kill / 2).min(Duration::from_secs(3600));
            limits.push(Limits { term: now + kill.saturating_sub(grace), kill: now + kill, why: Stop::Lease });
        }
        Ok(limits)
    }
}
