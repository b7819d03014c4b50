//! Interpretation of messages from any program, for the properties of the program's `untrusted` module, which cannot access this module otherwise.

use super::Remote;
use super::errors::{SshCause, explain};
use super::serve::Server;
use super::wire::{Greeting, Lines, Reply, WireRequest};
use host::Fake;
use net::CallError;
use store::Memory;

pub fn answer(bytes: &[u8]) {
    let (host, mut lines) = (Fake::new(1), Lines::default());
    let store = Memory::new(std::sync::Arc::new(host.clone()));
    let mut server = Server { store: &store, host: &host, subscriptions: Vec::new() };
    lines.push(bytes);
    while let Ok(Some((id, request))) = lines.next::<(u64, WireRequest)>() {
        // These print lists.
        if !matches!(request, WireRequest::Scan | WireRequest::History) {
            let _ = server.reply(id, request);
        }
    }
}

/// Reads a greeting and replies of a server. Returns the messages of their errors.
pub fn read(bytes: &[u8]) -> Vec<String> {
    let (mut lines, mut said) = (Lines::default(), Vec::new());
    lines.push(bytes);
    let mut add = |error: lock::error::Error| said.push(error.of_server("ssh://h/p").to_string());
    if let Ok(Some(greeting)) = lines.next::<Greeting>() {
        let _ = greeting.session.map_err(&mut add);
        let remote = Remote { destination: "h".to_string(), port: None, path: "/p".to_string() };
        add(explain(&CallError::Server(SshCause::OtherVersion(greeting.program)), &remote, "ssh".as_ref()));
    }
    while let Ok(Some((_, reply))) = lines.next::<(u64, Reply)>() {
        match reply {
            Reply::Failed(error) | Reply::Entry(_, Err(error)) => add(error),
            _ => {}
        }
    }
    said
}
