//! The worlds: small enough to be explored to the end, each with something in it that the others have not.

use csalock::lock::Mode;

use super::explore::every_promise_is_kept;
use super::extent::is_complete;
use super::world::{Faults, Lasts, Script, Task, World, shares, takes};

const EXCLUSIVE: Mode = Mode::Exclusive;

const NOTHING: Faults =
    Faults { crashes: 0, lost_replies: 0, stale_reads: 0, late_arrivals: 0, late_copies: 0, leases: 0 };

/// Explores a world with fewer faults in CI, with more of them where everything is asked for.
fn explore(what: &str, names: usize, actors: &[Script], in_ci: Faults, in_full: Faults) {
    let mut world = World::of(names, actors.to_vec());
    world.faults = if is_complete() { in_full } else { in_ci };
    every_promise_is_kept(what, world);
}

#[test]
fn three_callers_want_one_name_and_any_may_die() {
    explore(
        "three want one name",
        1,
        &[takes(0), takes(0), takes(0)],
        Faults { crashes: 1, ..NOTHING },
        Faults { crashes: 2, lost_replies: 1, stale_reads: 1, ..NOTHING },
    );
}

#[test]
fn replies_are_lost_and_requests_of_dead_processes_arrive() {
    explore(
        "lost replies, late arrivals",
        1,
        &[takes(0), takes(0)],
        Faults { crashes: 1, lost_replies: 2, stale_reads: 1, late_arrivals: 1, ..NOTHING },
        Faults { crashes: 2, lost_replies: 4, stale_reads: 2, late_arrivals: 2, ..NOTHING },
    );
}

#[test]
fn a_released_lock_is_acquired_again() {
    let twice =
        || Script::job(&[Task::Take(0, EXCLUSIVE), Task::GiveBack(0), Task::Take(0, EXCLUSIVE), Task::GiveBack(0)]);
    explore(
        "twice",
        1,
        &[twice(), twice()],
        Faults { lost_replies: 1, stale_reads: 1, ..NOTHING },
        Faults { crashes: 1, lost_replies: 2, stale_reads: 2, late_arrivals: 1, ..NOTHING },
    );
    // Without lost replies, a record forgets releases sooner.
    let on_one_host = Faults { crashes: 1, ..NOTHING };
    explore("twice on one host", 1, &[twice(), twice()], on_one_host, Faults { crashes: 2, ..on_one_host });
}

#[test]
fn readers_and_a_writer() {
    let reader = || shares(0, Mode::Shared);
    explore(
        "readers and a writer",
        1,
        &[reader(), takes(0), reader()],
        Faults { crashes: 1, ..NOTHING },
        Faults { crashes: 2, lost_replies: 1, stale_reads: 1, ..NOTHING },
    );
}

#[test]
fn three_callers_want_one_of_two_slots() {
    let slot = || shares(0, Mode::Slot);
    explore(
        "slots",
        1,
        &[slot(), slot(), slot()],
        Faults { crashes: 1, ..NOTHING },
        Faults { crashes: 2, lost_replies: 1, stale_reads: 1, ..NOTHING },
    );
}

#[test]
fn two_names_in_opposite_orders_and_a_caller_that_wants_one() {
    let both = |first, second| {
        let (take, give) = ([Task::Take(first, EXCLUSIVE), Task::Take(second, EXCLUSIVE)], Task::GiveBack);
        Script::job(&[take[0], take[1], give(second), give(first)])
    };
    explore(
        "opposite orders",
        2,
        &[both(0, 1), both(1, 0), takes(1)],
        NOTHING,
        Faults { crashes: 1, lost_replies: 1, ..NOTHING },
    );
    explore(
        "opposite orders, two of them",
        2,
        &[both(0, 1), both(1, 0)],
        Faults { crashes: 1, lost_replies: 1, ..NOTHING },
        Faults { crashes: 2, lost_replies: 2, stale_reads: 2, late_arrivals: 1, ..NOTHING },
    );
}

#[test]
fn shells_acquire_through_a_child_process() {
    let shell = || takes(0).for_shell();
    // With two dead shells this world has no end: their waiters can replace each other in the queue before each commit of
    // the third caller.
    explore(
        "shells",
        1,
        &[shell(), shell(), takes(0)],
        Faults { crashes: 1, ..NOTHING },
        Faults { crashes: 1, lost_replies: 1, stale_reads: 1, ..NOTHING },
    );
    let as_owner = Script::job(&[Task::Take(0, EXCLUSIVE), Task::GiveBackAsOwner(0)]).for_shell();
    explore(
        "owners",
        1,
        &[as_owner.clone(), as_owner],
        Faults { crashes: 2, lost_replies: 1, ..NOTHING },
        Faults { crashes: 3, lost_replies: 2, stale_reads: 1, late_arrivals: 1, ..NOTHING },
    );
}

#[test]
fn hosts_that_are_copies_of_one_machine() {
    let renewing = |host| takes(0).lasting(Lasts::Renewing).elsewhere(host);
    let mut world = World { copies: true, ..World::of(1, vec![renewing(0), renewing(1)]) };
    world.faults = Faults { crashes: 1, stale_reads: 1, leases: 3, ..NOTHING };
    every_promise_is_kept("two copies", world);
}

