//! Mutants of the page layer: map, collector, range records, checkpoints, recovery, loans.

use super::plans::*;
use super::{Mutant, m};

const UNITS: &[&str] = &["flash"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("flash.gc.erase-early", "FB5", SINGLE, UNITS, "Erases a victim before what was moved out of it is durable.").tested(),
    m("flash.manager.erase-early", "FB5", &[], UNITS, "Erases a block that nobody needs before that is durable.").tested(),
    m("flash.map.older", "22", ONE, UNITS, "The map takes an older copy of a block."),
    m("flash.map.under-range", "10", ONE, UNITS, "A program that a newer range record overtook is mapped."),
    m("flash.map.order", "22", SINGLE, UNITS, "Of two copies of one version the earlier may count.").tested(),
    m("flash.gc.moved-over-newer", "FB5", SINGLE, UNITS, "What the collector moved counts though it was overwritten on the way.")
        .open("16 plans of its kinds and its crate's tests pass."),
    m("flash.program.failed-counts", "22", ONE, UNITS, "A page whose program failed is taken for programmed.")
        .open("8 plans of its kinds and its crate's tests pass."),
    m("flash.program.failed-lost", "22", ONE, UNITS, "What a failed program was to write is dropped.").tested(),
    m("flash.bad.reused", "FB1", ONE, UNITS, "A block that failed is used again.").tested(),
    m("flash.bad.mark-undurable", "FB1", ONE, UNITS, "A block's records are dropped before its mark is durable.").tested(),
    m("flash.gc.unverified", "29", ONE, UNITS, "The collector moves what fails its checksum as if it were sound.").tested(),
    m("flash.gc.lost-looks-sound", "29", ONE, UNITS, "The collector gives lost contents a checksum that is right.").tested(),
    m("flash.gc.no-journal", "22", SINGLE, UNITS, "Erases are not noted in the journal."),
    m("flash.gc.reads-ignored", "FB5", ONE, UNITS, "Erases a block while the host reads of it.")
        .open("8 plans of its kinds and its crate's tests pass: in those no read waits that long."),
    m("flash.gc.lost-range", "10", ONE, UNITS, "The collector forgets range records that it could not read.").tested(),
    m("flash.sync.no-ranges", "10", CUTS, UNITS, "A sync does not make range records durable."),
    m("flash.sync.under-way", "12", CUTS, UNITS, "A sync does not wait for the programs submitted before it.").tested(),
    m("flash.sync.forget-failure", "12", ONE, UNITS, "After a failed sync the drive goes on.").tested(),
    m("flash.ranges.drop-early", "10", SINGLE, UNITS, "Range records are dropped while older copies exist.").tested(),
    m("flash.ranges.below", "10", ONE, UNITS, "A record shows over a newer one.").tested(),
    m("flash.ranges.newer-hidden", "10", ONE, UNITS, "A range record hides newer blocks."),
    m("flash.recovery.older-checkpoint", "22", SINGLE, UNITS, "Recovery reads the older checkpoint, with the newer one's journal.").tested(),
    m("flash.recovery.no-journal", "22", SINGLE, UNITS, "Recovery uses a checkpoint of blocks that were erased since."),
    m("flash.recovery.full-journal", "22", SINGLE, UNITS, "Recovery uses a checkpoint whose journal was full.").tested(),
    m("flash.recovery.torn-piece", "22", SINGLE, UNITS, "Recovery uses a torn piece of a checkpoint.").tested(),
    m("flash.recovery.no-ranges", "10", CUTS, UNITS, "Recovery shows blocks that range records cover."),
    m("flash.recovery.sequence-anew", "22", SINGLE, UNITS, "Page sequences begin anew with each start.").tested(),
    m("flash.recovery.range-unchecked", "29", ONE, UNITS, "Recovery uses range records that fail their checksum.").tested(),
    m("flash.recovery.group-reused", "10", SINGLE, UNITS, "A new group of range records gets the number of one on flash.")
        .open("16 plans of its kinds and its crate's tests pass."),
    m("flash.wear.lower", "22", ONE, UNITS, "Erase counts after a start may be below the truth.")
        .open("8 plans of its kinds and its crate's tests pass."),
    m("flash.loan.any-owner", "RB3.5.2", GROUPS, UNITS, "Recovery takes blocks for its own that others borrowed."),
    m("flash.loan.dirty-as-clean", "RB3.5.2", GROUPS, UNITS, "A borrowed block comes back as erased, though it is not.")
        .open("8 plans of its kinds and its crate's tests pass."),
    m("flash.loan.unmarked", "RB3.5.2", GROUPS, UNITS, "A borrowed block's spare area does not say who borrowed it."),
    m("flash.swap.early", "FB8", SWAPS, UNITS, "Blocks move before the drive's table says that they may lie elsewhere."),
    m("flash.swap.erase-early", "FB9", SWAPS, UNITS, "The old place of a block is erased before its copy is durable.").tested(),
    m("flash.swap.collected-early", "FB9", SWAPS, UNITS, "A moved block may be collected while its old place bears its address.").tested(),
    m("flash.swap.reads-ignored", "FB9", SWAPS, UNITS, "The old place of a block is erased while the host reads of it.").tested(),
    m("flash.places.shorter", "FB5", SWAPS, UNITS, "Of two blocks that bear an address the shorter one counts.").tested(),
    m("flash.places.stale-kept", "FB5", SWAPS, UNITS, "A start keeps blocks that bear the address of another one."),
    m("flash.clear.not-durable", "24", MOVES, UNITS, "A cleared slot is given out before its erases are durable.")
        .open("8 plans of its kinds and its crate's tests pass."),
    m("flash.clear.keeps-data", "24", MOVES, UNITS, "A cleared slot still holds blocks."),
    m("flash.checkpoint.header-first", "22", SINGLE, UNITS, "A checkpoint's header is written before its body is durable.").tested(),
    m("flash.checkpoint.open-blocks", "22", SINGLE, UNITS, "A checkpoint describes blocks that still take programs.").tested(),
    m("flash.read.unverified", "29", ONE, UNITS, "A host read does not check what it read.").tested(),
    m("flash.alloc.reserve", "FB5", ONE, UNITS, "The host takes the collector's last block.").tested(),
    m("flash.manager.reads-any-owner", "30", &[], UNITS, "The flash manager reads a page of another owner.").tested(),
    m("flash.manager.moves-any-owner", "30", &[], UNITS, "The flash manager copies a page of another owner into a block of this one.").tested(),
    m("flash.manager.record-missing", "30", &[], UNITS, "A drive with pages whose record is gone is taken for a new one.").tested(),
    m("flash.log.any-owner", "30", &[], UNITS, "A log vSSD takes blocks that name another owner.").tested(),
    m("flash.table.any-drive", "30", EDITS, UNITS, "Another drive's table is accepted."),
    m("flash.table.any-shape", "30", EDITS, UNITS, "The table of a drive with another profile or geometry is accepted."),
    m("flash.table.any-share", "30", EDITS, UNITS, "A drive that was made with other shares is used as configured."),
    m("flash.table.older-copy", "30", SINGLE, UNITS, "Of two copies of the table the older one counts.").tested(),
    m("flash.table.damaged-counts", "30", &[], UNITS, "A copy of the table that fails its checksum is accepted.").tested(),
    m("flash.table.damaged-is-blank", "30", &[], UNITS, "A drive both copies of whose table are damaged is taken for new.").tested(),
    m("flash.table.lost-is-new", "30", &[], UNITS, "A drive without a table is taken for new though it holds data.").tested(),
    m("flash.table.in-place", "30", SINGLE, UNITS, "A change of the table is written over the only good copy.").tested(),
    m("flash.table.act-early", "30", MOVES, UNITS, "What a change of the table allows begins before that is durable.").tested(),
    m("flash.table.unsynced", "30", MOVES, UNITS, "A change of the table counts as durable without a sync.").tested(),
    m("flash.table.one-copy", "30", &[], UNITS, "A change of the table goes into one copy only.").tested(),
    m("flash.table.forget-incarnation", "30", &[], UNITS, "The table does not say which incarnation its server was given last.").tested(),
    m("flash.clear.same-generation", "30", MOVES, UNITS, "A cleared entry keeps its generation.").tested(),
    m("flash.assign.same-generation", "30", MOVES, UNITS, "An entry that is given out anew keeps its generation.").tested(),
    m("flash.checkpoint.any-owner", "30", MOVES, UNITS, "A checkpoint of another vSSD or generation is used.")
        .open("Not searched for, its crate's tests pass: what an earlier user's checkpoint describes is erased before the entry is free."),
    m("flash.oob.later-generation", "30", &[], UNITS, "A block of a generation later than the table's is taken.").tested(),
    m("flash.oob.any-place", "30", &[], UNITS, "A block that says that it lies elsewhere is taken.").tested(),
    m("flash.read.any-owner", "30", &[], UNITS, "The collector moves a page of another generation as its own.").tested(),
    m("flash.loss.spare-silent", "29", &[], UNITS, "Damaged spare areas are not reported as losses.").tested(),
    m("flash.loss.range-silent", "29", &[], UNITS, "Range records that cannot be read are not reported as losses.").tested(),
    m("flash.mark.forgotten", "29", &[], UNITS, "A start forgets which blocks are marked as lost.").tested(),
    m("flash.mark.looks-sound", "29", &[], UNITS, "A loss mark reads as zeroes.").tested(),
    m("flash.mark.stays", "29", &[], UNITS, "A block that was written again is listed as lost.").tested(),
    m("flash.checkpoint.marks-dropped", "29", &[], UNITS, "A checkpoint describes blocks with loss marks, which it does not hold.").tested(),
    m("flash.room.no-reserve", "34", SINGLE, UNITS, "What collection needs counts as room for data.").tested(),
    m("flash.table.repairs-good", "30", &[], UNITS, "A damaged copy of the table is repaired in the place of the good one.").tested(),
];
