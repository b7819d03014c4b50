//! `lock --fd` and `unlock --fd`: flock(2) on a descriptor of the caller, with a place in the queue and a record.
//!
//! The lock belongs to the open file description, as that of flock(1), so it lasts until the last descriptor of it is
//! closed, whatever becomes of the script. The kernel decides who has the file; the record says so to people, and keeps the
//! callers of csalock out that do not ask the kernel. Order of steps: a provisional grant, behind all earlier callers; then
//! flock(2), which waits for users of flock(1); then the grant of the descriptor. A process that is killed between them
//! leaves a lock without a record, like that of flock(1).

use std::ffi::OsString;
use std::fs::{self, File};
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::acquire::{Acquisition, calling_script, report_taken, request_for_script};
use super::context::{Context, Results};
use super::flock_compat::FlockCompat;
use crate::cli::Taking;
use crate::exit::Exit;
use crate::report::Reporter;
use crate::run::flock::{Flock, FlockWait, Flocked, inherited, is_still};
use engine::{AcquireRequest, AcquireResult, OpenLockSet, RETRY_INTERVAL, WaitPolicy};
use host::signals::Signals;
use host::{FileLock, ThisProcess, descriptor_lock};
use lock::error::{Error, ErrorKind, Result, errno_of};
use lock::name::{escape, escape_path};
use lock::{Credentials, DescriptorLock, Grant, Lifetime, Mode, Release};
use store::{Scope, is_on_network};

pub(super) fn lock(context: &Context, taking: &Taking, number: i32) -> anyhow::Result<Exit> {
    if context.common.json {
        return Err(Error::invalid("--fd has no handle to print", "leave --json out").into());
    }
    let file = inherited(number)?;
    let is_alike = |is_exclusive| is_exclusive == (taking.mode() == Mode::Exclusive);
    let held = descriptor_lock(number).filter(|(_, is_exclusive)| is_alike(*is_exclusive)).map(|(lock, _)| lock);
    let Some(path) = path_of(number, &file) else {
        context.common.note_step(|| format!("descriptor {number} gets no record, because its file has no path"));
        return lock_unrecorded(context, taking, &file, context.host.boottime());
    };
    // It is never dropped: the kernel closes its descriptors at the end of the process.
    let signals = ManuallyDrop::new(Signals::listen()?);
    let targets = context.lock_set_of_files(&[OsString::from(&path)], true)?;
    let opened = ManuallyDrop::new(targets.open(context)?);
    if opened.engine(0).store().scope() == Scope::Shared && !is_on_network(&path) {
        let (shown, store) = (escape_path(&path), escape(targets.all[0].location.url().as_encoded_bytes()));
        let what = format!("flock(2) on {shown} excludes only this host, and other hosts share the store {store}");
        let hint = "lock the path without --fd, or name a store of this host with --store";
        return Err(Error::invalid(what, hint).into());
    }
    match &held {
        Some(lock) if is_recorded(&opened, lock)? => return Ok(Exit::Done),
        Some(_) => {}
        // flock(2) converts a lock in these two steps, too.
        None => _ = unlock(context, number)?,
    }
    let acquisition =
        Acquisition { locks_file: true, ..Acquisition::new(context, &taking.waiting, &signals, opened.lease()) };
    let this = ThisProcess::default();
    // The script is named as the holder, but the lock depends on no process.
    let request = request_for_script(context, taking, &this, calling_script(&this, false)?)?;
    let mut grants = match acquire(&acquisition, &opened, &request, held.map(|_| number))? {
        AcquireResult::Granted(grants, _) => grants,
        ended => return acquisition.end(&opened, &ended),
    };
    let taken = FlockCompat::of_descriptor(context, taking, (&targets.all[0], &file), request.handle.proof())
        .and_then(|compat| compat.take(&opened, &acquisition, &mut grants, (None, None)));
    let done = match taken {
        Ok(ControlFlow::Continue(_)) => confirm(&opened, request.clone(), &grants, number).map(|()| None),
        Ok(ControlFlow::Break(exit)) => Ok(Some(exit.unwrap_or_else(|| Exit::interrupted(signals.interrupted_by())))),
        Err(error) => Err(error),
    };
    if !matches!(done, Ok(None)) {
        // The error from before says more than one of this.
        let _ = fs2::FileExt::unlock(&file);
        opened.release_all(request.handle.proof())?;
    } else {
        report_taken(&context.common, &opened, &grants, None, Some(&request.entry.owner));
    }
    Ok(done?.unwrap_or(Exit::Done))
}

