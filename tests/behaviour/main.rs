//! The behaviour of the program, seen from outside: arguments, input and environment in; stdout, stderr and exit code
//! out. Every behaviour is tested on every store.

#![allow(clippy::disallowed_methods, reason = "a test is a process of its own, with clocks and children")]
#![allow(clippy::unwrap_used, reason = "in a test that is how a failure shows")]
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a test that must be skipped says so")]

#[macro_use]
extern crate harness;

mod sandbox;

#[path = "../trace/checker/mod.rs"]
mod checker;

#[path = "../cutting/mod.rs"]
mod cutting;
#[path = "../etcd/mod.rs"]
mod etcd;
#[path = "../extent/mod.rs"]
mod extent;
#[path = "../postgres/mod.rs"]
mod postgres;
#[path = "../programs/mod.rs"]
mod programs;
#[path = "../ssh/mod.rs"]
mod ssh;
#[path = "../supervised/mod.rs"]
mod supervised;

/// Modules in which stores differ most. A quick run tries only these on PostgreSQL, which is most like etcd.
const ON_POSTGRES: [&str; 5] = ["claims", "hosts", "queue", "several", "values"];

/// The same for ssh, whose server keeps a directory.
const ON_SSH: [&str; 2] = ["hosts", "queue"];

/// Modules about words, terminals, shells, signals and rules, which hardly depend on the store. A quick run tries them in a
/// directory only.
const IN_A_DIRECTORY: [&str; 19] = [
    "answers",
    "by_descriptor",
    "command_line",
    "deadlock",
    "descriptors",
    "exit_codes",
    "history",
    "latest",
    "metrics",
    "overlaps",
    "modes",
    "names",
    "old_flock",
    "owner",
    "screen",
    "shells",
    "signals",
    "status",
    "terminal",
];

/// Modules whose tests wait or compute for long. Outside a directory a quick run tries half of them, by turns.
const BY_TURNS: [&str; 4] = ["lease", "lost_updates", "renewed", "untrusted"];

/// Tests that are not for ssh. Their callers would need a key, a program or an environment of their own, or the test
/// expects that no store comes to be, which only the host of the store can prevent.
const NOT_ON_SSH: [&str; 9] = [
    "a_cron_job_has_next_to_no_environment",
    "a_hundred_names_a_hundred_times_each",
    "other_users_of_a_store_write_to_it_as_well",
    "sudo_is_stepped_over",
    "ten_thousand_names_once_each",
    "ten_thousand_times_the_same_name",
    "the_dead_leave_no_witness_wherever_they_stood",
    "the_library_locks_the_same_file_as_the_command",
    "the_trial_of_doctor_leaves_nothing",
];

fn why_not(test: &harness::Test) -> Option<&'static str> {
    let modules: Vec<&str> = test.module.split("::").skip(1).collect();
    if let Some(storm) =
        host_storm::STORMS.iter().position(|name| test.module.ends_with("host_storm") && test.name == *name)
    {
        return (!extent::is_turn_of(storm, host_storm::STORMS.len())).then_some(extent::FOR_ALL);
    }
    let is_long =
        modules == ["originals"] || (modules == ["versions"] && versions::WITH_LAST_RELEASE.contains(&test.name));
    if is_long && extent::extent() == extent::Extent::Quick {
        return Some(extent::FOR_ALL);
    }
    let [first, .., kind] = modules[..] else { return None };
    if kind == "ssh" && (NOT_ON_SSH.contains(&test.name) || first == "library") {
        return Some("");
    }
    let turn = test.name.len() % 2;
    let is_left_out = match kind {
        "etcd" | "sqlite" | "shared" if BY_TURNS.contains(&first) && !extent::is_turn_of(turn, 2) => true,
        "etcd" | "sqlite" | "shared" => IN_A_DIRECTORY.contains(&first),
        "postgres" => !ON_POSTGRES.contains(&first),
        "ssh" => !ON_SSH.contains(&first),
        _ => false,
    };
    (is_left_out && extent::extent() == extent::Extent::Quick).then_some(extent::FOR_ALL)
}

fn main() -> std::process::ExitCode {
    harness::main_without(env!("CARGO_TARGET_TMPDIR"), why_not)
}

/// One test for each function and kind of store: `directory::NAME`, `sqlite::NAME`, `etcd::NAME`, ...
macro_rules! on_every_store {
    ($($tests:tt)*) => { tests_on! { [directory Directory] [sqlite Sqlite] [etcd Etcd] [postgres Postgres] [ssh Ssh] $($tests)* } };
}

/// Tests for stores that are files on this host.
macro_rules! on_every_store_of_files {
    ($($tests:tt)*) => { tests_on! { [file_directory Directory] [file_sqlite Sqlite] $($tests)* } };
}

/// Tests for stores that other hosts may share.
macro_rules! on_every_shared_store {
    ($($tests:tt)*) => { tests_on! { [shared Shared] [etcd Etcd] [postgres Postgres] [ssh Ssh] $($tests)* } };
}

/// Tests for stores of every kind, with shared and local directories.
macro_rules! on_every_kind_of_store {
    ($($tests:tt)*) => {
        tests_on! {
            [directory Directory] [sqlite Sqlite] [shared Shared] [etcd Etcd] [postgres Postgres] [ssh Ssh] $($tests)*
        }
    };
}

macro_rules! tests_on {
    ($([$module:ident $kind:ident])+ $($(#[$meta:meta])* fn $name:ident($sandbox:ident: &Sandbox) $body:block)*) => {
        $(fn $name($sandbox: &crate::sandbox::Sandbox) $body)*
        tests_on! { @ [$([$module $kind])+] { $([$(#[$meta])* $name])* } }
    };
    (@ [$([$module:ident $kind:ident])+] $tests:tt) => { $(tests_on! { @@ $module $kind $tests })+ };
    (@@ $module:ident $kind:ident { $([$(#[$meta:meta])* $name:ident])* }) => {
        mod $module {
            $($(#[$meta])* #[test] fn $name() {
                crate::sandbox::Sandbox::with(crate::sandbox::Kind::$kind, super::$name);
            })*
        }
    };
}

mod answers;
mod as_flock;
mod broken;
mod by_descriptor;
mod claims;
mod cleaners;
mod clocks;
mod command_line;
mod containers;
mod copies;
mod counts;
mod crowd;
mod csa;
mod deadlock;
mod descriptors;
mod doctor;
mod exchanges;
mod exit_codes;
mod gc;
mod help;
mod history;
mod host_storm;
mod hosts;
mod identity;
mod jobs;
mod keeper;
mod latest;
mod lease;
mod library;
mod lock;
mod locked_database;
mod lost;
mod lost_updates;
mod metrics;
mod modes;
mod names;
mod namespaces;
mod old_flock;
mod originals;
mod outages;
mod overlaps;
mod owner;
mod partitions;
mod postgres_outages;
mod power;
mod queue;
mod records;
mod reentrant;
mod referee;
mod renewed;
mod replace;
mod run;
mod screen;
mod screens;
mod servers;
mod several;
mod shells;
mod signals;
mod silent_servers;
mod silent_store;
mod ssh_outages;
mod sshfs;
mod start;
mod status;
mod store_as_it_was;
mod storm;
mod suite;
mod syscalls;
mod terminal;
mod tree;
mod unlock;
mod untrusted;
mod users;
mod values;
mod versions;
mod wait;
mod waits;
