//! One question to the cluster, through the JSON gateway that each of its servers has, until one of them answers or the
//! time is over.
//!
//! **Which server.** We start with any of them, so that one that is dead in silence holds up only a part of all calls,
//! and stay with the one that answered. Within a call each gets its share of the time that is left.
//!
//! **What is tried again.** A cluster's own answer, also a refusal, ends the call at once. So does it, as long as
//! nobody has answered this process yet, when all servers are certainly not to be had: refused, unknown, without
//! gateway, of a strange authority. A caller who waits for a lock asks again then, as long as it may pass, and hears the
//! interrupt meanwhile; every other caller is told. Silence, a closed connection and "no leader" are tried again while there is time;
//! once somebody has answered, everything that may pass is. A request may thus reach the cluster more than once. All
//! that we send may.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use ureq::Agent;

use super::api::{Anything, Authenticated, Refusal};
use super::auth::Auth;
use super::connection::CallDeadline;
use super::dial::{Connector, NoResolver};
use super::errors::{CallError, RetryPolicy};
use super::{Access, tls};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::store::Cluster;
use crate::store::answers::answered;

/// So long a call may take if nobody said anything else, and at most.
const PATIENCE: Duration = Duration::from_secs(10);

/// The same, once a call has waited in vain: who asks several things of servers that are silent does not wait for each.
const LITTLE_PATIENCE: Duration = Duration::from_secs(2);

/// So long after its end a call may take to end.
const OVERTIME: Duration = Duration::from_millis(700);

/// Somebody who is out of time may still ask for so long.
const LEAST: Duration = Duration::from_millis(100);

/// One server is given so long in the first round, and twice as long in each that follows.
const SHARE: Duration = Duration::from_secs(2);
const LEAST_SHARE: Duration = Duration::from_millis(250);

/// The pause after the second round, doubled after each that follows.
const PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// So long we wait at most for answers that nobody wants.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// No answer is longer: one record of the largest size has a third of it, and who asks for many can ask for fewer.
const MOST_OF_ANSWER: u64 = 16 << 20;

/// So many characters of what a server says are shown.
const MOST_SAID: usize = 300;

/// A connection to whichever server of a cluster answers.
pub(super) struct Client {
    pub(super) cluster: Cluster,
    host: Arc<dyn Host>,
    agent: Agent,
    connector: Connector,
    call_deadline: Arc<CallDeadline>,
    login: Auth,
    state: Mutex<State>,
}

struct State {
    /// Which server is asked first.
    at: usize,
    /// Whether any has answered yet.
    answered: bool,
    /// Whether the last call ended without an answer.
    silent: bool,
    until: Option<Duration>,
}

/// A call without an answer.
#[derive(Debug)]
pub(super) struct Failed {
    last: Option<CallError>,
    error: Error,
}

impl Failed {
    /// Whether etcd says that there is no such lease.
    pub(super) fn is_lease_gone(&self) -> bool {
        self.last.as_ref().is_some_and(CallError::is_lease_gone)
    }

    /// Whether etcd says that there already is such a lease.
    pub(super) fn is_lease_there(&self) -> bool {
        self.last.as_ref().is_some_and(CallError::is_lease_there)
    }

    /// Whether there was more to be said than we listen to.
    pub(super) fn is_too_long(&self) -> bool {
        self.last == Some(CallError::TooLong)
    }

    /// In words.
    pub(super) fn error(self) -> Error {
        self.error
    }
}

