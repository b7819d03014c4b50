//! Bells: a key that is put when somebody is to wake, and a watch on it by the one who sleeps.
//!
//! A watch is a request whose answer never ends, on a connection of its own. Once etcd has said that it began, whatever
//! comes is worth a look: the key, a watch that ended, the end of the connection. So nothing of it is read any more,
//! and no thread is needed: the descriptor becomes readable, that is all. Who misses a ring looks a second later.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::api::encoded;
use super::client::Client;
use super::connection::{CallDeadline, Connection, is_readable};
use crate::store::Subscription;

/// A watch that has not begun by then is none.
const TO_BEGIN: Duration = Duration::from_millis(500);

/// No beginning of a watch is longer.
const LONGEST_BEGINNING: usize = 8192;

struct Watch {
    descriptor: OwnedFd,
    /// Keeps it open.
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

/// Begins to hear of changes of this key: of all that come from now on, unless `which` says otherwise.
pub(super) fn hear(client: &Client, key: &[u8], mut which: Value) -> Option<Box<dyn Subscription>> {
    let call_deadline = Arc::new(CallDeadline::new(client.host().clone()));
    call_deadline.set(client.host().boottime() + TO_BEGIN, false);
    let (server, token, mut line) = client.line(&call_deadline).ok()?;
    which["key"] = encoded(key).into();
    let question = json!({"create_request": which});
    let (question, login) = (question.to_string(), token.map(|token| format!("Authorization: {token}\r\n")));
    let request = format!(
        "POST /v3/watch HTTP/1.1\r\nHost: {server}\r\nContent-Type: application/json\r\n{}\
         Content-Length: {}\r\n\r\n{question}",
        login.unwrap_or_default(),
        question.len(),
    );
    line.write(request.as_bytes()).ok()?;
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
    /// And something has already been said after that.
    AndMore,
}

/// Whether a watch that said this has begun; `None`: it never will.
pub(super) fn begun(said: &[u8]) -> Option<Begun> {
    let text = String::from_utf8_lossy(said);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return Some(Begun::No) };
    if !head.starts_with("HTTP/1.1 200") {
        return None;
    }
    // What belongs to it is one line, in a piece of its own.
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
    fn a_watch_begins_with_a_line_that_says_so() {
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
