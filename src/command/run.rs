//! `csalock run`: a child sleeps until this process has acquired the locks for it, and then becomes the command.
//! [`crate::run::child`] describes the child, and [`crate::run::supervisor`] what this process does meanwhile.

mod recurrence;

use std::ffi::{CString, OsStr, OsString};
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::time::Duration;

use self::recurrence::Recurring;
use super::acquire::{Acquisition, report_taken, request, tell_of_flock};
use super::context::{Context, quoted};
use super::flock_compat::FlockCompat;
use crate::cli::{Busy, OnLost, Run};
use crate::exit::Exit;
use crate::report::notice;
use crate::run::child::{SleepingChild, supervise_in_child};
use crate::run::exec::{CommandLine, GrantNumbers};
use crate::run::flock::Flock;
use crate::run::guarded_command::{CommandLimits, GuardedCommand};
use crate::run::keeper;
use crate::run::shared_lease_end::SharedLeaseEnd;
use crate::run::supervisor::{Notice, Supervisor};
use engine::{AcquireRequest, AcquireResult, LockSet, OpenLockSet};
use host::signals::{self, Interrupt, Signals};
use host::{WakeAddress, WakeSocket};
use lock::name::spelled;
use lock::{EndedGrant, Error, ErrorKind, Grant, Mode, ProcessId, Result};

pub(super) fn run(context: &Context, options: &Run) -> anyhow::Result<Exit> {
    let (names, command_line) = checked(context, options)?;
    let began = context.host.boottime();
    let locks = locks(context, options, &names)?;
    if locks.all.is_empty() {
        return Err(command_line.replace_process().into());
    }
    let handle = context.new_handle()?;
    let flock_compat = FlockCompat::of(context, options, &locks, handle.proof())?;
    // It is never dropped: the kernel closes its descriptors at the end of the process.
    let signals = ManuallyDrop::new(Signals::listen()?);
    if let Some(exit) = supervise_in_child(options.tree, &signals)? {
        return Ok(exit);
    }
    let this = context.host.this_process()?;
    let recurring = Recurring::of(context, options, &locks.all[0], handle.proof());
    let mut guarded = GuardedCommand {
        context,
        locks: &locks,
        handle: &handle,
        command_line: &command_line,
        signals: &signals,
        limits: CommandLimits {
            ttl: options.taking.ttl,
            max_hold: options.max_hold,
            kill_after: options.kill_after,
            kills: options.on_lost == OnLost::Kill,
            tree: options.tree,
        },
        supervisor: (!options.no_fork).then_some(this),
        records_success: recurring.is_some(),
        has_period: recurring.as_ref().is_some_and(Recurring::has_slots),
        shared_lease_end: None,
    };
    let variables = variables(context, &guarded);
    // The stores are opened after the fork: a child inherits descriptors, but not the POSIX locks of SQLite.
    let child = if options.no_fork { None } else { Some(guarded.fork(&variables)?) };
    let process = match &child {
        None => this,
        Some(child) => match context.host.process(child.pid().as_raw())? {
            Some(process) => process,
            // The child ended before it had a lock, and csalock ends as the child did.
            None => return Ok(child.ended().unwrap_or(Ok(ErrorKind::System.into()))?),
        },
    };
    // They are never dropped: the kernel closes a database faster than SQLite does.
    let opened = ManuallyDrop::new(locks.open(context)?);
    if opened.lease().is_some() || options.taking.ttl.is_some() {
        keeper::check_room()?;
        guarded.shared_lease_end = Some(SharedLeaseEnd::new()?);
    }
    let (flock_compat, recurring) = (flock_compat.as_ref(), recurring.as_ref());
    let call = RunCall { context, guarded: &guarded, options, flock_compat, recurring, began, process };
    match child {
        Some(child) => run_supervised(&call, child, &opened),
        None => run_in_place(&call, &opened, &variables),
    }
}

fn locks(context: &Context, options: &Run, names: &[OsString]) -> Result<LockSet> {
    // Neither the kernel nor the records of one user count slots or the runs of a job.
    let is_counted = options.taking.slots.is_some() || only_for_one_lock(options).is_some();
    let locks = match is_counted {
        true => context.lock_set(names)?,
        false => context.lock_set_of_files(names, options.flock || options.fcntl)?,
    };
    context.lock_set_for(locks, &options.taking, options.reentrant)
}

