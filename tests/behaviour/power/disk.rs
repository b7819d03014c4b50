//! A disk, and what of it a power cut may leave.
//!
//! As on ext4 and xfs, names change in one order for the whole file system, kept in a journal: a power cut leaves the
//! changes up to some moment. A sync of a directory makes that moment no earlier than the last change of that directory.
//! Contents have no order: without a sync of the file, each write may be there, be torn, or not be there, and where a
//! file grew zeros may stand. A sync of a file says nothing of its name. (Both file systems are kinder than that.)

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::trace::Call;

type Inode = usize;

const ROOT: Inode = 0;

/// A change of names. The journal has only those.
#[derive(Debug, Clone)]
enum Change {
    Make { at: Inode, name: String, made: Inode },
    Rename { from: (Inode, String), to: (Inode, String) },
    Exchange { one: (Inode, String), other: (Inode, String) },
    Remove { at: Inode, name: String },
}

#[derive(Debug, Clone)]
enum Write {
    At(u64, Vec<u8>),
    Length(u64),
}

#[derive(Debug, Default, Clone)]
struct Names(BTreeMap<Inode, BTreeMap<String, Inode>>);

#[derive(Default)]
pub(super) struct Disk {
    changes: Vec<Change>,
    /// How many of them cannot be lost any more.
    kept: usize,
    names: Names,
    inodes: Inode,
    /// The content of a file: the bytes on the disk, and the later writes.
    files: BTreeMap<Inode, (Vec<u8>, Vec<Write>)>,
}

/// The fate of writes that were not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Kept,
    Lost,
    /// The length is there and the bytes are not.
    Zeros,
    /// The first half of each write.
    Torn,
    /// Some of the writes, chosen by a seed.
    Some(u64),
}

/// A tree of files: `None` is a directory.
pub(super) type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

impl Names {
    fn find(&self, path: &Path) -> Option<Inode> {
        path.iter().try_fold(ROOT, |at, name| self.0.get(&at)?.get(name.to_str()?).copied())
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Make { at, name, made } => {
                self.0.entry(*at).or_default().insert(name.clone(), *made);
            }
            Change::Rename { from, to } => {
                let moved = self.0.get_mut(&from.0).unwrap().remove(&from.1).unwrap();
                self.0.entry(to.0).or_default().insert(to.1.clone(), moved);
            }
            Change::Exchange { one, other } => {
                let [first, second] = [one, other].map(|(at, name)| self.0[at][name]);
                self.0.get_mut(&one.0).unwrap().insert(one.1.clone(), second);
                self.0.get_mut(&other.0).unwrap().insert(other.1.clone(), first);
            }
            Change::Remove { at, name } => {
                self.0.get_mut(at).unwrap().remove(name).unwrap();
            }
        }
    }
}

impl Change {
    fn concerns(&self, directory: Inode) -> bool {
        match self {
            Change::Make { at, .. } | Change::Remove { at, .. } => *at == directory,
            Change::Rename { from, to } | Change::Exchange { one: from, other: to } => {
                from.0 == directory || to.0 == directory
            }
        }
    }
}

impl Disk {
    pub(super) fn take(&mut self, call: &Call) {
        match call {
            Call::Create(path) => {
                if self.names.find(path).is_none() {
                    let made = self.make(path);
                    self.files.insert(made, Default::default());
                }
            }
            Call::MakeDirectory(path) => {
                self.make(path);
            }
            Call::Rename(from, to) => {
                let (from, to) = (self.entry(from), self.entry(to));
                self.change(Change::Rename { from, to });
            }
            Call::Exchange(one, other) => {
                let (one, other) = (self.entry(one), self.entry(other));
                self.change(Change::Exchange { one, other });
            }
            Call::Remove(path) => {
                let (at, name) = self.entry(path);
                self.change(Change::Remove { at, name });
            }
            Call::Write(path, offset, bytes) => {
                let Some(file) = self.names.find(path) else { return };
                let (kept, later) = self.files.get_mut(&file).unwrap();
                let offset = offset.unwrap_or_else(|| content(kept, later, Fate::Kept).len() as u64);
                later.push(Write::At(offset, bytes.clone()));
            }
            Call::Truncate(path, length) => {
                let Some(file) = self.names.find(path) else { return };
                self.files.get_mut(&file).unwrap().1.push(Write::Length(*length));
            }
            Call::Sync(path) => match self.names.find(path) {
                Some(file) if self.files.contains_key(&file) => {
                    let (kept, later) = self.files.get_mut(&file).unwrap();
                    *kept = content(kept, later, Fate::Kept);
                    later.clear();
                }
                Some(directory) => {
                    let last = self.changes.iter().rposition(|change| change.concerns(directory));
                    self.kept = self.kept.max(last.map_or(0, |last| last + 1));
                }
                None => {}
            },
            Call::Say(_) => {}
        }
    }

