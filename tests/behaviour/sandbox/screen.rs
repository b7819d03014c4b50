//! A screen to look at: a bash in a tmux(1) of its own, which understands what is drawn.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::{Sandbox, has, wait_until};

pub(crate) struct Screen<'a> {
    sandbox: &'a Sandbox,
    socket: String,
}

pub(crate) const PROMPT: &str = "ready>";

impl<'a> Screen<'a> {
    /// Opens a screen with this many columns and rows. Returns `None` and skips the test without tmux(1).
    pub(crate) fn new(sandbox: &'a Sandbox, columns: u32, rows: u32) -> Option<Screen<'a>> {
        if !has("tmux") {
            return None;
        }
        let socket = sandbox.path(format!("screen-{}", sandbox.next_job())).display().to_string();
        let screen = Screen { sandbox, socket };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let bash = "exec bash --norc --noprofile -i";
        let begin = ["-f", "/dev/null", "new-session", "-d", "-x", &columns, "-y", &rows, bash];
        let off = [";", "set-option", "status", "off", ";", "resize-window", "-x", &columns, "-y", &rows];
        screen.tmux(&[&begin[..], &off[..]].concat());
        screen.shows(PROMPT);
        Some(screen)
    }

    /// Returns a screen whose tmux(1) runs already, at this socket.
    pub(crate) fn at(sandbox: &'a Sandbox, socket: String) -> Screen<'a> {
        let screen = Screen { sandbox, socket };
        screen.shows(PROMPT);
        screen
    }

    fn tmux(&self, words: &[&str]) -> String {
        let words: Vec<&str> = ["-S", &self.socket].iter().chain(words).copied().collect();
        let call = self.sandbox.call("tmux", words).env("PS1", "ready> ").env("SHELL", "/bin/sh").without("LC_ALL");
        call.env("LC_CTYPE", "C").capture().line()
    }

    pub(crate) fn line(&self, text: &str) {
        self.tmux(&["send-keys", "-l", "--", text]);
        self.keys("Enter");
    }

    /// Types a key, by tmux's name for it: `C-c`, `Enter`, `q`.
    pub(crate) fn keys(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    pub(crate) fn resize(&self, columns: u32, rows: u32) {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]);
    }

    pub(crate) fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"]).trim_end().to_string()
    }

    #[track_caller]
    pub(crate) fn shows(&self, wanted: &str) -> String {
        self.becomes(wanted, |text| text.contains(wanted))
    }

    /// Waits until the visible text fulfils the condition.
    #[track_caller]
    pub(crate) fn becomes(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let mut text = String::new();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_until(&format!("the screen shows {what:?}"), || {
                text = self.text();
                is_so(&text)
            });
        }));
        assert!(found.is_ok(), "the screen does not show {what:?}:\n{text}");
        text
    }

    /// Waits until bash has finished the last typed line. Returns the text above its prompt.
    #[track_caller]
    pub(crate) fn done(&self) -> String {
        let text = self.becomes(PROMPT, |text| text.lines().last() == Some(PROMPT) && text.lines().count() > 1);
        text[..text.len() - PROMPT.len()].to_string()
    }

    /// Waits until bash says that it stopped its job and reads what is typed next; returns what it said.
    #[track_caller]
    pub(crate) fn stopped(&self) -> String {
        self.shows("Stopped");
        let text = self.done();
        // Bash sometimes loses the first line after a job was stopped. An empty line does not change `$?`.
        let typed: Cell<Option<Instant>> = Cell::new(None);
        self.becomes("a second prompt", |now| {
            if typed.get().is_none_or(|typed| typed.elapsed() > Duration::from_secs(1)) {
                self.keys("Enter");
                typed.set(Some(Instant::now()));
            }
            now.matches(PROMPT).count() > text.matches(PROMPT).count() + 1
        });
        text
    }

    /// Whether the other screen is shown, and whether the cursor is.
    pub(crate) fn mode(&self) -> (bool, bool) {
        let mode = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        (mode.starts_with('1'), mode.ends_with('1'))
    }

    /// The terminal's settings and the status of the last command, as bash sees them, on a screen that is empty then.
    pub(crate) fn settings(&self) -> (String, String) {
        let file = format!("settings-{}", self.sandbox.next_job());
        self.line(&format!("echo $? > {file}; stty -a >> {file}; clear; echo > {file}.done"));
        wait_until("stty is done", || self.sandbox.path(format!("files/{file}.done")).exists());
        self.becomes("nothing but a prompt", |text| text == PROMPT);
        let text = self.sandbox.read(&format!("files/{file}"));
        let (status, settings) = text.split_once('\n').unwrap();
        (status.to_string(), settings.to_string())
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        let words = ["-S", &self.socket, "kill-server"];
        let _ = self.sandbox.call("tmux", words).capture();
    }
}
