//! A process of the test. It and all of its process group end with the test.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::Instant;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::etcd::fair::is_within;

use super::{Done, PATIENCE, wait_until};

pub(crate) struct Job {
    child: Child,
    ended: Option<ExitStatus>,
    stdout: File,
    stderr: File,
    /// The arguments, for messages.
    words: Vec<OsString>,
}

impl Job {
    pub(super) fn new(child: Child, stdout: File, stderr: File, words: Vec<OsString>) -> Job {
        Job { child, ended: None, stdout, stderr, words }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.send(Signal::SIGKILL);
        // Its stdin stays open for those who inherited it.
        let stdin = self.child.stdin.take();
        self.ended = Some(self.child.wait().unwrap());
        self.child.stdin = stdin;
    }

    pub(crate) fn release(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Writes a line to its stdin.
    pub(crate) fn tell(&mut self, line: &str) {
        use std::io::Write;
        self.child.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Returns the output so far.
    pub(crate) fn printed(&self) -> String {
        content(&self.stdout)
    }

    pub(crate) fn said(&self) -> String {
        content(&self.stderr)
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().unwrap();
        }
        self.ended.is_some()
    }

    /// Waits until it has printed this many lines, and returns them all.
    #[track_caller]
    pub(crate) fn lines(&mut self, number: usize) -> Vec<String> {
        wait_until("a line is printed", || self.printed().matches('\n').count() >= number || self.has_ended());
        let text = self.printed();
        let lines: Vec<String> = text.lines().map(str::to_string).collect();
        assert!(lines.len() >= number, "{number} lines were expected: {text:?} {:?}", self.said());
        lines
    }

    /// Ends its stdin, and waits for its end.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Done {
        self.release();
        let begun = Instant::now();
        let status = loop {
            if self.has_ended() {
                break self.ended.unwrap();
            }
            if !is_within(begun, PATIENCE * 4) {
                panic!("{:?} does not end; it said {:?} {:?}", self.words, self.printed(), self.said());
            }
            super::proc::wait_for_end(self.pid(), PATIENCE);
        };
        Done::new(std::mem::take(&mut self.words), status, self.printed(), self.said())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // The id of a process that was waited for may be that of another one meanwhile, unless its group is still there.
        let is_reused = self.ended.is_some() && Path::new(&format!("/proc/{}", self.pid())).exists();
        if !is_reused {
            let _ = killpg(Pid::from_raw(self.pid()), Signal::SIGKILL);
        }
        if self.ended.is_none() {
            let _ = self.child.wait();
        }
    }
}

fn content(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    let read = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(read);
    String::from_utf8_lossy(&bytes).into_owned()
}
