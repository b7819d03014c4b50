//! Sends requests to the cluster through the JSON gateway of its servers, until one of them answers or the time is
//! over.
//!
//! **Server choice.** The client starts with a random server, so that a silently dead server delays only a part of all
//! calls. It stays with the server that answered. Within a call, each server gets a share of the remaining time.
//!
//! **Retries.** An answer of the cluster, even a refusal, ends the call at once. The call ends at once too if no server
//! has answered this process yet and all servers are certainly unavailable: refused, unknown, without gateway, of an
//! untrusted authority. A caller that waits for a lock then asks again while that may help, and handles signals
//! meanwhile; every other caller gets the error. The client retries after silence, a closed connection and "no leader"
//! while there is time. After a first answer, it retries every error that may be temporary. A request may reach the
//! cluster more than once, and every request of this store tolerates that.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use ureq::Agent;

use super::api::{Authenticated, understood};
use super::auth::Auth;
use super::connection::CallDeadline;
use super::dial::{Connector, NoResolver};
use super::errors::{CallError, Failed, RetryPolicy};
use super::{Access, tls};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::store::answers::answered;
use crate::store::{Cluster, guarded};

/// Maximum time of a call, and its default.
const PATIENCE: Duration = Duration::from_secs(10);

/// Default time of a call after an unanswered call, so that several calls to silent servers do not each wait long.
const LITTLE_PATIENCE: Duration = Duration::from_secs(2);

/// Maximum time that a call may exceed its deadline.
const OVERTIME: Duration = Duration::from_millis(700);

/// Minimum time of a call, even if its deadline has passed.
const LEAST: Duration = Duration::from_millis(100);

/// Maximum time for one server in the first round, doubled in each later round.
const SHARE: Duration = Duration::from_secs(2);
const LEAST_SHARE: Duration = Duration::from_millis(250);

/// Pause after the second round, doubled after each later round.
const PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// Maximum size of an answer in bytes. The largest record takes a third of it, and a scan can ask for fewer records.
const MOST_OF_ANSWER: u64 = 16 << 20;

/// Client for any server of a cluster that answers.
pub(super) struct Client {
    pub(super) cluster: Cluster,
    pub(super) host: Arc<dyn Host>,
    agent: Agent,
    connector: Connector,
    login: Auth,
    state: Mutex<State>,
}

struct State {
    /// Index of the server to ask first.
    at: usize,
    /// True after any server has answered.
    answered: bool,
    /// True if the last call ended without an answer.
    silent: bool,
    until: Option<Duration>,
}

impl Client {
    pub(super) fn new(cluster: &Cluster, access: &Access, host: Arc<dyn Host>) -> Result<Client> {
        let call_deadline = Arc::new(CallDeadline::new(host.clone()));
        let tls = cluster.tls.then(|| tls::config(access).map(Arc::new)).transpose()?;
        let count = cluster.endpoints.len();
        let connector = Connector { host: host.clone(), call_deadline, tls, lonely: count == 1 };
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
            state: Mutex::new(State { at, answered: false, silent: false, until: None }),
        })
    }

    /// Sets the deadline of later calls, as [`crate::store::Store::set_deadline`].
    pub(super) fn set_deadline(&self, until: Option<Duration>) {
        guarded(&self.state).until = until;
    }

    /// Sends a request until a server answers, and returns the answer.
    pub(super) fn ask<A: DeserializeOwned>(&self, path: &str, question: &Value) -> Result<A> {
        self.call(path, question).map_err(|failed| failed.error)
    }

    /// Sends a request like [`Client::ask`], but returns a failure that the caller can examine.
    pub(super) fn call<A: DeserializeOwned>(&self, path: &str, question: &Value) -> std::result::Result<A, Failed> {
        let body = question.to_string().into_bytes();
        let mut state = guarded(&self.state);
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
                        // A cluster that refuses a request is reachable.
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
                self.host.sleep(pause);
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

    /// Sends a request to one server, and logs in if necessary.
    fn ask_logged_in<A: DeserializeOwned>(
        &self,
        server: &str,
        path: &str,
        body: &[u8],
        share: Duration,
    ) -> std::result::Result<A, CallError> {
        let deadline = self.host.boottime() + share;
        self.connector.call_deadline.set(deadline);
        let known = self.token(server)?;
        let asked = self.post(server, path, body, known.as_deref());
        let Some(old) = known else { return asked };
        match asked {
            // Some versions close the connection instead of reporting that a token is too old.
            Err(trouble) if trouble.retry_policy() == RetryPolicy::Login || trouble == CallError::Closed => {
                self.login.forget(&old);
                let new = self.token(server)?;
                self.post(server, path, body, new.as_deref())
            }
            // etcd never answers a token of an earlier cluster. This attempt has no time left, so the next one logs in.
            Err(CallError::Silent) => {
                self.login.forget(&old);
                asked
            }
            asked => asked,
        }
    }

    /// Returns the login token, or `None` if no login is needed.
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

    /// Reads a path of one server with GET.
    pub(super) fn get(&self, server: &str, path: &str, share: Duration) -> std::result::Result<Vec<u8>, CallError> {
        let _state = guarded(&self.state);
        self.connector.call_deadline.set(self.host.boottime() + share);
        let (_, body) = read(self.agent.get(self.url(server, path)).call()?)?;
        Ok(body)
    }

    /// Sends a request to one server, once.
    pub(super) fn ask_one<A: DeserializeOwned>(
        &self,
        server: &str,
        path: &str,
        question: &Value,
        share: Duration,
    ) -> std::result::Result<A, CallError> {
        let _state = guarded(&self.state);
        self.ask_logged_in(server, path, question.to_string().as_bytes(), share)
    }

    /// Opens a separate connection with its own deadline to the last server that answered; returns the login token too.
    pub(super) fn line(
        &self,
        call_deadline: &Arc<CallDeadline>,
    ) -> std::io::Result<(String, Option<String>, super::connection::Connection)> {
        let server = self.cluster.endpoints[guarded(&self.state).at].clone();
        let line = Connector { call_deadline: call_deadline.clone(), ..self.connector.clone() }.dial(&server)?;
        Ok((server, self.login.token(), line))
    }

    /// Returns the error for a valid answer that does not fit the request.
    pub(super) fn nonsense(&self, what: &str) -> Error {
        let troubles =
            [(self.cluster.endpoints[guarded(&self.state).at].clone(), CallError::Strange(what.to_string()))];
        CallError::error(&troubles, &self.cluster)
    }

    /// Returns the user of the login; `None` without a login.
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
