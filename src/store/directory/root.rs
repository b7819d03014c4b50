//! The store's own directory: its permissions, its drafts and the version numbers used so far.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat, lstat, stat};
use nix::sys::statfs::{NFS_SUPER_MAGIC, fstatfs, statfs};

use super::entry::Entry;
use super::ownership::Ownership;
use super::parked::Rest;
use super::pointer::after;
use super::{doorbell, entry, high_water_mark, parked, sync_parents, sys};
use crate::error::{Error, ErrorKind, Result};
use crate::host::Host;
use crate::name::escape_path;
use crate::store::file_system::network;
use crate::store::{Layout, Scope};

/// Name of the directory for drafts and the high-water mark. The name of a record's directory never begins with a dot.
pub(super) const WORK: &str = ".work";

/// Prefix of the name that a draft gets while it is removed.
const DEAD: &[u8] = b".dead";

/// Maximum age of a draft; the process that made an older draft has died.
const DRAFT_LASTS: Duration = Duration::from_secs(60);

/// Maximum number of retries if a store is removed while an NFS client opens it.
const OPENINGS: usize = 20;

/// An open store.
pub(super) struct Root {
    pub(super) directory: OwnedFd,
    pub(super) scope: Scope,
    /// Open flags for records. An NFS 4 server may delegate a file to a client that opens it. No process can rename or
    /// remove the file until the client returns the delegation, or the server considers the client dead (90 s). Linux
    /// requests no delegation for a file that is opened for direct I/O.
    pub(super) uncached: OFlag,
    /// Mode of the directories in the store; `file_mode` is the mode of its files.
    pub(super) inner_mode: Mode,
    pub(super) file_mode: Mode,
    /// True if only owners may remove directories in the store.
    pub(super) sticky: bool,
    pub(super) owner: u32,
    /// Owner and group for the files that csalock creates in the store.
    pub(super) ownership: Ownership,
    pub(super) layout: Layout,
    work: OnceLock<OwnedFd>,
    /// Set once the directories above the store are synced.
    anchored: OnceLock<()>,
}

impl Root {
    /// Opens the store at this path; returns `None` if it does not exist.
    pub(super) fn open(path: &Path, layout: Layout) -> Result<Option<Root>> {
        let open = || open_through(path, layout != Layout::Beside);
        // If the directory is removed while an NFS client opens it, the path is unused or leads to a new directory.
        let opened = (0..OPENINGS).map(|_| open()).find(|opened| !matches!(opened, Err(Errno::ESTALE)));
        let directory = match opened.unwrap_or(Err(Errno::ESTALE)) {
            Ok(directory) => directory,
            Err(Errno::ENOENT) if layout != Layout::Own || path.parent().is_some_and(Path::exists) => {
                return Ok(None);
            }
            Err(Errno::ENOENT) => {
                return Err(Error::os(Errno::ENOENT, "find", path.parent().unwrap_or(path)));
            }
            Err(Errno::ELOOP) => {
                let what = format!("{} is a symbolic link, which is not followed there", escape_path(path));
                return Err(Error::new(ErrorKind::Denied, what, "see who made it, or name the real directory"));
            }
            Err(errno) => return Err(Error::os(errno, "open the store", path)),
        };
        let found = fstat(&directory).map_err(|errno| Error::os(errno, "open the store", path))?;
        let mode = Mode::from_bits_truncate(found.st_mode);
        let sticky = mode.contains(Mode::S_ISVTX);
        refuse_open_to_all(mode, path)?;
        if layout != Layout::Beside {
            refuse_foreign(&directory, path)?;
        }
        let inner_mode = mode & Mode::from_bits_truncate(0o2777);
        // A process that does not know that other hosts share the store would not see their grants.
        let kind = fstatfs(&directory).map_err(|errno| Error::os(errno, "open the store", path))?.filesystem_type();
        let shared = network(kind).is_some();
        let is_nfs = kind == NFS_SUPER_MAGIC;
        // Another root process may have been killed before it gave the directory away, or may be about to give it away.
        let unowned = layout == Layout::Beside && found.st_uid == 0 && nix::unistd::geteuid().is_root();
        let above = unowned.then(|| fstatat(&directory, "..", AtFlags::empty()).ok()).flatten();
        let ownership = Ownership::in_directory(&above.unwrap_or(found));
        Ok(Some(Root {
            directory,
            scope: if shared { Scope::Shared } else { Scope::Local },
            uncached: if is_nfs { OFlag::O_DIRECT } else { OFlag::empty() },
            inner_mode,
            file_mode: entry::file_mode(inner_mode),
            sticky,
            owner: found.st_uid,
            ownership,
            layout,
            work: OnceLock::new(),
            anchored: OnceLock::new(),
        }))
    }

