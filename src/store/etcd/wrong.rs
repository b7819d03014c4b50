//! What goes wrong between us and etcd, in our words: with exit code and cure, and whether it may pass.

use std::fmt;
use std::io;

use crate::error::Error;
use crate::exit::Exit;
use crate::name::{quoted, shown};
use crate::store::Cluster;

/// Why one server did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Its name leads to no address.
    Unresolved,
    /// Nobody can be reached there: why.
    Refused(String),
    /// It did not answer in time.
    Silent,
    /// It closed the connection instead of an answer.
    Closed,
    /// TLS did not come about: why.
    Tls(String),
    /// It speaks TLS, and we did not.
    WantsTls,
    /// The JSON gateway is off.
    NoGateway,
    /// Its answer was longer than we listen to.
    TooLong,
    /// It answered with something that etcd does not say.
    Strange(String),
    /// etcd's own words, and gRPC's number for them.
    Said(u32, String),
}

/// What may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hope {
    /// To ask again, here or elsewhere.
    Again,
    /// To ask elsewhere; here only if it has worked before.
    Elsewhere,
    /// To log in anew.
    Login,
    /// Nothing: that is the cluster's answer.
    None,
}

impl Trouble {
    /// What may help.
    pub(super) fn hope(&self) -> Hope {
        match self {
            Trouble::Silent | Trouble::Closed => Hope::Again,
            Trouble::Said(code, message) => match (code, &message[..]) {
                (16, _) => Hope::Login,
                (_, said) if said.contains("invalid auth token") || said.contains("auth store is old") => Hope::Login,
                (1 | 4 | 14, _) => Hope::Again,
                (_, said) if passes(said) => Hope::Again,
                _ => Hope::None,
            },
            Trouble::TooLong => Hope::None,
            _ => Hope::Elsewhere,
        }
    }

    /// Whether waiting may help: a server that is down or starts is silent or refuses connections. A wrong name, a wrong
    /// port that speaks something else, and TLS that fails stay as they are.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Trouble::Refused(_)) || self.hope() == Hope::Again
    }

    /// Whether etcd says that there is no such lease.
    pub(super) fn is_lease_gone(&self) -> bool {
        matches!(self, Trouble::Said(_, message) if message.contains("lease not found"))
    }

    /// Whether etcd says that there already is such a lease.
    pub(super) fn is_lease_there(&self) -> bool {
        matches!(self, Trouble::Said(_, message) if message.contains("lease already exists"))
    }

    /// Whether etcd says that nobody needs to log in.
    pub(super) fn needs_no_login(&self) -> bool {
        matches!(self, Trouble::Said(_, message) if message.contains("authentication is not enabled"))
    }

    /// The error of a call that met these troubles, each at the server of that name.
    pub(super) fn error(troubles: &[(String, Trouble)], cluster: &Cluster) -> Error {
        let servers = cluster.endpoints.join(", ");
        let Some((server, last)) = troubles.last() else {
            return Error::new(Exit::Unreachable, format!("no time was left to ask etcd at {servers}"), PATIENCE);
        };
        if let Trouble::Said(code, message) = last
            && last.hope() != Hope::Again
        {
            return refused(*code, message, server, cluster);
        }
        let each: Vec<String> = troubles.iter().map(|(server, trouble)| format!("{server}: {trouble}")).collect();
        // What only time can heal says least about what to do.
        let telling = troubles.iter().map(|(_, trouble)| trouble).find(|trouble| trouble.hope() == Hope::Elsewhere);
        let what = format!("etcd cannot be reached: {}", each.join("; "));
        Error::new(Exit::Unreachable, what, cure(telling.unwrap_or(last)))
    }
}

const PATIENCE: &str = "see whether most of its members are up (`etcdctl endpoint health`), then try again";

fn cure(trouble: &Trouble) -> &'static str {
    match trouble {
        Trouble::Unresolved => "see the spelling of the store's URL, and the name service",
        Trouble::Refused(_) => "see whether etcd runs there and whether the store's URL has the right host and port",
        Trouble::Tls(why) if why.contains("CertificateRequired") || why.contains("BadCertificate") => {
            "it wants a certificate from us: set CSALOCK_ETCD_CERT and CSALOCK_ETCD_KEY"
        }
        Trouble::Tls(why) if why.contains("UnknownIssuer") => {
            "set CSALOCK_ETCD_CACERT to the certificate of the authority that signed its own"
        }
        Trouble::Tls(why) if why.contains("NotValidForName") => {
            "name the server in the store's URL as its certificate does, or give it a certificate for that name"
        }
        Trouble::Tls(_) => {
            "see whether it speaks TLS at all (else say etcd:// instead of etcds://), and its certificate"
        }
        Trouble::WantsTls => "say etcds:// instead of etcd:// in the store's URL",
        Trouble::NoGateway => {
            "start etcd with --enable-grpc-gateway, or with enable-grpc-gateway: true in its configuration file, \
             where 3.4 has it off; or name the port for clients, if this one is for peers"
        }
        Trouble::Strange(_) | Trouble::TooLong => "see what it is that answers there, and whether etcd is 3.4 or later",
        Trouble::Said(_, said) if said.contains("connection error") => {
            "its JSON gateway cannot reach etcd itself: with --client-cert-auth its own certificate must be good for \
             clients as well (extendedKeyUsage clientAuth)"
        }
        Trouble::Silent | Trouble::Closed | Trouble::Said(..) => PATIENCE,
    }
}

