//! Programs that start other programs, recognised by their names and arguments: starters, wrappers and shells.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use super::processes::{ProcStat, read_small};
use lock::ProcessId;

/// Programs that run another program and end with it.
const WRAPPER_PROGRAMS: [&str; 28] = [
    "busybox", "chpst", "chroot", "chrt", "csalock", "doas", "env", "faketime", "find", "flock", "ionice", "ltrace",
    "nice", "nohup", "nsenter", "prlimit", "runuser", "script", "setarch", "setpriv", "setsid", "stdbuf", "strace",
    "sudo", "taskset", "time", "timeout", "xargs",
];

/// Programs that wait for the programs they call, except for background jobs.
const SHELLS: [&str; 26] = [
    "ash", "bash", "busybox", "csh", "dash", "elvish", "es", "fish", "hush", "ksh", "lksh", "mksh", "mrsh", "nu",
    "oksh", "osh", "posh", "pwsh", "rbash", "rc", "sash", "sh", "tcsh", "toybox", "yash", "zsh",
];

pub(super) fn is_starter(stat: &ProcStat, arguments: &[Vec<u8>]) -> bool {
    let is = |program: &[u8]| WRAPPER_PROGRAMS.iter().any(|starter| starter.as_bytes() == program);
    if !is(&stat.program) {
        return false;
    }
    // A script with such a name has its interpreter as its first argument, not itself. Busybox is a program with many
    // names, and the next argument may give the name.
    arguments.iter().map(|argument| base_name(argument)).find(|name| name != b"busybox").is_none_or(is)
}

/// By its name, or as a shell script. (The program itself may be hidden.)
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

/// A shell ends with its one command, perhaps with redirections (`2>&1`).
fn is_one_command(string: &[u8]) -> bool {
    let duplicates = |at: usize| at > 0 && matches!(string[at - 1], b'<' | b'>');
    string.iter().enumerate().all(|(at, byte)| match byte {
        b'&' => duplicates(at),
        b';' | b'|' | b'(' | b')' | b'`' | b'$' | b'\n' => false,
        _ => true,
    })
}

pub(super) fn is_shell(process: &ProcessId) -> bool {
    let program = fs::read_link(format!("/proc/{}/exe", process.pid));
    program.is_ok_and(|program| is_name_of_shell(program.as_os_str().as_bytes()))
}

/// A version may follow the name.
pub(super) fn is_name_of_shell(path: &[u8]) -> bool {
    let name = std::str::from_utf8(base_name(path)).unwrap_or_default();
    // These names are valid: `-bash`, `bash5`, `ksh93`, `zsh-5.9`.
    let name = name.trim_start_matches('-');
    SHELLS.contains(&name.trim_end_matches(|last: char| last.is_ascii_digit() || last == '.' || last == '-'))
}

fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

pub fn command_of(pid: i32) -> Vec<u8> {
    arguments_of(pid).join(&b' ')
}

pub(super) fn arguments_of(pid: i32) -> Vec<Vec<u8>> {
    let mut command = read_small(&format!("/proc/{pid}/cmdline")).unwrap_or_default();
    while command.last() == Some(&0) {
        command.pop();
    }
    command.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
}
