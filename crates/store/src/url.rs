//! Store URLs: `dir:PATH`, `sqlite:PATH`, `etcd://HOST:PORT,HOST:PORT/PREFIX`, `postgres://HOST:PORT/DATABASE`,
//! `ssh://HOST/PATH`. Each may end with `?lease=DURATION`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lock::duration::parse_lease;
use lock::error::{Error, ErrorKind, Result};
use lock::name::{absolute, escape};

use crate::ServerUrl;

/// End of a URL whose store other hosts use, although its file system does not look shared.
const SHARED: &[u8] = b"?shared=1";

/// Option for the length of renewed leases.
const LEASE: &[u8] = b"lease=";

/// Start of the path in a URL from `run`: it changes nothing in the path, and users do not type it.
const GIVEN: &[u8] = b"/./";

const BESIDE: &str = ".csalock";

const FORMS: &str = "use dir:PATH, sqlite:PATH, ssh://HOST/PATH, postgres://HOST/DATABASE, etcd://HOST/PREFIX or \
                     etcds://HOST/PREFIX";

/// Reads the part of a URL after the colon, or says what is wrong with it.
pub type ParseServer = fn(&[u8]) -> std::result::Result<Arc<dyn ServerUrl>, &'static str>;

/// A kind of store on servers: the scheme of its URLs and their reader, which is `None` if this program was built without it.
pub type ServerKind = (&'static str, Option<ParseServer>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    Directory {
        path: PathBuf,
        layout: Layout,
        /// True if other hosts use the store, although its file system does not look shared.
        shared: bool,
        lease: UrlLease,
    },
    Sqlite {
        path: PathBuf,
        lease: UrlLease,
    },
    Server(Arc<dyn ServerUrl>, UrlLease),
}

/// Length of renewed leases, as typed in a URL. All are equal: a store with the option is the same store without it.
#[derive(Debug, Clone, Default)]
pub struct UrlLease(Option<(String, Duration)>);

impl UrlLease {
    fn parse(typed: &[u8], url: &[u8]) -> Result<UrlLease> {
        let typed = String::from_utf8_lossy(typed);
        let span = parse_lease(&typed).map_err(|why| {
            let lease = escape(typed.as_bytes());
            let what = format!("store {}: its lease is \"{lease}\", which {why}", public_part(url));
            let hint = "a lease takes three seconds at least; without the option, $CSALOCK_LEASE or 60s";
            Error::new(ErrorKind::InvalidInput, what, hint)
        })?;
        Ok(UrlLease(Some((typed.to_string(), span))))
    }
}

impl PartialEq for UrlLease {
    fn eq(&self, _: &UrlLease) -> bool {
        true
    }
}

impl Eq for UrlLease {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// A separate store, which stays when it is empty and keeps the highest token.
    Own,
    /// A store that `csalock serve` serves: like `Own`, but with the mark for other hosts.
    Served,
    /// A default store: like `Own`, but missing parent directories are created.
    Default,
    /// `.csalock` next to the files that it locks: created with the mode and group of their directory, and removed with
    /// its last record.
    Beside,
}

impl Location {
    pub fn beside(directory: &Path) -> Location {
        let lease = UrlLease::default();
        Location::Directory { path: directory.join(BESIDE), layout: Layout::Beside, shared: false, lease }
    }

    pub fn default_at(path: PathBuf) -> Location {
        Location::Directory { path, layout: Layout::Default, shared: false, lease: UrlLease::default() }
    }

    /// Length of the leases that its holders renew, if the URL says it.
    pub fn lease(&self) -> Option<Duration> {
        self.url_lease().0.as_ref().map(|(_, span)| *span)
    }

    fn url_lease(&self) -> &UrlLease {
        match self {
            Location::Directory { lease, .. } | Location::Sqlite { lease, .. } | Location::Server(_, lease) => lease,
        }
    }

    /// A store next to the files that it locks keeps no history.
    pub fn is_beside(&self) -> bool {
        matches!(self, Location::Directory { layout: Layout::Beside, .. })
    }

