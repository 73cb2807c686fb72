//! Directed plans of one situation: one fault recurs whatever the seed, or faults that would hide it are left out. Each
//! finds in tens of seeds what the general plans find in hundreds.

use crate::fault::edit::Edit;
use crate::fault::plan::{Fault, FaultAt, Plan};
use rackweave_config::policy::Policy;
use rackweave_core::Rng;
use rackweave_sim::LinkFaults;

/// Servers that end with writes half done, whose clients end too and never retry.
pub(super) fn half_crashes(seed: u64) -> Plan {
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

/// Few blocks, much loss and short timeouts, so that a mutation is often retried through another member.
pub(super) fn few_blocks(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed);
    let p = &mut plan.params;
    (p.own_blocks, p.shared_blocks, p.timeout_ms, p.depth, p.links.loss) = (24, 24, 20, 6, 0.05);
    plan
}

/// Servers that only clients can reach, and clients that get no new views.
pub(super) fn severed(seed: u64) -> Plan {
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

/// Racks without redundancy that run full and often lose power, with half of the unsynced changes (an erase may be kept
/// that followed a lost program): data lost by one device is on no other.
pub(super) fn single_copies(seed: u64) -> Plan {
    let mut seeds = (0..).map(|k| Plan::draw(seed * 100 + k));
    let mut plan = seeds.find(|p| p.params.full && !p.params.broken_end).expect("a fifth of the racks run full");
    plan.seed = seed;
    let p = &mut plan.params;
    // One vSSD gets the space of the three that shared a server.
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

/// Racks whose servers reach only clients and each other, and a client that reaches only those, while others write
/// through the rest of each set.
pub(super) fn severed_racks(seed: u64) -> Plan {
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

/// The rack with two copies of each set is cut off for longer than a lease; then the other one loses power.
pub(super) fn left_alone(seed: u64) -> Plan {
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

/// Whole sets lose power repeatedly while clients keep running.
pub(super) fn set_power_cuts(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed);
    let (servers, step) = (plan.params.servers, plan.params.span_ms * 1000 / 6);
    plan.faults.clear();
    for i in 0..6u32 {
        let fault = Fault::SetPowerCut { set: i % servers, down_ms: 20 };
        plan.faults.push(FaultAt { at_us: u64::from(i) * step, fault });
    }
    plan
}

/// A rack is stopped; meanwhile one drive is replaced and another damaged. After the start, the members with the good
/// copies are reachable only part of the time.
pub(super) fn stand_still(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed);
    let mut rng = Rng::stream(seed, 0x7374_696c);
    let servers = u64::from(plan.params.servers);
    plan.params.broken_end = false;
    plan.params.program_failures = 0.0;
    let span_us = plan.params.span_ms * 1000;
    // Without faults that lose the only good copy of a block.
    plan.faults
        .retain(|f| !matches!(f.fault, Fault::Corrupt { .. } | Fault::BreakDevice { .. }) && f.at_us < span_us / 3);
    let damaged = rng.below(servers) as u32;
    let replaced = (damaged + 1 + rng.below(servers - 1) as u32) % servers as u32;
    let (permille, down_ms) = (*rng.pick(&[50, 300, 1000]), rng.between(5, 50));
    for attempt in 0..8 {
        let at_us = span_us / 2 + attempt * 40_000;
        plan.faults.push(FaultAt { at_us, fault: Fault::StandStill { damaged, replaced, permille, down_ms } });
    }
    let slow = (0..servers as u32).find(|s| ![damaged, replaced].contains(s)).unwrap_or(0);
    for i in 0..20 {
        let at_us = span_us / 2 + i * 60_000;
        plan.faults.push(FaultAt { at_us, fault: Fault::Isolate { node: 2 + slow, ms: 50 } });
    }
    plan.faults.sort_by_key(|f| f.at_us);
    plan
}

/// Two racks with duplicated and reordered messages.
pub(super) fn noisy_racks(seed: u64) -> Plan {
    let mut plan = Plan::draw_two_racks(seed);
    let links = &mut plan.params.links;
    (links.duplicate, links.reorder, links.reorder_extra_ns) = (0.3, 0.5, 20_000_000);
    plan
}

/// Clients choose the replica that they read from, including shadows, which a load-balancing switch would avoid.
pub(super) fn chosen_replica(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed);
    plan.params.policy = Policy::Rackblox;
    plan
}

/// The rack loses power, and all drives of each set but one are lost with it, once every copy is whole.
pub(super) fn last_copies(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed);
    let mut rng = Rng::stream(seed, 0x6c61_7374);
    lose_copies(&mut plan, &mut rng);
    plan.faults.sort_by_key(|f| f.at_us);
    plan
}

