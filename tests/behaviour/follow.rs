//! `csalock history --follow`: each ending once, when it happens.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::etcd::{Cluster, Setup};
use crate::sandbox::{CLOCK, Job, Kind, Sandbox, wait_until};

/// A follower that has read the history of its start.
fn follower(sandbox: &Sandbox, words: &[&str]) -> Job {
    sandbox.csalock(["history", "--follow"].iter().chain(words)).ready()
}

/// A follower that prints JSON, and has printed the ending of the lock `first`.
fn json_follower(sandbox: &Sandbox, words: &[&str]) -> Job {
    let mut job = sandbox.csalock(["history", "--json", "--follow"].iter().chain(words)).spawn();
    wait_until("it prints", || {
        sandbox.csalock(["run", "first", "true"]).run();
        !job.printed().is_empty() || job.has_ended()
    });
    job
}

fn names(text: &str) -> Vec<String> {
    let name = |line: &str| serde_json::from_str::<Value>(line).unwrap()["name"].as_str().unwrap().to_string();
    text.lines().map(name).filter(|name| name != "first").collect()
}

fn kept(sandbox: &Sandbox) -> Vec<String> {
    let text = sandbox.csalock(["history", "--json"]).capture().line();
    serde_json::from_str::<Vec<Value>>(&text).unwrap().iter().map(Value::to_string).collect()
}

#[track_caller]
fn prints_what_is_kept(sandbox: &Sandbox, job: &Job) {
    let (kept, mut printed) = (kept(sandbox), Vec::new());
    wait_until("all is printed", || {
        let whole = |line: &str| serde_json::from_str::<Value>(line).ok().map(|value| value.to_string());
        printed = job.printed().lines().filter_map(whole).collect::<Vec<_>>();
        printed.len() >= kept.len()
    });
    let sorted = |mut lines: Vec<String>| {
        lines.sort();
        lines
    };
    assert_eq!(sorted(printed), sorted(kept));
}

const HEADER: &str = "NAME                  FROM                  HELD     WAITED   END       HOLDER";