    pub fn directory_of_files(&self) -> Option<&Path> {
        self.path().filter(|_| self.is_beside())?.parent()
    }

    /// `None` for a store on a server.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Location::Directory { path, .. } | Location::Sqlite { path, .. } => Some(path),
            _ => None,
        }
    }

    pub(crate) fn moved_to(&self, to: PathBuf) -> Location {
        let mut moved = self.clone();
        if let Location::Directory { path, .. } | Location::Sqlite { path, .. } = &mut moved {
            *path = to;
        }
        moved
    }

    pub fn is_missing(&self) -> bool {
        self.path().is_some_and(|path| !path.exists())
    }

    pub(crate) fn was_used(&self) -> bool {
        match self {
            Location::Directory { path, layout: Layout::Beside, .. } => path.exists(),
            Location::Directory { path, .. } => path.join(".work").exists(),
            Location::Sqlite { path, .. } => std::fs::symlink_metadata(path).is_ok_and(|found| found.len() > 0),
            _ => true,
        }
    }

    /// A plain path with a slash in it is a directory. Relative paths start at `current`.
    pub fn parse(url: &OsStr, current: impl AsRef<Path>, servers: &[ServerKind]) -> Result<Location> {
        let bytes = url.as_bytes();
        let refused = |what: String, hint: &str| Error::new(ErrorKind::InvalidInput, what, hint);
        let wrong = |what: &str| refused(format!("store {}: {what}", public_part(bytes)), FORMS);
        if bytes.is_empty() {
            return Err(refused("the URL of the store is empty".to_string(), "use dir:PATH, or another URL"));
        }
        let (scheme, path) = match bytes.iter().position(|byte| *byte == b':') {
            Some(colon) if !bytes[..colon].contains(&b'/') => (&bytes[..colon], &bytes[colon + 1..]),
            _ if looks_like_login(bytes) => return Err(wrong("no store has such a URL")),
            _ if bytes.contains(&b'/') => (&b"dir"[..], bytes),
            _ => {
                let url = escape(bytes);
                let hint = format!("for a directory, use dir:{url} or ./{url}");
                return Err(refused(format!("store {url}: no store has such a URL"), &hint));
            }
        };
        let (path, lease) = split_lease(path);
        let lease = lease.map_or(Ok(UrlLease::default()), |typed| UrlLease::parse(typed, bytes))?;
        let (path, shared) = match path.strip_suffix(SHARED) {
            Some(path) if scheme == b"dir" => (path, true),
            _ => (&path[..], false),
        };
        if path.is_empty() {
            return Err(wrong("its path is missing"));
        }
        if path.contains(&0) {
            return Err(wrong("a path cannot contain NUL"));
        }
        match servers.iter().find(|(known, _)| known.as_bytes() == scheme) {
            Some((_, Some(parse))) => return parse(path).map(|server| Location::Server(server, lease)).map_err(wrong),
            Some((known, None)) => {
                let what = format!("store {}: this csalock was built without {known}", public_part(bytes));
                let hint = "use a csalock that has it; csalock -V -v lists the stores of this one";
                return Err(Error::new(ErrorKind::Unavailable, what, hint));
            }
            None => {}
        }
        if bytes.starts_with(&[scheme, b":"].concat()) && path.contains(&b'?') {
            return Err(wrong(match scheme {
                b"dir" => "the options of a directory are ?shared=1 and ?lease=DURATION",
                b"sqlite" => "its only option is ?lease=DURATION",
                _ => "it has no options",
            }));
        }
        let path = if path.starts_with(GIVEN) { &path[GIVEN.len() - 1..] } else { path };
        let path = absolute(OsStr::from_bytes(path), current)?;
        let layout = if path.ends_with(BESIDE) { Layout::Beside } else { Layout::Own };
        match scheme {
            b"dir" => Ok(Location::Directory { path, layout, shared, lease }),
            b"sqlite" => Ok(Location::Sqlite { path, lease }),
            _ => Err(wrong("no store has such a URL")),
        }
    }

    /// For a command that runs under a lock in this store.
    pub fn inherited_url(&self) -> OsString {
        let mut url = self.url().into_vec();
        let at = path_at(&url);
        url.splice(at..at, GIVEN[..GIVEN.len() - 1].iter().copied());
        OsString::from_vec(url)
    }

    pub fn is_inherited(url: &OsStr) -> bool {
        let (before, path) = url.as_bytes().split_at(path_at(url.as_bytes()));
        // An inherited URL has an absolute path.
        path.starts_with(GIVEN) && (servers_at(before).is_some() || [&b""[..], b"dir:", b"sqlite:"].contains(&before))
    }

    pub fn url(&self) -> OsString {
        let mut url = self.place();
        if let Some((typed, _)) = &self.url_lease().0 {
            let mark = if url.as_bytes().contains(&b'?') { "&" } else { "?" };
            url.push(format!("{mark}lease={typed}"));
        }
        url
    }

    /// The URL without its lease: a store has the same place for all callers.
    pub fn place(&self) -> OsString {
        let (scheme, path, shared) = match self {
            // After `dir:` a question mark begins an option; in a plain path it is an ordinary character.
            Location::Directory { path, shared, .. } if path.as_os_str().as_bytes().contains(&b'?') => {
                ("", path, *shared)
            }
            Location::Directory { path, shared, .. } => ("dir:", path, *shared),
            Location::Sqlite { path, .. } => ("sqlite:", path, false),
            Location::Server(server, _) => return server.url().into(),
        };
        let shared = if shared { SHARED } else { b"" };
        OsString::from_vec([scheme.as_bytes(), path.as_os_str().as_bytes(), shared].concat())
    }
}

