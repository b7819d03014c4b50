//! Locks for Rust programs: a guard releases its locks when it is dropped.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::renewal::Held;
use engine::Engine;
use engine::cleaners::CleanerGuard;
use lock::{Grant, Handle, HandleHash, ProcessId, Release};
use store::Scope;

/// Maximum time that the drop of a guard waits for a store that other hosts may share.
const DROP_LIMIT: Duration = Duration::from_secs(5);

/// Locks that this process holds by one request. They are free when the guard is dropped, or the process dies.
///
/// If other hosts may share the store, a thread renews the lease until the guard is dropped. If the renewal fails for the
/// length of a lease, or a user breaks the lock, the locks are **lost**: another process may have them. A program that
/// changes something under its locks must notice that: [`Guard::is_held`] answers before a step,
/// [`Guard::on_lost`] tells at once, and the service that is changed can refuse late writes by [`Guard::token`].
///
/// A process that was forked has no part in the locks: its copy of the guard does nothing.
#[must_use = "the locks are released when the guard is dropped"]
pub struct Guard {
    held: Arc<Held>,
    _cleaners: CleanerGuard,
    process: ProcessId,
    token: u64,
    is_released: bool,
}

impl Guard {
    /// Releases the grants if no thread can renew them.
    pub(crate) fn new(
        engine: Arc<Engine>,
        names: Vec<Vec<u8>>,
        handle: &Handle,
        process: ProcessId,
        grants: &[Grant],
    ) -> Result<Guard> {
        let token = grants.iter().filter_map(|grant| grant.token).max().unwrap_or_default();
        let mut cleaners = CleanerGuard::of([&*engine]);
        cleaners.protect();
        let held = Arc::new(Held::new(engine, names, handle.proof(), grants));
        if held.renews {
            Held::keep(&held).inspect_err(|_| _ = release(&held.engine, &held.names, held.proof))?;
        }
        Ok(Guard { held, _cleaners: cleaners, process, token, is_released: false })
    }

    /// Returns the fencing token; for several locks, the highest token. It only grows from one holder of a name to the
    /// next, so a service can refuse late writes under an old lock.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Tells if this process still has all of its locks: the store says so, and their lease is not over.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read: it is not known then.
    pub fn is_held(&self) -> Result<bool> {
        Ok(self.is_of_this_process() && self.held.is_held()?)
    }

    /// Calls `told` in a thread of its own when the locks are lost. If no renewal comes through, or the time of
    /// [`LockRequest::ttl`](crate::LockRequest::ttl) is nearly over, it is called a tenth of that time before the end, and
    /// ten seconds earlier if those are less than a fifth of it: the program has this time to stop. The locks then count as
    /// lost. A lock that a user broke is noticed at once on this host, and within a third of a lease elsewhere. After a
    /// release `told` is not called.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorKind::System`] if no thread can be had.
    pub fn on_lost(&self, told: impl FnOnce() + Send + 'static) -> Result<()> {
        Held::watch(&self.held, told)
    }

    /// Releases the locks.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Lost`] if they were not held until now. Work under them may have met another holder.
    /// - Another kind if the store cannot be written. The locks are free anyway when this process ends.
    pub fn release(mut self) -> Result<()> {
        if !self.is_of_this_process() {
            return Err(Error::new(ErrorKind::Lost, "the locks are held by the process that this one was forked from"));
        }
        self.is_released = true;
        let was_lost = self.held.end();
        let were_held = release(&self.held.engine, &self.held.names, self.held.proof)?;
        if were_held && !was_lost {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Lost, format!("{self:?} was lost before its release")))
    }

    fn is_of_this_process(&self) -> bool {
        nix::unistd::Pid::this().as_raw() == self.process.pid
    }
}

/// Releases all grants of a handle under these names, even if one release fails. True if all were held until now.
pub(crate) fn release(engine: &Engine, names: &[Vec<u8>], proof: HandleHash) -> lock::Result<bool> {
    let mut were_held = Ok(true);
    for name in names.iter().rev() {
        let released = engine.by_proof(proof).and_then(|by| engine.apply(name, &Release(by)));
        were_held = were_held.and_then(|so_far| Ok(released?.is_ok() && so_far));
    }
    were_held
}

impl Drop for Guard {
    /// Releases the locks. [`Guard::release`] reports, in addition, whether they were still held.
    ///
    /// A dead NFS server blocks its callers until it is back. If other hosts may share the store, a thread therefore
    /// releases the locks, and the caller waits at most five seconds. If that release fails, the lease ends the locks.
    fn drop(&mut self) {
        if self.is_released || !self.is_of_this_process() {
            return;
        }
        self.held.end();
        let held = self.held.clone();
        if held.engine.store().scope() == Scope::Local {
            let _ = release(&held.engine, &held.names, held.proof);
            return;
        }
        let (done, is_done) = channel::<Infallible>();
        let releaser = std::thread::Builder::new().spawn(move || {
            let _ = release(&held.engine, &held.names, held.proof);
            drop(done);
        });
        if releaser.is_ok() {
            let _ = is_done.recv_timeout(DROP_LIMIT);
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.held.names.iter().map(|name| lock::escape::escape(name)).collect();
        write!(out, "Guard({}, token {})", names.join(", "), self.token)
    }
}
