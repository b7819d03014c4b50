//! `csalock lock`, `wait` and `renew`, and locks for the calling script, which outlive csalock.
//!
//! A script that is told a handle must not hold a lock whose handle it never got: such a grant is provisional until the
//! handle is printed. A lease that a keeper renews is provisional until the keeper exists, and the grants of several names
//! until all of them are there. Any other grant is final with its first commit, because its owner alone proves it.

use std::ffi::OsStr;
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use super::acquire::{Acquisition, calling_script, report_taken, request_for_script, standing, tell_of_flock};
use super::context::{Context, Results, json_line, print_before};
use super::descriptor;
use super::flock_compat::not_a_path;
use crate::cli::{Lock, Renew, Taking, Wait};
use crate::exit::Exit;
use crate::report::{FileLocks, RefusalReport, RefusedLock, Reporter, json};
use crate::run::exec::is_program;
use crate::run::flock::is_locked;
use crate::run::keeper::{KeeperConfig, check_room, spawn_detached};
use crate::run::shared_lease_end::SharedLeaseEnd;
use engine::{AcquireRequest, AcquireResult, LockSet, OpenLockSet, RETRY_INTERVAL};
use host::signals::{self, Signals};
use host::{Caller, FileLock, ThisProcess, command_of, file_locks, is_file_locked, may_end_with_call};
use lock::error::{Error, ErrorKind, Result};
use lock::history::Use;
use lock::name::{escape, is_path, shell_quote};
use lock::{self, Edge, EndedGrant, Grant, Handle, Lifetime, Owner, Phase, Record, Refusal};
use store::{Call, is_on_network};

/// Acquires locks. Prints their handle with `--print-handle` or `--json`, and else nothing.
pub(super) fn lock(context: &Context, options: &Lock) -> anyhow::Result<Exit> {
    let Lock { taking, pid, .. } = options;
    if let Some(number) = options.fd {
        return descriptor::lock(context, taking, number);
    }
    let prints = options.print_handle || context.common.json;
    if options.reentrant && prints {
        let what = "--reentrant has no handle to print, because the lock may be that of the caller";
        return Err(Error::new(ErrorKind::InvalidInput, what, "leave --json or --reentrant out").into());
    }
    let targets = &context.lock_set_for(context.lock_set(&options.names)?, taking, options.reentrant)?;
    warn_of_descriptors(context, options);
    if targets.all.is_empty() {
        return Ok(Exit::Done);
    }
    let mistaken = mistaken_command(context, options);
    if prints {
        context.require_stdout("the handle", "send it to /dev/null if you do not need it")?;
    }
    let exit = ForScript { context, taking, pid: *pid, targets, prints }.acquire(|granted| {
        report_taken(&context.common, granted.opened, granted.grants, granted.evicted, Some(granted.owner));
        tell_of_flock(&context.common, &taking.waiting, granted.opened);
        if prints {
            let printed = print_before(context, granted.until, &answer(context, options, targets, granted));
            // A handle that cannot be printed is useless.
            printed.with_context(|| format!("lock {} was released", targets.shown_names()))?;
        }
        Ok(Exit::Done)
    })?;
    if let (Exit::Done, Some((program, call))) = (exit, mistaken) {
        context.common.note(&format!("`{program}` was taken as the name of a lock; to run it: {call}"));
    }
    Ok(exit)
}

/// A later word that is a program, and the call that a user of flock(1) may have meant. `None` if the store knows a lock of
/// that name: a script may lock names that are those of programs.
fn mistaken_command(context: &Context, options: &Lock) -> Option<(String, String)> {
    let (name, words) = options.names.split_first()?;
    let at = words.iter().position(|word| is_program(word)).filter(|_| !context.common.quiet)?;
    let target = context.target(&words[at]).ok()?;
    let engine = context.engine(&target.location).ok()?;
    let mut is_known = engine.record(&target.name).ok()? != Record::free(&target.name);
    // A store beside files has no history.
    let _ = engine.each_past(&mut |past| is_known |= past.name == target.name);
    let call = std::iter::once(name).chain(&words[at..]).map(|word| shell_quote(word.as_bytes())).collect::<Vec<_>>();
    (!is_known).then(|| (escape(words[at].as_bytes()), format!("csalock run {}", call.join(" "))))
}

/// Warns of names that are numbers of files that the caller has open: flock(1) locks such a file by its number.
fn warn_of_descriptors(context: &Context, options: &Lock) {
    for name in &options.names {
        let descriptor = name.to_str().and_then(|name| name.parse().ok());
        let Some(path) = descriptor.and_then(signals::file_at_start) else { continue };
        let (name, path) = (escape(name.as_bytes()), path.as_os_str().as_bytes());
        context.common.note(&format!(
            "lock {name} is not the lock of descriptor {name}, which is open on {}; to lock that file, use `csalock lock --fd {name}`",
            escape(path)
        ));
    }
}

