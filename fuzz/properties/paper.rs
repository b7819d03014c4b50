//! Properties of displayed text: a terminal interprets no character of it, and all JSON is valid.

use std::path::Path;
use std::sync::Arc;

use crate::report::{FileLocks, LockBlock, LockTable, OutputStyle, Reporter, Zone, json};
use engine::{LockRef, LockStatus};
use host::{Fake, FileLock, Host};
use lock::{EndReason, EndedGrant, Handle, Liveness, Record, Standing};
use store::{Location, Scope};

/// A harmless text does not move a cursor, colour, reorder or hide text.
pub(super) fn is_harmless(text: &str) -> bool {
    let reorders = |char| {
        matches!(char, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    };
    text.chars().all(|char| !char.is_control() && !reorders(char))
}

/// Checks a record in every output format.
pub(super) fn show(record: Record) {
    let host: Arc<dyn Host> = Arc::new(Fake::new(1));
    let reporter = Reporter { host: host.as_ref(), scope: Scope::Local, zone: Zone::Utc };
    let standings = [
        Standing::Holds(Liveness::Alive),
        Standing::Holds(Liveness::Unknown),
        Standing::Ended(EndReason::Died),
        Standing::Ended(EndReason::Expired),
        Standing::Ended(EndReason::Released),
    ];
    let status = LockStatus {
        holders: (0..record.holders.len()).map(|at| standings[at % standings.len()]).collect(),
        owners: record.holders.iter().map(|grant| grant.owner.processes.last().copied()).collect(),
        waiters: record.waiters.iter().map(|_| Liveness::Unknown).collect(),
        is_free: false,
        record,
    };
    let record = &status.record;
    let file = FileLocks(vec![(FileLock::Flock, vec![(1, record.name.to_vec())])]);
    for width in [None, Some(0), Some(20), Some(80)] {
        let style = OutputStyle { colour: false, width, zone: Zone::Utc };
        let mut table = LockTable::new(style, "here", reporter.host.wall());
        table.add(&record.name, &status, &reporter);
        let (header, rows) = table.sorted_lines();
        let lock = LockRef::in_store(&Location::beside(Path::new("/")), record.name.clone());
        let block =
            LockBlock { lock: &lock, status: &status, reporter: &reporter, past: &[], file: Some(&file), style };
        let mut lines = block.lines();
        lines.extend(std::iter::once(header).chain(rows));
        assert!(lines.iter().all(|line| is_harmless(line)), "{lines:?}");
    }
    let facts = (None, Some(&file));
    let document = json(&json::status(&record.name, &status, facts, None, &reporter));
    assert!(is_harmless(&document), "{document:?}");
    serde_json::from_str::<serde_json::Value>(&document).expect("it is JSON");
    for grant in &record.holders {
        let ending = EndedGrant { grant: grant.clone(), reason: EndReason::Broken };
        let said = [reporter.holder(grant), reporter.holding(grant), reporter.ending(&ending)].concat();
        assert!(is_harmless(&said), "{said:?}");
    }
    assert!(!format!("{:?}", Handle::new([7; 16])).contains("07"), "a handle is never shown by accident");
}
