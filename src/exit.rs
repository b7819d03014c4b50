//! The exit codes: the whole table, in one place.
//!
//! They are a stable interface. Numbers below 64 and above 127 are the command's own under `run-with-lock`;
//! 64 to 77 are those of sysexits(3), 124 to 127 those of timeout(1) and the shell. The man page's EXIT STATUS
//! section is tested against [`Exit::ALL`].

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// What was asked for is done.
    Done,
    /// The command line makes no sense.
    Usage,
    /// A record cannot be understood.
    Corrupt,
    /// The store cannot be reached.
    Unreachable,
    /// A bug in csalock.
    Bug,
    /// The operating system refused something that it should not.
    System,
    /// The store, or something in it, cannot be created.
    CannotCreate,
    /// Reading or writing failed, for example because the disk is full.
    InputOutput,
    /// Not taken within the timeout.
    Busy,
    /// A permission is missing.
    Permission,
    /// The holder is gone without having given back, and `--fail-on-stale` was given; or a value has another version than
    /// `--if-version` says.
    Stale,
    /// The caller holds no such lock, or nobody does; or there is no value, or no claim.
    NotHeld,
    /// Somebody else holds it.
    NotOwner,
    /// A name is claimed under another id, or there is a value and `--if-absent` was given.
    NotUnique,
    /// Waiting would never end.
    Deadlock,
    /// The lock was lost while the command ran, or before it could be used.
    Lost,
    /// `--max-hold` was over and the command was ended.
    MaxHold,
    /// The command was found but cannot be executed.
    CannotExecute,
    /// The command was not found.
    NotFound,
    /// The command's own status, or the number that `-E` chose for busy.
    Code(u8),
    /// By this signal, which ended what we were doing.
    Signal(i32),
}

impl Exit {
    /// Every code with a meaning of its own: number and the words of the man page.
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
        (Exit::NotOwner, "held by somebody else"),
        (Exit::NotUnique, "not unique: a name is claimed under another id, or has a value already"),
        (Exit::Deadlock, "deadlock: waiting would never end"),
        (Exit::Lost, "the lock was lost while it was taken, the command ran, or the value was read"),
        (Exit::MaxHold, "--max-hold was over (137 if the command had to be killed)"),
        (Exit::CannotExecute, "the command cannot be executed"),
        (Exit::NotFound, "the command was not found"),
    ];

    /// The number that the shell sees in `$?`.
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

    /// The status of a command that a signal ended, as the shell counts it: 128 + N.
    pub fn signalled(signal: i32) -> Exit {
        Exit::Code(128u8.wrapping_add(signal as u8))
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
