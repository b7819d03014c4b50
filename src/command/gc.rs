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
        let found = match (all_well, asked.dry_run) {
            (true, _) => return Ok(()),
            (false, true) => would_end(&sight),
            (false, false) => collect(&engine, &sight.record.name)?,
        };
        // Where nobody is any more, only the memory of a broken grant may have been left, or somebody was faster.
        if !found.0.is_empty() || found.1 {
            removed.push((sight.record.name, found.0));
        }
        Ok(())
    })?;
    // Last, for records that were collected just now may have needed some of it.
    let swept = engine.sweep(asked.dry_run)?;
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

/// The grants that ended, and whether there were waiters that died.
type Found = (Vec<Ending>, bool);

fn would_end(sight: &crate::engine::Sight) -> Found {
    let ended = sight.record.holders.iter().zip(&sight.holders);
    let endings = ended.filter_map(|(grant, standing)| standing.err().map(|how| Ending { grant: grant.clone(), how }));
    (endings.collect(), sight.waiters.contains(&Fate::Dead))
}

fn collect(engine: &Engine, name: &[u8]) -> Result<Found> {
    match engine.settle(name, &Ask::Collect)? {
        Outcome::Collected(endings, dropped) => Ok((endings, !dropped.is_empty())),
        _ => Ok((Vec::new(), false)),
    }
}
