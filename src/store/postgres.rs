//! PostgreSQL store, for hosts that share a database. The schema has these tables (`schema.sql`):
//!
//! ```text
//! records   name, version number and body of each record
//! removed   256 buckets of names: the highest number of a removed record in each
//! history   a line of history in each row
//! ```
//!
//! **Commit.** One call of the function `change`, in a transaction of its own. It locks the buckets of names that it
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
//! **Standbys.** A commit waits for the synchronous standby, if there is one, and other transactions see it only then. If
//! that wait is cut short, they see the commit although the standby lacks it. So after a commit without a sure answer, a
//! process reads nothing before another commit has its answer: that one is later in the write-ahead log.
//!
//! **Other roles** may create functions and operators in schemas of the search_path, which would take the place of those
//! of PostgreSQL. Each request sets it first ([`session`]), and each function of the schema sets it too.
//!
//! **Leases** are in the records only: each host counts them on its own clock ([`leases`]). A renewal changes the record, so
//! a commit that evicts a holder conflicts with it.
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
mod commit;
mod errors;
mod health;
mod leases;
mod session;
mod settings;
mod tls;
#[cfg(any(test, fuzzing))]
pub(crate) mod untrusted;
mod url;
mod wake;

use std::sync::Arc;

use self::client::Client;
use self::leases::KnownLeases;
use self::session::Row;
use self::settings::Settings;
pub use self::url::Database;
use super::net::{CallDeadline, Connector};
use super::write_set::Absences;
use super::{
    Abilities, CommitResult, Finding, HistoryCursor, Leases, Scope, Store, Subscription, Topic, Upkeep, Variables,
    Version, Versioned, Visit, WriteSet,
};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::name::escape;

/// Maximum number of changes in one transaction.
const MOST_AT_ONCE: usize = 32;

const READ: &str = "SELECT r.number, CASE WHEN octet_length(r.body) <= 4194304 THEN r.body END, b.number, $.origin(), \
                    floor(1000 * extract(epoch FROM clock_timestamp()))::bigint \
                    FROM $.removed b LEFT JOIN $.records r ON r.name = $1 WHERE b.bucket = get_byte(sha256($1), 0)";
const PAGE: &str = "SELECT number, CASE WHEN octet_length(body) <= 4194304 THEN body END, name FROM \
                    (SELECT *, sum(octet_length(body)) OVER (ORDER BY name) - octet_length(body) AS before FROM \
                    (SELECT * FROM $.records WHERE name > $1 ORDER BY name LIMIT 256) page) page \
                    WHERE before < 1048576 AND (SELECT $.origin()) IS NOT NULL ORDER BY name";

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
    /// Returns a store in this database. A trouble with its server shows at the first call.
    /// Fails if a setting is invalid or the certificates cannot be read.
    pub fn open(database: &Database, variables: &Variables<'_>, host: Arc<dyn Host>) -> Result<Postgres> {
        let settings = Settings::new(database, variables, host.uid())?;
        let call_deadline = Arc::new(CallDeadline::new(host.clone()));
        let lonely = settings.targets.len() == 1;
        let connector = Connector { host: host.clone(), call_deadline, tls: tls::config(&settings)?, lonely };
        let remote = settings.targets.iter().filter(|target| !target.is_socket());
        connector.look_up_names(&remote.map(settings::Target::place).collect::<Vec<_>>());
        Ok(Postgres {
            client: Client::new(host, connector, settings),
            schema: database.schema(),
            place: escape(database.url().as_bytes()),
            leases: KnownLeases::default(),
            absences: Absences::default(),
        })
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

    fn nonsense(&self) -> Error {
        errors::SqlError::strange("an answer that does not fit").error(&self.place, &self.schema)
    }
}

/// Returns the number in this column; `None` for NULL.
fn number(row: &Row, column: usize) -> Option<i64> {
    let bytes = row.get(column)?.as_deref()?;
    Some(i64::from_be_bytes(bytes.try_into().ok()?))
}

impl Store for Postgres {
    fn read(&self, name: &[u8]) -> Result<Option<Versioned>> {
        self.settle_doubt()?;
        let Some(mut rows) = self.query(READ, &[name.to_vec()])? else {
            self.absences.note(name, Some(0));
            return Ok(None);
        };
        let row = rows.first_mut().ok_or_else(|| self.nonsense())?;
        self.leases.note_time(&*self.client.host, number(row, 4));
        let bucket = number(row, 2).map(i64::unsigned_abs);
        let found = self.stored(row, name);
        self.absences.note(name, bucket.filter(|_| found == Ok(None)));
        found
    }

    fn scan(&self, visit: &mut Visit<'_>) -> Result<()> {
        self.settle_doubt()?;
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
        if set.changes.is_empty() && set.history.is_empty() {
            return Ok(CommitResult::Done(Version::default()));
        }
        for lease in &set.expired {
            if !self.leases().is_expired(lease)? {
                return Ok(CommitResult::Conflict(None));
            }
        }
        self.transact(set)
    }

    fn finish(&self, set: &WriteSet<'_>) {
        self.notify(set);
        self.prune_history(set);
    }

    fn leases(&self) -> &dyn Leases {
        self
    }

    fn subscribe(&self, topic: Topic<'_>) -> Option<Box<dyn Subscription>> {
        let Topic::Channel(channel, _) = topic else { return None };
        self.listen(channel)
    }

    fn abilities(&self) -> Abilities {
        Abilities { scope: Scope::Shared, changes: MOST_AT_ONCE, wakes_hosts: true, notifies: false }
    }

    fn before_wait(&self) {
        self.leave_if_crowded();
    }

    fn describe(&self, name: &[u8]) -> String {
        format!("{} (row \"{}\")", self.place, escape(name))
    }
}

impl Upkeep for Postgres {
    fn read_new_history(&self, cursor: &mut HistoryCursor, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.new_history(cursor.of(), visit).map(|()| true)
    }

    fn diagnose(&self) -> Vec<Finding> {
        self.findings()
    }
}