    /// Returns a private store in a simulated file system.
    #[cfg(test)]
    pub(super) fn simulated(directory: OwnedFd, scope: Scope) -> Root {
        let inner_mode = Mode::from_bits_truncate(0o700);
        Root {
            directory,
            scope,
            uncached: OFlag::empty(),
            inner_mode,
            file_mode: entry::file_mode(inner_mode),
            sticky: false,
            owner: 0,
            ownership: Ownership::default(),
            layout: Layout::Own,
            work: OnceLock::new(),
            anchored: OnceLock::new(),
        }
    }

    /// Creates the store's directory; succeeds even if another process was faster.
    pub(super) fn create(path: &Path, layout: Layout) -> Result<()> {
        let made = match layout {
            Layout::Own => std::fs::DirBuilder::new().create(path),
            Layout::Default => {
                let mode = if nix::unistd::geteuid().is_root() { 0o755 } else { 0o700 };
                std::fs::DirBuilder::new().recursive(true).mode(mode).create(path)
            }
            Layout::Beside => return create_beside(path),
        };
        match made {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(Error::os(Errno::from_raw(error.raw_os_error().unwrap_or(0)), "create the store", path))
            }
            _ => Ok(()),
        }
    }

    /// Returns the directory for drafts.
    pub(super) fn drafts(&self) -> std::result::Result<&OwnedFd, Errno> {
        if self.layout == Layout::Beside {
            self.adopt(&self.directory)?;
            return Ok(&self.directory);
        }
        if let Some(work) = self.work.get() {
            return Ok(work);
        }
        let work = match sys::open_directory(&self.directory, WORK) {
            Err(Errno::ENOENT) => {
                match sys::put_directory(&self.directory, OsStr::new(WORK), self.inner_mode, self.ownership) {
                    Ok(()) | Err(Errno::EEXIST) => sys::open_directory(&self.directory, WORK),
                    Err(errno) => Err(errno),
                }
            }
            opened => opened,
        }?;
        self.adopt(&work)?;
        Ok(self.work.get_or_init(|| work))
    }

    /// Gives away a directory that another root process has made and not yet given away, before root uses it.
    fn adopt(&self, directory: &OwnedFd) -> std::result::Result<(), Errno> {
        if self.ownership.has_owner() { self.ownership.give_directory(directory).map(drop) } else { Ok(()) }
    }

    /// Returns a version number above all used ones, for a name whose directory was just put in place.
    pub(super) fn next_number(&self, host: &dyn Host, path: &Path) -> Result<u64> {
        let clock = match self.scope {
            Scope::Local => host.wall(),
            Scope::Shared => self.file_system_time(path)?,
        };
        let used = match self.layout {
            Layout::Beside => 0,
            _ => self.in_work(path, |work| Ok(high_water_mark::highest(work)?.unwrap_or(0)))?,
        };
        let above = after(used).ok_or_else(|| used_up(&path.join(WORK)))?;
        Ok((clock.as_micros() as u64).max(above))
    }

    /// Records that this version number was used.
    pub(super) fn raise_token(&self, number: u64, path: &Path) -> Result<()> {
        match self.layout {
            Layout::Beside => Ok(()),
            _ => self.in_work(path, |work| high_water_mark::raise(work, number, self.file_mode)),
        }
    }

    /// Waits until the high-water mark is on disk. The directory that contains it may be new.
    pub(super) fn sync_token(&self, path: &Path) -> Result<()> {
        if self.layout == Layout::Beside {
            return Ok(());
        }
        self.in_work(path, |work| sys::sync_directory(work))?;
        self.sync(path)
    }

    /// Waits until the names in the store, and the store itself, are on disk.
    pub(super) fn sync(&self, path: &Path) -> Result<()> {
        let failed = |errno| Error::os(errno, "sync the store", path);
        sys::sync_directory(&self.directory).map_err(failed)?;
        if self.anchored.get().is_none() {
            sync_parents::sync_above(&self.directory, self.layout).map_err(failed)?;
            let _ = self.anchored.set(());
        }
        Ok(())
    }

    /// Decides if a removed record may stay as a tombstone: only in a local store, where no listing of others is stale.
    pub(super) fn may_rest(&self, entry: &Entry<'_>, now: Duration, path: &Path) -> Result<Rest> {
        // An auxiliary object is seldom needed twice.
        let is_record = entry::is_record(entry.file_name().as_bytes());
        if self.layout == Layout::Beside || self.scope == Scope::Shared || !is_record {
            return Ok(Rest::No);
        }
        self.in_work(path, |work| parked::may_rest(work, entry.file_name(), now, self.file_mode))
    }

    /// Returns the file names of records that may stay as tombstones.
    pub(super) fn resting(&self, path: &Path) -> Result<Vec<Vec<u8>>> {
        // A reader must not create the directory that contains the markers.
        match sys::open_directory(&self.directory, WORK) {
            _ if self.layout == Layout::Beside => Ok(Vec::new()),
            Err(Errno::ENOENT) => Ok(Vec::new()),
            _ => self.in_work(path, parked::names),
        }
    }

    fn in_work<T>(&self, path: &Path, work: impl Fn(&OwnedFd) -> std::result::Result<T, Errno>) -> Result<T> {
        let done = self.drafts().and_then(work);
        done.map_err(|errno| no_work(errno, path))
    }

    /// Returns the time that the file system gives to a new file.
    pub(super) fn file_system_time(&self, path: &Path) -> Result<Duration> {
        let failed = |errno| Error::os(errno, "ask for the time of the file system of", path);
        let drafts = self.drafts().map_err(|errno| no_work(errno, path))?;
        sys::fresh_time(drafts, self.file_mode).map_err(failed)
    }

    /// Returns true if the store's directory or its directory for drafts was removed while open. A new open makes an
    /// NFS client ask the server.
    pub(super) fn is_gone(&self) -> bool {
        if self.work.get().is_some_and(sys::is_removed) {
            return true;
        }
        match sys::open_directory(&self.directory, ".") {
            Ok(fresh) => sys::is_removed(fresh),
            Err(errno) => matches!(errno, Errno::ENOENT | Errno::ESTALE),
        }
    }

    /// Visits the file name of every record's directory.
    pub(super) fn each_entry(&self, path: &Path, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let failed = |errno| Error::os(errno, "list the store", path);
        let fresh = match sys::open_directory(&self.directory, ".") {
            Err(Errno::ENOENT | Errno::ESTALE) if self.is_gone() => return Ok(()),
            opened => opened.map_err(failed)?,
        };
        sys::each_name::<Failed>(fresh, &mut |name| {
            if name.starts_with(b".") {
                return Ok(());
            }
            visit(name).map_err(Failed::Visit)
        })
        .or_else(|failure| match failure {
            // The last record was removed, and the store with it.
            Failed::List(Errno::ENOENT | Errno::ESTALE) if self.is_gone() => Ok(()),
            Failed::List(errno) => Err(failed(errno)),
            Failed::Visit(error) => Err(error),
        })
    }

    /// Removes unfinished directories for drafts that killed processes left; returns their number.
    pub(super) fn sweep_work(&self, now: Duration, dry_run: bool, path: &Path) -> Result<u64> {
        let swept = sys::sweep_unborn(&self.directory, WORK, now.saturating_sub(DRAFT_LASTS), dry_run);
        swept.map_err(|errno| Error::os(errno, "sweep the store", path))
    }

    /// Removes drafts that were left behind; returns their number.
    pub(super) fn sweep_drafts(&self, now: Duration, dry_run: bool, path: &Path) -> Result<u64> {
        let failed = |errno| Error::os(errno, "sweep the store", path);
        let place = if self.layout == Layout::Beside { "." } else { WORK };
        let drafts = match sys::open_directory(&self.directory, place) {
            Err(Errno::ENOENT) => return Ok(0),
            Err(errno @ (Errno::ENOTDIR | Errno::ELOOP)) => return Err(no_work(errno, path)),
            opened => opened.map_err(failed)?,
        };
        let now = if self.scope == Scope::Shared { self.file_system_time(path)? } else { now };
        let mut old = Vec::new();
        let listed = sys::each_name::<Errno>(&drafts, &mut |name| {
            let age = sys::changed_at(&drafts, sys::os(name)).map(|changed| now.saturating_sub(changed));
            let is_old = is_draft(name) && age.is_ok_and(|age| age > DRAFT_LASTS);
            if is_old && !(name.starts_with(doorbell::PREFIX) && doorbell::is_heard(&drafts, name)) {
                old.push(name.to_vec());
            }
            Ok(())
        });
        match listed {
            // The last record was removed, and the store with it.
            Err(Errno::ENOENT | Errno::ESTALE) if self.is_gone() => return Ok(0),
            listed => listed.map_err(failed)?,
        }
        if old.is_empty() {
            return Ok(0);
        }
        let fresh = sys::open_directory(&self.directory, place).map_err(failed)?;
        for draft in old.iter().filter(|_| !dry_run) {
            // Under another name, a maker that is still alive cannot put a half-removed draft in place.
            let mine = if draft.starts_with(DEAD) { draft.clone() } else { [DEAD, draft.as_slice()].concat() };
            if mine == *draft || sys::rename(&fresh, sys::os(draft), &fresh, sys::os(&mine)).is_ok() {
                let _ = sys::remove_file(&fresh, sys::os(&mine));
                entry::discard_draft(&fresh, sys::os(&mine));
            }
        }
        Ok(old.len() as u64)
    }

    /// Removes a `.csalock` that contains no record.
    pub(super) fn remove_if_empty(&self, path: &Path) {
        let _ = sys::remove_directory(AT_FDCWD, path.as_os_str());
    }
}

