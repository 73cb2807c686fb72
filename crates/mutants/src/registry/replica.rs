//! Mutants of the replicas: agreement, membership, fencing, credit, recovery.

use super::plans::*;
use super::{Mutant, PlanKind, m};

const CHOSEN: &[PlanKind] = &[PlanKind::OneRack, PlanKind::ChosenReplica];
const UNIT: &[&str] = &["replica"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("replica.lease.skip", "2", LEASES, UNIT, "Serves and coordinates without a lease."),
    m("replica.shadow.serve", "3", CHOSEN, UNIT, "Serves while a shadow."),
    m("replica.copies.too-few", "4", CUTS, UNIT, "Acknowledges in a view of fewer members than min_copies."),
    m("replica.write.acknowledge-alone", "4", ONE, UNIT, "Commits a write that no other member has acknowledged."),
    m("replica.recovery.skip", "6", CUTS, UNIT, "Declares a set recovered without comparing its members."),
    m("replica.dedup.drop", "7", ONE, UNIT, "Executes a mutation again whenever it comes again."),
    m("replica.epoch.old-mutation", "7", CUTS, UNIT, "Executes a client's mutation that is stamped with an older epoch."),
    m("replica.partial.merge-blindly", "8", FEW, UNIT, "Merges a partial write onto a block that is not Valid, and never again when it lost."),
    m("replica.credit.none-needed", "9", ONE, UNIT, "Begins writes without credit of the members."),
    m("replica.credit.room-unchecked", "9", ONE, UNIT, "Takes blocks into its cache without room or credit for them."),
    m("replica.fill.lose-tombstone", "10", ONE, UNIT, "A fill leaves blocks in place that its source does not have."),
    m("replica.recovery.hide", "11", CUTS, UNIT, "Does not tell clients that the set recovered whole."),
    m("replica.flush.early", "12", ONE, UNIT, "Answers another member's flush before anything is synced."),
    m("replica.fua.member-acknowledges-early", "12", ONE, UNIT, "A member acknowledges an FUA write before it is durable there."),
    m("replica.fua.coordinator-not-durable", "12", ONE, UNIT, "The coordinator answers an FUA write or flush before it is durable with itself."),
    m("replica.fence.admit-older", "14", ONE, UNIT, "Admits a mutation of a writer that was fenced."),
    m("replica.fence.retry-older", "14", FEW, UNIT, "Retries a partial write of a writer that was fenced meanwhile."),
    m("replica.fence.unsettled", "14", ONE, UNIT, "Acknowledges a fence while writes of the older writer are under way."),
    m("replica.fence.attach-older", "14", ONE, UNIT, "Answers an older attach as if it were the newest."),
    m("replica.replay.skip", "Hermes", CRASHES, UNIT, "Replays nothing; at an epoch change takes unvalidated writes of departed coordinators as valid."),
    m("replica.compare.skip", "scrub", ONE, UNIT, "Compares what was scrubbed with no other member."),
];