/// Takes `lease=DURATION` out of the options at the end of a URL. A word with a slash in it belongs to a path.
fn split_lease(url: &[u8]) -> (Vec<u8>, Option<&[u8]>) {
    let (place, options) = url.split_at(url.iter().rposition(|byte| *byte == b'?').unwrap_or(url.len()));
    let mut options: Vec<&[u8]> = options.split(|byte| b"?&".contains(byte)).skip(1).collect();
    let is_lease = |option: &&[u8]| option.starts_with(LEASE) && !option.contains(&b'/');
    let Some(at) = options.iter().position(is_lease) else { return (url.to_vec(), None) };
    let lease = &options.remove(at)[LEASE.len()..];
    let mark: &[u8] = if options.is_empty() { b"" } else { b"?" };
    ([place, mark, &options.join(&b'&')].concat(), Some(lease))
}

/// Returns a refused URL for messages, which cron and logs keep: without its user, its options, and all that comes after
/// an equals sign, which may contain a password, even if the URL lacks slashes or is a list of settings.
fn public_part(url: &[u8]) -> String {
    let scheme = url.iter().position(|byte| !byte.is_ascii_alphanumeric()).filter(|at| url[*at] == b':');
    let at = scheme.map_or(0, |colon| colon + if url[colon..].starts_with(b"://") { 3 } else { 1 });
    if [&b"dir:"[..], b"sqlite:"].contains(&&url[..at]) {
        return escape(url);
    }
    let end = url[at..].iter().position(|byte| b"?#=".contains(byte)).map_or(url.len(), |length| at + length);
    if url[end..].contains(&b'@') {
        return format!("{}...", escape(&url[..at]));
    }
    // A password may contain a slash, too.
    let from = url[at..end].iter().rposition(|byte| *byte == b'@').map_or(at, |user| at + user + 1);
    let user = if from > at { "...@" } else { "" };
    let options = if end < url.len() { "?..." } else { "" };
    format!("{}{user}{}{options}", escape(&url[..at]), escape(&url[from..end]))
}

/// Text that is probably a URL without its scheme or colon, or a list of libpq's settings.
fn looks_like_login(path: &[u8]) -> bool {
    let has = |part: &[u8]| path.windows(part.len()).any(|window| window == part);
    (has(b"@") && (has(b"//") || !has(b"/"))) || has(b"password=")
}