fn answer(context: &Context, options: &Lock, targets: &LockSet, granted: &Granted<'_>) -> String {
    let Granted { opened, handle, grants, evicted, .. } = *granted;
    if !context.common.json {
        return format!("{handle}\n");
    }
    let (at, ending) = evicted.map_or((0, None), |(at, ending)| (*at, Some(ending)));
    // The time limit starts when the grant is confirmed.
    let expires = options.taking.ttl.map(|span| context.host.wall().saturating_add(span));
    json_line(&json::acquired(&targets.all, handle, grants, ending, expires, &Reporter::new(opened.engine(at))))
}

pub(super) struct ForScript<'a> {
    pub(super) context: &'a Context,
    pub(super) taking: &'a Taking,
    /// Owner of the locks, instead of the script.
    pub(super) pid: Option<i32>,
    pub(super) targets: &'a LockSet,
    /// The script is told what it needs to use the locks, so it must not hold them unless it was told.
    pub(super) prints: bool,
}

/// Locks that csalock has acquired, and has not reported yet.
pub(super) struct Granted<'a> {
    pub(super) opened: &'a OpenLockSet<'a>,
    pub(super) handle: &'a Handle,
    pub(super) grants: &'a [Grant],
    pub(super) owner: &'a Owner,
    pub(super) evicted: Option<&'a (usize, EndedGrant)>,
    /// End of the timeout on CLOCK_BOOTTIME.
    until: Duration,
}

