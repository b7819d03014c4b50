//! Locks for Rust programs: a guard that gives back when it goes.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::engine::{AcquireRequest, AcquireResult, Engine, WaitPolicy};
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::{Host, Unix};
use crate::lock::{Grant, Handle, HandleHash, Lifetime, Owner, Request, Response};
use crate::name;
use crate::store::{self, Location, Scope};

/// What is never sent.
enum Never {}

/// How long a guard that is dropped waits for a store that other hosts may share.
const DROP_LIMIT: Duration = Duration::from_secs(5);

/// A store of locks, for this process.
pub struct Locks {
    engine: Arc<Engine>,
    location: Location,
}

/// A lock that this process holds. Dropping it gives it back; should the process die, the lock is free all the same.
///
/// Where other hosts may share the store, a thread renews its lease as long as the guard is there. Should that not be
/// possible for the length of a lease, the lock is lost: [`Guard::release`] says so.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct Guard<'a> {
    engine: &'a Arc<Engine>,
    /// Dropping it ends the thread that renews.
    renewer: Option<Sender<Never>>,
    name: Vec<u8>,
    handle: Handle,
    token: u64,
}

impl Locks {
    /// The locks in the store at `url`, as `--store` takes it: `dir:PATH`, `sqlite:PATH` or
    /// `etcd://HOST:PORT/PREFIX`.
    ///
    /// # Errors
    ///
    /// When the URL is none, or the store cannot be used.
    pub fn open(url: &str) -> Result<Locks> {
        let host: Arc<dyn Host> = Arc::new(Unix::new());
        let environment = Environment::of_this_process();
        let location = Location::parse(url.as_ref(), &environment.current)?;
        let engine = Engine::new(store::open(&location, host.clone())?, host).leasing(environment.lease()?);
        let engine = Arc::new(engine.remembering(environment.history().unwrap_or_default()));
        Ok(Locks { engine, location })
    }

    /// The name that a lock has in this store: one with a slash means a file, by whatever path it is named.
    fn name_here(&self, typed: &str) -> Result<Vec<u8>> {
        name::check(typed.as_bytes())?;
        if !name::is_path(typed.as_bytes()) {
            return Ok(typed.as_bytes().to_vec());
        }
        let file = name::file_of(typed.as_bytes(), &Environment::of_this_process().current)?;
        let is_beside = file.parent().is_some_and(|directory| Location::beside(directory) == self.location);
        Ok(file.file_name().filter(|_| is_beside).unwrap_or(file.as_os_str()).as_bytes().to_vec())
    }

    /// Takes a lock for this process, waiting for it at most so long. `None`: somebody else has it. A name with a slash means
    /// that file, as on the command line.
    ///
    /// # Errors
    ///
    /// When we could not find out: the store cannot be asked or told, or the name is none. And
    /// [`Exit::Deadlock`] when this process holds it already.
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
                Err(Error::new(Exit::Deadlock, what, "give it back first"))
            }
            _ => Ok(None),
        }
    }
}

impl Locks {
    /// Starts a thread that renews a grant until it is given back, or what this returns is dropped.
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
    /// The fencing token: it only grows from one holder of this name to the next, so whoever is written to under the lock
    /// can refuse those who come too late.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Gives the lock back, and says whether it was still held until now.
    ///
    /// # Errors
    ///
    /// When the store cannot be told. The lock is free all the same when this process ends.
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
    /// Releases the lock; [`Guard::release`] also says whether it was still held.
    ///
    /// A dead NFS server holds up its callers until it is back. So where other hosts may share the store, a thread
    /// releases the lock, and the caller waits for it for at most five seconds. Without that release the lease ends the lock.
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
