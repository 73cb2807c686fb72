//! Mutants of the page layer: map, collector, range records, checkpoints, recovery, loans.

use super::plans::*;
use super::{Mutant, m};

const UNITS: &[&str] = &["flash"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("flash.gc.erase-early", "FB5", SINGLE, UNITS, "Erases a victim before what was moved out of it is durable.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("flash.manager.erase-early", "FB5", &[], UNITS, "Erases a block that nobody needs before that is durable.")
        .open("Its crate's tests were not run."),
    m("flash.map.older", "22", ONE, UNITS, "The map takes an older copy of a block."),
    m("flash.map.under-range", "10", ONE, UNITS, "A program that a newer range record overtook is mapped."),
    m("flash.map.order", "22", SINGLE, UNITS, "Of two copies of one version the earlier may count.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("flash.gc.moved-over-newer", "FB5", SINGLE, UNITS, "What the collector moved counts though it was overwritten on the way.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("flash.program.failed-counts", "22", ONE, UNITS, "A page whose program failed is taken for programmed.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("flash.program.failed-lost", "22", ONE, UNITS, "What a failed program was to write is dropped.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("flash.bad.reused", "FB1", ONE, UNITS, "A block that failed is used again.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("flash.bad.mark-undurable", "FB1", ONE, UNITS, "A block's records are dropped before its mark is durable.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("flash.gc.unverified", "29", ONE, UNITS, "The collector moves what fails its checksum as if it were sound.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("flash.gc.lost-looks-sound", "29", ONE, UNITS, "The collector gives lost contents a checksum that is right.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("flash.gc.no-journal", "22", SINGLE, UNITS, "Erases are not noted in the journal."),
    m("flash.gc.reads-ignored", "FB5", ONE, UNITS, "Erases a block while the host reads of it.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("flash.gc.lost-range", "10", ONE, UNITS, "The collector forgets range records that it could not read.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("flash.sync.no-ranges", "10", CUTS, UNITS, "A sync does not make range records durable."),
    m("flash.sync.under-way", "12", CUTS, UNITS, "A sync does not wait for the programs submitted before it.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("flash.sync.forget-failure", "12", ONE, UNITS, "After a failed sync the drive goes on.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("flash.ranges.drop-early", "10", SINGLE, UNITS, "Range records are dropped while older copies exist.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("flash.ranges.below", "10", ONE, UNITS, "A record shows over a newer one.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("flash.ranges.newer-hidden", "10", ONE, UNITS, "A range record hides newer blocks."),
    m("flash.recovery.older-checkpoint", "22", SINGLE, UNITS, "Recovery reads the older checkpoint, with the newer one's journal.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("flash.recovery.no-journal", "22", SINGLE, UNITS, "Recovery believes a checkpoint of blocks that were erased since."),
    m("flash.recovery.full-journal", "22", SINGLE, UNITS, "Recovery believes a checkpoint whose journal was full.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("flash.recovery.torn-piece", "22", SINGLE, UNITS, "Recovery believes a piece of a checkpoint that is torn.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("flash.recovery.no-ranges", "10", CUTS, UNITS, "Recovery shows blocks that range records cover."),
    m("flash.recovery.sequence-anew", "22", SINGLE, UNITS, "Page sequences begin anew with each start.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("flash.recovery.range-unchecked", "29", ONE, UNITS, "Recovery believes range records that fail their checksum.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("flash.recovery.group-reused", "10", SINGLE, UNITS, "A new group of range records gets the number of one on flash.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("flash.wear.lower", "22", ONE, UNITS, "Erase counts after a start may be below the truth.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("flash.loan.any-owner", "RB3.5.2", GROUPS, UNITS, "Recovery takes blocks for its own that others borrowed."),
    m("flash.loan.dirty-as-clean", "RB3.5.2", GROUPS, UNITS, "A borrowed block comes back as erased, though it is not.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("flash.loan.unmarked", "RB3.5.2", GROUPS, UNITS, "A borrowed block's spare area does not say who borrowed it."),
    m("flash.clear.not-durable", "24", MOVES, UNITS, "A cleared slot is given out before its erases are durable.")
        .open("8 plans of its kinds pass, its crate's tests were not run."),
    m("flash.clear.keeps-data", "24", MOVES, UNITS, "A cleared slot still holds blocks."),
    m("flash.checkpoint.header-first", "22", SINGLE, UNITS, "A checkpoint's header is written before its body is durable.")
        .open("16 plans of its kinds pass, its crate's tests were not run."),
    m("flash.checkpoint.open-blocks", "22", SINGLE, UNITS, "A checkpoint describes blocks that still take programs.")
        .open("Not searched for, its crate's tests were not run."),
    m("flash.read.unverified", "29", ONE, UNITS, "A host read does not check what it read.")
        .open("Not searched for, its crate's tests were not run."),
    m("flash.alloc.reserve", "FB5", ONE, UNITS, "The host takes the collector's last block.")
        .open("Not searched for, its crate's tests were not run."),
];
