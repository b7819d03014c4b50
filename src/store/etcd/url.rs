//! Store URLs of etcd: `etcd://HOST:PORT,HOST:PORT/PREFIX`, and `etcds://` for TLS.

/// Default prefix of the keys in etcd.
const PREFIX: &str = "csalock";

/// Default port of etcd for clients.
const PORT: u16 = 2379;

/// An etcd cluster and the key prefix of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// True if connections use TLS.
    pub tls: bool,
    /// Host and port of each server, as typed; at least one.
    pub endpoints: Vec<String>,
    /// Prefix of all keys, without the slash that follows it.
    pub prefix: String,
}

impl Cluster {
    /// Parses the part after the scheme: `//HOST:PORT,HOST:PORT/PREFIX`.
    pub(in crate::store) fn parse(tls: bool, rest: &[u8]) -> Result<Cluster, &'static str> {
        let rest = std::str::from_utf8(rest).map_err(|_| "it is not UTF-8")?;
        let rest = rest.strip_prefix("//").ok_or("two slashes and a server come after the colon")?;
        if rest.contains(['?', '#']) {
            return Err("it has no options");
        }
        if rest.contains('@') {
            return Err("a password does not belong there, where every user sees it; see $CSALOCK_ETCD_PASSWORD");
        }
        let (servers, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.strip_prefix("./").unwrap_or(prefix).trim_matches('/');
        let endpoints = servers.split(',').map(endpoint).collect::<Option<Vec<_>>>().ok_or("a server is HOST:PORT")?;
        Ok(Cluster { tls, endpoints, prefix: if prefix.is_empty() { PREFIX } else { prefix }.to_string() })
    }

    pub fn url(&self) -> String {
        let scheme = if self.tls { "etcds" } else { "etcd" };
        format!("{scheme}://{}/{}", self.endpoints.join(","), self.prefix)
    }
}

/// Returns the server with its port, by default etcd's own port.
fn endpoint(typed: &str) -> Option<String> {
    let is_bracketed = typed.starts_with('[') && typed.contains(']');
    let after = if is_bracketed { &typed[typed.find(']')? + 1..] } else { typed };
    let (host, port) = match after.rsplit_once(':') {
        Some((_, port)) => (&typed[..typed.len() - port.len() - 1], port.parse::<u16>().ok().filter(|port| *port > 0)?),
        None => (typed, PORT),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let is_one = !bare.is_empty() && (is_bracketed || !bare.contains(':'));
    let is_plain = bare.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte));
    (is_one && is_plain).then(|| format!("{host}:{port}"))
}
