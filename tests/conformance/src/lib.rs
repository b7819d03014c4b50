//! The conformance suite of stores: the promises of `crates/store/src/lib.rs` that one process can see.
//!
//! The tests of a store call [`check`] with a function that makes such a store, as `crates/sqlite/tests/conformance.rs`
//! does. `tests/stores` has each promise as a test of its own, and what needs several processes or servers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "the time of a store is compared with that of this host")]

use std::path::Path;
use std::sync::Arc;

use host::{Fake, Host, Unix};
use lock::Lease;
use lock::history::HistoryLimits;
use store::{Call, CommitResult, LinesOfHistory, Store, Version, Versioned, Write, WriteOptions, WriteSet};

pub mod promises;

/// Calls a macro with the names of the promises of every store in braces, after these tokens.
#[macro_export]
macro_rules! with_every_promise {
    ($call:ident $($first:tt)*) => {
        $call! { $($first)* {
            a_record_that_was_never_written_is_absent
            a_written_record_is_read_back
            the_first_swap_expects_none
            a_stale_version_conflicts_and_changes_nothing
            a_version_that_never_was_conflicts
            an_absent_record_cannot_be_removed_as_if_it_were_there
            an_absence_that_another_opener_ended_conflicts
            a_removed_record_is_absent_and_its_next_number_is_greater_than_all_before
            numbers_grow_and_no_two_versions_are_equal
            names_of_every_kind_are_records_of_their_own
            bodies_of_every_size_are_kept_exactly
            a_scan_sees_every_record_once
            a_scan_stops_on_request
            a_scan_may_remove_the_records_that_it_sees
            a_scan_sees_a_lasting_record_once_while_others_come_and_go
            opening_and_asking_create_nothing
            a_second_opener_sees_the_same_records
            many_acquisitions_leave_no_leftovers
            a_change_that_needs_the_end_of_a_lease_conflicts_while_the_lease_lasts
            the_place_of_a_record_shows_its_name_escaped
            a_commit_stands_before_it_is_finished
            lines_of_history_come_back_in_order
            the_time_of_a_store_is_that_of_the_host_that_keeps_it
            swaps_of_every_durability_do_the_same
        } }
    };
}

macro_rules! list {
    ({ $($promise:ident)+ }) => {
        const PROMISES: &[(&str, fn(&Rig))] = &[$((stringify!($promise), promises::$promise)),+];
    };
}

with_every_promise! { list }

/// Tries each promise of every store on a new store, all at once. Panics if one is broken; the threads have the names of
/// the promises.
pub fn check(new: impl Fn() -> Rig + Sync) {
    let new = &new;
    std::thread::scope(|scope| {
        for (name, promise) in PROMISES {
            let thread = std::thread::Builder::new().name(name.to_string());
            thread.spawn_scoped(scope, || promise(&new())).unwrap();
        }
    });
}

/// The place of a store that is for one test alone. A drop removes it.
pub trait Place: Send + Sync {
    /// Opens a store there, on a host whose clocks the test may set.
    fn open(&self, host: Arc<dyn Host>) -> Arc<dyn Store>;

    /// Opens the same store again, as another process does.
    fn again(&self) -> Arc<dyn Store> {
        self.open(Arc::new(Unix::new()))
    }

    /// Opens it as one that other hosts share, if it is either.
    fn open_shared(&self, _host: Arc<dyn Host>) -> Option<Arc<dyn Store>> {
        None
    }

    /// Returns the numbers of things that are there and of their bytes, for example of files, or of keys.
    fn footprint(&self) -> (u64, u64);

    /// A part of the name that the store has for the place of each record, a path for example.
    fn shown(&self) -> Option<&str>;

    /// The directory or file of a store of files; its last record may be removed with it.
    fn path(&self) -> Option<&Path>;

    fn is_on_server(&self) -> bool {
        false
    }

    fn keeps_history(&self) -> bool {
        true
    }
}

/// A store to test, and its place.
pub struct Rig {
    pub store: Arc<dyn Store>,
    pub place: Box<dyn Place>,
}

impl Rig {
    pub fn new(place: impl Place + 'static) -> Rig {
        Rig { store: place.again(), place: Box::new(place) }
    }

    pub fn again(&self) -> Arc<dyn Store> {
        self.place.again()
    }

