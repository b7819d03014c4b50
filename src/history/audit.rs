//! The audit: a history replayed against the rules of locking.
//!
//! Tokens give the order of grants, times give their lengths. A grant that begins after another one with a lower token,
//! but before the end of that one, overlaps with it. If it seems to begin even before the start of that one, a clock was
//! set, or the clocks of two hosts differ, and the times prove nothing. A token has fallen if three witnesses say that
//! its grant came later: the start, the end of the other grant, and the order of the lines.

use std::collections::BTreeMap;

use super::Past;
use crate::lock::Mode;

#[derive(Debug, Default)]
pub struct Audit<'a> {
    /// The violations, ordered by name.
    pub faults: Vec<Fault<'a>>,
    /// Number of grants whose times contradict their tokens: they seem to begin before an earlier grant, or to end before
    /// they begin.
    pub misdated: usize,
    /// The largest of these contradictions, in milliseconds.
    pub misdated_by: u64,
}

/// A violation by two grants of a lock, the earlier one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault<'a> {
    pub kind: FaultKind,
    pub grants: [&'a Past; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Two grants that exclude each other overlap for this many milliseconds.
    Overlap(u64),
    Token,
}

/// Checks grants in the order of their lines; those that are still held come last. `now` is the end of these, and
/// `tolerance` the time by which clocks may disagree, both in milliseconds.
pub fn audit(grants: &[Past], tolerance: u64, now: u64) -> Audit<'_> {
    let has_one_clock = grants.windows(2).all(|pair| pair[0].holder.host == pair[1].holder.host);
    let mut names: BTreeMap<&[u8], Vec<(usize, &Past)>> = BTreeMap::new();
    for (line, past) in grants.iter().enumerate() {
        names.entry(&past.name).or_default().push((line, past));
    }
    let mut audit = Audit::default();
    for lines in names.values() {
        audit.check_overlaps(lines, tolerance, now);
        audit.check_tokens(lines, if has_one_clock { 0 } else { tolerance });
    }
    audit
}

impl Past {
    /// Returns true if the lock cannot have both holders at once.
    fn excludes(&self, other: &Past) -> bool {
        match (self.mode, other.mode) {
            (Mode::Shared, Mode::Shared) => false,
            (Mode::Slot, Mode::Slot) => self.slot == other.slot,
            _ => true,
        }
    }
}

