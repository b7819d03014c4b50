//! A machine that looks the same in each run: its name, the times and the process ids do not vary.
//!
//! It has namespaces for its name and for a root's store of its own. Every call chooses its clock. The clocks go on, so a
//! time has twenty seconds more than a whole minute, and its seconds are replaced.

use std::collections::BTreeSet;
use std::time::SystemTime;

use super::{CLOCK, Job, Sandbox, Screen, has, has_namespaces, skip, wait_until};

/// Returns the offset by which the clock of csalock shows 2026-11-21 12:00:00 in the zone of the sandbox now.
pub(crate) fn noon() -> String {
    format!("{:+}s", 1_795_258_800 - now())
}

fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64
}

/// The file by which the kernel is told the last process id.
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";

/// The first of the process ids that are shown.
const FIRST_PID: usize = 41_370;

pub(crate) struct Still<'a> {
    sandbox: &'a Sandbox,
    shell: Job,
    /// The real time at which it began, in seconds since 1970.
    began: i64,
    lines: usize,
}

impl<'a> Still<'a> {
    /// Returns the machine, or skips the test: only root can make it.
    pub(crate) fn new(sandbox: &'a Sandbox) -> Option<Still<'a>> {
        if !has_namespaces("a machine that looks the same in each run") || !has("tmux") || !has("unshare") {
            return None;
        }
        // Process ids have five digits.
        let _ = std::fs::write(LAST_PID, "20000");
        let words = ["--uts", "--mount", "--kill-child", "--fork", "dash"];
        let call =
            sandbox.call("unshare", words).without("CSALOCK_STORE").env("PS1", "ready> ").env("SHELL", "/bin/sh");
        let mut still = Still { sandbox, shell: call.spawn(), began: now(), lines: 0 };
        still.run("hostname web1 && mount -t tmpfs -o size=64m,nr_inodes=10000 none /var/lib");
        Some(still)
    }

    /// Returns the setting of the clock at which it is this many minutes before 2026-11-21 03:25:20 in the zone of the
    /// sandbox, plus the time that has passed since the start of the machine.
    pub(crate) fn clock(&self, minutes: i64) -> String {
        format!("{CLOCK}={:+}s", 1_795_227_920 - 60 * minutes - self.began)
    }

    #[track_caller]
    pub(crate) fn run(&mut self, line: &str) {
        self.shell.tell(&format!("{line}; echo $?"));
        self.lines += 1;
        let lines = self.shell.lines(self.lines);
        assert_eq!(lines.last().map(String::as_str), Some("0"), "{line}: {}", self.shell.said());
    }

    /// Starts a command of a shell script at this time, and waits until the process with this command line holds or waits.
    #[track_caller]
    pub(crate) fn start(&mut self, minutes: i64, line: &str, party: &str) {
        let clock = self.clock(minutes);
        self.shell.tell(&format!("(export {clock}; exec {line}) < /dev/null > /dev/null 2>&1 &"));
        let wanted = format!("\"command\":\"{party}\"");
        wait_until(&format!("{line} has begun"), || self.status().lines().next().unwrap_or_default().contains(&wanted));
    }

    fn status(&mut self) -> String {
        self.run("csalock status --json > status && csalock history --json >> status");
        self.sandbox.read("files/status")
    }

    fn pids(&mut self) -> BTreeSet<u64> {
        let text = self.status();
        let after = text.split("\"pid\":").skip(1);
        after.filter_map(|rest| rest.split(',').next()?.parse().ok()).collect()
    }

    /// Returns a terminal of this machine, on which it is 2026-11-21 03:25:20. `None`: the process ids have another
    /// length than those that are shown.
    pub(crate) fn screen(&mut self, columns: u32, rows: u32) -> Option<Screen<'a>> {
        if self.pids().iter().any(|pid| !(10_000..100_000).contains(pid)) {
            skip("a machine that looks the same in each run", "process ids do not have five digits");
            return None;
        }
        let socket = self.sandbox.path(format!("screen-{}", self.sandbox.next_job())).display().to_string();
        let bash = "exec bash --norc --noprofile -i";
        let (clock, lang) = (self.clock(0), "LC_ALL= LC_CTYPE=C");
        self.run(&format!(
            "{lang} {clock} tmux -S {socket} -f /dev/null new-session -d -x {columns} -y {rows} '{bash}' \\; set-option \
             status off \\; resize-window -x {columns} -y {rows}"
        ));
        Some(Screen::at(self.sandbox, socket))
    }

    /// Returns text without what still varies: seconds, process ids, and the time that a lock takes.
    pub(crate) fn plain(&mut self, text: &str) -> String {
        let pids: Vec<String> = self.pids().iter().map(u64::to_string).collect();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let digits = rest.len() - rest.trim_start_matches(|char: char| char.is_ascii_digit()).len();
            let length = if digits > 0 { digits } else { first.len_utf8() };
            let piece = &rest[..length];
            let is_seconds = digits == 2 && plain.len() >= 6 && plain[plain.len() - 6..].matches(':').count() == 2;
            match pids.iter().position(|pid| pid == piece) {
                Some(at) => plain.push_str(&(FIRST_PID + at).to_string()),
                None if is_seconds => plain.push_str("20"),
                None => plain.push_str(piece),
            }
            rest = &rest[length..];
        }
        between(&plain, " and deleted in ", " ms\n", "0.5")
    }
}

/// Replaces what is between these two texts, if they are there.
fn between(text: &str, before: &str, after: &str, replacement: &str) -> String {
    let found = text.split_once(before).and_then(|(start, rest)| Some((start, rest.split_once(after)?.1)));
    found.map_or_else(|| text.to_string(), |(start, end)| format!("{start}{before}{replacement}{after}{end}"))
}
