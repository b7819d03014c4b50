//! Connections to a server, by name or address.
//!
//! This module uses addresses directly. The process and its forked children cache those of a name for a while. If the name
//! service then fails, the last addresses count: a command that runs must not end because of it.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::sockopt::SocketError;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, UnixAddr, connect, getsockopt, socket,
};
use rustls::{ClientConfig, ClientConnection};
use rustls_pki_types::ServerName;

use super::retry::CallError;
use super::retry::is_interrupted;
use super::socket::{CallDeadline, Socket, Wire};
use crate::host::{Host, addresses_of};
use crate::store::guarded;

/// Times for which the result of a lookup is cached, after a success and after a failure.
const BELIEVED: Duration = Duration::from_secs(60);
const DOUBTED: Duration = Duration::from_secs(5);

/// Maximum time to connect to one of several servers, before the next is tried.
const MOST_FOR_CONNECTING: Duration = Duration::from_secs(1);

/// Maximum wait for the first answer of the name service. The C library gives each name server five seconds.
const TO_LOOK_UP: Duration = Duration::from_secs(6);

/// Pause between attempts to connect to a socket of this host whose queue is full.
const WHILE_FULL: Duration = Duration::from_millis(20);

/// The time until which a result counts, and the result.
type Looked = (Duration, Result<Vec<SocketAddr>, CallError>);

static LOOKED_UP: Mutex<BTreeMap<String, Looked>> = Mutex::new(BTreeMap::new());

/// Connector for calls and for watches.
#[derive(Clone)]
pub(in crate::store) struct Connector {
    pub(in crate::store) host: Arc<dyn Host>,
    pub(in crate::store) call_deadline: Arc<CallDeadline>,
    pub(in crate::store) tls: Option<Arc<ClientConfig>>,
    /// True if the cluster has only one server.
    pub(in crate::store) lonely: bool,
}

impl Connector {
    /// Connects to `HOST:PORT`, with TLS if that is configured.
    pub(in crate::store) fn dial(&self, server: &str) -> io::Result<Wire> {
        let socket = Socket::new(self.connect(server)?, self.call_deadline.clone())?;
        if self.tls.is_some() { self.encrypt(server, socket) } else { Ok(Wire::Plain(socket)) }
    }

    /// Connects to `HOST:PORT`, without TLS.
    pub(in crate::store) fn connect(&self, server: &str) -> io::Result<TcpStream> {
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
            match self.connect_to_address(address, share.max(Duration::from_millis(1))).map_err(CallError::from) {
                Err(CallError::Interrupted) => return Err(CallError::Interrupted.into()),
                Err(error) => last = error,
                connected => return Ok(connected?),
            }
        }
        Err(last.into())
    }

    fn connect_to_address(&self, address: SocketAddr, at_most: Duration) -> io::Result<TcpStream> {
        let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let socket = new_socket(family)?;
        let begun = match address {
            SocketAddr::V4(address) => connect(socket.as_raw_fd(), &SockaddrIn::from(address)),
            SocketAddr::V6(address) => connect(socket.as_raw_fd(), &SockaddrIn6::from(address)),
        };
        match begun {
            Err(Errno::EINPROGRESS | Errno::EINTR) => {
                self.call_deadline.wait(socket.as_fd(), PollFlags::POLLOUT, at_most)?;
                match getsockopt(&socket, SocketError)? {
                    0 => Ok(TcpStream::from(socket)),
                    error => Err(io::Error::from_raw_os_error(error)),
                }
            }
            connected => Ok(connected.map(|()| TcpStream::from(socket))?),
        }
    }

    /// Connects to a socket of this host. While too many others wait there, connect(2) of a socket that may block would
    /// block without a limit, and deaf to signals.
    pub(in crate::store) fn connect_to_socket(&self, path: &str) -> io::Result<OwnedFd> {
        let address = UnixAddr::new(path)?;
        loop {
            let socket = new_socket(AddressFamily::Unix)?;
            match connect(socket.as_raw_fd(), &address) {
                Ok(()) => return Ok(socket),
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(error) => return Err(CallError::Refused(format!("{path}: {}", error.desc())).into()),
            }
            if is_interrupted(&*self.host) {
                return Err(CallError::Interrupted.into());
            }
            if self.call_deadline.left().is_zero() {
                return Err(CallError::Silent.into());
            }
            self.host.sleep(WHILE_FULL.min(self.call_deadline.left()));
        }
    }

    /// Looks up all these names now, so that a slow name service does not use up the time of a call.
    pub(in crate::store) fn look_up_names(&self, servers: &[String]) {
        let until = self.host.boottime() + TO_LOOK_UP;
        for server in servers {
            let left = until.saturating_sub(self.host.boottime());
            let _ = self.addresses(server, left.max(MOST_FOR_CONNECTING));
        }
    }

    pub(in crate::store) fn encrypt(&self, server: &str, socket: Socket) -> io::Result<Wire> {
        let Some(config) = &self.tls else { return Err(CallError::Tls("it is not configured".to_string()).into()) };
        let name = ServerName::try_from(host_of(server).to_string()).map_err(|_| CallError::Unresolved)?;
        let tls = ClientConnection::new(config.clone(), name).map_err(|error| CallError::Tls(error.to_string()))?;
        Wire::encrypted(socket, tls).map_err(|error| match CallError::from(error) {
            CallError::Closed => CallError::Tls("it closed the connection".to_string()).into(),
            other => other.into(),
        })
    }

    fn addresses(&self, server: &str, at_most: Duration) -> io::Result<Vec<SocketAddr>> {
        let port = server.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or_default();
        if let Ok(address) = host_of(server).parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let known = guarded(&LOOKED_UP).get(server).cloned();
        let found = match known {
            Some((until, found)) if self.host.boottime() < until => found,
            earlier => {
                let found = look_up(server, port, at_most);
                let until = self.host.boottime() + if found.is_ok() { BELIEVED } else { DOUBTED };
                let found = found.or_else(|error| earlier.and_then(|(_, found)| found.ok()).ok_or(error));
                guarded(&LOOKED_UP).insert(server.to_string(), (until, found.clone()));
                found
            }
        };
        Ok(found?)
    }
}

fn new_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    Ok(socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?)
}

fn look_up(server: &str, port: u16, at_most: Duration) -> Result<Vec<SocketAddr>, CallError> {
    let found = addresses_of(host_of(server), at_most).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => CallError::NamesSilent,
        _ => CallError::NamesFailed(error.to_string()),
    })?;
    let found: Vec<SocketAddr> = found.into_iter().take(8).map(|address| SocketAddr::new(address, port)).collect();
    if found.is_empty() { Err(CallError::Unresolved) } else { Ok(found) }
}

fn host_of(server: &str) -> &str {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Fake;

    #[test]
    fn the_last_addresses_count_while_the_name_service_fails() {
        let host: Arc<dyn Host> = Arc::new(Fake::new(1));
        let call_deadline = Arc::new(CallDeadline::new(host.clone()));
        let connector = Connector { host, call_deadline, tls: None, lonely: true };
        let server = "csalock.invalid:2379";
        assert!(connector.addresses(server, TO_LOOK_UP).is_err());
        let known = vec![SocketAddr::from(([127, 0, 0, 1], 2379))];
        guarded(&LOOKED_UP).insert(server.to_string(), (Duration::ZERO, Ok(known.clone())));
        assert_eq!(connector.addresses(server, TO_LOOK_UP).unwrap(), known);
        assert!(guarded(&LOOKED_UP)[server].0 > Duration::ZERO);
    }
}