on_every_kind_of_store! {
    fn a_row_follows_each_ending(sandbox: &Sandbox) {
        sandbox.csalock(["run", "earlier", "true"]).run();
        let mut job = follower(sandbox, &["--utc"]);
        for name in ["x", "a-name-longer-than-its-column"] {
            sandbox.csalock(["lock", "--forever", "--label", "why", name]).env(CLOCK, "-10h").run();
            sandbox.csalock(["unlock", name]).run();
        }
        let _holder = sandbox.holder("held");
        let breaker = sandbox.script("dash", "csalock lock --forever y; csalock unlock --force y > /dev/null").capture();
        assert_eq!(breaker.code, Some(0), "{breaker:?}");
        let lines = job.lines(4);
        let mut wanted = vec![HEADER.to_string()];
        for past in &kept(sandbox)[1..] {
            let past: Value = serde_json::from_str(past).unwrap();
            let word = |key: &str| past[key].as_str().unwrap_or_default().to_string();
            let from = word("from")[.."0000-00-00T00:00:00".len()].to_string() + "Z";
            let label = if past["label"].is_null() { String::new() } else { format!(" [{}]", word("label")) };
            let holder = format!("{} {}{label} {}", past["pid"], word("user"), word("command"));
            match word("ended").as_str() {
                "" => {}
                ended => {
                    // The lock that is broken had no time.
                    let held = if ended == "released" { "10h" } else { lines[3].split_whitespace().nth(2).unwrap() };
                    wanted.push(format!("{:<20}  {from}  {held:<7}  {:<7}  {ended:<8}  {holder}", word("name"), "-"));
                    if ended == "broken" {
                        let by = &past["broken_by"];
                        let by = [&by["pid"].to_string(), by["user"].as_str().unwrap(), by["command"].as_str().unwrap()];
                        wanted.push(format!("{:72}broken by {}", "", by.join(" ")));
                    }
                }
            }
        }
        wait_until("the last row", || job.printed().lines().count() >= wanted.len());
        assert_eq!(job.printed().lines().collect::<Vec<_>>(), wanted);
        job.send(Signal::SIGTERM);
        let done = job.wait();
        assert_eq!((done.signal, done.stderr.as_str()), (Some(Signal::SIGTERM as i32), ""));
    }

    fn each_line_is_a_document_of_history(sandbox: &Sandbox) {
        let job = json_follower(sandbox, &["-n", "100"]);
        sandbox.csalock(["run", "--label", "a label", "x", "true"]).run();
        prints_what_is_kept(sandbox, &job);
        let last = job.printed().lines().last().unwrap().to_string();
        let wanted = "{\"name\":\"x\",\"pid\":PID,\"host\":\"HOST\",\"user\":\"USER\",\"command\":\"true\",\
             \"label\":\"a label\",\"mode\":\"exclusive\",\"slot\":null,\"token\":TOKEN,\"from\":\"TIME\",\"to\":\"TIME\",\
             \"waited\":0.0,\"ended\":\"released\",\"exit_code\":0,\"signal\":null,\"ran\":RAN,\"broken_by\":null,\"ended_by\":null}";
        assert_eq!(sandbox.plain(&last), wanted);
    }

    fn it_begins_with_the_last_lines_or_those_since_a_time(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "--forever", "old"]).env(CLOCK, "-3h").run();
        sandbox.csalock(["unlock", "old"]).env(CLOCK, "-2h").run();
        for name in ["one", "two", "three"] {
            sandbox.csalock(["run", name, "true"]).run();
        }
        for (words, wanted) in [
            (&["-n", "2"][..], "two three"),
            (&["-n", "100"], "old one two three"),
            (&["--since", "1h"], "one two three"),
            (&["--since", "1h", "-n", "1"], "three"),
            (&["--since", "1h", "t*", "old"], "two three"),
        ] {
            let mut job = sandbox.csalock(["history", "--follow", "--json"].iter().chain(words)).spawn();
            job.lines(wanted.split(' ').count());
            assert_eq!(names(&job.printed()).join(" "), wanted, "{words:?}");
            break_off(job);
        }
    }

    fn names_and_patterns_select_later_locks(sandbox: &Sandbox) {
        let mut job = follower(sandbox, &["x", "t*"]);
        for name in ["y", "x", "one", "two", "t*"] {
            sandbox.csalock(["run", name, "true"]).run();
        }
        let lines = job.lines(4);
        let shown: Vec<&str> = lines.iter().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(shown, ["NAME", "x", "two", "t*"]);
    }

    fn it_waits_for_a_store_that_does_not_exist_yet(sandbox: &Sandbox) {
        let mut job = follower(sandbox, &[]);
        assert!(!sandbox.store_exists());
        assert!(sandbox.history_paths().iter().all(|path| !path.exists()));
        sandbox.csalock(["run", "x", "true"]).run();
        assert!(job.lines(2)[1].starts_with("x  "));
    }

    fn eight_at_once_are_printed_once_each(sandbox: &Sandbox) {
        let job = json_follower(sandbox, &["-n", "100"]);
        let times = sandbox.many(25);
        let script = format!("i=0; while [ $i -lt {times} ]; do i=$((i + 1)); csalock run -w inf $0 true || exit; done");
        let shell = |number: usize| sandbox.call("dash", ["-c", &script, &format!("lock-{}", number % 5)]).spawn();
        let shells: Vec<_> = (0..8).map(shell).collect();
        shells.into_iter().for_each(|shell| assert_eq!(shell.wait().code, Some(0)));
        prints_what_is_kept(sandbox, &job);
    }

    fn it_ends_with_its_reader(sandbox: &Sandbox) {
        require!(crate::sandbox::has("bash"));
        let script = "csalock history --follow | head -n 2; echo ${PIPESTATUS[0]}";
        let job = sandbox.script("bash", script).spawn();
        wait_until("a row comes", || {
            sandbox.csalock(["run", "x", "true"]).run();
            job.printed().contains("\nx ")
        });
        // No other ending is needed for the follower to notice.
        let done = job.wait();
        assert_eq!((done.code, done.stdout.lines().last(), done.stderr.as_str()), (Some(0), Some("141"), ""));
    }

    fn signals_end_it(sandbox: &Sandbox) {
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            let job = follower(sandbox, &[]);
            job.send(signal);
            let done = job.wait();
            assert_eq!((done.signal, done.stdout, done.stderr.as_str()), (Some(signal as i32), local_header(), ""));
        }
    }

    fn it_changes_nothing(sandbox: &Sandbox) {
        sandbox.csalock(["run", "x", "true"]).run();
        let _holder = sandbox.holder("y");
        let stored = sandbox.stored();
        let mut job = follower(sandbox, &["-n", "5"]);
        job.lines(2);
        break_off(job);
        assert_eq!(sandbox.stored(), stored);
    }

    fn an_end_in_the_past_cannot_be_followed(sandbox: &Sandbox) {
        for option in ["--until", "--at"] {
            sandbox.csalock(["history", "--follow", option, "12h"]).capture().prints(64, "");
        }
        let closed = "csalock: stdout is closed, so each ending would be lost; open it, for example to a file: >> FILE\n";
        sandbox.script("dash", "csalock history -f >&-").status(74).stderr(closed).run();
    }
}

