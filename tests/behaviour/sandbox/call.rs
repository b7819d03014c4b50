//! One call of a program, and what is expected of it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Seek, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};

use super::{CLOCK, FILE_TIMES, Job, Sandbox, plain};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    /// The arguments, for messages.
    words: Vec<OsString>,
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A call under description. Defaults: no input, status 0, nothing on stdout, nothing on stderr.
#[must_use = "a call that is not run tests nothing"]
pub(crate) struct Call<'a> {
    sandbox: &'a Sandbox,
    command: Command,
    stdin: Option<Vec<u8>>,
    code: Option<i32>,
    signal: Option<i32>,
    stdout: String,
    stderr: String,
}

impl<'a> Call<'a> {
    pub(super) fn new(sandbox: &'a Sandbox, command: Command) -> Call<'a> {
        let (stdout, stderr) = (String::new(), String::new());
        Call { sandbox, command, stdin: None, code: Some(0), signal: None, stdout, stderr }
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// With the clocks of host and store moved by this offset.
    pub(crate) fn with_clocks(self, offset: &str) -> Self {
        self.env(CLOCK, offset).env(FILE_TIMES, offset)
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub(crate) fn user(mut self, uid: u32) -> Self {
        self.command.uid(uid).gid(uid);
        self
    }

    pub(crate) fn stdin(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.stdin = Some(bytes.as_ref().to_vec());
        self
    }

    pub(crate) fn status(mut self, code: i32) -> Self {
        self.code = Some(code);
        self
    }

    /// All of stdout, with what differs from run to run replaced: see [`plain`].
    pub(crate) fn stdout(mut self, text: impl Into<String>) -> Self {
        self.stdout = text.into();
        self
    }

    pub(crate) fn stderr(mut self, text: impl Into<String>) -> Self {
        self.stderr = text.into();
        self
    }

    #[track_caller]
    pub(crate) fn run(mut self) {
        let wanted = Done {
            words: arguments(&self.command),
            code: self.code,
            signal: self.signal,
            stdout: std::mem::take(&mut self.stdout),
            stderr: std::mem::take(&mut self.stderr),
        };
        let sandbox = self.sandbox;
        let done = self.capture();
        let found =
            Done { stdout: plain::plain(&done.stdout, sandbox), stderr: plain::plain(&done.stderr, sandbox), ..done };
        assert!(found == wanted, "wanted {wanted:#?}\nfound  {found:#?}");
    }

    #[track_caller]
    pub(crate) fn capture(self) -> Done {
        self.spawn().wait()
    }

    /// Returns the call itself, for a test that runs it in its own way.
    pub(crate) fn into_command(self) -> Command {
        self.command
    }

    /// Begins it, and waits until it has printed a line.
    #[track_caller]
    pub(crate) fn ready(self) -> Job {
        let mut job = self.spawn();
        job.lines(1);
        job
    }

    pub(crate) fn spawn(mut self) -> Job {
        let (stdout, stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        match &self.stdin {
            Some(bytes) => {
                let mut file = tempfile::tempfile().unwrap();
                file.write_all(bytes).unwrap();
                file.rewind().unwrap();
                self.command.stdin(file);
            }
            None => {
                self.command.stdin(Stdio::piped());
            }
        }
        self.command.stdout(copy(&stdout)).stderr(copy(&stderr)).process_group(0);
        let child = match self.command.spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => harness::abandon(self.command.get_program(), error),
            Err(error) => panic!("{:?}: {error}", self.command),
        };
        Job::new(child, stdout, stderr, arguments(&self.command))
    }
}

impl Done {
    pub(super) fn new(words: Vec<OsString>, status: ExitStatus, stdout: String, stderr: String) -> Done {
        Done { words, code: status.code(), signal: status.signal(), stdout, stderr }
    }

    #[track_caller]
    pub(crate) fn exits(&self, code: i32) {
        assert!(self.code == Some(code), "{code} was expected: {self:?}");
    }

    /// It succeeded without a message.
    #[track_caller]
    pub(crate) fn succeeds(&self) {
        self.complains(0, "");
    }

    #[track_caller]
    pub(crate) fn prints(&self, code: i32, stdout: &str) {
        assert!(self.code == Some(code) && self.stdout == stdout, "{code} and {stdout:?} were expected: {self:?}");
    }

    #[track_caller]
    pub(crate) fn complains(&self, code: i32, stderr: &str) {
        assert!(self.code == Some(code) && self.stderr == stderr, "{code} and {stderr:?} were expected: {self:?}");
    }

    /// It failed with this code, and this is part of the message.
    #[track_caller]
    pub(crate) fn says(&self, code: i32, part: &str) {
        let is_said = self.code == Some(code) && self.stderr.contains(part);
        assert!(is_said, "{code} and {part:?} were expected: {self:?}");
    }

    #[track_caller]
    pub(crate) fn is(&self, code: i32, stdout: &str, stderr: &str) {
        self.prints(code, stdout);
        self.complains(code, stderr);
    }

    /// The status as a shell has it in `$?`.
    pub(crate) fn seen_by_shell(&self) -> i32 {
        self.code.or(self.signal.map(|signal| 128 + signal)).unwrap()
    }

    /// Stdout without its last newline, of a call that must have succeeded.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "{self:?}");
        self.stdout.trim_end_matches('\n').to_string()
    }
}

fn arguments(command: &Command) -> Vec<OsString> {
    command.get_args().map(OsStr::to_os_string).collect()
}

fn copy(file: &File) -> File {
    file.try_clone().unwrap()
}
