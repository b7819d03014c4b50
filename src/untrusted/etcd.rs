//! What etcd answers, or whoever stands in its place. The first byte says what was asked, the second how it was answered.

use super::paper::is_harmless;
use crate::store::etcd::untrusted::{Asked, answered};

/// An answer is understood or refused, and nothing of it is obeyed by a terminal.
pub(super) fn answers(bytes: &[u8]) {
    let Some(([asked, status], body)) = bytes.split_first_chunk::<2>() else { return };
    let asked =
        [Asked::Range, Asked::Transaction, Asked::Lease, Asked::Login, Asked::Watch, Asked::Owed, Asked::Members]
            [usize::from(*asked) % 7];
    let status = [200, 200, 200, 400, 404, 429, 500, 503][usize::from(*status) % 8];
    for said in answered(asked, status, body) {
        assert!(is_harmless(&said), "{said:?}");
    }
}
