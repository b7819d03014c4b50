//! Wake-ups by LISTEN and NOTIFY. A waiter that misses one reads the record a while later.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::session::{Session, array, script, statement};
use super::{Postgres, number};
use crate::store::net::{CallDeadline, Connector};
use crate::store::{Subscription, WriteSet};

/// Maximum time for a subscription to begin, after which it is abandoned.
const TO_BEGIN: Duration = Duration::from_millis(500);

const NOTIFY: &str = "SELECT pg_notify(convert_from(wake, 'UTF8'), '') FROM unnest($1::bytea[]) wake";

struct Listening(Session);

impl Subscription for Listening {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.socket()
    }

    fn is_notified(&mut self) -> bool {
        !self.0.is_idle()
    }
}

impl Postgres {
    /// Returns the name by which the server knows a channel of a waiter in this schema.
    pub(super) fn channel(&self, channel: &[u8]) -> String {
        let hash = Sha256::digest([self.schema.as_bytes(), b"/", channel].concat());
        hash[..16].iter().fold("csalock_".to_string(), |name, byte| format!("{name}{byte:02x}"))
    }

    /// Wakes waiters. This is no part of the commit, which would fail if the server's queue of notifications is full.
    pub(super) fn notify(&self, set: &WriteSet<'_>) {
        if !set.wake.is_empty() {
            let channels = array(set.wake.iter().map(|(channel, _)| Some(self.channel(channel))), true);
            // A waiter that misses it reads the record a while later.
            let _ = self.call(NOTIFY, &[channels]);
        }
    }

    /// Subscribes to a channel on a connection of its own; `None` behind a pooler, which would never deliver.
    pub(super) fn listen(&self, channel: &[u8]) -> Option<Box<dyn Subscription>> {
        let client = &self.client;
        let call_deadline = Arc::new(CallDeadline::new(client.host.clone()));
        call_deadline.set(client.host.boottime() + TO_BEGIN);
        let connector = Connector { call_deadline, ..client.connector.clone() };
        let mut session = Session::open(&connector, &client.settings).ok()?;
        // A pooler does not know which of its servers will answer, and makes up a process.
        let rows = session.exchange(&statement("SELECT pg_backend_pid()::bigint", &[], TO_BEGIN).ok()?).ok()?;
        if rows.first().and_then(|row| number(row, 0)) != Some(i64::from(session.pid)) {
            return None;
        }
        session.exchange(&script(&format!("LISTEN \"{}\"", self.channel(channel)), TO_BEGIN).ok()?).ok()?;
        session.is_idle().then(|| Box::new(Listening(session)) as Box<dyn Subscription>)
    }
}
