//! `status` for people: a table that fits 80 columns.

use std::fmt::Write as _;
use std::time::Duration;

use super::columns::{cell, clip, fits};
use super::json::state;
use super::{Reporter, shown_user};
use crate::duration::shown as span;
use crate::engine::LockStatus;
use crate::lock::{EndReason, Grant, Lifetime, Liveness, Mode, Owner};
use crate::name::escape;

/// Properties of the output that shows the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputStyle {
    /// True if the output shows colours: it is a terminal, not a file or a pipe, and NO_COLOR is not set.
    pub colour: bool,
    /// Width of the output in columns.
    pub width: usize,
}

/// Number of columns that every terminal has.
pub const WIDTH: usize = 80;

/// The names of the columns.
pub const HEADER: &str = "NAME           STATE     PID     HOST     USER     SINCE  UNTIL   COMMAND";

/// Returns the lines for one lock, each with its newline, within the width of the output.
pub fn table(name: &[u8], status: &LockStatus, reporter: &Reporter<'_>, style: OutputStyle) -> String {
    let mut rows = Rows { text: String::new(), name: escape(name), style, reporter };
    if !fits(&rows.name, 14) {
        let _ = writeln!(rows.text, "{}", clip(&rows.name, style.width));
        rows.name.clear();
    }
    // A grant whose end released the lock is not a holder any more.
    let holders = status.record.holders.iter().zip(&status.holders);
    let holders: Vec<_> = holders.filter(|(_, standing)| **standing != Err(EndReason::Released)).collect();
    if holders.is_empty() {
        rows.line(state(status), ["", "", "", "", "", ""]);
    }
    for (grant, standing) in holders {
        let state = match standing {
            Ok(liveness) => held_as(grant, *liveness, status.record.slots),
            Err(EndReason::Expired) => "expired".to_string(),
            Err(_) => "dead".to_string(),
        };
        let until = match &grant.lifetime {
            _ if standing.is_err() => "over".to_string(),
            Lifetime::WhileOwnerLives | Lifetime::KeepalivePending(_) | Lifetime::Keepalive(_) => "alive".to_string(),
            Lifetime::OwnerDied => "over".to_string(),
            Lifetime::UntilReleased => "forever".to_string(),
            Lifetime::Ttl(most) => span(Duration::from_millis(*most)),
            Lifetime::ExpiresAt(lease) => span(Duration::from_millis(lease.wall).saturating_sub(reporter.host.wall())),
        };
        rows.entry(&state, &grant.owner, grant.claim.as_deref(), grant.since, &until);
    }
    if let Some(slots) = status.record.slots {
        let free = (slots as usize).saturating_sub(status.holders.iter().filter(|standing| standing.is_ok()).count());
        if free > 0 {
            let _ = writeln!(rows.text, "{} {free} of {slots} slots free", cell("", 14));
        }
    }
    if let Some(value) = &status.record.value {
        let mode = value.mode.map(|mode| format!(", mode {mode:04o}")).unwrap_or_default();
        let (size, version) = (value.size, value.version.unwrap_or_default());
        let s = if size == 1 { "" } else { "s" };
        let _ = writeln!(rows.text, "{} value: {size} byte{s}, version {version}{mode}", cell("", 14));
    }
    for (waiter, fate) in status.record.waiters.iter().zip(&status.waiters) {
        let state = match (fate, waiter.mode) {
            (Liveness::Dead, _) => "wait,dead",
            (_, Mode::Exclusive) => "waiting",
            (_, Mode::Shared) => "waiting s",
            (_, Mode::Slot) => "waiting j",
        };
        rows.entry(state, &waiter.owner, None, waiter.since, "-");
    }
    rows.text
}

/// Returns the state of a grant: `held`, `shared` or `slot 0/3`; a question mark means unknown liveness.
fn held_as(grant: &Grant, liveness: Liveness, slots: Option<u32>) -> String {
    let how = match grant.mode {
        _ if grant.claim.is_some() => return "claimed".to_string(),
        Mode::Exclusive => "held".to_string(),
        Mode::Shared => "shared".to_string(),
        Mode::Slot => format!("slot {}/{}", grant.slot, slots.unwrap_or_default()),
    };
    match liveness {
        Liveness::Unknown | Liveness::Missing => format!("{how}?"),
        // The grant is permanent, or it would not hold the lock any more.
        Liveness::Dead => format!("{how},dead"),
        Liveness::Alive => how,
    }
}

/// The rows of one lock.
struct Rows<'a> {
    text: String,
    /// The name for the next row; only the first row shows it.
    name: String,
    style: OutputStyle,
    reporter: &'a Reporter<'a>,
}

impl Rows<'_> {
    /// Adds the row of a holder or waiter.
    fn entry(&mut self, state: &str, party: &Owner, id: Option<&[u8]>, since: u64, until: &str) {
        let pid = self.reporter.owner(party).map_or("-".to_string(), |owner| owner.pid.to_string());
        let age = span(self.reporter.host.wall().saturating_sub(Duration::from_millis(since)));
        let mut what = escape(&party.command);
        if let Some(label) = &party.label {
            what = format!("[{}] {what}", escape(label));
        }
        if let Some(id) = id {
            what = format!("id {}: {what}", escape(id));
        }
        self.line(state, [&pid, &escape(party.host.as_bytes()), &shown_user(party.uid), &age, until, &what]);
    }

    fn line(&mut self, state: &str, [pid, host, user, since, until, what]: [&str; 6]) {
        let paint = match (self.style.colour, state) {
            (false, _) => "",
            (_, "dead" | "expired" | "abandoned" | "wait,dead") => "\x1b[31m",
            (_, "waiting" | "waiting s" | "waiting j") => "\x1b[33m",
            (_, "free") => "\x1b[32m",
            _ => "\x1b[1m",
        };
        let end = if paint.is_empty() { "" } else { "\x1b[0m" };
        let row = format!(
            "{} {paint}{}{end} {} {} {} {} {} {}",
            cell(&std::mem::take(&mut self.name), 14),
            cell(state, 9),
            cell(pid, 7),
            cell(host, 8),
            cell(user, 8),
            cell(since, 6),
            cell(until, 7),
            clip(what, self.style.width.max(WIDTH) - HEADER.find("COMMAND").unwrap_or(0)),
        );
        let _ = writeln!(self.text, "{}", row.trim_end());
    }
}
