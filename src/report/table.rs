//! `status` for people: a table that fits 80 columns.

use std::fmt::Write as _;
use std::time::Duration;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::json::{mode, state};
use super::{Reporter, user};
use crate::duration::shown as span;
use crate::engine::Sight;
use crate::lock::{Ended, Fate, Party, Tenure};
use crate::name::shown;

/// Whether the terminal is to see colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// It is a terminal.
    Yes,
    /// It is a file, a pipe, or somebody who set NO_COLOR.
    No,
}

/// As wide as any terminal is.
const WIDTH: usize = 80;

const HEADER: &str = "NAME           STATE     PID     HOST     USER     SINCE  UNTIL   COMMAND";

/// The lines for one lock, each with its newline. The header is part of them for the first one.
pub fn table(name: &[u8], sight: &Sight, reporter: &Reporter<'_>, colour: Colour, first: bool) -> String {
    let mut text = String::new();
    if first {
        let _ = writeln!(text, "{HEADER}");
    }
    let mut shown_name = shown(name);
    if !fits(&shown_name, 14) && (!sight.record.holders.is_empty() || !sight.record.waiters.is_empty()) {
        let _ = writeln!(text, "{}", clip(&shown_name, WIDTH));
        shown_name = String::new();
    }
    // Whose end gave the lock back is no holder any more.
    let holders = sight.record.holders.iter().zip(&sight.holders);
    let holders: Vec<_> = holders.filter(|(_, standing)| **standing != Err(Ended::Released)).collect();
    if holders.is_empty() {
        line(&mut text, &shown_name, state(sight), colour, ["", "", "", "", "", ""]);
        shown_name.clear();
    }
    for (grant, standing) in holders {
        let state = match standing {
            Ok(Fate::Dead | Fate::Alive) if grant.share != crate::lock::Share::Exclusive => mode(grant.share),
            Ok(Fate::Unknown) => "held?",
            Ok(_) => "held",
            Err(Ended::Expired) => "expired",
            Err(_) => "dead",
        };
        let until = match &grant.tenure {
            _ if standing.is_err() => "over".to_string(),
            Tenure::OwnerLives => "alive".to_string(),
            Tenure::Forever => "forever".to_string(),
            Tenure::AtMost(most) => span(Duration::from_millis(*most)),
            Tenure::Until(lease) => span(Duration::from_millis(lease.wall).saturating_sub(reporter.host.wall())),
        };
        row(&mut text, &shown_name, state, colour, &grant.party, grant.since, &until, reporter);
        shown_name.clear();
    }
    for (waiter, fate) in sight.record.waiters.iter().zip(&sight.waiters) {
        let state = if *fate == Fate::Dead { "wait,dead" } else { "waiting" };
        row(&mut text, &shown_name, state, colour, &waiter.party, waiter.since, "-", reporter);
    }
    text
}

#[expect(clippy::too_many_arguments, reason = "one for each column")]
fn row(
    text: &mut String,
    name: &str,
    state: &str,
    colour: Colour,
    party: &Party,
    since: u64,
    until: &str,
    reporter: &Reporter<'_>,
) {
    let pid = reporter.owner(party).map_or("-".to_string(), |owner| owner.pid.to_string());
    let age = span(reporter.host.wall().saturating_sub(Duration::from_millis(since)));
    let mut what = shown(&party.command);
    if let Some(label) = &party.label {
        what = format!("[{}] {what}", shown(label));
    }
    line(text, name, state, colour, [&pid, &shown(party.host.as_bytes()), &user(party.uid), &age, until, &what]);
}

fn line(text: &mut String, name: &str, state: &str, colour: Colour, rest: [&str; 6]) {
    let [pid, host, user, since, until, what] = rest;
    let paint = match (colour, state) {
        (Colour::No, _) => "",
        (_, "dead" | "expired" | "abandoned" | "wait,dead") => "\x1b[31m",
        (_, "waiting") => "\x1b[33m",
        (_, "free") => "\x1b[32m",
        _ => "\x1b[1m",
    };
    let end = if paint.is_empty() { "" } else { "\x1b[0m" };
    let row = format!(
        "{} {paint}{}{end} {} {} {} {} {} {}",
        cell(name, 14),
        cell(state, 9),
        cell(pid, 7),
        cell(host, 8),
        cell(user, 8),
        cell(since, 6),
        cell(until, 7),
        clip(what, WIDTH - HEADER.find("COMMAND").unwrap_or(0)),
    );
    let _ = writeln!(text, "{}", row.trim_end());
}

fn fits(text: &str, width: usize) -> bool {
    text.width() <= width
}

/// Exactly so wide.
fn cell(text: &str, width: usize) -> String {
    let clipped = clip(text, width);
    let rest = width.saturating_sub(clipped.width());
    format!("{clipped}{:rest$}", "")
}

/// At most so wide.
fn clip(text: &str, width: usize) -> String {
    if fits(text, width) {
        return text.to_string();
    }
    let mut clipped = String::new();
    for char in text.chars() {
        if clipped.width() + char.width().unwrap_or(0) >= width {
            break;
        }
        clipped.push(char);
    }
    clipped.push('~');
    clipped
}
