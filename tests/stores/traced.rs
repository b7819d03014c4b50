//! The writes that reach the disk, with their order, as strace(1) shows them, and the result of a commit when they
//! fail. Like the storms, this is the test program again, with the steps in the environment.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use directory::Directory;
use host::Unix;
use store::{Call, CommitResult, Durability, Layout, Store, Swept, WriteOptions};

use crate::rig::{Effects, KIND, Kind, Rig, STORE};

const STEPS: &str = "CSALOCK_TEST_STEPS";
const ANSWERS: &str = "CSALOCK_TEST_ANSWERS";

/// The calls that change names or wait for the disk. The last separates the steps, because no other code makes it.
const CALLS: &str = "trace=openat,?mkdir,mkdirat,?rename,renameat,?renameat2,?unlink,unlinkat,?mknod,mknodat,?chmod,\
                     fchmod,fsync,fdatasync,syncfs,?readlink,readlinkat";

const BEFORE_A_STEP: &str = "/step/";

/// A draft of a record being written. (The umask leaves the file the mode of the store, so only the directory is changed.)
const DRAFT: [&str; 3] =
    ["mkdir store/.work/.new.ID", "chmod store/.work/.new.ID 0755", "create store/.work/.new.ID/embryo.0.ID 0644"];

pub(crate) fn volatile_records_are_not_synced(rig: &Rig) {
    let Some(steps) = trace(rig, "x.put.boot x.put.boot x.remove.boot y.put.boot y.remove.boot") else { return };
    assert!(!steps.iter().flatten().any(|call| call.starts_with("sync")), "{steps:#?}");
}

pub(crate) fn an_atomic_record_is_synced_before_its_pointer(rig: &Rig) {
    let Some(steps) = trace(rig, "x.put.boot x.remove.boot y.put.whole y.put.whole y.remove.whole") else { return };
    let born = [
        "sync store/.work/.new.ID/embryo.0.ID",
        "rename store/.work/.new.ID store/y",
        "rename store/y/embryo.0.ID store/y/born.N.ID",
    ];
    assert_eq!(steps[2], [&DRAFT[..], &born].concat());
    let changed = [
        "create store/y/rec.ID 0644",
        "sync store/y/rec.ID",
        "rename store/y/born.N.ID store/y/cur.N.ID",
        // The first file contained the first record.
        "create store/y/rec.ID 0600",
        "rename store/y/rec.ID store/y/cur.N.ID",
        "unlink store/y/rec.ID",
    ];
    assert_eq!(steps[3], changed);
    assert!(!steps[4].iter().any(|call| call.starts_with("sync")), "{steps:#?}");
}

pub(crate) fn a_durable_record_is_synced_from_the_inside_outward(rig: &Rig) {
    let all = "x.put.lasting x.put.lasting x.put.lasting x.remove.lasting y.put.lasting y.remove.lasting z.put.boot \
               z.put.boot z.remove.lasting";
    let Some(steps) = trace(rig, all) else { return };
    let born = [
        "sync store/.work/.new.ID/embryo.0.ID",
        "sync store/.work/.new.ID",
        "rename store/.work/.new.ID store/x",
        "rename store/x/embryo.0.ID store/x/born.N.ID",
        "sync store/x",
        "sync store",
    ];
    let work = ["mkdir store/.work.new.ID", "chmod store/.work.new.ID 0755", "rename store/.work.new.ID store/.work"];
    assert_eq!(steps[0], [&["mkdir store"], &work[..], &DRAFT, &born, &["sync ."]].concat());
    let changed = [
        "create store/x/rec.ID 0644",
        "sync store/x/rec.ID",
        "rename store/x/cur.N.ID store/x/cur.N.ID",
        "sync store/x",
        "sync store",
        "unlink store/x/rec.ID",
    ];
    assert_eq!(steps[2], changed);
    let left_to_rest = [
        "rename store/x/cur.N.ID store/x/end.N.ID",
        "sync store/x",
        "sync store",
        "create store/.work/rest.x 0644",
        "unlink store/x/rec.ID",
    ];
    assert_eq!(steps[3], left_to_rest);
    let removed = [
        "rename store/y/born.N.ID store/y/end.N.ID",
        "sync store/y",
        "sync store",
        "create store/.work/token.N 0644",
        "sync store/.work",
        "sync store",
        "unlink store/y/end.N.ID",
        "unlink store/y",
    ];
    assert_eq!(steps[5], removed);
    let buried = [
        "rename store/z/cur.N.ID store/z/end.N.ID",
        "sync store/z",
        "sync store",
        "rename store/.work/token.N store/.work/token.N",
        "sync store/.work",
        "sync store",
        "unlink store/z/rec.ID",
        "unlink store/z/end.N.ID",
        "unlink store/z",
    ];
    assert_eq!(steps[8], buried);
}

