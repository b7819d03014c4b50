//! Connections to a server, by name or address.
//!
//! This module uses addresses directly. It looks up a name in a thread, which it abandons after a timeout. The process
//! and its forked children cache the result for a while.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use rustls::{ClientConfig, ClientConnection};
use rustls_pki_types::ServerName;

use super::connection::{CallDeadline, Connection, Socket};
use super::errors::CallError;
use crate::host::{Host, addresses_of};
use crate::store::guarded;

/// Times for which the result of a lookup is cached, after a success and after a failure.
const BELIEVED: Duration = Duration::from_secs(60);
const DOUBTED: Duration = Duration::from_secs(5);

/// Maximum time to connect to one of several servers, before the next is tried.
const MOST_FOR_CONNECTING: Duration = Duration::from_secs(1);

/// Maximum wait for the first answer of the name service.
const TO_LOOK_UP: Duration = Duration::from_secs(2);

type Looked = (Duration, Option<Vec<SocketAddr>>);

static LOOKED_UP: Mutex<BTreeMap<String, Looked>> = Mutex::new(BTreeMap::new());

/// Connector for calls and for watches.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) host: Arc<dyn Host>,
    pub(super) call_deadline: Arc<CallDeadline>,
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// True if the cluster has only one server.
    pub(super) lonely: bool,
}

impl Connector {
    /// Connects to `HOST:PORT`.
    pub(super) fn dial(&self, server: &str) -> io::Result<Connection> {
        let mut most = self.call_deadline.left();
        if !self.lonely {
            most = most.min(MOST_FOR_CONNECTING);
        }
        if most.is_zero() {
            return Err(CallError::Silent.into());
        }
        let addresses = self.addresses(server, most)?;
        let share = most / u32::try_from(addresses.len()).unwrap_or(1).max(1);
        let mut last = CallError::Unresolved;
        for address in addresses {
            match TcpStream::connect_timeout(&address, share.max(Duration::from_millis(1))) {
                Ok(stream) => return self.talk(server, stream),
                Err(error) => last = CallError::from(error),
            }
        }
        Err(last.into())
    }

    /// Looks up all these names now, so that a slow name service does not use up the time of a call.
    pub(super) fn look_up_names(&self, servers: &[String]) {
        servers.iter().for_each(|server| drop(self.addresses(server, TO_LOOK_UP)));
    }

    fn talk(&self, server: &str, stream: TcpStream) -> io::Result<Connection> {
        let socket = Socket::new(stream, self.call_deadline.clone())?;
        let Some(config) = &self.tls else { return Connection::new(socket, None) };
        let name = ServerName::try_from(host_of(server).to_string()).map_err(|_| CallError::Unresolved)?;
        let tls = ClientConnection::new(config.clone(), name).map_err(|error| CallError::Tls(error.to_string()))?;
        Connection::new(socket, Some(tls)).map_err(|error| match CallError::from(error) {
            CallError::Closed => CallError::Tls("it closed the connection".to_string()).into(),
            other => other.into(),
        })
    }

    fn addresses(&self, server: &str, at_most: Duration) -> io::Result<Vec<SocketAddr>> {
        let port = server.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or_default();
        if let Ok(address) = host_of(server).parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let now = self.host.boottime();
        let known = guarded(&LOOKED_UP).get(server).cloned();
        let found = match known {
            Some((until, found)) if now < until => found,
            _ => {
                let found = look_up(server, port, at_most);
                let until = self.host.boottime() + if found.is_some() { BELIEVED } else { DOUBTED };
                guarded(&LOOKED_UP).insert(server.to_string(), (until, found.clone()));
                found
            }
        };
        found.ok_or_else(|| CallError::Unresolved.into())
    }
}

fn look_up(server: &str, port: u16, at_most: Duration) -> Option<Vec<SocketAddr>> {
    let (tell, told) = mpsc::channel();
    let server = server.to_string();
    let thread = std::thread::Builder::new().spawn(move || {
        let _ = tell.send(addresses_of(host_of(&server)));
    });
    let found: Vec<SocketAddr> =
        told.recv_timeout(at_most).ok()?.into_iter().take(8).map(|address| SocketAddr::new(address, port)).collect();
    // The process may fork, so the thread must not be in the middle of its exit.
    let _ = thread.map(std::thread::JoinHandle::join);
    Some(found).filter(|found| !found.is_empty())
}

/// Returns the host of `HOST:PORT`, without brackets.
fn host_of(server: &str) -> &str {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}
