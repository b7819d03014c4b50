//! The files of a directory store, and the protocol over their names.
//!
//! ```text
//! STORE/nightly/cur.17.IDENT        "nightly" is at version 17; the bytes of its record are in rec.IDENT
//! STORE/nightly/rec.IDENT           the bytes of the record, never changed
//! STORE/backup/born.16.IDENT        an inline record: this file contains its bytes
//! STORE/.work/token.17              the highest version number of any removed record
//! STORE/.work/.new.IDENT/           a record that is being created
//! STORE/.work/.bell.HASH            the wake-up channel for other network namespaces ([`super::channel`])
//! STORE/.work/rest.nightly          mark: the tombstone of "nightly" is parked ([`super::work`])
//! STORE/.work/history               the history of past grants ([`store::history_file`])
//! ```
//!
//! If STORE had the sticky bit when it was new, all this is in the directory `STORE/.locks`, which does not have it. A
//! `.csalock` is removed with its last record, so it has no `.work`: its drafts and channels are beside its records.
//!
//! The file system must guarantee that rename(2) of a given source name happens once. So csalock never reuses a name
//! that it removed or renamed.
//!
//! **Commit.** csalock writes `rec.NEW`, renames `cur.17.OLD` to `cur.18.NEW` and removes `rec.OLD`. ENOENT: another
//! process was faster, or the reply to the first try was lost. The caller reads again and sees whose commit it was.
//!
//! **Creation.** csalock prepares a directory with the record as `embryo.0.NEW` and renames it onto the name, which
//! fails if a record is there. Then it chooses the version number, above all earlier ones of this name because it is so
//! late, and renames `embryo.0.NEW` to `born.N.NEW`. Any process may number an unnumbered record.
//!
//! **Removal.** csalock renames `cur.17.OLD` to `end.17.OLD`, the tombstone. Any process may revive a tombstone:
//! `end.17.OLD` becomes `cur.18.NEW`. For that purpose a record of the store stays parked as a tombstone. The others
//! are removed: csalock raises `token`, and then it removes `rec.OLD`, `end.17.OLD` and the directory. A process that
//! removes the tombstone of another process removes `end.17.OLD` first, because a `rec` may be the record that revives it.
//!
//! **Sweeping.** After a commit csalock removes every `rec` that it saw before: the writers of those files can no
//! longer succeed. A directory without a pointer ([`Stage`]) can never get a pointer again and is removed.
//!
//! **Version numbers** begin at the clock in microseconds or above `token`, whichever is higher. So they never fall,
//! even if the clock is set back or a file is lost. They begin there anew with each boot, because a power cut may undo
//! changes that were not synced. A `.csalock` keeps no `token`, because its last record takes it along: there the clock
//! alone counts.
//!
//! **Copies.** After its bytes, a file has a line with the number of the inode of the store's directory ([`Place`]). A copy
//! of the directory, for example by git(1) or rsync(1), has another number, so a reader knows that no holder works there.
//! The line is not in the names: csalock 0.2.0 would take a pointer with another name for none, and remove the record.
//!
//! **Power cuts.** Data that may end with the boot is not synced, and csalock detects a record that a power cut tore.
//! Data that must outlast a power cut is synced, in the order that [`super::commit`] describes.
//!
//! **Limits.** A stale directory listing, which NFS clients may have, costs a retry. Names that differ only in case
//! need a case-sensitive file system; elsewhere the second name is refused, because a record contains its name.

use std::fmt;

use nix::sys::stat::FileStat;
use nix::sys::statfs::FsType;
use sha2::{Digest, Sha256};

use super::root::Root;
use lock::boot_of;
use store::Version;

/// The working directory of a store. The name of a record's directory never begins with a dot.
pub(super) const WORK: &str = ".work";

/// The directory with the records in a directory with the sticky bit. There only its owner may replace or remove a
/// directory, so a killed user's empty directory would block its name for all others.
pub(super) const LOCKS: &str = ".locks";

pub(super) const HISTORY: &str = "history";

/// Prefixes in the working directory: the file with the highest removed version, and the marks of parked records.
pub(super) const TOKEN: &str = "token.";
pub(super) const PARKED: &str = "rest.";