impl ForScript<'_> {
    /// Acquires the locks, tells the script of them by `deliver`, and confirms them if they are provisional. Returns the
    /// exit code of `deliver`, or of a refusal. If `deliver` fails, this releases the locks. Signals that arrive after the
    /// last commit change nothing: they stay blocked, and an exit code for a signal would say that no lock is held.
    pub(super) fn acquire(&self, deliver: impl FnOnce(&Granted<'_>) -> anyhow::Result<Exit>) -> anyhow::Result<Exit> {
        let (request, caller) = self.request()?;
        // The process ends soon, and the kernel closes its descriptors.
        let opened = ManuallyDrop::new(self.targets.open(self.context)?);
        // If this process dies after the first of several names, the script must not hold that one.
        let lease = opened.lease();
        let is_provisional = self.prints || lease.is_some() || self.targets.all.len() > 1;
        let phase = if is_provisional { Phase::Provisional } else { Phase::Direct };
        let request = AcquireRequest { phase, ..request };
        if lease.is_some() {
            check_room()?;
        }
        let signals = ManuallyDrop::new(Signals::listen_without_children()?);
        let acquisition = Acquisition {
            slots: self.taking.slots,
            ..Acquisition::new(self.context, &self.taking.waiting, &signals, lease)
        };
        let until = acquisition.until();
        let (handle, owner) = (&request.handle, &request.entry.owner);
        let (grants, evicted) = match acquisition.acquire(&opened, &request) {
            Ok(AcquireResult::Granted(grants, evicted)) => (grants, evicted),
            // A commit that failed may have happened all the same. A provisional grant ends with this process.
            Err(error) if !is_provisional => return Err(self.released(&opened, &request, error.into())),
            // A script that has ended reads no message.
            Ok(AcquireResult::Interrupted) if self.pid.is_some() && !signals::is_pending() => {
                let what = format!("lock {}: the process that was to own it has ended", self.targets.shown_names());
                return Err(Error::invalid(what, "nothing was acquired; name a running process with --pid").into());
            }
            ended => return acquisition.end(&opened, &ended?),
        };
        let evicted = evicted.as_ref();
        let delivered = deliver(&Granted { opened: &opened, handle, grants: &grants, owner, evicted, until });
        if delivered.is_err() {
            opened.release_all(handle.proof())?;
            return delivered;
        }
        if is_provisional {
            let go_on = || signals.no_signal_within(RETRY_INTERVAL) && self.context.host.boottime() < until;
            let confirmed = opened.confirm(&request, &grants, &go_on).map_err(|error| match error.kind() {
                ErrorKind::Lost => error.into(),
                _ => self.released(&opened, &request, error.into()),
            });
            // Without grants, the script has released the locks already.
            if let Some(grants) = confirmed? {
                self.keep(&opened, &request, &grants)?;
            }
        }
        self.warn_of_owner(&request, &caller);
        delivered
    }

    /// Releases what a failed acquisition may have acquired. Returns its error, and adds what stays unknown.
    fn released(&self, opened: &OpenLockSet<'_>, request: &AcquireRequest, error: anyhow::Error) -> anyhow::Error {
        // These errors precede the commit.
        let kind = crate::command::kind_of(&error);
        if matches!(kind, ErrorKind::Corrupt | ErrorKind::Busy | ErrorKind::Denied) {
            return error;
        }
        // A store that failed once need not be waited for again.
        let until = self.context.host.boottime().saturating_add(RETRY_INTERVAL);
        match opened.release(Call::until(until), request.handle.proof(), Use::Unknown).iter().any(Result::is_err) {
            true => error.context(format!("lock {} may be held all the same", self.targets.shown_names())),
            false => error,
        }
    }

    fn request(&self) -> anyhow::Result<(AcquireRequest, Caller)> {
        let this = ThisProcess::default();
        let caller = self.owner(&this)?;
        let mut owner = caller.clone();
        // A time limit alone ends a lock with --forever and --ttl.
        if self.taking.forever && self.taking.ttl.is_some() {
            owner.owners.clear();
        }
        Ok((request_for_script(self.context, self.taking, &this, owner)?, caller))
    }

    /// The process of `--pid`, else the script that called this process.
    fn owner(&self, this: &ThisProcess) -> Result<Caller> {
        if let Some(pid) = self.pid {
            let process = self.context.host.process(pid)?.ok_or_else(|| {
                let what = format!("process {pid} does not exist");
                Error::new(ErrorKind::InvalidInput, what, "--pid names the process that owns the lock")
            })?;
            return Ok(Caller { owners: vec![process], command: command_of(pid), ..Caller::default() });
        }
        // A lock that lasts until it is released needs no owner's life, nor does a time limit whose handle is printed. (A
        // script that was killed at this moment must not leave its lock for the whole time limit.)
        let needs_owner = match self.taking.lifetime() {
            Lifetime::WhileOwnerLives => true,
            _ => !self.prints && !self.taking.forever,
        };
        calling_script(this, needs_owner)
    }

    /// Warns if the lock may end with this very call, which the caller hardly intends.
    fn warn_of_owner(&self, request: &AcquireRequest, caller: &Caller) {
        let ends_with_owner = self.pid.is_none() && request.entry.lifetime == Lifetime::WhileOwnerLives;
        let Some(owner) = request.entry.owner.processes.last().filter(|_| ends_with_owner) else { return };
        let (name, command) = (self.targets.shown_names(), escape(&request.entry.owner.command));
        if !caller.is_shell && may_end_with_call(request.entry.process.pid, owner) {
            self.context.common.note(&format!(
                "lock {name} ends with process {} ({command}), maybe right after this call; name another owner with --pid \
                 PID, or keep the lock until it is released with --forever",
                owner.pid,
            ));
        }
    }

    /// Starts a keeper if the grants need renewal; if that fails, releases them.
    fn keep(&self, opened: &OpenLockSet<'_>, request: &AcquireRequest, grants: &[Grant]) -> Result<()> {
        if opened.lease().is_none() {
            return Ok(());
        }
        // A keeper must not renew late a lock that the script is told to be lost. (A store that counts in seconds
        // rounds up a time limit that a caller set.)
        let is_renewed = grants.iter().any(|grant| matches!(grant.lifetime, Lifetime::Keepalive(_)));
        let rounding = if is_renewed { Duration::ZERO } else { Duration::from_secs(1) };
        let now = self.context.host.boottime();
        let kept = if opened.lease_ends(grants).is_some_and(|ends| ends + rounding <= now) {
            let what =
                "the lock was lost before it could be used: its lease was over when the store said that it is taken";
            Err(Error::new(ErrorKind::Lost, what, "take it again; see `csalock doctor`"))
        } else if request.entry.owner.processes.is_empty() {
            Ok(())
        } else {
            SharedLeaseEnd::new().and_then(|shared_lease_end| {
                let keeper = KeeperConfig {
                    context: self.context,
                    targets: self.targets,
                    proof: request.handle.proof(),
                    owners: request.entry.owner.processes.clone(),
                    shared_lease_end,
                    first_leases: opened.leases(grants),
                    lease: opened.span(),
                    kills: false,
                    is_reported: false,
                    timed: false,
                    tree: None,
                };
                spawn_detached(&keeper, opened, grants)
            })
        };
        if kept.is_err() {
            opened.release_all(request.handle.proof())?;
        }
        kept
    }
}

