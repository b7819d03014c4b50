//! Several users and one store. A table here says which actions each of them may do in a store of each kind and mode.
//! The table of `SECURITY.md` names the tests of this folder, and `tests/docs` checks that it names each of them.
//!
//! The users are numbers, without entries in /etc/passwd: Anne and Bert, who share a group, Carl, who is in none, and
//! root. Only root can run these tests.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::sandbox::{Call, Job, Kind, Sandbox, has, has_namespaces, is_root, wait_until};

mod attacks;
mod etcd;
mod forged;
mod hidden;
mod left;
mod unwritable;

/// A user of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Person {
    Anne,
    Bert,
    Carl,
    Root,
}

use Person::{Anne, Bert, Carl, Root};

/// The group of Anne and Bert, and of neither the first.
const GROUP: u32 = 4200;

impl Person {
    const ALL: [Person; 4] = [Anne, Bert, Carl, Root];

    fn uid(self) -> u32 {
        match self {
            Anne => 4101,
            Bert => 4102,
            Carl => 4103,
            Root => 0,
        }
    }

    /// The words that run a program as this user. Its process becomes that program.
    fn words(self) -> Vec<String> {
        let uid = self.uid();
        let groups =
            if matches!(self, Anne | Bert) { format!("--groups={GROUP}") } else { "--clear-groups".to_string() };
        let words = format!("setpriv --reuid={uid} --regid={uid} {groups}");
        words.split(' ').map(str::to_string).collect()
    }

    /// `csalock` as this user on this store; with an empty store, beside the named files.
    fn csalock<'a>(self, sandbox: &'a Sandbox, store: &str, arguments: &[&str]) -> Call<'a> {
        let call = sandbox.csalock_by(&self.words(), arguments);
        if store.is_empty() { call.without("CSALOCK_STORE") } else { call.env("CSALOCK_STORE", store) }
    }

    fn code(self, sandbox: &Sandbox, store: &str, arguments: &[&str]) -> i32 {
        self.csalock(sandbox, store, arguments).capture().code.unwrap()
    }

    fn code_of(self, sandbox: &Sandbox, program: &[&str]) -> i32 {
        self.call(sandbox, program).capture().code.unwrap()
    }

    fn call<'a>(self, sandbox: &'a Sandbox, program: &[&str]) -> Call<'a> {
        let words = self.words();
        let words: Vec<&str> = words.iter().map(String::as_str).chain(program.iter().copied()).collect();
        sandbox.call(words[0], &words[1..])
    }

    fn holder(self, sandbox: &Sandbox, store: &str, name: &str) -> Job {
        let job = self.csalock(sandbox, store, &["run", "-w", "inf", name, "cat"]).spawn();
        wait_until("it is held", || self.code(sandbox, store, &["status", "-q", name]) == 0);
        job
    }
}

/// Makes a directory for all to see, with this owner, group and mode.
fn place(sandbox: &Sandbox, below: &str, (owner, group, mode): (u32, u32, u32)) -> PathBuf {
    let place = sandbox.path(below);
    std::fs::create_dir_all(&place).unwrap();
    chown(&place, Some(owner), Some(group)).unwrap();
    std::fs::set_permissions(&place, PermissionsExt::from_mode(mode)).unwrap();
    place
}

