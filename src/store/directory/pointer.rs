//! The names inside a record's directory: the pointers `embryo.0.IDENT`, `born.17.IDENT`, `cur.17.IDENT` and
//! `end.17.IDENT`, and `rec.IDENT`.

use std::fmt::{self, Write as _};

use crate::lock::boot_of;
use crate::store::Version;

/// Maximum length of a name in bytes.
const LONGEST: usize = 51;

/// Maximum version number, so that the next number never begins anew with 0.
const HIGHEST: u64 = u64::MAX >> 1;

/// The part of a name that makes it unique among all names, past and present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UniqueId {
    /// Tag of the boot in which the name was made.
    pub(crate) boot: u32,
    /// Random bits.
    pub(crate) mark: u64,
}

/// The stage of a record's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Created, without a version number.
    Unnumbered,
    /// In use and never changed: the pointer file contains the record.
    Inline,
    /// In use: `rec.IDENT` contains the record.
    Current,
    /// Removed.
    Tombstone,
}

/// The name that tells the version of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub(crate) stage: Stage,
    pub(crate) number: u64,
    pub(crate) ident: UniqueId,
}

/// A name found in a record's directory.
pub(crate) enum Name {
    Pointer(Pointer),
    Record(UniqueId),
}

impl UniqueId {
    pub(crate) fn record(&self) -> String {
        name(format_args!("rec.{self}"))
    }

    fn parse(text: &str) -> Option<UniqueId> {
        let is_ident = text.len() == 24 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let hex = |from: usize, to: usize| u64::from_str_radix(text.get(from..to)?, 16).ok();
        is_ident.then_some(())?;
        Some(UniqueId { boot: hex(0, 8)? as u32, mark: hex(8, 24)? })
    }
}

impl fmt::Display for UniqueId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:08x}{:016x}", self.boot, self.mark)
    }
}

impl Stage {
    fn word(self) -> &'static str {
        match self {
            Stage::Unnumbered => "embryo",
            Stage::Inline => "born",
            Stage::Current => "cur",
            Stage::Tombstone => "end",
        }
    }
}

impl Pointer {
    /// Returns true if the pointer leads to a record in use.
    pub(crate) fn is_in_use(&self) -> bool {
        matches!(self.stage, Stage::Inline | Stage::Current)
    }

    pub(crate) fn version(&self) -> Version {
        Version { number: self.number, mark: self.ident.mark }
    }

    /// Returns the name of the file that contains the record's bytes.
    pub(crate) fn record(&self) -> String {
        match self.stage {
            Stage::Unnumbered | Stage::Inline => self.name(),
            Stage::Current | Stage::Tombstone => self.ident.record(),
        }
    }

    pub(crate) fn name(&self) -> String {
        name(format_args!("{}.{}.{}", self.stage.word(), self.number, self.ident))
    }
}

/// Returns a name. A contended lock needs dozens of names, so the memory of each is allocated at once.
fn name(parts: fmt::Arguments<'_>) -> String {
    let mut name = String::with_capacity(LONGEST);
    name.write_fmt(parts).expect("a text takes all writes");
    name
}

impl Name {
    /// Parses a name; returns `None` for a foreign name, even if it is another spelling of ours (`cur.007.…`). A rename
    /// would not find such a name under the spelling that csalock writes.
    pub(crate) fn parse(name: &[u8]) -> Option<Name> {
        let mut parts = std::str::from_utf8(name).ok()?.split('.');
        let word = parts.next()?;
        if word == "rec" {
            let ident = UniqueId::parse(parts.next()?)?;
            return parts.next().is_none().then_some(Name::Record(ident));
        }
        let stage = [Stage::Unnumbered, Stage::Inline, Stage::Current, Stage::Tombstone]
            .into_iter()
            .find(|stage| stage.word() == word)?;
        let (number, ident) = (number_of(parts.next()?)?, UniqueId::parse(parts.next()?)?);
        parts.next().is_none().then_some(Name::Pointer(Pointer { stage, number, ident }))
    }
}

/// Parses a number in the spelling that csalock writes; returns `None` for any other.
pub(crate) fn number_of(digits: &str) -> Option<u64> {
    let number: u64 = digits.parse().ok()?;
    (number <= HIGHEST && number.to_string() == digits).then_some(number)
}

/// Returns the next number; `None` if there is none.
pub(crate) fn after(number: u64) -> Option<u64> {
    number.checked_add(1).filter(|next| *next <= HIGHEST)
}

/// Returns eight hex digits' worth of a boot id, so that a name tells if a power cut may have torn its file.
pub(crate) fn boot_tag(boot: &str) -> u32 {
    (boot_of(boot) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn foreign_processes_are_not_descendants() {
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
