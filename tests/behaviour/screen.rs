//! The screen that a person sees: a wait, and `status --watch`; both leave no trace.

use std::io::Write as _;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sandbox::{Kind, PROMPT, Sandbox, Screen, has, wait_until};

/// The row that shows how a wait goes, without what turns at its beginning.
fn row(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix(['|', '/', '-', '\\']))
}

const TOLD: &str =
    "csalock: waiting for lock x: pid PID on HOST (user USER) since TIME (AGE ago), while it lives: cat\n";

#[test]
fn a_message_fits_a_terminal_that_does_not_tell_its_size() {
    require!(has("script"));
    let sandbox = Sandbox::new(Kind::Directory);
    let mut holder = sandbox.holder("x");
    let on_terminal =
        |command: &str| sandbox.call("script", ["-q", "-e", "-f", "-c", command, "/dev/null"]).env("TERM", "dumb");
    let fits = |text: &str, message: &str| {
        let text = text.replace('\r', "");
        for line in text.lines().filter(|line| !line.contains(&sandbox.store())) {
            assert!(line.len() <= 80 && (line.starts_with("csalock: ") || line.starts_with("  ")), "{text}");
        }
        assert!(text.lines().count() > 1, "{text}");
        assert_eq!(sandbox.plain(&text.replace("\n  ", " ")), message);
    };
    let done = on_terminal("csalock run -n x true").capture();
    done.exits(75);
    let busy = "csalock: lock x in store STORE is busy: held by pid PID on HOST (user USER) since TIME (AGE ago), while it \
                lives: cat; wait longer with -w, or see `csalock status x`\n";
    fits(&done.stdout, busy);
    let waiter = on_terminal("csalock run -w inf x true").spawn();
    wait_until("the terminal shows the wait", || waiter.printed().ends_with("cat\r\n"));
    holder.release();
    fits(&waiter.wait().stdout, TOLD);
}

