//! PostgreSQL store, for hosts that share a database. The schema has these tables (`schema.sql`):
//!
//! ```text
//! records   name, version number and body of each record
//! removed   256 buckets of names: the highest number of a removed record in each
//! leases    id, span and end of each lease, and the server whose clock counts
//! history   a line of history in each row
//! ```
//!
//! **Commit.** One call of the function `commit`, in a transaction of its own. It locks the buckets of names that it
//! creates or removes, then their records, both in one order; so commits do not deadlock. Under READ COMMITTED each
//! statement of a function sees all that was committed before it, and a locked row as it is after the wait. After the
//! locks, no other transaction can change these records, and the function compares their numbers and the leases.
//! Under a stricter isolation PostgreSQL ends the transaction instead, and the client repeats it.
//!
//! **Numbers.** A new number is above those of the expected records and of their buckets. A removal stores its number
//! in the bucket under the same lock, so the number of a name never falls. A sequence would not do: its order is not
//! the order of commits.
//!
//! **Lost answers.** The client repeats a commit whose answer is missing, since it may have been made. A copy that
//! comes late finds another number and conflicts. An absent record has no number, so a creation also requires that
//! its bucket has the number that the last read found there: if the record was created and removed since, the bucket
//! has a higher number.
//!
//! **Leases.** The transaction that ends a grant compares that its lease is over. Only a promotion of another server
//! makes a lease longer, so the answer cannot become wrong before the commit ([`leases`]).
//!
//! **Sessions.** There is no state in a session, so each request may reach another server process of a pooler. Only
//! wake-ups need a session ([`wake`]), and correctness does not depend on them.
//!
//! **Refusals.** A standby may be behind, so even reads are refused there: they ask for the timeline of the write-ahead
//! log, which is an error on a standby. A server with `synchronous_commit = off` could lose a commit in a crash.
//!
//! **Trust.** A role that may write these tables can acquire any lock.

mod auth;
mod client;
mod errors;
mod health;
mod history;
mod leases;
mod session;
mod settings;
mod tls;
mod url;
mod wake;

use std::sync::Arc;
use std::time::Duration;

use self::client::{Client, State};
use self::leases::{KnownLeases, Pending};
use self::session::{Row, array};
use self::settings::Settings;
pub use self::url::Database;
use super::etcd::births::Absences;
use super::etcd::connection::CallDeadline;
use super::etcd::dial::Connector;
use super::{
    Abilities, Access, CommitResult, Finding, HistoryCursor, Leases, Scope, Store, Subscription, Topic, Version,
    Versioned, Visit, Write, WriteSet,
};
use crate::error::{Error, ErrorKind, Result};
use crate::host::Host;
use crate::name::escape;

/// Maximum number of changes in one transaction.
const MOST_AT_ONCE: usize = 32;

const READ: &str = "SELECT r.number, CASE WHEN octet_length(r.body) <= 4194304 THEN r.body END, b.number, $.server() \
                    FROM $.removed b LEFT JOIN $.records r ON r.name = $1 WHERE b.bucket = get_byte(sha256($1), 0)";
const PAGE: &str = "SELECT number, CASE WHEN octet_length(body) <= 4194304 THEN body END, name FROM \
                    (SELECT *, sum(octet_length(body)) OVER (ORDER BY name) - octet_length(body) AS before FROM \
                    (SELECT * FROM $.records WHERE name > $1 ORDER BY name LIMIT 256) page) page \
                    WHERE before < 1048576 AND (SELECT $.server()) IS NOT NULL ORDER BY name";
const COMMIT: &str = "SELECT * FROM $.commit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

/// Store in a schema of a PostgreSQL database.
pub struct Postgres {
    client: Client,
    schema: String,
    /// URL of the store, for messages.
    place: String,
    leases: KnownLeases,
    /// Numbers of the buckets in which the last reads found no record.
    absences: Absences,
}

impl Postgres {
    /// Returns a store in this database, without contacting it.
    /// Fails if a setting is invalid or the certificates cannot be read.
    pub fn open(database: &Database, access: &Access, host: Arc<dyn Host>) -> Result<Postgres> {
        let settings = Settings::new(database, access, host.uid())?;
        let call_deadline = Arc::new(CallDeadline::new(host.clone()));
        let connector = Connector { host: host.clone(), call_deadline, tls: tls::config(&settings)?, lonely: true };
        if !settings.host.starts_with('/') {
            connector.look_up_names(&[settings.server()]);
        }
        Ok(Postgres {
            client: Client { host, connector, settings, state: State::default().into() },
            schema: database.schema(),
            place: escape(database.url().as_bytes()),
            leases: KnownLeases::default(),
            absences: Absences::default(),
        })
    }

