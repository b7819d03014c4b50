//! Connection to one server for ureq, with or without TLS, whose waits end with the deadline of the present call.
//!
//! All bytes of one request are sent at once, because two small segments would wake the server twice. A request may be
//! sent whose answer is not needed now ([`CallDeadline::set`]). ureq then gets a substitute, and the real answer is
//! skipped before the next read, or by [`CallDeadline::settle`].

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use rustls::{ClientConnection, StreamOwned};
use ureq::unversioned::transport::{Buffers, LazyBuffers, NextTimeout, Transport};

use super::http_framing::{MOST_UNWANTED, length_of_answer};
use crate::host::Host;

/// Substitute answer that ureq gets if the real answer is not needed.
const NO_ANSWER: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";

const MOST_UNSENT: usize = 1 << 16;

/// Deadline of the present call, and the connection with unneeded answers.
pub(super) struct CallDeadline {
    host: Arc<dyn Host>,
    /// Deadline on CLOCK_BOOTTIME, in nanoseconds.
    deadline: AtomicU64,
    unanswered: AtomicBool,
    /// Connection that still has to receive unneeded answers.
    owing: Mutex<Weak<Mutex<Inside>>>,
}

impl CallDeadline {
    pub(super) fn new(host: Arc<dyn Host>) -> CallDeadline {
        CallDeadline { host, deadline: AtomicU64::new(0), unanswered: AtomicBool::new(false), owing: Mutex::default() }
    }

