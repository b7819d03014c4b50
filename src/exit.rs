//! The table of all exit codes, and the code of each kind of error.
//!
//! They are a stable interface. Numbers below 64 and above 127 are the command's own under `run`; 64 to 77
//! are those of sysexits(3), 124 to 127 those of timeout(1) and the shell. A test compares the man page's EXIT STATUS
//! section with [`Exit::ALL`].

use Exit::{Code, Done, Failed, MaxHold};

use lock::error::ErrorKind::{self, *};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Exit {
    #[default]
    Done,
    Failed(ErrorKind),
    /// csalock ended the command because the time of `--max-hold` was over.
    MaxHold,
    /// The command's own status, or the number that `-E` sets for busy.
    Code(u8),
    /// The signal with this number ended the program.
    Signal(i32),
}

impl Exit {
    /// Every code with a meaning of its own: its number and the words of the man page.
    pub const ALL: [(Exit, u8, &'static str); 20] = [
        (Done, 0, "done"),
        (Failed(InvalidInput), 64, "usage error"),
        (Failed(Corrupt), 65, "a record is unreadable or corrupt, or the path is not a csalock store"),
        (Failed(Unavailable), 69, "the store is unavailable"),
        (Failed(Bug), 70, "a bug in csalock"),
        (Failed(System), 71, "operating system error"),
        (
            Failed(CannotCreate),
            73,
            "cannot create the store or change a record: it is read-only, or something is in the way",
        ),
        (Failed(InputOutput), 74, "input/output error, for example a full disk"),
        (Failed(Busy), 75, "busy: not taken within the timeout"),
        (Failed(Denied), 77, "a permission is missing"),
        (
            Failed(Stale),
            80,
            "stale: the holder is gone, and --fail-on-stale was given; or the value has another version",
        ),
        (Failed(NotHeld), 81, "not held; or the value or claim does not exist"),
        (Failed(NotOwner), 82, "held by another holder"),
        (Failed(NotUnique), 83, "not unique: a name is claimed under another id, or has a value already"),
        (Failed(Deadlock), 84, "deadlock: waiting would never end"),
        (
            Failed(Lost),
            85,
            "the lock was lost while it was acquired, the command ran, its success was recorded, or the value was read",
        ),
        (Failed(Overdue), 86, "overdue: the last success of the job is longer ago than --overdue allows"),
        (MaxHold, 124, "--max-hold was over (137 if the command had to be killed)"),
        (Failed(CannotExecute), 126, "the command cannot be executed"),
        (Failed(CommandNotFound), 127, "the command was not found"),
    ];

    pub fn code(self) -> u8 {
        match self {
            Code(code) => code,
            Exit::Signal(signal) => Exit::signalled(signal).code(),
            _ => Exit::ALL.iter().find(|(exit, ..)| *exit == self).map_or(70, |(_, code, _)| *code),
        }
    }

    /// After a wait that a signal interrupted: the signal that [`host::signals::Signals::interrupted_by`] found.
    pub fn interrupted(signal: Option<i32>) -> Exit {
        signal.map_or(Failed(System), Exit::Signal)
    }

    /// The first refusal decides.
    pub fn or(self, later: impl Into<Exit>) -> Exit {
        if self == Exit::Done { later.into() } else { self }
    }

    /// 128 + N, as the shell counts a command that a signal ended.
    pub fn signalled(signal: i32) -> Exit {
        Exit::Code(128u8.wrapping_add(signal as u8))
    }
}

impl From<ErrorKind> for Exit {
    fn from(kind: ErrorKind) -> Exit {
        Exit::Failed(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::Exit;

    #[test]
    fn numbers_are_distinct_and_rise() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|(_, code, _)| *code).collect();
        assert!(codes.windows(2).all(|pair| pair[0] < pair[1]), "{codes:?}");
    }

    #[test]
    fn a_signal_is_128_and_its_number() {
        assert_eq!(Exit::signalled(9).code(), 137);
        assert_eq!(Exit::signalled(64).code(), 192);
    }
}
