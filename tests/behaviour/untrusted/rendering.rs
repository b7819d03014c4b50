//! Every shown text may be the choice of an untrusted user: no byte of it moves a cursor, names a window, colours,
//! reorders or hides.

use std::sync::Arc;

use lock::{EndReason, EndedGrant, Lifetime, Record};

use super::ends;
use crate::sandbox::{Call, Done, Sandbox, has, wait_until};

/// Controls of ASCII, of Latin 1, and of Unicode, and lines that are none.
const POISON: &str = "\u{1b}]0;POISON\u{7}\u{1b}[2J\r\nforged: line\t\u{8}\u{7f}\u{9b}31m\u{85}\u{202e}\u{2066}\u{200b}\u{feff}\u{e0041}";

/// The same text as bytes that are not UTF-8.
fn bytes() -> Vec<u8> {
    [POISON.as_bytes(), b"\xff\xc3\x1b[31m"].concat()
}

fn is_obeyed(char: char) -> bool {
    char != '\n' && char.is_control()
        || matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

#[track_caller]
fn is_clean(what: &str, done: &Done) {
    assert!(done.code != Some(70) && done.signal.is_none(), "{what}: {done:?}");
    for text in [&done.stdout, &done.stderr] {
        assert!(!text.contains(is_obeyed) && !text.contains("\nforged:"), "{what}: {text:?}");
    }
}

/// The words of a line, in which P is poison.
fn poisoned_words(line: &str) -> Vec<&str> {
    line.split(' ').map(|word| if word == "P" { POISON } else { word }).collect()
}

/// A record with poison in every free field.
fn poisoned(record: &mut Record) {
    let holders = record.holders.iter_mut().map(|grant| &mut grant.owner);
    for party in holders.chain(record.waiters.iter_mut().map(|waiter| &mut waiter.owner)) {
        let party = Arc::make_mut(party);
        party.host = POISON.to_string();
        party.command = bytes();
        party.label = Some(bytes());
        party.domain.machine = POISON.to_string();
        party.domain.boot = POISON.to_string();
        party.domain.pids = POISON.to_string();
    }
    let mut grant = record.holders[0].clone();
    grant.claim = Some(bytes());
    grant.lifetime = Lifetime::UntilReleased;
    record.ended_grants = vec![EndedGrant { grant, reason: EndReason::Broken }];
}

/// A store whose lock [`POISON`] is held, and waited for; and what is claimed, under an id like that.
fn store(sandbox: &Sandbox) -> [crate::sandbox::Job; 2] {
    let holder = sandbox.holder(POISON);
    let waiter = sandbox.waiter(POISON, ":");
    sandbox.edit(POISON, poisoned);
    sandbox.csalock(["lock", "--forever", "claimed"]).run();
    sandbox.edit("claimed", |record| {
        record.holders[0].claim = Some(bytes());
        record.holders[0].owner_mut().host = POISON.to_string();
        record.holders[0].owner_mut().processes.clear();
    });
    [holder, waiter]
}

on_every_store! {
    fn a_poisoned_record_is_shown_without_harm(sandbox: &Sandbox) {
        let _jobs = store(sandbox);
        for line in "status; status P; status -1; status --json; history; history --json; run -n P true; run -w 20ms P true; \
                     run --json -v -n P true; lock -n --fail-on-stale P; lock --json -n P; unlock P; unlock --json P; \
                     renew --ttl 1s P; put -n P value; get P; claim -n --id P P; claim -n --json --id me claimed; \
                     claim -n --id me claimed; unclaim --id P claimed; lookup --json claimed; lookup --json --id P; \
                     lookup --id P; gc --dry-run; gc --dry-run --json; doctor; doctor --json; unlock --force P; \
                     run --label P -w 1s P true; history P; history --json".split("; ") {
            let words = &poisoned_words(line)[..];
            let done = ends(sandbox.csalock(words), words);
            is_clean(&format!("{words:?}"), &done);
            if words.contains(&"--json") && !done.stdout.is_empty() {
                serde_json::from_str::<serde_json::Value>(&done.stdout).unwrap_or_else(|error| panic!("{words:?} {error}: {done:?}"));
            }
        }
    }

    fn an_unreadable_record_is_reported_without_harm(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "--forever", POISON]).run();
        for body in [bytes(), [b"csalock ", &bytes()[..]].concat(), [br#"{"csalock":"#, &bytes()[..]].concat(), [br#"{"csalock":3,"sum":"0123456789abcdef","#, &bytes()[..], b"\n"].concat()] {
            sandbox.overwrite(POISON, &body);
            for words in [&["status"][..], &["run", "-n", POISON, "true"], &["gc"], &["doctor"]] {
                is_clean(&format!("{words:?}"), &ends(sandbox.csalock(words), words));
            }
        }
        is_clean("unlock --force", &sandbox.csalock(["unlock", "--force", POISON]).capture());
    }
}