/// Refuses options that contradict each other. Returns the names and the command.
fn checked(context: &Context, options: &Run) -> anyhow::Result<(Vec<OsString>, CommandLine)> {
    if context.common.json {
        return Err(Error::invalid("run has no result of its own that could be JSON", "leave --json out").into());
    }
    if options.taking.forever && options.taking.ttl.is_some() {
        return Err(Error::invalid(
            "the lock of run ends with its command or with --ttl",
            "leave --forever or --ttl out",
        )
        .into());
    }
    let (names, command_line) = command_line(options)?;
    recurrence::check_zone(options)?;
    if options.busy == Busy::Replace && options.taking.slots.is_some() {
        let what = "--busy replace ends the holder, and a lock with slots may have several";
        return Err(Error::invalid(what, "leave --slots or --busy replace out").into());
    }
    if names.len() > 1
        && let Some(option) = only_for_one_lock(options)
    {
        let what = format!("{option} is for one lock, and here are several");
        return Err(Error::invalid(what, format!("leave --also or {option} out")).into());
    }
    Ok((names, command_line))
}

/// Forms: `NAME COMMAND...`, `NAME --also NAME -- COMMAND...` and `NAME -c STRING`.
pub(super) fn command_line(options: &Run) -> Result<(Vec<OsString>, CommandLine)> {
    let Some((typed, mut words)) = options.words.split_first() else { return Err(wrong("the name is missing")) };
    let mut names = [std::slice::from_ref(typed), &options.also].concat();
    while let [option, rest @ ..] = words {
        let (name, rest) = match (option.as_bytes().strip_prefix(b"--also"), rest) {
            (Some(b""), [name, rest @ ..]) if !is_option(name) => (name.clone(), rest),
            (Some(b""), _) => return Err(wrong("--also: the name is missing")),
            (Some([b'=', name @ ..]), rest) => (OsStr::from_bytes(name).to_os_string(), rest),
            _ => break,
        };
        names.push(name);
        words = rest;
    }
    let (shell, words) = shell_string(options.shell.as_ref(), words)?;
    let command_line = match (shell, words) {
        (Some(_), [_, ..]) => return Err(wrong("-c STRING and a command cannot both be run")),
        (Some(string), []) => CommandLine::new(["/bin/sh".into(), "-c".into(), string.clone()]),
        (None, []) => return Err(wrong("the command is missing")),
        (None, [program, ..]) if program.is_empty() => return Err(wrong("the command's name is empty")),
        (None, words) => CommandLine::new(words.iter().cloned()),
    };
    Ok((names, command_line))
}

/// Splits off the string for a shell. Like flock(1), `run` accepts `-c` after the name too.
fn shell_string<'a>(
    before: Option<&'a OsString>,
    words: &'a [OsString],
) -> Result<(Option<&'a OsString>, &'a [OsString])> {
    match words {
        [dashes, rest @ ..] if dashes == "--" => Ok((before, rest)),
        [dash_c, string] if before.is_none() && (dash_c == "-c" || dash_c == "--command") && !is_option(string) => {
            Ok((Some(string), &[]))
        }
        [dash_c, ..] if dash_c == "-c" || dash_c == "--command" => {
            let problem = "-c after the name: exactly one STRING must follow";
            Err(Error::invalid(problem, "use: csalock run [OPTION]... NAME -c STRING"))
        }
        [option, ..] if option.as_bytes().starts_with(b"-") => {
            Err(wrong(&format!("{} comes after the name, where the command begins", quoted(option))))
        }
        _ => Ok((before, words)),
    }
}

/// clap would not accept such a word as the value of an option before the name.
fn is_option(word: &OsStr) -> bool {
    word.as_bytes().starts_with(b"-") && word != "-"
}

fn wrong(problem: &str) -> Error {
    Error::invalid(problem, "use: csalock run [OPTION]... NAME COMMAND [ARGUMENT]...")
}

/// Names may follow `--also` where clap does not see it, so clap cannot refuse these options.
fn only_for_one_lock(options: &Run) -> Option<&'static str> {
    let exclusive = [
        (options.busy == Busy::Latest, "--busy latest"),
        (options.busy == Busy::Replace, "--busy replace"),
        (options.recurrence.once_per.is_some(), "--once-per"),
        (options.recurrence.overdue.is_some(), "--overdue"),
    ];
    exclusive.into_iter().find_map(|(given, option)| given.then_some(option))
}

/// They describe the locks to the command, as far as they are known before the grant.
fn variables(context: &Context, guarded: &GuardedCommand<'_>) -> Vec<CString> {
    let first = guarded.locks.first();
    let outer: Vec<String> = context.enclosing_grants().iter().map(ToString::to_string).collect();
    let mut variables: Vec<(&str, OsString)> = vec![
        ("CSALOCK_NAME", OsString::from_vec(spelled(&first.display_name).into_owned())),
        ("CSALOCK_STORE", first.location.inherited_url()),
        ("CSALOCK_OUTER_STORE", context.outer_store()),
        ("CSALOCK_HANDLE", guarded.handle.to_string().into()),
    ];
    if !outer.is_empty() {
        variables.push(("CSALOCK_OUTER", outer.join(",").into()));
    }
    // None of the values contains NUL.
    let variable = |(name, value): &(&str, OsString)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat());
    variables.iter().filter_map(|each| variable(each).ok()).collect()
}

