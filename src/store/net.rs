//! Calls to the servers of a store: connections by name or address, with or without TLS, each call within its deadline
//! and repeated until it is answered. This part knows no store.

pub(super) mod dial;
pub(super) mod error;
pub(super) mod retry;
pub(super) mod socket;
pub(super) mod tls;
