//! How the guardian comes to share the open files that the command has locked: their descriptors are sent to it.
//!
//! flock(2) asks no process but the open file. So the guardian, sharing it, can unlock it when the command has ended, even
//! if a child of the command still has it open. It must not know the files from the start, for one that was replaced
//! meanwhile is opened anew. A message that nobody has received keeps the files open; it goes away with the guardian.

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
use crate::error::{Error, Result};
use crate::exit::Exit;

/// A pair of sockets, made before the fork.
#[derive(Debug)]
pub struct FdChannel {
    guardians: OwnedFd,
    commands: OwnedFd,
}

impl FdChannel {
    /// # Errors
    ///
    /// When no descriptors are left.
    pub fn new() -> Result<FdChannel> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (guardians, commands) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed)?;
        Ok(FdChannel { guardians, commands })
    }

    /// Shares it with the guardian.
    ///
    /// # Errors
    ///
    /// When that cannot be done though the guardian lives.
    pub fn give(&self, flock: &Flock) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [flock.file.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        match sendmsg(&self.commands, &[IoSlice::new(b"L")], &mut control, SendFlags::NOSIGNAL) {
            // Without a guardian the lock ends with those who inherit it.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Unlocks everything that was given, whoever still has it open.
    pub fn unlock_all(&self) {
        let mut byte = [0];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received =
                recvmsg(&self.guardians, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC);
            match received {
                Err(Errno::INTR) => continue,
                Ok(received) if received.bytes > 0 => {}
                Ok(_) | Err(_) => return,
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    // What cannot be unlocked is closed, which is nearly as good.
                    descriptors.for_each(|descriptor| drop(fs2::FileExt::unlock(&File::from(descriptor))));
                }
            }
        }
    }
}

fn failed(errno: Errno) -> Error {
    Error::new(
        Exit::System,
        format!("cannot share the locked file: {errno}"),
        "raise the limit of open files (ulimit -n)",
    )
}
