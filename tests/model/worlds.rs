//! The worlds: small enough to be explored to the end, each with something in it that the others have not.

use lock::Mode;

use super::explore::every_promise_is_kept;
use super::extent::is_complete;
use super::world::{Faults, Lasts, Script, Task, World, runs, shares, takes};

const EXCLUSIVE: Mode = Mode::Exclusive;

const NOTHING: Faults = few([0; 4]);

/// So many crashes, lost replies, stale reads and late arrivals.
const fn few([crashes, lost_replies, stale_reads, late_arrivals]: [u8; 4]) -> Faults {
    Faults { stops: 0, crashes, lost_replies, stale_reads, late_arrivals, late_copies: 0, leases: 0 }
}

/// The same, with so many leases.
const fn leases(leases: u8, others: [u8; 4]) -> Faults {
    Faults { leases, ..few(others) }
}

/// Explores a world with fewer faults in CI, with more of them where everything is asked for.
fn explore(what: &str, actors: &[Script], in_ci: Faults, in_full: Faults) {
    let name = |task: &Task| task.name();
    let names = 1 + actors.iter().flat_map(|script| &script.tasks).map(name).max().unwrap_or(0);
    let mut world = World::of(names, actors.to_vec());
    world.faults = if is_complete() { in_full } else { in_ci };
    every_promise_is_kept(what, world);
}

#[test]
fn three_callers_want_one_name_and_any_may_die() {
    explore("three want one name", &[takes(0), takes(0), takes(0)], few([1, 0, 0, 0]), few([2, 1, 1, 0]));
}

#[test]
fn replies_are_lost_and_requests_of_dead_processes_arrive() {
    explore("lost replies, late arrivals", &[takes(0), takes(0)], few([1, 2, 1, 1]), few([2, 4, 2, 2]));
}

#[test]
fn a_released_lock_is_acquired_again() {
    let twice =
        || Script::job(&[Task::Take(0, EXCLUSIVE), Task::GiveBack(0), Task::Take(0, EXCLUSIVE), Task::GiveBack(0)]);
    explore("twice", &[twice(), twice()], few([0, 1, 1, 0]), few([1, 2, 2, 1]));
    // Without lost replies, a record forgets releases sooner.
    let on_one_host = few([1, 0, 0, 0]);
    explore("twice on one host", &[twice(), twice()], on_one_host, Faults { crashes: 2, ..on_one_host });
}

#[test]
fn readers_and_a_writer() {
    let reader = || shares(0, Mode::Shared);
    explore("readers and a writer", &[reader(), takes(0), reader()], few([1, 0, 0, 0]), few([2, 1, 1, 0]));
}

#[test]
fn three_callers_want_one_of_two_slots() {
    let slot = || shares(0, Mode::Slot);
    explore("slots", &[slot(), slot(), slot()], few([1, 0, 0, 0]), few([2, 1, 1, 0]));
}

#[test]
fn callers_that_count_two_and_three_slots() {
    let slot = |slots| shares(0, Mode::Slot).counting(slots);
    explore("two numbers of slots", &[slot(2), slot(3), slot(2)], few([1, 0, 0, 0]), few([2, 1, 1, 0]));
}

#[test]
fn two_names_in_opposite_orders_and_a_caller_that_wants_one() {
    let both = |first, second| {
        let (take, give) = ([Task::Take(first, EXCLUSIVE), Task::Take(second, EXCLUSIVE)], Task::GiveBack);
        Script::job(&[take[0], take[1], give(second), give(first)])
    };
    explore("opposite orders", &[both(0, 1), both(1, 0), takes(1)], NOTHING, few([1, 1, 0, 0]));
    explore("opposite orders, two of them", &[both(0, 1), both(1, 0)], few([1, 1, 0, 0]), few([2, 2, 2, 1]));
}

#[test]
fn shells_acquire_through_a_child_process() {
    let shell = || takes(0).for_shell();
    // With two dead shells this world has no end: their waiters can replace each other in the queue before each commit of
    // the third caller.
    explore("shells", &[shell(), shell(), takes(0)], few([1, 0, 0, 0]), few([1, 1, 1, 0]));
    let as_owner = Script::job(&[Task::Take(0, EXCLUSIVE), Task::GiveBackAsOwner(0)]).for_shell();
    explore("owners", &[as_owner.clone(), as_owner], few([2, 1, 0, 0]), few([3, 2, 1, 1]));
}

#[test]
fn hosts_that_are_copies_of_one_machine() {
    let renewing = |host| takes(0).lasting(Lasts::Renewing).elsewhere(host);
    let mut world = World { copies: true, ..World::of(1, vec![renewing(0), renewing(1)]) };
    world.faults = leases(3, [1, 0, 1, 0]);
    every_promise_is_kept("two copies", world);
}

#[test]
fn hosts_that_cannot_see_each_others_processes() {
    let renewing = |host| takes(0).lasting(Lasts::Renewing).elsewhere(host);
    explore("two hosts", &[renewing(0), renewing(1)], leases(3, [1, 0, 1, 0]), leases(4, [1, 1, 1, 1]));
    if is_complete() {
        let faults = leases(4, [1, 0, 0, 0]);
        explore("three hosts", &[renewing(0), renewing(1), renewing(2)], faults, faults);
    }
}

