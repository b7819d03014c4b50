//! The contents of a store: records, remains of dead processes, and history. The check changes nothing.

use std::time::Duration;

use crate::command::context::Context;
use crate::duration::shown as span;
use crate::engine::{Engine, LockStatus};
use crate::error::{Error, Result};
use crate::lock::{EndReason, JobState, Liveness};
use crate::name::{escape, shell_quote};
use crate::report::Zone;
use crate::store::{Finding, Location};

/// Counters of the records in a store.
#[derive(Default)]
struct Count {
    held: u64,
    waiting: u64,
    abandoned: u64,
    /// Errors of unreadable records, one error for each record.
    unreadable: Vec<Error>,
    /// Names and last successes of jobs whose success may lie in the future.
    ahead: Vec<(Vec<u8>, JobState)>,
    /// Start of the oldest grant that is held, in milliseconds since the epoch, and its lock's name.
    oldest: Option<(u64, Vec<u8>)>,
}

pub(super) fn findings(context: &Context, location: &Location, engine: &Engine) -> Vec<Finding> {
    let mut count = Count::default();
    let scanned = engine.for_each_lock(&mut |status| {
        count.add(status, engine.host().wall());
        Ok(())
    });
    let mut findings = match scanned {
        Err(error) => vec![Finding::failed("records", &error)],
        Ok(()) => count.findings(&shell_quote(location.url().as_encoded_bytes()), engine),
    };
    findings.push(history(context, engine));
    findings
}

impl Count {
    fn add(&mut self, status: Result<LockStatus>, now: Duration) {
        let status = match status {
            Ok(status) => status,
            Err(error) => return self.unreadable.push(error),
        };
        self.held += u64::from(status.is_held());
        if let Some(job) = status.record.job.as_ref().filter(|job| job.doubtful_success(millis(now)).is_some()) {
            self.ahead.push((status.record.name.clone(), job.clone()));
        }
        let is_left = |standing: &std::result::Result<Liveness, EndReason>| matches!(standing, Err(how) if *how != EndReason::Released);
        let is_abandoned = status.holders.iter().any(is_left) || status.waiters.contains(&Liveness::Dead);
        self.abandoned += u64::from(is_abandoned);
        self.waiting += status.waiters.iter().filter(|liveness| **liveness != Liveness::Dead).count() as u64;
        for (grant, _) in status.record.holders.iter().zip(&status.holders).filter(|(_, standing)| standing.is_ok()) {
            if self.oldest.as_ref().is_none_or(|(since, _)| grant.since < *since) {
                self.oldest = Some((grant.since, status.record.name.clone()));
            }
        }
    }

    /// Returns the findings about the records of this store, whose URL is quoted for a shell.
    fn findings(&self, store: &str, engine: &Engine) -> Vec<Finding> {
        let mut text = format!("{} held, {} waiting", self.held, self.waiting);
        if let Some((since, name)) = &self.oldest {
            let age = engine.host().wall().saturating_sub(Duration::from_millis(*since));
            text.push_str(&format!("; the oldest is lock \"{}\", acquired {} ago", escape(name), span(age)));
        }
        let mut findings = vec![Finding::good("records", text)];
        if let [error, others @ ..] = self.unreadable.as_slice() {
            let cure = format!("run `csalock status --store {store}`: it names each with the next step");
            let others = if others.is_empty() { String::new() } else { format!("; and {} more", others.len()) };
            findings.push(Finding::doubtful("records", format!("unreadable: {}{others}", error.message()), cure));
        }
        findings.extend(self.jobs(engine));
        findings.extend(self.leftovers(store, engine));
        findings
    }

    /// Returns a finding about a job whose last success lies in the future of the store's clock.
    fn jobs(&self, engine: &Engine) -> Option<Finding> {
        if self.ahead.is_empty() {
            return None;
        }
        let now = millis(engine.time().unwrap_or_else(|_| engine.host().wall()));
        let (name, success) = self.ahead.iter().find_map(|(name, job)| Some((name, job.doubtful_success(now)?)))?;
        let at = Zone::Local.full(Duration::from_millis(success.at));
        let what = format!("the job of lock {} last succeeded at {at}, in the future; it does not count", escape(name));
        Some(Finding::doubtful("jobs", what, "check the clock of the store; the next success replaces that time"))
    }

    fn leftovers(&self, store: &str, engine: &Engine) -> Vec<Finding> {
        let swept = match engine.sweep(true) {
            Err(error) => return vec![Finding::failed("leftovers", &error)],
            Ok(swept) => swept,
        };
        let mut findings = vec![match swept.removed {
            0 if self.abandoned == 0 => Finding::good("leftovers", "none"),
            removed => Finding::doubtful(
                "leftovers",
                format!("locks of dead owners: {}; other leftovers: {removed}", self.abandoned),
                format!("run `csalock gc --store {store}` to remove them; they delay no command"),
            ),
        }];
        let passed_over = swept.passed_over.iter().find(|error| !self.unreadable.contains(error));
        findings.extend(passed_over.map(|error| Finding::doubtful("leftovers", error.message(), error.hint())));
        findings
    }
}

fn history(context: &Context, engine: &Engine) -> Finding {
    let limits = match context.environment.history() {
        Ok(limits) => limits,
        Err(error) => return Finding::doubtful("history", error.message(), error.hint()),
    };
    let mut number = 0;
    match engine.each_past(&limits, &mut |_| number += 1) {
        Err(error) => Finding::doubtful("history", error.message(), error.hint()),
        Ok(false) => Finding::good("history", "none is kept here"),
        Ok(true) if limits.are_off() => Finding::good("history", format!("{number} kept; CSALOCK_HISTORY=0 adds none")),
        Ok(true) => Finding::good("history", format!("{number} kept, for {} at most", span(limits.age))),
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis() as u64
}
