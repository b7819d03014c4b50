//! `csalock history`: prints past grants.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use super::context::{Context, print, print_json};
use super::status::output_style;
use crate::cli::History;
use crate::exit::Exit;
use crate::glob;
use crate::report::{Moment, RefusalReport, Zone, json, timeline};
use engine::{Engine, LockStatus, environment};
use lock::history::Past;
use lock::name::{escape, is_path};
use lock::{EndReason, Error, ErrorKind, Result, Standing};
use store::Location;

/// Maximum number of grants that are shown by default.
const LINES: usize = 50;

/// Names and patterns that are typed; none of them means all locks.
pub(super) struct Filter(Vec<Vec<u8>>);

pub(super) fn run(context: &Context, options: &History) -> anyhow::Result<Exit> {
    environment::history()?;
    let file = options.names.first().filter(|name| is_path(name.as_bytes()) && !glob::is_pattern(name.as_bytes()));
    let file = file.map(|name| context.known_target(name)).transpose()?;
    let location = match file.map(|file| file.location) {
        Some(location) if !location.is_beside() => location,
        _ => context.store()?,
    };
    let wanted = Filter::of(context, &options.names)?;
    let engine = context.engine(&location)?;
    // The records are read first: a grant that ends meanwhile is in both lists, never in neither.
    let mut held = Vec::new();
    let unreadable = wanted.each_lock(&engine, &mut |status| held.extend(standing(&engine, &status)))?;
    unreadable.iter().for_each(|error| context.common.note_unless_json(error));
    let mut found = Vec::new();
    if !engine.each_past(&mut |past| found.push(past))? {
        let store = escape(location.url().as_encoded_bytes());
        return Err(none_beside_files(&format!("store {store}")).into());
    }
    engine.read_past(true, &mut |late| {
        // Another line has its command.
        match found.iter_mut().find(|past| past.is_same_grant(&late)) {
            Some(past) => (past.to, past.late) = (late.to, true),
            None => found.push(late),
        }
    })?;
    for past in held {
        if !found.iter().any(|ended| past.is_same_grant(ended)) {
            found.push(past);
        }
    }
    let now = context.host.wall();
    let style = output_style(&context.common, options.utc);
    let (begin, end) = period(options, style.zone, now);
    if begin > end {
        return Err(Error::invalid("--until is before --since", "exchange the two times").into());
    }
    let exact = wanted.exact(&found);
    let refusals = if unreadable.is_empty() { wanted.unknown(&found, &location) } else { Vec::new() };
    refusals.iter().for_each(|refusal| context.common.note_unless_json(refusal));
    let stood = |past: &Past| past.to.is_none_or(|to| to >= begin) && past.from <= end;
    found.retain(|past| stood(past) && wanted.has(&past.name, &exact));
    // Grants of one name may begin and end in the same millisecond; their tokens only grow.
    found.sort_by_key(|past| (past.to.unwrap_or(u64::MAX), past.from, past.token));
    let all = context.common.json || [&options.since, &options.until, &options.at].iter().any(|time| time.is_some());
    let most = options.lines.map_or(if all { usize::MAX } else { LINES }, |lines| lines as usize);
    let left_out = found.len().saturating_sub(most);
    found.drain(..left_out);
    if left_out > 0 && options.lines.is_none() {
        context.common.note(&format!("{left_out} earlier ones are left out; use -n or --since to see them"));
    }
    if context.common.json {
        let refused = refusals.iter().map(|refusal| refusal.json(refusal.kind.into(), None));
        let overlaps = |past: &Past| found.iter().any(|other| past.overlaps(other));
        let found =
            found.iter().map(|past| json::past(past, overlaps(past))).chain(unreadable.iter().map(json::unreadable));
        print_json(&found.chain(refused).collect::<Vec<_>>())?;
    } else {
        print(timeline(&found, Duration::from_millis(begin), now, &context.host.name(), style))?;
        if found.is_empty() && refusals.is_empty() && unreadable.is_empty() {
            context.common.note(&none_shown(options, &location, (begin, end), style.zone));
        }
    }
    let kind = unreadable.last().map(Error::kind).or(refusals.first().map(|refusal| refusal.kind));
    Ok(kind.map_or(Exit::Done, Exit::from))
}

