//! `history` for people: a row for each grant, with a bar that shows when it was held.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::Zone;
use super::holder::{label_and_command, process, shown_user};
use super::table::{Column, OutputStyle, Table};
use lock::EndReason;
use lock::duration::shown as span;
use lock::history::{Past, RunEnd, Who};
use lock::name::escape;

const BAR: u64 = 11;

/// Grants that ended since `begin` (zero: any time) or are held now, as seen from this host.
pub(crate) fn timeline(grants: &[Past], begin: Duration, now: Duration, host: &str, style: OutputStyle) -> String {
    let millis = now.as_millis() as u64;
    let Some(first) = grants.iter().map(Past::came).min() else { return String::new() };
    // The limit is just before the end of time, which untrusted input may contain.
    let begin = first.max(begin.as_millis() as u64).min(u64::MAX - 1);
    let end = grants.iter().map(|past| past.until(millis)).max().unwrap_or(millis).max(begin.saturating_add(1));
    let from =
        if style.width.is_none() { "FROM".to_string() } else { format!("FROM ({})", style.zone.format(now, "%Z")) };
    let columns = [
        Column { least: Some(12), ..Column::new("NAME") },
        Column::new(from),
        Column::new("HELD"),
        Column { rank: Some(2), ..Column::new("WAITED") },
        Column { colour: end_colour, ..Column::new("END") },
        Column { rank: Some(1), ..Column::new(format!("IN {}", span(Duration::from_millis(end - begin)))) },
        Column { least: Some(24), ..Column::new("HOLDER") },
    ];
    let mut table = Table::new(columns, style);
    for past in grants {
        add_rows(&mut table, past, bar(past, (begin, end), millis), now, host, style);
        if grants.iter().any(|other| past.overlaps(other)) {
            table.add(&["", "", "", "", "", "", "worked on beside the next holder"]);
        }
    }
    let (header, rows) = table.lines(None);
    std::iter::once(header).chain(rows).map(|line| line + "\n").collect()
}

/// A process that broke the grant or ended its holder has a row of its own.
fn add_rows(table: &mut Table, past: &Past, bar: String, now: Duration, host: &str, style: OutputStyle) {
    let zone = style.zone.format(Duration::from_millis(past.from), "%Z");
    let mut from = style.time(past.from, now);
    // The clocks have changed since.
    if style.width.is_some() && zone != style.zone.format(now, "%Z") {
        from.push_str(&format!(" {zone}"));
    }
    let waited = if past.waited == 0 { "-".to_string() } else { span(Duration::from_millis(past.waited)) };
    table.add(&[escape(&past.name), from, held_for(past, now), waited, ended(past), bar, who(&past.holder, host)]);
    // If the end was requested in vain, a break counts. A holder whose lease ended may go on.
    let ended = if past.how == Some(EndReason::Expired) { "asked to end" } else { "ended" };
    let ended_by = past.ended_by.as_ref().map(|by| (if by.replaces { "replaced" } else { ended }, &by.who));
    if let Some((what, by)) = past.broken_by.as_ref().map(|by| ("broken", by)).or(ended_by) {
        let cause = format!("{what} by {}", who(by, host));
        table.add(&["", "", "", "", "", "", cause.as_str()]);
    }
}

fn end_colour(cell: &str) -> &'static str {
    match cell {
        "died" | "expired" | "broken" => "\x1b[31m",
        "held" => "\x1b[1m",
        // A command failed.
        _ if cell.starts_with("exit ") || cell.starts_with("SIG") => "\x1b[31m",
        _ => "",
    }
}

pub(super) fn ended(past: &Past) -> String {
    match past.run.filter(|run| run.exit != 0) {
        Some(RunEnd { signal: Some(signal), .. }) => signal_name(signal),
        Some(RunEnd { exit, .. }) => format!("exit {exit}"),
        None => past.how.map_or("held", EndReason::word).to_string(),
    }
}

pub(super) fn signal_name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("SIG{signal}"), |signal| signal.as_str().to_string())
}

/// A clause about the last run of a job, unless it succeeded.
pub(crate) fn failure(past: &Past, zone: Zone) -> Option<String> {
    let how = ended(past);
    let at = past.to.map(|to| format!(" at {}", zone.full(Duration::from_millis(to)))).unwrap_or_default();
    (how != EndReason::Released.word()).then(|| format!("its last run ended{at}: {how}"))
}

/// `?` if no process noticed its end.
pub(super) fn held_for(past: &Past, now: Duration) -> String {
    match (past.to, past.how) {
        (None, Some(_)) => "?".to_string(),
        _ => span(Duration::from_millis(past.until(now.as_millis() as u64).saturating_sub(past.from))),
    }
}

pub(super) fn who(who: &Who, here: &str) -> String {
    let process = process(who.pid, &who.host, here);
    format!("{process} {} {}", shown_user(who.uid), label_and_command(who.label.as_ref(), &who.command))
}

/// `-` while the caller waited, `#` while it held the lock, `>` if it still holds it.
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
    use lock::Mode;
    use lock::history::EndedBy;

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
            ended_by: None,
            late: false,
            run: None,
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

    #[test]
    fn a_requested_end_names_the_process_that_asked_unless_the_lock_was_broken() {
        let by = |pid| Who { pid: Some(pid), host: "here".into(), uid: 99_998, command: b"sh".to_vec(), label: None };
        let second_row = |ended_by, broken_by| {
            let past = Past { ended_by, broken_by, ..past("x", 1, Some(2), Some(EndReason::Released)) };
            let text = shown_at(&[past], 3, false, Some(120));
            text.lines().nth(2).map(|row| row.trim().to_string())
        };
        let ended_by = |replaces| Some(EndedBy { who: by(12), replaces });
        assert_eq!(second_row(None, None), None);
        assert_eq!(second_row(ended_by(false), None).as_deref(), Some("ended by 12 99998 sh"));
        assert_eq!(second_row(ended_by(true), None).as_deref(), Some("replaced by 12 99998 sh"));
        assert_eq!(second_row(ended_by(false), Some(by(13))).as_deref(), Some("broken by 13 99998 sh"));
    }
}