/// Makes an empty file with this owner, group and mode.
fn file(path: &Path, (owner, group, mode): (u32, u32, u32)) {
    std::fs::write(path, "").unwrap();
    chown(path, Some(owner), Some(group)).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// The actions of every user, while the first user of the store holds `held` and has created all other objects.
const DEEDS: [(&str, &[&str]); 11] = [
    ("see", &["status", "-q", "held"]),
    ("take", &["run", "-n", "free", "true"]),
    ("take what is held", &["run", "-n", "held", "true"]),
    ("release", &["unlock", "held"]),
    ("renew", &["renew", "--ttl", "1h", "held"]),
    ("read", &["get", "shown"]),
    ("write", &["put", "shown", "value"]),
    ("give up with another id", &["unclaim", "--id", "2", "claimed"]),
    ("give up", &["unclaim", "--id", "1", "claimed"]),
    ("break", &["unlock", "--force", "broken"]),
    ("collect garbage", &["gc"]),
];

/// May do everything that is not another owner's.
const ALL: [i32; 11] = [0, 0, 75, 82, 82, 0, 0, 82, 0, 0, 0];

/// The user may read. (The store has no garbage.)
const LOOK: [i32; 11] = [0, 77, 75, 82, 82, 0, 77, 82, 77, 77, 0];

/// May not even look.
const NONE: [i32; 11] = [77; 11];

#[track_caller]
fn deeds_are(sandbox: &Sandbox, store: &str, first: Person, wanted: [[i32; 11]; 4]) {
    let holder = first.holder(sandbox, store, "held");
    for (person, wanted) in Person::ALL.into_iter().zip(wanted) {
        for words in [
            &["put", "shown", "value"][..],
            &["lock", "-qn", "--forever", "broken"],
            &["claim", "-q", "--id", "1", "claimed"],
        ] {
            let done = first.csalock(sandbox, store, words).capture();
            // The last one may not have been allowed to take away what is there.
            assert!(matches!(done.code, Some(0 | 75 | 84)), "{words:?} {done:?}");
        }
        for ((what, words), wanted) in DEEDS.iter().zip(wanted) {
            let done = person.csalock(sandbox, store, words).capture();
            assert_eq!(done.code, Some(wanted), "{person:?}: {what} in {store}: {done:?}");
        }
    }
    // No file is left that is closed to the first user.
    for words in [&["run", "-n", "free", "true"][..], &["put", "shown", "other"], &["del", "shown"], &["gc"]] {
        first.csalock(sandbox, store, words).capture().exits(0);
    }
    holder.wait().exits(0);
}

/// A directory store with this owner, group and mode.
#[track_caller]
fn directory_of_mode(attributes: (u32, u32, u32), first: Person, wanted: [[i32; 11]; 4]) {
    require!(is_root("users") && has("setpriv"));
    let sandbox = Sandbox::new(Kind::Directory);
    place(&sandbox, "shared", attributes);
    deeds_are(&sandbox, &sandbox.store_at("shared"), first, wanted);
}

#[test]
fn a_private_store_is_its_owners_and_roots() {
    directory_of_mode((4101, 4101, 0o700), Anne, [ALL, NONE, NONE, ALL]);
}

#[test]
fn a_store_that_others_may_read_can_be_looked_at() {
    directory_of_mode((4101, 4101, 0o755), Anne, [ALL, LOOK, LOOK, ALL]);
}

#[test]
fn roots_own_store_can_be_looked_at() {
    directory_of_mode((0, 0, 0o755), Root, [LOOK, LOOK, LOOK, ALL]);
}

#[test]
fn a_groups_store_is_its_members() {
    directory_of_mode((0, GROUP, 0o2770), Anne, [ALL, ALL, NONE, ALL]);
    // Files of members belong to the group.
    directory_of_mode((0, GROUP, 0o770), Anne, [ALL, ALL, NONE, ALL]);
    directory_of_mode((4102, GROUP, 0o2775), Anne, [ALL, ALL, LOOK, ALL]);
}

#[test]
fn a_store_with_the_sticky_bit_works_like_other_stores() {
    directory_of_mode((0, GROUP, 0o3770), Anne, [ALL, ALL, NONE, ALL]);
    directory_of_mode((0, 0, 0o1777), Anne, [ALL, ALL, ALL, ALL]);
}

#[test]
fn a_store_in_which_every_user_may_remove_every_file_is_refused() {
    require!(is_root("users") && has("setpriv"));
    for kind in [Kind::Directory, Kind::Sqlite] {
        let sandbox = Sandbox::new(kind);
        place(&sandbox, "shared", (0, 0, 0o777));
        place(&sandbox, "shared/empty", (4101, 4101, 0o755));
        let store = sandbox.store_at(if kind == Kind::Sqlite { "shared/store" } else { "shared" });
        for person in Person::ALL {
            for (what, words) in DEEDS {
                assert_eq!(person.code(&sandbox, &store, words), 77, "{person:?}: {what}");
            }
            assert_eq!(person.code(&sandbox, "", &["run", sandbox.path("shared/file").to_str().unwrap(), "true"]), 77);
        }
    }
}

#[test]
fn the_locks_beside_a_file_belong_to_users_who_may_write_in_its_directory() {
    require!(is_root("users") && has("setpriv"));
    let modes = [(4101, 4101, 0o755), (0, GROUP, 0o2775), (0, GROUP, 0o775), (0, GROUP, 0o3775), (0, 0, 0o1777)];
    for (attributes, may) in modes.into_iter().zip([
        &[Anne, Root][..],
        &[Anne, Bert, Root],
        &[Anne, Bert, Root],
        &[Anne, Bert, Root],
        &Person::ALL,
    ]) {
        let sandbox = Sandbox::new(Kind::Directory);
        let file = place(&sandbox, "shared", attributes).join("file");
        let (file, other) = (file.to_str().unwrap(), format!("{}-other", file.display()));
        for first in may {
            let holder = first.holder(&sandbox, "", file);
            for person in Person::ALL {
                let (taken, held) = if may.contains(&person) { (0, 75) } else { (77, 75) };
                let codes = [&other, file].map(|name| person.code(&sandbox, "", &["run", "-n", name, "true"]));
                assert_eq!(codes, [taken, held], "{attributes:?} {first:?} {person:?}");
                assert_eq!(person.code(&sandbox, "", &["status", "-q", file]), 0);
            }
            holder.wait();
        }
    }
}

#[test]
fn a_database_belongs_to_users_who_may_write_the_file_and_its_directory() {
    require!(is_root("users") && has("setpriv"));
    let alone = [ALL, NONE, NONE, ALL];
    let group = [ALL, ALL, NONE, ALL];
    let modes = [
        ((4101, 4101, 0o700), (4101, 4101, 0o644), alone),
        ((4101, 4101, 0o755), (4101, 4101, 0o600), alone),
        ((4101, 4101, 0o755), (4101, 4101, 0o644), [ALL, LOOK, LOOK, ALL]),
        // A log that Anne makes has her own group.
        ((4101, GROUP, 0o750), (4101, GROUP, 0o640), [ALL, LOOK, NONE, ALL]),
        ((0, GROUP, 0o2770), (4101, GROUP, 0o660), group),
        ((0, GROUP, 0o2775), (4101, GROUP, 0o664), [ALL, ALL, LOOK, ALL]),
        ((0, 0, 0o1777), (4101, 4101, 0o666), [ALL, ALL, ALL, ALL]),
    ];
    for (directory, attributes, wanted) in modes {
        let sandbox = Sandbox::new(Kind::Sqlite);
        file(&place(&sandbox, "shared", directory).join("store"), attributes);
        deeds_are(&sandbox, &sandbox.store_at("shared/store"), Anne, wanted);
    }
}

#[test]
fn a_user_who_may_only_read_a_database_looks_at_it_with_and_without_its_log() {
    require!(is_root("users") && has("setpriv"));
    let sandbox = Sandbox::new(Kind::Sqlite);
    let file = place(&sandbox, "shared", (4101, 4101, 0o755)).join("store");
    let log = file.with_file_name("store-wal");
    let store = sandbox.store_at("shared/store");
    assert_eq!(Anne.code(&sandbox, &store, &["run", "y", "csalock", "lock", "-q", "--forever", "x"]), 0);
    let seen = || [Bert, Carl].map(|person| person.code(&sandbox, &store, &["status", "-q", "x"]));
    assert!(log.exists());
    assert_eq!(seen(), [0, 0]);
    // Another program that closes the database as the last one removes the log.
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection.query_row("SELECT count(*) FROM records_2", [], |_| Ok(())).unwrap();
    drop(connection);
    assert!(!log.exists());
    assert_eq!(seen(), [0, 0]);
    assert_eq!(Carl.code(&sandbox, &store, &["run", "-n", "y", "true"]), 77);
    assert!(!log.exists());
    // A log that is not for the users of the database is named.
    assert_eq!(Anne.code(&sandbox, &store, &["run", "-n", "y", "true"]), 0);
    std::fs::set_permissions(&log, PermissionsExt::from_mode(0o600)).unwrap();
    Carl.csalock(&sandbox, &store, &["status", "x"]).capture().says(77, "store-wal");
}

#[test]
fn a_user_who_may_only_read_a_database_makes_no_log_for_it() {
    require!(is_root("users") && has("setpriv"));
    for words in [&["status", "x"][..], &["run", "-w", "10ms", "x", "true"], &["history"], &["gc"], &["doctor"]] {
        let sandbox = Sandbox::new(Kind::Sqlite);
        let database = place(&sandbox, "shared", (0, GROUP, 0o2770)).join("store");
        file(&database, (4101, GROUP, 0o644));
        let store = sandbox.store_at("shared/store");
        // Bert may write the directory, so he could create a log that Anne may not write. The database never has one.
        let holder = Anne.csalock(&sandbox, &store, &["run", "x", "sh", "-c", "echo held; cat"]).ready();
        let [log, index] = ["store-wal", "store-shm"].map(|name| database.with_file_name(name));
        let done = Bert.csalock(&sandbox, &store, words).capture();
        assert!(!log.exists() && !index.exists(), "{done:?}");
        holder.wait().succeeds();
        let done = Bert.csalock(&sandbox, &store, words).capture();
        assert!(!log.exists() && !index.exists(), "{done:?}");
        assert_eq!(Anne.code(&sandbox, &store, &["run", "-n", "x", "true"]), 0);
    }
}

#[test]
fn a_value_is_read_by_the_users_that_its_mode_allows() {
    require!(is_root("users") && has("setpriv"));
    let sandbox = Sandbox::new(Kind::Directory);
    place(&sandbox, "shared", (0, GROUP, 0o2775));
    let store = sandbox.store_at("shared");
    for (mode, wanted) in [("600", [0, 77, 77, 0]), ("640", [0, 0, 77, 0]), ("644", [0, 0, 0, 0])] {
        assert_eq!(Anne.code(&sandbox, &store, &["put", "--mode", mode, "x", "secret"]), 0);
        assert_eq!(Person::ALL.map(|person| person.code(&sandbox, &store, &["get", "-q", "x"])), wanted, "{mode}");
        for person in Person::ALL {
            let done = person.csalock(&sandbox, &store, &["status", "--json", "x"]).capture();
            assert!(done.code == Some(81) && !done.stdout.contains("secret"), "{done:?}");
        }
    }
    // A user with write permission in the store may replace it, but not read it.
    assert_eq!(Anne.code(&sandbox, &store, &["put", "--mode", "600", "x", "secret"]), 0);
    assert_eq!(Bert.code(&sandbox, &store, &["put", "--mode", "600", "x", "mine"]), 0);
    assert_eq!(Person::ALL.map(|person| person.code(&sandbox, &store, &["get", "-q", "x"])), [77, 0, 77, 0]);
}

#[test]
fn waiters_of_all_users_are_granted_in_order() {
    require!(is_root("users") && has("setpriv"));
    for kind in [Kind::Directory, Kind::Sqlite] {
        let sandbox = Sandbox::new(kind);
        place(&sandbox, "shared", (0, 0, 0o1777));
        let store = sandbox.store_at("shared/store");
        if kind == Kind::Directory {
            place(&sandbox, "shared/store", (0, 0, 0o1777));
        } else {
            file(&sandbox.path("shared/store"), (0, 0, 0o666));
        }
        let mut holder = Carl.holder(&sandbox, &store, "x");
        let order = place(&sandbox, "order", (0, 0, 0o777)).join("order");
        file(&order, (0, 0, 0o666));
        let waiting = || {
            let done = Root.csalock(&sandbox, &store, &["status", "--json", "x"]).capture();
            serde_json::from_str::<serde_json::Value>(&done.stdout).unwrap()[0]["waiters"].as_array().unwrap().len()
        };
        let mut jobs = Vec::new();
        // With a second between polls each waiter would poll by itself; the time shows that they are woken.
        for person in [Bert, Root, Anne, Carl] {
            let script = format!("echo {person:?} >> {}", order.display());
            jobs.push(person.csalock(&sandbox, &store, &["run", "-w", "inf", "x", "-c", &script]).spawn());
            wait_until("it waits", || waiting() == jobs.len());
        }
        holder.release();
        jobs.into_iter().for_each(|job| assert_eq!(job.wait().code, Some(0)));
        assert_eq!(std::fs::read_to_string(&order).unwrap(), "Bert\nRoot\nAnne\nCarl\n");
    }
}

#[test]
fn a_lock_of_a_dead_user_is_taken_over_by_the_next() {
    require!(is_root("users") && has("setpriv"));
    for kind in [Kind::Directory, Kind::Sqlite] {
        let sandbox = Sandbox::new(kind);
        let place = place(&sandbox, "shared", (0, GROUP, 0o2770));
        let store = sandbox.store_at(if kind == Kind::Directory { "shared" } else { "shared/store" });
        if kind == Kind::Sqlite {
            file(&place.join("store"), (0, GROUP, 0o660));
        }
        for (first, second) in [(Anne, Bert), (Bert, Root), (Root, Anne)] {
            let mut holder = first.csalock(&sandbox, &store, &["run", "-F", "x", "sleep", "1000"]).spawn();
            wait_until("it is held", || first.code(&sandbox, &store, &["status", "-q", "x"]) == 0);
            assert_eq!(second.code(&sandbox, &store, &["run", "-n", "x", "true"]), 75);
            let waiter = second.csalock(&sandbox, &store, &["run", "-w", "inf", "x", "echo", "mine"]).spawn();
            holder.kill();
            waiter.wait().prints(0, "mine\n");
        }
    }
}

#[test]
fn all_users_share_one_history() {
    require!(is_root("users") && has("setpriv"));
    let sandbox = Sandbox::new(Kind::Directory);
    place(&sandbox, "shared", (0, GROUP, 0o2775));
    let store = sandbox.store_at("shared");
    for person in [Bert, Anne, Root, Bert] {
        assert_eq!(person.code(&sandbox, &store, &["run", "x", "true"]), 0);
    }
    for person in [Anne, Bert, Root] {
        let done = person.csalock(&sandbox, &store, &["history", "--json"]).capture();
        let past: Vec<serde_json::Value> = serde_json::from_str(&done.line()).unwrap();
        let users: Vec<_> = past.iter().map(|past| past["user"].as_str().unwrap()).collect();
        assert_eq!(users, ["4102", "4101", "root", "4102"], "{person:?}");
    }
}

#[test]
fn a_user_who_may_only_look_sees_no_history() {
    require!(is_root("users") && has("setpriv"));
    for (kind, of_store, of_history) in [
        (Kind::Directory, (0, 0, 0o755), 0o600),
        (Kind::Directory, (4101, 4101, 0o755), 0o600),
        (Kind::Directory, (0, GROUP, 0o2775), 0o660),
        (Kind::Sqlite, (0, 0, 0o755), 0o600),
    ] {
        let sandbox = Sandbox::new(kind);
        place(&sandbox, "shared", of_store);
        let below = if kind == Kind::Sqlite { "shared/store" } else { "shared" };
        let history = sandbox.path(if kind == Kind::Sqlite { "shared/store-history" } else { "shared/.work/history" });
        let store = sandbox.store_at(below);
        Root.csalock(&sandbox, &store, &["run", "x", "true"]).run();
        let mode = || std::fs::metadata(&history).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), of_history, "{kind:?} {of_store:?}");
        let hint = "only users who may write the store may read its history: ask one of them";
        let said = format!("csalock: cannot read the history {}: Permission denied; {hint}\n", history.display());
        let done = Carl.csalock(&sandbox, &store, &["history"]).capture();
        assert_eq!((done.code, &done.stdout, &done.stderr), (Some(77), &String::new(), &said));
        // A monitor gets all that does not need the history.
        let done = Carl.csalock(&sandbox, &store, &["metrics", "x"]).capture();
        assert_eq!((done.code, &done.stderr), (Some(0), &said));
        assert!(done.stdout.contains("csalock_up{") && done.stdout.contains("csalock_holders{"), "{done:?}");
        assert!(!done.stdout.contains("_ending") && !done.stdout.contains("last_run"), "{done:?}");
        assert_eq!(Carl.csalock(&sandbox, &store, &["metrics", "-q", "x"]).capture().stderr, "");
        // The history of an older csalock, which all users could read, is closed by the next line.
        std::fs::set_permissions(&history, PermissionsExt::from_mode(of_history | 0o044)).unwrap();
        assert_eq!(Carl.code(&sandbox, &store, &["history"]), 0);
        Root.csalock(&sandbox, &store, &["run", "x", "true"]).run();
        assert_eq!(mode(), of_history, "{kind:?} {of_store:?}");
    }
}

