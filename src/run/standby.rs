//! A child that exists before its parent has the lock, so that records can name the child as the owner.
//!
//! [`Standby::start`] makes the child the command. A child whose parent ends, or drops the value, ends too. The child
//! shares the memory of its parent, as after vfork(2), which saves the copy that fork(2) makes. The two never use the
//! memory at the same time: the child sleeps in read(2) until the start, and from then on the parent does, until the
//! child has executed the command or has ended. They wait at the two ends of a socket. The end of a process closes its
//! end of the socket, and the exec closes that of the child, so the other process learns of it.

#![expect(unsafe_code, reason = "clone")]

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socketpair};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::child::{RunningCommand, in_spite_of_signals};
use super::detach::exit_now;
use super::spawn::{VforkStatus, childs_stack};
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::host::StartupState;
use crate::signals::{FORWARDED, Interrupt, Signals};

/// Number of descriptors of a wait for one process: more of them could leave none for a wait for the next lock.
const OF_USUAL_WAIT: usize = 2;

/// Interval between checks whether a child that is about to execute the command is stopped.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Data for the child in the shared memory, where it stays until the parent ends.
struct Orders<'a> {
    signals: &'a Signals,
    inherited: StartupState,
    /// The end of the socket for the child, and that of the parent.
    ends: (OwnedFd, OwnedFd),
    become_command: &'a dyn Fn(&VforkStatus),
    status: VforkStatus,
}

/// A child that sleeps until it becomes the command.
pub struct Standby<'a> {
    pid: Pid,
    orders: &'a Orders<'a>,
    /// The descriptors of the wait that has ended, which are closed after the start.
    of_wait: RefCell<Vec<OwnedFd>>,
}

impl Interrupt for Standby<'_> {
    /// Returns a descriptor of the signals that end a wait, and one that becomes readable if the child ends.
    fn descriptors(&self) -> Result<Vec<BorrowedFd<'_>>> {
        Ok(vec![self.orders.signals.interrupt()?, self.orders.ends.1.as_fd()])
    }

    fn close(&self, mut descriptors: Vec<OwnedFd>) {
        descriptors.truncate(OF_USUAL_WAIT);
        self.of_wait.replace(descriptors);
    }
}

