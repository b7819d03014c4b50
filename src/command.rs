//! From what was typed to an exit code: one file per command, and what they share.

mod claim;
mod csa;
mod doctor;
mod gc;
mod get;
mod history;
mod keep;
mod lock;
mod lookup;
mod onlooker;
mod put;
mod renew;
mod run;
mod status;
mod targets;
mod unlock;
mod world;

use std::ffi::OsString;
use std::io::Write;

use clap::Parser;
use clap::error::ErrorKind;

use crate::cli::{self, Cli, Command};
use crate::error::Error;
use crate::exit::Exit;
use crate::signals;
use world::World;

/// Runs the program: reads the arguments, does what they say, prints the result.
pub fn run() -> Exit {
    signals::ignore_file_size_signal();
    if let Some(csa) = csa::called_as(std::env::args_os().next()) {
        return end(csa::run(&World::of_this_process(), csa, std::env::args_os().skip(1).collect()));
    }
    let plain = cli::plain::read(std::env::args_os());
    let cli = match plain.map_or_else(|| Cli::try_parse_from(help_last(std::env::args_os().collect())), Ok) {
        Ok(cli) => cli,
        Err(error) => return tell_usage(&error),
    };
    if let Err(error) = options_stand_first(&cli.command) {
        world::say(&error.to_string());
        return error.exit();
    }
    let world = World::of_this_process();
    let done = match cli.command {
        Command::Lock(asked) => lock::run(&world, &asked),
        Command::Unlock(asked) => unlock::run(&world, &asked),
        Command::RunWithLock(asked) => run::run(&world, &asked),
        Command::Status(asked) => status::run(&world, &asked).or_else(end_with_reader),
        Command::History(asked) => history::run(&world, &asked).or_else(end_with_reader),
        Command::Renew(asked) => renew::run(&world, &asked),
        Command::Get(asked) => get::run(&world, &asked).or_else(end_with_reader),
        Command::Put(asked) => put::put(&world, &asked),
        Command::Del(asked) => put::del(&world, &asked),
        Command::Claim(asked) => claim::claim(&world, &asked),
        Command::Unclaim(asked) => claim::unclaim(&world, &asked),
        Command::Lookup(asked) => lookup::run(&world, &asked).or_else(end_with_reader),
        Command::Gc(asked) => gc::run(&world, &asked),
        Command::Doctor(asked) => doctor::run(&world, &asked),
    };
    end(done)
}

/// Tells what failed, and ends as a signal would have ended us.
fn end(done: anyhow::Result<Exit>) -> Exit {
    let exit = done.unwrap_or_else(|error| {
        world::say(&format!("{error:#}"));
        exit_of(&error)
    });
    if let Exit::Raised(signal) = exit
        && let Ok(signal) = signal.try_into()
    {
        signals::die_of(signal);
    }
    exit
}

/// `csalock help lock` is `csalock lock --help`.
fn help_last(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_some_and(|word| word == "help") {
        words.remove(1);
        words.push("--help".into());
    }
    words
}

/// What begins with a dash and stands behind a name was meant as an option, unless `--` stands before all names.
fn options_stand_first(command: &Command) -> crate::error::Result<()> {
    let names = match command {
        Command::Lock(asked) => &asked.names,
        Command::Unlock(asked) => &asked.names,
        Command::Status(asked) => &asked.names,
        Command::History(asked) => &asked.names,
        Command::Renew(asked) => &asked.names,
        Command::Get(asked) => &asked.names,
        Command::Del(asked) => &asked.names,
        Command::Claim(asked) => &asked.names,
        Command::Unclaim(asked) => &asked.names,
        Command::Lookup(asked) => &asked.names,
        Command::Doctor(asked) => &asked.names,
        Command::RunWithLock(_) | Command::Put(_) | Command::Gc(_) => return Ok(()),
    };
    let Some(option) = names.iter().find(|name| name.as_encoded_bytes().starts_with(b"-")) else { return Ok(()) };
    // The names are the last arguments.
    let before = std::env::args_os().len().checked_sub(names.len() + 1);
    if before.and_then(|at| std::env::args_os().nth(at)).is_some_and(|word| word == "--") {
        return Ok(());
    }
    let what = format!(
        "{} stands behind a name, where options are taken for names",
        crate::name::quoted(option.as_encoded_bytes())
    );
    Err(Error::new(Exit::Usage, what, "put options before the names, or -- before names that begin with a dash"))
}

/// Whoever reads a listing may have seen enough (`csalock status | head -1`): then we end as any program would.
fn end_with_reader(error: anyhow::Error) -> anyhow::Result<Exit> {
    let is_broken_pipe = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::BrokenPipe;
    match error.root_cause().downcast_ref().is_some_and(is_broken_pipe) {
        true => Ok(Exit::Raised(nix::libc::SIGPIPE)),
        false => Err(error),
    }
}

/// The exit code of a failure: what its cause says, wherever in the chain that stands.
fn exit_of(error: &anyhow::Error) -> Exit {
    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<Error>() {
            return error.exit();
        }
        if cause.downcast_ref::<std::io::Error>().is_some() {
            return Exit::InputOutput;
        }
    }
    Exit::Bug
}

fn tell_usage(error: &clap::Error) -> Exit {
    let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let harmless = if asked_for { None } else { without_harm() };
    match harmless.as_ref().unwrap_or(error).print() {
        Err(_) => Exit::InputOutput,
        Ok(()) if asked_for && std::io::stdout().flush().is_ok() => Exit::Done,
        Ok(()) if asked_for => Exit::InputOutput,
        Ok(()) => Exit::Usage,
    }
}

/// What is wrong in the arguments, in which others than the caller may have chosen words, without what a terminal would
/// obey; `None` where that is nothing.
fn without_harm() -> Option<clap::Error> {
    let is_harmful = |word: &std::ffi::OsString| crate::name::is_harmful(word.as_encoded_bytes());
    let words: Vec<_> = std::env::args_os().collect();
    words.iter().any(is_harmful).then_some(())?;
    let shown = words.into_iter().map(|word| match is_harmful(&word) {
        true => crate::name::shown(word.as_encoded_bytes()).into(),
        false => word,
    });
    Some(Cli::try_parse_from(shown).err().unwrap_or_else(|| clap::Error::new(ErrorKind::ValueValidation)))
}