#[test]
fn a_caller_that_may_not_end_the_holder_leaves_no_trace_in_the_history() {
    require!(is_root("another user") && has("setpriv"));
    let sandbox = Sandbox::new(Kind::Directory);
    let store = sandbox.store_at("shared/store");
    place(&sandbox, "shared", (0, 0, 0o1777));
    place(&sandbox, "shared/store", (0, 0, 0o1777));
    let holder = Root.csalock(&sandbox, &store, &["run", "x", "dash", "-c", "echo; cat; :"]).ready();
    assert_eq!(Anne.code(&sandbox, &store, &["unlock", "--force", "--end", "x"]), 77);
    holder.wait().exits(0);
    let past = Root.csalock(&sandbox, &store, &["history", "--json"]).capture().stdout;
    assert!(past.contains("\"ended\":\"released\"") && past.contains("\"ended_by\":null"), "{past}");
}

/// As su(1) and sudo(8) keep it.
#[test]
fn the_home_of_another_user_is_named_as_the_cause() {
    require!(is_root("another user") && has("setpriv"));
    let sandbox = Sandbox::new(Kind::Directory);
    let home = sandbox.path("home");
    std::fs::create_dir_all(home.join(".local/state/csalock")).unwrap();
    std::fs::set_permissions(home.join(".local"), std::fs::Permissions::from_mode(0o700)).unwrap();
    let call = || Anne.csalock(&sandbox, "", &["run", "x", "true"]).without("XDG_STATE_HOME");
    let told = |doing| {
        format!(
            "csalock: cannot {doing} the store SANDBOX/home/.local/state/csalock: Permission denied; SANDBOX/home belongs to another \
             user: set HOME if it is not the home of this one (su -, sudo -H), or name another store with --store or CSALOCK_STORE\n"
        )
    };
    call().status(77).stderr(told("open")).run();
    std::fs::remove_dir_all(home.join(".local")).unwrap();
    call().status(77).stderr(told("create")).run();
    chown(&home, Some(Anne.uid()), None).unwrap();
    call().run();
}

