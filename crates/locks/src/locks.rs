//! Locks for Rust programs: a store, and a request for locks in it.

use std::fmt;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use crate::acquired::{Acquired, Refused};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{self, Guard};
use engine::environment::{self, CurrentDirectory};
use engine::{AcquireRequest, AcquireResult, Engine, Settings, StoredLock, WaitPolicy, acquire_all};
use host::{Host, Unix, command_of, new_owner};
use lock::duration::SHORTEST_LEASE;
use lock::name;
use lock::{Lifetime, MOST_SLOTS, Mode, Refusal};
use store::Location;

/// A store of locks for this process. A clone is the same store.
///
/// It has the locks of the command `csalock --store URL`: programs and scripts exclude each other.
#[derive(Clone)]
pub struct Locks {
    engine: Arc<Engine>,
    location: Location,
}

/// How a store is opened.
///
/// ```
/// # use csalock_locks::OpenOptions;
/// # use std::time::Duration;
/// # let store = tempfile::tempdir()?;
/// # let url = format!("dir:{}?shared=1", store.path().display());
/// let locks = OpenOptions::new().lease(Duration::from_secs(180)).open(&url)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    lease: Option<Duration>,
    environment: bool,
}

/// A request for one lock, or for several locks that are acquired together.
///
/// A request is exclusive and does not wait, unless it says otherwise.
///
/// ```
/// # use csalock_locks::{Acquired, LockRequest, Locks};
/// # use std::time::Duration;
/// # let store = tempfile::tempdir()?;
/// # let locks = Locks::open(&format!("dir:{}", store.path().display()))?;
/// let request = LockRequest::new(["ledger", "archive"]).wait(Duration::from_secs(5)).label("month end");
/// match locks.acquire(&request)? {
///     Acquired::Held(guard) => guard.release()?,
///     Acquired::Refused(refused) => eprintln!("{refused}"),
/// }
///
/// let [first, second] = [0, 1].map(|_| locks.acquire(&LockRequest::new(["licence"]).slots(2)));
/// assert!(first?.held().is_some() && second?.held().is_some(), "two of at most two");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "`Locks::acquire` acquires the locks"]
pub struct LockRequest {
    names: Vec<String>,
    mode: Mode,
    slots: Option<u32>,
    ttl: Option<Duration>,
    wait: Duration,
    label: Option<String>,
}

impl LockRequest {
    /// Creates a request for these locks: all of them or none. A name with a slash means that file, by any of its
    /// paths, as on the command line.
    pub fn new<N: Into<String>>(names: impl IntoIterator<Item = N>) -> LockRequest {
        let names = names.into_iter().map(Into::into).collect();
        LockRequest { names, mode: Mode::Exclusive, slots: None, ttl: None, wait: Duration::ZERO, label: None }
    }

    /// Shares the locks with other readers.
    pub fn shared(self) -> LockRequest {
        LockRequest { mode: Mode::Shared, slots: None, ..self }
    }

    /// Takes one of `number` slots, 1 to 10,000: at most so many processes hold the lock at once. While the holders
    /// count another number, the lock is busy.
    pub fn slots(self, number: u32) -> LockRequest {
        LockRequest { mode: Mode::Slot, slots: Some(number), ..self }
    }

    /// Ends the grant after this time, even if this process still lives. The time starts when the locks are acquired.
    pub fn ttl(self, ttl: Duration) -> LockRequest {
        LockRequest { ttl: Some(ttl), ..self }
    }

    /// Waits at most this long in the queue of the locks.
    pub fn wait(self, at_most: Duration) -> LockRequest {
        LockRequest { wait: at_most, ..self }
    }

    /// `csalock status` shows this reason to others.
    pub fn label(self, reason: impl Into<String>) -> LockRequest {
        LockRequest { label: Some(reason.into()), ..self }
    }

    fn check(&self) -> Result<()> {
        let wrong = if self.names.is_empty() {
            "no lock is named"
        } else if self.slots.is_some_and(|slots| !(1..=MOST_SLOTS).contains(&slots)) {
            "the number of slots is not from 1 to 10,000"
        } else if self.ttl.is_some_and(|ttl| ttl.as_millis() == 0) {
            "a time limit of less than 1 ms leaves no time"
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidInput, wrong))
    }
}

