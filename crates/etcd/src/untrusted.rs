//! Interpretation of an answer from any program, for the properties of the program's `untrusted` module, which cannot access this module otherwise.

use super::api::{Anything, Authenticated, Done, Granted, RangeAnswer, understood};
use super::client::begun;
use super::errors::{EtcdError, explain};
use super::health::Members;
use crate::Cluster;

#[derive(Debug, Clone, Copy)]
pub enum Asked {
    Range,
    Transaction,
    Lease,
    Login,
    Watch,
    Members,
}

/// Parses an answer, and returns the messages of its error; none if the answer is valid.
pub fn answered(asked: Asked, status: u16, body: &[u8]) -> Vec<String> {
    let read = match asked {
        Asked::Range => understood::<RangeAnswer>(status, body).map(|found| {
            assert!(status == 200 && found.header.revision > 0, "an answer without a header is none of etcd's");
            assert!(found.kvs.iter().all(|pair| (1..=i64::MAX as u64).contains(&pair.mod_revision)));
        }),
        Asked::Transaction => understood::<Done>(status, body).map(|done| {
            assert!((1..=i64::MAX as u64).contains(&done.header.revision), "it would be a token that falls");
        }),
        Asked::Lease => understood::<Granted>(status, body).map(drop),
        Asked::Login => understood::<Authenticated>(status, body).map(|login| {
            assert!(login.token.bytes().all(|byte| byte.is_ascii_graphic()), "it goes into a header of HTTP");
        }),
        Asked::Members => understood::<Members>(status, body).and(understood::<Anything>(status, body)).map(drop),
        Asked::Watch => {
            let _ = begun(body);
            Ok(())
        }
    };
    let cluster =
        Cluster { tls: false, endpoints: vec!["h:1".to_string()], prefix: String::from_utf8_lossy(body).into_owned() };
    let said = |error: EtcdError| {
        let _ = error.retry();
        [error.to_string(), explain(&[("h:1".to_string(), error)], &cluster).to_string()]
    };
    read.err().into_iter().flat_map(said).collect()
}
