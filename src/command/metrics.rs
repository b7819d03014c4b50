//! `csalock metrics`

mod output;

use super::context::{Context, print};
use super::history::Filter;
use crate::cli::Metrics as Asked;
use crate::engine::{Engine, LockStatus};
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::history::{Limits, Past};
use crate::name::escape;
use crate::report::Metrics;

pub(super) fn run(context: &Context, asked: &Asked) -> anyhow::Result<Exit> {
    if asked.common.json {
        let what = "metrics has one format, the text format of Prometheus";
        return Err(
            Error::new(ErrorKind::InvalidInput, what, "leave out --json, or use `csalock status --json`").into()
        );
    }
    let limits = context.environment.history()?;
    let location = context.store(&asked.common)?;
    let wanted = Filter::of(context, &asked.common, &asked.names)?;
    let mut metrics = Metrics::new(&escape(location.url().as_encoded_bytes()));
    let collected =
        context.engine(&location).and_then(|engine| collect(context, &wanted, (&engine, &limits), &mut metrics));
    metrics.limit(asked.limit as usize);
    // A store that does not answer is a result too.
    match &asked.output {
        Some(path) => output::write(path, metrics.text().as_bytes(), context.host.this_process()?.pid)?,
        None => print(metrics.text())?,
    }
    Ok(match collected {
        Ok(()) => Exit::Done,
        Err(error) => {
            asked.common.note(&error.to_string());
            error.kind().into()
        }
    })
}

/// Adds the requested locks and their endings.
fn collect(
    context: &Context,
    wanted: &Filter,
    (engine, limits): (&Engine, &Limits),
    metrics: &mut Metrics,
) -> Result<()> {
    let (mut statuses, mut endings): (Vec<_>, Vec<Past>) = (Vec::new(), Vec::new());
    let mut unreadable = None;
    wanted.each_lock(engine, &mut |status| match status {
        Ok(status) => statuses.push(status),
        Err(error) => {
            metrics.add_unreadable();
            unreadable = Some(error);
        }
    })?;
    metrics.set_up();
    engine.each_past(limits, &mut |past| endings.push(past))?;
    let exact = wanted.exact(&endings);
    let now = context.host.wall();
    wanted.names().for_each(|name| metrics.add_name(name));
    let statuses = statuses.iter().filter(|status| wanted.has(&status.record.name, &exact));
    let statuses: Vec<_> = statuses.collect();
    let may_be_ahead = |status: &&LockStatus| {
        let job = status.record.job.as_ref();
        job.is_some_and(|job| job.doubtful_success(now.as_millis() as u64).is_some())
    };
    // The store's clock decides, but a directory tells its time only to a user who writes.
    let of_store = if statuses.iter().any(may_be_ahead) { engine.time().unwrap_or(now) } else { now };
    statuses.into_iter().for_each(|status| metrics.add_status(status, now, of_store));
    endings.iter().filter(|past| wanted.has(&past.name, &exact)).for_each(|past| metrics.add_ending(past));
    unreadable.map_or(Ok(()), Err)
}
