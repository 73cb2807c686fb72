//! Networks of the tests.

use rackweave_core::Span;
use rackweave_sim::{Latency, LinkFaults, Network};

#[derive(Clone, Copy, Debug)]
pub struct Net {
    pub loss: f64,
    pub duplicate: f64,
    pub delay_us: u64,
    /// Extra delay of a duplicate, and sometimes of any packet.
    pub late_us: u64,
}

impl Net {
    pub const GOOD: Net = Net { loss: 0.0, duplicate: 0.0, delay_us: 20, late_us: 20 };
    pub const BAD: Net = Net { loss: 0.05, duplicate: 0.05, delay_us: 300, late_us: 8_000 };

    pub fn faults(&self) -> LinkFaults {
        let late = self.late_us * 1_000;
        let (loss, duplicate) = (self.loss, self.duplicate);
        LinkFaults { loss, duplicate, reorder: duplicate, reorder_extra_ns: late, duplicate_extra_ns: late }
    }
    pub fn network(&self) -> Network {
        let half = Span(self.delay_us * 500);
        let latency = Latency::Exponential { base: Span::from_micros(1), mean: half };
        Network { latency, bytes_per_s: 0, faults: self.faults(), ..Network::constant(half) }
    }
}
