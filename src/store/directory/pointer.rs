//! The names inside a record's directory: the pointers `embryo.0.IDENT`, `born.17.IDENT`, `cur.17.IDENT` and
//! `end.17.IDENT`, and `rec.IDENT`.

use sha2::{Digest, Sha256};

use crate::store::Version;

/// What makes a name unlike any other that ever was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ident {
    /// In which boot it was made.
    pub(super) boot: u32,
    /// Random.
    pub(super) mark: u64,
}

/// Where in its life a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Born, its version number not yet chosen.
    Embryo,
    /// In use, and never changed yet: the record is in the pointer itself.
    Born,
    /// In use: the record is in `rec.IDENT`.
    Cur,
    /// Removed.
    End,
}

/// The one name that says which version a record is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pointer {
    pub(super) stage: Stage,
    pub(super) number: u64,
    pub(super) ident: Ident,
}

/// A name found in a record's directory.
pub(super) enum Name {
    Pointer(Pointer),
    Record,
}

impl Ident {
    pub(super) fn text(&self) -> String {
        format!("{:08x}{:016x}", self.boot, self.mark)
    }

    pub(super) fn record(&self) -> String {
        format!("rec.{}", self.text())
    }

    fn parse(text: &str) -> Option<Ident> {
        let is_ident = text.len() == 24 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let hex = |from: usize, to: usize| u64::from_str_radix(text.get(from..to)?, 16).ok();
        is_ident.then_some(())?;
        Some(Ident { boot: hex(0, 8)? as u32, mark: hex(8, 24)? })
    }
}

impl Stage {
    fn word(self) -> &'static str {
        match self {
            Stage::Embryo => "embryo",
            Stage::Born => "born",
            Stage::Cur => "cur",
            Stage::End => "end",
        }
    }
}

impl Pointer {
    /// Whether it points to a record that counts.
    pub(super) fn is_in_use(&self) -> bool {
        matches!(self.stage, Stage::Born | Stage::Cur)
    }

    pub(super) fn version(&self) -> Version {
        Version { number: self.number, mark: self.ident.mark }
    }

    /// The name of the file that has the record's bytes.
    pub(super) fn record(&self) -> String {
        match self.stage {
            Stage::Embryo | Stage::Born => self.name(),
            Stage::Cur | Stage::End => self.ident.record(),
        }
    }

    pub(super) fn name(&self) -> String {
        format!("{}.{}.{}", self.stage.word(), self.number, self.ident.text())
    }
}

impl Name {
    /// `None` for a name that is none of ours.
    pub(super) fn parse(name: &[u8]) -> Option<Name> {
        let mut parts = std::str::from_utf8(name).ok()?.split('.');
        let word = parts.next()?;
        if word == "rec" {
            Ident::parse(parts.next()?)?;
            return parts.next().is_none().then_some(Name::Record);
        }
        let stage =
            [Stage::Embryo, Stage::Born, Stage::Cur, Stage::End].into_iter().find(|stage| stage.word() == word)?;
        let (number, ident) = (parts.next()?.parse().ok()?, Ident::parse(parts.next()?)?);
        parts.next().is_none().then_some(Name::Pointer(Pointer { stage, number, ident }))
    }
}

/// Eight hex digits' worth of a boot id, so that a name tells whether a power cut may have torn what it names.
pub(super) fn boot_tag(boot: &str) -> u32 {
    let digest = Sha256::digest(boot.as_bytes());
    digest.iter().take(4).fold(0, |tag, byte| (tag << 8) | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_reads_back() {
        let pointer = Pointer { stage: Stage::End, number: 17, ident: Ident { boot: 1, mark: u64::MAX } };
        assert_eq!(pointer.name(), "end.17.00000001ffffffffffffffff");
        assert!(matches!(Name::parse(pointer.name().as_bytes()), Some(Name::Pointer(same)) if same == pointer));
        assert!(matches!(Name::parse(pointer.ident.record().as_bytes()), Some(Name::Record)));
    }

    #[test]
    fn strangers_are_none_of_ours() {
        for name in ["", "cur", "cur.1", "cur.x.00000001ffffffffffffffff", "rec.1", "cur.1.00000001ffffffffffffffff.x"]
        {
            assert!(Name::parse(name.as_bytes()).is_none(), "{name}");
        }
    }
}
