//! Connections to servers: by name or address, with or without TLS. Each wait ends with the deadline of the present call.
//!
//! This module uses addresses directly. The process and its forked children cache those of a name for a while. If the name
//! service then fails, the last addresses count: a command that runs must not end because of it.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustls::client::WantsClientCert;
use rustls::{ClientConfig, ClientConnection, ConfigBuilder, RootCertStore, SupportedProtocolVersion, WantsVerifier};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::{NetError, host_and_port, until_signal_check};
use host::{Host, addresses_of};
use lock::error::{self, Error, ErrorKind, errno_of};
use lock::name::escape_path;
use store::{Call, guarded};

/// Times for which the result of a lookup is cached, after a success and after a failure.
const BELIEVED: Duration = Duration::from_secs(60);
const DOUBTED: Duration = Duration::from_secs(5);

/// Maximum time to connect to one of several servers, before the next is tried.
const MOST_FOR_CONNECTING: Duration = Duration::from_secs(1);

/// Maximum wait for the first answer of the name service. The C library gives each name server five seconds.
const TO_LOOK_UP: Duration = Duration::from_secs(6);

/// Maximum time for a subscription to begin, after which it is abandoned.
pub const TO_BEGIN: Duration = Duration::from_millis(500);

const WHILE_FULL: Duration = Duration::from_millis(20);

type Looked = (Duration, Result<Vec<SocketAddr>, NetError>);

static LOOKED_UP: Mutex<BTreeMap<String, Looked>> = Mutex::new(BTreeMap::new());

#[derive(Clone)]
pub struct Connector {
    pub host: Arc<dyn Host>,
    pub call_deadline: Arc<CallDeadline>,
    tls: Option<Arc<ClientConfig>>,
    most_for_connecting: Duration,
}

impl Connector {
    /// Looks up all these names now, so that a slow name service does not use up the time of a call.
    pub fn new(host: Arc<dyn Host>, tls: Option<ClientConfig>, lonely: bool, names: &[String]) -> Connector {
        let until = host.boottime() + TO_LOOK_UP;
        let call_deadline = Arc::new(CallDeadline::new(host.clone()));
        let most_for_connecting = if lonely { Duration::MAX } else { MOST_FOR_CONNECTING };
        let connector = Connector { host, call_deadline, tls: tls.map(Arc::new), most_for_connecting };
        for server in names {
            let left = until.saturating_sub(connector.host.boottime());
            let _ = connector.addresses(server, left.max(MOST_FOR_CONNECTING));
        }
        connector
    }

    /// For a subscription, which does not end with the present call.
    pub fn for_subscription(&self, call: Call) -> Connector {
        let call_deadline = Arc::new(CallDeadline::new(self.host.clone()));
        call_deadline.begin(Call { until: Some(self.host.boottime() + TO_BEGIN), ..call });
        Connector { call_deadline, ..self.clone() }
    }

    pub fn dial(&self, server: &str) -> Result<Wire, NetError> {
        let socket = Socket::new(self.connect(server)?, self.call_deadline.clone())?;
        if self.tls.is_some() { self.encrypt(server, socket) } else { Ok(Wire { socket, tls: None }) }
    }

    pub fn connect(&self, server: &str) -> Result<TcpStream, NetError> {
        let most = self.call_deadline.left().min(self.most_for_connecting);
        if most.is_zero() {
            return Err(NetError::Silent);
        }
        let addresses = self.addresses(server, most)?;
        let share = most / u32::try_from(addresses.len()).unwrap_or(1).max(1);
        let mut last = NetError::Unresolved;
        for address in addresses {
            match self.connect_to_address(address, share.max(Duration::from_millis(1))) {
                Err(NetError::Interrupted) => return Err(NetError::Interrupted),
                Err(error) => last = error,
                connected => return connected,
            }
        }
        Err(last)
    }

