//! The only place in which the engine changes a store.

use super::Engine;
use crate::error::Result;
use crate::lock::Record;
use crate::store::{CommitResult, Version, Write, WriteOptions};

impl Engine {
    /// Commits these changes as one. `before` contains the records that some of them replace; the other changes are of
    /// auxiliary objects.
    #[cfg(debug_assertions)]
    pub(super) fn commit(&self, changes: &[Write<'_>], before: &[&Record]) -> Result<CommitResult> {
        self.trace.commit(self.store.as_ref(), self.host.as_ref(), changes, before)
    }

    /// Commits these changes as one.
    #[cfg(not(debug_assertions))]
    pub(super) fn commit(&self, changes: &[Write<'_>], _before: &[&Record]) -> Result<CommitResult> {
        self.store.swap_all(changes)
    }

    /// Commits a change of the auxiliary object under this name.
    pub(super) fn commit_beside(
        &self,
        name: &[u8],
        expect: Option<&Version>,
        body: Option<&[u8]>,
        keep: WriteOptions,
    ) -> Result<CommitResult> {
        self.commit(&[Write { name, expect: expect.copied(), body, options: keep, over: &[] }], &[])
    }

    /// Makes the engine log its commits to this file.
    #[cfg(debug_assertions)]
    #[must_use]
    pub fn tracing(self, path: std::path::PathBuf) -> Engine {
        Engine { trace: crate::trace::Trace::new(Some(path)), ..self }
    }
}
