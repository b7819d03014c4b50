//! `csaLock FILE...` and `csaUnlock FILE...`: the program under the names of CSA's functions, for scripts that call
//! them. `csaLock` locks the file for the calling script, prints nothing unless it fails, and its lock ends with the
//! script. `$CSALOCK_TIMEOUT` holds the timeout in the format of `-w`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::context::{Context, print};
use super::lock::ForScript;
use super::unlock;
use crate::cli::{Common, Taking, Unlock, Waiting};
use crate::exit::Exit;
use crate::report::SettingNames;
use ::lock::duration::{Limit, parse_timeout};
use ::lock::error::{Error, Result};
use ::lock::name::{is_plain_path, shell_quote};
use engine::environment;

const HELP: &str = "\
csaLock FILE... acquires the locks of the files for the calling script, and waits
for them up to $CSALOCK_TIMEOUT (30s, or 75s where other hosts use the directory).
csaUnlock FILE... releases them; so does the end of the script.
Exit codes: 0 done, 64 usage, 75 busy, 81 not held, 82 another holder's, 84 deadlock,
85 lost. Manual: man csaLock. Status: csalock status FILE
";

pub(super) fn run(function: &str, files: Vec<OsString>) -> anyhow::Result<Exit> {
    if let [option] = files.as_slice()
        && (option == "--help" || option == "-h")
    {
        print(HELP)?;
        return Ok(Exit::Done);
    }
    let mut context = Context::new(Common::default());
    context.settings = &SettingNames::VARIABLES;
    let context = &context;
    let names = paths(function, files)?;
    match function {
        "csaLock" => {
            let timeout = environment::variable("CSALOCK_TIMEOUT").as_deref().map(timeout).transpose()?;
            let waiting = Waiting { timeout, ..Waiting::default() };
            let (taking, targets) = (&Taking { waiting, ..Taking::default() }, &context.lock_set(&names)?);
            // The function knows no options, so it prints nothing unless it fails.
            ForScript { context, taking, pid: None, targets, prints: false }.acquire(|_| Ok(Exit::Done))
        }
        _ => unlock::run(context, &Unlock { names, ..Unlock::default() }),
    }
    .map_err(|error| match error.downcast_ref::<Error>() {
        // CSA's functions have no options.
        Some(known) if known.hint().contains("--store") => {
            let cure = known.hint().replace("--store", "CSALOCK_STORE");
            Error::new(known.kind(), known.message(), cure).into()
        }
        _ => error,
    })
}

fn timeout(text: &OsStr) -> Result<Limit> {
    parse_timeout(&text.to_string_lossy())
        .map_err(|why| Error::invalid(format!("CSALOCK_TIMEOUT: {} {why}", shell_quote(text.as_bytes())), ""))
}

/// All arguments are files, even without a slash.
fn paths(function: &str, mut files: Vec<OsString>) -> Result<Vec<OsString>> {
    if files.first().is_some_and(|first| first == "--") {
        files.remove(0);
    } else if let Some(option) = files.iter().find(|file| file.as_bytes().starts_with(b"-")) {
        let what = format!("{function}: unknown option {}", shell_quote(option.as_bytes()));
        let cure = format!("for files that begin with a dash, use: {function} -- FILE...");
        return Err(Error::invalid(what, cure));
    }
    if files.is_empty() {
        return Err(Error::invalid(format!("{function}: FILE is missing"), format!("use: {function} FILE...")));
    }
    Ok(files.into_iter().map(path).collect())
}

/// The file as a name that means it.
pub(super) fn path(file: OsString) -> OsString {
    match file.as_bytes() {
        b"" => file,
        bytes if is_plain_path(bytes) => file,
        _ => [OsStr::new("./"), &file].into_iter().collect(),
    }
}
