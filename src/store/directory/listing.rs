//! The names in a record's directory, and the renames and removals that change them.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;

use nix::errno::Errno;

use super::entry::{Entry, REMOVED_WHILE_OPEN};
use super::pointer::{Name, Pointer, Stage, UniqueId, boot_tag};
use super::sys::{self, os};
use crate::error::{Error, ErrorKind, Result};
use crate::host::Host;
use crate::store::{Scope, Version, Versioned, WriteOptions};

/// The result of listing an entry's directory.
pub(super) struct Listing {
    pub(super) entry: Entry,
    directory: OwnedFd,
    pub(super) pointer: Option<Pointer>,
    records: Vec<UniqueId>,
    /// The records that this process has replaced and not yet removed.
    replaced: Vec<UniqueId>,
    silly_renames: Vec<Vec<u8>>,
    /// The record that the pointer leads to, if it was read.
    stored: Option<Versioned>,
}

impl Listing {
    /// Returns a listing with only this pointer in it.
    pub(super) fn new(entry: Entry, directory: OwnedFd, pointer: Option<Pointer>) -> Listing {
        Listing {
            entry,
            directory,
            pointer,
            records: Vec::new(),
            replaced: Vec::new(),
            silly_renames: Vec::new(),
            stored: None,
        }
    }

    /// Lists the directory of a record.
    pub(super) fn read(entry: Entry, directory: OwnedFd) -> std::result::Result<Listing, Errno> {
        let mut look = Listing::new(entry, directory, None);
        let Listing { entry, directory, pointer, records, silly_renames, .. } = &mut look;
        if entry.root.scope == Scope::Shared {
            sys::forget_listing(&*directory);
        }
        sys::each_name_as_known(&*directory, &mut |name| {
            match Name::parse(name) {
                // A listing that overlaps a rename may contain both names. The later name counts.
                Some(Name::Pointer(found)) if pointer.is_none_or(|known| known.number <= found.number) => {
                    *pointer = Some(found);
                }
                Some(Name::Record(ident)) => records.push(ident),
                None if name.starts_with(REMOVED_WHILE_OPEN) => silly_renames.push(name.to_vec()),
                _ => {}
            }
            Ok(())
        })?;
        Ok(look)
    }

    /// Returns the listing after a commit that put this pointer in place, provided that no other process commits.
    pub(super) fn after(mut self, pointer: Pointer) -> Listing {
        self.replaced.append(&mut self.records);
        self.records.extend(Some(pointer.ident).filter(|_| pointer.stage == Stage::Current));
        self.pointer = Some(pointer);
        self.stored = None;
        self
    }

    /// Returns true if nothing of csalock is in the directory.
    pub(super) fn is_empty(&self) -> bool {
        self.pointer.is_none() && self.records.is_empty() && self.silly_renames.is_empty()
    }

    /// Returns true if there are records but no pointer, which a listing that overlaps a rename may have missed.
    pub(super) fn may_have_missed_pointer(&self) -> bool {
        self.pointer.is_none() && !self.records.is_empty()
    }

    /// Returns the version of the record; `None` if there is none, or none with a version yet.
    pub(super) fn version(&self) -> Option<Version> {
        self.pointer.filter(Pointer::is_in_use).map(|pointer| pointer.version())
    }

    /// Returns the bytes that the pointer refers to; `None` if they are missing because the record has changed.
    fn body(&self, pointer: &Pointer) -> Result<Option<Vec<u8>>> {
        let name = pointer.record();
        // The end of the line says as much as another read(2), which is a request to an NFS server.
        let is_line = self.entry.is_record();
        match sys::read_file(&self.directory, &name, self.entry.root.uncached, crate::lock::MOST_BYTES, is_line) {
            Ok(Ok(bytes)) => Ok(Some(bytes)),
            Ok(Err(what)) => {
                let path = self.entry.path().join(name);
                Err(Error::corrupt(format!("{} is not a record: {what}", crate::name::escape_path(&path))))
            }
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(None),
            Err(errno) => Err(self.entry.failed("read the record")(errno)),
        }
    }

    /// Returns the record that the pointer leads to; `None` if its bytes are missing because the record has changed.
    pub(super) fn read_record(&mut self, pointer: &Pointer, host: &dyn Host) -> Result<Option<Versioned>> {
        let version = pointer.version();
        let Some(body) = self.body(pointer).map_err(|error| error.in_version(version))? else { return Ok(None) };
        let is_local = self.entry.root.scope == Scope::Local;
        let may_be_torn = is_local && boot_tag(&host.pid_space()?.boot) != pointer.ident.boot;
        self.stored = Some(Versioned { version, body, may_be_torn });
        Ok(self.stored.clone())
    }

    /// Returns the record that was read from here, if the pointer to it still stands. The look begins at the store,
    /// because a user may have moved the record's directory away. On a shared store it would not save a request.
    pub(super) fn unchanged_record(&self) -> Option<Versioned> {
        let Entry { root, file_name } = &self.entry;
        let pointer = self.pointer.filter(|_| root.scope == Scope::Local)?;
        self.stored.clone().filter(|_| sys::is_there_below(&root.directory, file_name, &pointer.name()))
    }

