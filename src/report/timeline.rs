//! `history` for people: a row for each grant, with a bar that shows when it was held.

use std::fmt::Write as _;
use std::time::Duration;

use super::shown_user;
use super::table::{Column, OutputStyle, Table};
use crate::duration::shown as span;
use crate::history::{Past, Who};
use crate::lock::EndReason;
use crate::name::escape;

/// Width of the bars in columns.
const BAR: u64 = 11;

/// Index of the column whose cells decide about colours.
const END: usize = 4;

/// Returns the lines for grants that ended since `begin` (zero: any time) or are held now, as seen from this host.
pub fn timeline(grants: &[Past], begin: Duration, now: Duration, host: &str, style: OutputStyle) -> String {
    let millis = now.as_millis() as u64;
    let first = grants.iter().map(Past::came).min();
    // The limit is just before the end of time, which untrusted input may contain.
    let Some(begin) = first.map(|first| first.max(begin.as_millis() as u64).min(u64::MAX - 1)) else {
        return String::new();
    };
    let end = grants.iter().map(|past| past.until(millis)).max().unwrap_or(millis).max(begin.saturating_add(1));
    let mut table = Table::new(vec![
        Column::new("NAME").shrinks_to(12),
        Column::new(from_title(now, style)),
        Column::new("HELD"),
        Column::new("WAITED").leaves(2),
        Column::new("END"),
        Column::new(format!("IN {}", span(Duration::from_millis(end - begin)))).leaves(1),
        Column::new("HOLDER").shrinks_to(24),
    ]);
    for past in grants {
        table.add(&[
            &escape(&past.name),
            &from(past, now, style),
            &held_for(past, now),
            &waited_for(past),
            ended(past),
            &bar(past, (begin, end), millis),
            &who(&past.holder, host),
        ]);
        if let Some(by) = &past.broken_by {
            table.add(&["", "", "", "", "", "", &format!("broken by {}", who(by, host))]);
        }
    }
    let layout = table.layout(style.width, &[]);
    let rows = (0..table.len()).map(|at| table.row(at, &layout, &|column, cell| paint(style, column, cell)));
    std::iter::once(table.header(&layout)).chain(rows).map(|line| line + "\n").collect()
}

/// Returns the title of the column of starts; on a terminal, it names the zone.
pub(super) fn from_title(now: Duration, style: OutputStyle) -> String {
    if style.width.is_none() { "FROM".to_string() } else { format!("FROM ({})", style.zone.name(now)) }
}

/// Returns the escape sequence for the colour of a cell.
pub(super) fn paint(style: OutputStyle, column: usize, cell: &str) -> &'static str {
    match (column, cell) {
        _ if !style.colour => "",
        (END, "died" | "expired" | "broken") => "\x1b[31m",
        (END, "held") => "\x1b[1m",
        _ => "",
    }
}

/// Returns the start of a grant as its readers need it: a file may be read at any time and place, and before a change of
/// the clocks the zone had another name.
fn from(past: &Past, now: Duration, style: OutputStyle) -> String {
    let time = Duration::from_millis(past.from);
    if style.width.is_none() {
        return style.zone.word(time);
    }
    let (zone, text) = (style.zone.name(time), style.zone.brief(time, now));
    if zone == style.zone.name(now) { text } else { format!("{text} {zone}") }
}

/// Returns how long the holder waited, or `-` if it did not.
pub(super) fn waited_for(past: &Past) -> String {
    if past.waited == 0 { "-".to_string() } else { span(Duration::from_millis(past.waited)) }
}

/// Returns how a grant ended, or `held`.
pub(super) fn ended(past: &Past) -> &'static str {
    past.how.map_or("held", EndReason::word)
}

/// Returns how long a grant was held, or `?` if no process noticed its end.
pub(super) fn held_for(past: &Past, now: Duration) -> String {
    match (past.to, past.how) {
        (None, Some(_)) => "?".to_string(),
        _ => span(Duration::from_millis(past.until(now.as_millis() as u64).saturating_sub(past.from))),
    }
}

impl Past {
    /// Returns when the wait for the grant began, in milliseconds since the epoch.
    fn came(&self) -> u64 {
        self.from.saturating_sub(self.waited)
    }

