//! `csalock doctor`: what it finds in stores that are all right and in stores that are not, and that it leaves nothing.

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde_json::Value;

use crate::postgres::Server;
use crate::sandbox::{Done, Kind, Mount, Sandbox, has_namespaces, is_root, wait_until};

const NOBODY: u32 = 65534;

/// Returns the findings for the store at this place: the exit code, and `VERDICT TOPIC: FOUND` for each finding.
fn examined(done: &Done, sandbox: &Sandbox) -> (i32, Vec<String>) {
    assert_eq!(done.stderr, "", "{done:?}");
    let document: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    let text = |value: &Value| value.as_str().unwrap_or("").to_string();
    let findings = document["findings"].as_array().unwrap();
    let worst =
        ["bad", "doubtful", "good"].into_iter().find(|word| findings.iter().any(|found| found["verdict"] == **word));
    assert_eq!(document["verdict"].as_str(), worst);
    for found in findings {
        assert_eq!(found.as_object().unwrap().len(), 4, "{found}");
        assert_eq!(found["cure"].is_null(), found["verdict"] == "good", "{found}");
    }
    let line = |found: &Value| {
        let (topic, found_text) = (text(&found["topic"]), text(&found["found"]));
        let shown = match topic.as_str() {
            // Mounts and versions depend on this machine.
            "mount" | "server" if found["verdict"] == "good" => "...".to_string(),
            "access" => sandbox.plain(&found_text),
            _ => numbers(&sandbox.plain(&found_text)),
        };
        format!("{} {topic}: {shown}", text(&found["verdict"]))
    };
    // Which etcd is installed is this machine's business, too, and so is the place of the sandbox.
    let is_of_store = |found: &&Value| found["topic"] != "version" && found["topic"] != "cleaner";
    (done.code.unwrap(), findings.iter().filter(is_of_store).map(line).collect())
}

/// Numbers differ from run to run.
fn numbers(text: &str) -> String {
    let word = |word: &str| match word.trim_end_matches(',').parse::<f64>() {
        Ok(_) if word.contains('.') => "N".to_string(),
        _ => word.to_string(),
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

fn doctor(sandbox: &Sandbox, words: &[&str]) -> (i32, Vec<String>) {
    examined(&sandbox.csalock(["doctor", "--json"].iter().chain(words)).capture(), sandbox)
}

#[track_caller]
fn has(findings: &[String], beginning: &str) {
    assert!(findings.iter().any(|line| line.starts_with(beginning)), "{beginning}\n{findings:#?}");
}

/// Every path below a place, and what the files say; without what a store only ever counts upward.
fn content(place: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let Ok(entries) = std::fs::read_dir(place) else { return lines };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.ends_with("bin/csalock") {
            continue;
        }
        if path.is_dir() {
            lines.push(path.display().to_string());
            lines.extend(content(&path));
        } else if !path.display().to_string().contains("/token.")
            && !["store", "store-shm", "store-wal"].map(OsStr::new).contains(&path.file_name().unwrap())
        {
            lines.push(format!("{} {:?}", path.display(), std::fs::read(&path).unwrap()));
        }
    }
    lines.sort();
    lines
}

/// The first findings for a single server that admits every user of its host.
const SERVER: [&str; 4] = [
    "good server: ...",
    "doubtful members: one: while it is down, no lock can be acquired or released",
    "doubtful login: none: every client that reaches etcd can acquire any lock",
    "good transport: plain, within this host",
];

/// The last findings for every store.
fn the_same_everywhere(sandbox: &Sandbox, records: &str) -> Vec<String> {
    let alone = "good hosts: this host alone: the end of an owner is seen at once, and waiters are woken";
    let findings: &[&str] =
        if sandbox.is_shared() { &[HOSTS, ZONE, records, LOCKS, CLOCK] } else { &[alone, ZONE, records, LOCKS] };
    findings.iter().map(|finding| finding.to_string()).collect()
}

fn us() -> (String, String) {
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap();
    let group = nix::unistd::Group::from_gid(nix::unistd::getegid()).unwrap().unwrap();
    (user.name, group.name)
}

const MOUNT: &str = "good mount: ...";

/// Returns true if /proc shows the mount of the sandbox. In a chroot(1) it may be outside.
fn is_mount_visible(sandbox: &Sandbox) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().filter_map(|line| line.split(' ').nth(4)).any(|mount| sandbox.path("").starts_with(mount))
}