/// Prefixes of drafts in the working directory: a new record, a file that shows the time, a channel, a draft that is
/// being removed.
pub(super) const NEW: &str = ".new.";
pub(super) const CLOCK: &str = ".clock.";
pub(super) const CHANNEL: &str = ".bell.";
pub(super) const DEAD: &str = ".dead";

/// Prefix of the name that an NFS client gives to a removed file while a process has it open. The client removes that
/// file when it is closed, unless the client dies first.
pub(super) const REMOVED_WHILE_OPEN: &[u8] = b".nfs";

/// Maximum length in bytes of an escaped file name; a longer name is cut and gets a hash. NAME_MAX is 255.
const LONGEST_PLAIN: usize = 200;

const SEEN_OF_LONG: usize = 100;

/// Maximum version number, so that the next number never begins anew with 0.
const HIGHEST: u64 = u64::MAX >> 1;

pub(super) fn is_draft(name: &[u8]) -> bool {
    [NEW, CLOCK, CHANNEL, DEAD].iter().any(|prefix| name.starts_with(prefix.as_bytes()))
}

/// Letters, digits, `_`, `-` and inner dots stay; other bytes become `%XX`. Only file names of long names contain `~`,
/// before the SHA-256 of the name.
pub fn file_name(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    for (at, byte) in name.iter().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => plain.push(*byte),
            b'.' if at > 0 => plain.push(*byte),
            _ => plain.extend(format!("%{byte:02X}").into_bytes()),
        }
    }
    if plain.len() > LONGEST_PLAIN {
        plain.truncate(SEEN_OF_LONG);
        plain.push(b'~');
        Sha256::digest(name).iter().for_each(|byte| plain.extend(format!("{byte:02x}").into_bytes()));
    }
    plain
}

/// csalock ignores other names in a store; `..` is not valid either.
pub(super) fn is_file_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name[0] != b'.'
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_-.%~".contains(byte))
}

/// `None` for the file name of a long name and for an invalid file name.
#[cfg(any(test, fuzzing, debug_assertions))]
pub fn name_of_file(file: &[u8]) -> Option<Vec<u8>> {
    let name = lock::text::unescape(std::str::from_utf8(file).ok()?)?;
    (file_name(&name) == file).then_some(name)
}

/// The part of a name that makes it unique among all names, past and present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UniqueId {
    /// Tag of the boot in which the name was made: a power cut may have torn files of earlier boots.
    pub(crate) boot: u32,
    pub(crate) mark: u64,
}

/// State of a record, which the name of its pointer begins with.
///
/// | stage | pointer | bytes of the record |
/// |---|---|---|
/// | unnumbered | `embryo.0.IDENT` | in the pointer; the record has no version yet |
/// | inline | `born.N.IDENT` | in the pointer; the record was never changed |
/// | current | `cur.N.IDENT` | in `rec.IDENT` |
/// | tombstone | `end.N.IDENT` | none: the record was removed. It is parked while there is a `.work/rest.NAME` |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Unnumbered,
    Inline,
    Current,
    Tombstone,
}

/// In the order of [`Stage`].
const STAGES: [(Stage, &str); 4] =
    [(Stage::Unnumbered, "embryo"), (Stage::Inline, "born"), (Stage::Current, "cur"), (Stage::Tombstone, "end")];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    pub(crate) stage: Stage,
    pub(crate) number: u64,
    pub(crate) ident: UniqueId,
}

/// Identity of a store's directory, which a copy of the directory does not have: the number of its inode, as the server
/// of a network file system and all its clients see it. In a file it is a line: `{"place":"l0000001f"}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// [`LOCAL`], [`NFS`] or [`BTRFS`].
    kind: u8,
    number: u32,
}

/// Kinds of file systems whose inodes have permanent numbers. An NFS server sends its clients the numbers of a file system
/// of the kind `LOCAL`, but may send others for Btrfs. FUSE and overlayfs number directories anew at any time.
const ANY: u8 = b'-';
const LOCAL: u8 = b'l';
const NFS: u8 = b'r';
const BTRFS: u8 = b'b';
const KINDS: [(u32, u8); 5] =
    [(0xEF53, LOCAL), (0x5846_5342, LOCAL), (0x0102_1994, LOCAL), (0x6969, NFS), (0x9123_683E, BTRFS)];

const BEFORE_PLACE: &str = "{\"place\":\"";

