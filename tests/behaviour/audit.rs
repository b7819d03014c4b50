//! `csalock audit`: the faults that it finds in a history, and what it cannot know.

use std::fs;

use csalock::history::{Past, Who};
use csalock::lock::{EndReason, Mode};
use csalock::store::{CommitResult, LinesOfHistory, Version, Write, WriteOptions, WriteSet};
use serde_json::Value;

use crate::sandbox::{CLOCK, Kind, Sandbox, has_namespaces};

/// 2026-11-20T02:00:00Z in milliseconds since 1970.
const BEGIN: u64 = 1_795_140_000_000;

/// A grant of `x` from and to these seconds, which ended in this way.
fn past(token: u64, from: u64, to: u64, how: EndReason) -> Past {
    Past {
        name: b"x".to_vec(),
        token: Some(token),
        mode: Mode::Exclusive,
        slot: 0,
        holder: Who { pid: Some(token as i32), host: "a".into(), uid: 98_765, command: b"job".to_vec(), label: None },
        from: BEGIN + 1000 * from,
        to: Some(BEGIN + 1000 * to),
        waited: 0,
        how: Some(how),
        broken_by: None,
        ended_by: None,
        run: None,
    }
}

fn released(token: u64, from: u64, to: u64) -> Past {
    past(token, from, to, EndReason::Released)
}

/// Adds lines to the history, as real commits do.
fn plant(sandbox: &Sandbox, lines: &[String]) {
    let store = sandbox.open();
    let mut version: Option<Version> = None;
    for line in lines {
        let body = csalock::lock::encode(&csalock::lock::Record::free(b"planted"));
        let change = Write { name: b"planted", expect: version, body: Some(&body), options: WriteOptions::default() };
        let set = WriteSet {
            changes: vec![change],
            history: LinesOfHistory::new(|| vec![line.clone()]),
            ..WriteSet::default()
        };
        match store.commit(&set).unwrap() {
            CommitResult::Done(done) => version = Some(done),
            other => panic!("{other:?}"),
        }
        store.finish(&set);
    }
    assert!(matches!(store.commit(&WriteSet::of(b"planted", version.as_ref(), None)), Ok(CommitResult::Done(_))));
}

pub(crate) fn plant_grants(sandbox: &Sandbox, grants: &[Past]) {
    plant(sandbox, &grants.iter().map(Past::line).collect::<Vec<_>>());
}

/// An age limit by which the planted grants are old.
const OLD: (&str, &str) = ("CSALOCK_HISTORY_AGE", "1h");

const BEGINS: &str = "unknown  the history begins at 2026-11-20 02:01:40 UTC; earlier grants are not kept\n";

#[track_caller]
fn finds(sandbox: &Sandbox, grants: &[Past], code: i32, wanted: &str) {
    plant_grants(sandbox, grants);
    sandbox.csalock(["audit", "--utc"]).env(OLD.0, OLD.1).capture().is(code, wanted, "");
}

