//! The rules, one by one, without any clock, process or file.

use super::*;
use crate::lock::record::{Begun, Home, Lease, LeaseClock, Party, Process, Share, Waiter};
use crate::lock::{Handle, decode, encode};

fn home() -> Home {
    Home { machine: "m".into(), boot: "b".into(), pids: "p".into(), net: 1 }
}

fn process(pid: i32) -> Process {
    Process { pid, start: 1 }
}

fn proof(pid: i32) -> Proof {
    Handle::new([pid as u8; 16]).proof()
}

fn party(owners: &[i32]) -> Party {
    let owners = owners.iter().map(|pid| process(*pid)).collect();
    Party { home: home(), owners, supervisor: None, host: "h".into(), uid: 0, command: b"job".to_vec(), label: None }
}

fn lease(ends: u64) -> Lease {
    Lease { clock: LeaseClock::FileSystem(Begun::default()), ends, wall: ends }
}

/// A job that runs as `pid` and wants the lock.
fn wants(pid: i32, share: Share) -> Application {
    let entry = Waiter {
        proof: proof(pid),
        share,
        party: party(&[pid]),
        process: process(pid),
        tenure: Tenure::OwnerLives,
        confirms: false,
        yields: false,
        claim: None,
        under: Vec::new(),
        within: Vec::new(),
        lease: None,
        since: 0,
    };
    let slots = (share == Share::Slot).then_some(2);
    Application {
        entry,
        tenure: Tenure::OwnerLives,
        slots,
        queue: true,
        refuse_stale: false,
        tentative: false,
        confirming: false,
        place: None,
        full: None,
    }
}

/// Whoever is this one has decided that his grants stand.
const DECIDED: i32 = 50;

/// A world in which these pids are dead, all others live, and leases that end at 0 are over.
fn settle(record: &Record, ask: &Ask, dead: &[i32]) -> Step {
    let mut facts = Facts::at(7);
    loop {
        match decide(record, ask, &facts) {
            Ok(step) => return step,
            Err(Wanted::Fate(home, process)) => {
                let fate = if dead.contains(&process.pid) { Fate::Dead } else { Fate::Alive };
                facts.learn_fate(home, process, fate);
            }
            Err(Wanted::Outlasts(lease)) => facts.learn_outlasts(lease, true),
            Err(Wanted::Lent(span)) => facts.learn_lent(span, lease(span)),
            Err(Wanted::Page(page)) => facts.learn_page(page, Vec::new()),
            Err(Wanted::Decided(who)) => facts.learn_decided(who, who == proof(DECIDED)),
            Err(Wanted::Over(lease)) => {
                let over = lease.ends == 0;
                facts.learn_over(lease, over);
            }
        }
    }
}

/// Applies an ask, with the version number as token, and returns the answer and who is woken.
fn apply(record: &mut Record, version: u64, ask: Ask, dead: &[i32]) -> (Option<Outcome>, Vec<Proof>) {
    match settle(record, &ask, dead) {
        Step::Done(outcome) => (Some(outcome), Vec::new()),
        Step::Write { record: next, outcome, wake, .. } => {
            *record = decode(&encode(&next), version).unwrap();
            (outcome, wake)
        }
        Step::Wait { .. } | Step::Join(_) => (None, Vec::new()),
    }
}

fn take(record: &mut Record, version: u64, pid: i32, share: Share) -> Option<Outcome> {
    apply(record, version, Ask::Take(wants(pid, share)), &[]).0
}

fn handle_of(pid: i32) -> Claimant {
    Claimant {
        proof: Some(proof(pid)),
        owners: Vec::new(),
        claim: None,
        home: home(),
        supervises: false,
        repeated: false,
    }
}

fn owner(pid: i32) -> Claimant {
    Claimant { proof: None, owners: vec![process(pid)], ..handle_of(pid) }
}

fn holders(record: &Record) -> Vec<i32> {
    record.holders.iter().map(|grant| grant.party.owners[0].pid).collect()
}

