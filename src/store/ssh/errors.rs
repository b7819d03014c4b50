//! Troubles of a connection, and their errors.

use std::ffi::OsStr;
use std::io;

use super::url::Remote;
use super::wire::Strange;
use crate::error::{Error, ErrorKind, describe};
use crate::name::shell_quote;

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

/// Trouble of a connection.
#[derive(Debug)]
pub(super) enum Trouble {
    /// ssh(1) could not be started.
    NotStarted(io::Error),
    /// The connection has ended, with this message of ssh(1).
    Ended(String),
    /// There was no answer in time.
    Silent,
    /// A signal ended the call.
    Interrupted,
    /// An answer does not follow the protocol.
    Strange,
    /// The first line is not a greeting.
    NoServer,
    /// The server speaks another version of the protocol; its program has this version.
    OtherVersion(String),
    /// The server cannot open the store.
    Refused(Error),
}

impl Trouble {
    /// Returns true if a new connection may help.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Trouble::Ended(said) => !LASTING.iter().any(|part| said.contains(part)),
            Trouble::Silent | Trouble::Strange => true,
            Trouble::Interrupted => false,
            Trouble::NotStarted(_) | Trouble::NoServer | Trouble::OtherVersion(_) | Trouble::Refused(_) => false,
        }
    }

    /// Returns the error about this store, which `program` in the place of ssh(1) reaches.
    pub(super) fn error(self, remote: &Remote, program: &OsStr) -> Error {
        let place = remote.url();
        let port = remote.port.map(|port| format!("-p {port} ")).unwrap_or_default();
        let ssh = format!("ssh {port}{}", remote.destination);
        let works = format!("see that `{ssh} true` works without a question, then try again");
        let (kind, problem, cure) = match self {
            Trouble::Refused(error) => return error.of_server(&place),
            Trouble::NotStarted(error) => (
                ErrorKind::Unavailable,
                format!("cannot start {}: {}", shell_quote(program.as_encoded_bytes()), describe(&error)),
                "install an ssh client, or name its program, without arguments, in CSALOCK_SSH".to_string(),
            ),
            Trouble::Ended(said) if said.contains("Permission denied") => (
                ErrorKind::Denied,
                said,
                format!(
                    "see that `{ssh} true` works without a password: a key in its authorized_keys, and an agent or a key without a passphrase here"
                ),
            ),
            // An older version knows no `serve`.
            Trouble::Ended(said) if said.starts_with("csalock: unknown command") => {
                (ErrorKind::Unavailable, said, "install the same version of csalock on both hosts".to_string())
            }
            Trouble::Ended(said) if ["not found", "No such file"].iter().any(|part| said.contains(part)) => (
                ErrorKind::Unavailable,
                said,
                "install csalock on that host, where commands of ssh find it (/usr/bin or /usr/local/bin)".to_string(),
            ),
            Trouble::Ended(said) if said.is_empty() => {
                (ErrorKind::Unavailable, "the connection ended without an answer".to_string(), works)
            }
            Trouble::Ended(said) => (ErrorKind::Unavailable, said, works),
            Trouble::Silent => (ErrorKind::Unavailable, "no answer in time".to_string(), works),
            Trouble::Interrupted => (ErrorKind::Unavailable, "a signal ended the call".to_string(), works),
            Trouble::Strange | Trouble::NoServer => (
                ErrorKind::Unavailable,
                "the answer is not that of csalock".to_string(),
                format!("see that `{ssh} csalock --version` prints one line, and the shell there nothing else"),
            ),
            Trouble::OtherVersion(program) => (
                ErrorKind::Unavailable,
                format!("csalock {} there speaks another protocol", crate::name::escape(program.as_bytes())),
                "install the same version on both hosts".to_string(),
            ),
        };
        Error::new(kind, format!("{place} cannot be reached: {problem}"), cure)
    }
}

impl From<Strange> for Trouble {
    fn from(_: Strange) -> Trouble {
        Trouble::Strange
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::NotStarted(error)
    }
}
