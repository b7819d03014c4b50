//! Connection settings, found as libpq finds them: the URL, the service file, the environment, defaults.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::url::{Database, decoded};
use crate::error::{Error, ErrorKind, Result};
use crate::host::{home_of, user_name};
use crate::name::{escape, escape_path};
use crate::store::Access;

/// Protection of the connection by TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SslMode {
    Disable,
    /// TLS if the server speaks it.
    Prefer,
    /// TLS without a check of the certificate.
    Require,
    /// TLS, and an authority signed the certificate.
    VerifyCa,
    /// TLS, and an authority signed the certificate for this host.
    VerifyFull,
}

/// Everything that a connection needs. It has a password, so it cannot be printed.
#[derive(Clone)]
pub(super) struct Settings {
    /// Name or address, or the absolute path of a socket's directory.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) database: String,
    pub(super) mode: SslMode,
    pub(super) root: Option<PathBuf>,
    pub(super) password: Option<String>,
}

impl Settings {
    /// Fails if a setting is invalid, or the named service is unknown.
    pub(super) fn new(database: &Database, access: &Access, uid: u32) -> Result<Settings> {
        let variable = |name: &str| access.postgres.get(name).cloned();
        let home = variable("HOME").map(PathBuf::from).or_else(|| home_of(uid)).unwrap_or_default();
        let service = match database.option("service").or_else(|| variable("PGSERVICE")) {
            Some(name) => {
                let file = variable("PGSERVICEFILE").map_or_else(|| home.join(".pg_service.conf"), PathBuf::from);
                service(&name, &file)?
            }
            None => BTreeMap::new(),
        };
        let find = |key: &str, name: &str| {
            database.option(key).or_else(|| service.get(key).cloned()).or_else(|| variable(name))
        };
        let (user, host, port) = database.parts().unwrap_or_default();
        let user = user.or_else(|| find("user", "PGUSER")).or_else(|| user_name(uid)).unwrap_or_default();
        let host = Some(host).filter(|host| !host.is_empty()).or_else(|| find("host", "PGHOST"));
        let host = host.unwrap_or_else(|| "/var/run/postgresql".to_string());
        let port = port.or_else(|| find("port", "PGPORT")).unwrap_or_else(|| "5432".to_string());
        let port: u16 = port.parse().map_err(|_| wrong("PGPORT", &port, "a number"))?;
        let name = decoded(&database.name).filter(|name| !name.is_empty()).or_else(|| find("dbname", "PGDATABASE"));
        let name = name.unwrap_or_else(|| user.clone());
        let mode = match &find("sslmode", "PGSSLMODE").unwrap_or_default()[..] {
            _ if host.starts_with('/') => SslMode::Disable,
            "disable" => SslMode::Disable,
            "" | "allow" | "prefer" => SslMode::Prefer,
            "require" => SslMode::Require,
            "verify-ca" => SslMode::VerifyCa,
            "verify-full" => SslMode::VerifyFull,
            other => return Err(wrong("sslmode", other, "disable, prefer, require, verify-ca or verify-full")),
        };
        // A user who asks for these must not get less.
        for (key, name) in [("channel_binding", "PGCHANNELBINDING"), ("require_auth", "PGREQUIREAUTH")] {
            let asked = find(key, name).unwrap_or_default();
            if !["", "disable", "prefer"].contains(&&asked[..]) {
                let what =
                    format!("{name}={asked}: csalock cannot insist on a login", asked = escape(asked.as_bytes()));
                return Err(Error::new(ErrorKind::InvalidInput, what, "unset it, and use sslmode=verify-full"));
            }
        }
        let root = find("sslrootcert", "PGSSLROOTCERT").filter(|root| root != "system").map(PathBuf::from);
        let root = root.or_else(|| Some(home.join(".postgresql/root.crt")).filter(|root| root.exists()));
        let password = find("password", "PGPASSWORD").or_else(|| {
            let file = variable("PGPASSFILE").map_or_else(|| home.join(".pgpass"), PathBuf::from);
            let place = if host.starts_with('/') { "localhost" } else { &host };
            password_of(&file, &[place, &port.to_string(), &name, &user])
        });
        Ok(Settings { host, port, user, database: name, mode, root, password })
    }

