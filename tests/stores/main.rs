//! The promises of every store (`crates/store/src/lib.rs`), as one suite that runs on every store.

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
mod promises;
mod rig;
#[path = "../ssh/mod.rs"]
mod ssh;
mod storms;
#[path = "../supervised/mod.rs"]
mod supervised;
mod traced;

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
    keep! { promises on memory, directory, beside, sqlite, etcd, postgres, pooled, ssh: {
        a_record_that_was_never_written_is_absent
        a_written_record_is_read_back
        the_first_swap_expects_none
        a_stale_version_conflicts_and_changes_nothing
        a_version_that_never_was_conflicts
        an_absent_record_cannot_be_removed_as_if_it_were_there
        an_absence_that_another_opener_ended_conflicts
        a_removed_record_is_absent_and_its_next_number_is_greater_than_all_before
        numbers_grow_and_no_two_versions_are_equal
        names_of_every_kind_are_records_of_their_own
        bodies_of_every_size_are_kept_exactly
        a_scan_sees_every_record_once
        a_scan_stops_on_request
        a_scan_may_remove_the_records_that_it_sees
        a_scan_sees_a_lasting_record_once_while_others_come_and_go
        opening_and_asking_create_nothing
        a_second_opener_sees_the_same_records
        many_acquisitions_leave_no_leftovers
        a_change_that_needs_the_end_of_a_lease_conflicts_while_the_lease_lasts
        the_place_of_a_record_shows_its_name_escaped
        a_commit_stands_before_it_is_finished
        lines_of_history_come_back_in_order
        the_time_of_a_store_is_that_of_the_host_that_keeps_it
    } }
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
    keep! { kept on memory, directory, beside, sqlite, etcd, postgres, pooled, ssh: {
        swaps_of_every_durability_do_the_same
    } }
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
