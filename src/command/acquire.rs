//! The sequence of every command that acquires: request, wait, then grant or refusal.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;

use super::context::{Context, LockRef};
use super::wait_progress::WaitProgress;
use crate::cli::{Common, Taking, Waiting};
use crate::engine::{
    AcquireAllResult, AcquireRequest, Engine, OpenLockSet, ValueWrite, WaitPolicy, Waiting as WaitState, WriteResult,
    acquire_all,
};
use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::host::{self, Host, ThisProcess, command_of};
use crate::lock::{
    AskToEnd, EndReason, EndRequest, EndedGrant, Grant, Handle, HandleHash, Lifetime, Mode, Owner, ProcessId, Refusal,
};
use crate::name::escape;
use crate::report::{RefusalReport, RefusedLock, Reporter, SettingNames, left_by_end};
use crate::run::child::{remaining, started_by};
use crate::signals::{Interrupt, Signals};
use crate::store::{Location, StoreDeadline};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Minimum time between the end of a dead holder's lease and the default timeout of a caller that saw it begin.
const BEYOND_LEASE: Duration = Duration::from_secs(15);

/// One acquisition: how long it waits, which signals interrupt it, and how it is reported.
pub(super) struct Acquisition<'a> {
    pub(super) common: &'a Common,
    pub(super) waiting: &'a Waiting,
    pub(super) signals: &'a Signals,
    pub(super) interrupt: &'a dyn Interrupt,
    pub(super) policy: WaitPolicy,
    pub(super) settings: &'static SettingNames,
    /// With `--busy replace`: the time until a holder that was asked to end is killed.
    pub(super) replaces: Option<Duration>,
    pub(super) slots: Option<u32>,
    /// True if the caller locks the file of the lock too. The holder may wait for that file, so its holders are named.
    pub(super) locks_file: bool,
}

