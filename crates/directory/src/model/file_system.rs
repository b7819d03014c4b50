//! A file system in which each call is one step: the contents of its directories, and the results of calls.
//!
//! A removed directory that a client has open is empty and accepts no new names (ENOENT, or ESTALE on NFS). A rename of
//! a directory onto an empty one replaces that, as rename(2) says.

use std::collections::BTreeMap;

use nix::errno::Errno;

use super::STORE;
use super::replay::{Answer, Call, Place};
use crate::layout::{Pointer, Stage, UniqueId};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct FileSystem {
    pub is_nfs: bool,
    pub directories: BTreeMap<Place, Names>,
    /// The names in each directory before its last change, which a stale listing shows.
    before: BTreeMap<Place, Names>,
    /// Bit set of the clients that saw that change. No client gets an older listing than it has seen.
    seen_by: BTreeMap<Place, u32>,
}

pub(super) type Names = BTreeMap<String, Node>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Node {
    File(Vec<u8>),
    Directory(Place),
}

/// A deliberate error of the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrong {
    TwoWinRename,
    ReplacesFullDirectory,
}

impl FileSystem {
    pub(super) fn new(is_nfs: bool, has_tombstone: bool) -> FileSystem {
        let mut directories = BTreeMap::from([(STORE.to_string(), Names::new())]);
        if has_tombstone {
            let end = Pointer { stage: Stage::Tombstone, number: 1, ident: UniqueId { boot: 0, mark: 1 } };
            let place = "x".to_string();
            directories.insert(place.clone(), BTreeMap::from([(end.name(), Node::File(Vec::new()))]));
            directories.insert(STORE.to_string(), BTreeMap::from([(place.clone(), Node::Directory(place))]));
        }
        FileSystem { is_nfs, directories, before: BTreeMap::new(), seen_by: BTreeMap::new() }
    }

    fn gone(&self) -> Errno {
        if self.is_nfs { Errno::ESTALE } else { Errno::ENOENT }
    }

    fn names(&self, place: &Place) -> Result<&Names, Errno> {
        self.directories.get(place).ok_or_else(|| self.gone())
    }

    fn change(&mut self, place: &Place) -> Result<&mut Names, Errno> {
        let gone = self.gone();
        let names = self.directories.get_mut(place).ok_or(gone)?;
        if self.is_nfs {
            self.before.insert(place.clone(), names.clone());
            self.seen_by.remove(place);
        }
        Ok(names)
    }

    pub(super) fn apply(&mut self, client: usize, call: &Call, wrong: Option<Wrong>) -> Answer {
        let answer = self.try_to(call, wrong).unwrap_or_else(|errno| Answer::Failed(errno as i32));
        for place in call.places().into_iter().filter(|place| self.before.contains_key(*place)) {
            *self.seen_by.entry(place.clone()).or_default() |= 1 << client;
        }
        answer
    }

    fn try_to(&mut self, call: &Call, wrong: Option<Wrong>) -> Result<Answer, Errno> {
        match call {
            Call::OpenDirectory { at, name } if name == "." => {
                self.names(at)?;
                Ok(Answer::Opened(at.clone()))
            }
            Call::OpenDirectory { at, name } => match self.names(at)?.get(name) {
                Some(Node::Directory(place)) => Ok(Answer::Opened(place.clone())),
                Some(Node::File(_)) => Err(Errno::ENOTDIR),
                None => Err(Errno::ENOENT),
            },
            Call::MakeDirectory { at, name } => {
                if self.names(at)?.contains_key(name) {
                    return Err(Errno::EEXIST);
                }
                self.change(at)?.insert(name.clone(), Node::Directory(name.clone()));
                self.directories.insert(name.clone(), Names::new());
                Ok(Answer::Opened(name.clone()))
            }
            Call::Create { at, name, bytes } => {
                if self.names(at)?.contains_key(name) {
                    return Err(Errno::EEXIST);
                }
                self.change(at)?.insert(name.clone(), Node::File(bytes.clone()));
                Ok(Answer::Done)
            }
            Call::Read { at, name } => match self.names(at)?.get(name) {
                Some(Node::File(bytes)) => Ok(Answer::Bytes(bytes.clone())),
                Some(Node::Directory(_)) => Err(Errno::EISDIR),
                None => Err(Errno::ENOENT),
            },
            Call::Rename { from, old, to, new } => self.rename((from, old), (to, new), wrong),
            Call::RemoveFile { at, name } => match self.names(at)?.get(name) {
                Some(Node::Directory(_)) => Err(Errno::EISDIR),
                None => Err(Errno::ENOENT),
                Some(Node::File(_)) => {
                    self.change(at)?.remove(name);
                    Ok(Answer::Done)
                }
            },
            Call::RemoveDirectory { at, name } => {
                let Some(node) = self.names(at)?.get(name) else { return Err(Errno::ENOENT) };
                let Node::Directory(place) = node.clone() else { return Err(Errno::ENOTDIR) };
                if !self.directories[&place].is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                self.change(at)?.remove(name);
                self.forget(&place);
                Ok(Answer::Done)
            }
            Call::List { at } => Ok(Answer::Names(self.names(at)?.keys().cloned().collect())),
            Call::IsThere { at } => self.names(at).map(|_| Answer::Done),
        }
    }

