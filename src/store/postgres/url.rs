//! Store URLs of PostgreSQL: `postgres://[USER@]HOST[:PORT]/DATABASE[?schema=NAME&...]`.

/// Default schema of a store.
pub(super) const SCHEMA: &str = "csalock";

/// Options of a URL; the others of libpq come from the environment or the service file.
const OPTIONS: [&str; 4] = ["schema", "sslmode", "sslrootcert", "service"];

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
        let (user, host, port) = parts.ok_or("a percent sign starts two hexadecimal digits")?;
        if user.is_some_and(|user| user.contains(':')) {
            return Err("a password does not belong there, where every user sees it; use ~/.pgpass");
        }
        if port.as_ref().is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port > 0)) || host.contains(',') {
            return Err("the server is HOST:PORT, one host, or an encoded path of a socket's directory");
        }
        let is_option = |option: &str| option.split_once('=').is_some_and(|(key, _)| OPTIONS.contains(&key));
        if !options.is_empty() && !options.split('&').all(is_option) {
            return Err("its options are schema, sslmode, sslrootcert and service");
        }
        let starts_well = |schema: &str| schema.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let schema = database.schema();
        match starts_well(&schema) && schema.len() <= 40 && schema.bytes().all(is_plain) {
            true => Ok(database),
            false => Err("a schema has at most 40 letters a to z, digits and underscores, and starts with no digit"),
        }
    }

    /// Returns the URL of this database.
    pub fn url(&self) -> String {
        let mark = if self.options.is_empty() { "" } else { "?" };
        format!("postgres://{}/{}{mark}{}", self.address, self.name, self.options)
    }

    /// Returns the value of an option.
    pub(super) fn option(&self, wanted: &str) -> Option<String> {
        let mut options = self.options.split('&').filter_map(|option| option.split_once('='));
        options.find(|(key, _)| *key == wanted).and_then(|(_, value)| decoded(value))
    }

    /// Returns the schema of the store.
    pub(super) fn schema(&self) -> String {
        self.option("schema").unwrap_or_else(|| SCHEMA.to_string())
    }

    /// Returns user, host and port.
    pub(super) fn parts(&self) -> Option<(Option<String>, String, Option<String>)> {
        let (user, server) = self.address.rsplit_once('@').map_or((None, &self.address[..]), |(u, s)| (Some(u), s));
        let (host, port) = match server.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port.to_string())),
            _ => (server, None),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        Some((user.map(decoded).map_or(Some(None), |user| user.map(Some))?, decoded(host)?, port))
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
