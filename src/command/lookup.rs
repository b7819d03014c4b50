//! `csalock lookup`

use std::ffi::OsStr;

use super::claim::given_id;
use super::context::{Context, print, print_json};
use crate::cli::{Common, Lookup};
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::name::escape;
use crate::report::LookupJson;

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
        asked.common.note(&format!("{} is not claimed", escape(&target.display_name)));
        return Ok(ErrorKind::NotHeld.into());
    };
    if asked.common.json {
        print_json(&LookupJson::of_name(&target.display_name, &id))?;
    } else {
        print([&id, b"\n".as_slice()].concat())?;
    }
    Ok(Exit::Done)
}

fn tell_names(context: &Context, asked: &Lookup, id: &[u8]) -> anyhow::Result<Exit> {
    let (names, unreadable) = names_of(context, &asked.common, id)?;
    if asked.common.json && !names.is_empty() {
        print_json(&LookupJson::of_id(id, &names))?;
    } else {
        names.iter().try_for_each(|name| print(format!("{}\n", escape(name))))?;
    }
    if names.is_empty() {
        asked.common.note(&format!("nothing is claimed under id {}", escape(id)));
    }
    Ok(match unreadable {
        Some(error) => Exit::from(error.kind()),
        None if names.is_empty() => ErrorKind::NotHeld.into(),
        None => Exit::Done,
    })
}

/// Returns the names of an id in the store, in order, and the error of an unreadable record, if any. The function reads
/// all records, because a separate list could be wrong.
pub(super) fn names_of(context: &Context, common: &Common, id: &[u8]) -> Result<(Vec<Vec<u8>>, Option<Error>)> {
    let engine = context.engine(&context.store(common)?)?;
    let mut names = Vec::new();
    let mut unreadable: Option<Error> = None;
    engine.for_each_lock(&mut |status| {
        match status {
            Ok(status) if engine.claim_in(&status).is_some_and(|grant| grant.claim.as_deref() == Some(id)) => {
                names.push(status.record.name);
            }
            Ok(_) => {}
            Err(error) => {
                common.note(&format!("passed over: {error}"));
                unreadable = Some(error);
            }
        }
        Ok(())
    })?;
    names.sort();
    Ok((names, unreadable))
}
