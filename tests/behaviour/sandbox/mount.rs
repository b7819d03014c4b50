//! A file system of one's own, where root can make one.

use super::Sandbox;

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
