//! `csalock gc`

use std::collections::BTreeSet;

use super::world::{World, print, print_json};
use crate::cli::{Common, Gc};
use crate::engine::{Engine, Sight};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lock::{Ask, Ending, Fate, Grant, Outcome};
use crate::name::shown;
use crate::report::{Reporter, UnlockJson};

pub(super) fn run(world: &World, asked: &Gc) -> anyhow::Result<Exit> {
    let engine = world.engine(&world.store(&asked.common)?)?;
    let reporter = Reporter { host: engine.host(), reach: engine.store().reach() };
    let mut passed_over = PassedOver { common: &asked.common, told: BTreeSet::new(), exit: Exit::Done };
    let mut removed: Vec<Removed> = Vec::new();
    let scanned = engine.each_sight(&mut |sight| {
        let cleared = match sight {
            Err(error) => Err(error),
            Ok(sight) => match clear(&engine, sight, asked.dry_run) {
                Err(error) if !error.is_of_one_record() => return Err(error),
                cleared => cleared,
            },
        };
        match cleared {
            Ok(found) => removed.extend(found),
            Err(error) => passed_over.tell(&error),
        }
        Ok(())
    });
    // Last, for records that were collected just now may have needed some of it.
    let swept = scanned.and_then(|()| engine.sweep(asked.dry_run));
    // What is gone is told even if the rest failed.
    if asked.common.json {
        let grants = |endings: &[Ending]| endings.iter().map(|ending| ending.grant.clone()).collect::<Vec<Grant>>();
        let document = |(name, endings): &Removed| UnlockJson::new(name, "removed", &grants(endings), &reporter);
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
    let swept = swept?;
    if swept.removed > 0 && asked.common.verbose {
        asked.common.tell(&format!("{} leftovers of processes that died half-way", swept.removed));
    }
    swept.passed_over.iter().for_each(|error| passed_over.tell(error));
    Ok(passed_over.exit)
}

/// A name, and its grants that ended; without any, only its waiters died.
type Removed = (Vec<u8>, Vec<Ending>);

/// Records that were left as they are.
struct PassedOver<'a> {
    common: &'a Common,
    told: BTreeSet<String>,
    /// The exit code of the last one.
    exit: Exit,
}

impl PassedOver<'_> {
    /// Tells why, once for each record.
    fn tell(&mut self, error: &Error) {
        self.exit = error.exit();
        let text = error.to_string();
        if !self.told.contains(&text) {
            self.common.tell(&text);
            self.told.insert(text);
        }
    }
}

/// Removes what the dead left in one record, or says what that would be.
fn clear(engine: &Engine, sight: Sight, dry_run: bool) -> Result<Option<Removed>> {
    let all_well = sight.holders.iter().all(std::result::Result::is_ok)
        && sight.waiters.iter().all(|fate| *fate != Fate::Dead)
        && !sight.record.is_free();
    let (endings, waiters_died) = match (all_well, dry_run) {
        (true, true) => return Ok(None),
        (true, false) => {
            engine.note_leases(&sight.record);
            return Ok(None);
        }
        (false, true) => would_end(&sight),
        (false, false) => collect(engine, &sight.record.name)?,
    };
    // Where nobody is any more, only the memory of a broken grant may have been left, or somebody was faster.
    Ok((!endings.is_empty() || waiters_died).then_some((sight.record.name, endings)))
}

/// The grants that ended, and whether there were waiters that died.
type Found = (Vec<Ending>, bool);

fn would_end(sight: &Sight) -> Found {
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
