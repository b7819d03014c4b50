//! A record with the liveness of its holders and waiters, for display.

use super::{Engine, WaitPolicy, decode, of_another_name};
use lock::error::Result;
use lock::{self, Facts, Grant, HandleHash, Lifetime, Liveness, ProcessId, Query, Record, Standing, Waiter, is_gone};
use store::Versioned;

#[derive(Debug, Clone)]
pub struct LockStatus {
    pub record: Record,
    /// For each holder: the liveness of its owner, or the reason why its grant has ended.
    pub holders: Vec<Standing>,
    /// For each holder: its effective owner; `None` if all its owners are dead.
    pub owners: Vec<Option<ProcessId>>,
    /// For each waiter: the liveness of its process; dead if the waiter does not count any more for another
    /// reason, unless the process is stopped.
    pub waiters: Vec<Liveness>,
    /// A caller that came now would get the lock at once, whatever its mode.
    pub is_free: bool,
}

impl LockStatus {
    pub fn is_held(&self) -> bool {
        self.holders.iter().any(|standing| standing.holds())
    }

    /// A grant under which the caller works, and which so ends only after the caller's wait.
    pub fn never_ends_within(&self, enclosing: &[HandleHash]) -> Option<&Grant> {
        let is_limited = |grant: &Grant| matches!(grant.lifetime, Lifetime::ExpiresAt(_));
        self.record.holders.iter().find(|grant| enclosing.contains(&grant.proof) && !is_limited(grant))
    }
}

impl Engine {
    /// Without the status of its holders, which costs questions to the store. The record of an unknown name is free.
    pub fn record(&self, name: &[u8]) -> Result<Record> {
        Ok(self.read(name)?.1)
    }

    pub fn inspect(&self, name: &[u8]) -> Result<LockStatus> {
        self.inspect_record(self.read(name)?.1)
    }

    /// Repeats `look` until its result is final or the policy ends the wait. Outlasts outages, and keeps no connection.
    pub fn poll<T>(
        &self,
        name: &[u8],
        policy: &WaitPolicy,
        look: &mut dyn FnMut(&Engine) -> Result<(bool, T)>,
    ) -> Result<T> {
        let (mut clock, end) = (policy.begin(self.host.boottime(), true), policy.end(self.host.boottime()));
        loop {
            let rest = policy.rest(end, self.host.boottime());
            let Some((is_final, found)) = self.outlast_outages(name, &rest, None, &mut |_| None, look)? else {
                continue;
            };
            let pause = if is_final { None } else { clock.next_pause(self.host.boottime(), 0) };
            let Some(pause) = pause else { return Ok(found) };
            self.host.sleep(self.pause_for_others(pause, clock.left(self.host.boottime())));
        }
    }

    /// Visits the status of every name in turn. `visit` gets an `Err` for an unreadable record.
    /// Fails if the store cannot be read, or with the error that `visit` returns.
    pub fn for_each_lock(&self, visit: &mut dyn FnMut(Result<LockStatus>) -> Result<()>) -> Result<()> {
        self.for_each_record(&mut |record| visit(record.and_then(|record| self.inspect_record(record))))
    }

    /// Least name of a held lock that `is_meant`, without unreadable records. Fails if the store cannot be read.
    pub fn find_held(&self, is_meant: &dyn Fn(&[u8]) -> bool) -> Result<Option<Vec<u8>>> {
        let mut found: Option<Vec<u8>> = None;
        self.for_each_record(&mut |record| {
            if let Ok(record) = record
                && is_meant(&record.name)
                && found.as_ref().is_none_or(|found| record.name < *found)
                && self.inspect_record(record.clone())?.is_held()
            {
                found = Some(record.name);
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn for_each_record(&self, visit: &mut dyn FnMut(Result<Record>) -> Result<()>) -> Result<()> {
        self.store.scan(self.call, &mut |place, stored| {
            if stored.as_ref().is_ok_and(|stored| self.is_auxiliary(stored, place)) {
                return Ok(());
            }
            let record = stored
                .and_then(|stored| decode(&stored, || place.to_string()))
                .and_then(|record| self.check_location(record, place));
            visit(record)
        })
    }

    /// True for an auxiliary object under its own name. A lookalike is stored in the place of a record.
    fn is_auxiliary(&self, stored: &Versioned, place: &str) -> bool {
        let key =
            Some(&stored.body).filter(|body| lock::is_auxiliary(body)).and_then(|body| lock::name_of_auxiliary(body));
        key.is_some_and(|key| key.contains(&0) && self.store.describe(&key) == place)
    }

    /// Fails if the record is not in the place of its name. A record that a power cut tore has no name and passes.
    fn check_location(&self, record: Record, place: &str) -> Result<Record> {
        if record.name.is_empty() || self.store.describe(&record.name) == place {
            return Ok(record);
        }
        Err(of_another_name(place, &record.name))
    }

    /// Returns the status of a record. The method reads the record again before it reports a grant as ended. An owner
    /// that ends during the read may have confirmed or released the grant before.
    pub(super) fn inspect_record(&self, mut record: Record) -> Result<LockStatus> {
        loop {
            let status = self.status(self.whole(record.clone())?)?;
            if status.holders.iter().all(|standing| standing.holds()) {
                return Ok(status);
            }
            let now = self.read(&record.name)?.1;
            if now == record {
                return Ok(status);
            }
            record = now;
        }
    }

    fn status(&self, record: Record) -> Result<LockStatus> {
        let mut facts = Facts::at(self.host.wall().as_millis() as u64);
        self.prefetch(&record, &mut facts)?;
        let leases: Vec<_> = record.waiters.iter().filter_map(|waiter| waiter.lease.as_ref()).collect();
        self.store.leases().look_ahead(self.call, &leases)?;
        loop {
            match status(&record, &facts) {
                Ok(status) => return Ok(status),
                Err(query) => self.learn(&record, &mut facts, query, None)?,
            }
        }
    }
}

fn status(record: &Record, facts: &Facts) -> std::result::Result<LockStatus, Query> {
    let holders =
        record.holders.iter().map(|grant| Standing::of(grant, facts)).collect::<std::result::Result<_, _>>()?;
    let owner = |grant: &Grant| Ok(facts.effective_owner(&grant.owner)?.map(|(owner, _)| owner));
    let owners = record.holders.iter().map(owner).collect::<std::result::Result<_, _>>()?;
    let liveness = |waiter: &Waiter| match facts.liveness(&waiter.owner.domain, &waiter.process)? {
        // A stopped waiter does not extend its lease.
        Liveness::Stopped => Ok(Liveness::Stopped),
        _ if is_gone(waiter, facts)? => Ok(Liveness::Dead),
        liveness => Ok(liveness),
    };
    let waiters = record.waiters.iter().map(liveness).collect::<std::result::Result<_, _>>()?;
    Ok(LockStatus { record: record.clone(), holders, owners, waiters, is_free: lock::is_free(record, facts)? })
}
