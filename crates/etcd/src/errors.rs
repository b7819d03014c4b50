//! Errors between csalock and etcd: kind and hint, and whether a retry may help.

use std::fmt;

use crate::Cluster;
use lock::error::{Error, ErrorKind};
use lock::name::{escape, shell_quote};
use net::{CallError, Cause, NetError, Retry};

pub(super) type EtcdError = CallError<EtcdCause>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EtcdCause {
    WantsTls,
    NoGateway,
    Said(u32, String),
}

impl Cause for EtcdCause {
    fn retry(&self) -> Retry {
        match self {
            EtcdCause::WantsTls | EtcdCause::NoGateway => Retry::IfMet,
            EtcdCause::Said(1 | 4 | 14, _) => Retry::Always,
            EtcdCause::Said(_, said) if PASSING.lines().any(|passing| said.contains(passing)) => Retry::Always,
            EtcdCause::Said(..) => Retry::Answered,
        }
    }
}

/// Messages of etcd while its members elect a leader or are overloaded, one in each line.
const PASSING: &str = "request timed out\nleader changed\nno leader\nnot leader\ntoo many requests\nnot healthy\n\
                       server stopped";

impl fmt::Display for EtcdCause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EtcdCause::WantsTls => write!(out, "it speaks TLS"),
            EtcdCause::NoGateway => write!(out, "its JSON gateway is off (404)"),
            EtcdCause::Said(_, message) => {
                write!(out, "{}", escape(message.trim_start_matches("etcdserver: ").as_bytes()))
            }
        }
    }
}

pub(super) const LEASE_EXISTS: &str = "lease already exists";
pub(super) const LEASE_IS_GONE: &str = "lease not found";
pub(super) const NEEDS_NO_LOGIN: &str = "authentication is not enabled";

pub(super) fn says(error: &EtcdError, part: &str) -> bool {
    matches!(error, CallError::Server(EtcdCause::Said(_, message)) if message.contains(part))
}

pub(super) fn is_login_over(error: &EtcdError) -> bool {
    matches!(error, CallError::Server(EtcdCause::Said(16, _)))
        || says(error, "invalid auth token")
        || says(error, "auth store is old")
}

pub(super) fn is_refusal(error: &EtcdError) -> bool {
    matches!(error, CallError::Server(_)) && error.retry() == Retry::Answered
}

/// Failures of one round of requests, each with the name of its server.
pub(super) type Failures = [(String, EtcdError)];

/// The last failure stands for a round if it ends the call, else the one that promises most.
pub(super) fn summary(failures: &Failures) -> EtcdError {
    let find = |wanted| failures.iter().map(|(_, error)| error).find(|error| error.retry() == wanted);
    let last = failures.last().map(|(_, error)| error);
    let ending = last.filter(|error| matches!(error.retry(), Retry::Answered | Retry::Never));
    let found = ending.or_else(|| find(Retry::Always)).or_else(|| find(Retry::IfMetOrLater)).or(last);
    // No time was left to ask a server.
    found.cloned().unwrap_or(CallError::Net(NetError::Silent))
}

pub(super) fn explain(failures: &Failures, cluster: &Cluster) -> Error {
    let Some((server, last)) = failures.last() else {
        let servers = cluster.endpoints.join(", ");
        return Error::new(ErrorKind::Unavailable, format!("no time was left to ask etcd at {servers}"), PATIENCE);
    };
    if let CallError::Server(EtcdCause::Said(code, message)) = last
        && is_refusal(last)
    {
        return refused(*code, message, server, cluster);
    }
    let each: Vec<String> = failures.iter().map(|(server, error)| format!("{server}: {error}")).collect();
    // A temporary failure says least about what the user can do, so a permanent one has priority.
    let is_telling = |error: &&EtcdError| matches!(error.retry(), Retry::IfMet | Retry::IfMetOrLater);
    let telling = failures.iter().map(|(_, error)| error).find(is_telling).unwrap_or(last);
    Error::new(ErrorKind::Unavailable, format!("etcd cannot be reached: {}", each.join("; ")), cure(telling))
}

