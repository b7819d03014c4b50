//! Whether each step of a chain is one that the rules allow.

use std::collections::BTreeSet;

use lock::{CommitRecord, Lifetime, Mode, Page, Record, Value, decode, encode};

use super::any_request::AnyRequest;
use super::chain::record;
use super::{Key, Report, Step, named};

pub(super) fn check(key: &Key, chain: &[Step], report: &mut Report) {
    let mut before: Option<(u64, &[u8])> = None;
    let mut seen = Seen::default();
    for step in chain {
        let wrong = match () {
            () if key.1.contains(&0) => beside(key, before.map(|(_, body)| body), step),
            () => of_record(key, before, step).and_then(|after| seen.see(step, &after)),
        };
        if let Err(why) = wrong {
            report.wrong.push(format!("{}: {why}: {}", named(key), step.shown()));
        }
        let number = step.version.map_or(0, |(number, _)| number);
        before = step.intent.body.as_ref().map(|body| (number, &body.0[..]));
    }
}

/// Checks a step from one record to the next, which it returns.
fn of_record(key: &Key, found: Option<(u64, &[u8])>, step: &Step) -> Result<Record, String> {
    let number = step.version.map_or(0, |(number, _)| number);
    let free = || Record::free(&key.1);
    let before = match found {
        None => Some(free()),
        Some((number, body)) => record(body, number),
    };
    let after = match &step.intent.body {
        None => free(),
        Some(body) => decode(&body.0, number).map_err(|error| format!("its record is unreadable: {error}"))?,
    };
    let Some(logged) = &step.intent.before else {
        // Only what cannot be read is removed unread.
        return if before.is_none() { Ok(after) } else { Err("a record is replaced unread".to_string()) };
    };
    let before = before.ok_or("an unreadable record is replaced")?;
    let logged = decode(&logged.0, found.map_or(0, |(number, _)| number)).map_err(|error| error.to_string())?;
    if logged != before {
        return Err("it replaces another record than the one that was there".to_string());
    }
    let decided = step.intent.decided.as_ref().ok_or("nothing was decided")?;
    let ask: AnyRequest =
        serde_json::from_value(decided.ask.clone()).map_err(|error| format!("its request: {error}"))?;
    let next = match ask.next_record(&before, &decided.facts) {
        Ok(Some(record)) => record,
        Ok(None) => return Err("the rules say that the record does not change".to_string()),
        Err(wanted) => return Err(format!("the rules ask {wanted:?}")),
    };
    let next = begun(next, &after, &ask);
    let stored =
        if next.is_removable() { free() } else { decode(&encode(&next), number).map_err(|error| error.to_string())? };
    if stored != after || next.is_removable() != step.is_removal() {
        return Err(format!("the rules make another record of it:\n{}", String::from_utf8_lossy(&encode(&next))));
    }
    Ok(after)
}

/// The record with the lease of a new grant, which begins between the decision and the commit.
fn begun(mut next: Record, after: &Record, ask: &AnyRequest) -> Record {
    let AnyRequest::Acquire(application) = ask else { return next };
    let proof = application.entry.proof;
    let Some(lent) = after.holders.iter().find(|grant| grant.proof == proof).map(|grant| grant.lifetime.clone()) else {
        return next;
    };
    for grant in next.holders.iter_mut().filter(|grant| grant.proof == proof) {
        let may_begin = match (&grant.lifetime, &lent) {
            (Lifetime::Ttl(_), Lifetime::ExpiresAt(_)) | (Lifetime::KeepalivePending(_), Lifetime::Keepalive(_)) => {
                true
            }
            // A claim that is not yet confirmed, where other hosts cannot see its process.
            (Lifetime::UntilReleased, Lifetime::ExpiresAt(_)) => grant.provisional.is_some() && grant.claim.is_some(),
            _ => false,
        };
        if may_begin {
            grant.lifetime = lent.clone();
        }
    }
    next
}

/// The state of a name so far.
#[derive(Default)]
struct Seen {
    highest: u64,
    ended: BTreeSet<u64>,
    standing: BTreeSet<u64>,
}

impl Seen {
    /// Tokens rise and never come back, and holders fit together.
    fn see(&mut self, step: &Step, after: &Record) -> Result<(), String> {
        let number = step.version.map_or(0, |(number, _)| number);
        let tokens: BTreeSet<u64> = after.holders.iter().filter_map(|grant| grant.token).collect();
        if let Some(back) = tokens.intersection(&self.ended).next() {
            return Err(format!("the grant with token {back} is back"));
        }
        for new in tokens.difference(&self.standing) {
            if *new != number || *new <= self.highest {
                return Err(format!("token {new} does not rise above {}", self.highest));
            }
        }
        self.ended.extend(self.standing.difference(&tokens));
        self.highest = self.highest.max(tokens.last().copied().unwrap_or_default());
        self.standing = tokens;
        if after.waiters.iter().filter(|waiter| waiter.latest_only).count() > 1 {
            return Err("two waiters are there of which each gives way to the other".to_string());
        }
        if fit(after) { Ok(()) } else { Err("its holders do not fit together".to_string()) }
    }
}

fn fit(record: &Record) -> bool {
    let holders = &record.holders;
    let all = |share| holders.iter().all(|grant| grant.mode == share);
    match holders.first().map(|first| first.mode) {
        None => true,
        Some(Mode::Exclusive) => holders.len() == 1,
        Some(Mode::Shared) => all(Mode::Shared),
        Some(Mode::Slot) => {
            let slots: BTreeSet<u32> = holders.iter().map(|grant| grant.slot).collect();
            let fit = slots.last().zip(record.slots).is_some_and(|(last, slots)| *last < slots);
            all(Mode::Slot) && slots.len() == holders.len() && fit
        }
    }
}

pub(super) fn beside(key: &Key, before: Option<&[u8]>, step: &Step) -> Result<(), String> {
    let after = step.intent.body.as_ref().map(|body| &body.0[..]);
    let (Some(before), Some(after)) = (before, after) else { return Ok(()) };
    if Page::of_key(&key.1).is_some() {
        let pages = engine::trace::page(before).zip(engine::trace::page(after));
        let (before, after) = pages.ok_or("a page is unreadable")?;
        if before.sealed {
            return Err("a sealed page is changed".to_string());
        }
        let differ = before.waiters.iter().filter(|waiter| !after.waiters.contains(waiter)).count();
        if differ > 1 || (after.sealed && before.waiters != after.waiters) {
            return Err("a page loses waiters".to_string());
        }
    } else if CommitRecord::of_key(&key.1).is_some() {
        let decisions = engine::trace::decision(before).zip(engine::trace::decision(after));
        let (before, after) = decisions.ok_or("a decision is unreadable")?;
        if before.committed || !after.committed || before.names != after.names {
            return Err(format!("a decision changes from {before:?} to {after:?}"));
        }
    } else if Value::of_key(&key.1).is_some() {
        return Err("a value is changed in its place".to_string());
    }
    Ok(())
}