    fn connect_to_address(&self, address: SocketAddr, at_most: Duration) -> Result<TcpStream, NetError> {
        let socket = new_socket(if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 })?;
        match connect(&socket, &address) {
            Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => {
                self.call_deadline.wait(socket.as_fd(), PollFlags::POLLOUT, at_most)?;
                socket_error(&socket).flatten()
            }
            connected => connected,
        }
        .map_err(io::Error::from)?;
        Ok(TcpStream::from(socket))
    }

    /// Connects to a socket of this host. While too many others wait there, connect(2) of a socket that may block would
    /// block without a limit, and deaf to signals.
    pub fn connect_to_socket(&self, path: &str) -> Result<OwnedFd, NetError> {
        let address = SocketAddrUnix::new(path).map_err(io::Error::from)?;
        loop {
            let socket = new_socket(AddressFamily::UNIX)?;
            match connect(&socket, &address) {
                Ok(()) => return Ok(socket),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => {
                    return Err(NetError::Refused(format!("{path}: {}", errno_of(error).desc())));
                }
            }
            if self.call_deadline.is_interrupted() {
                return Err(NetError::Interrupted);
            }
            if self.call_deadline.left().is_zero() {
                return Err(NetError::Silent);
            }
            self.host.sleep(WHILE_FULL.min(self.call_deadline.left()));
        }
    }

    pub fn encrypt(&self, server: &str, mut socket: Socket) -> Result<Wire, NetError> {
        let Some(config) = &self.tls else { return Err(NetError::Tls("it is not configured".to_string())) };
        let name = ServerName::try_from(host_and_port(server).0.to_string()).map_err(|_| NetError::Unresolved)?;
        let mut tls = ClientConnection::new(config.clone(), name).map_err(|error| NetError::Tls(error.to_string()))?;
        match tls.complete_io(&mut socket).map_err(NetError::from) {
            Err(NetError::Closed) => Err(NetError::Tls("it closed the connection".to_string())),
            done => done.map(|_| Wire { socket, tls: Some(Box::new(tls)) }),
        }
    }

    fn addresses(&self, server: &str, at_most: Duration) -> Result<Vec<SocketAddr>, NetError> {
        let (host, port) = host_and_port(server);
        let port = port.and_then(|port| port.parse().ok()).unwrap_or_default();
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let known = guarded(&LOOKED_UP).get(server).cloned();
        match known {
            Some((until, found)) if self.host.boottime() < until => found,
            earlier => {
                let found = look_up(host, port, at_most);
                let until = self.host.boottime() + if found.is_ok() { BELIEVED } else { DOUBTED };
                let found = found.or_else(|error| earlier.and_then(|(_, found)| found.ok()).ok_or(error));
                guarded(&LOOKED_UP).insert(server.to_string(), (until, found.clone()));
                found
            }
        }
    }
}

fn new_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    Ok(socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?)
}

fn look_up(host: &str, port: u16, at_most: Duration) -> Result<Vec<SocketAddr>, NetError> {
    let found = addresses_of(host, at_most).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => NetError::NamesSilent,
        _ => NetError::NamesFailed(error.to_string()),
    })?;
    let found: Vec<SocketAddr> = found.into_iter().take(8).map(|address| SocketAddr::new(address, port)).collect();
    if found.is_empty() { Err(NetError::Unresolved) } else { Ok(found) }
}

pub struct CallDeadline {
    host: Arc<dyn Host>,
    call: Mutex<Call>,
}

impl CallDeadline {
    pub fn new(host: Arc<dyn Host>) -> CallDeadline {
        CallDeadline { host, call: Mutex::new(Call::until(Duration::ZERO)) }
    }

    pub fn begin(&self, call: Call) {
        *guarded(&self.call) = call;
    }

    /// Gives the rest of the call another deadline.
    pub fn set(&self, deadline: Duration) {
        guarded(&self.call).until = Some(deadline);
    }

    pub fn left(&self) -> Duration {
        guarded(&self.call).end().saturating_sub(self.host.boottime())
    }

    fn is_interrupted(&self) -> bool {
        guarded(&self.call).is_interrupted(&*self.host)
    }

    /// Waits until a descriptor is ready. Fails at the deadline, after this time, and after a signal that ends calls.
    fn wait(&self, what: BorrowedFd<'_>, flags: PollFlags, at_most: Duration) -> io::Result<()> {
        let until = self.host.boottime().saturating_add(at_most.min(self.left()));
        loop {
            let left = until.saturating_sub(self.host.boottime());
            let pause = until_signal_check(*guarded(&self.call), left);
            match poll(what, flags, pause) {
                Ok(true) => return Ok(()),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ if self.is_interrupted() => return Err(NetError::Interrupted.into()),
                _ if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
                _ => {}
            }
        }
    }
}

/// Socket whose reads and writes end with the deadline of the present call.
pub struct Socket {
    stream: TcpStream,
    call_deadline: Arc<CallDeadline>,
}

