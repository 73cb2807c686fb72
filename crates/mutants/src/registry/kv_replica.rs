//! Mutants of the key-value store's agreement: puts, gets, views, take-over, hand-off, rejoin.

use super::{Mutant, m};

const UNITS: &[&str] = &["kv-replica"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("kv-replica.abort.not-everywhere", "28", &[], UNITS, "The client hears of an abort before every member has recorded it.")
        .open("Its effect needs a client that gives up after an abort; ours makes another attempt."),
    m("kv-replica.answer.before-all-applied", "28", &[], UNITS, "Answers a put before every member has forced its decision.").tested(),
    m("kv-replica.apply.acknowledged-early", "28", &[], UNITS, "A member acknowledges a decision before it is durable.").tested(),
    m("kv-replica.client.keyspace-stays", "28", &[], &["rack", "search"], "A client takes a keyspace that is deleted for one that is late."),
    m("kv-replica.batch.applies-first", "28", &[], UNITS, "A member applies the first change of a batch alone.").tested(),
    m("kv-replica.batch.judges-first", "28", &[], UNITS, "Of a batch the first condition alone is judged.").tested(),
    m("kv-replica.batch.locks-first", "28", &[], UNITS, "A member locks the first key of a batch alone.")
        .open("Marks hide most of what locks hide: 110 seeds of each search pass."),
    m("kv-replica.batch.one-queue", "28", &[], UNITS, "A batch is judged when it is the first of one of its keys.").tested(),
    m("kv-replica.batch.partly-written", "28a", &[], UNITS, "A batch of which one version is overwritten counts as not overwritten.")
        .open("300 seeds of each search of its crate and its tests pass; the rack's searches were not run."),
    m("kv-replica.boot.discards-log", "28", &[], UNITS, "A node that starts forgets the undecided puts in its log.").tested(),
    m("kv-replica.boot.discards-marks", "28", &[], UNITS, "A node that starts takes every version in its store to be on all members.").tested(),
    m("kv-replica.client.outdates-older", "7", &[], UNITS, "The end of a put of a client's later run outdates those of the earlier run that are in flight.")
        .open("300 seeds of each search of its crate and its tests pass; the rack's searches were not run."),
    m("kv-replica.commit.without-all", "28", &[], UNITS, "A timestamp leaves when the primary alone has logged the put.").tested(),
    m("kv-replica.condition.unjudged", "28", &[], UNITS, "Every condition holds.").tested(),
    m("kv-replica.copies.too-few", "28", &[], UNITS, "A view of fewer members than min_copies takes puts.").tested(),
    m("kv-replica.coverage.ignored", "28a", &[], UNITS, "A view begins though its members do not hold all epochs.")
        .open("300 seeds of each search of its crate and its tests pass; the rack's searches were not run."),
    m("kv-replica.dedup.drop", "7", &[], UNITS, "Executes a put again whenever it comes again.").tested(),
    m("kv-replica.drop.still-counted", "28a", &[], UNITS, "A node that dropped its records counts as one that holds them.").tested(),
    m("kv-replica.endings.first-counts", "28a", &[], UNITS, "A lost primary's decision outweighs that of a later epoch.").tested(),
    m("kv-replica.epoch.answers-refusals", "1", &[], UNITS, "Refusals of another epoch are refused in turn, for ever.").tested(),
    m("kv-replica.epoch.ignore", "1", &[], UNITS, "Takes messages of any epoch.").tested(),
    m("kv-replica.expiry.replica-answers", "28b", &[], UNITS, "A replica answers that a value has expired before that is committed.").tested(),
    m("kv-replica.fill.into-deletions", "34", &[], &["search"], "What a node fetches takes the room of deletions: nothing makes room again.")
        .open("300 seeds of each search of its crate and its tests pass; the rack's searches were not run."),
    m("kv-replica.fill.finishes-logged", "28a", &[], UNITS, "A primary that fetches takes puts in its own log for finished, as its source knows them: it never applies them.").tested(),
    m("kv-replica.fill.unsettled", "28a", &[], UNITS, "A primary gives keys away before what it took over is decided.").tested(),
    m("kv-replica.fill.without-anew", "28a", &[], UNITS, "What may have been committed does not delay fills.")
        .open("300 seeds of each search of its crate and its tests pass; the rack's searches were not run."),
    m("kv-replica.fill.without-room", "34", &[], &["search"], "A node fetches what its store has no room for.").tested(),
    m("kv-replica.get.before-all-applied", "28", &[], UNITS, "A member shows a version that other members may not have applied.").tested(),
    m("kv-replica.get.while-locked", "28", &[], UNITS, "A member answers a get while the key is locked.").tested(),
    m("kv-replica.handoff.answers-all", "28a", &[], UNITS, "A hand-off answers gets of keys that it does not hold.").tested(),
    m("kv-replica.handoff.leads-unfilled", "28a", &[], UNITS, "A hand-off that leads answers gets before it has fetched what it lacks.").tested(),
    m("kv-replica.join.without-room", "34", &[], UNITS, "A node joins though its store has no room for what the primary found.").tested(),
    m("kv-replica.lease.granted-to-removed", "2", &[], UNITS, "A node that was removed from a view gets a lease without having heard of that.").tested(),
    m("kv-replica.lease.no-drift", "2", &[], UNITS, "A foreign lease is not taken to last longer by drift.").tested(),
    m("kv-replica.lease.remove-early", "2", &[], UNITS, "A view shrinks while the silent member may still serve.").tested(),
    m("kv-replica.lease.skip", "2", &[], UNITS, "Answers gets without a lease.").tested(),
    m("kv-replica.log.acknowledged-early", "28", &[], UNITS, "A member acknowledges a put before it is durable in its log.").tested(),
    m("kv-replica.order.applies-older", "28", &[], UNITS, "A member applies a late decision over a newer version.").tested(),
    m("kv-replica.order.overtakes", "28", &[], UNITS, "A key's next timestamp leaves before every member has applied the last.").tested(),
    m("kv-replica.put.multicast-alone", "28", &[], &["rack"], "A put that the multicast did not bring to all is never sent to each member.").tested(),
    m("kv-replica.rejoin.discards-evidence", "28a", &[], UNITS, "A node that returns drops its undecided records.").tested(),
    m("kv-replica.rejoin.serves-early", "28a", &[], UNITS, "A node that returns answers gets before it has fetched what it missed.").tested(),
    m("kv-replica.space.answered-without-abort", "28", &[], UNITS, "The client hears that a store is full while the put may still be committed.").tested(),
    m("kv-replica.space.owes-nothing", "34", &[], UNITS, "A put is admitted to room that others need for their decisions.").tested(),
    m("kv-replica.sweep.comes-back", "28a", &[], UNITS, "A node that returns keeps what was swept while it was away.").tested(),
    m("kv-replica.sweep.late-decisions", "28", &[], UNITS, "A member applies a decision of before the last sweep.").tested(),
    m("kv-replica.sweep.under-way", "28", &[], UNITS, "A primary sweeps what some member has not applied.").tested(),
    m("kv-replica.sweep.while-filling", "28a", &[], UNITS, "A primary sweeps while some member lacks earlier epochs.").tested(),
    m("kv-replica.takeover.abort-locked-everywhere", "28", &[], UNITS, "A new primary aborts what is logged everywhere and applied nowhere, as in the paper.").tested(),
    m("kv-replica.takeover.answers-unrecorded", "28", &[], UNITS, "A client hears of an abort that no member has recorded.").tested(),
    m("kv-replica.takeover.any-order", "28", &[], UNITS, "A new primary commits what may have been applied in any order.").tested(),
    m("kv-replica.takeover.any-witness", "28a", &[], UNITS, "A member that holds no epoch testifies that a put was never committed.").tested(),
    m("kv-replica.takeover.decides-before-adopted", "28", &[], UNITS, "A new primary decides before all members have logged what it took over.").tested(),
    m("kv-replica.takeover.judged-again", "28", &[], UNITS, "A put that an earlier primary committed is judged again.").tested(),
    m("kv-replica.takeover.no-promotion", "28a", &[], UNITS, "A version that lost members have only logged stays in its old epoch.").tested(),
    m("kv-replica.takeover.no-promotion-under-batches", "28a", &[], UNITS, "The versions under a batch that is committed anew stay in their old epoch.").tested(),
    m("kv-replica.takeover.old-records", "28a", &[], UNITS, "Undecided records from before the last active view are committed anew.").tested(),
    m("kv-replica.takeover.outdates-undecided", "28", &[], UNITS, "A new primary records an abort of a client's run while a put of its earlier run is undecided.").tested(),
    m("kv-replica.takeover.repetition-anew", "7", &[], UNITS, "A finished put that comes again to members without its record is committed again.").tested(),
    m("kv-replica.takeover.superseded-counts", "28a", &[], UNITS, "A decision that a lost primary alone applied counts as finished.").tested(),
    m("kv-replica.takeover.volatile-decisions", "28", &[], UNITS, "A decision that is not durable counts as finished in a take-over.")
        .open("Versions are marked until all members have them; what is left is a condition that failed. 400 seeds of each search pass."),
    m("kv-replica.void.not-held", "28a", &[], UNITS, "A partition waits for the members of views that never decided.").tested(),
    m("kv-replica.view.not-durable", "1", &[], UNITS, "A view leaves before it is durable.").tested(),
];
