//! `csalock gc`

use super::world::{World, print, print_json};
use crate::cli::Gc;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lock::{Ask, Ending, Fate, Grant, Outcome};
use crate::name::shown;
use crate::report::{Reporter, UnlockJson};

pub(super) fn run(world: &World, asked: &Gc) -> anyhow::Result<Exit> {
    let engine = world.engine(&world.store(&asked.common)?)?;
    let reporter = Reporter { host: engine.host(), reach: engine.store().reach() };
    let swept = engine.store().sweep(asked.dry_run)?;
    let mut removed: Vec<(Vec<u8>, Vec<Ending>)> = Vec::new();
    let mut unreadable: Option<Error> = None;
    engine.each_sight(&mut |sight| {
        let sight = match sight {
            Ok(sight) => sight,
            Err(error) => {
                asked.common.tell(&error.to_string());
                unreadable = Some(error);
                return Ok(());
            }
        };
        let all_well = sight.holders.iter().all(std::result::Result::is_ok)
            && sight.waiters.iter().all(|fate| *fate != Fate::Dead)
            && !sight.record.is_free();
        if !all_well {
            let endings = if asked.dry_run { would_end(&sight) } else { collect(&engine, &sight.record.name)? };
            removed.push((sight.record.name, endings));
        }
        Ok(())
    })?;
    if asked.common.json {
        let grants = |endings: &[Ending]| endings.iter().map(|ending| ending.grant.clone()).collect::<Vec<Grant>>();
        let document =
            |(name, endings): &(Vec<u8>, Vec<Ending>)| UnlockJson::new(name, "removed", &grants(endings), &reporter);
        print_json(&removed.iter().map(document).collect::<Vec<_>>())?;
    } else {
        for (name, endings) in &removed {
            match endings.as_slice() {
                [] => print(&format!("{}: waiters that died\n", shown(name)))?,
                endings => {
                    for ending in endings {
                        print(&format!("{}: held by {}\n", shown(name), reporter.ending(ending)))?;
                    }
                }
            }
        }
    }
    if swept > 0 && asked.common.verbose {
        asked.common.tell(&format!("{swept} leftovers of processes that died half-way"));
    }
    Ok(unreadable.map_or(Exit::Done, |error| error.exit()))
}

fn would_end(sight: &crate::engine::Sight) -> Vec<Ending> {
    let ended = sight.record.holders.iter().zip(&sight.holders);
    ended.filter_map(|(grant, standing)| standing.err().map(|how| Ending { grant: grant.clone(), how })).collect()
}

fn collect(engine: &Engine, name: &[u8]) -> Result<Vec<Ending>> {
    match engine.settle(name, &Ask::Collect)? {
        Outcome::Collected(endings, _) => Ok(endings),
        _ => Ok(Vec::new()),
    }
}
