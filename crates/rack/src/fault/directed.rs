//! Plans of one situation: whatever the seed draws, one fault comes again and again, or what would hide it is left out.
//! Each finds in tens of seeds what the general plans find in hundreds.

use crate::fault::plan::{Fault, FaultAt, Plan};
use crate::policy::Policy;
use rackweave_core::Rng;

/// Servers that end with writes half done whose clients end too, and so never ask again.
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

/// So few blocks, such loss and so little patience that what one member began is often tried through another.
pub(super) fn few_blocks(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed);
    let p = &mut plan.params;
    (p.own_blocks, p.shared_blocks, p.timeout_ms, p.depth, p.links.loss) = (24, 24, 20, 6, 0.05);
    plan
}

/// Servers that only clients can reach, and clients that get no news of the view.
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

/// Racks without redundancy that run full, and lose power often, with half of what is not synced (an erase may be kept that
/// came after a lost program): what one device loses, nobody else has.
pub(super) fn single_copies(seed: u64) -> Plan {
    let mut seeds = (0..).map(|k| Plan::draw(seed * 100 + k));
    let mut plan = seeds.find(|p| p.params.full && !p.params.broken_end).expect("a fifth of the racks run full");
    plan.seed = seed;
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

/// The rack with two copies of each set is cut off for longer than a lease; then the other one loses its power.
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

/// Sets lose their power whole again and again, while clients live on.
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

/// A rack stands still, one drive is replaced and another damaged meanwhile, and who has the good copies is heard of for a part of the
/// time only when it begins again.
pub(super) fn stand_still(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed);
    let mut rng = Rng::stream(seed, 0x7374_696c);
    let servers = u64::from(plan.params.servers);
    plan.params.broken_end = false;
    plan.params.program_failures = 0.0;
    let span_us = plan.params.span_ms * 1000;
    // What loses the only good copy of a block is left out.
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

/// Two racks whose messages come twice and out of order.
pub(super) fn noisy_racks(seed: u64) -> Plan {
    let mut plan = Plan::draw_two_racks(seed);
    let links = &mut plan.params.links;
    (links.duplicate, links.reorder, links.reorder_extra_ns) = (0.3, 0.5, 20_000_000);
    plan
}

/// Clients choose the replica that reads, shadows too; a switch that balances reads would spare those.
pub(super) fn chosen_replica(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed);
    plan.params.policy = Policy::Rackblox;
    plan
}
