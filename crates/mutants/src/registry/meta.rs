//! Mutants of the metadata service: membership, leases, epochs, volumes, moves.

use rackweave_rack::fault::PlanKind::{OneRack, Severed, SeveredRacks};

use super::plans::*;
use super::{Mutant, m};

const UNITS: &[&str] = &["meta"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("meta.lease.remove-early", "2", &[OneRack, Severed, SeveredRacks], UNITS, "Removes a member when half its lease is over."),
    m("meta.holders.recover-alone", "6", LEFT, UNITS, "Recovers a set from the member it was left to, though others hold what was answered.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("meta.move.leave-early", "24", MOVES, &["meta", "rack"], "A vSSD that moves leaves its set before the new one has everything.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.move.reuse-id", "5", MOVES, UNITS, "A new vSSD gets the id of one that left."),
    m("meta.lease.no-drift", "2", LEASES, UNITS, "A foreign lease is not taken to last longer by drift.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("meta.boot.leases-over", "2", LEASES, UNITS, "A service that restarts takes all leases for over.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("meta.heartbeat.other-life", "1", ONE, UNITS, "A heartbeat of an earlier life renews the lease.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.hello.replayed", "1", ONE, UNITS, "A delayed registration of an earlier life is a new life.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.hello.keeps-complete", "3", ONE, UNITS, "A server that starts again is complete as it was.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.hello.empty-drive", "29", ONE, UNITS, "A server comes back with an empty drive that nobody replaced.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.member.restarted-stays", "3", CUTS, UNITS, "A member that restarted stays one without being filled."),
    m("meta.member.complete-before", "3", ONE, UNITS, "A shadow that was complete in an earlier epoch becomes a member.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.member.shadow-serves", "3", ONE, UNITS, "A new place is a member before it is filled."),
    m("meta.survivor.unheard", "6", CUTS, UNITS, "A member counts as survivor by a heartbeat from before the loss.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("meta.survivor.at-once", "6", CUTS, UNITS, "The first to wake after all slept finds all others expired.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("meta.member.leaves-too-few", "4", MOVES, UNITS, "A member leaves though too few stay.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.recovery.not-all", "6", CUTS, UNITS, "A set recovers before all members of its last epoch are back.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("meta.recovery.without-restarted", "6", CUTS, UNITS, "A recovery goes on without a member that restarts again.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("meta.recovery.any-leader", "6", CUTS, UNITS, "Anybody's word ends a recovery, of any epoch.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("meta.recovery.untold", "11", CUTS, UNITS, "A view does not say that the set recovered whole."),
    m("meta.first-view.one", "4", ONE, UNITS, "A set begins with whoever is there first.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.view.not-durable", "1", ONE, UNITS, "Views are not kept."),
    m("meta.holders.not-durable", "6", LEFT, UNITS, "Who holds what was answered is not kept.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("meta.holders.view-only", "6", LEFT, UNITS, "A whole-set recovery does not wait for holders outside the last view.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("meta.life.not-durable", "1", ONE, UNITS, "Lives of servers are not kept."),
    m("meta.rack.not-durable", "32", ONE, UNITS, "The next incarnation and volume id are not kept."),
    m("meta.volume.not-durable", "14", ONE, UNITS, "Volumes and their writers are not kept."),
    m("meta.outbox.early", "1", ONE, UNITS, "Messages leave before what they rest on is durable.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.attach.same-generation", "14", ONE, UNITS, "A new attach gets the generation of the last.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.attach.twice", "14", FEW, UNITS, "A repeated attach is a new one.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("meta.volume.reuse-id", "5", ONE, UNITS, "A volume gets the id of a deleted one.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.volume.over-promise", "34", ONE, UNITS, "Volumes promise more than there is.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.clear.no-fence", "14", ONE, UNITS, "A deleted volume is fenced like one attached anew, and its blocks stay.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.admin.twice", "7", ONE, UNITS, "A repeated administrative request is carried out again.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.reach.at-once", "2", RACKS, UNITS, "A member leaves at the first complaint about it.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.reach.too-few", "4", RACKS, UNITS, "Members that do not reach each other leave though too few stay.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.reach.never", "2", RACKS, UNITS, "Members that do not reach each other all stay.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.move.last-leaves", "24", MOVES, UNITS, "The last member of a set leaves for a move.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.move.same-server", "RB12", MOVES, UNITS, "A server gets two copies of a set."),
    m("meta.move.taken-slot", "24", MOVES, UNITS, "A slot is given to two vSSDs."),
    m("meta.failure.forgotten", "12", ONE, UNITS, "A failed device is well again when its server says so.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("meta.evidence.not-kept", "29", &[], UNITS, "What drives members had everything on is not kept.")
        .open("Not searched for, its crate's tests were not run."),
    m("meta.lease.ahead-of-view", "2", &[], UNITS, "A lease with a newer view goes out before that view is durable.").tested(),
    m("meta.store.full-unrefused", "34", &[], UNITS, "A change is begun that may not be written down.").tested(),
];
