//! `--flock` and `--fcntl`: lock the lock's file with these calls too, so that users of flock(1) or dpkg(1) and of csalock
//! exclude each other.
//!
//! csalock acquires the lock first, in whose queue all its callers wait. Only the first of them then waits for the file,
//! within the rest of the timeout. The command inherits the locked file, so the file stays locked if the supervisor is
//! killed. The supervisor unlocks it when the command ends, even if the command's children have it open.
//!
//! A user who may not write beside the file keeps the record elsewhere, so only the file's lock excludes other users. A
//! user who may write there may hold the lock without it. The caller looks for such a holder after the file is locked, and
//! then lets go of the file; that user's call looks for the file's lock after its grant. So at least one of two sees the
//! other.
//!
//! `lock --fd` waits for its file in the same way, but locks a descriptor that it was given.

use std::ffi::OsStr;
use std::fs::File;
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::acquire::{Acquisition, standing};
use super::context::{Context, LockRef, eprint_line};
use crate::cli::{Run, Taking};
use crate::exit::Exit;
use crate::report::{RefusedLock, Reporter, locked_by, lost_while_waiting};
use crate::run::child::SleepingChild;
use crate::run::flock::{Flock, FlockWait, Flocked};
use engine::lease_schedule::{renewal_pause, retry_pause};
use engine::{Engine, LockSet, OpenLockSet};
use host::{FileLock, WakeReason, WakeSocket, command_of, file_locks, is_file_locked};
use lock::name::{escape, escape_path, shell_quote};
use lock::{Error, ErrorKind, Grant, HandleHash, Mode, Refusal, RenewGrant, Result};

/// Pause between two looks at a lock beside the file whose holder does not wake this caller.
const LOOK_BESIDE: Duration = Duration::from_millis(100);

pub(super) struct FlockCompat<'a> {
    context: &'a Context,
    taking: &'a Taking,
    /// Each file, with the index of the lock that it belongs to, and the kind of lock.
    files: Vec<(PathBuf, usize, FileLock)>,
    /// Is open on the only file, and is locked in its place.
    descriptor: Option<&'a File>,
    /// For each lock whose record this user may not keep beside its file: the lock of users who may.
    beside: Vec<Option<LockRef>>,
    /// Of the grants.
    proof: HandleHash,
}

