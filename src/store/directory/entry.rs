//! One record's directory: looking at it, and the renames that change it.

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
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::store::{Durability, Scope, Version, WriteOptions};

/// The longest escaped name that is used as a file name; beyond it a hash takes its place. NAME_MAX is 255.
const LONGEST_PLAIN: usize = 200;

/// How much of a long name is still to be seen in its file name.
const SEEN_OF_LONG: usize = 100;

/// So often a listing with records but without any pointer is repeated before it is believed: some file systems may miss a
/// name that is renamed while they list, but not time and again.
const LISTINGS: usize = 20;

/// So often an NFS client may find that the directory that it was about to open was just removed.
const OPENINGS: usize = 1000;

/// What an NFS client calls a file that was removed while somebody had it open. It goes away when it is closed, but not
/// if that client dies.
pub(super) const REMOVED_WHILE_OPEN: &[u8] = b".nfs";

/// Where the record of one name is, or would be.
pub(super) struct Entry<'a> {
    root: &'a Root,
    store: &'a Path,
    file_name: OsString,
}

/// What was found in an entry's directory.
pub(super) struct Listing<'a> {
    pub(super) entry: &'a Entry<'a>,
    directory: OwnedFd,
    /// The directory that it lodges in, if it is not in the store's.
    outer: Option<OwnedFd>,
    pub(super) pointer: Option<Pointer>,
    records: Vec<UniqueId>,
    silly_renames: Vec<String>,
    /// Whether a record may lodge in here.
    has_lodging: bool,
}

/// A look that may be gone on with later, by a change of what was read. That is as safe as a change that pauses after its own
/// look: the rename or removal of the pointer finds out whether others were faster.
pub(super) struct CachedListing {
    file_name: OsString,
    directory: OwnedFd,
    outer: Option<OwnedFd>,
    pointer: Pointer,
    records: Vec<UniqueId>,
}

impl CachedListing {
    /// The look, if it saw this version under this name.
    pub(super) fn resume<'a>(self, entry: &'a Entry<'a>, version: &Version) -> Option<Listing<'a>> {
        let is_it = self.file_name == entry.file_name && self.pointer.version() == *version;
        let look = is_it.then(|| Listing::new(entry, self.directory, self.outer, Some(self.pointer)))?;
        Some(Listing { records: self.records, ..look })
    }
}

/// The file name for a lock's name: letters, digits, `_`, `-` and inner dots as they are, the rest `%XX`. `~` stands only
/// in the names of long ones, before their SHA-256.
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

/// Whether it could be the file name of a lock: what else stands in a store is none of ours, and `..` is not even in it.
pub(super) fn is_file_name(name: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.%~".contains(byte);
    !name.is_empty() && name[0] != b'.' && name.iter().all(is_plain)
}

/// The name that this is the file name of; `None` for that of a long name, and for what is none.
#[cfg(any(test, fuzzing))]
pub(crate) fn name_of_file(file: &[u8]) -> Option<Vec<u8>> {
    let name = crate::lock::codec::fields::unescape(std::str::from_utf8(file).ok()?)?;
    (file_name(&name) == file).then_some(name)
}

/// Whether a record is there, and nothing that is kept beside records, whose names have a NUL in them (as far as can be
/// seen: of the longest names only the beginning is).
pub(super) fn is_record(file_name: &[u8]) -> bool {
    !file_name.windows(3).any(|three| three == b"%00")
}