on_every_store_of_files! {
    fn a_rotation_hides_no_ending_and_repeats_none(sandbox: &Sandbox) {
        let mut job = follower(sandbox, &["x"]);
        for number in 1..=60 {
            sandbox.csalock(["run", "x", "true"]).env("CSALOCK_HISTORY_SIZE", "4K").run();
            job.lines(1 + number);
        }
        assert!(sandbox.history_paths()[1].exists() && kept(sandbox).len() < 60);
        assert_eq!(job.lines(61).len(), 61);
    }

    fn a_history_that_is_written_anew_is_not_printed_again(sandbox: &Sandbox) {
        let mut job = follower(sandbox, &[]);
        let [place, _] = sandbox.history_paths();
        for name in ["x", "y"] {
            sandbox.csalock(["run", name, "true"]).run();
        }
        job.lines(3);
        let text = fs::read(&place).unwrap();
        fs::remove_file(&place).unwrap();
        fs::write(&place, &text).unwrap();
        sandbox.csalock(["run", "last", "true"]).run();
        let shown: Vec<String> = job.lines(4).iter().map(|line| line.split(' ').next().unwrap().to_string()).collect();
        assert_eq!(shown, ["NAME", "x", "y", "last"]);
    }

    fn a_line_that_cannot_be_read_is_passed_by(sandbox: &Sandbox) {
        let mut job = follower(sandbox, &[]);
        sandbox.csalock(["run", "x", "true"]).run();
        let [place, _] = sandbox.history_paths();
        let line = fs::read(&place).unwrap();
        fs::write(&place, [&line[..], b"\0\0\0\xff\n", &line[..40]].concat()).unwrap();
        sandbox.csalock(["run", "y", "true"]).run();
        let shown: Vec<String> = job.lines(3).iter().map(|line| line.split(' ').next().unwrap().to_string()).collect();
        assert_eq!(shown, ["NAME", "x", "y"]);
    }
}

fn local_header() -> String {
    HEADER.replace("FROM                ", "FROM                     ") + "\n"
}

fn break_off(mut job: Job) {
    job.kill();
}

#[test]
fn a_follower_survives_a_restart_and_a_compaction_of_etcd() {
    let Some(cluster) = Cluster::start(Setup::default()) else { return };
    let sandbox = Sandbox::at(&cluster);
    let mut job = follower(&sandbox, &[]);
    sandbox.csalock(["run", "x", "true"]).run();
    job.lines(2);
    cluster.kill(0);
    wait_until("the outage is reported", || !job.said().is_empty());
    assert!(!job.has_ended());
    cluster.restart(0);
    sandbox.csalock(["run", "y", "true"]).run();
    job.lines(3);
    // Other keys of the cluster change much more often.
    for number in 0..5 {
        cluster.ctl(&["put", "other", &number.to_string()]);
    }
    let status: Value = serde_json::from_str(&cluster.ctl(&["endpoint", "status", "-w", "json"])).unwrap();
    cluster.ctl(&["compact", &status[0]["Status"]["header"]["revision"].to_string()]);
    sandbox.csalock(["run", "z", "true"]).run();
    let shown: Vec<String> = job.lines(4).iter().map(|line| line.split(' ').next().unwrap().to_string()).collect();
    assert_eq!(shown, ["NAME", "x", "y", "z"]);
    assert_eq!(job.said().lines().count(), 1, "{}", job.said());
}

fn endings_of_another_host_are_printed(sandbox: &Sandbox) {
    require!(crate::sandbox::has_namespaces("a host with another name"));
    let mut job = follower(sandbox, &["x"]);
    let script = "hostname zz-other; echo $$; exec csalock run -F x true";
    let pid = sandbox.call("unshare", ["--uts", "dash", "-c", script]).capture().line();
    sandbox.csalock(["run", "x", "true"]).run();
    let lines = job.lines(3);
    assert!(lines[1].contains(&format!("  released  {pid}@zz-other ")), "{lines:?}");
}

#[test]
fn two_hosts_share_a_store() {
    [Kind::Shared, Kind::Etcd].into_iter().for_each(|kind| Sandbox::with(kind, endings_of_another_host_are_printed));
}
