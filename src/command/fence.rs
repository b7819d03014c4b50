//! `csalock fence`: the token decides whether stdin, or the output of a command, replaces the file.

use std::ffi::OsString;
use std::io::{ErrorKind as IoErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::Context as _;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::context::{Context, eprint_line, print, print_json};
use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::fence::{Draft, Fence, Place, Replacement};
use crate::name::{escape, escape_path};
use crate::report::{RefusalReport, json};
use crate::run::exec::PipedCommand;
use crate::signals::Signals;
use crate::store::{Location, refuse_file_mounted_alone};
use crate::{cli, name};

const CHUNK: usize = 64 << 10;

pub(super) fn run(context: &Context, asked: &cli::Fence) -> anyhow::Result<Exit> {
    if asked.common.store.is_some() {
        let what = "--store cannot be used with fence: the newest token is kept beside the file";
        return Err(Error::new(ErrorKind::InvalidInput, what, "leave it out").into());
    }
    let token = if asked.show { 0 } else { token(asked.token)? };
    let path = path(context, asked)?;
    // No file can be renamed to a mount, so no write could be completed.
    refuse_file_mounted_alone(&path)
        .map_err(|error| Error::new(error.kind(), error.message(), "mount the directory"))?;
    let place = Place::open(path)?;
    let engine = context.engine(&Location::beside(place.folder()))?;
    let fence = Fence::new(&engine, &place);
    if asked.show {
        return show(context, asked, &fence, &place);
    }
    // A command whose output would be refused does not run.
    if let Some(newest) = fence.refusal(token)? {
        return refuse(asked, &place, token, newest);
    }
    let signals = Signals::listen(context.inherited)?;
    let mut draft = Draft::create(&place, context.host.as_ref())?;
    let exit = fill(context, &asked.command, &signals, &mut draft)?;
    if exit != Exit::Done {
        return Ok(exit);
    }
    let bytes = draft.bytes();
    match fence.replace(draft, token)? {
        Replacement::FencedOff(newest) => refuse(asked, &place, token, newest),
        Replacement::Done(before) => {
            told(asked, &place, token, before, bytes).context("the file was replaced")?;
            Ok(Exit::Done)
        }
    }
}

/// Returns the path of the file, whose symbolic links are followed.
fn path(context: &Context, asked: &cli::Fence) -> Result<PathBuf> {
    if asked.file.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, "the name of a file is not empty", "name the file to replace"));
    }
    if asked.file.as_bytes().ends_with(b"/") {
        let what = format!("{} names a directory", escape(asked.file.as_bytes()));
        return Err(Error::new(ErrorKind::InvalidInput, what, "only a regular file can be replaced; name one"));
    }
    name::file_of(asked.file.as_bytes(), &context.environment.current).map_err(|error| match error.kind() {
        ErrorKind::Unavailable => {
            Error::new(error.kind(), error.message(), "create its directory, or name another file")
        }
        _ => error,
    })
}

/// Returns the token of the option, or else that of the lock that this process runs under.
fn token(option: Option<u64>) -> Result<u64> {
    if let Some(token) = option {
        return Ok(token);
    }
    let hint = "run it under `csalock run`, which sets CSALOCK_TOKEN, or use --token N";
    let Some(text) = Environment::token() else {
        return Err(Error::new(ErrorKind::InvalidInput, "fence: there is no token", hint));
    };
    let token = text.to_str().and_then(|text| text.parse().ok()).filter(|token| *token > 0);
    token.ok_or_else(|| {
        let what = format!("CSALOCK_TOKEN is \"{}\", which is not a token", escape(text.as_bytes()));
        Error::new(ErrorKind::InvalidInput, what, hint)
    })
}

fn show(context: &Context, asked: &cli::Fence, fence: &Fence<'_>, place: &Place) -> anyhow::Result<Exit> {
    context.require_stdout("the token", "send it somewhere")?;
    let file = place.path().as_os_str().as_bytes();
    let Some(newest) = fence.inspect()? else {
        let what = format!("{} has no token", escape_path(place.path()));
        let refusal = RefusalReport::new(ErrorKind::NotHeld, what, "`csalock fence` has not written it").about(file);
        return asked.common.refuse(&refusal, refusal.kind, None);
    };
    if asked.common.json {
        print_json(&json::newest_token(file, newest.token, newest.published))?;
        return Ok(Exit::Done);
    }
    print(format!("{}\n", newest.token))?;
    if !newest.published {
        asked.common.note(&format!(
            "{}: the writer with token {} ended half-way; the next `csalock fence` completes its write",
            escape_path(place.path()),
            newest.token
        ));
    }
    Ok(Exit::Done)
}

