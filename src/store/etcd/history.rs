//! Where an etcd store keeps its history: one key per line.
//!
//! A key says when its line came and how long it is, so that the oldest can go without their lines being read. Keys are
//! put without waiting for the answer, and cleared away now and then, by chance, after a line of one's own.

use std::time::Duration;

use serde_json::json;

use super::gateway::Gateway;
use super::next_page;
use super::wire::{Anything, Found, MOST_PAIRS, encoded, end_of};
use crate::error::Result;
use crate::history::Limits;

/// So many lines out of 256 look whether there are too many.
const NOW_AND_THEN: u8 = 4;

/// So many lines are read at once, and so many keys.
const PAGE: u64 = 500;
const MANY_KEYS: u64 = MOST_PAIRS as u64;

/// Keeps a line that came at this time.
pub(super) fn remember(gateway: &Gateway, prefix: &[u8], line: &[u8], limits: &Limits) {
    if limits.are_off() {
        return;
    }
    let Ok(random) = gateway.host().random() else { return };
    let now = gateway.host().wall();
    let chance: String = random[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    let key = [prefix, format!("{:020}.{chance}.{}", now.as_nanos(), line.len()).as_bytes()].concat();
    gateway.tell("/v3/kv/put", &json!({"key": encoded(&key), "value": encoded(line)}));
    if random[4] < NOW_AND_THEN {
        let _ = prune(gateway, prefix, limits, now);
    }
}

/// Visits all lines, the oldest first.
pub(super) fn remembered(gateway: &Gateway, prefix: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<()> {
    let mut from = prefix.to_vec();
    loop {
        let found: Found = gateway.ask("/v3/kv/range", &range(&from, prefix, PAGE, false))?;
        from = next_page(gateway, &from, &found)?;
        found.kvs.iter().for_each(|pair| visit(&pair.value));
        if !found.more {
            return Ok(());
        }
    }
}

/// Removes what is too old, and the oldest of what is too much.
fn prune(gateway: &Gateway, prefix: &[u8], limits: &Limits, now: Duration) -> Result<()> {
    let found: Found = gateway.ask("/v3/kv/range", &range(prefix, prefix, MANY_KEYS, true))?;
    let oldest = now.saturating_sub(limits.age).as_nanos();
    let mut kept: u64 = 0;
    let is_first_to_keep = |key: &[u8]| {
        let text = String::from_utf8_lossy(key.get(prefix.len()..).unwrap_or_default()).into_owned();
        let came = text.split('.').next().and_then(|came| came.parse::<u128>().ok()).unwrap_or_default();
        let length = text.rsplit('.').next().and_then(|length| length.parse::<u64>().ok()).unwrap_or_default();
        (came, length)
    };
    let mut too_many = found.more;
    let mut until = None;
    for pair in found.kvs.iter().rev() {
        let (came, length) = is_first_to_keep(&pair.key);
        kept = length.saturating_add(kept);
        if came < oldest || kept > limits.size || std::mem::take(&mut too_many) {
            until = Some([&pair.key[..], b"\0"].concat());
            break;
        }
    }
    let Some(until) = until else { return Ok(()) };
    let question = json!({"key": encoded(prefix), "range_end": encoded(&until)});
    gateway.ask::<Anything>("/v3/kv/deleterange", &question).map(drop)
}

fn range(from: &[u8], prefix: &[u8], limit: u64, keys_only: bool) -> serde_json::Value {
    json!({
        "key": encoded(from), "range_end": encoded(&end_of(prefix)), "limit": limit.to_string(), "keys_only": keys_only
    })
}
