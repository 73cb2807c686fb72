//! Which incarnation follows another (protocol rule 32). Keys of datagrams are derived from it, and nonces count from zero in each, so
//! none may be used twice.
//!
//! No clock is read. A node whose counter is kept continues it. One without (new, lost, or damaged) draws from so large a range
//! that the number was never used before; peers that remember a newer incarnation answer with it
//! ([`rackweave_transport::Event::Outdated`]), and the counter continues above that. Each step is drawn, too: a directory that was
//! restored from a copy continues elsewhere than the first time.

/// First incarnations are drawn from here to twice this. Versions before counted nanoseconds since 1970, which are less until
/// 2043.
pub const FIRST: u64 = 1 << 61;
/// Longest step from one incarnation to the next: 2^30 of them are left from the last first one to the end.
pub const STEP: u64 = 1 << 32;

/// The counter is at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no incarnation is left above {last}")]
pub struct Exhausted {
    pub last: u64,
}

/// The incarnation after this node's `last` (zero: it has none) that is also above `newest`, which peers know (zero: they named
/// none). Drawn by 64 random bits.
///
/// # Errors
/// No incarnation is left.
pub fn above(last: u64, newest: u64, random: u64) -> Result<u64, Exhausted> {
    let newest = if mutant!("link.incarnation.below-newest") { 0 } else { newest };
    let last = last.max(newest);
    if last == 0 {
        return Ok(FIRST + random % FIRST);
    }
    let step = if mutant!("link.incarnation.not-drawn") { 1 } else { 1 + random % STEP };
    last.checked_add(step).ok_or(Exhausted { last })
}
