//! `csalock`: locks for shell scripts. csalock(1) is the manual, and ARCHITECTURE.md has the map of the sources.

use std::process::ExitCode;

fn main() -> ExitCode {
    csalock::signals::ignore_file_size_limit();
    csalock::command::run(std::env::args_os().collect()).code().into()
}
