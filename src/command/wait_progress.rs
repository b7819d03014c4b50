//! Reports a wait to people: the obstacle once and, on a terminal, the progress of the wait again and again.

mod status_line;

use std::io::IsTerminal;
use std::time::Duration;

use self::status_line::StatusLine;
use super::context::{LockRef, eprint_line};
use crate::cli::Common;
use crate::duration::shown as span;
use crate::engine::Waiting;
use crate::lock::Grant;
use crate::name::escape;
use crate::report::Reporter;
use crate::terminal;

/// Interval between drawings of the line.
const TICK: Duration = Duration::from_millis(250);

/// Reports one wait. After the drop, only the messages that are printed once remain on the screen.
pub(super) struct WaitProgress<'a> {
    common: &'a Common,
    told: bool,
    told_outage: bool,
    /// Start of the wait on CLOCK_BOOTTIME, if it has started.
    since: Option<Duration>,
    /// `None` means that no line was needed yet, `Some(None)` that there must be no line.
    line: Option<Option<StatusLine>>,
    /// The holder as text, which may need a slow user database.
    holder: Option<(Grant, String)>,
}

impl<'a> WaitProgress<'a> {
    pub(super) fn new(common: &'a Common) -> WaitProgress<'a> {
        WaitProgress { common, told: false, told_outage: false, since: None, line: None, holder: None }
    }

    /// Reports the wait for `target` whenever it starts or goes on; see [`crate::engine::Onlooker`].
    pub(super) fn update(
        &mut self,
        target: &LockRef,
        reporter: &Reporter<'_>,
        waiting: &Waiting<'_>,
    ) -> Option<Duration> {
        let stderr = std::io::stderr();
        let watched = !self.common.quiet && stderr.is_terminal();
        if watched && !self.told && terminal::would_get_sigttou(&stderr) {
            // If we were stopped, all waiters behind us would wait. The report can wait until we are in the foreground.
            return Some(TICK);
        }
        let told = if waiting.outage.is_some() { &mut self.told_outage } else { &mut self.told };
        if !std::mem::replace(told, true) && (watched || self.common.verbose) {
            let holder = waiting.record.holders.first();
            let who = match waiting.outage {
                Some(error) => error.message().to_string(),
                None => holder.map_or("others are before us".to_string(), |grant| reporter.holder(grant)),
            };
            eprint_line(&format!("waiting for lock {}: {who}", escape(&target.display_name)));
        }
        if !watched {
            return None;
        }
        let now = reporter.host.boottime();
        let waited = now.saturating_sub(*self.since.get_or_insert(now));
        // A short wait should end without a flicker.
        if waited >= TICK {
            let text = self.progress(reporter, waiting, waited);
            self.line.get_or_insert_with(StatusLine::new).as_mut()?.show(&text);
        }
        Some(TICK)
    }

    /// Returns the progress as text. The part that changes most comes first, because the end may be cut off.
    fn progress(&mut self, reporter: &Reporter<'_>, waiting: &Waiting<'_>, waited: Duration) -> String {
        let left =
            waiting.left.map(|left| format!(", {} left", whole(left + Duration::from_millis(999)))).unwrap_or_default();
        if let Some(error) = waiting.outage {
            return format!("waited {}{left}; {}", whole(waited), error.message());
        }
        let place = waiting.ahead + 1;
        // Only a reader of all overflow pages would know the length of a long queue.
        let place = match waiting.record.pages {
            None => format!("{place} of {}", waiting.record.waiters.len().max(place)),
            Some(_) => format!("number {place}"),
        };
        format!(
            "waited {}{left}; {place} in the queue; {}",
            whole(waited),
            self.holder(reporter, &waiting.record.holders)
        )
    }

    fn holder(&mut self, reporter: &Reporter<'_>, holders: &[Grant]) -> String {
        let Some(grant) = holders.first() else { return "no process holds it now".to_string() };
        if self.holder.as_ref().is_none_or(|(known, _)| known != grant) {
            let (owner, command) = (reporter.party(&grant.owner), escape(&grant.owner.command));
            self.holder = Some((grant.clone(), format!("{owner}: {command}")));
        }
        let held = reporter.host.wall().saturating_sub(Duration::from_millis(grant.since));
        let others = if holders.len() > 1 { format!("{} others and ", holders.len() - 1) } else { String::new() };
        let who = self.holder.as_ref().map(|(_, who)| who.as_str()).unwrap_or_default();
        format!("held {} by {others}{who}", whole(held))
    }
}

/// Returns a time without fractions, which would only flicker.
fn whole(time: Duration) -> String {
    if time.as_secs() == 0 { "0s".to_string() } else { span(time) }
}