pub(super) const PLACE_LENGTH: usize = 22;

/// End of the line with the place. No record ends so.
pub(super) const END_OF_FILE: &str = "\"}\n";

/// Magic number of overlayfs: layers of directories, as in a container.
pub(super) const OVERLAYFS: u32 = 0x794C_7630;

pub enum Name {
    Pointer(Pointer),
    Record(UniqueId),
}

impl UniqueId {
    pub fn record(&self) -> String {
        format!("rec.{self}")
    }

    fn parse(text: &str) -> Option<UniqueId> {
        let (boot, mark) = text.split_at_checked(8)?;
        let (boot, mark) = (u32::from_str_radix(boot, 16).ok()?, u64::from_str_radix(mark, 16).ok()?);
        let ident = UniqueId { boot, mark };
        (ident.to_string() == text).then_some(ident)
    }
}

impl fmt::Display for UniqueId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:08x}{:016x}", self.boot, self.mark)
    }
}

impl Pointer {
    pub(crate) fn is_in_use(&self) -> bool {
        matches!(self.stage, Stage::Inline | Stage::Current)
    }

    pub(crate) fn version(&self) -> Version {
        Version { number: self.number, mark: self.ident.mark }
    }

    /// Name of the file that contains the record's bytes.
    pub fn record(&self) -> String {
        match self.stage {
            Stage::Unnumbered | Stage::Inline => self.name(),
            Stage::Current | Stage::Tombstone => self.ident.record(),
        }
    }

    pub fn name(&self) -> String {
        format!("{}.{}.{}", STAGES[self.stage as usize].1, self.number, self.ident)
    }
}

impl Place {
    pub(crate) const UNKNOWN: Place = Place { kind: ANY, number: 0 };

    pub(super) fn of(directory: &FileStat, file_system: FsType) -> Place {
        let known = KINDS.into_iter().find(|(magic, _)| *magic == file_system.0 as u32);
        // A client with short numbers folds long ones in the same way (nfs.enable_ino64).
        let number = (directory.st_ino ^ (directory.st_ino >> 32)) as u32;
        known.map_or(Place::UNKNOWN, |(_, kind)| Place { kind, number })
    }

    fn differs_from(self, other: Place) -> bool {
        let is_comparable = self.kind == other.kind || (self.kind != BTRFS && other.kind != BTRFS);
        self.kind != ANY && other.kind != ANY && is_comparable && self.number != other.number
    }

    /// In doubt the file was written here: a record of a live holder must not seem to be a copy.
    pub(super) fn is_copied_to(self, root: &Root) -> bool {
        // What is in a layer was written before the layers were mounted.
        let is_from_layer = root.is_layered && ![ANY, NFS].contains(&self.kind);
        is_from_layer || self.differs_from(root.place)
    }

