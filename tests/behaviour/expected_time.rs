//! The expected time of a caller's turn, `--give-up-if`, and the job of a lock in `status`.
//!
//! The histories are planted, and callers come at clocks that are hours ahead of the holder's. Estimates of many hours are
//! rounded to hours, so it makes no difference how long a test takes.

use std::time::SystemTime;

use csalock::history::{Past, Who};
use csalock::lock::{EndReason, Mode};
use serde_json::{Value, json};

use crate::overlaps::plant_grants;
use crate::sandbox::{CLOCK, Sandbox, Screen, has, wait_until};

/// An hour in milliseconds.
const HOUR: u64 = 3_600_000;

/// Usual hold times in hours: the median is 20 hours, and nine of ten are at most 30 hours.
const USUAL: [u64; 10] = [20, 40, 20, 20, 19, 20, 1, 20, 30, 20];

/// A grant of this lock that was held for this time and ended a day ago.
pub(crate) fn past(name: &str, mode: Mode, hours: u64, how: EndReason) -> Past {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64;
    let to = now - 24 * HOUR;
    Past {
        name: name.into(),
        token: Some(1),
        mode,
        slot: 0,
        holder: Who { pid: Some(1), host: "a".into(), uid: 98_765, command: b"job".to_vec(), label: None },
        from: to - hours * HOUR,
        to: Some(to),
        waited: 0,
        how: Some(how),
        broken_by: None,
        ended_by: None,
        run: None,
    }
}

fn plant(sandbox: &Sandbox, name: &str, mode: Mode) {
    plant_grants(sandbox, &USUAL.map(|hours| past(name, mode, hours, EndReason::Released)));
}

/// The refusal of a busy lock `x` in which this is between the holder and the hint.
fn busy(expected: &str) -> String {
    format!(
        "csalock: lock x in store STORE is busy: held by pid PID on HOST (user USER) since TIME (AGE ago), while it lives: \
         cat{expected}wait longer with -w, or see `csalock status x`\n"
    )
}

fn given_up(expected: &str, limit: &str) -> String {
    let hint = "to wait anyway, omit --give-up-if; or see `csalock status x`";
    busy("; ").replace(
        "; wait longer with -w, or see `csalock status x`",
        &format!(
            "; usually held 20h (9 of 10 times at most 1d6h); {expected}, later than --give-up-if {limit}; {hint}"
        ),
    )
}

/// The facts of `status NAME` on a terminal that begin with this word, at this clock.
fn facts(sandbox: &Sandbox, name: &str, word: &str, clock: &str) -> String {
    let command = format!("csalock status --color never {name}");
    let done = sandbox.call("script", ["-q", "-e", "-c", &command, "/dev/null"]).env(CLOCK, clock).capture();
    let text = sandbox.plain(&done.stdout.replace("\r\n", "\n").replace("\n         ", " "));
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(word)).collect();
    lines.join("\n")
}

