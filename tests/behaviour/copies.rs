//! A copy of a directory with records, as git(1), rsync(1) and backups make it: what depends on processes counts only
//! where it was written, and everything else counts in the copy too.

use nix::sys::statfs::statfs;

use crate::sandbox::{Call, Kind, Sandbox, has, skip};

/// Magic numbers of the file systems that number directories permanently: ext4, XFS, tmpfs and Btrfs.
const NUMBERED: [u32; 4] = [0xEF53, 0x5846_5342, 0x0102_1994, 0x9123_683E];

fn sandbox() -> Option<Sandbox> {
    let sandbox = Sandbox::new(Kind::Directory);
    let found = statfs(&sandbox.path("files")).unwrap().filesystem_type().0 as u32;
    if NUMBERED.contains(&found) {
        return Some(sandbox);
    }
    skip("copies of records", "the file system here may number a directory anew");
    None
}

/// A script whose file locks are beside the files.
fn beside<'a>(sandbox: &'a Sandbox, script: &str) -> Call<'a> {
    sandbox.script("dash", script).without("CSALOCK_STORE")
}

#[test]
fn a_copy_of_a_locked_file_is_free() {
    let Some(sandbox) = sandbox() else { return };
    let script = "mkdir d; csalock run d/f sh -c '
cp -a d copy; csalock status -q copy/f || echo free; csalock run -n copy/f echo in; ls -A copy
csalock run -n d/f true 2> said || echo $?; mv d moved; csalock run -n moved/f true 2> said || echo $?; mv moved d'";
    beside(&sandbox, script).stdout("free\nin\n84\n84\n").run();
}

#[test]
fn waiters_stay_with_the_original() {
    let Some(sandbox) = sandbox() else { return };
    let script = "mkdir d; csalock run d/f sleep 100 & holder=$!
until csalock status -q d/f; do sleep 0.01; done; csalock run d/f echo second &
until csalock status d/f | grep -q 'waiters  1'; do sleep 0.01; done
cp -a d copy; csalock run -n copy/f echo in; ls -A copy; kill $holder; wait";
    beside(&sandbox, script).stdout("in\nsecond\n").run();
}

#[test]
fn a_copied_store_keeps_what_depends_on_no_process() {
    let Some(sandbox) = sandbox() else { return };
    let script =
        "csalock claim --id me name; csalock put value 1; csalock lock --forever closed; csalock lock --ttl 1h held
cp -a ../store/. ../copy; export CSALOCK_STORE=\"dir:$PWD/../copy\"
csalock lookup name; csalock get value; csalock status -q closed && echo closed; csalock status -q held || echo free
csalock claim --id you name 2> said; echo $?; csalock put value 2; csalock get value; csalock lookup name";
    sandbox.script("dash", script).stdout("me\nme\n1closed\nfree\n83\n2me\n").run();
}

#[test]
fn doctor_counts_copies_and_gc_removes_them() {
    let Some(sandbox) = sandbox() else { return };
    let script = "csalock lock held; cp -a ../store/. ../copy
export CSALOCK_STORE=\"dir:$PWD/../copy\"; csalock doctor | grep -A1 copied; csalock gc --dry-run; csalock gc; csalock doctor | grep copied || true";
    let expected = "warning  records  1 copied from another directory: what was held there blocks no caller here
                  fix: nothing must be done; `csalock gc` removes it
would remove held: what a copy from another directory held
removed held: what a copy from another directory held
";
    sandbox.script("dash", script).stdout(expected).run();
}

#[test]
fn git_does_not_see_the_lock_of_a_file() {
    let Some(sandbox) = sandbox().filter(|_| has("git")) else { return };
    let script = "git init -q .; mkdir d; echo 1 > d/f; csalock run d/f sh -c 'git add -A; git status --porcelain'
ls -A d; csalock run d/f sh -c 'csalock run d/g true; git status --porcelain'; ls -A d";
    beside(&sandbox, script).stdout("A  d/f\nf\nA  d/f\nf\n").run();
}
