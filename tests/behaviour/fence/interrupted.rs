//! A writer that is stopped, killed or refused at each of its system calls. It has token 5, and the file was written with
//! token 3 before.

use std::collections::HashMap;

use super::{names, sandbox, shown, write};
use crate::extent::{choose, is_complete, turn};
use crate::sandbox::{Sandbox, csalock, skip};
use crate::syscalls::tracer::{Fault, Made, Point, Traced, trace, trace_overtaken};
use crate::syscalls::{before_main, calls};

/// The command of the writer. Its file is long, so that a part of it would be seen.
const WRITER: [&str; 7] = ["fence", "--token", "5", "f", "--", "cat", "five"];

fn prepared() -> Sandbox {
    let sandbox = sandbox();
    assert_eq!(write(&sandbox, 3, &content(3)), Some(0));
    sandbox.file("files/five", content(5));
    sandbox
}

/// Returns what a writer with this token writes.
fn content(token: u64) -> String {
    format!("{token} ").repeat(30_000)
}

/// Returns the token of the content.
fn token_of(sandbox: &Sandbox) -> u64 {
    let text = sandbox.read("files/f");
    let token = text.split(' ').next().unwrap().parse().unwrap();
    assert!(text == content(token), "the file has a part of a content, {} bytes", text.len());
    token
}

/// Returns the calls of the writer, of csalock only, which are made after its start.
fn calls_of_the_writer() -> Vec<(usize, Made)> {
    let sandbox = prepared();
    let run = trace(sandbox.csalock(WRITER).into_command(), None);
    assert_eq!(run.status.code(), Some(0), "{run:?}");
    run.made[0].iter().cloned().enumerate().skip(before_main()).collect()
}

fn at(call: usize, made: &Made, fault: Fault) -> Point {
    Point { process: 0, call, number: made.number, fault }
}

/// Returns the points at which others see a difference, or a sample of them.
fn points(calls: &[(usize, Made)], most: usize, fault: Fault) -> Vec<Point> {
    let is_new =
        |(index, _): &(usize, &(usize, Made))| is_complete() || *index == 0 || calls::is_seen(&calls[*index - 1].1);
    let all: Vec<Point> =
        calls.iter().enumerate().filter(is_new).map(|(_, (call, made))| at(*call, made, fault)).collect();
    let every = all.len().div_ceil(most).max(1);
    let first = turn() % every;
    all.into_iter().skip(first).step_by(every).collect()
}

fn is_possible() -> bool {
    let is_possible = cfg!(target_arch = "x86_64");
    if !is_possible {
        skip("every system call", "only on x86-64 it is known how to make one fail");
    }
    is_possible
}

#[test]
fn a_writer_that_is_overtaken_at_any_call_is_fenced_off_or_was_first() {
    if !is_possible() {
        return;
    }
    for point in points(&calls_of_the_writer(), choose(20, 1000, 1000), Fault::Overtaken) {
        let sandbox = prepared();
        sandbox.file("files/six", content(6));
        let mut other = std::process::Command::new(csalock());
        other.args(["fence", "--token", "6", "f"]).env_clear().current_dir(sandbox.path("files"));
        other.stdin(std::fs::File::open(sandbox.path("files/six")).unwrap());
        let run = trace_overtaken(sandbox.csalock(WRITER).into_command(), point, move || {
            assert!(other.status().unwrap().success());
        });
        let why = format!("{} {}", crate::syscalls::shown(&point, &run), crate::syscalls::said(&run));
        // The number of calls differs a little from run to run.
        if run.met.is_none() {
            assert_eq!((token_of(&sandbox), run.status.code()), (5, Some(0)), "{why}");
            continue;
        }
        assert!(matches!(run.status.code(), Some(0 | 87)) && !run.hung, "{why}");
        assert_eq!((token_of(&sandbox), shown(&sandbox)), (6, "6".to_string()), "{why}");
        assert_eq!(names(&sandbox), [".csalock", "f", "five", "six"], "{why}");
    }
}

#[test]
fn a_writer_that_is_killed_at_any_call_has_written_all_or_nothing() {
    if !is_possible() {
        return;
    }
    let calls = calls_of_the_writer();
    for point in points(&calls, choose(20, 1000, 1000), Fault::Killed) {
        let sandbox = prepared();
        let run = trace(sandbox.csalock(WRITER).into_command(), Some(point));
        let why = format!("{} {}", crate::syscalls::shown(&point, &run), crate::syscalls::said(&run));
        check(&sandbox, &run, &why);
    }
}

