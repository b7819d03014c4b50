//! A store on sshfs is refused: it shows the changes of other hosts late, and its errors mean something else.

use std::path::Path;
use std::process::Command;

use crate::sandbox::{Kind, Sandbox, has, skip};

const SERVER: &str = "/usr/lib/openssh/sftp-server";

/// A mount of `data` in the sandbox, until it is dropped.
struct Mount<'a>(&'a Sandbox);

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path("files/m")).status();
    }
}

fn mount(sandbox: &Sandbox) -> Option<Mount<'_>> {
    let can_mount = Path::new(SERVER).exists() && Path::new("/dev/fuse").exists();
    if !has("sshfs") || !can_mount {
        skip("sshfs", "there is no sftp-server or no /dev/fuse");
        return None;
    }
    for place in ["data", "files/m"] {
        std::fs::create_dir(sandbox.path(place)).unwrap();
    }
    let server = sandbox.program("bin/sftp", format!("#!/bin/sh\nexec {SERVER}\n"));
    let source = format!("me@there:{}", sandbox.path("data").display());
    let command = format!("ssh_command={}", server.display());
    // A job of the sandbox takes its daemons along.
    let mounted = sandbox.call("sshfs", [source.as_str(), "m", "-o", &command]).into_command().status();
    if !mounted.is_ok_and(|status| status.success()) {
        skip("sshfs", "this system cannot mount it");
        return None;
    }
    Some(Mount(sandbox))
}

#[test]
fn a_store_on_sshfs_is_refused_and_the_hint_names_the_same_directory_behind_ssh() {
    let sandbox = Sandbox::new(Kind::Directory);
    let Some(_mount) = mount(&sandbox) else { return };
    let data = sandbox.path("data").display().to_string();
    std::fs::create_dir(sandbox.path("data/old")).unwrap();
    std::os::unix::fs::symlink("m/old", sandbox.path("files/link")).unwrap();
    for (store, there) in
        [("m/new", "new"), ("m/old", "old"), ("m/old/inner", "old/inner"), ("link/inner", "old/inner")]
    {
        let done = sandbox.csalock(["run", "--store", &format!("dir:{store}"), "x", "touch", "ran"]).capture();
        assert!(done.stderr.contains(" is on sshfs, "), "{done:?}");
        assert!(
            done.code == Some(69) && done.stderr.ends_with(&format!("; use the store ssh://me@there{data}/{there}\n")),
            "{done:?}"
        );
    }
    let done = sandbox.csalock(["run", "./m/file", "touch", "ran"]).without("CSALOCK_STORE").capture();
    assert!(done.code == Some(69) && done.stderr.ends_with("; use the store ssh://me@there/PATH\n"), "{done:?}");
    // Only what the test itself made is there.
    let names: Vec<_> =
        std::fs::read_dir(sandbox.path("data")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["old"]);
    assert!(!sandbox.path("files/ran").exists());
}
