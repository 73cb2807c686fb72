//! The only use of a real clock in the simulator: sampling the CPU time of events.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::time::Instant;

/// One of this many events is timed; a prime, so that it is out of step with the events of a request.
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
