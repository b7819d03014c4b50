//! `status` for people: a table with one row for each lock.

use std::time::Duration;

use super::json::state;
use super::table::{Column, Layout, OutputStyle, Table};
use super::{Reporter, describe_value, shown_user};
use crate::duration::shown as span;
use crate::engine::LockStatus;
use crate::lock::{EndReason, Grant, Lifetime, Liveness, Mode, Value};
use crate::name::escape;

/// Index of each column whose cells decide about colours or columns.
const STATE: usize = 1;
const WAITERS: usize = 2;
const HOST: usize = 4;

/// The rows of `status`, sorted by name.
#[derive(Debug, Clone)]
pub struct LockTable {
    table: Table,
    style: OutputStyle,
    now: Duration,
    /// Name of this host, which a terminal does not repeat in each row.
    here: String,
    has_other_host: bool,
    holders: usize,
    waiters: usize,
}

/// A holder's grant, and the liveness of its owner or the reason why it has ended.
type Holder<'a> = (&'a Grant, std::result::Result<Liveness, EndReason>);

impl LockTable {
    /// Creates a table without rows, as it is seen on the host with this name at `now`.
    pub fn new(style: OutputStyle, host: &str, now: Duration) -> LockTable {
        let columns = vec![
            Column::new("NAME").shrinks_to(12),
            Column::new("STATE"),
            Column::new("WAITERS"),
            Column::new("PID").leaves(4),
            Column::new("HOST").shrinks_to(8).leaves(3),
            Column::new("USER").shrinks_to(8).leaves(2),
            Column::new("SINCE"),
            Column::new("UNTIL").leaves(1),
            Column::new("COMMAND").shrinks_to(20),
        ];
        LockTable {
            table: Table::new(columns),
            style,
            now,
            here: escape(host.as_bytes()),
            has_other_host: false,
            holders: 0,
            waiters: 0,
        }
    }

    /// Adds the row of one lock.
    pub fn add(&mut self, name: &[u8], status: &LockStatus, reporter: &Reporter<'_>) {
        self.waiters += waiting(status);
        let (name, waiters) = (escape(name), waiting(status).to_string());
        let Some((holder, others)) = holders(status) else {
            let value = status.record.value.as_ref();
            let value = value.map_or("-".to_string(), |value| format!("(value: {})", shown_value(value)));
            self.table.add(&[&name, state(status), &waiters, "-", "-", "-", "-", "-", &value]);
            return;
        };
        self.holders += 1 + others;
        let (grant, owner) = (holder.0, &holder.0.owner);
        let mut pid = reporter.owner(owner).map_or("-".to_string(), |owner| owner.pid.to_string());
        if others > 0 {
            pid.push_str(&format!("+{others}"));
        }
        let host = escape(owner.host.as_bytes());
        self.has_other_host |= host != self.here;
        let since = self.time(Duration::from_millis(grant.since));
        let (user, command) = (shown_user(owner.uid), reason(grant));
        self.table.add(&[
            &name,
            &held_as(&holder, others, status, reporter),
            &waiters,
            &pid,
            &host,
            &user,
            &since,
            &self.until(&holder),
            &command,
        ]);
    }

    /// Sorts the rows by name.
    pub fn sort(&mut self) {
        self.table.sort();
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns true if the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Returns the number of holders and of waiters of all locks.
    pub fn parties(&self) -> (usize, usize) {
        (self.holders, self.waiters)
    }

    /// Returns the header and a function that returns the row with a given index.
    pub fn lines(&self) -> (String, impl Fn(usize) -> String) {
        let is_obvious = self.style.width.is_some() && !self.has_other_host;
        let layout: Layout = self.table.layout(self.style.width, if is_obvious { &[HOST] } else { &[] });
        let header = self.table.header(&layout);
        (header, move |at| self.table.row(at, &layout, &|column, cell| self.paint(column, cell)))
    }

    fn paint(&self, column: usize, cell: &str) -> &'static str {
        match (column, cell) {
            _ if !self.style.colour => "",
            (STATE, "free") => "\x1b[32m",
            (STATE, "dead" | "expired" | "abandoned") => "\x1b[31m",
            (STATE, _) => "\x1b[1m",
            (WAITERS, "0") => "",
            (WAITERS, _) => "\x1b[33m",
            _ => "",
        }
    }

