//! The string of `sh -c STRING`: whether the shell runs anything more after a call of csalock in it. Make, and
//! `system` in other languages, start a shell for one command; a lock that such a shell owns ends with that command.

use super::programs::{WRAPPER_PROGRAMS, base_name};

/// Words that may precede a command, besides assignments and programs that only start another program.
const PREFIXES: [&[u8]; 7] = [b"!", b"exec", b"command", b"{", b"if", b"then", b"do"];

/// A part of a shell string: a word without its quotes, or an operator.
#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(Vec<u8>),
    Operator(&'static str),
}

use Token::{Operator, Word};

/// Returns true if a shell with these arguments has a string that acquires a lock, and runs nothing after that succeeds:
/// the call is the last command of the string, or only alternatives follow it (`csalock lock x || exit 1`).
pub(super) fn ends_with_lock(shell: &[Vec<u8>]) -> bool {
    let is_option = |word: &Vec<u8>| word.starts_with(b"-") && !word.starts_with(b"--") && word.contains(&b'c');
    let option = shell.iter().skip(1).position(is_option);
    let Some(string) = option.and_then(|option| shell.get(option + 2)) else { return false };
    let tokens = tokens(string);
    let mut calls = (0..tokens.len()).filter(|at| is_command(&tokens[..*at]) && acquires(&tokens[*at..]));
    match (calls.next(), calls.next()) {
        (Some(call), None) => nothing_follows(&tokens[call..]),
        _ => false,
    }
}

/// Returns true if a command with these words acquires a lock.
fn acquires(command: &[Token]) -> bool {
    let mut words = command.iter().map_while(|token| if let Word(word) = token { Some(word.as_slice()) } else { None });
    match words.next().map(base_name) {
        Some(b"csaLock") => true,
        Some(b"csalock") => matches!(words.find(|word| !word.starts_with(b"-")), Some(b"lock" | b"get")),
        _ => false,
    }
}

/// Returns true if the word after these tokens is a command, not an argument.
fn is_command(before: &[Token]) -> bool {
    let words = before.iter().rev().map_while(|token| if let Word(word) = token { Some(word) } else { None });
    let Some(first) = words.last() else { return true };
    let starts = WRAPPER_PROGRAMS.iter().any(|program| program.as_bytes() == base_name(first));
    starts || first.contains(&b'=') || PREFIXES.contains(&first.as_slice())
}

/// Returns true if the shell runs nothing after the first of these commands succeeds.
fn nothing_follows(tokens: &[Token]) -> bool {
    let (mut in_alternative, mut depth) = (false, 0_u32);
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Operator("||") => in_alternative = true,
            Operator("(") if in_alternative => depth += 1,
            Operator(")") => depth = depth.saturating_sub(1),
            Word(word) if in_alternative && word == b"{" => depth += 1,
            Word(word) if word == b"}" => depth = depth.saturating_sub(1),
            Operator("|") | Word(_) => {}
            Operator(_) if depth > 0 => {}
            Operator("&&") => return false,
            Operator(_) => return tokens[at..].iter().all(|token| matches!(token, Operator(";"))),
        }
    }
    true
}

/// Splits a shell string. A newline counts as `;`, and so does `&`.
fn tokens(string: &[u8]) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut rest = string;
    while let [byte, after @ ..] = rest {
        rest = after;
        let is_redirection = word.as_ref().is_some_and(|word| matches!(word.last(), Some(b'<' | b'>')));
        let operator = match (byte, after) {
            (b'\\', [b'\n', ..]) => {
                rest = &rest[1..];
                continue;
            }
            (b'\\', [escaped, ..]) => {
                word.get_or_insert_default().push(*escaped);
                rest = &rest[1..];
                continue;
            }
            (b'\'' | b'"', _) => {
                let is_end =
                    |at: &usize| after[*at] == *byte && (*byte == b'\'' || *at == 0 || after[*at - 1] != b'\\');
                let end = (0..after.len()).find(is_end).unwrap_or(after.len());
                word.get_or_insert_default().extend(&after[..end]);
                rest = after.get(end + 1..).unwrap_or_default();
                continue;
            }
            (b'#', _) if word.is_none() => {
                rest = &after[after.iter().position(|byte| *byte == b'\n').unwrap_or(after.len())..];
                continue;
            }
            (b'&', [b'&', ..]) => "&&",
            (b'|', [b'|', ..]) => "||",
            // `2>&1`, `&>file`, `>|file`
            (b'&' | b'|', _) if is_redirection => "",
            (b'&', [b'>', ..]) => "",
            (b'|', _) => "|",
            (b'&' | b';' | b'\n', _) => ";",
            (b'(', _) => "(",
            (b')' | b'`', _) => ")",
            (b' ' | b'\t', _) => {
                tokens.extend(word.take().map(Word));
                continue;
            }
            _ => "",
        };
        if operator.is_empty() {
            word.get_or_insert_default().push(*byte);
            continue;
        }
        tokens.extend(word.take().map(Word));
        tokens.push(Operator(operator));
        rest = &rest[operator.len() - 1..];
    }
    tokens.extend(word.map(Word));
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_last(string: &str) -> bool {
        let words = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
        let is_last = ends_with_lock(&words(&["/bin/sh", "-c", string]));
        assert_eq!(ends_with_lock(&words(&["bash", "-o", "pipefail", "-ec", string, "$0"])), is_last);
        is_last
    }

    #[test]
    fn a_shell_that_does_nothing_more_is_recognised() {
        for string in [
            "csalock lock x",
            "csalock lock x || exit 1",
            "csalock lock x || { echo busy >&2; exit 1; }",
            "csalock lock \"$NAME\" 2>&1 >log || (echo busy; exit 1) || false;",
            "cd /srv && sudo -u www csalock lock x # one at a time",
            "A=1 exec \\\n 'csalock' lock x\n",
            "! csalock lock x",
            "csalock lock x | tee log &",
            "(csalock lock x)",
            "handle=$(csalock lock x)",
            "echo \"\\\"a && b\"; csalock -q lock x",
            "csaLock \"$FILE\" || exit",
        ] {
            assert!(is_last(string), "{string}");
        }
    }

    #[test]
    fn a_shell_that_goes_on_is_not() {
        for string in [
            "",
            "csalock lock x; :",
            "csalock lock x && make all",
            "csalock lock x || exit 1\nmake all",
            "csalock lock x || { echo busy; exit 1; } && make all",
            "csalock lock x || true; make all",
            "(csalock lock x) && make all",
            "if csalock lock x; then make all; fi",
            "csalock lock x & wait",
            "csalock lock x 2>&1 && \\\n make all",
            "csalock lock x; csalock lock x",
            "echo csalock lock x",
            "echo 'csalock lock x'",
            "csalock unlock lock",
            "csalock run lock make all",
            "./script || exit 1",
            "exec 9> 'a b\"; csalock lock x",
        ] {
            assert!(!is_last(string), "{string}");
        }
    }
}
