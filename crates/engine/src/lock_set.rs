//! The locks of one call: their names, the order in which they are acquired, and their stores.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use super::{AcquireRequest, Context, Engine, StoredLock, confirm_all};
use crate::environment::{self, CurrentDirectory};
use lock::history::Use;
use lock::name::{escape, shell_quote, spelled};
use lock::{EndReason, Error, ErrorKind, Grant, HandleHash, Lease, NotHolder, Result};
use store::{Call, Location, in_order};

pub type Released = std::result::Result<Grant, NotHolder>;

/// A lock: the store that contains its record, and its name in that store.
#[derive(Debug, Clone)]
pub struct LockRef {
    pub location: Location,
    pub name: Vec<u8>,
    /// Name for display: the name, or the file's absolute path.
    pub display_name: Vec<u8>,
    /// Shell words that mean this lock: `--store` if it was given, and the name.
    pub shell_arg: String,
    /// A name that was typed as `name:/x` is none.
    pub is_file: bool,
}

#[derive(Debug)]
pub struct LockSet {
    /// Each lock once, in the order in which every caller acquires them.
    pub all: Vec<LockRef>,
    pub first_at: usize,
}

pub struct OpenLockSet<'a> {
    targets: &'a LockSet,
    engines: Vec<Engine>,
    /// Index of the engine for each lock.
    of: Vec<usize>,
    lease: Option<Duration>,
}

impl LockRef {
    pub fn in_store(location: &Location, name: Vec<u8>) -> LockRef {
        let shell_arg = shell_quote(&spelled(&name));
        LockRef { location: location.clone(), display_name: name.clone(), name, shell_arg, is_file: false }
    }
}

impl Engine {
    /// Shell words that mean the lock with this name: they select the store unless it is the default.
    pub(super) fn shell_arg(&self, name: &[u8]) -> String {
        let Some(location) = &self.location else { return shell_quote(name) };
        if let Some(directory) = location.directory_of_files() {
            return shell_quote(directory.join(OsStr::from_bytes(name)).as_os_str().as_bytes());
        }
        let chosen = environment::variable("CSALOCK_STORE");
        let chosen = chosen.and_then(|url| crate::location(&url, CurrentDirectory::default()).ok());
        let default = chosen.filter(|chosen| !chosen.is_beside()).or_else(|| environment::default_store().ok());
        let dashes = if name.starts_with(b"-") { "-- " } else { "" };
        let words = format!("{dashes}{}", shell_quote(&spelled(name)));
        if default.as_ref() == Some(location) {
            return words;
        }
        format!("--store {} {words}", shell_quote(location.url().as_bytes()))
    }
}

impl LockSet {
    /// `all` begins with the lock that was named first.
    pub fn new(mut all: Vec<LockRef>) -> LockSet {
        let stores = in_order(all.iter().map(|target| target.location.clone()).collect());
        let at = |target: &LockRef| stores.iter().position(|store| store.contains(&target.location));
        let key = |target: &LockRef| (at(target), target.name.clone());
        let first_key = all.first().map(key);
        if all.len() > 1 {
            all.sort_by_cached_key(key);
            all.dedup_by_key(|target| key(target));
        }
        let first_at = all.iter().position(|target| Some(key(target)) == first_key).unwrap_or(0);
        for target in &mut all {
            // A store is opened once, even if it has several paths.
            if let Some(location) = at(target).and_then(|at| stores[at].first()) {
                target.location = location.clone();
            }
        }
        LockSet { all, first_at }
    }

    pub fn of_store(location: &Location, names: Vec<Vec<u8>>) -> LockSet {
        LockSet { all: names.into_iter().map(|name| LockRef::in_store(location, name)).collect(), first_at: 0 }
    }

    pub fn first(&self) -> &LockRef {
        &self.all[self.first_at]
    }

    pub fn shown_names(&self) -> String {
        self.all.iter().map(|target| escape(&target.display_name)).collect::<Vec<_>>().join(", ")
    }

    pub fn open(&self, context: &Context) -> Result<OpenLockSet<'_>> {
        // Most sets have one store, and a vector that grows begins with room for four: 2 KiB too much.
        let mut opened = OpenLockSet { targets: self, engines: Vec::with_capacity(1), of: Vec::new(), lease: None };
        for (at, target) in self.all.iter().enumerate() {
            // The locks are sorted by store.
            if at == 0 || self.all[at - 1].location != target.location {
                opened.engines.push(context.engine(&target.location)?);
            }
            opened.of.push(opened.engines.len() - 1);
        }
        opened.lease = opened.engines.iter().filter(|engine| engine.needs_leases()).map(Engine::lease).min();
        Ok(opened)
    }
}

