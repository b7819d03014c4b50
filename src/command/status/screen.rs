//! The full screen of `status --watch`, borrowed from the terminal. Every way out restores the terminal, even a panic.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, Once, TryLockError};

use anyhow::Context as _;
use rustix::termios::{Action, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcflow, tcgetattr, tcsetattr};

use crate::terminal;

/// Enters the alternate screen and hides the cursor; `LEAVE` undoes both. (The main screen keeps all that was printed.)
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The terminal state to restore, where a panic and other urgent exits find it.
static BORROWED: Mutex<Option<Borrowed>> = Mutex::new(None);

struct Borrowed {
    /// The keyboard's former modes; `None` if stdin is not a terminal.
    keyboard: Option<Termios>,
}

/// The screen is ours as long as this value lives.
pub(super) struct Screen(());

impl Screen {
    pub(super) fn open() -> anyhow::Result<Screen> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                release();
                report(panic);
            }));
        });
        let screen = Screen(());
        screen.enter()?;
        Ok(screen)
    }

    /// Takes over the screen, or what changed on it meanwhile. Keys arrive at once without echo; Ctrl-C and Ctrl-Z keep
    /// their meaning. In the background, the call stops us until we are in the foreground.
    pub(super) fn enter(&self) -> anyhow::Result<()> {
        let (stdin, mut stdout) = (std::io::stdin(), std::io::stdout());
        let keyboard = stdin.is_terminal().then(|| tcgetattr(&stdin)).transpose().context("cannot use the terminal")?;
        if let Some(mut modes) = keyboard.clone() {
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            modes.special_codes[SpecialCodeIndex::VMIN] = 1;
            modes.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(&stdin, OptionalActions::Now, &modes).context("cannot use the terminal")?;
        }
        let mut borrowed = BORROWED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if borrowed.is_none() {
            *borrowed = Some(Borrowed { keyboard });
            drop(borrowed);
            stdout.write_all(ENTER.as_bytes()).and_then(|()| stdout.flush()).context("cannot write to stdout")?;
        }
        Ok(())
    }

    /// Restores the terminal for a while.
    pub(super) fn suspend(&self) {
        release();
    }

    /// Draws as many lines and columns as fit, and erases everything else.
    pub(super) fn draw(&self, lines: &[String]) -> anyhow::Result<()> {
        let mut stdout = std::io::stdout();
        let (rows, columns) = terminal::size(&stdout);
        // After Ctrl-S the terminal would take no output, and a blocked process would handle no signal.
        if !terminal::is_writable(&stdout) {
            return Ok(());
        }
        // The lines overwrite the old ones, so that the screen does not flicker.
        let lines: Vec<String> = lines.iter().take(rows).map(|line| clip(line, columns) + "\x1b[K").collect();
        let text = format!("\x1b[H{}\x1b[J", lines.join("\r\n"));
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).context("cannot write to stdout")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        release();
    }
}

fn release() {
    let borrowed = match BORROWED.try_lock() {
        Ok(mut borrowed) => borrowed.take(),
        Err(TryLockError::Poisoned(borrowed)) => borrowed.into_inner().take(),
        Err(TryLockError::WouldBlock) => None,
    };
    let Some(Borrowed { keyboard }) = borrowed else { return };
    let mut stdout = std::io::stdout();
    if !terminal::is_writable(&stdout) {
        // This resumes the output, as Ctrl-Q does.
        let _ = tcflow(&stdout, Action::OOn);
    }
    let _ = stdout.write_all(LEAVE.as_bytes()).and_then(|()| stdout.flush());
    if let Some(modes) = keyboard {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &modes);
    }
}

/// Returns at most `width` columns of a line that may contain colours.
fn clip(line: &str, width: usize) -> String {
    use unicode_width::UnicodeWidthChar;
    let (mut clipped, mut used, mut in_escape) = (String::new(), 0, false);
    for char in line.chars() {
        in_escape |= char == '\x1b';
        if !in_escape {
            used += char.width().unwrap_or(0);
        }
        // Escape sequences after the cut stay, because they may end a colour.
        if used <= width || in_escape {
            clipped.push(char);
        }
        in_escape &= char != 'm';
    }
    clipped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clipped_line_ends_its_colour() {
        assert_eq!(clip("\x1b[1mheld\x1b[0m by", 7), "\x1b[1mheld\x1b[0m by");
        assert_eq!(clip("\x1b[1mheld\x1b[0m by", 2), "\x1b[1mhe\x1b[0m");
        assert_eq!(clip("日本語", 5), "日本");
    }

    /// The next test runs this test on a terminal.
    #[test]
    #[ignore = "it fails, as it should"]
    fn panic_on_the_screen() {
        std::mem::forget(Screen::open().unwrap());
        panic!("said on the screen that stays");
    }

    #[test]
    fn a_panic_gives_the_screen_back() {
        let this = std::env::current_exe().unwrap();
        let this = format!("{} --ignored --exact {}::panic_on_the_screen", this.display(), module_path!());
        let test = this.replace("csalock::command", "command");
        let command = format!("stty -a > before; {test} --nocapture; stty -a > after");
        let folder = tempfile::tempdir().unwrap();
        let mut script = std::process::Command::new("script");
        script.args(["-q", "-c", &command, "/dev/null"]).current_dir(&folder).env("TERM", "xterm");
        let Ok(done) = script.output() else { return };
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        let (on_screen, after) = printed.split_once(LEAVE).expect(&printed);
        assert!(on_screen.contains(ENTER) && after.contains("said on the screen that stays"), "{printed:?}");
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read("before"), read("after"));
    }
}