const CLOCK: &str = "good clock: it differs from this host's by less than 10s; no lease ends by either";

const HOSTS: &str = "good hosts: other hosts may share it: a holder renews a lease of 1m, and waiters on other hosts are \
                     woken by the store";

const ZONE: &str = "good zone: CET-1, UTC+01:00 now";

const LOCKS: &str = "good locks: a record is written and deleted in N ms";

on_every_store! {
    fn the_trial_of_doctor_leaves_nothing(sandbox: &Sandbox) {
        for _ in 0..2 {
            let (code, findings) = doctor(sandbox, &[]);
            assert_eq!(code, 0, "{findings:#?}");
            has(&findings, LOCKS);
            // A screen has 24 lines.
            assert!(sandbox.csalock(["doctor"]).capture().stdout.lines().count() <= 24);
            assert!(!sandbox.store_exists());
        }
    }

    fn unreadable_records_are_doubtful(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "--forever", "bad"]).run();
        sandbox.overwrite("bad", b"nonsense");
        let before = content(&sandbox.path(""));
        let (code, findings) = doctor(sandbox, &[]);
        assert_eq!((code, content(&sandbox.path(""))), (0, before));
        has(&findings, "doubtful records: unreadable: ");
        let done = sandbox.csalock(["doctor"]).capture();
        assert!(done.stdout.contains("\nLocks work here, with "), "{done:?}");
        let cure = format!("  fix: run `csalock status --store {}`: it names each", sandbox.store());
        assert!(done.stdout.contains(&cure), "{done:?}");
        sandbox.csalock(["unlock", "--force", "-q", "bad"]).capture();
        has(&doctor(sandbox, &[]).1, "good records: 0 held, 0 waiting");
    }

    fn an_invalid_url_and_two_names_are_usage_errors(sandbox: &Sandbox) {
        let wrong: [&[&str]; 5] =
            [&["--store", "mysql:x"], &["--store", "dir:"], &["x", "y"], &["x", "--ttl"], &["--timeout", "1"]];
        for words in wrong {
            let done = sandbox.csalock(["doctor"].iter().chain(words)).capture();
            assert_eq!((done.code, done.stdout.as_str()), (Some(64), ""), "{words:?} {done:?}");
        }
    }

    fn a_signal_leaves_nothing(sandbox: &Sandbox) {
        let job = sandbox.csalock(["doctor"]).spawn();
        job.send(nix::sys::signal::Signal::SIGTERM);
        let done = job.wait();
        assert!(done.signal == Some(15) || done.code == Some(0), "{done:?}");
        assert!(!sandbox.store_exists());
        assert!(!content(&sandbox.path("")).iter().any(|line| line.contains(".doctor-")));
    }
}

