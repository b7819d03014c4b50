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
//! process reads nothing before another commit has its answer: that one is later in the write-ahead log. [`Store::settle`]
//! is for the commits of other processes.
//!
//! **Other roles** may create functions and operators in schemas of the search_path, which would take the place of those
//! of PostgreSQL. Each request sets it first ([`session`]), and each function of the schema sets it too.
//!
//! **Leases** are in the records only: each host counts them on its own clock ([`store::leases`]). A renewal changes the
//! record, so a commit that evicts a holder conflicts with it. The store's time is that of the server; it only shows
//! whether a clock of this host is the one of an earlier sighting.
//!
//! **Sessions.** There is no state in a session, so each request may reach another server process of a pooler. Only
//! wake-ups need a session ([`client`]), and correctness does not depend on them.
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
mod session;
mod settings;
mod tls;
#[cfg(any(test, fuzzing, debug_assertions))]
pub mod untrusted;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::session::{Row, Session};
use self::settings::{Settings, is_known};
use host::{Host, server_time};
use lock::error::{Error, Result};
use lock::name::escape;
use lock::text::unescape;
use lock::{Lease, Sighting};
use net::{Absences, Calls, Connector, host_and_port};
use store::leases::{Seen, lend_shared, remaining_shared};
use store::{
    Abilities, Call, CommitResult, Finding, Leases, Scope, ServerUrl, Store, Subscription, Topic, Upkeep, Variables,
    Version, Versioned, Visit, WriteSet, guarded,
};

/// Format of the schema: the number in schema.sql and check.sql.
pub const FORMAT: u32 = 2;

const SCHEMA: &str = "csalock";

/// Settings of libpq that a URL has elsewhere.
const ELSEWHERE: [&str; 4] = ["user", "host", "port", "dbname"];

/// Settings that are no option of a URL, because every user sees it.
const PRIVATE: [&str; 6] =
    ["password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key", "passfile"];

const NO_PASSWORD: &str = "a password does not belong there, where every user sees it; use ~/.pgpass";

/// User, hosts with their ports.
type Parts = (Option<String>, Vec<(String, Option<String>)>);

/// A database and the schema of the store, as typed: `postgres://[USER@]HOST[:PORT]/DATABASE[?schema=NAME&...]`. The
/// environment adds missing parts, as in libpq.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Database {
    /// `[USER@][HOST][:PORT]`, percent-encoded.
    pub(crate) address: String,
    pub(crate) name: String,
    /// Options: `KEY=VALUE&KEY=VALUE`, percent-encoded.
    pub(crate) options: String,
}

impl Database {
    /// Parses the part after the scheme: `//[USER@]HOST[:PORT]/DATABASE[?OPTIONS]`.
    pub(crate) fn parse(rest: &[u8]) -> std::result::Result<Database, &'static str> {
        let rest = std::str::from_utf8(rest).map_err(|_| "it is not UTF-8")?;
        let rest = rest.strip_prefix("//").ok_or("two slashes and a server come after the colon")?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (address, name) = rest.split_once('/').unwrap_or((rest, ""));
        let name = name.strip_prefix("./").unwrap_or(name);
        let database = Database { address: address.into(), name: name.into(), options: options.into() };
        let parts = database.parts().filter(|_| [name, options].into_iter().all(|part| decoded(part).is_some()));
        let (user, hosts) = parts.ok_or("a percent sign starts two hexadecimal digits")?;
        if user.is_some_and(|user| user.contains(':')) {
            return Err(NO_PASSWORD);
        }
        let is_port = |port: &String| port.parse::<u16>().is_ok_and(|port| port > 0);
        // In `u:1/secret@h/d` the password would be taken for a port and a name, and shown.
        if name.contains('@') || !hosts.iter().all(|(_, port)| port.as_ref().is_none_or(is_port)) {
            return Err("the server is HOST:PORT, a list of them, or an encoded path of a socket's directory");
        }
        let keys = || options.split('&').filter(|option| !option.is_empty()).map(|option| option.split_once('='));
        if keys().flatten().any(|(key, _)| PRIVATE.contains(&key)) {
            return Err(NO_PASSWORD);
        }
        let is_known = |key: &str| key == "schema" || (is_known(key) && !ELSEWHERE.contains(&key));
        if !keys().all(|option| option.is_some_and(|(key, _)| is_known(key))) {
            return Err("its options are schema, lease, and settings of libpq that are not in the URL already");
        }
        let starts_well = |schema: &str| schema.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let schema = database.schema();
        if !starts_well(&schema) || schema.len() > 40 || !schema.bytes().all(is_plain) {
            return Err("a schema has at most 40 letters a to z, digits and underscores, and starts with no digit");
        }
        Ok(database)
    }

    fn option(&self, wanted: &str) -> Option<String> {
        let mut options = self.options.split('&').filter_map(|option| option.split_once('='));
        options.find(|(key, _)| *key == wanted).and_then(|(_, value)| decoded(value))
    }

    fn schema(&self) -> String {
        self.option("schema").unwrap_or_else(|| SCHEMA.to_string())
    }

    fn parts(&self) -> Option<Parts> {
        let (user, servers) = self.address.rsplit_once('@').map_or((None, &self.address[..]), |(u, s)| (Some(u), s));
        let host = |server: &str| {
            let (host, port) = host_and_port(server);
            Some((decoded(host)?, port.map(str::to_string)))
        };
        let user = user.map(decoded).map_or(Some(None), |user| user.map(Some))?;
        Some((user, servers.split(',').map(host).collect::<Option<_>>()?))
    }
}