on_every_store! {
    fn a_wait_is_reported_once_and_then_drawn_in_one_row(sandbox: &Sandbox) {
        for words in ["run -w 50s x echo ran", "run -F -w 50s x echo ran", "lock -w 50s x > /dev/null; echo ran; csalock unlock x"] {
            let Some(screen) = Screen::new(sandbox, 200, 24) else { return };
            let mut holder = sandbox.holder("x");
            let mut before_us = sandbox.waiter("x", "true");
            screen.line(&format!("csalock {words}"));
            // The last round has a history, and shows the expected turn here.
            let text = screen.shows("; 2 of 2 in the queue");
            let drawn = row(&text).unwrap();
            assert!(drawn.starts_with(" waited ") && drawn.contains("s, ") && drawn.contains("s left; "), "{text}");
            let who = format!(" by pid {} on ", sandbox.holders("x")[0]);
            assert!(drawn.contains(&who) && drawn.ends_with("): cat"), "{text}");
            // Changes are drawn in place.
            before_us.kill();
            screen.shows("; 1 of 1 in the queue");
            let text = screen.becomes("more time", |text| row(text).is_some_and(|row| !row.starts_with(" waited 0s")));
            assert_eq!(text.matches(" waited ").count(), 1, "{text}");
            assert_eq!(screen.mode(), (false, true));
            holder.release();
            let text = sandbox.plain(&screen.done());
            assert_eq!(text, format!("{PROMPT} csalock {words}\n{TOLD}ran\n"));
            holder.wait().exits(0);
            wait_until("it is free", || sandbox.state("x") == "free");
        }
    }

    fn a_wait_without_end_has_no_time_left(sandbox: &Sandbox) {
        let Some(screen) = Screen::new(sandbox, 200, 24) else { return };
        let _holder = sandbox.holder("x");
        screen.line("csalock run -w inf x true");
        let text = screen.shows("s; 1 of 1 in the queue; held ");
        assert!(!text.contains(" left"), "{text}");
    }

    fn the_row_fits_the_terminal_and_goes_when_that_becomes_narrower(sandbox: &Sandbox) {
        let Some(screen) = Screen::new(sandbox, 70, 24) else { return };
        let mut holder = sandbox.holder("x");
        screen.line("csalock run -w inf x true");
        screen.shows("s; 1 of 1 in the queue; ");
        screen.resize(40, 24);
        let text = screen.becomes("one short row", |text| row(text).is_some_and(|row| row.len() < 39));
        assert_eq!(text.lines().last().and_then(row), row(&text), "{text}");
        holder.release();
        let text = screen.done();
        assert!(!text.contains("waited") && text.trim_end().ends_with("cat"), "{text}");
    }

    fn the_row_leaves_no_trace_when_the_wait_is_refused_or_interrupted(sandbox: &Sandbox) {
        let _holder = sandbox.holder("x");
        for words in ["run x true", "run -F x true", "lock x"] {
            let Some(screen) = Screen::new(sandbox, 250, 24) else { return };
            let (_, settings) = screen.settings();
            screen.line(&format!("csalock {}", words.replacen(' ', " -w 3s ", 1)));
            screen.shows("s left; ");
            let text = sandbox.plain(&screen.done());
            let busy = "csalock: lock x in store STORE is busy: held by pid PID on HOST (user USER) since TIME (AGE ago), while it \
                        lives: cat; wait longer with -w, or see `csalock status x`\n";
            assert!(text.ends_with(&format!("x{}\n{TOLD}{busy}", &words[words.find('x').unwrap() + 1..])), "{text}");
            assert_eq!(screen.settings(), ("75".to_string(), settings.clone()));
            // The waiter in `lock` is not the process that the record names.
            let signals = [Some(Signal::SIGINT), Some(Signal::SIGTERM)].into_iter().filter(|_| !words.starts_with("lock"));
            for signal in std::iter::once(None).chain(signals) {
                let status = if signal == Some(Signal::SIGTERM) { "143" } else { "130" };
                screen.line(&format!("csalock {}", words.replacen(' ', " -w inf ", 1)));
                screen.shows(" waited ");
                match signal {
                    Some(signal) => kill(Pid::from_raw(sandbox.waiters("x")[0]), signal).unwrap(),
                    None => screen.keys("C-c"),
                }
                let text = sandbox.plain(&screen.done());
                let after = text.split_once(TOLD).unwrap().1.trim();
                assert!(["", "Terminated"].contains(&after), "{words} {signal:?}: {text}");
                assert_eq!(screen.mode(), (false, true));
                assert_eq!(screen.settings(), (status.to_string(), settings.clone()), "{words} {signal:?}");
            }
        }
    }

    fn the_row_is_gone_while_the_wait_is_stopped(sandbox: &Sandbox) {
        for words in ["run -w inf x echo ran", "run -F -w inf x echo ran", "lock -w inf x"] {
            let Some(screen) = Screen::new(sandbox, 200, 24) else { return };
            let mut holder = sandbox.holder("x");
            screen.line(&format!("csalock {words}"));
            screen.shows(" waited ");
            screen.keys("C-z");
            let text = screen.stopped();
            assert!(!text.contains(" waited "), "{text}");
            // In the background it waits on and draws nothing.
            screen.line("clear; bg; fg");
            let text = screen.shows(" waited ");
            assert_eq!((text.matches(" waited ").count(), text.matches("csalock: ").count()), (1, 0), "{text}");
            holder.release();
            let text = screen.done();
            assert!(!text.contains(" waited "), "{text}");
            holder.wait().exits(0);
            screen.line("csalock unlock -q x");
            wait_until("it is free", || sandbox.state("x") == "free");
        }
    }

    fn a_terminal_that_stops_background_writers_does_not_stop_a_waiter(sandbox: &Sandbox) {
        let Some(screen) = Screen::new(sandbox, 200, 24) else { return };
        let mut holder = sandbox.holder("x");
        screen.line("stty tostop; csalock run -w inf x touch ran &");
        wait_until("it waits", || sandbox.waiters("x").len() == 1);
        // The row of an earlier waiter is drawn long enough for the other row to be drawn too.
        screen.line("csalock run -w 1s x true");
        screen.shows("is busy");
        holder.release();
        wait_until("it runs", || sandbox.path("files/ran").exists());
    }

    fn no_row_is_drawn_without_a_terminal_or_with_quiet(sandbox: &Sandbox) {
        require!(has("script"));
        let _holder = sandbox.holder("x");
        let refused = |command: &str, kind: &str| {
            let words = ["-q", "-e", "-c", command, "/dev/null"];
            let done = sandbox.call("script", words).env("TERM", kind).capture();
            assert_eq!(done.code, Some(75), "{done:?}");
            done.stdout
        };
        let said = refused("csalock run -w 1s x true", "xterm");
        assert!(said.contains(" waited ") && said.contains("\x1b["), "{said:?}");
        for (command, kind) in [
            ("csalock run -w 1s x true", "dumb"),
            ("csalock run -w 1s x true", ""),
            ("csalock run -q -w 1s x true", "xterm"),
            ("csalock run -w 1s x true 2> said", "xterm"),
            ("csalock run -v -w 1s x true 2> said", "xterm"),
            // Its terminal belongs to another holder.
            ("setsid -w csalock run -w 1s x true", "xterm"),
        ] {
            let said = refused(command, kind) + &sandbox.read("files/said");
            assert!(!said.contains(" waited ") && !said.contains('\x1b'), "{command} {kind}: {said:?}");
            // A file is told with --verbose only.
            let is_silent = command.contains("-q") || command.contains("said") && !command.contains("-v");
            assert!(!is_silent || !said.contains("waiting for"), "{command} {kind}: {said:?}");
        }
    }

    fn a_terminal_that_accepts_no_output_blocks_no_caller(sandbox: &Sandbox) {
        let Some(screen) = Screen::new(sandbox, 200, 24) else { return };
        let mut holder = sandbox.holder("x");
        screen.line("csalock run -w inf x touch ran");
        screen.shows(" waited ");
        screen.keys("C-s");
        holder.release();
        wait_until("it runs", || sandbox.path("files/ran").exists());
    }

    fn watching_shows_changes_of_holders_and_waiters(sandbox: &Sandbox) {
        let Some(screen) = Screen::new(sandbox, 140, 12) else { return };
        screen.line("csalock status --watch");
        let header = "NAME  STATE  WAITERS  PID  USER  SINCE  UNTIL  COMMAND";
        screen.becomes("an empty table", |text| {
            let mut lines = text.lines();
            let first = lines.next().unwrap_or_default();
            first.contains(" CET  0 locks, 0 holders, 0 waiters  ") && first.contains(&sandbox.store()) && lines.next() == Some(header)
        });
        assert!(!sandbox.store_exists(), "watching makes no store");
        let mut holder = sandbox.holder("x");
        screen.shows("  1 lock, 1 holder, 0 waiters  ");
        let mut waiter = sandbox.waiter("x", "cat");
        // The rows are drawn after the first line.
        let text = screen.becomes("a waiter", |text| {
            text.contains("  1 lock, 1 holder, 1 waiter  ") && !text.contains("held   0 ")
        });
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert!(rows.len() == 1 && rows[0].starts_with("x     held   1        ") && rows[0].ends_with("  alive  cat"), "{text}");
        holder.release();
        screen.becomes("the next holder", |text| text.contains("1 holder, 0 waiters") && text.contains("  dash -c cat"));
        waiter.release();
        screen.shows("  0 locks, 0 holders, 0 waiters  ");
        holder.wait().exits(0);
        // A store that fails is shown, and so is one that is there again.
        require!(sandbox.is_of_files());
        std::fs::rename(sandbox.store_path(), sandbox.path("away")).unwrap();
        let (wrong, word) = if sandbox.is_directory() { ("a file", "Not a directory") } else { ("no database", "not a database") };
        std::fs::write(sandbox.store_path(), wrong.repeat(1000)).unwrap();
        let text = screen.shows("  no answer  ");
        assert!(text.contains(word), "{text}");
        std::fs::remove_file(sandbox.store_path()).unwrap();
        screen.shows("  0 locks, 0 holders, 0 waiters  ");
    }

    fn watching_leaves_the_terminal_as_it_was(sandbox: &Sandbox) {
        let _holder = sandbox.holder("x");
        for (end, status) in [("C-c", "130"), ("C-\\", "131"), ("TERM", "143"), ("HUP", "129"), ("C-z", "130")] {
            let Some(screen) = Screen::new(sandbox, 100, 12) else { return };
            let (_, settings) = screen.settings();
            screen.line("ulimit -c 0; sh -c 'echo $$ > pid; exec csalock status -W'");
            screen.shows("  1 lock, 1 holder, 0 waiters  ");
            match end {
                "TERM" | "HUP" => {
                    let signal = if end == "HUP" { Signal::SIGHUP } else { Signal::SIGTERM };
                    let pid = sandbox.read("files/pid").trim().parse().unwrap();
                    kill(Pid::from_raw(pid), signal).unwrap();
                }
                "C-z" => {
                    screen.keys("C-z");
                    screen.stopped();
                    let (stopped, now) = screen.settings();
                    assert_eq!((stopped.as_str(), &now), ("148", &settings));
                    screen.line("fg");
                    screen.becomes("the table again", |text| text.lines().next().is_some_and(|line| line.contains("1 holder")));
                    screen.keys("C-c");
                }
                key => screen.keys(key),
            }
            screen.done();
            assert_eq!(screen.mode(), (false, true), "{end}");
            assert_eq!(screen.settings(), (status.to_string(), settings), "{end}");
        }
    }

    fn watching_fits_the_terminal(sandbox: &Sandbox) {
        let Some(screen) = Screen::new(sandbox, 60, 8) else { return };
        for at in 0..9 {
            sandbox.csalock(["lock", "--forever", &format!("lock-{at}")]).run();
        }
        let _holder = sandbox.holder("zz");
        screen.line("csalock status -W");
        let text = screen.shows("6 more lines: csalock status");
        let rows: Vec<&str> = text.lines().collect();
        let names = rows[2..6].iter().map(|row| row.split_whitespace().next().unwrap());
        assert_eq!(names.collect::<Vec<_>>(), ["lock-0", "lock-1", "lock-2", "lock-3"], "{text}");
        assert!(rows.len() == 7 && rows.iter().all(|line| line.chars().count() <= 60), "{text}");
        screen.resize(90, 30);
        screen.becomes("all of them", |text| text.contains("lock-0 ") && text.contains("zz ") && text.lines().count() == 12);
        screen.resize(60, 4);
        screen.shows("10 more lines: csalock status");
        screen.keys("C-c");
        screen.done();
    }

    fn watching_one_lock_shows_its_queue(sandbox: &Sandbox) {
        let Some(screen) = Screen::new(sandbox, 120, 20) else { return };
        let mut holder = sandbox.holder("x");
        let mut waiter = sandbox.waiter("x", "cat");
        screen.line("csalock status --watch x");
        let is_whole = |text: &str| text.contains("  1 lock, 1 holder, 1 waiter  ") && text.contains("\nbreak  ");
        let text = screen.becomes("the lock", is_whole);
        let facts: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(facts, ["lock", "store", "state", "holder", "command", "since", "until", "waiters", "1.", "break"], "{text}");
        holder.release();
        // A look at the record just before the release may meet a look at the history just after it.
        let is_next = |text: &str| text.contains("before  ") && text.contains("command  dash -c cat");
        let text = screen.becomes("the last grant", is_next);
        assert!(text.contains("  released  ") && text.contains(" cat\nbreak  "), "{text}");
        waiter.release();
        screen.shows("state    free");
        assert_eq!((holder.wait().code, waiter.wait().code), (Some(0), Some(0)));
    }

    fn a_watch_shows_an_ending_that_the_history_learns_of_later_than_the_record(sandbox: &Sandbox) {
        require!(sandbox.is_of_files());
        let Some(screen) = Screen::new(sandbox, 120, 20) else { return };
        sandbox.csalock(["run", "x", "true"]).run();
        let history = sandbox.history_paths()[0].clone();
        let line = std::fs::read(&history).unwrap();
        screen.line("csalock status --watch x");
        let endings = |text: &str| text.matches("  released  ").count();
        screen.becomes("one ending", |text| endings(text) == 1);
        std::fs::OpenOptions::new().append(true).open(&history).unwrap().write_all(&line).unwrap();
        screen.becomes("the other ending", |text| endings(text) == 2);
    }

    fn a_watch_that_is_not_possible_is_refused(sandbox: &Sandbox) {
        let refusal = "csalock: --watch draws on a terminal, and stdout is none that can be drawn on; use: while sleep 1; do \
                       csalock status; done\n";
        for words in [&["status", "-W"][..], &["status", "--watch", "x"], &["list", "-W"]] {
            sandbox.csalock(words).status(64).stderr(refusal).run();
        }
        let says = |words: &[&str]| {
            let done = sandbox.csalock(words).capture();
            assert_eq!((done.code, done.stdout.as_str()), (Some(64), ""), "{done:?}");
            done.stderr.lines().next().unwrap_or_default().to_string()
        };
        let done = sandbox.csalock(["status", "-W", "--json"]).capture();
        assert!(done.code == Some(64) && done.stdout.contains("the argument '--watch' cannot be used with '--json'"), "{done:?}");
        assert_eq!(says(&["status", "-W", "-1"]), "csalock: the argument '--watch' cannot be used with '--names-only'; leave one of them out");
        if has("script") {
            let on_terminal = |command: &str, kind: &str| {
                let words = ["-q", "-e", "-c", command, "/dev/null"];
                sandbox.call("script", words).env("TERM", kind).capture()
            };
            let done = on_terminal("csalock status -W", "dumb");
            assert_eq!((done.code, done.stdout.replace('\r', "").as_str()), (Some(64), refusal.replace("on; use", "on;\n  use").as_str()));
            // A usage error is printed on the normal screen.
            let done = on_terminal("csalock status -W ''", "xterm");
            assert!(done.code == Some(64) && !done.stdout.contains('\x1b') && done.stdout.contains("name is not empty"), "{done:?}");
        }
        assert!(!sandbox.store_exists());
    }
}
