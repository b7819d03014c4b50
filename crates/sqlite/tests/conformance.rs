//! The conformance suite of stores on an SQLite database.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use conformance::{Place, Rig, footprint_of_files};
use csalock_sqlite::Sqlite;
use host::Host;
use store::Store;
use tempfile::TempDir;

struct File(TempDir, PathBuf);

impl Place for File {
    fn open(&self, host: Arc<dyn Host>) -> Arc<dyn Store> {
        Arc::new(Sqlite::open(&self.1, host).unwrap())
    }

    fn footprint(&self) -> (u64, u64) {
        footprint_of_files(self.0.path())
    }

    fn shown(&self) -> Option<&str> {
        self.1.to_str()
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.1)
    }
}

#[test]
fn a_database_keeps_the_promises_of_every_store() {
    conformance::check(|| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        Rig::new(File(directory, path))
    });
}
