//! The successor of an incarnation (protocol rule 32). Datagram keys are derived from it, and nonces count from zero in
//! each, so no incarnation may be reused.
//!
//! No clock is read. A node whose counter is stored continues it. A node without one (new, lost, or damaged) draws from
//! a range so large that the number is new. Peers that remember a newer incarnation report it
//! ([`rackweave_transport::Event::Outdated`]), and the counter continues above that. Each step is also drawn, so that a
//! directory restored from a copy continues differently from the first time.

/// First incarnations are drawn from this to twice this. Earlier versions used nanoseconds since 1970, which stay below
/// it until 2043.
pub const FIRST: u64 = 1 << 61;
/// Longest step between incarnations: at least 2^30 steps remain after any first one.
pub const STEP: u64 = 1 << 32;

/// The counter is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no incarnation is left above {last}")]
pub struct Exhausted {
    pub last: u64,
}

/// The next incarnation after this node's `last` (zero for none), which is also above `newest`, the one that peers know
/// (zero if they named none). Drawn from 64 random bits.
///
/// # Errors
/// The counter is exhausted.
pub fn above(last: u64, newest: u64, random: u64) -> Result<u64, Exhausted> {
    let newest = if mutant!("link.incarnation.below-newest") { 0 } else { newest };
    let last = last.max(newest);
    if last == 0 {
        return Ok(FIRST + random % FIRST);
    }
    let step = if mutant!("link.incarnation.not-drawn") { 1 } else { 1 + random % STEP };
    last.checked_add(step).ok_or(Exhausted { last })
}
