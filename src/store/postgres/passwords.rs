//! Files of libpq: services, and passwords.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::options::is_known;
use crate::error::{Error, ErrorKind, Result};
use crate::name::{escape, escape_path};
use crate::store::Secret;

/// Returns the settings of a service, which is in the first of these files that has it.
/// Fails without the service, and if csalock does not know one of its lines.
pub(super) fn service(name: &str, files: &[PathBuf]) -> Result<BTreeMap<String, String>> {
    for file in files {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let mut lines = text.lines().map(str::trim).skip_while(|line| *line != format!("[{name}]"));
        if lines.next().is_some() {
            return lines
                .take_while(|line| !line.starts_with('['))
                .filter(|line| !line.is_empty() && !line.starts_with('#'))
                .map(|line| setting(line).ok_or_else(|| unknown(file, name, line)))
                .collect();
        }
    }
    let files: Vec<String> = files.iter().map(|file| escape_path(file)).collect();
    let what = format!("no service \"{}\" in {}", escape(name.as_bytes()), files.join(" or "));
    Err(Error::new(ErrorKind::InvalidInput, what, "check PGSERVICE, and PGSERVICEFILE"))
}

/// Returns key and value of a line. A service cannot name another one.
fn setting(line: &str) -> Option<(String, String)> {
    let (key, value) = line.split_once('=')?;
    let key = key.trim();
    (is_known(key) && !key.starts_with("service")).then(|| (key.to_string(), value.trim().to_string()))
}

fn unknown(file: &Path, name: &str, line: &str) -> Error {
    // The value may be a password.
    let key = escape(line.split('=').next().unwrap_or_default().trim().as_bytes());
    let what = format!("{}: service \"{}\": unknown setting \"{key}\"", escape_path(file), escape(name.as_bytes()));
    Error::new(ErrorKind::InvalidInput, what, "correct or remove that line")
}

/// Returns the password of the first line `HOST:PORT:DATABASE:USER:PASSWORD` that matches, or the reason why there is none.
/// As in libpq, a file that other users may read does not count.
pub(super) fn password_of(file: &Path, wanted: &[&str; 4]) -> std::result::Result<Secret, String> {
    let none = || "none is known".to_string();
    let found = std::fs::metadata(file).map_err(|_| none())?;
    if found.is_file() && found.mode() & 0o077 != 0 {
        let (file, mode) = (escape_path(file), found.mode() & 0o777);
        return Err(format!("{file} is not read, because other users may read it (mode {mode:04o}; use chmod 600)"));
    }
    let text = std::fs::read_to_string(file).map_err(|_| none())?;
    let password = text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
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
    });
    password.map(Secret::from).ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_line_that_matches_has_the_password() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("pgpass");
        std::fs::write(&file, "# h:*:*:*:no\nh:1:d:u:o\\:n\\\\e\n*:*:*:u:a:b\nshort\n*:*:*:*:any\n").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        let of = |wanted: [&str; 4]| password_of(&file, &wanted).map(|password| password.expose().to_string());
        assert_eq!(of(["h", "1", "d", "u"]).as_deref(), Ok("o:n\\e"));
        assert_eq!(of(["h", "2", "d", "u"]).as_deref(), Ok("a:b"));
        assert_eq!(of(["h", "2", "d", "v"]).as_deref(), Ok("any"));
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        assert!(of(["h", "1", "d", "u"]).unwrap_err().ends_with("(mode 0640; use chmod 600)"));
        assert_eq!(password_of(&place.path().join("none"), &["", "", "", ""]), Err("none is known".to_string()));
    }

    #[test]
    fn a_service_has_only_settings_that_csalock_knows() {
        let place = tempfile::tempdir().unwrap();
        let files = [place.path().join("own"), place.path().join("system")];
        std::fs::write(&files[0], "[a]\nhost = h\n# comment\n\nport=1\n[b]\ncolour=red\n[c]\nservice=a\n").unwrap();
        std::fs::write(&files[1], "[a]\nhost=other\n[d]\nldap://h/d\n[e]\nuser=u\n").unwrap();
        let of = |name: &str| service(name, &files).map(|found| found.into_iter().collect::<Vec<_>>());
        let pair = |key: &str, value: &str| (key.to_string(), value.to_string());
        assert_eq!(of("a"), Ok(vec![pair("host", "h"), pair("port", "1")]));
        assert_eq!(of("e"), Ok(vec![pair("user", "u")]));
        for (name, said) in [("b", "\"colour\""), ("c", "\"service\""), ("d", "\"ldap://h/d\""), ("x", "no service")] {
            let error = of(name).unwrap_err();
            assert!(error.kind() == ErrorKind::InvalidInput && error.message().contains(said), "{error}");
        }
    }
}
