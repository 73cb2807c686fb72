//! Mutants of drives in files: durable stamps, torn pages, rows, identity.

use super::{Mutant, m};

const UNITS: &[&str] = &["device"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("device.sync.stamp-early", "12", &[], UNITS, "The durable stamp covers programs whose sync is not done."),
    m("device.sync.retry", "12", &[], UNITS, "After a failed fdatasync the next one counts."),
    m("device.torn.unseen", "29", &[], UNITS, "Torn pages are not looked for after a power cut."),
    m("device.torn.contents", "29", &[], UNITS, "A page whose contents are torn counts as whole."),
    m("device.torn.not-voided", "29", &[], UNITS, "Torn pages stay in the file."),
    m("device.row.damaged", "29", &[], UNITS, "A damaged row of the block table counts as a block never used."),
    m("device.row.in-place", "29", &[], UNITS, "A row is written over its last copy.").tested(),
    m("device.boot.same-generation", "30", &[], UNITS, "Generations and stamps of a new run repeat those of the last."),
    m("device.file.short", "29", &[], UNITS, "A file that was cut off is opened."),
    m("device.identity.shape", "30", &[], UNITS, "A drive of another shape or number is opened."),
    m("device.identity.rack", "30", &[], UNITS, "Another rack's drive is adopted."),
    m("device.erase.keeps-pages", "29", &[], UNITS, "An erase leaves the block's pages readable."),
    m("device.close.unsynced", "12", &[], UNITS, "A file is marked as closed before its contents are durable."),
    m("device.identity.renamed", "30", &[], UNITS, "A drive that has an id takes another one."),
    m("device.private.inherited-mode", "33", &[], UNITS, "Files have the mode that the umask leaves.").tested(),
    m("device.private.exposed", "33", &[], UNITS, "A directory that others may write to is used.").tested(),
    m("device.room.half-done", "12", &[], UNITS, "A command that found no room on the host's disk is half done when it is tried again."),
];
