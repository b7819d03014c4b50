//! Errors between csalock and etcd: exit code and hint, and whether a retry may help.

use crate::error::{Error, ErrorKind};
use crate::name::{escape, shell_quote};
use crate::store::Cluster;
use crate::store::net::retry::CallError;
use crate::store::net::retry::{Retry, Trouble};

/// Troubles of one round of requests, each with the name of its server.
#[derive(Debug)]
pub(super) struct Troubles(pub(super) Vec<(String, CallError)>);

impl Trouble for Troubles {
    fn retry(&self) -> Retry {
        match self.last().map(CallError::retry) {
            Some(Retry::IfMet) if self.0.iter().any(|(_, trouble)| trouble.retry() == Retry::Always) => Retry::Always,
            // No time was left to ask a server.
            last => last.unwrap_or(Retry::Always),
        }
    }

    fn may_pass(&self) -> bool {
        self.0.iter().any(|(_, trouble)| trouble.may_pass())
    }
}

impl CallError {
    fn says(&self, part: &str) -> bool {
        matches!(self, CallError::Said(_, message) if message.contains(part))
    }

    pub(super) fn is_lease_there(&self) -> bool {
        self.says("lease already exists")
    }

    pub(super) fn needs_no_login(&self) -> bool {
        self.says("authentication is not enabled")
    }

    pub(super) fn is_login_over(&self) -> bool {
        matches!(self, CallError::Said(16, _)) || self.says("invalid auth token") || self.says("auth store is old")
    }
}

impl Troubles {
    pub(super) fn last(&self) -> Option<&CallError> {
        self.0.last().map(|(_, trouble)| trouble)
    }

    pub(super) fn is_lease_gone(&self) -> bool {
        self.last().is_some_and(|last| last.says("lease not found"))
    }

    pub(super) fn is_refusal(&self) -> bool {
        self.last().is_some_and(|last| matches!(last, CallError::Said(..)) && last.retry() == Retry::Answered)
    }

    pub(super) fn error(&self, cluster: &Cluster) -> Error {
        let Some((server, last)) = self.0.last() else {
            let servers = cluster.endpoints.join(", ");
            return Error::new(ErrorKind::Unavailable, format!("no time was left to ask etcd at {servers}"), PATIENCE);
        };
        if let CallError::Said(code, message) = last
            && last.retry() == Retry::Answered
        {
            return refused(*code, message, server, cluster);
        }
        let each: Vec<String> = self.0.iter().map(|(server, trouble)| format!("{server}: {trouble}")).collect();
        // A temporary failure says least about what the user can do, so a permanent one has priority.
        let telling = self.0.iter().map(|(_, trouble)| trouble).find(|trouble| trouble.retry() == Retry::IfMet);
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
