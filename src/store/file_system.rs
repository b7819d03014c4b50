//! File systems that other hosts may be using at the same time.

use nix::sys::statfs::FsType;

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

/// Returns the name of a file system that other hosts may be using.
pub(super) fn network(kind: FsType) -> Option<&'static str> {
    NETWORK.iter().find(|(number, _)| *number == kind.0 as u32).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use nix::libc;

    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_magic() {
        assert_eq!(network(FsType(libc::NFS_SUPER_MAGIC)), Some("NFS"));
        assert_eq!(network(FsType(libc::FUSE_SUPER_MAGIC)), Some("FUSE"));
        assert_eq!(network(FsType(0xFE53_4D42)), Some("SMB"));
        assert_eq!(network(FsType(libc::EXT4_SUPER_MAGIC)), None);
        assert_eq!(network(FsType(libc::TMPFS_MAGIC)), None);
    }
}