on_every_store! {
    fn a_history_without_faults_is_reported_so(sandbox: &Sandbox) {
        sandbox.csalock(["audit"]).stdout("unknown  the history is empty\nno fault in 0 grants of 0 locks\n").run();
        assert!(!sandbox.store_exists());
        let reader = |token, from, to| Past { mode: Mode::Shared, ..released(token, from, to) };
        let grants = [released(1, 0, 100), reader(2, 100, 300), reader(3, 150, 200), past(4, 300, 301, EndReason::Died)];
        finds(sandbox, &grants, 0, &format!("{BEGINS}no fault in 4 grants of 1 lock\n"));
        sandbox.csalock(["audit", "--quiet"]).run();
    }

    fn a_name_that_has_no_history_is_not_audited_in_silence(sandbox: &Sandbox) {
        let said = |name: &str| format!("csalock: store STORE has no history of {name}; see `csalock history`\n");
        for words in [&["reep"][..], &["--quiet", "reep"], &["--quiet", "--since", "1d", "reep"]] {
            sandbox.csalock(["audit"].iter().chain(words)).status(81).stderr(said("reep")).run();
        }
        sandbox.csalock(["audit", "r*"]).status(81).stderr(said("r*")).run();
        let document = "{\"grants\":0,\"locks\":0,\"tolerance\":1.0,\"faults\":[],\"unknown\":[\
                        {\"what\":\"beginning\",\"message\":\"the history is empty\"},\
                        {\"what\":\"name\",\"message\":\"store STORE has no history of reep\"}]}\n";
        sandbox.csalock(["audit", "--json", "reep"]).status(81).stdout(document).run();
        plant_grants(sandbox, &[released(1, 0, 100)]);
        let call = sandbox.csalock(["audit", "--utc", "x", "reep"]).env(OLD.0, OLD.1).status(81).stderr(said("reep"));
        call.stdout(format!("{BEGINS}no fault in 1 grant of 1 lock\n")).run();
        // The only grant of the name is held, or ended before the time that is asked for.
        sandbox.csalock(["lock", "--forever", "held"]).run();
        sandbox.csalock(["audit", "--quiet", "held"]).run();
        sandbox.csalock(["audit", "--since", "2026-11-28", "x"]).stdout("no fault in 0 grants of 0 locks\n").run();
    }

    fn a_history_of_which_nothing_was_cut_has_no_unknown_beginning(sandbox: &Sandbox) {
        plant_grants(sandbox, &[released(1, 0, 100)]);
        let audit = |words: &[&str], size: &str| {
            let call = sandbox.csalock(["audit", "--utc"].iter().chain(words)).env("CSALOCK_HISTORY_AGE", "36500d");
            call.env("CSALOCK_HISTORY_SIZE", size).capture()
        };
        let all = "no fault in 1 grant of 1 lock\n";
        audit(&[], "1M").is(0, all, "");
        audit(&["--since", "2026-11-01"], "1M").is(0, all, "");
        audit(&["--since", "1971-01-01"], "1M").is(0, all, "");
        audit(&[], "500").is(0, &format!("{BEGINS}{all}"), "");
        // The caller asks for more than a store keeps.
        sandbox.csalock(["audit", "--utc", "--since", "2001-01-01"]).stdout(format!("{BEGINS}{all}")).run();
    }

    fn grants_whose_holders_may_have_gone_on_are_unknown(sandbox: &Sandbox) {
        let grants = [
            past(1, 0, 100, EndReason::Broken), past(2, 100, 300, EndReason::Expired), past(3, 300, 400, EndReason::Broken),
            past(4, 400, 500, EndReason::Died),
        ];
        let both = "\
unknown  --force broke 2 grants, for example x, token 3: a holder may have gone on
unknown  the time ran out of 1 grant, for example x, token 2: a script may have gone on
";
        finds(sandbox, &grants, 0, &format!("{BEGINS}{both}no fault in 4 grants of 1 lock\n"));
        // The second of them ended before.
        let since = sandbox.csalock(["audit", "--utc", "--since", "2026-11-20T02:06:00Z"]).env(OLD.0, OLD.1);
        let broken = "unknown  --force broke 1 grant, for example x, token 3: a holder may have gone on\n";
        since.capture().is(0, &format!("{broken}no fault in 2 grants of 1 lock\n"), "");
    }

    fn overlapping_exclusive_grants_are_found(sandbox: &Sandbox) {
        let wanted = format!("\
fault    x: two holders that exclude each other overlap for 40s
         token 1, exclusive, from 2026-11-20 02:00:00 UTC to 2026-11-20 02:01:40 UTC, released: 1@a 98765 job
         token 2, exclusive, from 2026-11-20 02:01:00 UTC to 2026-11-20 03:00:00 UTC, expired: 2@a 98765 job
{BEGINS}unknown  the time ran out of 1 grant, for example x, token 2: a script may have gone on
1 fault in 2 grants of 1 lock
");
        finds(sandbox, &[released(1, 0, 100), past(2, 60, 3600, EndReason::Expired)], 65, &wanted);
        sandbox.csalock(["audit", "--quiet"]).capture().exits(65);
        let with = |words: &[&str]| sandbox.csalock(["audit"].iter().chain(words)).capture().code;
        assert_eq!(with(&["--tolerance", "40s"]), Some(0));
        assert_eq!(with(&["--tolerance", "39s"]), Some(65));
        assert_eq!((with(&["x"]), with(&["?"]), with(&["x", "y"])), (Some(65), Some(65), Some(65)));
        // The first grant ended before.
        assert_eq!(with(&["--since", "2026-11-20T02:30:00Z"]), Some(0));
    }

    fn two_holders_of_one_slot_are_found(sandbox: &Sandbox) {
        let slot = |slot, past| Past { mode: Mode::Slot, slot, ..past };
        let grants = [
            slot(0, released(1, 0, 100)), slot(1, released(2, 10, 200)), slot(1, past(3, 190, 500, EndReason::Broken)),
        ];
        let wanted = format!("\
fault    x: two holders that exclude each other overlap for 10s
         token 2, slots 1, from 2026-11-20 02:00:10 UTC to 2026-11-20 02:03:20 UTC, released: 2@a 98765 job
         token 3, slots 1, from 2026-11-20 02:03:10 UTC to 2026-11-20 02:08:20 UTC, broken: 3@a 98765 job
{BEGINS}unknown  --force broke 1 grant, for example x, token 3: a holder may have gone on
1 fault in 3 grants of 1 lock
");
        finds(sandbox, &grants, 65, &wanted);
    }

    fn a_falling_token_is_found(sandbox: &Sandbox) {
        let wanted = format!("\
fault    x: a later grant does not have a higher token
         token 7, exclusive, from 2026-11-20 02:00:00 UTC to 2026-11-20 02:01:40 UTC, released: 7@a 98765 job
         token 6, exclusive, from 2026-11-20 02:03:20 UTC to 2026-11-20 02:05:00 UTC, died: 6@a 98765 job
{BEGINS}unknown  times contradict tokens once, by 3m20s at most: a clock was set, or clocks of hosts differ
1 fault in 2 grants of 1 lock
");
        finds(sandbox, &[released(7, 0, 100), past(6, 200, 300, EndReason::Died)], 65, &wanted);
    }

    fn a_clock_that_was_set_is_no_fault(sandbox: &Sandbox) {
        let wanted = format!("\
{BEGINS}unknown  the times are those of 2 hosts (a, b); their clocks may differ by 1s
unknown  times contradict tokens once, by 33m20s at most: a clock was set, or clocks of hosts differ
no fault in 2 grants of 1 lock
");
        let other = released(2, 0, 100);
        let other = Past { holder: Who { host: "b".into(), ..other.holder.clone() }, ..other };
        finds(sandbox, &[released(1, 2000, 2100), other], 0, &wanted);
    }

    fn a_gap_is_reported(sandbox: &Sandbox) {
        sandbox.csalock(["run", "x", "true"]).run();
        // The record keeps the ending until the owner learns of it.
        let _script = sandbox.script("dash", "csalock lock x; echo; read line").ready();
        let broken = sandbox.csalock(["unlock", "-q", "--force", "x"]).env("CSALOCK_HISTORY", "0").capture();
        assert_eq!(broken.code, Some(0), "{broken:?}");
        let token = sandbox.record("x").unwrap().ended_grants.last().unwrap().grant.token.unwrap();
        let done = sandbox.csalock(["audit", "--json"]).capture();
        let audit: Value = serde_json::from_str(&done.line()).unwrap();
        let wanted = format!("the history lacks an ending that a record shows (1), for example x, token {token}");
        let missing = serde_json::json!({"what": "missing", "message": wanted});
        assert_eq!((&audit["grants"], &audit["unknown"]), (&1.into(), &serde_json::json!([missing])), "{audit}");
    }

    fn the_document_is_exactly_this(sandbox: &Sandbox) {
        plant_grants(sandbox, &[released(1, 0, 100), past(2, 60, 3600, EndReason::Expired)]);
        let grant = |ended: &str| format!(
            "{{\"name\":\"x\",\"pid\":PID,\"host\":\"a\",\"user\":\"98765\",\"command\":\"job\",\"label\":null,\
             \"mode\":\"exclusive\",\"slot\":null,\"token\":TOKEN,\"from\":\"TIME\",\"to\":\"TIME\",\"waited\":0.0,\
             \"ended\":\"{ended}\",\"exit_code\":null,\"signal\":null,\"ran\":null,\"broken_by\":null,\"ended_by\":null}}"
        );
        let wanted = format!(
            "{{\"grants\":2,\"locks\":1,\"tolerance\":1.0,\"faults\":[{{\"fault\":\"overlap\",\"lock\":\"x\",\
             \"seconds\":40.0,\"grants\":[{},{}]}}],\"unknown\":[{{\"what\":\"beginning\",\"message\":\"the history \
             begins at TIME; earlier grants are not kept\"}},{{\"what\":\"expired\",\"message\":\"the time ran out of 1 \
             grant, for example x, token TOKEN: a script may have gone on\"}}]}}\n",
            grant("released"), grant("expired"),
        );
        sandbox.csalock(["audit", "--json"]).env(OLD.0, OLD.1).status(65).stdout(wanted).run();
    }

    fn real_locks_have_no_faults(sandbox: &Sandbox) {
        let times = sandbox.many(20);
        let script = format!("
            i=0
            while [ $i -lt {times} ]; do
                i=$((i + 1))
                csalock run -w inf -x both true || exit
                csalock run -w inf -s shared true || exit
                csalock run -w inf -j 2 slots true || exit
                csalock run -w inf both --also shared -- true || exit
                csalock put -w inf shared $i > /dev/null || exit
                csalock lock -w inf --forever shared || exit
                csalock unlock shared || exit
            done");
        let shells: Vec<_> = (0..6).map(|_| sandbox.script("dash", &script).spawn()).collect();
        shells.into_iter().for_each(|shell| shell.wait().succeeds());
        // A holder that dies, one whose time is over, and one that is broken.
        assert_eq!(sandbox.script("dash", "csalock lock both; kill -9 $$").capture().signal, Some(9));
        sandbox.csalock(["lock", "--ttl", sandbox.lease("1ms"), "slots"]).run();
        sandbox.csalock(["run", "-q", "-w", "inf", "both", "true"]).run();
        sandbox.csalock(["run", "-q", "-w", "inf", "slots", "true"]).run();
        let _holder = sandbox.holder("shared");
        let done = sandbox.csalock(["audit", "--json"]).capture();
        let audit: Value = serde_json::from_str(&done.line()).unwrap();
        assert_eq!(audit["faults"], serde_json::json!([]));
        let unknown: Vec<&str> = audit["unknown"].as_array().unwrap().iter().map(|it| it["what"].as_str().unwrap()).collect();
        // A server that does not answer within a moment is not waited for.
        let expected = |what: &&str| ["beginning", "expired"].contains(what) || (*what == "missing" && !sandbox.is_of_files());
        assert!(unknown.iter().all(expected), "{audit}");
        assert!(audit["grants"].as_u64().unwrap() > 6 * times as u64, "{audit}");
    }

    fn clocks_of_real_hosts_that_differ_are_no_fault(sandbox: &Sandbox) {
        for clock in ["+2h", "-2h", "+1h"] {
            sandbox.csalock(["run", "x", "true"]).env(CLOCK, clock).run();
        }
        let done = sandbox.csalock(["audit"]).capture();
        let said = "unknown  times contradict tokens ";
        assert!(done.code == Some(0) && done.stdout.contains(said), "{done:?}");
        assert!(done.stdout.ends_with("no fault in 3 grants of 1 lock\n"), "{done:?}");
    }

    fn a_record_that_cannot_be_read_is_named(sandbox: &Sandbox) {
        sandbox.csalock(["run", "x", "true"]).run();
        sandbox.overwrite("broken", b"nonsense");
        let done = sandbox.csalock(["audit", "--json"]).capture();
        let audit: Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!((done.code, &audit["unknown"][0]["what"]), (Some(65), &"record".into()), "{done:?}");
        assert_eq!(audit["faults"], serde_json::json!([]));
    }
}

on_every_store_of_files! {
    fn damaged_lines_are_counted(sandbox: &Sandbox) {
        plant_grants(sandbox, &[released(1, 0, 100), released(2, 100, 200)]);
        let [place, _] = sandbox.history_paths();
        let line = released(3, 200, 300).line();
        let text = fs::read(&place).unwrap();
        // A torn line before a whole one, and a damaged line.
        let damaged = line.replace("\"job\"", "\"jab\"");
        fs::write(&place, [&text, &line.as_bytes()[..40], line.as_bytes(), damaged.as_bytes()].concat()).unwrap();
        let wanted = format!("{BEGINS}unknown  the history cannot be read at 2 places\nno fault in 3 grants of 1 lock\n");
        sandbox.csalock(["audit", "--utc"]).env(OLD.0, OLD.1).stdout(sandbox.plain(&wanted)).run();
    }
}

fn the_clocks_of_two_hosts_are_named(sandbox: &Sandbox) {
    require!(has_namespaces("a host with another name"));
    sandbox.csalock(["run", "x", "true"]).run();
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let script = "hostname zz-other; exec csalock run x true";
    sandbox.call("unshare", ["--uts", "dash", "-c", script]).run();
    let done = sandbox.csalock(["audit"]).capture();
    let said = format!("unknown  the times are those of 2 hosts ({host}, zz-other); their clocks may differ by 1s\n");
    assert!(done.code == Some(0) && done.stdout.contains(&said), "{done:?}");
    // That host sees the same, and its clock is behind.
    let script = "hostname zz-other; csalock run x true; exec csalock audit";
    let done = sandbox.call("unshare", ["--uts", "dash", "-c", script]).env(CLOCK, "-1h").capture();
    assert!(done.code == Some(0) && done.stdout.contains(&said), "{done:?}");
    assert!(done.stdout.contains("unknown  times contradict tokens once, by "), "{done:?}");
}

#[test]
fn two_hosts_share_a_store() {
    [Kind::Shared, Kind::Etcd].into_iter().for_each(|kind| Sandbox::with(kind, the_clocks_of_two_hosts_are_named));
}
