//! The steps of every command that acquires: request, wait, then the report of a grant or a refusal.

use std::ffi::OsStr;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::context::{Context, LockRef};
use super::end_holder::{HolderEnd, live_owners};
use super::wait_progress::WaitProgress;
use crate::cli::{Common, Taking, Waiting};
use crate::exit::Exit;
use crate::report::{RefusalReport, RefusedLock, Reporter, is_of_descriptor};
use engine::{
    AcquireRequest, AcquireResult, Engine, LockStatus, OpenLockSet, Progress, ValueWrite, WaitPolicy, WriteResult,
    acquire_all, environment,
};
use host::signals::{Interrupt, Signals};
use host::{self, Caller, FileLock, ThisProcess, command_of, is_file_locked};
use lock::error::{Error, ErrorKind, Result};
use lock::name::escape;
use lock::{
    EndReason, EndRequest, EndedGrant, Grant, Handle, Lifetime, Mode, Owner, Phase, ProcessId, Refusal, Waiter,
};
use store::{Call, Location};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Time that a caller with the default timeout has left after the end of a dead holder's lease, whose start it saw.
const BEYOND_LEASE: Duration = Duration::from_secs(15);

/// One acquisition: how long it waits, which signals interrupt it, and how it is reported.
pub(super) struct Acquisition<'a> {
    pub(super) context: &'a Context,
    pub(super) waiting: &'a Waiting,
    pub(super) signals: &'a Signals,
    pub(super) interrupt: &'a dyn Interrupt,
    pub(super) policy: WaitPolicy,
    /// Start of the wait on CLOCK_BOOTTIME.
    pub(super) began: Duration,
    /// With `--busy replace`: how long after it was asked to end a holder is killed.
    pub(super) kill_holders_after: Option<Duration>,
    pub(super) slots: Option<u32>,
    /// A holder may wait for the file that this caller locks too, so the file's holders are named.
    pub(super) locks_file: bool,
}

