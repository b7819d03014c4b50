//! Tables: columns as wide as their cells, which shrink or go on a terminal that is too narrow; and lines of text that
//! fit into a terminal.

use std::collections::BTreeSet;
use std::time::Duration;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::times::Zone;

/// Number of blanks between two columns; on a terminal that is too narrow for that, one.
const GAP: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputStyle {
    pub(crate) colour: bool,
    /// Width of the terminal in columns; `None` for a file or a pipe, which get lines of any length.
    pub(crate) width: Option<usize>,
    pub(crate) zone: Zone,
}

impl OutputStyle {
    /// A file may be read at any time and place.
    pub(super) fn time(&self, millis: u64, now: Duration) -> String {
        let time = Duration::from_millis(millis);
        if self.width.is_some() { self.zone.brief(time, now) } else { self.zone.word(time) }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Column {
    pub(super) title: String,
    /// Width to which the column shrinks on a narrow terminal; `None` if it keeps its width.
    pub(super) least: Option<usize>,
    /// Rank in which columns are left out on a terminal that is still too narrow; `None` if the column stays.
    pub(super) rank: Option<usize>,
    pub(super) width: usize,
    /// Escape sequence for the colour of a cell; empty for none.
    pub(super) colour: fn(&str) -> &'static str,
}

impl Column {
    pub(super) fn new(title: impl Into<String>) -> Column {
        let title = title.into();
        Column { width: title.width(), title, least: None, rank: None, colour: |_| "" }
    }
}

/// A table. Its rows are single texts, because a store may have a hundred thousand of them.
pub(super) struct Table {
    columns: Vec<Column>,
    pub(super) style: OutputStyle,
    /// Cells that end with a newline, which no cell contains.
    pub(super) rows: Vec<Box<str>>,
}

impl Table {
    pub(super) fn new(columns: impl Into<Vec<Column>>, style: OutputStyle) -> Table {
        Table { columns: columns.into(), style, rows: Vec::new() }
    }

    pub(super) fn add<T: AsRef<str>>(&mut self, cells: &[T]) {
        for (cell, column) in cells.iter().zip(&mut self.columns) {
            column.width = column.width.max(cell.as_ref().width());
        }
        self.rows.push(cells.iter().flat_map(|cell| [cell.as_ref(), "\n"]).collect());
    }

    /// The header and the rows. The column `omitted` is left out.
    pub(super) fn lines(&self, omitted: Option<usize>) -> (String, impl Iterator<Item = String>) {
        let (widths, gap) = self.layout(omitted);
        let titles = self.columns.iter().map(|column| column.title.as_str());
        let header = self.line(titles, &widths, gap, false);
        let cells = self.rows.iter().map(|row| row.split_terminator('\n'));
        (header, cells.map(move |cells| self.line(cells, &widths, gap, self.style.colour)))
    }

    pub(super) fn rows(&self) -> Vec<String> {
        self.lines(None).1.collect()
    }

    /// Width of each column, `None` for a column that is left out, and the gap between them.
    fn layout(&self, omitted: Option<usize>) -> (Vec<Option<usize>>, usize) {
        let all = (0..).zip(&self.columns);
        let mut widths: Vec<_> = all.map(|(at, column)| (omitted != Some(at)).then_some(column.width)).collect();
        let limit = self.style.width.unwrap_or(usize::MAX);
        let gap = if total(&widths, GAP) <= limit { GAP } else { 1 };
        let all = widths.iter().zip(&self.columns);
        let least = all.map(|(width, column)| width.map(|width| width.min(column.least.unwrap_or(width))));
        let mut least: Vec<Option<usize>> = least.collect();
        let ranked = (0..).zip(&self.columns).filter_map(|(at, column)| Some((column.rank?, at)));
        let ranked: BTreeSet<(usize, usize)> = ranked.collect();
        for (_, at) in ranked {
            if total(&least, gap) > limit {
                (widths[at], least[at]) = (None, None);
            }
        }
        let mut excess = total(&widths, gap).saturating_sub(limit);
        // The last one first, because it is the longest. It goes below its least width if that is necessary.
        for (width, least) in widths.iter_mut().zip(least).rev() {
            let given = excess.min(width.unwrap_or(0) - least.unwrap_or(0));
            *width = width.map(|width| width - given);
            excess -= given;
        }
        if let Some(Some(last)) = widths.last_mut() {
            *last = last.saturating_sub(excess);
        }
        (widths, gap)
    }

    fn line<'c>(
        &self,
        cells: impl Iterator<Item = &'c str>,
        widths: &[Option<usize>],
        gap: usize,
        has_colours: bool,
    ) -> String {
        let last = widths.iter().rposition(Option::is_some);
        let mut line = String::new();
        for (at, (text, column)) in cells.zip(&self.columns).enumerate() {
            let Some(width) = widths[at] else { continue };
            let colour = if has_colours { (column.colour)(text) } else { "" };
            let end = if colour.is_empty() { "" } else { "\x1b[0m" };
            let shown = clip(text, width);
            let rest = if Some(at) == last { 0 } else { width + gap - shown.width() };
            line.push_str(&format!("{colour}{shown}{end}{:rest$}", ""));
        }
        cut(&line, self.style.width.unwrap_or(usize::MAX)).trim_end().to_string()
    }
}

fn total(columns: &[Option<usize>], gap: usize) -> usize {
    columns.iter().flatten().map(|width| width + gap).sum::<usize>().saturating_sub(gap)
}

/// Returns the text, clipped to at most this width in columns. A tilde replaces the end, or the beginning of a path, whose
/// end tells it from other paths.
fn clip(text: &str, width: usize) -> String {
    let rest = width.saturating_sub(1);
    let is_path = text.starts_with('/') && !text.contains(' ');
    match text.char_indices().find(|(at, _)| text[*at..].width() <= rest) {
        _ if text.width() <= width => text.to_string(),
        Some((at, _)) if is_path => format!("~{}", &text[at..]),
        _ => cut(text, rest) + "~",
    }
}

pub(crate) fn cut(line: &str, width: usize) -> String {
    let (mut cut, mut used, mut in_escape) = (String::new(), 0, false);
    for char in line.chars() {
        in_escape |= char == '\x1b';
        if !in_escape {
            used += char.width().unwrap_or(0);
        }
        // Escape sequences after the cut stay, because they may end a colour.
        if used <= width || in_escape {
            cut.push(char);
        }
        in_escape &= char != 'm';
    }
    cut
}

/// Broken at blanks, but never within a command in back quotes. A longer word stands alone.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words(text) {
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

/// Lines of at most `width` columns, of which all but the first are indented.
pub(crate) fn indented(text: &str, width: usize) -> String {
    wrapped(text, width.saturating_sub(2).max(1)).join("\n  ")
}

fn words(text: &str) -> Vec<&str> {
    let has_commands = text.matches('`').count().is_multiple_of(2);
    let (mut words, mut start, mut is_in_command) = (Vec::new(), 0, false);
    for (at, char) in text.char_indices() {
        match char {
            '`' if has_commands => is_in_command = !is_in_command,
            ' ' if !is_in_command => {
                words.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    words.push(&text[start..]);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(width: Option<usize>) -> Table {
        let columns = vec![
            Column { least: Some(6), ..Column::new("NAME") },
            Column { rank: Some(2), ..Column::new("PID") },
            Column { rank: Some(1), ..Column::new("UNTIL") },
            Column { least: Some(7), ..Column::new("COMMAND") },
        ];
        let mut table = Table::new(columns, OutputStyle { colour: false, width, zone: Zone::Utc });
        table.add(&["zz", "4711", "alive", "a command"]);
        table.add(&["a-long-name", "12", "forever", "日本語の命令"]);
        table.rows.sort();
        table
    }

    #[track_caller]
    fn shows(width: Option<usize>, omitted: Option<usize>, wanted: &str) {
        let table = table(width);
        let (header, rows) = table.lines(omitted);
        let lines: Vec<String> = std::iter::once(header).chain(rows).collect();
        assert_eq!(lines.join("\n"), wanted);
        let fits = |line: &String| width.is_none_or(|width| line.width() <= width);
        assert!(lines.iter().all(fits), "{lines:?}");
    }

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let wanted = "NAME         PID   UNTIL    COMMAND\n\
                      a-long-name  12    forever  日本語の命令\n\
                      zz           4711  alive    a command";
        shows(None, None, wanted);
        shows(Some(200), None, wanted);
        shows(
            None,
            Some(1),
            "NAME         UNTIL    COMMAND\na-long-name  forever  日本語の命令\nzz           alive    a command",
        );
    }

    #[test]
    fn a_narrow_terminal_shortens_texts_then_leaves_columns_out() {
        let closer = "NAME        PID  UNTIL   COMMAND\n\
                      a-long-name 12   forever 日本語の命令\n\
                      zz          4711 alive   a command";
        shows(Some(37), None, closer);
        let shortened = "NAME        PID  UNTIL   COMMAND\n\
                         a-long-name 12   forever 日本語~\n\
                         zz          4711 alive   a comm~";
        shows(Some(32), None, shortened);
        let shortest = "NAME   PID  UNTIL   COMMAND\n\
                        a-lon~ 12   forever 日本語~\n\
                        zz     4711 alive   a comm~";
        shows(Some(27), None, shortest);
        let without = "NAME      PID  COMMAND\n\
                       a-long-n~ 12   日本語~\n\
                       zz        4711 a comm~";
        shows(Some(22), None, without);
        shows(Some(10), None, "NAME   CO~\na-lon~ 日~\nzz     a ~");
        shows(Some(3), None, "NAM\na-l\nzz");
    }

    #[test]
    fn what_is_cut_off_ends_its_colour() {
        assert_eq!(cut("\x1b[1mheld\x1b[0m by", 7), "\x1b[1mheld\x1b[0m by");
        assert_eq!(cut("\x1b[1mheld\x1b[0m by", 2), "\x1b[1mhe\x1b[0m");
        assert_eq!(cut("日本語", 5), "日本");
    }

    #[test]
    fn lines_break_at_blanks_and_never_within_a_command() {
        let text = "lock x is busy; wait longer with -w, or see `csalock status x`";
        assert_eq!(wrapped(text, 30), ["lock x is busy; wait longer", "with -w, or see", "`csalock status x`"]);
        assert_eq!(wrapped("a `b c", 4), ["a `b", "c"]);
        assert_eq!(wrapped("`csalock unlock --force x`", 9), ["`csalock unlock --force x`"]);
    }

    #[test]
    fn a_tilde_tells_of_what_was_clipped() {
        assert_eq!([clip("held", 4), clip("held", 3), clip("日本語", 5)], ["held", "he~", "日本~"]);
        assert_eq!([clip("/srv/data/b", 7), clip("/srv/b x", 7), clip("/日", 2)], ["~data/b", "/srv/b~", "/~"]);
    }
}
