//! Mutants of the simulated rack's clocks.

use super::plans::*;
use super::{Mutant, m};

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("rack.clock.drift-beyond", "2", LEASES, &[], "Clocks drift beyond what leases allow for.")
        .open("Not searched for, its crate's tests were not run."),
];
