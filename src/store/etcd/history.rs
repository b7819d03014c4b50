//! History of an etcd store: one key per line.
//!
//! A key contains the time and the length of its line, so the oldest lines can be removed without reading them. The
//! transaction that ends a grant puts its line. At random times, a process that has added a line removes old lines.

use std::time::Duration;

use serde_json::{Value, json};

use super::api::{Anything, MOST_PAIRS, RangeAnswer, encoded, prefix_end, put};
use super::client::Client;
use super::next_page;
use crate::error::Result;
use crate::history::HistoryLimits;
use crate::host::Host;

/// Number of lines out of 256 after which the process checks for too many lines.
const NOW_AND_THEN: u8 = 4;

/// Number of lines read at once.
const PAGE: u64 = 500;
const MANY_KEYS: u64 = MOST_PAIRS as u64;

pub(super) fn put_line(host: &dyn Host, prefix: &[u8], line: &str) -> Result<Value> {
    let chance: String = host.random()?[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    let key = [prefix, format!("{:020}.{chance}.{}", host.wall().as_nanos(), line.len()).as_bytes()].concat();
    Ok(put(&key, line.as_bytes(), None))
}

/// Removes old lines at random times, so that each line costs little.
pub(super) fn prune_sometimes(client: &Client, prefix: &[u8], limits: &HistoryLimits) {
    let Ok(random) = client.host.random() else { return };
    if random[0] < NOW_AND_THEN {
        let chance = random[1..5].iter().fold(0, |chance, byte| chance << 8 | u32::from(*byte));
        let _ = prune(client, prefix, limits, client.host.wall(), chance);
    }
}

/// Visits the lines that were added after the revision `known`, oldest first, and sets `known` to the last revision
/// that was read; 0 is before all lines.
///
/// Keys begin with the clocks of their writers, so a new line need not have the last key. Revisions only grow.
pub(super) fn added(client: &Client, prefix: &[u8], known: &mut u64, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
    let (mut from, mut until, mut new) = (prefix.to_vec(), None, Vec::new());
    loop {
        let mut question = range(&from, prefix, PAGE, false);
        if *known > 0 {
            question["min_mod_revision"] = (*known + 1).to_string().into();
        }
        let found: RangeAnswer = client.ask("/v3/kv/range", &question)?;
        // Only a cluster that was set up anew or restored from a copy returns to an earlier revision.
        if found.header.revision < *known {
            (*known, from, until, new) = (0, prefix.to_vec(), None, Vec::new());
            continue;
        }
        from = next_page(client, &from, &found)?;
        // Lines that were added after the first page are left to the next call: pages before may lack others.
        let until = *until.get_or_insert(found.header.revision);
        new.extend(found.kvs.into_iter().filter(|pair| pair.mod_revision <= until));
        if !found.more {
            new.sort_by_key(|pair| pair.mod_revision);
            new.iter().for_each(|pair| visit(&pair.value));
            *known = until;
            return Ok(());
        }
    }
}

/// Removes the oldest lines that are too old or too many, at most [`MANY_KEYS`] at a time. `chance` is random.
fn prune(client: &Client, prefix: &[u8], limits: &HistoryLimits, now: Duration, chance: u32) -> Result<()> {
    let first: RangeAnswer = client.ask("/v3/kv/range", &range(prefix, prefix, MANY_KEYS, true))?;
    // A full count of many pages is so rare that the average cost per line is that of a single page.
    let counts_all = u64::from(chance) % first.count.max(1) < MANY_KEYS;
    let mut size = if counts_all { sizes(prefix, &first).sum() } else { 0_u64 };
    let (mut more, mut from) = (first.more && counts_all, next_page(client, prefix, &first)?);
    while more {
        let page: RangeAnswer = client.ask("/v3/kv/range", &range(&from, prefix, MANY_KEYS, true))?;
        size = sizes(prefix, &page).fold(size, u64::saturating_add);
        from = next_page(client, &from, &page)?;
        more = page.more;
    }
    let oldest = now.saturating_sub(limits.age).as_nanos();
    let mut until = None;
    for (pair, length) in first.kvs.iter().zip(sizes(prefix, &first)) {
        let came = parts(prefix, &pair.key).next().and_then(|came| came.parse::<u128>().ok()).unwrap_or_default();
        if came >= oldest && size <= limits.size {
            break;
        }
        size = size.saturating_sub(length);
        until = Some([&pair.key[..], b"\0"].concat());
    }
    let Some(until) = until else { return Ok(()) };
    let question = json!({"key": encoded(prefix), "range_end": encoded(&until)});
    client.ask::<Anything>("/v3/kv/deleterange", &question).map(drop)
}

fn sizes(prefix: &[u8], page: &RangeAnswer) -> impl Iterator<Item = u64> {
    page.kvs.iter().map(|pair| parts(prefix, &pair.key).next_back().and_then(|length| length.parse().ok()).unwrap_or(0))
}

/// Returns the parts of a key: the time of its line, a random number, and the length of the line.
fn parts<'a>(prefix: &[u8], key: &'a [u8]) -> std::str::Split<'a, char> {
    let text = key.get(prefix.len()..).and_then(|key| std::str::from_utf8(key).ok());
    text.unwrap_or_default().split('.')
}

fn range(from: &[u8], prefix: &[u8], limit: u64, keys_only: bool) -> Value {
    json!({
        "key": encoded(from), "range_end": encoded(&prefix_end(prefix)), "limit": limit.to_string(), "keys_only": keys_only
    })
}
