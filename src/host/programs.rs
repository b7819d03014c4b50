//! Programs that start other programs, recognised by their names and arguments: starters, wrappers and shells. And the
//! string of `sh -c STRING`: whether the shell runs anything more after a call of csalock in it. Make, and
//! `system` in other languages, start a shell for one command; a lock that such a shell owns ends with that command.

use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;

use Token::{Operator, Word};

use super::processes::{ProcStat, read_once};
use crate::lock::ProcessId;

/// Programs that run another program and end with it.
pub(super) const WRAPPER_PROGRAMS: [&str; 28] = [
    "busybox", "chpst", "chroot", "chrt", "csalock", "doas", "env", "faketime", "find", "flock", "ionice", "ltrace",
    "nice", "nohup", "nsenter", "prlimit", "runuser", "script", "setarch", "setpriv", "setsid", "stdbuf", "strace",
    "sudo", "taskset", "time", "timeout", "xargs",
];

/// Programs that wait for the programs they call, except for background jobs.
const SHELLS: [&str; 26] = [
    "ash", "bash", "busybox", "csh", "dash", "elvish", "es", "fish", "hush", "ksh", "lksh", "mksh", "mrsh", "nu",
    "oksh", "osh", "posh", "pwsh", "rbash", "rc", "sash", "sh", "tcsh", "toybox", "yash", "zsh",
];

/// Returns true if the process is a program that is known to only start another program.
pub(super) fn is_starter(stat: &ProcStat, arguments: &[Vec<u8>]) -> bool {
    let is = |program: &[u8]| WRAPPER_PROGRAMS.iter().any(|starter| starter.as_bytes() == program);
    if !is(&stat.program) {
        return false;
    }
    // A script with such a name has its interpreter as its first argument, not itself. Busybox is a program with many
    // names, and the next argument may give the name.
    arguments.iter().map(|argument| base_name(argument)).find(|name| name != b"busybox").is_none_or(is)
}

/// Returns true if a process has the name of a shell, or is a shell script. (The program itself may be hidden.)
pub(super) fn is_called_shell(stat: &ProcStat, arguments: &[Vec<u8>]) -> bool {
    is_name_of_shell(&stat.program) || arguments.first().is_some_and(|shell| is_name_of_shell(shell))
}

/// Returns true if this process only starts the program with the arguments that `ours` returns. Either two adjacent arguments are
/// that program and its first argument, or an argument is a shell string that begins so and is one command. Code of
/// other languages (`system("csalock lock x")`) does not begin so, and may continue. A shell may continue too after its
/// call, unless the call is such a string.
pub(super) fn is_wrapper<'a>(stat: &ProcStat, arguments: &[Vec<u8>], ours: impl FnOnce() -> &'a [Vec<u8>]) -> bool {
    let is_shell = is_called_shell(stat, arguments);
    if is_shell && !matches!(arguments, [_, option, string] if option == b"-c" && is_one_command(string)) {
        return false;
    }
    let [program, argument, ..] = ours() else { return false };
    let is_call = |first: &[u8], second: &[u8]| base_name(first) == base_name(program) && second == argument;
    let is_string = |string: &[u8]| {
        let is_quote = |byte: &u8| matches!(byte, b'"' | b'\'');
        let words: Vec<u8> = string.iter().copied().filter(|byte| !is_quote(byte)).collect();
        let words = words.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let mut words = words.skip_while(|word| *word == b"exec" || word.contains(&b'='));
        is_one_command(string) && is_call(words.next().unwrap_or_default(), words.next().unwrap_or_default())
    };
    if is_shell {
        return arguments.last().is_some_and(|string| is_string(string));
    }
    arguments.windows(2).any(|pair| is_call(&pair[0], &pair[1])) || arguments.iter().any(|one| is_string(one))
}

/// Returns true if a shell string is one command, perhaps with redirections (`2>&1`), so that the shell ends with it.
fn is_one_command(string: &[u8]) -> bool {
    let duplicates = |at: usize| at > 0 && matches!(string[at - 1], b'<' | b'>');
    string.iter().enumerate().all(|(at, byte)| match byte {
        b'&' => duplicates(at),
        b';' | b'|' | b'(' | b')' | b'`' | b'$' | b'\n' => false,
        _ => true,
    })
}

/// Returns true if a program waits for the programs it calls, except for background jobs.
pub(super) fn is_shell(process: &ProcessId) -> bool {
    let program = fs::read_link(format!("/proc/{}/exe", process.pid));
    program.is_ok_and(|program| is_name_of_shell(program.as_os_str().as_bytes()))
}

/// Returns true if this is the name of a shell, perhaps with a version.
pub(super) fn is_name_of_shell(path: &[u8]) -> bool {
    let name = std::str::from_utf8(base_name(path)).unwrap_or_default();
    // These names are valid: `-bash`, `bash5`, `ksh93`, `zsh-5.9`.
    let name = name.trim_start_matches('-');
    SHELLS.contains(&name.trim_end_matches(|last: char| last.is_ascii_digit() || last == '.' || last == '-'))
}

pub(super) fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

pub fn command_of(pid: i32) -> Vec<u8> {
    arguments_of(pid).join(&b' ')
}

/// Reads a file in /proc, which has no size to ask for. One read returns all of a short one.
fn read_command(path: &str) -> io::Result<Vec<u8>> {
    let (mut file, mut command) = (fs::File::open(path)?, vec![0; 4096]);
    let length = read_once(&mut file, &mut command)?;
    if length < command.len() {
        command.truncate(length);
    } else {
        file.read_to_end(&mut command)?;
    }
    Ok(command)
}

pub(super) fn arguments_of(pid: i32) -> Vec<Vec<u8>> {
    let mut command = read_command(&format!("/proc/{pid}/cmdline")).unwrap_or_default();
    while command.last() == Some(&0) {
        command.pop();
    }
    command.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
}

/// Words that may precede a command, besides assignments and programs that only start another program.
const PREFIXES: [&[u8]; 7] = [b"!", b"exec", b"command", b"{", b"if", b"then", b"do"];

/// A part of a shell string: a word without its quotes, or an operator.
#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(Vec<u8>),
    Operator(&'static str),
}

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

fn acquires(command: &[Token]) -> bool {
    let mut words = command.iter().map_while(|token| if let Word(word) = token { Some(word.as_slice()) } else { None });
    match words.next().map(base_name) {
        Some(b"csaLock") => true,
        Some(b"csalock") => matches!(words.find(|word| !word.starts_with(b"-")), Some(b"lock" | b"get")),
        _ => false,
    }
}

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
