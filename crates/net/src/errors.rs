//! Failures of a call to a server: those of any connection, and those that only one kind of server has.

use std::{fmt, io};

use lock::name::escape;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Nothing: a server has answered.
    Answered,
    /// Nothing, although no server has answered.
    Never,
    /// Another attempt, if a server has answered this process before or let it in. Else the failure is permanent: a wrong
    /// name, another protocol on the port, failed TLS.
    IfMet,
    /// The same, but waiting may help: a server that is down or starts refuses connections.
    IfMetOrLater,
    /// Another attempt.
    Always,
}

pub trait Cause {
    fn retry(&self) -> Retry;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError<C> {
    Net(NetError),
    Server(C),
}

impl<C: Cause> CallError<C> {
    pub fn retry(&self) -> Retry {
        match self {
            CallError::Net(NetError::Silent | NetError::Closed) => Retry::Always,
            CallError::Net(NetError::Refused(_) | NetError::NamesSilent) => Retry::IfMetOrLater,
            CallError::Net(NetError::TooLong) => Retry::Answered,
            CallError::Net(NetError::Interrupted) => Retry::Never,
            CallError::Net(_) => Retry::IfMet,
            CallError::Server(cause) => cause.retry(),
        }
    }
}

impl<C: fmt::Display> fmt::Display for CallError<C> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Net(error) => error.fmt(out),
            CallError::Server(cause) => cause.fmt(out),
        }
    }
}

impl<C> From<NetError> for CallError<C> {
    fn from(error: NetError) -> CallError<C> {
        CallError::Net(error)
    }
}

impl<C> From<io::Error> for CallError<C> {
    fn from(error: io::Error) -> CallError<C> {
        CallError::Net(error.into())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetError {
    Unresolved,
    NamesSilent,
    NamesFailed(String),
    Refused(String),
    Silent,
    Interrupted,
    Closed,
    Tls(String),
    TooLong,
    Strange(String),
}

impl fmt::Display for NetError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetError::Unresolved => write!(out, "no host of that name is known"),
            NetError::NamesSilent => write!(out, "the name service does not answer"),
            NetError::NamesFailed(why) => write!(out, "the name service cannot be asked: {why}"),
            NetError::Refused(why) | NetError::Strange(why) => write!(out, "{}", escape(why.as_bytes())),
            NetError::TooLong => write!(out, "its answer does not end"),
            NetError::Silent => write!(out, "no answer in time"),
            NetError::Interrupted => write!(out, "a signal ended the call"),
            NetError::Closed => write!(out, "the connection was closed without an answer"),
            NetError::Tls(why) => write!(out, "no TLS with it: {}", escape(why.as_bytes())),
        }
    }
}

impl std::error::Error for NetError {}

impl From<NetError> for io::Error {
    fn from(error: NetError) -> io::Error {
        io::Error::other(error)
    }
}

impl From<io::Error> for NetError {
    fn from(error: io::Error) -> NetError {
        let inside = error.get_ref();
        if let Some(error) = inside.and_then(|inside| inside.downcast_ref::<NetError>()) {
            return error.clone();
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = inside.and_then(|inside| inside.downcast_ref::<rustls::Error>()) {
            return NetError::Tls(tls.to_string());
        }
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => NetError::Silent,
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                NetError::Closed
            }
            io::ErrorKind::ConnectionRefused => {
                NetError::Refused("nothing listens there (connection refused)".to_string())
            }
            _ => NetError::Refused(error.to_string()),
        }
    }
}
