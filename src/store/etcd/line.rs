//! A connection to one server, as ureq wants it: with TLS or without, and never waiting for longer than the present call
//! has left.
//!
//! What ureq writes of one request goes out at once: two small segments would wake the server twice. And a request may be
//! sent whose answer nobody wants now ([`Terms::unanswered`]): ureq is then given one, and the real one is skipped before
//! the next is read. An empty line follows such a request. HTTP allows it, and a Go server that has read a byte behind a
//! request no longer takes the end of the connection for a reason to give the request up.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use rustls::{ClientConnection, StreamOwned};
use ureq::unversioned::transport::{Buffers, LazyBuffers, NextTimeout, Transport};

use crate::host::Host;

/// What ureq takes for an answer where nobody wants one.
const NO_ANSWER: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";

const MOST_UNSENT: usize = 1 << 16;

/// On what terms the present call waits.
pub(super) struct Terms {
    host: Arc<dyn Host>,
    /// On CLOCK_BOOTTIME, in nanoseconds.
    deadline: AtomicU64,
    unanswered: AtomicBool,
}

impl Terms {
    pub(super) fn new(host: Arc<dyn Host>) -> Terms {
        Terms { host, deadline: AtomicU64::new(0), unanswered: AtomicBool::new(false) }
    }

    /// From now on, nothing waits beyond this.
    pub(super) fn set(&self, deadline: Duration, unanswered: bool) {
        self.deadline.store(u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.unanswered.store(unanswered, Ordering::Relaxed);
    }

    pub(super) fn left(&self) -> Duration {
        Duration::from_nanos(self.deadline.load(Ordering::Relaxed)).saturating_sub(self.host.boottime())
    }
}

/// A socket whose reads and writes end with the time of the present call.
pub(super) struct Socket {
    stream: TcpStream,
    terms: Arc<Terms>,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, terms: Arc<Terms>) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Socket { stream, terms })
    }

    fn wait_for(&self, what: PollFlags) -> io::Result<()> {
        match poll(self.stream.as_fd(), what, self.terms.left())? {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
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

/// One connection.
pub(super) struct Line {
    wire: Wire,
    buffers: LazyBuffers,
    unsent: Vec<u8>,
    /// How many answers are still to come that nobody wants.
    unwanted: usize,
}

impl Line {
    /// A connection over this socket, with TLS if that is given.
    pub(super) fn new(mut socket: Socket, tls: Option<ClientConnection>) -> io::Result<Line> {
        let wire = match tls {
            None => Wire::Plain(socket),
            Some(mut tls) => {
                tls.complete_io(&mut socket)?;
                Wire::Tls(Box::new(StreamOwned::new(tls, socket)))
            }
        };
        Ok(Line { wire, buffers: LazyBuffers::new(1 << 14, 1 << 14), unsent: Vec::new(), unwanted: 0 })
    }

    fn socket(&self) -> &Socket {
        match &self.wire {
            Wire::Plain(socket) => socket,
            Wire::Tls(stream) => &stream.sock,
        }
    }

    /// Becomes readable with the connection.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket().stream.as_fd()
    }

    /// Whether there is something to read.
    pub(super) fn is_readable(&self) -> bool {
        poll(self.descriptor(), PollFlags::POLLIN, Duration::ZERO).unwrap_or(true)
    }

    /// Ends it: it is readable from now on.
    pub(super) fn shut(&self) {
        let _ = self.socket().stream.shutdown(Shutdown::Both);
    }

    fn send(&mut self) -> io::Result<()> {
        let unsent = std::mem::take(&mut self.unsent);
        self.write_all(&unsent)
    }

    /// Reads the answers that nobody wants.
    fn skip_unwanted(&mut self) -> io::Result<()> {
        let mut read = Vec::new();
        while self.unwanted > 0 {
            let mut buffer = [0; 2048];
            let amount = Read::read(self, &mut buffer)?;
            if amount == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            read.extend_from_slice(&buffer[..amount]);
            while self.unwanted > 0
                && let Some(length) = length_of_answer(&read)?
            {
                read.drain(..length);
                self.unwanted -= 1;
            }
        }
        // They come one by one, after what was asked next only if that was not sent yet.
        let input = self.buffers.input_append_buf();
        input[..read.len()].copy_from_slice(&read);
        self.buffers.input_appended(read.len());
        Ok(())
    }
}

/// How long the answer is that this begins with; `None`: longer than this.
fn length_of_answer(read: &[u8]) -> io::Result<Option<usize>> {
    let Some(head) = read.windows(4).position(|end| end == b"\r\n\r\n") else { return Ok(None) };
    let text = String::from_utf8_lossy(&read[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    // It comes in pieces. Another connection is cheaper than to understand that.
    let length = length.ok_or(io::ErrorKind::UnexpectedEof)?;
    let whole = head + 4 + length;
    Ok((read.len() >= whole).then_some(whole))
}

impl Read for Line {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.wire {
            Wire::Plain(socket) => socket.read(buffer),
            Wire::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.wire {
            Wire::Plain(socket) => socket.write(bytes),
            Wire::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.wire {
            Wire::Plain(socket) => socket.flush(),
            Wire::Tls(stream) => stream.flush(),
        }
    }
}

impl Transport for Line {
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
        if self.socket().terms.unanswered.load(Ordering::Relaxed) {
            // If we are gone when an answer comes, then the server does not read what was asked after that.
            self.skip_unwanted()?;
            self.unsent.extend_from_slice(b"\r\n");
            self.send()?;
            self.flush()?;
            self.unwanted += 1;
            self.buffers.input_append_buf()[..NO_ANSWER.len()].copy_from_slice(NO_ANSWER);
            self.buffers.input_appended(NO_ANSWER.len());
            return Ok(true);
        }
        if !self.unsent.is_empty() {
            self.send()?;
            self.flush()?;
        }
        if self.unwanted > 0 {
            self.skip_unwanted()?;
            if !self.buffers.input().is_empty() {
                return Ok(true);
            }
        }
        let input = self.buffers.input_append_buf();
        let amount = match &mut self.wire {
            Wire::Plain(socket) => socket.read(input)?,
            Wire::Tls(stream) => stream.read(input)?,
        };
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        // What comes unasked is the end of the connection.
        self.unwanted > 0 || !self.is_readable()
    }

    fn is_tls(&self) -> bool {
        matches!(self.wire, Wire::Tls(_))
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Line({:?})", self.descriptor())
    }
}

#[cfg(test)]
mod tests {
    use super::length_of_answer;

    #[test]
    fn an_answer_is_as_long_as_it_says() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}\nHTTP/1.1";
        assert_eq!(length_of_answer(&answer[..20]).unwrap(), None);
        assert_eq!(length_of_answer(&answer[..40]).unwrap(), None);
        assert_eq!(length_of_answer(answer).unwrap(), Some(answer.len() - 8));
        assert!(length_of_answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
    }
}
