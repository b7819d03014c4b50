//! The record that this engine knew last, which saves the next request for it a read.
//!
//! Other processes may have changed the record since. It may therefore be the basis of a commit, which compares the
//! version, but never of a refusal. If the commit certainly conflicts, etcd returns the record as it is then.
//!
//! A shared store may lose the reply to a commit, so that a release that took place seems to conflict. The caller then
//! takes a grant without any trace for released. An expired grant leaves no trace either, so a record with a grant is
//! known until the lease of the grant ends on the clock of this host. A shared store that cannot tell which conflicts are
//! certain needs a read shortly before the commit.

use std::time::Duration;

use super::{Engine, VersionedRecord};
use crate::lock::{self, Grant, Record};
use crate::store::{Scope, Version, Versioned, guarded};

/// The record as this engine read or committed it.
pub(super) struct Known {
    record: VersionedRecord,
    /// Time on CLOCK_BOOTTIME until which the record counts.
    until: Duration,
}

impl Engine {
    /// Keeps a record with this grant as this engine committed it.
    pub(super) fn keep_committed(&self, version: Version, record: Record, grant: &Grant) {
        if self.store.scope() == Scope::Local || self.store.abilities().returns_conflicts {
            let record = lock::committed(record, version.number);
            self.keep((Some(version), record), self.ends(&grant.lifetime));
        }
    }

    /// Keeps a record as it was just read, or as another process of this command committed it. It counts `until` then.
    pub fn keep(&self, record: VersionedRecord, until: Option<Duration>) {
        *guarded(&self.known) = Some(Known { record, until: until.unwrap_or(Duration::MAX) });
    }

    /// Keeps a record as it was just read, for the release of a grant in it, and prepares a release to a waiter. This
    /// process must not fork before it releases the grant.
    pub fn expect_release(&self, (version, record): VersionedRecord) {
        if let Some(waiter) = record.waiters.first() {
            self.host.watch(&waiter.owner.domain, &waiter.process);
            self.store.prepare(&record.name);
        }
        self.keep((version, record), None);
    }

    /// Keeps the record with this name as the store returned it with a conflict.
    pub(super) fn keep_conflicting(&self, name: &[u8], found: Option<Option<Versioned>>) {
        if let Some(Ok(record)) = found.map(|found| self.record_of(name, found)) {
            self.keep(record, None);
        }
    }

    /// Returns the record with this name, if that is the last one that this engine knew.
    pub(super) fn take_known(&self, name: &[u8]) -> Option<VersionedRecord> {
        let known = guarded(&self.known).take_if(|known| known.record.1.name == name)?;
        Some(known.record).filter(|_| self.host.boottime() < known.until)
    }
}
