//! Any number of acquisitions and releases leaves the store as it was: no file, row or directory more.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::time::Duration;

use csalock_locks::Locks;
use lock::{Lifetime, Record};
use store::Call as StoreCall;

use crate::sandbox::{Job, Kind, Sandbox, wait_until};

/// So often within this process, and so often by the program.
const ROUNDS: usize = 10_000;
const RUNS: usize = 300;

/// Contending callers, so that records are changed as well as created and removed.
const SHELLS: usize = 6;

/// The history of a store is there from the first grant on that ends. These come when there is much of it: its older
/// generation, and the lock of the process that renames.
const MUCH_HISTORY: [&str; 4] = ["history.1", "history.lock", "store-history.1", "store-history.lock"];

/// Every path below. Numbers that rise are left out: that of the last token, and that of the record that rests.
fn paths(place: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left = vec![place.to_path_buf()];
    while let Some(path) = left.pop() {
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        if MUCH_HISTORY.contains(&file.as_str()) {
            continue;
        }
        let rises = ["token.", "end."].into_iter().find(|beginning| file.starts_with(beginning));
        let shown = rises.map_or(path.clone(), |beginning| path.with_file_name(format!("{beginning}N")));
        assert!(found.insert(shown.display().to_string()), "two of {}", shown.display());
        if path.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found
}

/// Returns the parts of the store: its files and directories, or the rows of its database and the pages that they fill.
fn makeup(sandbox: &Sandbox) -> BTreeSet<String> {
    match sandbox.kind() {
        Kind::Directory | Kind::Shared => return paths(&sandbox.store_path()),
        Kind::Etcd | Kind::Postgres | Kind::Ssh => return records(sandbox),
        Kind::Sqlite => {}
    }
    let database = rusqlite::Connection::open(sandbox.store_path()).unwrap();
    let mut rows = database.prepare("SELECT hex(name) FROM records_2").unwrap();
    let names = rows.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let mut found: BTreeSet<String> = names.map(|name| format!("row {}", name.unwrap())).collect();
    let number = |pragma| database.query_row(pragma, [], |row| row.get::<_, i64>(0)).unwrap();
    found.insert(format!("{} pages in use", number("PRAGMA page_count") - number("PRAGMA freelist_count")));
    found.extend(paths(&sandbox.path("")));
    found
}

fn records(sandbox: &Sandbox) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut add = |place: &str| assert!(found.insert(place.to_string()), "two of {place}");
    sandbox.open().scan(StoreCall::default(), &mut |place, stored| stored.map(|_| add(place))).unwrap();
    found
}

/// Makes the store what it is when it was used: with one lock that is held all the while, and two that came and went. (The
/// first that comes may rest where it is, the others may not.)
fn used(sandbox: &Sandbox) -> Job {
    let neighbour = sandbox.holder("neighbour");
    ["x", "y"].iter().for_each(|name| sandbox.csalock(["run", name, "true"]).run());
    neighbour
}

/// Returns the stored state of the permanently held lock without its lease, which may have been renewed meanwhile.
fn neighbour(sandbox: &Sandbox) -> Record {
    let mut record = sandbox.record("neighbour").unwrap();
    record.holders.iter_mut().for_each(|grant| grant.lifetime = Lifetime::WhileOwnerLives);
    record
}

