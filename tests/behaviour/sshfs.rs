//! A store on sshfs is refused: it shows the changes of other hosts late, and its errors mean something else.

use std::path::Path;
use std::process::Command;

use crate::sandbox::{Done, Kind, Sandbox, has, skip};

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
fn a_store_on_sshfs_is_refused_and_the_hint_names_ssh() {
    let sandbox = Sandbox::new(Kind::Directory);
    let Some(_mount) = mount(&sandbox) else { return };
    std::fs::create_dir(sandbox.path("data/old")).unwrap();
    std::os::unix::fs::symlink("m/old", sandbox.path("files/link")).unwrap();
    for store in ["dir:m/new", "dir:m/old", "dir:m/old/inner", "dir:link/inner"] {
        let done = sandbox.csalock(["run", "--store", store, "x", "touch", "ran"]).capture();
        is_refused(&done);
    }
    is_refused(&sandbox.csalock(["run", "./m/file", "touch", "ran"]).without("CSALOCK_STORE").capture());
    // Only what the test itself made is there.
    let names: Vec<_> =
        std::fs::read_dir(sandbox.path("data")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["old"]);
    assert!(!sandbox.path("files/ran").exists());
}

#[track_caller]
fn is_refused(done: &Done) {
    done.exits(69);
    assert!(done.stderr.contains(" is on sshfs, ") && done.stderr.contains("; use ssh://HOST/PATH"), "{done:?}");
}