pub(crate) fn a_durable_record_beside_files_is_synced_with_its_directory(rig: &Rig) {
    let Some(steps) = trace(rig, "x.put.lasting x.remove.lasting") else { return };
    let syncs =
        |step: usize| -> Vec<&str> { steps[step].iter().filter_map(|call| call.strip_prefix("sync ")).collect() };
    assert_eq!(syncs(0), ["store/.new.ID/embryo.0.ID", "store/.new.ID", "store/x", "store", "."]);
    assert_eq!(syncs(1), ["store/x", "store"]);
    assert_eq!(steps[1].last().unwrap(), "unlink store");
}

pub(crate) fn all_levels_above_a_default_store_are_synced(rig: &Rig) {
    let Some(run) = run(rig, "Default", &rig.around().join("a/b/store"), "x.put.boot y.put.lasting", &[]) else {
        return;
    };
    let steps = steps(&run, rig.around());
    let syncs: Vec<_> = steps[1].iter().skip_while(|call| *call != "sync a/b/store").map(String::as_str).collect();
    assert_eq!(syncs, ["sync a/b/store", "sync a/b", "sync a", "sync ."]);
}

pub(crate) fn a_commit_that_lasts_is_synced_and_no_other_commit_is(rig: &Rig) {
    let Some(steps) = trace(rig, "x.put.lasting x.put.boot x.put.lasting x.put.boot x.remove.whole x.put.lasting")
    else {
        return;
    };
    // The first commit creates the database with a rollback journal. SQLite syncs the journal's directory when it creates
    // the journal. The sync after the removal of the journal is the one that counts.
    assert_eq!(steps[0][0], "mknod store 0666");
    let at = |what: &str| steps[0].iter().position(|call| call == what).unwrap_or_else(|| panic!("{steps:#?}"));
    assert!(at("sync store-journal") < at("sync store") && at("sync store") < at("unlink store-journal"));
    assert_eq!(steps[0][at("unlink store-journal") + 1], "sync .", "{steps:#?}");
    // The name of the log and its header are synced once.
    assert_eq!(steps[1], ["create store-wal 0644", "create store-shm 0644", "sync store-wal", "sync ."], "{steps:#?}");
    // A process syncs the directory of the log again, since it does not know the creator.
    assert_eq!(steps[2], ["sync store-wal"], "{steps:#?}");
    assert_eq!([&steps[3], &steps[4]], [&[""; 0]; 2], "{steps:#?}");
    assert_eq!(steps[5], ["sync store-wal"], "{steps:#?}");
}

pub(crate) fn a_commit_that_lasts_is_synced_with_the_removal_of_its_journal(rig: &Rig) {
    // In a shared directory with the sticky bit the database keeps the rollback journal.
    fs::create_dir_all(rig.path().parent().unwrap()).unwrap();
    fs::set_permissions(rig.path().parent().unwrap(), fs::Permissions::from_mode(0o1777)).unwrap();
    let Some(steps) = trace(rig, "x.put.lasting x.put.lasting x.put.boot x.remove.whole x.remove.lasting") else {
        return;
    };
    // SQLite syncs the journal's directory when it creates the journal. The sync after the removal of the journal is
    // the one that counts.
    let lasting = |step: usize| {
        let at = |what: &str| steps[step].iter().position(|call| call == what).unwrap_or_else(|| panic!("{steps:#?}"));
        assert!(at("sync store-journal") < at("sync store") && at("sync store") < at("unlink store-journal"));
        steps[step].last().unwrap() == "sync ."
    };
    assert_eq!([0, 1, 2, 3].map(lasting), [true, true, false, false], "{steps:#?}");
    assert_eq!(steps[0][0], "mknod store 0666");
}

pub(crate) fn a_private_record_is_never_open_to_others(rig: &Rig) {
    let Some(steps) = trace(rig, "x.put.lasting.private x.put.boot.private x.put.lasting.private") else { return };
    let modes: Vec<_> = steps
        .iter()
        .flatten()
        .filter(|call| ["create", "chmod", "mknod"].iter().any(|what| call.starts_with(what)))
        // Directories are as open as the store.
        .filter(|call| !call.ends_with(".new.ID 0755"))
        .collect();
    assert!(modes.len() > 2 && modes.iter().all(|call| call.ends_with(" 0600")), "{steps:#?}");
}