    /// Returns a time as its readers need it: a file may be read at any time and place.
    fn time(&self, time: Duration) -> String {
        match self.style.width {
            Some(_) => self.style.zone.brief(time, self.now),
            None => self.style.zone.word(time),
        }
    }

    fn until(&self, (grant, standing): &Holder<'_>) -> String {
        match &grant.lifetime {
            _ if standing.is_err() => "over".to_string(),
            Lifetime::WhileOwnerLives | Lifetime::KeepalivePending(_) | Lifetime::Keepalive(_) => "alive".to_string(),
            Lifetime::OwnerDied => "over".to_string(),
            Lifetime::UntilReleased => "forever".to_string(),
            Lifetime::Ttl(most) => span(Duration::from_millis(*most)),
            Lifetime::ExpiresAt(lease) => self.time(Duration::from_millis(lease.wall)),
        }
    }
}

/// Returns version and size of a value, and its mode if it has one of its own.
pub(super) fn shown_value(value: &Value) -> String {
    let mode = value.mode.map(|mode| format!(", mode {mode:04o}")).unwrap_or_default();
    format!("{}{mode}", describe_value(value))
}

/// Returns the number of waiters that are not dead.
pub(super) fn waiting(status: &LockStatus) -> usize {
    status.waiters.iter().filter(|liveness| **liveness != Liveness::Dead).count()
}

/// Returns the holder that stands for all in the row of a lock, and the number of the others: the first of those that
/// hold the lock or, if no grant holds it any more, of those that ended without a release.
fn holders(status: &LockStatus) -> Option<(Holder<'_>, usize)> {
    let all = status.record.holders.iter().zip(status.holders.iter().copied());
    let (held, ended): (Vec<_>, Vec<_>) = all.partition(|(_, standing)| standing.is_ok());
    let ended = ended.into_iter().filter(|(_, standing)| *standing != Err(EndReason::Released));
    let shown: Vec<Holder<'_>> = if held.is_empty() { ended.collect() } else { held };
    shown.first().map(|first| (*first, shown.len() - 1))
}

/// Returns the state of a lock: `held`, `shared` or `2/3`; a question mark means unknown liveness, and a word follows if
/// its holder is dead or stopped.
fn held_as((grant, standing): &Holder<'_>, others: usize, status: &LockStatus, reporter: &Reporter<'_>) -> String {
    let how = match (grant.mode, standing) {
        (_, Err(EndReason::Expired)) => return "expired".to_string(),
        (_, Err(_)) => return "dead".to_string(),
        _ if grant.claim.is_some() => return "claimed".to_string(),
        (Mode::Exclusive, _) => "held".to_string(),
        (Mode::Shared, _) => "shared".to_string(),
        (Mode::Slot, _) => format!("{}/{}", others + 1, status.record.slots.unwrap_or_default()),
    };
    match standing {
        Ok(Liveness::Unknown | Liveness::Missing) => format!("{how}?"),
        // The grant is permanent, or it would not hold the lock any more.
        Ok(Liveness::Dead) => format!("{how},dead"),
        _ if reporter.is_stopped(grant) => format!("{how},stopped"),
        _ => how,
    }
}

/// Returns the id of a claim, the label and the command.
fn reason(grant: &Grant) -> String {
    let id = grant.claim.as_ref().map(|id| format!("id {}: ", escape(id))).unwrap_or_default();
    let label = grant.owner.label.as_ref().map(|label| format!("[{}] ", escape(label))).unwrap_or_default();
    format!("{id}{label}{}", escape(&grant.owner.command))
}
