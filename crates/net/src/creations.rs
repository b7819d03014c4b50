//! Parts of a commit that the stores on servers share: the reads that creations rely on, and modes that they lack.

use std::collections::BTreeMap;
use std::sync::Mutex;

use lock::{Error, ErrorKind, Result};
use store::{Write, guarded};

/// Refuses a mode that lets fewer users read the record than may read a store without modes.
pub fn check_mode(change: &Write<'_>, kind: &str, place: &str, hint: &str) -> Result<()> {
    match change.options.mode {
        // A removal makes no bytes readable.
        Some(mode) if change.body.is_some() && mode & 0o044 != 0o044 => {
            let what = format!(
                "{kind} has no modes, so every user who may read {place} could read bytes that need mode {mode:04o}"
            );
            Err(Error::new(ErrorKind::Denied, what, format!("leave the mode out, and {hint}")))
        }
        _ => Ok(()),
    }
}

/// Maximum number of names that are remembered. For the others, the commit reads again.
const MOST_NAMES: usize = 64;

/// Revisions at which this process found no record under a name.
///
/// A transaction that creates a record compares that its creation guard has not changed since that read. The read that
/// led to the transaction therefore is enough, and the guard itself is never read.
#[derive(Debug, Default)]
pub struct Absences(Mutex<BTreeMap<Vec<u8>, u64>>);

impl Absences {
    /// Records the result of a read: the revision at which the name had no record, or `None` if it has one.
    pub fn note(&self, name: &[u8], absent_at: Option<u64>) {
        let mut all = guarded(&self.0);
        all.remove(name);
        if all.len() >= MOST_NAMES {
            all.clear();
        }
        all.extend(absent_at.map(|revision| (name.to_vec(), revision)));
    }

    /// Revision at which the last read found no record. The next commit needs another read.
    pub fn take(&self, name: &[u8]) -> Option<u64> {
        guarded(&self.0).remove(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absence_counts_for_one_commit_after_the_last_read() {
        let absences = Absences::default();
        absences.note(b"a", Some(1));
        absences.note(b"b", Some(2));
        absences.note(b"a", Some(3));
        assert_eq!((absences.take(b"a"), absences.take(b"a"), absences.take(b"b")), (Some(3), None, Some(2)));
        absences.note(b"a", Some(4));
        absences.note(b"a", None);
        assert_eq!(absences.take(b"a"), None);
        (0..1000).for_each(|number| absences.note(format!("{number}").as_bytes(), Some(number)));
        assert_eq!((absences.take(b"0"), absences.take(b"999")), (None, Some(999)));
        assert!(guarded(&absences.0).len() <= MOST_NAMES);
    }
}
