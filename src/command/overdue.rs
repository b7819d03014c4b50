//! `csalock overdue`

use std::time::Duration;

use super::context::{Context, print, print_json};
use crate::cli::Overdue;
use crate::exit::Exit;
use crate::report::{RefusalReport, Zone, due, failure, json, name_and_store, overdue, runs};
use engine::Engine;
use lock::history::Past;
use lock::name::escape;
use lock::{Error, ErrorKind, ForgetJob, JobState};

/// A job: its name for display, its state, its last run, and the time of its store.
type NamedJob = (Vec<u8>, JobState, Option<Past>, Duration);

pub(super) fn run(context: &Context, options: &Overdue) -> anyhow::Result<Exit> {
    if options.forget {
        return forget(context, options);
    }
    let zone = if options.utc { Zone::Utc } else { Zone::Local };
    let (mut jobs, unreadable, unknown) = jobs(context, options)?;
    jobs.retain(|each| is_overdue(each) || (options.all && is_watched(&each.1, options)));
    jobs.sort_by(|(left, ..), (right, ..)| left.cmp(right));
    if context.common.json {
        let jobs = jobs.iter().map(|(name, job, last, now)| json::overdue(name, job, last.as_ref(), *now));
        print_json(&jobs.chain(unreadable.iter().map(json::unreadable)).collect::<Vec<_>>())?;
    } else if !context.common.quiet {
        let line = |each: &NamedJob| {
            let (name, job, last, now) = each;
            let (due, runs) = if options.all { (due(job, *now, zone), runs(job, zone)) } else { (None, None) };
            let failure = last.as_ref().and_then(|last| failure(last, zone));
            let clauses: Vec<_> = [Some(overdue(job, *now, zone)), due, runs, failure].into_iter().flatten().collect();
            format!("{}: {}\n", escape(name), clauses.join(", "))
        };
        print(jobs.iter().map(line).collect::<String>())?;
    }
    match unreadable.last() {
        Some(error) => Ok(error.kind().into()),
        None if jobs.iter().any(is_overdue) => Ok(ErrorKind::Overdue.into()),
        None => Ok(unknown),
    }
}

fn is_watched(job: &JobState, options: &Overdue) -> bool {
    job.promise.is_some() || (options.all && job.runs.is_some())
}

fn is_overdue((_, job, _, now): &NamedJob) -> bool {
    job.is_overdue(now.as_millis() as u64)
}

/// Returns the named jobs, or all jobs of the store, the errors of unreadable records, and the exit for unknown names. It
/// reports the errors and these names to people.
fn jobs(context: &Context, options: &Overdue) -> anyhow::Result<(Vec<NamedJob>, Vec<Error>, Exit)> {
    let (mut jobs, mut unreadable, mut unknown) = (Vec::new(), Vec::new(), Exit::Done);
    for name in &options.names {
        let target = context.target(name)?;
        let engine = context.engine(&target.location)?;
        match engine.record(&target.name)?.job.filter(|job| is_watched(job, options)) {
            Some(job) => {
                let last = engine.last_runs().remove(&target.name);
                jobs.push((target.display_name, job, last, time_of(&engine)));
            }
            // A misspelt name in a check must not look like a job in good order.
            None => {
                unknown = ErrorKind::NotHeld.into();
                let lock = name_and_store(&target);
                context.common.note_unless_json(&format!(
                    "lock {lock} has no job that must succeed in time; give the name that `csalock run --overdue` has"
                ));
            }
        }
    }
    if options.names.is_empty() {
        let engine = context.engine(&context.store()?)?;
        let mut known = Vec::new();
        unreadable = context.each_readable(&engine, &mut |status| {
            known.extend(status.record.job.map(|job| (status.record.name, job)));
        })?;
        if !known.is_empty() {
            let (now, mut runs) = (time_of(&engine), engine.last_runs());
            jobs.extend(known.into_iter().map(|(name, job)| {
                let last = runs.remove(&name);
                (name, job, last, now)
            }));
        }
    }
    Ok((jobs, unreadable, unknown))
}

/// A user who may only read a directory cannot learn the time of its file system; then the clock of this host counts.
fn time_of(engine: &Engine) -> Duration {
    engine.time().unwrap_or_else(|_| engine.host().wall())
}

fn forget(context: &Context, options: &Overdue) -> anyhow::Result<Exit> {
    let mut exit = Exit::Done;
    for name in &options.names {
        let target = context.target(name)?;
        if !context.engine(&target.location)?.apply(&target.name, &ForgetJob)? {
            let message = format!("lock {} has no job", name_and_store(&target));
            let refusal = RefusalReport::new(ErrorKind::NotHeld, message, "nothing was changed");
            let refused = ErrorKind::NotHeld.into();
            exit = exit.or(context.common.refuse(&refusal.about(&target.display_name), refused, None)?);
        }
    }
    Ok(exit)
}
