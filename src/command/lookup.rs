//! `csalock lookup`

use super::claim::given_id;
use super::world::{World, print, print_bytes, print_json, the_one};
use crate::cli::{Common, Lookup};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::name::shown;
use crate::report::LookupJson;

pub(super) fn run(world: &World, asked: &Lookup) -> anyhow::Result<Exit> {
    match &asked.id {
        Some(id) => tell_names(world, asked, &given_id(id)?),
        None => id_of(world, asked),
    }
}

fn id_of(world: &World, asked: &Lookup) -> anyhow::Result<Exit> {
    let target = world.target(&asked.common, the_one(&asked.names)?)?;
    let claim = world.engine(&target.location)?.claim_of(&target.name)?;
    let Some(id) = claim.and_then(|grant| grant.claim) else {
        asked.common.tell(&format!("{} is not claimed", shown(&target.known_as)));
        return Ok(Exit::NotHeld);
    };
    if asked.common.json {
        print_json(&LookupJson::of_name(&target.known_as, &id))?;
    } else {
        print_bytes(&[&id, b"\n".as_slice()].concat())?;
    }
    Ok(Exit::Done)
}

fn tell_names(world: &World, asked: &Lookup, id: &[u8]) -> anyhow::Result<Exit> {
    let (names, unreadable) = names_of(world, &asked.common, id)?;
    if asked.common.json && !names.is_empty() {
        print_json(&LookupJson::of_id(id, &names))?;
    } else {
        names.iter().try_for_each(|name| print(&format!("{}\n", shown(name))))?;
    }
    if names.is_empty() {
        asked.common.tell(&format!("nothing is claimed under id {}", shown(id)));
    }
    Ok(match unreadable {
        Some(error) => error.exit(),
        None if names.is_empty() => Exit::NotHeld,
        None => Exit::Done,
    })
}

/// What an id has in the store, in order; and what could not be read, if there was something. Nobody keeps a list, which
/// could be wrong: all records are looked at.
pub(super) fn names_of(world: &World, common: &Common, id: &[u8]) -> Result<(Vec<Vec<u8>>, Option<Error>)> {
    let engine = world.engine(&world.store(common)?)?;
    let mut names = Vec::new();
    let mut unreadable: Option<Error> = None;
    engine.each_sight(&mut |sight| {
        match sight {
            Ok(sight) if engine.claim_in(&sight).is_some_and(|grant| grant.claim.as_deref() == Some(id)) => {
                names.push(sight.record.name);
            }
            Ok(_) => {}
            Err(error) => {
                common.tell(&format!("passed over: {error}"));
                unreadable = Some(error);
            }
        }
        Ok(())
    })?;
    names.sort();
    Ok((names, unreadable))
}