    /// Opens the same kind of store on a host whose clocks the test sets.
    pub fn faked(&self) -> (Arc<dyn Store>, Fake) {
        let fake = Fake::new(1);
        (self.place.open(Arc::new(fake.clone())), fake)
    }

    pub fn footprint(&self) -> (u64, u64) {
        self.place.footprint()
    }

    /// A swap that must succeed.
    pub fn put(&self, name: &[u8], expect: Option<&Version>, body: &[u8]) -> Version {
        match self.store.swap(name, expect, Some(body)).unwrap() {
            // A request that took a server long was repeated and met the first commit.
            CommitResult::Unclear if self.place.is_on_server() && self.body(name).is_some_and(|now| now == body) => {
                self.store.read(Call::default(), name).unwrap().unwrap().version
            }
            done => stored(done),
        }
    }

    pub fn remove(&self, name: &[u8], expect: &Version) {
        stored(self.store.swap(name, Some(expect), None).unwrap());
    }

    pub fn body(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.store.read(Call::default(), name).unwrap().map(|stored| stored.body)
    }

    pub fn bodies(&self) -> Vec<Vec<u8>> {
        let mut bodies = Vec::new();
        let mut visit = |place: &str, stored: lock::error::Result<Versioned>| {
            bodies.push(stored.unwrap_or_else(|error| panic!("{place}: {error}")).body);
            Ok(())
        };
        self.store.scan(Call::default(), &mut visit).unwrap();
        bodies.sort();
        bodies
    }
}

pub fn stored(swap: CommitResult) -> Version {
    match swap {
        CommitResult::Done(version) => version,
        CommitResult::Conflict(_) | CommitResult::Unclear => panic!("an undisturbed commit met a conflict"),
    }
}

/// Returns the numbers of the files and directories below, and of their bytes.
pub fn footprint_of_files(directory: &Path) -> (u64, u64) {
    std::fs::read_dir(directory).unwrap().map(Result::unwrap).fold((0, 0), |(entries, bytes), entry| {
        let (inner_entries, inner_bytes) = match entry.file_type().unwrap().is_dir() {
            true => footprint_of_files(&entry.path()),
            // The log of a database grows and shrinks, up to its limit.
            false if entry.file_name().as_encoded_bytes().ends_with(b"-wal") => (0, 0),
            false => (0, entry.metadata().unwrap().len()),
        };
        (entries + 1 + inner_entries, bytes + inner_bytes)
    })
}

/// Commits of one change or of one effect, and versions.
pub trait Effects: Store {
    fn commit_and_finish(&self, set: &WriteSet<'_>) -> lock::error::Result<CommitResult> {
        let done = Store::commit(self, Call::default(), set)?;
        if done.is_done() {
            self.finish(Call::default(), set);
        }
        Ok(done)
    }

    fn swap(&self, name: &[u8], expect: Option<&Version>, body: Option<&[u8]>) -> lock::error::Result<CommitResult> {
        self.swap_with(name, expect, body, WriteOptions::default())
    }

    fn swap_with(
        &self,
        name: &[u8],
        expect: Option<&Version>,
        body: Option<&[u8]>,
        options: WriteOptions,
    ) -> lock::error::Result<CommitResult> {
        self.commit_and_finish(&WriteSet::from(Write { name, expect: expect.copied(), body, options }))
    }

    fn wake(&self, channel: &[u8], lease: &Lease) {
        stored(
            self.commit_and_finish(&WriteSet { wake: vec![(channel.to_vec(), Some(lease))], ..WriteSet::default() })
                .unwrap(),
        );
    }

    fn end_lease(&self, lease: &Lease) {
        stored(self.commit_and_finish(&WriteSet { ended: vec![lease], ..WriteSet::default() }).unwrap());
    }

    fn append_history(&self, line: &str, limits: &HistoryLimits) {
        let set = WriteSet {
            history: LinesOfHistory::new(|| vec![line.to_string()]),
            limits: *limits,
            ..WriteSet::default()
        };
        stored(self.commit_and_finish(&set).unwrap());
    }

    fn version(&self, name: &[u8]) -> Option<Version> {
        self.read(Call::default(), name).unwrap().map(|stored| stored.version)
    }
}

impl<S: Store + ?Sized> Effects for S {}