impl<'a> Standby<'a> {
    /// Creates the child. After [`Standby::start`] the child calls `become_command`, which returns only if it has failed,
    /// and then tells so by its argument. Until the start, a signal ends the child as it ends any program.
    /// Fails if the system has no room for another process or descriptor.
    pub fn new(
        signals: &'a Signals,
        inherited: StartupState,
        become_command: &'a dyn Fn(&VforkStatus),
    ) -> nix::Result<Standby<'a>> {
        let ends = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        // The start needs this descriptor, and must not fail for lack of one.
        signals.interrupt().map_err(|_| Errno::EMFILE)?;
        let status = VforkStatus::default();
        let orders: &Orders<'_> = Box::leak(Box::new(Orders { signals, inherited, ends, become_command, status }));
        let stack = childs_stack()?;
        let (top, argument) = (stack.as_mut_ptr_range().end, std::ptr::from_ref(orders).cast_mut());
        // SAFETY: the stack and the orders stay valid until this process ends, and `sleep` uses nothing else of this
        // memory while this process runs.
        let pid = unsafe { libc::clone(sleep, top.cast(), libc::CLONE_VM | libc::SIGCHLD, argument.cast()) };
        let pid = Pid::from_raw(Errno::result(pid)?);
        // SAFETY: only the child uses its end, and it has a table of descriptors of its own.
        unsafe { libc::close(orders.ends.0.as_raw_fd()) };
        Ok(Standby { pid, orders, of_wait: RefCell::default() })
    }

    /// Returns the process id of the child.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Makes the child the command. Returns its exit code if that failed, or how csalock ends if a signal arrives while
    /// the child is stopped. Fails if the child cannot be told to start.
    pub fn start(self) -> Result<std::result::Result<RunningCommand, Exit>> {
        let (orders, socket) = (self.orders, &self.orders.ends.1);
        let signals = orders.signals.interrupt()?;
        match send(socket.as_raw_fd(), b"!", MsgFlags::MSG_NOSIGNAL) {
            // If a signal has ended the child, the read returns at once.
            Ok(_) | Err(Errno::EPIPE) => {}
            Err(errno) => {
                return Err(Error::new(ErrorKind::System, format!("cannot start the command: {errno}"), ""));
            }
        }
        if !self.has_started(signals) {
            drop(self);
            let exit = orders.signals.exit();
            if orders.status.is_granted() {
                // The child was stopped while it used the shared memory, which may be inconsistent.
                exit_now(exit.code());
            }
            return Ok(Err(exit));
        }
        drop(self.of_wait.take());
        let status = &orders.status;
        Ok(match status.failure() {
            Some(exit) => Err(exit),
            None if status.is_granted() => Ok(RunningCommand::new(ManuallyDrop::new(self).pid, None, None)),
            None => Err(self.ended().unwrap_or(ErrorKind::System.into())),
        })
    }

    /// Waits until the child has executed the command or has ended. Returns false if a signal arrives while the child is
    /// stopped. Uses nothing of the shared memory that the child may use, not even the error number.
    fn has_started(&self, signals: BorrowedFd<'_>) -> bool {
        let socket = || PollFd::from_borrowed_fd(self.orders.ends.1.as_fd(), PollFlags::IN);
        let child = rustix::process::Pid::from_raw(self.pid.as_raw());
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        loop {
            let mut polled = [socket(), PollFd::from_borrowed_fd(signals, PollFlags::IN)];
            let _ = poll(&mut polled, None);
            if !polled[0].revents().is_empty() {
                return true;
            }
            if child.is_some_and(|child| matches!(waitid(WaitId::Pid(child), stopped), Ok(Some(_)))) {
                return false;
            }
            // The child executes the command soon, and then its supervisor forwards the signal.
            let _ = poll(&mut [socket()], Some(&PAUSE));
        }
    }

    /// Returns how csalock ends if a signal has ended the child, which has not become the command.
    pub fn ended(&self) -> Option<Exit> {
        // A process closes its descriptors before its parent can learn of its end, so this waits for the end.
        let mut polled = [PollFd::new(&self.orders.ends.1, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).ok().filter(|ready| *ready > 0)?;
        let child = rustix::process::Pid::from_raw(self.pid.as_raw())?;
        let wait = || waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let signal = rustix::io::retry_on_intr(wait).ok()??.terminating_signal()?;
        let forwarded = FORWARDED.into_iter().find(|forwarded| *forwarded as i32 == signal);
        Some(forwarded.map_or(Exit::signalled(signal), Exit::Signal))
    }
}

impl Drop for Standby<'_> {
    /// Ends the child, even if it is stopped.
    fn drop(&mut self) {
        let _ = kill(self.pid, Signal::SIGKILL);
        let _ = in_spite_of_signals(|| waitpid(self.pid, None));
    }
}

/// The child. While the parent runs, the child must not write to the shared memory, not even an error number, so it makes
/// only calls that succeed.
extern "C" fn sleep(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the parent passes its orders, which stay where they are and do not change while the child exists.
    let orders = unsafe { &*argument.cast::<Orders<'_>>() };
    let (mine, parents) = (orders.ends.0.as_raw_fd(), orders.ends.1.as_raw_fd());
    // A child that is stopped does not learn from the socket that its parent has ended.
    let _ = set_pdeathsig(Signal::SIGKILL);
    orders.signals.restore(orders.inherited);
    let mut signal = [0; 1];
    // SAFETY: the descriptors are those of the socket, of which this process has copies, and the buffer has one byte.
    let length = unsafe {
        libc::close(parents);
        loop {
            match libc::read(mine, signal.as_mut_ptr().cast(), signal.len()) {
                // A stop is not the end of the wait.
                -1 => {}
                length => break length,
            }
        }
    };
    if length == 1 {
        orders.status.granted();
        let _ = set_pdeathsig(None);
        (orders.become_command)(&orders.status);
    }
    1
}
