//! Text that fits into columns of a terminal.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

const INDENT: &str = "  ";

fn fits(text: &str, width: usize) -> bool {
    text.width() <= width
}

pub(super) fn cell(text: &str, width: usize) -> String {
    let clipped = clip(text, width);
    let rest = width.saturating_sub(clipped.width());
    format!("{clipped}{:rest$}", "")
}

/// Returns the text, clipped to at most this width in columns. A tilde replaces the end, or the beginning of a path, whose
/// end tells it from other paths.
pub(super) fn clip(text: &str, width: usize) -> String {
    let rest = width.saturating_sub(1);
    let is_path = text.starts_with('/') && !text.contains(' ');
    match text.char_indices().find(|(at, _)| fits(&text[*at..], rest)) {
        _ if fits(text, width) => text.to_string(),
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

/// Returns the text in lines of at most `width` columns, broken at blanks, but never within a command in back quotes. A
/// longer word stands alone.
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

/// Returns the text in lines of at most `width` columns, of which all but the first are indented.
pub(crate) fn indented(text: &str, width: usize) -> String {
    wrapped(text, width.saturating_sub(INDENT.len()).max(1)).join(&format!("\n{INDENT}"))
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
        assert_eq!([cell("by", 4), cell("日本語", 4)], ["by  ", "日~ "]);
    }
}