on_every_store_of_files! {
    fn doctor_reports_a_missing_store_and_creates_nothing(sandbox: &Sandbox) {
        let before = content(&sandbox.path(""));
        let (user, group) = us();
        let what = if sandbox.is_directory() { "directory of records," } else { "SQLite database" };
        let mut wanted = vec![
            format!("good store: {what} STORE: not there yet"),
            MOUNT.into(),
            format!("good access: to be made by the first lock in {}, which has mode 0755, owner {user}, group {group}",
                    sandbox.path("").display().to_string().trim_end_matches('/')),
        ];
        if !sandbox.is_of_files() {
            wanted = SERVER.map(String::from).to_vec();
        }
        wanted.extend(the_same_everywhere(sandbox, "good records: 0 held, 0 waiting"));
        wanted.retain(|line| line != MOUNT || is_mount_visible(sandbox));
        assert_eq!(doctor(sandbox, &[]), (0, wanted));
        assert_eq!(content(&sandbox.path("")), before);
    }

    fn doctor_lists_the_content_of_a_store_and_changes_nothing(sandbox: &Sandbox) {
        let _holder = sandbox.holder("held");
        // A wait of a script that lasts leaves a note.
        let _waits = sandbox.script("dash", "csalock run held true; :").spawn();
        wait_until("there is one", || sandbox.internal() > 0);
        let (before, sight) = (content(&sandbox.path("")), sandbox.csalock(["status", "--json"]).capture().stdout);
        let (user, group) = us();
        let access = |mode| format!("mode {mode}, owner {user}, group {group}");
        let mut wanted = match sandbox.is_directory() {
            _ if !sandbox.is_of_files() => SERVER.map(String::from).to_vec(),
            true => vec!["good store: directory of records, STORE".into(), MOUNT.into(),
                         format!("good access: {}", access("0755"))],
            false => vec!["good store: SQLite database STORE".into(), MOUNT.into(),
                          format!("good access: {}; its directory: {}", access("0644"), access("0755")),
                          "doubtful readers: users who may only read the database can block all changes".into()],
        };
        wanted.extend(the_same_everywhere(sandbox, "good records: 1 held, 1 waiting"));
        wanted.retain(|line| line != MOUNT || is_mount_visible(sandbox));
        assert_eq!(doctor(sandbox, &[]), (0, wanted));
        assert_eq!(content(&sandbox.path("")), before);
        assert_eq!(sandbox.csalock(["status", "--json"]).capture().stdout, sight);
        assert_eq!(sandbox.csalock(["history", "--json"]).capture().stdout.matches("\"to\":null").count(), 1);
    }

    fn a_pipe_gets_a_line_for_each_finding_and_a_conclusion(sandbox: &Sandbox) {
        sandbox.csalock(["run", "x", "true"]).run();
        let done = sandbox.csalock(["doctor"]).capture();
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
        let lines: Vec<&str> = done.stdout.lines().collect();
        // Every user may read a database.
        let of_readers = usize::from(!sandbox.is_directory());
        let of_cleaners = usize::from(["/tmp", "/var/tmp"].iter().any(|cleaned| sandbox.path("").starts_with(cleaned)));
        let warnings = of_readers + of_cleaners;
        let last = match warnings {
            0 => "All is well.",
            1 => "Locks work here, with 1 warning.",
            _ => "Locks work here, with 2 warnings.",
        };
        assert_eq!(lines.last(), Some(&last));
        let (_, findings) = doctor(sandbox, &[]);
        let findings = findings.len();
        assert_eq!(lines.len(), findings + of_cleaners + warnings + 1, "{lines:#?}");
        for line in &lines[..lines.len() - 1] {
            let begins = ["ok       ", "warning  ", "                  fix: "].iter().any(|start| line.starts_with(start));
            assert!(begins && line.as_bytes()["warning  readers  ".len()] != b' ', "{line}");
        }
        assert!(!done.stdout.contains('\x1b'));
    }

    fn a_missing_reader_ends_it_quietly(sandbox: &Sandbox) {
        let script = "trap '' PIPE; csalock doctor | sleep 0; exec 2>&1; csalock doctor > /dev/full; echo $?";
        let done = sandbox.script("bash", script).capture();
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("csalock: cannot write to stdout: No space left on device (os error 28)\n74\n", ""));
        let script = "csalock doctor | sleep 0; echo ${PIPESTATUS[0]}";
        let done = sandbox.script("bash", script).capture();
        assert!(["141\n", "0\n"].contains(&done.stdout.as_str()) && done.stderr.is_empty(), "{done:?}");
    }

    fn a_store_that_cannot_be_is_bad_with_69_and_a_cure(sandbox: &Sandbox) {
        sandbox.file("files/file", "data");
        let before = sandbox.listing("files");
        for place in ["files/none/store", "files/file/store"] {
            let (code, findings) = doctor(sandbox, &["--store", &sandbox.store_at(place)]);
            assert_eq!(code, 69, "{findings:#?}");
            has(&findings, "bad store: ");
        }
        let done = sandbox.csalock(["doctor", "--store", &sandbox.store_at("files/none/store")]).capture();
        assert_eq!((done.code, done.stderr.as_str()), (Some(69), ""));
        assert!(done.stdout.starts_with("error    store") && done.stdout.contains("  fix: "), "{done:?}");
        assert!(done.stdout.ends_with("Locks do not work here.\n"), "{done:?}");
        assert_eq!(sandbox.listing("files"), before);
    }

    fn a_foreign_object_is_bad_as_a_store_and_left_alone(sandbox: &Sandbox) {
        let place = sandbox.path("files/thing");
        if sandbox.is_directory() {
            sandbox.file("files/thing", "another program's data");
        } else {
            sandbox.file("files/thing", "another program's data, and a lot of it, not a database".repeat(100));
        }
        let before = sandbox.listing(&place);
        let (code, findings) = doctor(sandbox, &["--store", &sandbox.store_at("files/thing")]);
        assert_eq!((code, sandbox.listing(&place)), (69, before));
        has(&findings, if sandbox.is_directory() { "bad store: " } else { "bad records: " });
        assert!(!findings.iter().any(|finding| finding.contains("readers")), "{findings:#?}");
    }

    fn a_place_that_every_user_may_tamper_with_is_bad(sandbox: &Sandbox) {
        let place = sandbox.path("files/open");
        std::fs::create_dir(&place).unwrap();
        let store = sandbox.store_at(if sandbox.is_directory() { "files/open" } else { "files/open/db" });
        std::fs::set_permissions(&place, PermissionsExt::from_mode(0o777)).unwrap();
        let (code, findings) = doctor(sandbox, &["--store", &store]);
        assert_eq!(code, 69);
        has(&findings, "bad store: every user may ");
        std::fs::set_permissions(&place, PermissionsExt::from_mode(0o1777)).unwrap();
        let (code, findings) = doctor(sandbox, &["--store", &store]);
        assert_eq!(code, 0, "{findings:#?}");
        assert_eq!(content(&place), [""; 0]);
    }

    fn a_user_without_write_permission_is_told(sandbox: &Sandbox) {
        if !is_root("another user") {
            return;
        }
        sandbox.csalock(["run", "x", "true"]).run();
        let done = sandbox.csalock(["doctor", "--json"]).user(NOBODY).capture();
        let (code, findings) = examined(&done, sandbox);
        assert_eq!(code, 69);
        has(&findings, "bad locks: ");
        let done = sandbox.csalock(["doctor", "--json", "--store", &sandbox.store_at("other")]).user(NOBODY).capture();
        let (code, findings) = examined(&done, sandbox);
        assert_eq!(code, 69);
        has(&findings, "bad locks: ");
    }

    fn a_read_only_mount_is_bad(sandbox: &Sandbox) {
        if !has_namespaces("a mount") {
            return;
        }
        let mount = Mount::new(sandbox, "size=4m");
        let store = sandbox.store_at("files/mount/store");
        sandbox.csalock(["run", "x", "true"]).env("CSALOCK_STORE", &store).run();
        mount.again(sandbox, "ro");
        let before = sandbox.listing("files");
        for place in [&store, &sandbox.store_at("files/mount/other")] {
            let (code, findings) = doctor(sandbox, &["--store", place]);
            assert_eq!(code, 69);
            has(&findings, "bad mount: tmpfs ");
            has(&findings, "bad locks: ");
        }
        assert_eq!(sandbox.listing("files"), before);
    }

    fn a_full_disk_is_bad(sandbox: &Sandbox) {
        if !has_namespaces("a mount") {
            return;
        }
        let mount = Mount::new(sandbox, "size=256k");
        let store = sandbox.store_at("files/mount/store");
        let (code, findings) = doctor(sandbox, &["--store", &store]);
        assert_eq!(code, 0, "{findings:#?}");
        sandbox.script("dash", "cat /dev/zero > mount/filler 2>/dev/null; :").run();
        let (code, findings) = doctor(sandbox, &["--store", &store]);
        assert_eq!(code, 69);
        has(&findings, "bad locks: ");
        std::fs::remove_file(sandbox.path("files/mount/filler")).unwrap();
        assert_eq!(content(&sandbox.path("files/mount")), [""; 0]);
        drop(mount);
    }

    fn a_name_with_a_slash_is_the_store_beside_that_file(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "--forever", "./file"]).without("CSALOCK_STORE").run();
        let before = content(&sandbox.path("files"));
        let done = sandbox.csalock(["doctor", "--json", "./file"]).without("CSALOCK_STORE").capture();
        let (code, findings) = examined(&done, sandbox);
        assert_eq!((code, content(&sandbox.path("files"))), (0, before.clone()));
        has(&findings, "good store: the locks of the files beside it, in ");
        has(&findings, "good records: 1 held, 0 waiting");
        has(&findings, LOCKS);
        // `status` shows the same locks of files in a directory.
        for directory in ["./", "../files/"] {
            let done = sandbox.csalock(["doctor", "--json", directory]).without("CSALOCK_STORE").capture();
            let (code, findings) = examined(&done, sandbox);
            assert_eq!((code, content(&sandbox.path("files"))), (0, before.clone()));
            has(&findings, "good store: the locks of the files beside it, in SANDBOX/files/.csalock");
            has(&findings, "good records: 1 held, 0 waiting");
        }
        let done = sandbox.csalock(["doctor", "./none/"]).without("CSALOCK_STORE").capture();
        assert_eq!((done.code, done.stderr.as_str()), (Some(69), ""));
        assert!(done.stdout.contains("name a directory that exists"), "{done:?}");
        let done = sandbox.csalock(["doctor", "./none/file"]).without("CSALOCK_STORE").capture();
        done.says(64, "No such file or directory");
    }
}

