//! The child of `csalock run` that becomes the command.
//!
//! The child exists before the lock is acquired, so that the record can name it as the owner: a command whose supervisor
//! was killed keeps its lock until it ends. The child sleeps until [`SleepingChild::start`]. Until then it ends with its
//! parent (a command with --ttl or --once-per also later), and a signal ends it as it ends any program. The two processes
//! share nothing but a socket:
//!
//! 1. The parent sends the files that the command inherits, and then the numbers of the grant. That is the start.
//! 2. The child executes the command, which closes the child's end of the socket. If that fails, it sends the error number.

#![expect(unsafe_code, reason = "fork")]

use std::ffi::CString;
use std::io::{IoSlice, IoSliceMut};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getppid};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg, socketpair,
};
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, wait, waitid};

use super::detach::exit_now;
use super::exec::{CommandLine, GrantNumbers, to_be_inherited};
use super::timer::wait_readable;
use super::tree::cannot_follow;
use crate::exit::Exit;
use engine::environment;
use host::processes;
use host::signals::{self, Interrupt, Signals};
use lock::error::{Error, ErrorKind, Result, errno_of};

/// A drop kills the child.
pub struct SleepingChild<'a> {
    process: KilledOnDrop,
    /// Readable if the child ends.
    socket: OwnedFd,
    signals: &'a Signals,
    command_line: &'a CommandLine,
}

struct KilledOnDrop(Pid);

#[derive(Debug)]
pub struct RunningCommand {
    pid: Pid,
    /// `None` as soon as it is known whether the child has executed the command.
    socket: Option<OwnedFd>,
    exec_error: Option<nix::errno::Errno>,
}

impl<'a> SleepingChild<'a> {
    /// With `dies_with_parent`, the command is killed when this process ends.
    pub fn fork(
        command_line: &'a CommandLine,
        variables: &[CString],
        signals: &'a Signals,
        dies_with_parent: bool,
    ) -> Result<SleepingChild<'a>> {
        let failed = |errno: nix::errno::Errno| Error::os(errno, "start", command_line.shown());
        let (socket, childs_end) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|errno| failed(errno_of(errno)))?;
        let environment = environment::block(variables);
        let parent = dies_with_parent.then(Pid::this);
        // SAFETY: this process has one thread, so the child may do everything that the parent may do.
        match unsafe { fork() }.map_err(failed)? {
            ForkResult::Parent { child } => {
                Ok(SleepingChild { process: KilledOnDrop(child), socket, signals, command_line })
            }
            ForkResult::Child => {
                drop(socket);
                let _ = set_pdeathsig(Signal::SIGKILL);
                signals.restore();
                // If the parent died before prctl(2), no signal comes, but its start may have arrived: compare the parent. In
                // a new pid namespace its pid reads as 0.
                let is_orphan = || parent.is_some_and(|parent| ![parent, Pid::from_raw(0)].contains(&getppid()));
                let errno = match await_start(&childs_end).map(|numbers| numbers.filter(|_| !is_orphan())) {
                    Ok(None) => nix::errno::Errno::EIO,
                    Ok(Some(numbers)) => {
                        if parent.is_none() {
                            let _ = set_pdeathsig(None);
                        }
                        command_line.execute(&environment, Some(numbers))
                    }
                    Err(errno) => errno,
                };
                let _ = send(&childs_end, &(errno as i32).to_ne_bytes(), SendFlags::NOSIGNAL);
                // This runs no cleanup of the parent a second time.
                exit_now(errno as u8)
            }
        }
    }

    pub fn pid(&self) -> Pid {
        self.process.0
    }

    /// If the child has ended already, this succeeds, and its status is that of the command. If it fails, the child is killed.
    pub fn start(self, numbers: GrantNumbers, files: &[impl AsFd]) -> Result<RunningCommand> {
        for file in files {
            // The numbers of the grant, which are the start, have another length.
            self.send(b"F", &[file.as_fd()])?;
        }
        self.send(&numbers.encode(), &[])?;
        let SleepingChild { process, socket, .. } = self;
        Ok(RunningCommand { pid: ManuallyDrop::new(process).0, socket: Some(socket), exec_error: None })
    }

    fn send(&self, message: &[u8], files: &[BorrowedFd<'_>]) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        match sendmsg(&self.socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => Ok(()),
            // A signal has ended the child, or else it must not wait for ever.
            Err(Errno::PIPE | Errno::CONNRESET) => {
                let _ = kill(self.pid(), Signal::SIGKILL);
                Ok(())
            }
            Err(errno) => Err(Error::new(ErrorKind::System, format!("cannot start the command: {errno}"), "try again")),
        }
    }

    /// How csalock ends if the child has ended: by the same signal, or because the child could not wait for its start.
    pub fn ended(&self) -> Option<Result<Exit>> {
        // A process closes its descriptors before its parent can learn of its end, so this waits for the end.
        if wait_readable([self.socket.as_fd()], Some(Duration::ZERO)) != Ok(true) {
            return None;
        }
        let status = rustix::io::retry_on_intr(|| status_of(self.pid(), WaitIdOptions::empty())).ok()??;
        let failed = |errno| Err(self.command_line.cannot_execute(nix::errno::Errno::from_raw(errno)));
        let by_signal = status.terminating_signal().map(|signal| Ok(exit_of_signal(signal)));
        by_signal.or_else(|| status.exit_status().map(failed))
    }
}