/// Waits for each lock in turn, and for the locks of other programs on its file. It ends with busy at the first lock that is not free at the timeout.
pub(super) fn wait(context: &Context, options: &Wait) -> anyhow::Result<Exit> {
    let given = [(options.flock, FileLock::Flock), (options.fcntl, FileLock::Fcntl)];
    let mut kinds: Vec<FileLock> = given.into_iter().filter_map(|(given, kind)| given.then_some(kind)).collect();
    if let (Some(kind), Some(name)) = (kinds.first(), options.names.iter().find(|name| !is_path(name.as_bytes()))) {
        return Err(not_a_path(kind.name(), name.as_bytes()).into());
    }
    if kinds.is_empty() {
        kinds.extend(FileLock::ALL);
    }
    let targets = context.lock_set(&options.names)?;
    let opened = targets.open(context)?;
    let (whole, began) = (options.waiting.wait_policy(opened.lease()), context.host.boottime());
    let mut results = Results::new(&context.common);
    for (target, engine) in opened.each() {
        let reporter = Reporter::new(engine);
        let policy = whole.rest(whole.end(began), context.host.boottime());
        let enclosing = context.enclosing_grants();
        let path = Path::new(OsStr::from_bytes(&target.display_name));
        let (status, is_locked) = engine.poll(&target.name, &policy, &mut |engine| {
            let status = engine.inspect(&target.name)?;
            let is_locked = status.is_free && path.is_absolute() && is_locked_by_others(context, path, &kinds);
            let is_final = status.is_free && !is_locked || status.never_ends_within(&enclosing).is_some();
            Ok((is_final, (status, is_locked)))
        })?;
        let refusal = match status.never_ends_within(&enclosing).filter(|_| !policy.is_none()).cloned() {
            Some(grant) => Some(Refusal::Deadlock(vec![Edge { name: target.name.clone(), grant }])),
            None => (!status.is_free).then(|| Refusal::Busy(standing(status))),
        };
        let refusal = match refusal {
            _ if is_locked => Some(refusal_of_file(path, &kinds)),
            refusal => refusal.map(|refusal| RefusedLock::new(target, &reporter).refusal(&refusal)),
        };
        if let Some(refusal) = refusal {
            return context.common.refuse(&refusal, options.waiting.exit(refusal.kind), Some(&reporter));
        }
        context.common.note_step(|| format!("lock {} is free", escape(&target.display_name)));
        results.done(target, "free", &[], &reporter);
    }
    results.print()
}

/// Another process, maybe one that cannot be seen from here, has locked the file.
fn is_locked_by_others(context: &Context, file: &Path, kinds: &[FileLock]) -> bool {
    if is_file_locked(file, kinds, true) {
        return true;
    }
    // The kernel lists no locks of other pid namespaces and of other hosts.
    let is_hidden = context.host.is_in_container() || is_on_network(file);
    is_hidden && file.exists() && kinds.iter().any(|kind| is_locked(*kind, file).unwrap_or(false))
}

/// The refusal of a caller that waits for such a lock.
fn refusal_of_file(file: &Path, kinds: &[FileLock]) -> RefusalReport {
    let mut found = file_locks(file);
    found.retain(|(kind, _)| kinds.contains(kind));
    if found.is_empty() {
        found.push((kinds[0], Vec::new()));
    }
    let name = file.as_os_str().as_bytes();
    let message = format!("lock {} is busy: its file is {}", escape(name), FileLocks::of(found));
    RefusalReport::new(ErrorKind::Busy, message, "wait longer with -w, or see lslocks(8)").about(name)
}

pub(super) fn renew(context: &Context, options: &Renew) -> anyhow::Result<Exit> {
    let targets = options.names.iter().map(|name| context.target(name)).collect::<Result<Vec<_>>>()?;
    let this = ThisProcess::default();
    let mut results = Results::new(&context.common);
    for target in &targets {
        let engine = context.engine(&target.location)?;
        let reporter = Reporter::new(&engine);
        let credentials = context.credentials(&engine, options.handle.as_deref(), &this)?;
        let lifetime = engine.start(&Lifetime::Ttl((options.ttl.as_millis() as u64).max(1)))?;
        match engine.apply(&target.name, &lock::RenewGrant { credentials, lifetime, begins: false })? {
            Ok(grant) => {
                let name = escape(&target.display_name);
                context.common.note_step(|| format!("lock {name} lasts: {}", reporter.holder(&grant)));
                results.done(target, "renewed", &[grant], &reporter);
            }
            Err(not_holder) => {
                let mut lock = RefusedLock::new(target, &reporter);
                lock.presented = context.presented_handle(options.handle.as_deref());
                lock.similar = context.similar(target, &not_holder);
                results.refuse(target, &lock.not_holder(&not_holder), &reporter);
            }
        }
    }
    results.print()
}