#[test]
fn a_shared_directory_counts_on_the_time_of_its_file_system() {
    let sandbox = Sandbox::new(Kind::Directory);
    let store = format!("{}?shared=1", sandbox.store());
    for _ in 0..2 {
        let (code, findings) = doctor(&sandbox, &["--store", &store]);
        assert_eq!(code, 0, "{findings:#?}");
        has(&findings, CLOCK);
        has(
            &findings,
            "good hosts: other hosts may share it: a holder renews a lease of 1m, and waiters on other hosts poll",
        );
        has(&findings, LOCKS);
        assert_eq!(sandbox.csalock(["run", "--store", &store, "x", "true"]).capture().code, Some(0));
    }
}

#[test]
fn a_server_wakes_the_waiters_on_other_hosts() {
    for kind in [Kind::Etcd, Kind::Postgres, Kind::Ssh] {
        Sandbox::with(kind, |sandbox| {
            let (code, findings) = doctor(sandbox, &[]);
            assert_eq!(code, 0, "{findings:#?}");
            let hosts: Vec<&String> = findings.iter().filter(|line| line.contains(" hosts: ")).collect();
            assert_eq!(hosts, [HOSTS], "{kind:?}");
        });
    }
}

#[test]
fn a_holder_with_another_lease_is_named() {
    for kind in [Kind::Shared, Kind::Postgres, Kind::Ssh] {
        Sandbox::with(kind, |sandbox| {
            let mark = if sandbox.store().contains('?') { "&" } else { "?" };
            let minutes = format!("{}{mark}lease=3m", sandbox.store());
            let holder = sandbox.csalock(["run", "--store", &minutes, "x", "sh", "-c", "echo; cat"]).ready();
            let (code, findings) = doctor(sandbox, &[]);
            assert_eq!(code, 0, "{findings:#?}");
            has(&findings, "doubtful lease: it is 1m here, but 3m for holders now");
            let (code, findings) = doctor(sandbox, &["--store", &minutes]);
            assert!(code == 0 && !findings.iter().any(|line| line.contains(" lease: ")), "{findings:#?}");
            holder.wait().exits(0);
        });
    }
}