/// What etcd says while its members look for a leader or are overburdened.
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

/// What the cluster does not do for us, wherever we ask.
fn refused(code: u32, message: &str, server: &str, cluster: &Cluster) -> Error {
    let said = shown(message.trim_start_matches("etcdserver: ").as_bytes());
    let failed = |exit, what: &str, cure: &str| Error::new(exit, format!("etcd at {server} {what}: {said}"), cure);
    match message {
        _ if message.contains("authentication failed") => failed(
            Exit::Permission,
            "does not let us in",
            "see CSALOCK_ETCD_USER and CSALOCK_ETCD_PASSWORD or CSALOCK_ETCD_PASSWORD_FILE",
        ),
        _ if message.contains("user name is empty") => failed(
            Exit::Permission,
            "wants to know who we are",
            "set CSALOCK_ETCD_USER and CSALOCK_ETCD_PASSWORD or CSALOCK_ETCD_PASSWORD_FILE",
        ),
        _ if code == 7 || message.contains("permission denied") => failed(
            Exit::Permission,
            "refuses this",
            &format!(
                "give the user a role that may: etcdctl role grant-permission ROLE --prefix=true readwrite {}",
                quoted(format!("{}/", cluster.prefix).as_bytes())
            ),
        ),
        _ if code == 16 => failed(Exit::Permission, "does not know our login", "see CSALOCK_ETCD_USER, then try again"),
        _ if message.contains("database space exceeded") => failed(
            Exit::InputOutput,
            "is full",
            "compact and defragment it, then `etcdctl alarm disarm`; see --quota-backend-bytes",
        ),
        _ if message.contains("too large") || message.contains("larger than max") => failed(
            Exit::InputOutput,
            "takes nothing that large",
            "use a smaller value, or raise --max-request-bytes of etcd",
        ),
        _ => failed(Exit::System, "refuses this", "see its log, and whether etcd is 3.4 or later"),
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Unresolved => write!(out, "no host of that name is known"),
            Trouble::Refused(why) | Trouble::Strange(why) => write!(out, "{}", shown(why.as_bytes())),
            Trouble::TooLong => write!(out, "its answer does not end"),
            Trouble::Silent => write!(out, "no answer in time"),
            Trouble::Closed => write!(out, "the connection was closed without an answer"),
            Trouble::Tls(why) => write!(out, "no TLS with it: {}", shown(why.as_bytes())),
            Trouble::WantsTls => write!(out, "it speaks TLS"),
            Trouble::NoGateway => write!(out, "its JSON gateway is off (404)"),
            Trouble::Said(_, message) => {
                write!(out, "{}", shown(message.trim_start_matches("etcdserver: ").as_bytes()))
            }
        }
    }
}

impl std::error::Error for Trouble {}

impl From<Trouble> for io::Error {
    fn from(trouble: Trouble) -> io::Error {
        io::Error::other(trouble)
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        let inside = error.get_ref();
        if let Some(trouble) = inside.and_then(|inside| inside.downcast_ref::<Trouble>()) {
            return trouble.clone();
        }
        if let Some(tls) = inside.and_then(|inside| inside.downcast_ref::<rustls::Error>()) {
            return Trouble::Tls(tls.to_string());
        }
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Trouble::Silent,
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                Trouble::Closed
            }
            io::ErrorKind::ConnectionRefused => {
                Trouble::Refused("nothing listens there (connection refused)".to_string())
            }
            _ => Trouble::Refused(error.to_string()),
        }
    }
}

impl From<ureq::Error> for Trouble {
    fn from(error: ureq::Error) -> Trouble {
        match error {
            ureq::Error::Io(error) => error.into(),
            ureq::Error::Timeout(_) => Trouble::Silent,
            ureq::Error::BodyExceedsLimit(_) => Trouble::TooLong,
            other => Trouble::Strange(other.to_string()),
        }
    }
}