/// A record that 1 holds and for which 2, 3, ... wait.
fn queue(shares: &[Share]) -> Record {
    let mut record = Record::free(b"x");
    for (at, share) in shares.iter().enumerate() {
        let pid = at as i32 + 1;
        take(&mut record, pid as u64, pid, *share);
    }
    record
}

#[test]
fn a_free_lock_is_granted_with_the_version_as_its_token() {
    let mut record = Record::free(b"x");
    assert!(matches!(take(&mut record, 17, 1, Share::Exclusive), Some(Outcome::Granted(_, None))));
    assert_eq!((holders(&record), record.holders[0].token), (vec![1], Some(17)));
}

#[test]
fn a_release_grants_to_the_first_in_the_queue_and_wakes_only_it() {
    let mut record = queue(&[Share::Exclusive; 4]);
    let (outcome, wake) = apply(&mut record, 9, Ask::Release(handle_of(1)), &[]);
    assert!(matches!(outcome, Some(Outcome::Released(_))));
    assert_eq!((holders(&record), wake, record.waiters.len()), (vec![2], vec![proof(2)], 2));
    assert_eq!(record.holders[0].token, Some(9));
}

#[test]
fn the_dead_in_the_queue_are_passed_over() {
    let mut record = queue(&[Share::Exclusive; 4]);
    apply(&mut record, 9, Ask::Release(handle_of(1)), &[2, 3]);
    assert_eq!((holders(&record), record.waiters.len()), (vec![4], 0));
}

#[test]
fn readers_hold_together_and_never_pass_a_waiting_writer() {
    let mut record = queue(&[Share::Shared, Share::Shared, Share::Exclusive, Share::Shared]);
    assert_eq!((holders(&record), record.waiters.len()), (vec![1, 2], 2));
    apply(&mut record, 9, Ask::Release(handle_of(1)), &[]);
    assert_eq!(holders(&record), [2]);
    apply(&mut record, 10, Ask::Release(handle_of(2)), &[]);
    assert_eq!(holders(&record), [3]);
    apply(&mut record, 11, Ask::Release(handle_of(3)), &[]);
    assert_eq!(holders(&record), [4]);
}

#[test]
fn slots_are_numbered_from_the_lowest_free_one() {
    let mut record = queue(&[Share::Slot; 3]);
    let slots = |record: &Record| record.holders.iter().map(|grant| grant.slot).collect::<Vec<_>>();
    assert_eq!((holders(&record), slots(&record)), (vec![1, 2], vec![0, 1]));
    apply(&mut record, 9, Ask::Release(handle_of(1)), &[]);
    assert_eq!((holders(&record), slots(&record)), (vec![2, 3], vec![1, 0]));
    let other = Application { slots: Some(3), ..wants(4, Share::Slot) };
    assert!(matches!(settle(&record, &Ask::Take(other), &[]), Step::Done(Outcome::OtherSlots(2))));
}

#[test]
fn a_dead_holder_is_evicted_and_the_taker_is_told() {
    let mut record = queue(&[Share::Exclusive]);
    let (outcome, _) = apply(&mut record, 9, Ask::Take(wants(2, Share::Exclusive)), &[1]);
    let Some(Outcome::Granted(_, Some(ending))) = outcome else { panic!("{outcome:?}") };
    assert_eq!((ending.how, ending.grant.token), (Ended::Died, Some(1)));
}

#[test]
fn a_waiter_is_served_before_a_newcomer_who_finds_the_holder_dead() {
    let mut record = queue(&[Share::Exclusive; 2]);
    let newcomer = Application { queue: false, ..wants(3, Share::Exclusive) };
    let (outcome, wake) = apply(&mut record, 9, Ask::Take(newcomer), &[1]);
    assert!(matches!(outcome, Some(Outcome::Busy(_))));
    assert_eq!((holders(&record), wake, record.waiters.len()), (vec![2], vec![proof(2)], 0));
}

#[test]
fn unknown_is_not_dead() {
    let record = queue(&[Share::Exclusive]);
    let mut facts = Facts::at(7);
    facts.learn_fate(home(), process(1), Fate::Unknown);
    let application = Application { queue: false, ..wants(2, Share::Exclusive) };
    let step = decide(&record, &Ask::Take(application), &facts);
    assert!(matches!(step, Ok(Step::Done(Outcome::Busy(_)))), "{step:?}");
}

