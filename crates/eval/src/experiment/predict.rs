//! RackBlox §3.4: accuracy of the mean of the last packets as a prediction of the answer's network time.

use rackweave_core::{Rng, Span};
use rackweave_sched::{Predictor, WINDOW};
use rackweave_sim::Network;
use serde_json::json;

use super::{Better, ExperimentError, Options, Outcome, Row};

/// A prediction is accurate within this, or within a tenth of the true delay.
const WITHIN: Span = Span::from_micros(25);
const PART: f64 = 0.10;
/// Stream of the seed for the order of packets.
const STREAM: u64 = 0x7072_6564;

/// Percentages of accurate predictions: within 25 µs, and within a tenth.
fn accuracy(delays_ns: impl Iterator<Item = u64>) -> (f64, f64) {
    let mut predictor = Predictor::new();
    let (mut near, mut part, mut all) = (0u64, 0u64, 0u64);
    for ns in delays_ns {
        // Zero before the first packet.
        let told = predictor.predict();
        if told > Span::ZERO {
            let off = told.0.abs_diff(ns);
            near += u64::from(off <= WITHIN.0);
            part += u64::from(off as f64 <= PART * ns as f64);
            all += 1;
        }
        predictor.arrived(Span(ns));
    }
    let percent = |n: u64| 100.0 * n as f64 / all.max(1) as f64;
    (percent(near), percent(part))
}

/// Accuracy with the built-in delays.
pub(super) fn accuracies(o: Options) -> Result<Outcome, ExperimentError> {
    Ok(accuracies_of(o, &Network::excerpt(), "crates/sim/data/net_fast_10k.txt"))
}

/// Accuracy in recorded and in random order, on the networks of the other experiments.
pub(super) fn accuracies_of(options: Options, delays: &[u32], source: &str) -> Outcome {
    let mut shuffled = delays.to_vec();
    Rng::stream(options.seed, STREAM).shuffle(&mut shuffled);
    let scaled = |percent: u64| delays.iter().map(move |&ns| u64::from(ns) * percent / 100);
    let rows = [
        ("fast, as recorded", accuracy(scaled(100)), Some(95.0)),
        ("fast, shuffled", accuracy(shuffled.iter().map(|&ns| u64::from(ns))), None),
        ("medium (× 2.4), as recorded", accuracy(scaled(240)), None),
        ("slow (× 6), as recorded", accuracy(scaled(600)), None),
    ];
    let rows = rows.into_iter().flat_map(|(name, (near, part), paper)| {
        let mut within = Row::new(format!("{name}: within 25 µs"), "% of packets", Better::Higher, near);
        within.paper = paper;
        [within, Row::new(format!("{name}: within a tenth"), "% of packets", Better::Higher, part)]
    });
    let config = json!({"delays": source, "packets": delays.len(), "window": WINDOW});
    Outcome::new(config, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accuracy_is_counted_against_what_comes_next() {
        assert_eq!(accuracy([100_000; 50].into_iter()), (100.0, 100.0));
        // A step of 40 µs: inaccurate until the mean is within 25 µs, as 1 of 2, 2 of 3 … packets are after the step.
        let step = std::iter::repeat_n(100_000, 10).chain(std::iter::repeat_n(140_000, 10));
        let (near, _) = accuracy(step);
        // With 10 old and k new packets, the mean is off by 400 ÷ (10 + k) µs: within 25 from k = 6 on.
        assert_eq!(near, 100.0 * (9.0 + 4.0) / 19.0);
    }
}
