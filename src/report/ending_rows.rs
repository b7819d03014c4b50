//! `history --follow` for people: rows that come one by one, with the columns of the timeline but no bar.

use std::time::Duration;

use super::table::{Column, OutputStyle, Table};
use super::timeline::{ended, from_title, held_for, paint, waited_for, who};
use crate::history::Past;
use crate::name::escape;

/// Widths of the columns before the last. A longer cell moves the rest of its row, or is cut on a terminal.
const NAME: usize = 20;
const SPAN: usize = 7;
const END: usize = 8;

/// Returns the header.
pub fn endings_header(now: Duration, style: OutputStyle) -> String {
    let table = table(now, style);
    table.header(&table.layout(style.width, &[])) + "\n"
}

/// Returns the row of a grant that ended, as seen from this host, and a row about the process that broke it.
pub fn ending_rows(past: &Past, now: Duration, host: &str, style: OutputStyle) -> String {
    let from = from(past, now, style);
    let (name, held, waited) = (escape(&past.name), held_for(past, now), waited_for(past));
    let mut rows = row(&[&name, &from, &held, &waited, ended(past), &who(&past.holder, host)], now, style);
    if let Some(by) = &past.broken_by {
        rows += &row(&["", "", "", "", "", &format!("broken by {}", who(by, host))], now, style);
    }
    rows
}

fn row(cells: &[&str], now: Duration, style: OutputStyle) -> String {
    let mut table = table(now, style);
    // On a terminal all rows have the same columns, in a file no cell is cut.
    let of_terminal = style.width.map(|width| table.layout(Some(width), &[]));
    table.add(cells);
    let layout = of_terminal.unwrap_or_else(|| table.layout(None, &[]));
    table.row(0, &layout, &|column, cell| paint(style, column, cell)) + "\n"
}

/// Returns the table without rows.
fn table(now: Duration, style: OutputStyle) -> Table {
    let from = date(now, style).len();
    Table::new(vec![
        Column::new("NAME").at_least(NAME).shrinks_to(12),
        Column::new(from_title(now, style)).at_least(from),
        Column::new("HELD").at_least(SPAN),
        Column::new("WAITED").at_least(SPAN).leaves(1),
        Column::new("END").at_least(END),
        Column::new("HOLDER").at_least(style.width.unwrap_or_default()).shrinks_to(22),
    ])
}

/// Returns a time with its date: a terminal may show rows of many days.
fn date(time: Duration, style: OutputStyle) -> String {
    match style.width {
        None => style.zone.word(time),
        Some(_) => style.zone.full(time).rsplit_once(' ').map(|(date, _)| date.to_string()).unwrap_or_default(),
    }
}

/// Returns the start of a grant, with its zone if the clocks have changed since.
fn from(past: &Past, now: Duration, style: OutputStyle) -> String {
    let time = Duration::from_millis(past.from);
    let (date, zone) = (date(time, style), style.zone.name(time));
    if style.width.is_none() || zone == style.zone.name(now) { date } else { format!("{date} {zone}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Who;
    use crate::lock::{EndReason, Mode};
    use crate::report::Zone;

    /// 2026-11-21T00:00:00Z in milliseconds since the epoch.
    const MIDNIGHT: u64 = 1_795_219_200_000;

    fn shown(name: &str, colour: bool, width: Option<usize>) -> String {
        let by = Who { pid: Some(12), host: "other".into(), uid: 99_998, command: b"sh\n".to_vec(), label: None };
        let past = Past {
            name: name.as_bytes().to_vec(),
            token: Some(1),
            mode: Mode::Exclusive,
            slot: 0,
            holder: Who { pid: Some(4711), host: "here".into(), uid: 99_999, command: b"job".to_vec(), label: None },
            from: MIDNIGHT + 5_600_000,
            to: Some(MIDNIGHT + 9_200_000),
            waited: 2_000_000,
            how: Some(EndReason::Broken),
            broken_by: Some(by),
        };
        let (style, now) = (OutputStyle { colour, width, zone: Zone::Utc }, Duration::from_millis(MIDNIGHT));
        endings_header(now, style) + &ending_rows(&past, now, "here", style)
    }

    #[test]
    fn a_file_gets_columns_of_fixed_widths_and_whole_texts() {
        let wanted = "\
NAME                  FROM                  HELD     WAITED   END       HOLDER
nightly               2026-11-21T01:33:20Z  1h       33m20s   broken    4711 99999 job
                                                                        broken by 12@other 99998 sh\\n
";
        assert_eq!(shown("nightly", false, None), wanted);
        let long = shown("a-name-that-is-longer-than-its-column", false, None);
        assert!(
            long.contains("\na-name-that-is-longer-than-its-column  2026-11-21T01:33:20Z  1h       33m20s"),
            "{long}"
        );
    }

    #[test]
    fn a_terminal_gets_rows_that_fit() {
        let wanted = "\
NAME         FROM (UTC)          HELD    WAITED  END      HOLDER
nightly      2026-11-21 01:33:20 1h      33m20s  broken   4711 99999 job
                                                          broken by 12@other 99~
";
        assert_eq!(shown("nightly", false, Some(80)), wanted);
        let long = shown("a-name-that-is-longer-than-its-column", true, Some(60));
        assert!(long.contains("a-name-that~ 2026-11-21 01:33:20 1h      \x1b[31mbroken"), "{long}");
        let wide = shown("nightly", false, Some(120));
        assert!(wide.contains("broken by 12@other 99998 sh\\n\n"), "{wide}");
    }
}
