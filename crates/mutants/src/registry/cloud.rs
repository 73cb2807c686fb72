//! Mutants of cloud disks: logs, proxies, merging, attachment.

use super::{Mutant, m};

const UNITS: &[&str] = &["cloud"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("cloud.allocation.log-last", "26", &[], UNITS, "A client looks at the log after the overlays: what is merged meanwhile is seen in neither.").tested(),
    m("cloud.allocation.without-log", "26", &[], UNITS, "What the log alone has counts as a hole.").tested(),
    m("cloud.allocation.without-overlay", "26", &[], UNITS, "What has not moved to the storage layer counts as a hole.").tested(),
    m("cloud.append.acknowledged-early", "26", &[], UNITS, "A log server acknowledges an append before it is durable.").tested(),
    m("cloud.append.multicast-alone", "26", &[], UNITS, "An append that the multicast did not bring to both servers is never sent to each.").tested(),
    m("cloud.append.one-copy", "26", &[], UNITS, "A client takes an append as done when one of its copies is durable.").tested(),
    m("cloud.attach.same-epoch", "25", &[], UNITS, "A client attaches without a new epoch: nothing is sealed.").tested(),
    m("cloud.copies.too-few", "4", &[], UNITS, "A segment with fewer than min_copies holders takes writes.").tested(),
    m("cloud.depth.never-expires", "26", &[], UNITS, "A silent client's queue depth counts for ever.").tested(),
    m("cloud.epoch.ignored", "25", &[], UNITS, "Servers take messages of any epoch.").tested(),
    m("cloud.copy.mapped-early", "27", &[], UNITS, "The map says where a stripe is before all of it is there.").tested(),
    m("cloud.copy.not-mapped", "27", &[], UNITS, "A stripe leaves the overlay for a generation of which the map does not say so.").tested(),
    m("cloud.copy.without-base", "27", &[], UNITS, "A stripe moves to a new generation without what an earlier one has of it.").tested(),
    m("cloud.flatten.copied-again", "27", &[], UNITS, "Flattening copies a stripe over what was written to it since the snapshot.").tested(),
    m("cloud.flatten.early", "27", &[], UNITS, "A disk leaves its earlier generations before all stripes are copied.").tested(),
    m("cloud.flatten.without-overlay", "27", &[], UNITS, "A stripe is copied without what was written or trimmed meanwhile.").tested(),
    m("cloud.fork.given-up-late", "27", &[], UNITS, "A snapshot is given up while the record that makes the next generation the current one is under way.").tested(),
    m("cloud.fork.merged-beyond", "27", &[], UNITS, "Entries after a snapshot's serial are merged before the fork.").tested(),
    m("cloud.fork.not-moved", "27", &[], UNITS, "A segment counts as drained while its overlay has something of the snapshot.").tested(),
    m("cloud.fork.undrained", "27", &[], UNITS, "A generation is frozen when one segment is drained.").tested(),
    m("cloud.fork.unmerged", "27", &[], UNITS, "A segment counts as drained while entries of the snapshot are not merged.").tested(),
    m("cloud.fork.writes-taken", "27", &[], UNITS, "Proxies take stable writes before the fork.").tested(),
    m("cloud.grow.not-resumed", "26", &[], UNITS, "A role that ended while a disk grew begins no epoch with its size.").tested(),
    m("cloud.lease.granted-to-left-out", "2", &[], UNITS, "A server that has not heard of an epoch gets a lease.").tested(),
    m("cloud.lease.left-out-early", "25", &[], UNITS, "An epoch begins while the lease of a silent server runs.").tested(),
    m("cloud.lease.no-drift", "2", &[], UNITS, "A server's lease is not taken to last longer by drift.").tested(),
    m("cloud.lease.skip", "2", &[], UNITS, "Servers answer reads without a lease.").tested(),
    m("cloud.map.any-owner", "27", &[], UNITS, "A block of an address map may name a generation of another disk.").tested(),
    m("cloud.merge.invalidated-early", "26", &[], UNITS, "An entry is invalidated before its merge is acknowledged.").tested(),
    m("cloud.merge.out-of-order", "26", &[], UNITS, "A merger passes entries whose contents it has not read yet.").tested(),
    m("cloud.merge.repeated", "26", &[], UNITS, "A merge that comes again is applied again.").tested(),
    m("cloud.merge.serial-apart", "26", &[], UNITS, "The merged serial is recorded later than the changes of the map.").tested(),
    m("cloud.move.changed-since", "26", &[], UNITS, "A stripe leaves the overlay although it changed while it moved.").tested(),
    m("cloud.move.early", "26", &[], UNITS, "A stripe leaves the overlay before the storage layer has it.").tested(),
    m("cloud.move.not-durable", "26", &[], &["search"], "A stripe leaves the overlay when the sets have it in memory alone.").tested(),
    m("cloud.read.later-overlay", "26", &[], UNITS, "A read takes what moved meanwhile from an older answer of the storage layer.")
        .tested(),
    m("cloud.read.past-log", "26", &[], UNITS, "A client reads from proxies what is in the log.").tested(),
    m("cloud.read.single-copy", "26", &[], UNITS, "A client reads an entry that one server alone has.").tested(),
    m("cloud.read.uncommitted", "26", &[], UNITS, "A proxy shows a write that other copies may not have.").tested(),
    m("cloud.recovery.any-copy", "25", &[], UNITS, "An epoch begins though no copy of a sub-log answers.").tested(),
    m("cloud.recovery.dead-return", "25", &[], UNITS, "An entry that an earlier epoch did not adopt counts again.")
        .open("The usual seeds of each search pass."),
    m("cloud.recovery.drive-ignored", "29", &[], UNITS, "A server with an empty drive testifies to what the lost one had.").tested(),
    m("cloud.recovery.merged-adopted", "26", &[], UNITS, "A merged entry is adopted, and hides what was written after it.").tested(),
    m("cloud.recovery.merged-by-owner", "26", &[], UNITS, "An entry that one holder alone has merged is taken as merged.")
        .tested(),
    m("cloud.recovery.not-durable", "25", &[], UNITS, "A view leaves before it is durable.")
        .open("The usual seeds of each search pass."),
    m("cloud.recovery.void-ignored", "25", &[], UNITS, "An entry that was given up is adopted.").tested(),
    m("cloud.seal.ignored", "25", &[], UNITS, "A sealed server goes on to serve the old epoch.").tested(),
    m("cloud.storage.not-fenced", "25", &[], UNITS, "A proxy uses the storage layer without a fence of earlier epochs.").tested(),
    m("cloud.takeover.lagging-owner", "26", &[], UNITS, "A holder without the last batch becomes the owner.").tested(),
    m("cloud.takeover.not-equalized", "26", &[], UNITS, "A new owner serves before all holders have the last batch.").tested(),
    m("cloud.view.left-out-goes-on", "25", &[], UNITS, "A server that an epoch leaves out moves what it had under that epoch's number.").tested(),
    m("cloud.void.merged", "25", &[], UNITS, "An entry that was given up is merged.")
        .equivalent("A merger takes closed serials alone. A closed one that was given up is void on every copy, and no copy has its contents."),
    m("cloud.void.one-copy", "25", &[], UNITS, "A serial counts as given up when one copy has recorded it.").tested(),
    m("cloud.void.passed", "25", &[], UNITS, "A client reports serials as closed that are neither acknowledged nor void.").tested(),
    m("cloud.void.skipped", "25", &[], UNITS, "A client gives a serial up without recording it.").tested(),
    m("cloud.write.before-backups", "26", &[], UNITS, "A proxy answers a write that is durable on its own server alone.").tested(),
    m("cloud.write.not-rescheduled", "26", &[], UNITS, "A stable write that overlaps a live entry goes to its proxy.").tested(),
    m("cloud.write.repeated", "7", &[], UNITS, "A write that comes again is executed again.").tested(),
    m("cloud.write.two-paths", "26", &[], UNITS, "Overlapping writes are under way at once.").tested(),
];
