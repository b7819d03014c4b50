//! A proxy between a client and a server: it passes on whole requests and replies, one after the other on each
//! connection, and treats each exchange as told.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

pub(crate) struct Between {
    pub(crate) address: String,
}

/// The point at which an exchange is cut; both sides lose the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    BeforeSending,
    AfterSending,
    InTheReply,
}

#[derive(Default)]
pub(crate) struct Fate {
    pub(crate) cut: Option<Where>,
    /// The request that reaches the server in place of the one that was sent.
    pub(crate) instead: Option<Vec<u8>>,
    /// Done before its reply is passed on, or when it is cut.
    pub(crate) then: Option<Box<dyn FnOnce()>>,
}

impl Between {
    /// `judge` says of each request what becomes of it: by its path, and by all of it.
    pub(crate) fn and(server: &str, judge: impl Fn(&str, &[u8]) -> Fate + Send + Sync + 'static) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let between = Between { address: listener.local_addr().unwrap().to_string() };
        let (server, judge) = (server.to_string(), Arc::new(judge));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (server, judge) = (server.clone(), judge.clone());
                std::thread::spawn(move || {
                    let client = client.unwrap();
                    let Ok(behind) = TcpStream::connect(&server) else { return };
                    // After any failure both sides must see the end.
                    let _ = pass(&client, &behind, &*judge);
                    let _ = (client.shutdown(Shutdown::Both), behind.shutdown(Shutdown::Both));
                });
            }
        });
        between
    }
}

/// The request that replaces a read of a key with this prefix, for the state at this revision: the reply is one that
/// etcd gave once, so the read is stale. `None`: it is another request.
pub(crate) fn as_it_was(request: &[u8], prefix: &str, revision: u64) -> Option<Vec<u8>> {
    let request = std::str::from_utf8(request).ok()?;
    let (head, body) = request.split_once("\r\n\r\n")?;
    let mut question: serde_json::Value = serde_json::from_str(body).ok()?;
    let key = STANDARD.decode(question["key"].as_str()?).ok()?;
    if !head.starts_with("POST /v3/kv/range ") || !key.starts_with(prefix.as_bytes()) {
        return None;
    }
    question["revision"] = revision.to_string().into();
    let body = question.to_string();
    let is_length = |line: &&str| line.to_ascii_lowercase().starts_with("content-length:");
    let head: Vec<&str> = head.split("\r\n").filter(|line| !is_length(line)).collect();
    Some(format!("{}\r\ncontent-length: {}\r\n\r\n{body}", head.join("\r\n"), body.len()).into_bytes())
}

/// Passes requests and replies on up to a cut. `None`: it is over.
fn pass(mut client: &TcpStream, mut behind: &TcpStream, judge: &dyn Fn(&str, &[u8]) -> Fate) -> Option<()> {
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    loop {
        let request = message(client, &mut requests)?;
        let path = String::from_utf8_lossy(&request).split(' ').nth(1).unwrap_or_default().to_string();
        let Fate { cut, instead, then } = judge(&path, &request);
        let then = || then.map_or((), |then| then());
        if cut == Some(Where::BeforeSending) {
            then();
            return None;
        }
        behind.write_all(instead.as_deref().unwrap_or(&request)).ok()?;
        if path.ends_with("/watch") && cut.is_none() {
            return stream(client, behind);
        }
        let reply = message(behind, &mut replies)?;
        if cut == Some(Where::InTheReply) {
            let _ = client.write_all(&reply[..reply.len() / 2]);
        }
        then();
        if cut.is_some() {
            return None;
        }
        client.write_all(&reply).ok()?;
    }
}

/// A watch has no end: what comes is passed on as it comes.
fn stream(client: &TcpStream, behind: &TcpStream) -> Option<()> {
    let (mut from, mut to) = (behind.try_clone().ok()?, client.try_clone().ok()?);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
    let (mut from, mut to) = (client, behind);
    std::io::copy(&mut from, &mut to).ok().map(drop)
}

/// One message of HTTP, with what it bears.
fn message(mut from: &TcpStream, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(length) = length(buffer) {
            return Some(buffer.drain(..length).collect());
        }
        let mut bytes = [0; 65536];
        match from.read(&mut bytes) {
            Ok(read @ 1..) => buffer.extend_from_slice(&bytes[..read]),
            _ => return None,
        }
    }
}

/// How long the first message is, if all of it is there.
fn length(buffer: &[u8]) -> Option<usize> {
    let head = buffer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&buffer[..head]).to_ascii_lowercase();
    if text.contains("transfer-encoding: chunked") {
        // etcd puts trailers between the last chunk and the empty line if it refuses a request.
        let last = head - 2 + buffer[head - 2..].windows(5).position(|five| five == b"\r\n0\r\n")? + 3;
        return buffer[last..].windows(4).position(|four| four == b"\r\n\r\n").map(|end| last + end + 4);
    }
    let body =
        text.split("content-length: ").nth(1).and_then(|rest| rest.split('\r').next()?.parse().ok()).unwrap_or(0);
    (buffer.len() >= head + body).then_some(head + body)
}
