//! Locks for Rust programs: a guard releases its locks when it is dropped.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use engine::Engine;
use engine::cleaners::CleanerGuard;
use engine::lease_schedule::{renewal_pause, retry_pause};
use lock::error::{Error, ErrorKind, Result};
use lock::{Grant, Handle, HandleHash, Lifetime, Release};
use store::Scope;

/// Maximum time that the drop of a guard waits for a store that other hosts may share.
const DROP_LIMIT: Duration = Duration::from_secs(5);

/// Locks that this process holds by one request. They are free when the guard is dropped, or the process dies.
///
/// If other hosts may share the store, a thread renews the lease until the guard is dropped. If renewal fails for the
/// length of a lease, the locks are lost: [`Guard::release`] then returns false.
#[must_use = "the locks are given back when the guard is dropped"]
pub struct Guard<'a> {
    engine: &'a Arc<Engine>,
    _renewer: Option<Sender<Infallible>>,
    _cleaners: CleanerGuard,
    names: Vec<Vec<u8>>,
    handle: Handle,
    token: u64,
}

impl<'a> Guard<'a> {
    /// Releases the grants if no thread can renew them.
    pub(crate) fn new(
        engine: &'a Arc<Engine>,
        names: Vec<Vec<u8>>,
        handle: Handle,
        grants: &[Grant],
    ) -> Result<Guard<'a>> {
        let must_renew = grants.iter().any(|grant| matches!(grant.lifetime, Lifetime::Keepalive(_)));
        let renewer = must_renew.then(|| renew(engine, &names, &handle)).transpose();
        let renewer = renewer.inspect_err(|_| drop(release(engine, &names, handle.proof())))?;
        let token = grants.iter().filter_map(|grant| grant.token).max().unwrap_or_default();
        let mut cleaners = CleanerGuard::of([&**engine]);
        cleaners.protect();
        Ok(Guard { engine, _renewer: renewer, _cleaners: cleaners, names, handle, token })
    }

    /// Returns the fencing token; for several locks, the highest token. It only grows from one holder of a name to the
    /// next, so a service can refuse late writes under an old lock.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Releases the locks. Returns true if all of them were held until now.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written. The locks are free anyway when this process ends.
    pub fn release(mut self) -> Result<bool> {
        // The drop finds nothing left to release.
        release(self.engine, &std::mem::take(&mut self.names), self.handle.proof())
    }
}

/// Starts a thread that renews the grants until one of them is gone or the returned sender is dropped.
fn renew(engine: &Arc<Engine>, names: &[Vec<u8>], handle: &Handle) -> Result<Sender<Infallible>> {
    let (stop, stopped) = channel::<Infallible>();
    let (engine, names, proof) = (engine.clone(), names.to_vec(), handle.proof());
    let (often, seldom) = (retry_pause(engine.lease()), renewal_pause(engine.lease()));
    let work = move || {
        let mut pause = seldom;
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
            let answers: Vec<_> = names.iter().map(|name| engine.renew(name, proof)).collect();
            if answers.iter().any(|answer| matches!(answer, Ok(Err(_)))) {
                break;
            }
            pause = if answers.iter().all(Result::is_ok) { seldom } else { often };
            engine.store().before_wait(engine.call(), true);
        }
    };
    let failed = |error| Error::new(ErrorKind::System, format!("cannot start a thread: {error}"), "see ulimit -u");
    std::thread::Builder::new().spawn(work).map_err(failed)?;
    Ok(stop)
}

/// Releases all grants of a handle under these names, even if one release fails. True if all were held until now.
pub(crate) fn release(engine: &Engine, names: &[Vec<u8>], proof: HandleHash) -> Result<bool> {
    let mut were_held = Ok(true);
    for name in names.iter().rev() {
        let released = engine.by_proof(proof).and_then(|by| engine.apply(name, &Release(by)));
        were_held = were_held.and_then(|so_far| Ok(released?.is_ok() && so_far));
    }
    were_held
}

impl Drop for Guard<'_> {
    /// Releases the locks. [`Guard::release`] reports, in addition, whether they were still held.
    ///
    /// A dead NFS server blocks its callers until it is back. If other hosts may share the store, a thread therefore
    /// releases the locks, and the caller waits at most five seconds. If that release fails, the lease ends the locks.
    fn drop(&mut self) {
        let (engine, names, proof) = (self.engine.clone(), std::mem::take(&mut self.names), self.handle.proof());
        if names.is_empty() {
            return;
        }
        if engine.store().scope() == Scope::Local {
            let _ = release(&engine, &names, proof);
            return;
        }
        let (done, is_done) = channel::<Infallible>();
        let releaser = std::thread::Builder::new().spawn(move || {
            let _ = release(&engine, &names, proof);
            drop(done);
        });
        if releaser.is_ok() {
            let _ = is_done.recv_timeout(DROP_LIMIT);
        }
    }
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.names.iter().map(|name| lock::escape::escape(name)).collect();
        write!(out, "Guard({}, token {})", names.join(", "), self.token)
    }
}
