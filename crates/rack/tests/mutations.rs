//! Rules broken on purpose: a search that does not notice proves nothing.

use rackweave_rack::fault::{Fault, FaultAt, Plan, SimOptions, run_plan, shrink};
use rackweave_rack::policy::Policy;
use rackweave_rack::sim::RackFaults;
use rackweave_replica::Faults;

/// Some seed within this many must catch the broken rule.
const SEEDS_MAX: u64 = 60;

#[track_caller]
fn is_caught(name: &str, faults: Faults) {
    is_caught_by(name, faults, Plan::draw);
}

#[track_caller]
fn is_caught_by(name: &str, faults: Faults, plan: impl Fn(u64) -> Plan) {
    is_caught_with(name, SimOptions { faults, ..SimOptions::default() }, plan);
}

/// A rule that another node than a replica breaks.
#[track_caller]
fn rack_fault_is_caught(name: &str, rack_faults: RackFaults, plan: impl Fn(u64) -> Plan) {
    is_caught_with(name, SimOptions { rack_faults, ..SimOptions::default() }, plan);
}

/// Broken, some plan fails that passes otherwise.
#[track_caller]
fn is_caught_with(name: &str, options: SimOptions, plan: impl Fn(u64) -> Plan) {
    for seed in 0..SEEDS_MAX {
        let plan = plan(seed);
        if !run_plan(&plan, &options).passed() && run_plan(&plan, &SimOptions::default()).passed() {
            return;
        }
    }
    panic!("{name}: not caught within {SEEDS_MAX} seeds");
}

/// Servers that end with writes half done whose clients end too, and so never ask again.
fn half_crashes(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed);
    let p = &mut plan.params;
    (p.depth, p.timeout_ms) = (6, 200);
    let (servers, clients, step) = (p.servers, p.clients, p.span_ms * 1000 / 8);
    plan.faults.clear();
    for i in 0..8u32 {
        let at_us = u64::from(i) * step;
        let (server, peer) = (i % servers, (i + 1) % servers);
        plan.faults.push(FaultAt { at_us, fault: Fault::HalfCrash { server, peer, cut_ms: 25, down_ms: 200 } });
        let fault = Fault::ClientRestart { client: i % clients, down_ms: 5 };
        plan.faults.push(FaultAt { at_us: at_us + 24_000, fault });
    }
    plan
}

/// So few blocks, such loss and so little patience that what one member began is often tried through another.
fn few_blocks(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed);
    let p = &mut plan.params;
    (p.own_blocks, p.shared_blocks, p.timeout_ms, p.depth, p.links.loss) = (24, 24, 20, 6, 0.05);
    plan
}

/// Servers that only clients can reach, and clients whom nobody tells.
fn severed(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed);
    let p = &plan.params;
    let (servers, clients, step) = (p.servers, p.clients, p.span_ms * 1000 / 5);
    plan.faults.clear();
    for i in 0..5u32 {
        let at_us = u64::from(i) * step;
        plan.faults.push(FaultAt { at_us, fault: Fault::Sever { server: i % servers, ms: 450 } });
        for c in 0..clients {
            let fault = Fault::Cut { from: 0, to: 2 + servers + c, ms: 450 };
            plan.faults.push(FaultAt { at_us, fault });
        }
    }
    plan
}

/// Racks without redundancy that run full, and lose power often, with half of what is not synced (an erase may be kept that
/// came after a lost program): what one device loses, nobody else has.
fn single_copies(seed: u64) -> Plan {
    let mut seeds = (0..).map(|k| Plan::draw(seed * 100 + k));
    let mut plan = seeds.find(|p| p.params.full && !p.params.broken_end).expect("a fifth of the racks run full");
    let p = &mut plan.params;
    // What three vSSDs of a server shared, one has.
    (p.own_blocks, p.shared_blocks) = (p.own_blocks * p.copies, p.shared_blocks * p.copies);
    p.copies = 1;
    (p.cut.drop, p.cut.tear) = (0.5, 0.0);
    let (servers, step) = (p.servers, p.span_ms * 1000 / 24);
    plan.faults.retain(|f| !f.fault.is_fault());
    for i in 0..24u32 {
        let at_us = u64::from(i) * step + step / 2;
        plan.faults.push(FaultAt { at_us, fault: Fault::PowerCut { server: i % servers, down_ms: 20 } });
    }
    plan.faults.sort_by_key(|f| f.at_us);
    plan
}

