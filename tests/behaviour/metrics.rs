//! `csalock metrics`: the text that Prometheus reads, and the file that replaces an older one.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use nix::sys::signal::Signal;

use crate::etcd::free_port;
use crate::sandbox::{CLOCK, Kind, Sandbox, has, proc, wait_until};

/// Replaces the store, and each time that is not zero.
fn plain(sandbox: &Sandbox, text: &str) -> String {
    let line = |line: &str| match line.rsplit_once(' ') {
        Some((series, value)) if series.contains("_seconds{") && value != "0.000" => {
            assert!(value.parse::<f64>().unwrap() > 0.0, "{line}");
            format!("{series} S\n")
        }
        _ => format!("{line}\n"),
    };
    text.replace(&sandbox.store(), "STORE").lines().map(line).collect()
}

fn value(sandbox: &Sandbox, words: &[&str], series: &str) -> Option<String> {
    let text = sandbox.csalock(["metrics"].iter().chain(words)).capture().line();
    let wanted = series.replace('{', &format!("{{store=\"{}\",", sandbox.store())).replace(",}", "}");
    text.lines().find_map(|line| Some(line.strip_prefix(&wanted)?.trim().to_string()))
}

#[track_caller]
fn promtool_accepts(sandbox: &Sandbox, text: &str) {
    if has("promtool") {
        sandbox.call("promtool", ["check", "metrics"]).stdin(text).capture().is(0, "", "");
    }
}

