//! Sends requests to the server, and repeats them as [`net::Calls`] does. Wakes waiters by NOTIFY, and
//! subscribes to their channels by LISTEN. A waiter that misses a notification reads the record a while later.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use sha2::{Digest, Sha256};

use super::errors::{SqlCause, SqlError, code, ends_call, explain, is_missing, is_taken};
use super::session::{Done, Row, Session, array, script, statement};
use super::{Postgres, number};
use lock::error::{Error, ErrorKind, Result};
use net::{CallError, NetError, TO_BEGIN};
use store::{Call, Subscription, Upkeep, WriteSet, guarded};

/// Maximum time of one attempt. A connection may be dead without a sign.
const SHARE: Duration = Duration::from_secs(4);

/// Server and timeline of an answer, with a slash at the end if commits wait for a synchronous standby.
const ORIGIN: &str = "$.origin() || CASE current_setting('synchronous_standby_names') WHEN '' THEN '' ELSE '/' END";

/// Commit without changes, whose answer says that all earlier ones stand. Unlike an update it needs no privilege.
const FLUSH: &str = "SELECT $origin, pg_logical_emit_message(true, 'csalock', '')";

/// Connections of the server that are in use, and those that ordinary users may have.
pub(super) const CONNECTIONS: &str = "SELECT sum(numbackends)::bigint, current_setting('max_connections')::bigint - \
                           current_setting('superuser_reserved_connections')::bigint FROM pg_stat_database";

/// True if the server waits for a synchronous standby that is absent or silent.
const LACKS_STANDBY: &str = "SELECT current_setting('synchronous_standby_names') <> '' AND \
                             ((SELECT count(*) FROM pg_stat_replication) = 0 OR EXISTS (SELECT FROM pg_stat_activity \
                             WHERE wait_event = 'SyncRep' AND xact_start < clock_timestamp() - interval '2 s'))";

/// Time for which an answer to that counts.
const CROWD_LASTS: Duration = Duration::from_secs(5);

const NOTIFY: &str = "SELECT pg_notify(convert_from(wake, 'UTF8'), '') FROM unnest($1::bytea[]) wake";

/// Maximum time to connect before a process knows what it needs.
pub(super) const TO_CONNECT: Duration = Duration::from_secs(1);

/// Makes a request that gives the server this time.
type MakeRequest<'a> = dyn Fn(Duration) -> Done<BytesMut> + 'a;

impl Postgres {
    /// `$.` stands for the store's schema. Also returns true if the statement was sent more than once.
    pub(super) fn call(&self, call: Call, sql: &str, parameters: &[Vec<u8>]) -> Done<(Vec<Row>, bool)> {
        let sql = sql.replace("$origin", ORIGIN).replace("$.", &format!("\"{}\".", self.schema));
        self.send(call, sql.contains(".change("), &|left| statement(&sql, parameters, left))
    }

    /// Runs statements without parameters as one transaction. Returns the rows of the last one, as text.
    pub(super) fn run(&self, call: Call, sql: &str) -> Done<Vec<Row>> {
        let sql = sql.replace("\"csalock\"", &format!("\"{}\"", self.schema));
        self.send(call, false, &|left| script(&sql, left)).map(|(rows, _)| rows)
    }

    /// `None` without a schema. Fails if the schema has another format.
    pub(super) fn query(&self, call: Call, sql: &str, parameters: &[Vec<u8>]) -> Result<Option<Vec<Row>>> {
        match self.call(call, sql, parameters) {
            Ok((rows, _)) => Ok(Some(rows)),
            Err(error) if is_missing(&error) => {
                self.run(call, include_str!("check.sql")).map_err(|error| self.error(call, &error))?;
                Ok(None)
            }
            Err(error) => Err(self.error(call, &error)),
        }
    }

    /// Another process may be faster, so the result counts only if the schema stays missing.
    pub(super) fn create(&self, call: Call) -> Result<()> {
        let done = self.run(call, include_str!("check.sql")).and_then(|_| self.run(call, include_str!("schema.sql")));
        match done {
            Err(error) if !is_taken(&error) => Err(self.error(call, &error)),
            _ => Ok(()),
        }
    }

    /// Waits until all commits of this process stand on the synchronous standby too, if one of them has no answer. The
    /// server shows a commit before that if its wait for the standby was cut short. A later commit that was answered
    /// proves that the earlier one has arrived there.
    pub(super) fn settle_doubt(&self, call: Call) -> Result<()> {
        if !self.in_doubt.load(Ordering::SeqCst) {
            return Ok(());
        }
        match self.call(call, FLUSH, &[]) {
            Err(error) if !is_missing(&error) => return Err(self.error(call, &error)),
            _ => self.in_doubt.store(false, Ordering::SeqCst),
        }
        Ok(())
    }

    pub(super) fn note_origin(&self, row: &Row, column: usize) {
        let Some(Some(origin)) = row.get(column) else { return };
        guarded(&self.origin).get_or_insert_with(|| origin.clone());
    }

    /// Waits until all that this process has read stands on the synchronous standby, if there is one.
    /// Fails if another server has taken over since, which may lack some of it.
    pub(super) fn settle_reads(&self, call: Call) -> Result<()> {
        let known = guarded(&self.origin).clone();
        let Some(known) = known.filter(|origin| origin.ends_with(b"/")) else { return Ok(()) };
        let rows = self.query(call, FLUSH, &[])?.unwrap_or_default();
        if rows.first().and_then(|row| row.first()) == Some(&Some(known)) {
            return Ok(());
        }
        *guarded(&self.origin) = None;
        let what = format!("PostgreSQL at {}: another server has taken over", self.place);
        Err(Error::new(ErrorKind::Unavailable, what, "try again"))
    }

