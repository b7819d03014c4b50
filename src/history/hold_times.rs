//! The usual hold time of a lock according to its history, and the expected time of a caller's turn.
//!
//! Only grants that their holders released count. A grant that was broken says how long a user waited, one that
//! expired how long its lease was, and the end of one whose owner died may have been noticed much later.
//!
//! **Rest of a holder.** A holder that has held the lock for a time `t` is expected to hold it as long as the median of
//! the grants that lasted longer than `t`. If `t` is above the 90th percentile, the history says nothing about it any
//! more; it is then expected to hold the lock as long again.
//!
//! **Turn.** Each waiter ahead is expected to hold the lock for the median of its mode. The queue is played through with
//! these times: a waiter begins when it fits beside the holders, and not before the waiter ahead of it.

use std::collections::VecDeque;
use std::time::Duration;

use super::Past;
use crate::lock::{EndReason, Mode, Record};

/// Maximum number of hold times that count for each mode: the most recent ones.
const MOST_SAMPLES: usize = 100;

/// Minimum number of hold times that say anything.
const LEAST_SAMPLES: usize = 3;

/// The modes, in the order of their samples.
const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Shared, Mode::Slot];

/// The most recent hold times of a lock, by mode, in milliseconds.
#[derive(Debug, Clone, Default)]
pub struct HoldTimes {
    samples: [VecDeque<u64>; MODES.len()],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsualHold {
    /// The hold times in milliseconds, sorted.
    sorted: Vec<u64>,
}

/// The holders of a lock and the callers ahead of a caller.
#[derive(Debug, Clone)]
pub struct PlaceInQueue {
    /// For each holder: its mode, and how long it has held the lock.
    pub holders: Vec<(Mode, Duration)>,
    /// Modes of the waiters ahead, the first one first.
    pub ahead: Vec<Mode>,
    pub mode: Mode,
    pub slots: u32,
}

/// The expected time of a caller's turn, and its reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedTurn {
    /// How long the first holder has held the lock; `None` if no process holds it.
    pub held: Option<Duration>,
    /// The usual hold time of that holder, or else of the first waiter.
    pub usual: UsualHold,
    pub ahead: usize,
    pub turn: Duration,
}

impl HoldTimes {
    /// Counts a grant of the lock that ended after all grants that were counted before.
    pub fn add(&mut self, past: &Past) {
        if let (Some(to), Some(EndReason::Released)) = (past.to, past.how) {
            let samples = &mut self.samples[past.mode as usize];
            if samples.len() == MOST_SAMPLES {
                samples.pop_front();
            }
            samples.push_back(to.saturating_sub(past.from));
        }
    }

    /// Returns the usual hold time in this mode, or `None` if the history has too few grants.
    pub fn usual(&self, mode: Mode) -> Option<UsualHold> {
        let samples = &self.samples[mode as usize];
        if samples.len() < LEAST_SAMPLES {
            return None;
        }
        let mut sorted: Vec<u64> = samples.iter().copied().collect();
        sorted.sort_unstable();
        Some(UsualHold { sorted })
    }

    /// Returns the usual hold time in the first mode that has enough grants: exclusive, shared or slots.
    pub fn any_usual(&self) -> Option<UsualHold> {
        MODES.iter().find_map(|mode| self.usual(*mode))
    }

    /// Returns the expected time of the turn in this place, or `None` if the lock is free or the history has too few
    /// grants in the modes of the holders or of the waiters ahead.
    pub fn expected(&self, place: &PlaceInQueue) -> Option<ExpectedTurn> {
        let (first, held) = match (place.holders.first(), place.ahead.first()) {
            (Some((mode, held)), _) => (*mode, Some(*held)),
            (None, Some(mode)) => (*mode, None),
            (None, None) => return None,
        };
        let usual = self.usual(first)?;
        let turn = self.turn(place)?;
        Some(ExpectedTurn { held, usual, ahead: place.ahead.len(), turn })
    }

