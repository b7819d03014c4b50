//! Arguments of `csalock serve`.

use std::ffi::OsString;

use clap::Args;

use super::options::{Common, hide};

/// Serve a directory of locks to one client of another host
///
/// ssh(1) starts this command on the host of a store ssh://HOST/PATH; users do not. It answers requests about that one
/// directory on its standard input and output, runs no command for the client, and ends with the connection.
#[derive(Debug, Args)]
#[command(
    override_usage = "csalock serve --stdio dir:PATH",
    mut_args(|argument| hide(argument, &["store", "json", "quiet", "verbose"])),
)]
pub struct Serve {
    /// Speak on standard input and output
    #[arg(long, required = true)]
    pub stdio: bool,
    /// The directory: dir:PATH
    #[arg(value_name = "STORE")]
    pub directory: OsString,
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
}
