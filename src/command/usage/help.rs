//! The help on the terminal: one line for each option if there is room, in a width of at most 100 columns.

use std::io::Write;

use super::line::Line;

/// Prints the help of the command on stdout: `--help` describes the command too, `-h` does not.
pub(super) fn print(line: &Line<'_>) -> anyhow::Result<()> {
    crate::command::context::print(text(line, line.has("--help"), &std::io::stdout()))
}

/// Prints the short help on stderr.
pub(super) fn eprint_short(line: &Line<'_>) {
    let mut stderr = std::io::stderr();
    let text = text(line, false, &stderr);
    // If stderr is gone, no other place is left for the help.
    let _ = stderr.write_all(text.as_bytes());
}

fn text(line: &Line<'_>, long: bool, output: &impl std::io::IsTerminal) -> String {
    let mut command = line.definition().clone();
    // clap's own long help takes three lines for each option.
    if let Some(description) = command.get_long_about().filter(|_| long).cloned() {
        command = command.about(description);
    }
    let help = command.render_help();
    if line.color().is_for(output) { help.ansi().to_string() } else { help.to_string() }
}