    /// If the server has few connections left, the holders need them to renew and to release their locks.
    pub(super) fn is_crowded(&self, call: Call) -> bool {
        let now = self.host.boottime();
        let known = *guarded(&self.crowd);
        match known {
            Some((until, is_crowded)) if now < until => is_crowded,
            Some((_, is_crowded)) if guarded(&self.session).is_none() => is_crowded,
            None if guarded(&self.session).is_none() => false,
            _ => {
                let is_crowded = self.count_connections(call).is_some_and(|(used, most)| 2 * used > most);
                *guarded(&self.crowd) = Some((now + CROWD_LASTS, is_crowded));
                is_crowded
            }
        }
    }

    fn send(&self, call: Call, is_commit: bool, make: &MakeRequest<'_>) -> Done<(Vec<Row>, bool)> {
        let (mut sent, mut refusal) = (0, None);
        let rows = self.calls.repeat(call, |call| {
            self.connector.call_deadline.begin(call.by(self.host.boottime() + SHARE));
            self.try_once(make, &mut sent).map_err(|error| {
                if ends_call(&error) {
                    return error;
                }
                self.in_doubt.fetch_or(sent > 0 && is_commit, Ordering::SeqCst);
                // A server that is full says so at some attempts only.
                if matches!(error, CallError::Server(SqlCause::Said(..))) {
                    refusal = Some(error.clone());
                }
                refusal.clone().unwrap_or(error)
            })
        })?;
        Ok((rows, sent > 1))
    }

    pub(super) fn error(&self, call: Call, failed: &SqlError) -> Error {
        // A server that refused a wait for a lock answers; a silent one may not.
        let patience = match failed {
            _ if code(failed) == "55P03" => Some(Duration::from_secs(2)),
            CallError::Net(NetError::Silent) => Some(Duration::from_millis(250)),
            _ => None,
        };
        let not_replicated = CallError::Server(SqlCause::NotReplicated);
        let lacks_standby = patience.is_some_and(|patience| self.lacks_standby(call, patience));
        let shown = if lacks_standby { &not_replicated } else { failed };
        self.calls.mark_unreached(failed, explain(shown, &self.place, &self.schema))
    }

    /// Whether the server says within this time that its standby does not confirm commits.
    fn lacks_standby(&self, call: Call, patience: Duration) -> bool {
        self.connector.call_deadline.begin(Call { until: Some(self.host.boottime() + patience), ..call });
        let rows = self.try_once(&|left| script(LACKS_STANDBY, left), &mut 0).unwrap_or_default();
        rows.first().and_then(|row| row.first()) == Some(&Some(b"t".to_vec()))
    }

    /// Sends a request once. The server gives up when this client does: a server process that waits for a lock, as VACUUM
    /// FULL takes it, would otherwise stay when its client has left.
    fn try_once(&self, make: &MakeRequest<'_>, sent: &mut u32) -> Done<Vec<Row>> {
        let mut kept = guarded(&self.session);
        let mut session = match kept.take().filter(Session::is_idle) {
            Some(session) => session,
            None => Session::open(&self.connector, &self.settings)?,
        };
        *sent += 1;
        let done = session.exchange(&make(self.connector.call_deadline.left())?);
        if done.as_ref().err().is_none_or(ends_call) {
            *kept = Some(session);
        }
        done
    }

    pub(super) fn channel(&self, channel: &[u8]) -> String {
        let hash = Sha256::digest([self.schema.as_bytes(), b"/", channel].concat());
        hash[..16].iter().fold("csalock_".to_string(), |name, byte| format!("{name}{byte:02x}"))
    }

    /// Wakes waiters. This is no part of the commit, which would fail if the server's queue of notifications is full.
    pub(super) fn notify(&self, call: Call, set: &WriteSet<'_>) {
        if !set.wake.is_empty() {
            let channels = array(set.wake.iter().map(|(channel, _)| Some(self.channel(channel))), true);
            // A waiter that misses it reads the record a while later.
            let _ = self.call(call, NOTIFY, &[channels]);
        }
    }

    /// Subscribes to a channel on a connection of its own; `None` if the server has few of them, or behind a pooler, which
    /// would never deliver.
    pub(super) fn listen(&self, call: Call, channel: &[u8]) -> Option<Box<dyn Subscription>> {
        if self.is_crowded(call) {
            return None;
        }
        let connector = self.connector.for_subscription(call);
        let mut session = Session::open(&connector, &self.settings).ok()?;
        // A pooler does not know which of its servers will answer, and makes up a process.
        let rows = session.exchange(&statement("SELECT pg_backend_pid()::bigint", &[], TO_BEGIN).ok()?).ok()?;
        if rows.first().and_then(|row| number(row, 0)) != Some(i64::from(session.pid)) {
            return None;
        }
        session.exchange(&script(&format!("LISTEN \"{}\"", self.channel(channel)), TO_BEGIN).ok()?).ok()?;
        session.is_idle().then(|| Box::new(Listening(session)) as Box<dyn Subscription>)
    }
}

struct Listening(Session);

impl Subscription for Listening {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.socket()
    }

    fn is_notified(&mut self) -> bool {
        !self.0.is_idle()
    }
}
