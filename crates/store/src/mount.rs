//! Mount of a store, as /proc/self/mountinfo shows it (proc_pid_mountinfo(5)), and options that endanger locks, for
//! `csalock doctor`. docs/nfs.md explains the options of NFS. Also, which files are mounted alone, and which file systems
//! other hosts may be using at the same time.

use std::path::Path;

use nix::sys::statfs::{FUSE_SUPER_MAGIC, FsType, statfs};
use rustix::fs::{AtFlags, CWD, FileType, StatxAttributes, StatxFlags, statx};

use super::Finding;
use lock::error::{Error, ErrorKind, Result};
use lock::name::escape_path;

/// Options of an NFS mount, with their effect and a hint.
const DOUBTS: [(&[&str], &str, &str); 3] = [
    (
        &["soft", "softerr"],
        "a step may fail in the middle, and the server may still execute it later",
        "mount it with hard",
    ),
    (
        &["nolock", "local_lock=all", "local_lock=flock"],
        "other hosts do not see flock(2), so --flock and --fd exclude others on this host only; other locks do not need it",
        "mount it without nolock and local_lock",
    ),
    (
        &["nocto"],
        "changes of other hosts may be seen late: files edited under a lock lose them",
        "mount it without nocto",
    ),
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// File system type: `ext4`, `nfs4`.
    kind: String,
    source: String,
    point: String,
    options: Vec<String>,
}

pub(crate) fn of(path: &Path) -> Option<Mount> {
    let number = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?.stx_mnt_id;
    parse(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, number)
}

/// Refuses a file that is a mount of its own, as container managers mount single files. Callers with another name of the
/// file use the `.csalock` of another directory, so they would not see its locks. A directory is locked in the directory
/// above it, whether or not it is a mount.
pub fn refuse_file_mounted_alone(path: &Path) -> Result<()> {
    if !is_file_mounted_alone(path) {
        return Ok(());
    }
    let what = format!("{} is mounted without its directory, where its locks are", escape_path(path));
    Err(Error::new(ErrorKind::Denied, what, "mount the directory, or name a store of all callers with --store"))
}

pub fn is_file_mounted_alone(path: &Path) -> bool {
    let Ok(found) = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE) else { return false };
    if FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory {
        return false;
    }
    // Kernels before 5.8 do not have the attribute.
    if found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
        found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
    } else {
        is_mount_point(path)
    }
}

/// Refuses a store on sshfs: its names may be old for 20 seconds, and it calls most failures of the server a missing
/// permission.
pub fn refuse_sshfs(store: &Path) -> Result<()> {
    let existing = store.ancestors().find_map(|path| Some((path, statfs(path).ok()?)));
    let Some((path, _)) = existing.filter(|(_, found)| found.filesystem_type() == FUSE_SUPER_MAGIC) else {
        return Ok(());
    };
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    if of(&real).is_none_or(|mount| mount.kind != "fuse.sshfs") {
        return Ok(());
    }
    let what = format!("{} is on sshfs, which shows the changes of other hosts late", escape_path(store));
    Err(Error::new(ErrorKind::Unavailable, what, "use ssh://HOST/PATH, which is the same directory without sshfs"))
}

fn is_mount_point(path: &Path) -> bool {
    std::fs::read_to_string("/proc/self/mountinfo").is_ok_and(|table| has_point(&table, path))
}

fn has_point(table: &str, path: &Path) -> bool {
    let path = std::fs::canonicalize(path).unwrap_or_default();
    table.lines().filter_map(|line| line.split(' ').nth(4)).any(|point| Path::new(&unescaped(point)) == path)
}

fn parse(table: &str, number: u64) -> Option<Mount> {
    let line = table.lines().find(|line| line.split(' ').next() == Some(&number.to_string()))?;
    let (mount, file_system) = line.split_once(" - ")?;
    let mount: Vec<&str> = mount.split(' ').collect();
    let mut file_system = file_system.split(' ');
    let (kind, source) = (file_system.next()?.to_string(), unescaped(file_system.next()?));
    let options = mount.get(5)?.split(',').chain(file_system.next().unwrap_or("").split(',')).map(str::to_string);
    Some(Mount { kind, source, point: unescaped(mount.get(4)?), options: options.collect() })
}

/// Decodes blanks and backslashes, which mountinfo writes in octal.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_string(), |text, (escaped, plain)| text.replace(escaped, plain))
}

