//! An open store: its directories, and the checks before csalock uses them.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::sys::stat::{Mode, fstat, fstatat, stat};
use nix::sys::statfs::{NFS_SUPER_MAGIC, fstatfs, statfs};
use nix::unistd::geteuid;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::ownership::Ownership;
use super::work::{WORK, not_a_directory, open_or_put_directory};
use super::{checks, sys};
use crate::error::{Error, Result};
use crate::store::file_system::network;
use crate::store::{Layout, Scope};

/// Name of the directory with the records in a directory with the sticky bit. There only its owner may replace or
/// remove a directory, so a killed user's empty directory would block its name for all others.
pub(super) const LOCKS: &str = ".locks";

/// Mark of a directory that `csalock serve` serves to other hosts, the set-user-ID bit. Linux gives this bit no meaning
/// for directories, and each open of a store reads it anyway.
pub const MARK: u32 = 0o4000;

/// An open store.
pub(super) struct Root {
    /// The directory with the records, and its path for messages.
    pub(super) directory: OwnedFd,
    pub(super) path: PathBuf,
    /// Device and number of the directory that the path of the store named.
    pub(super) id: (u64, u64),
    /// The directory with the sticky bit around it, if there is one.
    pub(super) sticky: Option<OwnedFd>,
    pub(super) scope: Scope,
    /// True if waiters have a FIFO: all processes that use the store run on this host, or `csalock serve` does for them.
    pub(super) has_bells: bool,
    /// Open flags for records. An NFS 4 server may delegate a file to a client that opens it. No process can rename or
    /// remove the file until the client returns the delegation, or the server considers the client dead (90 s). Linux
    /// requests no delegation for a file that is opened for direct I/O.
    pub(super) uncached: OFlag,
    /// Mode of the directories in the store; `file_mode` is the mode of its files.
    pub(super) inner_mode: Mode,
    pub(super) file_mode: Mode,
    /// Owner and group for the files that csalock creates in the store.
    pub(super) ownership: Ownership,
    pub(super) layout: Layout,
    pub(super) work: OnceLock<OwnedFd>,
    /// The token that the register had when this process last read it. Tokens only rise.
    pub(super) known_token: Mutex<Option<u64>>,
    /// Set once the directories above the store are synced.
    pub(super) anchored: OnceLock<()>,
}

impl Root {
    /// Opens the store at this path; returns `None` if it does not exist. `create` permits to create the directory with
    /// the records in a directory with the sticky bit.
    pub(super) fn open(path: &Path, layout: Layout, create: bool) -> Result<Option<Root>> {
        let (parent, needs_parent) = (path.parent().unwrap_or(path), matches!(layout, Layout::Own | Layout::Served));
        let directory = match checks::open_through(path, layout != Layout::Beside) {
            Ok(directory) => directory,
            Err(Errno::ENOENT) if !needs_parent || parent.exists() => return Ok(None),
            Err(Errno::ENOENT) => return Err(Error::os(Errno::ENOENT, "find", parent)),
            Err(errno) => return Err(checks::cannot_open(errno, path)),
        };
        let failed = |errno| Error::os(errno, "open the store", path);
        let found = match fstat(&directory) {
            // Another host has removed the directory with the last record.
            Err(Errno::ESTALE) if layout == Layout::Beside => return Ok(None),
            found => found.map_err(failed)?,
        };
        let mode = Mode::from_bits_truncate(found.st_mode);
        let inner_mode = mode & Mode::from_bits_truncate(0o2777);
        let ownership = Ownership::in_directory(&found);
        checks::refuse_open_to_all(mode, path)?;
        let is_sticky = mode.contains(Mode::S_ISVTX);
        // An error is not an answer: a caller that looked in the wrong place would not see the holder.
        let has = |name| match fstatat(&directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => Ok(false),
            found => found.map(|_| true),
        };
        let has_locks = if layout != Layout::Beside && has(WORK).map_err(failed)? {
            false
        } else {
            match has(LOCKS) {
                Err(Errno::ESTALE) if layout == Layout::Beside => return Ok(None),
                Ok(false) if layout == Layout::Beside && !is_sticky => false,
                // The sticky bit may change while locks are held, so it decides only where the first record goes.
                Ok(false) => !checks::has_records(&directory, path)? && is_sticky,
                found => found.map_err(failed)?,
            }
        };
        // A process that does not know that other hosts share the store would not see their grants.
        let kind = match fstatfs(&directory) {
            Err(Errno::ESTALE) if layout == Layout::Beside => return Ok(None),
            kind => kind.map_err(failed)?.filesystem_type(),
        };
        let is_network = network(kind).is_some();
        let scope = if is_network || found.st_mode & MARK != 0 { Scope::Shared } else { Scope::Local };
        let mut root = Root {
            directory,
            path: path.to_path_buf(),
            id: (found.st_dev, found.st_ino),
            sticky: None,
            scope,
            has_bells: !is_network,
            uncached: if kind == NFS_SUPER_MAGIC { OFlag::O_DIRECT } else { OFlag::empty() },
            inner_mode,
            file_mode: inner_mode & Mode::from_bits_truncate(0o444) | Mode::S_IWUSR | Mode::S_IRUSR,
            ownership,
            layout,
            work: OnceLock::new(),
            known_token: Mutex::default(),
            anchored: OnceLock::new(),
        };
        Ok((!has_locks || root.enter_locks(create)?).then_some(root))
    }

