//! Scripts of Debian packages that call flock(1), unchanged: with the program under the name `flock` they have the same
//! output and the same exit codes.

use std::path::Path;
use std::process::Command;

use crate::as_flock::install;
use crate::sandbox::{FIRST_PIDS, Kind, Sandbox, has, pid_namespace, skip};

/// `locked` asks the real flock(1), and `await` waits for a condition.
const PRELUDE: &str = "\
exec 2> /dev/null
locked() { ! /usr/bin/flock -n \"$1\" true; }
await() { until eval \"$1\"; do sleep 0.01; done; }
job() { echo \"start $1\" >> log; await '[ -e go ]'; echo \"end $1\" >> log; }
";

/// The package, its file, the shell, and a script that uses the file's functions.
const ORIGINALS: [(&str, &str, &str, &str); 3] = [
    // Removes the file of the lock while others wait for it, and opens it anew if it was removed.
    (
        "xen-utils-common",
        "etc/xen/scripts/locking.sh",
        "bash",
        "LOCK_BASEDIR=$PWD/hotplug; echo 0 > n
        count() { claim_lock x; n=$(cat n); echo $((n + 1)) > n; release_lock x; }
        for i in 1 2 3; do (for j in 1 2 3 4 5 6 7 8 9 10; do count; done) & done; wait; cat n
        (claim_lock x; : > a; await '[ -e go ]'; release_lock x; : > removed; await '[ -e end ]') &
        await '[ -e a ]'; locked hotplug/x && echo locked
        (: > b; claim_lock x; echo second; release_lock x) &
        await '[ -e b ]'; sleep 0.1; : > go; await '[ -e removed ]'; : > end; wait; ls hotplug
        (claim_lock x; : > c; exec sleep 1000) & await '[ -e c ]'; locked hotplug/x && echo locked
        kill -9 $!; wait $!; echo $?; claim_lock x; echo again; ls hotplug; release_lock x",
    ),
    (
        "debci",
        "usr/share/debci/lib/functions.sh",
        "bash",
        "debci_user=$(id -un) debci_group=$(id -gn)
        set +e
        run_with_lock_or_exit l echo in; echo $?; run_with_lock_or_exit l sh -c 'exit 3'; echo $?
        run_with_lock_or_exit l job a & await 'grep -q a log'; locked l && echo locked
        run_with_lock_or_exit l echo no; echo $?; : > go; wait; rm go
        run_with_shared_lock l job r & run_with_shared_lock l job r & await '[ $(grep -c \"start r\" log) = 2 ]'
        run_with_exclusive_lock l job w & sleep 0.1; grep -c w log; : > go; wait; cat log
        (run_with_lock_or_exit l sh -c 'echo $$ > k; exec sleep 1000') & await '[ -s k ]'
        kill -9 $!; wait $!; echo $?; locked l && echo kept; kill -9 $(cat k); await '! locked l'
        run_with_exclusive_lock m run_with_lock_or_exit l run_with_lock_or_exit l echo no; echo $?",
    ),
    (
        "pm-utils",
        "usr/lib/pm-utils/functions",
        "dash",
        "LOCKDIR=$PWD/pm; try_lock x; echo $?; try_lock x; echo $?; locked pm/x && echo locked
        (try_lock x; echo $?); exec 3<&-; locked pm/x || echo free
        (try_lock x; job a) & await 'grep -q a log'; (try_lock x; echo $?); (spin_lock x 0.1; echo $?)
        (spin_lock x; echo $?; cat log) & sleep 0.1; : > go; wait
        try_lock x; echo $?; release_lock x; try_lock x; echo $?; release_lock x; exec 3<&-; try_lock x; echo $?
        (try_lock y; (: > d; await '[ -e stop ]') &)
        await '[ -e d ]'; locked pm/y && echo kept; (try_lock y; echo $?); : > stop; await '! locked pm/y'; echo free",
    ),
];

#[test]
fn scripts_of_packages_run_unchanged() {
    require!(has("flock") && has("bash") && has("dpkg-deb"));
    for (package, file, shell, script) in ORIGINALS {
        let unpacked = Sandbox::new(Kind::Directory);
        if !fetch(package, &unpacked.path("files")) {
            return skip("packages", "apt-get download has failed");
        }
        let original = unpacked.path("files").join(file);
        // In a container the kernel does not list the locks of descriptors.
        let run = |is_ours: bool, first_pids: &str| {
            let sandbox = Sandbox::new(Kind::Directory);
            if is_ours {
                install(&sandbox);
            }
            let script = format!("{PRELUDE}. {}\n{script}", original.display());
            let done = sandbox.script(shell, &script).without("CSALOCK_STORE").env(FIRST_PIDS, first_pids).capture();
            (done.stdout, done.code)
        };
        let theirs = run(false, "");
        assert!(theirs.0.lines().count() > 5, "{package}: {theirs:?}");
        for first_pids in [pid_namespace().as_str(), "1"] {
            assert_eq!(run(true, first_pids), theirs, "{package} {first_pids}");
        }
    }
}

/// Unpacks the package into the directory. Returns false if there is no such package or no network.
fn fetch(package: &str, directory: &Path) -> bool {
    let script = "apt-get -qq download \"$0\" && dpkg-deb -x \"$0\"_*.deb .";
    let done = Command::new("sh").args(["-c", script, package]).current_dir(directory).output();
    done.is_ok_and(|done| done.status.success())
}
