//! Passes the descriptors of the files that the command has locked to the supervisor.
//!
//! flock(2) belongs to the open file, not to a process. The supervisor shares the open file, so it can unlock it when
//! the command has ended, even if a child still has it open. The files are not known in advance, because csalock opens
//! a replaced file again. A message that no process has received keeps the files open until the supervisor ends.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::Flock;
use crate::error::{Error, ErrorKind, Result};

/// A pair of sockets, created before the fork.
#[derive(Debug)]
pub struct FdChannel {
    supervisor: OwnedFd,
    command: OwnedFd,
}

impl FdChannel {
    /// Creates a channel.
    pub fn new() -> Result<FdChannel> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (supervisor, command) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed)?;
        Ok(FdChannel { supervisor, command })
    }

    /// Passes the open file to the supervisor.
    /// Returns an error if the descriptor cannot be passed although the supervisor lives.
    pub fn give(&self, flock: &Flock) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [flock.file.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        match sendmsg(&self.command, &[IoSlice::new(b"L")], &mut control, SendFlags::NOSIGNAL) {
            // Without a supervisor the lock ends with the processes that inherit the file.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Unlocks every file that was passed, even if other processes still have it open.
    pub fn unlock_all(&self) {
        let mut byte = [0];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received =
                recvmsg(&self.supervisor, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC);
            match received {
                Err(Errno::INTR) => continue,
                Ok(received) if received.bytes > 0 => {}
                Ok(_) | Err(_) => return,
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    // The drop closes the descriptor even if the unlock fails, which is nearly as good.
                    descriptors.for_each(|descriptor| drop(fs2::FileExt::unlock(&File::from(descriptor))));
                }
            }
        }
    }
}

fn failed(errno: Errno) -> Error {
    Error::new(
        ErrorKind::System,
        format!("cannot share the locked file: {errno}"),
        "raise the limit of open files (ulimit -n)",
    )
}
