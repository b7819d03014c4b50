//! One connection: ssh(1) as a child process, whose standard input and output are one socket.

use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{Signal, killpg};
use nix::sys::time::TimeSpec;
use nix::unistd::Pid;
use serde::de::DeserializeOwned;

use super::Remote;
use super::errors::{SshCause, SshError, strange};
use super::wire::{FORMAT, Greeting, Lines, Reply, WireRequest, line};
use host::Host;
use host::signals;
use lock::HandleHash;
use net::{CallError, NetError, until_signal_check};
use store::Call;

/// Maximum number of bytes of ssh's messages that are read.
const MOST_SAID: usize = 4096;

/// Maximum time to read notifications. A server that sends longer is not that of csalock.
const TO_HEAR: Duration = Duration::from_secs(1);

/// Subscriptions that were notified, at most: so many were asked for.
pub(super) const MOST_SUBSCRIPTIONS: usize = 64;

pub(super) struct Link {
    ssh: Child,
    stderr: Option<ChildStderr>,
    /// End of what ssh printed on its standard error.
    printed: Vec<u8>,
    pub(super) socket: UnixStream,
    /// Start of ssh(1), on CLOCK_BOOTTIME.
    pub(super) since: Duration,
    lines: Lines,
    /// Name of the server process, after its greeting.
    pub(super) session: Option<HandleHash>,
    pub(super) notified: Vec<u64>,
}

