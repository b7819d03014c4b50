//! History of a store: an append-only file of lines, and its older generation.
//!
//! ```text
//! STORE/.work/history      .../history.1      .../history.lock      of a directory
//! DATABASE-history         .../history.1      .../history.lock      of an SQLite database
//! ```
//!
//! **Appending** is one write(2) at the end of the file. A local file system serializes these writes. (On NFS, two
//! hosts that write at once may damage each other's lines.) An append never waits: no kernel lock, FIFO or lease delays
//! it. The target must be a regular file with one link, so that no user can redirect it by a link. An append stops
//! before the limit of file sizes, because exceeding it would kill the process.
//!
//! **Bounds.** A file that would exceed half of the allowed size replaces the older generation. A file that is older
//! than lines are kept does so too: all lines of the generation before it are even older. If the file has not been
//! written for that long, both are removed. A process that renames holds flock(2) on a third file, so that two
//! processes cannot rename in turn and drop a generation. A process that does not get that lock appends to its open
//! file. Only users who may write the store can open the lock file, since a user who can open it can lock it.
//!
//! **Reading** begins anew if another host replaces the files meanwhile, after the lines that were read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, SFlag, fchmod, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, Whence, fchown, geteuid, lseek, unlinkat};
use rustix::fs::{AtFlags as StatxAt, FileType, Statx, StatxFlags, statx};
use rustix::io::retry_on_intr;
use rustix::process::{Resource, getrlimit};

use super::with_suffix;
use host::file_time;
use lock::error::{Error, ErrorKind, Result, errno_of};
use lock::history::HistoryLimits;
use lock::name::escape_path;

/// Open flags: the open follows no symlink and does not block, and child programs do not inherit the descriptor.
pub const CAUTIOUS: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_NONBLOCK).union(OFlag::O_NOCTTY).union(OFlag::O_CLOEXEC);

const PRIVATE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// Maximum permissions of the history files.
const SHARED: Mode = Mode::from_bits_truncate(0o666);

/// Maximum permissions of the lock file, which no process reads.
const LOCK: Mode = Mode::from_bits_truncate(0o222);

/// Maximum number of rotations by other processes before an append fails.
const MOST_TRIES: usize = 8;

const MOST_OF_LINE: u64 = 64 << 10;

/// Maximum number of bytes read of a generation, from its end.
const MOST_READ: u64 = 1 << 30;

/// Maximum number of reads if another host replaces the files meanwhile.
const MOST_REREADS: usize = 3;

pub struct HistoryFile<'a> {
    pub at: BorrowedFd<'a>,
    pub name: PathBuf,
    /// Name of the file or directory whose owner, group and mode the history file gets.
    pub like: PathBuf,
}

