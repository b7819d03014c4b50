//! Connections to the servers of a store, and the loop that repeats a call until it is answered. This crate knows no store.

#[cfg(feature = "tls")]
mod connect;
mod errors;
mod retry;

#[cfg(feature = "tls")]
pub use self::connect::{
    CallDeadline, Connector, Socket, TO_BEGIN, Wire, in_file, is_readable, tls_versions, trusted_roots,
    with_client_certificate,
};
pub use self::errors::{CallError, Cause, NetError, Retry};
pub use self::retry::{Calls, PATIENCE};

/// The parts of `HOST[:PORT]`. An IPv6 address is in brackets, which are not a part of it.
pub fn host_and_port(server: &str) -> (&str, Option<&str>) {
    let (host, port) = match server.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (server, None),
    };
    (host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host), port)
}