on_every_store! {
    fn a_refusal_says_how_long_the_lock_is_usually_held(sandbox: &Sandbox) {
        plant(sandbox, "x", Mode::Exclusive);
        plant_grants(sandbox, &[past("y", Mode::Exclusive, 1, EndReason::Released)]);
        let _holder = sandbox.holder("x");
        let usual = "usually held 20h (9 of 10 times at most 1d6h)";
        for (clock, turn) in [
            ("+0s", "; your turn in about 20h; "),
            ("+5h", "; your turn in about 15h; "),
            ("+25h", "; your turn in about 5h; "),
            ("+31h", ", now longer than usual; your turn perhaps in 1d7h; "),
        ] {
            for words in [&["run", "-n", "x", "true"][..], &["run", "-w", "1ms", "x", "true"], &["lock", "-n", "x"]] {
                let said = busy(&format!("; {usual}{turn}"));
                sandbox.csalock(words).env(CLOCK, clock).status(75).stderr(said).run();
            }
        }
        let _waiter = sandbox.waiter("x", "true");
        let said = busy(&format!("; {usual}; your turn in about 1d16h; "));
        sandbox.csalock(["lock", "-n", "x"]).status(75).stderr(said).run();
        sandbox.csalock(["lock", "-n", "-q", "x"]).status(75).run();
    }

    fn few_grants_say_nothing(sandbox: &Sandbox) {
        plant_grants(sandbox, &[
            past("x", Mode::Exclusive, 1, EndReason::Released),
            past("x", Mode::Exclusive, 1, EndReason::Released),
            past("x", Mode::Exclusive, 1, EndReason::Died),
            past("x", Mode::Exclusive, 1, EndReason::Broken),
            past("x", Mode::Exclusive, 1, EndReason::Expired),
            past("x", Mode::Shared, 1, EndReason::Released),
            past("y", Mode::Exclusive, 1, EndReason::Released),
        ]);
        let mut holder = sandbox.holder("x");
        sandbox.csalock(["lock", "-n", "x"]).status(75).stderr(busy("; ")).run();
        assert_eq!(sandbox.sight("x").get("expected"), None);
        // The caller waits as usual.
        let waiter = sandbox.csalock(["run", "-w", "inf", "--give-up-if", "1s", "x", "echo", "ran"]).spawn();
        wait_until("it waits", || sandbox.waiting("x") == 1);
        holder.release();
        waiter.wait().is(0, "ran\n", "");
    }

    fn a_caller_whose_turn_is_too_late_gives_up_at_once(sandbox: &Sandbox) {
        plant(sandbox, "x", Mode::Exclusive);
        // A free lock is acquired.
        sandbox.csalock(["run", "--give-up-if", "1ms", "x", "echo", "ran"]).stdout("ran\n").run();
        let mut holder = sandbox.holder("x");
        let stored = sandbox.stored();
        for words in [
            &["run", "-w", "inf", "--give-up-if", "10h", "x", "true"][..],
            &["run", "-F", "-w", "inf", "--give-up-if", "10h", "x", "true"],
            &["lock", "-w", "inf", "--give-up-if", "10h", "x"],
        ] {
            sandbox.csalock(words).status(75).stderr(given_up("your turn in about 20h", "10h")).run();
        }
        let words = ["run", "-w", "inf", "--give-up-if", "16h", "-E", "9", "x", "true"];
        sandbox.csalock(words).status(9).stderr(given_up("your turn in about 20h", "16h")).run();
        sandbox.csalock(["lock", "-q", "-w", "inf", "--give-up-if", "16h", "x"]).status(75).run();
        // No caller left anything behind.
        assert_eq!(sandbox.stored(), stored);
        // Five hours later, 16 hours suffice.
        let words = ["run", "-w", "inf", "--give-up-if", "16h", "x", "echo", "ran"];
        let waiter = sandbox.csalock(words).env(CLOCK, "+5h").spawn();
        wait_until("it waits", || sandbox.waiting("x") == 1);
        // The waiter counts too.
        let words = ["lock", "-w", "inf", "--give-up-if", "30h", "x"];
        let said = given_up("your turn in about 1d11h", "1d6h");
        sandbox.csalock(words).env(CLOCK, "+5h").status(75).stderr(said).run();
        // A call that does not wait is refused as always.
        let done = sandbox.csalock(["lock", "-n", "--give-up-if", "1h", "x"]).capture();
        let said = busy("; usually held 20h (9 of 10 times at most 1d6h); your turn in about 1d16h; ");
        assert_eq!((done.code, sandbox.plain(&done.stderr)), (Some(75), said));
        holder.release();
        waiter.wait().is(0, "ran\n", "");
    }

    fn a_job_that_gives_up_is_skipped_in_silence(sandbox: &Sandbox) {
        plant(sandbox, "x", Mode::Exclusive);
        let _holder = sandbox.holder("x");
        let words = ["run", "-w", "inf", "--overdue", "26h", "--give-up-if", "1h", "x", "true"];
        sandbox.csalock(words).run();
        assert_eq!(sandbox.waiting("x"), 0);
        sandbox.csalock(words).with_clocks("+27h").capture().says(86, "; its job has never succeeded, since ");
    }

    fn of_several_locks_each_may_be_too_late(sandbox: &Sandbox) {
        plant(sandbox, "x", Mode::Exclusive);
        let _others = [sandbox.holder("a"), sandbox.holder("x"), sandbox.holder("y")];
        let said = given_up("your turn in about 20h", "1h");
        for words in [&["lock", "--give-up-if", "1h", "x", "a", "y"][..], &["run", "--give-up-if", "1h", "a", "--also", "x", "true"]] {
            sandbox.csalock(words).status(75).stderr(said.as_str()).run();
        }
        assert_eq!(["a", "x", "y"].map(|name| sandbox.waiting(name)), [0, 0, 0]);
    }

    fn holders_that_share_and_slots_have_times_of_their_own(sandbox: &Sandbox) {
        plant(sandbox, "x", Mode::Slot);
        let _holder = sandbox.csalock(["run", "-j", "1", "x", "cat"]).spawn();
        wait_until("the holder holds", || sandbox.state("x") == "held");
        let said = given_up("your turn in about 20h", "1h");
        sandbox.csalock(["lock", "-j", "1", "--give-up-if", "1h", "x"]).status(75).stderr(said).run();
        plant(sandbox, "shared", Mode::Shared);
        let _reader = sandbox.csalock(["run", "-s", "shared", "cat"]).spawn();
        wait_until("the reader holds", || sandbox.state("shared") == "held");
        assert_eq!(sandbox.sight("shared")["expected"]["turn"], json!(0.0));
        sandbox.csalock(["lock", "-q", "--give-up-if", "1h", "shared"]).capture().exits(75);
        sandbox.csalock(["run", "-s", "--give-up-if", "1h", "shared", "echo", "ran"]).stdout("ran\n").run();
    }

    fn documents_have_the_turn(sandbox: &Sandbox) {
        plant(sandbox, "x", Mode::Exclusive);
        assert_eq!(sandbox.sight("x").get("expected"), None);
        let _holder = sandbox.holder("x");
        let _waiter = sandbox.waiter("x", "true");
        let done = sandbox.csalock(["status", "--json", "x"]).env(CLOCK, "+5h").capture();
        let status: Value = serde_json::from_str(&done.stdout).unwrap();
        let done = sandbox.csalock(["lock", "--json", "--give-up-if", "1.5h", "x"]).env(CLOCK, "+5h").capture();
        assert_eq!((done.code, done.stderr.as_str()), (Some(75), ""));
        let refusal: Value = serde_json::from_str(&done.stdout).unwrap();
        for (document, limit) in [(&status[0], None), (&refusal, Some(5400.0))] {
            let expected = document["expected"].as_object().unwrap();
            assert_eq!((&expected["median"], &expected["percentile90"]), (&json!(72_000.0), &json!(108_000.0)));
            assert_eq!((&expected["grants"], &expected["ahead"]), (&json!(10), &json!(1)));
            let (held, turn) = (expected["held"].as_f64().unwrap(), expected["turn"].as_f64().unwrap());
            assert!(held >= 18_000.0 && (held + turn - 144_000.0).abs() < 1.0, "{document}");
            assert_eq!(expected.get("give_up_if").and_then(Value::as_f64), limit);
        }
        assert_eq!(refusal["reason"], "busy");
        // A caller that names no lock does not wait for the history.
        let all = sandbox.csalock(["status", "--json"]).capture();
        assert!(all.code == Some(0) && !all.stdout.contains("expected"), "{all:?}");
    }

    fn the_line_of_a_wait_shows_the_turn(sandbox: &Sandbox) {
        plant(sandbox, "x", Mode::Exclusive);
        let Some(screen) = Screen::new(sandbox, 200, 24) else { return };
        let mut holder = sandbox.holder("x");
        let mut before_us = sandbox.waiter("x", "true");
        screen.line("csalock run -w inf x echo ran");
        let text = screen.shows("s; 2 of 2 in the queue, your turn in about 1d16h; held ");
        assert!(text.contains("s, usually 20h (9 of 10 times at most 1d6h), by pid "), "{text}");
        before_us.kill();
        screen.shows("s; 1 of 1 in the queue, your turn in about 20h; held ");
        screen.keys("C-c");
        screen.done();
        screen.line(&format!("{CLOCK}=+31h csalock run -w inf x echo ran"));
        screen.shows("s; 1 of 1 in the queue, your turn perhaps in 1d7h; held 1d7h, usually 20h (9 of 10 ");
        holder.release();
        screen.shows("\nran\n");
    }

    fn the_page_of_a_lock_shows_the_turn_of_the_next_caller(sandbox: &Sandbox) {
        require!(has("script"));
        plant(sandbox, "x", Mode::Exclusive);
        let usually = "usually  held 20h (9 of 10 times at most 1d6h)";
        assert_eq!(facts(sandbox, "x", "usually", "+0s"), usually);
        let _holder = sandbox.holder("x");
        assert_eq!(facts(sandbox, "x", "usually", "+5h"), format!("{usually}; the next caller's turn in about 15h"));
        let later = format!("{usually}, now longer than usual; the next caller's turn perhaps in 1d16h");
        assert_eq!(facts(sandbox, "x", "usually", "+40h"), later);
        let _waiter = sandbox.waiter("x", "true");
        assert_eq!(facts(sandbox, "x", "usually", "+5h"), format!("{usually}; the next caller's turn in about 1d11h"));
        let _other = sandbox.holder("y");
        assert_eq!(facts(sandbox, "y", "usually", "+0s"), "");
    }

    fn a_claim_has_no_turn(sandbox: &Sandbox) {
        plant(sandbox, "x", Mode::Exclusive);
        sandbox.csalock(["claim", "--id", "me", "x"]).stdout("me\n").run();
        let done = sandbox.csalock(["lock", "-w", "1ms", "--give-up-if", "1s", "x"]).capture();
        let said = "is busy: claimed permanently under id me, by ";
        assert!(done.code == Some(75) && done.stderr.contains(said) && !done.stderr.contains("usually"), "{done:?}");
        assert_eq!(sandbox.sight("x").get("expected"), None);
    }

    fn without_a_history_a_caller_waits(sandbox: &Sandbox) {
        plant(sandbox, "x", Mode::Exclusive);
        let _holder = sandbox.holder("x");
        let words = ["lock", "-w", "1ms", "--give-up-if", "1s", "x"];
        sandbox.csalock(words).env("CSALOCK_HISTORY", "0").status(75).stderr(busy("; ")).run();
        // Old grants do not count.
        sandbox.csalock(words).env("CSALOCK_HISTORY_AGE", "1h").status(75).stderr(busy("; ")).run();
    }

    fn the_page_of_a_lock_shows_its_job(sandbox: &Sandbox) {
        require!(has("script"));
        let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
        let job = |clock: &str| facts(sandbox, "job", "job ", clock).replace(&format!(" on {host}"), " on HOST");
        sandbox.csalock(["run", "--overdue", "26h", "job", "false"]).status(1).run();
        let promise = "must succeed once in 1d2h";
        assert_eq!(job("+0s"), format!("job      has not succeeded yet; {promise}, next by TIME"));
        assert_eq!(job("+27h"), format!("job      has not succeeded yet; {promise}, overdue since TIME"));
        sandbox.csalock(["run", "job", "true"]).run();
        assert_eq!(job("+0s"), format!("job      has not succeeded yet; {promise}, next by TIME"));
        sandbox.csalock(["run", "--overdue", "26h", "job", "true"]).run();
        assert_eq!(job("+1h"), format!("job      last succeeded at TIME (AGE ago) on HOST; {promise}, next by TIME"));
        let document = sandbox.sight("job")["job"].clone();
        assert_eq!((&document["host"], &document["within"]), (&json!(host), &json!(93_600.0)));
        assert!(document["last_success"].is_string() && document["due"].is_string(), "{document}");
        sandbox.csalock(["run", "--once-per", "99999d", "once", "true"]).run();
        let document = sandbox.sight("once")["job"].clone();
        assert_eq!((&document["within"], &document["due"]), (&Value::Null, &Value::Null));
        assert!(facts(sandbox, "once", "job ", "+0s").starts_with("job      last succeeded at TIME (AGE ago) on "));
        sandbox.csalock(["run", "plain", "true"]).run();
        assert_eq!((facts(sandbox, "plain", "job ", "+0s"), sandbox.sight("plain").get("job")), (String::new(), None));
    }

    fn wrong_limits_are_refused(sandbox: &Sandbox) {
        let said = "csalock: --give-up-if: 0 is too short; use at least 1ms\n";
        sandbox.csalock(["lock", "--give-up-if", "0", "x"]).status(64).stderr(said).run();
        let said = "csalock: --give-up-if cannot be used without --lock; add --lock, or leave it out\n";
        sandbox.csalock(["get", "--give-up-if", "1s", "x"]).status(64).stderr(said).run();
        assert!(!sandbox.store_exists());
    }
}