struct RunCall<'a> {
    context: &'a Context,
    guarded: &'a GuardedCommand<'a>,
    options: &'a Run,
    flock_compat: Option<&'a FlockCompat<'a>>,
    recurring: Option<&'a Recurring<'a>>,
    /// Start of the wait for the locks, on CLOCK_BOOTTIME.
    began: Duration,
    process: ProcessId,
}

/// Grants, and the files that `--flock` and `--fcntl` have locked.
type Held = (Vec<Grant>, Vec<Flock>);

fn run_supervised(call: &RunCall<'_>, child: SleepingChild<'_>, opened: &OpenLockSet<'_>) -> anyhow::Result<Exit> {
    let tell = |message: &Notice<'_>| call.context.common.note(&notice(call.guarded.locks, message));
    let supervisor = Supervisor::new(call.guarded, opened, &tell)?;
    let (grants, files) = match call.acquire(opened, Some(&child), supervisor.wake_socket.as_ref())? {
        ControlFlow::Continue(held) => held,
        ControlFlow::Break(exit) => return Ok(exit),
    };
    let ended = supervisor.run(child, call.process, &grants, files, call.numbers(&grants));
    if let Some(recurring) = call.recurring
        && !ended.as_ref().is_ok_and(|exit| exit.code() == 0)
    {
        // If that fails, the next call says it.
        let _ = recurring.give_up(opened.engine(0));
    }
    if call.options.fcntl && matches!(ended, Ok(Exit::Code(1..))) {
        let name = &call.guarded.locks.first().shell_arg;
        call.context.common.note(&format!(
            "the command failed while its file was locked for it with fcntl(2); if it locks that file itself, as apt and \
             dpkg do, use: csalock wait --fcntl {name} && COMMAND"
        ));
    }
    Ok(ended?)
}

/// Becomes the command (`-F`). Returns only if that fails.
fn run_in_place(call: &RunCall<'_>, opened: &OpenLockSet<'_>, variables: &[CString]) -> anyhow::Result<Exit> {
    let proof = call.guarded.handle.proof();
    let wake_socket = call.flock_compat.and_then(|_| WakeSocket::new(WakeAddress::Supervisor(&proof)));
    let (grants, files) = match call.acquire(opened, None, wake_socket.as_ref())? {
        ControlFlow::Continue(held) => held,
        ControlFlow::Break(exit) => return Ok(exit),
    };
    // A keeper of the command binds its own.
    drop(wake_socket);
    let inherited = files.iter().try_for_each(Flock::to_be_inherited);
    let error = match inherited {
        Ok(()) => call.guarded.exec(opened, &grants, variables, call.numbers(&grants)),
        Err(error) => error,
    };
    let kept = format!("lock {} may be held all the same", call.guarded.locks.shown_names());
    let released = call.guarded.release(opened, Some(&error));
    Err(if released.is_err() { anyhow::Error::from(error).context(kept) } else { error.into() })
}

