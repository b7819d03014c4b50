//! Sends requests to the server until it answers or the time is over.
//!
//! An answer of the server, even a refusal, ends the call. The call ends at once too if no server has answered this
//! process yet and none can be reached. After silence, a closed connection and while the server starts or stops, the
//! client repeats the request. A request may thus reach the server more than once, and every request of this store
//! tolerates that.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Postgres;
use super::errors::Trouble;
use super::session::{Done, Row, Session, script, statement};
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::store::answers::answered;
use crate::store::calls::{Calls, pause};
use crate::store::etcd::dial::Connector;
use crate::store::guarded;

/// Maximum time of one attempt. A connection may be dead without a sign.
const SHARE: Duration = Duration::from_secs(4);

/// Maximum time to connect before a process knows what it needs.
const TO_CONNECT: Duration = Duration::from_secs(1);

/// Failure of a call.
pub(super) struct Failed {
    pub(super) trouble: Trouble,
    pub(super) error: Error,
}

pub(super) struct Client {
    pub(super) host: Arc<dyn Host>,
    pub(super) connector: Connector,
    pub(super) settings: Settings,
    /// The connection, while it is usable.
    session: Mutex<Option<Session>>,
    pub(super) calls: Mutex<Calls>,
}

impl Postgres {
    /// Runs a statement on the store's schema, which `$.` stands for. Returns its rows, and true if it was sent more
    /// than once.
    pub(super) fn call(&self, sql: &str, parameters: &[Vec<u8>]) -> std::result::Result<(Vec<Row>, bool), Failed> {
        self.send(&statement(&self.named(sql), parameters))
    }

    /// Returns the rows of a query; `None` without a schema.
    pub(super) fn query(&self, sql: &str, parameters: &[Vec<u8>]) -> Result<Option<Vec<Row>>> {
        match self.call(sql, parameters) {
            Ok((rows, _)) => Ok(Some(rows)),
            Err(failed) if failed.trouble.is_missing() => Ok(None),
            Err(failed) => Err(failed.error),
        }
    }

    /// Creates the schema of the store. Another process may be faster, so the result counts only if it stays missing.
    pub(super) fn create(&self) -> Result<()> {
        let schema = include_str!("schema.sql").replace("\"csalock\"", &format!("\"{}\"", self.schema));
        match self.send(&script(&schema)) {
            Err(failed) if failed.trouble.is_taken() => Ok(()),
            done => done.map(drop).map_err(|failed| failed.error),
        }
    }

    fn named(&self, sql: &str) -> String {
        sql.replace("$.", &format!("\"{}\".", self.schema))
    }

    fn send(&self, request: &[u8]) -> std::result::Result<(Vec<Row>, bool), Failed> {
        let client = &self.client;
        let mut calls = guarded(&client.calls);
        let deadline = calls.deadline(client.host.boottime());
        let (mut sent, mut attempt) = (0, 0);
        let trouble = loop {
            client.connector.call_deadline.set(deadline.min(client.host.boottime() + SHARE));
            let trouble = match client.try_once(request, &mut sent) {
                Ok(rows) => {
                    calls.note_answer();
                    return Ok((answered(rows), sent > 1));
                }
                Err(trouble) if trouble.ends_call() => {
                    calls.note_answer();
                    let error = trouble.error(&self.place, &self.schema);
                    return Err(Failed { trouble, error });
                }
                Err(trouble) => trouble,
            };
            let is_hopeless = !calls.answered && trouble.is_hopeless();
            if is_hopeless || client.host.boottime() + pause(attempt) >= deadline {
                break trouble;
            }
            client.host.sleep(pause(attempt));
            attempt += 1;
        };
        let error = calls.note_silence(trouble.error(&self.place, &self.schema), trouble.may_pass());
        Err(Failed { trouble, error })
    }
}

impl Client {
    /// Returns a client with a new connection. A trouble shows at the first request.
    pub(super) fn new(host: Arc<dyn Host>, connector: Connector, settings: Settings) -> Client {
        connector.call_deadline.set(host.boottime() + TO_CONNECT);
        let session = Session::open(&connector, &settings).ok();
        let mut calls = Calls::default();
        calls.answered = session.is_some();
        Client { host, connector, settings, session: Mutex::new(session), calls: Mutex::new(calls) }
    }

    pub(super) fn is_encrypted(&self) -> bool {
        guarded(&self.session).as_ref().is_some_and(|session| session.is_encrypted)
    }

    fn try_once(&self, request: &[u8], sent: &mut u32) -> Done<Vec<Row>> {
        let mut kept = guarded(&self.session);
        let mut session = match kept.take().filter(Session::is_idle) {
            Some(session) => session,
            None => Session::open(&self.connector, &self.settings)?,
        };
        *sent += 1;
        let done = session.exchange(request);
        if done.as_ref().err().is_none_or(Trouble::ends_call) {
            *kept = Some(session);
        }
        done
    }
}
