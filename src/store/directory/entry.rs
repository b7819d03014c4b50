//! One record's directory: how it is listed, and the renames that change it.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use sha2::{Digest, Sha256};

use super::foreign_directory::There;
use super::pointer::{Name, Pointer, UniqueId};
use super::root::{Root, no_work};
pub(super) use super::sys::os;
use super::{foreign_directory, sys};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Durability, Scope, Version, WriteOptions};

/// Maximum length in bytes of an escaped file name; a longer name is cut and gets a hash. NAME_MAX is 255.
const LONGEST_PLAIN: usize = 200;

/// Number of bytes of a long name that its file name keeps.
const SEEN_OF_LONG: usize = 100;

/// Maximum number of listings that show records but no pointer before the result is accepted. Some file systems may
/// miss a name that is renamed during a listing, but not repeatedly.
const LISTINGS: usize = 20;

/// Maximum number of retries if a directory is removed while an NFS client opens it.
const OPENINGS: usize = 1000;

/// Prefix of the name that an NFS client gives to a removed file while a process has it open. The client removes that
/// file when it is closed, unless the client dies first.
pub(super) const REMOVED_WHILE_OPEN: &[u8] = b".nfs";

/// The place of one name's record, even if the record does not exist.
pub(super) struct Entry<'a> {
    root: &'a Root,
    store: &'a Path,
    file_name: OsString,
}

/// The result of listing an entry's directory.
pub(super) struct Listing<'a> {
    pub(super) entry: &'a Entry<'a>,
    directory: OwnedFd,
    /// The foreign directory around the record's directory, if there is one.
    outer: Option<OwnedFd>,
    pub(super) pointer: Option<Pointer>,
    records: Vec<UniqueId>,
    silly_renames: Vec<String>,
    /// True if the directory may contain another user's record in an inner directory.
    has_lodging: bool,
}

/// A saved listing for a later commit that changes what was read. Reuse is as safe as a pause between listing and
/// commit: the rename or removal of the pointer fails if another process was faster.
pub(super) struct CachedListing {
    file_name: OsString,
    directory: OwnedFd,
    outer: Option<OwnedFd>,
    pointer: Pointer,
    records: Vec<UniqueId>,
}

impl CachedListing {
    /// Returns the listing if it contains this version under this name.
    pub(super) fn resume<'a>(self, entry: &'a Entry<'a>, version: &Version) -> Option<Listing<'a>> {
        let is_it = self.file_name == entry.file_name && self.pointer.version() == *version;
        let look = is_it.then(|| Listing::new(entry, self.directory, self.outer, Some(self.pointer)))?;
        Some(Listing { records: self.records, ..look })
    }
}

/// Returns the file name for a lock's name. Letters, digits, `_`, `-` and inner dots stay; other bytes become `%XX`.
/// Only file names of long names contain `~`, before the SHA-256 of the name.
pub(crate) fn file_name(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    for (at, byte) in name.iter().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => plain.push(*byte),
            b'.' if at > 0 => plain.push(*byte),
            _ => plain.extend(format!("%{byte:02X}").into_bytes()),
        }
    }
    if plain.len() > LONGEST_PLAIN {
        plain.truncate(SEEN_OF_LONG);
        plain.push(b'~');
        Sha256::digest(name).iter().for_each(|byte| plain.extend(format!("{byte:02x}").into_bytes()));
    }
    plain
}

/// Returns true if a lock can have this file name. csalock ignores other names in a store; `..` is not valid either.
pub(super) fn is_file_name(name: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.%~".contains(byte);
    !name.is_empty() && name[0] != b'.' && name.iter().all(is_plain)
}

/// Returns the lock name for a file name; `None` for the file name of a long name and for an invalid file name.
#[cfg(any(test, fuzzing))]
pub(crate) fn name_of_file(file: &[u8]) -> Option<Vec<u8>> {
    let name = crate::lock::codec::text::unescape(std::str::from_utf8(file).ok()?)?;
    (file_name(&name) == file).then_some(name)
}

