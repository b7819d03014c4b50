//! `csalock completions`

use super::context::print;
use crate::cli::{Completions, Shell};
use crate::exit::Exit;

pub(super) fn run(asked: &Completions) -> anyhow::Result<Exit> {
    print(match asked.shell {
        Shell::Bash => include_str!("../../completions/csalock.bash"),
        Shell::Zsh => include_str!("../../completions/_csalock"),
        Shell::Fish => include_str!("../../completions/csalock.fish"),
    })?;
    Ok(Exit::Done)
}