impl<'a> Acquisition<'a> {
    /// Holders of the locks may have leases as long as `lease`.
    pub(super) fn new(
        context: &'a Context,
        waiting: &'a Waiting,
        signals: &'a Signals,
        lease: Option<Duration>,
    ) -> Acquisition<'a> {
        Acquisition {
            context,
            waiting,
            signals,
            interrupt: signals,
            policy: waiting.wait_policy(lease),
            began: context.host.boottime(),
            kill_holders_after: None,
            slots: None,
            locks_file: false,
        }
    }

    /// End of the wait on CLOCK_BOOTTIME.
    pub(super) fn until(&self) -> Duration {
        self.policy.end(self.began)
    }

    fn rest(&self) -> WaitPolicy {
        self.policy.rest(self.until(), self.context.host.boottime())
    }

    /// Acquires all of the locks or none, and reports the wait.
    pub(super) fn acquire(&self, opened: &OpenLockSet<'_>, request: &AcquireRequest) -> Result<AcquireResult> {
        let created = opened.each().map(|(target, _)| &target.location).find(|location| is_created_by_xdg(location));
        if self.kill_holders_after.is_some() && !self.check_holders(opened, request)? {
            return Ok(AcquireResult::Interrupted);
        }
        let mut progress = WaitProgress::new(&self.context.common, self.locks_file);
        let mut ends: Option<Vec<HolderEnd<'_>>> = None;
        let policy = self.rest();
        let ended = acquire_all(&opened.lock_refs(), request, &policy, Some(self.interrupt), &mut |at, waiting| {
            let (target, engine) = (opened.target(at), opened.engine(at));
            let replace = self.end_holders(&mut ends, (target, engine), request, waiting);
            progress.update(target, engine, waiting).into_iter().chain(replace).min()
        })?;
        if matches!(ended, AcquireResult::Granted(..)) {
            ends.into_iter().flatten().for_each(HolderEnd::tell_of_remaining);
            created.into_iter().for_each(|store| self.tell_created(store));
        }
        Ok(ended)
    }

    /// Tells users of XDG_STATE_HOME once that other programs may not have it.
    fn tell_created(&self, store: &Location) {
        self.context.common.note(&format!(
            "created the store {}, where XDG_STATE_HOME says; cron may not have this variable, so set CSALOCK_STORE in both",
            escape(store.url().as_encoded_bytes())
        ));
    }

    /// False on an interrupt. Fails if `--busy replace` may not end a holder that is in the way.
    fn check_holders(&self, opened: &OpenLockSet<'_>, request: &AcquireRequest) -> Result<bool> {
        let (target, engine) = (opened.target(0), opened.engine(0));
        let Some(status) = self.outlast_outages(opened, &mut |engine| engine.inspect(&target.name))? else {
            return Ok(false);
        };
        for grant in standing(status) {
            if [grant.mode, request.entry.mode].contains(&Mode::Exclusive) {
                check_replaceable(target, engine, &grant)?;
            }
        }
        Ok(true)
    }

    /// Repeats `work`, which must be safe to repeat, while the servers of the first lock do not answer. A command that waits
    /// calls its store only here or in its wait. Returns `None` on an interrupt.
    pub(super) fn outlast_outages<T>(
        &self,
        opened: &OpenLockSet<'_>,
        work: &mut dyn FnMut(&Engine) -> Result<T>,
    ) -> Result<Option<T>> {
        let (target, engine) = (opened.target(0), opened.engine(0));
        let mut progress = WaitProgress::new(&self.context.common, false);
        let mut on_wait = |waiting: &Progress<'_>| progress.update(target, engine, waiting);
        engine.outlast_outages(&target.name, &self.rest(), Some(self.interrupt), &mut on_wait, work)
    }

    /// Goes on to end the holders that `--busy replace` has found when the caller entered the queue. A holder that got
    /// the lock after that was before the caller in the queue, and is waited for. Returns the maximum time until the
    /// next call.
    fn end_holders<'b>(
        &'b self,
        ends: &mut Option<Vec<HolderEnd<'b>>>,
        (target, engine): (&'b LockRef, &'b Engine),
        request: &AcquireRequest,
        waiting: &Progress<'_>,
    ) -> Option<Duration> {
        let kill_after = self.kill_holders_after?;
        if waiting.outage.is_some() {
            return None;
        }
        let ends = ends.get_or_insert_with(|| {
            let by = Arc::new(EndRequest { by: Owner::clone(&request.entry.owner), replaces: true });
            // A holder may have come after the first look.
            let holders =
                waiting.record.holders.iter().filter(|grant| check_replaceable(target, engine, grant).is_ok());
            let lock = (&self.context.common, engine, target);
            holders.map(|grant| HolderEnd::new(lock, grant.clone(), Some(by.clone()), kill_after)).collect()
        });
        let call = Call { until: Some(engine.host().boottime().saturating_add(TO_LOOK)), ..waiting.call };
        let held = ends.iter_mut().filter(|end| waiting.record.holder(&end.grant.proof).is_some());
        // A holder that csalock may not end any more, or whose record it cannot read now, is waited for.
        held.filter_map(|end| end.step(call).unwrap_or(Some(HOLDER_CHECK))).min().map(|next| next.min(HOLDER_CHECK))
    }

    /// Waits for a busy lock before the write, and reports the wait.
    pub(super) fn write(
        &self,
        engine: &Engine,
        target: &LockRef,
        value: &ValueWrite<'_>,
        request: &AcquireRequest,
    ) -> Result<WriteResult> {
        let mut progress = WaitProgress::new(&self.context.common, false);
        let is_new = is_created_by_xdg(&target.location);
        let written = engine.write(&target.name, value, request, &self.policy, Some(self.interrupt), &mut |waiting| {
            progress.update(target, engine, waiting)
        });
        if is_new && matches!(written, Ok(WriteResult::Done(Ok(_)))) {
            self.tell_created(&target.location);
        }
        written
    }

    pub(super) fn end(&self, opened: &OpenLockSet<'_>, result: &AcquireResult) -> anyhow::Result<Exit> {
        match result {
            AcquireResult::Granted(..) => Ok(Exit::Done),
            AcquireResult::Interrupted => Ok(Exit::interrupted(self.signals.interrupted_by())),
            AcquireResult::Refused(at, refusal) => {
                let reporter = Reporter::new(opened.engine(*at));
                let mut lock = RefusedLock::new(opened.target(*at), &reporter);
                lock.settings = self.context.settings;
                let mut report = lock.refusal(refusal);
                let record = self.slots.and_then(|_| opened.engine(*at).record(&opened.target(*at).name).ok());
                if let (Some(wanted), Some(has)) = (self.slots, record.and_then(|record| record.slots))
                    && wanted != has
                {
                    report.message.push_str(&format!(
                        "; it has {has} slots now, and the caller's {wanted} count when the holders are gone"
                    ));
                }
                if matches!(refusal, Refusal::Busy(_))
                    && (self.locks_file || report.holders.iter().any(is_of_descriptor))
                {
                    report.add_file_lock(reporter.file_lock(opened.target(*at), &report.holders).as_ref());
                }
                self.refuse(&report, &reporter)
            }
        }
    }

    pub(super) fn refuse(&self, refusal: &RefusalReport, reporter: &Reporter<'_>) -> anyhow::Result<Exit> {
        self.context.common.refuse(refusal, self.waiting.exit(refusal.kind), Some(reporter))
    }
}

