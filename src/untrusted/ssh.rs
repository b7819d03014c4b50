//! Properties of the messages of the ssh store, from a client, a server or an impostor of either.

use super::paper::is_harmless;
use crate::store::ssh::untrusted::{answer, read};

/// Checks that any message is understood or refused, and that a terminal interprets no character of an error.
pub(super) fn messages(bytes: &[u8]) {
    answer(bytes);
    for said in read(bytes) {
        assert!(is_harmless(&said), "{said:?}");
    }
}
