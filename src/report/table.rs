//! `status` for people: a table that fits 80 columns.

use std::fmt::Write as _;
use std::time::Duration;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::json::state;
use super::{Reporter, shown_user};
use crate::duration::shown as span;
use crate::engine::Sight;
use crate::lock::{Ended, Fate, Grant, Party, Share, Tenure};
use crate::name::shown;

/// What the table is shown on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paper {
    /// Whether it is a terminal that is to see colours: not a file, a pipe, or somebody who set NO_COLOR.
    pub colour: bool,
    /// How many columns it has.
    pub width: usize,
}

/// As wide as any terminal is.
pub const WIDTH: usize = 80;

/// The names of the columns.
pub const HEADER: &str = "NAME           STATE     PID     HOST     USER     SINCE  UNTIL   COMMAND";

/// The lines for one lock, each with its newline, in so many columns.
pub fn table(name: &[u8], sight: &Sight, reporter: &Reporter<'_>, paper: Paper) -> String {
    let mut text = String::new();
    let mut shown_name = shown(name);
    if !fits(&shown_name, 14) {
        let _ = writeln!(text, "{}", clip(&shown_name, paper.width));
        shown_name = String::new();
    }
    // Whose end gave the lock back is no holder any more.
    let holders = sight.record.holders.iter().zip(&sight.holders);
    let holders: Vec<_> = holders.filter(|(_, standing)| **standing != Err(Ended::Released)).collect();
    if holders.is_empty() {
        line(&mut text, &shown_name, state(sight), paper, ["", "", "", "", "", ""]);
        shown_name.clear();
    }
    for (grant, standing) in holders {
        let state = match standing {
            Ok(fate) => held_as(grant, *fate, sight.record.slots),
            Err(Ended::Expired) => "expired".to_string(),
            Err(_) => "dead".to_string(),
        };
        let until = match &grant.tenure {
            _ if standing.is_err() => "over".to_string(),
            Tenure::OwnerLives | Tenure::Renewing(_) | Tenure::Renewed(_) => "alive".to_string(),
            Tenure::OwnerDied => "over".to_string(),
            Tenure::Forever => "forever".to_string(),
            Tenure::AtMost(most) => span(Duration::from_millis(*most)),
            Tenure::Until(lease) => span(Duration::from_millis(lease.wall).saturating_sub(reporter.host.wall())),
        };
        let id = grant.claim.as_deref();
        row(&mut text, &shown_name, &state, paper, &grant.party, id, grant.since, &until, reporter);
        shown_name.clear();
    }
    if let Some(slots) = sight.record.slots {
        let free = (slots as usize).saturating_sub(sight.holders.iter().filter(|standing| standing.is_ok()).count());
        if free > 0 {
            let _ = writeln!(text, "{} {free} of {slots} slots free", cell("", 14));
        }
    }
    if let Some(value) = &sight.record.value {
        let mode = value.mode.map(|mode| format!(", mode {mode:04o}")).unwrap_or_default();
        let (size, version) = (value.size, value.version.unwrap_or_default());
        let s = if size == 1 { "" } else { "s" };
        let _ = writeln!(text, "{} value: {size} byte{s}, version {version}{mode}", cell("", 14));
    }
    for (waiter, fate) in sight.record.waiters.iter().zip(&sight.waiters) {
        let state = match (fate, waiter.share) {
            (Fate::Dead, _) => "wait,dead",
            (_, Share::Exclusive) => "waiting",
            (_, Share::Shared) => "waiting s",
            (_, Share::Slot) => "waiting j",
        };
        row(&mut text, &shown_name, state, paper, &waiter.party, None, waiter.since, "-", reporter);
    }
    text
}

/// How somebody holds it: `held`, `shared`, `slot 0/3`; with a question mark where it cannot be seen whether he lives.
fn held_as(grant: &Grant, fate: Fate, slots: Option<u32>) -> String {
    let how = match grant.share {
        _ if grant.claim.is_some() => return "claimed".to_string(),
        Share::Exclusive => "held".to_string(),
        Share::Shared => "shared".to_string(),
        Share::Slot => format!("slot {}/{}", grant.slot, slots.unwrap_or_default()),
    };
    match fate {
        Fate::Unknown | Fate::Missing => format!("{how}?"),
        // For ever, or it would not hold any more.
        Fate::Dead => format!("{how},dead"),
        Fate::Alive => how,
    }
}

#[expect(clippy::too_many_arguments, reason = "one for each column")]
fn row(
    text: &mut String,
    name: &str,
    state: &str,
    paper: Paper,
    party: &Party,
    id: Option<&[u8]>,
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
    if let Some(id) = id {
        what = format!("id {}: {what}", shown(id));
    }
    line(text, name, state, paper, [&pid, &shown(party.host.as_bytes()), &shown_user(party.uid), &age, until, &what]);
}

fn line(text: &mut String, name: &str, state: &str, paper: Paper, rest: [&str; 6]) {
    let [pid, host, user, since, until, what] = rest;
    let paint = match (paper.colour, state) {
        (false, _) => "",
        (_, "dead" | "expired" | "abandoned" | "wait,dead") => "\x1b[31m",
        (_, "waiting" | "waiting s" | "waiting j") => "\x1b[33m",
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
        clip(what, paper.width.max(WIDTH) - HEADER.find("COMMAND").unwrap_or(0)),
    );
    let _ = writeln!(text, "{}", row.trim_end());
}

pub(super) fn fits(text: &str, width: usize) -> bool {
    text.width() <= width
}

/// Exactly so wide.
pub(super) fn cell(text: &str, width: usize) -> String {
    let clipped = clip(text, width);
    let rest = width.saturating_sub(clipped.width());
    format!("{clipped}{:rest$}", "")
}

/// At most so wide.
pub(super) fn clip(text: &str, width: usize) -> String {
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