/// Reads all bytes into the draft: the output of the command, or stdin if there is no command. Returns another status
/// than [`Exit::Done`] if the command failed or a signal arrived.
fn fill(context: &Context, command: &[OsString], signals: &Signals, draft: &mut Draft<'_>) -> Result<Exit> {
    if command.is_empty() {
        if context.inherited.closed(0) {
            return Err(unreadable("stdin", "it is closed"));
        }
        let end_at_signal = &mut || Some(signals.exit());
        let ended = copy("stdin", std::io::stdin().lock(), signals.interrupt()?, draft, end_at_signal)?;
        return Ok(ended.unwrap_or(Exit::Done));
    }
    let (command, output) = PipedCommand::start(command, signals, context.inherited)?;
    let forward_signal = &mut || {
        forward(&command, signals);
        None
    };
    let copied = copy("the output of the command", output, signals.all_events()?, draft, forward_signal);
    // After an error the command writes in vain. It is not left behind.
    let status = wait(&command, signals)?;
    copied.map(|_| status)
}

/// Copies a source into the draft until its end. Calls `on_signal` at signals, and ends if it returns a status.
fn copy(
    what: &str,
    mut source: impl Read + AsFd,
    signals: BorrowedFd<'_>,
    draft: &mut Draft<'_>,
    on_signal: &mut dyn FnMut() -> Option<Exit>,
) -> Result<Option<Exit>> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let mut polled = [PollFd::new(source.as_fd(), PollFlags::POLLIN), PollFd::new(signals, PollFlags::POLLIN)];
        let _ = poll(&mut polled, PollTimeout::NONE);
        let [is_readable, has_signal] = polled.map(|descriptor| descriptor.any().unwrap_or(false));
        if has_signal && let Some(ended) = on_signal() {
            return Ok(Some(ended));
        }
        if !is_readable {
            continue;
        }
        match source.read(&mut chunk) {
            Ok(0) => return Ok(None),
            Ok(read) => draft.append(&chunk[..read])?,
            Err(error) if error.kind() == IoErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable(what, &error.to_string())),
        }
    }
}

fn wait(command: &PipedCommand, signals: &Signals) -> Result<Exit> {
    loop {
        if let Some(status) = command.status()? {
            return Ok(status);
        }
        let mut polled = [PollFd::new(signals.all_events()?, PollFlags::POLLIN)];
        let _ = poll(&mut polled, PollTimeout::NONE);
        forward(command, signals);
    }
}

/// Passes all signals in the queue on to the command. The terminal sends its own to the command, too.
fn forward(command: &PipedCommand, signals: &Signals) {
    let received = std::iter::from_fn(|| signals.next());
    let ours = received.filter(|received| received.is_forwarded());
    ours.for_each(|received| command.send(received.signal));
}

fn unreadable(source: &str, why: &str) -> Error {
    Error::new(ErrorKind::InputOutput, format!("cannot read {source}: {why}"), "the file was not replaced")
}

fn told(asked: &cli::Fence, place: &Place, token: u64, before: u64, bytes: u64) -> anyhow::Result<()> {
    let before = (before > 0).then_some(before);
    if asked.common.json {
        print_json(&json::fenced(place.path().as_os_str().as_bytes(), token, before, bytes))?;
    } else if asked.common.verbose {
        let before = before.map_or("none".to_string(), |before| before.to_string());
        let file = escape_path(place.path());
        eprint_line(&format!("{file} is replaced: {bytes} bytes, token {token}, token before {before}"));
    }
    Ok(())
}

fn refuse(asked: &cli::Fence, place: &Place, token: u64, newest: u64) -> anyhow::Result<Exit> {
    let what = format!("{} is fenced off: token {token} is older than token {newest}", escape_path(place.path()));
    let hint = "a later holder of the lock has written it, so end this job";
    let refusal = RefusalReport::new(ErrorKind::FencedOff, what, hint).about(place.path().as_os_str().as_bytes());
    asked.common.refuse(&refusal, refusal.kind, None)
}