#[test]
fn a_store_below_xdg_state_home_is_told_to_users_whose_cron_has_another() {
    require!(is_root("another user") && has("setpriv"));
    let sandbox = Sandbox::new(Kind::Directory);
    for directory in ["home", "state"] {
        chown(sandbox.path(directory), Some(Anne.uid()), None).unwrap();
    }
    let call = |words: &[&str]| Anne.csalock(&sandbox, "", words);
    let created = "csalock: created the store dir:SANDBOX/state/csalock, where XDG_STATE_HOME says; \
                   cron may not have this variable, so set CSALOCK_STORE in both\n";
    for words in
        [&["run", "x", "true"][..], &["lock", "--forever", "x"], &["put", "x", "1"], &["claim", "--id", "i", "x"]]
    {
        let printed = if words[0] == "claim" { "i\n" } else { "" };
        call(words).stdout(printed).stderr(created).run();
        call(&["run", "other", "true"]).run();
        std::fs::remove_dir_all(sandbox.path("state/csalock")).unwrap();
    }
    call(&["run", "-q", "x", "true"]).run();
    let others = "; see `csalock status --all-stores` for others, and `csalock status DIRECTORY/` for files\n";
    let past = "csalock: no lock is held in dir:SANDBOX/state/csalock; `csalock history` shows past holders";
    let empty = format!("{past}{others}");
    call(&["status"]).stderr(empty).run();
    call(&["run", "x", "true"]).without("XDG_STATE_HOME").run();
    let two = format!(
        "{past}; without XDG_STATE_HOME, as in cron, the store is \
         dir:SANDBOX/home/.local/state/csalock, so set CSALOCK_STORE in both{others}"
    );
    call(&["status"]).stderr(two).run();
    call(&["status", "--json"]).stdout("[]\n").run();
}

#[test]
fn root_of_a_user_namespace_has_the_store_of_its_user() {
    require!(is_root("another user") && has("setpriv") && has_namespaces("users"));
    let sandbox = Sandbox::new(Kind::Directory);
    chown(sandbox.path("home"), Some(Anne.uid()), None).unwrap();
    let inside = |words: &[&str]| {
        let words = [&["unshare", "-Ur", "csalock"], words].concat();
        Anne.call(&sandbox, &words).without("CSALOCK_STORE").without("XDG_STATE_HOME")
    };
    inside(&["run", "x", "id", "-u"]).stdout("0\n").run();
    let store = sandbox.path("home/.local/state/csalock");
    assert_eq!(std::fs::metadata(&store).unwrap().permissions().mode() & 0o777, 0o700);
    let holder = Anne.csalock(&sandbox, "", &["run", "x", "sh", "-c", "echo; cat"]).without("XDG_STATE_HOME").ready();
    inside(&["run", "-nq", "x", "true"]).status(75).run();
    inside(&["status", "-1"]).stdout("x\n").run();
    holder.wait().exits(0);
    inside(&["run", "-n", "x", "true"]).run();
}
