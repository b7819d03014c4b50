//! Failures of a request to a server, and whether a retry may help.

use std::fmt;
use std::io;

use super::retry::{Retry, Trouble};
use crate::name::escape;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) enum CallError {
    /// The server's name has no address.
    Unresolved,
    /// The name service did not answer in time.
    NamesSilent,
    /// The name service cannot be asked, for this reason.
    NamesFailed(String),
    /// The server cannot be reached, for this reason.
    Refused(String),
    /// The server did not answer in time.
    Silent,
    Interrupted,
    /// The server closed the connection instead of answering.
    Closed,
    /// The TLS handshake failed, for this reason.
    Tls(String),
    /// The server expects TLS, but the URL says otherwise.
    WantsTls,
    NoGateway,
    /// The answer exceeded the maximum size.
    TooLong,
    Strange(String),
    /// gRPC status code and message of etcd.
    Said(u32, String),
}

impl Trouble for CallError {
    fn retry(&self) -> Retry {
        match self {
            CallError::Silent | CallError::Closed => Retry::Always,
            CallError::Said(1 | 4 | 14, _) => Retry::Always,
            CallError::Said(_, said) if passes(said) => Retry::Always,
            CallError::Said(..) | CallError::TooLong => Retry::Answered,
            CallError::Interrupted => Retry::Never,
            _ => Retry::IfMet,
        }
    }

    fn may_pass(&self) -> bool {
        matches!(self, CallError::Refused(_) | CallError::NamesSilent) || self.retry() == Retry::Always
    }
}

/// Returns true for the messages of etcd while its members elect a leader or are overloaded.
fn passes(said: &str) -> bool {
    [
        "request timed out",
        "leader changed",
        "no leader",
        "not leader",
        "too many requests",
        "not healthy",
        "server stopped",
    ]
    .iter()
    .any(|passing| said.contains(passing))
}

impl fmt::Display for CallError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Unresolved => write!(out, "no host of that name is known"),
            CallError::NamesSilent => write!(out, "the name service does not answer"),
            CallError::NamesFailed(why) => write!(out, "the name service cannot be asked: {why}"),
            CallError::Refused(why) | CallError::Strange(why) => write!(out, "{}", escape(why.as_bytes())),
            CallError::TooLong => write!(out, "its answer does not end"),
            CallError::Silent => write!(out, "no answer in time"),
            CallError::Interrupted => write!(out, "a signal ended the call"),
            CallError::Closed => write!(out, "the connection was closed without an answer"),
            CallError::Tls(why) => write!(out, "no TLS with it: {}", escape(why.as_bytes())),
            CallError::WantsTls => write!(out, "it speaks TLS"),
            CallError::NoGateway => write!(out, "its JSON gateway is off (404)"),
            CallError::Said(_, message) => {
                write!(out, "{}", escape(message.trim_start_matches("etcdserver: ").as_bytes()))
            }
        }
    }
}

impl std::error::Error for CallError {}

impl From<CallError> for io::Error {
    fn from(trouble: CallError) -> io::Error {
        io::Error::other(trouble)
    }
}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> CallError {
        let inside = error.get_ref();
        if let Some(trouble) = inside.and_then(|inside| inside.downcast_ref::<CallError>()) {
            return trouble.clone();
        }
        if let Some(tls) = inside.and_then(|inside| inside.downcast_ref::<rustls::Error>()) {
            return CallError::Tls(tls.to_string());
        }
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => CallError::Silent,
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                CallError::Closed
            }
            io::ErrorKind::ConnectionRefused => {
                CallError::Refused("nothing listens there (connection refused)".to_string())
            }
            _ => CallError::Refused(error.to_string()),
        }
    }
}
