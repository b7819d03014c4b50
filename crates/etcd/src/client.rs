//! Sends requests to the cluster through the JSON gateway of its servers, and watches keys.
//!
//! **Server choice.** The client starts with a random server, so that a silently dead server delays only a part of all
//! calls. It stays with the server that answered. Within a call, each server gets a share of the remaining time.
//!
//! **Retries.** See [`net::Calls`]; an attempt asks each server once.
//!
//! **Watches.** A notification puts a key, which a sleeping waiter watches. A watch is a request whose answer never ends, on
//! a separate connection. After etcd has confirmed its start, any event, even the end of the connection, means that the
//! waiter must read the record. The input is not parsed, and no thread is needed: the descriptor becomes readable. A waiter
//! that misses a notification reads the record 1 s later.

use std::io::Read;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::api::{Anything, Authenticated, encoded, understood};
use super::auth::Auth;
use super::errors::{EtcdError, LEASE_EXISTS, NEEDS_NO_LOGIN, explain, is_login_over, says, summary};
use super::http::{Answer, Connection, HttpRequest, tls_config};
use crate::Cluster;
use host::Host;
use lock::error::{Error, Result};
use net::{CallError, Calls, Connector, NetError, Retry, Wire, is_readable};
use store::{Call, Subscription, Variables, guarded};

/// Maximum time for one server in the first round, doubled in each later round up to the largest; and its minimum.
const SHARE: Duration = Duration::from_secs(2);
const LARGEST_SHARE: Duration = Duration::from_secs(16);
const LEAST_SHARE: Duration = Duration::from_millis(250);

pub(super) struct Client {
    pub(super) cluster: Cluster,
    pub(super) host: Arc<dyn Host>,
    connector: Connector,
    pub(super) login: Auth,
    pub(super) calls: Calls,
    state: Mutex<State>,
}

type Answered<A> = std::result::Result<A, EtcdError>;

#[derive(Default)]
struct State {
    idle: Vec<Option<Connection>>,
    date: Option<Duration>,
    at: usize,
    /// Number of times that a request of a call was sent.
    sent: u64,
    /// Failures of the last round, for messages.
    failures: Vec<(String, EtcdError)>,
}

impl Client {
    pub(super) fn new(cluster: &Cluster, variables: &Variables<'_>, host: Arc<dyn Host>) -> Result<Client> {
        let tls = cluster.tls.then(|| tls_config(variables)).transpose()?;
        let count = cluster.endpoints.len();
        let connector = Connector::new(host.clone(), tls, count == 1, &cluster.endpoints);
        let at = if count > 1 { usize::from(host.random()?[0]) % count } else { 0 };
        Ok(Client {
            connector,
            login: Auth::new(cluster, variables, host.uid())?,
            cluster: cluster.clone(),
            calls: Calls::new(host.clone(), false),
            host,
            state: Mutex::new(State { idle: (0..count).map(|_| None).collect(), at, ..State::default() }),
        })
    }

    pub(super) fn ask<A: DeserializeOwned>(&self, call: Call, path: &str, question: &Value) -> Result<A> {
        self.call(call, &[], path, question).map(|(answer, _)| answer).map_err(|failed| self.error(&failed))
    }

    /// Sends a request after requests for the leases that it needs, in one round trip: a server handles them in order.
    /// Returns the answer, and true if the request was sent more than once.
    pub(super) fn call<A: DeserializeOwned>(
        &self,
        call: Call,
        leases: &[Value],
        path: &str,
        question: &Value,
    ) -> Answered<(A, bool)> {
        let mut requests: Vec<HttpRequest<'_>> =
            leases.iter().map(|lease| HttpRequest::new("/v3/lease/grant", lease)).collect();
        requests.push(HttpRequest::new(path, question));
        let sent = guarded(&self.state).sent;
        let mut most = SHARE;
        let answer = self.calls.repeat(call, |call| {
            let answer = self.ask_any(call, &requests, most);
            most = (most * 2).min(LARGEST_SHARE);
            answer
        })?;
        Ok((answer, guarded(&self.state).sent > sent + 1))
    }

