//! The processes that hold flock(2) on the file of a lock, in words.

use crate::name::escape;

/// Maximum number of processes that are named.
const MOST_NAMED: usize = 3;

/// Returns a clause about a file that these processes, pid and command, have locked with flock(2).
pub fn flocked_by(holders: impl IntoIterator<Item = (i32, Vec<u8>)>) -> String {
    let mut who: Vec<String> =
        holders.into_iter().map(|(pid, command)| format!("pid {pid}: {}", escape(&command))).collect();
    match who.len() {
        0 => who.push("a process that cannot be seen from here".to_string()),
        many if many > MOST_NAMED => who.splice(MOST_NAMED.., [format!("{} more", many - MOST_NAMED)]).for_each(drop),
        _ => {}
    }
    format!("locked with flock(2), as flock(1) does it, by {}", who.join("; and "))
}
