//! Mount of a store, as /proc/self/mountinfo shows it (proc_pid_mountinfo(5)), and the meaning of its options for
//! locks. Only `csalock doctor` uses it; locks do not depend on it.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::Finding;

/// Default time for which an NFS client caches the attributes of files, in seconds.
const USUAL_CACHING: u64 = 60;

/// Options of an NFS mount that are worth reporting.
const OF_NFS: [&str; 14] = [
    "vers=",
    "proto=",
    "addr=",
    "timeo=",
    "retrans=",
    "acregmin=",
    "acregmax=",
    "acdirmin=",
    "acdirmax=",
    "actimeo=",
    "lookupcache=",
    "local_lock=",
    "nconnect=",
    "sec=",
];

/// Doubtful options of an NFS mount, with their effect and a hint.
const DOUBTS: [(&[&str], &str, &str); 3] = [
    (
        &["soft", "softerr"],
        "an I/O error can come in the middle of a step, and then nobody knows whether it was made",
        "mount it with hard",
    ),
    (
        &["nolock", "local_lock=all", "local_lock=flock"],
        "flock(2) is not seen by other hosts, so --flock keeps out users of flock(1) on this host only; csalock's \
         own locks do not need it",
        "mount it without nolock and local_lock",
    ),
    (&["nocto"], "what other hosts change may be seen late", "mount it without nocto"),
];

/// One line of mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// File system type: `ext4`, `nfs4`.
    kind: String,
    source: String,
    point: String,
    /// Options of the mount, then options of the file system.
    options: Vec<String>,
}

/// Returns the mount of this file or directory, or `None` if the kernel does not report it.
pub(super) fn of(path: &Path) -> Option<Mount> {
    let number = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?.stx_mnt_id;
    parse(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, number)
}

fn parse(table: &str, number: u64) -> Option<Mount> {
    let line = table.lines().find(|line| line.split(' ').next() == Some(&number.to_string()))?;
    let (mount, file_system) = line.split_once(" - ")?;
    let mount: Vec<&str> = mount.split(' ').collect();
    let mut file_system = file_system.split(' ');
    let (kind, source) = (file_system.next()?.to_string(), unescaped(file_system.next()?));
    let mut options: Vec<String> = Vec::new();
    for option in mount.get(5)?.split(',').chain(file_system.next().unwrap_or("").split(',')) {
        if !option.is_empty() && options.iter().all(|known| known != option) {
            options.push(option.to_string());
        }
    }
    Some(Mount { kind, source, point: unescaped(mount.get(4)?), options })
}

/// Decodes blanks and backslashes, which mountinfo writes in octal.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_string(), |text, (escaped, plain)| text.replace(escaped, plain))
}