on_every_store_of_files! {
    fn a_poisoned_place_is_reported_without_harm(sandbox: &Sandbox) {
        let place = sandbox.store_at(format!("files/{POISON}"));
        for words in [&["run", "-n", "x", "true"][..], &["status"], &["history"], &["doctor"], &["doctor", "--json"], &["lock", "--forever", "x"], &["run", "-n", "x", "true"]] {
            is_clean(&format!("{words:?}"), &ends(sandbox.csalock(words).env("CSALOCK_STORE", &place), words));
        }
        let nowhere = sandbox.store_at(format!("files/none{POISON}/store"));
        let odd = format!("{}?{POISON}", sandbox.store_at("files/x"));
        for store in [&nowhere, &odd, POISON, &format!("{POISON}:/x"), &format!("etcd://{POISON}/x"), &format!("etcd://127.0.0.1:1/{POISON}")] {
            for words in [&["run", "-n", "x", "true"][..], &["doctor"]] {
                is_clean(store, &ends(sandbox.csalock(words).env("CSALOCK_STORE", store), words));
            }
        }
        // The names of foreign files in a store are shown escaped, too.
        sandbox.csalock(["lock", "--forever", "x"]).run();
        if sandbox.is_directory() {
            sandbox.file(&format!("store/{POISON}"), "");
            std::fs::create_dir(sandbox.path("store/y")).unwrap();
            sandbox.file(&format!("store/y/{POISON}"), "");
            std::os::unix::fs::symlink("x", sandbox.path(format!("store/z{POISON}"))).unwrap();
        }
        for words in [&["status"][..], &["run", "-n", "y", "true"], &["gc"], &["doctor"], &["status", "--json"]] {
            is_clean(&format!("{words:?}"), &ends(sandbox.csalock(words), words));
        }
    }
}

#[test]
fn a_poisoned_file_or_directory_is_reported_without_harm() {
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    let path = format!("./{POISON}");
    let call = |words: &[&str]| ends(sandbox.csalock(words).without("CSALOCK_STORE"), words);
    for words in [
        &["lock", "--forever", &path][..],
        &["lock", "-n", &path],
        &["status", &path],
        &["status", "--json", &path],
        &["history", &path],
        &["unlock", "-v", &path],
        &["lock", &format!("{path}/in/it")],
        &["run", "--flock", "-n", &format!("./{POISON}"), "true"],
        &["run", "./x", &path],
        &["run", "./x", POISON],
        &["run", "-F", "./x", POISON],
    ] {
        is_clean(&format!("{words:?}"), &call(words));
    }
}

#[test]
fn an_invalid_argument_is_repeated_without_harm() {
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    let lines = "P; lock P P --ttl; lock --ttl P x; lock -w P x; lock --backoff P x; lock -j P x; lock --store P x; \
                 unlock --handle P x; history -n P; history --since P; put --if-version P x y; put --mode P x y; \
                 get x P; put x y P; claim x P";
    let options = ["--", "-"].map(|dashes| format!("{dashes}{POISON}"));
    let wrong = [["lock", &options[0], "x"], ["lock", &options[1], "x"], ["status", "x", &options[1]]];
    for words in lines.split("; ").map(poisoned_words).chain(wrong.map(Vec::from)) {
        is_clean(&format!("{words:?}"), &ends(sandbox.csalock(&words), &words));
    }
    let variables = "CSALOCK_STORE CSALOCK_HANDLE CSALOCK_OUTER CSALOCK_NAME CSALOCK_OUTER_STORE CSALOCK_TIMEOUT \
                     CSALOCK_LEASE CSALOCK_HISTORY CSALOCK_HISTORY_SIZE CSALOCK_HISTORY_AGE CSALOCK_ETCD_CACERT \
                     CSALOCK_ETCD_CERT CSALOCK_ETCD_KEY CSALOCK_ETCD_USER CSALOCK_ETCD_PASSWORD_FILE XDG_STATE_HOME HOME";
    for variable in variables.split(' ') {
        let etcd = if variable.contains("_ETCD_") {
            "etcds://127.0.0.1:1/x".to_string()
        } else {
            sandbox.store_at("shared?shared=1").replace("?shared=1/", "/")
        };
        for words in [&["run", "-n", "x", "true"][..], &["history"], &["unlock", "x"], &["doctor"]] {
            let call = sandbox.csalock(words).env("CSALOCK_STORE", &etcd).env("CSALOCK_ETCD_PASSWORD", "x");
            let call = call.env(variable, POISON);
            is_clean(&format!("{variable} {words:?}"), &ends(call, words));
        }
    }
}

/// The program draws controls on a terminal; the text of an untrusted record is not among them.
#[track_caller]
fn is_drawn_clean(what: &str, drawn: &str) {
    let poison = ['\u{7}', '\u{7f}', '\u{9b}', '\u{85}', '\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}', '\u{e0041}'];
    assert!(!drawn.contains("\u{1b}]0;") && !drawn.contains(poison), "{what}: {drawn:?}");
}

#[test]
fn a_waiting_line_and_a_watch_are_drawn_without_harm() {
    require!(has("script"));
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    let _jobs = store(&sandbox);
    let name = sandbox.file("name", POISON);
    let draw = |command: &str| -> Call<'_> {
        let command = format!("n=\"$(cat {}; echo .)\"; n=\"${{n%.}}\"; {command}", name.display());
        let words = ["-q", "-e", "-f", "-c", &command, "/dev/null"];
        sandbox.call("script", words).env("SHELL", "/bin/sh").env("TERM", "xterm")
    };
    let watch = draw("csalock status --watch").spawn();
    let wait = draw("exec csalock run -w inf \"$n\" true").spawn();
    for (job, what) in [(&watch, "status --watch"), (&wait, "the waiting line")] {
        wait_until(&format!("{what} is drawn"), || job.printed().contains("POISON"));
        is_drawn_clean(what, &job.printed());
    }
    for command in [
        "csalock status",
        "csalock status --json",
        "csalock history",
        "csalock run -n \"$n\" true",
        "csalock \"$n\"",
        "csalock lock --ttl \"$n\" x",
    ] {
        let done = draw(command).capture();
        assert!(done.stdout.contains("POISON") || command.contains("history"), "{command} {done:?}");
        is_drawn_clean(command, &done.stdout);
    }
}
