//! The place of one record, and the listings of its directory that show which file has its bytes.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{SFlag, fstatat};

use super::layout::{Name, Place, Pointer, REMOVED_WHILE_OPEN, UniqueId, boot_tag};
use super::root::Root;
use super::{MOST_LOOKS, sys};
use host::Host;
use lock::error::{Error, ErrorKind, Result};
use lock::name::escape_path;
use store::{Call, Scope, Version, Versioned};

/// Maximum number of listings that show records but no pointer before the result is accepted. Some file systems may
/// miss a name that is renamed during a listing, but not repeatedly.
const LISTINGS: usize = 20;

/// Time for which a FUSE file system may show a name that another host has changed, and the pause between two looks.
const OLD_NAMES: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Maximum number of retries if a directory is removed while an NFS client opens it.
const OPENINGS: usize = 1000;

/// Place of a record that may not exist.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) root: Arc<Root>,
    pub(super) file_name: OsString,
}

pub(super) struct Listing {
    pub(super) entry: Entry,
    pub(super) directory: OwnedFd,
    pub(super) pointer: Option<Pointer>,
    pub(super) records: Vec<UniqueId>,
    /// The records that this process has replaced and not yet removed.
    pub(super) replaced: Vec<UniqueId>,
    pub(super) silly_renames: Vec<Vec<u8>>,
    /// The record that the pointer leads to, if this process has read or written it.
    pub(super) stored: Option<Versioned>,
}

impl Entry {
    pub(super) fn new(root: &Arc<Root>, file_name: Vec<u8>) -> Entry {
        Entry { root: root.clone(), file_name: OsString::from_vec(file_name) }
    }

    pub(super) fn is(&self, other: &Entry) -> bool {
        Arc::ptr_eq(&self.root, &other.root) && self.file_name == other.file_name
    }

    pub(super) fn path(&self) -> PathBuf {
        self.root.path.join(&self.file_name)
    }

    /// An auxiliary object has a NUL in its name, but the file name of a long name shows only its beginning.
    pub(super) fn is_record(&self) -> bool {
        !self.file_name.as_bytes().windows(3).any(|three| three == b"%00")
    }

    pub(super) fn failed(&self, doing: &'static str) -> impl Fn(Errno) -> Error {
        let path = self.path();
        move |errno| Error::os(errno, doing, &path)
    }

    /// `None` if there is no record.
    pub(super) fn list(&self) -> Result<Option<Listing>> {
        let mut openings = 0;
        let mut listings = 0;
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
            let mut listing = Listing::of(self.clone(), directory);
            match listing.read_names() {
                Ok(()) => listings += 1,
                // The directory was removed after the open: the name is now unused, or leads to a new directory.
                Err(Errno::ENOENT | Errno::ESTALE) if openings < OPENINGS => {
                    openings += 1;
                    continue;
                }
                Err(errno) => return Err(self.failed("list the record's directory")(errno)),
            }
            let may_have_missed_pointer = listing.pointer.is_none() && !listing.records.is_empty();
            if listings == LISTINGS || !may_have_missed_pointer {
                let is_empty =
                    listing.pointer.is_none() && listing.records.is_empty() && listing.silly_renames.is_empty();
                return Ok((!is_empty).then_some(listing));
            }
        }
    }

    /// Also the listing that shows the record or its absence.
    pub(super) fn stored(&self, call: Call, host: &dyn Host) -> Result<(Option<Versioned>, Option<Listing>)> {
        let mut missing: Option<Pointer> = None;
        let (began, deadline) = (host.boottime(), call.until.unwrap_or(Duration::MAX));
        for _ in 0..MOST_LOOKS {
            let mut listing = self.list()?;
            // An unnumbered record has no version yet: the next commit numbers it, and its caller reads again.
            let pointer = listing.as_ref().and_then(|listing| listing.pointer).filter(Pointer::is_in_use);
            let (Some(found), Some(pointer)) = (&mut listing, pointer) else { return Ok((None, listing)) };
            if let Some(stored) = found.read_record(&pointer, host)? {
                return Ok((Some(stored), listing));
            }
            // A record is removed only after its pointer moves on. A pointer that stays has lost its record.
            if self.root.scope == Scope::Local && missing == Some(pointer) {
                break;
            }
            if self.root.has_old_names && missing == Some(pointer) {
                let now = host.boottime();
                if now.saturating_sub(began) >= OLD_NAMES {
                    break;
                }
                if now >= deadline {
                    let what = format!("{} shows an old name of the record", escape_path(&self.path()));
                    return Err(Error::new(ErrorKind::Busy, what, "wait longer with -w, or try again"));
                }
                host.sleep(LOOK_AGAIN);
            }
            missing = Some(pointer);
        }
        let error = Error::corrupt(format!("{} points to a record that is missing", escape_path(&self.path())));
        Err(match missing {
            Some(pointer) => error.in_version(pointer.version()),
            None => error,
        })
    }

    fn no_directory(&self, errno: Errno) -> Error {
        let found = fstatat(&self.root.directory, self.file_name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
        let kind = match found.map(|found| SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT) {
            Ok(SFlag::S_IFLNK) => "a symbolic link, which is not followed",
            Ok(SFlag::S_IFREG) => "a file",
            Ok(_) => "something else",
            Err(_) => return self.failed("open the record's directory")(errno),
        };
        let what = format!("{} is {kind}, where the directory of a record belongs", escape_path(&self.path()));
        Error::new(ErrorKind::Corrupt, what, "see who made it, and move it away")
    }
}

