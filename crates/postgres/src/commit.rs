//! Commit: one call of the function `commit` of the schema, and the history that it writes: one row per line.
//!
//! Numbers of rows are taken before their transactions end, so a lower number may appear later. A reader therefore
//! remembers the rows of transactions that were not all over at its last read.

use std::sync::atomic::Ordering;

use super::errors::{is_conflict, is_missing};
use super::session::array;
use super::{Postgres, number};
use lock::error::Result;
use net::check_mode;
use store::{Call, CommitResult, Store, Version, WriteSet};

const COMMIT: &str = "SELECT * FROM $.change($1, $2, $3, $4, $5)";

const LINES: &str = "SELECT id, line FROM $.history WHERE id > $1::bigint AND (SELECT $.origin()) IS NOT NULL \
                     ORDER BY id LIMIT 1000";
const PRUNE: &str = "DELETE FROM $.history WHERE at < clock_timestamp() - $1::bigint * interval '1 s' OR id <= (SELECT \
                     max(id) FROM (SELECT id, sum(octet_length(line)) OVER (ORDER BY id DESC) AS size FROM $.history) s \
                     WHERE size > $2::bigint)";

/// Number of commits out of 256 after which the process removes old lines.
const NOW_AND_THEN: u8 = 4;

impl Postgres {
    /// Number of the name's bucket when the last read of this process, or a new one, found no record; `None` if there is
    /// one now.
    fn absent_at(&self, call: Call, name: &[u8]) -> Result<Option<i64>> {
        let mut known = self.absences.take(name);
        if known.is_none() && self.read(call, name)?.is_none() {
            known = self.absences.take(name);
        }
        Ok(known.map(|number| number as i64))
    }

    /// `None` if the record cannot have the expected version.
    fn parameters(&self, call: Call, set: &WriteSet<'_>) -> Result<Option<Vec<Vec<u8>>>> {
        let (mut expect, mut guard) = (None, None);
        if let Some(change) = &set.change {
            let hint = "grant SELECT on that schema only to roles that may read them";
            check_mode(change, "a table", &self.place, hint)?;
            (expect, guard) = match change.expect {
                Some(Version { number, mark: 0 }) if number > 0 && number <= i64::MAX as u64 => {
                    (Some(Some(number as i64)), Some(0))
                }
                Some(_) => return Ok(None),
                None => match self.absent_at(call, change.name)? {
                    Some(guard) => (Some(None), Some(guard)),
                    None => return Ok(None),
                },
            };
        }
        // The function of the schema takes arrays, which have at most one change.
        Ok(Some(vec![
            array(set.change.map(|change| Some(change.name)), true),
            array(expect.map(|number| number.map(i64::to_be_bytes)), false),
            array(guard.map(|number: i64| Some(number.to_be_bytes())), false),
            array(set.change.map(|change| change.body), true),
            array(set.history.iter().map(Some), true),
        ]))
    }

    /// Runs the transaction of a commit, and creates the schema if a record needs it.
    pub(super) fn transact(&self, call: Call, set: &WriteSet<'_>) -> Result<CommitResult> {
        let Some(parameters) = self.parameters(call, set)? else { return Ok(CommitResult::Conflict(None)) };
        let mut done = self.call(call, COMMIT, &parameters);
        if done.as_ref().is_err_and(is_missing) {
            if set.change.is_some_and(|change| change.expect.is_some() || change.body.is_none()) {
                return Ok(CommitResult::Conflict(None));
            }
            self.create(call)?;
            // A new schema has numbers that no read has found yet.
            let Some(parameters) = self.parameters(call, set)? else { return Ok(CommitResult::Conflict(None)) };
            done = self.call(call, COMMIT, &parameters);
        }
        let (mut rows, was_resent) = match done {
            Err(error) if is_conflict(&error) => return Ok(CommitResult::Unclear),
            done => done.map_err(|error| self.error(call, &error))?,
        };
        let row = rows.first_mut().ok_or_else(|| self.nonsense())?;
        if let Some(number) = number(row, 0) {
            return Ok(CommitResult::Done(Version { number: number.unsigned_abs(), mark: 0 }));
        }
        // The first copy of a repeated transaction may have been committed.
        if was_resent || self.in_doubt.load(Ordering::SeqCst) {
            return Ok(CommitResult::Unclear);
        }
        let Some(change) = set.change else { return Ok(CommitResult::Conflict(None)) };
        row.remove(0);
        Ok(CommitResult::Conflict(self.stored(row, change.name).ok().flatten()))
    }

    /// Visits all lines, oldest first.
    pub(super) fn visit_history(&self, call: Call, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut last = 0_i64;
        loop {
            let rows = self.query(call, LINES, &[last.to_be_bytes().to_vec()])?.unwrap_or_default();
            if rows.is_empty() {
                return Ok(());
            }
            for row in &rows {
                let (Some(id), Some(Some(line))) = (number(row, 0), row.get(1)) else { return Err(self.nonsense()) };
                last = last.max(id);
                visit(line);
            }
        }
    }

    /// Removes old lines at random times, so that each line costs little.
    pub(super) fn prune_history(&self, call: Call, set: &WriteSet<'_>) {
        if !set.history.is_empty() && self.host.random().is_ok_and(|random| random[0] < NOW_AND_THEN) {
            let limits = [set.limits.age.as_secs().min(1 << 33), set.limits.size.min(i64::MAX as u64)];
            let _ = self.call(call, PRUNE, &limits.map(|limit| limit.to_be_bytes().to_vec()));
        }
    }
}