    fn make(&mut self, path: &Path) -> Inode {
        self.inodes += 1;
        let (at, name) = self.entry(path);
        self.change(Change::Make { at, name, made: self.inodes });
        self.inodes
    }

    fn entry(&self, path: &Path) -> (Inode, String) {
        let at = self.names.find(path.parent().unwrap()).unwrap_or_else(|| panic!("{path:?}"));
        (at, path.file_name().unwrap().to_str().unwrap().to_string())
    }

    fn change(&mut self, change: Change) {
        self.names.apply(&change);
        self.changes.push(change);
    }

    pub(super) fn after_a_cut(&self, fates: &[Fate]) -> BTreeSet<Tree> {
        let mut trees = BTreeSet::new();
        let mut names = Names::default();
        self.changes[..self.kept].iter().for_each(|change| names.apply(change));
        for number in self.kept..=self.changes.len() {
            for fate in fates {
                let mut tree = Tree::new();
                self.fill(&names, ROOT, Path::new(""), *fate, &mut tree);
                trees.insert(tree);
            }
            if let Some(change) = self.changes.get(number) {
                names.apply(change);
            }
        }
        trees
    }

    fn fill(&self, names: &Names, directory: Inode, path: &Path, fate: Fate, tree: &mut Tree) {
        for (name, inode) in names.0.get(&directory).into_iter().flatten() {
            let path = path.join(name);
            match self.files.get(inode) {
                Some((kept, later)) => {
                    tree.insert(path, Some(content(kept, later, fate)));
                }
                None => {
                    self.fill(names, *inode, &path, fate, tree);
                    tree.insert(path, None);
                }
            }
        }
    }
}

fn content(kept: &[u8], later: &[Write], fate: Fate) -> Vec<u8> {
    let mut content = kept.to_vec();
    let mut dice = if let Fate::Some(seed) = fate { seed } else { 0 };
    for write in later {
        match (write, fate) {
            (_, Fate::Lost) => {}
            (Write::Length(length), _) => content.resize(*length as usize, 0),
            (Write::At(offset, bytes), _) => {
                let bytes = match fate {
                    Fate::Torn => bytes[..bytes.len() / 2].to_vec(),
                    Fate::Zeros if (*offset as usize) < kept.len() => continue,
                    Fate::Zeros => vec![0; bytes.len()],
                    Fate::Some(_) => {
                        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        if dice >> 63 == 0 {
                            continue;
                        }
                        bytes.clone()
                    }
                    _ => bytes.clone(),
                };
                let end = *offset as usize + bytes.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*offset as usize..end].copy_from_slice(&bytes);
            }
        }
    }
    content
}

pub(super) fn lay_out(tree: &Tree, place: &Path) {
    // A directory stands before what is in it.
    for (path, content) in tree {
        let path = place.join(path);
        match content {
            None => std::fs::create_dir(path).unwrap(),
            Some(bytes) => std::fs::write(path, without_inode(bytes)).unwrap(),
        }
    }
}

/// Returns the bytes without the inode of the directory that the file was written in. A disk keeps its inodes after a
/// power cut, but here the directories are new.
fn without_inode(bytes: &[u8]) -> &[u8] {
    let (before, end) = bytes.split_at(bytes.len().saturating_sub(22));
    if end.starts_with(b"{\"place\":\"") && end.ends_with(b"\"}\n") { before } else { bytes }
}
