//! The worlds in which the directory store is explored, and those with deliberate errors.

#![allow(clippy::print_stderr, reason = "the number of states")]
#![allow(clippy::disallowed_methods, reason = "the time that an exploration takes is printed")]

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use self::extent::is_complete;
use super::file_system::Wrong;
use super::world::Script::{self, Joins, Sweeps, Takes, TakesAndChanges};
use super::world::{Faults, ONE_HOLDER, World};

#[path = "../../../../tests/extent/mod.rs"]
mod extent;

const NOTHING: Faults = Faults { crashes: 0, lost_replies: 0, stale_looks: 0 };

fn explore(what: &str, is_nfs: bool, clients: &[Script], in_ci: Faults, in_full: Faults) {
    let faults = if is_complete() { in_full } else { in_ci };
    explore_world(what, World { is_nfs, has_tombstone: false, clients: clients.to_vec(), faults, wrong: None });
}

fn explore_world(what: &str, world: World) {
    let started = Instant::now();
    let done = world.clone().checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join();
    if !done.discoveries().is_empty() {
        let shortest = world.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        if let Some((promise, path)) = shortest.discoveries().into_iter().next() {
            panic!("{what}: \"{promise}\" is broken by\n{}", story(path));
        }
    }
    eprintln!("model: directory, {what}: {} states in {:?}", done.unique_state_count(), started.elapsed());
}

fn story(path: stateright::Path<super::world::State, super::world::Action>) -> String {
    let mut told = String::new();
    for (state, action) in path.into_vec() {
        for (place, names) in &state.files.directories {
            told += &format!("  {place}: {:?}\n", names.keys().collect::<Vec<_>>());
        }
        for client in &state.clients {
            told += &format!("    {:?} {:?}\n", client.doing, client.call);
        }
        told += &format!("{action:?}\n");
    }
    told
}

#[test]
fn two_callers_acquire_a_free_lock_and_release_it() {
    explore("two", false, &[Takes(1), Takes(1)], Faults { crashes: 1, ..NOTHING }, Faults { crashes: 2, ..NOTHING });
}

#[test]
fn a_name_is_acquired_repeatedly() {
    explore("again", false, &[Takes(2), Takes(2)], NOTHING, Faults { crashes: 1, ..NOTHING });
}

#[test]
fn a_record_is_changed_and_removed() {
    let clients = [TakesAndChanges(1), TakesAndChanges(1)];
    explore("changes", false, &clients, Faults { crashes: 1, ..NOTHING }, Faults { crashes: 2, ..NOTHING });
}

#[test]
fn a_change_is_overtaken() {
    let one_dies = Faults { crashes: 1, ..NOTHING };
    let clients = [TakesAndChanges(1), Joins];
    explore("changes, joined", false, &clients, one_dies, Faults { crashes: 2, ..NOTHING });
}

#[test]
fn three_callers_acquire_a_free_lock() {
    explore("three", false, &[Takes(1), Takes(1), Takes(1)], NOTHING, Faults { crashes: 1, ..NOTHING });
}

#[test]
fn a_sweeper_runs_while_others_are_at_work() {
    let one_dies = Faults { crashes: 1, ..NOTHING };
    explore("sweeping", false, &[TakesAndChanges(1), Sweeps], one_dies, one_dies);
}

#[test]
fn a_sweeper_runs_while_a_removed_record_is_revived() {
    let one_dies = Faults { crashes: 1, ..NOTHING };
    let on_nfs = if is_complete() { Faults { lost_replies: 1, stale_looks: 1, ..one_dies } } else { one_dies };
    for (is_nfs, faults) in [(false, one_dies), (true, on_nfs)] {
        let clients = vec![Takes(1), Sweeps];
        explore_world("reviving", World { is_nfs, has_tombstone: true, clients, faults, wrong: None });
    }
}

#[test]
fn replies_are_lost_and_listings_are_old_as_on_nfs() {
    let faults = Faults { lost_replies: 1, stale_looks: 1, ..NOTHING };
    explore("NFS", true, &[Takes(1), Takes(1)], faults, Faults { crashes: 1, lost_replies: 2, stale_looks: 1 });
}

#[test]
fn replies_are_lost_while_a_record_is_changed() {
    let clients = [TakesAndChanges(1), TakesAndChanges(1)];
    let lost = Faults { lost_replies: 1, ..NOTHING };
    explore("NFS, changes", true, &clients, lost, Faults { lost_replies: 1, stale_looks: 1, ..NOTHING });
    if is_complete() {
        let faults = Faults { crashes: 1, ..lost };
        explore("NFS, changes, one dies", true, &clients, faults, faults);
    }
}

fn two_hold_where(wrong: Wrong, clients: &[Script]) {
    let clients = clients.to_vec();
    let world = World { is_nfs: false, has_tombstone: false, clients, faults: NOTHING, wrong: Some(wrong) };
    // Other promises may be broken earlier.
    let finish = HasDiscoveries::AnyOf([ONE_HOLDER].into());
    world.checker().finish_when(finish).spawn_bfs().join().assert_any_discovery(ONE_HOLDER);
}

#[test]
fn two_callers_hold_if_a_full_directory_may_be_replaced() {
    two_hold_where(Wrong::ReplacesFullDirectory, &[Takes(1), Takes(1)]);
}

#[test]
fn two_callers_hold_if_two_may_win_one_rename() {
    two_hold_where(Wrong::TwoWinRename, &[Takes(2), Takes(2)]);
}