/// Without a record, the lock of a descriptor that is `held` is that of flock(1), or of a csalock that was killed. It stays,
/// unless the script must wait for the record: a caller that has this may wait for the file.
fn acquire(
    acquisition: &Acquisition<'_>,
    opened: &OpenLockSet<'_>,
    request: &AcquireRequest,
    held: Option<i32>,
) -> anyhow::Result<AcquireResult> {
    if let Some(number) = held {
        let at_once = Acquisition { policy: WaitPolicy::NONE, ..*acquisition };
        let acquired = at_once.acquire(opened, request)?;
        if acquisition.policy.is_none() || !matches!(acquired, AcquireResult::Refused(..)) {
            return Ok(acquired);
        }
        unlock(acquisition.context, number)?;
    }
    Ok(acquisition.acquire(opened, request)?)
}

/// The record says that a descriptor has this lock.
fn is_recorded(opened: &OpenLockSet<'_>, lock: &DescriptorLock) -> Result<bool> {
    let record = opened.engine(0).record(&opened.target(0).name)?;
    // Outside of the first pid namespace the kernel does not name the process that took the lock.
    let is_it = |known: &DescriptorLock| known.place == lock.place && [known.taker, 0].contains(&lock.taker);
    Ok(record.holders.iter().any(|grant| matches!(&grant.lifetime, Lifetime::Descriptor(known) if is_it(known))))
}

/// Makes the grant that of the locked descriptor.
fn confirm(opened: &OpenLockSet<'_>, mut request: AcquireRequest, grants: &[Grant], number: i32) -> Result<()> {
    let Some((lock, _)) = descriptor_lock(number) else {
        let what = format!("/proc/self/fdinfo/{number} does not show the lock of descriptor {number}");
        return Err(Error::new(ErrorKind::System, what, "mount /proc, or use flock(1)"));
    };
    request.entry.lifetime = Lifetime::Descriptor(lock);
    let host = opened.engine(0).host();
    let until = host.boottime() + RETRY_INTERVAL;
    let confirmed = opened.confirm(&request, grants, &|| host.boottime() < until)?;
    let lost = || Error::new(ErrorKind::Lost, "the lock was lost before it could be used", "take it again");
    confirmed.map(drop).ok_or_else(lost)
}

/// Takes the kernel's lock alone, within the timeout of a wait that began at this time: a pipe or a deleted file has no name
/// that a record could have.
pub(super) fn lock_unrecorded(
    context: &Context,
    taking: &Taking,
    file: &File,
    began: Duration,
) -> anyhow::Result<Exit> {
    let signals = ManuallyDrop::new(Signals::listen()?);
    let acquisition = Acquisition { began, ..Acquisition::new(context, &taking.waiting, &signals, None) };
    let mut wait = FlockWait {
        host: context.host.as_ref(),
        signals: &signals,
        child: None,
        until: acquisition.policy.limit.map(|_| acquisition.until()),
        on_tick: &mut || Ok(None),
        wake_socket: None,
        is_lost: &|| false,
    };
    let wait = (!acquisition.policy.is_none()).then_some(&mut wait);
    Ok(match Flock::take(FileLock::Flock, (Path::new("the descriptor"), Some(file)), taking.mode(), wait)? {
        Flocked::Held(_) => Exit::Done,
        Flocked::Interrupted(exit) => exit,
        Flocked::Busy => {
            context.common.note("the descriptor's file is locked with flock(2); see lslocks(8)");
            taking.waiting.exit(ErrorKind::Busy)
        }
    })
}

/// Releases the lock for all processes that have the descriptor. A descriptor without a lock stays as it is.
pub(super) fn unlock(context: &Context, number: i32) -> anyhow::Result<Exit> {
    let file = inherited(number)?;
    let mut results = Results::new(&context.common);
    let Some((lock, _)) = descriptor_lock(number) else { return results.print() };
    let path = path_of(number, &file);
    let shown = path.as_deref().unwrap_or(Path::new("the descriptor"));
    fs2::FileExt::unlock(&file).map_err(|error| Error::os(errno_of(error), "unlock", shown))?;
    context.common.note_step(|| format!("lock {} is released", escape_path(shown)));
    if path.is_some() {
        let target = context.target_for(shown.as_os_str(), &|_| true)?;
        let engine = context.engine(&target.location)?;
        let own = engine.credentials(None, ThisProcess::default().with_caller()?)?;
        // flock(1) leaves no record.
        let grant = engine.apply(&target.name, &Release(Credentials { descriptor: Some(lock), ..own }))?.ok();
        results.done(&target, "released", grant.as_slice(), &Reporter::new(&engine));
    }
    results.print()
}

fn path_of(number: i32, file: &File) -> Option<PathBuf> {
    let path = fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
    is_still(file, &path).unwrap_or(false).then_some(path)
}
