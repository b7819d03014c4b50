//! Whom that belongs to which is made in a store: the store's owner and group, as far as the system lets us give it away.
//!
//! Root may lock in somebody's store, and a member of a group in the group's. What they leave there must not be closed to
//! the others: a record's directory that only root may open is a lock that nobody gets any more.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::unistd::{Gid, Uid, fchown, getegid, geteuid};

use super::sys;

/// What has to be given away of what we make.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ownership {
    owner: Option<Uid>,
    group: Option<Gid>,
}

impl Ownership {
    /// Of what we make in this directory.
    pub(super) fn in_directory(found: &FileStat) -> Ownership {
        let (owner, group) = (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid));
        let we = geteuid();
        let inherits = Mode::from_bits_truncate(found.st_mode).contains(Mode::S_ISGID);
        // Where the group may do no more than everybody, it makes no difference.
        let counts = we.is_root() || (found.st_mode >> 3) & 7 != found.st_mode & 7;
        Ownership {
            owner: (we.is_root() && !owner.is_root()).then_some(owner),
            group: (counts && !inherits && group != getegid()).then_some(group),
        }
    }

    /// The same of what is to stay its writer's.
    pub(super) fn without_owner(self) -> Ownership {
        Ownership { owner: None, ..self }
    }

    /// Whether it is somebody else's whom what we make is to belong to.
    pub(super) fn has_owner(&self) -> bool {
        self.owner.is_some()
    }

    /// Gives away a file that we have just created. Only members of a group may give it something; for others it stays
    /// theirs.
    pub(super) fn give_file(&self, made: impl AsFd) {
        if *self != Ownership::default() {
            let _ = fchown(made, self.owner, self.group);
        }
    }

    /// Gives away a directory that was just made, and opened by its name. In somebody's directory that may be another one
    /// by now: root gives away only what its new owner might have removed and made himself. `false`: it is not his.
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
