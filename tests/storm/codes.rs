//! Which exit codes a call may end with, in a storm: those of the table that this command can have, and no others.

use std::collections::BTreeMap;

use crate::sandbox::Kind;
use crate::schedule::{Schedule, What};
use crate::script::CHOSEN;

/// A call: `WHO STATUS WORDS...`.
pub(crate) struct Call<'a> {
    pub(crate) who: &'a str,
    pub(crate) status: i32,
    pub(crate) words: Vec<&'a str>,
}

impl<'a> Call<'a> {
    pub(crate) fn parse(line: &'a str) -> Option<Call<'a>> {
        let mut words = line.split(' ');
        Some(Call { who: words.next()?, status: words.next()?.parse().ok()?, words: words.collect() })
    }

    pub(crate) fn verb(&self) -> &'a str {
        self.words[0]
    }

    pub(crate) fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }
}

/// Returns the wrong ends of these calls, and how often each end came.
pub(crate) fn judge(said: &str, kind: Kind, schedule: &Schedule) -> (Vec<String>, BTreeMap<i32, usize>) {
    let (mut wrong, mut counts) = (Vec::new(), BTreeMap::new());
    for line in said.lines() {
        let Some(call) = Call::parse(line) else {
            wrong.push(format!("{line:?} is not a call"));
            continue;
        };
        *counts.entry(call.status).or_default() += 1;
        if !may_end(&call, kind, schedule) {
            wrong.push(format!("this may not end so: {line}"));
        }
    }
    (wrong, counts)
}

fn may_end(call: &Call<'_>, kind: Kind, schedule: &Schedule) -> bool {
    let round = schedule.round_of(call.who);
    let takes = |call: &Call<'_>| call.has("-n") || call.has("-w");
    // The store: its servers are away, or its disk is full.
    let of_store: &[i32] = if matches!(kind, Kind::Etcd | Kind::Postgres) { &[69] } else { &[73, 74] };
    let busy = if round.wait.other_code { CHOSEN } else { 75 };
    let own: &[i32] = match call.verb() {
        "lock" => &[0, 85],
        "unlock" => &[0, 81, 82],
        // A lease that was over before the command began, or while it ran; the longest that it may last.
        "run" => &[0, 85],
        "renew" => &[0, 81, 82],
        "get" => &[0, 81, 85],
        "put" => &[0, 80, 81, 82, 83, 85],
        "del" => &[0, 81, 82],
        "claim" => &[0, 83],
        "unclaim" => &[0, 81, 82],
        "lookup" | "status" => &[0, 81],
        "gc" | "history" => &[0],
        "doctor" => &[0, 69],
        "flock" => &[0, 1],
        _ => &[],
    };
    match call.status {
        status if own.contains(&status) || of_store.contains(&status) => true,
        status if status == busy => takes(call),
        80 => round.wait.fail_on_stale,
        84 => takes_several(&round.what),
        // The reader of the output was killed; its unreported lock was released.
        74 => round.kills(),
        124 => call.has("--max-hold"),
        137 => round.kills() || call.has("--max-hold"),
        // No process is left to read the output.
        141 => round.kills(),
        _ => false,
    }
}

/// Whether it may hold one lock while it waits for another, and so be in a cycle with a caller that does the same in
/// the other order.
fn takes_several(what: &What) -> bool {
    match what {
        What::Nested { .. } => true,
        What::Run { hold, .. } | What::Script { hold, .. } => hold.names.len() > 1,
        _ => false,
    }
}