    /// Returns the server as `HOST:PORT`.
    pub(super) fn server(&self) -> String {
        let Settings { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

fn wrong(what: &str, found: &str, expected: &str) -> Error {
    let what = format!("{what} is \"{}\"", escape(found.as_bytes()));
    Error::new(ErrorKind::InvalidInput, what, format!("set it to {expected}"))
}

/// Returns the settings of a service.
fn service(name: &str, file: &Path) -> Result<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut lines = text.lines().map(str::trim).skip_while(|line| *line != format!("[{name}]"));
    if lines.next().is_none() {
        let what = format!("{} has no service \"{}\"", escape_path(file), escape(name.as_bytes()));
        return Err(Error::new(ErrorKind::InvalidInput, what, "check PGSERVICE, and PGSERVICEFILE"));
    }
    let own = lines.take_while(|line| !line.starts_with('[')).filter(|line| !line.starts_with('#'));
    let pairs = own.filter_map(|line| line.split_once('='));
    Ok(pairs.map(|(key, value)| (key.trim().to_string(), value.trim().to_string())).collect())
}

/// Returns the password of the first line `HOST:PORT:DATABASE:USER:PASSWORD` that matches. As in libpq, a file that
/// other users may read does not count.
fn password_of(file: &Path, wanted: &[&str; 4]) -> Option<String> {
    std::fs::metadata(file).ok().filter(|found| found.is_file() && found.mode() & 0o077 == 0)?;
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let (mut fields, mut characters) = (vec![String::new()], line.chars());
        while let Some(character) = characters.next() {
            match character {
                ':' if fields.len() < 5 => fields.push(String::new()),
                '\\' => fields.last_mut()?.extend(characters.next()),
                other => fields.last_mut()?.push(other),
            }
        }
        let matches = fields.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted);
        fields.pop().filter(|_| fields.len() == 4 && matches)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn settings(url: &str, variables: &[(&'static str, &str)]) -> Result<Settings> {
        let database = Database::parse(url.strip_prefix("postgres:").unwrap().as_bytes()).unwrap();
        let postgres = variables.iter().map(|(name, value)| (*name, value.to_string())).collect();
        Settings::new(&database, &Access { postgres, ..Access::default() }, 0)
    }

    #[test]
    fn what_the_url_omits_comes_from_the_environment() {
        let all = [("PGHOST", "other"), ("PGPORT", "6"), ("PGUSER", "u"), ("PGDATABASE", "d"), ("HOME", "/nowhere")];
        let seen = |url: &str, variables: &[(&'static str, &str)]| {
            let Settings { host, port, user, database, mode, .. } = settings(url, variables).unwrap();
            (format!("{user}@{host}:{port}/{database}"), mode)
        };
        assert_eq!(seen("postgres://", &all), ("u@other:6/d".to_string(), SslMode::Prefer));
        assert_eq!(seen("postgres://a%40b@[::1]:7/e", &all).0, "a@b@::1:7/e");
        assert!(settings("postgres://h", &[("PGCHANNELBINDING", "prefer")]).is_ok());
        assert_eq!(seen("postgres://h/e?sslmode=verify-full", &all), ("u@h:6/e".to_string(), SslMode::VerifyFull));
        assert_eq!(seen("postgres://%2Frun%2Fp", &all), ("u@/run/p:6/d".to_string(), SslMode::Disable));
        assert_eq!(seen("postgres:///", &[("HOME", "/nowhere"), ("PGUSER", "u")]).0, "u@/var/run/postgresql:5432/u");
        for wrong in [
            [("PGPORT", "x")],
            [("PGSSLMODE", "never")],
            [("PGSERVICE", "none")],
            [("PGCHANNELBINDING", "require")],
            [("PGREQUIREAUTH", "scram-sha-256")],
        ] {
            let error = settings("postgres://h", &wrong).err();
            assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::InvalidInput), "{wrong:?}");
        }
    }

    #[test]
    fn the_first_line_that_matches_has_the_password() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("pgpass");
        std::fs::write(&file, "# h:*:*:*:no\nh:1:d:u:o\\:n\\\\e\n*:*:*:u:a:b\nshort\n*:*:*:*:any\n").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        let of = |wanted: [&str; 4]| password_of(&file, &wanted);
        assert_eq!(of(["h", "1", "d", "u"]).as_deref(), Some("o:n\\e"));
        assert_eq!(of(["h", "2", "d", "u"]).as_deref(), Some("a:b"));
        assert_eq!(of(["h", "2", "d", "v"]).as_deref(), Some("any"));
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        assert_eq!(of(["h", "1", "d", "u"]), None);
    }
}
