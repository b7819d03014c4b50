//! What releases wrote is read (`versions/VERSION`, written by `versions/write`), and what callers of the last release and
//! of this csalock see of each other on one store: the table in docs/upgrade.md.
//!
//! The program of the last release is built once, in `target/last-release`, with `CSALOCK_TESTS=all`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use store::Call as StoreCall;

use crate::sandbox::{Kind, Sandbox, csalock, skip};
use crate::{etcd, postgres};

/// Version and commit of the last release. No tag names it.
const LAST: (&str, &str) = ("0.2.0", "57bb54e2");

pub(crate) const WITH_LAST_RELEASE: [&str; 1] = ["callers_of_two_versions_see_what_the_table_says"];

fn in_project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The file of this name that each release wrote, if it knew the store.
fn written(file: &str) -> Vec<PathBuf> {
    let versions = fs::read_dir(in_project("tests/behaviour/versions")).unwrap();
    let files: Vec<_> =
        versions.map(|version| version.unwrap().path().join(file)).filter(|file| file.exists()).collect();
    assert!(!files.is_empty() || ["postgres.sql", "greeting"].contains(&file), "no release wrote {file}");
    files
}

/// What `versions/write` wrote is all there, can be changed, and is written anew in the newest format.
fn is_all_there(sandbox: &Sandbox, file: &Path) {
    let mut formats = Vec::new();
    let scanned = sandbox.open().scan(StoreCall::default(), &mut |place, stored| {
        let (stored, file) = (stored.unwrap_or_else(|error| panic!("{file:?}: {place}: {error}")), file.display());
        let text = String::from_utf8_lossy(&stored.body);
        formats.extend(text.split([':', ',']).nth(1).map(str::to_string));
        if !lock::is_auxiliary(&stored.body) {
            let record =
                lock::decode(&stored.body, stored.version.number).unwrap_or_else(|e| panic!("{file}: {place}: {e}"));
            let again = lock::decode(&lock::encode(&record), 1).unwrap();
            assert_eq!(again, lock::committed(&record, 1), "{file}: {place}");
        }
        Ok(())
    });
    scanned.unwrap();
    assert!(formats.len() >= 10 && formats.iter().all(|format| format == &formats[0]), "{file:?}: {formats:?}");
    let held = sandbox.record("held").unwrap();
    assert!(held.pages.is_some() && held.holders.len() == 1 && held.waiters.len() > 10, "{file:?}: {held:?}");
    let script = "csalock get short; echo; csalock get long | wc -c; csalock lookup one; csalock lookup two
csalock status --json forever | grep -o '\"label\":\"a label\"'; csalock status --json twice | grep -o '\"token\"' | wc -l
for name in forever twice slots one two; do csalock status -q $name || echo $name $?; done
csalock history | grep -c 'released\\|ended'; csalock gc --dry-run > said || echo $?
csalock put short 2; csalock get short; echo; csalock unlock --force forever > said; csalock run -n forever true
csalock claim two --id you 2> said; echo $?; csalock unclaim one two --id me; csalock run -n past true; csalock run -n two true";
    sandbox.script("dash", script).stdout("a value\n2000\nme\nme\n\"label\":\"a label\"\n3\n2\n2\n83\n").run();
    let record = sandbox.open().read(StoreCall::default(), b"short").unwrap().unwrap();
    assert!(record.body.starts_with(format!("{{\"csalock\":{},", lock::line::FORMAT).as_bytes()), "{file:?}");
}

#[test]
fn a_directory_of_each_release_is_read() {
    for file in written("directory.tar") {
        let sandbox = Sandbox::new(Kind::Directory);
        fs::create_dir(sandbox.store_path()).unwrap();
        let words = ["-C", sandbox.store_path().to_str().unwrap(), "-xf", file.to_str().unwrap()].map(str::to_string);
        sandbox.call("tar", words).run();
        is_all_there(&sandbox, &file);
    }
}

#[test]
fn a_database_of_each_release_is_read() {
    for file in written("database") {
        let sandbox = Sandbox::new(Kind::Sqlite);
        fs::copy(&file, sandbox.store_path()).unwrap();
        fs::copy(file.with_file_name("database-history"), sandbox.path("store-history")).unwrap();
        is_all_there(&sandbox, &file);
    }
}

#[test]
fn keys_of_each_release_in_etcd_are_read() {
    let Some(cluster) = etcd::shared() else { return };
    for file in written("etcd") {
        let sandbox = Sandbox::new(Kind::Etcd);
        let prefix = sandbox.store().splitn(4, '/').last().unwrap().to_string();
        for line in fs::read_to_string(&file).unwrap().lines() {
            let (key, value) = line.split_once(' ').unwrap();
            let key = [prefix.as_bytes(), b"/", &BASE64_STANDARD.decode(key).unwrap()].concat();
            cluster.post("/v3/kv/put", &json!({ "key": BASE64_STANDARD.encode(key), "value": value }));
        }
        is_all_there(&sandbox, &file);
    }
}

