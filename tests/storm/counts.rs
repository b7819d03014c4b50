//! The counts of a storm: values that grow only by acknowledged writes, unique ids, and values that one caller created
//! and one deleted.

use std::collections::BTreeSet;

use crate::codes::Call;

/// The acknowledged writes, each number once, and the number of unknown ones.
#[derive(Debug)]
pub(crate) struct Count {
    /// The numbers that were said to be written, in whichever order.
    pub(crate) acknowledged: Vec<u64>,
    pub(crate) unknown: usize,
}

impl Count {
    /// Returns the errors if the count is now this value.
    pub(crate) fn judge(&self, name: &str, found: u64) -> Vec<String> {
        let mut wrong = twice(name, &self.acknowledged);
        let highest = self.acknowledged.iter().max().copied().unwrap_or_default();
        if found < highest {
            wrong.push(format!("{name}: {highest} was written, {found} is found"));
        }
        let missing = found.saturating_sub(self.acknowledged.len() as u64);
        if missing > self.unknown as u64 {
            wrong.push(format!("{name}: {missing} counted without a write, {} may have", self.unknown));
        }
        wrong
    }
}

/// Numbers that are there twice, though each may be there once.
pub(crate) fn twice<T: Ord + Clone + std::fmt::Debug>(name: &str, numbers: &[T]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    numbers.iter().filter(|number| !seen.insert(*number)).map(|number| format!("{name}: {number:?} twice")).collect()
}

/// How often something was done for certain, and perhaps: of calls that ended with 0, and with what leaves it open.
pub(crate) fn done<'a>(calls: impl Iterator<Item = Call<'a>>) -> (usize, usize) {
    calls.fold((0, 0), |(certain, perhaps), call| match call.status {
        0 => (certain + 1, perhaps),
        69 | 74 | 137 => (certain, perhaps + 1),
        _ => (certain, perhaps),
    })
}

/// Returns the errors in the numbers of creations of a missing value and deletions of an existing one. The results of
/// killed rounds are unknown.
pub(crate) fn judge_turns(created: (usize, usize), deleted: (usize, usize), killed: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    if created.0 > deleted.0 + deleted.1 + killed + 1 {
        wrong.push(format!("p was created {created:?} times and deleted {deleted:?} times"));
    }
    if deleted.0 > created.0 + created.1 + killed {
        wrong.push(format!("p was deleted {deleted:?} times and created {created:?} times"));
    }
    wrong
}
