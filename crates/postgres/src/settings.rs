//! Connection settings, found as libpq (PostgreSQL 18) finds them: the URL, the environment, defaults; and what
//! csalock does with each setting of libpq.
//!
//! A user who asks for protection must not get less than from psql(1). So a setting that restricts the connection is
//! implemented or refused; only the others may be ignored.

use std::path::PathBuf;

use super::auth::password_of;
use super::{Database, decoded};
use host::{home_of, user_name};
use lock::error::{Error, ErrorKind, Result};
use lock::name::escape;
use store::Variables;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SslMode {
    Disable,
    Allow,
    /// TLS if the server speaks it.
    Prefer,
    /// TLS without a check of the certificate.
    Require,
    /// TLS, and an authority signed the certificate.
    VerifyCa,
    /// TLS, and an authority signed the certificate for this host.
    VerifyFull,
}

/// Binding of the login to the TLS connection, so that no server in between can pass it on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binding {
    Disable,
    Prefer,
    Require,
}

pub(super) struct Target {
    /// Name or address, or the absolute path of a socket's directory.
    pub(super) host: String,
    /// Address to connect to instead of the host's.
    pub(super) address: Option<String>,
    pub(super) port: u16,
    pub(super) password: std::result::Result<String, String>,
}

#[derive(Default)]
pub(super) struct Methods {
    names: Vec<String>,
    are_refused: bool,
}

#[derive(Default)]
pub(super) struct Tls {
    /// Certificates of the authorities; without a file, those of the system.
    pub(super) root: Option<PathBuf>,
    pub(super) revoked: Option<PathBuf>,
    pub(super) own: Option<(PathBuf, PathBuf)>,
    /// Lowest and highest version, of 2 and 3.
    pub(super) versions: (u8, u8),
}

/// Everything that a connection needs. It has a password, so it cannot be printed.
pub(super) struct Settings {
    pub(super) targets: Vec<Target>,
    pub(super) user: String,
    pub(super) database: String,
    pub(super) application: String,
    /// Settings of the session, in the words of a server's command line.
    pub(super) options: Option<String>,
    pub(super) mode: SslMode,
    pub(super) tls: Tls,
    pub(super) binding: Binding,
    pub(super) methods: Methods,
    /// User that the server must run as, on a socket of this host.
    pub(super) peer: Option<String>,
}

struct Sources<'a> {
    database: &'a Database,
    variables: &'a Variables<'a>,
    home: PathBuf,
}

impl Sources<'_> {
    fn find(&self, key: &str) -> Option<String> {
        self.find_both(key, &variable_of(key)).filter(|value| !value.is_empty())
    }

    fn find_both(&self, key: &str, variable: &str) -> Option<String> {
        let set = || (self.variables)(variable).map(|value| value.to_string_lossy().into_owned());
        self.database.option(key).or_else(set)
    }

    /// File that a setting names, or `default` in the home directory if that exists.
    fn file(&self, key: &str, default: &str) -> Option<PathBuf> {
        let default = || Some(self.home.join(".postgresql").join(default)).filter(|path| path.exists());
        self.find(key).map(PathBuf::from).or_else(default)
    }

    /// Place of the found value among these; the first is the default.
    fn one_of(&self, key: &str, values: &[&str]) -> Result<usize> {
        let Some(found) = self.find(key) else { return Ok(0) };
        let known = values.iter().position(|value| *value == found);
        known.ok_or_else(|| wrong(key, &found, &values.join(", ")))
    }
}

impl Settings {
    /// Fails if a setting is invalid or refused.
    pub(super) fn new(database: &Database, variables: &Variables<'_>, uid: u32) -> Result<Settings> {
        let home = variables("HOME").map(PathBuf::from).or_else(|| home_of(uid)).unwrap_or_default();
        let from = Sources { database, variables, home };
        check(&from)?;
        let user = database.parts().and_then(|(user, _)| user).or_else(|| from.find("user"));
        let user = user.or_else(|| user_name(uid)).unwrap_or_default();
        let name = decoded(&database.name).filter(|name| !name.is_empty()).or_else(|| from.find("dbname"));
        let name = name.unwrap_or_else(|| user.clone());
        let targets = targets(&from, &name, &user)?;
        let (mode, is_root_system) = mode(&from)?;
        let mut tls = Tls {
            root: from.file("sslrootcert", "root.crt").filter(|_| !is_root_system),
            revoked: from.file("sslcrl", "root.crl"),
            own: None,
            versions: versions(&from)?,
        };
        if from.find("sslcertmode").as_deref() != Some("disable") {
            tls.own = from.file("sslcert", "postgresql.crt").zip(from.file("sslkey", "postgresql.key"));
        }
        let binding = [Binding::Prefer, Binding::Disable, Binding::Require];
        Ok(Settings {
            targets,
            user,
            database: name,
            application: from.find("application_name").unwrap_or_else(|| "csalock".to_string()),
            options: from.find("options"),
            mode,
            tls,
            binding: binding[from.one_of("channel_binding", &["prefer", "disable", "require"])?],
            methods: Methods::parse(&from.find("require_auth").unwrap_or_default())?,
            peer: from.find("requirepeer"),
        })
    }