impl RunCall<'_> {
    /// Acquires everything that the command needs, or breaks off with the exit of csalock without a command. `child` is
    /// the process that will be the command, unless this process will. `wake_socket` hears of the end of a grant.
    fn acquire(
        &self,
        opened: &OpenLockSet<'_>,
        child: Option<&SleepingChild<'_>>,
        wake_socket: Option<&WakeSocket>,
    ) -> anyhow::Result<ControlFlow<Exit, Held>> {
        let lease = opened.lease();
        let request = self.request(lease.is_some())?;
        let acquisition = self.acquisition(child, lease);
        if let Some(recurring) = self.recurring {
            match acquisition.outlast_outages(opened, &mut |engine| recurring.is_done(engine))? {
                Some(false) => {}
                Some(true) => return Ok(ControlFlow::Break(Exit::Done)),
                None => return Ok(ControlFlow::Break(self.interrupted(child)?)),
            }
        }
        let (grants, evicted) = match acquisition.acquire(opened, &request)? {
            AcquireResult::Granted(grants, evicted) => (grants, evicted),
            AcquireResult::Interrupted => return Ok(ControlFlow::Break(self.interrupted(child)?)),
            ended => {
                let exit = match self.recurring {
                    Some(recurring) => recurring.refused(&acquisition, opened, &ended),
                    None => acquisition.end(opened, &ended),
                };
                return exit.map(ControlFlow::Break);
            }
        };
        let prepared = self.prepare(opened, &acquisition, grants, evicted.as_ref(), (child, wake_socket));
        if !matches!(prepared, Ok(ControlFlow::Continue(_))) {
            let released = self.guarded.release(opened, None);
            return Ok(prepared.and_then(|ended| released.map(|()| ended))?);
        }
        Ok(prepared?)
    }

    /// Without a signal for this process, the wait ended because the child did, and csalock ends as the child did.
    fn interrupted(&self, child: Option<&SleepingChild<'_>>) -> Result<Exit> {
        let ended = child.filter(|_| !signals::is_pending()).and_then(SleepingChild::ended);
        ended.unwrap_or_else(|| Ok(Exit::interrupted(self.guarded.signals.interrupted_by())))
    }

    /// Locks the files, reports the grants and begins the run of a job. The caller releases the locks if that fails.
    fn prepare(
        &self,
        opened: &OpenLockSet<'_>,
        acquisition: &Acquisition<'_>,
        mut grants: Vec<Grant>,
        evicted: Option<&(usize, EndedGrant)>,
        events: (Option<&SleepingChild<'_>>, Option<&WakeSocket>),
    ) -> Result<ControlFlow<Exit, Held>> {
        let mut files = Vec::new();
        if let Some(flock_compat) = self.flock_compat {
            match flock_compat.take(opened, acquisition, &mut grants, events)? {
                ControlFlow::Continue(locked) => files = locked,
                ControlFlow::Break(Some(exit)) => return Ok(ControlFlow::Break(exit)),
                ControlFlow::Break(None) => return Ok(ControlFlow::Break(self.interrupted(events.0)?)),
            }
        }
        report_taken(&self.context.common, opened, &grants, evicted, None);
        if self.flock_compat.is_none() {
            tell_of_flock(&self.context.common, &self.options.taking.waiting, opened);
        }
        if let Some(recurring) = self.recurring {
            match acquisition.outlast_outages(opened, &mut |engine| recurring.begin(engine))? {
                Some(None) => {}
                Some(Some(exit)) => return Ok(ControlFlow::Break(exit)),
                None => return Ok(ControlFlow::Break(self.interrupted(events.0)?)),
            }
        }
        if let Some(flock) = &self.options.as_flock {
            files.iter_mut().for_each(|file| file.stay_locked(flock.close));
            flock.has_run.set(true);
            let waited = self.context.host.boottime().saturating_sub(self.began);
            flock.tell_of_lock(waited, Some(self.guarded.command_line));
        }
        Ok(ControlFlow::Continue((grants, files)))
    }

    fn acquisition<'b>(&'b self, child: Option<&'b SleepingChild<'_>>, lease: Option<Duration>) -> Acquisition<'b> {
        let waiting = &self.options.taking.waiting;
        let own = Acquisition::new(self.context, waiting, self.guarded.signals, lease);
        Acquisition {
            began: self.began,
            kill_holders_after: (self.options.busy == Busy::Replace).then_some(self.options.kill_after),
            slots: self.options.taking.slots,
            locks_file: self.flock_compat.is_some(),
            interrupt: child.map_or(own.interrupt, |child| child as &dyn Interrupt),
            ..own
        }
    }

    /// Without a supervisor (`-F`) the locks end with the command, and its end counts as a release; `is_kept` says that a
    /// keeper then renews their leases.
    fn request(&self, is_kept: bool) -> Result<AcquireRequest> {
        let (taking, command) = (&self.options.taking, self.guarded.command_line.line());
        // The lock of a job must outlive its command until the success is recorded, and that of a tree until the other
        // processes have ended. So the supervisor is an owner too.
        let is_needed = self.guarded.has_period || self.guarded.limits.tree;
        let owners = std::iter::once(self.process).chain(self.guarded.supervisor.filter(|_| is_needed)).collect();
        let handle = self.guarded.handle.clone();
        let mut request = request(self.context, &taking.waiting, handle, self.process, owners, command)?;
        taking.set_terms(&mut request.entry);
        request.entry.latest_only = matches!(self.options.busy, Busy::Latest | Busy::Replace);
        request.entry.release_on_exit = self.guarded.supervisor.is_none();
        let owner = Arc::make_mut(&mut request.entry.owner);
        // With -F the keeper receives the end of the grant for the command, as long as the command lives.
        owner.supervisor = self.guarded.supervisor.or(is_kept.then_some(self.process));
        owner.outlives_lock = !self.guarded.limits.kills;
        Ok(AcquireRequest { called: Some(self.guarded.supervisor.unwrap_or(self.process).pid), ..request })
    }

    fn numbers(&self, grants: &[Grant]) -> GrantNumbers {
        let grant = &grants[self.guarded.locks.first_at];
        GrantNumbers { token: grant.token.unwrap_or_default(), slot: (grant.mode == Mode::Slot).then_some(grant.slot) }
    }
}