impl HistoryFile<'_> {
    /// Appends a line, at this time since 1970. An error means that the line is lost.
    pub fn append(&self, line: &[u8], limits: &HistoryLimits, now: Duration) -> nix::Result<()> {
        let length = line.len() as u64;
        if length > limits.size / 2 {
            return Ok(());
        }
        for _ in 0..MOST_TRIES {
            let file = self.open_or_create(&self.name, SHARED)?;
            let found = look_at(&file)?;
            if found.stx_nlink == 0 {
                continue;
            }
            if FileType::from_raw_mode(found.stx_mode.into()) != FileType::RegularFile || found.stx_nlink > 1 {
                return Err(Errno::EINVAL);
            }
            let mode = Mode::from_bits_truncate(found.stx_mode.into());
            if mode & Mode::S_IRWXO == Mode::S_IROTH {
                // An older csalock let all users read it.
                let _ = fchmod(&file, of_writers(mode));
            }
            let size = found.stx_size + length;
            if getrlimit(Resource::Fsize).current.is_some_and(|most| size > most) {
                return Err(Errno::EFBIG);
            }
            let has_room =
                size <= limits.size / 2 && (found.stx_size == 0 || now.saturating_sub(begun(&found)) <= limits.age);
            // A failed rotation means that another process is rotating the file at this moment.
            if has_room || (!self.rotate(&found, limits, now)? && size <= limits.size) {
                // One write(2): the line is complete or absent if the file system permits.
                return match retry_on_intr(|| rustix::io::write(&file, line)) {
                    Ok(written) if written < line.len() => Err(Errno::EIO),
                    done => done.map(drop).map_err(errno_of),
                };
            }
        }
        Err(Errno::EAGAIN)
    }

    /// Opens a file for writing; creates it for the users of the store, with these permissions at most.
    fn open_or_create(&self, name: &Path, most: Mode) -> nix::Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_APPEND | CAUTIOUS;
        // O_CREAT can fail on another user's file in a world-writable directory (proc_sys_fs(5)), so it comes later.
        match openat(self.at, name, flags, Mode::empty()) {
            Err(Errno::ENOENT) => match openat(self.at, name, flags | OFlag::O_CREAT | OFlag::O_EXCL, most & PRIVATE) {
                Ok(made) => {
                    self.share(&made, most);
                    Ok(made.into())
                }
                Err(Errno::EEXIST) => openat(self.at, name, flags, Mode::empty()).map(File::from),
                Err(errno) => Err(errno),
            },
            opened => opened.map(File::from),
        }
    }

    /// The file is for the users who may write the store. If that is not permitted, other users' lines are lost.
    fn share(&self, made: &OwnedFd, most: Mode) {
        let like = fstatat(self.at, &self.like, AtFlags::AT_SYMLINK_NOFOLLOW);
        let (Ok(like), Ok(found)) = (like, fstat(made)) else { return };
        let owner = (geteuid().is_root() && found.st_uid != like.st_uid).then(|| like.st_uid.into());
        let group = (found.st_gid != like.st_gid).then(|| like.st_gid.into());
        let kept = (owner.is_none() && group.is_none()) || fchown(made, owner, group).is_ok();
        let known = if kept { Mode::all() } else { !Mode::S_IRWXG };
        let mode = (of_writers(Mode::from_bits_truncate(like.st_mode)) & known | PRIVATE) & most;
        if mode != most & PRIVATE {
            let _ = fchmod(made, mode);
        }
    }

    /// Makes the file the older generation, or removes both generations if all their lines are too old. Returns false
    /// if another process is rotating the file.
    fn rotate(&self, found: &Statx, limits: &HistoryLimits, now: Duration) -> nix::Result<bool> {
        // A failure to lock does not stop the rotation: half of the history may be lost, but it would end otherwise.
        let lock = self.open_or_create(&with_suffix(&self.name, ".lock"), LOCK).ok();
        let tried = lock.as_ref().map_or(Ok(()), fs2::FileExt::try_lock_exclusive);
        if tried.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            return Ok(false);
        }
        match fstatat(self.at, &self.name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(named) if named.st_ino == found.stx_ino => {}
            // Another process has rotated the file already.
            Ok(_) | Err(Errno::ENOENT) => return Ok(true),
            Err(errno) => return Err(errno),
        }
        if now.saturating_sub(file_time(found.stx_mtime.tv_sec, 0)) > limits.age {
            for name in [&self.older(), &self.name] {
                match unlinkat(self.at, name, UnlinkatFlags::NoRemoveDir) {
                    Ok(()) | Err(Errno::ENOENT) => {}
                    Err(errno) => return Err(errno),
                }
            }
        } else {
            renameat(self.at, &self.name, self.at, &self.older())?;
        }
        Ok(true)
    }

    fn older(&self) -> PathBuf {
        with_suffix(&self.name, ".1")
    }

    /// Visits the lines, the older generation's first. `path` is the path of the file, for messages.
    pub fn read(&self, path: &Path, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
        let failed = |error: io::Error| Error::os(errno_of(error), "read the history", path);
        // The bytes of each file that were visited, by its device and number.
        let mut visited = BTreeMap::new();
        for _ in 0..MOST_REREADS {
            // The newer file comes first: if it becomes the older one meanwhile, it is opened twice and not missed.
            let newer = self.open_to_read(&self.name, path)?;
            let older = self.open_to_read(&self.older(), path)?;
            let mut done = Ok(());
            for (id, file) in [older, newer].into_iter().flatten() {
                done = done.and(visit_from(&file, visited.entry(id).or_default(), visit));
            }
            match done {
                // Another host has replaced the file.
                Err(error) if error.raw_os_error() == Some(Errno::ESTALE as i32) => {}
                done => return done.map_err(failed),
            }
        }
        Err(Error::os(Errno::ESTALE, "read the history", path))
    }

    /// Also its device and number.
    fn open_to_read(&self, name: &Path, path: &Path) -> Result<Option<((u64, u64), File)>> {
        let opened = openat(self.at, name, OFlag::O_RDONLY | CAUTIOUS, Mode::empty());
        match opened.and_then(|file| Ok((fstat(&file)?, File::from(file)))) {
            Ok((found, file)) if found.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits() => {
                Ok(Some(((found.st_dev, found.st_ino), file)))
            }
            Ok(_) | Err(Errno::ELOOP | Errno::ENXIO) => {
                let path = escape_path(path);
                let what = format!("{path} or its older generation is not a plain file, so there is no history");
                Err(Error::new(ErrorKind::Corrupt, what, "see who made it, and move it away"))
            }
            Err(Errno::ENOENT) => Ok(None),
            Err(errno @ (Errno::EACCES | Errno::EPERM)) => {
                let hint = "only users who may write the store may read its history: ask one of them";
                Err(Error::os(errno, "read the history", path).with_hint(hint.to_string()))
            }
            Err(errno) => Err(Error::os(errno, "read the history", path)),
        }
    }
}