    #[cfg(test)]
    pub(super) fn servers(&self) -> String {
        self.targets.iter().map(Target::server).collect::<Vec<_>>().join(",")
    }
}

impl Target {
    pub(super) fn is_socket(&self) -> bool {
        self.host.starts_with('/') && self.address.is_none()
    }

    pub(super) fn server(&self) -> String {
        with_port(&self.host, self.port)
    }

    pub(super) fn place(&self) -> String {
        with_port(self.address.as_ref().unwrap_or(&self.host), self.port)
    }
}

fn with_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn targets(from: &Sources<'_>, database: &str, user: &str) -> Result<Vec<Target>> {
    let list = |key: &str| from.find(key).map_or_else(Vec::new, |list| list.split(',').map(String::from).collect());
    let (_, of_url) = from.database.parts().unwrap_or_default();
    let is_in_url = of_url.iter().any(|(host, _)| !host.is_empty());
    let mut hosts: Vec<String> =
        if is_in_url { of_url.iter().map(|(host, _)| host.clone()).collect() } else { list("host") };
    let address = from.find("hostaddr");
    if hosts.is_empty() {
        hosts.push(address.clone().unwrap_or_default());
    }
    if let Some(address) = &address
        && (address.contains(',') || hosts.len() > 1)
    {
        return Err(refused("hostaddr", "PGHOSTADDR", address, "csalock takes one address, and for one host only"));
    }
    let ports: Vec<Option<String>> = if of_url.iter().any(|(_, port)| port.is_some()) {
        of_url.into_iter().map(|(_, port)| port).collect()
    } else {
        list("port").into_iter().map(Some).collect()
    };
    if ports.len() > 1 && ports.len() != hosts.len() {
        let expected = format!("a list of {}, as that of hosts", hosts.len());
        return Err(wrong("PGPORT", &ports.len().to_string(), &expected));
    }
    let passwords = from.find("passfile").map_or_else(|| from.home.join(".pgpass"), PathBuf::from);
    let target = |(at, host): (usize, &String)| {
        let host = if host.is_empty() { "/var/run/postgresql".to_string() } else { host.clone() };
        let port = ports.get(at).or(ports.first()).cloned().flatten().filter(|port| !port.is_empty());
        let port = port.unwrap_or_else(|| "5432".to_string());
        let number: u16 = port.trim().parse().map_err(|_| wrong("PGPORT", &port, "a number"))?;
        let place = if host.starts_with('/') { "localhost" } else { &host };
        let password = match from.find("password") {
            Some(password) => Ok(password),
            None => password_of(&passwords, &[place, &number.to_string(), database, user]),
        };
        Ok(Target { host, address: address.clone(), port: number, password })
    };
    hosts.iter().enumerate().map(target).collect()
}

/// Also returns true if the authorities are those of the system.
fn mode(from: &Sources<'_>) -> Result<(SslMode, bool)> {
    use SslMode::*;
    let is_system = from.find("sslrootcert").as_deref() == Some("system");
    let names = ["prefer", "disable", "allow", "require", "verify-ca", "verify-full"];
    let modes = [Prefer, Disable, Allow, Require, VerifyCa, VerifyFull];
    let mode = match from.find("sslmode") {
        None if is_system => VerifyFull,
        _ => modes[from.one_of("sslmode", &names)?],
    };
    if is_system && mode != VerifyFull {
        let what = "sslrootcert=system needs sslmode=verify-full: a weaker mode would accept any server";
        return Err(Error::new(ErrorKind::InvalidInput, what, "set sslmode to verify-full, or leave it out"));
    }
    Ok((mode, is_system))
}

fn versions(from: &Sources<'_>) -> Result<(u8, u8)> {
    let lowest = from.one_of("ssl_min_protocol_version", &["TLSv1.2", "TLSv1.3", "TLSv1.1", "TLSv1"])?;
    let highest = from.one_of("ssl_max_protocol_version", &["TLSv1.3", "TLSv1.2"])?;
    let versions = (if lowest == 1 { 3 } else { 2 }, if highest == 1 { 2 } else { 3 });
    if versions.0 > versions.1 {
        return Err(wrong("ssl_min_protocol_version", "TLSv1.3", "no more than ssl_max_protocol_version"));
    }
    Ok(versions)
}

