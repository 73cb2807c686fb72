//! VDC, the baseline that isolates tenants and ignores garbage collection (RB15; Angel et al., OSDI 2014): each flow
//! passes token buckets for every resource it uses, and a central controller sets their rates from the flows' demands.
//!
//! Pure: it decides when each request may go. Rates follow demand one round trip late, as the controller is a separate
//! node.

use rackweave_core::{Span, Time};

/// Resources of a request: bytes on the flow's link, and time of dies.
pub const RESOURCES: usize = 2;
pub type Amounts = [f64; RESOURCES];

/// Period of flows' reports of their demand (assumed; VDC gives none for such short flows).
pub const PERIOD: Span = Span::from_millis(50);
/// Tokens of a full bucket, as time (assumed): bursts shorter than it pass.
const DEPTH: Span = Span::from_millis(10);

/// Least allocation of a flow, as a fraction of an equal part (assumed).
const LEAST: f64 = 0.1;

/// Max-min fair parts of each resource: a flow that demands less than an equal part gets its demand, the others share
/// the rest. Unused capacity is added in equal parts, so that a flow may grow. A flow without demand gets [`LEAST`];
/// otherwise its first request would wait forever.
pub fn allocate(capacity: Amounts, demands: &[Amounts]) -> Vec<Amounts> {
    let mut out = vec![[0.0; RESOURCES]; demands.len()];
    for r in 0..RESOURCES {
        let least = capacity[r] / demands.len().max(1) as f64 * LEAST;
        let wants = |f: usize| demands[f][r].max(least);
        let mut order: Vec<usize> = (0..demands.len()).collect();
        order.sort_by(|&a, &b| wants(a).total_cmp(&wants(b)));
        let mut left = capacity[r];
        for (done, &f) in order.iter().enumerate() {
            out[f][r] = wants(f).min(left / (demands.len() - done) as f64);
            left -= out[f][r];
        }
        let more = left / demands.len().max(1) as f64;
        out.iter_mut().for_each(|f| f[r] += more);
    }
    out
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Tokens a second.
    rate: f64,
    tokens: f64,
    at: Time,
}

impl Bucket {
    fn fill(&mut self, now: Time) {
        let most = self.rate * DEPTH.as_secs_f64();
        self.tokens = (self.tokens + self.rate * now.since(self.at).as_secs_f64()).min(most);
        self.at = self.at.max(now);
    }
    /// Takes the tokens, also more than there are, and returns the time at which they suffice.
    fn take(&mut self, now: Time, tokens: f64) -> Time {
        self.fill(now);
        self.tokens -= tokens;
        if self.tokens >= 0.0 { now } else { now + Span((-self.tokens / self.rate * 1e9) as u64) }
    }
    fn set_rate(&mut self, now: Time, rate: f64) {
        self.fill(now);
        self.rate = rate;
    }
}

/// One client's traffic.
#[derive(Clone, Debug)]
struct Flow {
    buckets: [Bucket; RESOURCES],
    /// Demand of this period.
    asked: Amounts,
    last: Time,
}

/// All flows and their controller.
#[derive(Clone, Debug)]
pub struct Vdc {
    capacity: Amounts,
    flows: Vec<Flow>,
    next_period: Time,
    /// Rates sent by the controller, and their arrival time.
    coming: Option<(Time, Vec<Amounts>)>,
}

impl Vdc {
    /// `capacity` is per resource and second, for all flows together. Each flow begins with an equal part.
    pub fn new(capacity: Amounts, flows: usize) -> Vdc {
        let equal = capacity.map(|c| c / flows.max(1) as f64);
        let bucket = |rate: f64| Bucket { rate, tokens: rate * DEPTH.as_secs_f64(), at: Time::ZERO };
        let flow = Flow { buckets: equal.map(bucket), asked: [0.0; RESOURCES], last: Time::ZERO };
        Vdc { capacity, flows: vec![flow; flows], next_period: Time::ZERO + PERIOD, coming: None }
    }

    /// When a request of `flow` that arrived now with these needs may go; flows are first in, first out. `round_trip`
    /// draws the time of the controller's answer. To be called in order of time.
    pub fn admit(&mut self, now: Time, flow: usize, needs: Amounts, mut round_trip: impl FnMut() -> Span) -> Time {
        if now >= self.next_period {
            let period = PERIOD.as_secs_f64();
            let demands: Vec<Amounts> = self.flows.iter().map(|f| f.asked.map(|a| a / period)).collect();
            self.coming = Some((now + round_trip(), allocate(self.capacity, &demands)));
            self.flows.iter_mut().for_each(|f| f.asked = [0.0; RESOURCES]);
            self.next_period = now + PERIOD;
        }
        if let Some((_, rates)) = self.coming.take_if(|(at, _)| *at <= now) {
            for (f, rates) in self.flows.iter_mut().zip(rates) {
                f.buckets.iter_mut().zip(rates).for_each(|(b, rate)| b.set_rate(now, rate));
            }
        }
        let f = &mut self.flows[flow];
        let mut at = f.last.max(now);
        for ((bucket, asked), need) in f.buckets.iter_mut().zip(&mut f.asked).zip(needs) {
            *asked += need;
            at = at.max(bucket.take(now, need));
        }
        f.last = at;
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_demand_is_met_and_the_others_share_the_rest() {
        let got = allocate([90.0, 90.0], &[[10.0, 0.0], [100.0, 0.0], [60.0, 30.0]]);
        assert_eq!(got.iter().map(|g| g[0]).collect::<Vec<_>>(), [10.0, 40.0, 40.0]);
        // 30 of the second resource are demanded, and the minimum is 3: 54 are left.
        assert_eq!(got.iter().map(|g| g[1]).collect::<Vec<_>>(), [21.0, 21.0, 48.0]);
    }

    #[test]
    fn a_flow_beyond_its_part_waits_and_gets_more_a_round_trip_after_the_others_fall_silent() {
        let mut vdc = Vdc::new([2_000.0, 1e9], 2);
        let trip = || Span::from_millis(7);
        // 2,000 per second with a part of 1,000: ten are in the bucket, the rest go at half the rate.
        let ask = |vdc: &mut Vdc, ms: f64| {
            let now = Time((ms * 1e6) as u64);
            vdc.admit(now, 0, [1.0, 0.0], trip).since(now).as_micros_f64() / 1e3
        };
        let waits: Vec<f64> = (0..114).map(|i| ask(&mut vdc, f64::from(i) / 2.0)).collect();
        assert!(waits[..15].iter().all(|w| *w == 0.0), "{waits:?}");
        assert!((waits[100] - 41.0).abs() < 1.0, "{}", waits[100]);
        // The controller got the report at 50 ms, its answer arrives at 57: nearly twice the rate, and debt takes half
        // the time. Waiting requests keep their times.
        let later: Vec<f64> = (114..240).map(|i| ask(&mut vdc, f64::from(i) / 2.0)).collect();
        assert!(later[0] <= waits[113], "{} after {}", later[0], waits[113]);
        assert!(later[125] < waits[113] * 0.65, "{} after {}", later[125], waits[113]);
        // The other flow is not affected.
        assert_eq!(vdc.admit(Time(120_000_000), 1, [1.0, 0.0], trip), Time(120_000_000));
    }
}
