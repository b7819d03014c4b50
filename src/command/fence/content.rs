//! The bytes that replace a file: stdin, or the output of a command.

use std::ffi::OsString;
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

fn unreadable(source: &str, why: &str) -> Error {
    Error::new(ErrorKind::InputOutput, format!("cannot read {source}: {why}"), "the file was not replaced")
}
