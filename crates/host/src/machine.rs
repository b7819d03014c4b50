//! The machine: its identity, which is machine-id(5) or, without one, its host name; its namespaces, and its clocks.
//!
//! Namespaces of this process hide some of it: clocks with an offset, and files that a container mounts over those of the
//! kernel. In builds for tests, the wall clock and the times of files and servers can be moved.

use std::time::Duration;
use std::{fs, io};

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statfs, statx};
use sha2::{Digest, Sha256};

use super::processes::{no_proc, read_small};
use lock::error::{Error, ErrorKind, Result};

/// Returns `ID@NAME`. The ID is a hash, because machine-id(5) is confidential; it is empty without a machine-id. The
/// call fails if the ID cannot be read, because this machine would look like another machine.
pub(super) fn machine(name: &str) -> Result<String> {
    let paths = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
    let is_missing =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied);
    let mut found = paths.into_iter().map(|path| (path, read_small(path)));
    let found = found.find(|(_, read)| !read.as_ref().is_err_and(is_missing));
    let id = found.map(|(path, read)| {
        let hint = "see the kernel log and the limit of open files (ulimit -n)";
        read.map_err(|error| Error::new(ErrorKind::System, format!("cannot read {path}: {error}"), hint))
    });
    let id = id.transpose()?;
    let hash = id.filter(|id| id.trim_ascii().len() == 32).map(|id| {
        let digest = Sha256::new().chain_update(b"csalock").chain_update(id.trim_ascii()).finalize();
        digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>()
    });
    Ok(format!("{}@{name}", hash.unwrap_or_default()))
}

/// Two machine names mean one machine, among the users of a store of one host.
pub(super) fn is_this_machine(here: &str, there: &str) -> bool {
    let (Some((here_id, here_name)), Some((there_id, there_name))) = (here.split_once('@'), there.split_once('@'))
    else {
        return false;
    };
    here_id == there_id && (!here_id.is_empty() || here_name == there_name)
}

/// Number of the kernel's first time namespace: TIME_NS_INIT_INO in linux/nsfs.h. Kernels without any have 0 here.
const FIRST_TIME_NAMESPACES: [&str; 2] = ["4026531834", "0"];

/// Type of the file system /proc: PROC_SUPER_MAGIC in linux/magic.h.
const PROC: u64 = 0x9fa0;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

pub(super) fn boot_id() -> Result<String> {
    let boot = read_small(BOOT_ID).map_err(|error| no_proc(&error))?;
    let boot = String::from_utf8_lossy(boot.trim_ascii()).into_owned();
    // A file that is mounted there may be empty for a moment. Without an id, boots are not told apart.
    if boot.is_empty() {
        let what = format!("{BOOT_ID} is empty, so no process could tell which others live");
        return Err(Error::new(ErrorKind::System, what, "mount no file over it, or one with a boot id"));
    }
    Ok(boot)
}

/// 0 if the kernel has no namespaces of that kind.
pub(super) fn namespace(kind: &str) -> Result<u64> {
    // The text of the link, `pid:[4026531836]`, needs no inode of the namespace, so it costs less than stat(2).
    match nix::fcntl::readlink(format!("/proc/self/ns/{kind}").as_str()) {
        Err(Errno::ENOENT) if kind == "time" => Ok(0),
        Err(errno) => Err(no_proc(&errno.into())),
        Ok(link) => {
            let number = link.to_str().and_then(|link| link.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']'));
            let unknown = || no_proc(&io::Error::new(io::ErrorKind::InvalidData, "a namespace has no number"));
            number.and_then(|number| number.parse().ok()).ok_or_else(unknown)
        }
    }
}

/// In the pids of a domain, which are `PID_NAMESPACE.TIME_NAMESPACE`.
pub(super) fn pid_namespace_of(pids: &str) -> Option<u64> {
    pids.split_once('.')?.0.parse().ok()
}

