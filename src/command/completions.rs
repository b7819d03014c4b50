//! `csalock completions`

use super::carried;
use super::context::print;
use crate::cli::{Completions, Shell};
use crate::exit::Exit;

pub(super) fn run(asked: &Completions) -> anyhow::Result<Exit> {
    let file = match asked.shell {
        Shell::Bash => "csalock.bash",
        Shell::Zsh => "_csalock",
        Shell::Fish => "csalock.fish",
    };
    print(carried::text(carried::completions::ALL, |name| name == file).unwrap_or_default())?;
    Ok(Exit::Done)
}
