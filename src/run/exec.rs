//! The words of a command, and their execution in place of this process.

#![expect(unsafe_code, reason = "nothing owns the descriptors that csalock opened in place of closed ones")]

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::unistd::{AccessFlags, access, execve, execvpe};

use engine::environment;
use host::signals;
use lock::error::{Error, ErrorKind};
use lock::name::{escape, shell_quote};

/// Commands of a shell that are not programs, and would not help if they were (POSIX, special and intrinsic utilities).
const SHELL_BUILTINS: [&[u8]; 10] =
    [b"cd", b"export", b"exec", b"eval", b"set", b"source", b".", b"ulimit", b"umask", b"wait"];

/// Maximum length of the first line of a script that Linux reads (BINPRM_BUF_SIZE).
const LONGEST_LINE: u64 = 256;

/// Maximum length of the words that a hint repeats, in bytes.
const LONGEST_HINT: usize = 500;

/// Lowest numbers of descriptors that a command inherits, tried in order. Scripts that number their own descriptors
/// stay below 200; the lower numbers are for a small `ulimit -n`.
const NUMBERS: [i32; 3] = [200, 10, 3];

#[derive(Debug, Clone)]
pub struct CommandLine {
    words: Vec<CString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantNumbers {
    pub token: u64,
    pub slot: Option<u32>,
}

impl GrantNumbers {
    pub(super) const SIZE: usize = 16;

    pub(super) fn encode(self) -> [u8; GrantNumbers::SIZE] {
        let slot = self.slot.map_or(u64::MAX, u64::from);
        (u128::from(self.token) << 64 | u128::from(slot)).to_be_bytes()
    }

    pub(super) fn decode(bytes: [u8; GrantNumbers::SIZE]) -> GrantNumbers {
        let both = u128::from_be_bytes(bytes);
        GrantNumbers { token: (both >> 64) as u64, slot: u32::try_from(both as u64).ok() }
    }

    fn variables(self) -> Vec<CString> {
        let token = format!("CSALOCK_TOKEN={}", self.token);
        let slot = self.slot.map(|slot| format!("CSALOCK_SLOT={slot}"));
        [Some(token), slot].into_iter().flatten().filter_map(|variable| CString::new(variable).ok()).collect()
    }
}

impl CommandLine {
    /// Program and arguments, at least one word.
    pub fn new(words: impl IntoIterator<Item = OsString>) -> CommandLine {
        // Words of a command line cannot contain NUL.
        let words = words.into_iter().filter_map(|word| CString::new(word.into_vec()).ok()).collect();
        CommandLine { words }
    }

    pub fn line(&self) -> Vec<u8> {
        self.words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>().join(&b' ')
    }

    pub fn program(&self) -> &OsStr {
        OsStr::from_bytes(self.words[0].as_bytes())
    }

    /// With the signals, descriptors and variables of the start. Returns only if that fails.
    pub fn replace_process(&self) -> Error {
        signals::restore_most();
        self.cannot_execute(self.execute(&environment::all(), None))
    }

    /// Adds the numbers of a new grant to this environment. Returns only if that fails. The caller has restored the signals.
    pub(super) fn execute(&self, environment: &[&CStr], numbers: Option<GrantNumbers>) -> Errno {
        close_again();
        let numbers = numbers.map(GrantNumbers::variables).unwrap_or_default();
        let environment: Vec<&CStr> = environment.iter().copied().chain(numbers.iter().map(|it| &**it)).collect();
        match execvpe(&self.words[0], &self.words, &environment) {
            // A shell runs a script without #!, as execvp(3) does.
            Err(Errno::ENOEXEC) => self.execute_with_shell(&environment),
            Err(errno) => errno,
        }
    }

    fn execute_with_shell(&self, environment: &[&CStr]) -> Errno {
        let Some(script) = find_in_path(&self.words[0]) else { return Errno::ENOEXEC };
        let words: Vec<&CStr> =
            [c"/bin/sh", script.as_c_str()].into_iter().chain(self.words[1..].iter().map(AsRef::as_ref)).collect();
        let Err(errno) = execve(c"/bin/sh", &words, environment);
        errno
    }

