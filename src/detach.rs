//! A process in the background: one that has no terminal, no descriptor and no working directory of ours, that signals to
//! us do not reach, and that outlives us.

#![expect(unsafe_code, reason = "fork")]

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction, sigprocmask};
use nix::sys::stat::Mode;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, chdir, fork, setsid};

use crate::error::{Error, Result};

/// Whose child it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detach {
    /// Ours.
    Child,
    /// Nobody's who was there before: whoever we are to become has no child that it did not make.
    Orphan,
}

/// Runs `work` in a process in the background, with no descriptor but `keep`. Returns its pid where it is our child.
///
/// # Errors
///
/// When the system has no processes left.
pub fn spawn(
    name: &std::ffi::CStr,
    parent: Detach,
    keep: Option<&OwnedFd>,
    work: impl FnOnce(),
) -> Result<Option<Pid>> {
    let failed = |errno: Errno| Error::os(errno, "start", "a process in the background");
    // SAFETY: this process has one thread, so the child may do whatever we may.
    if let ForkResult::Parent { child } = unsafe { fork() }.map_err(failed)? {
        if parent == Detach::Child {
            return Ok(Some(child));
        }
        return waitpid(child, None).map(|_| None).map_err(failed);
    }
    if parent == Detach::Orphan {
        // What is sent to all of our group from the moment on that we go on does not reach it.
        let _ = setsid();
        // SAFETY: as above. Should it fail, nobody renews, and the lease ends.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {}
            _ => leave(),
        }
    }
    detach(name, keep.map(AsRawFd::as_raw_fd));
    work();
    leave()
}

fn detach(name: &std::ffi::CStr, keep: Option<RawFd>) {
    let _ = setsid();
    let _ = chdir("/");
    show_arguments(name);
    let _ = set_name(name);
    let _ = set_pdeathsig(None);
    // Whoever ends all of a session means its owner; we end with that.
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGPIPE] {
        // SAFETY: ignoring runs no code of ours.
        let _ = unsafe { sigaction(signal, &SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty())) };
    }
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
    close_all_but(keep);
    // What prints by mistake must not print into somebody's file.
    for _ in 0..3 {
        let null = open("/dev/null", OFlag::O_RDWR, Mode::empty());
        if let Ok(null) = null {
            std::mem::forget(null);
        }
    }
}

/// Shows this name also where ps(1) shows the arguments, as far as there is room: those of our parent are not ours.
fn show_arguments(name: &std::ffi::CStr) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let field = |number: usize| stat.rsplit_once(") ")?.1.split(' ').nth(number - 3)?.parse::<u64>().ok();
    // See proc_pid_stat(5): arg_start and arg_end.
    let (Some(start), Some(end)) = (field(48), field(49)) else { return };
    let Some(room) = end.checked_sub(start).filter(|room| start > 0 && *room > 1) else { return };
    let mut shown = name.to_bytes().to_vec();
    shown.resize(room as usize - 1, 0);
    shown.push(0);
    if let Ok(memory) = fs::OpenOptions::new().write(true).open("/proc/self/mem") {
        let _ = memory.write_all_at(&shown, start);
    }
}

fn close_all_but(keep: Option<RawFd>) {
    // To look at what is open takes a descriptor, and there may be none left.
    for descriptor in (0..3).filter(|descriptor| Some(*descriptor) != keep) {
        // SAFETY: as below.
        unsafe { nix::libc::close(descriptor) };
    }
    let names = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open: Vec<RawFd> = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open.into_iter().filter(|descriptor| Some(*descriptor) != keep) {
        // SAFETY: whatever of ours has it open is not used in this process any more, and nothing here owns it.
        unsafe { nix::libc::close(descriptor) };
    }
}

/// Ends the process without a word: nothing that it got from its parent is to be tidied up twice.
pub fn leave() -> ! {
    exit_now(0)
}

/// The same with a status, from any thread, whatever the others are held up by.
pub fn exit_now(status: u8) -> ! {
    // SAFETY: ends the process.
    unsafe { nix::libc::_exit(status.into()) }
}