impl OpenLockSet<'_> {
    pub fn target(&self, at: usize) -> &LockRef {
        &self.targets.all[at]
    }

    pub fn engine(&self, at: usize) -> &Engine {
        &self.engines[self.of[at]]
    }

    pub fn each(&self) -> impl DoubleEndedIterator<Item = (&LockRef, &Engine)> {
        self.targets.all.iter().enumerate().map(|(at, target)| (target, self.engine(at)))
    }

    pub fn stores(&self) -> Vec<(&Engine, Vec<&[u8]>)> {
        let mut stores: Vec<(&Engine, Vec<&[u8]>)> = self.engines.iter().map(|engine| (engine, Vec::new())).collect();
        for (target, store) in self.targets.all.iter().zip(&self.of) {
            stores[*store].1.push(&target.name);
        }
        stores
    }

    /// Confirms provisional grants that the caller knows. Releases the grants that it cannot confirm. Returns `None` if
    /// the caller has released them already. While `go_on` returns true, it asks a store again that answered before and
    /// is silent now.
    /// Fails if a lock was lost, or if a store cannot be read or written.
    pub fn confirm(
        &self,
        request: &AcquireRequest,
        grants: &[Grant],
        go_on: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<Grant>>> {
        let confirmed = loop {
            match confirm_all(&self.lock_refs(), request, grants) {
                Err(error) if error.kind() == ErrorKind::Unavailable && self.lease.is_some() && go_on() => {}
                confirmed => break confirmed,
            }
        };
        if let Ok(Some(grants)) = confirmed {
            return Ok(Some(grants));
        }
        // No other process acquires a lock before its lease is over. A free lock keeps no trace of its last grant.
        let lasts = self.lease_ends(grants).is_none_or(|ends| self.engines[0].host().boottime() < ends);
        let given_back = self.release(self.engines[0].call(), request.handle.proof(), Use::Unknown);
        confirmed?;
        let was_given_back = |answer: &Result<Released>| match answer {
            Ok(Err(NotHolder { ending, .. })) => {
                ending.as_ref().map_or(lasts, |ending| ending.reason == EndReason::Released)
            }
            Ok(Ok(_)) | Err(_) => false,
        };
        if given_back.iter().any(was_given_back) {
            return Ok(None);
        }
        let what = format!("lock {} was lost while it was taken", self.targets.shown_names());
        Err(Error::new(ErrorKind::Lost, what, "take it again; see `csalock doctor`"))
    }

    pub fn lock_refs(&self) -> Vec<StoredLock<'_>> {
        self.each().map(|(target, engine)| StoredLock { engine, name: &target.name }).collect()
    }

    /// The leases of these grants that this process started, each with its end on CLOCK_BOOTTIME.
    pub fn leases(&self, grants: &[Grant]) -> Vec<Option<(Lease, Duration)>> {
        let lease =
            |(engine, grant): (&Engine, &Grant)| Some((grant.lifetime.lease()?.clone(), engine.ends(&grant.lifetime)?));
        self.each().map(|(_, engine)| engine).zip(grants).map(lease).collect()
    }

    /// When the first of the leases of these grants ends, on CLOCK_BOOTTIME; `None` without a lease.
    pub fn lease_ends(&self, grants: &[Grant]) -> Option<Duration> {
        self.leases(grants).into_iter().flatten().map(|(_, ends)| ends).min()
    }

    /// These locks, with stores whose calls have these limits.
    pub fn during(mut self, call: Call) -> Self {
        self.engines.iter_mut().for_each(|engine| engine.call = call);
        self
    }

    pub fn answers(&self) -> u64 {
        self.engines.iter().map(|engine| engine.store.answers()).sum()
    }

    /// Gives the connections to servers back before a long pause. The next call makes new ones.
    pub fn rest(&self) {
        self.engines.iter().for_each(|engine| _ = engine.store.before_wait(engine.call, true));
    }

    /// Length of the shortest leases that a store of these locks needed when it was opened; `None` if none did.
    pub fn lease(&self) -> Option<Duration> {
        self.lease
    }

    /// Length of the shortest leases here. A store that needs none does not count, unless none of them does.
    pub fn span(&self) -> Duration {
        self.lease.unwrap_or_else(|| self.engine(0).lease())
    }

    /// Tries all locks, the last one first, by calls with these limits. The answers are in the order of the locks.
    pub fn release(&self, call: Call, proof: HandleHash, used: Use) -> Vec<Result<Released>> {
        let release =
            |(target, engine): (&LockRef, &Engine)| engine.during(call).release_after(&target.name, proof, used);
        let mut answers: Vec<_> = self.each().rev().map(release).collect();
        answers.reverse();
        answers
    }

    pub fn release_all(&self, proof: HandleHash) -> Result<()> {
        self.release(self.engines[0].call(), proof, Use::Unknown).into_iter().try_for_each(|answer| answer.map(drop))
    }
}