impl Mount {
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let shown = |text: &str| lock::name::escape(text.as_bytes());
        let found = format!("{} {} on {}", self.kind, shown(&self.source), shown(&self.point));
        let kind = self.kind.as_str();
        let is_untested = kind.starts_with("fuse")
            || ["cifs", "smb3", "9p", "afs", "coda", "vboxsf", "lustre", "ceph", "gfs2", "ocfs2"].contains(&kind);
        let first = if self.has("ro") {
            let cure = "mount it with rw, or name another store with --store";
            Finding::bad("mount", format!("{found}: read-only"), cure)
        } else if is_untested {
            let cure =
                "csalock was tested on local disks and on NFS; let two hosts contend for a lock before you rely on it";
            Finding::doubtful("mount", found, cure)
        } else {
            let remark = match kind {
                "tmpfs" | "ramfs" => "; it is in memory, so values and claims end with the boot",
                "overlay" => "; other containers have another one",
                _ => "",
            };
            Finding::good("mount", found + remark)
        };
        let is_nfs = matches!(kind, "nfs" | "nfs4");
        let doubts = DOUBTS.iter().filter(|_| is_nfs).filter_map(|(options, what, cure)| {
            let option = options.iter().find(|option| self.has(option))?;
            Some(Finding::doubtful("option", format!("{option}: {what}"), *cure))
        });
        std::iter::once(first).chain(doubts).collect()
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|known| known == option)
    }
}

/// Magic numbers of statfs(2) and the kernel's sources, and common names.
const NETWORK: [(u32, &str); 18] = [
    (0x0000_6969, "NFS"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB"),
    (0x0000_517B, "SMB"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9p"),
    (0x00C3_6400, "Ceph"),
    (0x0BD0_0BD0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636F, "OCFS2"),
    (0x5346_414F, "AFS"),
    (0x6B41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x2003_0528, "OrangeFS"),
    (0x786F_4256, "vboxsf"),
    (0xBACB_ACBC, "vmhgfs"),
];

pub fn network(kind: FsType) -> Option<&'static str> {
    NETWORK.iter().find(|(number, _)| *number == kind.0 as u32).map(|(_, name)| *name)
}

/// Other hosts may use the same file system.
pub fn is_on_network(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| network(found.filesystem_type()).is_some())
}

#[cfg(test)]
mod tests {
    use nix::libc;

    use super::*;
    use crate::Verdict;

    const TABLE: &str = "\
22 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:5 - proc proc rw
28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 28 0:44 / /mnt/two\\040words rw,relatime - nfs4 server:/export rw,vers=4.2,rsize=1048576,soft,proto=tcp,timeo=600,\
nocto,local_lock=none
41 28 0:45 / /mnt/old ro,relatime - nfs server:/old rw,vers=3,hard,nolock
42 28 0:46 / /mnt/fuse rw - fuse.sshfs me@there: rw,user_id=0
";

    fn findings(number: u64) -> Vec<(Verdict, String)> {
        let findings = parse(TABLE, number).map(|mount| mount.findings()).unwrap_or_default();
        findings.into_iter().map(|finding| (finding.verdict, finding.found)).collect()
    }

    #[test]
    fn a_local_disk_is_good() {
        assert_eq!(findings(28), [(Verdict::Good, "ext4 /dev/vda on /".to_string())]);
    }

    #[test]
    fn a_mount_point_is_found_without_the_attribute() {
        assert!(has_point(TABLE, Path::new("/proc")) && !has_point(TABLE, Path::new("/etc")));
        assert!(!has_point(TABLE, Path::new("/nonexistent")) && is_mount_point(Path::new("/proc")));
        assert!(!is_mount_point(Path::new("/proc/version")));
    }

    #[test]
    fn an_unknown_mount_has_no_findings() {
        assert_eq!(parse(TABLE, 4), None);
        assert_eq!(parse("40 nonsense", 40), None);
    }

    #[test]
    fn dangerous_options_of_nfs_are_doubtful() {
        let found = findings(40);
        assert_eq!(found[0], (Verdict::Good, "nfs4 server:/export on /mnt/two words".to_string()));
        assert!(found[1].0 == Verdict::Doubtful && found[1].1.starts_with("soft: "), "{found:?}");
        assert!(found[2].0 == Verdict::Doubtful && found[2].1.starts_with("nocto: "), "{found:?}");
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn a_read_only_mount_is_bad_and_an_untested_kind_doubtful() {
        let found = findings(41);
        assert_eq!((found[0].0, found[1].0, found.len()), (Verdict::Bad, Verdict::Doubtful, 2));
        assert!(found[1].1.starts_with("nolock: "), "{found:?}");
        assert_eq!(findings(42).iter().map(|(verdict, _)| *verdict).collect::<Vec<_>>(), [Verdict::Doubtful]);
    }
    #[test]
    fn network_file_systems_are_known_by_their_magic() {
        assert_eq!(network(FsType(libc::NFS_SUPER_MAGIC as _)), Some("NFS"));
        assert_eq!(network(FsType(libc::FUSE_SUPER_MAGIC as _)), Some("FUSE"));
        assert_eq!(network(FsType(0xFE53_4D42)), Some("SMB"));
        assert_eq!(network(FsType(libc::EXT4_SUPER_MAGIC as _)), None);
        assert_eq!(network(FsType(libc::TMPFS_MAGIC as _)), None);
    }
}
