//! Mutants of the metadata service: membership, leases, epochs, volumes, moves.

use rackweave_search::fault::PlanKind::{OneRack, Severed, SeveredRacks, StandStill};

use super::plans::*;
use super::{Mutant, m};

const UNITS: &[&str] = &["meta"];
/// And the search of volumes with units of their own.
const OWN: &[&str] = &["meta", "search"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("meta.keys.no-rows", "17", &[], &["rack"], "The switch learns no members of partitions of keys.").tested(),
    m("meta.keys.rows-of-all", "28", &[], UNITS, "The switch sends gets to members that may not answer them.").tested(),
    m("meta.lease.remove-early", "2", &[OneRack, Severed, SeveredRacks], UNITS, "Removes a member when half its lease is over."),
    m("meta.holders.recover-alone", "6", LEFT, UNITS, "Recovers a set from the member it was left to, though others hold what was answered."),
    m("meta.move.leave-early", "24", MOVES, UNITS, "A vSSD that moves leaves its set before the new one has everything.")
        .open("20 plans of its kind reach it and pass, its crate's tests pass."),
    m("meta.move.reuse-id", "5", MOVES, UNITS, "A new vSSD gets the id of one that left."),
    m("meta.lease.no-drift", "2", LEASES, UNITS, "A foreign lease is not taken to last longer by drift.").tested(),
    m("meta.boot.leases-over", "2", LEASES, UNITS, "A service that restarts takes all leases for over.").tested(),
    m("meta.heartbeat.other-incarnation", "1", ONE, UNITS, "A heartbeat of an earlier incarnation renews the lease.").tested(),
    m("meta.hello.replayed", "1", ONE, UNITS, "A delayed registration of an earlier run counts as a new one.").tested(),
    m("meta.hello.keeps-complete", "3", ONE, UNITS, "A server that starts again is complete as it was.")
        .equivalent("A server that registers again gets a place in a view of a later epoch, where reports of an earlier one do not count."),
    m("meta.hello.empty-drive", "29", ONE, UNITS, "A server comes back with an empty drive that nobody replaced.").tested(),
    m("meta.member.restarted-stays", "3", CUTS, UNITS, "A member that restarted stays one without being filled."),
    m("meta.member.complete-before", "3", ONE, UNITS, "A shadow that was complete in an earlier epoch becomes a member.").tested(),
    m("meta.member.shadow-serves", "3", ONE, UNITS, "A new place is a member before it is filled."),
    m("meta.survivor.late-heartbeat", "2", LATE, UNITS, "A heartbeat sent before a power cut and received after it counts as proof of liveness."),
    m("meta.survivor.unheard", "6", CUTS, UNITS, "A member counts as survivor by a heartbeat from before the loss.").tested(),
    m("meta.survivor.at-once", "6", CUTS, UNITS, "The first server to wake after all slept finds all others expired.").tested(),
    m("meta.member.leaves-too-few", "4", MOVES, UNITS, "A member leaves though too few stay.").tested(),
    m("meta.no-room.stays", "architecture", &[], &["meta", "runtime"], "A set waits for a drive that finds no room on the host's disk, though enough others do.").tested(),
    m("meta.recovery.not-all", "6", CUTS, UNITS, "A set recovers before all members of its last epoch are back.").tested(),
    m("meta.recovery.without-restarted", "6", CUTS, UNITS, "A recovery goes on without a member that restarts again.")
        .equivalent("A server that registers again is present then, and the recovery's view names its new incarnation at once."),
    m("meta.recovery.any-leader", "6", CUTS, UNITS, "A recovery ends by the report of any member, of any epoch.").tested(),
    m("meta.recovery.unreported", "11", CUTS, UNITS, "A view does not report that the whole set recovered."),
    m("meta.first-view.one", "4", ONE, UNITS, "A set begins with whoever is there first.").tested(),
    m("meta.view.not-durable", "1", ONE, UNITS, "Views are not stored."),
    m("meta.holders.not-durable", "6", LEFT, UNITS, "The holders of acknowledged writes are not stored.").tested(),
    m("meta.holders.view-only", "6", LEFT, UNITS, "A whole-set recovery does not wait for holders outside the last view."),
    m("meta.incarnation.not-durable", "1", ONE, UNITS, "Incarnations of servers are not stored."),
    m("meta.rack.not-durable", "32", ONE, UNITS, "The next incarnation and volume id are not stored."),
    m("meta.volume.not-durable", "14", ONE, UNITS, "Volumes and their writers are not stored."),
    m("meta.outbox.early", "1", ONE, UNITS, "Messages are sent before the state that they depend on is durable.").tested(),
    m("meta.outbox.unbounded", "architecture", &[], UNITS, "A hung store gets more and more pending writes.").tested(),
    m("meta.attach.same-generation", "14", ONE, UNITS, "A new attach gets the generation of the last."),
    m("meta.attach.twice", "14", FEW, UNITS, "A repeated attach is a new one.").tested(),
    m("meta.volume.reuse-id", "5", ONE, UNITS, "A volume gets the id of a deleted one.").tested(),
    m("meta.volume.over-promise", "34", ONE, UNITS, "Volumes promise more than there is.").tested(),
    m("meta.clear.no-fence", "14", ONE, UNITS, "A deleted volume is fenced like one attached anew, and its blocks stay.").tested(),
    m("meta.admin.twice", "7", ONE, UNITS, "A repeated administrative request is carried out again.").tested(),
    m("meta.reach.at-once", "2", RACKS, UNITS, "A member leaves at the first complaint about it.").tested(),
    m("meta.reach.too-few", "4", RACKS, UNITS, "Members that do not reach each other leave though too few stay.").tested(),
    m("meta.reach.never", "2", RACKS, UNITS, "Members that do not reach each other all stay.").tested(),
    m("meta.move.last-leaves", "24", MOVES, UNITS, "The last member of a set leaves for a move.")
        .open("20 plans of its kind never have a set of one member that moves, its crate's tests pass."),
    m("meta.move.same-server", "RB12", MOVES, UNITS, "A server gets two copies of a set."),
    m("meta.move.taken-slot", "24", MOVES, UNITS, "A slot is given to two vSSDs."),
    m("meta.own.same-server", "RB12", &[], OWN, "A volume's own set gets two copies on one server.").tested(),
    m("meta.own.gone-unknown", "24", &[], OWN, "A service does not start if a set of a volume being deleted is gone already.").tested(),
    m("meta.failure.forgotten", "12", ONE, UNITS, "A failed device is well again when its server says so.").tested(),
    m("meta.evidence.not-kept", "29", &[], UNITS, "The drives on which members had everything are not stored.").tested(),
    m("meta.evidence.replaced-is-member", "29", &[StandStill], UNITS, "A server with another drive recovers as a member.").tested(),
    m("meta.evidence.damaged-is-witness", "29", &[StandStill], UNITS, "A drive that lost records bounds what was flushed.").tested(),
    m("meta.evidence.no-witness-needed", "29", &[StandStill], UNITS, "A set recovers though every member has lost something.").tested(),
    m("meta.evidence.loss-forgotten", "29", &[StandStill], UNITS, "A drive that lost records counts as whole when a later incarnation finds no loss.").tested(),
    m("meta.evidence.loss-not-durable", "29", &[StandStill], UNITS, "That a drive lost records is forgotten when the service restarts.").tested(),
    m("meta.evidence.recovering-is-whole", "29", CUTS, UNITS, "Members of a recovery count as having everything before it is over.").tested(),
    m("meta.drive.older-store", "30", EDITS, UNITS, "A drive that knows of a later incarnation than the store is accepted."),
    m("meta.drive.any-drive", "30", EDITS, UNITS, "A server may come with another drive that was in use."),
    m("meta.drive.older-drive", "30", EDITS, UNITS, "A drive whose table is older than the service's copy is accepted."),
    m("meta.drive.not-raised", "30", EDITS, UNITS, "The copy is as old as a drive before the current incarnation."),
    m("meta.drive.unconfirmed", "30", EDITS, UNITS, "A server has a lease before its drive holds its current incarnation."),
    m("meta.drive.any-layout", "30", &[], UNITS, "A drive that was laid out anew is accepted.").tested(),
    m("meta.drive.any-division", "30", &[], UNITS, "A new drive with another number of slots than the rack's is accepted.").tested(),
    m("meta.drive.any-vssd", "30", &[], UNITS, "A drive with vSSDs that the service does not know is accepted.").tested(),
    m("meta.drive.not-durable", "30", &[], UNITS, "The copy of a drive table is not stored.").tested(),
    m("meta.room.no-credit", "34", &[], UNITS, "Room is reported that other members may hold as credit.").tested(),
    m("meta.room.fullest-counts-not", "34", &[], UNITS, "A set has the room of its emptiest member.").tested(),
    m("meta.room.earlier-incarnation", "34", &[], UNITS, "Counts the room that an earlier incarnation of a server reported.").tested(),
    m("meta.lease.ahead-of-view", "2", &[], UNITS, "A lease with a newer view goes out before that view is durable.").tested(),
    m("meta.store.older-unrefused", "30", &[], UNITS, "A change is carried out although the store is older than a drive.").tested(),
    m("meta.move.id-overflow", "5", &[], UNITS, "The ids of vSSDs go on in the numbers of another rack.").tested(),
    m("meta.store.full-unrefused", "34", &[], UNITS, "A change starts although the store may not take it.").tested(),
];