    /// Sets the deadline of later waits. If `unanswered`, later requests do not wait for answers.
    pub(super) fn set(&self, deadline: Duration, unanswered: bool) {
        self.deadline.store(u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.unanswered.store(unanswered, Ordering::Relaxed);
    }

    /// Returns true if unneeded answers are still to come.
    pub(super) fn is_owed(&self) -> bool {
        let owing = self.owing.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        owing.is_some_and(|inside| locked(&inside).unwanted > 0)
    }

    /// Waits for the unneeded answers.
    pub(super) fn settle(&self) -> io::Result<()> {
        let owing = self.owing.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        owing.map_or(Ok(()), |inside| locked(&inside).skip_unwanted())
    }

    pub(super) fn left(&self) -> Duration {
        Duration::from_nanos(self.deadline.load(Ordering::Relaxed)).saturating_sub(self.host.boottime())
    }
}

/// Socket whose reads and writes end with the deadline of the present call.
pub(super) struct Socket {
    stream: TcpStream,
    call_deadline: Arc<CallDeadline>,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, call_deadline: Arc<CallDeadline>) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Socket { stream, call_deadline })
    }

    /// Waits until the socket is ready, or until a signal came and the caller must retry.
    fn wait_for(&self, what: PollFlags) -> io::Result<()> {
        match poll(self.stream.as_fd(), what, self.call_deadline.left()) {
            Ok(false) => Err(io::ErrorKind::TimedOut.into()),
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}

fn poll(what: BorrowedFd<'_>, flags: PollFlags, at_most: Duration) -> io::Result<bool> {
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

enum Wire {
    Plain(Socket),
    Tls(Box<StreamOwned<ClientConnection, Socket>>),
}

/// State of one connection, without ureq's buffers.
struct Inside {
    wire: Wire,
    /// Number of unneeded answers still to come.
    unwanted: usize,
    /// Bytes that were read after the unneeded answers.
    read: Vec<u8>,
    /// True if the number of unneeded answers is unknown.
    lost: bool,
}

fn locked(inside: &Mutex<Inside>) -> MutexGuard<'_, Inside> {
    inside.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inside {
    fn socket(&self) -> &Socket {
        match &self.wire {
            Wire::Plain(socket) => socket,
            Wire::Tls(stream) => &stream.sock,
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.read.is_empty() {
            let amount = buffer.len().min(self.read.len());
            buffer[..amount].copy_from_slice(&self.read[..amount]);
            self.read.drain(..amount);
            return Ok(amount);
        }
        match &mut self.wire {
            Wire::Plain(socket) => socket.read(buffer),
            Wire::Tls(stream) => stream.read(buffer),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.wire {
            Wire::Plain(socket) => socket.write_all(bytes),
            Wire::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }

    /// Reads the unneeded answers. If that fails, the connection can no longer be read.
    fn skip_unwanted(&mut self) -> io::Result<()> {
        let skipped = self.try_to_skip_unwanted();
        self.lost |= skipped.is_err();
        skipped
    }

    fn try_to_skip_unwanted(&mut self) -> io::Result<()> {
        let mut said = std::mem::take(&mut self.read);
        while self.unwanted > 0 {
            while self.unwanted > 0
                && let Some(length) = length_of_answer(&said)?
            {
                said.drain(..length);
                self.unwanted -= 1;
            }
            if self.unwanted > 0 {
                let mut buffer = [0; 2048];
                match self.read(&mut buffer)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    _ if said.len() > 2 * MOST_UNWANTED => return Err(io::ErrorKind::UnexpectedEof.into()),
                    amount => said.extend_from_slice(&buffer[..amount]),
                }
            }
        }
        self.read = said;
        Ok(())
    }
}

/// Connection to one server.
pub(super) struct Connection {
    inside: Arc<Mutex<Inside>>,
    buffers: LazyBuffers,
    unsent: Vec<u8>,
}

impl Connection {
    /// Returns a connection over this socket, with TLS if that is given.
    pub(super) fn new(mut socket: Socket, tls: Option<ClientConnection>) -> io::Result<Connection> {
        let wire = match tls {
            None => Wire::Plain(socket),
            Some(mut tls) => {
                tls.complete_io(&mut socket)?;
                Wire::Tls(Box::new(StreamOwned::new(tls, socket)))
            }
        };
        let inside = Arc::new(Mutex::new(Inside { wire, unwanted: 0, read: Vec::new(), lost: false }));
        Ok(Connection { inside, buffers: LazyBuffers::new(1 << 14, 1 << 14), unsent: Vec::new() })
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        locked(&self.inside)
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.inside().write(bytes)
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inside().read(buffer)
    }

    /// Returns a duplicate of the descriptor, which becomes readable with the connection and keeps it open.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.inside().socket().stream.as_fd().try_clone_to_owned()
    }

    /// Shuts the connection down, which makes it readable.
    pub(super) fn shut(&self) {
        let _ = self.inside().socket().stream.shutdown(Shutdown::Both);
    }

    fn send(&mut self) -> io::Result<()> {
        let unsent = std::mem::take(&mut self.unsent);
        if unsent.is_empty() { Ok(()) } else { self.write(&unsent) }
    }
}

/// Returns true if there is something to read.
pub(super) fn is_readable(what: BorrowedFd<'_>) -> bool {
    poll(what, PollFlags::POLLIN, Duration::ZERO).unwrap_or(true)
}

impl Transport for Connection {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, _: NextTimeout) -> Result<(), ureq::Error> {
        self.unsent.extend_from_slice(&self.buffers.output()[..amount]);
        if self.unsent.len() > MOST_UNSENT {
            self.send()?;
        }
        Ok(())
    }

    fn await_input(&mut self, _: NextTimeout) -> Result<bool, ureq::Error> {
        self.send()?;
        let mut inside = locked(&self.inside);
        let call_deadline = inside.socket().call_deadline.clone();
        if call_deadline.unanswered.load(Ordering::Relaxed) {
            inside.unwanted += 1;
            *call_deadline.owing.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&self.inside);
            self.buffers.input_append_buf()[..NO_ANSWER.len()].copy_from_slice(NO_ANSWER);
            self.buffers.input_appended(NO_ANSWER.len());
            return Ok(true);
        }
        inside.skip_unwanted()?;
        let amount = inside.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        let inside = self.inside();
        // Unexpected data on an idle connection means that the connection has ended.
        !inside.lost && (inside.unwanted > 0 || !is_readable(inside.socket().stream.as_fd()))
    }

    fn is_tls(&self) -> bool {
        matches!(self.inside().wire, Wire::Tls(_))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Line")
    }
}