#[test]
fn a_slow_server_repeats_the_work_of_another() {
    let renewing = |host| takes(0).lasting(Lasts::Renewing).elsewhere(host).staying();
    explore(
        "late copies",
        &[renewing(0), renewing(1)],
        Faults { late_copies: 1, ..leases(3, [0, 0, 0, 0]) },
        Faults { late_copies: 1, ..leases(3, [1, 1, 0, 0]) },
    );
}

#[test]
fn a_keeper_renews_for_an_owner_that_dies_or_releases() {
    let holder = takes(0).lasting(Lasts::Renewing).for_shell();
    let keeper = Script::job(&[Task::Keep { of: 0, name: 0, renewals: 1 }]);
    let other = |host| takes(0).lasting(Lasts::Renewing).elsewhere(host);
    explore(
        "a keeper, and others that see the owner",
        &[holder.clone(), keeper.clone(), other(0)],
        leases(3, [1, 0, 0, 0]),
        leases(4, [2, 1, 0, 0]),
    );
    explore(
        "a keeper, and others that do not see the owner",
        &[holder, keeper, other(1)],
        leases(3, [1, 0, 0, 0]),
        leases(4, [1, 1, 0, 0]),
    );
}

#[test]
fn leases_that_end_while_their_holders_live() {
    let leased = || takes(0).lasting(Lasts::AtMost);
    explore("time limits", &[leased(), leased()], leases(3, [1, 1, 0, 0]), leases(4, [2, 2, 2, 1]));
    if is_complete() {
        let faults = leases(3, [1, 0, 0, 0]);
        explore("time limits, three", &[leased(), leased(), takes(0)], faults, faults);
    }
}

#[test]
fn two_callers_break_a_held_lock_with_a_waiter_at_once() {
    let breaker = || Script::job(&[Task::Break(0)]);
    explore("two breakers", &[takes(0), breaker(), breaker(), takes(0)], NOTHING, few([1, 1, 0, 0]));
}

#[test]
fn two_collectors_remove_a_dead_grant_at_once() {
    let collector = || Script::job(&[Task::Collect(0)]);
    explore("two collectors", &[takes(0), collector(), collector(), takes(0)], few([1, 0, 0, 0]), few([2, 1, 0, 0]));
}

#[test]
fn callers_give_up_and_callers_do_not_wait_at_all() {
    let tries = Script::job(&[Task::Try(0, EXCLUSIVE), Task::GiveBack(0)]);
    explore("giving up", &[takes(0), takes(0).impatient(), tries], few([1, 0, 0, 0]), few([2, 1, 1, 1]));
}

#[test]
fn a_caller_refuses_a_stale_lock() {
    explore(
        "refusing what is stale",
        &[takes(0), takes(0).refusing_stale(), takes(0)],
        few([1, 0, 0, 0]),
        few([2, 1, 1, 0]),
    );
}

#[test]
fn a_waiter_is_woken_without_polling() {
    let (takes, shares) = (|| takes(0).staying(), |share| shares(0, share).staying());
    let shell = || takes().for_shell();
    let leased = || takes().lasting(Lasts::AtMost);
    let one_dies = few([1, 0, 0, 0]);
    let worlds: [(&str, Vec<Script>, Faults); 5] = [
        ("woken", vec![takes(), takes(), takes().impatient()], NOTHING),
        ("woken, readers", vec![shares(Mode::Shared), takes(), shares(Mode::Shared)], NOTHING),
        ("woken, one dies", vec![takes(), takes(), takes()], one_dies),
        ("woken, shells", vec![shell(), shell()], one_dies),
        ("woken, leases", vec![leased(), takes()], leases(2, [1, 0, 0, 0])),
    ];
    for (what, actors, faults) in worlds {
        let mut world = World::of(1, actors);
        (world.faults, world.bounded_looks) = (faults, false);
        every_promise_is_kept(what, world);
    }
}

#[test]
fn a_job_begins_until_its_success_is_on_record() {
    let of_host = |host| runs(0).lasting(Lasts::Renewing).elsewhere(host);
    explore("a job", &[runs(0), runs(0)], few([1, 1, 0, 0]), few([2, 2, 1, 1]));
    explore("a job on two hosts", &[of_host(0), of_host(1)], leases(3, [0, 1, 0, 0]), leases(4, [1, 1, 1, 1]));
}

#[test]
fn only_the_newest_of_some_callers_waits() {
    let deploy = || takes(0).latest_only();
    explore("latest only", &[takes(0), deploy(), deploy()], few([1, 0, 0, 0]), few([2, 0, 1, 0]));
    explore("latest only, three of them", &[deploy(), deploy(), deploy()], NOTHING, few([1, 0, 1, 0]));
}

#[test]
fn waiters_are_stopped_and_continued() {
    let stops = |stops: u8, others| Faults { stops, ..few(others) };
    let two = &[takes(0), takes(0)];
    explore("two callers, stopped", two, stops(2, [1, 0, 0, 0]), stops(3, [1, 1, 1, 1]));
    explore("three callers, one stopped", &[takes(0), takes(0), takes(0)], stops(1, [0; 4]), stops(2, [1, 0, 0, 0]));
    let (reader, writer) = (|| shares(0, Mode::Shared), takes(0));
    explore("a stopped reader or writer", &[reader(), writer, reader()], stops(1, [0; 4]), stops(2, [0; 4]));
    let shell = || takes(0).for_shell();
    explore("stopped shells", &[shell(), shell()], stops(1, [1, 0, 0, 0]), stops(2, [1, 1, 0, 0]));
}