#[test]
fn behind_a_pooler_the_waiters_on_other_hosts_poll() {
    let Some(bouncer) = crate::postgres::shared_bouncer() else { return };
    let sandbox = Sandbox::in_database(&bouncer.url(&crate::postgres::new_schema()));
    let (code, findings) = doctor(&sandbox, &[]);
    assert_eq!(code, 0, "{findings:#?}");
    has(&findings, &HOSTS.replace("are woken by the store", "poll"));
}

#[test]
fn the_connections_of_a_server_are_compared_with_those_that_waiters_and_holders_need() {
    let Some(server) = Server::start(&["max_connections=15", "superuser_reserved_connections=3", "max_wal_senders=0"])
    else {
        return;
    };
    let sandbox = Sandbox::in_database(&server.url(""));
    let _holder = sandbox.csalock(["run", "x", "sh", "-c", "echo; read line"]).ready();
    let of_connections = || doctor(&sandbox, &[]).1.into_iter().find(|line| line.contains(" connections: ")).unwrap();
    let good = |line: &str| {
        line.starts_with("good ")
            && line.ends_with(" of 12 in use; waiters may take 0; holders log in N times a second")
    };
    wait_until("the holder has left", || good(&of_connections()));
    let _waiters: Vec<_> = (0..4).map(|_| sandbox.csalock(["run", "-w", "inf", "x", "true"]).spawn()).collect();
    wait_until("they wait", || sandbox.waiters("x").len() == 4);
    let found = of_connections();
    assert!(found.starts_with("doubtful ") && found.contains(" waiters may take 8;"), "{found}");
}

