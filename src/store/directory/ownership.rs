//! Ownership of files created in a store: the store's owner and group, as far as the system permits it.
//!
//! Root may lock in another user's store, and a member of a group in the group's. Their files must stay accessible to
//! the others: a record's directory that only root may open blocks its lock permanently.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::unistd::{Gid, Uid, fchown, getegid, geteuid};

use super::sys;

/// The owner and group that new files must get.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ownership {
    owner: Option<Uid>,
    group: Option<Gid>,
}

impl Ownership {
    /// Returns the ownership for new files in this directory.
    pub(super) fn in_directory(found: &FileStat) -> Ownership {
        let (owner, group) = (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid));
        let we = geteuid();
        let inherits = Mode::from_bits_truncate(found.st_mode).contains(Mode::S_ISGID);
        // A group with no more rights than all other users makes no difference.
        let counts = we.is_root() || (found.st_mode >> 3) & 7 != found.st_mode & 7;
        Ownership {
            owner: (we.is_root() && !owner.is_root()).then_some(owner),
            group: (counts && !inherits && group != getegid()).then_some(group),
        }
    }

    /// Returns the ownership for files whose writer stays the owner.
    pub(super) fn without_owner(self) -> Ownership {
        Ownership { owner: None, ..self }
    }

    /// Gives away a file that we have just created. Only members of a group may give it files; files of other users
    /// keep their group.
    pub(super) fn give_file(&self, made: impl AsFd) {
        if *self != Ownership::default() {
            let _ = fchown(made, self.owner, self.group);
        }
    }

    /// Gives away a new directory that was opened by its name. In another user's directory that name may lead
    /// elsewhere. So root gives away only what the new owner could have made; `false` means that it is another user's.
    pub(super) fn give_directory(&self, made: impl AsFd) -> Result<bool, Errno> {
        if let Some(owner) = self.owner {
            let found = fstat(made.as_fd())?;
            if found.st_uid == owner.as_raw() {
                return Ok(true);
            }
            let listed = sys::each_name(sys::open_directory(made.as_fd(), ".")?, &mut |_| Err(Errno::ENOTEMPTY));
            if found.st_uid != geteuid().as_raw() || listed.is_err() {
                return Ok(false);
            }
        }
        self.give_file(made);
        Ok(true)
    }
}
