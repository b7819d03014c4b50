//! A checker of histories: no two holders at once, and tokens that rise.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::sandbox::Sandbox;

/// Overlaps up to this length are not counted, in milliseconds: the end of a dead holder may be noticed late.
const TOLERANCE: i64 = 1000;

/// A grant, with its times in milliseconds since 1970. A held grant ends in the far future.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    name: String,
    mode: String,
    slot: Option<u64>,
    token: u64,
    from: i64,
    to: i64,
}

impl Grant {
    fn excludes(&self, other: &Grant) -> bool {
        self.mode == "exclusive" || other.mode != self.mode || (self.mode == "slots" && self.slot == other.slot)
    }
}

/// Returns the history of a store, in the order of the ends.
pub(crate) fn grants(sandbox: &Sandbox) -> Vec<Grant> {
    let time = |value: &Value| value.as_str().map(|text| text.parse::<jiff::Timestamp>().unwrap().as_millisecond());
    let text = sandbox.csalock(["history", "--json"]).capture().line();
    let grants: Vec<Value> = serde_json::from_str(&text).unwrap();
    let grant = |grant: &Value| Grant {
        name: grant["name"].as_str().unwrap().to_string(),
        mode: grant["mode"].as_str().unwrap().to_string(),
        slot: grant["slot"].as_u64(),
        token: grant["token"].as_u64().unwrap(),
        from: time(&grant["from"]).unwrap(),
        to: time(&grant["to"]).unwrap_or(i64::MAX),
    };
    grants.iter().map(grant).collect()
}

/// Returns a sentence about each pair of grants that cannot both be right. One clock wrote all times.
pub(crate) fn faults(grants: &[Grant]) -> Vec<String> {
    let mut names: BTreeMap<&str, Vec<&Grant>> = BTreeMap::new();
    for grant in grants {
        names.entry(&grant.name).or_default().push(grant);
    }
    let mut faults = Vec::new();
    for grants in names.values() {
        for (at, earlier) in grants.iter().enumerate() {
            for later in &grants[at + 1..] {
                let overlap = earlier.to.min(later.to) - earlier.from.max(later.from);
                if overlap > TOLERANCE && earlier.excludes(later) {
                    faults.push(format!("two holders for {overlap} ms: {earlier:?} {later:?}"));
                }
                if earlier.to < later.from && earlier.token >= later.token {
                    faults.push(format!("a token does not rise: {earlier:?} {later:?}"));
                }
            }
        }
    }
    faults
}

#[test]
fn the_checker_finds_overlaps_and_falling_tokens() {
    let grant = |mode: &str, slot, token, from, to| Grant {
        name: "x".to_string(),
        mode: mode.to_string(),
        slot,
        token,
        from,
        to,
    };
    let exclusive = |token, from, to| grant("exclusive", None, token, from, to);
    let [shared, slot] =
        ["shared", "slots"].map(|mode| move |slot, token, from, to| grant(mode, slot, token, from, to));
    let number = |grants: &[Grant]| faults(grants).len();
    assert_eq!(number(&[exclusive(1, 0, 5000), exclusive(2, 5000, 9000), exclusive(3, 8900, i64::MAX)]), 0);
    assert_eq!(number(&[shared(None, 1, 0, 9000), shared(None, 1, 2000, 9000)]), 0);
    assert_eq!(number(&[slot(Some(0), 1, 0, 9000), slot(Some(1), 2, 2000, 9000)]), 0);
    assert_eq!(number(&[exclusive(1, 0, 5000), exclusive(2, 3000, 9000)]), 1);
    assert_eq!(number(&[exclusive(2, 3000, i64::MAX), exclusive(1, 0, i64::MAX)]), 1);
    assert_eq!(number(&[shared(None, 1, 0, 5000), exclusive(2, 3000, 9000)]), 1);
    assert_eq!(number(&[slot(Some(1), 1, 0, 9000), slot(Some(1), 2, 2000, 9000)]), 1);
    assert_eq!(number(&[exclusive(2, 0, 1000), exclusive(2, 2000, 3000)]), 1);
    assert_eq!(number(&[exclusive(2, 0, 1000), exclusive(1, 2000, 3000)]), 1);
}

on_every_store! {
    fn real_locks_have_no_faults(sandbox: &Sandbox) {
        let times = sandbox.many(20);
        let script = format!("
            i=0
            while [ $i -lt {times} ]; do
                i=$((i + 1))
                csalock run -w inf -x both true || exit
                csalock run -w inf -s shared true || exit
                csalock run -w inf -j 2 slots true || exit
                csalock run -w inf both --also shared -- true || exit
                csalock put -w inf shared $i > /dev/null || exit
                csalock lock -w inf --forever shared || exit
                csalock unlock shared || exit
            done");
        let shells: Vec<_> = (0..6).map(|_| sandbox.script("dash", &script).spawn()).collect();
        shells.into_iter().for_each(|shell| shell.wait().succeeds());
        // A holder that dies, one whose time is over, and one that is broken.
        assert_eq!(sandbox.script("dash", "csalock lock both; kill -9 $$").capture().signal, Some(9));
        sandbox.csalock(["lock", "--ttl", sandbox.lease("1ms"), "slots"]).run();
        sandbox.csalock(["run", "-q", "-w", "inf", "both", "true"]).run();
        sandbox.csalock(["run", "-q", "-w", "inf", "slots", "true"]).run();
        let _holder = sandbox.holder("shared");
        let grants = grants(sandbox);
        assert_eq!(faults(&grants), [] as [String; 0]);
        assert!(grants.len() as u64 > 6 * times as u64, "{}", grants.len());
    }
}