impl Link {
    /// Starts ssh(1). Its process group is its own, so that signals from the terminal do not end it before a release.
    pub(super) fn open(program: &OsStr, remote: &Remote, now: Duration) -> io::Result<Link> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        let mut command = Command::new(program);
        command.args(["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
        command.args(["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]);
        command.args(remote.port.iter().flat_map(|port| ["-p".to_string(), port.to_string()]));
        command.arg("--").arg(&remote.destination).arg(remote.command());
        command.stdin(OwnedFd::from(theirs.try_clone()?)).stdout(OwnedFd::from(theirs)).stderr(Stdio::piped());
        signals::restore_for(&mut command);
        let mut ssh = command.process_group(0).spawn()?;
        let stderr = ssh.stderr.take();
        if let Some(stderr) = &stderr {
            fcntl(stderr, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(Link {
            ssh,
            stderr,
            printed: Vec::new(),
            socket,
            since: now,
            lines: Lines::default(),
            session: None,
            notified: Vec::new(),
        })
    }

    pub(super) fn greet(&mut self, host: &dyn Host, call: Call) -> Result<(), SshError> {
        if self.session.is_some() {
            return Ok(());
        }
        let greeting: Greeting = self.receive(host, call).map_err(|error| match error {
            // A login script may print something first.
            CallError::Server(SshCause::Strange) => CallError::Server(SshCause::NoServer),
            error => error,
        })?;
        if greeting.csalock_serve != FORMAT {
            return Err(CallError::Server(SshCause::OtherVersion(greeting.program)));
        }
        self.session = Some(greeting.session.map_err(|error| CallError::Server(SshCause::Refused(error)))?);
        // A banner is not the reason for a later end.
        self.read_stderr();
        self.printed.clear();
        Ok(())
    }

    pub(super) fn ask(&mut self, host: &dyn Host, id: u64, ask: &WireRequest, call: Call) -> Result<Reply, SshError> {
        self.send(host, &line(&(id, ask)), call)?;
        self.reply(host, id, call)
    }

    /// Replies to other requests are for processes that have ended.
    pub(super) fn reply(&mut self, host: &dyn Host, id: u64, call: Call) -> Result<Reply, SshError> {
        loop {
            match self.receive(host, call)? {
                (of, Reply::Notified) => self.note(of)?,
                (of, reply) if of == id => return Ok(reply),
                _ => {}
            }
            // A server that sends without end must not exceed the deadline.
            if host.boottime() >= call.end() {
                return Err(NetError::Silent.into());
            }
        }
    }

    /// Reads what has arrived, without waiting.
    pub(super) fn hear(&mut self, host: &dyn Host) -> Result<(), SshError> {
        let until = host.boottime() + TO_HEAR;
        loop {
            self.note_received()?;
            if !self.read()? {
                return Ok(());
            }
            if host.boottime() >= until {
                return Err(strange());
            }
        }
    }

    /// Notes the notifications that have come with the last reply. Other replies are for processes that have ended.
    pub(super) fn note_received(&mut self) -> Result<(), SshError> {
        while let Some((of, reply)) = self.lines.next()? {
            if matches!(reply, Reply::Notified) {
                self.note(of)?;
            }
        }
        Ok(())
    }

    fn note(&mut self, id: u64) -> Result<(), SshError> {
        if self.notified.contains(&id) {
            return Err(strange());
        }
        self.notified.push(id);
        if self.notified.len() > MOST_SUBSCRIPTIONS {
            self.notified.remove(0);
        }
        Ok(())
    }

    pub(super) fn send(&mut self, host: &dyn Host, mut bytes: &[u8], call: Call) -> Result<(), SshError> {
        while !bytes.is_empty() {
            match self.socket.write(bytes) {
                Ok(length) => bytes = &bytes[length..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(host, PollFlags::POLLOUT, call)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(self.ended()),
            }
        }
        Ok(())
    }

    fn receive<T: DeserializeOwned>(&mut self, host: &dyn Host, call: Call) -> Result<T, SshError> {
        loop {
            if let Some(message) = self.lines.next()? {
                return Ok(message);
            }
            if !self.read()? {
                self.wait(host, PollFlags::POLLIN, call)?;
            }
        }
    }

    /// False if nothing has arrived.
    fn read(&mut self) -> Result<bool, SshError> {
        let mut buffer = [0; 16 << 10];
        match self.socket.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Ok(0) | Err(_) => Err(self.ended()),
            Ok(length) => {
                self.lines.push(&buffer[..length]);
                Ok(true)
            }
        }
    }

    /// Waits until the socket is ready, and reads what ssh prints meanwhile: a login script that prints much would block.
    fn wait(&mut self, host: &dyn Host, what: PollFlags, call: Call) -> Result<(), SshError> {
        let left = call.end().saturating_sub(host.boottime());
        let stderr = self.stderr.as_ref().map(AsFd::as_fd);
        let mut polled = vec![PollFd::new(self.socket.as_fd(), what)];
        polled.extend(stderr.map(|stderr| PollFd::new(stderr, PollFlags::POLLIN)));
        // The caller tries again, also after a signal that does not end its call.
        let is_ready = ppoll(&mut polled, Some(TimeSpec::from_duration(until_signal_check(call, left))), None) != Ok(0);
        drop(polled);
        self.read_stderr();
        match () {
            () if call.is_interrupted(host) => Err(NetError::Interrupted.into()),
            () if !is_ready && left.is_zero() => Err(NetError::Silent.into()),
            () => Ok(()),
        }
    }

    fn read_stderr(&mut self) {
        let Some(stderr) = &mut self.stderr else { return };
        let mut buffer = [0; 16 << 10];
        // As much as a pipe has at once; what comes later is read at the next wait.
        for _ in 0..4 {
            match stderr.read(&mut buffer) {
                Ok(0) => return self.stderr = None,
                Ok(length) => self.printed.extend_from_slice(&buffer[..length]),
                Err(_) => break,
            }
        }
        let surplus = self.printed.len().saturating_sub(MOST_SAID);
        self.printed.drain(..surplus);
    }

    /// The socket has ended, so ssh has ended too, or is about to.
    fn ended(&mut self) -> SshError {
        let mut status = None;
        for _ in 0..10 {
            status = self.ssh.try_wait().ok().flatten().and_then(|status| status.code());
            self.read_stderr();
            if status.is_some() {
                break;
            }
            let stderr = self.stderr.iter().map(|stderr| PollFd::new(stderr.as_fd(), PollFlags::POLLIN));
            let mut polled: Vec<PollFd<'_>> = stderr.collect();
            let _ = ppoll(&mut polled, Some(TimeSpec::from_duration(Duration::from_millis(20))), None);
        }
        CallError::Server(SshCause::ended(&String::from_utf8_lossy(&self.printed), status, self.session.is_some()))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // ssh ends when its input ends, but not before it is connected.
        if self.session.is_none() && matches!(self.ssh.try_wait(), Ok(None)) {
            let _ = killpg(Pid::from_raw(self.ssh.id() as i32), Signal::SIGKILL);
            let _ = self.ssh.wait();
        }
        // If it has ended already, it must not stay a zombie.
        let _ = self.ssh.try_wait();
    }
}
