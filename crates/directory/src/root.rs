//! An open store, and the checks before csalock uses its directory.

use std::fs::Permissions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, lstat, stat};
use nix::sys::statfs::{FUSE_SUPER_MAGIC, FsType, NFS_SUPER_MAGIC, fstatfs};
use nix::unistd::geteuid;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::layout::{LOCKS, NEW, Name, OVERLAYFS, Place, REMOVED_WHILE_OPEN, WORK};
use super::sys::{self, Ownership};
use lock::error::{Error, ErrorKind, Result, errno_of};
use lock::name::{escape, escape_path};
use store::mount::{network, refuse_sshfs};
use store::{Layout, Scope, with_suffix};

/// Mark of a directory that `csalock serve` serves to other hosts, the set-user-ID bit. Linux gives this bit no meaning
/// for directories, and each open of a store reads it anyway.
pub const MARK: u32 = 0o4000;

/// File in a `.csalock` of a work tree of git(1), which makes git ignore everything there: a commit would take the records
/// to other hosts.
const GITIGNORE: &str = ".gitignore";

/// Maximum number of retries if a store is removed while an NFS client opens it.
const OPENINGS: usize = 20;

pub(super) struct Root {
    pub(super) directory: OwnedFd,
    pub(super) path: PathBuf,
    /// Device and number of the directory that the path of the store named.
    pub(super) id: (u64, u64),
    /// Identity of that directory, and true if it is in layers (overlayfs).
    pub(super) place: Place,
    pub(super) is_layered: bool,
    /// The directory with the sticky bit around it, if there is one.
    pub(super) sticky: Option<OwnedFd>,
    pub(super) scope: Scope,
    /// All processes that use the store run on this host, or `csalock serve` does for them.
    pub(super) has_channels: bool,
    /// FUSE keeps names that another host has changed for some seconds.
    pub(super) has_old_names: bool,
    /// Open flags for records. An NFS 4 server may delegate a file to a client that opens it. No process can rename or
    /// remove the file until the client returns the delegation, or the server considers the client dead (90 s). Linux
    /// requests no delegation for a file that is opened for direct I/O.
    pub(super) uncached: OFlag,
    /// Mode of the directories in the store; `file_mode` is the mode of its files.
    pub(super) inner_mode: Mode,
    pub(super) file_mode: Mode,
    pub(super) ownership: Ownership,
    pub(super) layout: Layout,
    pub(super) work: OnceLock<OwnedFd>,
    /// As this process last read it. Tokens only rise.
    pub(super) known_token: Mutex<Option<u64>>,
    pub(super) parents_synced: OnceLock<()>,
}

