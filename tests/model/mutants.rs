//! The model can fail: with one rule made wrong on purpose, the promise that rests on it is seen broken.

use super::explore::a_promise_is_broken;
use super::promises;
use super::world::{Faults, Lasts, Planted, Script, World, runs, takes};

fn with(planted: Planted, actors: Vec<Script>, faults: Faults) -> World {
    World { faults, planted: Some(planted), ..World::of(1, actors) }
}

const ONE_DIES: Faults =
    Faults { stops: 0, crashes: 1, lost_replies: 0, stale_reads: 0, late_arrivals: 0, late_copies: 0, leases: 0 };

#[test]
fn two_callers_hold_at_once_if_an_unknown_process_counts_as_dead() {
    let renewing = |host| takes(0).lasting(Lasts::Renewing).elsewhere(host);
    let faults = Faults { leases: 4, ..Faults::default() };
    let world = with(Planted::UnknownIsDead, vec![renewing(0), renewing(1)], faults);
    a_promise_is_broken(world, &[promises::FIT, promises::KEPT]);
}

#[test]
fn two_callers_hold_at_once_if_a_commit_does_not_compare() {
    let world = with(Planted::NothingCompared, vec![takes(0), takes(0)], Faults::default());
    a_promise_is_broken(world, &[promises::FIT, promises::KEPT]);
}

#[test]
fn a_queue_is_stuck_if_a_release_grants_no_waiter() {
    let world = with(Planted::NobodyServed, vec![takes(0), takes(0)], Faults::default());
    a_promise_is_broken(world, &[promises::SERVED]);
}

#[test]
fn the_last_is_first_where_a_newcomer_sends_the_first_to_the_end() {
    let world = with(Planted::QueueJumped, vec![takes(0), takes(0), takes(0)], Faults::default());
    a_promise_is_broken(world, &[promises::FIRST_COME]);
}

#[test]
fn tokens_fall_where_a_number_is_forgotten_with_its_record() {
    let world = with(Planted::NumbersForgotten, vec![takes(0), takes(0)], Faults::default());
    a_promise_is_broken(world, &[promises::TOKENS]);
}

#[test]
fn a_released_lock_returns_without_creation_guards() {
    let renewing = |host| takes(0).lasting(Lasts::Renewing).elsewhere(host).staying();
    let faults = Faults { lost_replies: 1, late_copies: 1, leases: 3, ..Faults::default() };
    let world = with(Planted::BirthsUncounted, vec![renewing(0), renewing(1)], faults);
    a_promise_is_broken(world, &[promises::HANDLES, promises::NOT_STUCK]);
}

#[test]
fn a_waiter_waits_forever_without_wake_ups_and_polls() {
    let world = with(Planted::NobodyRung, vec![takes(0).staying(), takes(0)], Faults::default());
    a_promise_is_broken(World { bounded_looks: false, ..world }, &[promises::WOKEN]);
}

#[test]
fn a_shell_holds_an_unknown_lock_if_a_grant_does_not_depend_on_its_waiter() {
    let shells = vec![takes(0), takes(0).for_shell()];
    a_promise_is_broken(with(Planted::BornConfirmed, shells, ONE_DIES), &[promises::HANDLES]);
}

#[test]
fn a_job_runs_twice_if_a_success_that_is_not_on_record_counts_as_recorded() {
    let world = with(Planted::SuccessLost, vec![runs(0), runs(0)], Faults::default());
    a_promise_is_broken(world, &[promises::JOB_ONCE]);
}

#[test]
fn a_name_is_stuck_if_a_dead_process_counts_as_alive() {
    let world = with(Planted::DeathUnseen, vec![takes(0), takes(0)], ONE_DIES);
    a_promise_is_broken(world, &[promises::NOT_STUCK, promises::WOKEN]);
}

#[test]
fn callers_wait_for_a_stopped_waiter_if_its_stop_is_unseen() {
    let faults = Faults { stops: 1, ..Faults::default() };
    let world = with(Planted::StopsUnseen, vec![takes(0), takes(0), takes(0)], faults);
    a_promise_is_broken(world, &[promises::PASSED]);
}
