//! Arguments of the commands for values.

use std::ffi::OsString;

use clap::Args;

use super::options::{Common, LOCK, Taking, Waiting, whole};

/// Print the value that a lock guards
///
/// Prints the bytes of the last write unchanged, and nothing else; exits with 81 if the value does not exist. The lock need
/// not be held. With --lock, the calling script acquires the lock first: the value then stays the same until the script
/// writes it or releases the lock. The lock is acquired even if the value does not exist yet. The options under Waiting
/// and Lock are for --lock.
#[derive(Debug, Args)]
#[command(override_usage = "csalock get [OPTION]... NAME")]
pub struct Get {
    /// Acquire the lock and read, in one step
    #[arg(long, help_heading = LOCK)]
    pub lock: bool,
    /// Options of the acquisition.
    #[command(flatten)]
    pub taking: Taking,
    /// Acquire the lock for this process instead of the calling script
    #[arg(long, value_name = "PID", value_parser = whole(1, i32::MAX), help_heading = LOCK)]
    pub pid: Option<i32>,
    /// Name of a lock, or path of a file to lock
    #[arg(value_name = "NAME")]
    pub name: OsString,
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
}

/// Options of commands that write a value.
#[derive(Debug, Args)]
pub struct Writing {
    /// Options of waiting.
    #[command(flatten)]
    pub waiting: Waiting,
    /// Handle of the lock, or @FILE with it [env: CSALOCK_HANDLE]; otherwise the caller must be the owner
    #[arg(long, value_name = "HANDLE", help_heading = LOCK)]
    pub handle: Option<String>,
    /// Write only as the holder of the lock, and release it in the same step
    #[arg(long, help_heading = LOCK)]
    pub unlock: bool,
    /// With --unlock: write even if the grant is over, provided that no other caller has had the lock since
    #[arg(long, requires = "unlock", help_heading = LOCK)]
    pub even_if_stale: bool,
    /// Write only if the value has this version; otherwise exit 80
    #[arg(long, value_name = "N", value_parser = whole(0, u64::MAX))]
    pub if_version: Option<u64>,
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
}

/// Write the value that a lock guards
///
/// A value has at most 1 MiB and stays until it is deleted; it is on the disk when the command returns. Every write happens
/// under the lock: the holder uses its own grant, and any other caller acquires the lock for the write, after a wait if
/// necessary. A caller that had the lock and whose grant is over writes nothing, and neither does a `put` whose script has
/// ended with the lock. With a handle, or CSALOCK_HANDLE, only that grant counts.
#[derive(Debug, Args)]
#[command(override_usage = "csalock put [OPTION]... NAME [VALUE]")]
pub struct Put {
    /// Options of writing.
    #[command(flatten)]
    pub writing: Writing,
    /// Write only if the value does not exist yet; otherwise exit 83
    #[arg(long, conflicts_with = "if_version")]
    pub if_absent: bool,
    /// Permissions of the value, within those of the store: 0600; they stay until another --mode
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub mode: Option<u32>,
    /// Name of the lock
    #[arg(value_name = "NAME")]
    pub name: OsString,
    /// Value; - or nothing reads stdin. A value such as --x goes after --
    #[arg(value_name = "VALUE", allow_negative_numbers = true)]
    pub value: Option<OsString>,
}

/// Delete the value that a lock guards
///
/// A deletion is a write: see put. Exits with 81 if the value does not exist.
#[derive(Debug, Args)]
#[command(override_usage = "csalock del [OPTION]... NAME")]
pub struct Del {
    /// Options of writing.
    #[command(flatten)]
    pub writing: Writing,
    /// Name of the lock
    #[arg(value_name = "NAME")]
    pub name: OsString,
}

/// Permission bits in octal; at least the owner may read and write.
fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o666 == 0 && mode & 0o600 == 0o600);
    mode.ok_or_else(|| {
        "is not a mode; use octal digits, with 6 for the owner and no right to execute: 0600, 0640, 0660".to_string()
    })
}
