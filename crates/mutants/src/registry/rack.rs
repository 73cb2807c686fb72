//! Mutants of what a rack has one of: the switch, the metadata service, the clocks.

use super::plans::*;
use super::{Mutant, PlanKind, m};

const META: &[&str] = &["meta"];
const SWITCH: &[&str] = &["switch"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("rack.clock.drift-beyond", "2", LEASES, &[], "Clocks drift beyond what leases allow for."),
    m("meta.lease.remove-early", "2", &[PlanKind::OneRack, PlanKind::Severed, PlanKind::SeveredRacks], META, "Removes a member when half its lease is over."),
    m("meta.holders.recover-alone", "6", &[PlanKind::TwoRacks, PlanKind::LeftAlone], META, "Recovers a set from the member it was left to, though others hold what was answered."),
    m("meta.move.leave-early", "24", MOVES, &["meta", "rack"], "A vSSD that moves leaves its set before the new one has everything."),
    m("meta.move.reuse-id", "5", MOVES, META, "A new vSSD gets the id of one that left."),
    m("switch.gc.older-sequence", "16", ONE, SWITCH, "Applies a gc_op older than the last."),
    m("switch.far.older-sequence", "16", &[PlanKind::TwoRacks, PlanKind::NoisyRacks], SWITCH, "Believes the other rack's switch though something newer is known."),
];
