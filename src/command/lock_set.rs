//! The locks that one call is about: which they are, in which order they are taken, and the stores that they are in.

use std::ffi::OsString;
use std::time::Duration;

use super::context::{Context, LockRef};
use crate::cli::Common;
use crate::engine::{
    AcquireAllResult, AcquireRequest, Engine, Onlooker, StoredLock, WaitPolicy, acquire_all, confirm_all,
};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lock::{EndReason, Grant, HandleHash, Lease, Request, Response};
use crate::name::escape;
use crate::report::Reporter;
use crate::shared_deadline::SharedDeadline;
use crate::store::{Location, Scope, in_order};

/// Locks that are taken together.
#[derive(Debug)]
pub(super) struct LockSet {
    /// Each once, in the order in which everybody takes them.
    pub(super) all: Vec<LockRef>,
    /// Which of them was named first.
    first: usize,
}

/// The same, with their stores open.
pub(super) struct OpenLockSet<'a> {
    targets: &'a LockSet,
    engines: Vec<Engine>,
    /// For each target, which engine.
    of: Vec<usize>,
}

impl LockSet {
    pub(super) fn new(context: &Context, common: &Common, typed: &[OsString]) -> Result<LockSet> {
        let mut all = typed.iter().map(|name| context.target(common, name)).collect::<Result<Vec<_>>>()?;
        let stores = in_order(all.iter().map(|target| target.location.clone()).collect());
        let at = |target: &LockRef| stores.iter().position(|store| store.contains(&target.location));
        let key = |target: &LockRef| (at(target), target.name.clone());
        let first_key = all.first().map(key);
        if all.len() > 1 {
            all.sort_by_cached_key(key);
            all.dedup_by_key(|target| key(target));
        }
        let first = all.iter().position(|target| Some(key(target)) == first_key).unwrap_or(0);
        for target in &mut all {
            // One store is opened once, whatever paths it has.
            if let Some(location) = at(target).and_then(|at| stores[at].first()) {
                target.location = location.clone();
            }
        }
        Ok(LockSet { all, first })
    }

    /// These names in one store, in their order.
    pub(super) fn of_store(location: &Location, names: Vec<Vec<u8>>) -> LockSet {
        let target = |name: Vec<u8>| {
            let shell_arg = crate::name::shell_quote(&name);
            LockRef { location: location.clone(), display_name: name.clone(), name, shell_arg }
        };
        LockSet { all: names.into_iter().map(target).collect(), first: 0 }
    }

    /// The one that was named first.
    pub(super) fn first(&self) -> &LockRef {
        &self.all[self.first]
    }

    /// Where the one that was named first stands.
    pub(super) fn first_at(&self) -> usize {
        self.first
    }

    /// Opens their stores, each once.
    pub(super) fn open(&self, context: &Context) -> Result<OpenLockSet<'_>> {
        let mut opened = OpenLockSet { targets: self, engines: Vec::new(), of: Vec::new() };
        for (at, target) in self.all.iter().enumerate() {
            // They are sorted by store.
            if at == 0 || self.all[at - 1].location != target.location {
                opened.engines.push(context.engine(&target.location)?);
            }
            opened.of.push(opened.engines.len() - 1);
        }
        Ok(opened)
    }
}

