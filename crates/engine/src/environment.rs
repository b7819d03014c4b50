//! The inputs of the process beside its arguments: only this module reads the environment.

#![expect(unsafe_code, reason = "exec needs the variables as the kernel has passed them")]

mod zone;

pub use zone::LocalZone;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, access, faccessat, geteuid};

use host::{home_of, homes};
use lock::duration::{parse_duration, parse_lease};
use lock::error::{Error, ErrorKind, Result};
use lock::history::{HistoryLimits, parse_size};
use lock::name::{escape, escape_path};
use store::{Location, Variables};

/// Default duration of leases that a keeper renews.
pub const LEASE: Duration = Duration::from_secs(60);

const STATE_OF_ROOT: &str = "/var/lib";

/// XDG Base Directory Specification.
const STATE_IN_HOME: &str = ".local/state";

/// Variables that describe a lock to the command under it. `run` does not set all of them for each lock.
const OF_A_LOCK: [&str; 7] = [
    "CSALOCK_NAME",
    "CSALOCK_STORE",
    "CSALOCK_OUTER_STORE",
    "CSALOCK_HANDLE",
    "CSALOCK_TOKEN",
    "CSALOCK_SLOT",
    "CSALOCK_OUTER",
];

/// `None` if the user chose no store. `CSALOCK_STORE` from `run` does not count, because other programs that lock the same
/// file do not inherit it: `run` passes the store that was chosen before on as `CSALOCK_OUTER_STORE`.
pub fn store_for_files() -> Option<OsString> {
    let store = variable("CSALOCK_STORE")?;
    if Location::is_inherited(&store) { variable("CSALOCK_OUTER_STORE") } else { Some(store) }
}

/// `path` is absolute. A command under the lock of a file uses the store of `run` for that file.
pub fn store_of_file(path: &[u8]) -> Option<OsString> {
    let is_own = variable("CSALOCK_NAME").is_some_and(|name| name.as_bytes() == path);
    if is_own { variable("CSALOCK_STORE") } else { store_for_files() }
}

/// File of the commit log, in builds for tests.
#[cfg(any(test, debug_assertions))]
pub(crate) fn trace() -> Option<PathBuf> {
    variable("CSALOCK_TRACE").map(PathBuf::from)
}

/// Offsets of the wall clock and of the times of files, in seconds. Builds for tests have these variables: each is a
/// sign and a duration.
#[cfg(any(test, debug_assertions))]
pub(crate) fn clock_offsets() -> [i64; 2] {
    ["CSALOCK_CLOCK", "CSALOCK_FILE_TIMES"].map(|name| {
        let text = variable(name).map_or_else(|| "+0".to_string(), |text| text.to_string_lossy().into_owned());
        let limit = lock::duration::parse_timeout(text.trim_start_matches(['+', '-'])).ok();
        let span = limit.and_then(|limit| limit.0).unwrap_or_else(|| panic!("{name}={text} is not an offset"));
        if text.starts_with('-') { -(span.as_secs() as i64) } else { span.as_secs() as i64 }
    })
}

/// Number of the pid namespace that counts as the kernel's first one, for tests in a container.
#[cfg(any(test, debug_assertions))]
pub(crate) fn first_pid_namespace() -> Option<u64> {
    variable("CSALOCK_FIRST_PIDS").and_then(|number| number.to_str()?.parse().ok())
}

/// The current environment, but these variables replace those of an outer lock.
pub fn block(variables: &[CString]) -> Vec<&CStr> {
    let sets = |entry: &[u8], name: &str| entry.strip_prefix(name.as_bytes()).is_some_and(|rest| rest[..1] == *b"=");
    let is_ours = |entry: &CStr| OF_A_LOCK.iter().any(|name| sets(entry.to_bytes_with_nul(), name));
    let mut block: Vec<&CStr> = inherited().filter(|entry| !is_ours(entry)).collect();
    block.extend(variables.iter().map(CString::as_c_str));
    block
}

pub fn all() -> Vec<&'static CStr> {
    inherited().collect()
}

pub fn path() -> OsString {
    raw("PATH").unwrap_or_else(|| "/bin:/usr/bin".into())
}

