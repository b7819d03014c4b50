//! A socket, with or without TLS, whose waits end with the deadline of the present call.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use rustls::{ClientConnection, StreamOwned};

use super::retry::CallError;
use super::retry::{is_interrupted, until_signal_check};
use crate::host::Host;

pub(in crate::store) struct CallDeadline {
    host: Arc<dyn Host>,
    /// Deadline on CLOCK_BOOTTIME, in nanoseconds.
    deadline: AtomicU64,
}

impl CallDeadline {
    pub(in crate::store) fn new(host: Arc<dyn Host>) -> CallDeadline {
        CallDeadline { host, deadline: AtomicU64::new(0) }
    }

    pub(in crate::store) fn set(&self, deadline: Duration) {
        self.deadline.store(u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(in crate::store) fn left(&self) -> Duration {
        Duration::from_nanos(self.deadline.load(Ordering::Relaxed)).saturating_sub(self.host.boottime())
    }

    /// Waits until a descriptor is ready. Fails at the deadline, after this time, and after a signal that ends calls.
    pub(in crate::store) fn wait(&self, what: BorrowedFd<'_>, flags: PollFlags, at_most: Duration) -> io::Result<()> {
        let until = self.host.boottime().saturating_add(at_most.min(self.left()));
        loop {
            let left = until.saturating_sub(self.host.boottime());
            match poll(what, flags, until_signal_check(left)) {
                Ok(true) => return Ok(()),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ if is_interrupted(&*self.host) => return Err(CallError::Interrupted.into()),
                _ if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
                _ => {}
            }
        }
    }
}

/// Socket whose reads and writes end with the deadline of the present call.
pub(in crate::store) struct Socket {
    stream: TcpStream,
    call_deadline: Arc<CallDeadline>,
}

impl Socket {
    pub(in crate::store) fn new(stream: TcpStream, call_deadline: Arc<CallDeadline>) -> io::Result<Socket> {
        // A socket of this host has no such option.
        let _ = stream.set_nodelay(true);
        stream.set_nonblocking(true)?;
        Ok(Socket { stream, call_deadline })
    }

    fn wait_for(&self, what: PollFlags) -> io::Result<()> {
        self.call_deadline.wait(self.stream.as_fd(), what, Duration::MAX)
    }
}

/// Waits until the descriptor is ready; returns false if it is not in time.
pub(in crate::store) fn poll(what: BorrowedFd<'_>, flags: PollFlags, at_most: Duration) -> io::Result<bool> {
    let mut polled = [PollFd::new(what, flags)];
    Ok(ppoll(&mut polled, Some(TimeSpec::from_duration(at_most)), None)? > 0)
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // The check is here too, because a server that sends without end must not exceed the deadline.
            if self.call_deadline.left().is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.stream.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait_for(PollFlags::POLLIN)?,
                read => return read,
            }
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.stream.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait_for(PollFlags::POLLOUT)?,
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(in crate::store) enum Wire {
    Plain(Socket),
    Tls(Box<StreamOwned<ClientConnection, Socket>>),
}

impl Wire {
    pub(in crate::store) fn encrypted(mut socket: Socket, mut tls: ClientConnection) -> io::Result<Wire> {
        tls.complete_io(&mut socket)?;
        Ok(Wire::Tls(Box::new(StreamOwned::new(tls, socket))))
    }

    pub(in crate::store) fn socket(&self) -> &TcpStream {
        match self {
            Wire::Plain(socket) => &socket.stream,
            Wire::Tls(stream) => &stream.sock.stream,
        }
    }

    pub(in crate::store) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Wire::Plain(socket) => socket.write_all(bytes),
            Wire::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(socket) => socket.read(buffer),
            Wire::Tls(stream) => stream.read(buffer),
        }
    }
}

pub(in crate::store) fn is_readable(what: BorrowedFd<'_>) -> bool {
    poll(what, PollFlags::POLLIN, Duration::ZERO).unwrap_or(true)
}
