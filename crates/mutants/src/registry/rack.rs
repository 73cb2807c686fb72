//! Mutants of a process in the rack: clocks of the simulation, incarnations, memory.

use super::plans::*;
use super::{Mutant, m};

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("rack.clock.drift-beyond", "2", LEASES, &[], "Clocks drift beyond what leases allow for.")
        .open("Not searched for, its crate's tests were not run."),
    m("rack.budget.unbounded", "33", &[], &["rack"], "Connections get more memory than their process has for them.")
        .open("Not searched for, its crate's tests were not run."),
    m("rack.budget.unfair", "33", &[], &["rack"], "A connection that waits for memory is overtaken by others.")
        .open("Not searched for, its crate's tests were not run."),
    m("rack.incarnation.not-durable", "32", &[], &["rack"], "A process begins an incarnation that it has not written down.")
        .open("Not searched for, its crate's tests were not run."),
    m("rack.incarnation.below-newest", "32", &[], &["rack"], "An incarnation may be below one that peers remember.")
        .open("Not searched for, its crate's tests were not run."),
    m("rack.host.full-is-final", "12", &[], &["rack"], "A full host disk fails a drive.").tested(),
    m("rack.host.overtakes", "12", &[], &["rack"], "Changes of a drive overtake those that wait for room on the host's disk.").tested(),
];
