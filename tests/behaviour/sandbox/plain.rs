//! Output without what differs from run to run: SANDBOX, STORE, TEST, HOST, USER, PID, HANDLE, TOKEN, RAN, TIME, AGE.

use super::Sandbox;

/// Longer command lines are cut in records.
const MOST_OF_COMMAND: usize = 256;

pub(crate) fn plain(text: &str, sandbox: &Sandbox) -> String {
    let place = |below| sandbox.path(below).display().to_string();
    let mut text = text
        .replace(&this_command(), "TEST")
        .replace(&sandbox.store(), "STORE")
        .replace(&sandbox.store_place(), "STORE")
        .replace(&place(""), "SANDBOX/");
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
    for (varying, name) in [
        (format!(" on {host} (user {user})"), " on HOST (user USER)"),
        (format!("\"host\":\"{host}\",\"user\":\"{user}\""), "\"host\":\"HOST\",\"user\":\"USER\""),
    ] {
        text = text.replace(&varying, name);
    }
    for (before, name) in [("pid ", "PID"), ("\"pid\":", "PID"), ("token ", "TOKEN"), ("\"token\":", "TOKEN")] {
        text = after(&text, before, |char| char.is_ascii_digit(), name);
    }
    text = after(&text, "\"ran\":", |char| char.is_ascii_digit() || char == '.', "RAN");
    // The field of stores that hosts share.
    while let Some((before, rest)) = text.split_once(",\"renewed_until\":\"") {
        text = format!("{before}{}", rest.split_once('"').unwrap().1);
    }
    text = after(&text, " (", |char| char.is_ascii_alphanumeric(), "AGE");
    words(&local_times(&text))
}

/// Replaces times in the zone of the sandbox: `2026-11-21 02:13:05 CET`.
fn local_times(text: &str) -> String {
    const TIME: &str = "0000-00-00 00:00:00 CET";
    let mut plain = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let shape = rest.get(..TIME.len()).map(digits_as_zeros);
        let length = if shape.as_deref() == Some(TIME) { TIME.len() } else { first.len_utf8() };
        plain.push_str(if length == TIME.len() { "TIME" } else { &rest[..length] });
        rest = &rest[length..];
    }
    plain
}

fn digits_as_zeros(text: &str) -> String {
    text.chars().map(|char| if char.is_ascii_digit() { '0' } else { char }).collect()
}

/// Replaces a run of such characters after `before`; after " (" only if " ago" follows.
fn after(text: &str, before: &str, belongs: fn(char) -> bool, name: &str) -> String {
    let mut pieces = text.split(before);
    let mut plain = pieces.next().unwrap_or_default().to_string();
    for piece in pieces {
        let rest = piece.trim_start_matches(belongs);
        let is_it = rest.len() < piece.len() && (name != "AGE" || rest.starts_with(" ago)"));
        plain.push_str(before);
        plain.push_str(if is_it { name } else { "" });
        plain.push_str(if is_it { rest } else { piece });
    }
    plain
}

/// Replaces handles and times, which are words of their own.
fn words(text: &str) -> String {
    let belongs = |char: char| char.is_ascii_alphanumeric() || "-:.".contains(char);
    let mut plain = String::new();
    for piece in text.split_inclusive(|char| !belongs(char)) {
        let word = piece.trim_end_matches(|char| !belongs(char));
        let core = word.trim_end_matches([':', '.']);
        let name = match core {
            _ if is_handle(core) => "HANDLE",
            _ if is_time(core) => "TIME",
            _ => core,
        };
        plain.push_str(name);
        plain.push_str(&piece[core.len()..]);
    }
    plain
}

fn is_handle(word: &str) -> bool {
    word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_time(word: &str) -> bool {
    let shape = digits_as_zeros(word);
    shape == "0000-00-00T00:00:00Z" || shape == "0000-00-00T00:00:00.000Z"
}

/// The command line of the test itself, as a record bears it.
fn this_command() -> String {
    let line = std::fs::read("/proc/self/cmdline").unwrap();
    let line = String::from_utf8_lossy(&line).trim_end_matches('\0').replace('\0', " ");
    line.chars().take(MOST_OF_COMMAND).collect()
}