/// Permissions of the users who may write: the history has command lines, which other users may not see.
/// The group of a store that others cannot read may read, because its owner has chosen that group.
fn of_writers(store: Mode) -> Mode {
    let (write, others) = (Mode::S_IWGRP | Mode::S_IWOTH, Mode::S_IROTH | Mode::S_IXOTH);
    let writers = Mode::from_bits_truncate((store & write).bits() * 3);
    let readers = if store.intersects(others) { Mode::empty() } else { Mode::S_IRGRP };
    store & (Mode::S_IRWXU | writers | readers)
}

fn look_at(file: &File) -> nix::Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    statx(file, "", StatxAt::EMPTY_PATH, wanted).map_err(errno_of)
}

fn begun(found: &Statx) -> Duration {
    let known = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    file_time(if known { found.stx_btime.tv_sec } else { found.stx_mtime.tv_sec }, 0)
}

/// `length` if no data follow. A hole in the file has no lines, and may be large although it takes no space.
fn file_data_from(file: &File, at: u64, length: u64) -> u64 {
    match lseek(file, at as i64, Whence::SeekData) {
        Ok(found) => (found as u64).min(length),
        Err(Errno::ENXIO) => length,
        Err(_) => at,
    }
}

/// Visits the lines after these bytes, and adds them to the number.
fn visit_from(file: &File, visited: &mut u64, visit: &mut dyn FnMut(&[u8])) -> io::Result<()> {
    let mut file = file;
    let length = file.metadata()?.len();
    *visited = file_data_from(file, (*visited).max(length.saturating_sub(MOST_READ)), length);
    file.seek(SeekFrom::Start(*visited))?;
    let mut lines = BufReader::with_capacity(64 << 10, file.take(MOST_READ));
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = lines.by_ref().take(MOST_OF_LINE).read_until(b'\n', &mut line)? as u64;
        // A line that is being written has no end yet.
        if !line.ends_with(b"\n") && length < MOST_OF_LINE {
            return Ok(());
        }
        *visited += length;
        visit(&line);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::time::Duration;

    use super::*;
    use lock::history::HistoryLimits;

    const NOW: Duration = Duration::from_secs(4_000_000_000);

    fn limits(size: u64) -> HistoryLimits {
        HistoryLimits { size, age: NOW }
    }

    fn with(work: impl Fn(&HistoryFile<'_>, &Path)) {
        let place = tempfile::tempdir().unwrap();
        let directory = File::open(place.path()).unwrap();
        work(&HistoryFile { at: directory.as_fd(), name: "history".into(), like: ".".into() }, place.path());
    }

    fn lines(history_file: &HistoryFile<'_>) -> Vec<String> {
        let mut lines = Vec::new();
        history_file
            .read(Path::new("history"), &mut |line| lines.push(String::from_utf8_lossy(line).into_owned()))
            .unwrap();
        lines
    }

    fn weight(place: &Path) -> u64 {
        fs::read_dir(place).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    }

    #[test]
    fn lines_come_back_in_order_and_the_size_bounds_them() {
        with(|history_file, place| {
            for number in 0..1000 {
                let line = format!("line {number}\n");
                // A child that another test forks has the lock for a moment. Each of the two files may then reach the size,
                // and the next line finds no room.
                while history_file.append(line.as_bytes(), &limits(1000), NOW) == Err(Errno::EAGAIN) {
                    std::thread::yield_now();
                }
                assert!(weight(place) <= 2000, "{}", weight(place));
            }
            let kept = lines(history_file);
            assert!(kept.len() > 50 && kept.last().unwrap() == "line 999\n", "{kept:?}");
            let numbers: Vec<u32> = kept.iter().map(|line| line[5..].trim().parse().unwrap()).collect();
            assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
        });
    }

    #[test]
    fn a_hole_in_the_history_is_not_read() {
        with(|history_file, place| {
            let file = File::create(place.join("history")).unwrap();
            file.set_len(200 << 30).unwrap();
            drop(file);
            let (began, mut reads) = (read_bytes(), Vec::new());
            history_file.read(Path::new("history"), &mut |line: &[u8]| reads.push(line.len())).unwrap();
            assert_eq!(reads, [0; 0]);
            std::io::Write::write_all(
                &mut File::options().append(true).open(place.join("history")).unwrap(),
                b"\nline\n",
            )
            .unwrap();
            assert_eq!(lines(history_file).last().unwrap(), "line\n");
            let read = read_bytes() - began;
            assert!(read < 1 << 26, "{read} bytes were read");
        });
    }

    fn read_bytes() -> u64 {
        let counts = fs::read_to_string("/proc/thread-self/io").unwrap();
        counts.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
    }

    #[test]
    fn concurrent_writers_lose_no_line_to_the_rotation() {
        with(|history_file, place| {
            let writer = |thread: usize| {
                let directory = File::open(place).unwrap();
                let history_file = HistoryFile { at: directory.as_fd(), name: "history".into(), like: ".".into() };
                for number in 0..100 {
                    history_file.append(format!("{thread} {number:016}\n").as_bytes(), &limits(20_000), NOW).unwrap();
                }
            };
            std::thread::scope(|scope| (0..8).for_each(|thread| drop(scope.spawn(move || writer(thread)))));
            assert!(place.join("history.1").exists());
            let mut kept = lines(history_file);
            kept.sort();
            kept.dedup();
            assert_eq!(kept.len(), 800);
        });
    }

    #[test]
    fn a_line_that_has_no_room_is_not_written() {
        with(|history_file, place| {
            history_file.append(b"too long\n", &limits(10), NOW).unwrap();
            history_file.append(b"any\n", &limits(0), NOW).unwrap();
            assert_eq!(fs::read_dir(place).unwrap().count(), 0);
        });
    }

    #[test]
    fn an_expired_file_is_removed_and_a_file_that_began_too_early_is_rotated() {
        let keep = |age| HistoryLimits { size: 1 << 20, age: Duration::from_secs(age) };
        let today = file_time(fs::metadata("/proc/self").unwrap().ctime(), 0);
        let tomorrow = today + Duration::from_secs(24 * 3600);
        with(|history_file, _| {
            history_file.append(b"old\n", &keep(3600), today).unwrap();
            history_file.append(b"new\n", &keep(3600), tomorrow).unwrap();
            assert_eq!(lines(history_file), ["new\n"]);
        });
        with(|history_file, place| {
            history_file.append(b"one\n", &keep(3600), today).unwrap();
            let file = File::options().append(true).open(place.join("history")).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + tomorrow).unwrap();
            history_file.append(b"two\n", &keep(3600), tomorrow).unwrap();
            assert_eq!(lines(history_file), ["one\n", "two\n"]);
            assert_eq!(fs::read_to_string(place.join("history.1")).unwrap(), "one\n");
        });
    }

    #[test]
    fn the_history_is_written_only_to_a_plain_file_with_one_name() {
        let plant: [fn(&Path); 4] = [
            |place| std::os::unix::fs::symlink("elsewhere", place.join("history")).unwrap(),
            |place| fs::hard_link(place.join("elsewhere"), place.join("history")).unwrap(),
            |place| nix::unistd::mkfifo(&place.join("history"), PRIVATE).unwrap(),
            |place| fs::create_dir(place.join("history")).unwrap(),
        ];
        for plant in plant {
            with(|history_file, place| {
                fs::write(place.join("elsewhere"), "").unwrap();
                plant(place);
                assert!(history_file.append(b"line\n", &limits(1000), NOW).is_err());
                assert_eq!(fs::read(place.join("elsewhere")).unwrap(), b"");
            });
        }
    }

    #[test]
    fn a_reader_cannot_open_the_history_lock_and_a_locked_history_blocks_nothing() {
        for (of_store, of_history, of_lock) in [
            (0o755, 0o600, 0o200),
            (0o2775, 0o660, 0o220),
            (0o1777, 0o666, 0o222),
            (0o700, 0o600, 0o200),
            (0o750, 0o640, 0o200),
        ] {
            with(|history_file, place| {
                fs::set_permissions(place, PermissionsExt::from_mode(of_store)).unwrap();
                history_file.append(b"first\n", &limits(100), NOW).unwrap();
                let reader = File::open(place.join("history")).unwrap();
                fs2::FileExt::lock_exclusive(&reader).unwrap();
                // A process that another test starts has the lock for rotations open until its exec.
                let append = |line: &[u8]| (0..1000).any(|_| history_file.append(line, &limits(100), NOW).is_ok());
                assert!((0..20).all(|_| append(b"one of many\n")) && append(b"last\n"));
                assert_eq!(lines(history_file).last().unwrap(), "last\n");
                let mode = |name| fs::metadata(place.join(name)).unwrap().permissions().mode() & 0o7777;
                assert_eq!((mode("history"), mode("history.1")), (of_history, of_history));
                assert_eq!(mode("history.lock"), of_lock);
            });
        }
    }

    #[test]
    fn a_writer_that_cannot_rotate_respects_the_limit() {
        with(|history_file, place| {
            history_file.append(b"first\n", &limits(1000), NOW).unwrap();
            let keeper = File::create(place.join("history.lock")).unwrap();
            fs2::FileExt::lock_exclusive(&keeper).unwrap();
            for _ in 0..1000 {
                let _ = history_file.append(b"one of many\n", &limits(1000), NOW);
            }
            assert!(weight(place) > 900 && weight(place) <= 1000, "{}", weight(place));
            // Not by closing it: a process that another test starts has the file open until its exec.
            fs2::FileExt::unlock(&keeper).unwrap();
            history_file.append(b"last\n", &limits(1000), NOW).unwrap();
            assert_eq!(lines(history_file).last().unwrap(), "last\n");
        });
    }

    fn append(history_file: &HistoryFile<'_>, line: &str) {
        history_file.append(format!("{line}\n").as_bytes(), &limits(1000), NOW).unwrap();
    }

    #[test]
    fn a_file_with_both_names_is_visited_once() {
        with(|history_file, place| {
            append(history_file, "one");
            fs::hard_link(place.join("history"), place.join("history.1")).unwrap();
            assert_eq!(lines(history_file), ["one\n"]);
        });
    }

    #[test]
    fn a_late_line_of_an_older_generation_is_visited() {
        with(|history_file, place| {
            append(history_file, "one");
            let mut late = File::options().append(true).open(place.join("history")).unwrap();
            fs::rename(place.join("history"), place.join("history.1")).unwrap();
            append(history_file, "two");
            assert_eq!(lines(history_file), ["one\n", "two\n"]);
            io::Write::write_all(&mut late, b"late\n").unwrap();
            assert_eq!(lines(history_file), ["one\n", "late\n", "two\n"]);
        });
    }

    #[test]
    fn a_line_is_visited_when_it_is_complete() {
        with(|history_file, place| {
            fs::write(place.join("history"), "whole\nhal").unwrap();
            assert_eq!(lines(history_file), ["whole\n"]);
            fs::write(place.join("history"), "whole\nhalf\n").unwrap();
            assert_eq!(lines(history_file), ["whole\n", "half\n"]);
        });
    }
}
