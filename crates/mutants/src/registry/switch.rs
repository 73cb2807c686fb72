//! Mutants of the switch: its tables, collection, the other rack.

use rackweave_search::fault::PlanKind::{NoisyRacks, TwoRacks};

use super::plans::*;
use super::{Mutant, m};

const UNITS: &[&str] = &["switch"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("switch.gc.older-sequence", "16", ONE, UNITS, "Applies a gc_op older than the last."),
    m("switch.far.older-sequence", "16", &[TwoRacks, NoisyRacks], UNITS, "Believes the other rack's switch though something newer is known."),
    m("switch.gc.soft-always", "15", ONE, UNITS, "A soft request is accepted whoever collects."),
    m("switch.far.swap-unsaid", "35", SWAPS, UNITS, "The other rack's switch does not hear that a vSSD swaps."),
    m("switch.far.swap-unasked", "35", SWAPS, UNITS, "The second rack's switch accepts swaps without the first one's."),
    m("switch.far.swaps-together", "35", SWAPS, UNITS, "The first rack's switch accepts the second's swaps whoever swaps."),
    m("switch.far.named-alone", "35", &[], UNITS, "A vSSD may swap beside one whose row alone names it.").tested(),
    m("switch.start.far-swaps", "35", &[], UNITS, "After a start the first rack's switch takes far vSSDs of unknown state for still.").tested(),
    m("switch.gc.swaps-together", "35", SWAPS, UNITS, "Two drives of a set swap at a time."),
    m("switch.gc.equal-anew", "16", ONE, UNITS, "A repeated gc_op is judged anew."),
    m("switch.gc.foreign", "16", RACKS, UNITS, "Obeys a gc_op of a server that does not have the vSSD."),
    m("switch.gc.older-incarnation", "16", ONE, UNITS, "Applies a gc_op of an earlier incarnation."),
    m("switch.start.no-guard", "17", ONE, UNITS, "A switch that restarted accepts before servers have announced their state."),
    m("switch.bits.never-expire", "16", ONE, UNITS, "Bits of a silent server stay."),
    m("switch.bits.half", "16", ONE, UNITS, "Only one of the two bits is written."),
    m("switch.ring.older-view", "5", &[], UNITS, "An older view of a partition of keys replaces its multicast group.").tested(),
    m("switch.row.older", "5", ONE, UNITS, "An older announcement of a row counts."),
    m("switch.row.delete-newer", "5", MOVES, UNITS, "A row of a later incarnation is deleted by an earlier one."),
    m("switch.incarnation.keeps-state", "16", ONE, UNITS, "A new incarnation of a server counts as collecting if the last one did."),
    m("switch.incarnation.keeps-readable", "3", CHOSEN, UNITS, "A new incarnation of a server is readable before its row says so."),
    m("switch.writer.older-generation", "5a", &[], UNITS, "Follows the tables' writer of an older generation."),
    m("switch.writer.gap", "5a", &[], UNITS, "Takes a change though one before it is missing."),
    m("switch.far.own-rows", "16", RACKS, UNITS, "Believes the other rack's switch about its own rack's vSSDs."),
    m("switch.far.not-informed", "16", RACKS, UNITS, "Does not forward reports to the other rack's switch."),
];
