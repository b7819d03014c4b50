//! The table of all exit codes, and the code of each kind of error.
//!
//! They are a stable interface. Numbers below 64 and above 127 are the command's own under `run-with-lock`; 64 to 77
//! are those of sysexits(3), 124 to 127 those of timeout(1) and the shell. A test compares the man page's EXIT STATUS
//! section with [`Exit::ALL`].

use crate::error::ErrorKind;

/// The exit status of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The request is done.
    Done,
    /// The command line is invalid.
    Usage,
    /// A record cannot be decoded.
    Corrupt,
    /// The store cannot be reached.
    Unreachable,
    /// csalock has a bug.
    Bug,
    /// The operating system refused a call that must succeed.
    System,
    /// The store, or an object in it, cannot be created.
    CannotCreate,
    /// Reading or writing failed, for example because the disk is full.
    InputOutput,
    /// The lock was not acquired within the timeout.
    Busy,
    /// A permission is missing.
    Permission,
    /// The holder ended without a release, and `--fail-on-stale` was given. For a value: its version differs from
    /// `--if-version`.
    Stale,
    /// The caller does not hold the lock, or the lock has no holder; or the value or claim does not exist.
    NotHeld,
    /// Another process holds the lock.
    NotOwner,
    /// Another id claims the name, or the value exists and `--if-absent` was given.
    NotUnique,
    /// The wait would be a deadlock.
    Deadlock,
    /// The lock was lost while the command ran, or before it could be used.
    Lost,
    /// The time of `--max-hold` was over and csalock ended the command.
    MaxHold,
    /// The command was found but cannot be executed.
    CannotExecute,
    /// The command was not found.
    NotFound,
    /// The command's own status, or the number that `-E` sets for busy.
    Code(u8),
    /// A signal ended the program.
    Signal(i32),
}

impl Exit {
    /// Every code with a meaning of its own: the number and the words of the man page.
    pub const ALL: [(Exit, &'static str); 19] = [
        (Exit::Done, "done"),
        (Exit::Usage, "usage error"),
        (Exit::Corrupt, "a record is unreadable or corrupt, or what is to be the store is something else"),
        (Exit::Unreachable, "the store is out of reach"),
        (Exit::Bug, "a bug in csalock"),
        (Exit::System, "operating system error"),
        (Exit::CannotCreate, "cannot create the store or change a record: it is read-only, or something is in the way"),
        (Exit::InputOutput, "input/output error, for example a full disk"),
        (Exit::Busy, "busy: not taken within the timeout"),
        (Exit::Permission, "a permission is missing"),
        (Exit::Stale, "stale: the holder is gone, and --fail-on-stale was given; or the value has another version"),
        (Exit::NotHeld, "not held; or there is no value, or no claim"),
        (Exit::NotOwner, "held by another holder"),
        (Exit::NotUnique, "not unique: a name is claimed under another id, or has a value already"),
        (Exit::Deadlock, "deadlock: waiting would never end"),
        (Exit::Lost, "the lock was lost while it was taken, the command ran, or the value was read"),
        (Exit::MaxHold, "--max-hold was over (137 if the command had to be killed)"),
        (Exit::CannotExecute, "the command cannot be executed"),
        (Exit::NotFound, "the command was not found"),
    ];

    /// Returns the number that the shell sees in `$?`.
    pub fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Usage => 64,
            Exit::Corrupt => 65,
            Exit::Unreachable => 69,
            Exit::Bug => 70,
            Exit::System => 71,
            Exit::CannotCreate => 73,
            Exit::InputOutput => 74,
            Exit::Busy => 75,
            Exit::Permission => 77,
            Exit::Stale => 80,
            Exit::NotHeld => 81,
            Exit::NotOwner => 82,
            Exit::NotUnique => 83,
            Exit::Deadlock => 84,
            Exit::Lost => 85,
            Exit::MaxHold => 124,
            Exit::CannotExecute => 126,
            Exit::NotFound => 127,
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128u8.wrapping_add(signal as u8),
        }
    }

    /// Returns this status, or `later` if all went well so far: the first refusal decides.
    pub fn or(self, later: impl Into<Exit>) -> Exit {
        if self == Exit::Done { later.into() } else { self }
    }

    /// Returns the status of a command that a signal ended, as the shell counts it: 128 + N.
    pub fn signalled(signal: i32) -> Exit {
        Exit::Code(128u8.wrapping_add(signal as u8))
    }
}

impl From<ErrorKind> for Exit {
    fn from(kind: ErrorKind) -> Exit {
        match kind {
            ErrorKind::InvalidInput => Exit::Usage,
            ErrorKind::Corrupt => Exit::Corrupt,
            ErrorKind::Unavailable => Exit::Unreachable,
            ErrorKind::Bug => Exit::Bug,
            ErrorKind::System => Exit::System,
            ErrorKind::CannotCreate => Exit::CannotCreate,
            ErrorKind::InputOutput => Exit::InputOutput,
            ErrorKind::Busy => Exit::Busy,
            ErrorKind::Denied => Exit::Permission,
            ErrorKind::Stale => Exit::Stale,
            ErrorKind::NotHeld => Exit::NotHeld,
            ErrorKind::NotOwner => Exit::NotOwner,
            ErrorKind::NotUnique => Exit::NotUnique,
            ErrorKind::Deadlock => Exit::Deadlock,
            ErrorKind::Lost => Exit::Lost,
            ErrorKind::CannotExecute => Exit::CannotExecute,
            ErrorKind::CommandNotFound => Exit::NotFound,
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> std::process::ExitCode {
        exit.code().into()
    }
}

#[cfg(test)]
mod tests {
    use super::Exit;

    #[test]
    fn numbers_are_distinct_and_rise() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|(exit, _)| exit.code()).collect();
        assert!(codes.windows(2).all(|pair| pair[0] < pair[1]), "{codes:?}");
    }

    #[test]
    fn a_signal_is_128_and_its_number() {
        assert_eq!(Exit::signalled(9).code(), 137);
        assert_eq!(Exit::signalled(64).code(), 192);
    }
}
