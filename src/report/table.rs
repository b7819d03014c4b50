//! Tables: columns as wide as their cells, which shrink or go on a terminal that is too narrow.

use unicode_width::UnicodeWidthStr;

use super::columns::{clip, cut};
use super::times::Zone;

/// Number of blanks between two columns; on a terminal that is too narrow for that, one.
const GAP: usize = 2;

/// Properties of the output that shows a table or a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputStyle {
    /// True if the output shows colours.
    pub colour: bool,
    /// Width of the terminal in columns; `None` for a file or a pipe, which get lines of any length.
    pub width: Option<usize>,
    /// The zone of the times.
    pub zone: Zone,
}

/// A column of a table.
#[derive(Debug, Clone)]
pub(super) struct Column {
    title: String,
    /// Width to which the column shrinks on a narrow terminal; `None` if it keeps its width.
    least: Option<usize>,
    /// Rank in which columns are left out on a terminal that is still too narrow; `None` if the column stays.
    rank: Option<usize>,
    /// Width of the widest cell.
    width: usize,
}

impl Column {
    pub(super) fn new(title: impl Into<String>) -> Column {
        let title = title.into();
        Column { width: title.width(), title, least: None, rank: None }
    }

    /// Returns a column of at least this width, for rows that come one by one.
    pub(super) fn at_least(self, width: usize) -> Column {
        Column { width: self.width.max(width), ..self }
    }

    /// Returns a column that may shrink to this width.
    pub(super) fn shrinks_to(self, least: usize) -> Column {
        Column { least: Some(least), ..self }
    }

    /// Returns a column that may be left out, in the order of these ranks.
    pub(super) fn leaves(self, rank: usize) -> Column {
        Column { rank: Some(rank), ..self }
    }
}

/// A table. Its rows are single texts, because a store may have a hundred thousand of them.
#[derive(Debug, Clone)]
pub(super) struct Table {
    columns: Vec<Column>,
    /// Cells that end with a newline, which no cell contains.
    rows: Vec<Box<str>>,
}

/// Returns the escape sequence for the colour of a cell, given its column and text; empty for none.
pub(super) type Paint<'a> = dyn Fn(usize, &str) -> &'static str + 'a;

/// The widths of the columns in an output.
#[derive(Debug)]
pub(super) struct Layout {
    /// Width of each column; `None` for a column that is left out.
    columns: Vec<Option<usize>>,
    /// Number of blanks between two columns.
    gap: usize,
    /// Width of the output.
    width: Option<usize>,
}

