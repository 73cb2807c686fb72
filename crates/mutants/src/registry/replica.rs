//! Mutants of the replicas: agreement, membership, fencing, credit, recovery.

use super::plans::*;
use super::{Mutant, m};

const UNITS: &[&str] = &["replica"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("replica.lease.skip", "2", LEASES, UNITS, "Serves and coordinates without a lease."),
    m("replica.shadow.serve", "3", CHOSEN, UNITS, "Serves while a shadow."),
    m("replica.copies.too-few", "4", ALONE, UNITS, "Acknowledges in a view of fewer members than min_copies.").tested(),
    m("replica.write.acknowledge-alone", "4", ONE, UNITS, "Commits a write that no other member has acknowledged."),
    m("replica.recovery.skip", "6", CUTS, UNITS, "Declares a set recovered without comparing its members."),
    m("replica.dedup.drop", "7", ONE, UNITS, "Executes a mutation again whenever it comes again."),
    m("replica.epoch.old-mutation", "7", CUTS, UNITS, "Executes a client's mutation that is stamped with an older epoch.").tested(),
    m("replica.partial.merge-blindly", "8", FEW, UNITS, "Merges a partial write onto a block that is not Valid, and never again when it lost."),
    m("replica.credit.none-needed", "9", ONE, UNITS, "Begins writes without credit of the members."),
    m("replica.credit.room-unchecked", "9", ONE, UNITS, "Takes blocks into its cache without room or credit for them.").tested(),
    m("replica.fill.lose-tombstone", "10", ONE, UNITS, "A fill leaves blocks in place that its source does not have."),
    m("replica.recovery.hide", "11", CUTS, UNITS, "Does not tell clients that the set recovered whole."),
    m("replica.flush.too-few", "4", LATE, UNITS, "Begins a flush in a view of fewer members than min_copies."),
    m("replica.flush.early", "12", ONE, UNITS, "Answers another member's flush before anything is synced.").tested(),
    m("replica.fua.member-acknowledges-early", "12", ONE, UNITS, "A member acknowledges an FUA write before it is durable there.").tested(),
    m("replica.fua.coordinator-not-durable", "12", SINGLE, UNITS, "The coordinator answers an FUA write or flush before it is durable with itself."),
    m("replica.fence.admit-older", "14", ONE, UNITS, "Admits a mutation of a writer that was fenced."),
    m("replica.fence.retry-older", "14", FEW, UNITS, "Retries a partial write of a writer that was fenced meanwhile.")
        .open("80 plans of its kinds pass, its crate's tests pass."),
    m("replica.fence.deleted-read", "14", PASSING, UNITS, "Shows a deleted volume, as zeroes when its blocks are gone."),
    m("replica.fence.unsettled", "14", ONE, UNITS, "Acknowledges a fence while writes of the older writer are under way.").tested(),
    m("replica.fence.attach-older", "14", ONE, UNITS, "Answers an older attach as if it were the newest.").tested(),
    m("replica.replay.skip", "Hermes", CRASHES, UNITS, "Replays nothing; at an epoch change takes unvalidated writes of departed coordinators as valid."),
    m("replica.compare.skip", "scrub", ONE, UNITS, "Compares what was scrubbed with no other member.").tested(),
    m("replica.recovery.serve", "6", CUTS, UNITS, "Serves while the set recovers.").tested(),
    m("replica.failure.serve", "12", ONE, UNITS, "Serves though its device failed."),
    m("replica.failure.acknowledge", "12", ONE, UNITS, "Acknowledges invalidations though its device failed.").tested(),
    m("replica.epoch.any-peer", "1", ONE, UNITS, "Takes messages of members that are stamped with another epoch."),
    m("replica.epoch.unanswered", "1", RACKS, UNITS, "Does not tell who is in an older epoch the current one."),
    m("replica.incarnation.any-peer", "1", ONE, UNITS, "Takes messages of a member's earlier life.")
        .open("40 plans of its kinds pass, its crate's tests pass."),
    m("replica.view.other-life", "1", ONE, UNITS, "Takes the role that a view gives to an earlier life of this server."),
    m("replica.view.keeps-credit", "9", ONE, UNITS, "Credit of the last epoch counts in the next.").tested(),
    m("replica.view.keeps-round", "1", ONE, UNITS, "Acknowledgements of the last epoch count in the next: only those still missing are asked again."),
    m("replica.flush.no-restart", "12", CUTS, UNITS, "An epoch change does not restart a flush.")
        .open("80 plans of its kinds pass, its crate's tests pass."),
    m("replica.view.keeps-persists", "12", ONE, UNITS, "What is persisted for members of the last epoch is acknowledged in the next."),
    m("replica.shadow.keeps-dedup", "3", ONE, UNITS, "A shadow keeps the mutations that it knew before it was one.").tested(),
    m("replica.recovery.keeps-doubt", "7", CUTS, UNITS, "A recovery keeps mutations of which something is in doubt as executed.")
        .open("80 plans of its kinds pass, its crate's tests pass."),
    m("replica.shadow.keeps-unresolved", "3", ONE, UNITS, "A shadow keeps what was unresolved before it was one, and replays it.").tested(),
    m("replica.judge.older-than-range", "10", ONE, UNITS, "Accepts a block older than a range record over it that is under way.").tested(),
    m("replica.judge.rmw-under-range", "8", FEW, UNITS, "Accepts a partial write made from what a range record under way covers.")
        .open("80 plans of its kinds pass, its crate's tests pass."),
    m("replica.judge.rmw-loser", "8", FEW, UNITS, "Acknowledges a partial write that lost to a concurrent update.").tested(),
    m("replica.judge.rmw-same-base", "8", FEW, UNITS, "Refuses no read-modify-write made from an older base than a write under way.").tested(),
    m("replica.judge.older", "Hermes", ONE, UNITS, "Accepts a block older than the one it holds.").tested(),
    m("replica.judge.settled-again", "7", FEW, UNITS, "Accepts again what was settled, and zeroed since by a range record that is gone.").tested(),
    m("replica.judge.below-floor", "7", FEW, UNITS, "Acknowledges what is below its client's floor, though it never came.").tested(),
    m("replica.judge.rmw-held", "8", FEW, UNITS, "Acknowledges a partial write older than the block it holds.")
        .open("80 plans of its kinds pass, its crate's tests were not run."),
    m("replica.fence.not-replicated", "14", ONE, UNITS, "Invalidations do not bring the writer's generation to the members.")
        .open("40 plans of its kinds pass, its crate's tests pass."),
    m("replica.dedup.not-replicated", "7", FEW, UNITS, "Members do not remember the mutations that invalidations bring."),
    m("replica.dedup.no-doubt", "7", FEW, UNITS, "A member takes a partial write for executed before it is known to have won.")
        .open("50 plans of its kinds pass, its crate's tests were not run."),
    m("replica.replay.other-contents", "Hermes", CRASHES, UNITS, "Replays with a higher version than the write had."),
    m("replica.validate.any-version", "Hermes", ONE, UNITS, "A validation of one version validates whatever version is there.")
        .open("25 plans of its kinds pass, its crate's tests were not run."),
    m("replica.read.unvalidated", "Hermes", ONE, UNITS, "Answers reads of blocks that are not Valid.")
        .open("25 plans of its kinds pass, its crate's tests were not run."),
    m("replica.read.newer-unvalidated", "Hermes", ONE, UNITS, "Answers a read with something newer that flash or cache got meanwhile and that is not Valid.")
        .open("25 plans of its kinds pass, its crate's tests were not run."),
    m("replica.copy.unvalidated", "3", ONE, UNITS, "Sends other members copies of blocks that are not Valid.")
        .open("25 plans of its kinds pass, its crate's tests were not run."),
    m("replica.copy.of-shadow", "3", ONE, UNITS, "A shadow answers those who ask for an intact copy.")
        .equivalent("Healers, sources of fills and holders in a recovery are members of the same view."),
    m("replica.heal.any-version", "29", ONE, UNITS, "Heals a corrupt block with any version of it.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.heal.overtaken", "29", ONE, UNITS, "Heals a block that was written meanwhile.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.heal.never", "29", ONE, UNITS, "A corrupt block fails the read though others have it.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.write.answer-too-few", "4", ALONE, UNITS, "Answers a write that was under way when the view fell below min_copies.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.partial.retry-executed", "7", FEW, UNITS, "Retries a partial write that took effect elsewhere.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.fua.done-elsewhere", "12", FEW, UNITS, "Answers an FUA write that took effect through another coordinator without making it durable.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.fua.duplicate", "12", FEW, UNITS, "Answers a repeated FUA write without making it durable.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.version.rmw-as-write", "Hermes", FEW, UNITS, "A partial write takes a version as a whole write does, and so wins over one.")
        .open("Not searched for, its crate's tests pass."),
    m("replica.version.below-ranges", "10", ONE, UNITS, "Versions need not be above the ranges of their epoch.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.version.old-epoch", "6", CUTS, UNITS, "Versions go on in the epoch of what they replace.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.dedup.no-floor", "7", ONE, UNITS, "A mutation below its client's floor is executed.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.dedup.export-unresolved", "7", FEW, UNITS, "A shadow is told of mutations that are not resolved.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.dedup.import-any", "7", FEW, UNITS, "A shadow takes a mutation for executed that not every member has seen.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.dedup.part-for-whole", "7", FEW, UNITS, "A shadow takes a mutation for executed of which members saw only some blocks.").tested(),
    m("replica.dedup.no-import", "7", FEW, UNITS, "A shadow does not learn which mutations were executed.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.fill.apply-older", "3", ONE, UNITS, "A shadow applies copies older than what this epoch's invalidations brought it.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.fill.not-durable", "3", CUTS, UNITS, "A shadow says that it is complete before what it copied is durable.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.fill.undrained", "3", ONE, UNITS, "A shadow begins to copy while writes of earlier epochs are unresolved.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.fill.no-fences", "14", ONE, UNITS, "A shadow does not learn who may still write.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.fill.forget-ranges", "10", ONE, UNITS, "A shadow forgets ranges that were zeroed while it filled, and copies older blocks inside.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.fill.blind", "3", ONE, UNITS, "A shadow or recovery compares no piece whose digest differs.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.fill.of-shadow", "3", ONE, UNITS, "A shadow answers what another one compares itself with.")
        .equivalent("Who fills or recovers asks members of its own view only, and messages of another epoch are refused."),
    m("replica.fill.stale-stays", "3", CUTS, UNITS, "A shadow keeps blocks newer than its source's that were never agreed on.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.recovery.oldest", "6", CUTS, UNITS, "A recovery takes the copy of the first member that answered, however old.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.recovery.no-zeroes", "6", CUTS, UNITS, "A recovery does not repeat range records that some member lacks.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.recovery.one-peer", "6", CUTS, UNITS, "A recovery compares the leader with one other member only.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.recovery.early", "6", CUTS, UNITS, "A recovery is over while its last repairs are under way.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.range.no-conflict", "10", FEW, UNITS, "A range operation begins while blocks inside are under way.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.range.over-rmw", "10", FEW, UNITS, "A member accepts a range below a partial write under way inside.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.range.no-memory", "10", FEW, UNITS, "A write over a range that flash has forgotten is not above it.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.range.not-remembered", "7", FEW, UNITS, "Members do not remember which range operations they executed.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.range.fua-early", "12", ONE, UNITS, "A member acknowledges a range with FUA before it is durable there.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.range.keeps-blocks", "10", FEW, UNITS, "Blocks under way inside a newer range stay so.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.credit.overgrant", "9", ONE, UNITS, "Grants members more slots and pages than it has.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.credit.no-pages", "9", ONE, UNITS, "Spends no page credit.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.credit.own-pages", "9", ONE, UNITS, "Begins writes without room on its own flash.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.fence.learn-older", "14", ONE, UNITS, "News of volumes may lower a fence.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.fence.deleted", "14", ONE, UNITS, "Writes to deleted volumes are admitted.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.persist.ignore-failure", "12", ONE, UNITS, "Acknowledges what could not be made durable.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.flush.ignore-refusal", "12", ONE, UNITS, "A member's failed flush counts as done.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.persist.old-round", "12", FEW, UNITS, "An FUA write that was begun anew is durable when its first attempt is.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.flush.one-member", "12", ONE, UNITS, "A flush is done when one other member has done it.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.fence.one-member", "14", ONE, UNITS, "A fence is in place when one other member has it.")
        .open("Not searched for, its crate's tests were not run."),
    m("replica.op.any-round", "1", ONE, UNITS, "Acknowledgements of an earlier round count in the current one.")
        .open("Not searched for, its crate's tests were not run."),
];
