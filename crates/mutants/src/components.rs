//! A mutant under the searches of single crates: tests that draw all that happens from their seeds
//! ([`rackweave_core::rng::seeds`]), and check it against a model.

use crate::registry::Mutant;
use crate::search::Found;
use crate::units::{self, Binary, Selection, TestEnd};

/// As many seeds as requested.
const ALL: u64 = u64::MAX;
/// Each seed takes a second or more.
const HEAVY: u64 = 20;
/// It visits every state, for any seed.
const ONCE: u64 = 1;

/// By package, as mutants name it: the tests, and how many seeds each runs at most.
#[rustfmt::skip]
pub const SEARCHES: &[(&str, &[(&str, u64)])] = &[
    ("block", &[
        ("model::is_a_flat_array_whatever_is_lost_doubled_or_refused", ALL),
        ("model::is_a_flat_array_whatever_the_stripes", ALL),
        ("recovery::random_writes_survive_random_failures", ALL),
        ("attach::a_volume_that_is_attached_again_and_again_is_one_array", ALL),
    ]),
    ("cloud", &[
        ("search::blocks_stay_linearizable_and_durable_through_all_faults", ALL),
        ("search::power_cuts_of_all_servers_lose_nothing_that_was_answered", ALL),
        ("search::clients_attach_and_crash_in_the_middle_of_everything", ALL),
        ("epochs::each_epoch_begins_with_what_the_last_one_answered", ALL),
    ]),
    ("device", &[
        ("power_cut_tests::power_cuts_at_every_step_lose_nothing_that_was_synced", ALL),
        ("power_cut_tests::what_found_no_room_is_tried_again_and_nothing_is_lost", ALL),
        ("runs_tests::runs_of_a_drive_find_what_was_synced_and_believe_nothing_else", ALL),
    ]),
    ("flash", &[
        ("search::what_was_damaged_or_exchanged_is_never_believed", ALL),
        ("cuts::power_cuts_lose_nothing_that_was_flushed", ALL),
        ("power::power_cuts_at_any_instant_lose_nothing_synced", HEAVY),
        ("power::power_cuts_while_emptied_blocks_share_syncs_lose_nothing_synced", HEAVY),
        ("power::damaged_checkpoints_are_not_believed", ALL),
        ("power::spare_areas_alone_are_enough", HEAVY),
        ("power::power_cuts_lose_nothing_synced_on_dies_of_ones_own", HEAVY),
        ("power::borrowed_blocks_stay_with_whom_they_are_through_power_cuts_and_go_home", HEAVY),
    ]),
    ("kv", &[
        ("cuts::power_cuts_lose_nothing_and_bring_nothing_back", ALL),
        ("cuts::batches_as_long_as_they_may_be_survive_power_cuts", ALL),
    ]),
    ("kv-replica", &[
        ("search::keys_stay_linearizable_and_durable_through_all_faults", ALL),
        ("search::power_cuts_of_all_nodes_lose_nothing_that_was_answered", ALL),
        ("search::nodes_join_and_leave_while_others_fail", ALL),
    ]),
    ("link", &[
        ("streams::tests::frames_survive_writes_and_reads_of_any_length", ALL),
        ("streams::tests::a_peer_whose_stream_is_up_has_a_connection", ALL),
        ("link::tests::each_answer_is_heard_of_once_or_reported_as_unsent", ALL),
    ]),
    ("meta", &[
        ("search::a_set_forgets_nothing_that_it_answered", ALL),
        ("search_volumes::volumes_and_their_writers_are_kept", ALL),
        ("search_room::room_is_what_the_members_report", ALL),
        ("search_units::volumes_get_units_and_give_them_back", ALL),
        ("search_snapshots::disks_snapshots_and_clones_show_what_was_written_to_them", ALL),
    ]),
    ("net", &[
        ("incarnation::tests::no_key_and_nonce_repeat_however_nodes_are_started_again", HEAVY),
    ]),
    ("replica", &[
        ("search::writers_of_the_same_blocks_and_copies_that_cannot_be_read", ALL),
        ("search::whole_sets_crash_again_and_again_and_nothing_flushed_is_lost", ALL),
        ("search::reads_that_heal_meet_writes", ALL),
        ("members::what_is_answered_as_durable_is_durable_on_every_member", ALL),
        ("evidence::what_was_flushed_is_read_or_its_loss_is_reported", ALL),
        ("handover::earlier_writers_change_nothing_and_a_deleted_volume_is_gone", ALL),
        ("faults::crashes_and_epoch_changes", ALL),
        ("faults::crashes_while_writers_conflict", ALL),
        ("faults::lossy_network_alone", ALL),
        ("faults::writers_in_conflict", ALL),
        ("faults::two_copies", ALL),
        ("faults::four_copies", ALL),
        ("faults::half_done_writes_of_crashed_coordinators_over_a_lossy_network", ALL),
        ("faults::a_fence_ends_the_old_writer", ALL),
        ("faults::after_the_loss_of_all_the_newest_counts", ALL),
    ]),
    ("runtime", &[
        ("budget::tests::connections_get_what_there_is_in_turn_and_no_more_than_the_budget", ALL),
        ("engine::tests::a_full_host_delays_commands_and_changes_neither_their_order_nor_their_results", ALL),
        ("store::file::tests::what_a_start_reads_survives_a_power_cut_whatever_failed_before", ALL),
        ("store::file::tests::answered_writes_survive_power_cuts_and_syncs_that_fail", ALL),
    ]),
    ("search", &[
        ("own::own_sets_are_sound_through_crashes_and_come_back_erased", HEAVY),
        ("keys::keys_stay_linearizable_and_durable_on_a_rack_through_all_faults", HEAVY),
        ("cloud::cloud_disks_stay_linearizable_on_a_rack_through_faults", HEAVY),
    ]),
    ("server", &[
        ("store::cache_and_flash_together_forget_nothing", ALL),
        ("control::late_and_repeated_messages_change_nothing", ALL),
    ]),
    ("switch", &[
        ("search::tables_and_answers_are_a_models", ALL),
        ("random::tables_always_agree", ALL),
        ("model::all_states_of_two_and_three_replicas_with_faults", ONCE),
        ("model::all_states_of_four_replicas", ONCE),
        ("model::asking_never_leaves_a_set_without_an_idle_replica", ONCE),
    ]),
    ("transport", &[
        ("restarts::nothing_is_delivered_twice_or_from_an_earlier_incarnation_and_nothing_is_lost", ALL),
        ("twins::two_processes_of_a_node_do_not_outbid_each_other_and_the_younger_is_heard", ALL),
        ("switched::a_request_goes_whole_to_the_first_server_that_acknowledges_it", ALL),
        ("paths::every_path_carries_what_it_can_and_little_twice", ALL),
        ("delivery::nothing_is_lost_on_any_lossy_network", ALL),
        ("delivery::with_deadlines_every_message_is_delivered_or_given_up", ALL),
        ("memory::no_node_holds_more_than_its_budgets_and_all_that_was_taken_arrives", HEAVY),
    ]),
];