/// An error of the disk is not a success, and leaves the old record or the new one.
pub(crate) fn a_sync_that_fails_is_an_error_and_tears_nothing(rig: &Rig) {
    let (mut old, mut new) = (0, 0);
    for (prepared, step) in [(0, "put"), (1, "put"), (2, "put"), (1, "remove"), (2, "remove")] {
        for (call, failing) in ["fsync", "fdatasync"].iter().flat_map(|call| (1..20).map(move |at| (call, at))) {
            let name = format!("{step}-{prepared}-{call}-{failing}");
            let mut version = None;
            for _ in 0..prepared {
                version = Some(rig.put(name.as_bytes(), version.as_ref(), b"old"));
            }
            let inject = format!("inject={call}:error=EIO:when={failing}");
            let step = format!("{name}.{step}.lasting");
            let Some((log, answers)) = run(rig, &format!("{:?}", rig.kind), &rig.path(), &step, &["-e", &inject])
            else {
                return;
            };
            let (before, after) = ((prepared > 0).then_some("old"), step.contains(".put.").then_some("new"));
            let found = rig.body(name.as_bytes()).map(|body| String::from_utf8(body).unwrap());
            if !log.contains("(INJECTED)") {
                assert_eq!((&answers[0][..], found.as_deref()), ("stored", after), "{inject} {log}");
                if let Some(version) = rig.store.version(name.as_bytes()) {
                    rig.remove(name.as_bytes(), &version);
                }
                break;
            }
            // That the journal's name was not synced SQLite keeps to itself: it syncs the directory again later.
            let journal = rig.kind == Kind::Sqlite && answers[0] == "stored" && found.as_deref() == after;
            assert!(answers[0] == "74" || journal, "{step} {inject} {answers:?} {log}");
            assert!([before, after].contains(&found.as_deref()), "{step} {inject} {found:?} {log}");
            *(if found.as_deref() == after { &mut new } else { &mut old }) += 1;
            // The next caller is not blocked.
            let version = rig.store.version(name.as_bytes());
            let version = rig.put(name.as_bytes(), version.as_ref(), b"next");
            rig.remove(name.as_bytes(), &version);
        }
    }
    assert!(old > 3 && new > 3, "{old} {new}");
    let drafts =
        [rig.path(), rig.path().join(".work")].into_iter().filter_map(|path| fs::read_dir(path).ok()).flatten();
    assert_eq!(drafts.filter(|entry| entry.as_ref().unwrap().path().to_string_lossy().contains(".new.")).count(), 0);
    assert_eq!((rig.bodies(), rig.store.sweep(Call::default(), true).unwrap()), (Vec::new(), Swept::default()));
}

/// Runs these steps in a process of their own, and brings the calls that each of them made.
fn trace(rig: &Rig, steps: &str) -> Option<Vec<Vec<String>>> {
    let run = run(rig, &format!("{:?}", rig.kind), &rig.path(), steps, &[])?;
    Some(self::steps(&run, rig.around()))
}

fn steps((log, answers): &(String, Vec<String>), around: &Path) -> Vec<Vec<String>> {
    assert!(answers.iter().all(|answer| answer == "stored"), "{answers:?} {log}");
    let mut traced = vec![Vec::new()];
    for line in log.lines() {
        match shown(line, around) {
            Some(call) if call == BEFORE_A_STEP => traced.push(Vec::new()),
            Some(call) => traced.last_mut().unwrap().push(call),
            None => {}
        }
    }
    assert_eq!(traced.len(), answers.len() + 2, "{log}");
    traced.pop();
    traced.split_off(1)
}

/// The trace and the answers, or `None` without strace.
fn run(rig: &Rig, kind: &str, store: &Path, steps: &str, options: &[&str]) -> Option<(String, Vec<String>)> {
    if !harness::has("strace") {
        return None;
    }
    let (log, answers) = (rig.around().join("trace"), rig.around().join("answers"));
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-s", "4096", "-e", CALLS, "-o"]).arg(&log).args(options);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "traced::worker", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(KIND, kind).env(STORE, store).env(STEPS, steps).env(ANSWERS, &answers);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        fs::remove_file(path).unwrap();
        text
    };
    Some((read(&log), read(&answers).lines().map(str::to_string).collect()))
}