impl Root {
    /// `create` permits to create the directory with the records in a directory with the sticky bit.
    pub(super) fn open(path: &Path, layout: Layout, create: bool) -> Result<Option<Root>> {
        let is_beside = layout == Layout::Beside;
        let directory = match open_through(path, !is_beside) {
            Ok(directory) => directory,
            Err(Errno::ENOENT) => {
                // A store that answers a read may come back after a refusal, so the refusal comes before the first answer.
                refuse_sshfs(path)?;
                let parent = path.parent().unwrap_or(path);
                let needs_parent = matches!(layout, Layout::Own | Layout::Served);
                return if needs_parent && !parent.exists() {
                    Err(Error::os(Errno::ENOENT, "find", parent))
                } else {
                    Ok(None)
                };
            }
            Err(errno) => return Err(of_home(cannot_open(errno, path), path, layout)),
        };
        let (found, kind, has_work, has_locks) = match look_at(&directory, layout) {
            // Another host has removed the directory with the last record.
            Err(Errno::ESTALE) if is_beside => return Ok(None),
            looked => looked.map_err(|errno| Error::os(errno, "open the store", path))?,
        };
        let mode = Mode::from_bits_truncate(found.st_mode);
        refuse_open_to_all(mode, path)?;
        if kind == FUSE_SUPER_MAGIC {
            refuse_sshfs(path)?;
        }
        let is_sticky = mode.contains(Mode::S_ISVTX);
        // The sticky bit may change while locks are held, so it decides only where the first record goes.
        let may_be_foreign = !has_work && (is_sticky || !is_beside);
        let is_inner = has_locks || (may_be_foreign && !has_records(&directory, path)? && is_sticky);
        let is_network = network(kind).is_some();
        let inner_mode = mode & Mode::from_bits_truncate(0o2777);
        let mut root = Root {
            directory,
            path: path.to_path_buf(),
            id: (found.st_dev, found.st_ino),
            place: Place::of(&found, kind),
            is_layered: kind.0 as u32 == OVERLAYFS,
            sticky: None,
            // A process that does not know that other hosts share the store would not see their grants.
            scope: if is_network || found.st_mode & MARK != 0 { Scope::Shared } else { Scope::Local },
            has_channels: !is_network,
            has_old_names: kind == FUSE_SUPER_MAGIC,
            uncached: if kind == NFS_SUPER_MAGIC { OFlag::O_DIRECT } else { OFlag::empty() },
            inner_mode,
            file_mode: inner_mode & Mode::from_bits_truncate(0o444) | Mode::S_IWUSR | Mode::S_IRUSR,
            ownership: Ownership::in_directory(&found),
            layout,
            work: OnceLock::new(),
            known_token: Mutex::default(),
            parents_synced: OnceLock::new(),
        };
        Ok((!is_inner || root.enter_locks(create)?).then_some(root))
    }

    /// Goes to the directory with the records in a directory with the sticky bit. Returns false if it does not exist.
    fn enter_locks(&mut self, create: bool) -> Result<bool> {
        let locks = self.path.join(LOCKS);
        let opened = if create {
            open_or_put(&self.directory, LOCKS, self.inner_mode, self.ownership)
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

    /// It succeeds even if another process was faster.
    pub(super) fn create(path: &Path, layout: Layout) -> Result<()> {
        let made = match layout {
            Layout::Own => std::fs::DirBuilder::new().create(path),
            Layout::Served => create_marked(path),
            Layout::Default => {
                // The store of root in a user namespace is in the home of a user.
                let is_of_root = geteuid().is_root() && path.parent() == Some(Path::new("/var/lib"));
                let mode = if is_of_root { 0o755 } else { 0o700 };
                std::fs::DirBuilder::new().recursive(true).mode(mode).create(path)
            }
            Layout::Beside => return create_beside(path),
        };
        match made {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(of_home(Error::os(errno_of(error), "create the store", path), path, layout))
            }
            _ => Ok(()),
        }
    }

    /// A new open makes an NFS client ask the server.
    pub(super) fn is_gone(&self) -> bool {
        if self.work.get().is_some_and(sys::is_removed) {
            return true;
        }
        match sys::open_directory(&self.directory, ".") {
            Ok(fresh) => sys::is_removed(fresh),
            Err(errno) => matches!(errno, Errno::ENOENT | Errno::ESTALE),
        }
    }

    /// An empty result if the store is gone: the last record was removed, and the store with it.
    pub(super) fn unless_gone<T: Default>(&self, errno: Errno) -> std::result::Result<T, Errno> {
        match errno {
            Errno::ENOENT | Errno::ESTALE if self.is_gone() => Ok(T::default()),
            errno => Err(errno),
        }
    }

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

    /// Only a `.csalock` is removed with its last record.
    pub(super) fn remove_if_empty(&self) {
        if self.layout != Layout::Beside {
            return;
        }
        let mut path = self.path.as_path();
        if let Some(sticky) = &self.sticky {
            let _ = sys::remove_directory(sticky, LOCKS);
            path = path.parent().unwrap_or(path);
        }
        let removed = sys::remove_directory(AT_FDCWD, path);
        let outer = self.sticky.as_ref().unwrap_or(&self.directory);
        if matches!(removed, Err(Errno::ENOTEMPTY | Errno::EEXIST))
            && sys::remove_file(outer, GITIGNORE) == Ok(true)
            && sys::remove_directory(AT_FDCWD, path).is_err()
        {
            let _ = sys::create_file(outer, GITIGNORE, (OFlag::empty(), self.file_mode, self.ownership), b"*\n", false);
        }
    }
}

fn look_at(directory: &OwnedFd, layout: Layout) -> nix::Result<(FileStat, FsType, bool, bool)> {
    let found = fstat(directory)?;
    // An error is not an answer: a caller that looked in the wrong place would not see the holder.
    let has_work = layout != Layout::Beside && sys::is_there(directory, Path::new(WORK))?;
    let has_locks = !has_work && sys::is_there(directory, Path::new(LOCKS))?;
    Ok((found, fstatfs(directory)?.filesystem_type(), has_work, has_locks))
}

/// Follows a link only if no other user can have put it there. (Linux can enforce this itself: protected_symlinks,
/// proc_sys_fs(5).)
fn open_through(path: &Path, links: bool) -> nix::Result<OwnedFd> {
    // If the directory is removed while an NFS client opens it, the path is unused or leads to a new directory.
    let opened = (0..OPENINGS).map(|_| open_once(path, links)).find(|opened| !matches!(opened, Err(Errno::ESTALE)));
    opened.unwrap_or(Err(Errno::ESTALE))
}

fn open_once(path: &Path, links: bool) -> nix::Result<OwnedFd> {
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
                && ![geteuid().as_raw(), above.st_uid].contains(&link.st_uid);
            if links && !is_strange { nix::fcntl::open(path, flags, Mode::empty()) } else { Err(Errno::ELOOP) }
        }
        opened => opened,
    }
}