/// Numbers of seeds that are tried one after another.
const ROUNDS: [u64; 3] = [10, 100, 300];

/// The first search of the mutant's crates, and fewest seeds, that fail with it and pass without.
pub fn run(m: &Mutant, binaries: &[Binary], first_seed: u64, seeds: u64) -> Option<Found> {
    let mut from = 0;
    for to in ROUNDS.map(|n| n.min(seeds)) {
        let found = searches(m, binaries).into_iter().find_map(|(b, test, most)| {
            let to = to.min(most);
            let count = to.checked_sub(from).filter(|n| *n > 0)?;
            let some = Selection::Seeds { test, first: first_seed + from, count };
            let (_, end) = units::failing(b, Some(m.name), &some)?;
            let sound = units::failing(b, None, &some).is_none();
            let said = if end == TestEnd::Failed { String::new() } else { format!("{end:?}") };
            let (kind, check) = (format!("{}: {test}", b.name()), "model".into());
            sound.then_some(Found { kind, seed: first_seed + from, seeds: to, check, said })
        });
        if found.is_some() {
            return found;
        }
        from = to;
    }
    None
}

/// Each search of the mutant's crates, with the program that it is in.
fn searches<'a>(m: &Mutant, binaries: &'a [Binary]) -> Vec<(&'a Binary, &'static str, u64)> {
    let mut all = Vec::new();
    for b in binaries.iter().filter(|b| m.units.contains(&b.name())) {
        let tests = SEARCHES.iter().filter(|(package, _)| *package == b.name()).flat_map(|(_, tests)| *tests);
        all.extend(tests.filter(|(t, _)| b.has(t)).map(|&(t, most)| (b, t, most)));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::SEARCHES;

    fn sources(dir: &Path, out: &mut String) {
        for e in std::fs::read_dir(dir).into_iter().flatten() {
            let path: PathBuf = e.expect("readable").path();
            if path.is_dir() {
                sources(&path, out);
            } else if path.extension().is_some_and(|x| x == "rs") {
                *out += &std::fs::read_to_string(&path).expect("readable");
            }
        }
    }

    /// One that was renamed would be left out without a word.
    #[test]
    fn every_listed_search_is_in_its_crate() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("lies among the crates");
        for (package, tests) in SEARCHES {
            let mut text = String::new();
            ["src", "tests"].iter().for_each(|part| sources(&crates.join(package).join(part), &mut text));
            for (test, _) in *tests {
                let name = test.rsplit("::").next().expect("a part");
                assert!(text.contains(&format!("fn {name}(")), "{package} has no {test}");
            }
        }
    }
}