fn path_at(url: &[u8]) -> usize {
    let from = servers_at(url).unwrap_or_default();
    url[from..].iter().position(|byte| *byte == b'/').map_or(url.len(), |at| from + at)
}

/// Index of the server list in a URL. A path may begin with slashes, too.
fn servers_at(url: &[u8]) -> Option<usize> {
    let colon = url.iter().position(|byte| !byte.is_ascii_alphanumeric())?;
    let is_path = [&b"dir"[..], b"sqlite"].contains(&&url[..colon]);
    (!is_path && url[colon..].starts_with(b"://")).then_some(colon + 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Location> {
        Location::parse(OsStr::new(url), Path::new("/here"), &[])
    }

    #[test]
    fn every_form_and_its_way_back() {
        let lease = UrlLease::default();
        let directory = |path: &str, shared| Location::Directory {
            path: path.into(),
            layout: Layout::Own,
            shared,
            lease: UrlLease::default(),
        };
        assert_eq!(parse("dir:/a b"), Ok(directory("/a b", false)));
        assert_eq!(parse("dir:x"), Ok(directory("/here/x", false)));
        assert_eq!(parse("./x:y"), Ok(directory("/here/./x:y", false)));
        assert_eq!(parse("sqlite:/db"), Ok(Location::Sqlite { path: "/db".into(), lease }));
        assert_eq!(directory("/a b", false).url(), "dir:/a b");
        let shared = directory("/a", true);
        assert_eq!(parse("dir:/a?shared=1"), Ok(shared.clone()));
        assert_eq!(shared.url(), "dir:/a?shared=1");
        for odd in ["/a?b", "/what?/.csalock", "/a?shared=1x", "/a?b?shared=1"] {
            let meant = parse(odd).unwrap();
            assert_eq!(parse(meant.url().to_str().unwrap()), Ok(meant), "{odd}");
        }
    }

    #[test]
    fn a_lease_is_an_option_and_no_part_of_the_place() {
        let minutes = Some(Duration::from_secs(180));
        for (typed, place, url, lease) in [
            ("dir:/a?lease=3m", "dir:/a", "dir:/a?lease=3m", minutes),
            ("dir:/a?shared=1&lease=180s", "dir:/a?shared=1", "dir:/a?shared=1&lease=180s", minutes),
            ("dir:/a?lease=3m&shared=1", "dir:/a?shared=1", "dir:/a?shared=1&lease=3m", minutes),
            ("sqlite:/a?lease=3m", "sqlite:/a", "sqlite:/a?lease=3m", minutes),
            ("/a?b?lease=3m", "/a?b", "/a?b&lease=3m", minutes),
            ("/what?lease=3m/x", "/what?lease=3m/x", "/what?lease=3m/x", None),
        ] {
            let location = parse(typed).unwrap();
            assert_eq!((location.place(), location.url(), location.lease()), (place.into(), url.into(), lease));
            let inherited = parse(location.inherited_url().to_str().unwrap()).unwrap();
            assert_eq!((&inherited, inherited.lease()), (&location, lease), "{typed}");
            // Another caller of the store may have another lease, or none.
            let both = [parse(place).unwrap(), location];
            assert_eq!(both[0], both[1], "{typed}");
            assert_eq!(crate::in_order(both.to_vec()).iter().map(Vec::len).collect::<Vec<_>>(), [1], "{typed}");
        }
    }

    #[test]
    fn a_kind_that_is_not_built_in_is_unavailable_and_the_password_is_not_shown() {
        let refused = Location::parse(OsStr::new("etcd://u:sEcReT@h/p"), Path::new("/here"), &[("etcd", None)]);
        let error = refused.unwrap_err();
        let shown = "store etcd://...@h/p: this csalock was built without etcd";
        assert_eq!((error.kind(), error.message()), (ErrorKind::Unavailable, shown));
    }
}
