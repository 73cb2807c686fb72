//! Prediction of an answer's network time (RB6; RackBlox §3.4).

use rackweave_core::Span;

/// Number of packets over which the prediction averages.
pub const WINDOW: usize = 100;

/// The mean network latency of the last [`WINDOW`] packets. A server has a predictor for each vSSD and direction, since
/// answers of reads and of writes differ in size.
#[derive(Clone, Debug, Default)]
pub struct Predictor {
    /// A ring of latencies, in ns.
    last: Vec<u32>,
    next: usize,
    sum: u64,
    mean: Span,
}

impl Predictor {
    pub fn new() -> Predictor {
        Predictor::default()
    }
    /// Records a packet's network time; at most about four seconds count.
    pub fn arrived(&mut self, net: Span) {
        let ns = u32::try_from(net.0).unwrap_or(u32::MAX);
        if self.last.len() < WINDOW {
            self.last.push(ns);
        } else {
            self.sum -= u64::from(self.last[self.next]);
            self.last[self.next] = ns;
            self.next = if self.next + 1 == WINDOW { 0 } else { self.next + 1 };
        }
        self.sum += u64::from(ns);
        self.mean = Span(self.sum / self.last.len() as u64);
    }
    /// Predicted time of the next answer; zero before any packet arrived.
    pub fn predict(&self) -> Span {
        self.mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prediction_is_the_mean_of_the_last_hundred() {
        let mut p = Predictor::new();
        assert_eq!(p.predict(), Span::ZERO);
        let lats: Vec<u64> = (0..350u64).map(|i| 40_000 + i * i % 977 * 100).collect();
        for (i, &l) in lats.iter().enumerate() {
            p.arrived(Span(l));
            let from = (i + 1).saturating_sub(WINDOW);
            let window = &lats[from..=i];
            assert_eq!(p.predict().0, window.iter().sum::<u64>() / window.len() as u64, "after {i}");
        }
    }

    #[test]
    fn an_absurd_latency_leaves_with_its_packet() {
        let mut p = Predictor::new();
        p.arrived(Span(u64::MAX));
        (0..WINDOW).for_each(|_| p.arrived(Span(50_000)));
        assert_eq!(p.predict(), Span(50_000));
    }
}