#[test]
fn hosts_that_cannot_see_each_others_processes() {
    let renewing = |host| takes(0).lasting(Lasts::Renewing).elsewhere(host);
    explore(
        "two hosts",
        1,
        &[renewing(0), renewing(1)],
        Faults { crashes: 1, stale_reads: 1, leases: 3, ..NOTHING },
        Faults { crashes: 1, lost_replies: 1, stale_reads: 1, late_arrivals: 1, leases: 4, ..NOTHING },
    );
    if is_complete() {
        let faults = Faults { crashes: 1, leases: 4, ..NOTHING };
        explore("three hosts", 1, &[renewing(0), renewing(1), renewing(2)], faults, faults);
    }
}

#[test]
fn a_slow_server_repeats_the_work_of_another() {
    let renewing = |host| takes(0).lasting(Lasts::Renewing).elsewhere(host).staying();
    explore(
        "late copies",
        1,
        &[renewing(0), renewing(1)],
        Faults { late_copies: 1, leases: 3, ..NOTHING },
        Faults { crashes: 1, lost_replies: 1, late_copies: 1, leases: 3, ..NOTHING },
    );
}

#[test]
fn a_keeper_renews_for_an_owner_that_dies_or_releases() {
    let holder = takes(0).lasting(Lasts::Renewing).for_shell();
    let keeper = Script::job(&[Task::Keep { of: 0, name: 0, renewals: 1 }]);
    let other = |host| takes(0).lasting(Lasts::Renewing).elsewhere(host);
    explore(
        "a keeper, and others that see the owner",
        1,
        &[holder.clone(), keeper.clone(), other(0)],
        Faults { crashes: 1, leases: 3, ..NOTHING },
        Faults { crashes: 2, lost_replies: 1, leases: 4, ..NOTHING },
    );
    explore(
        "a keeper, and others that do not see the owner",
        1,
        &[holder, keeper, other(1)],
        Faults { crashes: 1, leases: 3, ..NOTHING },
        Faults { crashes: 1, lost_replies: 1, leases: 4, ..NOTHING },
    );
}

#[test]
fn leases_that_end_while_their_holders_live() {
    let leased = || takes(0).lasting(Lasts::AtMost);
    explore(
        "time limits",
        1,
        &[leased(), leased()],
        Faults { crashes: 1, lost_replies: 1, leases: 3, ..NOTHING },
        Faults { crashes: 2, lost_replies: 2, stale_reads: 2, late_arrivals: 1, leases: 4, ..NOTHING },
    );
    if is_complete() {
        let faults = Faults { crashes: 1, leases: 3, ..NOTHING };
        explore("time limits, three", 1, &[leased(), leased(), takes(0)], faults, faults);
    }
}

#[test]
fn two_callers_break_a_held_lock_with_a_waiter_at_once() {
    let breaker = || Script::job(&[Task::Break(0)]);
    explore(
        "two breakers",
        1,
        &[takes(0), breaker(), breaker(), takes(0)],
        NOTHING,
        Faults { crashes: 1, lost_replies: 1, ..NOTHING },
    );
}

#[test]
fn two_collectors_remove_a_dead_grant_at_once() {
    let collector = || Script::job(&[Task::Collect(0)]);
    explore(
        "two collectors",
        1,
        &[takes(0), collector(), collector(), takes(0)],
        Faults { crashes: 1, ..NOTHING },
        Faults { crashes: 2, lost_replies: 1, ..NOTHING },
    );
}

#[test]
fn callers_give_up_and_callers_do_not_wait_at_all() {
    let tries = Script::job(&[Task::Try(0, EXCLUSIVE), Task::GiveBack(0)]);
    explore(
        "giving up",
        1,
        &[takes(0), takes(0).impatient(), tries],
        Faults { crashes: 1, ..NOTHING },
        Faults { crashes: 2, lost_replies: 1, stale_reads: 1, late_arrivals: 1, ..NOTHING },
    );
}

#[test]
fn a_caller_refuses_a_stale_lock() {
    explore(
        "refusing what is stale",
        1,
        &[takes(0), takes(0).refusing_stale(), takes(0)],
        Faults { crashes: 1, ..NOTHING },
        Faults { crashes: 2, lost_replies: 1, stale_reads: 1, ..NOTHING },
    );
}

#[test]
fn a_waiter_is_woken_without_polling() {
    let (takes, shares) = (|| takes(0).staying(), |share| shares(0, share).staying());
    let shell = || takes().for_shell();
    let leased = || takes().lasting(Lasts::AtMost);
    let one_dies = Faults { crashes: 1, ..NOTHING };
    let worlds: [(&str, Vec<Script>, Faults); 5] = [
        ("woken", vec![takes(), takes(), takes().impatient()], NOTHING),
        ("woken, readers", vec![shares(Mode::Shared), takes(), shares(Mode::Shared)], NOTHING),
        ("woken, one dies", vec![takes(), takes(), takes()], one_dies),
        ("woken, shells", vec![shell(), shell()], one_dies),
        ("woken, leases", vec![leased(), takes()], Faults { leases: 2, crashes: 1, ..NOTHING }),
    ];
    for (what, actors, faults) in worlds {
        let mut world = World::of(1, actors);
        (world.faults, world.bounded_looks) = (faults, false);
        every_promise_is_kept(what, world);
    }
}

#[test]
fn only_the_newest_of_some_callers_waits() {
    let deploy = || takes(0).latest_only();
    explore(
        "latest only",
        1,
        &[takes(0), deploy(), deploy()],
        Faults { crashes: 1, ..NOTHING },
        Faults { crashes: 2, stale_reads: 1, ..NOTHING },
    );
    explore(
        "latest only, three of them",
        1,
        &[deploy(), deploy(), deploy()],
        NOTHING,
        Faults { crashes: 1, stale_reads: 1, ..NOTHING },
    );
}
