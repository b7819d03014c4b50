//! `history --follow`: prints endings as they happen, until a signal or the end of its reader.
//!
//! Signals keep their usual effect, so they also end a write to a reader that does not read. Nothing is left to clean up.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::Signal;
use nix::sys::time::TimeSpec;

use super::{Filter, none_in, period};
use crate::cli::{Common, History};
use crate::command::context::{Context, print, print_json};
use crate::command::status::output_style;
use crate::engine::Engine;
use crate::error::{ErrorKind, Result};
use crate::exit::Exit;
use crate::history::{HistoryLimits, Past};
use crate::report::{ending_rows, endings_header, json};
use crate::store::{HistoryCursor, Location, Scope, Subscription, Topic};

/// The first and the longest pause between two reads of a store that does not tell of every new line.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The longest pause if the store tells of every new line. The message about a line can be lost.
const LONGEST: Duration = Duration::from_secs(5);

/// Minimum time between two reads, so that many endings at once are one read.
const TOGETHER: Duration = Duration::from_millis(20);

/// Number of endings that are remembered, so that a history that was written anew is not printed again.
const REMEMBERED: usize = 1 << 16;

/// Prints the requested endings. Returns when the reader of stdout is gone.
pub(super) fn run(
    context: &Context,
    asked: &History,
    wanted: &Filter,
    (engine, location, limits): (&Engine, &Location, &HistoryLimits),
) -> anyhow::Result<Exit> {
    context.require_stdout("each ending", "open it, for example to a file: >> FILE")?;
    let mut reader = Reader { engine, cursor: HistoryCursor::default(), seen: Seen::default(), is_cut_off: false };
    // A line that is added between the subscription and the end of the read ends the first wait.
    let mut subscription = engine.store().subscribe(Topic::History);
    let earlier = reader.read()?.ok_or_else(|| none_in(location))?;
    let exact = wanted.exact(&earlier);
    let is_wanted = |past: &Past| wanted.has(&past.name, &exact);
    if !asked.common.json {
        print(endings_header(context.host.wall(), output_style(&asked.common, asked.utc)))?;
    }
    let first = first(context, asked, limits, earlier.into_iter().filter(is_wanted).collect());
    print_all(context, asked, first)?;
    let mut pause = PAUSES.0;
    loop {
        let is_told_all = engine.store().scope() == Scope::Local || engine.store().abilities().notifies;
        let longest = if subscription.is_some() && is_told_all { LONGEST } else { pause };
        match wait(subscription.as_deref(), longest)? {
            Event::ReaderGone => return Ok(Exit::Signal(Signal::SIGPIPE)),
            Event::NewLines => subscription = None,
            Event::TimeOver => {}
        }
        context.host.sleep(TOGETHER);
        subscription = subscription.or_else(|| engine.store().subscribe(Topic::History));
        let new = reader.read_on(&asked.common)?;
        pause = if new.is_empty() { (pause * 2).min(PAUSES.1) } else { PAUSES.0 };
        print_all(context, asked, new.into_iter().filter(is_wanted).collect())?;
    }
}

/// Returns the endings that are printed first: those of `--since` and `-n`, none without these options.
fn first(context: &Context, asked: &History, limits: &HistoryLimits, mut earlier: Vec<Past>) -> Vec<Past> {
    let now = context.host.wall();
    let (begin, _) = period(asked, output_style(&asked.common, asked.utc).zone, now);
    let begin = begin.max(now.saturating_sub(limits.age).as_millis() as u64);
    let most = match (asked.lines, &asked.since) {
        (Some(lines), _) => lines as usize,
        (None, Some(_)) => usize::MAX,
        (None, None) => 0,
    };
    earlier.retain(|past| past.to.is_some_and(|to| to >= begin));
    earlier.sort_by_key(|past| (past.to, past.from, past.token));
    earlier.drain(..earlier.len().saturating_sub(most));
    earlier
}

/// A reader of endings, which reads none of them twice.
struct Reader<'a> {
    engine: &'a Engine,
    cursor: HistoryCursor,
    seen: Seen,
    /// True while the store does not answer.
    is_cut_off: bool,
}

impl Reader<'_> {
    /// Returns the new endings, or `None` if the store has no history.
    fn read(&mut self) -> Result<Option<Vec<Past>>> {
        let mut new = Vec::new();
        let has_history = self.engine.each_new_past(&mut self.cursor, &mut |past| new.push(past))?;
        new.retain(|past| self.seen.is_new(past));
        Ok(has_history.then_some(new))
    }

    /// Returns the new endings; none while the store does not answer, which is reported once.
    fn read_on(&mut self, common: &Common) -> Result<Vec<Past>> {
        match self.read() {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                if !std::mem::replace(&mut self.is_cut_off, true) {
                    common.note(&format!("{error}"));
                }
                Ok(Vec::new())
            }
            read => {
                self.is_cut_off = false;
                read.map(Option::unwrap_or_default)
            }
        }
    }
}

/// The last endings that were read, as hashes.
#[derive(Default)]
struct Seen {
    hashes: HashSet<u64>,
    in_order: VecDeque<u64>,
}

impl Seen {
    /// Returns true if this grant is not among the last ones, and adds it.
    fn is_new(&mut self, past: &Past) -> bool {
        let which = (&past.name, past.token, past.slot, past.from, past.holder.pid, &past.holder.host);
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(which);
        if !self.hashes.insert(hash) {
            return false;
        }
        self.in_order.push_back(hash);
        if self.in_order.len() > REMEMBERED
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.hashes.remove(&oldest);
        }
        true
    }
}

/// Reason for the end of a wait.
enum Event {
    NewLines,
    TimeOver,
    ReaderGone,
}

/// Waits for a notification, for the end of the reader of stdout, or for this time.
fn wait(subscription: Option<&dyn Subscription>, at_most: Duration) -> anyhow::Result<Event> {
    let stdout = std::io::stdout();
    // Without events to wait for, poll(2) still reports that a pipe has no reader.
    let mut polled = vec![PollFd::new(stdout.as_fd(), PollFlags::empty())];
    polled.extend(subscription.map(|subscription| PollFd::new(subscription.descriptor(), PollFlags::POLLIN)));
    match ppoll(&mut polled, Some(TimeSpec::from_duration(at_most)), None) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(errno) => return Err(errno).context("cannot wait for the history"),
    }
    Ok(match polled.as_slice() {
        [stdout, ..] if stdout.any() == Some(true) => Event::ReaderGone,
        [_, history] if history.any() == Some(true) => Event::NewLines,
        _ => Event::TimeOver,
    })
}

fn print_all(context: &Context, asked: &History, endings: Vec<Past>) -> anyhow::Result<()> {
    let (now, host) = (context.host.wall(), context.host.name());
    for past in &endings {
        match asked.common.json {
            true => print_json(&json::past(past))?,
            false => print(ending_rows(past, now, &host, output_style(&asked.common, asked.utc)))?,
        }
    }
    Ok(())
}
