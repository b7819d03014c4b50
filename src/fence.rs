//! Replacement of a file under a fencing token, for `csalock fence`: a writer with a token below the newest one
//! changes nothing, even if it was stopped at any instruction, its lock was broken, and it goes on an hour later.
//!
//! Two objects belong to a FILE. Its *mark* is an auxiliary object of the store beside it (`.csalock`) and contains
//! the newest token and the name of a draft ([`FenceMark`]). A *draft* is a file in the directory of FILE, with bytes
//! that become FILE. A write has these steps:
//!
//! 1. **Draft.** The writer writes all bytes to a new draft with a random name, gives it the mode of FILE and syncs
//!    it.
//! 2. **Settle.** It reads the mark. If the draft of the mark is still there, it writes the mark again, syncs it, and
//!    renames that draft to FILE. Then it compares its token with the newest, and stops if its own is lower.
//! 3. **Commit.** It replaces the mark by one with its own token and its own draft, by compare-and-swap with the
//!    version of step 2, and syncs it. After a conflict it goes back to step 2.
//! 4. **Publish.** It renames its own draft to FILE. If the draft is not there, another writer did so in its step 2.
//!
//! **Why flock(2) around "compare, rename" is not enough.** A writer that is stopped with the lock blocks all later
//! writers. If its host sleeps, an NFS server gives the lock to another host, and the late rename replaces newer bytes.
//!
//! **Why a late writer changes nothing.** The commit is the write: it compares the token and makes the bytes the
//! newest in one step. All later renames only carry it out, for whichever process comes first. They cannot come too
//! late:
//!
//! - A rename to FILE has as its source a draft that some mark names, and rename(2) of a given source happens once,
//!   even on NFS with lost and repeated requests. The name of a draft never occurs again.
//! - Each commit with a new draft follows the rename of the draft of the mark that it replaces (step 2). So when that
//!   mark is replaced, its draft is gone. A process that stopped before it renamed that draft finds nothing to rename
//!   when it goes on.
//! - A process that stopped before its commit finds another version of the mark, and compares the tokens again.
//!
//! So the renames to FILE happen in the order of the commits, and the tokens of the commits never fall. Readers see
//! all bytes of one write.
//!
//! **Crashes and failures.** A process that dies before its commit has written nothing. If it dies between commit and
//! rename, or the sync or the rename fails, readers see the earlier bytes until the next writer, of any token, settles
//! the mark. The write was never reported as done, and the error says that its outcome is open.
//!
//! **Power cuts.** A draft, its name and all earlier renames are on disk before the commit, so the draft of a mark is
//! there or was renamed. A mark is on disk before its draft is renamed, so FILE is never newer than the mark.
//!
//! **Leftovers.** The name of a draft contains the version of the mark that its commit expects. When a later version
//! is settled, that commit can only fail. So the next writer removes such drafts, except those that live processes
//! have locked with flock(2): their writers need the bytes for the next try. Not all mounts share these locks with
//! other hosts, so on a shared file system only old drafts are removed. A removal too early costs an error, never a wrong
//! mark. (A writer on an NFS server itself sees a local file system.)
//!
//! **Limits.** Only calls of `csalock fence` are compared. The directory must stay in its place during a call. An NFS
//! client that has FILE open may rename FILE aside before it renames a draft onto it, so for a moment FILE may be
//! missing for other hosts.

mod files;

pub use files::{Draft, Place};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lock::FenceMark;
use crate::name::escape_path;
use crate::store::{Scope, Version};

