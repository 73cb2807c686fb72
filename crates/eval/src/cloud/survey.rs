//! The generated disks alone, without servers: what §2 says of the trace, and how well bursts are detected (§5.5).

use std::collections::VecDeque;

use rackweave_cloud::burst::{BurstConfig, Class, Detector};
use rackweave_core::{Rng, Span, Time};

use super::SERVERS;
use super::params::Params;
use super::traffic::{FINE, Traffic, prediction_error, spearman};
use super::workload::{Generator, Trace};

/// The ground truth: intervals with more than this times the mean of the last minute are bursts (§5.5).
const TRUTH_FACTOR: f64 = 10.0;
const MINUTE: usize = (60_000_000_000 / FINE.0) as usize;
/// Fewer intervals with writes give no correlation.
const PAIRS_MIN: usize = 20;
/// Intervals of [`FINE`] in 5 s.
const FIVE_SECONDS: usize = 50;

/// By interval of [`FINE`]: bytes written, of those at random, and of those detected as bursts.
struct Series {
    written: Vec<f32>,
    random: Vec<f32>,
    detected: Vec<f32>,
    offsets: VecDeque<u64>,
    detector: Detector,
}

/// Means over the disks that have a value.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: Option<f64>) {
        if let Some(v) = value {
            self.sum += v;
            self.count += 1;
        }
    }
    fn get(self) -> f64 {
        self.sum / f64::from(self.count)
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Survey {
    pub traffic: Traffic,
    /// Mean over disks: correlation of an interval's traffic with its share of random writes.
    pub spearman: f64,
    /// Mean over disks: errors of EWMA for intervals of 100 ms and 5 s.
    pub ewma_fine: f64,
    pub ewma_5s: f64,
    pub accuracy: Accuracy,
    pub bursts: f64,
}

/// Means over disks of recall and precision, by bytes and by intervals.
#[derive(Clone, Copy, Debug)]
pub struct Accuracy {
    pub recall_bytes: f64,
    pub precision_bytes: f64,
    pub recall_intervals: f64,
    pub precision_intervals: f64,
}

/// Surveys a time of the workload.
///
/// # Panics
/// If the parameters of detection are invalid.
pub fn survey(p: &Params, trace: Trace, burst: BurstConfig, length: Span, seed: u64) -> Survey {
    let mut generator = Generator::new(p, trace, seed);
    let n = (length.0 / FINE.0) as usize;
    let series = || Series {
        written: vec![0.0; n],
        random: vec![0.0; n],
        detected: vec![0.0; n],
        offsets: VecDeque::new(),
        detector: Detector::new(burst).expect("valid"),
    };
    let mut disks: Vec<Series> = (0..p.disks.count).map(|_| series()).collect();
    let homes = homes(p.disks.count, seed);
    let (mut traffic, mut detected, mut written) = (Traffic::default(), 0.0, 0.0);
    loop {
        let r = generator.advance();
        if r.at >= Time::ZERO + length {
            break;
        }
        traffic.add(r.at, homes[r.disk as usize], u64::from(r.len));
        if !r.write {
            continue;
        }
        let (d, i, len) = (&mut disks[r.disk as usize], (r.at.0 / FINE.0) as usize, r.len as f32);
        written += f64::from(len);
        d.written[i] += len;
        if d.offsets.iter().all(|o| o.abs_diff(r.offset) > burst.random_min_bytes) {
            d.random[i] += len;
        }
        if d.offsets.len() == burst.history {
            d.offsets.pop_front();
        }
        d.offsets.push_back(r.offset);
        if d.detector.write(r.at, r.offset, u64::from(r.len)) == Class::Burst {
            d.detected[i] += len;
            detected += f64::from(len);
        }
    }
    let [mut rank, mut fine, mut coarse] = [Mean::default(); 3];
    for d in &disks {
        rank.add(correlation(d));
        let bytes: Vec<f64> = d.written.iter().map(|b| f64::from(*b)).collect();
        fine.add(prediction_error(&bytes, p.model.ewma_alpha));
        let five: Vec<f64> = bytes.chunks_exact(FIVE_SECONDS).map(|c| c.iter().sum()).collect();
        coarse.add(prediction_error(&five, p.model.ewma_alpha));
    }
    let (accuracy, bursts) = (accuracy(&disks), detected / written);
    Survey { traffic, spearman: rank.get(), ewma_fine: fine.get(), ewma_5s: coarse.get(), accuracy, bursts }
}

/// The server of each disk: as many on each.
pub fn homes(disks: usize, seed: u64) -> Vec<usize> {
    let mut homes: Vec<usize> = (0..disks).map(|d| d % SERVERS).collect();
    Rng::stream(seed, u64::MAX - 1).shuffle(&mut homes);
    homes
}

fn correlation(d: &Series) -> Option<f64> {
    let pairs = d.written.iter().zip(&d.random).filter(|(w, _)| **w > 0.0);
    let pairs: Vec<_> = pairs.map(|(w, r)| (f64::from(*w), f64::from(r / w))).collect();
    if pairs.len() < PAIRS_MIN { None } else { spearman(&pairs) }
}

fn accuracy(disks: &[Series]) -> Accuracy {
    let mut means = [Mean::default(); 4];
    for d in disks {
        // Bytes and intervals: of bursts, detected, both.
        let (mut bytes, mut intervals) = ([0.0; 3], [0.0; 3]);
        let mut minute: f64 = d.written.iter().take(MINUTE).map(|b| f64::from(*b)).sum();
        for i in MINUTE..d.written.len() {
            let (w, found) = (f64::from(d.written[i]), f64::from(d.detected[i]));
            let is_burst = w > 0.0 && w > TRUTH_FACTOR * minute / MINUTE as f64;
            let is_found = found * 2.0 > w;
            for (sum, (part, hit)) in bytes.iter_mut().zip(&mut intervals).zip([
                (if is_burst { w } else { 0.0 }, is_burst),
                (found, is_found),
                (if is_burst { found } else { 0.0 }, is_burst && is_found),
            ]) {
                *sum.0 += part;
                *sum.1 += if hit { 1.0 } else { 0.0 };
            }
            minute += w - f64::from(d.written[i - MINUTE]);
        }
        let part = |of: [f64; 3], i: usize| (of[i] > 0.0).then(|| of[2] / of[i]);
        for (mean, value) in
            means.iter_mut().zip([part(bytes, 0), part(bytes, 1), part(intervals, 0), part(intervals, 1)])
        {
            mean.add(value);
        }
    }
    let [recall_bytes, precision_bytes, recall_intervals, precision_intervals] = means.map(Mean::get);
    Accuracy { recall_bytes, precision_bytes, recall_intervals, precision_intervals }
}