impl ServerUrl for Database {
    fn url(&self) -> String {
        let mark = if self.options.is_empty() { "" } else { "?" };
        format!("postgres://{}/{}{mark}{}", self.address, self.name, self.options)
    }

    fn open(&self, variables: &Variables<'_>, host: Arc<dyn Host>) -> Result<Box<dyn Store>> {
        Ok(Box::new(Postgres::open(self, variables, host)?))
    }
}

/// Reads a URL after `postgres:` or `postgresql:`.
pub fn parse(rest: &[u8]) -> std::result::Result<Arc<dyn ServerUrl>, &'static str> {
    Ok(Arc::new(Database::parse(rest)?))
}

fn decoded(text: &str) -> Option<String> {
    String::from_utf8(unescape(text)?).ok().filter(|text| !text.contains('\0'))
}

const READ: &str = "SELECT r.number, CASE WHEN octet_length(r.body) <= 4194304 THEN r.body END, b.number, $origin, \
                    floor(1000 * extract(epoch FROM clock_timestamp()))::bigint \
                    FROM $.removed b LEFT JOIN $.records r ON r.name = $1 WHERE b.bucket = get_byte(sha256($1), 0)";
const PAGE: &str = "SELECT number, CASE WHEN octet_length(body) <= 4194304 THEN body END, name, (SELECT $origin) FROM \
                    (SELECT *, sum(octet_length(body)) OVER (ORDER BY name) - octet_length(body) AS before FROM \
                    (SELECT * FROM $.records WHERE name > $1 ORDER BY name LIMIT 256) page) page \
                    WHERE before < 1048576 ORDER BY name";

const TIME: &str = "SELECT floor(1000 * extract(epoch FROM clock_timestamp()))::bigint";

/// Time for which the server's time in an answer counts: in steps of this host's clock, it is that much older.
const TIME_LASTS: Duration = Duration::from_secs(5);

pub(crate) struct Postgres {
    host: Arc<dyn Host>,
    connector: Connector,
    settings: Settings,
    session: Mutex<Option<Session>>,
    calls: Calls,
    schema: String,
    place: String,
    /// True after a commit whose answer is missing, until a later one has an answer.
    in_doubt: AtomicBool,
    /// Origin of what was read first, since a flush found another one.
    origin: Mutex<Option<Vec<u8>>>,
    /// Time until which the result counts, and the result.
    crowd: Mutex<Option<(Duration, bool)>>,
    seen: Seen,
    /// CLOCK_BOOTTIME of an answer, and the server's time in it.
    server_time: Mutex<Option<(Duration, Duration)>>,
    /// Numbers of the buckets in which the last reads found no record.
    absences: Absences,
}

impl Postgres {
    /// Fails if a setting is invalid or the certificates cannot be read. A trouble with the server shows at the first call.
    pub(crate) fn open(database: &Database, variables: &Variables<'_>, host: Arc<dyn Host>) -> Result<Postgres> {
        let settings = Settings::new(database, variables, host.uid())?;
        let remote = settings.targets.iter().filter(|target| !target.is_socket());
        let names: Vec<String> = remote.map(settings::Target::place).collect();
        let connector = Connector::new(host.clone(), tls::config(&settings)?, settings.targets.len() == 1, &names);
        connector.call_deadline.set(host.boottime() + client::TO_CONNECT);
        let session = Session::open(&connector, &settings).ok();
        Ok(Postgres {
            calls: Calls::new(host.clone(), session.is_some()),
            host,
            connector,
            settings,
            session: Mutex::new(session),
            schema: database.schema(),
            place: escape(database.url().as_bytes()),
            in_doubt: AtomicBool::new(false),
            origin: Mutex::default(),
            crowd: Mutex::default(),
            seen: Seen::default(),
            server_time: Mutex::default(),
            absences: Absences::default(),
        })
    }

    /// The first columns of the row are number and body.
    fn stored(&self, row: &mut Row, name: &[u8]) -> Result<Option<Versioned>> {
        let Some(number) = number(row, 0) else { return Ok(None) };
        let version = Version { number: number.unsigned_abs(), mark: 0 };
        match row.get_mut(1).and_then(Option::take) {
            Some(body) => Ok(Some(Versioned::new(version, body))),
            None => {
                Err(Error::corrupt(format!("{} has no body of 4 MiB at most", self.describe(name))).in_version(version))
            }
        }
    }

    fn nonsense(&self) -> Error {
        errors::explain(&errors::strange("an answer that does not fit"), &self.place, &self.schema)
    }