const EMPTY: &str = "\
# HELP csalock_up Whether the store answered (1) or not (0).
# TYPE csalock_up gauge
csalock_up{store=\"STORE\"} 1
# HELP csalock_unreadable_records Records that cannot be read.
# TYPE csalock_unreadable_records gauge
csalock_unreadable_records{store=\"STORE\"} 0
# HELP csalock_omitted_locks Locks that are left out because of --limit.
# TYPE csalock_omitted_locks gauge
csalock_omitted_locks{store=\"STORE\"} 0
";

const LOCKS: &str = "\
# HELP csalock_holders Holders of the lock.
# TYPE csalock_holders gauge
csalock_holders{store=\"STORE\",name=\"x\"} 1
csalock_holders{store=\"STORE\",name=\"y\"} 0
# HELP csalock_stale_holders Holders whose owner is dead or whose time is over, and which no caller has removed yet.
# TYPE csalock_stale_holders gauge
csalock_stale_holders{store=\"STORE\",name=\"x\"} 0
csalock_stale_holders{store=\"STORE\",name=\"y\"} 0
# HELP csalock_held_seconds Time since the oldest grant of a holder; 0 without one.
# TYPE csalock_held_seconds gauge
csalock_held_seconds{store=\"STORE\",name=\"x\"} S
csalock_held_seconds{store=\"STORE\",name=\"y\"} 0.000
# HELP csalock_waiters Waiters in the queue of the lock.
# TYPE csalock_waiters gauge
csalock_waiters{store=\"STORE\",name=\"x\"} 1
csalock_waiters{store=\"STORE\",name=\"y\"} 0
# HELP csalock_oldest_wait_seconds Time since the oldest waiter came; 0 without one.
# TYPE csalock_oldest_wait_seconds gauge
csalock_oldest_wait_seconds{store=\"STORE\",name=\"x\"} S
csalock_oldest_wait_seconds{store=\"STORE\",name=\"y\"} 0.000
# HELP csalock_history_endings Grants in the history that ended in this way; old ones leave the history.
# TYPE csalock_history_endings gauge
csalock_history_endings{store=\"STORE\",name=\"x\",ending=\"released\"} 0
csalock_history_endings{store=\"STORE\",name=\"x\",ending=\"ended\"} 0
csalock_history_endings{store=\"STORE\",name=\"x\",ending=\"died\"} 0
csalock_history_endings{store=\"STORE\",name=\"x\",ending=\"expired\"} 0
csalock_history_endings{store=\"STORE\",name=\"x\",ending=\"broken\"} 0
csalock_history_endings{store=\"STORE\",name=\"y\",ending=\"released\"} 2
csalock_history_endings{store=\"STORE\",name=\"y\",ending=\"ended\"} 0
csalock_history_endings{store=\"STORE\",name=\"y\",ending=\"died\"} 0
csalock_history_endings{store=\"STORE\",name=\"y\",ending=\"expired\"} 0
csalock_history_endings{store=\"STORE\",name=\"y\",ending=\"broken\"} 1
# HELP csalock_last_ending_timestamp_seconds Time of the last grant in the history that ended in this way.
# TYPE csalock_last_ending_timestamp_seconds gauge
csalock_last_ending_timestamp_seconds{store=\"STORE\",name=\"y\",ending=\"released\"} S
csalock_last_ending_timestamp_seconds{store=\"STORE\",name=\"y\",ending=\"broken\"} S
";

on_every_store! {
    fn a_job_has_the_time_of_its_last_success_and_of_the_next_one(sandbox: &Sandbox) {
        let lines = || {
            let text = sandbox.csalock(["metrics"]).capture().stdout;
            let job = |line: &&str| line.starts_with("csalock_last_success") || line.starts_with("csalock_due");
            text.lines().filter(job).map(str::to_string).collect::<Vec<_>>()
        };
        sandbox.csalock(["run", "job", "true"]).run();
        assert_eq!(lines(), [""; 0]);
        sandbox.csalock(["run", "--overdue", "1h", "job", "true"]).run();
        let times: Vec<f64> = lines().iter().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        let holder = sandbox.holder("job");
        let refused = || {
            let text = sandbox.csalock(["metrics"]).capture().stdout;
            text.lines().find(|line| line.starts_with("csalock_refused_calls{")).unwrap().rsplit(' ').next().unwrap().to_string()
        };
        assert_eq!(refused(), "0");
        for _ in 0..3 {
            sandbox.csalock(["run", "-n", "--overdue", "1h", "job", "true"]).run();
        }
        assert_eq!(refused(), "3");
        promtool_accepts(sandbox, &sandbox.csalock(["metrics"]).capture().stdout);
        holder.wait();
        sandbox.csalock(["run", "--overdue", "1h", "job", "true"]).run();
        assert_eq!(refused(), "0");
        assert!(times.len() == 2 && (times[1] - times[0] - 3600.0).abs() < 0.002, "{times:?}");
    }

    fn the_text_is_exactly_this(sandbox: &Sandbox) {
        let text = sandbox.csalock(["metrics"]).capture().line();
        assert_eq!(plain(sandbox, &text), EMPTY);
        assert!(!sandbox.store_exists());
        sandbox.csalock(["run", "y", "true"]).run();
        sandbox.csalock(["run", "y", "true"]).run();
        sandbox.csalock(["lock", "--forever", "y"]).run();
        sandbox.csalock(["unlock", "-q", "--force", "y"]).capture().exits(0);
        let holder = sandbox.holder("x");
        let waiter = sandbox.csalock(["run", "-vw", "inf", "x", "dash", "-c", "true"]).spawn();
        // Others see its commit before it has removed what it replaced.
        wait_until("its commit is complete", || waiter.said().contains("waiting for lock x"));
        // When a waiter comes, the supervisor of the holder creates the file for its release in advance.
        holder.send(Signal::SIGSTOP);
        wait_until("it is stopped", || matches!(proc::stat(holder.pid()), Some(('T', _))));
        let stored = sandbox.stored();
        let text = sandbox.csalock(["metrics"]).capture().stdout;
        assert_eq!(plain(sandbox, &text), format!("{EMPTY}{LOCKS}"));
        promtool_accepts(sandbox, &text);
        assert_eq!(sandbox.stored(), stored);
    }

    fn the_last_run_has_its_exit_and_its_time(sandbox: &Sandbox) {
        let of = |metric: &str| value(sandbox, &[], &format!("{metric}{{name=\"job\"}}"));
        let exit = || of("csalock_last_run_exit_code");
        sandbox.csalock(["run", "job", "dash", "-c", "exit 3"]).capture().exits(3);
        assert_eq!(exit().as_deref(), Some("3"));
        assert!(of("csalock_last_run_duration_seconds").unwrap().parse::<f64>().unwrap() >= 0.0);
        promtool_accepts(sandbox, &sandbox.csalock(["metrics"]).capture().stdout);
        // What is no run says nothing about the last one.
        sandbox.script("dash", "csalock lock job; csalock unlock job").run();
        assert_eq!(exit().as_deref(), Some("3"));
        sandbox.csalock(["run", "job", "true"]).run();
        assert_eq!(exit().as_deref(), Some("0"));
        sandbox.csalock(["lock", "--forever", "job"]).run();
        sandbox.csalock(["unlock", "-q", "--force", "job"]).capture().exits(0);
        assert_eq!((exit(), of("csalock_last_run_duration_seconds")), (None, None));
    }

    fn times_are_those_of_the_oldest(sandbox: &Sandbox) {
        for hours in ["-1h", "-3h", "-2h"] {
            sandbox.csalock(["lock", "--shared", "--forever", "x"]).env(CLOCK, hours).run();
        }
        let held: f64 = value(sandbox, &[], "csalock_held_seconds{name=\"x\"}").unwrap().parse().unwrap();
        assert!((10_800.0..12_000.0).contains(&held), "{held}");
        assert_eq!(value(sandbox, &[], "csalock_holders{name=\"x\"}").as_deref(), Some("3"));
    }

    fn a_dead_holder_is_stale(sandbox: &Sandbox) {
        sandbox.abandon("x", &[]);
        sandbox.await_abandoned("x");
        let of = |metric: &str| value(sandbox, &[], &format!("{metric}{{name=\"x\"}}")).unwrap();
        assert_eq!(["csalock_holders", "csalock_stale_holders", "csalock_held_seconds"].map(of), ["0", "1", "0.000"]);
    }

    fn names_patterns_and_a_limit_select_locks(sandbox: &Sandbox) {
        for name in ["a1", "a2", "b1"] {
            sandbox.csalock(["run", name, "true"]).run();
        }
        let _holder = sandbox.holder("c1");
        let shown = |words: &[&str]| {
            let text = sandbox.csalock(["metrics"].iter().chain(words)).capture().line();
            let name = |line: &str| Some(line.split_once(",name=\"")?.1.split_once('"')?.0.to_string());
            let names: Vec<String> = text.lines().filter(|line| line.starts_with("csalock_holders{")).filter_map(name).collect();
            (names.join(" "), value(sandbox, words, "csalock_omitted_locks{}").unwrap())
        };
        let wanted = |names: &str, omitted: &str| (names.to_string(), omitted.to_string());
        assert_eq!(shown(&[]), wanted("a1 a2 b1 c1", "0"));
        assert_eq!(shown(&["a*", "none"]), wanted("a1 a2 none", "0"));
        assert_eq!(shown(&["--limit", "2"]), wanted("b1 c1", "2"));
        assert_eq!(shown(&["--limit", "1", "none", "b1", "*"]), wanted("b1", "4"));
    }

    fn strange_names_are_escaped(sandbox: &Sandbox) {
        for name in ["a\"b", "a\\b", "new\nline", "日本", "{}, ="] {
            sandbox.csalock(["run", name, "true"]).run();
        }
        let text = sandbox.csalock(["metrics"]).capture().line() + "\n";
        for label in ["a\\\"b", "a\\\\\\\\b", "new\\\\nline", "日本", "{}, ="] {
            assert!(text.contains(&format!(",name=\"{label}\"}} 0\n")), "{label}: {text}");
        }
        promtool_accepts(sandbox, &text);
    }

    fn a_file_is_replaced_as_a_whole(sandbox: &Sandbox) {
        let (place, file) = (sandbox.path("metrics"), sandbox.path("metrics/csalock.prom"));
        fs::create_dir(&place).unwrap();
        let directory = sandbox.path("");
        let run = |words: &[&str]| {
            let script = "umask 077; cd ..; exec csalock metrics --output metrics/csalock.prom \"$@\"";
            sandbox.call("dash", [&["-c", script, "dash"], words].concat()).run();
        };
        run(&[]);
        assert_eq!(plain(sandbox, &fs::read_to_string(&file).unwrap()), EMPTY);
        let before = fs::metadata(&file).unwrap();
        assert_eq!(before.permissions().mode() & 0o777, 0o644);
        let old = fs::File::open(&file).unwrap();
        sandbox.csalock(["run", "x", "true"]).run();
        run(&["x"]);
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(",name=\"x\"} 0\n") && fs::metadata(&file).unwrap().ino() != before.ino());
        // A reader that had opened the old file still has all of it.
        assert_eq!(plain(sandbox, &std::io::read_to_string(old).unwrap()), EMPTY);
        assert_eq!(fs::read_dir(&place).unwrap().count(), 1);
        let missing = sandbox.path("none/csalock.prom");
        let done = sandbox.csalock(["metrics".as_ref(), "-o".as_ref(), missing.as_os_str()]).capture();
        assert!(done.code != Some(0) && done.stderr.contains("none/csalock.prom"), "{done:?}");
        let done = sandbox.csalock(["metrics".as_ref(), "-o".as_ref(), place.as_os_str()]).capture();
        assert!(done.code != Some(0) && done.stdout.is_empty(), "{done:?}");
        assert_eq!((fs::read_to_string(&file).unwrap(), fs::read_dir(&place).unwrap().count()), (text, 1));
        let hidden = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with('.');
        assert_eq!(fs::read_dir(&directory).unwrap().map(Result::unwrap).filter(hidden).count(), 0);
    }

    fn only_a_regular_file_is_replaced(sandbox: &Sandbox) {
        let place = sandbox.path("files");
        nix::unistd::mkfifo(&place.join("fifo"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        let said = "csalock: cannot write fifo: it is not a regular file; without --output, the text goes to stdout\n";
        let done = sandbox.csalock(["metrics", "-o", "fifo"]).capture();
        assert_eq!((done.code, sandbox.plain(&done.stderr).as_str()), (Some(73), said));
        assert!(fs::metadata(place.join("fifo")).unwrap().file_type().is_fifo());
        std::os::unix::fs::symlink("file", place.join("link")).unwrap();
        fs::write(place.join("file"), "").unwrap();
        sandbox.csalock(["metrics", "-o", "link"]).run();
        assert!(fs::symlink_metadata(place.join("link")).unwrap().is_symlink());
        let text = fs::read_to_string(place.join("file")).unwrap();
        assert_eq!(plain(sandbox, &text), EMPTY);
        let full = sandbox.call("dash", ["-c", "ulimit -f 0; exec csalock metrics -o file"]).capture();
        assert_eq!(full.code, Some(74), "{full:?}");
        assert_eq!((fs::read_to_string(place.join("file")).unwrap(), fs::read_dir(&place).unwrap().count()), (text, 3));
    }

    fn an_unreadable_record_is_counted(sandbox: &Sandbox) {
        sandbox.csalock(["run", "x", "true"]).run();
        sandbox.overwrite("broken", b"nonsense");
        let done = sandbox.csalock(["metrics"]).capture();
        let text = plain(sandbox, &done.stdout);
        assert_eq!(done.code, Some(65), "{done:?}");
        for line in ["csalock_up{store=\"STORE\"} 1\n", "csalock_unreadable_records{store=\"STORE\"} 1\n"] {
            assert!(text.contains(line), "{text}");
        }
        assert!(text.contains(",name=\"x\"} 0\n"), "{text}");
    }

    fn other_formats_and_paths_are_refused(sandbox: &Sandbox) {
        let done = sandbox.csalock(["metrics", "--json"]).capture();
        assert_eq!((done.code, done.stderr.as_str()), (Some(64), ""), "{done:?}");
        assert!(done.stdout.contains("\"message\":\"metrics has one format, the text format of Prometheus\""), "{done:?}");
        sandbox.csalock(["metrics", "--limit", "0"]).capture().exits(64);
    }
}

#[test]
fn a_store_that_does_not_answer_is_down() {
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    let store = format!("etcd://127.0.0.1:{}/x", free_port());
    let file = sandbox.path("down.prom");
    let down = format!(
        "# HELP csalock_up Whether the store answered (1) or not (0).\n# TYPE csalock_up gauge\n\
         csalock_up{{store=\"{store}\"}} 0\n"
    );
    let done = sandbox.csalock(["metrics", "--store", &store]).capture();
    assert_eq!((done.code, done.stdout.as_str()), (Some(69), down.as_str()), "{done:?}");
    assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
    promtool_accepts(&sandbox, &done.stdout);
    sandbox.csalock(["metrics", "-q", "--store", &store, "-o", file.to_str().unwrap()]).capture().is(69, "", "");
    assert_eq!(fs::read_to_string(file).unwrap(), down);
}

#[test]
fn node_exporter_serves_the_file() {
    require!(has("prometheus-node-exporter"));
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    let place = sandbox.path("metrics");
    fs::create_dir(&place).unwrap();
    let file = place.join("csalock.prom");
    sandbox.csalock(["run", "a \"name\"\n", "true"]).run();
    sandbox.csalock(["metrics".as_ref(), "--output".as_ref(), file.as_os_str()]).run();
    let address = format!("127.0.0.1:{}", free_port());
    let words = [
        "--collector.disable-defaults".to_string(),
        "--collector.textfile".to_string(),
        format!("--collector.textfile.directory={}", place.display()),
        format!("--web.listen-address={address}"),
    ];
    let _exporter = sandbox.call("prometheus-node-exporter", &words).spawn();
    let get = || {
        let mut stream = TcpStream::connect(&address).ok()?;
        write!(stream, "GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    };
    let mut answer = String::new();
    wait_until("node_exporter answers", || {
        answer = get().unwrap_or_default();
        answer.contains("node_textfile_scrape_error")
    });
    assert!(answer.contains("\nnode_textfile_scrape_error 0\n"), "{answer}");
    // It sorts the labels.
    let store = sandbox.store();
    let series = |labels: &str| format!("csalock_history_endings{{{labels},store=\"{store}\"}} 1\n");
    assert!(answer.contains(&series("ending=\"released\",name=\"a \\\"name\\\"\\\\n\"")), "{answer}");
    assert!(answer.contains(&format!("csalock_up{{store=\"{store}\"}} 1\n")), "{answer}");
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let sandbox = Sandbox::new(Kind::Directory);
    let said = "csalock: cannot write absent/m.prom: No such file or directory; name a file in a directory that exists and that you \
                may write\n";
    sandbox.csalock(["metrics", "-o", "absent/m.prom"]).status(73).stderr(said).run();
    fs::create_dir(sandbox.path("files/place")).unwrap();
    sandbox.file("files/place/inner", "");
    let said = said.replace("absent/m.prom: No such file or directory", "place: Is a directory");
    sandbox.csalock(["metrics", "-o", "place"]).status(73).stderr(said).run();
    assert_eq!(fs::read_dir(sandbox.path("files")).unwrap().count(), 1);
}
