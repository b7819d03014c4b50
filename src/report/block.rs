//! `status NAME` on a terminal: everything about one lock, a line for each fact.

use std::time::Duration;

use super::columns::wrapped;
use super::json::{mode, state};
use super::lock_table::{shown_value, waiting};
use super::table::{Column, OutputStyle, Table};
use super::timeline::{ended, held_for, who};
use super::{Reporter, shown_user};
use crate::duration::shown as span;
use crate::engine::{LockRef, LockStatus};
use crate::history::{HoldTimes, Past, Who};
use crate::lock::{EndReason, Grant, JobState, Lifetime, Liveness, Mode, Success, Waiter};
use crate::name::{escape, shell_quote};

/// Width of the names of the facts, with the blanks that follow.
const MARGIN: usize = 9;

/// Maximum number of earlier grants.
const MOST_PAST: usize = 3;

/// The facts about one lock.
pub struct LockBlock<'a> {
    /// The lock.
    pub lock: &'a LockRef,
    /// Its record, and the liveness of its owners.
    pub status: &'a LockStatus,
    /// The host and the zone of times.
    pub reporter: &'a Reporter<'a>,
    /// Grants of this lock that have ended, the last one last.
    pub past: &'a [Past],
    /// How long earlier grants of this lock were held.
    pub times: &'a HoldTimes,
    /// Text about the processes that have locked the file of this name with flock(2), from [`super::flocked_by`].
    pub file: Option<&'a str>,
    /// Properties of the terminal.
    pub style: OutputStyle,
}

