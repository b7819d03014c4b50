//! Revisions at which this process found no record under a name.
//!
//! A transaction that creates a record compares that its creation guard has not changed since that read. The read that
//! led to the transaction therefore is enough, and the guard itself is never read.

use std::sync::Mutex;

use crate::store::guarded;

/// Maximum number of names that are remembered. For the others, the commit reads again.
const MOST_NAMES: usize = 64;

/// Names that were absent at the last read.
#[derive(Debug, Default)]
pub(in crate::store) struct Absences(Mutex<Vec<(Vec<u8>, u64)>>);

impl Absences {
    /// Records the result of a read: the revision at which the name had no record, or `None` if it has one.
    pub(in crate::store) fn note(&self, name: &[u8], absent_at: Option<u64>) {
        let mut all = guarded(&self.0);
        all.retain(|(other, _)| other != name);
        if let Some(revision) = absent_at {
            let surplus = (all.len() + 1).saturating_sub(MOST_NAMES);
            all.drain(..surplus);
            all.push((name.to_vec(), revision));
        }
    }

    /// Returns the revision at which the last read found no record. The next commit needs another read.
    pub(in crate::store) fn take(&self, name: &[u8]) -> Option<u64> {
        let mut all = guarded(&self.0);
        let at = all.iter().position(|(other, _)| other == name)?;
        Some(all.swap_remove(at).1)
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
        assert_eq!((absences.take(b"0"), absences.take(b"999"), absences.take(b"936")), (None, Some(999), Some(936)));
        assert!(guarded(&absences.0).len() <= MOST_NAMES);
    }
}
