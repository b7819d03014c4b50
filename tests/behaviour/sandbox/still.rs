//! Output that is the same in each run: at a time that stands still, of records whose times and users are set.

use std::time::SystemTime;

use csalock::lock::Owner;

use super::{CLOCK, Sandbox, Screen};

/// The time at which it all happens, in milliseconds since 1970: 2026-11-21 12:00:00 in the zone of the sandbox.
pub(crate) const NOON: u64 = 1_795_258_800_000;

/// Milliseconds of an hour, and of a day.
pub(crate) const HOUR: u64 = 3_600_000;
pub(crate) const DAY: u64 = 24 * HOUR;

/// The pid that stands for every pid, and its length.
const PID: &str = "12345";

/// Returns the offset by which the clock of csalock shows noon now.
pub(crate) fn noon() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
    format!("{:+}s", (NOON / 1000) as i64 - now)
}

impl Sandbox {
    /// Sets the times of the holders, and of the waiters one after the other, as long before noon; root is the user.
    pub(crate) fn set_times(&self, name: &str, holders: u64, waiters: u64, label: Option<&str>) {
        let by_root = |owner: &mut Owner| owner.uid = 0;
        self.edit(name, |record| {
            for grant in &mut record.holders {
                grant.since = NOON - holders;
                by_root(&mut grant.owner);
                grant.owner.label = label.map(|label| label.as_bytes().to_vec());
            }
            for waiter in &mut record.waiters {
                waiter.since = NOON - waiters;
                by_root(&mut waiter.owner);
            }
        });
    }

    /// Returns what a terminal with this many columns shows of a call at noon, as if each pid were 12345. The terminal is
    /// wider by as much as these pids are longer. `None` means that there is no tmux(1).
    pub(crate) fn at_noon(&self, columns: u32, pids: &[i32], words: &str) -> Option<String> {
        let length = pids[0].to_string().len();
        // The next pid after 99999 is longer.
        assert!(pids.iter().all(|pid| pid.to_string().len() == length), "{pids:?}");
        let screen = Screen::new(self, columns + length as u32 - PID.len() as u32, 40)?;
        let call = format!("#!/bin/sh\n{CLOCK}={} exec csalock {words}\n", noon());
        self.program("bin/look", call);
        screen.line("clear; look");
        Some(with_one_pid(&screen.done(), pids))
    }
}

/// Replaces these numbers.
pub(crate) fn with_one_pid(text: &str, pids: &[i32]) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let digits = rest.len() - rest.trim_start_matches(|char: char| char.is_ascii_digit()).len();
        let is_pid = pids.iter().any(|pid| pid.to_string() == rest[..digits]);
        let length = if digits > 0 { digits } else { first.len_utf8() };
        plain.push_str(if is_pid { PID } else { &rest[..length] });
        rest = &rest[length..];
    }
    plain
}