/// Returns true if the file name is a record's. Names of auxiliary objects contain a NUL, but the file name of a long
/// name shows only its beginning.
pub(super) fn is_record(file_name: &[u8]) -> bool {
    !file_name.windows(3).any(|three| three == b"%00")
}

/// Returns true if the entry with this name in a store's directory may be a record, as far as this can be determined.
pub(super) fn may_be_record(store: &OwnedFd, name: &OsStr) -> bool {
    let directory = match sys::open_directory(store, name) {
        Ok(directory) => directory,
        Err(errno) => return !matches!(errno, Errno::ENOTDIR | Errno::ELOOP),
    };
    let (mut is_empty, mut has_names) = (true, false);
    let listed = sys::each_name::<Errno>(directory, &mut |name| {
        is_empty = false;
        has_names |= Name::parse(name).is_some();
        Ok(())
    });
    listed.is_err() || is_empty || has_names
}

impl<'a> Entry<'a> {
    pub(super) fn new(root: &'a Root, store: &'a Path, file_name: Vec<u8>) -> Entry<'a> {
        Entry { root, store, file_name: OsString::from_vec(file_name) }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.store.join(&self.file_name)
    }

    pub(super) fn file_name(&self) -> &OsStr {
        &self.file_name
    }

    fn failed(&self, doing: &'static str) -> impl Fn(Errno) -> Error {
        let path = self.path();
        move |errno| Error::os(errno, doing, &path)
    }

    /// Returns the error for an entry that is not a directory.
    fn no_directory(&self, errno: Errno) -> Error {
        let path = crate::name::escape_path(&self.path());
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
    pub(super) fn look(&'a self) -> Result<Option<Listing<'a>>> {
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
            let mut look = Listing::new(self, directory, None, None);
            let listed = match look.list() {
                Ok(()) if look.pointer.is_none() && look.has_lodging => look.inside(),
                listed => listed.map(|()| look),
            };
            let look = match listed {
                Ok(look) => look,
                // The directory was removed after the open: the name is now unused, or leads to a new directory.
                Err(Errno::ENOENT | Errno::ESTALE) if openings < OPENINGS => {
                    openings += 1;
                    continue;
                }
                Err(errno) => return Err(self.failed("list the record's directory")(errno)),
            };
            listing += 1;
            match (&look.pointer, look.records.is_empty()) {
                (None, true) if look.silly_renames.is_empty() => return Ok(None),
                (None, false) if listing < LISTINGS => {}
                _ => return Ok(Some(look)),
            }
        }
    }

    /// Creates an unnumbered record. Returns `None` if the store is gone, `Some(None)` if another process was faster.
    #[expect(clippy::option_option, reason = "a failed try and a missing store are two answers")]
    pub(super) fn create(
        &'a self,
        unnumbered: &Pointer,
        body: &[u8],
        keep: WriteOptions,
    ) -> Result<Option<Option<Listing<'a>>>> {
        let failed = self.failed("create the record");
        let draft = format!(".new.{}", unnumbered.ident.text());
        let drafts = match self.root.drafts() {
            Ok(drafts) => drafts,
            Err(Errno::ENOENT | Errno::ESTALE) => return Ok(None),
            Err(errno @ (Errno::ENOTDIR | Errno::ELOOP)) => return Err(no_work(errno, self.store)),
            Err(errno) => return Err(failed(errno)),
        };
        let prepared = sys::make_directory(drafts, draft.as_str(), self.root.inner_mode, self.root.ownership);
        let born = prepared.and_then(|directory| {
            let born = self
                .write(&directory, &unnumbered.name(), body, keep)
                .and_then(|()| match keep.durability {
                    // The target of a name must be on disk before the name is.
                    Durability::Durable => sys::sync_directory(&directory),
                    _ => Ok(()),
                })
                .and_then(|()| self.put_in_place(drafts, &draft));
            // This removes only our own file: if the rename happened after all, other processes use the directory.
            if born.is_err() {
                let _ = sys::remove_file(&directory, OsStr::new(&unnumbered.name()));
            }
            born.map(|outer| (directory, outer))
        });
        match born {
            Ok((directory, outer)) => Ok(Some(Some(Listing::new(self, directory, outer, Some(*unnumbered))))),
            Err(errno) => {
                let _ = sys::remove_directory(drafts, OsStr::new(&draft));
                match errno {
                    // The name exists, or the reply to our own rename was lost and this error answers the repetition.
                    Errno::EEXIST | Errno::ENOTEMPTY => self.refuse_strangers().map(|()| Some(None)),
                    Errno::ENOENT | Errno::ESTALE if self.root.is_gone() => Ok(None),
                    Errno::ENOENT | Errno::ESTALE => Ok(Some(None)),
                    errno => Err(failed(errno)),
                }
            }
        }
    }
}