/// Racks whose servers reach only clients and each other, and a client that reaches only those, while others write by the
/// rest of each set.
fn severed_racks(seed: u64) -> Plan {
    let mut plan = Plan::draw_two_racks(seed);
    let p = &mut plan.params;
    (p.timeout_ms, p.far_copies) = (20, 1);
    let (servers, clients, step) = (p.servers, p.clients, p.span_ms * 1000 / 6);
    let (client, switch) = (|c: u32| 3 + servers + c, |rack: u32| if rack == 0 { 1 } else { 2 + servers });
    plan.faults.clear();
    for i in 0..6u32 {
        let (at_us, rack, ms) = (u64::from(i) * step, i % 2, 450);
        plan.faults.push(FaultAt { at_us, fault: Fault::SeverRack { rack, ms } });
        plan.faults.push(FaultAt { at_us, fault: Fault::Cut { from: client(1), to: switch(1 - rack), ms } });
        for c in 0..clients {
            plan.faults.push(FaultAt { at_us, fault: Fault::Cut { from: 0, to: client(c), ms } });
        }
    }
    plan
}

#[test]
fn a_rack_s_copies_that_are_done_without_before_their_leases_end_are_caught() {
    rack_fault_is_caught("remove_early", RackFaults { remove_early: true, ..RackFaults::default() }, severed_racks);
}

/// The rack with two copies of each set is cut off for longer than a lease; then the other one loses its power.
fn left_alone(seed: u64) -> Plan {
    let mut plan = Plan::draw_two_racks(seed);
    let p = &mut plan.params;
    (p.far_copies, p.cut.drop) = (1, 1.0);
    let step = p.span_ms * 1000 / 4;
    plan.faults.clear();
    for i in 0..4u32 {
        let (at_us, rack) = (u64::from(i) * step, i % 2);
        plan.faults.push(FaultAt { at_us, fault: Fault::SeverRack { rack, ms: 400 } });
        let fault = Fault::OneRackPowerCut { rack: 1 - rack, down_ms: 20 };
        plan.faults.push(FaultAt { at_us: at_us + 300_000, fault });
    }
    plan
}

#[test]
fn a_set_recovered_from_the_one_member_it_was_left_to_is_caught() {
    rack_fault_is_caught("recover_alone", RackFaults { recover_alone: true, ..RackFaults::default() }, left_alone);
}

#[test]
fn believing_old_news_of_the_other_rack_is_caught() {
    let faults = RackFaults { ignore_far_sequence: true, ..RackFaults::default() };
    let noisy = |seed| {
        let mut plan = Plan::draw_two_racks(seed);
        let links = &mut plan.params.links;
        (links.duplicate, links.reorder, links.reorder_extra_ns) = (0.3, 0.5, 20_000_000);
        plan
    };
    rack_fault_is_caught("ignore_far_sequence", faults, noisy);
}

#[test]
fn serving_without_a_lease_is_caught() {
    is_caught_by("skip_lease", Faults { skip_lease: true, ..Faults::default() }, severed);
}

#[test]
fn an_unvalidated_write_that_is_not_replayed_is_caught() {
    is_caught_by("skip_replay", Faults { skip_replay: true, ..Faults::default() }, half_crashes);
}

#[test]
fn executing_a_mutation_twice_is_caught() {
    is_caught("drop_dedup", Faults { drop_dedup: true, ..Faults::default() });
}

#[test]
fn serving_while_a_shadow_is_caught() {
    // A switch that chooses the replica of every read spares its shadows.
    let plan = |seed| {
        let mut plan = Plan::draw(seed);
        plan.params.policy = Policy::Rackblox;
        plan
    };
    is_caught_by("serve_shadow", Faults { serve_shadow: true, ..Faults::default() }, plan);
}