    /// Refuses a mode that lets fewer users read the record than may read the store.
    fn check_mode(&self, change: &Write<'_>) -> Result<()> {
        // A removal makes no bytes readable, so it needs no mode.
        match change.options.mode.filter(|mode| change.body.is_some() && mode & 0o044 != 0o044) {
            None => Ok(()),
            Some(mode) => Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "a table has no modes, so every user who may read {} could read bytes that need mode {mode:04o}",
                    self.place
                ),
                "leave the mode out, and grant SELECT on that schema only to roles that may read them",
            )),
        }
    }

    /// Returns the record of a row whose first columns are its number and body.
    fn stored(&self, row: &mut Row, name: &[u8]) -> Result<Option<Versioned>> {
        let Some(number) = number(row, 0) else { return Ok(None) };
        let version = Version { number: number.unsigned_abs(), mark: 0 };
        match row.get_mut(1).and_then(Option::take) {
            Some(body) => Ok(Some(Versioned { version, body, may_be_torn: false })),
            None => {
                Err(Error::corrupt(format!("{} has no body of 4 MiB at most", self.describe(name))).in_version(version))
            }
        }
    }

    /// Returns a number of the name's bucket at which the name had no record: that of the last read of this process, or
    /// of a new one. `None` if it has a record now.
    fn absent_at(&self, name: &[u8]) -> Result<Option<i64>> {
        let mut known = self.absences.take(name);
        if known.is_none() && self.read(name)?.is_none() {
            known = self.absences.take(name);
        }
        Ok(known.map(|number| number as i64))
    }

    /// Returns the parameters of a commit; `None` if its records cannot have the expected versions.
    fn parameters(&self, set: &WriteSet<'_>, granted: &[Pending]) -> Result<Option<Vec<Vec<u8>>>> {
        // One order for all commits, so that they do not block each other.
        let mut changes: Vec<&Write<'_>> = set.changes.iter().collect();
        changes.sort_by_key(|change| change.name);
        let (mut expects, mut guards) = (Vec::new(), Vec::new());
        for change in &changes {
            self.check_mode(change)?;
            let (expect, guard) = match change.expect {
                Some(Version { number, mark: 0 }) if number > 0 && number <= i64::MAX as u64 => {
                    (Some(number as i64), 0)
                }
                Some(_) => return Ok(None),
                None => match self.absent_at(change.name)? {
                    Some(guard) => (None, guard),
                    None => return Ok(None),
                },
            };
            expects.push(expect.map(i64::to_be_bytes));
            guards.push(Some(guard.to_be_bytes()));
        }
        let numbers = |numbers: Vec<u64>| array(numbers.iter().map(|number| Some(number.to_be_bytes())), false);
        Ok(Some(vec![
            array(changes.iter().map(|change| Some(change.name)), true),
            array(expects, false),
            array(guards, false),
            array(changes.iter().map(|change| change.body), true),
            numbers(leases::ids(&set.expired)),
            numbers(granted.iter().map(|lease| lease.id).collect()),
            numbers(granted.iter().map(|lease| lease.span).collect()),
            numbers(leases::ids(&set.ended)),
            array(set.wake.iter().map(|(channel, _)| Some(self.channel(channel))), true),
            array(set.history.iter().map(Some), true),
        ]))
    }

    /// Runs the transaction of a commit, and creates the schema if a record needs it.
    fn transact(&self, set: &WriteSet<'_>, parameters: &[Vec<u8>]) -> Result<CommitResult> {
        let mut done = self.call(COMMIT, parameters);
        if done.as_ref().is_err_and(|failed| failed.trouble.is_missing()) {
            let creates = |change: &Write<'_>| change.expect.is_none() && change.body.is_some();
            match set.changes.is_empty() {
                false if !set.changes.iter().any(creates) => return Ok(CommitResult::Conflict),
                true if set.history.is_empty() => return Ok(CommitResult::Done(Version::default())),
                _ => {}
            }
            self.create()?;
            done = self.call(COMMIT, parameters);
        }
        let (mut rows, was_resent) = match done {
            Err(failed) if failed.trouble.is_conflict() => return Ok(CommitResult::Conflict),
            done => done.map_err(|failed| failed.error)?,
        };
        let row = rows.first_mut().ok_or_else(|| self.nonsense())?;
        if let Some(number) = number(row, 0) {
            return Ok(CommitResult::Done(Version { number: number.unsigned_abs(), mark: 0 }));
        }
        // The first copy of a repeated transaction may have been committed.
        if let (Some(place), [change], false) = (set.conflicting, &set.changes[..], was_resent) {
            row.remove(0);
            place.replace(self.stored(row, change.name).ok());
        }
        Ok(CommitResult::Conflict)
    }

    /// Returns the error for an answer that does not fit its request.
    fn nonsense(&self) -> Error {
        errors::Trouble::strange("an answer that does not fit").error(&self.place, &self.schema)
    }
}