/// Returns the error for a directory for drafts that cannot be used.
pub(super) fn no_work(errno: Errno, path: &Path) -> Error {
    let work = path.join(WORK);
    match errno {
        Errno::ENOTDIR | Errno::ELOOP => {
            let what = format!("{} is not a directory, as it must be to work in", escape_path(&work));
            Error::new(ErrorKind::Corrupt, what, "see who made it, and move it away")
        }
        errno => Error::os(errno, "use the working directory of the store", path),
    }
}

/// Fails if a directory that was never a store is not empty: csalock must not create files at a mistyped path.
fn refuse_foreign(directory: &OwnedFd, path: &Path) -> Result<()> {
    let failed = |errno| Error::os(errno, "list the store", path);
    if fstatat(directory, WORK, AtFlags::AT_SYMLINK_NOFOLLOW) != Err(Errno::ENOENT) {
        return Ok(());
    }
    let mut foreign = None;
    let listed = sys::open_directory(directory, ".").map_err(failed)?;
    sys::each_name::<Errno>(listed, &mut |name| {
        let is_usual = name.starts_with(b".") || name == b"lost+found";
        if !is_usual && foreign.is_none() && !entry::may_be_record(directory, sys::os(name)) {
            foreign = Some(name.to_vec());
        }
        Ok(())
    })
    .map_err(failed)?;
    let Some(name) = foreign else { return Ok(()) };
    let what = format!("{} is not a store: {} is in it", escape_path(path), crate::name::escape(&name));
    Err(Error::new(ErrorKind::Corrupt, what, "see the path; name a new directory, or an empty one"))
}

