//! The end of a holder that this host can see, for `unlock --force --end` and `run --busy replace`. Each signal goes to an
//! owner that the record names, or to a process below such an owner that is a supervisor and runs csalock.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use nix::libc;

use super::context::LockRef;
use crate::cli::Common;
use crate::report::{Reporter, left_by_end};
use crate::run::tree::{descendants_of, survivors};
use engine::Engine;
use lock::duration::shown as span;
use lock::name::escape;
use lock::{AskToEnd, EndRequest, Error, ErrorKind, Grant, Owner, ProcessId, Result};
use store::Call;

/// Number of searches for processes below a supervisor, after which it counts as one that waits for none.
const MOST_SEARCHES_IN_VAIN: u32 = 20;

const TO_KILL_AGAIN: Duration = Duration::from_millis(50);

pub(super) struct HolderEnd<'a> {
    common: &'a Common,
    engine: &'a Engine,
    target: &'a LockRef,
    name: String,
    pub(super) grant: Grant,
    /// The record keeps it for the history, because the holder itself may release the lock.
    request: Option<Arc<EndRequest>>,
    kill_after: Duration,
    /// When the process that was asked to end is killed next, on CLOCK_BOOTTIME.
    asked: Option<(ProcessId, Duration)>,
    is_killed: bool,
    searches_in_vain: u32,
    /// Processes that the holder had started before it ended.
    started: BTreeSet<ProcessId>,
}

impl<'a> HolderEnd<'a> {
    pub(super) fn new(
        (common, engine, target): (&'a Common, &'a Engine, &'a LockRef),
        grant: Grant,
        request: Option<Arc<EndRequest>>,
        kill_after: Duration,
    ) -> HolderEnd<'a> {
        HolderEnd {
            common,
            engine,
            target,
            name: escape(&target.display_name),
            grant,
            request,
            kill_after,
            asked: None,
            is_killed: false,
            searches_in_vain: 0,
            started: BTreeSet::new(),
        }
    }

    /// Sends the signals that are due to the innermost live process of the holder. Returns the time until the next ones,
    /// or `None` if the holder has ended or, with `--busy replace`, has lost the lock.
    /// Sends none if csalock may not end each live process.
    pub(super) fn step(&mut self, call: Call) -> Result<Option<Duration>> {
        let (live, now) = (live_owners(self.engine, &self.grant.owner), self.engine.host().boottime());
        let Some(process) = live.first().copied() else { return Ok(None) };
        let kill_at = self.asked.filter(|(asked, _)| *asked == process).map(|(_, kill_at)| kill_at);
        if let Some(kill_at) = kill_at.filter(|kill_at| now < *kill_at) {
            return Ok(Some(kill_at - now));
        }
        live.iter().try_for_each(|process| self.send(process, 0))?;
        if self.replaces() && self.engine.during(call).record(&self.target.name)?.holder(&self.grant.proof).is_none() {
            return Ok(None);
        }
        self.started.extend(descendants_of(process));
        let next = if kill_at.is_some() { self.kill(process)? } else { self.ask(call, process)? };
        self.asked = Some((process, now.saturating_add(next)));
        Ok(Some(next))
    }

    fn replaces(&self) -> bool {
        self.request.as_ref().is_some_and(|request| request.replaces)
    }

    fn ask(&mut self, call: Call, process: ProcessId) -> Result<Duration> {
        if self.asked.is_none() {
            if self.replaces() {
                let holder = Reporter::new(self.engine).holder(&self.grant);
                self.common.note(&format!("lock {}: asked its holder to end: {holder}", self.name));
            }
            let ask = AskToEnd { proof: self.grant.proof, request: self.request.clone(), ends_renewal: false };
            // A store that takes no more writes, as a full disk, is no reason to let the holder go on.
            let _ = self.engine.during(call).apply(&self.target.name, &ask);
        }
        (self.is_killed, self.searches_in_vain) = (false, 0);
        self.send(&process, libc::SIGTERM)?;
        // A stopped process hears TERM when it goes on, and a stopped supervisor never reports the end of its command.
        if let Some(supervisor) = self.grant.owner.supervisor.filter(host::is_csalock) {
            // The first process of a container gets no signal, and its command ends all the same.
            let _ = host::send_for(self.grant.owner.uid, &supervisor, libc::SIGCONT);
        }
        self.send(&process, libc::SIGCONT)?;
        Ok(self.kill_after)
    }

    /// Kills the process. Of a supervisor that goes on after its command, it kills the processes that the command left:
    /// the lock ends with them.
    fn kill(&mut self, process: ProcessId) -> Result<Duration> {
        let owner = &self.grant.owner;
        let outlasts_command = owner.supervisor == Some(process) && owner.processes.first() != Some(&process);
        let waits = outlasts_command && host::is_csalock(&process);
        let below: Vec<ProcessId> = descendants_of(process).collect();
        // A process whose parent ends meanwhile may be missed once.
        self.searches_in_vain = if below.is_empty() { self.searches_in_vain + 1 } else { 0 };
        let is_below = waits && self.searches_in_vain < MOST_SEARCHES_IN_VAIN;
        let killed = if is_below { below } else { vec![process] };
        killed.iter().try_for_each(|process| self.send(process, libc::SIGKILL))?;
        if !killed.is_empty() && !std::mem::replace(&mut self.is_killed, true) {
            let after = span(self.kill_after);
            let what = if waits {
                format!("the processes that its command left went on for {after}, and were killed")
            } else {
                format!("pid {} went on for {after}, and was killed", process.pid)
            };
            self.common.note_unless_json(&format!("lock {}: {what}", self.name));
        }
        Ok(TO_KILL_AGAIN)
    }

    fn send(&self, process: &ProcessId, signal: i32) -> Result<()> {
        let Err((kind, why)) = host::send_for(self.grant.owner.uid, process, signal) else { return Ok(()) };
        let (typed, holder) = (&self.target.shell_arg, Reporter::new(self.engine).holder(&self.grant));
        let hint = match kind {
            ErrorKind::InvalidInput => format!("release it with `csalock unlock {typed}`"),
            _ => format!("break the lock alone with `csalock unlock --force {typed}`"),
        };
        let what = format!("lock {}: pid {} cannot be ended, {}: held by {holder}", self.name, process.pid, why);
        Err(Error::new(kind, what, hint))
    }

    /// Tells which of the processes that the holder had started go on.
    pub(super) fn tell_of_remaining(self) {
        let remaining = survivors(self.engine.host(), self.started);
        if !remaining.is_empty() {
            self.common.note_unless_json(&left_by_end(&self.name, &self.grant.owner, &remaining));
        }
    }
}

/// The processes of an owner on this host, innermost first.
pub(super) fn live_owners(engine: &Engine, owner: &Owner) -> Vec<ProcessId> {
    let liveness = |process| engine.host().liveness(&owner.domain, process, engine.store().scope());
    owner.processes.iter().filter(|process| liveness(process).is_seen_alive()).copied().collect()
}