    /// Sends requests to one server after the other until one answers, to each for its share of the time, `most` at most.
    fn ask_any<A: DeserializeOwned>(&self, call: Call, requests: &[HttpRequest<'_>], most: Duration) -> Answered<A> {
        let mut state = guarded(&self.state);
        let count = self.cluster.endpoints.len();
        state.failures.clear();
        for step in 0..count {
            let at = (state.at + step) % count;
            let left = call.end().saturating_sub(self.host.boottime());
            let others = u32::try_from(count - step).unwrap_or(1);
            let share = (left / others).max(LEAST_SHARE).min(most).min(left);
            let call = call.by(self.host.boottime() + share);
            match self.ask_logged_in(call, &mut state, at, requests) {
                Ok(answer) => {
                    state.at = at;
                    return Ok(answer);
                }
                Err(error) => {
                    let ends_call = matches!(error.retry(), Retry::Answered | Retry::Never);
                    state.failures.push((self.cluster.endpoints[at].clone(), error));
                    if ends_call {
                        break;
                    }
                }
            }
        }
        Err(summary(&state.failures))
    }

    /// Sends requests to one server, and logs in if necessary. Returns the answer to the last one.
    fn ask_logged_in<A: DeserializeOwned>(
        &self,
        call: Call,
        state: &mut State,
        at: usize,
        requests: &[HttpRequest<'_>],
    ) -> Answered<A> {
        self.connector.call_deadline.begin(call);
        let known = self.token(state, at)?;
        state.sent += 1;
        let asked = self.post(state, at, requests, known.as_deref());
        let Some(old) = known else { return asked };
        match asked {
            // Some versions close the connection instead of reporting that a token is too old.
            Err(error) if is_login_over(&error) || error == CallError::Net(NetError::Closed) => {
                self.login.forget(&old);
                let new = self.token(state, at)?;
                state.sent += 1;
                self.post(state, at, requests, new.as_deref())
            }
            // etcd never answers a token of an earlier cluster. This attempt has no time left, so the next one logs in.
            Err(CallError::Net(NetError::Silent)) => {
                self.login.forget(&old);
                asked
            }
            asked => asked,
        }
    }

    fn token(&self, state: &mut State, at: usize) -> Answered<Option<String>> {
        if let Some(token) = self.login.token() {
            return Ok(Some(token));
        }
        let Some((user, password)) = self.login.wanted() else { return Ok(None) };
        let request = HttpRequest::new("/v3/auth/authenticate", &json!({"name": user, "password": password}));
        match self.post::<Authenticated>(state, at, &[request], None) {
            Ok(answer) => {
                self.login.remember(&answer.token);
                Ok(Some(answer.token))
            }
            Err(error) if says(&error, NEEDS_NO_LOGIN) => {
                self.login.is_needless();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends requests together. Returns the answer to the last one, or the first failure: the others must succeed, or
    /// find that their lease exists. The connection stays open if the server leaves it open.
    fn post<A: DeserializeOwned>(
        &self,
        state: &mut State,
        at: usize,
        requests: &[HttpRequest<'_>],
        token: Option<&str>,
    ) -> Answered<A> {
        let server = &self.cluster.endpoints[at];
        let mut open = state.idle[at].take().filter(Connection::is_idle);
        let mut answers: Vec<Answer> = Vec::new();
        // A server or proxy that closes the connection after an answer has not seen the requests behind it.
        while answers.len() < requests.len() {
            let mut line = open.map_or_else(|| self.connector.dial(server).map(Connection::new), Ok)?;
            answers.extend(line.exchange(server, &requests[answers.len()..], token)?);
            state.date = answers.last().and_then(|answer| answer.date);
            open = answers.last().is_some_and(|answer| answer.keeps_open).then_some(line);
        }
        state.idle[at] = open;
        let last = answers.pop().ok_or(NetError::Closed)?;
        for Answer { status, body, .. } in answers {
            match understood::<Anything>(status, &body) {
                Err(error) if !says(&error, LEASE_EXISTS) => return Err(error),
                _ => {}
            }
        }
        understood(last.status, &last.body)
    }

    pub(super) fn ask_server<A: DeserializeOwned>(&self, call: Call, at: usize, path: &str) -> Answered<A> {
        self.ask_logged_in(call, &mut guarded(&self.state), at, &[HttpRequest::new(path, &json!({}))])
    }

    pub(super) fn error(&self, failed: &EtcdError) -> Error {
        let error = explain(&guarded(&self.state).failures, &self.cluster);
        self.calls.mark_unreached(failed, error)
    }

    pub(super) fn nonsense(&self, what: &str) -> Error {
        let server = self.cluster.endpoints[guarded(&self.state).at].clone();
        explain(&[(server, NetError::Strange(what.to_string()).into())], &self.cluster)
    }

    pub(super) fn date(&self) -> Result<Duration> {
        let date = guarded(&self.state).date;
        date.ok_or_else(|| self.nonsense("an answer without a date"))
    }

    /// Subscribes to changes of this key: to all later changes, unless `which` specifies otherwise.
    pub(super) fn watch(&self, call: Call, key: &[u8], mut which: Value) -> Option<Box<dyn Subscription>> {
        let server = self.cluster.endpoints[guarded(&self.state).at].clone();
        let mut wire = self.connector.for_subscription(call).dial(&server).ok()?;
        which["key"] = encoded(key).into();
        let request = HttpRequest::new("/v3/watch", &json!({"create_request": which}));
        wire.send(request.encode(&server, self.login.token().as_deref()).as_bytes()).ok()?;
        let mut said = Vec::new();
        loop {
            let mut buffer = [0; 1024];
            let amount = wire.read(&mut buffer).ok().filter(|amount| *amount > 0)?;
            said.extend_from_slice(&buffer[..amount]);
            match begun(&said)? {
                Begun::No if said.len() > LONGEST_BEGINNING => return None,
                Begun::No => {}
                Begun::Yes => break,
                Begun::AndMore => {
                    // The next poll must not miss it.
                    let _ = wire.socket().shutdown(Shutdown::Both);
                    break;
                }
            }
        }
        Some(Box::new(Watch(wire)))
    }
}

/// Maximum length of the confirmation of a watch, in bytes.
const LONGEST_BEGINNING: usize = 8192;

struct Watch(Wire);

impl Subscription for Watch {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.socket().as_fd()
    }

    fn is_notified(&mut self) -> bool {
        is_readable(self.descriptor())
    }
}

pub(super) enum Begun {
    No,
    Yes,
    AndMore,
}

/// `None` if a watch with this answer so far can never begin.
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