impl<'a> Audit<'a> {
    /// Checks each grant against the earlier grants of the same lock that excluded it.
    fn check_overlaps(&mut self, lines: &[(usize, &'a Past)], tolerance: u64, now: u64) {
        let end = |past: &Past| past.to.unwrap_or(now);
        let mut in_order: Vec<&Past> =
            lines.iter().filter(|(_, past)| past.token.is_some()).map(|(_, past)| *past).collect();
        in_order.sort_by_key(|past| (past.token, past.from));
        // Of the earlier grants of one mode and slot, the one that ended last is sufficient.
        let mut last: Vec<&Past> = Vec::new();
        let mut begun = 0u64;
        for past in in_order {
            let misdated_by = begun.saturating_sub(past.from).max(past.from.saturating_sub(end(past)));
            if misdated_by > tolerance {
                self.misdated += 1;
                self.misdated_by = self.misdated_by.max(misdated_by);
            }
            begun = begun.max(past.from);
            for earlier in last.iter().filter(|earlier| past.excludes(earlier)) {
                let overlap = end(earlier).min(end(past)).saturating_sub(past.from);
                if overlap > tolerance && past.from.saturating_add(tolerance) >= earlier.from {
                    self.faults.push(Fault { kind: FaultKind::Overlap(overlap), grants: [earlier, past] });
                }
            }
            match last.iter_mut().find(|other| (other.mode, other.slot) == (past.mode, past.slot)) {
                Some(other) if end(other) < end(past) => *other = past,
                Some(_) => {}
                None => last.push(past),
            }
        }
    }

    /// Checks that each grant has a higher token than the grants that ended before it began.
    fn check_tokens(&mut self, lines: &[(usize, &'a Past)], tolerance: u64) {
        let mut ended: Vec<&(usize, &Past)> = lines.iter().filter(|(_, past)| past.to.is_some()).collect();
        ended.sort_by_key(|(_, past)| past.to);
        let mut begun: Vec<&(usize, &Past)> = lines.iter().collect();
        begun.sort_by_key(|(_, past)| past.from);
        let mut ended = ended.into_iter().peekable();
        let mut highest: Option<&(usize, &Past)> = None;
        for (line, past) in begun {
            let is_over =
                |(_, earlier): &&(usize, &Past)| earlier.to.is_some_and(|to| to.saturating_add(tolerance) < past.from);
            while let Some(earlier) = ended.next_if(is_over) {
                if highest.is_none_or(|(_, highest)| highest.token < earlier.1.token) {
                    highest = Some(earlier);
                }
            }
            if let Some((earlier_line, earlier)) = highest
                && past.token.is_some_and(|token| earlier.token.is_some_and(|earlier| earlier >= token))
                && earlier_line < line
            {
                self.faults.push(Fault { kind: FaultKind::Token, grants: [earlier, past] });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Who;
    use crate::lock::EndReason;

    fn past(token: u64, from: u64, to: u64) -> Past {
        Past {
            name: b"x".to_vec(),
            token: Some(token),
            mode: Mode::Exclusive,
            slot: 0,
            holder: Who { pid: Some(1), host: "a".into(), uid: 0, command: Vec::new(), label: None },
            from,
            to: Some(to),
            waited: 0,
            how: Some(EndReason::Released),
            broken_by: None,
            ended_by: None,
            run: None,
        }
    }

    fn at(host: &str, past: Past) -> Past {
        Past { holder: Who { host: host.into(), ..past.holder.clone() }, ..past }
    }

    fn shared(past: Past) -> Past {
        Past { mode: Mode::Shared, ..past }
    }

    fn slot(slot: u32, past: Past) -> Past {
        Past { mode: Mode::Slot, slot, ..past }
    }

    /// The faults as kinds and pairs of tokens, and the number of misdated grants.
    fn found(grants: &[Past]) -> (Vec<(FaultKind, u64, u64)>, usize) {
        let audit = audit(grants, 100, 10_000);
        let token = |past: &Past| past.token.unwrap();
        let faults = audit.faults.iter();
        (faults.map(|fault| (fault.kind, token(fault.grants[0]), token(fault.grants[1]))).collect(), audit.misdated)
    }

    const NOTHING: (Vec<(FaultKind, u64, u64)>, usize) = (Vec::new(), 0);

    #[test]
    fn grants_in_turn_and_compatible_grants_are_right() {
        assert_eq!(found(&[]), NOTHING);
        assert_eq!(found(&[past(1, 0, 1000), past(2, 1000, 2000), past(3, 1950, 3000)]), NOTHING);
        assert_eq!(found(&[shared(past(1, 0, 5000)), shared(past(2, 500, 1000)), past(3, 5000, 6000)]), NOTHING);
        assert_eq!(
            found(&[slot(0, past(1, 0, 5000)), slot(1, past(2, 500, 1000)), slot(1, past(3, 1000, 5000))]),
            NOTHING
        );
        let other = Past { name: b"y".to_vec(), ..past(1, 0, 5000) };
        assert_eq!(found(&[past(2, 0, 5000), other]), NOTHING);
    }

    #[test]
    fn overlaps_are_found_between_all_modes() {
        let overlap = |ms, first, second| (vec![(FaultKind::Overlap(ms), first, second)], 0);
        assert_eq!(found(&[past(1, 0, 5000), past(2, 1000, 2000)]), overlap(1000, 1, 2));
        assert_eq!(found(&[past(2, 1000, 2000), past(1, 0, 5000)]), overlap(1000, 1, 2));
        assert_eq!(found(&[shared(past(1, 0, 5000)), past(2, 4000, 9000)]), overlap(1000, 1, 2));
        assert_eq!(found(&[past(1, 0, 5000), slot(3, past(2, 4000, 9000))]), overlap(1000, 1, 2));
        assert_eq!(found(&[slot(1, past(1, 0, 5000)), slot(1, past(2, 4000, 9000))]), overlap(1000, 1, 2));
        // The first grant lasted through the second one.
        let (second, third) = ((FaultKind::Overlap(500), 1, 2), (FaultKind::Overlap(700), 1, 3));
        assert_eq!(found(&[past(1, 0, 9000), past(2, 1000, 1500), past(3, 2000, 2700)]), (vec![second, third], 0));
        let held = Past { to: None, how: None, ..past(2, 4000, 0) };
        assert_eq!(found(&[past(1, 0, 5000), held]), overlap(1000, 1, 2));
    }

    #[test]
    fn a_token_must_rise_after_the_end_of_another_grant() {
        let fault = |first, second| (vec![(FaultKind::Token, first, second)], 0);
        assert_eq!(found(&[past(5, 0, 1000), past(5, 2000, 3000)]), fault(5, 5));
        let (faults, misdated) = found(&[past(5, 0, 1000), past(4, 2000, 3000)]);
        assert_eq!((faults, misdated), (vec![(FaultKind::Token, 5, 4)], 1));
        // Readers may get one token in one commit.
        assert_eq!(found(&[shared(past(5, 0, 1000)), shared(past(5, 0, 3000))]), NOTHING);
    }

    #[test]
    fn a_clock_that_was_set_back_proves_nothing() {
        // The lines and the tokens agree, the times do not.
        assert_eq!(found(&[past(1, 5000, 6000), past(2, 1000, 2000)]), (Vec::new(), 1));
        // A long grant after the step covers the time of the first one.
        assert_eq!(found(&[past(1, 5000, 6000), past(2, 1000, 8000)]), (Vec::new(), 1));
        assert_eq!(found(&[past(1, 5000, 1000), past(2, 1000, 2000)]), (Vec::new(), 2));
        assert_eq!(audit(&[past(1, 5000, 6000), past(2, 1000, 2000)], 100, 10_000).misdated_by, 4000);
    }

    #[test]
    fn clocks_of_two_hosts_may_differ_by_the_tolerance() {
        assert_eq!(found(&[at("a", past(5, 0, 1000)), at("b", past(4, 1050, 1080))]).0, []);
        assert_eq!(found(&[at("a", past(5, 0, 1000)), at("a", past(4, 1050, 1080))]).0, [(FaultKind::Token, 5, 4)]);
        assert_eq!(found(&[at("a", past(5, 0, 1000)), at("b", past(4, 1200, 1300))]).0, [(FaultKind::Token, 5, 4)]);
    }
}
