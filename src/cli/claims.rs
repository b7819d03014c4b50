//! Arguments of the commands for claims.

use std::ffi::OsString;

use clap::Args;

use super::options::{Common, Waiting};

/// Claim names permanently, all or none, and print the id
///
/// A claim lasts until unclaim, even after a reboot; it is on the disk when the command returns. If one of the names is
/// claimed under another id, nothing is claimed, and csalock exits with 83 and prints the claimed names with their ids. If
/// the lock of a name is held, csalock waits for it.
///
/// A second claim under the same id succeeds, so an id must belong to one user, or be new. A name with a slash means a file:
/// do not accept such a name from a user you do not trust.
#[derive(Debug, Args)]
#[command(override_usage = "csalock claim [OPTION]... NAME...")]
pub struct Claim {
    /// Options of waiting.
    #[command(flatten)]
    pub waiting: Waiting,
    /// The id that claims the names, for example a user number; the default is a new id
    #[arg(long, value_name = "ID")]
    pub id: Option<OsString>,
    /// Name to claim
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<OsString>,
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
}

/// Give up claims
///
/// All of them or none: if one of the names is not claimed under this id, csalock exits with 82, or with 81 if it is not
/// claimed at all.
#[derive(Debug, Args)]
#[command(
    override_usage = "csalock unclaim [OPTION]... --id ID NAME...\n       csalock unclaim [OPTION]... --id ID --all"
)]
pub struct Unclaim {
    /// The id that claims the names
    #[arg(long, value_name = "ID", required = true)]
    pub id: OsString,
    /// Give up all names that the id claims in the store
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// Name to give up
    #[arg(value_name = "NAME", required_unless_present = "all")]
    pub names: Vec<OsString>,
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
}

/// Print the id that claims a name, or the names of an id
///
/// Exits with 81 if the name or id is not claimed.
#[derive(Debug, Args)]
#[command(override_usage = "csalock lookup [OPTION]... NAME\n       csalock lookup [OPTION]... --id ID")]
pub struct Lookup {
    /// Print the names that this id claims, one per line
    #[arg(long, value_name = "ID", conflicts_with = "name")]
    pub id: Option<OsString>,
    /// Name of the lock
    #[arg(value_name = "NAME", required_unless_present = "id")]
    pub name: Option<OsString>,
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
}