#[test]
fn refuse_stale_changes_nothing() {
    let record = queue(&[Share::Exclusive]);
    let application = Application { refuse_stale: true, ..wants(2, Share::Exclusive) };
    assert!(matches!(settle(&record, &Ask::Take(application), &[1]), Step::Done(Outcome::Stale(_))));
}

#[test]
fn every_ask_may_be_repeated() {
    let mut record = queue(&[Share::Exclusive; 2]);
    let before = record.clone();
    assert!(matches!(take(&mut record, 9, 1, Share::Exclusive), Some(Outcome::Granted(..))));
    assert_eq!(record, before);
    apply(&mut record, 9, Ask::Release(handle_of(1)), &[]);
    let again = Claimant { repeated: true, ..handle_of(1) };
    assert!(matches!(apply(&mut record, 10, Ask::Release(again), &[]).0, Some(Outcome::Released(_))));
    let late = apply(&mut record, 10, Ask::Release(handle_of(1)), &[]).0;
    assert!(matches!(late, Some(Outcome::NotOwner(_, Some(_)))), "{late:?}");
    assert_eq!(holders(&record), [2]);
}

#[test]
fn only_the_handle_or_the_owner_gives_back() {
    let record = queue(&[Share::Exclusive]);
    for stranger in [handle_of(2), owner(2)] {
        assert!(matches!(settle(&record, &Ask::Release(stranger), &[]), Step::Done(Outcome::NotOwner(..))));
    }
    for holder in [handle_of(1), owner(1)] {
        assert!(matches!(settle(&record, &Ask::Release(holder), &[]), Step::Write { .. }));
    }
}

#[test]
fn the_owner_is_the_first_of_the_chain_that_lives() {
    let mut record = Record::free(b"x");
    let mut application = wants(1, Share::Exclusive);
    application.entry.party = party(&[1, 2]);
    apply(&mut record, 1, Ask::Take(application), &[]);
    assert!(matches!(settle(&record, &Ask::Release(owner(2)), &[]), Step::Done(Outcome::NotOwner(..))));
    assert!(matches!(settle(&record, &Ask::Release(owner(2)), &[1]), Step::Write { .. }));
}

#[test]
fn waiting_for_oneself_is_a_deadlock() {
    let record = queue(&[Share::Exclusive]);
    let mut application = wants(2, Share::Exclusive);
    application.entry.under = vec![proof(1)];
    assert!(matches!(settle(&record, &Ask::Take(application), &[]), Step::Done(Outcome::Deadlock(_))));
    let mut application = wants(2, Share::Exclusive);
    application.entry.within = vec![process(1)];
    assert!(matches!(settle(&record, &Ask::Take(application), &[]), Step::Done(Outcome::Deadlock(_))));
}

#[test]
fn a_lease_that_is_over_ends_the_grant_for_everybody() {
    let mut record = queue(&[Share::Exclusive]);
    record.holders[0].tenure = Tenure::Until(lease(0));
    for ask in [Ask::Release(handle_of(1)), Ask::Renew(owner(1), Tenure::Until(lease(9)))] {
        let step = settle(&record, &ask, &[]);
        assert!(matches!(step, Step::Done(Outcome::NotHeld(Some(Ending { how: Ended::Expired, .. })))), "{step:?}");
    }
    let taken = take(&mut record, 9, 2, Share::Exclusive);
    assert!(matches!(taken, Some(Outcome::Granted(_, Some(Ending { how: Ended::Expired, .. })))));
    let late = settle(&record, &Ask::Release(handle_of(1)), &[]);
    assert!(matches!(late, Step::Done(Outcome::NotOwner(_, Some(_)))));
}

