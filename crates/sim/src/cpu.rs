//! The only place of the simulator that looks at a real clock: sampling what an event costs.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::time::Instant;

/// One event in this number is timed; a prime, so that it is not in step with the events of a request.
pub const SAMPLE_EVERY: u64 = 61;

/// A running measurement.
pub struct Stopwatch(Instant);

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }
    pub fn elapsed_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}
