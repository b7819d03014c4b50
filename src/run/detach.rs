//! Background processes: such a process has no terminal, descriptor or working directory of its parent, does not
//! receive the signals sent to the parent, and outlives it.

#![expect(unsafe_code, reason = "fork")]

use std::ffi::CStr;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction, sigprocmask};
use nix::sys::stat::Mode;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, chdir, fork, setsid};

use lock::error::{Error, Result};

/// Name of a background process: each of them is a keeper.
pub(super) const NAME: &CStr = c"csalock-keeper";

/// Name of the process that starts a keeper again if it is killed, as ps(1) shows it.
pub(super) const PARENT_NAME: &CStr = c"csalock-parent";

/// Runs `work` in a background process, a child of this one, with `keep` as its only descriptors.
pub fn spawn(keep: &[BorrowedFd<'_>], work: impl FnOnce()) -> Result<Pid> {
    #[cfg(feature = "sqlite")]
    sqlite::close_before_fork();
    // SAFETY: this process has one thread, so the child may do everything that the parent may do.
    if let ForkResult::Parent { child } = unsafe { fork() }.map_err(failed)? {
        return Ok(child);
    }
    // A caller that waits for this child may end now, and its open files must end with it: one of them may be locked.
    close_all_but(&keep.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>());
    detach();
    work();
    exit_now(0)
}

/// Like [`spawn`], but init or another adopter is the parent: the program that this process becomes must have no child of
/// csalock.
pub fn spawn_orphan(work: impl FnOnce()) -> Result<()> {
    let child = spawn(&[], || {
        // The call returns when this process ends, and then no process but the keeper must have its name.
        let _ = set_name(PARENT_NAME);
        // SAFETY: as above.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                let _ = setsid();
                work();
            }
            Ok(ForkResult::Parent { .. }) => {}
            Err(_) => exit_now(1),
        }
    })?;
    match waitpid(child, None).map_err(failed)? {
        WaitStatus::Exited(_, 0) => Ok(()),
        _ => Err(failed(Errno::EAGAIN)),
    }
}

fn failed(errno: Errno) -> Error {
    Error::os(errno, "start", "a process in the background")
}

fn detach() {
    // A new session protects this process from signals that are sent to the parent's process group from now on.
    let _ = setsid();
    let _ = chdir("/");
    show_name_as_arguments();
    let _ = set_name(NAME);
    let _ = set_pdeathsig(None);
    // A signal to the whole session is meant for the owner; the background process ends when the owner ends.
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGPIPE] {
        // SAFETY: an ignored signal runs no code.
        let _ = unsafe { sigaction(signal, &SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty())) };
    }
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
    // Accidental output must not go to a file that gets descriptor 1 or 2.
    for _ in 0..3 {
        if let Ok(null) = open("/dev/null", OFlag::O_RDWR, Mode::empty()) {
            std::mem::forget(null);
        }
    }
}

/// Overwrites the inherited arguments, as ps(1) shows them, with the name, as far as there is room.
fn show_name_as_arguments() {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let field = |number: usize| stat.rsplit_once(") ")?.1.split(' ').nth(number - 3)?.parse::<u64>().ok();
    // proc_pid_stat(5) defines these fields: arg_start and arg_end.
    let (Some(start), Some(end)) = (field(48), field(49)) else { return };
    let Some(room) = end.checked_sub(start).filter(|room| start > 0 && *room > 1) else { return };
    let mut shown = NAME.to_bytes().to_vec();
    shown.resize(room as usize - 1, 0);
    shown.push(0);
    if let Ok(memory) = fs::OpenOptions::new().write(true).open("/proc/self/mem") {
        let _ = memory.write_all_at(&shown, start);
    }
}

fn close_all_but(keep: &[RawFd]) {
    let close = |descriptor: RawFd| {
        if !keep.contains(&descriptor) {
            // SAFETY: this process no longer uses the owner of the descriptor, and nothing here owns it.
            unsafe { nix::libc::close(descriptor) };
        }
    };
    // The list of open descriptors needs a descriptor itself, and the process may be at its limit.
    (0..3).for_each(close);
    let names = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open: Vec<RawFd> = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    open.into_iter().for_each(close);
}

/// Ends the process silently with a status, from any thread, even if other threads are blocked. It does not clean up:
/// the parent cleans up the inherited state.
pub fn exit_now(status: u8) -> ! {
    // SAFETY: _exit(2) ends the process.
    unsafe { nix::libc::_exit(status.into()) }
}
