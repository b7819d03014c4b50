//! The place of one record: how its directory is listed, and how it is created.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, SFlag, fstatat};

use super::listing::Listing;
use super::ownership::Ownership;
use super::pointer::{Name, Pointer};
use super::root::Root;
use super::{MOST_LOOKS, sys};
use crate::error::{Error, ErrorKind, Result};
use crate::host::Host;
use crate::name::escape_path;
use crate::store::{Durability, Scope, Versioned, WriteOptions};

/// Maximum number of listings that show records but no pointer before the result is accepted. Some file systems may
/// miss a name that is renamed during a listing, but not repeatedly.
const LISTINGS: usize = 20;

/// Maximum number of retries if a directory is removed while an NFS client opens it.
const OPENINGS: usize = 1000;

/// Prefix of the name that an NFS client gives to a removed file while a process has it open. The client removes that
/// file when it is closed, unless the client dies first.
pub(super) const REMOVED_WHILE_OPEN: &[u8] = b".nfs";

/// The place of one name's record, even if the record does not exist.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) root: Arc<Root>,
    pub(super) file_name: OsString,
}

impl Entry {
    pub(super) fn new(root: &Arc<Root>, file_name: Vec<u8>) -> Entry {
        Entry { root: root.clone(), file_name: OsString::from_vec(file_name) }
    }

    /// Returns true if both are the same place in the same open store.
    pub(super) fn is(&self, other: &Entry) -> bool {
        Arc::ptr_eq(&self.root, &other.root) && self.file_name == other.file_name
    }

    pub(super) fn path(&self) -> PathBuf {
        self.root.path.join(&self.file_name)
    }

    /// Returns false for an auxiliary object. Its name contains a NUL, but the file name of a long name shows only its
    /// beginning.
    pub(super) fn is_record(&self) -> bool {
        !self.file_name.as_bytes().windows(3).any(|three| three == b"%00")
    }

    pub(super) fn failed(&self, doing: &'static str) -> impl Fn(Errno) -> Error {
        let path = self.path();
        move |errno| Error::os(errno, doing, &path)
    }

