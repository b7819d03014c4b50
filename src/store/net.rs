//! Connections to the servers of a store: by name or address, with or without TLS, within the deadline of a call.

pub(super) mod dial;
pub(super) mod error;
pub(super) mod socket;
pub(super) mod tls;
