//! The output of a test, and why it fails: kept until the test has ended, and shown only if it fails.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::RefCell;
use std::fmt::Arguments;
use std::io::Write;
use std::panic::PanicHookInfo;

thread_local! {
    /// The output of the test that this thread runs, if it is kept.
    static KEPT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Prints a line, or keeps it.
pub fn print(line: Arguments<'_>) {
    if !keep(line) {
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    }
}

/// Keeps the line if this thread runs a test whose output is kept.
fn keep(line: Arguments<'_>) -> bool {
    KEPT.with_borrow_mut(|kept| kept.as_mut().map(|kept| kept.push_str(&format!("{line}\n"))).is_some())
}

/// Keeps the output of this thread from now on.
pub(crate) fn begin() {
    KEPT.set(Some(String::new()));
}

/// Returns the kept output.
pub(crate) fn end() -> String {
    KEPT.take().unwrap_or_default()
}

/// Keeps the messages of panics too. Those of threads that a test started are printed at once.
pub(crate) fn keep_panics() {
    let print_at_once = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !keep(format_args!("{}", described(panic))) {
            print_at_once(panic);
        }
    }));
}

fn described(panic: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let message = panic.payload_as_str().unwrap_or("(no message)");
    let trace = Backtrace::capture();
    let trace = if trace.status() == BacktraceStatus::Captured { format!("\n{trace}") } else { String::new() };
    format!("thread '{}' panicked at {place}:\n{message}{trace}", thread.name().unwrap_or("(unnamed)"))
}