#[test]
fn a_step_names_the_leases_whose_end_it_rests_on() {
    let mut record = queue(&[Share::Shared, Share::Shared, Share::Exclusive]);
    (record.holders[0].tenure, record.holders[1].tenure) = (Tenure::Until(lease(0)), Tenure::Until(lease(5)));
    record.waiters[0].lease = Some(lease(0));
    let step = settle(&record, &Ask::Take(wants(4, Share::Exclusive)), &[]);
    assert!(matches!(step, Step::Write { over, .. } if over == [lease(0)]));
    record.holders.remove(0);
    record.waiters[0].lease = Some(lease(6));
    let step = settle(&record, &Ask::Release(handle_of(2)), &[]);
    assert!(matches!(step, Step::Write { over, .. } if over.is_empty()));
}

#[test]
fn a_lease_begins_with_the_grant_and_anew_when_the_waiter_confirms() {
    let mut record = queue(&[Share::Exclusive]);
    let mut application = wants(2, Share::Exclusive);
    application.entry.tenure = Tenure::AtMost(1000);
    application.entry.confirms = true;
    apply(&mut record, 2, Ask::Take(application.clone()), &[]);
    apply(&mut record, 3, Ask::Release(handle_of(1)), &[]);
    let grant = &record.holders[0];
    assert_eq!((&grant.tenure, grant.unconfirmed), (&Tenure::Until(lease(1000)), Some(process(2))));
    application.tenure = Tenure::Until(lease(2000));
    apply(&mut record, 4, Ask::Take(application), &[]);
    let grant = &record.holders[0];
    assert_eq!((&grant.tenure, grant.unconfirmed, grant.token), (&Tenure::Until(lease(2000)), None, Some(3)));
}

#[test]
fn an_unconfirmed_grant_dies_with_its_waiter_and_not_with_its_owner() {
    let mut record = queue(&[Share::Exclusive]);
    let mut application = wants(2, Share::Exclusive);
    application.entry.party = party(&[20]);
    application.entry.confirms = true;
    apply(&mut record, 2, Ask::Take(application), &[]);
    apply(&mut record, 3, Ask::Release(handle_of(1)), &[]);
    let (outcome, _) = apply(&mut record, 4, Ask::Take(wants(3, Share::Exclusive)), &[2]);
    assert!(matches!(outcome, Some(Outcome::Granted(..))), "{outcome:?}");
}

#[test]
fn an_unconfirmed_grant_is_not_yet_its_owners() {
    let mut record = Record::free(b"x");
    let mut application = wants(2, Share::Exclusive);
    application.entry.party = party(&[20]);
    application.tentative = true;
    apply(&mut record, 1, Ask::Take(application), &[]);
    for dead in [&[][..], &[2]] {
        let answer = settle(&record, &Ask::Release(owner(20)), dead);
        assert!(matches!(answer, Step::Done(Outcome::NotOwner(..) | Outcome::NotHeld(_))), "{answer:?}");
    }
    assert!(matches!(settle(&record, &Ask::Release(handle_of(2)), &[2]), Step::Write { .. }));
}

#[test]
fn what_was_decided_stands_and_is_confirmed_by_the_next_who_writes() {
    let mut record = Record::free(b"x");
    let mut application = wants(DECIDED, Share::Shared);
    application.entry.party = party(&[20]);
    application.tentative = true;
    apply(&mut record, 1, Ask::Take(application), &[]);
    let (outcome, _) = apply(&mut record, 2, Ask::Take(wants(3, Share::Shared)), &[DECIDED]);
    assert!(matches!(outcome, Some(Outcome::Granted(_, None))), "{outcome:?}");
    assert_eq!((holders(&record), record.holders[0].unconfirmed), (vec![20, 3], None));
    let (outcome, _) = apply(&mut record, 3, Ask::Take(wants(4, Share::Shared)), &[20, DECIDED]);
    assert!(matches!(outcome, Some(Outcome::Granted(_, Some(_)))), "{outcome:?}");
    assert_eq!(holders(&record), [3, 4]);
}

