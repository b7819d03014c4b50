//! Properties of answers from etcd or an impostor. The first byte selects the request, the second the HTTP status.

use super::paper::is_harmless;
use crate::store::etcd::untrusted::{Asked, answered};

/// Checks that an answer is understood or refused, and that a terminal interprets no character of it.
pub(super) fn answers(bytes: &[u8]) {
    let Some(([asked, status], body)) = bytes.split_first_chunk::<2>() else { return };
    let asked = [Asked::Range, Asked::Transaction, Asked::Lease, Asked::Login, Asked::Watch, Asked::Members]
        [usize::from(*asked) % 6];
    let status = [200, 200, 200, 400, 404, 429, 500, 503][usize::from(*status) % 8];
    for said in answered(asked, status, body) {
        assert!(is_harmless(&said), "{said:?}");
    }
}
