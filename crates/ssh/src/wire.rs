//! The protocol: lines of JSON on the standard input and output of `csalock serve`.
//!
//! The server first sends [`Greeting`]. Then each request is a line `[ID, REQUEST]`, and each reply a line `[ID, REPLY]`
//! with the id of its request. Ids are random, so a reply to a process that has ended is ignored by the next user of the
//! connection. Bytes are text in the form of [`lock::text`].

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::errors::{SshError, strange};
use lock::error::Error;
use lock::history::HistoryLimits;
use lock::text;
use lock::{HandleHash, Lease, Sighting};
use store::{Version, Versioned, WriteOptions};

/// Number of the protocol in the greeting.
pub const FORMAT: u32 = 1;

/// Maximum length of a line: the largest record as text, three characters for each byte, and what surrounds it.
pub(super) const MOST_OF_LINE: usize = (13 << 20) + (1 << 16);

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Greeting {
    pub(super) csalock_serve: u32,
    /// Version of the program, for messages.
    pub(super) program: String,
    /// Name of this server process, unless the store cannot be opened.
    pub(super) session: Result<HandleHash, Error>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WireRequest {
    /// Waits for the end of the server processes of earlier connections, so that none of them carries out a late request.
    After(Vec<HandleHash>),
    Read(#[serde(with = "text")] Vec<u8>),
    Scan,
    Commit(Box<Commit>),
    Grant(u64),
    Time,
    Ttl(Lease),
    TimeToExpiry(Lease, Vec<Sighting>),
    NewSightings(Vec<Lease>, Vec<Sighting>),
    /// Subscribes to the channel of a waiter. The subscription has the id of the request.
    Subscribe(HandleHash),
    /// Ends the subscription with this id. The server does not reply.
    Unsubscribe(u64),
    History,
    Sweep {
        dry_run: bool,
    },
    Diagnose,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    /// The end of a request without a result.
    Done,
    Failed(Error),
    /// The result of the call of the store trait. Times are in milliseconds.
    Answer(Value),
    /// An entry of a scan: its place, and the record or the error of its read.
    Entry(String, Result<Versioned, Error>),
    /// A line of history.
    Line(#[serde(with = "text")] Vec<u8>),
    /// The subscription with this id has ended.
    Notified,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Commit {
    pub(super) change: Option<Change>,
    pub(super) expired: Vec<Lease>,
    pub(super) ended: Vec<Lease>,
    pub(super) wake: Vec<HandleHash>,
    pub(super) closed: Vec<HandleHash>,
    pub(super) history: Vec<String>,
    pub(super) limits: HistoryLimits,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Change {
    #[serde(with = "text")]
    pub(super) name: Vec<u8>,
    pub(super) expect: Option<Version>,
    #[serde(with = "text")]
    pub(super) body: Option<Vec<u8>>,
    pub(super) options: WriteOptions,
}

impl Reply {
    pub(super) fn of(answer: impl Serialize) -> Reply {
        // Data without maps always have a JSON text.
        Reply::Answer(serde_json::to_value(answer).unwrap_or_default())
    }
}

pub(super) fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Bytes that were received, of which whole lines are read.
#[derive(Debug, Default)]
pub(super) struct Lines {
    bytes: Vec<u8>,
    searched: usize,
}

impl Lines {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// `None` if the line is not complete.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, SshError> {
        let Some(end) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return if self.searched > MOST_OF_LINE { Err(strange()) } else { Ok(None) };
        };
        let line: Vec<u8> = self.bytes.drain(..=self.searched + end).collect();
        self.searched = 0;
        serde_json::from_slice(&line).map(Some).map_err(|_| strange())
    }
}