#[test]
fn a_claim_stands_against_all_but_its_own_id() {
    let claims = |pid: i32, id: &[u8]| {
        let mut application = wants(pid, Share::Exclusive);
        application.entry.party = party(&[]);
        application.entry.claim = Some(id.to_vec());
        (application.entry.tenure, application.tenure) = (Tenure::Forever, Tenure::Forever);
        application
    };
    let mut record = Record::free(b"x");
    let several = Application { tentative: true, ..claims(2, b"two") };
    apply(&mut record, 1, Ask::Take(several.clone()), &[]);
    // It may yet come to nothing, so that the next one waits; and it does when who makes it dies.
    assert!(matches!(settle(&record, &Ask::Take(claims(3, b"three")), &[]), Step::Write { outcome: None, .. }));
    let mut alone = record.clone();
    let (outcome, _) = apply(&mut alone, 2, Ask::Take(claims(3, b"three")), &[2]);
    assert!(matches!(outcome, Some(Outcome::Granted(grant, _)) if grant.claim.as_deref() == Some(b"three")));
    apply(&mut record, 2, Ask::Take(claims(3, b"three")), &[]);
    let (outcome, wake) = apply(&mut record, 3, Ask::Take(Application { tentative: false, ..several }), &[]);
    assert!(matches!(outcome, Some(Outcome::Granted(..))), "{outcome:?}");
    assert_eq!(wake, [proof(3)], "who wants to claim it as well need not wait");
    for dead in [&[][..], &[2]] {
        let refused = settle(&record, &Ask::Take(claims(3, b"three")), dead);
        assert!(matches!(refused, Step::Done(Outcome::Claimed(ref grant)) if grant.proof == proof(2)), "{refused:?}");
        let again = settle(&record, &Ask::Take(claims(4, b"two")), dead);
        assert!(matches!(again, Step::Done(Outcome::Granted(ref grant, None)) if grant.proof == proof(2)), "{again:?}");
    }
    let by = |id: &[u8]| Claimant { proof: None, claim: Some(id.to_vec()), ..handle_of(2) };
    assert!(matches!(apply(&mut record, 4, Ask::Release(by(b"three")), &[]).0, Some(Outcome::NotOwner(..))));
    assert!(matches!(apply(&mut record, 4, Ask::Release(by(b"two")), &[]).0, Some(Outcome::Released(_))));
}

#[test]
fn forever_outlives_its_owner() {
    let mut record = queue(&[Share::Exclusive]);
    record.holders[0].tenure = Tenure::Forever;
    let application = Application { queue: false, ..wants(2, Share::Exclusive) };
    assert!(matches!(settle(&record, &Ask::Take(application), &[1]), Step::Done(Outcome::Busy(_))));
}

#[test]
fn a_break_ends_only_what_was_seen() {
    let mut record = queue(&[Share::Exclusive; 2]);
    let (outcome, wake) = apply(&mut record, 9, Ask::Break(vec![proof(1)]), &[]);
    assert!(matches!(outcome, Some(Outcome::Broken(broken)) if broken.len() == 1));
    assert_eq!((holders(&record), wake), (vec![2], vec![proof(2)]));
    let repeated = apply(&mut record, 10, Ask::Break(vec![proof(1)]), &[]).0;
    assert!(matches!(repeated, Some(Outcome::Broken(_))));
    assert_eq!(holders(&record), [2]);
}

#[test]
fn a_break_removes_a_grant_whose_owner_died() {
    let mut record = queue(&[Share::Exclusive; 2]);
    let (outcome, wake) = apply(&mut record, 9, Ask::Break(vec![proof(1)]), &[1]);
    let died = |ending: &Ending| ending.grant.proof == proof(1) && ending.how == Ended::Died;
    assert!(matches!(&outcome, Some(Outcome::Broken(broken)) if broken.iter().all(died) && broken.len() == 1));
    assert_eq!((holders(&record), wake), (vec![2], vec![proof(2)]));
    assert_eq!(apply(&mut record, 10, Ask::Break(vec![proof(1)]), &[1]).0, outcome);
    // No grant is meant: the answer is who holds it.
    let refused = settle(&record, &Ask::Break(Vec::new()), &[]);
    assert!(
        matches!(refused, Step::Done(Outcome::NotOwner(ref grants, None)) if grants[0].proof == proof(2)),
        "{refused:?}"
    );
}