pub(crate) fn lease(variables: &Variables<'_>) -> Result<Duration> {
    let hint = |text: &str| match parse_duration(text) {
        Ok(_) => "make it longer, or unset it for 60s",
        Err(_) => "a lease takes three seconds at least; without the variable, 60s",
    };
    let parse = |text: &str| parse_lease(text).map_err(|why| (why, hint(text)));
    Ok(parsed(variables, "CSALOCK_LEASE", parse)?.unwrap_or(LEASE))
}

pub fn history() -> Result<HistoryLimits> {
    history_of(&variable)
}

pub(crate) fn history_of(variables: &Variables<'_>) -> Result<HistoryLimits> {
    let default = HistoryLimits::default();
    let size = parsed(variables, "CSALOCK_HISTORY_SIZE", |text| parse_size(text).map_err(set_right))?;
    let age = parsed(variables, "CSALOCK_HISTORY_AGE", |text| parse_duration(text).map_err(set_right))?;
    let limits = HistoryLimits { size: size.unwrap_or(default.size), age: age.unwrap_or(default.age) };
    Ok(if variables("CSALOCK_HISTORY").is_some_and(|kept| kept == "0") { limits.off() } else { limits })
}

/// No record and no history may then have the arguments of a command.
pub fn hides_commands() -> Result<bool> {
    let is_label = |text: &str| (text == "label").then_some(()).ok_or_else(|| set_right("is not \"label\"".into()));
    Ok(parsed(&variable, "CSALOCK_COMMAND", is_label)?.is_some())
}

/// Store for bare names if the user chose no store. A user without a home directory has none.
pub fn default_store() -> Result<Location> {
    static STATE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let state = STATE.get_or_init(|| match is_root() && !is_root_of_others() {
        true => Some(PathBuf::from(STATE_OF_ROOT)),
        false => absolute("XDG_STATE_HOME").or_else(state_in_home),
    });
    let state = state.as_ref().ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, "this user has no home directory", "name a store with --store")
    })?;
    Ok(default_store_in(state))
}

/// Store in which this user may write, for the record of a file that the kernel locks too: two calls may find different
/// stores. A user whose home directory is missing or another user's has one that ends with the session or with the boot;
/// `creates` permits to create it.
pub fn writable_store(creates: bool) -> Result<Location> {
    let user = geteuid();
    let session = PathBuf::from(format!("/run/user/{user}"));
    let is_usable = |store: &Location| store.path().is_some_and(may_write);
    let candidates = [default_store().ok(), session.is_dir().then(|| default_store_in(&session))];
    if let Some(store) = candidates.into_iter().flatten().find(is_usable) {
        return Ok(store);
    }
    let path = PathBuf::from(format!("/tmp/csalock-{user}"));
    if creates {
        // The check below finds the reason if it fails.
        let _ = std::fs::DirBuilder::new().mode(0o700).create(&path);
    }
    // Another user may have made it before.
    match std::fs::symlink_metadata(&path) {
        Ok(found) if !found.is_dir() || found.uid() != user.as_raw() || found.mode() & 0o077 != 0 => {
            let what = format!("{} is not a directory of user {user} alone", escape_path(&path));
            Err(Error::new(ErrorKind::Denied, what, "remove it, or name a store with --store"))
        }
        _ => Ok(Location::default_at(path)),
    }
}

/// This user may create `path` and write in it, as far as permissions decide that.
pub fn may_write(path: &Path) -> bool {
    let existing = path.ancestors().find(|path| path.exists()).unwrap_or(path);
    faccessat(AT_FDCWD, existing, AccessFlags::W_OK | AccessFlags::X_OK, AtFlags::AT_EACCESS).is_ok()
}

/// Default store of this user where XDG_STATE_HOME is not set, as in cron. `None` if that variable did not decide for
/// the store that is `used`.
pub fn store_without_xdg(used: &Location) -> Option<Location> {
    absolute("XDG_STATE_HOME").filter(|state| default_store_in(state) == *used)?;
    state_in_home().map(|state| default_store_in(&state)).filter(|other| other != used)
}

/// The stores of root and, if this is root, of all users, and further ones that `CSALOCK_STORES` names.
pub fn other_stores(current: &CurrentDirectory) -> Vec<Result<Location>> {
    let homes = if geteuid().is_root() { homes() } else { BTreeSet::new() };
    let states = homes.iter().map(|home| home.join(STATE_IN_HOME)).filter(|state| state.join("csalock").is_dir());
    let urls = variable("CSALOCK_STORES").unwrap_or_default();
    let urls = urls.as_bytes().split(u8::is_ascii_whitespace).filter(|url| !url.is_empty());
    let named = urls.map(|url| crate::location(OsStr::from_bytes(url), current));
    let states = std::iter::once(PathBuf::from(STATE_OF_ROOT)).chain(states);
    states.map(|state| Ok(default_store_in(&state))).chain(named).collect()
}

