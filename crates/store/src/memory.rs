//! In-memory store, for tests only: the shortest definition of a store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::leases::BootLeases;
use super::{
    Abilities, Call, CommitResult, Finding, Leases, Scope, Store, Upkeep, Version, Versioned, Visit, WriteSet, guarded,
};
use host::Host;
use lock::error::Result;

pub struct Memory {
    leases: BootLeases,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    versions: u64,
    records: BTreeMap<Vec<u8>, Versioned>,
    history: Vec<String>,
}

impl Memory {
    pub fn new(host: Arc<dyn Host>) -> Memory {
        Memory { leases: BootLeases(host), inside: Mutex::default() }
    }
}

impl Store for Memory {
    fn read(&self, _call: Call, name: &[u8]) -> Result<Option<Versioned>> {
        Ok(guarded(&self.inside).records.get(name).cloned())
    }

    fn scan(&self, _call: Call, visit: &mut Visit<'_>) -> Result<()> {
        let records: Vec<Versioned> = guarded(&self.inside).records.values().cloned().collect();
        records.into_iter().try_for_each(|stored| visit("memory", Ok(stored)))
    }

    fn commit(&self, call: Call, set: &WriteSet<'_>) -> Result<CommitResult> {
        set.commit_alone(call, &self.leases, |change| {
            let mut inside = guarded(&self.inside);
            if inside.records.get(change.name).map(|stored| stored.version) != change.expect {
                return Ok(CommitResult::Conflict(None));
            }
            inside.versions += 1;
            let version = Version { number: inside.versions, mark: 0 };
            match change.body.map(<[u8]>::to_vec) {
                Some(body) => inside.records.insert(change.name.to_vec(), Versioned::new(version, body)),
                None => inside.records.remove(change.name),
            };
            Ok(CommitResult::Done(version))
        })
    }

    fn finish(&self, _call: Call, set: &WriteSet<'_>) {
        let inside = &mut *guarded(&self.inside);
        inside.history.extend(set.history.iter().cloned());
        while inside.history.iter().map(|line| line.len() as u64).sum::<u64>() > set.limits.size {
            inside.history.remove(0);
        }
    }

    fn leases(&self) -> &dyn Leases {
        &self.leases
    }

    fn abilities(&self) -> Abilities {
        Abilities::of(Scope::Local)
    }
}

impl Upkeep for Memory {
    fn describe(&self, _name: &[u8]) -> String {
        "memory".to_string()
    }

    fn read_history(&self, _call: Call, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let history = guarded(&self.inside).history.clone();
        history.iter().for_each(|line| visit(line.as_bytes()));
        Ok(true)
    }

    fn diagnose(&self, _call: Call) -> Vec<Finding> {
        Vec::new()
    }
}