    /// Renames the pointer. Returns `false` if another process was faster.
    pub(super) fn advance(&self, from: &Pointer, to: &Pointer) -> Result<bool> {
        match sys::rename(&self.directory, from.name().as_str(), &self.directory, OsStr::new(&to.name())) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(false),
            Err(errno) => Err(self.entry.failed("change the record")(errno)),
        }
    }

    /// Returns true if another process has certainly changed a record in use since the listing. A look costs less than a
    /// file that is created in vain. A free record seldom has a rival, and on a shared store a look costs a request.
    fn is_overtaken(&self) -> bool {
        let in_use = self.pointer.filter(|pointer| pointer.is_in_use() && self.entry.root.scope == Scope::Local);
        in_use.is_some_and(|pointer| sys::is_missing(&self.directory, OsStr::new(&pointer.name())))
    }

    /// Writes the file of a new record, and returns its id; `None` if another process was faster.
    pub(super) fn write(
        &self,
        ident: impl FnOnce() -> Result<UniqueId>,
        body: &[u8],
        keep: WriteOptions,
    ) -> Result<Option<UniqueId>> {
        if self.is_overtaken() {
            return Ok(None);
        }
        let ident = ident()?;
        match self.entry.write(&self.directory, &ident.record(), body, keep) {
            Ok(()) => Ok(Some(ident)),
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(None),
            Err(errno) => {
                self.withdraw(ident);
                Err(self.entry.failed("write the record")(errno))
            }
        }
    }

    /// Removes a record whose pointer was never put in place.
    pub(super) fn withdraw(&self, ident: UniqueId) {
        let _ = sys::remove_file(&self.directory, OsStr::new(&ident.record()));
        // If the record was removed meanwhile, our draft kept its directory from being removed.
        let _ = self.remove_directory();
    }

    /// Removes the pointer of a record without other files. Returns `false` if another process was faster.
    pub(super) fn remove_pointer(&self, pointer: &Pointer) -> Result<bool> {
        let removed = sys::remove_if_there(&self.directory, OsStr::new(&pointer.name()));
        removed.map_err(self.entry.failed("remove the record"))
    }

    /// Removes the directory of a tombstone. The records of a listing from before the removal go first. A listing that
    /// shows the tombstone may also show the record of a process that is reviving it: that process can no longer succeed
    /// once the tombstone is gone, so the records follow the tombstone. If another process was faster, they stay.
    pub(super) fn remove(&self, end: &Pointer) -> Result<()> {
        let shows_tombstone = self.pointer == Some(*end);
        if !shows_tombstone {
            self.remove_records();
        }
        let removed = sys::remove_if_there(&self.directory, OsStr::new(&end.name()));
        let removed = removed.map_err(self.entry.failed("remove the tombstone"))?;
        if shows_tombstone {
            if !removed {
                return Ok(());
            }
            self.remove_records();
        }
        self.remove_directory()
    }

    /// Removes a directory without a pointer.
    pub(super) fn clear(&self) -> Result<()> {
        for record in &self.records {
            let name = record.record();
            match sys::remove_file(&self.directory, OsStr::new(&name)) {
                Ok(()) => {}
                Err(Errno::ENOTEMPTY | Errno::EEXIST) => {
                    let path = crate::name::escape_path(&self.entry.path().join(name));
                    let what = format!("{path} is a directory with something in it, where a record belongs");
                    return Err(Error::new(ErrorKind::Corrupt, what, "see who made it, and move it away"));
                }
                // A record that stays blocks every later process.
                Err(errno) => return Err(self.entry.failed("clear the record's directory")(errno)),
            }
        }
        for name in &self.silly_renames {
            let _ = sys::remove_file(&self.directory, os(name));
        }
        self.remove_directory()
    }

    /// Removes the records that were there before the pointer was renamed. Their writers can no longer succeed: the
    /// pointer that they must rename is gone.
    pub(super) fn remove_records(&self) {
        for record in &self.records {
            // The next commit or the sweep removes a file that stays.
            let _ = sys::remove_file(&self.directory, OsStr::new(&record.record()));
        }
    }

    /// Removes the records that this process has replaced, like [`Listing::remove_records`].
    pub(super) fn remove_replaced(&mut self) {
        for record in self.replaced.drain(..) {
            let _ = sys::remove_file(&self.directory, OsStr::new(&record.record()));
        }
    }

    /// Waits until the names in the directory are on disk.
    pub(super) fn sync(&self) -> Result<()> {
        sys::sync_directory(&self.directory).map_err(self.entry.failed("sync the record's directory"))
    }

    pub(super) fn remove_directory(&self) -> Result<()> {
        match sys::remove_directory(&self.entry.root.directory, &self.entry.file_name) {
            // Another process uses the directory and removes it later.
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(()),
            removed => removed.map_err(self.entry.failed("remove the record's directory")),
        }
    }
}