fn lose_copies(plan: &mut Plan, rng: &mut Rng) {
    let p = &mut plan.params;
    (p.broken_end, p.program_failures) = (false, 0.0);
    let (servers, step) = (p.servers, p.span_ms * 1000 / 12);
    // Without faults that lose the only good copy of a block.
    plan.faults.retain(|f| !matches!(f.fault, Fault::Corrupt { .. } | Fault::BreakDevice { .. }));
    // Most come while copies are not whole, and have no effect.
    for i in 3..12 {
        let (server, down_ms) = (rng.below(u64::from(servers)) as u32, rng.between(5, 50));
        plan.faults.push(FaultAt { at_us: i * step, fault: Fault::LastCopies { server, down_ms } });
    }
}

/// Whole sets lose power while earlier messages arrive late and duplicated, and answers of the metadata service take
/// longer than a lease.
pub(super) fn late_messages(seed: u64) -> Plan {
    let mut plan = set_power_cuts(seed);
    let mut rng = Rng::stream(seed, 0x6c61_7465);
    delay_messages(&mut plan, &mut rng);
    plan.faults.sort_by_key(|f| f.at_us);
    plan
}

fn delay_messages(plan: &mut Plan, rng: &mut Rng) {
    let p = &plan.params;
    let (servers, span_us) = (u64::from(p.servers), p.span_ms * 1000);
    let links = LinkFaults { duplicate: 0.2, duplicate_extra_ns: rng.between(50, 3_000) * 1_000_000, ..p.links };
    plan.faults.push(FaultAt { at_us: 0, fault: Fault::Noise { links, ms: p.span_ms } });
    for _ in 0..rng.between(2, 5) {
        let server = 2 + rng.below(servers) as u32;
        let (from, to) = if rng.chance(0.7) { (0, server) } else { (server, 0) };
        let (extra_ms, ms) = (rng.between(p.lease_ms / 4, 3 * p.lease_ms), rng.between(100, 1_000));
        plan.faults.push(FaultAt { at_us: rng.below(span_us), fault: Fault::Late { from, to, extra_ms, ms } });
    }
}

/// Volumes of up to 8 TiB that are used in a few places, with trims from one to another.
pub(super) fn sparse(seed: u64) -> Plan {
    let mut plan = not_full(seed);
    plan.params.sparse_gib = *Rng::stream(seed, 0x7370_6172).pick(&[1, 100, 2_048, 4_096, 8_192]);
    plan
}

/// A plan whose volumes do not fill its sets.
fn not_full(seed: u64) -> Plan {
    let mut plans = (0..).map(|k| Plan::draw(seed.wrapping_add(k * 1_000_003)));
    let mut plan = plans.find(|p| !p.params.full).expect("most are not");
    plan.seed = seed;
    plan
}

/// Volumes are created, grown and deleted under all other faults.
pub(super) fn passing_volumes(seed: u64) -> Plan {
    let mut plan = not_full(seed);
    let mut rng = Rng::stream(seed, 0x7061_7373);
    pass_volumes(&mut plan, &mut rng);
    plan.faults.sort_by_key(|f| f.at_us);
    plan
}

fn pass_volumes(plan: &mut Plan, rng: &mut Rng) {
    plan.params.passing_volumes = true;
    let (clients, span_us) = (plan.params.clients, plan.params.span_ms * 1000);
    for client in 0..clients {
        let volumes = rng.between(2, 5);
        let step = span_us / volumes;
        for i in 0..volumes {
            let at = |part: u64, rng: &mut Rng| i * step + step * part / 4 + rng.below(step / 8);
            plan.faults.push(FaultAt { at_us: at(0, rng), fault: Fault::Create { client } });
            plan.faults.push(FaultAt { at_us: at(1, rng), fault: Fault::Grow { client } });
            let force = rng.chance(0.8);
            plan.faults.push(FaultAt { at_us: at(3, rng), fault: Fault::Delete { client, force } });
        }
    }
}

