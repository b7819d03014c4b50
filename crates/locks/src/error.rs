//! The errors of this crate: a kind for the program and a message for a person. The hints of the command, which name its
//! options, stay out.

use std::fmt;

/// A `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request or the URL is invalid.
    InvalidInput,
    /// A record cannot be decoded, or a newer version wrote it.
    Corrupt,
    /// The store cannot be reached, or other processes kept it busy.
    Unavailable,
    /// A permission is missing.
    Denied,
    /// Reading or writing failed, for example because the disk is full.
    InputOutput,
    /// The operating system refused a call: too many processes or open files, for example.
    System,
    /// The wait would never end.
    Deadlock,
    /// The locks were lost before their release: their time was over, or a user broke them.
    Lost,
}

/// A failure: its kind and the problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    /// Programs decide by the kind; a person reads the message.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<lock::Error> for Error {
    fn from(error: lock::Error) -> Error {
        use lock::ErrorKind as Inner;
        let kind = match error.kind() {
            Inner::InvalidInput => ErrorKind::InvalidInput,
            Inner::Corrupt => ErrorKind::Corrupt,
            Inner::Unavailable | Inner::Busy => ErrorKind::Unavailable,
            Inner::Denied => ErrorKind::Denied,
            Inner::InputOutput | Inner::CannotCreate => ErrorKind::InputOutput,
            Inner::Deadlock => ErrorKind::Deadlock,
            Inner::Lost => ErrorKind::Lost,
            _ => ErrorKind::System,
        };
        Error::new(kind, error.message())
    }
}
