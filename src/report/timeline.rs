//! `history` for people: a row for each grant that fits 80 columns, with a bar that shows when it was held.

use std::fmt::Write as _;
use std::time::Duration;

use super::columns::{cell, clip, fits};
use super::shown_user;
use super::table::WIDTH;
use crate::duration::{rfc3339, shown as span};
use crate::history::{Past, Who};
use crate::lock::EndReason;
use crate::name::escape;

/// The header without the time span that the bars show.
const HEADER: &str = "NAME         WHO                  FROM (UTC)  HELD   WAITED END      ";

/// Width of the bars in columns.
const BAR: u64 = 11;

/// Returns the lines for grants that ended since `begin` (zero: any time) or are held now, as seen from this host.
pub fn timeline(grants: &[Past], begin: Duration, now: Duration, host: &str, colour: bool) -> String {
    let now = now.as_millis() as u64;
    let first = grants.iter().map(Past::came).min();
    // The limit is just before the end of time, which untrusted input may contain.
    let Some(begin) = first.map(|first| first.max(begin.as_millis() as u64).min(u64::MAX - 1)) else {
        return String::new();
    };
    let end = grants.iter().map(|past| past.until(now)).max().unwrap_or(now).max(begin.saturating_add(1));
    let mut text = format!("{}\n", clip(&format!("{HEADER}IN {}", span(Duration::from_millis(end - begin))), WIDTH));
    for past in grants {
        row(&mut text, past, (begin, end), now, host, colour);
    }
    text
}

impl Past {
    /// Returns when the wait for the grant began, in milliseconds since the epoch.
    fn came(&self) -> u64 {
        self.from.saturating_sub(self.waited)
    }

    /// Returns when the grant ended, in milliseconds since the epoch; for an unknown end, returns when it began.
    fn until(&self, now: u64) -> u64 {
        match (self.to, self.how) {
            (Some(to), _) => to,
            (None, None) => now,
            (None, Some(_)) => self.from,
        }
    }
}

fn row(text: &mut String, past: &Past, span_shown: (u64, u64), now: u64, host: &str, colour: bool) {
    let mut name = escape(&past.name);
    if !fits(&name, 12) {
        let _ = writeln!(text, "{}", clip(&name, WIDTH));
        name = String::new();
    }
    let held = match (past.to, past.how) {
        (None, Some(_)) => "?".to_string(),
        _ => span(Duration::from_millis(past.until(now).saturating_sub(past.from))),
    };
    let waited = if past.waited == 0 { "-".to_string() } else { span(Duration::from_millis(past.waited)) };
    let paint = match (colour, past.how) {
        (false, _) | (_, Some(EndReason::Released)) => "",
        (_, Some(_)) => "\x1b[31m",
        (_, None) => "\x1b[1m",
    };
    let line = format!(
        "{} {} {} {} {} {paint}{}{} {}",
        cell(&name, 12),
        cell(&who(&past.holder, host), 20),
        // The cell shows 2026-11-21T07:49:00Z without the year and the seconds.
        cell(&rfc3339(Duration::from_millis(past.from)).get(5..16).unwrap_or_default().replace('T', " "), 11),
        cell(&held, 6),
        cell(&waited, 6),
        cell(past.how.map_or("held", EndReason::word), 8),
        if paint.is_empty() { "" } else { "\x1b[0m" },
        bar(past, span_shown, now),
    );
    let _ = writeln!(text, "{}", line.trim_end());
    if let Some(by) = &past.broken_by {
        let _ = writeln!(text, "{}", clip(&format!("{:13}broken by {}", "", who(by, host)), WIDTH));
    }
}

/// Returns the process, the host if it is another one, the user, the label and the command.
fn who(who: &Who, host: &str) -> String {
    let mut text = who.pid.map_or("-".to_string(), |pid| pid.to_string());
    if who.host != host {
        let _ = write!(text, "@{}", escape(who.host.as_bytes()));
    }
    let _ = write!(text, " {}", shown_user(who.uid));
    if let Some(label) = &who.label {
        let _ = write!(text, " [{}]", escape(label));
    }
    format!("{text} {}", escape(&who.command))
}

