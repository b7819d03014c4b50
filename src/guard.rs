//! Locks for Rust programs: a guard releases its lock when it is dropped.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::engine::{AcquireRequest, AcquireResult, Engine, WaitPolicy};
use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result};
use crate::host::{Host, Unix};
use crate::lock::{Grant, Handle, HandleHash, Lifetime, Owner, Request, Response};
use crate::name;
use crate::store::{self, Location, Scope};

/// The message type of a channel that never sends.
enum Never {}

/// Maximum time that the drop of a guard waits for a store that other hosts may share.
const DROP_LIMIT: Duration = Duration::from_secs(5);

/// A store of locks for this process.
pub struct Locks {
    engine: Arc<Engine>,
    location: Location,
}

/// A lock that this process holds. Dropping the guard releases the lock; the lock is free too if the process dies.
///
/// If other hosts may share the store, a thread renews the lease until the guard is dropped. If renewal fails for the
/// length of a lease, the lock is lost: [`Guard::release`] then returns false.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct Guard<'a> {
    engine: &'a Arc<Engine>,
    /// Dropping this sender ends the thread that renews.
    renewer: Option<Sender<Never>>,
    name: Vec<u8>,
    handle: Handle,
    token: u64,
}

impl Locks {
    /// Opens the store at `url`, in the syntax of `--store`: `dir:PATH`, `sqlite:PATH` or
    /// `etcd://HOST:PORT/PREFIX`.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid, or the store cannot be used.
    pub fn open(url: &str) -> Result<Locks> {
        let host: Arc<dyn Host> = Arc::new(Unix::new());
        let environment = Environment::of_this_process();
        let location = Location::parse(url.as_ref(), &environment.current)?;
        let engine =
            Engine::new(store::open(&location, Environment::etcd, host.clone())?, host).leasing(environment.lease()?);
        let engine = Arc::new(engine.remembering(environment.history().unwrap_or_default()));
        Ok(Locks { engine, location })
    }

    /// Returns the name of a lock in this store. A name with a slash means a file, by any path of the file.
    fn name_here(&self, typed: &str) -> Result<Vec<u8>> {
        name::check(typed.as_bytes())?;
        if !name::is_path(typed.as_bytes()) {
            return Ok(typed.as_bytes().to_vec());
        }
        let file = name::file_of(typed.as_bytes(), &Environment::of_this_process().current)?;
        let is_beside = file.parent().is_some_and(|directory| Location::beside(directory) == self.location);
        Ok(file.file_name().filter(|_| is_beside).unwrap_or(file.as_os_str()).as_bytes().to_vec())
    }

    /// Acquires a lock for this process and waits at most `at_most`. Returns `None` if another process holds it. A name
    /// with a slash means that file, as on the command line.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read or written, or if the name is invalid. Returns [`ErrorKind::Deadlock`]
    /// if this process already holds the lock.
    pub fn lock(&self, name: &str, at_most: Duration) -> Result<Option<Guard<'_>>> {
        let name = self.name_here(name)?;
        let host = self.engine.host();
        let process = host.this_process()?;
        let owner = Owner {
            domain: host.domain()?,
            processes: vec![process],
            supervisor: None,
            host: host.name(),
            uid: host.uid(),
            command: crate::host::command_of(process.pid),
            label: None,
        };
        let request = AcquireRequest::for_itself(self.engine.new_handle()?, owner, process);
        let policy = WaitPolicy { limit: Some(at_most), attempts: None, backoff: None };
        match self.engine.acquire(&name, &request, &policy, None, &mut |_| None)? {
            AcquireResult::Answer(Response::Granted(Grant { token, lifetime, .. }, _)) => Ok(Some(Guard {
                engine: &self.engine,
                renewer: matches!(lifetime, Lifetime::Keepalive(_)).then(|| self.renew(&name, &request.handle)),
                name,
                handle: request.handle,
                token: token.unwrap_or_default(),
            })),
            AcquireResult::Answer(Response::Deadlock(_)) => {
                let what = format!("this process holds lock {} already", name::escape(&name));
                Err(Error::new(ErrorKind::Deadlock, what, "give it back first"))
            }
            _ => Ok(None),
        }
    }
}

impl Locks {
    /// Starts a thread that renews a grant until the grant is released or the returned sender is dropped.
    fn renew(&self, name: &[u8], handle: &Handle) -> Sender<Never> {
        let (stop, stopped) = channel::<Never>();
        let (engine, name, proof) = (self.engine.clone(), name.to_vec(), handle.proof());
        let renew = move || -> Result<Response> {
            let lifetime = engine.start(&Lifetime::KeepalivePending(engine.lease().as_millis() as u64))?;
            engine.apply(&name, &Request::Renew(engine.credentials(Some(proof), Vec::new())?, lifetime))
        };
        let (often, seldom) = (self.engine.lease() / 30, self.engine.lease() / 3);
        std::thread::spawn(move || {
            let mut pause = seldom;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
                pause = match renew() {
                    Ok(Response::Renewed(_)) => seldom,
                    Ok(_) => break,
                    Err(_) => often,
                };
            }
        });
        stop
    }
}

impl Guard<'_> {
    /// Returns the fencing token. It only grows from one holder of this name to the next, so a service can refuse late
    /// writes under an old lock.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Releases the lock. Returns true if it was held until now.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be written. The lock is free anyway when this process ends.
    pub fn release(mut self) -> Result<bool> {
        let response = release(self.engine, &self.name, self.handle.proof());
        drop(self.renewer.take());
        std::mem::forget(self);
        response.map(|outcome| matches!(outcome, Response::Released(_)))
    }
}

fn release(engine: &Engine, name: &[u8], proof: HandleHash) -> Result<Response> {
    engine.apply(name, &Request::Release(engine.credentials(Some(proof), Vec::new())?))
}

impl Drop for Guard<'_> {
    /// Releases the lock. [`Guard::release`] reports, in addition, whether it was still held.
    ///
    /// A dead NFS server blocks its callers until it is back. If other hosts may share the store, a thread therefore
    /// releases the lock, and the caller waits at most five seconds. If that release fails, the lease ends the lock.
    fn drop(&mut self) {
        let proof = self.handle.proof();
        if self.engine.store().scope() == Scope::Local {
            let _ = release(self.engine, &self.name, proof);
            return;
        }
        let (engine, name) = (self.engine.clone(), std::mem::take(&mut self.name));
        let (done, is_done) = channel::<Never>();
        let work = move || {
            let _ = release(&engine, &name, proof);
            drop(done);
        };
        if std::thread::Builder::new().spawn(work).is_ok() {
            let _ = is_done.recv_timeout(DROP_LIMIT);
        }
    }
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Guard({}, token {})", crate::name::escape(&self.name), self.token)
    }
}
