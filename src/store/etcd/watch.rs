//! Channels: a key that a notification puts, and the sleeping waiter's watch on it.
//!
//! A watch is a request whose answer never ends, on a separate connection. After etcd has confirmed its start, any
//! event, even the end of the connection, means that the waiter must read the record. The input is not parsed, and no
//! thread is needed: the descriptor becomes readable. A waiter that misses a notification reads the record 1 s later.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::api::encoded;
use super::client::Client;
use super::connection::Connection;
use super::http::HttpRequest;
use crate::store::Subscription;
use crate::store::net::{CallDeadline, is_readable};

/// Maximum time for a watch to begin, after which it is abandoned.
const TO_BEGIN: Duration = Duration::from_millis(500);

/// Maximum length of the confirmation of a watch, in bytes.
const LONGEST_BEGINNING: usize = 8192;

struct Watch {
    descriptor: OwnedFd,
    _line: Connection,
}

impl Subscription for Watch {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn is_notified(&mut self) -> bool {
        is_readable(self.descriptor.as_fd())
    }
}

/// Subscribes to changes of this key: to all later changes, unless `which` specifies otherwise.
pub(super) fn hear(client: &Client, key: &[u8], mut which: Value) -> Option<Box<dyn Subscription>> {
    let call_deadline = Arc::new(CallDeadline::new(client.host.clone()));
    call_deadline.set(client.host.boottime() + TO_BEGIN);
    let (server, token, mut line) = client.line(&call_deadline).ok()?;
    which["key"] = encoded(key).into();
    let question = json!({"create_request": which});
    let (question, mut request) = (question.to_string(), Vec::new());
    HttpRequest { path: "/v3/watch", body: Some(question.as_bytes()) }.encode(&server, token.as_deref(), &mut request);
    line.write(&request).ok()?;
    let mut said = Vec::new();
    loop {
        let mut buffer = [0; 1024];
        let amount = line.read(&mut buffer).ok().filter(|amount| *amount > 0)?;
        said.extend_from_slice(&buffer[..amount]);
        match begun(&said)? {
            Begun::No if said.len() > LONGEST_BEGINNING => return None,
            Begun::No => {}
            Begun::Yes => break,
            Begun::AndMore => {
                line.shut();
                break;
            }
        }
    }
    Some(Box::new(Watch { descriptor: line.descriptor().ok()?, _line: line }))
}

pub(super) enum Begun {
    No,
    Yes,
    /// The watch has begun and further input followed.
    AndMore,
}

/// Returns the state of a watch with this answer so far; `None` if it can never begin.
pub(super) fn begun(said: &[u8]) -> Option<Begun> {
    let text = String::from_utf8_lossy(said);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return Some(Begun::No) };
    if !head.starts_with("HTTP/1.1 200") {
        return None;
    }
    // The confirmation is one line in its own chunk.
    let Some((first, rest)) = body.split_once("}\n") else { return Some(Begun::No) };
    if !first.contains("\"created\":true") || first.contains("\"canceled\":true") {
        return None;
    }
    Some(if rest.contains('{') { Begun::AndMore } else { Begun::Yes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_begins_with_its_confirmation() {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let created = "5e\r\n{\"result\":{\"header\":{\"revision\":\"3\"},\"created\":true}}\n\r\n";
        let begun = |text: &str| begun(text.as_bytes());
        assert!(matches!(begun(head), Some(Begun::No)));
        assert!(matches!(begun(&format!("{head}{}", &created[..20])), Some(Begun::No)));
        assert!(matches!(begun(&format!("{head}{created}")), Some(Begun::Yes)));
        let more = format!("{head}{created}20\r\n{{\"result\":{{}}}}\n\r\n");
        assert!(matches!(begun(&more), Some(Begun::AndMore)));
        assert!(begun("HTTP/1.1 404 Not Found\r\n\r\n").is_none());
        assert!(begun(&format!("{head}5\r\n{{\"error\":{{}}}}\n")).is_none());
    }
}