/// A file, with the store of its mark.
pub struct Fence<'a> {
    engine: &'a Engine,
    place: &'a Place,
    key: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacement {
    /// The file was replaced. This was the newest token before, or 0.
    Done(u64),
    /// A writer with this newer token has written the file.
    FencedOff(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newest {
    pub token: u64,
    /// True if the file contains the bytes; false if the next writer publishes them.
    pub published: bool,
}

impl<'a> Fence<'a> {
    /// Creates a fence for the file at this place. The engine must be that of the store beside the file.
    pub fn new(engine: &'a Engine, place: &'a Place) -> Fence<'a> {
        Fence { engine, place, key: FenceMark::key(place.name()) }
    }

    /// Returns the newest write, if `csalock fence` has written the file. Changes nothing.
    pub fn inspect(&self) -> Result<Option<Newest>> {
        let (version, mark) = self.engine.fence_mark(&self.key)?;
        let published = !self.place.has(&mark.draft)?;
        Ok(version.map(|_| Newest { token: mark.token, published }))
    }

    /// Returns the newest token if it is above this one. Completes the newest write, if that is left to do.
    pub fn refusal(&self, token: u64) -> Result<Option<u64>> {
        let (_, mark) = self.settle()?;
        Ok((token < mark.token).then_some(mark.token))
    }

    /// Replaces the file by this draft, unless the newest token is above this one.
    pub fn replace(&self, mut draft: Draft<'_>, token: u64) -> Result<Replacement> {
        draft.finish()?;
        self.try_replace(&mut draft, token).map_err(|error| self.failed(error, &mut draft))
    }

    fn try_replace(&self, draft: &mut Draft<'_>, token: u64) -> Result<Replacement> {
        let mut retry = self.engine.cas_retry(&self.key);
        let mut before = 0;
        loop {
            let (version, found) = self.settle()?;
            if found.draft == draft.name {
                // The reply to our own commit was lost, and another writer may have renamed the draft.
                self.place.sync()?;
                return Ok(Replacement::Done(before));
            }
            before = found.token;
            if token < before {
                // Our own commit may have been done and its reply lost, if other writers have published the draft.
                if draft.is_left && !self.place.has(&draft.name)? {
                    return Err(draft.is_gone());
                }
                draft.is_left = false;
                return Ok(Replacement::FencedOff(before));
            }
            draft.expect(version, self.engine.host())?;
            self.place.sync()?;
            self.place.check()?;
            draft.is_left = true;
            let mark = FenceMark { token, draft: draft.name.clone() };
            if let Some(version) = self.engine.write_fence_mark(&self.key, version, &mark)? {
                self.publish(&mark)?;
                self.place.sweep(version.number, self.engine.store().scope(), draft.time());
                return Ok(Replacement::Done(before));
            }
            retry.backoff()?;
        }
    }

    /// Returns the error of a replacement. The draft stays unless the mark certainly does not name it: after a failed sync
    /// the mark may do so, and the server of a shared file system may still carry out the commit.
    fn failed(&self, error: Error, draft: &mut Draft<'_>) -> Error {
        if !draft.is_left {
            return error;
        }
        let is_certain = !error.has_unknown_outcome()
            && self.engine.store().scope() == Scope::Local
            && self.engine.fence_mark(&self.key).is_ok_and(|(_, mark)| mark.draft != draft.name)
            && self.place.has(&draft.name).unwrap_or(false);
        draft.is_left = !is_certain;
        if is_certain { error } else { error.outcome_unknown() }
    }

    /// Completes the write of the mark, unless that was done. Returns the mark and its version.
    fn settle(&self) -> Result<(Option<Version>, FenceMark)> {
        let mut retry = self.engine.cas_retry(&self.key);
        loop {
            let (version, mark) = self.engine.fence_mark(&self.key)?;
            if !self.place.has(&mark.draft)? {
                return Ok((version, mark));
            }
            // The writer may have died before its mark was on disk.
            if let Some(version) = self.engine.write_fence_mark(&self.key, version, &mark)? {
                self.publish(&mark)?;
                return Ok((Some(version), mark));
            }
            retry.backoff()?;
        }
    }

    /// Renames the draft of a mark to the file, unless another process did so, and syncs the directory.
    fn publish(&self, mark: &FenceMark) -> Result<()> {
        let unfinished = |error: Error| {
            let draft = escape_path(&self.place.path_of(&mark.draft));
            let what = format!("{}; its newest bytes, with token {}, are in {draft}", error.message(), mark.token);
            Error::new(error.kind(), what, "remove the obstacle, then try again")
        };
        self.place.publish(&mark.draft).map_err(unfinished)?;
        self.place.sync()
    }
}