/// The default store may be in the home directory of another user: su(1) and sudo(8) may keep HOME.
fn of_home(error: Error, path: &Path, layout: Layout) -> Error {
    let is_below_home = layout == Layout::Default && path.ends_with(".local/state/csalock");
    let home = path.ancestors().nth(3).unwrap_or(path);
    if !is_below_home
        || error.kind() != ErrorKind::Denied
        || geteuid().is_root()
        || stat(home).map_or(true, |found| found.st_uid == geteuid().as_raw())
    {
        return error;
    }
    error.with_hint(format!(
        "{} belongs to another user: set HOME if it is not the home of this one (su -, sudo -H), or name another store \
         with --store or CSALOCK_STORE",
        escape_path(home)
    ))
}

fn cannot_open(errno: Errno, path: &Path) -> Error {
    match errno {
        Errno::ENOTDIR if lstat(path).is_ok() => {
            let what = format!("{} is not a store: {}", escape_path(path), errno.desc());
            let cure = "check the path: name a directory with --store, or move the file away";
            Error::new(ErrorKind::Corrupt, what, cure)
        }
        Errno::ELOOP if stat(path).err() != Some(Errno::ELOOP) => {
            let what = format!("{} is a symbolic link, which is not followed there", escape_path(path));
            Error::new(ErrorKind::Denied, what, "see who made it, or name the real directory")
        }
        _ => Error::os_through_links(errno, "open the store", path),
    }
}

/// Fails if other things are in the directory: csalock must not create files at a mistyped path.
fn has_records(directory: &OwnedFd, path: &Path) -> Result<bool> {
    let mut has_records = false;
    let mut foreign = None;
    let listed = sys::open_directory(directory, ".").and_then(|fresh| {
        sys::each_name(fresh, &mut |name| {
            if name.starts_with(b".") || name == b"lost+found" || foreign.is_some() {
                return Ok(());
            }
            let may_be_record = match sys::open_directory(directory, name).and_then(stranger_in) {
                Ok(stranger) => stranger.is_none(),
                Err(errno) => !matches!(errno, Errno::ENOTDIR | Errno::ELOOP),
            };
            has_records |= may_be_record;
            foreign = (!may_be_record).then(|| escape(name));
            Ok(())
        })
    });
    match (listed, foreign) {
        // A directory that was removed has nothing foreign in it.
        (Ok(()), None) | (Err(Errno::ENOENT | Errno::ESTALE), _) => Ok(has_records),
        (Err(errno), _) => Err(Error::os(errno, "list the store", path)),
        (Ok(()), Some(name)) => {
            let what = format!("{} is not a store: {name} is in it", escape_path(path));
            Err(Error::new(ErrorKind::Corrupt, what, "check the path; name a new directory, or an empty one"))
        }
    }
}

