//! Properties of the messages of stores that other machines answer for: a server, a pooler or an impostor.

use super::paper::is_harmless;
use crate::store::etcd::untrusted::{Asked, answered};
use crate::store::{postgres, ssh};

/// Checks that an answer of etcd is understood or refused, and that a terminal interprets no character of it. The first
/// byte selects the request, the second the HTTP status.
pub(super) fn etcd(bytes: &[u8]) {
    let Some(([asked, status], body)) = bytes.split_first_chunk::<2>() else { return };
    let asked = [Asked::Range, Asked::Transaction, Asked::Lease, Asked::Login, Asked::Watch, Asked::Members]
        [usize::from(*asked) % 6];
    let status = [200, 200, 200, 400, 404, 429, 500, 503][usize::from(*status) % 8];
    for said in answered(asked, status, body) {
        assert!(is_harmless(&said), "{said:?}");
    }
}

/// Checks that any login and answer of PostgreSQL is understood or refused, and that a terminal interprets no
/// character of an error.
pub(super) fn postgres(bytes: &[u8]) {
    for said in postgres::untrusted::read(bytes) {
        assert!(is_harmless(&said), "{said:?}");
    }
}

/// Checks that any message of either side of the ssh store is understood or refused, and that a terminal interprets no
/// character of an error.
pub(super) fn ssh(bytes: &[u8]) {
    ssh::untrusted::answer(bytes);
    for said in ssh::untrusted::read(bytes) {
        assert!(is_harmless(&said), "{said:?}");
    }
}