impl LockBlock<'_> {
    /// Returns the lines of the block.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        self.add(&mut lines, "lock", &escape(&self.lock.display_name));
        self.add(&mut lines, "store", &escape(self.lock.location.url().as_encoded_bytes()));
        self.add_state(&mut lines);
        let holders = self.status.record.holders.iter().zip(self.status.holders.iter().copied());
        let holders: Vec<_> = holders.filter(|(_, standing)| *standing != Err(EndReason::Released)).collect();
        for (at, (grant, standing)) in holders.iter().enumerate() {
            self.add_holder(&mut lines, (at + 1, holders.len()), grant, *standing);
        }
        if let Some(file) = self.file {
            self.add(&mut lines, "file", file);
        }
        if let Some(value) = &self.status.record.value {
            self.add(&mut lines, "value", &shown_value(value));
        }
        if let Some(job) = &self.status.record.job {
            self.add(&mut lines, "job", &self.job(job));
        }
        self.add_queue(&mut lines);
        self.add_usual(&mut lines);
        self.add_past(&mut lines);
        // The holders often are alike; each piece of advice is given once.
        let mut advice: Vec<String> =
            holders.iter().filter_map(|(grant, how)| self.how_to_break(grant, *how)).collect();
        advice.dedup();
        advice.iter().for_each(|text| self.add(&mut lines, "break", text));
        lines
    }

    /// Adds a fact, in as many lines as it needs.
    fn add(&self, lines: &mut Vec<String>, name: &str, text: &str) {
        let width = self.style.width.map_or(usize::MAX, |width| width.saturating_sub(MARGIN).max(1));
        for (at, line) in wrapped(text, width).into_iter().enumerate() {
            lines.push(format!("{:MARGIN$}{line}", if at == 0 { name } else { "" }));
        }
    }

    fn add_state(&self, lines: &mut Vec<String>) {
        let is_claim = self.status.record.holders.first().is_some_and(|grant| grant.claim.is_some());
        let word = match state(self.status) {
            "abandoned" => "stale",
            "held" if is_claim => "claimed",
            word => word,
        };
        let free = self.status.record.slots.map(|slots| {
            (slots as usize).saturating_sub(self.status.holders.iter().filter(|standing| standing.is_ok()).count())
        });
        let how = match (self.status.record.holders.first().map(|grant| grant.mode), free) {
            (_, Some(free)) if word == "held" => {
                format!(", {free} of {} slots free", self.status.record.slots.unwrap_or_default())
            }
            (Some(Mode::Shared), _) if word == "held" => ", shared".to_string(),
            _ => String::new(),
        };
        let paint = match word {
            _ if !self.style.colour => "",
            "free" => "\x1b[32m",
            "held" | "claimed" => "\x1b[1m",
            _ => "\x1b[31m",
        };
        let end = if paint.is_empty() { "" } else { "\x1b[0m" };
        lines.push(format!("{:MARGIN$}{paint}{word}{end}{how}", "state"));
    }

    fn add_holder(
        &self,
        lines: &mut Vec<String>,
        (number, all): (usize, usize),
        grant: &Grant,
        standing: Result<Liveness, EndReason>,
    ) {
        let number = if all > 1 { format!("{number} of {all}: ") } else { String::new() };
        let slot = if grant.mode == Mode::Slot { format!(", slot {}", grant.slot) } else { String::new() };
        let condition = match standing {
            Err(EndReason::Expired) => ", whose time is over",
            Err(_) | Ok(Liveness::Dead) => ", which is dead",
            Ok(Liveness::Unknown | Liveness::Missing) if grant.claim.is_none() => ", not visible from here",
            Ok(_) if self.reporter.is_stopped(grant) => ", stopped",
            Ok(_) => "",
        };
        let who = match &grant.claim {
            // A claim depends on no process.
            Some(_) => format!("user {} on {}", shown_user(grant.owner.uid), escape(grant.owner.host.as_bytes())),
            None => self.reporter.party(&grant.owner),
        };
        self.add(lines, "holder", &format!("{number}{who}{slot}{condition}"));
        self.add(lines, "command", &escape(&grant.owner.command));
        if let Some(label) = &grant.owner.label {
            self.add(lines, "label", &escape(label));
        }
        if let Some(id) = &grant.claim {
            self.add(lines, "claim", &format!("id {}", escape(id)));
        }
        let since = Duration::from_millis(grant.since);
        let age = span(self.reporter.host.wall().saturating_sub(since));
        self.add(lines, "since", &format!("{}, for {age}", self.style.zone.full(since)));
        self.add(lines, "until", &self.until(grant, standing));
    }

    fn until(&self, grant: &Grant, standing: Result<Liveness, EndReason>) -> String {
        let time = |millis| self.style.zone.full(Duration::from_millis(millis));
        match (&grant.lifetime, standing) {
            (_, Err(EndReason::Expired)) => "its time was over".to_string(),
            (Lifetime::OwnerDied, _) | (_, Err(_)) => "its process ended".to_string(),
            (Lifetime::WhileOwnerLives | Lifetime::KeepalivePending(_), _) => "its process ends".to_string(),
            (Lifetime::Keepalive(lease), _) => {
                format!("its process ends; until then its lease is renewed, now to {}", time(lease.wall))
            }
            (Lifetime::Ttl(most), _) => format!("its process ends, or {}", span(Duration::from_millis(*most))),
            (Lifetime::ExpiresAt(lease), _) => {
                let rest = Duration::from_millis(lease.wall).saturating_sub(self.reporter.host.wall());
                format!("its process ends, or {} (in {})", time(lease.wall), span(rest))
            }
            (Lifetime::UntilReleased, _) => "it is released".to_string(),
        }
    }

    fn add_queue(&self, lines: &mut Vec<String>) {
        let waiters = &self.status.record.waiters;
        if waiters.is_empty() {
            return;
        }
        self.add(lines, "waiters", &waiting(self.status).to_string());
        let fixed = ["", "", "", ""].map(Column::new);
        let mut table = Table::new(fixed.into_iter().chain([Column::new("").shrinks_to(0)]).collect());
        for (at, (waiter, liveness)) in waiters.iter().zip(&self.status.waiters).enumerate() {
            let age = self.reporter.host.wall().saturating_sub(Duration::from_millis(waiter.since));
            let owner = &waiter.owner;
            let pid = Some(waiter.process.pid);
            let who = Who::new(owner, pid);
            let state = self.waiter_state(waiter, *liveness);
            let shown = (format!("{}.", at + 1), self.process(&who), shown_user(owner.uid), span(age));
            let label = owner.label.as_ref().map(|label| format!("[{}] ", escape(label))).unwrap_or_default();
            let command = format!("{state}{label}{}", escape(&owner.command));
            table.add(&[&shown.0, &shown.1, &shown.2, &shown.3, &command]);
        }
        self.add_rows(lines, "", &table);
    }

    /// Returns the pid, and the host if it is another one.
    fn process(&self, who: &Who) -> String {
        let pid = who.pid.map_or("-".to_string(), |pid| pid.to_string());
        if who.host == self.reporter.host.name() { pid } else { format!("{pid}@{}", escape(who.host.as_bytes())) }
    }

    /// Returns what distinguishes a waiter from those that wait for the whole lock.
    fn waiter_state(&self, waiter: &Waiter, liveness: Liveness) -> String {
        let how = match liveness {
            Liveness::Dead => "dead",
            _ if waiter.mode == Mode::Exclusive => return String::new(),
            _ => mode(waiter.mode),
        };
        format!("({how}) ")
    }

    /// Adds how long the lock is usually held, and the turn of a caller that comes now.
    fn add_usual(&self, lines: &mut Vec<String>) {
        let now = self.reporter.host.wall();
        let expected = self.status.expected_turn(self.times, None, now);
        let text = match (expected, self.times.any_usual()) {
            (Some(expected), _) if expected.turn > Duration::ZERO => {
                let longer = if expected.is_longer_than_usual() { ", now longer than usual" } else { "" };
                format!("held {}{longer}; the next caller's turn {}", expected.usual, expected.when())
            }
            (_, Some(usual)) => format!("held {usual}"),
            (_, None) => return,
        };
        self.add(lines, "usually", &text);
    }

    fn job(&self, job: &JobState) -> String {
        let time = |millis| self.style.zone.full(Duration::from_millis(millis));
        let now = self.reporter.host.wall();
        let last = match &job.success {
            Some(Success { at, host, .. }) if job.doubtful_success(now.as_millis() as u64).is_some() => {
                format!("last succeeded at {} (in the future) on {}", time(*at), escape(host.as_bytes()))
            }
            Some(Success { at, host, .. }) => {
                let age = span(now.saturating_sub(Duration::from_millis(*at)));
                format!("last succeeded at {} ({age} ago) on {}", time(*at), escape(host.as_bytes()))
            }
            None => "has not succeeded yet".to_string(),
        };
        let Some((promise, due)) = job.promise.zip(job.due(now.as_millis() as u64)) else { return last };
        let word = if Duration::from_millis(due) <= now { "overdue since" } else { "next by" };
        format!("{last}; must succeed once in {}, {word} {}", span(Duration::from_millis(promise.span)), time(due))
    }

    fn add_past(&self, lines: &mut Vec<String>) {
        let columns = ["", "", ""].map(Column::new);
        let mut table = Table::new(columns.into_iter().chain([Column::new("").shrinks_to(0)]).collect());
        let (host, now) = (self.reporter.host.name(), self.reporter.host.wall());
        for past in self.past.iter().rev().take(MOST_PAST) {
            let from = self.style.zone.brief(Duration::from_millis(past.from), now);
            let held = held_for(past, now);
            table.add(&[&from, &held, ended(past), &who(&past.holder, &host)]);
        }
        self.add_rows(lines, "before", &table);
    }

    /// Adds the rows of a table without its header. The first line has this name.
    fn add_rows(&self, lines: &mut Vec<String>, name: &str, table: &Table) {
        let layout = table.layout(self.style.width.map(|width| width.saturating_sub(MARGIN)), &[]);
        let rows = (0..table.len()).map(|at| (if at == 0 { name } else { "" }, table.row(at, &layout, &|_, _| "")));
        lines.extend(rows.map(|(name, row)| format!("{name:MARGIN$}{row}")));
    }

    /// Returns how to end a grant now, or `None` if its owner has no process.
    fn how_to_break(&self, grant: &Grant, standing: Result<Liveness, EndReason>) -> Option<String> {
        let typed = &self.lock.shell_arg;
        let force = format!("`csalock unlock --force {typed}`");
        Some(match (standing, &grant.lifetime) {
            _ if grant.claim.is_some() => {
                let id = shell_quote(grant.claim.as_deref().unwrap_or_default());
                format!("a claim is permanent; `csalock unclaim --id {id} {typed}` gives it up")
            }
            (Err(_), _) => format!("not necessary: the next caller takes the lock over; {force} removes it now"),
            (Ok(_), Lifetime::UntilReleased) => {
                format!("the lock stays until it is released, even if its holder is gone; {force} ends it")
            }
            (Ok(Liveness::Unknown | Liveness::Missing), lifetime) => {
                let unseen = "csalock cannot see from here whether the holder lives; if it does not,";
                match lifetime.lease() {
                    Some(lease) => {
                        let end = self.style.zone.full(Duration::from_millis(lease.wall));
                        format!("{unseen} the lease ends the lock at {end}, and {force} at once")
                    }
                    None => format!("{unseen} {force} ends the lock"),
                }
            }
            (Ok(_), _) => {
                let pid = self.reporter.owner(&grant.owner)?.pid;
                match self.reporter.is_stopped(grant) {
                    true => format!("`kill -CONT {pid}` continues the holder; `kill -9 {pid}` ends it and the lock"),
                    false => format!("the lock ends with its holder: `kill {pid}`"),
                }
            }
        })
    }
}