#[test]
fn a_mark_is_on_disk_before_the_file_is_newer() {
    if !is_possible() {
        return;
    }
    let is_draft =
        |made: &Made| calls::name(made.number).starts_with("rename") && made.path.starts_with(".csalock-fence.");
    let is_pointer = |made: &Made| {
        calls::name(made.number).starts_with("rename")
            && ["cur.", "born."].iter().any(|stage| made.path.starts_with(stage))
    };
    // The writer is killed before it syncs its mark. The number of its calls differs a little from run to run.
    let killed = std::iter::repeat_with(|| {
        let calls = calls_of_the_writer();
        let committed = calls.iter().rposition(|(_, made)| is_pointer(made)).unwrap();
        let (call, made) = &calls[committed + 1];
        let sandbox = prepared();
        trace(sandbox.csalock(WRITER).into_command(), Some(at(*call, made, Fault::Killed)));
        let shown = sandbox.csalock(["fence", "--show", "f"]).capture().stdout;
        (token_of(&sandbox) == 3 && shown == "5\n").then_some(sandbox)
    });
    let sandbox = killed.take(20).find_map(|sandbox| sandbox).expect("a writer is killed after its commit");
    let next = trace(sandbox.csalock(["fence", "--token", "4", "f"]).into_command(), None);
    let made = &next.made[0];
    let published = made.iter().position(is_draft).unwrap();
    let written = made[..published].iter().rposition(is_pointer).unwrap();
    let syncs = made[written..published].iter().filter(|made| calls::name(made.number) == "fsync").count();
    assert!(syncs >= 2, "the directories of the mark and of its store are synced: {made:#?}");
    assert_eq!((next.status.code(), token_of(&sandbox)), (Some(87), 5));
}

#[test]
fn a_writer_whose_call_fails_says_what_it_has_written() {
    if !is_possible() {
        return;
    }
    let mut times: HashMap<String, usize> = HashMap::new();
    let mut all = Vec::new();
    for (call, made) in calls_of_the_writer() {
        let name = calls::name(made.number);
        // A resent rename does not find its source.
        let resent = name.starts_with("rename").then_some(Fault::Misreported(nix::errno::Errno::ENOENT));
        for fault in calls::faults(&made).into_iter().chain(resent) {
            let time = times.entry(format!("{name} {fault:?}")).or_default();
            *time += 1;
            if is_complete() || *time <= choose(4, 100, 100) {
                all.push(at(call, &made, fault));
            }
        }
    }
    let every = all.len().div_ceil(choose(60, 1000, 10_000)).max(1);
    for point in all.into_iter().skip(turn() % every).step_by(every) {
        let sandbox = prepared();
        let run = trace(sandbox.csalock(WRITER).into_command(), Some(point));
        let why = format!("{} {}", crate::syscalls::shown(&point, &run), crate::syscalls::said(&run));
        let written = check(&sandbox, &run, &why);
        match run.status.code() {
            Some(0) => assert!(written, "{why}"),
            // An error that says so may come after the write.
            Some(_) => assert!(!written || run.stderr.contains("look before you try again"), "{why}"),
            None => panic!("{why}"),
        }
    }
}

/// Checks the file after the end of the writer, and that the next writers get on. Returns true if it was written.
fn check(sandbox: &Sandbox, run: &Traced, why: &str) -> bool {
    assert!(!run.hung, "{why}");
    let json = sandbox.csalock(["fence", "--show", "--json", "f"]).capture().line();
    let newest: serde_json::Value = serde_json::from_str(&json).unwrap();
    let (token, complete) = (newest["token"].as_u64().unwrap(), newest["complete"].as_bool().unwrap());
    let found = token_of(sandbox);
    assert_eq!(found, if complete { token } else { 3 }, "{why} {json}");
    assert!(token == 5 || (token == 3 && complete), "{why} {json}");
    // A writer with the token before decides, and completes what is incomplete.
    let code = write(sandbox, 3, &content(3));
    assert_eq!((code, token_of(sandbox)), (Some(if token == 5 { 87 } else { 0 }), token), "{why}");
    assert_eq!((write(sandbox, 6, &content(6)), token_of(sandbox)), (Some(0), 6), "{why}");
    assert_eq!(write(sandbox, 5, &content(5)), Some(87), "{why}");
    assert_eq!((token_of(sandbox), shown(sandbox)), (6, "6".to_string()), "{why}");
    assert_eq!(names(sandbox), [".csalock", "f", "five"], "{why}");
    token == 5
}
