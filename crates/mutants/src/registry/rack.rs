//! Mutants of a process in the rack: clocks of the simulation, incarnations, memory.

use super::plans::*;
use super::{Mutant, m};

const UNITS: &[&str] = &["rack:lib"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("rack.clock.drift-beyond", "2", LEASES, &[], "Clocks drift beyond what leases allow for.")
        .open("16 plans of its kinds pass; it is no rule of a crate's, but what the simulation may draw."),
    m("rack.budget.unbounded", "33", &[], UNITS, "Connections get more memory than their process has for them.").tested(),
    m("rack.budget.unfair", "33", &[], UNITS, "A connection that waits for memory is overtaken by others.").tested(),
    m("rack.incarnation.not-durable", "32", &[], UNITS, "A process begins an incarnation that it has not written down.").tested(),
    m("rack.incarnation.below-newest", "32", &[], UNITS, "An incarnation may be below one that peers remember.").tested(),
    m("rack.incarnation.not-drawn", "32", &[], UNITS, "Incarnations count by one: a directory that was restored repeats them.").tested(),
    m("rack.incarnation.damaged-counts", "32", &[], UNITS, "A damaged counter of incarnations is believed.").tested(),
    m("rack.incarnation.stays-outdated", "32", &[], UNITS, "A process that receives `outdated` with a newer incarnation keeps its own.")
        .open("The library's tests pass: none sends `outdated` to a running process."),
    m("rack.budget.leaks", "33", &[], UNITS, "Memory of a connection that closed stays taken.").tested(),
    m("rack.budget.stalled-stays", "33", &[], UNITS, "A connection that does nothing with its memory keeps it.").tested(),
    m("rack.host.full-is-final", "12", &[], &["rack"], "A full host disk fails a drive.").tested(),
    m("rack.host.overtakes", "12", &[], &["rack"], "Changes of a drive overtake those that wait for room on the host's disk.").tested(),
];