impl Methods {
    fn parse(list: &str) -> Result<Methods> {
        const KNOWN: [&str; 7] = ["password", "md5", "gss", "sspi", "scram-sha-256", "oauth", "none"];
        let words: Vec<&str> = list.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
        let are_refused = words.iter().any(|word| word.starts_with('!'));
        let names: Vec<String> = words.iter().map(|word| word.trim_start_matches('!').to_string()).collect();
        let is_one_kind = words.iter().all(|word| word.starts_with('!') == are_refused);
        if !is_one_kind || !names.iter().all(|name| KNOWN.contains(&&name[..])) {
            let expected = format!("a list of {}, all with or all without \"!\"", KNOWN.join(", "));
            return Err(wrong("require_auth", list, &expected));
        }
        Ok(Methods { names, are_refused })
    }

    pub(super) fn permit(&self, method: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| name == method) != self.are_refused
    }
}

fn wrong(what: &str, found: &str, expected: &str) -> Error {
    let what = format!("{what} is \"{}\"", escape(found.as_bytes()));
    Error::new(ErrorKind::InvalidInput, what, format!("set it to {expected}"))
}

#[cfg(test)]
#[path = "settings/tests.rs"]
mod tests;

/// Settings that restrict the connection or change the session as in libpq.
const IMPLEMENTED: &str = "
    application_name channel_binding dbname host hostaddr options passfile password port require_auth requirepeer
    ssl_max_protocol_version ssl_min_protocol_version sslcert sslcrl sslkey sslmode sslrootcert user";

const IGNORED: &str = "
    client_encoding connect_timeout fallback_application_name gssdelegation gsslib keepalives keepalives_count
    keepalives_idle keepalives_interval krbsrvname load_balance_hosts max_protocol_version oauth_client_id
    oauth_client_secret oauth_issuer oauth_scope servicefile sslcompression sslkeylogfile tcp_user_timeout";

/// A setting whose other values restrict the connection in a way that csalock does not know, or ask for more than it has:
/// key, variable if there is one, values that change nothing, and the reason for the refusal.
struct Refused(&'static str, &'static str, &'static [&'static str], &'static str);

const REFUSED: [Refused; 13] = [
    Refused("gssencmode", "PGGSSENCMODE", &["disable", "prefer"], "csalock has no GSSAPI encryption"),
    Refused("min_protocol_version", "PGMINPROTOCOLVERSION", &["3.0"], "csalock speaks version 3.0"),
    Refused("replication", "", &["false", "off", "no", "0"], "csalock does not replicate"),
    Refused("requiressl", "PGREQUIRESSL", &["0"], "use sslmode=require"),
    Refused("scram_client_key", "", &[], "csalock logs in with a password"),
    Refused("scram_server_key", "", &[], "csalock logs in with a password"),
    Refused("service", "PGSERVICE", &[], "csalock reads no service files; use the URL, and ~/.pgpass"),
    Refused("sslcertmode", "PGSSLCERTMODE", &["disable", "allow"], "csalock cannot insist on its certificate"),
    Refused("sslcrldir", "PGSSLCRLDIR", &[], "csalock reads no directories of revocations; use sslcrl"),
    Refused("sslnegotiation", "PGSSLNEGOTIATION", &["postgres"], "csalock has no direct TLS"),
    Refused("sslsni", "PGSSLSNI", &["1"], "csalock sends the name of the server"),
    Refused("sslpassword", "", &[], "csalock cannot decrypt a key"),
    Refused(
        "target_session_attrs",
        "PGTARGETSESSIONATTRS",
        &["any", "read-write", "primary"],
        "csalock always needs the primary server",
    ),
];

/// The environment variable of a setting that is implemented.
fn variable_of(key: &str) -> String {
    match key {
        "application_name" => "PGAPPNAME".to_string(),
        "dbname" => "PGDATABASE".to_string(),
        key => format!("PG{}", key.replace('_', "").to_ascii_uppercase()),
    }
}

pub(super) fn is_known(key: &str) -> bool {
    let mut others = IMPLEMENTED.split_whitespace().chain(IGNORED.split_whitespace());
    others.any(|known| known == key) || REFUSED.iter().any(|Refused(known, ..)| *known == key)
}

/// Fails if a setting has a value that csalock refuses.
fn check(from: &Sources<'_>) -> Result<()> {
    for Refused(key, variable, allowed, why) in &REFUSED {
        let found = from.find_both(key, variable).unwrap_or_default();
        if !found.is_empty() && !allowed.contains(&&found[..]) {
            return Err(refused(key, variable, &found, why));
        }
    }
    Ok(())
}

fn refused(key: &str, variable: &str, found: &str, why: &str) -> Error {
    let what = format!("{key}={}: {why}", escape(found.as_bytes()));
    let variable = if variable.is_empty() { key } else { variable };
    Error::new(ErrorKind::InvalidInput, what, format!("leave out {key}, and unset {variable}"))
}