/// Whether what has this name in a store's directory may be a record's, as far as that can be seen.
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

    /// Something is there that is no directory.
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
        Error::new(Exit::Corrupt, what, "see who made it, and move it away")
    }

    /// Looks what is there; `None` if nothing is.
    pub(super) fn look(&'a self) -> Result<Option<Listing<'a>>> {
        let (mut openings, mut listing) = (0, 0);
        loop {
            let directory = match sys::open_directory(&self.root.directory, self.file_name.as_os_str()) {
                Ok(directory) => directory,
                Err(Errno::ENOENT) if openings == 0 && self.root.scope == Scope::Shared => {
                    // An NFS client may go on believing that nothing is there. It looks again if the store's directory
                    // has changed, and whether that has, it asks when it opens it.
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
                // Removed since it was opened: then it is not found any more, or it is another one that is.
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

    /// Puts a new record there, as an embryo. `None`: the store's directory is gone. `Some(None)`: somebody was faster.
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
                    // What a name leads to has to be there before the name is.
                    Durability::Durable => sys::sync_directory(&directory),
                    _ => Ok(()),
                })
                .and_then(|()| self.put_in_place(drafts, &draft));
            // Nothing but our own embryo: should the rename have happened after all, then everybody looks in here by now.
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
                    // Something is there, or the reply to our own rename was lost and this was its repetition.
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
    /// Renames a draft onto the name, or into what somebody left there. Says in which directory it lodges then.
    fn put_in_place(&self, drafts: &OwnedFd, draft: &str) -> std::result::Result<Option<OwnedFd>, Errno> {
        let root = self.root;
        let errno = match sys::rename(drafts, draft, &root.directory, &self.file_name) {
            Ok(()) => return Ok(None),
            Err(errno) => errno,
        };
        // The sticky bit is looked at before anything else; and who may remove it may find that somebody lodges in there.
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

    /// Writes a record into a directory. Its file never has a wider mode than it is to have.
    fn write(
        &self,
        directory: &OwnedFd,
        name: &str,
        body: &[u8],
        keep: WriteOptions,
    ) -> std::result::Result<(), Errno> {
        let root = self.root;
        let mode = keep.mode.map_or(Mode::all(), Mode::from_bits_truncate) & root.file_mode;
        // What not everybody may read stays its writer's.
        let ownership = if keep.mode.is_some() { root.ownership.without_owner() } else { root.ownership };
        let kind = (root.uncached, mode, ownership);
        sys::create_file_as(directory, name, kind, body, keep.durability >= Durability::Atomic)
    }

    /// Something is where a record is to be born. If that is no record and nothing of ours, it will not go away by itself.
    fn refuse_strangers(&self) -> Result<()> {
        let Ok(directory) = sys::open_directory(&self.root.directory, self.file_name.as_os_str()) else {
            return Ok(());
        };
        let (mut ours, mut stranger) = (false, None);
        let listed = sys::each_name::<Errno>(&directory, &mut |name| {
            match Name::parse(name) {
                Some(_) => ours = true,
                None if name == foreign_directory::NAME.as_bytes() => ours = true,
                // NFS clients keep removed files under such names while they are open.
                None if name.starts_with(b".nfs") => {}
                None => stranger = Some(crate::name::escape(name)),
            }
            Ok(())
        });
        match stranger {
            Some(stranger) if listed.is_ok() && !ours => {
                let path = crate::name::escape_path(&self.path());
                Err(Error::new(
                    Exit::Corrupt,
                    format!("{path} has {stranger} in it, which is no record"),
                    "move it away",
                ))
            }
            _ => Ok(()),
        }
    }
}

/// Removes a draft and what is in it, as far as possible.
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

    /// What is to be kept of it; nothing if it saw no record.
    pub(super) fn keep(self) -> Option<CachedListing> {
        let pointer = self.pointer.filter(Pointer::is_in_use)?;
        let file_name = self.entry.file_name.clone();
        Some(CachedListing { file_name, directory: self.directory, outer: self.outer, pointer, records: self.records })
    }

    /// What lodges in here, if it still does.
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
                // A listing that a rename overtook may show both names; the later one counts.
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

    /// The bytes that the pointer means; `None` if they are not there, for the record moved on.
    pub(super) fn body(&self, pointer: &Pointer) -> Result<Option<Vec<u8>>> {
        let name = pointer.record();
        match sys::read_file(&self.directory, &name, self.entry.root.uncached, crate::lock::MOST_BYTES) {
            Ok(Ok(bytes)) => Ok(Some(bytes)),
            Ok(Err(what)) => {
                let path = self.entry.path().join(name);
                Err(Error::corrupt(format!("{} is no record: {what}", crate::name::escape_path(&path))))
            }
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(None),
            Err(errno) => Err(self.entry.failed("read the record")(errno)),
        }
    }

    /// Renames the pointer. `false`: somebody was faster.
    pub(super) fn advance(&self, from: &Pointer, to: &Pointer) -> Result<bool> {
        match sys::rename(&self.directory, from.name().as_str(), &self.directory, OsStr::new(&to.name())) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(false),
            Err(errno) => Err(self.entry.failed("change the record")(errno)),
        }
    }

    /// Writes a new record and points to it. `false`: somebody was faster, or the reply was lost and this is the answer
    /// to its repetition. Unless it turns out to be that, the record is to be withdrawn.
    pub(super) fn replace(&self, from: &Pointer, to: &Pointer, body: &[u8], keep: WriteOptions) -> Result<bool> {
        match self.entry.write(&self.directory, &to.ident.record(), body, keep) {
            Ok(()) => {}
            Err(Errno::ENOENT | Errno::ESTALE) => return Ok(false),
            Err(errno) => {
                self.withdraw(to);
                return Err(self.entry.failed("write the record")(errno));
            }
        }
        // On an error it may have happened all the same; then what was written is needed, else the next one removes it.
        self.advance(from, to)
    }

    /// Removes a record that was written for a pointer that never came to be.
    pub(super) fn withdraw(&self, to: &Pointer) {
        let _ = sys::remove_file(&self.directory, OsStr::new(&to.ident.record()));
        // Had the record died meanwhile, then our draft was what kept its directory from being removed.
        let _ = self.remove_directory();
    }

    /// Removes the pointer of a record that has no other file. `false`: somebody was faster.
    pub(super) fn remove_pointer(&self, pointer: &Pointer) -> Result<bool> {
        match sys::remove_if_there(&self.directory, OsStr::new(&pointer.name())) {
            Ok(removed) => Ok(removed),
            Err(Errno::ESTALE) => Ok(false),
            Err(errno) => Err(self.entry.failed("remove the record")(errno)),
        }
    }

    /// Removes the directory that a tombstone stands in, the tombstone last.
    pub(super) fn remove(&self, end: &Pointer) -> Result<()> {
        self.remove_records();
        let removed = sys::remove_file(&self.directory, OsStr::new(&end.name()));
        removed.map_err(self.entry.failed("remove the tombstone"))?;
        self.remove_directory()
    }

    /// Removes a directory that has no pointer.
    pub(super) fn clear(&self) -> Result<()> {
        for record in &self.records {
            let name = record.record();
            match sys::remove_file(&self.directory, OsStr::new(&name)) {
                Ok(()) => {}
                Err(Errno::ENOTEMPTY | Errno::EEXIST) => {
                    let path = crate::name::escape_path(&self.entry.path().join(name));
                    let what = format!("{path} is a directory with something in it, where a record belongs");
                    return Err(Error::new(Exit::Corrupt, what, "see who made it, and move it away"));
                }
                // Nobody would ever get any further.
                Err(errno) => return Err(self.entry.failed("clear the record's directory")(errno)),
            }
        }
        for name in &self.silly_renames {
            let _ = sys::remove_file(&self.directory, OsStr::new(name));
        }
        self.remove_directory()
    }

    /// Removes the records that were there before the pointer was renamed. Whoever wrote one can no longer succeed: the
    /// pointer that it meant to rename is gone.
    pub(super) fn remove_records(&self) {
        for record in &self.records {
            // What stays is found by the next one who swaps, or by the sweeper.
            let _ = sys::remove_file(&self.directory, OsStr::new(&record.record()));
        }
    }

    /// Waits until the disk has the names in it.
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
            // Somebody is at work in it, and will see to it.
            Ok(()) | Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(()),
            // It is somebody else's, and in nobody's way: a record may lodge in it.
            Err(Errno::EPERM | Errno::EACCES) if root.sticky => Ok(()),
            Err(errno) => Err(self.entry.failed("remove the record's directory")(errno)),
        }
    }

    /// Whether the store's directory lets us remove this one: with the sticky bit only its owner may. A tombstone then
    /// stays, so that the next one can revive it. So does one in a directory that it lodges in, where it takes long to find out
    /// that nothing else is there.
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

/// The mode of files in a store whose directories have this mode.
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