fn none_shown(options: &History, location: &Location, (begin, end): (u64, u64), zone: Zone) -> String {
    let time = |at| zone.full(Duration::from_millis(at));
    let when = match (begin, end) {
        (0, u64::MAX) => String::new(),
        (0, end) => format!(" until {}", time(end)),
        (begin, u64::MAX) => format!(" since {}", time(begin)),
        (begin, end) if time(begin) == time(end) => format!(" at {}", time(begin)),
        (begin, end) => format!(" from {} to {}", time(begin), time(end)),
    };
    let (store, such) = (location.url(), if options.names.is_empty() { "" } else { " such" });
    format!("the history of {} shows no{such} lock that was held{when}", escape(store.as_encoded_bytes()))
}

/// First and last millisecond since 1970.
fn period(options: &History, zone: Zone, now: Duration) -> (u64, u64) {
    let span = |time: &Moment| time.span(zone, now);
    match &options.at {
        Some(time) => span(time),
        None => (
            options.since.as_ref().map_or(0, |time| span(time).0),
            options.until.as_ref().map_or(u64::MAX, |time| span(time).1),
        ),
    }
}

impl Filter {
    pub(super) fn of(context: &Context, names: &[OsString]) -> Result<Filter> {
        let mut wanted = Vec::new();
        for typed in names {
            let bytes = typed.as_encoded_bytes();
            if glob::is_pattern(bytes) {
                wanted.push(bytes.to_vec());
                continue;
            }
            let target = context.known_target(typed)?;
            if target.location.is_beside() {
                return Err(none_beside_files(&format!("lock {}", escape(&target.display_name))));
            }
            wanted.push(target.name);
        }
        Ok(Filter(wanted))
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.0.iter().filter(|word| !glob::is_pattern(word))
    }

    /// One report for each requested name or pattern that no grant in this store has.
    fn unknown(&self, found: &[Past], location: &Location) -> Vec<RefusalReport> {
        let store = escape(location.url().as_encoded_bytes());
        let is_unknown = |word: &&Vec<u8>| !found.iter().any(|past| means(word, &past.name));
        let refusal = |word: &Vec<u8>| {
            let message = format!("store {store} has no history of {}", escape(word));
            RefusalReport::new(ErrorKind::NotHeld, message, "see `csalock history`").about(word)
        };
        self.0.iter().filter(is_unknown).map(refusal).collect()
    }

    pub(super) fn exact(&self, found: &[Past]) -> Vec<Vec<u8>> {
        self.0.iter().filter(|word| found.iter().any(|past| past.name == **word)).cloned().collect()
    }

    /// A pattern that is the `exact` name of a lock means only that lock.
    pub(super) fn has(&self, name: &Vec<u8>, exact: &[Vec<u8>]) -> bool {
        let fits = |word: &Vec<u8>| if exact.contains(word) { word == name } else { means(word, name) };
        self.0.is_empty() || self.0.iter().any(fits)
    }

    /// Visits the requested locks. A pattern visits all locks. Returns the errors of unreadable records.
    pub(super) fn each_lock(&self, engine: &Engine, visit: &mut dyn FnMut(LockStatus)) -> Result<Vec<Error>> {
        let mut unreadable = Vec::new();
        let mut visit_readable = |status: Result<LockStatus>| match status {
            Ok(status) => visit(status),
            Err(error) => unreadable.push(error),
        };
        if self.0.is_empty() || self.0.iter().any(|word| glob::is_pattern(word)) {
            engine.for_each_lock(&mut |status| {
                visit_readable(status);
                Ok(())
            })?;
            return Ok(unreadable);
        }
        for name in &self.0 {
            match engine.inspect(name) {
                Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
                status => visit_readable(status),
            }
        }
        Ok(unreadable)
    }
}

fn means(word: &[u8], name: &[u8]) -> bool {
    word == name || glob::matches(word, name)
}

/// Grants in a record: they are held, or no process has noticed their end yet.
fn standing(engine: &Engine, status: &LockStatus) -> Vec<Past> {
    let grants = status.record.holders.iter().zip(&status.holders);
    let past = |(grant, standing): (&lock::Grant, &Standing)| {
        let past = Past::held(&status.record.name, grant, engine.pid(&grant.owner));
        let to = match (grant.lifetime.lease(), standing) {
            (Some(lease), Standing::Ended(EndReason::Expired)) => Some(lease.wall),
            _ => None,
        };
        let ended_by = grant.end_request.as_deref().filter(|_| !standing.holds());
        Past {
            how: standing.end_reason().map(|reason| grant.shown(reason)),
            to,
            ended_by: ended_by.map(|request| engine.ended_by(request)),
            ..past
        }
    };
    grants.map(past).collect()
}

fn none_beside_files(what: &str) -> Error {
    Error::invalid(
        format!("{what} has no history: what is kept beside files goes away with the last lock"),
        "keep locks in a store of their own to have one: --store dir:PATH or CSALOCK_STORE",
    )
}
