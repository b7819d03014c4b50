//! A file system of one's own, where root can make one.

use super::{Sandbox, skip};

/// A tmpfs that goes away with the test.
pub(crate) struct Mount(std::path::PathBuf);

impl Mount {
    pub(crate) fn new(sandbox: &Sandbox, options: &str) -> Mount {
        let place = sandbox.path("files/mount");
        std::fs::create_dir_all(&place).unwrap();
        let place_text = place.display().to_string();
        let done = sandbox.call("mount", ["-t", "tmpfs", "-o", options, "none", &place_text]).capture();
        assert_eq!(done.code, Some(0), "{done:?}");
        Mount(place)
    }

    /// An ext4 whose files keep their times in whole seconds; `None`: none can be made here.
    pub(crate) fn with_coarse_times(sandbox: &Sandbox) -> Option<Mount> {
        Mount::ext4(sandbox, "coarse times")
    }

    /// A small ext4 of one's own, with inodes too small for fractions of seconds; `None`: none can be made here.
    pub(crate) fn ext4(sandbox: &Sandbox, for_what: &str) -> Option<Mount> {
        let (image, place) = (sandbox.path("image"), sandbox.path("files/mount"));
        std::fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
        std::fs::create_dir_all(&place).unwrap();
        let done = std::process::Command::new("mkfs.ext4").args(["-q", "-F", "-I", "128"]).arg(&image).output();
        if !done.is_ok_and(|done| done.status.success()) {
            skip(for_what, "there is no mkfs.ext4");
            return None;
        }
        let done = std::process::Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&place).output();
        if !done.is_ok_and(|done| done.status.success()) {
            skip(for_what, "there is no loop device");
            return None;
        }
        Some(Mount(place))
    }

    /// Until what this returns is dropped, each change of a file waits.
    pub(crate) fn freeze(&self) -> Frozen<'_> {
        fsfreeze("--freeze", &self.0);
        Frozen(self)
    }

    pub(crate) fn again(&self, sandbox: &Sandbox, options: &str) {
        let place = self.0.display().to_string();
        assert_eq!(sandbox.call("mount", ["-o", &format!("remount,{options}"), &place]).capture().code, Some(0));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A file system on which each change waits.
pub(crate) struct Frozen<'a>(&'a Mount);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        fsfreeze("--unfreeze", &self.0.0);
    }
}

fn fsfreeze(what: &str, place: &std::path::Path) {
    assert!(std::process::Command::new("fsfreeze").arg(what).arg(place).status().unwrap().success());
}