    /// Goes to the directory with the records in a directory with the sticky bit. Returns false if it does not exist.
    fn enter_locks(&mut self, create: bool) -> Result<bool> {
        let locks = self.path.join(LOCKS);
        let opened = if create {
            open_or_put_directory(&self.directory, LOCKS, self.inner_mode, self.ownership)
        } else {
            sys::open_directory(&self.directory, LOCKS)
        };
        match opened {
            Ok(inner) => {
                self.sticky = Some(std::mem::replace(&mut self.directory, inner));
                self.path = locks;
                Ok(true)
            }
            // The last record was removed, and the store with it.
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(false),
            Err(Errno::ENOTDIR | Errno::ELOOP) => Err(not_a_directory(&locks)),
            Err(errno) => Err(Error::os(errno, "open the store", &locks)),
        }
    }

    /// Creates the store's directory; succeeds even if another process was faster.
    pub(super) fn create(path: &Path, layout: Layout) -> Result<()> {
        let made = match layout {
            Layout::Own => std::fs::DirBuilder::new().create(path),
            Layout::Served => create_marked(path),
            Layout::Default => {
                let mode = if geteuid().is_root() { 0o755 } else { 0o700 };
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

    /// Returns an empty result if the store is gone: the last record was removed, and the store with it.
    pub(super) fn unless_gone<T: Default>(&self, errno: Errno) -> std::result::Result<T, Errno> {
        match errno {
            Errno::ENOENT | Errno::ESTALE if self.is_gone() => Ok(T::default()),
            errno => Err(errno),
        }
    }

    /// Visits the file name of every record's directory.
    pub(super) fn each_entry(&self, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut stopped = Ok(());
        let listed = sys::open_directory(&self.directory, ".").and_then(|fresh| {
            sys::each_name(fresh, &mut |name| {
                if name.starts_with(b".") {
                    return Ok(());
                }
                stopped = visit(name);
                // Any error ends the listing.
                if stopped.is_err() { Err(Errno::ECANCELED) } else { Ok(()) }
            })
        });
        stopped?;
        listed.or_else(|errno| self.unless_gone(errno)).map_err(|errno| Error::os(errno, "list the store", &self.path))
    }

    /// Removes a `.csalock` that contains no record.
    pub(super) fn remove_if_empty(&self) {
        if self.layout != Layout::Beside {
            return;
        }
        let mut path = self.path.as_path();
        if let Some(sticky) = &self.sticky {
            let _ = sys::remove_directory(sticky, OsStr::new(LOCKS));
            path = path.parent().unwrap_or(path);
        }
        let _ = sys::remove_directory(AT_FDCWD, path.as_os_str());
    }
}

/// Creates a directory with its mark: no process sees it without.
fn create_marked(path: &Path) -> std::io::Result<()> {
    let draft = path.with_file_name(format!(".new.{:x}", getrandom::u64().unwrap_or_default()));
    std::fs::DirBuilder::new().create(&draft)?;
    let mode = draft.metadata()?.permissions().mode() & 0o7777;
    std::fs::set_permissions(&draft, Permissions::from_mode(mode | MARK))?;
    let renamed = renameat_with(CWD, &draft, CWD, path, RenameFlags::NOREPLACE);
    if renamed.is_err() {
        std::fs::remove_dir(&draft)?;
    }
    Ok(renamed?)
}

/// Creates `.csalock` with the mode, owner and group of the directory that contains it, as far as permitted.
fn create_beside(path: &Path) -> Result<()> {
    let failed = |errno| Error::os(errno, "create the store", path);
    let parent = path.parent().unwrap_or(Path::new("/"));
    let wanted = stat(parent).map_err(failed)?;
    let mode = Mode::from_bits_truncate(wanted.st_mode & 0o7777);
    checks::refuse_open_to_all(mode, parent)?;
    match sys::put_directory(AT_FDCWD, path.as_os_str(), mode, Ownership::in_directory(&wanted)) {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(failed(errno)),
    }
}

/// Returns the scope of a store that does not exist yet: that of the first directory above it that exists.
pub(super) fn reach_of<'a>(mut above: impl Iterator<Item = &'a Path>) -> Scope {
    match above.find_map(|directory| statfs(directory).ok()) {
        Some(found) if network(found.filesystem_type()).is_some() => Scope::Shared,
        _ => Scope::Local,
    }
}