#[test]
fn a_schema_of_each_release_is_read() {
    let Some(server) = postgres::shared() else { return };
    for file in written("postgres.sql") {
        let sandbox = Sandbox::new(Kind::Postgres);
        let schema = sandbox.store().rsplit('/').next().unwrap().to_string();
        let sql = fs::read_to_string(&file).unwrap().replace("fixture", &schema);
        let done = server.psql().args(["-qX", "-v", "ON_ERROR_STOP=1", "-c", &sql]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        is_all_there(&sandbox, &file);
    }
}

#[test]
fn a_server_of_each_release_behind_ssh_is_understood() {
    for file in written("greeting") {
        let greeting: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(greeting["csalock_serve"], ::ssh::FORMAT, "{file:?}");
    }
}

/// Path of the program of the last release.
fn last_release() -> Option<PathBuf> {
    if !in_project(".git").exists() {
        skip("two versions on one store", "the sources are not a checkout of git");
        return None;
    }
    if !harness::has("git") {
        return None;
    }
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("last-release").join(LAST.0);
    fs::create_dir_all(&place).unwrap();
    // It is a workspace of its own below that of the project.
    let build = "test ! -x ../csalock || exit 0
rm -rf ../source && mkdir ../source && git archive \"$1\" | tar -xC ../source && cd ../source || exit
grep -q '^\\[workspace\\]' Cargo.toml || printf '\\n[workspace]\\n' >> Cargo.toml
build() { cargo build --quiet --release --locked --bin csalock \"$@\"; }
build --offline 2> /dev/null || build || exit
cp \"$(find ../build -path '*/release/csalock')\" ../new && mv ../new ../csalock";
    let store = format!("dir:{}", place.join("locks").display());
    let mut command = Command::new(csalock());
    command.args([
        "run",
        "-w",
        "inf",
        "--store",
        &store,
        "build",
        "sh",
        "-c",
        &format!("cd \"$0\" || exit\n{}", build.replace("../", "$2/")),
    ]);
    command.arg(in_project("")).arg(LAST.1).arg(&place).env("CARGO_TARGET_DIR", place.join("build"));
    command.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    let done = command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1").output().unwrap();
    if !done.status.success() {
        let why = String::from_utf8_lossy(&done.stderr).lines().last().unwrap_or_default().to_string();
        skip("two versions on one store", &format!("csalock {} cannot be built: {why}", LAST.0));
        return None;
    }
    Some(place.join("csalock"))
}

/// The calls of the table, and the script of which each gives the exit code. `$H` holds, `$C` calls.
const CALLS: [(&str, &str); 13] = [
    ("`run -n`, `lock -n` of a held lock", "$C run -n held echo second"),
    ("`status` of a held lock", "$C status held"),
    ("`unlock` of a held lock", "$C unlock held"),
    ("`run` of a free name", "$C run -n free true"),
    ("`get` of a value", "$C get value"),
    ("`put` of the value", "$C put value 2"),
    ("`lookup` of a claim", "$C lookup claim"),
    ("`claim` of a claimed name", "$C claim claim --id you"),
    ("`gc`", "$C gc"),
    ("`unlock --force` of a lock with `--forever`", "$C unlock --force forever"),
    ("`run` of a held lock, which waits", "wait $waiter"),
    ("the holder that it waits for, without a lease", "[ $shared ] || wait $holder"),
    ("the holder that it waits for, with a lease", "[ ! $shared ] || wait $holder"),
];

/// Exit codes of the calls of `$C` in a store in which `$H` has written.
fn codes(kind: Kind, holder: &Path, caller: &Path) -> Vec<String> {
    let sandbox = Sandbox::new(kind);
    let calls: Vec<String> = CALLS[..10].iter().map(|(_, call)| format!("{call}; echo $? >&3\n")).collect();
    let ends: Vec<String> = CALLS[10..].iter().map(|(_, end)| format!("{end}; echo $? >&3\n")).collect();
    let script = format!(
        "H={} C={} shared={} CSALOCK_LEASE=3s; export CSALOCK_LEASE; exec 3>&1 > said 2>&1
$H put value 1; $H claim claim --id me; $H lock --forever forever
$H run held sh -c 'until [ -e end ]; do sleep 0.05; done' & holder=$!
until $H status -q held; do sleep 0.05; done
{}$C run held true & waiter=$!
until [ ! -e /proc/$waiter ] || $C status held | grep -q 'waiters  1'; do sleep 0.05; done
[ ! $shared ] || sleep 5; : > end; {}",
        holder.display(),
        caller.display(),
        if kind == Kind::Etcd { "1" } else { "" },
        calls.concat(),
        ends.concat(),
    );
    let done = sandbox.script("bash", &script).capture();
    assert!(!sandbox.read("files/said").contains("second"), "{kind:?}: two holders");
    done.stdout.lines().map(str::to_string).collect()
}

#[test]
fn callers_of_two_versions_see_what_the_table_says() {
    let Some(old) = last_release() else { return };
    let [old, new] = [old.as_path(), Path::new(csalock())];
    let mut kinds = vec![Kind::Directory, Kind::Sqlite];
    kinds.extend(etcd::shared().map(|_| Kind::Etcd));
    let page = in_project("docs/upgrade.md");
    let text = fs::read_to_string(&page).unwrap();
    let mut rows = CALLS.map(|(call, _)| format!("| {call} |"));
    for (holder, caller) in [(old, new), (new, old)] {
        let mut found = kinds.iter().map(|kind| codes(*kind, holder, caller)).collect::<Vec<_>>();
        // Only etcd has leases here, and files have none.
        if found.len() == 3 {
            found[0][12] = found[2][12].clone();
            found[1][12] = found[2][12].clone();
            found[2][11] = found[0][11].clone();
        }
        assert!(found.iter().all(|codes| codes == &found[0]), "{kinds:?} differ: {found:#?}");
        rows.iter_mut().zip(&found[0]).for_each(|(row, code)| *row += &format!(" {code} |"));
    }
    let last = if kinds.len() == 3 { rows.len() } else { rows.len() - 1 };
    let missing: Vec<&String> = rows[..last].iter().filter(|row| !text.contains(*row)).collect();
    assert!(missing.is_empty(), "docs/upgrade.md has other rows than these: {missing:#?}");
}