impl<'a> Acquisition<'a> {
    /// Holders of the locks may have leases as long as `lease`.
    pub(super) fn new(
        common: &'a Common,
        waiting: &'a Waiting,
        signals: &'a Signals,
        lease: Option<Duration>,
    ) -> Acquisition<'a> {
        let policy = waiting.wait_policy(lease);
        Acquisition {
            common,
            waiting,
            signals,
            interrupt: signals,
            policy,
            settings: &SettingNames::OPTIONS,
            replaces: None,
            slots: None,
            locks_file: false,
        }
    }

    /// Acquires all of the locks or none, and reports the wait.
    pub(super) fn acquire(&self, opened: &OpenLockSet<'_>, request: &AcquireRequest) -> Result<AcquireAllResult> {
        let new = opened.each().map(|(target, _)| &target.location).find(|location| is_created_by_xdg(location));
        let ended = self.replace_or_wait(opened, request);
        new.filter(|_| matches!(ended, Ok(AcquireAllResult::Granted(..)))).inspect(|new| self.tell_created(new));
        ended
    }

    /// Tells users of XDG_STATE_HOME once that other programs may not have it.
    fn tell_created(&self, store: &Location) {
        self.common.note(&format!(
            "created the store {}, where XDG_STATE_HOME says; cron may not have this variable, so set CSALOCK_STORE in both",
            escape(store.url().as_encoded_bytes())
        ));
    }

    fn replace_or_wait(&self, opened: &OpenLockSet<'_>, request: &AcquireRequest) -> Result<AcquireAllResult> {
        if self.replaces.is_some()
            && let Some(ended) = self.try_or_refuse(opened, request)?
        {
            return Ok(ended);
        }
        self.wait(opened, request)
    }

    /// Tries once, without a place in the queue. Returns `None` if the caller should wait and end the holders.
    /// Fails if a holder cannot be ended from here.
    fn try_or_refuse(&self, opened: &OpenLockSet<'_>, request: &AcquireRequest) -> Result<Option<AcquireAllResult>> {
        let none = &WaitPolicy::NONE;
        Ok(match acquire_all(&opened.lock_refs(), request, none, Some(self.interrupt), &mut |_, _| None)? {
            AcquireAllResult::Refused(at, Refusal::Busy(holders)) => {
                let check = |grant| check_replaceable(opened.target(at), &opened.reporter(at), grant);
                holders.iter().try_for_each(check)?;
                None
            }
            // A wait knows deadlocks for sure.
            AcquireAllResult::Refused(..) => None,
            ended => Some(ended),
        })
    }

    fn wait(&self, opened: &OpenLockSet<'_>, request: &AcquireRequest) -> Result<AcquireAllResult> {
        let mut progress = WaitProgress::new(self.common);
        progress.locks_file = self.locks_file;
        let mut replacement =
            self.replaces.map(|kill_after| HolderReplacement::new(self.common, kill_after, &request.owner));
        let ended =
            acquire_all(&opened.lock_refs(), request, &self.policy, Some(self.interrupt), &mut |at, waiting| {
                let (target, reporter) = (opened.target(at), opened.reporter(at));
                let lock = (target, opened.engine(at));
                let replace = replacement.as_mut().and_then(|replacement| replacement.update(lock, &reporter, waiting));
                progress.update(target, &reporter, waiting).into_iter().chain(replace).min()
            });
        // `--busy replace` is for one lock.
        for (owner, started) in replacement.into_iter().flat_map(|replacement| replacement.started.into_values()) {
            if matches!(ended, Ok(AcquireAllResult::Granted(..))) {
                let name = escape(&opened.target(0).display_name);
                tell_of_remaining(self.common, opened.reporter(0).host, &name, &owner, started);
            }
        }
        ended
    }

    /// Writes a value, if necessary after a wait for its lock, and reports the wait.
    pub(super) fn write(
        &self,
        engine: &Engine,
        target: &LockRef,
        value: &ValueWrite<'_>,
        request: &AcquireRequest,
    ) -> Result<WriteResult> {
        let (reporter, mut progress) = (Reporter::new(engine), WaitProgress::new(self.common));
        let is_new = is_created_by_xdg(&target.location);
        let written = engine.write(&target.name, value, request, &self.policy, Some(self.interrupt), &mut |waiting| {
            progress.update(target, &reporter, waiting)
        });
        if is_new && matches!(written, Ok(WriteResult::Written(..))) {
            self.tell_created(&target.location);
        }
        written
    }

    /// Returns the exit code of a result, and reports a refusal.
    pub(super) fn end(&self, opened: &OpenLockSet<'_>, result: &AcquireAllResult) -> anyhow::Result<Exit> {
        match result {
            AcquireAllResult::Granted(..) => Ok(Exit::Done),
            AcquireAllResult::Interrupted => Ok(self.signals.exit()),
            AcquireAllResult::Refused(at, refusal) => {
                let reporter = opened.reporter(*at);
                let mut lock = RefusedLock::new(opened.target(*at), &reporter);
                lock.settings = self.settings;
                let mut report = lock.refusal(refusal);
                let record = self.slots.and_then(|_| opened.engine(*at).record(&opened.target(*at).name).ok());
                if let (Some(wanted), Some(has)) = (self.slots, record.and_then(|record| record.slots))
                    && wanted != has
                {
                    report.message.push_str(&format!(
                        "; it has {has} slots now, and the caller's {wanted} count when the holders are gone"
                    ));
                }
                if self.locks_file && matches!(refusal, Refusal::Busy(_)) {
                    report.add_file_lock(reporter.file_lock(opened.target(*at), &report.holders).as_ref());
                }
                self.refuse(&report, &reporter)
            }
        }
    }

    pub(super) fn refuse(&self, refusal: &RefusalReport, reporter: &Reporter<'_>) -> anyhow::Result<Exit> {
        let exit = if refusal.kind == ErrorKind::Busy { self.waiting.busy_exit() } else { refusal.kind.into() };
        self.common.refuse(refusal, exit, Some(reporter))
    }
}

/// Tells which of these processes go on, although the holder that had started them was ended.
pub(super) fn tell_of_remaining(
    common: &Common,
    host: &dyn Host,
    name: &str,
    holder: &Owner,
    started: BTreeSet<ProcessId>,
) {
    let remaining = if common.quiet { Vec::new() } else { remaining(host, started) };
    if !remaining.is_empty() {
        common.note(&left_by_end(name, holder, &remaining));
    }
}

const HOLDER_CHECK: Duration = Duration::from_millis(500);

/// Maximum time for the store to say who holds the lock now.
const TO_LOOK: Duration = Duration::from_secs(1);

/// The end of the holders that `--busy replace` found when it entered the queue. A later holder came before the caller,
/// and is waited for.
struct HolderReplacement<'a> {
    common: &'a Common,
    kill_after: Duration,
    /// The request of the caller, which the record of each holder keeps for the history.
    request: Arc<EndRequest>,
    holders: Option<Vec<HandleHash>>,
    /// The processes that were asked to end, and when they are killed next, on CLOCK_BOOTTIME.
    asked: BTreeMap<ProcessId, Duration>,
    /// The owners of these processes, and the processes that they had started.
    started: BTreeMap<ProcessId, (Arc<Owner>, BTreeSet<ProcessId>)>,
}