#[test]
fn a_broken_grant_is_remembered_until_its_holder_hears_of_it_or_dies() {
    let mut record = queue(&[Share::Exclusive]);
    apply(&mut record, 9, Ask::Break(vec![proof(1)]), &[]);
    assert!(record.is_free() && !record.is_vacant());
    let mut dead = record.clone();
    apply(&mut dead, 10, Ask::Collect, &[1]);
    assert!(dead.is_vacant());
    let (told, _) = apply(&mut record, 10, Ask::Release(handle_of(1)), &[]);
    assert!(matches!(told, Some(Outcome::NotHeld(Some(Ending { how: Ended::Broken, .. })))), "{told:?}");
    assert!(record.is_vacant());
}

#[test]
fn the_end_of_a_supervised_grant_is_remembered_until_its_supervisor_hears_of_it_or_dies() {
    const SUPERVISOR: i32 = 70;
    let mut wanted = wants(1, Share::Exclusive);
    wanted.entry.party.supervisor = Some(process(SUPERVISOR));
    let mut granted = Record::free(b"x");
    apply(&mut granted, 1, Ask::Take(wanted), &[]);
    let supervisor = Claimant { supervises: true, ..handle_of(1) };
    for (ask, dead, how) in [
        (Ask::Release(handle_of(1)), &[][..], Ended::Released),
        (Ask::Collect, &[1], Ended::Died),
        (Ask::Break(vec![proof(1)]), &[], Ended::Broken),
    ] {
        let mut record = granted.clone();
        apply(&mut record, 2, ask, dead);
        // More grants than a record remembers of others.
        for pid in 2..9 {
            take(&mut record, pid as u64, pid, Share::Exclusive);
            apply(&mut record, 9, Ask::Release(handle_of(pid)), dead);
        }
        assert!(record.is_free() && !record.is_vacant(), "{how:?}");
        let mut alone = record.clone();
        apply(&mut alone, 10, Ask::Collect, &[1, SUPERVISOR]);
        assert!(alone.is_vacant(), "{how:?}");
        // The command itself may ask, and changes nothing about it.
        apply(&mut record, 10, Ask::Release(handle_of(1)), dead);
        let (told, _) = apply(&mut record, 11, Ask::Release(supervisor.clone()), dead);
        assert!(matches!(told, Some(Outcome::NotHeld(Some(ending))) if ending.how == how), "{how:?}");
        assert!(record.is_vacant(), "{how:?}");
    }
    let (told, _) = apply(&mut granted, 2, Ask::Release(supervisor), &[]);
    assert!(matches!(told, Some(Outcome::Released(_))) && granted.is_vacant());
}

#[test]
fn withdrawing_lets_those_behind_pass() {
    let mut record = queue(&[Share::Shared, Share::Exclusive, Share::Shared]);
    let (outcome, wake) = apply(&mut record, 9, Ask::Withdraw(proof(2), None), &[]);
    assert_eq!((outcome, wake, holders(&record)), (Some(Outcome::Withdrawn), vec![proof(3)], vec![1, 3]));
    let late = apply(&mut record, 10, Ask::Withdraw(proof(3), None), &[]).0;
    assert!(matches!(late, Some(Outcome::GrantedMeanwhile(_))));
}

#[test]
fn collecting_removes_the_dead_wherever_they_stand() {
    let mut record = queue(&[Share::Exclusive; 4]);
    let (outcome, _) = apply(&mut record, 9, Ask::Collect, &[1, 3]);
    let Some(Outcome::Collected(ended, dropped)) = outcome else { panic!("{outcome:?}") };
    assert_eq!((ended.len(), dropped.len(), holders(&record), record.waiters.len()), (1, 1, vec![2], 1));
}

#[test]
fn a_waiter_watches_the_one_before_it_and_the_first_one_the_holder() {
    let record = queue(&[Share::Exclusive; 3]);
    for (pid, watched) in [(2, 1), (3, 2)] {
        let step = settle(&record, &Ask::Take(wants(pid, Share::Exclusive)), &[]);
        let Step::Wait { processes, ahead, .. } = step else { panic!("{step:?}") };
        assert_eq!((processes, ahead), (vec![(home(), process(watched))], pid as usize - 2));
    }
}