    /// Returns the error for an entry that is not a directory.
    fn no_directory(&self, errno: Errno) -> Error {
        let path = escape_path(&self.path());
        let found = fstatat(&self.root.directory, self.file_name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
        let kind = match found.map(|found| SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT) {
            Ok(SFlag::S_IFLNK) => "a symbolic link, which is not followed",
            Ok(SFlag::S_IFREG) => "a file",
            Ok(_) => "something else",
            Err(_) => return self.failed("open the record's directory")(errno),
        };
        let what = format!("{path} is {kind}, where the directory of a record belongs");
        Error::new(ErrorKind::Corrupt, what, "see who made it, and move it away")
    }

    /// Lists the record's directory; returns `None` if there is no record.
    pub(super) fn look(&self) -> Result<Option<Listing>> {
        let (mut openings, mut listing) = (0, 0);
        loop {
            let directory = match sys::open_directory(&self.root.directory, self.file_name.as_os_str()) {
                Ok(directory) => directory,
                Err(Errno::ENOENT) if openings == 0 && self.root.scope == Scope::Shared => {
                    // An NFS client may remember that the name does not exist. The client repeats the lookup if the
                    // store's directory has changed, and checks that when it opens that directory.
                    openings += 1;
                    let _ = sys::open_directory(&self.root.directory, ".");
                    continue;
                }
                Err(Errno::ENOENT) => return Ok(None),
                Err(Errno::ESTALE) if openings < OPENINGS => {
                    openings += 1;
                    if self.root.is_gone() {
                        return Ok(None);
                    }
                    continue;
                }
                Err(errno @ (Errno::ENOTDIR | Errno::ELOOP)) => return Err(self.no_directory(errno)),
                Err(errno) => return Err(self.failed("open the record's directory")(errno)),
            };
            let look = match Listing::read(self.clone(), directory) {
                Ok(look) => look,
                // The directory was removed after the open: the name is now unused, or leads to a new directory.
                Err(Errno::ENOENT | Errno::ESTALE) if openings < OPENINGS => {
                    openings += 1;
                    continue;
                }
                Err(errno) => return Err(self.failed("list the record's directory")(errno)),
            };
            listing += 1;
            if listing == LISTINGS || !look.may_have_missed_pointer() {
                return Ok((!look.is_empty()).then_some(look));
            }
        }
    }

    /// Returns the record, and the listing that shows it or its absence.
    pub(super) fn stored(&self, host: &dyn Host) -> Result<(Option<Versioned>, Option<Listing>)> {
        let is_local = self.root.scope == Scope::Local;
        let mut missing: Option<Pointer> = None;
        for _ in 0..MOST_LOOKS {
            let mut look = self.look()?;
            // An unnumbered record has no version yet: the next commit numbers it, and its caller reads again.
            let pointer = look.as_ref().and_then(|look| look.pointer).filter(Pointer::is_in_use);
            let (Some(listing), Some(pointer)) = (&mut look, pointer) else { return Ok((None, look)) };
            if let Some(stored) = listing.read_record(&pointer, host)? {
                return Ok((Some(stored), look));
            }
            // A record is removed only after its pointer moves on. A pointer that stays has lost its record.
            if is_local && missing == Some(pointer) {
                break;
            }
            missing = Some(pointer);
        }
        let error = Error::corrupt(format!("{} points to a record that is missing", escape_path(&self.path())));
        Err(match missing {
            Some(pointer) => error.in_version(pointer.version()),
            None => error,
        })
    }

    /// Creates an unnumbered record. Returns `None` if another process was faster.
    pub(super) fn create(&self, unnumbered: &Pointer, body: &[u8], keep: WriteOptions) -> Result<Option<Listing>> {
        let draft = format!(".new.{}", unnumbered.ident);
        let drafts = match self.root.drafts() {
            Err(errno @ (Errno::ENOTDIR | Errno::ELOOP)) => return Err(self.root.no_work(errno)),
            drafts => drafts,
        };
        match drafts.and_then(|drafts| self.put_in_place((drafts, &draft), unnumbered, body, keep)) {
            Ok(directory) => Ok(Some(Listing::new(self.clone(), directory, Some(*unnumbered)))),
            // The name exists, or the reply to our own rename was lost and this error answers the repetition.
            Err(Errno::EEXIST | Errno::ENOTEMPTY) => self.refuse_strangers().map(|()| None),
            Err(Errno::ENOENT | Errno::ESTALE) if !self.root.is_gone() => Ok(None),
            Err(errno) => Err(self.failed("create the record")(errno)),
        }
    }

    /// Prepares the record's directory as a draft and renames it onto the name.
    fn put_in_place(
        &self,
        (drafts, draft): (&OwnedFd, &str),
        unnumbered: &Pointer,
        body: &[u8],
        keep: WriteOptions,
    ) -> std::result::Result<OwnedFd, Errno> {
        let root = &self.root;
        let prepared = sys::make_directory(drafts, draft, root.inner_mode, root.ownership).and_then(|directory| {
            let put = self
                .write(&directory, &unnumbered.name(), body, keep)
                .and_then(|()| match keep.durability {
                    // The target of a name must be on disk before the name is.
                    Durability::Durable => sys::sync_directory(&directory),
                    _ => Ok(()),
                })
                .and_then(|()| sys::rename(drafts, draft, &root.directory, &self.file_name));
            // This removes only our own file: if the rename happened after all, other processes use the directory.
            if put.is_err() {
                let _ = sys::remove_file(&directory, OsStr::new(&unnumbered.name()));
            }
            put.map(|()| directory)
        });
        if prepared.is_err() {
            let _ = sys::remove_directory(drafts, OsStr::new(draft));
        }
        prepared
    }

    /// Writes a record into a directory. The mode of the file is never wider than its final mode.
    pub(super) fn write(
        &self,
        directory: &OwnedFd,
        name: &str,
        body: &[u8],
        keep: WriteOptions,
    ) -> std::result::Result<(), Errno> {
        sys::create_file(directory, name, self.kind(keep.mode), body, keep.durability >= Durability::Atomic)
    }

    /// Returns the additional open flags, the mode and the owner of a new file with this mode at most.
    pub(super) fn kind(&self, mode: Option<u32>) -> (OFlag, Mode, Ownership) {
        let root = &self.root;
        // A file with a restricted mode keeps its writer as the owner.
        let ownership = if mode.is_some() { root.ownership.without_owner() } else { root.ownership };
        (root.uncached, mode.map_or(Mode::all(), Mode::from_bits_truncate) & root.file_mode, ownership)
    }

    /// Fails if the directory contains foreign files and no file of csalock, because csalock never removes it.
    fn refuse_strangers(&self) -> Result<()> {
        let Ok(directory) = sys::open_directory(&self.root.directory, self.file_name.as_os_str()) else {
            return Ok(());
        };
        let (mut ours, mut stranger) = (false, None);
        let listed = sys::each_name(&directory, &mut |name| {
            match Name::parse(name) {
                Some(_) => ours = true,
                None if name.starts_with(REMOVED_WHILE_OPEN) => {}
                None => stranger = Some(crate::name::escape(name)),
            }
            Ok(())
        });
        match stranger {
            Some(stranger) if listed.is_ok() && !ours => {
                let path = escape_path(&self.path());
                Err(Error::new(
                    ErrorKind::Corrupt,
                    format!("{path} has {stranger} in it, which is not a record"),
                    "move it away",
                ))
            }
            _ => Ok(()),
        }
    }
}