impl OpenLockSet<'_> {
    pub(super) fn engine(&self, at: usize) -> &Engine {
        &self.engines[self.of[at]]
    }

    pub(super) fn reporter(&self, at: usize) -> Reporter<'_> {
        Reporter { host: self.engine(at).host(), scope: self.engine(at).store().scope() }
    }

    /// Each target with its engine.
    pub(super) fn each(&self) -> impl DoubleEndedIterator<Item = (&LockRef, &Engine)> {
        self.targets.all.iter().enumerate().map(|(at, target)| (target, self.engine(at)))
    }

    /// Each store with the names in it.
    pub(super) fn stores(&self) -> Vec<(&Engine, Vec<&[u8]>)> {
        let mut stores: Vec<(&Engine, Vec<&[u8]>)> = self.engines.iter().map(|engine| (engine, Vec::new())).collect();
        for (target, store) in self.targets.all.iter().zip(&self.of) {
            stores[*store].1.push(&target.name);
        }
        stores
    }

    /// Takes all of them or none.
    pub(super) fn acquire(
        &self,
        request: &AcquireRequest,
        policy: &WaitPolicy,
        interrupt: Option<std::os::fd::BorrowedFd<'_>>,
        on_wait: &mut Onlooker<'_>,
    ) -> Result<AcquireAllResult> {
        acquire_all(&self.lock_refs(), request, policy, interrupt, on_wait)
    }

    /// Takes for good what was taken tentatively, and has been told to whoever is to have it. What cannot be had for good is
    /// given back. `None`: it is gone, for whoever was told has given it back already. A store that answered before and does
    /// not any more is asked again while we are to `go_on`.
    ///
    /// # Errors
    ///
    /// When it was lost, and when a store cannot be asked or told.
    pub(super) fn confirm(
        &self,
        request: &AcquireRequest,
        grants: Vec<Grant>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<Grant>>> {
        let confirmed = loop {
            match confirm_all(&self.lock_refs(), request, grants.clone()) {
                Err(error) if error.exit() == Exit::Unreachable && self.are_shared() && go_on() => {}
                confirmed => break confirmed,
            }
        };
        if let Ok(Some(grants)) = confirmed {
            return Ok(Some(grants));
        }
        // A lease that is not over was taken by no other process. A lock that is free leaves no trace of its last grant.
        let lasts = self.lease_ends(&grants).is_none_or(|ends| self.engines[0].host().boottime() < ends);
        let given_back = self.release(request.handle.proof());
        confirmed?;
        let was_given_back = |answer: &Result<Response>| match answer {
            Ok(Response::NotHeld(None) | Response::NotOwner(_, None)) => lasts,
            Ok(Response::NotHeld(Some(ending)) | Response::NotOwner(_, Some(ending))) => {
                ending.reason == EndReason::Released
            }
            _ => false,
        };
        if given_back.iter().any(was_given_back) {
            return Ok(None);
        }
        let names = self.targets.all.iter().map(|target| escape(&target.display_name)).collect::<Vec<_>>().join(", ");
        let what = format!("lock {names} was lost while it was taken");
        Err(Error::new(Exit::Lost, what, "take it again; see `csalock doctor`"))
    }

    fn lock_refs(&self) -> Vec<StoredLock<'_>> {
        self.each().map(|(target, engine)| StoredLock { engine, name: &target.name }).collect()
    }

    /// When the first of the leases of these grants ends on CLOCK_BOOTTIME, if they have any.
    pub(super) fn lease_ends(&self, grants: &[Grant]) -> Option<Duration> {
        self.each().zip(grants).filter_map(|((_, engine), grant)| engine.ends(&grant.lifetime)).min()
    }

    /// Tells whoever watches the leases of these grants, which have just begun.
    pub(super) fn start_leases(&self, grants: &[Grant], told: SharedDeadline) {
        let leases: Vec<&Lease> = grants.iter().filter_map(|grant| grant.lifetime.lease()).collect();
        told.start(self.lease_ends(grants), &leases);
    }

    /// Whether other hosts may share one of the stores.
    pub(super) fn are_shared(&self) -> bool {
        self.engines.iter().any(|engine| engine.store().scope() == Scope::Shared)
    }

    /// Gives back what this handle proves: one answer for each target, as far as it could be found out.
    pub(super) fn release(&self, proof: HandleHash) -> Vec<Result<Response>> {
        let release = |(target, engine): (&LockRef, &Engine)| {
            engine.apply(&target.name, &Request::Release(engine.supervisor(proof)?))
        };
        let mut answers: Vec<_> = self.each().rev().map(release).collect();
        answers.reverse();
        answers
    }
}
