//! Properties of what servers say, or an impostor of one: etcd, PostgreSQL or a pooler, and csalock behind ssh.

use super::paper::is_harmless;
use etcd::untrusted::{Asked, answered};

/// Checks that a terminal interprets no character of these messages.
fn are_harmless(messages: impl IntoIterator<Item = String>) {
    for said in messages {
        assert!(is_harmless(&said), "{said:?}");
    }
}

/// Checks that an answer of etcd is understood or refused. The first byte selects the request, the second the HTTP
/// status.
pub(super) fn etcd(bytes: &[u8]) {
    let Some(([asked, status], body)) = bytes.split_first_chunk::<2>() else { return };
    let asked = [Asked::Range, Asked::Transaction, Asked::Lease, Asked::Login, Asked::Watch, Asked::Members]
        [usize::from(*asked) % 6];
    let status = [200, 200, 200, 400, 404, 429, 500, 503][usize::from(*status) % 8];
    are_harmless(answered(asked, status, body));
}

/// Checks that any login and answer of PostgreSQL is understood or refused.
pub(super) fn postgres(bytes: &[u8]) {
    are_harmless(postgres::untrusted::read(bytes));
}

/// Checks that any message of the ssh store, from a client or a server, is understood or refused.
pub(super) fn ssh(bytes: &[u8]) {
    ssh::untrusted::answer(bytes);
    are_harmless(ssh::untrusted::read(bytes));
}