impl Listing {
    pub(super) fn of(entry: Entry, directory: OwnedFd) -> Listing {
        Listing {
            entry,
            directory,
            pointer: None,
            records: Vec::new(),
            replaced: Vec::new(),
            silly_renames: Vec::new(),
            stored: None,
        }
    }

    fn read_names(&mut self) -> nix::Result<()> {
        let Listing { entry, directory, pointer, records, silly_renames, .. } = self;
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
        })
    }

    /// `None` if there is no record, or none with a version yet.
    pub(super) fn version(&self) -> Option<Version> {
        self.pointer.filter(Pointer::is_in_use).map(|pointer| pointer.version())
    }

    /// `None` if the bytes are missing because the record has changed.
    pub(super) fn read_record(&mut self, pointer: &Pointer, host: &dyn Host) -> Result<Option<Versioned>> {
        let root = &self.entry.root;
        let version = pointer.version();
        let name = pointer.record();
        // The end of the last line says as much as another read(2), which is a request to an NFS server.
        let has_lines = self.entry.is_record();
        let mut body = match sys::read_file(&self.directory, &name, root.uncached, lock::MOST_BYTES, has_lines) {
            Ok(Ok(body)) => body,
            Ok(Err(what)) => {
                let path = escape_path(&self.entry.path().join(name));
                return Err(Error::corrupt(format!("{path} is not a record: {what}")).in_version(version));
            }
            Err(Errno::ENOENT | Errno::ESTALE) => return Ok(None),
            Err(errno) => return Err(self.entry.failed("read the record")(errno).in_version(version)),
        };
        let may_be_torn = root.scope == Scope::Local && boot_tag(&host.pid_space()?.boot) != pointer.ident.boot;
        let is_copy = Place::split_from(&mut body).is_some_and(|origin| origin.is_copied_to(root));
        self.stored = Some(Versioned { may_be_torn, is_copy, ..Versioned::new(version, body) });
        Ok(self.stored.clone())
    }

    /// The record that was read from here, or written, if the pointer to it still stands. The look begins at the store,
    /// because a user may have moved the record's directory away. On a shared store it would not save a request.
    pub(super) fn unchanged_record(&self) -> Option<&Versioned> {
        let Entry { root, file_name } = &self.entry;
        let pointer = Path::new(file_name).join(self.pointer?.name());
        let stands = root.scope == Scope::Local && sys::is_there(&root.directory, &pointer) == Ok(true);
        if stands { self.stored.as_ref() } else { None }
    }
}