impl Socket {
    pub fn new(stream: TcpStream, call_deadline: Arc<CallDeadline>) -> io::Result<Socket> {
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
pub(crate) fn poll(what: BorrowedFd<'_>, flags: PollFlags, at_most: Duration) -> io::Result<bool> {
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

pub struct Wire {
    pub socket: Socket,
    pub tls: Option<Box<ClientConnection>>,
}

impl Wire {
    pub fn socket(&self) -> &TcpStream {
        &self.socket.stream
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.socket.write_all(bytes) };
        let mut stream = rustls::Stream::new(&mut **tls, &mut self.socket);
        stream.write_all(bytes)?;
        stream.flush()
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.socket).read(buffer),
            None => self.socket.read(buffer),
        }
    }
}

pub fn is_readable(what: BorrowedFd<'_>) -> bool {
    poll(what, PollFlags::POLLIN, Duration::ZERO).unwrap_or(true)
}

/// A certificate and a key of this client, each with its variable and its file.
pub fn with_client_certificate(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    (certificate, path): (&str, &Path),
    (key, of_key): (&str, &Path),
) -> error::Result<ClientConfig> {
    let own = in_file(certificate, path)?;
    let secret = PrivateKeyDer::from_pem_file(of_key).map_err(|error| wrong_file(key, of_key, &error))?;
    let config = builder.with_client_auth_cert(own, secret);
    config.map_err(|error| useless_file(certificate, path, &format!("it does not go with its key: {error}")))
}

pub fn tls_versions(
    versions: &[&'static SupportedProtocolVersion],
) -> error::Result<ConfigBuilder<ClientConfig, WantsVerifier>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions);
    builder.map_err(|error| Error::new(ErrorKind::Bug, format!("no TLS: {error}"), ""))
}

/// The authorities in the file that this variable names, or those of this system. Fails if there are none.
pub fn trusted_roots(file: Option<&Path>, variable: &str) -> error::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(path) => {
            for certificate in in_file::<CertificateDer<'_>>(variable, path)? {
                roots.add(certificate).map_err(|error| useless_file(variable, path, &error.to_string()))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        let what = "this system knows no certificate authorities";
        let cure =
            format!("set {variable} to the one that signed the server's certificate, or install ca-certificates");
        return Err(Error::new(ErrorKind::Unavailable, what, cure));
    }
    Ok(roots)
}

/// Certificates, or lists of revoked ones, in the file that this variable names.
pub fn in_file<T: PemObject>(variable: &str, path: &Path) -> error::Result<Vec<T>> {
    match T::pem_file_iter(path).and_then(|found| found.collect::<Result<Vec<_>, _>>()) {
        Ok(found) if !found.is_empty() => Ok(found),
        done => Err(wrong_file(variable, path, &done.err().unwrap_or(pem::Error::NoItemsFound))),
    }
}

fn wrong_file(variable: &str, path: &Path, error: &pem::Error) -> Error {
    match error {
        pem::Error::Io(error) => {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
            let what = format!("{variable}: cannot read {}: {}", escape_path(path), errno.desc());
            Error::new(Error::os(errno, "read", path).kind(), what, "set it right")
        }
        _ => useless_file(variable, path, "it has nothing of that kind in PEM"),
    }
}

fn useless_file(variable: &str, path: &Path, why: &str) -> Error {
    let what = format!("{variable} is {}, which is of no use: {why}", escape_path(path));
    Error::new(ErrorKind::Unavailable, what, "set it to the right file")
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::Fake;

    #[test]
    fn the_last_addresses_count_while_the_name_service_fails() {
        let host: Arc<dyn Host> = Arc::new(Fake::new(1));
        let call_deadline = Arc::new(CallDeadline::new(host.clone()));
        let connector = Connector { host, call_deadline, tls: None, most_for_connecting: Duration::MAX };
        let server = "csalock.invalid:2379";
        assert!(connector.addresses(server, TO_LOOK_UP).is_err());
        let known = vec![SocketAddr::from(([127, 0, 0, 1], 2379))];
        guarded(&LOOKED_UP).insert(server.to_string(), (Duration::ZERO, Ok(known.clone())));
        assert_eq!(connector.addresses(server, TO_LOOK_UP).unwrap(), known);
        assert!(guarded(&LOOKED_UP)[server].0 > Duration::ZERO);
    }
}