    fn rename(&mut self, from: (&Place, &str), to: (&Place, &str), wrong: Option<Wrong>) -> Result<Answer, Errno> {
        self.names(to.0)?;
        let Some(node) = self.names(from.0)?.get(from.1).cloned() else {
            // The rename behaves as if the name still existed: it renames the new name once more.
            let pointer = |name: &&String| !name.starts_with("rec.");
            let now = self.names(from.0)?.keys().find(pointer).cloned();
            let now = now.filter(|_| wrong == Some(Wrong::TwoWinRename) && from.0 == to.0).ok_or(Errno::ENOENT)?;
            return self.rename((from.0, &now), to, None);
        };
        let replaced = self.names(to.0)?.get(to.1).cloned();
        match (&node, &replaced) {
            (_, None) | (Node::File(_), Some(Node::File(_))) => {}
            (Node::File(_), Some(Node::Directory(_))) => return Err(Errno::EISDIR),
            (Node::Directory(_), Some(Node::File(_))) => return Err(Errno::ENOTDIR),
            (Node::Directory(_), Some(Node::Directory(place))) => {
                if !self.directories[place].is_empty() && wrong != Some(Wrong::ReplacesFullDirectory) {
                    return Err(Errno::ENOTEMPTY);
                }
            }
        }
        if let Some(Node::Directory(place)) = replaced {
            self.forget(&place);
        }
        self.change(from.0)?.remove(from.1);
        self.change(to.0)?.insert(to.1.to_string(), node);
        Ok(Answer::Done)
    }

    fn forget(&mut self, place: &Place) {
        self.directories.remove(place);
        self.before.remove(place);
        self.seen_by.remove(place);
    }

    /// Returns the answer for a client with an old listing of this directory.
    pub(super) fn stale(&self, client: usize, call: &Call) -> Option<Answer> {
        let has_seen = |place: &Place| self.seen_by.get(place).is_some_and(|by| by & (1 << client) != 0);
        if call.places().into_iter().any(has_seen) {
            return None;
        }
        match call {
            Call::List { at } => {
                let before = self.before.get(at).filter(|before| Some(*before) != self.directories.get(at))?;
                Some(Answer::Names(before.keys().cloned().collect()))
            }
            // A client may still believe that a name does not exist, or that a removed name exists.
            Call::OpenDirectory { at, name } if name != "." => {
                let (now, before) = (self.directories.get(at)?.get(name), self.before.get(at)?.get(name));
                match before {
                    _ if now == before => None,
                    Some(Node::Directory(place)) => Some(Answer::Opened(place.clone())),
                    _ => Some(Answer::Failed(Errno::ENOENT as i32)),
                }
            }
            _ => None,
        }
    }

    /// Returns the reply to the repetition of a call whose first reply was lost; `None` if it equals the first reply.
    pub(super) fn repeated(&self, call: &Call, first: &Answer) -> Option<Answer> {
        let errno = match (call, first) {
            (_, Answer::Failed(_)) => return None,
            (Call::Rename { .. } | Call::RemoveFile { .. } | Call::RemoveDirectory { .. }, _) => Errno::ENOENT,
            (Call::MakeDirectory { .. }, _) => Errno::EEXIST,
            _ => return None,
        };
        Some(Answer::Failed(errno as i32))
    }
}
