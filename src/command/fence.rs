//! `csalock fence`

mod content;

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::Context as _;

use super::context::{Context, eprint_line, print, print_json};
use crate::cli;
use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::fence::{Draft, Fence, Place, Replacement};
use crate::name::{self, escape, escape_path};
use crate::report::{RefusalReport, json};
use crate::signals::Signals;
use crate::store::{Location, refuse_file_mounted_alone};

pub(super) fn run(context: &Context, asked: &cli::Fence) -> anyhow::Result<Exit> {
    if asked.common.store.is_some() {
        let what = "--store cannot be used with fence: the newest token is kept beside the file";
        return Err(Error::new(ErrorKind::InvalidInput, what, "leave it out").into());
    }
    let token = if asked.show { 0 } else { token(asked.token)? };
    let path = path(context, asked)?;
    // No file can be renamed to a mount, so no write could be completed.
    refuse_file_mounted_alone(&path)
        .map_err(|error| Error::new(error.kind(), error.message(), "mount the directory"))?;
    let place = Place::open(path)?;
    let engine = context.engine(&Location::beside(place.folder()))?;
    let fence = Fence::new(&engine, &place);
    if asked.show {
        return show(context, asked, &fence, &place);
    }
    // A command whose output would be refused does not run.
    if let Some(newest) = fence.refusal(token)? {
        return refuse(asked, &place, token, newest);
    }
    let signals = Signals::listen(context.inherited)?;
    let mut draft = Draft::create(&place, context.host.as_ref())?;
    let exit = content::read(context, &asked.command, &signals, &mut draft)?;
    if exit != Exit::Done {
        return Ok(exit);
    }
    let bytes = draft.bytes();
    match fence.replace(draft, token)? {
        Replacement::FencedOff(newest) => refuse(asked, &place, token, newest),
        Replacement::Done(before) => {
            told(asked, &place, token, before, bytes).context("the file was replaced")?;
            Ok(Exit::Done)
        }
    }
}

/// Returns the path of the file, whose symbolic links are followed.
fn path(context: &Context, asked: &cli::Fence) -> Result<PathBuf> {
    if asked.file.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, "the name of a file is not empty", "name the file to replace"));
    }
    if asked.file.as_bytes().ends_with(b"/") {
        let what = format!("{} names a directory", escape(asked.file.as_bytes()));
        return Err(Error::new(ErrorKind::InvalidInput, what, "only a regular file can be replaced; name one"));
    }
    name::file_of(asked.file.as_bytes(), &context.environment.current).map_err(|error| match error.kind() {
        ErrorKind::Unavailable => {
            Error::new(error.kind(), error.message(), "create its directory, or name another file")
        }
        _ => error,
    })
}

/// Returns the token of the option, or else that of the lock that this process runs under.
fn token(option: Option<u64>) -> Result<u64> {
    if let Some(token) = option {
        return Ok(token);
    }
    let hint = "run it under `csalock run`, which sets CSALOCK_TOKEN, or use --token N";
    let Some(text) = Environment::token() else {
        return Err(Error::new(ErrorKind::InvalidInput, "fence: there is no token", hint));
    };
    let token = text.to_str().and_then(|text| text.parse().ok()).filter(|token| *token > 0);
    token.ok_or_else(|| {
        let what = format!("CSALOCK_TOKEN is \"{}\", which is not a token", escape(text.as_bytes()));
        Error::new(ErrorKind::InvalidInput, what, hint)
    })
}

fn show(context: &Context, asked: &cli::Fence, fence: &Fence<'_>, place: &Place) -> anyhow::Result<Exit> {
    context.require_stdout("the token", "send it somewhere")?;
    let file = place.path().as_os_str().as_bytes();
    let Some(newest) = fence.inspect()? else {
        let what = format!("{} has no token", escape_path(place.path()));
        let refusal = RefusalReport::new(ErrorKind::NotHeld, what, "`csalock fence` has not written it").about(file);
        return asked.common.refuse(&refusal, refusal.kind, None);
    };
    if asked.common.json {
        print_json(&json::newest_token(file, newest.token, newest.published))?;
        return Ok(Exit::Done);
    }
    print(format!("{}\n", newest.token))?;
    if !newest.published {
        asked.common.note(&format!(
            "{}: the writer with token {} ended half-way; the next `csalock fence` completes its write",
            escape_path(place.path()),
            newest.token
        ));
    }
    Ok(Exit::Done)
}

fn told(asked: &cli::Fence, place: &Place, token: u64, before: u64, bytes: u64) -> anyhow::Result<()> {
    let before = (before > 0).then_some(before);
    if asked.common.json {
        print_json(&json::fenced(place.path().as_os_str().as_bytes(), token, before, bytes))?;
    } else if asked.common.verbose {
        let before = before.map_or("none".to_string(), |before| before.to_string());
        let file = escape_path(place.path());
        eprint_line(&format!("{file} is replaced: {bytes} bytes, token {token}, token before {before}"));
    }
    Ok(())
}

fn refuse(asked: &cli::Fence, place: &Place, token: u64, newest: u64) -> anyhow::Result<Exit> {
    let what = format!("{} is fenced off: token {token} is older than token {newest}", escape_path(place.path()));
    let hint = "a later holder of the lock has written it, so end this job";
    let refusal = RefusalReport::new(ErrorKind::FencedOff, what, hint).about(place.path().as_os_str().as_bytes());
    asked.common.refuse(&refusal, refusal.kind, None)
}