    /// Notes the server's time in an answer that has just come, in milliseconds since 1970.
    fn note_time(&self, time: Option<i64>) {
        let time = time.map(|time| server_time(Duration::from_millis(time.unsigned_abs())));
        *guarded(&self.server_time) = time.map(|time| (self.host.boottime(), time));
    }

    fn recent_time(&self, call: Call) -> Result<Duration> {
        let known = *guarded(&self.server_time);
        let known = known.map(|(at, time)| (time, self.host.boottime().saturating_sub(at)));
        match known {
            Some((time, since)) if since < TIME_LASTS => Ok(time + since),
            _ => self.time(call),
        }
    }
}

fn number(row: &Row, column: usize) -> Option<i64> {
    let bytes = row.get(column)?.as_deref()?;
    Some(i64::from_be_bytes(bytes.try_into().ok()?))
}

impl Store for Postgres {
    fn read(&self, call: Call, name: &[u8]) -> Result<Option<Versioned>> {
        self.settle_doubt(call)?;
        let Some(mut rows) = self.query(call, READ, &[name.to_vec()])? else {
            self.absences.note(name, Some(0));
            return Ok(None);
        };
        let row = rows.first_mut().ok_or_else(|| self.nonsense())?;
        self.note_time(number(row, 4));
        self.note_origin(row, 3);
        let bucket = number(row, 2).map(i64::unsigned_abs);
        let found = self.stored(row, name);
        self.absences.note(name, bucket.filter(|_| found == Ok(None)));
        found
    }

    fn scan(&self, call: Call, visit: &mut Visit<'_>) -> Result<()> {
        self.settle_doubt(call)?;
        let mut after = Vec::new();
        loop {
            let rows = self.query(call, PAGE, &[after.clone()])?.unwrap_or_default();
            if rows.is_empty() {
                return Ok(());
            }
            for mut row in rows {
                self.note_origin(&row, 3);
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

    fn commit(&self, call: Call, set: &WriteSet<'_>) -> Result<CommitResult> {
        if set.change.is_none() && set.history.is_empty() {
            return Ok(CommitResult::Done(Version::default()));
        }
        if !set.leases_are_over(call, self)? {
            return Ok(CommitResult::Conflict(None));
        }
        self.transact(call, set)
    }

    fn finish(&self, call: Call, set: &WriteSet<'_>) {
        self.notify(call, set);
        self.prune_history(call, set);
    }

    fn settle(&self, call: Call) -> Result<()> {
        self.settle_reads(call)
    }

    fn leases(&self) -> &dyn Leases {
        self
    }

    fn subscribe(&self, call: Call, topic: Topic<'_>) -> Option<Box<dyn Subscription>> {
        let Topic::Channel(channel, _) = topic else { return None };
        self.listen(call, channel)
    }

    fn abilities(&self) -> Abilities {
        Abilities { scope: Scope::Shared, wakes_hosts: true, notifies: false }
    }

    fn before_wait(&self, call: Call, is_long: bool) -> bool {
        let leaves = is_long || self.is_crowded(call);
        if leaves && let Some(mut session) = guarded(&self.session).take() {
            session.end();
        }
        leaves
    }
}

impl Upkeep for Postgres {
    fn describe(&self, name: &[u8]) -> String {
        format!("{} (row \"{}\")", self.place, escape(name))
    }

    fn answers(&self) -> u64 {
        self.calls.answers()
    }

    fn read_history(&self, call: Call, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.visit_history(call, visit).map(|()| true)
    }

    fn count_connections(&self, call: Call) -> Option<(u64, u64)> {
        let (rows, _) = self.call(call, client::CONNECTIONS, &[]).ok()?;
        let number = |column| number(rows.first()?, column).map(i64::unsigned_abs);
        number(0).zip(number(1))
    }

    fn diagnose(&self, call: Call) -> Vec<Finding> {
        self.findings(call)
    }
}

impl Leases for Postgres {
    fn grant(&self, call: Call, span: Duration) -> Result<Lease> {
        lend_shared(&*self.host, span, || self.recent_time(call))
    }

    fn time(&self, call: Call) -> Result<Duration> {
        let rows = self.query(call, TIME, &[])?.unwrap_or_default();
        let time = rows.first().and_then(|row| number(row, 0)).ok_or_else(|| self.nonsense())?;
        self.note_time(Some(time));
        Ok(server_time(Duration::from_millis(time.unsigned_abs())))
    }

    fn ttl(&self, call: Call, lease: &Lease) -> Result<Duration> {
        remaining_shared(&*self.host, lease, || self.recent_time(call))
    }

    fn time_to_expiry(&self, call: Call, lease: &Lease, seen: &[Sighting]) -> Result<Duration> {
        self.seen.until_over(&*self.host, lease, seen, || self.recent_time(call))
    }

    fn new_sightings(&self, call: Call, leases: &[&Lease], seen: &[Sighting]) -> Result<Vec<Sighting>> {
        self.seen.to_note(&*self.host, leases, seen, || self.recent_time(call))
    }
}
