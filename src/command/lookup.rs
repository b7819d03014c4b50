//! `csalock lookup`

use std::ffi::OsStr;

use super::claim::given_id;
use super::context::{Context, print, print_json};
use crate::cli::{Common, Lookup};
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::name::escape;
use crate::report::{RefusalReport, json, name_and_store};

pub(super) fn run(context: &Context, asked: &Lookup) -> anyhow::Result<Exit> {
    match (&asked.id, &asked.name) {
        (Some(id), _) => tell_names(context, asked, &given_id(id)?),
        (None, Some(name)) => id_of(context, asked, name),
        (None, None) => unreachable!("clap requires one of them"),
    }
}

fn id_of(context: &Context, asked: &Lookup, name: &OsStr) -> anyhow::Result<Exit> {
    let target = context.target(&asked.common, name)?;
    let claim = context.engine(&target.location)?.claim_of(&target.name)?;
    let Some(id) = claim.and_then(|grant| grant.claim) else {
        let message = format!("{} is not claimed", name_and_store(&target));
        let refusal = RefusalReport::new(ErrorKind::NotHeld, message, "").about(&target.display_name);
        return asked.common.refuse(&refusal, refusal.kind, None);
    };
    if asked.common.json {
        print_json(&json::id_of(&target.display_name, &id))?;
    } else {
        print([&id, b"\n".as_slice()].concat())?;
    }
    Ok(Exit::Done)
}

fn tell_names(context: &Context, asked: &Lookup, id: &[u8]) -> anyhow::Result<Exit> {
    let (names, unreadable) = names_of(context, &asked.common, id)?;
    let exit = match unreadable.last() {
        Some(error) => Exit::from(error.kind()),
        None if names.is_empty() => ErrorKind::NotHeld.into(),
        None => Exit::Done,
    };
    match (asked.common.json, unreadable.last()) {
        (true, Some(error)) if names.is_empty() => {
            return asked.common.refuse(&RefusalReport::from(error), exit, None);
        }
        (true, _) if !names.is_empty() => print_json(&json::names_of(id, &names, &unreadable))?,
        _ => names.iter().try_for_each(|name| print(format!("{}\n", escape(name))))?,
    }
    if names.is_empty() {
        return asked.common.refuse(&nothing_claimed(id), exit, None);
    }
    Ok(exit)
}

pub(super) fn nothing_claimed(id: &[u8]) -> RefusalReport {
    RefusalReport::new(ErrorKind::NotHeld, format!("nothing is claimed under id {}", escape(id)), "")
}

/// Returns the names of an id in the store, in order, and the errors of unreadable records, which it reports to people.
/// The function reads all records, because a separate list could be wrong.
pub(super) fn names_of(context: &Context, common: &Common, id: &[u8]) -> Result<(Vec<Vec<u8>>, Vec<Error>)> {
    let engine = context.engine(&context.store(common)?)?;
    let mut names = Vec::new();
    let mut unreadable = Vec::new();
    engine.for_each_lock(&mut |status| {
        match status {
            Ok(status) if engine.claim_in(&status).is_some_and(|grant| grant.claim.as_deref() == Some(id)) => {
                names.push(status.record.name);
            }
            Ok(_) => {}
            Err(error) => {
                common.note_unless_json(&format!("passed over: {error}"));
                unreadable.push(error);
            }
        }
        Ok(())
    })?;
    names.sort();
    Ok((names, unreadable))
}
