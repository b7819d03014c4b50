//! In-memory store, for tests and as the shortest definition of a store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{CommitResult, Finding, Scope, Store, Version, Versioned, Visit, WriteOptions};
use crate::error::Result;
use crate::history::Limits;
use crate::host::Host;
use crate::host::boot_lease;
use crate::lock::Lease;

/// Store that ends with the process.
pub struct Memory {
    host: Arc<dyn Host>,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    versions: u64,
    records: BTreeMap<Vec<u8>, Versioned>,
    notes: Vec<Vec<u8>>,
}

impl Memory {
    /// Returns an empty store.
    pub fn new(host: Arc<dyn Host>) -> Memory {
        Memory { host, inside: Mutex::default() }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Memory {
    fn read(&self, name: &[u8]) -> Result<Option<Versioned>> {
        Ok(self.inside().records.get(name).cloned())
    }

    fn commit_with(
        &self,
        name: &[u8],
        expect: Option<&Version>,
        body: Option<&[u8]>,
        _keep: WriteOptions,
    ) -> Result<CommitResult> {
        let mut inside = self.inside();
        if inside.records.get(name).map(|stored| &stored.version) != expect {
            return Ok(CommitResult::Conflict);
        }
        inside.versions += 1;
        let version = Version { number: inside.versions, mark: 0 };
        match body {
            Some(body) => {
                inside.records.insert(name.to_vec(), Versioned { version, body: body.to_vec(), may_be_torn: false })
            }
            None => inside.records.remove(name),
        };
        Ok(CommitResult::Done(version))
    }

    fn scan(&self, visit: &mut Visit<'_>) -> Result<()> {
        let records: Vec<Versioned> = self.inside().records.values().cloned().collect();
        records.into_iter().try_for_each(|stored| visit("memory", Ok(stored)))
    }

    fn grant_lease(&self, span: Duration) -> Result<Lease> {
        boot_lease::lend(self.host.as_ref(), span)
    }

    fn lease_ttl(&self, lease: &Lease) -> Result<Duration> {
        boot_lease::remaining(self.host.as_ref(), lease)
    }

    fn scope(&self) -> Scope {
        Scope::Local
    }

    fn describe(&self, _name: &[u8]) -> String {
        "memory".to_string()
    }

    fn diagnose(&self) -> Vec<Finding> {
        Vec::new()
    }

    fn append_history(&self, line: &[u8], limits: &Limits) {
        let notes = &mut self.inside().notes;
        notes.push(line.to_vec());
        while notes.iter().map(|line| line.len() as u64).sum::<u64>() > limits.size {
            notes.remove(0);
        }
    }

    fn read_history(&self, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let notes = self.inside().notes.clone();
        notes.iter().for_each(|line| visit(line));
        Ok(true)
    }
}