/// Time for one look at the store after a wait, or while it goes on.
pub(super) const TO_LOOK: Duration = Duration::from_secs(1);

/// Maximum time between two looks at a holder that was asked to end.
const HOLDER_CHECK: Duration = Duration::from_millis(500);

/// Fails if `--busy replace` may not end this holder. It ends processes of the caller's own user, for root too.
fn check_replaceable(target: &LockRef, engine: &Engine, grant: &Grant) -> Result<()> {
    let (owner, reporter) = (&grant.owner, Reporter::new(engine));
    let is_independent = grant.lifetime == Lifetime::UntilReleased || owner.processes.is_empty();
    let lasts = is_independent && owner.supervisor.is_none();
    let (kind, why, hint) = if grant.claim.is_some() || lasts {
        let hint = format!("release it with `csalock unlock --force {}`", target.shell_arg);
        (ErrorKind::Busy, "only a release ends that", hint)
    } else if !engine.host().domain()?.shares_pids_with(&owner.domain) {
        (ErrorKind::Busy, "that process cannot be seen from here", "end it where it runs".to_string())
    } else if let Some(why) =
        live_owners(engine, owner).iter().find_map(|process| why_not_to_end(engine, owner, process))
    {
        (ErrorKind::Denied, why, "end it as its user".to_string())
    } else {
        return Ok(());
    };
    let what =
        format!("{} cannot be replaced, {why}: {}", RefusedLock::new(target, &reporter), reporter.holding(grant));
    Err(Error::new(kind, what, format!("{hint}, or wait for it with --busy latest")))
}

fn why_not_to_end(engine: &Engine, owner: &Owner, process: &ProcessId) -> Option<&'static str> {
    match host::send_for(owner.uid, process, 0) {
        Ok(()) if engine.host().uid() == 0 && host::user_of(process.pid).is_some_and(|user| user != 0) => {
            Some(host::OF_OTHER_USER)
        }
        // It called this process, so the wait for it either is a deadlock or will pass.
        Ok(()) | Err((ErrorKind::InvalidInput, _)) => None,
        Err((_, why)) => Some(why),
    }
}

/// True for a default store that does not exist yet, and whose place XDG_STATE_HOME decides.
fn is_created_by_xdg(store: &Location) -> bool {
    environment::store_without_xdg(store).is_some() && store.is_missing()
}

/// A request of `process` for an exclusive lock that ends with its owner: `owners`, which run `command`.
pub(super) fn request(
    context: &Context,
    waiting: &Waiting,
    handle: Handle,
    process: ProcessId,
    owners: Vec<ProcessId>,
    command: Vec<u8>,
) -> Result<AcquireRequest> {
    let owner = context.owner(owners, command, waiting)?;
    let mut request = AcquireRequest::for_itself(handle, owner, process);
    request.entry.enclosing_grants = context.enclosing_grants();
    Ok(AcquireRequest { refuse_stale: waiting.fail_on_stale, called: Some(process.pid), ..request })
}

/// The calling script, or one without processes if none is found and `needs_owner` is false.
pub(super) fn calling_script(this: &ThisProcess, needs_owner: bool) -> Result<Caller> {
    match this.caller() {
        Err(error) if error.kind() == ErrorKind::InvalidInput && !needs_owner => {
            Ok(Caller { command: b"?".to_vec(), ..Caller::default() })
        }
        found => found.cloned(),
    }
}

/// A request for locks of a script, which outlive this process.
pub(super) fn request_for_script(
    context: &Context,
    taking: &Taking,
    this: &ThisProcess,
    Caller { owners, command, .. }: Caller,
) -> Result<AcquireRequest> {
    let mut request = request(context, &taking.waiting, context.host.new_handle()?, this.id()?, owners, command)?;
    taking.set_terms(&mut request.entry);
    // A process that the script leaves behind is known by its session.
    Arc::make_mut(&mut request.entry.owner).session = Some(this.session()?);
    Ok(AcquireRequest { outlives_process: true, phase: Phase::Provisional, ..request })
}

pub(super) fn standing(status: LockStatus) -> Vec<Grant> {
    let all = status.record.holders.into_iter().zip(status.holders);
    all.filter_map(|(grant, holds)| holds.holds().then_some(grant)).collect()
}

pub(super) fn command_of_caller(this: &ThisProcess) -> Result<Vec<u8>> {
    this.caller().map_or_else(|_| Ok(command_of(this.id()?.pid)), |caller| Ok(caller.command.clone()))
}