/// Opens a store's directory; follows a link in its place only if no other user can have put it there. (Linux can
/// enforce this itself: protected_symlinks, proc_sys_fs(5).)
fn open_through(path: &Path, links: bool) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    match nix::fcntl::open(path, flags | OFlag::O_NOFOLLOW, Mode::empty()) {
        Err(errno @ (Errno::ENOTDIR | Errno::ELOOP)) => {
            let link = lstat(path)?;
            if SFlag::from_bits_truncate(link.st_mode) & SFlag::S_IFMT != SFlag::S_IFLNK {
                return Err(errno);
            }
            let above = stat(path.parent().unwrap_or(Path::new("/")))?;
            let for_all = Mode::S_ISVTX | Mode::S_IWOTH;
            let is_strange = Mode::from_bits_truncate(above.st_mode).contains(for_all)
                && ![nix::unistd::geteuid().as_raw(), above.st_uid].contains(&link.st_uid);
            match links && !is_strange {
                true => nix::fcntl::open(path, flags, Mode::empty()),
                false => Err(Errno::ELOOP),
            }
        }
        opened => opened,
    }
}

/// Returns the error for a store with the highest version number, which cannot be reached by counting.
pub(super) fn used_up(path: &Path) -> Error {
    let what = format!("no version number is left above those in {}", escape_path(path));
    Error::new(ErrorKind::Corrupt, what, "see who wrote that number there, and move it away")
}