impl<'a> HolderReplacement<'a> {
    fn new(common: &'a Common, kill_after: Duration, by: &Owner) -> HolderReplacement<'a> {
        let request = EndRequest { by: by.clone(), replaces: true }.into();
        HolderReplacement {
            common,
            kill_after,
            request,
            holders: None,
            asked: BTreeMap::new(),
            started: BTreeMap::new(),
        }
    }

    /// Sends the signals that are due. Returns the maximum time until the next call.
    fn update(
        &mut self,
        (target, engine): (&LockRef, &Engine),
        reporter: &Reporter<'_>,
        waiting: &WaitState<'_>,
    ) -> Option<Duration> {
        if waiting.outage.is_some() {
            return None;
        }
        let seen = &waiting.record.holders;
        let holders = self.holders.get_or_insert_with(|| seen.iter().map(|grant| grant.proof).collect()).clone();
        let (now, is_meant) = (reporter.host.boottime(), |grant: &&Grant| holders.contains(&grant.proof));
        let is_due = |process: ProcessId| self.asked.get(&process).is_none_or(|at| *at <= now);
        let meant: Vec<&Grant> = seen.iter().filter(is_meant).collect();
        if meant.iter().filter_map(|grant| living(reporter.host, &grant.owner).0).any(is_due) {
            let _deadline = StoreDeadline::begin(Some(now.saturating_add(TO_LOOK)));
            // The lock may have another holder by now.
            let Ok(record) = engine.record(&target.name) else { return Some(HOLDER_CHECK) };
            record.holders.iter().filter(is_meant).for_each(|grant| self.end((target, engine), reporter, grant, now));
        }
        (!meant.is_empty()).then_some(HOLDER_CHECK.min(self.kill_after))
    }

    /// Asks a holder to end, or kills it if it has been asked before and that is due.
    fn end(&mut self, (target, engine): (&LockRef, &Engine), reporter: &Reporter<'_>, grant: &Grant, now: Duration) {
        let (Some(process), supervisor) = living(reporter.host, &grant.owner) else { return };
        // The holder may be another one than that which was found before the caller entered the queue.
        if check_replaceable(target, reporter, grant).is_err() {
            return;
        }
        let name = escape(&target.display_name);
        let found: Vec<ProcessId> = started_by(process).collect();
        let (_, started) = self.started.entry(process).or_insert_with(|| (grant.owner.clone(), BTreeSet::new()));
        started.extend(&found);
        match self.asked.get(&process).copied() {
            None => {
                self.common.note(&format!("lock {name}: asked its holder to end: {}", reporter.holder(grant)));
                let request = Some(self.request.clone());
                // A history without this remark is no reason to wait.
                let _ = engine.apply(&target.name, &AskToEnd { proof: grant.proof, request, ends_renewal: false });
                // A supervisor passes TERM on. A stopped process hears it when it goes on.
                let _ = host::send(&supervisor.unwrap_or(process), libc::SIGTERM);
                for process in supervisor.into_iter().chain([process]) {
                    let _ = host::send(&process, libc::SIGCONT);
                }
                self.asked.insert(process, now.saturating_add(self.kill_after));
            }
            Some(due) if due <= now => {
                self.common.note(&format!("lock {name}: killed its holder, pid {}", process.pid));
                // A supervisor that holds on after the end of its command waits for the processes that this left.
                let is_left = supervisor == Some(process) && grant.owner.processes.first() != Some(&process);
                for process in if is_left { found } else { vec![process] } {
                    let _ = host::send(&process, libc::SIGKILL);
                }
                self.asked.insert(process, now.saturating_add(HOLDER_CHECK));
            }
            Some(_) => {}
        }
    }
}

/// Returns the process whose life a grant depends on now, and its supervisor, as far as they live on this host.
fn living(host: &dyn Host, owner: &Owner) -> (Option<ProcessId>, Option<ProcessId>) {
    // Elsewhere, such a process is another one.
    let is_here = host.domain().is_ok_and(|here| here.shares_pids_with(&owner.domain));
    let lives = |process: &&ProcessId| is_here && host.process(process.pid).is_ok_and(|found| found == Some(**process));
    (owner.processes.iter().find(lives).copied(), owner.supervisor.as_ref().filter(lives).copied())
}

fn check_replaceable(target: &LockRef, reporter: &Reporter<'_>, grant: &Grant) -> Result<()> {
    let is_here = reporter.host.domain()?.shares_pids_with(&grant.owner.domain);
    let (process, supervisor) = living(reporter.host, &grant.owner);
    // A user who may write in the store can write any process into the record, so root ends only its own. One that has
    // ended meanwhile gets no signal.
    let is_foreign =
        |process: &ProcessId| reporter.host.uid() == 0 && host::user_of(process.pid).is_some_and(|user| user != 0);
    let denied = |process: &ProcessId| host::send(process, 0) == Err(Errno::EPERM) || is_foreign(process);
    let lasts = grant.lifetime == Lifetime::UntilReleased && supervisor.is_none();
    let (kind, why, hint) = match () {
        () if grant.claim.is_some() || lasts => {
            let hint = format!("release it with `csalock unlock --force {}`", target.shell_arg);
            (ErrorKind::Busy, "only a release ends that", hint)
        }
        () if !is_here => {
            (ErrorKind::Busy, "that process cannot be seen from here", "end it where it runs".to_string())
        }
        () if process.into_iter().chain(supervisor).any(|process| denied(&process)) => {
            (ErrorKind::Denied, "that process is of another user", "end it as its user".to_string())
        }
        () => return Ok(()),
    };
    let what = format!("{} cannot be replaced, {why}: {}", RefusedLock::new(target, reporter), reporter.holding(grant));
    Err(Error::new(kind, what, format!("{hint}, or wait for it with --busy latest")))
}

/// Returns true for a default store that does not exist yet, and whose place XDG_STATE_HOME decides.
fn is_created_by_xdg(store: &Location) -> bool {
    Environment::store_without_xdg(store).is_some() && store.is_missing()
}

/// Returns the request of `process` for an exclusive lock that ends with its owner: `owners`, which run `command`.
pub(super) fn request(
    context: &Context,
    waiting: &Waiting,
    handle: Handle,
    process: ProcessId,
    owners: Vec<ProcessId>,
    command: Vec<u8>,
) -> Result<AcquireRequest> {
    let owner = context.owner(owners, command, waiting.label.as_ref(), waiting.no_command)?;
    Ok(AcquireRequest {
        refuse_stale: waiting.fail_on_stale,
        enclosing_grants: context.enclosing_grants(),
        invocation: Some(context.invocation(process.pid)),
        ..AcquireRequest::for_itself(handle, owner, process)
    })
}

pub(super) fn command_of_caller(this: &ThisProcess) -> Vec<u8> {
    this.caller().map_or_else(|_| command_of(this.id().pid), |caller| caller.command)
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
    if let Some((at, ending)) = evicted {
        let before = if ending.reason == EndReason::Broken { "held before by" } else { "taken over from" };
        let (name, ending) = (escape(&opened.target(*at).display_name), opened.reporter(*at).ending(ending));
        common.note(&format!("lock {name} was {before} {ending}"));
    }
    if !common.verbose {
        return;
    }
    for (at, ((target, _), grant)) in opened.each().zip(grants).enumerate() {
        let (name, token) = (escape(&target.display_name), grant.token.unwrap_or_default());
        let details = owner.map(|owner| {
            let store = escape(target.location.url().as_bytes());
            format!(", {}, store {store}", opened.reporter(at).owner_and_command(owner))
        });
        common.note(&format!("lock {name} was acquired, token {token}{}", details.unwrap_or_default()));
    }
}

impl Waiting {
    /// A holder that no process here can see may have died at the start of its `lease`, if it has one.
    pub(super) fn wait_policy(&self, lease: Option<Duration>) -> WaitPolicy {
        if self.nonblock {
            return WaitPolicy::NONE;
        }
        let default = || Some(lease.map_or(TIMEOUT, |lease| TIMEOUT.max(lease.saturating_add(BEYOND_LEASE))));
        let limit = self.timeout.map_or_else(default, |limit| limit.0);
        WaitPolicy { limit, backoff: self.backoff }
    }

    pub(super) fn busy_exit(&self) -> Exit {
        self.conflict_exit_code.map_or(ErrorKind::Busy.into(), Exit::Code)
    }

    /// Returns the exit code of a failure, or that of `-E` if the store was locked until the timeout.
    pub(super) fn exit_of_failure(&self, error: &anyhow::Error) -> Exit {
        match super::exit_of(error) {
            exit if exit == ErrorKind::Busy.into() => self.busy_exit(),
            exit => exit,
        }
    }
}

impl Taking {
    pub(super) fn mode(&self) -> Mode {
        match self.slots {
            Some(_) => Mode::Slot,
            None if self.shared => Mode::Shared,
            None => Mode::Exclusive,
        }
    }

    pub(super) fn lifetime(&self) -> Lifetime {
        match self.ttl {
            _ if self.forever => Lifetime::UntilReleased,
            Some(span) => Lifetime::Ttl((span.as_millis() as u64).max(1)),
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
