//! Mutants of the client of sets: sequences, the map, answers.

use super::plans::*;
use super::{Mutant, m};

/// Searches of the volume client run it.
const UNITS: &[&str] = &["client", "block"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("client.floor.early", "7", FEW, UNITS, "The floor passes mutations that are not answered."),
    m("client.floor.given-up-passed", "7", FEW, UNITS, "New mutations go out though a copy of an older one, which failed, may be carried out after them."),
    m("client.release.forgets-copies", "7", FEW, UNITS, "A mutation that failed counts as answered though copies of it may wait."),
    m("client.retry.new-sequence", "7", FEW, UNITS, "A mutation that is sent again gets another sequence."),
    m("client.map.older", "1", ONE, UNITS, "An older map of the rack counts."),
    m("client.sets.ended-before-known", "31", &[], UNITS, "A set counts as ended although the map may be older than the set."),
    m("client.reply.any-message", "7", ONE, UNITS, "The answer to an earlier message in a slot counts for the present one."),
];