/// Pids of a domain are counted in a pid namespace and in a time namespace.
pub(super) fn is_in_first_time_namespace(pids: &str) -> bool {
    pids.split_once('.').is_some_and(|(_, time)| FIRST_TIME_NAMESPACES.contains(&time))
}

/// Milliseconds by which CLOCK_BOOTTIME of this process is ahead of that of the kernel: time_namespaces(7).
pub(super) fn boottime_offset() -> Result<i64> {
    let unknown = || no_proc(&io::Error::new(io::ErrorKind::InvalidData, "the offset of a time namespace is unknown"));
    // The file shows the namespace of future children.
    let is_ours = nix::fcntl::readlink("/proc/self/ns/time") == nix::fcntl::readlink("/proc/self/ns/time_for_children");
    let offsets = fs::read_to_string("/proc/self/timens_offsets").map_err(|error| no_proc(&error))?;
    is_ours.then(|| offset_in(&offsets)).flatten().ok_or_else(unknown)
}

fn offset_in(offsets: &str) -> Option<i64> {
    let mut words = offsets.lines().map(str::split_whitespace).find_map(|mut words| {
        let is_boottime = matches!(words.next(), Some("boottime" | "7"));
        is_boottime.then_some(words)
    })?;
    let (seconds, nanoseconds): (i64, i64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    seconds.checked_mul(1000)?.checked_add(nanoseconds / 1_000_000)
}

/// Some container managers mount another boot id over it.
pub(super) fn has_boot_id_of_kernel() -> bool {
    let is_mounted_over = || {
        let found = statx(CWD, BOOT_ID, AtFlags::empty(), StatxFlags::empty());
        found.map_or(true, |found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    };
    statfs(BOOT_ID).is_ok_and(|found| found.f_type as u64 == PROC) && !is_mounted_over()
}

/// Seconds by which this process sees the wall clock, and the times of files and servers, later than they are, in builds
/// for tests.
#[cfg(any(test, debug_assertions))]
pub static OFFSETS: std::sync::OnceLock<[i64; 2]> = std::sync::OnceLock::new();

#[expect(clippy::disallowed_methods, reason = "this is the seam")]
pub(super) fn now(clock: ClockId) -> Duration {
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}

/// All comparisons with a clock use it.
pub fn file_time(seconds: i64, nanoseconds: i64) -> Duration {
    moved(Duration::new(seconds.max(0) as u64, nanoseconds.max(0) as u32), 1)
}

/// In builds for tests moved as the times of files.
pub fn server_time(time: Duration) -> Duration {
    moved(time, 1)
}

pub(super) fn moved(time: Duration, _clock: usize) -> Duration {
    #[cfg(any(test, debug_assertions))]
    let time = {
        let by = OFFSETS.get().map_or(0, |offsets| offsets[_clock]);
        Duration::new(time.as_secs().saturating_add_signed(by), time.subsec_nanos())
    };
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_known_by_its_id_or_else_by_its_name() {
        for (here, there, same) in
            [("1@a", "1@b", true), ("@a", "@a", true), ("@a", "@b", false), ("1@a", "2@a", false)]
        {
            assert_eq!(is_this_machine(here, there), same, "{here} {there}");
        }
    }

    #[test]
    fn the_offset_is_that_of_the_boot_time() {
        let text = "monotonic           1         0\nboottime        -3000 500000000\n";
        assert_eq!(offset_in(text), Some(-2_999_500));
        assert_eq!(offset_in("1 1 0\n7 100000 0\n"), Some(100_000_000));
        for wrong in ["", "boottime", "boottime x 0", "monotonic 1 0\n"] {
            assert_eq!(offset_in(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_parts_of_pids() {
        assert_eq!(pid_namespace_of("4026531836.4026531834"), Some(0xEFFF_FFFC));
        assert_eq!(["1.4026531834", "1.0", "1.2", "1"].map(is_in_first_time_namespace), [true, true, false, false]);
        assert!(has_boot_id_of_kernel());
    }
}
