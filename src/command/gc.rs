//! `csalock gc`

use std::collections::BTreeSet;

use super::context::{Context, print, print_json};
use crate::cli::{Common, Gc};
use crate::engine::{Engine, LockStatus};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lock::{self, EndedGrant, Grant, Liveness};
use crate::name::escape;
use crate::report::{Reporter, UnlockJson};

pub(super) fn run(context: &Context, asked: &Gc) -> anyhow::Result<Exit> {
    let engine = context.engine(&context.store(&asked.common)?)?;
    let reporter = Reporter::new(&engine);
    let mut passed_over = PassedOver { common: &asked.common, told: BTreeSet::new(), exit: Exit::Done };
    let mut removed: Vec<Removed> = Vec::new();
    let scanned = engine.for_each_lock(&mut |status| {
        let cleared = match status {
            Err(error) => Err(error),
            Ok(status) => match clear(&engine, status, asked.dry_run) {
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
    // The sweep is last, because records that were collected just now may have needed some leftovers.
    let swept = scanned.and_then(|()| engine.sweep(asked.dry_run));
    // Removed locks are reported even if the rest failed.
    if asked.common.json {
        let document = |(name, endings): &Removed| {
            UnlockJson::new(name, "removed", endings.iter().map(|ending| &ending.grant), &reporter)
        };
        print_json(&removed.iter().map(document).collect::<Vec<_>>())?;
    } else {
        for (name, endings) in &removed {
            if endings.is_empty() {
                print(format!("{}: waiters that died\n", escape(name)))?;
            }
            for ending in endings {
                print(format!("{}: held by {}\n", escape(name), reporter.ending(ending)))?;
            }
        }
    }
    let swept = swept?;
    if swept.removed > 0 && asked.common.verbose {
        asked.common.note(&format!("{} leftovers of processes that died half-way", swept.removed));
    }
    swept.passed_over.iter().for_each(|error| passed_over.tell(error));
    Ok(passed_over.exit)
}

/// A name, and its grants that ended; without such grants, only its waiters died.
type Removed = (Vec<u8>, Vec<EndedGrant>);

/// Records that stay as they are.
struct PassedOver<'a> {
    common: &'a Common,
    told: BTreeSet<String>,
    /// Exit code of the last error.
    exit: Exit,
}

impl PassedOver<'_> {
    /// Reports the reason, once for each record.
    fn tell(&mut self, error: &Error) {
        self.exit = Exit::from(error.kind());
        let text = error.to_string();
        if self.told.insert(text.clone()) {
            self.common.note(&text);
        }
    }
}

/// Removes what dead processes left in one record, or returns what it would remove.
fn clear(engine: &Engine, status: LockStatus, dry_run: bool) -> Result<Option<Removed>> {
    let all_well = status.holders.iter().all(std::result::Result::is_ok)
        && !status.waiters.contains(&Liveness::Dead)
        && !status.record.is_free();
    if all_well {
        if !dry_run {
            engine.note_leases(&status.record);
        }
        return Ok(None);
    }
    let (endings, waiters_died) = if dry_run { would_end(&status) } else { collect(engine, &status.record.name)? };
    // Without ended grants and dead waiters, only a broken grant's trace was left, or another process was faster.
    Ok((!endings.is_empty() || waiters_died).then_some((status.record.name, endings)))
}

/// Returns the grants that would end, and true if waiters died.
fn would_end(status: &LockStatus) -> (Vec<EndedGrant>, bool) {
    let holders = status.record.holders.iter().zip(&status.holders);
    let ended = |(grant, standing): (&Grant, &std::result::Result<_, _>)| {
        standing.err().map(|reason| EndedGrant { grant: grant.clone(), reason })
    };
    (holders.filter_map(ended).collect(), status.waiters.contains(&Liveness::Dead))
}

/// Returns the grants that ended, and true if waiters died.
fn collect(engine: &Engine, name: &[u8]) -> Result<(Vec<EndedGrant>, bool)> {
    let (endings, dropped) = engine.apply(name, &lock::Gc)?;
    Ok((endings, !dropped.is_empty()))
}