const PATIENCE: &str = "see whether most of its members are up (`etcdctl endpoint health`), then try again";

fn cure(error: &EtcdError) -> &'static str {
    let error = match error {
        CallError::Net(error) => error,
        CallError::Server(EtcdCause::WantsTls) => return "use etcds:// instead of etcd:// in the store's URL",
        CallError::Server(EtcdCause::NoGateway) => {
            return "start etcd with --enable-grpc-gateway, or with enable-grpc-gateway: true in its configuration file, \
                    where 3.4 has it off; or name the port for clients, if this one is for peers";
        }
        CallError::Server(EtcdCause::Said(_, said)) if said.contains("connection error") => {
            return "its JSON gateway cannot reach etcd itself: with --client-cert-auth its own certificate must be good \
                    for clients as well (extendedKeyUsage clientAuth)";
        }
        CallError::Server(EtcdCause::Said(..)) => return PATIENCE,
    };
    match error {
        NetError::Unresolved => "see the spelling of the store's URL, and the name service",
        NetError::NamesSilent | NetError::NamesFailed(_) => "see the name service, or name the host by its address",
        NetError::Refused(_) => "see whether etcd runs there and whether the store's URL has the right host and port",
        NetError::Tls(why) if why.contains("CertificateRequired") || why.contains("BadCertificate") => {
            "it wants a certificate from us: set CSALOCK_ETCD_CERT and CSALOCK_ETCD_KEY"
        }
        NetError::Tls(why) if why.contains("UnknownIssuer") => {
            "set CSALOCK_ETCD_CACERT to the certificate of the authority that signed its own"
        }
        NetError::Tls(why) if why.contains("NotValidForName") => {
            "name the server in the store's URL as its certificate does, or give it a certificate for that name"
        }
        NetError::Tls(_) => {
            "see whether it speaks TLS at all (else use etcd:// instead of etcds://), and its certificate"
        }
        NetError::Strange(_) | NetError::TooLong => {
            "see what it is that answers there, and whether etcd is 3.4 or later"
        }
        NetError::Silent | NetError::Closed | NetError::Interrupted => PATIENCE,
    }
}

/// Every server would refuse this request.
fn refused(code: u32, message: &str, server: &str, cluster: &Cluster) -> Error {
    use ErrorKind::{Denied, InputOutput, System};
    let says = |part: &str| message.contains(part);
    let prefix = shell_quote(format!("{}/", cluster.prefix).as_bytes());
    let grant = "give the user a role that may: etcdctl role grant-permission ROLE --prefix=true readwrite";
    let grant = format!("{grant} {prefix}");
    let (kind, what, cure) = if says("authentication failed") {
        (Denied, "does not let us in", "see CSALOCK_ETCD_USER and CSALOCK_ETCD_PASSWORD or CSALOCK_ETCD_PASSWORD_FILE")
    } else if says("user name is empty") {
        let cure = "set CSALOCK_ETCD_USER and CSALOCK_ETCD_PASSWORD or CSALOCK_ETCD_PASSWORD_FILE";
        (Denied, "wants to know who we are", cure)
    } else if code == 7 || says("permission denied") {
        (Denied, "refuses this", &grant[..])
    } else if code == 16 {
        (Denied, "does not know our login", "see CSALOCK_ETCD_USER, then try again")
    } else if says("database space exceeded") {
        let cure = "compact and defragment it, then `etcdctl alarm disarm`; see --quota-backend-bytes";
        (InputOutput, "is full", cure)
    } else if says("too large") || says("larger than max") {
        (InputOutput, "takes nothing that large", "use a smaller value, or raise --max-request-bytes of etcd")
    } else {
        (System, "refuses this", "see its log, and whether etcd is 3.4 or later")
    };
    let said = escape(message.trim_start_matches("etcdserver: ").as_bytes());
    Error::new(kind, format!("etcd at {server} {what}: {said}"), cure)
}