/// Returns the bar: `-` while the caller waited, `#` while it held the lock, `>` if it still holds it.
fn bar(past: &Past, (begin, end): (u64, u64), now: u64) -> String {
    let at = |time: u64| {
        let into = time.clamp(begin, end) - begin;
        // The product needs 128 bits, because the times are untrusted input.
        (u128::from(into) * u128::from(BAR) / u128::from(end - begin)).min(u128::from(BAR) - 1) as u64
    };
    let (came, from, to) = (at(past.came()), at(past.from), at(past.until(now)));
    (0..BAR)
        .map(|cell| match cell {
            _ if cell == to && past.how.is_none() => '>',
            _ if (from..=to).contains(&cell) => '#',
            _ if (came..from).contains(&cell) => '-',
            _ => ' ',
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Mode;

    /// 2026-11-21T00:00:00Z in milliseconds since the epoch.
    const MIDNIGHT: u64 = 1_795_219_200_000;

    fn past(name: &str, from: u64, to: Option<u64>, how: Option<EndReason>) -> Past {
        let holder = Who { pid: Some(4711), host: "here".into(), uid: 99_999, command: b"job".to_vec(), label: None };
        Past {
            name: name.as_bytes().to_vec(),
            token: Some(1),
            mode: Mode::Exclusive,
            slot: 0,
            holder,
            from: MIDNIGHT + 1000 * from,
            to: to.map(|to| MIDNIGHT + 1000 * to),
            waited: 0,
            how,
            broken_by: None,
        }
    }

    fn shown_at(grants: &[Past], now: u64, colour: bool) -> String {
        timeline(grants, Duration::ZERO, Duration::from_millis(MIDNIGHT + 1000 * now), "here", colour)
    }

    #[test]
    fn a_timeline_of_a_night() {
        let waited = Past { waited: 2_000_000, ..past("nightly", 5600, Some(9200), Some(EndReason::Died)) };
        let by = Who { pid: Some(12), host: "other".into(), uid: 99_998, command: b"sh\n".to_vec(), label: None };
        let broken =
            Past { broken_by: Some(by), ..past("a-rather-long-name", 9200, Some(9300), Some(EndReason::Broken)) };
        let labelled = Who { pid: None, label: Some(b"why".to_vec()), ..broken.holder.clone() };
        let held = Past { holder: labelled, ..past("x", 9000, None, None) };
        let lost = past("x", 9100, None, Some(EndReason::Died));
        let text = shown_at(
            &[past("nightly", 0, Some(3600), Some(EndReason::Released)), waited, broken, lost, held],
            10_800,
            false,
        );
        let wanted = "\
NAME         WHO                  FROM (UTC)  HELD   WAITED END      IN 3h
nightly      4711 99999 job       11-21 00:00 1h     -      released ####
nightly      4711 99999 job       11-21 01:33 1h     33m20s died        --#####
a-rather-long-name
             4711 99999 job       11-21 02:33 1m40s  -      broken            #
             broken by 12@other 99998 sh\\n
x            4711 99999 job       11-21 02:31 ?      -      died              #
x            - 99999 [why] job    11-21 02:30 30m    -      held              #>
";
        assert_eq!(text.replace(" \n", "\n"), wanted, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn an_empty_timeline_has_no_header_and_strange_times_do_no_harm() {
        assert_eq!(shown_at(&[], 0, false), "");
        let far = Past { from: u64::MAX, to: Some(0), waited: u64::MAX, ..past("x", 0, None, Some(EndReason::Died)) };
        let long = Past { from: 0, to: Some(u64::MAX), ..far.clone() };
        for grants in [vec![far.clone()], vec![long.clone()], vec![far, long]] {
            assert!(shown_at(&grants, 5, false).lines().all(|line| line.chars().count() <= 80));
        }
    }

    #[test]
    fn held_locks_and_failures_have_colours() {
        let painted = |how| shown_at(&[past("x", 1, Some(2), how)], 3, true).matches('\x1b').count();
        assert_eq!([None, Some(EndReason::Released), Some(EndReason::Expired)].map(painted), [2, 0, 2]);
    }
}
