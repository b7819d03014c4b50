//! The open directory of a store. Other processes may remove it and create it again, as `.csalock` is removed with its
//! last record.

use std::path::PathBuf;
use std::sync::Arc;

use nix::errno::Errno;

use super::root::Root;
use super::{Directory, MOST_LOOKS};
use crate::error::{Error, Result};
use crate::store::{Scope, guarded};

impl Directory {
    /// Returns the open store; `None` if it does not exist.
    pub(super) fn existing(&self) -> Result<Option<Arc<Root>>> {
        self.opened(false)
    }

    fn opened(&self, create: bool) -> Result<Option<Arc<Root>>> {
        let mut known = guarded(&self.root);
        if known.is_none() {
            let mut root = Root::open(&self.path, self.layout, create)?;
            if let Some(root) = root.as_mut().filter(|_| self.shared) {
                (root.scope, root.has_bells) = (Scope::Shared, false);
            }
            *known = root.map(Arc::new);
        }
        Ok(known.clone())
    }

    pub(super) fn existing_or_new(&self) -> Result<Arc<Root>> {
        for _ in 0..MOST_LOOKS {
            if let Some(root) = self.opened(true)? {
                return Ok(root);
            }
            // Another process may remove the empty directory before we open it.
            Root::create(&self.path, self.layout)?;
        }
        Err(self.is_missing())
    }

    /// Makes a call in the store, and repeats a call that failed because the store was removed. Returns `None` if the
    /// store does not exist and is not to be created.
    pub(super) fn in_store<T>(&self, create: bool, call: impl Fn(&Arc<Root>) -> Result<T>) -> Result<Option<T>> {
        for _ in 0..MOST_LOOKS {
            let root = if create { Some(self.existing_or_new()?) } else { self.existing()? };
            let Some(root) = root else { return Ok(None) };
            match call(&root) {
                Err(_) if root.is_gone() => self.forget_root(),
                done => return done.map(Some),
            }
        }
        Err(self.is_missing())
    }

    pub(super) fn is_missing(&self) -> Error {
        Error::os(Errno::ENOENT, "open the store", &self.path)
    }

    /// Returns the path of the directory with the records, as far as it is known.
    pub(super) fn records(&self) -> PathBuf {
        self.existing().ok().flatten().map_or_else(|| self.path.clone(), |root| root.path.clone())
    }

    /// Returns true and forgets the directory if it was removed.
    pub(super) fn was_removed(&self, root: &Root) -> bool {
        let removed = root.is_gone();
        if removed {
            self.forget_root();
        }
        removed
    }

    /// Forgets the open directory, so that the next call opens it anew.
    fn forget_root(&self) {
        *guarded(&self.root) = None;
    }
}
