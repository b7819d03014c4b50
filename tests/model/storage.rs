//! A store of the model: bytes under a name, with a version that a swap compares, and whose number is not forgotten when
//! it was removed. Absence has no version, whatever was there in between, but where births are counted.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use lock::{Record, decode, encode};

pub(crate) type Bytes = Vec<u8>;

type Records = HashMap<(u64, Arc<Bytes>), Arc<Record>>;

/// The stored object of one name, and its state before the last commit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Kept {
    pub(crate) now: Version,
    pub(crate) before: Version,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Version {
    pub(crate) number: u64,
    pub(crate) body: Option<Arc<Bytes>>,
}

impl Version {
    /// The version that a commit must expect.
    pub(crate) fn expect(&self, births: bool) -> Option<u64> {
        (births || self.body.is_some()).then_some(self.number)
    }

    /// The record, as the engine reads it.
    pub(crate) fn record(&self, name: &[u8]) -> Arc<Record> {
        thread_local! {
            static KNOWN: RefCell<Records> = RefCell::default();
        }
        let Some(body) = &self.body else { return Arc::new(Record::free(name)) };
        let key = (self.number, body.clone());
        KNOWN.with_borrow_mut(|known| {
            known.entry(key).or_insert_with(|| Arc::new(decode(body, self.number).unwrap())).clone()
        })
    }
}

impl Kept {
    /// Replaces the object if it has the expected version, or if the fault skips the comparison.
    pub(crate) fn swap(&mut self, expect: Option<u64>, body: Option<Arc<Bytes>>, compares: bool) -> bool {
        if compares && expect.map_or(self.now.body.is_some(), |number| number != self.now.number) {
            return false;
        }
        let number = self.now.number + 1;
        self.before = std::mem::replace(&mut self.now, Version { number, body });
        true
    }
}

/// Returns the stored bytes for a record: none if no part of it needs keeping.
pub(crate) fn body(record: &Record) -> Option<Arc<Bytes>> {
    (!record.is_removable()).then(|| Arc::new(encode(record)))
}
