//! Containers that hide the kernel from csalock: boot ids of their own, and clocks with an offset.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sandbox::{Call, Kind, Sandbox, has_namespaces, proc, skip, wait_until};

/// Mounts a new boot id over that of the kernel, as systemd-nspawn and LXC do, and runs a command.
const OWN_BOOT_ID: &str = "mount -t proc proc /proc && f=$(mktemp -p .) && cat /proc/sys/kernel/random/uuid > $f \
                           && mount --bind $f /proc/sys/kernel/random/boot_id && exec \"$@\"";

/// Returns csalock with these arguments, run by these words, with short leases.
fn by<'a>(sandbox: &'a Sandbox, words: &[&str], arguments: &[&str]) -> Call<'a> {
    let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
    sandbox.csalock_by(&words, arguments).env("CSALOCK_LEASE", "3s")
}

fn with_own_boot_id<'a>(sandbox: &'a Sandbox, arguments: &[&str]) -> Call<'a> {
    by(sandbox, &["unshare", "-mpf", "--kill-child", "dash", "-c", OWN_BOOT_ID, "dash"], arguments)
}

/// Returns csalock with these arguments in a container whose boot time is ahead by these seconds.
fn ahead<'a>(sandbox: &'a Sandbox, seconds: &str, arguments: &[&str]) -> Call<'a> {
    let words = ["unshare", "-T", "--boottime", seconds, "-pf", "--mount-proc", "--kill-child"];
    by(sandbox, &words, arguments)
}

fn has_time_namespaces() -> bool {
    let has = has_namespaces("time namespaces")
        && std::process::Command::new("unshare").args(["-Tf", "true"]).status().is_ok_and(|status| status.success());
    if !has {
        skip("time namespaces", "this kernel or unshare(1) has none");
    }
    has
}

/// A command that holds lock x until its stdin ends.
const HOLDS: [&str; 5] = ["run", "x", "sh", "-c", "echo held; cat"];

on_every_store_of_files! {
    fn containers_with_boot_ids_of_their_own_exclude_each_other(sandbox: &Sandbox) {
        require!(has_namespaces("mounts"));
        let mut holder = with_own_boot_id(sandbox, &HOLDS).spawn();
        assert_eq!(holder.lines(1), ["held"]);
        with_own_boot_id(sandbox, &["run", "-nq", "x", "true"]).status(75).run();
        sandbox.csalock(["run", "-nq", "x", "true"]).status(75).run();
        holder.kill();
        with_own_boot_id(sandbox, &["run", "-q", "-w", "inf", "x", "echo", "ran"]).stdout("ran\n").run();
        // The container has the machine-id of its host.
        let mut holder = sandbox.csalock(HOLDS).spawn();
        assert_eq!(holder.lines(1), ["held"]);
        with_own_boot_id(sandbox, &["run", "-nq", "x", "true"]).status(75).run();
        holder.wait().exits(0);
    }

    fn a_container_without_a_boot_id_holds_no_lock(sandbox: &Sandbox) {
        require!(has_namespaces("mounts"));
        let empty = "mount --bind /dev/null /proc/sys/kernel/random/boot_id && exec \"$@\"";
        by(sandbox, &["unshare", "-m", "dash", "-c", empty, "dash"], &["run", "x", "echo", "ran"])
            .stderr(
                "csalock: /proc/sys/kernel/random/boot_id is empty, so no process could tell which others live; mount no \
                 file over it, or one with a boot id\n",
            )
            .status(71)
            .run();
    }

    fn containers_in_time_namespaces_exclude_each_other(sandbox: &Sandbox) {
        require!(has_time_namespaces());
        let mut holder = ahead(sandbox, "100", &HOLDS).spawn();
        assert_eq!(holder.lines(1), ["held"]);
        ahead(sandbox, "500000", &["run", "-nq", "x", "true"]).status(75).run();
        sandbox.csalock(["run", "-nq", "x", "true"]).status(75).run();
        holder.wait().exits(0);
        let lock = ["lock", "--ttl", "1h", "--print-handle", "x"];
        ahead(sandbox, "100", &lock).capture().line();
        ahead(sandbox, "500000", &["run", "-nq", "x", "true"]).status(75).run();
    }

    fn the_lock_of_a_dead_owner_in_a_time_namespace_is_free(sandbox: &Sandbox) {
        require!(has_time_namespaces());
        let mut holder = ahead(sandbox, "500000", &HOLDS).spawn();
        assert_eq!(holder.lines(1), ["held"]);
        holder.kill();
        sandbox.csalock(["run", "-q", "-w", "inf", "x", "echo", "ran"]).stdout("ran\n").run();
        // The pids of this one are those of the host.
        let mut holder = by(sandbox, &["unshare", "-T", "--boottime", "500000", "--fork"], &HOLDS).spawn();
        assert_eq!(holder.lines(1), ["held"]);
        let owner = sandbox.holders("x")[0];
        let supervisor = proc::stat(owner).unwrap().1;
        [supervisor, owner].iter().for_each(|pid| kill(Pid::from_raw(*pid), Signal::SIGKILL).unwrap());
        holder.release();
        wait_until("both are gone", || ![supervisor, owner].iter().any(|pid| proc::stat(*pid).is_some()));
        sandbox.csalock(["run", "-q", "-n", "x", "echo", "ran"]).stdout("ran\n").run();
    }
}

on_every_shared_store! {
    fn a_lease_that_was_renewed_in_a_time_namespace_ends_the_command_in_time(sandbox: &Sandbox) {
        require!(has_time_namespaces());
        let script = "unshare -Tf --boottime 100000 csalock renew --ttl 2s x && echo renewed; exec sleep 10000";
        let done = by(sandbox, &["env"], &["run", "x", "dash", "-c", script]).capture();
        assert!(done.code == Some(85) && done.stdout == "renewed\n", "{done:?}");
        sandbox.csalock(["run", "-q", "-w", "inf", "x", "echo", "next"]).stdout("next\n").run();
    }
}

#[test]
fn a_file_that_is_mounted_without_its_directory_is_refused() {
    require!(has_namespaces("mounts"));
    let sandbox = Sandbox::new(Kind::Directory);
    sandbox.script("dash", "mkdir -p host there/directory; touch host/count there/count; mkdir host/directory").run();
    let script = |what: &str, command: &str| {
        let mount = format!("mount --bind host/{what} there/{what} && exec csalock {command}");
        let call = sandbox.call("unshare", ["-m", "dash", "-c", &mount]).without("CSALOCK_STORE");
        call.capture()
    };
    let said =
        "csalock: DIR/files/there/count is mounted without its directory, where its locks are; mount the directory, \
                or name a store of all callers with --store\n"
            .replace("DIR", &sandbox.path("").canonicalize().unwrap().display().to_string());
    for command in ["run -n there/count true", "lock there/count", "unlock there/count", "status there/count"] {
        script("count", command).complains(77, &said);
    }
    let elsewhere = format!("run --store {} ./there/count true", sandbox.store());
    assert_eq!(script("count", &elsewhere).code, Some(0));
    // The lock of a directory is in the directory above, which every caller on the host sees.
    assert_eq!(script("directory", "run -n there/directory true").code, Some(0));
    sandbox.csalock(["run", "-n", "host/count", "true"]).without("CSALOCK_STORE").run();
}
