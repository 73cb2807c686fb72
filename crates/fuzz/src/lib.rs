//! Fuzz targets of every parser: plain functions of bytes, run by libFuzzer (`make fuzz`, the binary `fuzz`), by ordinary tests over
//! the corpus in the tree, and by a seeded mutator in `make test`. docs/fuzzing.md lists them.
//!
//! A target takes the first bytes as choices ([`arbitrary`]): the input itself, or a valid structure drawn from the rest, which is
//! then corrupted. Where a checksum would hide the parser, it is computed again. It panics if an oracle fails.
#![allow(clippy::disallowed_types, reason = "no node")]

pub mod corrupt;
pub mod cost;
pub mod mutate;
mod targets;

/// A parser, or several of one format.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name of the corpus' directory, and of the row in docs/fuzzing.md.
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Longest input, bytes. Longer ones are truncated.
    pub len_max: usize,
    /// Cost of an input, as a multiple of decoding a packet.
    pub cost: u64,
}

/// All targets.
pub const TARGETS: &[Target] = targets::ALL;

impl Target {
    /// The target of this name.
    pub fn find(name: &str) -> Option<&'static Target> {
        TARGETS.iter().find(|t| t.name == name)
    }
    /// Tries one input.
    ///
    /// # Panics
    /// If an oracle of the target fails.
    pub fn check(&self, input: &[u8]) {
        (self.run)(&input[..input.len().min(self.len_max)]);
    }
}
