//! Store URLs of PostgreSQL: `postgres://[USER@]HOST[:PORT]/DATABASE[?schema=NAME&...]`.

use super::settings::is_known;

/// Default schema of a store.
pub(super) const SCHEMA: &str = "csalock";

/// Settings of libpq that a URL has elsewhere.
const ELSEWHERE: [&str; 4] = ["user", "host", "port", "dbname"];

/// Settings that are no option of a URL, because every user sees it.
const PRIVATE: [&str; 6] =
    ["password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key", "passfile"];

const NO_PASSWORD: &str = "a password does not belong there, where every user sees it; use ~/.pgpass";

/// User, hosts with their ports.
type Parts = (Option<String>, Vec<(String, Option<String>)>);

/// A database and the schema of the store, as typed. The environment adds missing parts, as in libpq.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database {
    /// `[USER@][HOST][:PORT]`, percent-encoded.
    pub address: String,
    /// Name of the database, percent-encoded.
    pub name: String,
    /// Options: `KEY=VALUE&KEY=VALUE`, percent-encoded.
    pub options: String,
}

impl Database {
    /// Parses the part after the scheme: `//[USER@]HOST[:PORT]/DATABASE[?OPTIONS]`.
    pub(in crate::store) fn parse(rest: &[u8]) -> Result<Database, &'static str> {
        let rest = std::str::from_utf8(rest).map_err(|_| "it is not UTF-8")?;
        let rest = rest.strip_prefix("//").ok_or("two slashes and a server come after the colon")?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (address, name) = rest.split_once('/').unwrap_or((rest, ""));
        let name = name.strip_prefix("./").unwrap_or(name);
        let database = Database { address: address.into(), name: name.into(), options: options.into() };
        let parts = database.parts().filter(|_| [name, options].into_iter().all(|part| decoded(part).is_some()));
        let (user, hosts) = parts.ok_or("a percent sign starts two hexadecimal digits")?;
        if user.is_some_and(|user| user.contains(':')) {
            return Err(NO_PASSWORD);
        }
        let is_port = |port: &String| port.parse::<u16>().is_ok_and(|port| port > 0);
        if !hosts.iter().all(|(_, port)| port.as_ref().is_none_or(is_port)) {
            return Err("the server is HOST:PORT, a list of them, or an encoded path of a socket's directory");
        }
        let keys = || options.split('&').filter(|option| !option.is_empty()).map(|option| option.split_once('='));
        if keys().flatten().any(|(key, _)| PRIVATE.contains(&key)) {
            return Err(NO_PASSWORD);
        }
        let is_known = |key: &str| key == "schema" || (is_known(key) && !ELSEWHERE.contains(&key));
        if !keys().all(|option| option.is_some_and(|(key, _)| is_known(key))) {
            return Err("its options are schema, and settings of libpq that are not in the URL already");
        }
        let starts_well = |schema: &str| schema.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let schema = database.schema();
        match starts_well(&schema) && schema.len() <= 40 && schema.bytes().all(is_plain) {
            true => Ok(database),
            false => Err("a schema has at most 40 letters a to z, digits and underscores, and starts with no digit"),
        }
    }

    pub fn url(&self) -> String {
        let mark = if self.options.is_empty() { "" } else { "?" };
        format!("postgres://{}/{}{mark}{}", self.address, self.name, self.options)
    }

    pub(super) fn option(&self, wanted: &str) -> Option<String> {
        let mut options = self.options.split('&').filter_map(|option| option.split_once('='));
        options.find(|(key, _)| *key == wanted).and_then(|(_, value)| decoded(value))
    }

    pub(super) fn schema(&self) -> String {
        self.option("schema").unwrap_or_else(|| SCHEMA.to_string())
    }

    pub(super) fn parts(&self) -> Option<Parts> {
        let (user, servers) = self.address.rsplit_once('@').map_or((None, &self.address[..]), |(u, s)| (Some(u), s));
        let host = |server: &str| {
            let (host, port) = match server.rsplit_once(':') {
                Some((host, port)) if !port.contains(']') => (host, Some(port.to_string())),
                _ => (server, None),
            };
            let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            Some((decoded(host)?, port))
        };
        let user = user.map(decoded).map_or(Some(None), |user| user.map(Some))?;
        Some((user, servers.split(',').map(host).collect::<Option<_>>()?))
    }
}

/// Decodes `%XX`.
pub(super) fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok().filter(|byte| *byte > 0)?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}
