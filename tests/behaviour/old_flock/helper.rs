//! The helper of `run --flock`, which waits in flock(2), and processes that hold it up.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{flocks, is_free, old_holder, waiter};
use crate::sandbox::{Job, Kind, Sandbox, has, proc, wait_until};

/// The helper, which csalock has started after the process that is to be the command.
fn helper(job: &Job) -> i32 {
    *proc::children(job.pid()).last().unwrap()
}

#[test]
fn a_stopped_helper_goes_on() {
    let sandbox = Sandbox::new(Kind::Directory);
    let mut old = old_holder(&sandbox, "f");
    let next = waiter(&sandbox, &[], &["echo", "in"]);
    let before = helper(&next);
    kill(Pid::from_raw(before), Signal::SIGSTOP).unwrap();
    old.release();
    next.wait().is(0, "in\n", "");
    assert!(is_free(&sandbox, "f"));
}

#[test]
fn a_helper_that_cannot_be_reaped_does_not_prolong_the_wait() {
    require!(has("strace"));
    for signal in [None, Some(Signal::SIGTERM)] {
        let sandbox = Sandbox::new(Kind::Directory);
        let mut old = old_holder(&sandbox, "f");
        let limit = if signal.is_some() { "inf" } else { "3s" };
        let mut next = waiter(&sandbox, &["-w", limit], &["touch", "ran"]);
        let pid = helper(&next).to_string();
        // A stopped debugger does not reap the process that it traces, and so no other process can.
        let mut debugger = sandbox.call("strace", ["-qq", "-o", "/dev/null", "-p", &pid]).spawn();
        let is_traced = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.lines().any(|line| line.strip_prefix("TracerPid:\t").is_some_and(|tracer| tracer != "0"))
        };
        wait_until("it is traced", || is_traced() || next.has_ended());
        debugger.send(Signal::SIGSTOP);
        signal.iter().for_each(|signal| next.send(*signal));
        wait_until("the call ends", || next.has_ended());
        let done = next.wait();
        assert_eq!(done.seen_by_shell(), if signal.is_some() { 143 } else { 75 }, "{done:?}");
        debugger.kill();
        old.release();
        old.wait().exits(0);
        wait_until("no helper is left", || flocks(&sandbox, "f") == (0, 0));
        assert!(!sandbox.path("files/ran").exists());
    }
}