/// Parts of few blocks are written while the same blocks are trimmed, through whichever member answers.
pub(super) fn ragged(seed: u64) -> Plan {
    let mut plan = not_full(seed);
    let p = &mut plan.params;
    (p.own_blocks, p.shared_blocks, p.timeout_ms, p.depth, p.links.loss) = (8, 8, 20, 6, 0.05);
    p.ragged = true;
    plan
}

/// Dies trade places all the time: in two racks, under moves of vSSDs or neither, with power cuts of single servers and the plan's
/// other faults.
pub(super) fn swaps(seed: u64) -> Plan {
    let mut plan = match seed % 4 {
        0 => Plan::draw_two_racks(seed),
        2 => Plan::draw_moving(seed),
        _ => not_full(seed),
    };
    let mut rng = Rng::stream(seed, 0x7377_6170);
    let p = &mut plan.params;
    // Channel groups do not swap.
    p.grouped = false;
    p.swap_kib = *rng.pick(&[64, 512, 2_048]);
    (p.swap_slice_ms, p.swap_pause_ms) = (*rng.pick(&[5, 20, 100]), *rng.pick(&[1, 10, 50]));
    let (servers, step) = (u64::from(p.servers), p.span_ms * 1000 / 8);
    for i in 0..8 {
        let (server, down_ms) = (rng.below(servers) as u32, rng.between(2, 40));
        plan.faults.push(FaultAt { at_us: i * step + rng.below(step), fault: Fault::PowerCut { server, down_ms } });
    }
    let down_ms = rng.between(2, 40);
    plan.faults.push(FaultAt { at_us: rng.below(8 * step), fault: Fault::SwitchRestart { down_ms } });
    plan.faults.sort_by_key(|f| f.at_us);
    plan
}

/// The rack's files are edited between starts: keys, drives, the store.
pub(super) fn edits(seed: u64) -> Plan {
    let mut plan = not_full(seed);
    let mut rng = Rng::stream(seed, 0x6564_6974);
    if rng.chance(0.3) {
        plan.params.grouped = true;
        // A small drive has too few dies.
        plan.params.grouped = rackweave_rack::build::server(&plan.rack(), 0, 1).is_ok();
    }
    edit_between_starts(&mut plan, &mut rng);
    plan.faults.sort_by_key(|f| f.at_us);
    plan
}

fn edit_between_starts(plan: &mut Plan, rng: &mut Rng) {
    let p = &mut plan.params;
    // The first start after an edit of the layout would not know blocks that failed.
    p.program_failures = 0.0;
    let step = p.span_ms * 1000 / 10;
    // With `ssd.verify = false`, damaged contents are returned.
    plan.faults.retain(|f| !matches!(f.fault, Fault::Corrupt { .. }));
    for i in 0..10 {
        let (edit, servers_only) = Edit::draw(&plan.params, rng);
        let (down_ms, tried_ms) = (rng.between(1, 30), rng.between(100, 400));
        let fault = Fault::Edit { edit, servers_only, down_ms, tried_ms };
        plan.faults.push(FaultAt { at_us: i * step, fault });
    }
}

/// Everything that the other kinds with one rack have individually.
pub(super) fn wide(seed: u64) -> Plan {
    let mut plan = not_full(seed);
    let mut rng = Rng::stream(seed, 0x7769_6465);
    plan.params.clocks_restart = rng.chance(0.5);
    plan.params.ragged = rng.chance(0.4);
    if rng.chance(0.3) {
        plan.params.sparse_gib = *rng.pick(&[1, 100, 2_048, 8_192]);
    }
    if rng.chance(0.5) {
        pass_volumes(&mut plan, &mut rng);
    }
    if rng.chance(0.5) {
        delay_messages(&mut plan, &mut rng);
    }
    if rng.chance(0.4) {
        lose_copies(&mut plan, &mut rng);
    }
    if Rng::stream(seed, 0x6564_6977).chance(0.3) {
        edit_between_starts(&mut plan, &mut rng);
    }
    plan.faults.sort_by_key(|f| f.at_us);
    plan
}
