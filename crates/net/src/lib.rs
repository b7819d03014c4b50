//! Connections to the servers of a store, and the loop that repeats a call until it is answered. This crate knows no store.

#[cfg(feature = "tls")]
mod connect;
mod creations;
mod errors;
mod retry;

use std::time::Duration;

use store::Call;

#[cfg(feature = "tls")]
pub use self::connect::{
    CallDeadline, Connector, Socket, TO_BEGIN, Wire, in_file, is_readable, tls_versions, trusted_roots,
    with_client_certificate,
};
pub use self::creations::{Absences, check_mode};
pub use self::errors::{CallError, Cause, NetError, Retry};
pub use self::retry::{Calls, PATIENCE};

/// Maximum time after a signal until a call notices it.
const SIGNAL_CHECK: Duration = Duration::from_millis(100);

/// The part of the time `left` after which the call checks for a signal.
pub fn until_signal_check(call: Call, left: Duration) -> Duration {
    if call.interruptible { left.min(SIGNAL_CHECK) } else { left }
}

/// The parts of `HOST[:PORT]`. An IPv6 address is in brackets, which are not a part of it.
pub fn host_and_port(server: &str) -> (&str, Option<&str>) {
    let (host, port) = match server.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (server, None),
    };
    (host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host), port)
}