/// Returns the number in this column; `None` for NULL.
fn number(row: &Row, column: usize) -> Option<i64> {
    let bytes = row.get(column)?.as_deref()?;
    Some(i64::from_be_bytes(bytes.try_into().ok()?))
}

impl Store for Postgres {
    fn read(&self, name: &[u8]) -> Result<Option<Versioned>> {
        let Some(mut rows) = self.query(READ, &[name.to_vec()])? else {
            self.absences.note(name, Some(0));
            return Ok(None);
        };
        let row = rows.first_mut().ok_or_else(|| self.nonsense())?;
        let bucket = number(row, 2).map(i64::unsigned_abs);
        let found = self.stored(row, name);
        self.absences.note(name, bucket.filter(|_| found == Ok(None)));
        found
    }

    fn scan(&self, visit: &mut Visit<'_>) -> Result<()> {
        let mut after = Vec::new();
        loop {
            let rows = self.query(PAGE, &[after.clone()])?.unwrap_or_default();
            if rows.is_empty() {
                return Ok(());
            }
            for mut row in rows {
                let name = row.get_mut(2).and_then(Option::take).ok_or_else(|| self.nonsense())?;
                let found = self.stored(&mut row, &name).and_then(|found| found.ok_or_else(|| self.nonsense()));
                visit(&self.describe(&name), found)?;
                // A list that does not rise could be endless.
                if name <= after {
                    return Err(self.nonsense());
                }
                after = name;
            }
        }
    }

    fn commit(&self, set: &WriteSet<'_>) -> Result<CommitResult> {
        if set.changes.is_empty() && set.ended.is_empty() && set.wake.is_empty() && set.history.is_empty() {
            return Ok(CommitResult::Done(Version::default()));
        }
        // Only new bytes can refer to a pending lease.
        let has_bytes = set.changes.iter().any(|change| change.body.is_some());
        let ended = leases::ids(&set.ended);
        let mut granted = self.leases.pending(self.client.host.boottime());
        granted.retain(|lease| has_bytes && !ended.contains(&lease.id));
        let Some(parameters) = self.parameters(set, &granted)? else { return Ok(CommitResult::Conflict) };
        let done = self.transact(set, &parameters)?;
        if done != CommitResult::Conflict {
            self.leases.settle(&granted, &ended);
            set.changes_stand();
            self.prune_history(set);
        }
        Ok(done)
    }

    fn set_deadline(&self, until: Option<Duration>) {
        super::guarded(&self.client.state).until = until;
    }

    fn leases(&self) -> &dyn Leases {
        self
    }

    fn subscribe(&self, topic: Topic<'_>) -> Option<Box<dyn Subscription>> {
        let Topic::Channel(channel, _) = topic else { return None };
        self.listen(channel)
    }

    fn abilities(&self) -> Abilities {
        Abilities { changes: MOST_AT_ONCE, notifies: false, returns_conflicts: true }
    }

    fn scope(&self) -> Scope {
        Scope::Shared
    }

    fn describe(&self, name: &[u8]) -> String {
        format!("{} (row \"{}\")", self.place, escape(name))
    }

    fn read_new_history(&self, cursor: &mut HistoryCursor, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.new_history(cursor, visit).map(|()| true)
    }

    fn diagnose(&self) -> Vec<Finding> {
        self.findings()
    }
}