/// A foreign name in a record's directory, if that has no file of csalock.
pub(super) fn stranger_in(directory: OwnedFd) -> nix::Result<Option<String>> {
    let mut is_ours = false;
    let mut stranger = None;
    sys::each_name(directory, &mut |name| {
        if Name::parse(name).is_some() {
            is_ours = true;
        } else if !name.starts_with(REMOVED_WHILE_OPEN) {
            stranger = Some(escape(name));
        }
        Ok(())
    })?;
    Ok(stranger.filter(|_| !is_ours))
}

/// Fails if all users may write and any user may remove the files of others, because no lock works there.
fn refuse_open_to_all(mode: Mode, path: &Path) -> Result<()> {
    if !mode.contains(Mode::S_IWOTH) || mode.contains(Mode::S_ISVTX) {
        return Ok(());
    }
    let what = format!("every user may rename and remove what is in {}", escape_path(path));
    let cure = "give it the sticky bit (chmod +t) or take the right to write from others (chmod o-w)";
    Err(Error::new(ErrorKind::Denied, what, cure))
}

/// No process sees the directory without its mark.
fn create_marked(path: &Path) -> std::io::Result<()> {
    // The sweep removes such a name if this process is killed.
    let draft =
        with_suffix(path, &format!("{NEW}{:016x}", u64::from_ne_bytes(host::random_bytes().unwrap_or_default())));
    std::fs::DirBuilder::new().create(&draft)?;
    let mode = draft.metadata()?.permissions().mode() & 0o7777;
    std::fs::set_permissions(&draft, Permissions::from_mode(mode | MARK))?;
    let renamed = renameat_with(CWD, &draft, CWD, path, RenameFlags::NOREPLACE);
    if renamed.is_err() {
        std::fs::remove_dir(&draft)?;
    }
    Ok(renamed?)
}

/// A `.csalock` gets the mode, owner and group of the directory that contains it, as far as permitted.
fn create_beside(path: &Path) -> Result<()> {
    let failed = |errno| Error::os(errno, "create the store", path);
    let parent = path.parent().unwrap_or(Path::new("/"));
    let wanted = stat(parent).map_err(failed)?;
    let mode = Mode::from_bits_truncate(wanted.st_mode & 0o7777);
    refuse_open_to_all(mode, parent)?;
    let ownership = Ownership::in_directory(&wanted);
    match sys::put_directory(AT_FDCWD, path, mode, ownership) {
        Ok(()) if parent.ancestors().any(|above| lstat(&above.join(".git")).is_ok()) => {
            let kind = (OFlag::empty(), mode & Mode::from_bits_truncate(0o444) | Mode::S_IWUSR, ownership);
            // Without the file git shows the records. Another process may have removed the directory again.
            let _ = sys::open_directory(AT_FDCWD, path)
                .and_then(|directory| sys::create_file(directory, GITIGNORE, kind, b"*\n", false));
            Ok(())
        }
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(failed(errno)),
    }
}

pub(super) fn open_or_put(at: &OwnedFd, name: &str, mode: Mode, ownership: Ownership) -> nix::Result<OwnedFd> {
    match sys::open_directory(at, name) {
        Err(Errno::ENOENT) => match sys::put_directory(at, Path::new(name), mode, ownership) {
            Ok(()) | Err(Errno::EEXIST) => sys::open_directory(at, name),
            Err(errno) => Err(errno),
        },
        opened => opened,
    }
}

pub(super) fn not_a_directory(path: &Path) -> Error {
    let what = format!("{} is not a directory, as it must be to work in", escape_path(path));
    Error::new(ErrorKind::Corrupt, what, "see who made it, and move it away")
}
