//! RackBlox §3.4: how well the mean of the last packets predicts the time of the way back.

use rackweave_core::{Rng, Span};
use rackweave_sched::{Predictor, WINDOW};
use rackweave_sim::Network;
use serde_json::json;

use super::{Better, ExperimentError, Options, Outcome, Row};

/// A prediction is right within this, or within this part of the truth.
const WITHIN: Span = Span::from_micros(25);
const PART: f64 = 0.10;
/// Stream of the seed that the order of packets is drawn from.
const STREAM: u64 = 0x7072_6564;

/// Predictions that are near enough, per cent: within 25 µs, and within a tenth.
fn accuracy(delays_ns: impl Iterator<Item = u64>) -> (f64, f64) {
    let mut predictor = Predictor::new();
    let (mut near, mut part, mut all) = (0u64, 0u64, 0u64);
    for ns in delays_ns {
        // Unknown before the first.
        let told = predictor.predict();
        if told > Span::ZERO {
            let off = told.0.abs_diff(ns);
            near += u64::from(off <= WITHIN.0);
            part += u64::from(off as f64 <= PART * ns as f64);
            all += 1;
        }
        predictor.came(Span(ns));
    }
    let percent = |n: u64| 100.0 * n as f64 / all.max(1) as f64;
    (percent(near), percent(part))
}

/// Accuracy of the delays that the program carries.
pub(super) fn accuracies(o: Options) -> Result<Outcome, ExperimentError> {
    Ok(accuracies_of(o, &Network::excerpt(), "crates/sim/data/net_fast_10k.txt"))
}

/// Accuracy in the order of recording and in none, on the networks that the racks of the other experiments have.
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
        // A step of 40 µs: wrong until the mean has come within 25 µs, as 1 of 2, 2 of 3 … are of the new kind.
        let step = std::iter::repeat_n(100_000, 10).chain(std::iter::repeat_n(140_000, 10));
        let (near, _) = accuracy(step);
        // With 10 old and k new, the mean lacks 400 ÷ (10 + k) µs: within 25 from k = 6 on.
        assert_eq!(near, 100.0 * (9.0 + 4.0) / 19.0);
    }
}
