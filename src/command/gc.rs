//! `csalock gc`

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;

use super::context::{Context, Results, print};
use crate::cli::Gc;
use crate::exit::Exit;
use crate::glob;
use crate::report::{Reporter, json};
use engine::{Engine, LockStatus};
use lock::error::{Error, Result};
use lock::name::{escape, is_directory};
use lock::{self, EndedGrant, Grant, Liveness};

pub(super) fn run(context: &Context, options: &Gc) -> anyhow::Result<Exit> {
    let mut collection = Collection {
        context,
        options,
        lines: String::new(),
        results: Results::new(&context.common),
        told: BTreeSet::new(),
    };
    let collected = match options.names.is_empty() {
        true => context.store().and_then(|store| collection.collect_store(&context.engine(&store)?)),
        false => collection.collect_named(),
    };
    // Removed locks are reported even if the rest failed, with `--json` in one document.
    let failed = match collected {
        Err(error) if !collection.results.documents.is_empty() => {
            collection.pass_over(&error);
            Ok(())
        }
        collected => collected,
    };
    if !context.common.json {
        print(&collection.lines)?;
    }
    failed?;
    collection.results.print()
}

struct Collection<'a> {
    context: &'a Context,
    options: &'a Gc,
    lines: String,
    results: Results<'a>,
    /// Reasons for records that stay as they are, each once.
    told: BTreeSet<String>,
}

impl Collection<'_> {
    /// Collects all records of the store and, last, the leftovers that they may have needed.
    fn collect_store(&mut self, engine: &Engine) -> Result<()> {
        self.collect_matching(engine, &|_| true)?;
        let swept = engine.sweep(self.options.dry_run)?;
        if swept.removed > 0 && self.context.common.verbose {
            self.context.common.note(&format!("{} leftovers of processes that died half-way", swept.removed));
        }
        swept.passed_over.iter().for_each(|error| self.pass_over(error));
        Ok(())
    }

    /// Collects the records of these names. A name that no record has may be a pattern, and a name that ends with a slash
    /// means the store beside the files in that directory too.
    fn collect_named(&mut self) -> Result<()> {
        for typed in &self.options.names {
            let target = self.context.target(typed)?;
            let engine = self.context.engine(&target.location)?;
            let status = engine.inspect(&target.name);
            match &status {
                Ok(status) if status.record.is_free() && glob::is_pattern(typed.as_bytes()) => {
                    self.collect_matching(&engine, &|name| glob::matches(typed.as_bytes(), name))?;
                }
                _ => self.collect(&engine, &target.display_name, status)?,
            }
            if is_directory(typed)
                && let (inside, _) = self.context.store_in(typed)?
                && inside.is_beside()
            {
                self.collect_store(&self.context.engine(&inside)?)?;
            }
        }
        Ok(())
    }

    fn collect_matching(&mut self, engine: &Engine, matches: &dyn Fn(&[u8]) -> bool) -> Result<()> {
        engine.for_each_lock(&mut |status| {
            let name = status.as_ref().map(|status| status.record.name.clone()).unwrap_or_default();
            if status.is_err() || matches(&name) { self.collect(engine, &name, status) } else { Ok(()) }
        })
    }

    /// Removes what dead processes left in one record, and reports it under the name for display.
    fn collect(&mut self, engine: &Engine, shown: &[u8], status: Result<LockStatus>) -> Result<()> {
        let is_copy = status.as_ref().is_ok_and(|status| status.record.is_copy);
        let done = if self.options.dry_run { "would remove" } else { "removed" };
        match status.and_then(|status| clear(engine, status, self.options.dry_run)) {
            Ok(Some(endings)) => {
                let (name, reporter) = (escape(shown), Reporter::new(engine));
                if endings.is_empty() {
                    let what = if is_copy { "what a copy from another directory held" } else { "waiters that died" };
                    self.lines += &format!("{done} {name}: {what}\n");
                }
                for ending in &endings {
                    self.lines += &format!("{done} {name}: held by {}\n", reporter.ending(ending));
                }
                let grants: Vec<Grant> = endings.into_iter().map(|ending| ending.grant).collect();
                self.results.add(|| json::outcome(shown, done, &grants, &reporter));
            }
            Ok(None) => {}
            Err(error) if error.is_of_one_record() => self.pass_over(&error),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Reports, once, the reason why a record stays as it is.
    fn pass_over(&mut self, error: &Error) {
        self.results.exit = error.kind().into();
        let text = error.to_string();
        if self.told.insert(text.clone()) {
            self.context.common.note_unless_json(&text);
            self.results.add(|| json::unreadable(error));
        }
    }
}

/// Removes what dead processes left in one record, or what a copied record has of the original. Without grants that
/// ended, or that would end, only waiters died.
fn clear(engine: &Engine, status: LockStatus, dry_run: bool) -> Result<Option<Vec<EndedGrant>>> {
    let all_well = status.holders.iter().all(|standing| standing.holds())
        && !status.waiters.contains(&Liveness::Dead)
        && !status.record.is_free();
    let is_copy = status.record.is_copy;
    if all_well && !is_copy {
        if !dry_run {
            engine.note_leases(&status.record);
        }
        return Ok(None);
    }
    let (endings, waiters_died) = if dry_run {
        let holders = status.record.holders.iter().zip(&status.holders);
        let ended = holders.filter_map(|(grant, standing)| {
            standing.end_reason().map(|reason| EndedGrant { grant: grant.clone(), reason })
        });
        (ended.collect(), status.waiters.contains(&Liveness::Dead))
    } else {
        let (endings, dropped) = engine.apply(&status.record.name, &lock::Sweep)?;
        (endings, !dropped.is_empty())
    };
    // Without ended grants and dead waiters, only a broken grant's trace was left, or another process was faster.
    Ok((!endings.is_empty() || waiters_died || is_copy).then_some(endings))
}
