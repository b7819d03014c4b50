//! `status` for people: a table with one row for each lock.

use std::time::Duration;

use super::holder::{Holder, holders, label_and_command, shown_user, waiting};
use super::json::state;
use super::table::{Column, OutputStyle, Table};
use super::{Reporter, describe_value};
use crate::duration::shown as span;
use crate::engine::LockStatus;
use crate::lock::{EndReason, Lifetime, Liveness, Mode, Value};
use crate::name::escape;

/// Index of the column of hosts.
const HOST: usize = 4;

/// The rows of `status`, sorted by name.
#[derive(Debug, Clone)]
pub(crate) struct LockTable {
    table: Table,
    style: OutputStyle,
    now: Duration,
    /// Name of this host, which a terminal does not repeat in each row.
    here: String,
    has_other_host: bool,
    holders: usize,
    waiters: usize,
}

impl LockTable {
    /// Creates a table without rows, as it is seen on the host with this name at `now`.
    pub(crate) fn new(style: OutputStyle, host: &str, now: Duration) -> LockTable {
        let columns = [
            Column::new("NAME").shrinks_to(12),
            Column::new("STATE").coloured(state_colour),
            Column::new("WAITERS").coloured(|cell| if cell == "0" { "" } else { "\x1b[33m" }),
            Column::new("PID").leaves(4),
            Column::new("HOST").shrinks_to(8).leaves(3),
            Column::new("USER").shrinks_to(8).leaves(2),
            Column::new("SINCE"),
            Column::new("UNTIL").leaves(1),
            Column::new("COMMAND").shrinks_to(20),
        ];
        let (table, here) = (Table::new(columns, style), escape(host.as_bytes()));
        LockTable { table, style, now, here, has_other_host: false, holders: 0, waiters: 0 }
    }

    /// Adds the row of one lock.
    pub(crate) fn add(&mut self, name: &[u8], status: &LockStatus, reporter: &Reporter<'_>) {
        self.waiters += waiting(status);
        let (name, waiters) = (escape(name), waiting(status).to_string());
        let holders = shown_holders(status);
        let Some(first) = holders.first() else {
            let value = status.record.value.as_ref();
            let value = value.map_or("-".to_string(), |value| format!("(value: {})", shown_value(value)));
            self.table.add(&[&name, state(status), &waiters, "-", "-", "-", "-", "-", &value]);
            return;
        };
        self.holders += holders.len();
        let (grant, owner) = (first.0, &first.0.owner);
        let mut pid = reporter.owner(owner).map_or("-".to_string(), |owner| owner.pid.to_string());
        if holders.len() > 1 {
            pid.push_str(&format!("+{}", holders.len() - 1));
        }
        let host = escape(owner.host.as_bytes());
        self.has_other_host |= host != self.here;
        let id = grant.claim.as_ref().map(|id| format!("id {}: ", escape(id))).unwrap_or_default();
        self.table.add(&[
            name,
            held_as(first, holders.len(), status, reporter),
            waiters,
            pid,
            host,
            shown_user(owner.uid),
            self.style.time(grant.since, self.now),
            self.until(first),
            id + &label_and_command(owner.label.as_ref(), &owner.command),
        ]);
    }

    /// Sorts the rows by name.
    pub(crate) fn sort(&mut self) {
        self.table.sort();
    }

    /// Returns the number of locks.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Returns the number of holders and of waiters of all locks.
    pub(crate) fn parties(&self) -> (usize, usize) {
        (self.holders, self.waiters)
    }

    /// Returns the header and a function that returns the row with a given index.
    pub(crate) fn lines(&self) -> (String, impl Fn(usize) -> String) {
        let is_obvious = self.style.width.is_some() && !self.has_other_host;
        self.table.lines(is_obvious.then_some(HOST))
    }

    fn until(&self, (grant, standing): &Holder<'_>) -> String {
        match &grant.lifetime {
            _ if standing.is_err() => "over".to_string(),
            Lifetime::WhileOwnerLives | Lifetime::KeepalivePending(_) | Lifetime::Keepalive(_) => "alive".to_string(),
            Lifetime::OwnerDied => "over".to_string(),
            Lifetime::UntilReleased => "forever".to_string(),
            Lifetime::Ttl(most) => span(Duration::from_millis(*most)),
            Lifetime::ExpiresAt(lease) => self.style.time(lease.wall, self.now),
        }
    }
}

fn state_colour(state: &str) -> &'static str {
    match state {
        "free" => "\x1b[32m",
        "dead" | "expired" | "abandoned" => "\x1b[31m",
        _ => "\x1b[1m",
    }
}

/// Returns version and size of a value, and its mode if it has one of its own.
pub(super) fn shown_value(value: &Value) -> String {
    let mode = value.mode.map(|mode| format!(", mode {mode:04o}")).unwrap_or_default();
    format!("{}{mode}", describe_value(value))
}

/// Returns the holders in the row of a lock, of which the first stands for all: those that hold the lock or, if no grant
/// holds it any more, those that ended without a release.
fn shown_holders(status: &LockStatus) -> Vec<Holder<'_>> {
    let (held, ended): (Vec<_>, Vec<_>) = holders(status).into_iter().partition(|(_, standing)| standing.is_ok());
    if held.is_empty() { ended } else { held }
}

/// Returns the state of a lock: `held`, `shared` or `2/3`; a question mark means unknown liveness, and a word follows if
/// its holder is dead or stopped.
fn held_as((grant, standing): &Holder<'_>, number: usize, status: &LockStatus, reporter: &Reporter<'_>) -> String {
    let how = match (grant.mode, standing) {
        (_, Err(EndReason::Expired)) => return "expired".to_string(),
        (_, Err(_)) => return "dead".to_string(),
        _ if grant.claim.is_some() => return "claimed".to_string(),
        (Mode::Exclusive, _) => "held".to_string(),
        (Mode::Shared, _) => "shared".to_string(),
        (Mode::Slot, _) => format!("{number}/{}", status.record.slots.unwrap_or_default()),
    };
    match standing {
        Ok(Liveness::Unknown | Liveness::Missing) => format!("{how}?"),
        // The grant is permanent, or it would not hold the lock any more.
        Ok(Liveness::Dead) => format!("{how},dead"),
        _ if reporter.is_stopped(grant) => format!("{how},stopped"),
        _ => how,
    }
}