/// A line of strace's as "what path", with paths as seen from `around`, if it is a call of the store that succeeded.
fn shown(line: &str, around: &Path) -> Option<String> {
    let (_pid, call) = line.split_once(' ')?;
    let (name, arguments) = call.trim_start().split_once('(')?;
    let (arguments, result) = arguments.rsplit_once(" = ")?;
    let arguments = arguments.trim_end().trim_end_matches(')');
    let (mut directory, mut paths, mut last) = (PathBuf::new(), Vec::new(), "");
    for argument in arguments.split(", ") {
        if let Some((_, path)) = argument.split_once('<') {
            directory = PathBuf::from(path.trim_end_matches('>').trim_end_matches(" (deleted)"));
        } else if let Some(path) = argument.strip_prefix('"') {
            paths.push(directory.join(path.trim_end_matches('"')));
        }
        last = argument;
    }
    if name.starts_with("readlink") {
        return paths.first()?.starts_with(BEFORE_A_STEP).then(|| BEFORE_A_STEP.to_string());
    }
    let what = match name {
        "fsync" | "fdatasync" | "fchmod" => {
            paths = vec![directory];
            if name == "fchmod" { "chmod" } else { "sync" }
        }
        "openat" if arguments.contains("O_CREAT") => "create",
        "openat" => return None,
        name => name.trim_end_matches('2').trim_end_matches("at"),
    };
    if result.starts_with('-') {
        return None;
    }
    let mut words = vec![what.to_string()];
    for path in paths {
        words.push(anonymous(path.strip_prefix(around).ok()?));
    }
    if matches!(what, "create" | "mknod" | "chmod") {
        words.push(last.rsplit('|').next()?.to_string());
    }
    Some(words.join(" "))
}

/// The path with N for version numbers and ID for what is random, and without the inode of the store's directory.
fn anonymous(path: &Path) -> String {
    let is_inode = |part: &&str| part.len() == 9 && part.starts_with(['l', 'b', 'r']);
    let part = |part: &str| match part {
        _ if part.len() == 24 && part.bytes().all(|byte| byte.is_ascii_hexdigit()) => "ID".to_string(),
        _ if part.len() > 9 && part.bytes().all(|byte| byte.is_ascii_digit()) => "N".to_string(),
        _ => part.to_string(),
    };
    let parts = |name: &str| match name.split_once(".new.") {
        Some((whole, _)) if !whole.is_empty() => format!("{whole}.new.ID"),
        _ => name.split('.').filter(|part| !is_inode(part)).map(part).collect::<Vec<_>>().join("."),
    };
    let shown = path.to_str().unwrap().split('/').map(parts).collect::<Vec<_>>().join("/");
    if shown.is_empty() { ".".to_string() } else { shown }
}

/// Not a test: what takes the steps that are traced.
#[test]
#[ignore = "the tests with strace run it, in processes of their own"]
fn worker() {
    let Ok(steps) = std::env::var(STEPS) else { return };
    let (kind, host) = (std::env::var(KIND).unwrap(), Arc::new(Unix::new()));
    let path = PathBuf::from(std::env::var(STORE).unwrap());
    let store: Arc<dyn Store> = match Kind::ALL.into_iter().find(|known| format!("{known:?}") == kind) {
        Some(kind) => kind.open(&path, host),
        None => Arc::new(Directory::open(&path, Layout::Default, host).unwrap()),
    };
    let mut answers = Vec::new();
    for step in steps.split(' ') {
        let _ = fs::read_link(format!("{BEFORE_A_STEP}{step}"));
        answers.push(take(store.as_ref(), step));
    }
    let _ = fs::read_link(format!("{BEFORE_A_STEP}end"));
    fs::write(std::env::var(ANSWERS).unwrap(), answers.join("\n")).unwrap();
}

/// Takes a step that is called NAME.put.DURABILITY or NAME.remove.DURABILITY, with `.private` for mode 0600.
fn take(store: &dyn Store, step: &str) -> String {
    let words: Vec<&str> = step.split('.').collect();
    let durability = match words[2] {
        "boot" => Durability::Volatile,
        "whole" => Durability::Atomic,
        _ => Durability::Durable,
    };
    let keep = WriteOptions { durability, mode: words.get(3).map(|_| 0o600) };
    let version = store.version(words[0].as_bytes());
    let body = (words[1] == "put").then_some(&b"new"[..]);
    match store.swap_with(words[0].as_bytes(), version.as_ref(), body, keep) {
        Ok(CommitResult::Done(_)) => "stored".to_string(),
        Ok(CommitResult::Conflict(_) | CommitResult::Unclear) => "conflict".to_string(),
        Err(error) => csalock::exit::Exit::from(error.kind()).code().to_string(),
    }
}
