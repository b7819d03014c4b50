//! A record and what became of everybody in it, to be shown.

use super::crowd::learn_crowd;
use crate::error::Result;
use crate::lock::{Ended, Facts, Fate, Record, Wanted, standing};

/// A record and what became of everybody in it.
#[derive(Debug, Clone)]
pub struct Sight {
    /// The record.
    pub record: Record,
    /// For each holder: what is known of its owner, or why its grant no longer stands.
    pub holders: Vec<std::result::Result<Fate, Ended>>,
    /// For each holder: which of its owners is the effective one.
    pub owners: Vec<usize>,
    /// For each waiter: what is known of it.
    pub waiters: Vec<Fate>,
}

impl Sight {
    pub(super) fn of(record: Record, mut learn: impl FnMut(&mut Facts, Wanted) -> Result<()>) -> Result<Sight> {
        let mut facts = Facts::default();
        learn_crowd(&record, &mut facts, &mut learn)?;
        loop {
            match look(&record, &facts) {
                Ok((holders, owners, waiters)) => return Ok(Sight { record, holders, owners, waiters }),
                Err(wanted) => learn(&mut facts, wanted)?,
            }
        }
    }

    /// Whether somebody holds it who has not gone.
    pub fn is_held(&self) -> bool {
        self.holders.iter().any(std::result::Result::is_ok)
    }
}

type Found = (Vec<std::result::Result<Fate, Ended>>, Vec<usize>, Vec<Fate>);

fn look(record: &Record, facts: &Facts) -> std::result::Result<Found, Wanted> {
    let holders = record.holders.iter().map(|grant| standing(grant, facts)).collect::<std::result::Result<_, _>>()?;
    let mut owners = Vec::new();
    for grant in &record.holders {
        let mut effective = 0;
        for (at, owner) in grant.party.owners.iter().enumerate() {
            effective = at;
            if facts.fate(&grant.party.home, owner)?.may_live_here() {
                break;
            }
        }
        owners.push(effective);
    }
    let fate = |waiter: &crate::lock::Waiter| facts.fate(&waiter.party.home, &waiter.process);
    let waiters = record.waiters.iter().map(fate).collect::<std::result::Result<_, _>>()?;
    Ok((holders, owners, waiters))
}