/// Reports from which holder a lock was taken over, if that holder had not released it. With `-v` it also reports each
/// grant and, for an `owner` other than this process, that owner and the store.
pub(super) fn report_taken(
    common: &Common,
    opened: &OpenLockSet<'_>,
    grants: &[Grant],
    evicted: Option<&(usize, EndedGrant)>,
    owner: Option<&Owner>,
) {
    if let Some((at, ending)) = evicted
        && let how = ending.grant.shown(ending.reason)
        && (how != EndReason::Ended || common.verbose)
    {
        let is_over = matches!(how, EndReason::Broken | EndReason::Ended);
        let before = if is_over { "held before by" } else { "taken over from" };
        let name = escape(&opened.target(*at).display_name);
        let ending = Reporter::new(opened.engine(*at)).ending(ending);
        common.note(&format!("lock {name} was {before} {ending}"));
    }
    if !common.verbose {
        return;
    }
    for ((target, engine), grant) in opened.each().zip(grants) {
        let (name, token) = (escape(&target.display_name), grant.token.unwrap_or_default());
        let details = owner.map(|owner| {
            let (store, command) = (escape(target.location.url().as_bytes()), escape(&owner.command));
            match Reporter::new(engine).owner(owner) {
                Some(process) => format!(", owner pid {} ({command}), store {store}", process.pid),
                None => format!(", no owner, store {store}"),
            }
        });
        common.note(&format!("lock {name} was acquired, token {token}{}", details.unwrap_or_default()));
    }
}

/// Tells a caller that did not wait that another process has locked the file of the acquired lock: the lock alone excludes
/// no user of flock(1). With `-v` it tells others, too.
pub(super) fn tell_of_flock(common: &Common, waiting: &Waiting, opened: &OpenLockSet<'_>) {
    if !waiting.nonblock && !common.verbose {
        return;
    }
    for (target, engine) in opened.each() {
        let path = Path::new(OsStr::from_bytes(&target.display_name));
        if !path.is_absolute() || !is_file_locked(path, &[FileLock::Flock], false) {
            continue;
        }
        if let Some(file) = Reporter::new(engine).file_lock(target, &[]) {
            let name = escape(&target.display_name);
            common.note(&format!(
                "lock {name} was acquired, but its file is {file}; `csalock run --flock` waits for that too"
            ));
        }
    }
}

impl Waiting {
    /// A holder that no process here can see may have died at the start of its `lease`, if it has one.
    pub(super) fn wait_policy(&self, lease: Option<Duration>) -> WaitPolicy {
        if self.nonblock {
            return WaitPolicy::NONE;
        }
        let default = lease.map_or(TIMEOUT, |lease| TIMEOUT.max(lease.saturating_add(BEYOND_LEASE)));
        let limit = self.timeout.map_or(Some(default), |limit| limit.0);
        WaitPolicy { limit, backoff: self.backoff }
    }

    /// Exit code of a refusal.
    pub(super) fn exit(&self, kind: ErrorKind) -> Exit {
        match self.conflict_exit_code {
            Some(code) if kind == ErrorKind::Busy => Exit::Code(code),
            _ => kind.into(),
        }
    }
}

impl Taking {
    pub(super) fn set_terms(&self, entry: &mut Waiter) {
        (entry.mode, entry.slots, entry.lifetime) =
            (self.mode(), self.slots.and_then(NonZeroU32::new), self.lifetime());
    }

    pub(super) fn mode(&self) -> Mode {
        match self.slots {
            Some(_) => Mode::Slot,
            None if self.shared => Mode::Shared,
            None => Mode::Exclusive,
        }
    }

    pub(super) fn lifetime(&self) -> Lifetime {
        match self.ttl {
            Some(span) => Lifetime::Ttl(span.as_millis() as u64),
            None if self.forever => Lifetime::UntilReleased,
            None => Lifetime::WhileOwnerLives,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn the_default_timeout_outlasts_the_lease_of_a_dead_holder() {
        let limit = |words: &[&str], lease: Option<u64>| {
            let words = ["csalock", "lock"].iter().chain(words).map(std::ffi::OsString::from);
            let Ok(Cli { command: Command::Lock(lock), .. }) = Cli::read(words) else { panic!("{lease:?}") };
            lock.taking.waiting.wait_policy(lease.map(Duration::from_secs)).limit.map(|limit| limit.as_secs())
        };
        assert_eq!([None, Some(5), Some(60)].map(|lease| limit(&["x"], lease)), [Some(30), Some(30), Some(75)]);
        let given = [&["-w", "1", "x"][..], &["-n", "x"], &["-w", "inf", "x"]];
        assert_eq!(given.map(|words| limit(words, Some(60))), [Some(1), Some(0), None]);
    }
}