fn acquire_and_release(sandbox: &Sandbox, name: impl Fn(usize) -> String) {
    let job = used(sandbox);
    let (before, held) = (makeup(sandbox), neighbour(sandbox));
    let locks = Locks::open(&sandbox.store()).unwrap();
    let mut last = HashMap::new();
    for round in 0..sandbox.many(ROUNDS) {
        let guard = locks.lock(&name(round), Duration::ZERO).unwrap().held().unwrap();
        let before = last.insert(name(round), guard.token()).unwrap_or(0);
        assert!(guard.token() > before, "round {round}: token {} after {before}", guard.token());
        guard.release().unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    drop(locks);
    assert_eq!(makeup(sandbox), before);
    assert_eq!(neighbour(sandbox), held);
    job.wait().exits(0);
}

/// Runs the program once, with these options before the name, and says which token the command was told.
fn token_of_run(sandbox: &Sandbox, options: &[&str], name: &str) -> u64 {
    let command = [name, "dash", "-c", "echo $CSALOCK_TOKEN"];
    let words = ["run"].into_iter().chain(options.iter().copied()).chain(command);
    sandbox.csalock(words).capture().line().parse().unwrap()
}

on_every_store! {
    fn ten_thousand_times_the_same_name(sandbox: &Sandbox) {
        acquire_and_release(sandbox, |_| "x".to_string());
    }

    fn ten_thousand_names_once_each(sandbox: &Sandbox) {
        acquire_and_release(sandbox, |round| format!("name {round}"));
    }

    fn a_hundred_names_a_hundred_times_each(sandbox: &Sandbox) {
        acquire_and_release(sandbox, |round| format!("name {}", round % 100));
    }

    fn three_hundred_runs(sandbox: &Sandbox) {
        let job = used(sandbox);
        let (before, held) = (makeup(sandbox), neighbour(sandbox));
        let mut last = HashMap::new();
        for round in 0..sandbox.many(RUNS) {
            let name = if round % 2 == 0 { "x".to_string() } else { format!("name {}", round % 50) };
            let options = [&[][..], &["-F"], &["--ttl", "1h"]][round % 3];
            let token = token_of_run(sandbox, options, &name);
            let earlier = last.insert(name, token).unwrap_or(0);
            assert!(token > earlier, "round {round}: token {token} after {earlier}");
            if options == ["-F"] {
                // The lock is not released: the next caller, or the sweeper, finds that its holder is dead.
                sandbox.csalock(["gc"]).capture();
            }
        }
        // A sweep lets another one rest.
        sandbox.csalock(["gc"]).run();
        ["x", "y"].iter().for_each(|name| sandbox.csalock(["run", name, "true"]).run());
        assert_eq!(makeup(sandbox), before);
        assert_eq!(neighbour(sandbox), held);
        job.wait().exits(0);
    }

    fn many_waiters_at_once_leave_the_store_as_it_was(sandbox: &Sandbox) {
        let job = used(sandbox);
        let (before, held) = (makeup(sandbox), neighbour(sandbox));
        let rounds = sandbox.many(RUNS) / SHELLS;
        let script = format!(
            "i=0; while [ $i -lt {rounds} ]; do i=$((i + 1)); \
             csalock run -w inf x dash -c 'echo $CSALOCK_TOKEN >> tokens' || exit 1; done"
        );
        let shells: Vec<Job> = (0..SHELLS).map(|_| sandbox.script("dash", &script).spawn()).collect();
        shells.into_iter().for_each(|shell| shell.wait().succeeds());
        let tokens: Vec<u64> = sandbox.read("files/tokens").lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(tokens.len(), rounds * SHELLS);
        assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
        std::fs::remove_file(sandbox.path("files/tokens")).unwrap();
        assert_eq!(makeup(sandbox), before);
        assert_eq!(neighbour(sandbox), held);
        job.wait().exits(0);
    }

    fn waiters_that_gave_up_and_waiters_that_were_killed(sandbox: &Sandbox) {
        let job = used(sandbox);
        let before = makeup(sandbox);
        for _ in 0..sandbox.many(20) {
            let holder = sandbox.holder("x");
            sandbox.csalock(["run", "-w", "5ms", "x", "true"]).capture().exits(75);
            let mut waiter = sandbox.csalock(["lock", "-w", "inf", "--pid", &holder.pid().to_string(), "x"]).spawn();
            wait_until("it waits", || sandbox.waiters("x").len() == 1);
            waiter.kill();
            holder.wait().exits(0);
        }
        assert_eq!(makeup(sandbox), before);
        job.wait().exits(0);
    }
}

#[test]
fn the_store_beside_a_file_is_removed_with_the_last_lock() {
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    sandbox.file("files/data", "");
    let before = paths(&sandbox.path(""));
    let mut last = 0;
    for round in 0..RUNS / 3 {
        let name = if round % 2 == 0 { "./data" } else { "./none yet" };
        let script = "echo $CSALOCK_TOKEN; test -d .csalock";
        let done = sandbox.csalock(["run", name, "dash", "-c", script]).without("CSALOCK_STORE").capture();
        let token: u64 = done.line().parse().unwrap();
        assert!(token > last, "round {round}: token {token} after {last}");
        last = token;
    }
    assert_eq!(paths(&sandbox.path("")), before);
}
