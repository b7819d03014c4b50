//! Writers with random tokens, which are stopped and killed at random times: the token of the content never falls.

use std::collections::HashMap;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{names, sandbox, shown, write};
use crate::extent::{choose, seed};
use crate::sandbox::{Sandbox, csalock};

/// Number of writers at the same time.
const WRITERS: usize = 6;

/// Pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

fn writer(sandbox: &Sandbox, token: u64) -> Child {
    // The content is longer than what one write(2) to a pipe or a page holds.
    let script = format!("yes {token} | head -n 3000");
    let mut command = Command::new(csalock());
    command.args(["fence", "-q", "--token", &token.to_string(), "f", "--", "sh", "-c", &script]).env_clear();
    command.env("PATH", sandbox.search_path()).envs(crate::supervised::mark());
    command.current_dir(sandbox.path("files")).stdin(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn said(child: &mut Child) -> String {
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

/// Returns the token of the content, which must be complete.
fn token_of(text: &str) -> u64 {
    let mut lines = text.lines();
    let token = lines.next().expect("the file is never empty");
    assert!(lines.all(|line| line == token) && text.len() == 3000 * (token.len() + 1), "a part of a content: {token}");
    token.parse().unwrap()
}

/// Reads the file until the end of the storm, as any reader does.
fn watch(sandbox: &Sandbox, is_over: &AtomicBool, acknowledged: &AtomicU64) -> u64 {
    let mut newest = 0;
    loop {
        let last = is_over.load(Ordering::SeqCst);
        let least = acknowledged.load(Ordering::SeqCst);
        let token = token_of(&std::fs::read_to_string(sandbox.path("files/f")).expect("the file is always there"));
        assert!(token >= newest, "the content of token {newest} was replaced by that of token {token}");
        assert!(token >= least, "token {least} was written, and the content is of token {token}");
        newest = token;
        if last {
            return newest;
        }
    }
}

#[test]
fn the_token_of_the_content_never_falls() {
    let seed = seed();
    println!("CSALOCK_SEED={seed}");
    let sandbox = &sandbox();
    assert_eq!(write(sandbox, 1, &"1\n".repeat(3000)), Some(0));
    let (is_over, acknowledged) = (AtomicBool::new(false), AtomicU64::new(1));
    let (mut written, mut refused, mut killed) = (0, 0, 0);
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| watch(sandbox, &is_over, &acknowledged));
        let storm = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut random = Random(seed | 1);
            let end = Instant::now() + Duration::from_secs(choose(5, 60, 600));
            let mut running: HashMap<u64, (Child, bool)> = HashMap::new();
            let mut next: u64 = 1;
            while Instant::now() < end || !running.is_empty() {
                if running.len() < WRITERS && Instant::now() < end {
                    next += 1;
                    // Some writers are late from their start.
                    let token = next.saturating_sub(random.below(4)).max(1);
                    running.entry(token).or_insert_with(|| (writer(sandbox, token), false));
                }
                let tokens: Vec<u64> = running.keys().copied().collect();
                let (child, is_killed) = running.get_mut(&tokens[random.below(tokens.len() as u64) as usize]).unwrap();
                let signal = match random.below(12) {
                    0 => Some(Signal::SIGKILL),
                    1..4 => Some(Signal::SIGSTOP),
                    4..9 => Some(Signal::SIGCONT),
                    _ => None,
                };
                *is_killed |= signal == Some(Signal::SIGKILL);
                if let Some(signal) = signal {
                    let _ = kill(Pid::from_raw(child.id() as i32), signal);
                }
                std::thread::sleep(Duration::from_micros(random.below(3000)));
                running.retain(|token, (child, is_killed)| {
                    let Some(status) = child.try_wait().unwrap() else { return true };
                    match status.code() {
                        Some(0) => {
                            acknowledged.fetch_max(*token, Ordering::SeqCst);
                            written += 1;
                        }
                        Some(87) => refused += 1,
                        None if *is_killed => killed += 1,
                        _ => panic!("the writer with token {token}: {status}: {}", said(child)),
                    }
                    false
                });
            }
        }));
        is_over.store(true, Ordering::SeqCst);
        let seen = watching.join().unwrap();
        storm.unwrap();
        println!("{written} written, {refused} fenced off, {killed} killed, last {seen}");
        assert!(written > 0 && refused > 0 && killed > 0);
        // The last write may be incomplete; the next call completes it.
        let last = 1_000_000;
        assert_eq!(write(sandbox, last, &format!("{last}\n").repeat(3000)), Some(0));
        assert_eq!((token_of(&sandbox.read("files/f")), shown(sandbox)), (last, last.to_string()));
        assert_eq!(names(sandbox), [".csalock", "f"]);
    });
}
