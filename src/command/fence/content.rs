//! The bytes that replace a file: stdin, or the output of a command.

use std::ffi::OsString;
use std::io::{ErrorKind as IoErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::command::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::fence::Draft;
use crate::name::escape;
use crate::signals::{FORWARDED, Signals};

/// Size of one read.
const CHUNK: usize = 64 << 10;

/// How the content ended.
pub(super) enum Content {
    /// All bytes are in the draft.
    Complete,
    /// The command failed or a signal arrived: the exit status of csalock.
    Ended(Exit),
}

/// Reads all bytes into the draft: the output of the command, or stdin if there is no command.
pub(super) fn read(
    context: &Context,
    command: &[OsString],
    signals: &Signals,
    draft: &mut Draft<'_>,
) -> Result<Content> {
    let [program, arguments @ ..] = command else { return from_stdin(context, signals, draft) };
    let cannot_run = |error: std::io::Error| {
        let (kind, hint) = match error.kind() {
            IoErrorKind::NotFound | IoErrorKind::NotADirectory => (ErrorKind::CommandNotFound, "see its name and PATH"),
            _ => (ErrorKind::CannotExecute, "see its mode and its first line"),
        };
        let text = nix::errno::Errno::from_raw(error.raw_os_error().unwrap_or_default()).desc();
        Error::new(kind, format!("cannot run {}: {text}", escape(program.as_bytes())), hint)
    };
    let spawn = || Command::new(program).args(arguments).stdout(Stdio::piped()).spawn();
    let mut child = signals.unblocked(spawn).map_err(cannot_run)?;
    let copied = copy_output(&mut child, signals, draft);
    // After an error the command cannot write any more. It is not left behind.
    let status = wait(&mut child, signals)?;
    copied?;
    Ok(match (status.code(), status.signal()) {
        (Some(0), _) => Content::Complete,
        (Some(code), _) => Content::Ended(Exit::Code(code as u8)),
        (None, signal) => Content::Ended(Exit::signalled(signal.unwrap_or_default())),
    })
}

fn from_stdin(context: &Context, signals: &Signals, draft: &mut Draft<'_>) -> Result<Content> {
    if context.inherited.closed(0) {
        return Err(unreadable("stdin", "it is closed"));
    }
    let mut stdin = std::io::stdin().lock();
    let mut chunk = vec![0; CHUNK];
    loop {
        if is_readable(&stdin, signals.interrupt()).1 {
            return Ok(Content::Ended(signals.exit()));
        }
        match stdin.read(&mut chunk) {
            Ok(0) => return Ok(Content::Complete),
            Ok(read) => draft.append(&chunk[..read])?,
            Err(error) if error.kind() == IoErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable("stdin", &error.to_string())),
        }
    }
}

/// Copies the output of a command until its end, and passes on signals.
fn copy_output(child: &mut Child, signals: &Signals, draft: &mut Draft<'_>) -> Result<()> {
    let Some(mut output) = child.stdout.take() else { return Ok(()) };
    let mut chunk = vec![0; CHUNK];
    loop {
        let (has_output, has_signal) = is_readable(&output, signals);
        if has_signal {
            forward(child, signals);
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
fn wait(child: &mut Child, signals: &Signals) -> Result<ExitStatus> {
    let failed = |error: std::io::Error| Error::new(ErrorKind::System, format!("cannot wait: {error}"), "try again");
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(status);
        }
        let mut polled = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut polled, PollTimeout::NONE);
        forward(child, signals);
    }
}

/// Passes all signals in the queue on to the command. The terminal sends its own to the command, too.
fn forward(child: &Child, signals: &Signals) {
    for received in std::iter::from_fn(|| signals.next()) {
        if FORWARDED.contains(&received.signal) && !received.from_terminal {
            let _ = kill(Pid::from_raw(child.id() as i32), received.signal);
        }
    }
}

/// Waits until one of these is readable, and returns which of them are.
fn is_readable(source: impl AsFd, signals: impl AsFd) -> (bool, bool) {
    let mut polled = [PollFd::new(source.as_fd(), PollFlags::POLLIN), PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    let _ = poll(&mut polled, PollTimeout::NONE);
    (polled[0].any().unwrap_or(false), polled[1].any().unwrap_or(false))
}

fn unreadable(source: &str, why: &str) -> Error {
    Error::new(ErrorKind::InputOutput, format!("cannot read {source}: {why}"), "the file was not replaced")
}