/// As [`settle`] for somebody who wants it alone, with these pages.
fn ask_with_pages(record: &Record, ask: &Ask, pages: &[(u64, Vec<Waiter>)]) -> Step {
    let mut facts = Facts::at(7);
    loop {
        match decide(record, ask, &facts) {
            Ok(step) => return step,
            Err(Wanted::Fate(home, process)) => facts.learn_fate(home, process, Fate::Alive),
            Err(Wanted::Page(number)) => {
                let (_, waiters) = pages.iter().find(|(known, _)| *known == number).unwrap();
                facts.learn_page(number, waiters.clone());
            }
            Err(wanted) => panic!("{wanted:?}"),
        }
    }
}

/// Who waits, in order.
fn waiters(record: &Record) -> Vec<i32> {
    record.waiters.iter().map(|waiter| waiter.process.pid).collect()
}

/// A record with a holder, `count` waiters behind it and a page.
fn crowded(count: usize) -> Record {
    let mut record = queue(&vec![Share::Exclusive; count + 1]);
    record.pages = Some(Pages { first: 3, last: 3 });
    record
}

#[test]
fn who_finds_the_record_full_goes_to_a_page() {
    let full = queue(&[Share::Exclusive; WINDOW + 1]);
    let Step::Write { record, outcome: None, .. } = settle(&full, &Ask::Take(wants(99, Share::Exclusive)), &[]) else {
        panic!()
    };
    assert_eq!((record.pages, record.waiters.len()), (Some(Pages { first: 7, last: 7 }), WINDOW));
    let late = wants(99, Share::Exclusive);
    assert!(matches!(settle(&record, &Ask::Take(late.clone()), &[]), Step::Join(7)));
    let full = Application { full: Some(7), ..late.clone() };
    let Step::Write { record: longer, .. } = settle(&record, &Ask::Take(full), &[]) else { panic!() };
    assert_eq!(longer.pages, Some(Pages { first: 7, last: 8 }));
    let place = Some(Place { page: 7, ahead: 2, before: Vec::new(), entry: late.entry.clone() });
    let placed = Application { place, ..late };
    assert!(
        matches!(settle(&record, &Ask::Take(placed.clone()), &[]), Step::Wait { ahead, .. } if ahead == WINDOW + 2)
    );
    // A page that is none of the record's any more is no place.
    let moved_on = Record { pages: Some(Pages { first: 8, last: 9 }), ..record };
    assert!(matches!(settle(&moved_on, &Ask::Take(placed), &[]), Step::Join(9)));
}

#[test]
fn a_page_is_fetched_when_few_are_left_and_its_first_is_woken() {
    let record = crowded(4);
    let page: Vec<Waiter> = [50, 51].iter().map(|pid| wants(*pid, Share::Exclusive).entry).collect();
    let step = ask_with_pages(&record, &Ask::Release(handle_of(1)), &[(3, page)]);
    let Step::Write { record, wake, .. } = step else { panic!() };
    assert_eq!((holders(&record), waiters(&record), record.pages), (vec![2], vec![3, 4, 5, 50, 51], None));
    assert_eq!(wake, vec![proof(2), proof(50)]);
}

#[test]
fn who_is_fetched_twice_stands_once() {
    let record = crowded(2);
    let page: Vec<Waiter> = [1, 3, 50].iter().map(|pid| wants(*pid, Share::Exclusive).entry).collect();
    let Step::Write { record, .. } = ask_with_pages(&record, &Ask::Release(handle_of(1)), &[(3, page)]) else {
        panic!()
    };
    // (1, who just gave back, may want it again.)
    assert_eq!((holders(&record), waiters(&record)), (vec![2], vec![3, 1, 50]));
}

