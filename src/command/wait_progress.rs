//! What a person who waits is told: once, who is in the way; and on a terminal, again and again, how the wait goes.

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

/// So often the line is drawn.
const TICK: Duration = Duration::from_millis(250);

/// Tells of one wait. When it is dropped nothing of it is on the screen but what was told once.
pub(super) struct WaitProgress<'a> {
    common: &'a Common,
    told: bool,
    told_outage: bool,
    /// When the wait began, if it has.
    since: Option<Duration>,
    /// `None`: it was not needed yet; `Some(None)`: there is to be none.
    line: Option<Option<StatusLine>>,
    /// The holder in words, which may need a slow user database.
    holder: Option<(Grant, String)>,
}

impl<'a> WaitProgress<'a> {
    pub(super) fn new(common: &'a Common) -> WaitProgress<'a> {
        WaitProgress { common, told: false, told_outage: false, since: None, line: None, holder: None }
    }

    /// Called whenever the wait for `target` begins or goes on: see [`crate::engine::Onlooker`].
    pub(super) fn update(
        &mut self,
        target: &LockRef,
        reporter: &Reporter<'_>,
        waiting: &Waiting<'_>,
    ) -> Option<Duration> {
        let stderr = std::io::stderr();
        let watched = !self.common.quiet && stderr.is_terminal();
        if watched && !self.told && terminal::would_get_sigttou(&stderr) {
            // Stopped, we would keep everybody behind us waiting. It can be told when we are in front.
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
        // A short wait is to end without a flicker.
        if waited >= TICK {
            let text = self.progress(reporter, waiting, waited);
            self.line.get_or_insert_with(StatusLine::new).as_ref()?.show(text);
        }
        Some(TICK)
    }

    /// How it goes, what changes first, for the end may be cut off.
    fn progress(&mut self, reporter: &Reporter<'_>, waiting: &Waiting<'_>, waited: Duration) -> String {
        let left =
            waiting.left.map(|left| format!(", {} left", whole(left + Duration::from_millis(999)))).unwrap_or_default();
        if let Some(error) = waiting.outage {
            return format!("waited {}{left}; {}", whole(waited), error.message());
        }
        let place = waiting.ahead + 1;
        // How many stand on the pages of a long queue only those would know who read them all.
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
        let Some(grant) = holders.first() else { return "nobody holds it now".to_string() };
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

/// Without fractions, which would only flicker.
fn whole(time: Duration) -> String {
    if time.as_secs() == 0 { "0s".to_string() } else { span(time) }
}
