//! Connection to one server, with or without TLS, which carries requests of HTTP.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustls::ClientConfig;

use super::Access;
use super::http::{Answer, HttpRequest, Incoming};
use crate::error::{self, Error, ErrorKind};
use crate::store::net::retry::CallError;
use crate::store::net::{Wire, is_readable, trusted_roots, with_client_certificate};

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
        requests: &[HttpRequest<'_>],
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

/// Returns the trusted authorities and the certificate of the client.
pub(super) fn tls_config(access: &Access) -> error::Result<ClientConfig> {
    let roots = trusted_roots(access.cacert.as_deref(), "CSALOCK_ETCD_CACERT")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| Error::new(ErrorKind::Bug, format!("no TLS: {error}"), ""))?;
    let builder = builder.with_root_certificates(roots);
    match (&access.cert, &access.key) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(cert), key) => {
            // One file may contain both the certificate and the key.
            let key = key.as_ref().unwrap_or(cert);
            with_client_certificate(builder, ("CSALOCK_ETCD_CERT", cert), ("CSALOCK_ETCD_KEY", key))
        }
        (None, Some(_)) => {
            let what = "CSALOCK_ETCD_KEY is set, and CSALOCK_ETCD_CERT is not";
            Err(Error::new(ErrorKind::InvalidInput, what, "set both, or none"))
        }
    }
}