impl Interrupt for SleepingChild<'_> {
    /// One of the signals that end a wait, and one of the child's end.
    fn descriptors(&self) -> Result<Vec<BorrowedFd<'_>>> {
        Ok(vec![self.signals.interrupt()?, self.socket.as_fd()])
    }
}

impl Drop for KilledOnDrop {
    /// Ends the child, even if it is stopped.
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
        let _ = in_spite_of_signals(|| waitpid(self.0, None));
    }
}

/// `None` if the parent has ended. The files that come before the start stay open.
fn await_start(socket: &OwnedFd) -> nix::Result<Option<GrantNumbers>> {
    let mut message = [0; GrantNumbers::SIZE];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(socket, &mut [IoSliceMut::new(&mut message)], &mut control, RecvFlags::CMSG_CLOEXEC);
        let length = match received {
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno_of(errno)),
            Ok(received) => received.bytes,
        };
        for received in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut files) = received {
                files.try_for_each(|file| to_be_inherited(&file))?;
            }
        }
        match length {
            0 => return Ok(None),
            GrantNumbers::SIZE => return Ok(Some(GrantNumbers::decode(message))),
            _ => {}
        }
    }
}

impl RunningCommand {
    /// `None` if a signal ended the child, or it has executed the command.
    pub(super) fn exec_error(&mut self, status: Exit, by_signal: Option<i32>) -> Option<nix::errno::Errno> {
        self.learn_of_start();
        // If the number could not be sent, the status is that number.
        let is_fork = || matches!(processes::read(self.pid.as_raw()), Ok(Some(stat)) if stat.is_fork);
        let unsent = by_signal.is_none().then(|| nix::errno::Errno::from_raw(status.code().into()));
        self.exec_error.or_else(|| unsent.filter(|_| is_fork()))
    }

    /// It may not have executed the command yet.
    pub(super) fn is_starting(&mut self) -> bool {
        self.learn_of_start();
        self.socket.is_some()
    }

    fn learn_of_start(&mut self) {
        let Some(socket) = &self.socket else { return };
        let mut errno = [0; 4];
        match recv(socket, &mut errno, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((_, 4)) => self.exec_error = Some(nix::errno::Errno::from_raw(i32::from_ne_bytes(errno))),
            // The exec has closed the child's end, or the end of the child has.
            _ => self.socket = None,
        }
    }

    /// False if permission is denied.
    pub(super) fn send(&self, signal: i32) -> bool {
        signals::send(self.pid, signal) != Err(nix::errno::Errno::EPERM)
    }

    /// The first process of a container, for example, adopts orphans that no other process can reap.
    pub(super) fn reap_adopted(&self, keeper: Option<Pid>) {
        let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let next = || nix::sys::wait::waitid(Id::All, peek).ok().and_then(|status| status.pid());
        // Other code reaps the command and the keeper, and then this function runs again.
        while let Some(pid) = next().filter(|pid| *pid != self.pid && Some(*pid) != keeper) {
            if waitpid(pid, Some(WaitPidFlag::WNOHANG)).is_err() {
                break;
            }
        }
    }

    /// After the release: its CPU time then counts for this process, and no zombie stays if pid 1 does not reap.
    pub(super) fn reap(&self) {
        let _ = waitpid(self.pid, Some(WaitPidFlag::WNOHANG));
    }

    /// An ended command stays a zombie: it shows other processes that a release follows, so that the lock is not stale.
    pub(super) fn ended(&self) -> Result<Option<WaitIdStatus>> {
        match status_of(self.pid, WaitIdOptions::NOHANG) {
            Err(Errno::INTR) => Ok(None),
            Ok(status) => Ok(status),
            Err(errno) => Err(Error::new(ErrorKind::System, format!("cannot wait for the command: {errno}"), "")),
        }
    }
}

/// Leaves the child as a zombie.
fn status_of(child: Pid, options: WaitIdOptions) -> rustix::io::Result<Option<WaitIdStatus>> {
    let child = rustix::process::Pid::from_raw(child.as_raw()).ok_or(Errno::CHILD)?;
    waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | options)
}

/// Makes a child the supervisor of a tree if this process may have other children: those of a script that became
/// csalock, and those that the first process of a container adopts. Returns `None` in the supervisor. The other process passes
/// signals on to it, and returns its exit.
pub fn supervise_in_child(is_tree: bool, signals: &Signals) -> Result<Option<Exit>> {
    if !is_tree {
        return Ok(None);
    }
    let this = Pid::this().as_raw();
    if this != 1 && processes::children_of(this).map_err(cannot_follow)?.is_empty() {
        return Ok(None);
    }
    // SAFETY: this process has one thread, so the child may do everything that the parent may do.
    let ForkResult::Parent { child } = unsafe { fork() }.map_err(cannot_follow)? else { return Ok(None) };
    loop {
        let _ = wait_readable([signals.all_events()?.as_fd()], None);
        for came in std::iter::from_fn(|| signals.next()).filter(|came| came.is_forwarded()) {
            let _ = signals::send(child, came.signal);
        }
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid.as_raw_pid() == child.as_raw() {
                let code = status.exit_status().map(|code| Exit::Code(code as u8));
                return Ok(code.or(status.terminating_signal().map(exit_of_signal)));
            }
        }
    }
}

fn exit_of_signal(signal: i32) -> Exit {
    if signals::COMMON.contains(&signal) { Exit::Signal(signal) } else { Exit::signalled(signal) }
}

pub(super) fn in_spite_of_signals<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(nix::errno::Errno::EINTR) => {}
            done => return done,
        }
    }
}