fn is_draft(name: &[u8]) -> bool {
    [&b".new."[..], b".clock.", doorbell::PREFIX, DEAD].iter().any(|prefix| name.starts_with(prefix))
}

/// Fails if all users may write and any user may remove the files of others, because no lock works there.
fn refuse_open_to_all(mode: Mode, path: &Path) -> Result<()> {
    if !mode.contains(Mode::S_IWOTH) || mode.contains(Mode::S_ISVTX) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Denied,
        format!("every user may rename and remove what is in {}", escape_path(path)),
        "give it the sticky bit (chmod +t) or take the right to write from others (chmod o-w)",
    ))
}

/// Creates `.csalock` with the mode, owner and group of the directory that contains it, as far as permitted.
fn create_beside(path: &Path) -> Result<()> {
    let failed = |errno| Error::os(errno, "create the store", path);
    let parent = path.parent().unwrap_or(Path::new("/"));
    let wanted = stat(parent).map_err(failed)?;
    let mode = Mode::from_bits_truncate(wanted.st_mode & 0o7777);
    refuse_open_to_all(mode, parent)?;
    match sys::put_directory(AT_FDCWD, path.as_os_str(), mode, Ownership::in_directory(&wanted)) {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(failed(errno)),
    }
}

/// Removes unfinished `.csalock` directories that killed processes left; returns their number. A listing error counts
/// as 0, because the caller gets that error when it opens the store.
pub(super) fn sweep_beside(path: &Path, now: Duration, dry_run: bool) -> u64 {
    let (Some(above), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else { return 0 };
    let swept = sys::open_directory(AT_FDCWD, above)
        .and_then(|above| sys::sweep_unborn(above, name, now.saturating_sub(DRAFT_LASTS), dry_run));
    swept.unwrap_or(0)
}

/// Returns the scope of a store that does not exist yet: that of the first directory above it that exists.
pub(super) fn reach_of<'a>(mut above: impl Iterator<Item = &'a Path>) -> Scope {
    match above.find_map(|directory| statfs(directory).ok()) {
        Some(found) if network(found.filesystem_type()).is_some() => Scope::Shared,
        _ => Scope::Local,
    }
}

enum Failed {
    List(Errno),
    Visit(Error),
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Failed {
        Failed::List(errno)
    }
}