impl Mount {
    /// Returns the findings about the mount, first its type.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let shown = |text: &str| crate::name::escape(text.as_bytes());
        let place = format!("{} {} on {}", self.kind, shown(&self.source), shown(&self.point));
        let found = format!("{place}: {}", self.telling_options().join(", "));
        let first = if self.has("ro") {
            Finding::bad(
                "mount",
                found,
                "it is mounted read-only; mount it with rw, or name another store with --store",
            )
        } else if let Some(doubt) = self.kind_in_doubt() {
            Finding::doubtful("mount", found, doubt)
        } else {
            Finding::good("mount", format!("{found}{}", self.remark()))
        };
        let mut findings = vec![first];
        if self.is_nfs() {
            findings.extend(self.doubts());
            findings.extend(self.caching());
        }
        findings
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|known| known == option)
    }

    fn is_nfs(&self) -> bool {
        matches!(self.kind.as_str(), "nfs" | "nfs4")
    }

    fn telling_options(&self) -> Vec<&str> {
        let tells = |option: &&str| {
            !self.is_nfs() || !option.contains('=') || OF_NFS.iter().any(|telling| option.starts_with(telling))
        };
        self.options.iter().map(String::as_str).filter(tells).collect()
    }

    /// Returns a remark about a file system type that is not a problem.
    fn remark(&self) -> &'static str {
        match self.kind.as_str() {
            "tmpfs" | "ramfs" => "; it is in memory, so values and claims end with the boot",
            "overlay" => "; other containers have another one",
            _ => "",
        }
    }

    /// Returns the type if it is an untested network file system.
    fn kind_in_doubt(&self) -> Option<&'static str> {
        let kind = self.kind.as_str();
        let is_untried = kind.starts_with("fuse")
            || ["cifs", "smb3", "9p", "afs", "coda", "vboxsf", "lustre", "ceph", "gfs2", "ocfs2"].contains(&kind);
        is_untried.then_some(
            "csalock was tried on local disks and on NFS; here, let two hosts contend for a lock before you rely on it",
        )
    }

    fn doubts(&self) -> impl Iterator<Item = Finding> {
        DOUBTS.iter().filter_map(|(options, what, cure)| {
            let option = options.iter().find(|option| self.has(option))?;
            Some(Finding::doubtful("option", format!("{option}: {what}"), *cure))
        })
    }

    /// Returns the time that a change may go unseen, if it is longer than the default.
    fn caching(&self) -> Option<Finding> {
        let longest = |option: &String| {
            let (name, seconds) = option.split_once('=')?;
            ["acregmax", "acdirmax", "actimeo"].contains(&name).then(|| seconds.parse::<u64>().ok())?
        };
        let longest = self.options.iter().filter_map(longest).max().filter(|longest| *longest > USUAL_CACHING)?;
        Some(Finding::doubtful(
            "option",
            format!("attributes are cached for up to {longest}s: what other hosts do may be seen that late"),
            "it costs only delay; mount it with a shorter actimeo, or with noac",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Verdict;

    const TABLE: &str = "\
22 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:5 - proc proc rw
28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 28 0:44 / /mnt/two\\040words rw,relatime - nfs4 server:/export rw,vers=4.2,rsize=1048576,soft,proto=tcp,timeo=600,\
acregmax=600,local_lock=none
41 28 0:45 / /mnt/old ro,relatime - nfs server:/old rw,vers=3,hard,nolock
42 28 0:46 / /mnt/fuse rw - fuse.sshfs me@there: rw,user_id=0
";

    fn findings(number: u64) -> Vec<(Verdict, String)> {
        let findings = parse(TABLE, number).map(|mount| mount.findings()).unwrap_or_default();
        findings.into_iter().map(|finding| (finding.verdict, finding.found)).collect()
    }

    #[test]
    fn a_local_disk_is_good() {
        assert_eq!(findings(28), [(Verdict::Good, "ext4 /dev/vda on /: rw, relatime, discard".to_string())]);
    }

    #[test]
    fn what_is_not_there_says_nothing() {
        assert_eq!(parse(TABLE, 4), None);
        assert_eq!(parse("40 nonsense", 40), None);
    }

    #[test]
    fn each_option_of_nfs_that_matters_is_told() {
        let found = findings(40);
        let mount = "nfs4 server:/export on /mnt/two words: rw, relatime, vers=4.2, soft, proto=tcp, timeo=600, \
                     acregmax=600, local_lock=none";
        assert_eq!(found[0], (Verdict::Good, mount.to_string()));
        assert!(found[1].0 == Verdict::Doubtful && found[1].1.starts_with("soft: "), "{found:?}");
        assert!(found[2].0 == Verdict::Doubtful && found[2].1.contains("600s"), "{found:?}");
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn what_is_read_only_is_bad_and_what_was_never_tried_doubtful() {
        let found = findings(41);
        assert_eq!((found[0].0, found[1].0, found.len()), (Verdict::Bad, Verdict::Doubtful, 2));
        assert!(found[1].1.starts_with("nolock: "), "{found:?}");
        assert_eq!(findings(42).iter().map(|(verdict, _)| *verdict).collect::<Vec<_>>(), [Verdict::Doubtful]);
    }
}