/// The value of this variable, `None` if it is not set. `parse` fails with the problem and the next step.
fn parsed<T>(
    variables: &Variables<'_>,
    name: &str,
    parse: impl Fn(&str) -> std::result::Result<T, (String, &'static str)>,
) -> Result<Option<T>> {
    let Some(text) = variables(name) else { return Ok(None) };
    parse(&text.to_string_lossy()).map(Some).map_err(|(why, hint)| {
        let what = format!("{name} is \"{}\", which {why}", escape(text.as_bytes()));
        Error::invalid(what, hint)
    })
}

fn set_right(why: String) -> (String, &'static str) {
    (why, "set it right, or unset it")
}

/// All rights of the user namespace at the start of the process. This makes no system call.
fn is_root() -> bool {
    // SAFETY: getauxval(3) only reads memory that the kernel has filled.
    unsafe { nix::libc::getauxval(nix::libc::AT_EUID) == 0 }
}

/// A user who is root only in a user namespace (`unshare -r`, rootless podman), and cannot reach root's store from there,
/// has the same store as outside of the namespace.
fn is_root_of_others() -> bool {
    const ALL: [&str; 3] = ["0", "0", "4294967295"];
    let may_write = |path: &Path| access(path, AccessFlags::W_OK);
    let root = Path::new(STATE_OF_ROOT);
    let tried = may_write(&root.join("csalock")).or_else(|errno| match errno {
        Errno::ENOENT => may_write(root),
        errno => Err(errno),
    });
    let is_mapped = |map: String| !map.split_whitespace().eq(ALL);
    matches!(tried, Err(Errno::EACCES | Errno::EPERM | Errno::EROFS))
        && std::fs::read_to_string("/proc/self/uid_map").is_ok_and(is_mapped)
}

/// The XDG specification ignores a relative path.
fn absolute(name: &str) -> Option<PathBuf> {
    variable(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// cron may leave HOME unset; the user database has the home directory too.
fn state_in_home() -> Option<PathBuf> {
    let home = absolute("HOME").or_else(|| home_of(geteuid().as_raw()))?;
    Some(home.join(STATE_IN_HOME))
}

fn default_store_in(state: &Path) -> Location {
    Location::default_at(state.join("csalock"))
}

/// `None` leaves colours to the output: <https://no-color.org>, <https://bixense.com/clicolors>.
pub fn colour() -> Option<bool> {
    if variable("NO_COLOR").is_some() {
        return Some(false);
    }
    let is_forced = variable("CLICOLOR_FORCE").is_some_and(|value| value != "0");
    let is_dumb = || variable("TERM").is_some_and(|kind| kind == "dumb");
    is_forced.then_some(true).or_else(|| is_dumb().then_some(false))
}

/// A terminal that can only print text, so that csalock draws nothing on it.
pub fn is_dumb_terminal() -> bool {
    variable("TERM").is_none_or(|kind| kind == "dumb")
}

/// An empty variable counts as unset.
pub fn variable(name: &str) -> Option<OsString> {
    raw(name).filter(|value| !value.is_empty())
}

/// The value may be empty.
#[expect(clippy::disallowed_methods, reason = "this is the seam")]
fn raw(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn inherited() -> impl Iterator<Item = &'static CStr> {
    // SAFETY: POSIX declares this variable.
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: the array ends with a null pointer, and csalock never changes a variable of its own process.
    (0..).map_while(|at| unsafe {
        let entry = if environ.is_null() { std::ptr::null() } else { *environ.add(at) };
        (!entry.is_null()).then(|| CStr::from_ptr(entry))
    })
}

/// Looked up when a relative path needs it: most calls have none.
#[derive(Default)]
pub struct CurrentDirectory(OnceLock<PathBuf>);

impl AsRef<Path> for CurrentDirectory {
    /// Empty if the directory was removed.
    fn as_ref(&self) -> &Path {
        self.0.get_or_init(|| std::env::current_dir().unwrap_or_default())
    }
}