impl Table {
    pub(super) fn new(columns: Vec<Column>) -> Table {
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row with a cell for each column.
    pub(super) fn add(&mut self, cells: &[&str]) {
        let mut row = String::with_capacity(cells.iter().map(|cell| cell.len() + 1).sum());
        for (cell, column) in cells.iter().zip(&mut self.columns) {
            column.width = column.width.max(cell.width());
            row.push_str(cell);
            row.push('\n');
        }
        self.rows.push(row.into_boxed_str());
    }

    /// Sorts the rows by their first cells.
    pub(super) fn sort(&mut self) {
        self.rows.sort_unstable();
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the layout for an output of this width. The columns in `omitted` are left out.
    pub(super) fn layout(&self, width: Option<usize>, omitted: &[usize]) -> Layout {
        let all = (0..).zip(&self.columns);
        let mut columns: Vec<_> = all.map(|(at, column)| (!omitted.contains(&at)).then_some(column.width)).collect();
        let limit = width.unwrap_or(usize::MAX);
        let gap = if total(&columns, GAP) <= limit { GAP } else { 1 };
        loop {
            let excess = total(&columns, gap).saturating_sub(limit);
            let reserve: usize = (0..columns.len()).map(|at| self.reserve(&columns, at)).sum();
            let shown = (0..).zip(&self.columns).filter(|(at, _)| columns[*at].is_some());
            match shown.filter_map(|(at, column)| Some((column.rank?, at))).min() {
                Some((_, at)) if reserve < excess => columns[at] = None,
                _ => {
                    self.shrink(&mut columns, excess);
                    return Layout { columns, gap, width };
                }
            }
        }
    }

    /// Makes columns narrower, the last one first, because it is the longest. It goes below its least width if that is
    /// necessary.
    fn shrink(&self, columns: &mut [Option<usize>], mut excess: usize) {
        for at in (0..columns.len()).rev() {
            let given = excess.min(self.reserve(columns, at));
            columns[at] = columns[at].map(|width| width - given);
            excess -= given;
        }
        if let Some(Some(last)) = columns.last_mut() {
            *last = last.saturating_sub(excess);
        }
    }

    /// Returns how much narrower a column may become.
    fn reserve(&self, columns: &[Option<usize>], at: usize) -> usize {
        let least = self.columns[at].least.unwrap_or(usize::MAX);
        columns[at].map_or(0, |width| width.saturating_sub(least))
    }

    pub(super) fn header(&self, layout: &Layout) -> String {
        let titles: Vec<&str> = self.columns.iter().map(|column| column.title.as_str()).collect();
        layout.line(&titles, None)
    }

    /// Returns a row.
    pub(super) fn row(&self, at: usize, layout: &Layout, paint: &Paint<'_>) -> String {
        let cells: Vec<&str> = self.rows[at].split_terminator('\n').collect();
        layout.line(&cells, Some(paint))
    }
}

/// Returns the width of a line.
fn total(columns: &[Option<usize>], gap: usize) -> usize {
    columns.iter().flatten().map(|width| width + gap).sum::<usize>().saturating_sub(gap)
}

impl Layout {
    fn line(&self, cells: &[&str], paint: Option<&Paint<'_>>) -> String {
        let last = self.columns.iter().rposition(Option::is_some);
        let mut line = String::new();
        for (at, (text, width)) in cells.iter().zip(&self.columns).enumerate() {
            let Some(width) = *width else { continue };
            let paint = paint.map_or("", |paint| paint(at, text));
            let end = if paint.is_empty() { "" } else { "\x1b[0m" };
            let shown = clip(text, width);
            let rest = if Some(at) == last { 0 } else { width + self.gap - shown.width() };
            line.push_str(&format!("{paint}{shown}{end}{:rest$}", ""));
        }
        let line = self.width.map_or_else(|| line.clone(), |width| cut(&line, width));
        line.trim_end().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let columns = vec![
            Column::new("NAME").shrinks_to(6),
            Column::new("PID").leaves(2),
            Column::new("UNTIL").leaves(1),
            Column::new("COMMAND").shrinks_to(7),
        ];
        let mut table = Table::new(columns);
        table.add(&["zz", "4711", "alive", "a command"]);
        table.add(&["a-long-name", "12", "forever", "日本語の命令"]);
        table.sort();
        table
    }

    #[track_caller]
    fn shows(width: Option<usize>, omitted: &[usize], wanted: &str) {
        let table = table();
        let layout = table.layout(width, omitted);
        let rows = (0..table.len()).map(|at| table.row(at, &layout, &|_, _| ""));
        let lines: Vec<String> = std::iter::once(table.header(&layout)).chain(rows).collect();
        assert_eq!(lines.join("\n"), wanted);
        let fits = |line: &String| width.is_none_or(|width| line.width() <= width);
        assert!(lines.iter().all(fits), "{lines:?}");
    }

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let wanted = "NAME         PID   UNTIL    COMMAND\n\
                      a-long-name  12    forever  日本語の命令\n\
                      zz           4711  alive    a command";
        shows(None, &[], wanted);
        shows(Some(200), &[], wanted);
        shows(None, &[1, 2], "NAME         COMMAND\na-long-name  日本語の命令\nzz           a command");
    }

    #[test]
    fn a_narrow_terminal_shortens_texts_then_leaves_columns_out() {
        let closer = "NAME        PID  UNTIL   COMMAND\n\
                      a-long-name 12   forever 日本語の命令\n\
                      zz          4711 alive   a command";
        shows(Some(37), &[], closer);
        let shortened = "NAME        PID  UNTIL   COMMAND\n\
                         a-long-name 12   forever 日本語~\n\
                         zz          4711 alive   a comm~";
        shows(Some(32), &[], shortened);
        let shortest = "NAME   PID  UNTIL   COMMAND\n\
                        a-lon~ 12   forever 日本語~\n\
                        zz     4711 alive   a comm~";
        shows(Some(27), &[], shortest);
        let without = "NAME      PID  COMMAND\n\
                       a-long-n~ 12   日本語~\n\
                       zz        4711 a comm~";
        shows(Some(22), &[], without);
        shows(Some(10), &[], "NAME   CO~\na-lon~ 日~\nzz     a ~");
        shows(Some(3), &[], "NAM\na-l\nzz");
    }
}
