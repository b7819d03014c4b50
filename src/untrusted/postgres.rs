//! Properties of the messages of PostgreSQL, a pooler or an impostor.

use super::paper::is_harmless;
use crate::store::postgres::untrusted::read;

/// Checks that any login and answer is understood or refused, and that a terminal interprets no character of an error.
pub(super) fn messages(bytes: &[u8]) {
    for said in read(bytes) {
        assert!(is_harmless(&said), "{said:?}");
    }
}