    /// Returns when the grant ended, in milliseconds since the epoch; for an unknown end, returns when it began.
    pub(crate) fn until(&self, now: u64) -> u64 {
        match (self.to, self.how) {
            (Some(to), _) => to,
            (None, None) => now,
            (None, Some(_)) => self.from,
        }
    }
}

/// Returns the process, the host if it is another one, the user, the label and the command.
pub(super) fn who(who: &Who, host: &str) -> String {
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
    use crate::report::Zone;

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

    fn shown_at(grants: &[Past], now: u64, colour: bool, width: Option<usize>) -> String {
        let style = OutputStyle { colour, width, zone: Zone::Utc };
        timeline(grants, Duration::ZERO, Duration::from_millis(MIDNIGHT + 1000 * now), "here", style)
    }

    fn a_night() -> [Past; 5] {
        let waited = Past { waited: 2_000_000, ..past("nightly", 5600, Some(9200), Some(EndReason::Died)) };
        let by = Who { pid: Some(12), host: "other".into(), uid: 99_998, command: b"sh\n".to_vec(), label: None };
        let broken =
            Past { broken_by: Some(by), ..past("a-rather-long-name", 9200, Some(9300), Some(EndReason::Broken)) };
        let labelled = Who { pid: None, label: Some(b"why".to_vec()), ..broken.holder.clone() };
        let held = Past { holder: labelled, ..past("x", 9000, None, None) };
        let lost = past("x", 9100, None, Some(EndReason::Died));
        [past("nightly", 0, Some(3600), Some(EndReason::Released)), waited, broken, lost, held]
    }

    #[test]
    fn a_timeline_of_a_night() {
        let wanted = "\
NAME               FROM (UTC) HELD  WAITED END      HOLDER
nightly            00:00:00   1h    -      released 4711 99999 job
nightly            01:33:20   1h    33m20s died     4711 99999 job
a-rather-long-name 02:33:20   1m40s -      broken   4711 99999 job
                                                    broken by 12@other 99998 sh~
x                  02:31:40   ?     -      died     4711 99999 job
x                  02:30:00   30m   -      held     - 99999 [why] job
";
        let text = shown_at(&a_night(), 10_800, false, Some(80));
        assert_eq!(text, wanted, "\n{text}");
    }

    #[test]
    fn a_file_gets_whole_lines_and_times_that_stand_alone() {
        let wanted = "\
NAME                FROM                  HELD   WAITED  END       IN 3h        HOLDER
nightly             2026-11-21T00:00:00Z  1h     -       released  ####         4711 99999 job
nightly             2026-11-21T01:33:20Z  1h     33m20s  died         --#####   4711 99999 job
a-rather-long-name  2026-11-21T02:33:20Z  1m40s  -       broken             #   4711 99999 job
                                                                                broken by 12@other 99998 sh\\n
x                   2026-11-21T02:31:40Z  ?      -       died               #   4711 99999 job
x                   2026-11-21T02:30:00Z  30m    -       held               #>  - 99999 [why] job
";
        let text = shown_at(&a_night(), 10_800, false, None);
        assert_eq!(text, wanted, "\n{text}");
    }

    #[test]
    fn an_empty_timeline_has_no_header_and_strange_times_do_no_harm() {
        assert_eq!(shown_at(&[], 0, false, None), "");
        let far = Past { from: u64::MAX, to: Some(0), waited: u64::MAX, ..past("x", 0, None, Some(EndReason::Died)) };
        let long = Past { from: 0, to: Some(u64::MAX), ..far.clone() };
        for grants in [vec![far.clone()], vec![long.clone()], vec![far, long]] {
            assert!(shown_at(&grants, 5, false, Some(80)).lines().all(|line| line.chars().count() <= 80));
        }
    }

    #[test]
    fn held_locks_and_failures_have_colours() {
        let painted = |how| shown_at(&[past("x", 1, Some(2), how)], 3, true, None).matches('\x1b').count();
        assert_eq!([None, Some(EndReason::Released), Some(EndReason::Expired)].map(painted), [2, 0, 2]);
    }
}