#[test]
fn from_a_page_that_is_being_fetched_one_leaves_by_the_record() {
    let record = crowded(WINDOW);
    let page: Vec<Waiter> = [50, 51].iter().map(|pid| wants(*pid, Share::Exclusive).entry).collect();
    let Step::Write { record, outcome, .. } = ask_with_pages(&record, &Ask::Withdraw(proof(50), Some(3)), &[(3, page)])
    else {
        panic!()
    };
    assert_eq!(outcome, Some(Outcome::Withdrawn));
    assert_eq!((record.pages, waiters(&record).last(), record.waiters.len()), (None, Some(&51), WINDOW + 1));
}

/// A record that this job holds for so long.
fn held_by(pid: i32, tenure: Tenure) -> Record {
    let take = Ask::Take(Application { tenure, ..wants(pid, Share::Exclusive) });
    let Step::Write { record, .. } = settle(&Record::free(b"x"), &take, &[]) else { panic!() };
    record
}

#[test]
fn a_lease_that_is_renewed_late_is_renewed_as_long_as_nobody_took_the_lock() {
    let renewed = |ends| Tenure::Renewed(lease(ends));
    let claimant = handle_of(1);
    let held = held_by(1, renewed(0));
    let Step::Write { record, .. } = settle(&held, &Ask::Renew(claimant.clone(), renewed(9)), &[]) else { panic!() };
    assert_eq!(record.holders[0].tenure, renewed(9));
    // What somebody set a time for keeps it, and is over when that is.
    let held = held_by(1, Tenure::Until(lease(5)));
    let step = settle(&held, &Ask::Renew(claimant.clone(), renewed(9)), &[]);
    assert!(matches!(step, Step::Done(Outcome::Renewed(grant)) if grant.tenure == Tenure::Until(lease(5))));
    let held = held_by(2, Tenure::OwnerLives);
    let step = settle(&held, &Ask::Renew(claimant, renewed(9)), &[]);
    assert!(matches!(step, Step::Done(Outcome::NotOwner(..))));
}

#[test]
fn whoever_is_mourned_is_dead_for_everybody() {
    let claimant = handle_of(1);
    let mut held = held_by(1, Tenure::Renewed(lease(5)));
    let Step::Write { record, .. } = settle(&held, &Ask::Mourn(claimant.clone()), &[]) else { panic!() };
    assert_eq!(record.holders[0].tenure, Tenure::OwnerDied);
    // It is there for whoever refuses what the dead left.
    let refuses = Application { refuse_stale: true, ..wants(2, Share::Exclusive) };
    let step = settle(&record, &Ask::Take(refuses), &[]);
    assert!(matches!(step, Step::Done(Outcome::Stale(endings)) if endings[0].how == Ended::Died));
    // And whoever waits has it at once.
    held.waiters = vec![wants(3, Share::Exclusive).entry];
    let Step::Write { record, wake, .. } = settle(&held, &Ask::Mourn(claimant), &[]) else { panic!() };
    assert_eq!((record.holders[0].proof, wake), (proof(3), vec![proof(3)]));
}

#[test]
fn nobody_takes_the_lock_of_an_owner_whom_he_sees_alive() {
    let late = held_by(1, Tenure::Renewed(lease(0)));
    let waits = settle(&late, &Ask::Take(wants(2, Share::Exclusive)), &[]);
    let Step::Write { record, outcome: None, .. } = waits else { panic!() };
    // He looks when that process ends, and not again and again because the lease is over.
    let Step::Wait { processes, leases, .. } = settle(&record, &Ask::Take(wants(2, Share::Exclusive)), &[]) else {
        panic!()
    };
    assert_eq!((processes, leases), (vec![(home(), process(1))], Vec::new()));
    let step = settle(&late, &Ask::Take(wants(2, Share::Exclusive)), &[1]);
    assert!(matches!(step, Step::Write { outcome: Some(Outcome::Granted(..)), .. }));
    // A time that somebody set is over when it is.
    let step = settle(&held_by(1, Tenure::Until(lease(0))), &Ask::Take(wants(2, Share::Exclusive)), &[]);
    assert!(matches!(step, Step::Write { outcome: Some(Outcome::Granted(..)), .. }));
}
