//! History of a PostgreSQL store: one row per line.
//!
//! Numbers of rows are taken before their transactions end, so a lower number may appear later. A reader therefore
//! remembers the rows of transactions that were not all over at its last read.

use super::Postgres;
use super::number;
use crate::error::Result;
use crate::store::{HistoryCursor, WriteSet};

const NEW: &str = "SELECT id, line, xact, pg_snapshot_xmin(pg_current_snapshot())::text::bigint FROM $.history \
                   WHERE xact >= $1::bigint AND id > $2::bigint ORDER BY id LIMIT 1000";
const XMIN: &str = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, $.origin()";
const PRUNE: &str = "DELETE FROM $.history WHERE at < clock_timestamp() - $1::bigint * interval '1 s' OR id <= (SELECT \
                     max(id) FROM (SELECT id, sum(octet_length(line)) OVER (ORDER BY id DESC) AS size FROM $.history) s \
                     WHERE size > $2::bigint)";

/// Number of commits out of 256 after which the process removes old lines.
const NOW_AND_THEN: u8 = 4;

impl Postgres {
    /// Visits the lines that were added since the last call with this cursor, oldest first.
    pub(super) fn new_history(&self, cursor: &mut HistoryCursor, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
        let Some(rows) = self.query(XMIN, &[])? else { return Ok(()) };
        let open = rows.first().and_then(|row| number(row, 0)).ok_or_else(|| self.nonsense())? as u64;
        // Only a server that was restored from a copy returns to an earlier transaction.
        if open < cursor.revision {
            *cursor = HistoryCursor::default();
        }
        let (known, mut last) = (std::mem::take(&mut cursor.seen), 0_i64);
        loop {
            let from = [cursor.revision.to_be_bytes().to_vec(), last.to_be_bytes().to_vec()];
            let rows = self.query(NEW, &from)?.unwrap_or_default();
            for row in &rows {
                let (Some(id), Some(Some(line)), Some(xact)) = (number(row, 0), row.get(1), number(row, 2)) else {
                    return Err(self.nonsense());
                };
                last = last.max(id);
                if xact as u64 >= open {
                    cursor.seen.insert(id as u64);
                }
                if !known.contains(&(id as u64)) {
                    visit(line);
                }
            }
            if rows.is_empty() {
                cursor.revision = open;
                return Ok(());
            }
        }
    }

    /// Removes old lines at random times, so that each line costs little.
    pub(super) fn prune_history(&self, set: &WriteSet<'_>) {
        if !set.history.is_empty() && self.client.host.random().is_ok_and(|random| random[0] < NOW_AND_THEN) {
            let limits = [set.limits.age.as_secs().min(1 << 33), set.limits.size.min(i64::MAX as u64)];
            let _ = self.call(PRUNE, &limits.map(|limit| limit.to_be_bytes().to_vec()));
        }
    }
}
