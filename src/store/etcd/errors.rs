//! Errors between csalock and etcd: exit code and hint, and whether a retry may help.

use std::fmt;
use std::io;

use crate::error::{Error, ErrorKind};
use crate::name::{escape, shell_quote};
use crate::store::Cluster;

/// Failure of a request to one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) enum CallError {
    /// The server's name has no address.
    Unresolved,
    /// The name service did not answer in time.
    NamesSilent,
    /// The name service cannot be asked, for this reason.
    NamesFailed(String),
    /// The server cannot be reached, for this reason.
    Refused(String),
    /// The server did not answer in time.
    Silent,
    /// A signal ended the call.
    Interrupted,
    /// The server closed the connection instead of answering.
    Closed,
    /// The TLS handshake failed, for this reason.
    Tls(String),
    /// The server expects TLS, but the URL says otherwise.
    WantsTls,
    /// The JSON gateway is off.
    NoGateway,
    /// The answer exceeded the maximum size.
    TooLong,
    /// The answer is not one that etcd gives.
    Strange(String),
    /// gRPC status code and message of etcd.
    Said(u32, String),
}

/// Failure of a call, which may have asked several servers.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) last: Option<CallError>,
    /// Error to report.
    pub(super) error: Error,
}

/// Retry that may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum RetryPolicy {
    /// The client may retry at this server or another one.
    Again,
    /// The client may retry at another server; at this one only if it has answered before.
    Elsewhere,
    /// The client must log in again.
    Login,
    /// The client must not retry: this is the cluster's answer.
    None,
}

impl Failed {
    pub(super) fn is_lease_gone(&self) -> bool {
        self.last.as_ref().is_some_and(|last| last.says("lease not found"))
    }

    /// Returns true if the cluster answered that it does not do this.
    pub(super) fn is_refusal(&self) -> bool {
        let last = self.last.as_ref();
        last.is_some_and(|last| matches!(last, CallError::Said(..)) && last.retry_policy() == RetryPolicy::None)
    }

    /// Returns true if the answer exceeded the maximum size.
    pub(super) fn is_too_long(&self) -> bool {
        self.last == Some(CallError::TooLong)
    }
}

impl CallError {
    pub(in crate::store) fn retry_policy(&self) -> RetryPolicy {
        match self {
            CallError::Silent | CallError::Closed => RetryPolicy::Again,
            CallError::Said(code, message) => match (code, &message[..]) {
                (16, _) => RetryPolicy::Login,
                (_, said) if said.contains("invalid auth token") || said.contains("auth store is old") => {
                    RetryPolicy::Login
                }
                (1 | 4 | 14, _) => RetryPolicy::Again,
                (_, said) if passes(said) => RetryPolicy::Again,
                _ => RetryPolicy::None,
            },
            CallError::TooLong | CallError::Interrupted => RetryPolicy::None,
            _ => RetryPolicy::Elsewhere,
        }
    }

    /// Returns true if waiting may help: a server that is down or starting is silent or refuses connections. A wrong
    /// name, another protocol on the port, and failed TLS are permanent.
    pub(in crate::store) fn may_pass(&self) -> bool {
        matches!(self, CallError::Refused(_) | CallError::NamesSilent) || self.retry_policy() == RetryPolicy::Again
    }

    /// Returns true if this is a message of etcd that contains `part`.
    fn says(&self, part: &str) -> bool {
        matches!(self, CallError::Said(_, message) if message.contains(part))
    }

    /// Returns true if etcd reports that it has granted this lease before.
    pub(super) fn is_lease_there(&self) -> bool {
        self.says("lease already exists")
    }

    /// Returns true if etcd reports that authentication is off.
    pub(super) fn needs_no_login(&self) -> bool {
        self.says("authentication is not enabled")
    }

    /// Returns the error of a call with these failures, each with the name of its server.
    pub(super) fn error(troubles: &[(String, CallError)], cluster: &Cluster) -> Error {
        let servers = cluster.endpoints.join(", ");
        let Some((server, last)) = troubles.last() else {
            return Error::new(ErrorKind::Unavailable, format!("no time was left to ask etcd at {servers}"), PATIENCE);
        };
        if let CallError::Said(code, message) = last
            && last.retry_policy() != RetryPolicy::Again
        {
            return refused(*code, message, server, cluster);
        }
        let each: Vec<String> = troubles.iter().map(|(server, trouble)| format!("{server}: {trouble}")).collect();
        // A temporary failure says least about what the user can do, so a permanent one has priority.
        let telling = troubles
            .iter()
            .map(|(_, trouble)| trouble)
            .find(|trouble| trouble.retry_policy() == RetryPolicy::Elsewhere);
        let what = format!("etcd cannot be reached: {}", each.join("; "));
        Error::new(ErrorKind::Unavailable, what, cure(telling.unwrap_or(last)))
    }
}

const PATIENCE: &str = "see whether most of its members are up (`etcdctl endpoint health`), then try again";