impl<'a> FlockCompat<'a> {
    /// `None` without these options, if all records can be beside their files. Among several names, only those that are
    /// paths have files.
    pub(super) fn of(
        context: &'a Context,
        options: &'a Run,
        targets: &LockSet,
        proof: HandleHash,
    ) -> Result<Option<FlockCompat<'a>>> {
        let beside = targets.all.iter().map(|target| context.record_beside(target)).collect::<Result<Vec<_>>>()?;
        let is_asked = options.flock || options.fcntl;
        let is_needed = !is_asked && beside.iter().any(Option::is_some);
        let given = [(options.flock || is_needed, FileLock::Flock), (options.fcntl, FileLock::Fcntl)];
        let kinds: Vec<FileLock> = given.into_iter().filter_map(|(given, kind)| given.then_some(kind)).collect();
        let Some(first) = kinds.first() else { return Ok(None) };
        let locked = targets.all.iter().enumerate();
        let locked = locked.filter(|(at, target)| target.is_file && (is_asked || beside[*at].is_some()));
        let path = |target: &LockRef| PathBuf::from(OsStr::from_bytes(&target.display_name));
        let mut files: Vec<(PathBuf, usize)> = locked.map(|(at, target)| (path(target), at)).collect();
        // All callers use one order, so that two of them with other names in common never wait for each other.
        files.sort();
        if files.is_empty() {
            return Err(not_a_path(first.name(), &targets.first().display_name));
        }
        // fcntl(2) needs a writable descriptor; a directory has none, and flock(2) locks one.
        if let Some((directory, _)) = files.iter().find(|(file, _)| options.fcntl && file.is_dir()) {
            let what = format!("--fcntl locks a file, and {} is a directory", escape_path(directory));
            return Err(Error::invalid(what, "name a file in it, or use --flock"));
        }
        let each = files.iter().flat_map(|(file, at)| kinds.iter().map(|kind| (file.clone(), *at, *kind)));
        let (taking, descriptor) = (&options.taking, None);
        Ok(Some(FlockCompat { context, taking, files: each.collect(), descriptor, beside, proof }))
    }

    /// For the only target, whose file the descriptor is open on.
    pub(super) fn of_descriptor(
        context: &'a Context,
        taking: &'a Taking,
        (target, descriptor): (&LockRef, &'a File),
        proof: HandleHash,
    ) -> Result<FlockCompat<'a>> {
        let files = vec![(PathBuf::from(OsStr::from_bytes(&target.display_name)), 0, FileLock::Flock)];
        let beside = vec![context.record_beside(target)?];
        Ok(FlockCompat { context, taking, files, descriptor: Some(descriptor), beside, proof })
    }

    /// Locks the files for the command to inherit, within the timeout of the acquisition. Breaks off with an exit if that
    /// fails, or without one on an interrupt. Renews the grants meanwhile.
    pub(super) fn take(
        &self,
        opened: &OpenLockSet<'_>,
        acquisition: &Acquisition<'_>,
        grants: &mut [Grant],
        events: (Option<&SleepingChild<'_>>, Option<&WakeSocket>),
    ) -> Result<ControlFlow<Option<Exit>, Vec<Flock>>> {
        let mut held: Vec<Flock> = Vec::new();
        for &(ref file, at, kind) in &self.files {
            // Two names may mean one file; a second lock on it would wait for ourselves.
            if held.iter().any(|flock| flock.is_of(kind, file)) {
                continue;
            }
            let flock = loop {
                if let ControlFlow::Break(exit) = self.await_beside(opened, acquisition, grants, (at, kind, file))? {
                    return Ok(ControlFlow::Break(exit));
                }
                let flock = match self.take_file(opened, acquisition, grants, events, (at, kind, file))? {
                    ControlFlow::Continue(flock) => flock,
                    ControlFlow::Break(exit) => return Ok(ControlFlow::Break(Some(exit))),
                };
                // A caller who comes now sees that the file is locked.
                if self.holders_beside(at, grants[at].mode)?.is_none() {
                    break flock;
                }
                flock.unlock();
            };
            held.push(flock);
        }
        Ok(ControlFlow::Continue(held))
    }

    fn take_file(
        &self,
        opened: &OpenLockSet<'_>,
        acquisition: &Acquisition<'_>,
        grants: &mut [Grant],
        (child, wake_socket): (Option<&SleepingChild<'_>>, Option<&WakeSocket>),
        (at, kind, file): (usize, FileLock, &Path),
    ) -> Result<ControlFlow<Exit, Flock>> {
        let (policy, target) = (&acquisition.policy, opened.target(at));
        let (mut told, mode) = (false, grants[at].mode);
        let mut look = || {
            if !std::mem::replace(&mut told, true) {
                self.tell_of_wait(target, kind, file);
            }
            self.keep_waiting(opened, grants)
        };
        let mut wait = FlockWait {
            host: self.context.host.as_ref(),
            signals: acquisition.signals,
            child,
            until: policy.limit.map(|_| acquisition.until()),
            on_tick: &mut look,
            wake_socket,
            is_lost: &|| is_lost(opened, self.proof),
        };
        let wait = (!policy.is_none()).then_some(&mut wait);
        let flock = match Flock::take(kind, (file, self.descriptor), mode, wait)? {
            Flocked::Held(flock) => flock,
            Flocked::Interrupted(exit) => return Ok(ControlFlow::Break(exit)),
            Flocked::Busy => {
                let (name, by) = (escape(&target.display_name), self.holders_of(kind, file));
                let text = format!("lock {name} is busy: {by}; wait longer with -w, or see lslocks(8)");
                self.context.common.note(&text);
                return Ok(ControlFlow::Break(acquisition.waiting.exit(ErrorKind::Busy)));
            }
        };
        if told {
            self.keep(opened, grants)?;
        }
        Ok(ControlFlow::Continue(flock))
    }

    /// Waits while a user who may write beside the file holds the lock there, and not by the file's lock, for which others
    /// wait in the kernel.
    fn await_beside(
        &self,
        opened: &OpenLockSet<'_>,
        acquisition: &Acquisition<'_>,
        grants: &mut [Grant],
        (at, kind, file): (usize, FileLock, &Path),
    ) -> Result<ControlFlow<Option<Exit>>> {
        let proof = self.context.host.new_handle()?.proof();
        while let Some((target, engine, holders)) = self.holders_beside(at, grants[at].mode)?
            && !is_file_locked(file, &[kind], false)
        {
            if acquisition.policy.is_none() || self.context.host.boottime() >= acquisition.until() {
                let reporter = Reporter::new(&engine);
                let report = RefusedLock::new(target, &reporter).refusal(&Refusal::Busy(holders));
                self.context.common.note(&report.to_string());
                return Ok(ControlFlow::Break(Some(acquisition.waiting.exit(ErrorKind::Busy))));
            }
            self.keep_waiting(opened, grants)?;
            let mut wake_set = self.context.host.wake_set(&proof, acquisition.interrupt.descriptors()?)?;
            if wake_set.wait(&[], &mut None, LOOK_BESIDE)? == WakeReason::Interrupted {
                return Ok(ControlFlow::Break(None));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Holders beside the file with whom this caller may not share it, and their lock; `None` if there are none.
    fn holders_beside(&self, at: usize, mode: Mode) -> Result<Option<(&LockRef, Engine, Vec<Grant>)>> {
        let Some(target) = &self.beside[at] else { return Ok(None) };
        let engine = self.context.engine(&target.location)?;
        let mut holders = standing(engine.inspect(&target.name)?);
        holders.retain(|grant| [grant.mode, mode].contains(&Mode::Exclusive));
        Ok((!holders.is_empty()).then_some((target, engine, holders)))
    }

    fn tell_of_wait(&self, target: &LockRef, kind: FileLock, file: &Path) {
        let common = &self.context.common;
        if common.verbose || (!common.quiet && std::io::stderr().is_terminal()) {
            let by = self.holders_of(kind, file);
            eprint_line(&format!("waiting for lock {}: {by}", escape(&target.display_name)));
        }
    }

    fn holders_of(&self, kind: FileLock, file: &Path) -> String {
        let own = self.context.host.this_process().map(|process| command_of(process.pid)).unwrap_or_default();
        let pids = file_locks(file).into_iter().find(|(found, _)| *found == kind).map(|(_, pids)| pids);
        // This process may have inherited the locked file, but does not block itself.
        let others =
            pids.into_iter().flatten().map(|pid| (pid, command_of(pid))).filter(|(_, command)| *command != own);
        format!("its file is {}", locked_by(kind, others))
    }

    /// Keeps the locks during the wait for a file until the next call is due, in the time that this returns. A silent
    /// store is asked again while the leases last.
    fn keep_waiting(&self, opened: &OpenLockSet<'_>, grants: &mut [Grant]) -> Result<Option<Duration>> {
        let span = self.taking.ttl.unwrap_or(opened.span());
        let kept = self.keep(opened, grants);
        let lasts = || opened.lease_ends(grants).is_some_and(|ends| self.context.host.boottime() < ends);
        match kept {
            Err(error) if error.kind() == ErrorKind::Unavailable && lasts() => Ok(Some(retry_pause(span))),
            kept => kept.map(|has_lease| has_lease.then(|| renewal_pause(span))),
        }
    }

    /// Keeps the locks while we wait for a file; a time limit, and the time for which the locks count as held, start only
    /// when the wait is over. Updates the grants, and returns true if they have a lease.
    fn keep(&self, opened: &OpenLockSet<'_>, grants: &mut [Grant]) -> Result<bool> {
        for ((target, engine), grant) in opened.each().zip(&mut *grants) {
            let credentials = engine.by_proof(self.proof)?;
            let lifetime = engine.start(&engine.lifetime_in_store(engine.needs_leases(), &self.taking.lifetime()))?;
            match engine.apply(&target.name, &RenewGrant { credentials, lifetime, begins: true })? {
                Ok(renewed) => grant.lifetime = renewed.lifetime,
                Err(not_holder) => return Err(lost_while_waiting(target, engine, &not_holder)),
            }
        }
        Ok(grants.iter().any(|grant| grant.lifetime.lease().is_some()))
    }
}

pub(super) fn not_a_path(option: &str, name: &[u8]) -> Error {
    let what = format!("--{option} locks a file, and {} is not a path", escape(name));
    Error::invalid(what, format!("use ./{}, or leave out --{option}", shell_quote(name)))
}

/// A record that cannot be read may have the grant still.
fn is_lost(opened: &OpenLockSet<'_>, proof: HandleHash) -> bool {
    opened
        .each()
        .any(|(target, engine)| engine.record(&target.name).is_ok_and(|record| record.holder(&proof).is_none()))
}
