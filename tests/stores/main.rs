//! The promises of every store (`crates/store/src/lib.rs`) on every store: `tests/conformance` as one test for each promise, and
//! what needs several processes, an engine, a trace or a server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "tests start processes and tell them their part in the environment")]

#[macro_use]
extern crate harness;

mod breaking;
#[path = "../cutting/mod.rs"]
mod cutting;
#[path = "../etcd/mod.rs"]
mod etcd;
mod etcd_alone;
#[path = "../extent/mod.rs"]
mod extent;
mod kept;
#[path = "../postgres/mod.rs"]
mod postgres;
mod postgres_alone;
mod postgres_attacks;
mod postgres_logins;
#[path = "../programs/mod.rs"]
mod programs;
mod rig;
#[path = "../ssh/mod.rs"]
mod ssh;
mod storms;
#[path = "../supervised/mod.rs"]
mod supervised;
mod traced;

use conformance::promises;

/// One `#[test]` per promise and store.
macro_rules! keep {
    ($from:ident on $($store:ident),+: $promises:tt) => {
        $(keep! { @ $from $store $promises })+
    };
    (@ $from:ident $store:ident { $($promise:ident)+ }) => {
        mod $store {
            $(#[test]
            fn $promise() {
                if let Some(rig) = crate::rig::Rig::$store() {
                    crate::$from::$promise(&rig);
                }
            })+
        }
    };
}

mod every_store {
    conformance::with_every_promise! { keep promises on memory, directory, beside, sqlite, etcd, postgres, pooled, ssh: }
}

mod stores_that_know_what_a_commit_conflicts_with {
    keep! { promises on directory, beside, sqlite, etcd, postgres: {
        a_conflict_passes_on_the_record_as_it_is
    } }
}

mod stores_whose_leases_end_by_clocks_that_a_test_can_set {
    keep! { promises on memory, directory, beside, sqlite: {
        a_lease_ends_when_its_time_is_over
    } }
}

mod stores_that_processes_share {
    keep! { storms on directory, beside, sqlite, etcd, postgres, pooled, ssh: {
        steps_of_many_processes_on_one_record_are_all_kept
        tokens_are_never_issued_twice_even_with_removals
        processes_killed_in_mid_storm_leave_a_store_that_works
    } }
}

mod stores_that_others_change_meanwhile {
    keep! { breaking on memory, directory, beside, sqlite, etcd, postgres, pooled, ssh: {
        force_removes_no_lock_that_replaced_an_unreadable_record
        force_removes_an_unreadable_record_during_other_commands
        a_sweep_removes_no_page_that_replaced_an_orphaned_page
    } }
    mod files {
        keep! { breaking on directory, beside, sqlite: {
            an_error_about_a_record_bears_its_version
        } }
        mod entries {
            keep! { breaking on directory, beside: {
                a_sweep_passes_over_foreign_files
            } }
        }
    }
}

mod durable_stores {
    mod modes {
        keep! { kept on directory, beside: {
            a_record_has_the_mode_of_the_store_without_missing_bits
        } }
        keep! { kept on sqlite: {
            a_record_that_fewer_may_read_than_the_database_is_refused
        } }
    }
    mod calls {
        keep! { traced on directory, beside, sqlite: {
            a_private_record_is_never_open_to_others
            a_sync_that_fails_is_an_error_and_tears_nothing
        } }
        mod directories {
            keep! { traced on directory: {
                volatile_records_are_not_synced
                an_atomic_record_is_synced_before_its_pointer
                a_durable_record_is_synced_from_the_inside_outward
                all_levels_above_a_default_store_are_synced
            } }
            keep! { traced on beside: {
                a_durable_record_beside_files_is_synced_with_its_directory
            } }
        }
        mod databases {
            keep! { traced on sqlite: {
                a_commit_that_lasts_is_synced_and_no_other_commit_is
                a_commit_that_lasts_is_synced_with_the_removal_of_its_journal
            } }
        }
    }
}

fn why_not(test: &harness::Test) -> Option<&'static str> {
    (test.module.ends_with("::pooled") && extent::extent() == extent::Extent::Quick).then_some(extent::FOR_ALL)
}

fn main() -> std::process::ExitCode {
    harness::main_without(env!("CARGO_TARGET_TMPDIR"), why_not)
}