impl Entry<'_> {
    /// Renames a draft onto the name or into a foreign directory; in the second case returns that directory.
    fn put_in_place(&self, drafts: &OwnedFd, draft: &str) -> std::result::Result<Option<OwnedFd>, Errno> {
        let root = self.root;
        let errno = match sys::rename(drafts, draft, &root.directory, &self.file_name) {
            Ok(()) => return Ok(None),
            Err(errno) => errno,
        };
        // The kernel checks the sticky bit first. Even if we may remove the directory, it may contain an inner record.
        let is_refused = matches!(errno, Errno::EPERM | Errno::EACCES);
        if !root.sticky || !(is_refused || matches!(errno, Errno::EEXIST | Errno::ENOTEMPTY)) {
            return Err(errno);
        }
        let now = || sys::fresh_time(drafts, root.file_mode);
        let a_while = match root.scope {
            Scope::Local => foreign_directory::A_WHILE,
            Scope::Shared => foreign_directory::A_WHILE_OF_SERVERS,
        };
        match foreign_directory::find(&root.directory, &self.file_name, is_refused.then_some(now), a_while)? {
            There::Record => Err(Errno::EEXIST),
            There::Nothing => Err(errno),
            There::Lodging(outer) => {
                sys::rename(drafts, draft, &outer, OsStr::new(foreign_directory::NAME)).map(|()| Some(outer))
            }
        }
    }

    /// Writes a record into a directory. The mode of the file is never wider than its final mode.
    fn write(
        &self,
        directory: &OwnedFd,
        name: &str,
        body: &[u8],
        keep: WriteOptions,
    ) -> std::result::Result<(), Errno> {
        let root = self.root;
        let mode = keep.mode.map_or(Mode::all(), Mode::from_bits_truncate) & root.file_mode;
        // A file with a restricted mode keeps its writer as the owner.
        let ownership = if keep.mode.is_some() { root.ownership.without_owner() } else { root.ownership };
        let kind = (root.uncached, mode, ownership);
        sys::create_file_as(directory, name, kind, body, keep.durability >= Durability::Atomic)
    }

    /// Fails if the directory contains foreign files and no file of csalock, because csalock never removes it.
    fn refuse_strangers(&self) -> Result<()> {
        let Ok(directory) = sys::open_directory(&self.root.directory, self.file_name.as_os_str()) else {
            return Ok(());
        };
        let (mut ours, mut stranger) = (false, None);
        let listed = sys::each_name::<Errno>(&directory, &mut |name| {
            match Name::parse(name) {
                Some(_) => ours = true,
                None if name == foreign_directory::NAME.as_bytes() => ours = true,
                // An NFS client keeps a removed file under such a name while the file is open.
                None if name.starts_with(b".nfs") => {}
                None => stranger = Some(crate::name::escape(name)),
            }
            Ok(())
        });
        match stranger {
            Some(stranger) if listed.is_ok() && !ours => {
                let path = crate::name::escape_path(&self.path());
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

/// Removes a draft and its files, as far as possible.
pub(super) fn discard_draft(drafts: &OwnedFd, draft: &OsStr) {
    if let Ok(directory) = sys::open_directory(drafts, draft) {
        let mut names = Vec::new();
        let _ = sys::each_name::<Errno>(&directory, &mut |name| {
            names.push(name.to_vec());
            Ok(())
        });
        for name in &names {
            let _ = sys::remove_file(&directory, os(name));
        }
    }
    let _ = sys::remove_directory(drafts, draft);
}

impl<'a> Listing<'a> {
    fn new(entry: &'a Entry<'a>, directory: OwnedFd, outer: Option<OwnedFd>, pointer: Option<Pointer>) -> Listing<'a> {
        Listing { entry, directory, outer, pointer, records: Vec::new(), silly_renames: Vec::new(), has_lodging: false }
    }

    /// Returns a listing to save; `None` if this listing contains no record.
    pub(super) fn keep(self) -> Option<CachedListing> {
        let pointer = self.pointer.filter(Pointer::is_in_use)?;
        let file_name = self.entry.file_name.clone();
        Some(CachedListing { file_name, directory: self.directory, outer: self.outer, pointer, records: self.records })
    }

    /// Lists the inner directory if it still exists; otherwise returns this listing.
    fn inside(self) -> std::result::Result<Listing<'a>, Errno> {
        match sys::open_directory(&self.directory, foreign_directory::NAME) {
            Ok(inner) => {
                let mut look = Listing::new(self.entry, inner, Some(self.directory), None);
                look.list().map(|()| look)
            }
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(self),
            Err(errno) => Err(errno),
        }
    }
}

impl Listing<'_> {
    fn list(&mut self) -> std::result::Result<(), Errno> {
        let Listing { pointer, records, silly_renames: debris, has_lodging, .. } = self;
        sys::each_name::<Errno>(&self.directory, &mut |name| {
            match Name::parse(name) {
                // A listing that overlaps a rename may contain both names. The later name counts.
                Some(Name::Pointer(found)) if pointer.is_none_or(|known| known.number <= found.number) => {
                    *pointer = Some(found);
                }
                Some(Name::Record(ident)) => records.push(ident),
                None if name == foreign_directory::NAME.as_bytes() => *has_lodging = true,
                None if name.starts_with(REMOVED_WHILE_OPEN) => debris.push(String::from_utf8_lossy(name).into_owned()),
                _ => {}
            }
            Ok(())
        })
    }

    /// Returns the bytes that the pointer refers to; `None` if they are missing because the record has changed.
    pub(super) fn body(&self, pointer: &Pointer) -> Result<Option<Vec<u8>>> {
        let name = pointer.record();
        match sys::read_file(&self.directory, &name, self.entry.root.uncached, crate::lock::MOST_BYTES) {
            Ok(Ok(bytes)) => Ok(Some(bytes)),
            Ok(Err(what)) => {
                let path = self.entry.path().join(name);
                Err(Error::corrupt(format!("{} is not a record: {what}", crate::name::escape_path(&path))))
            }
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(None),
            Err(errno) => Err(self.entry.failed("read the record")(errno)),
        }
    }

    /// Renames the pointer. Returns `false` if another process was faster.
    pub(super) fn advance(&self, from: &Pointer, to: &Pointer) -> Result<bool> {
        match sys::rename(&self.directory, from.name().as_str(), &self.directory, OsStr::new(&to.name())) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(false),
            Err(errno) => Err(self.entry.failed("change the record")(errno)),
        }
    }

    /// Writes a new record and points to it. Returns `false` if another process was faster, or if a lost reply caused a
    /// repetition. The caller must withdraw the record unless our rename succeeded.
    pub(super) fn replace(&self, from: &Pointer, to: &Pointer, body: &[u8], keep: WriteOptions) -> Result<bool> {
        match self.entry.write(&self.directory, &to.ident.record(), body, keep) {
            Ok(()) => {}
            Err(Errno::ENOENT | Errno::ESTALE) => return Ok(false),
            Err(errno) => {
                self.withdraw(to);
                return Err(self.entry.failed("write the record")(errno));
            }
        }
        // On an error the rename may have happened, and then the file is needed. Otherwise the next commit removes it.
        self.advance(from, to)
    }

    /// Removes a record whose pointer was never put in place.
    pub(super) fn withdraw(&self, to: &Pointer) {
        let _ = sys::remove_file(&self.directory, OsStr::new(&to.ident.record()));
        // If the record was removed meanwhile, our draft kept its directory from being removed.
        let _ = self.remove_directory();
    }

    /// Removes the pointer of a record without other files. Returns `false` if another process was faster.
    pub(super) fn remove_pointer(&self, pointer: &Pointer) -> Result<bool> {
        match sys::remove_if_there(&self.directory, OsStr::new(&pointer.name())) {
            Ok(removed) => Ok(removed),
            Err(Errno::ESTALE) => Ok(false),
            Err(errno) => Err(self.entry.failed("remove the record")(errno)),
        }
    }

    /// Removes the directory of a tombstone, and the tombstone last.
    pub(super) fn remove(&self, end: &Pointer) -> Result<()> {
        self.remove_records();
        let removed = sys::remove_file(&self.directory, OsStr::new(&end.name()));
        removed.map_err(self.entry.failed("remove the tombstone"))?;
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
            let _ = sys::remove_file(&self.directory, OsStr::new(name));
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

    /// Waits until the names in the directory are on disk.
    pub(super) fn sync(&self) -> Result<()> {
        let directories = std::iter::once(&self.directory).chain(&self.outer);
        directories
            .map(sys::sync_directory)
            .find(std::result::Result::is_err)
            .unwrap_or(Ok(()))
            .map_err(self.entry.failed("sync the record's directory"))
    }

    pub(super) fn remove_directory(&self) -> Result<()> {
        let root = self.entry.root;
        if let Some(outer) = &self.outer {
            let _ = sys::remove_directory(outer, OsStr::new(foreign_directory::NAME));
        }
        match sys::remove_directory(&root.directory, &self.entry.file_name) {
            // Another process uses the directory and removes it later.
            Ok(()) | Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(()),
            // The directory is another user's and blocks no lock: a record may be created inside it.
            Err(Errno::EPERM | Errno::EACCES) if root.sticky => Ok(()),
            Err(errno) => Err(self.entry.failed("remove the record's directory")(errno)),
        }
    }

    /// Returns true if we may remove this directory; with the sticky bit only its owner may. Otherwise the tombstone
    /// stays, and the next process can revive it. In a foreign directory of a shared store it stays too, because it
    /// takes long to find out that nothing else is there.
    pub(super) fn may_remove_directory(&self) -> bool {
        let root = self.entry.root;
        let user = nix::unistd::geteuid();
        let record = self.outer.as_ref().filter(|_| root.scope == Scope::Shared).unwrap_or(&self.directory);
        !root.sticky
            || (self.outer.is_some() && root.scope == Scope::Local)
            || user.is_root()
            || root.owner == user.as_raw()
            || fstat(record).is_ok_and(|found| found.st_uid == user.as_raw())
    }
}

/// Returns the mode of files in a store whose directories have this mode.
pub(super) fn file_mode(directory: Mode) -> Mode {
    directory & Mode::from_bits_truncate(0o444) | Mode::S_IWUSR | Mode::S_IRUSR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_names_have_distinct_file_names_that_fit() {
        let long = |last: u8| [&[b'x'; 1023][..], &[last]].concat();
        let mut names = vec![b"a".to_vec(), b"A".to_vec(), b".".to_vec(), b"..".to_vec(), b"%2E".to_vec()];
        names.extend([b"a b".to_vec(), b"a%20b".to_vec(), b"~".to_vec(), b"\xff".to_vec(), b"/".to_vec()]);
        names.extend([long(b'a'), long(b'b'), vec![b'\n'; 1024], vec![b'x'; 200], vec![b'x'; 201]]);
        let files: std::collections::BTreeSet<_> = names.iter().map(|name| file_name(name)).collect();
        assert_eq!(files.len(), names.len());
        assert!(files.iter().all(|file| file.len() <= 255 && file[0] != b'.' && !file.contains(&b'/')));
        assert_eq!(file_name(b"nightly.sh"), b"nightly.sh");
        assert_eq!(file_name(b"../a"), b"%2E.%2Fa");
    }
}
