//! Arguments of the commands that print what the program carries: completions and the manual.

use clap::{Args, ValueEnum};

use super::options::{Common, hide};

/// Print the completions for a shell
///
/// The shells read them from files: in bash from ~/.local/share/bash-completion/completions/csalock, in zsh from _csalock in
/// a directory of $fpath, in fish from ~/.config/fish/completions/csalock.fish.
#[derive(Debug, Args)]
#[command(override_usage = "csalock completions bash|zsh|fish", mut_args(|argument| hide(argument, &["store", "json"])))]
pub struct Completions {
    /// The shell: bash, zsh or fish
    #[arg(value_name = "SHELL", value_enum, hide_possible_values = true)]
    pub shell: Shell,
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
}

/// A shell with completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// GNU Bash.
    Bash,
    /// The Z shell.
    Zsh,
    /// The friendly interactive shell.
    Fish,
}

/// Show a page of the manual
///
/// The pages are part of the program. On a terminal, man(1) or mandoc(1) shows the page; without them, and in a pipe or a
/// file, csalock prints its source.
#[derive(Debug, Args)]
#[command(override_usage = "csalock man [COMMAND|7]", mut_args(|argument| hide(argument, &["store", "json"])))]
pub struct Man {
    /// Command whose page is shown; 7 is csalock(7), which explains the concepts; without it, csalock(1)
    #[arg(value_name = "COMMAND")]
    pub page: Option<String>,
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
}
