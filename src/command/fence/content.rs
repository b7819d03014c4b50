//! The bytes that replace a file: stdin, or the output of a command.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind as IoErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::command::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::fence::Draft;
use crate::run::output::PipedCommand;
use crate::signals::{FORWARDED, Signals};

/// Size of one read.
const CHUNK: usize = 64 << 10;

/// Reads all bytes into the draft: the output of the command, or stdin if there is no command. Returns another status
/// than [`Exit::Done`] if the command failed or a signal arrived.
pub(super) fn read(context: &Context, command: &[OsString], signals: &Signals, draft: &mut Draft<'_>) -> Result<Exit> {
    if command.is_empty() {
        return from_stdin(context, signals, draft);
    }
    let (command, output) = PipedCommand::start(command, signals, context.inherited)?;
    let copied = copy_output(&command, output, signals, draft);
    // After an error the command writes in vain. It is not left behind.
    let status = wait(&command, signals)?;
    copied.map(|()| status)
}

fn from_stdin(context: &Context, signals: &Signals, draft: &mut Draft<'_>) -> Result<Exit> {
    if context.inherited.closed(0) {
        return Err(unreadable("stdin", "it is closed"));
    }
    let mut stdin = std::io::stdin().lock();
    let mut chunk = vec![0; CHUNK];
    loop {
        if is_readable(&stdin, signals.interrupt()?).1 {
            return Ok(signals.exit());
        }
        match stdin.read(&mut chunk) {
            Ok(0) => return Ok(Exit::Done),
            Ok(read) => draft.append(&chunk[..read])?,
            Err(error) if error.kind() == IoErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable("stdin", &error.to_string())),
        }
    }
}

/// Copies the output of a command until its end, and passes on signals.
fn copy_output(command: &PipedCommand, mut output: File, signals: &Signals, draft: &mut Draft<'_>) -> Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let (has_output, has_signal) = is_readable(&output, signals.all_events()?);
        if has_signal {
            forward(command, signals);
        }
        if !has_output {
            continue;
        }
        match output.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(read) => draft.append(&chunk[..read])?,
            Err(error) if error.kind() == IoErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable("the output of the command", &error.to_string())),
        }
    }
}

/// Waits for the end of the command, and passes on signals.
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
    let ours = received.filter(|received| FORWARDED.contains(&received.signal) && !received.from_terminal);
    ours.for_each(|received| command.send(received.signal));
}

/// Waits until one of these is readable, and returns which of them are.
fn is_readable(source: impl AsFd, signals: BorrowedFd<'_>) -> (bool, bool) {
    let mut polled = [PollFd::new(source.as_fd(), PollFlags::POLLIN), PollFd::new(signals, PollFlags::POLLIN)];
    let _ = poll(&mut polled, PollTimeout::NONE);
    (polled[0].any().unwrap_or(false), polled[1].any().unwrap_or(false))
}

fn unreadable(source: &str, why: &str) -> Error {
    Error::new(ErrorKind::InputOutput, format!("cannot read {source}: {why}"), "the file was not replaced")
}
