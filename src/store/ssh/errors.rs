//! Errors of a connection: whether a retry may help, exit code and hint.

use std::ffi::OsStr;
use std::io;

use super::Remote;
use super::wire::Strange;
use crate::error::{Error, ErrorKind, describe};
use crate::name::shell_quote;
use crate::store::net::retry::{Retry, Trouble};

/// Parts of messages of ssh(1), shells and csalock about troubles that no repetition ends.
const LASTING: [&str; 7] = [
    "Permission denied",
    "Host key verification failed",
    "not found",
    "No such file",
    "Bad ",
    "not allowed",
    "csalock:",
];

#[derive(Debug)]
pub(super) enum LinkError {
    NotStarted(io::Error),
    /// The connection has ended, with this message of ssh(1).
    Ended(String),
    Silent,
    Interrupted,
    Strange,
    NoServer,
    /// The server speaks another version of the protocol; its program has this version.
    OtherVersion(String),
    /// The server cannot open the store.
    Refused(Error),
}

impl LinkError {
    /// Returns the error about this store, which `program` in the place of ssh(1) reaches.
    pub(super) fn error(&self, remote: &Remote, program: &OsStr) -> Error {
        let place = remote.url();
        let port = remote.port.map(|port| format!("-p {port} ")).unwrap_or_default();
        let ssh = format!("ssh {port}{}", remote.destination);
        let works = format!("see that `{ssh} true` works without a question, then try again");
        let (kind, problem, cure) = match self {
            LinkError::Refused(error) => return error.clone().of_server(&place),
            LinkError::NotStarted(error) => (
                ErrorKind::Unavailable,
                format!("cannot start {}: {}", shell_quote(program.as_encoded_bytes()), describe(error)),
                "install an ssh client, or name its program, without arguments, in CSALOCK_SSH".to_string(),
            ),
            LinkError::Ended(said) if said.contains("Permission denied") => (
                ErrorKind::Denied,
                said.clone(),
                format!(
                    "see that `{ssh} true` works without a password: a key in its authorized_keys, and an agent or a key without a passphrase here"
                ),
            ),
            // An older version knows no `serve`.
            LinkError::Ended(said) if said.starts_with("csalock: unknown command") => {
                (ErrorKind::Unavailable, said.clone(), "install the same version of csalock on both hosts".to_string())
            }
            LinkError::Ended(said) if ["not found", "No such file"].iter().any(|part| said.contains(part)) => (
                ErrorKind::Unavailable,
                said.clone(),
                "install csalock on that host, where commands of ssh find it (/usr/bin or /usr/local/bin)".to_string(),
            ),
            LinkError::Ended(said) if said.is_empty() => {
                (ErrorKind::Unavailable, "the connection ended without an answer".to_string(), works)
            }
            LinkError::Ended(said) => (ErrorKind::Unavailable, said.clone(), works),
            LinkError::Silent => (ErrorKind::Unavailable, "no answer in time".to_string(), works),
            LinkError::Interrupted => (ErrorKind::Unavailable, "a signal ended the call".to_string(), works),
            LinkError::Strange | LinkError::NoServer => (
                ErrorKind::Unavailable,
                "the answer is not that of csalock".to_string(),
                format!("see that `{ssh} csalock --version` prints one line, and the shell there nothing else"),
            ),
            LinkError::OtherVersion(program) => (
                ErrorKind::Unavailable,
                format!("csalock {} there speaks another protocol", crate::name::escape(program.as_bytes())),
                "install the same version on both hosts".to_string(),
            ),
        };
        Error::new(kind, format!("{place} cannot be reached: {problem}"), cure)
    }
}

impl Trouble for LinkError {
    /// A new connection may help a client that has been connected.
    fn retry(&self) -> Retry {
        match self {
            LinkError::Strange => Retry::Always,
            _ if self.may_pass() => Retry::IfMet,
            _ => Retry::Never,
        }
    }

    fn may_pass(&self) -> bool {
        match self {
            LinkError::Ended(said) => !LASTING.iter().any(|part| said.contains(part)),
            LinkError::Silent | LinkError::Strange => true,
            _ => false,
        }
    }
}

impl From<Strange> for LinkError {
    fn from(_: Strange) -> LinkError {
        LinkError::Strange
    }
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> LinkError {
        LinkError::NotStarted(error)
    }
}