    /// Removes the line with the place from the bytes of a file. A file of csalock 0.2.0 has none.
    pub(super) fn split_from(bytes: &mut Vec<u8>) -> Option<Place> {
        let at = bytes.len().checked_sub(PLACE_LENGTH)?;
        let line = std::str::from_utf8(&bytes[at..]).ok()?;
        let (kind, number) = (*line.as_bytes().get(BEFORE_PLACE.len())?, line.get(BEFORE_PLACE.len() + 1..)?);
        let place = Place { kind, number: u32::from_str_radix(number.strip_suffix(END_OF_FILE)?, 16).ok()? };
        let is_known = kind == ANY || KINDS.iter().any(|(_, known)| *known == kind);
        (is_known && place.to_string() == line).then(|| {
            bytes.truncate(at);
            place
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{BEFORE_PLACE}{}{:08x}{END_OF_FILE}", self.kind as char, self.number)
    }
}

impl Name {
    /// `None` for a foreign name, even if it is another spelling of ours (`cur.007.…`): a rename would not find it.
    pub fn parse(name: &[u8]) -> Option<Name> {
        let parts: Vec<&str> = std::str::from_utf8(name).ok()?.split('.').collect();
        match parts[..] {
            ["rec", ident] => Some(Name::Record(UniqueId::parse(ident)?)),
            [word, number, ident] => {
                let (stage, _) = STAGES.into_iter().find(|(_, known)| *known == word)?;
                Some(Name::Pointer(Pointer { stage, number: number_of(number)?, ident: UniqueId::parse(ident)? }))
            }
            _ => None,
        }
    }
}

/// `None` for any other spelling than that of csalock.
pub(super) fn number_of(digits: &str) -> Option<u64> {
    let number: u64 = digits.parse().ok()?;
    (number <= HIGHEST && number.to_string() == digits).then_some(number)
}

pub(super) fn next_version(number: u64) -> Option<u64> {
    (number < HIGHEST).then(|| number + 1)
}

pub(super) fn boot_tag(boot: &str) -> u32 {
    (boot_of(boot) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_names_have_distinct_file_names_that_fit() {
        let long = |last: u8| [&[b'x'; 1023][..], &[last]].concat();
        let mut names = vec![b"a".to_vec(), b"A".to_vec(), b".".to_vec(), b"..".to_vec(), b"%2E".to_vec()];
        names.extend([b"a b".to_vec(), b"a%20b".to_vec(), b"~".to_vec(), b"\xff".to_vec(), b"/".to_vec()]);
        names.extend([long(b'a'), long(b'b'), vec![b'\n'; 1024], vec![b'x'; 200], vec![b'x'; 201]]);
        let files: std::collections::BTreeSet<_> = names.iter().map(|name| file_name(name)).collect();
        assert_eq!(files.len(), names.len());
        assert!(files.iter().all(|file| file.len() <= 255 && file[0] != b'.' && !file.contains(&b'/')));
        assert_eq!(file_name(b"nightly.sh"), b"nightly.sh");
        assert_eq!(file_name(b"../a"), b"%2E.%2Fa");
    }

    #[test]
    fn a_pointer_reads_back() {
        let pointer = Pointer { stage: Stage::Tombstone, number: 17, ident: UniqueId { boot: 1, mark: u64::MAX } };
        assert_eq!(pointer.name(), "end.17.00000001ffffffffffffffff");
        assert!(matches!(Name::parse(pointer.name().as_bytes()), Some(Name::Pointer(same)) if same == pointer));
        assert!(
            matches!(Name::parse(pointer.ident.record().as_bytes()), Some(Name::Record(same)) if same == pointer.ident)
        );
    }

    #[test]
    fn only_places_whose_numbers_are_comparable_differ() {
        let of_file = |text: &str| Place::split_from(&mut format!("x\n{{\"place\":\"{text}\"}}\n").into_bytes());
        let place = |text: &str| of_file(text).unwrap();
        for (one, other, differ) in [
            ("l00000001", "l00000002", true),
            ("l00000001", "l00000001", false),
            ("l00000001", "r00000001", false),
            ("l00000001", "r00000002", true),
            ("b00000001", "b00000002", true),
            ("b00000001", "l00000002", false),
            ("b00000001", "r00000002", false),
            ("-00000000", "l00000002", false),
        ] {
            let (one, other) = (place(one), place(other));
            assert_eq!([one.differs_from(other), other.differs_from(one)], [differ; 2], "{one} {other}");
        }
        let wrong = ["", "l", "l1", "x00000001", "lABCDEF01", "l+0000001", "l000000001", "\u{e4}00000001"];
        assert!(wrong.iter().all(|text| of_file(text).is_none()));
        let mut bytes = b"a record\n{\"place\":\"b0000abcd\"}\n".to_vec();
        assert_eq!(Place::split_from(&mut bytes), Some(Place { kind: BTRFS, number: 0xabcd }));
        assert_eq!((Place::split_from(&mut bytes), bytes), (None, b"a record\n".to_vec()));
    }

    #[test]
    fn foreign_file_names_are_not_parsed() {
        let ident = "00000001ffffffffffffffff";
        for name in ["", "cur", "cur.1", &format!("cur.x.{ident}"), "rec.1", &format!("cur.1.{ident}.x")] {
            assert!(Name::parse(name.as_bytes()).is_none(), "{name}");
        }
        for number in ["007", "+7", "", "-7", "9223372036854775808", "18446744073709551615", "99999999999999999999"] {
            assert!(Name::parse(format!("cur.{number}.{ident}").as_bytes()).is_none(), "{number}");
        }
        assert!(Name::parse(b"cur.7.00000001FFFFFFFFFFFFFFFF").is_none());
    }
}
