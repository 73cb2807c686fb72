//! Mutants of the servers beside their replicas: leases, write cache, slots, collection.

use super::plans::*;
use super::{Mutant, m};

const UNITS: &[&str] = &["server"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("server.gc.announce-once", "16", ONE, UNITS, "Announces a collection without permission once, and assumes that the switch knows."),
    m("server.lease.from-newest", "2", LEASES, UNITS, "A lease runs from the newest heartbeat, whichever was answered."),
    m("server.lease.no-drift", "2", LEASES, UNITS, "A lease is not shortened by what this clock may be slow."),
    m("server.lease.any-answer", "2", LEASES, UNITS, "An answer to an earlier incarnation's heartbeat is a lease."),
    m("server.welcome.other-incarnation", "1", ONE, UNITS, "The welcome of an earlier run counts for this one."),
    m("server.drive.before-owner", "30", &[], UNITS, "Uses the drive before the rack's identity is known."),
    m("server.view.older", "1", ONE, UNITS, "Installs a view that is older than its own."),
    m("server.view.shadow-readable", "3", CHOSEN, UNITS, "Announces a shadow as readable."),
    m("server.identity.any-set", "18", ONE, UNITS, "Serves a packet that names another set than its vSSD's."),
    m("server.failure.ignored", "12", ONE, UNITS, "A failed program or sync does not end the use of the drive."),
    m("server.cache.older", "Hermes", ONE, UNITS, "The cache takes a block older than the one it has.").tested(),
    m("server.cache.older-than-flash", "Hermes", ONE, UNITS, "The cache takes a block older than flash has.").tested(),
    m("server.cache.range-drops-newer", "10", FEW, UNITS, "A range record drops newer blocks from the cache.").tested(),
    m("server.cache.range-keeps-older", "10", FEW, UNITS, "A range record leaves older blocks in the cache."),
    m("server.cache.range-not-on-flash", "10", ONE, UNITS, "A range record is applied to the cache and not to flash."),
    m("server.persist.early", "12", CUTS, UNITS, "Says that what is in the cache is durable."),
    m("server.persist.no-barrier", "12", CUTS, UNITS, "Syncs before what was put earlier is programmed."),
    m("server.persist.under-way", "12", CUTS, UNITS, "Pages being programmed count as programmed when a sync begins."),
    m("server.persist.no-sync", "12", CUTS, UNITS, "Says that programmed pages are durable without a sync."),
    m("server.persist.ignore-failure", "12", ONE, UNITS, "A failed sync counts as one that succeeded.").tested(),
    m("server.cache.drop-overwritten", "Hermes", ONE, UNITS, "A block that was overwritten while it was programmed leaves the cache."),
    m("server.cache.freed-at-once", "9", SINGLE, UNITS, "Pages that range records freed count as free before those are durable."),
    m("server.cache.read-flash", "Hermes", ONE, UNITS, "Reads go to flash past the cache."),
    m("server.scan.flash-only", "3", ONE, UNITS, "What members compare leaves out the cache."),
    m("server.version.flash-only", "10", FEW, UNITS, "A range's version need not be above what is in the cache."),
    m("server.slot.not-cleared", "24", MOVES, UNITS, "Gives a slot back without erasing it.")
        .equivalent("A free entry of the drive\'s table holds nothing: what an earlier generation left there counts as erased, and a drive with more is refused."),
    m("server.slot.older-plan", "24", MOVES, UNITS, "Follows a plan older than the last."),
    m("server.log.unknown-deleted", "30", &[], UNITS, "A log of a keyspace that the metadata service has not given out is deleted."),
    m("server.log.made-again", "30", &[], UNITS, "A log that the drive had and has no longer is made again, empty."),
    m("server.log.made-early", "24", &[], UNITS, "A log is reported as made before the drive's table says so durably."),
    m("server.log.adopted", "30", &[], UNITS, "A log of a keyspace that the metadata service takes for new is served with what it holds."),
    m("server.log.older-plan", "24", &[], UNITS, "Follows a plan for logs older than the last."),
    m("server.log.served-deleted", "24", &[], UNITS, "A log is deleted while its service is there."),
    m("server.row.gone-early", "17", MOVES, UNITS, "A row counts as deleted while its announcement may be under way."),
    m("server.gc.soft-unacked", "20", ONE, UNITS, "An unacknowledged soft request collects.").tested(),
    m("server.gc.delay-accepts", "15", ONE, UNITS, "A delayed request collects."),
    m("server.gc.any-answer", "16", ONE, UNITS, "The answer to an older operation counts for the last."),
    m("server.gc.no-finish", "16", ONE, UNITS, "Does not report to the switch that it has finished."),
    m("server.gc.no-announce", "16", ONE, UNITS, "Does not repeat its state."),
    m("server.swap.unasked", "35", SWAPS, UNITS, "A slice of a swap of dies begins without asking the switch."),
    m("server.swap.shares-unasked", "35", SWAPS, UNITS, "A slice shares a collection without asking the switch."),
    m("server.swap.one-vssd", "35", SWAPS, UNITS, "A slice is asked for one vSSD of its dies alone."),
    m("server.swap.bit-stays", "35", SWAPS, UNITS, "Grants are kept after a slice."),
    m("server.swap.ends-early", "35", SWAPS, UNITS, "Grants are returned while the slice's last command is under way."),
    m("server.swap.keeps-others", "20", SWAPS, UNITS, "When one vSSD is delayed, those that are accepted stay so."),
    m("server.room.read-only", "34", ONE, UNITS, "A drive that takes no more programs has room.")
        .open("10 plans and its crate's tests pass: in none does a drive wear out."),
    m("server.room.cache-uncounted", "34", SINGLE, UNITS, "Blocks in the cache without a page take no room.").tested(),
    m("server.no-room.never-said", "architecture", &[], &["server", "runtime"], "A server does not say that its drive waits for room on the host's disk.").tested(),
    m("server.room.host-full", "9", &[], UNITS, "New blocks are taken though the host's disk has no room for them.").tested(),
];