fn cure(trouble: &CallError) -> &'static str {
    match trouble {
        CallError::Unresolved => "see the spelling of the store's URL, and the name service",
        CallError::NamesSilent | CallError::NamesFailed(_) => "see the name service, or name the host by its address",
        CallError::Refused(_) => "see whether etcd runs there and whether the store's URL has the right host and port",
        CallError::Tls(why) if why.contains("CertificateRequired") || why.contains("BadCertificate") => {
            "it wants a certificate from us: set CSALOCK_ETCD_CERT and CSALOCK_ETCD_KEY"
        }
        CallError::Tls(why) if why.contains("UnknownIssuer") => {
            "set CSALOCK_ETCD_CACERT to the certificate of the authority that signed its own"
        }
        CallError::Tls(why) if why.contains("NotValidForName") => {
            "name the server in the store's URL as its certificate does, or give it a certificate for that name"
        }
        CallError::Tls(_) => {
            "see whether it speaks TLS at all (else use etcd:// instead of etcds://), and its certificate"
        }
        CallError::WantsTls => "use etcds:// instead of etcd:// in the store's URL",
        CallError::NoGateway => {
            "start etcd with --enable-grpc-gateway, or with enable-grpc-gateway: true in its configuration file, \
             where 3.4 has it off; or name the port for clients, if this one is for peers"
        }
        CallError::Strange(_) | CallError::TooLong => {
            "see what it is that answers there, and whether etcd is 3.4 or later"
        }
        CallError::Said(_, said) if said.contains("connection error") => {
            "its JSON gateway cannot reach etcd itself: with --client-cert-auth its own certificate must be good for \
             clients as well (extendedKeyUsage clientAuth)"
        }
        CallError::Silent | CallError::Closed | CallError::Interrupted | CallError::Said(..) => PATIENCE,
    }
}

/// Returns true for the messages of etcd while its members elect a leader or are overloaded.
fn passes(said: &str) -> bool {
    [
        "request timed out",
        "leader changed",
        "no leader",
        "not leader",
        "too many requests",
        "not healthy",
        "server stopped",
    ]
    .iter()
    .any(|passing| said.contains(passing))
}

/// Returns the error for a request that the cluster refuses at every server.
fn refused(code: u32, message: &str, server: &str, cluster: &Cluster) -> Error {
    let said = escape(message.trim_start_matches("etcdserver: ").as_bytes());
    let failed = |exit, what: &str, cure: &str| Error::new(exit, format!("etcd at {server} {what}: {said}"), cure);
    match message {
        _ if message.contains("authentication failed") => failed(
            ErrorKind::Denied,
            "does not let us in",
            "see CSALOCK_ETCD_USER and CSALOCK_ETCD_PASSWORD or CSALOCK_ETCD_PASSWORD_FILE",
        ),
        _ if message.contains("user name is empty") => failed(
            ErrorKind::Denied,
            "wants to know who we are",
            "set CSALOCK_ETCD_USER and CSALOCK_ETCD_PASSWORD or CSALOCK_ETCD_PASSWORD_FILE",
        ),
        _ if code == 7 || message.contains("permission denied") => failed(
            ErrorKind::Denied,
            "refuses this",
            &format!(
                "give the user a role that may: etcdctl role grant-permission ROLE --prefix=true readwrite {}",
                shell_quote(format!("{}/", cluster.prefix).as_bytes())
            ),
        ),
        _ if code == 16 => {
            failed(ErrorKind::Denied, "does not know our login", "see CSALOCK_ETCD_USER, then try again")
        }
        _ if message.contains("database space exceeded") => failed(
            ErrorKind::InputOutput,
            "is full",
            "compact and defragment it, then `etcdctl alarm disarm`; see --quota-backend-bytes",
        ),
        _ if message.contains("too large") || message.contains("larger than max") => failed(
            ErrorKind::InputOutput,
            "takes nothing that large",
            "use a smaller value, or raise --max-request-bytes of etcd",
        ),
        _ => failed(ErrorKind::System, "refuses this", "see its log, and whether etcd is 3.4 or later"),
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Unresolved => write!(out, "no host of that name is known"),
            CallError::NamesSilent => write!(out, "the name service does not answer"),
            CallError::NamesFailed(why) => write!(out, "the name service cannot be asked: {why}"),
            CallError::Refused(why) | CallError::Strange(why) => write!(out, "{}", escape(why.as_bytes())),
            CallError::TooLong => write!(out, "its answer does not end"),
            CallError::Silent => write!(out, "no answer in time"),
            CallError::Interrupted => write!(out, "a signal ended the call"),
            CallError::Closed => write!(out, "the connection was closed without an answer"),
            CallError::Tls(why) => write!(out, "no TLS with it: {}", escape(why.as_bytes())),
            CallError::WantsTls => write!(out, "it speaks TLS"),
            CallError::NoGateway => write!(out, "its JSON gateway is off (404)"),
            CallError::Said(_, message) => {
                write!(out, "{}", escape(message.trim_start_matches("etcdserver: ").as_bytes()))
            }
        }
    }
}

impl std::error::Error for CallError {}

impl From<CallError> for io::Error {
    fn from(trouble: CallError) -> io::Error {
        io::Error::other(trouble)
    }
}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> CallError {
        let inside = error.get_ref();
        if let Some(trouble) = inside.and_then(|inside| inside.downcast_ref::<CallError>()) {
            return trouble.clone();
        }
        if let Some(tls) = inside.and_then(|inside| inside.downcast_ref::<rustls::Error>()) {
            return CallError::Tls(tls.to_string());
        }
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => CallError::Silent,
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                CallError::Closed
            }
            io::ErrorKind::ConnectionRefused => {
                CallError::Refused("nothing listens there (connection refused)".to_string())
            }
            _ => CallError::Refused(error.to_string()),
        }
    }
}