#[test]
fn a_writer_that_outlives_its_fence_is_caught() {
    is_caught("ignore_fence", Faults { ignore_fence: true, ..Faults::default() });
}

#[test]
fn a_lost_tombstone_is_caught() {
    is_caught("lose_tombstone", Faults { lose_tombstone: true, ..Faults::default() });
}

#[test]
fn a_set_that_is_not_compared_after_a_crash_is_caught() {
    // Each cut of a whole set may leave its copies unlike.
    is_caught_by("skip_recovery", Faults { skip_recovery: true, ..Faults::default() }, set_power_cuts);
}

#[test]
fn a_partial_write_merged_onto_an_unresolved_block_is_caught() {
    is_caught_by("merge_blindly", Faults { merge_blindly: true, ..Faults::default() }, few_blocks);
}

#[test]
fn a_flush_answered_before_the_sync_is_caught() {
    is_caught("flush_early", Faults { flush_early: true, ..Faults::default() });
}

/// Sets lose their power whole again and again, while clients live on.
fn set_power_cuts(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed);
    let (servers, step) = (plan.params.servers, plan.params.span_ms * 1000 / 6);
    plan.faults.clear();
    for i in 0..6u32 {
        let fault = Fault::SetPowerCut { set: i % servers, down_ms: 20 };
        plan.faults.push(FaultAt { at_us: u64::from(i) * step, fault });
    }
    plan
}

#[test]
fn a_recovery_that_clients_are_not_told_of_is_caught() {
    is_caught_by("hide_recovery", Faults { hide_recovery: true, ..Faults::default() }, set_power_cuts);
}

#[test]
fn writes_begun_without_credit_are_caught() {
    is_caught("forget_credit", Faults { forget_credit: true, ..Faults::default() });
}

#[test]
fn a_write_that_only_its_coordinator_has_is_caught() {
    is_caught("acknowledge_alone", Faults { acknowledge_alone: true, ..Faults::default() });
}

#[test]
fn a_victim_erased_before_what_was_moved_is_durable_is_caught() {
    rack_fault_is_caught("erase_early", RackFaults { erase_early: true, ..RackFaults::default() }, single_copies);
}

#[test]
fn a_switch_that_obeys_older_operations_is_caught() {
    rack_fault_is_caught("ignore_sequence", RackFaults { ignore_sequence: true, ..RackFaults::default() }, Plan::draw);
}

#[test]
fn a_collection_that_the_switch_is_told_of_once_is_caught() {
    rack_fault_is_caught("tell_once", RackFaults { tell_once: true, ..RackFaults::default() }, Plan::draw);
}

#[test]
fn a_member_removed_before_its_lease_ended_is_caught() {
    rack_fault_is_caught("remove_early", RackFaults { remove_early: true, ..RackFaults::default() }, severed);
}

#[test]
fn clocks_that_drift_beyond_what_leases_allow_for_are_caught() {
    rack_fault_is_caught("drift_beyond", RackFaults { drift_beyond: true, ..RackFaults::default() }, severed);
}

#[test]
fn a_failing_plan_shrinks_to_the_faults_that_matter() {
    let options = SimOptions { faults: Faults { ignore_fence: true, ..Faults::default() }, ..SimOptions::default() };
    let failing = (0..SEEDS_MAX).map(Plan::draw).find(|p| !run_plan(p, &options).passed()).expect("caught above");
    let small = shrink(&failing, &options).expect("it fails");
    assert!(small.faults.len() < failing.faults.len());
    assert!(!run_plan(&small, &options).passed());
    assert!(small.smaller().iter().all(|p| run_plan(p, &options).passed()), "nothing more can be left out");
    let steal = |f: &FaultAt| matches!(f.fault, Fault::Steal { .. });
    assert!(small.faults.iter().any(steal), "no fence is ignored where none is set: {:?}", small.faults);
}

#[test]
fn an_id_that_is_used_again_is_caught() {
    let broken = RackFaults { reuse_ids: true, ..RackFaults::default() };
    rack_fault_is_caught("reuse_ids", broken, Plan::draw_moving);
}