impl OpenOptions {
    /// No variable of the environment is read, and leases last 60 seconds unless the URL says otherwise.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// Duration of the leases, three seconds at least. A store has leases if other hosts may share it: a lock that was not
    /// released, because its host lost its power, is free after this time. All users of a store should have the same, so
    /// its URL may say it: `?lease=3m`.
    pub fn lease(self, lease: Duration) -> OpenOptions {
        OpenOptions { lease: Some(lease), ..self }
    }

    /// Reads the variables that csalock(1) lists too: `CSALOCK_LEASE`, unless a lease is set here, `CSALOCK_HISTORY`, the
    /// password of etcd and the variables of PostgreSQL, for example.
    pub fn environment(self, is_read: bool) -> OpenOptions {
        OpenOptions { environment: is_read, ..self }
    }

    /// Opens the store at `url`, in the syntax of `--store`: `dir:PATH`, `sqlite:PATH`,
    /// `etcd://HOST:PORT/PREFIX`, `postgres://HOST:PORT/DATABASE` or `ssh://HOST/PATH`.
    ///
    /// # Errors
    ///
    /// Fails if the URL or the lease is invalid, or the store cannot be used.
    pub fn open(&self, url: &str) -> Result<Locks> {
        if self.lease.is_some_and(|lease| lease < SHORTEST_LEASE) {
            return Err(Error::new(ErrorKind::InvalidInput, "a lease of less than three seconds is too short"));
        }
        let host: Arc<dyn Host> = Arc::new(Unix::new());
        let location = engine::location(url.as_ref(), CurrentDirectory::default())?;
        let variable = |name: &str| if self.environment { environment::variable(name) } else { None };
        let settings = Settings { variables: &variable, lease: self.lease };
        let engine = Arc::new(Engine::open_with(&location, host, &settings)?);
        Ok(Locks { engine, location })
    }
}

impl Locks {
    /// Opens the store at `url` with the default [`OpenOptions`]: without the environment.
    ///
    /// # Errors
    ///
    /// Fails like [`OpenOptions::open`].
    pub fn open(url: &str) -> Result<Locks> {
        OpenOptions::new().open(url)
    }

    /// Acquires one lock exclusively and waits at most `at_most`.
    ///
    /// # Errors
    ///
    /// Fails like [`Locks::acquire`].
    pub fn lock(&self, name: &str, at_most: Duration) -> Result<Acquired> {
        self.acquire(&LockRequest::new([name]).wait(at_most))
    }