    /// Plays the queue through. Returns the time at which the caller would get the lock.
    fn turn(&self, place: &PlaceInQueue) -> Option<Duration> {
        let usual = MODES.map(|mode| self.usual(mode));
        let usual = |mode: Mode| usual[mode as usize].as_ref();
        let mut running = Running::default();
        for (mode, held) in &place.holders {
            running.add(*mode, usual(*mode)?.rest(*held));
        }
        let mut now = Duration::ZERO;
        for mode in &place.ahead {
            now = now.max(running.make_room(*mode, place.slots));
            running.add(*mode, now + usual(*mode)?.median());
        }
        Some(now.max(running.make_room(place.mode, place.slots)))
    }
}

/// The holders while a queue is played through: the mode and the end of each. Holders that share the lock are one entry.
#[derive(Default)]
struct Running(Vec<(Mode, Duration)>);

impl Running {
    fn add(&mut self, mode: Mode, end: Duration) {
        match self.0.iter_mut().find(|(other, _)| mode == Mode::Shared && *other == mode) {
            Some((_, last)) => *last = end.max(*last),
            None => self.0.push((mode, end)),
        }
    }

    /// Removes holders in the order of their ends until this mode fits. Returns the end of the last one, or zero.
    fn make_room(&mut self, mode: Mode, slots: u32) -> Duration {
        let mut now = Duration::ZERO;
        while !self.has_room(mode, slots)
            && let Some(end) = self.0.iter().map(|(_, end)| *end).min()
        {
            now = end;
            self.0.retain(|(_, end)| *end > now);
        }
        now
    }

    fn has_room(&self, mode: Mode, slots: u32) -> bool {
        let alike = self.0.iter().all(|(other, _)| *other == mode);
        match mode {
            Mode::Exclusive => self.0.is_empty(),
            Mode::Shared => alike,
            Mode::Slot => alike && self.0.len() < slots.max(1) as usize,
        }
    }
}

impl UsualHold {
    pub fn samples(&self) -> usize {
        self.sorted.len()
    }

    pub fn median(&self) -> Duration {
        self.percentile(50)
    }

    pub fn percentile90(&self) -> Duration {
        self.percentile(90)
    }

    /// Returns true if a grant has lasted far longer than usual: a minute more than three times what nine of ten did.
    pub fn is_far_exceeded_by(&self, held: Duration) -> bool {
        held > self.percentile90() * 3 + Duration::from_secs(60)
    }

    fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.sorted.len() * percent).div_ceil(100);
        Duration::from_millis(self.sorted[rank.max(1) - 1])
    }

    /// Returns the expected rest of a grant that has lasted this long.
    fn rest(&self, held: Duration) -> Duration {
        if held > self.percentile90() {
            return held;
        }
        let longer = self.sorted.partition_point(|millis| Duration::from_millis(*millis) <= held);
        let longer = &self.sorted[longer..];
        let median = longer.get(longer.len().div_ceil(2).saturating_sub(1));
        median.map_or(Duration::ZERO, |millis| Duration::from_millis(*millis) - held)
    }
}

impl PlaceInQueue {
    /// Returns the place of a caller with this mode behind `ahead` waiters of a record, at `now` on the wall clock.
    /// Returns `None` if the lock is claimed, so that the turn never comes.
    pub fn behind(
        record: &Record,
        ahead: usize,
        (mode, slots): (Mode, Option<u32>),
        now: Duration,
    ) -> Option<PlaceInQueue> {
        if record.holders.iter().any(|grant| grant.claim.is_some()) {
            return None;
        }
        let held = |since: u64| now.saturating_sub(Duration::from_millis(since));
        let holders = record.holders.iter().map(|grant| (grant.mode, held(grant.since))).collect();
        let known = record.waiters.iter().map(|waiter| waiter.mode);
        // Of a long queue, only the begin may be known. The rest is taken for waiters of the same kind.
        let last = record.waiters.last().map_or(mode, |waiter| waiter.mode);
        let ahead = known.chain(std::iter::repeat(last)).take(ahead).collect();
        Some(PlaceInQueue { holders, ahead, mode, slots: record.slots.or(slots).unwrap_or(1) })
    }
}

impl ExpectedTurn {
    /// Returns true if the first holder has held the lock longer than nine of ten earlier holders.
    pub fn is_longer_than_usual(&self) -> bool {
        self.held.is_some_and(|held| held > self.usual.percentile90())
    }
}

#[cfg(test)]
mod tests;