impl Client {
    pub(super) fn new(cluster: &Cluster, access: &Access, host: Arc<dyn Host>) -> Result<Client> {
        let call_deadline = Arc::new(CallDeadline::new(host.clone()));
        let tls = cluster.tls.then(|| tls::config(access)).transpose()?;
        let count = cluster.endpoints.len();
        let connector = Connector { host: host.clone(), call_deadline: call_deadline.clone(), tls, lonely: count == 1 };
        connector.look_up_names(&cluster.endpoints);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .user_agent("")
            .accept("")
            .max_idle_connections(count)
            .max_idle_connections_per_host(1)
            .max_idle_age(Duration::from_secs(3600))
            .build();
        let at = if count > 1 { usize::from(host.random()?[0]) % count } else { 0 };
        Ok(Client {
            agent: Agent::with_parts(config, connector.clone(), NoResolver),
            connector,
            login: Auth::new(cluster, access, host.uid())?,
            cluster: cluster.clone(),
            host,
            call_deadline,
            state: Mutex::new(State { at, answered: false, silent: false, until: None }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`crate::store::Store::set_deadline`].
    pub(super) fn set_deadline(&self, until: Option<Duration>) {
        self.state().until = until;
    }

    /// Asks until somebody answers.
    pub(super) fn ask<A: DeserializeOwned>(&self, path: &str, question: &Value) -> Result<A> {
        self.call(path, question).map_err(Failed::error)
    }

    /// The same, for those who know what to do without an answer.
    pub(super) fn call<A: DeserializeOwned>(&self, path: &str, question: &Value) -> std::result::Result<A, Failed> {
        let body = question.to_string().into_bytes();
        let mut state = self.state();
        let now = self.host.boottime();
        let policy = if state.silent { LITTLE_PATIENCE } else { PATIENCE };
        let at_most = state.until.map_or(policy, |until| (until.saturating_add(OVERTIME)).saturating_sub(now));
        let deadline = now + at_most.clamp(LEAST, PATIENCE);
        let count = self.cluster.endpoints.len();
        let mut troubles = Vec::new();
        for round in 0.. {
            troubles.clear();
            for step in 0..count {
                let at = (state.at + step) % count;
                let left = deadline.saturating_sub(self.host.boottime());
                let others = u32::try_from(count - step).unwrap_or(1);
                let share = (left / others).max(LEAST_SHARE).min(SHARE * (1 << round.min(3))).min(left);
                let server = &self.cluster.endpoints[at];
                match self.ask_logged_in(server, path, &body, share) {
                    Ok(answer) => {
                        answered(());
                        (state.at, state.answered, state.silent) = (at, true, false);
                        return Ok(answer);
                    }
                    Err(trouble) => {
                        let ends_all = matches!(trouble.retry_policy(), RetryPolicy::None | RetryPolicy::Login);
                        // A cluster that refuses is there.
                        state.answered |= ends_all;
                        troubles.push((server.clone(), trouble));
                        if ends_all {
                            state.silent = false;
                            return Err(self.failed(troubles, true));
                        }
                    }
                }
            }
            let pause = (PAUSE * (1 << round.min(6))).min(LONGEST_PAUSE);
            let is_hopeless =
                !state.answered && troubles.iter().all(|(_, trouble)| trouble.retry_policy() == RetryPolicy::Elsewhere);
            if is_hopeless || self.host.boottime() + pause >= deadline {
                break;
            }
            if round > 0 {
                self.pause(pause);
            }
        }
        state.silent = true;
        Err(self.failed(troubles, state.answered))
    }

    fn failed(&self, troubles: Vec<(String, CallError)>, answered: bool) -> Failed {
        let mut error = CallError::error(&troubles, &self.cluster);
        if !answered && troubles.iter().any(|(_, trouble)| trouble.may_pass()) {
            error = error.unreached();
        }
        Failed { last: troubles.into_iter().next_back().map(|(_, trouble)| trouble), error }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a store that does not answer is what we wait for, and no clock is asked"
    )]
    fn pause(&self, pause: Duration) {
        std::thread::sleep(pause);
    }

    /// Asks one server, and logs in if it has to be.
    fn ask_logged_in<A: DeserializeOwned>(
        &self,
        server: &str,
        path: &str,
        body: &[u8],
        share: Duration,
    ) -> std::result::Result<A, CallError> {
        let deadline = self.host.boottime() + share;
        self.call_deadline.set(deadline, false);
        let known = self.token(server)?;
        let asked = self.post(server, path, body, known.as_deref());
        let Some(old) = known else { return asked };
        match asked {
            // Some versions close the connection instead of saying that a token is too old.
            Err(trouble) if trouble.retry_policy() == RetryPolicy::Login || trouble == CallError::Closed => {
                self.login.forget(&old);
                let new = self.token(server)?;
                self.post(server, path, body, new.as_deref())
            }
            // A token of an earlier cluster has etcd wait. There is no time left in this try, so the next one logs in.
            Err(CallError::Silent) => {
                self.login.forget(&old);
                asked
            }
            asked => asked,
        }
    }

    /// What proves that we have logged in, if we are to.
    fn token(&self, server: &str) -> std::result::Result<Option<String>, CallError> {
        if let Some(token) = self.login.token() {
            return Ok(Some(token));
        }
        let Some((user, password)) = self.login.wanted() else { return Ok(None) };
        let question = json!({"name": user, "password": password}).to_string();
        match self.post::<Authenticated>(server, "/v3/auth/authenticate", question.as_bytes(), None) {
            Ok(answer) => {
                self.login.remember(&answer.token);
                Ok(Some(answer.token))
            }
            Err(trouble) if trouble.needs_no_login() => {
                self.login.is_needless();
                Ok(None)
            }
            Err(trouble) => Err(trouble),
        }
    }

    fn post<A: DeserializeOwned>(
        &self,
        server: &str,
        path: &str,
        body: &[u8],
        token: Option<&str>,
    ) -> std::result::Result<A, CallError> {
        let mut request = self.agent.post(self.url(server, path)).header("content-type", "application/json");
        if let Some(token) = token {
            request = request.header("authorization", token);
        }
        let (status, body) = read(request.send(body)?)?;
        understood(status, &body)
    }

    /// What a server says at a path that is for reading only.
    pub(super) fn get(&self, server: &str, path: &str, share: Duration) -> std::result::Result<Vec<u8>, CallError> {
        let _state = self.state();
        self.call_deadline.set(self.host.boottime() + share, false);
        let (_, body) = read(self.agent.get(self.url(server, path)).call()?)?;
        Ok(body)
    }

    /// Asks one server, once.
    pub(super) fn ask_one<A: DeserializeOwned>(
        &self,
        server: &str,
        path: &str,
        question: &Value,
        share: Duration,
    ) -> std::result::Result<A, CallError> {
        let _state = self.state();
        self.ask_logged_in(server, path, question.to_string().as_bytes(), share)
    }

    /// Tells the server that answered last something, and leaves its answer to [`Client::apply`] or the next call.
    pub(super) fn send(&self, path: &str, news: &Value) {
        let state = self.state();
        let server = &self.cluster.endpoints[state.at];
        if !state.answered {
            let _ = self.ask_logged_in::<Anything>(server, path, news.to_string().as_bytes(), FLUSH_TIMEOUT);
            return;
        }
        self.call_deadline.set(self.host.boottime() + FLUSH_TIMEOUT, true);
        let token = self.login.token();
        let mut request = self.agent.post(self.url(server, path)).header("content-type", "application/json");
        if let Some(token) = &token {
            request = request.header("authorization", token);
        }
        if let Ok(answer) = request.send(news.to_string().as_bytes()) {
            let _ = read(answer);
        }
    }

    /// Waits a little for the answers that nobody waited for: should we end before the server has taken up a request,
    /// then it takes our end for a change of mind.
    pub(super) fn flush(&self) {
        let _state = self.state();
        if self.call_deadline.is_owed() {
            self.call_deadline.set(self.host.boottime() + FLUSH_TIMEOUT, false);
            let _ = self.call_deadline.settle();
        }
    }

    /// A connection of its own to the server that answered last, on terms of its own, and what proves our login.
    pub(super) fn line(
        &self,
        call_deadline: &Arc<CallDeadline>,
    ) -> std::io::Result<(String, Option<String>, super::connection::Connection)> {
        let server = self.cluster.endpoints[self.state().at].clone();
        let line = Connector { call_deadline: call_deadline.clone(), ..self.connector.clone() }.dial(&server)?;
        Ok((server, self.login.token(), line))
    }

    /// An answer that is one, and cannot be the one to our question.
    pub(super) fn nonsense(&self, what: &str) -> Error {
        let troubles = [(self.cluster.endpoints[self.state().at].clone(), CallError::Strange(what.to_string()))];
        CallError::error(&troubles, &self.cluster)
    }

    pub(super) fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    /// As whom we log in; `None`: as nobody.
    pub(super) fn user(&self) -> Option<&str> {
        self.login.wanted().map(|(user, _)| user)
    }

    fn url(&self, server: &str, path: &str) -> String {
        format!("{}://{server}{path}", if self.cluster.tls { "https" } else { "http" })
    }
}

fn read(answer: ureq::http::Response<ureq::Body>) -> std::result::Result<(u16, Vec<u8>), CallError> {
    let status = answer.status().as_u16();
    let body = answer.into_body().into_with_config().limit(MOST_OF_ANSWER).read_to_vec()?;
    Ok((status, body))
}

/// As much of what a server says as anybody wants to read.
fn begin_of(said: &str) -> String {
    said.chars().take(MOST_SAID).collect()
}

pub(super) fn understood<A: DeserializeOwned>(status: u16, body: &[u8]) -> std::result::Result<A, CallError> {
    if status == 200 {
        return serde_json::from_slice(body)
            .map_err(|error| CallError::Strange(begin_of(&format!("a strange answer: {error}"))));
    }
    if let Ok(refusal) = serde_json::from_slice::<Refusal>(body)
        && (refusal.code > 0 || !refusal.message.is_empty())
    {
        let said = if refusal.message.is_empty() { refusal.error.to_string() } else { refusal.message };
        return Err(CallError::Said(refusal.code, begin_of(&said)));
    }
    Err(match status {
        404 => CallError::NoGateway,
        400 if body.windows(12).any(|part| part == b"HTTPS server") => CallError::WantsTls,
        502..=504 => CallError::Said(14, format!("it answers with HTTP status {status}")),
        _ => CallError::Strange(format!("it answers with HTTP status {status}")),
    })
}