    pub(super) fn cannot_execute(&self, errno: Errno) -> Error {
        let word = self.words[0].as_bytes();
        let finds = |is_it: fn(&CStr) -> bool| find_in_path(&self.words[0]).is_some_and(|script| is_it(&script));
        let kind = match errno {
            Errno::ENOENT | Errno::ENOTDIR => ErrorKind::CommandNotFound,
            Errno::EMFILE => ErrorKind::System,
            _ => ErrorKind::CannotExecute,
        };
        let hint = match errno {
            Errno::ENOENT if is_assignment(word) => &self.how_to_set_variables(),
            Errno::ENOENT if word.contains(&b' ') => "use -c to run a string with a shell",
            Errno::ENOENT if SHELL_BUILTINS.contains(&word) => {
                "it is a command of the shell; use -c to run a string with a shell"
            }
            Errno::ENOENT if word.iter().all(u8::is_ascii_digit) => {
                "the word before it was taken as the name of the lock"
            }
            Errno::ENOENT if finds(ends_first_line_with_return) => {
                "its first line ends with a carriage return; remove those of all lines (dos2unix, or sed -i 's/\\r$//')"
            }
            Errno::ENOENT if finds(|_| true) => "its interpreter does not exist: check its `#!` line",
            Errno::ENOENT | Errno::ENOTDIR => {
                "check the spelling and `$PATH`; a function of the shell needs `csalock lock`"
            }
            // A word without a slash is searched in PATH, whatever the current directory contains.
            Errno::EACCES if word.contains(&b'/') && Path::new(OsStr::from_bytes(word)).is_dir() => {
                "it is a directory; name a program"
            }
            Errno::EMFILE => "raise the limit of open files (ulimit -n)",
            Errno::E2BIG => "give it fewer or shorter arguments",
            Errno::ELOOP | Errno::ENAMETOOLONG => "check its path",
            Errno::ETXTBSY => "another process writes to it; try again later",
            Errno::ENOMEM | Errno::EIO | Errno::EAGAIN => "try again",
            _ => "check that it is executable (`chmod +x`) and that its `#!` line names an existing program",
        };
        Error::new(kind, format!("cannot run {}: {}", self.shown(), errno.desc()), hint)
    }

    /// Words that begin with a variable make sense to a shell only.
    fn how_to_set_variables(&self) -> String {
        let mut words: Vec<String> = self.words.iter().map(|word| shell_quote(word.as_bytes())).collect();
        if words.len() == 1 {
            words.push("COMMAND".to_string());
        }
        let words = words.join(" ");
        let shown = if words.len() <= LONGEST_HINT { &words } else { "NAME=VALUE COMMAND" };
        format!("to set a variable, use: env {shown}")
    }

    pub(super) fn shown(&self) -> String {
        escape(self.words[0].as_bytes())
    }
}

/// A shell sets a variable for the command after such a word: `FOO=1`.
pub fn is_assignment(word: &[u8]) -> bool {
    let name = word.split(|byte| *byte == b'=').next().unwrap_or_default();
    name.len() < word.len() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

/// Closes the descriptors that were closed at the start, for the command. Meanwhile they are /dev/null in this process.
fn close_again() {
    for descriptor in (0..3).filter(|descriptor| signals::was_closed(*descriptor)) {
        // SAFETY: nothing in this process uses the descriptor any more, and closing a number touches no memory.
        unsafe { nix::libc::close(descriptor as i32) };
    }
}

/// Keeps an open file open across exec.
pub fn to_be_inherited(file: impl AsFd) -> nix::Result<()> {
    let numbers = NUMBERS.into_iter().map(|from| fcntl(&file, FcntlArg::F_DUPFD(from)));
    let mut tried = numbers.skip_while(|tried| matches!(tried, Err(Errno::EINVAL | Errno::EMFILE)));
    tried.next().unwrap_or(Err(Errno::EMFILE)).map(drop)
}

/// An interpreter with a carriage return in its name does not exist.
fn ends_first_line_with_return(script: &CStr) -> bool {
    let (mut line, path) = (Vec::new(), Path::new(OsStr::from_bytes(script.to_bytes())));
    let read = File::open(path).and_then(|file| BufReader::new(file.take(LONGEST_LINE)).read_until(b'\n', &mut line));
    read.is_ok() && line.starts_with(b"#!") && line.ends_with(b"\r\n")
}

/// A shell would run a program for this word.
pub fn is_program(word: &OsStr) -> bool {
    CString::new(word.as_bytes()).is_ok_and(|word| find_in_path(&word).is_some())
}

fn find_in_path(program: &CStr) -> Option<CString> {
    let name = Path::new(OsStr::from_bytes(program.to_bytes()));
    let is_executable = |path: &PathBuf| path.is_file() && access(path, AccessFlags::X_OK).is_ok();
    let found = if program.to_bytes().contains(&b'/') {
        Some(name.to_path_buf()).filter(is_executable)
    } else {
        let path = environment::path();
        let current = |directory: &PathBuf| directory.as_os_str().is_empty();
        let directories = std::env::split_paths(&path);
        directories.map(|it| if current(&it) { Path::new(".").join(name) } else { it.join(name) }).find(is_executable)
    };
    CString::new(found?.into_os_string().into_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_their_way_to_the_child() {
        for (token, slot) in [(0, None), (1, Some(0)), (u64::MAX, Some(u32::MAX)), (7, Some(3))] {
            let numbers = GrantNumbers { token, slot };
            assert_eq!(GrantNumbers::decode(numbers.encode()), numbers);
        }
    }
}