#[test]
fn a_standby_that_does_not_confirm_is_named() {
    let Some(server) = Server::start(&[]) else { return };
    let sandbox = Sandbox::in_database(&server.url(""));
    sandbox.csalock(["run", "x", "true"]).run();
    server.sql("ALTER SYSTEM SET synchronous_standby_names = 'absent'");
    server.sql("SELECT pg_reload_conf()");
    let run = || sandbox.csalock(["run", "-n", "x", "true"]).capture();
    wait_until("commits wait", || run().code == Some(69));
    let done = run();
    assert!(done.stderr.contains("the synchronous standby does not confirm commits; start the standby"), "{done:?}");
    let (code, findings) = doctor(&sandbox, &[]);
    assert_eq!(code, 69, "{findings:#?}");
    assert!(
        findings.iter().any(|line| line.starts_with("bad locks: ") && line.ends_with("does not confirm commits")),
        "{findings:#?}"
    );
}

#[test]
fn the_default_store_is_tried_where_its_first_missing_directory_will_be() {
    let sandbox = Sandbox::new(Kind::Directory);
    let mut call = sandbox.csalock(["doctor", "--json"]).without("CSALOCK_STORE");
    if nix::unistd::geteuid().is_root() {
        // Root's default store is the machine's, so another user tries it.
        let nobody = 65534;
        std::os::unix::fs::chown(sandbox.path("state"), Some(nobody), Some(nobody)).unwrap();
        call = call.user(nobody);
    }
    let before = content(&sandbox.path(""));
    let done = call.capture();
    assert_eq!((done.code, content(&sandbox.path(""))), (Some(0), before));
}

#[test]
fn an_empty_directory_that_is_to_become_a_store_stays_empty() {
    let sandbox = Sandbox::new(Kind::Directory);
    std::fs::create_dir(sandbox.store_path()).unwrap();
    std::fs::set_permissions(sandbox.store_path(), PermissionsExt::from_mode(0o2770)).unwrap();
    let (code, findings) = doctor(&sandbox, &[]);
    assert_eq!((code, content(&sandbox.store_path())), (0, vec![]), "{findings:#?}");
    assert_eq!(std::fs::metadata(sandbox.store_path()).unwrap().mode() & 0o7777, 0o2770);
}

#[test]
fn a_zone_that_is_not_installed_is_doubtful() {
    let sandbox = Sandbox::new(Kind::Directory);
    for (zone, found) in [
        (
            "Europe/Belin",
            "doubtful zone: TZ says Europe/Belin, which is not an installed time zone, so times are shown in UTC",
        ),
        (":UTC", "good zone: UTC, UTC+00:00 now"),
        ("", "good zone: UTC, UTC+00:00 now"),
        ("<+03>-3", "good zone: <+03>-3, UTC+03:00 now"),
    ] {
        let done = sandbox.csalock(["doctor", "--json"]).env("TZ", zone).env("TZDIR", "/nowhere").capture();
        let (code, findings) = examined(&done, &sandbox);
        has(&findings, found);
        assert_eq!((code, findings.iter().filter(|line| line.contains(" zone: ")).count()), (0, 1));
    }
}

#[test]
fn damage_is_bad() {
    let sandbox = Sandbox::new(Kind::Sqlite);
    for name in 0..60 {
        sandbox.csalock(["lock", "--forever", &format!("x{name}")]).capture();
    }
    // Without a write-ahead log, all pages are in the database.
    let connection = rusqlite::Connection::open(sandbox.store_path()).unwrap();
    connection.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(())).unwrap();
    drop(connection);
    let mut bytes = std::fs::read(sandbox.store_path()).unwrap();
    bytes[8192..12288].fill(0x5a);
    std::fs::write(sandbox.store_path(), &bytes).unwrap();
    let (code, findings) = doctor(&sandbox, &[]);
    assert_eq!(code, 69);
    has(&findings, "bad records: the database STORE is damaged");
}
