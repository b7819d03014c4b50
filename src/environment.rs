//! What the process was given beside its arguments: the one place that reads the environment.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use nix::unistd::{Uid, User};

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::store::{Layout, Location};

/// Variables, current directory and user, as they were at the start.
#[derive(Debug, Clone)]
pub struct Environment {
    /// `CSALOCK_STORE`
    pub store: Option<OsString>,
    /// `CSALOCK_HANDLE`
    pub handle: Option<OsString>,
    /// Where the default store of this user is, or would be.
    state: Option<PathBuf>,
    /// The current directory.
    pub current: PathBuf,
}

impl Environment {
    /// That of this process.
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    pub fn of_this_process() -> Environment {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let absolute = |name| set(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = if Uid::effective().is_root() {
            Some(PathBuf::from("/var/lib"))
        } else {
            // cron may leave HOME unset; the user database knows it then.
            let known = || User::from_uid(Uid::effective()).ok().flatten().map(|user| user.dir);
            absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").or_else(known).map(|home| home.join(".local/state")))
        };
        Environment {
            store: set("CSALOCK_STORE"),
            handle: set("CSALOCK_HANDLE"),
            state,
            current: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
        }
    }

    /// The environment of a command: ours, with these variables set.
    pub fn block(variables: &[(&str, OsString)]) -> Vec<CString> {
        let inherited = std::env::vars_os().filter(|(name, _)| variables.iter().all(|(set, _)| name != set));
        let added = variables.iter().map(|(name, value)| (OsString::from(name), value.clone()));
        let pair = |(name, value): (OsString, OsString)| {
            CString::new([name.into_vec(), b"=".to_vec(), value.into_vec()].concat()).ok()
        };
        inherited.chain(added).filter_map(pair).collect()
    }

    /// Where programs are looked for.
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    pub fn path() -> OsString {
        std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into())
    }

    /// The store for bare names where none was chosen.
    ///
    /// # Errors
    ///
    /// When this user has no home.
    pub fn default_store(&self) -> Result<Location> {
        let state = self.state.as_ref().ok_or_else(|| {
            Error::new(Exit::Unreachable, "this user has no home directory", "name a store with --store")
        })?;
        Ok(Location::Directory { path: state.join("csalock"), layout: Layout::Default })
    }
}

/// Whether the user wants no colours: <https://no-color.org>.
#[expect(clippy::disallowed_methods, reason = "this is the seam")]
pub fn no_colour() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}
