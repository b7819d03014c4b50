//! Removal of auxiliary objects that killed processes left: fetched pages, edges of former waits, and commit records
//! that were carried out. These leftovers do no harm; `gc` removes them.

use super::Engine;
use super::facts::{OLD_WITNESS, Witnessed};
use lock::error::Result;
use lock::{self, CommitRecord, Page};
use store::{Scope, Swept, Version, WriteOptions};

impl Engine {
    /// Removes leftovers. A leftover that depends on an unreadable record stays, because that record may still need it.
    pub fn sweep(&self, dry_run: bool) -> Result<Swept> {
        // The sweep of the store makes half-finished writes visible.
        let mut swept = self.store.sweep(self.call, dry_run)?;
        let mut keys = Vec::new();
        self.store.scan(self.call, &mut |_, stored| {
            let internal = stored.ok().filter(|stored| lock::is_auxiliary(&stored.body));
            keys.extend(internal.and_then(|stored| Some((lock::name_of_auxiliary(&stored.body)?, stored.version))));
            Ok(())
        })?;
        for (key, version) in keys {
            match self.sweep_one(&key, &version, dry_run) {
                Ok(removed) => swept.removed += u64::from(removed),
                Err(error) => swept.pass_over(error)?,
            }
        }
        if !dry_run && self.store.scope() == Scope::Shared {
            self.host.remove_old_witnesses(OLD_WITNESS);
        }
        Ok(swept)
    }

    fn sweep_one(&self, key: &[u8], version: &Version, dry_run: bool) -> Result<bool> {
        if key.first() == Some(&0) {
            let gone = self.ended_waits(&self.auxiliary(key)?.1)?;
            if !gone.is_empty() && !dry_run {
                self.change_edges(key, &|edges| edges.waits.retain(|edge| !gone.contains(edge)))?;
            }
            return Ok(!gone.is_empty());
        }
        let is_left = match (Page::of_key(key), CommitRecord::of_key(key)) {
            (Some((name, number)), _) => self.read(name)?.1.pages.is_none_or(|pages| !pages.has(number)),
            (_, Some(proof)) => self.is_orphaned_commit_record(&proof, dry_run)?,
            _ => self.is_orphaned_value(key)?,
        };
        if is_left && !dry_run {
            // The name of a page may come back, so an object that has replaced this version must stay.
            self.commit_beside(key, Some(version), None, WriteOptions::default())?;
            self.remove_witness(Witnessed::Value(key));
        }
        Ok(is_left)
    }
}
