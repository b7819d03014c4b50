//! Connection to one server, which carries requests of HTTP.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};

use super::http::{Answer, Incoming, Request};
use crate::store::net::error::CallError;
use crate::store::net::socket::{Wire, is_readable};

pub(super) struct Connection {
    wire: Wire,
    incoming: Incoming,
}

impl Connection {
    pub(super) fn new(wire: Wire) -> Connection {
        Connection { wire, incoming: Incoming::default() }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.wire.send(bytes)
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wire.read(buffer)
    }

    /// Returns a duplicate of the descriptor, which becomes readable with the connection and keeps it open.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.wire.socket().as_fd().try_clone_to_owned()
    }

    /// Shuts the connection down, which makes it readable.
    pub(super) fn shut(&self) {
        let _ = self.wire.socket().shutdown(Shutdown::Both);
    }

    /// Sends requests, and returns their answers: at least one, and the last one that precedes the end of the connection.
    pub(super) fn exchange(
        &mut self,
        server: &str,
        requests: &[Request<'_>],
        token: Option<&str>,
    ) -> Result<Vec<Answer>, CallError> {
        // All bytes are sent at once, because small segments would wake the server several times.
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| request.encode(server, token, &mut bytes));
        self.write(&bytes)?;
        let mut answers = Vec::new();
        for _ in requests {
            answers.push(self.incoming.answer(&mut |buffer| self.wire.read(buffer))?);
            if answers.last().is_some_and(|answer: &Answer| !answer.keeps_open) {
                break;
            }
        }
        Ok(answers)
    }

    /// Returns true if the connection can be used again. Unexpected data mean that it has ended.
    pub(super) fn is_idle(&self) -> bool {
        self.incoming.is_empty() && !is_readable(self.wire.socket().as_fd())
    }
}