    /// Acquires the locks of a request for this process: all of them or none.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read or written, or with the kind
    /// - [`ErrorKind::InvalidInput`] if a name or another term of the request is invalid,
    /// - [`ErrorKind::Deadlock`] if the wait would never end, because this process holds one of the locks. The
    ///   locks belong to the process, so its threads do not wait for each other; a [`std::sync::Mutex`] does that.
    pub fn acquire(&self, request: &LockRequest) -> Result<Acquired> {
        request.check()?;
        let mut names = request.names.iter().map(|name| self.name_here(name)).collect::<Result<Vec<_>>>()?;
        // Every caller acquires several names in the same order.
        names.sort();
        names.dedup();
        let host = self.engine.host();
        let process = host.this_process()?;
        let label = request.label.as_ref().map(String::as_bytes);
        let owner = new_owner(host, vec![process], &command_of(process.pid), label)?;
        let mut terms = AcquireRequest::for_itself(self.engine.host().new_handle()?, owner, process);
        (terms.entry.mode, terms.entry.slots) = (request.mode, request.slots.and_then(NonZeroU32::new));
        if let Some(ttl) = request.ttl {
            terms.entry.lifetime = Lifetime::Ttl(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        }
        let policy = WaitPolicy { limit: Some(request.wait), backoff: None };
        let locks: Vec<_> = names.iter().map(|name| StoredLock { engine: &self.engine, name }).collect();
        // This process lives on, so a waiter or a grant that a failed call left behind would not end by itself.
        let leave = |_: &lock::Error| drop(guard::release(&self.engine, &names, terms.handle.proof()));
        match acquire_all(&locks, &terms, &policy, None, &mut |_, _| None).inspect_err(leave)? {
            AcquireResult::Granted(grants, _) => {
                Guard::new(self.engine.clone(), names, &terms.handle, process, &grants).map(Acquired::Held)
            }
            AcquireResult::Refused(at, refusal) => refuse(&names[at], &refusal).map(Acquired::Refused),
            AcquireResult::Interrupted => Err(Error::new(ErrorKind::System, "the wait was interrupted")),
        }
    }

    /// A name with a slash means a file, by any path of the file.
    fn name_here(&self, typed: &str) -> Result<Vec<u8>> {
        name::check(typed.as_bytes())?;
        if !name::is_path(typed.as_bytes()) {
            return Ok(name::literal(typed.as_bytes()).unwrap_or(typed.as_bytes()).to_vec());
        }
        let file = name::file_of(typed.as_bytes(), CurrentDirectory::default())?;
        let is_beside = file.parent().is_some_and(|directory| Location::beside(directory) == self.location);
        let name = if is_beside { file.file_name() } else { None };
        Ok(name.unwrap_or(file.as_os_str()).as_bytes().to_vec())
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Locks({})", self.location.url().to_string_lossy())
    }
}

/// An error if a wait would not free the lock.
fn refuse(name: &[u8], refusal: &Refusal) -> Result<Refused> {
    let Refusal::Deadlock(edges) = refusal else { return Ok(Refused::new(name, refusal)) };
    let name = lock::escape::escape(name);
    let what = if edges.len() == 1 {
        format!("this process holds lock {name} already")
    } else {
        format!(
            "lock {name}: waiting would never end; release what this process holds, or acquire all locks in one request"
        )
    };
    Err(Error::new(ErrorKind::Deadlock, what))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use host::Fake;
    use lock::error::{Error, ErrorKind, Result};
    use store::{
        Abilities, Call, CommitResult, Finding, Leases, Memory, Scope, Store, Upkeep, Versioned, Visit, WriteSet,
    };

    /// A store that makes its first commit and then says that it does not know whether.
    struct Vague {
        memory: Memory,
        was_asked: AtomicBool,
    }

    impl Store for Vague {
        fn read(&self, call: Call, name: &[u8]) -> Result<Option<Versioned>> {
            self.memory.read(call, name)
        }

        fn commit(&self, call: Call, set: &WriteSet<'_>) -> Result<CommitResult> {
            let done = self.memory.commit(call, set)?;
            if self.was_asked.swap(true, Ordering::Relaxed) {
                return Ok(done);
            }
            Err(Error::new(ErrorKind::System, "no descriptor is left", "").outcome_unknown())
        }

        fn scan(&self, call: Call, visit: &mut Visit<'_>) -> Result<()> {
            self.memory.scan(call, visit)
        }

        fn leases(&self) -> &dyn Leases {
            self.memory.leases()
        }

        fn abilities(&self) -> Abilities {
            Abilities::of(Scope::Local)
        }
    }

    impl Upkeep for Vague {
        fn describe(&self, name: &[u8]) -> String {
            self.memory.describe(name)
        }

        fn diagnose(&self, _call: Call) -> Vec<Finding> {
            Vec::new()
        }
    }

    #[test]
    fn a_failed_call_leaves_no_grant_to_a_process_that_lives_on() {
        let host: Arc<dyn Host> = Arc::new(Fake::new(1));
        let store = Vague { memory: Memory::new(host.clone()), was_asked: AtomicBool::new(false) };
        let location = engine::location("dir:/x".as_ref(), "/").unwrap();
        let locks = Locks { engine: Arc::new(Engine::new(Box::new(store), host)), location };
        assert_eq!(locks.lock("x", Duration::ZERO).unwrap_err().kind(), crate::ErrorKind::System);
        assert!(locks.engine.inspect(b"x").unwrap().record.holders.is_empty());
    }
}
