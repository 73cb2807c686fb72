//! Generated cloud disks (DF10): log-normal rates, steady appends, bursts of random writes, reads. Each process of a disk
//! draws from a stream of its own, so all schemes see the same requests.

use rackweave_core::{BLOCK, Rng, Span, Time};
use rackweave_sim::queue::EventQueue;

use super::params::{Params, Sizes};

const GIB: f64 = (1u64 << 30) as f64;
/// Recently written blocks of a disk that reads may go to.
const RECENT: usize = 16;

/// A disk so quiet that its next random write is further away than this has one then: no run is as long.
const LONGEST_GAP: Span = Span::from_secs(86_400);

/// One request of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub at: Time,
    pub disk: u32,
    pub write: bool,
    pub offset: u64,
    pub len: u32,
}

/// Which trace's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    W1,
    W2,
}

impl Trace {
    pub fn name(self) -> &'static str {
        match self {
            Trace::W1 => "W1",
            Trace::W2 => "W2",
        }
    }
    /// Bytes read and written per second by all disks.
    pub fn rates(self, p: &Params) -> (f64, f64) {
        let l = &p.load;
        let (read, write) = match self {
            Trace::W1 => (l.w1_read_gib, l.w1_write_gib),
            Trace::W2 => (l.w2_read_gib, l.w2_write_gib),
        };
        let per_s = GIB / (l.hours * 3600.0);
        (read * per_s, write * per_s)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Stable,
    Burst,
    Read,
}

struct Disk {
    capacity: u64,
    /// Bytes written per second, on average.
    rate: f64,
    stable: Rng,
    burst: Rng,
    read: Rng,
    /// Next offset of each sequential stream.
    streams: Vec<u64>,
    burst_ends: Time,
    factor: f64,
    recent: [u64; RECENT],
    written: usize,
}

/// The requests of all disks in order of time, without end.
pub struct Generator {
    params: Params,
    mean: f64,
    disks: Vec<Disk>,
    /// Bytes read for each byte written.
    reads: f64,
    queue: EventQueue<(u32, Kind)>,
}

/// Rates of the disks as parts of the mean rate, highest first: the quantiles of a log-normal distribution, cut off at
/// `cap` times their mean.
pub fn rates(count: usize, sigma: f64, cap: f64) -> Vec<f64> {
    let raw = |i: usize| (sigma * normal_quantile(1.0 - (i as f64 + 0.5) / count as f64)).exp();
    let raw: Vec<f64> = (0..count).map(raw).collect();
    let mean = |most: f64| raw.iter().map(|r| r.min(most)).sum::<f64>() / count as f64;
    // The bound grows slower than `cap` times the mean of what it leaves, so a bisection finds where they meet.
    let (mut low, mut high) = (raw[count - 1], raw[0]);
    for _ in 0..200 {
        let middle = (low * high).sqrt();
        if middle < cap * mean(middle) { low = middle } else { high = middle }
    }
    let mean = mean(high);
    raw.iter().map(|r| r.min(high) / mean).collect()
}

/// Inverse of the standard normal distribution (Acklam's approximation, relative error below 1.2e-9).
fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -39.696_830_286_653_76,
        220.946_098_424_520_8,
        -275.928_510_446_969,
        138.357_751_867_269,
        -30.664_798_066_147_16,
        2.506_628_277_459_239,
    ];
    const B: [f64; 5] = [
        -54.476_098_798_224_06,
        161.585_836_858_040_9,
        -155.698_979_859_886_6,
        66.801_311_887_719_72,
        -13.280_681_552_885_72,
    ];
    const C: [f64; 6] = [
        -0.007_784_894_002_430_293,
        -0.322_396_458_041_136_5,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 4] =
        [0.007_784_695_709_041_462, 0.322_467_129_070_039_8, 2.445_134_137_142_996, 3.754_408_661_907_416];
    let poly = |c: &[f64], x: f64| c.iter().fold(0.0, |sum, c| sum * x + c);
    if p < 0.024_25 {
        let q = (-2.0 * p.ln()).sqrt();
        return poly(&C, q) / (poly(&D, q) * q + 1.0);
    }
    if p > 1.0 - 0.024_25 {
        return -normal_quantile(1.0 - p);
    }
    let (q, r) = (p - 0.5, (p - 0.5) * (p - 0.5));
    poly(&A, r) * q / (poly(&B, r) * r + 1.0)
}

impl Sizes {
    fn draw(&self, rng: &mut Rng) -> u32 {
        let mut left = rng.below(self.weights.iter().map(|w| u64::from(*w)).sum());
        for (kib, weight) in self.kib.iter().zip(&self.weights) {
            match left.checked_sub(u64::from(*weight)) {
                Some(rest) => left = rest,
                None => return kib << 10,
            }
        }
        // Not reached: `left` is below the sum of the weights.
        self.kib[0] << 10
    }
}

/// A block anywhere where `len` bytes fit.
fn anywhere(rng: &mut Rng, capacity: u64, len: u32) -> u64 {
    let block = u64::from(BLOCK);
    rng.below((capacity - u64::from(len)) / block + 1) * block
}

impl Disk {
    fn new(p: &Params, seed: u64, number: u32, rate: f64) -> Disk {
        let stream = |part: u64| Rng::stream(seed, u64::from(number) << 8 | part);
        let mut place = stream(0);
        let capacity = *place.pick(&p.disks.capacities_gib) << 30;
        let streams = (0..p.stable.streams).map(|_| anywhere(&mut place, capacity, 1 << 20)).collect();
        let (stable, burst, read) = (stream(1), stream(2), stream(3));
        let (burst_ends, factor) = (Time::ZERO, 0.0);
        Disk { capacity, rate, stable, burst, read, streams, burst_ends, factor, recent: [0; RECENT], written: 0 }
    }

    fn note(&mut self, offset: u64) {
        self.recent[self.written % RECENT] = offset;
        self.written += 1;
    }

    /// A steady write: its stream's next blocks, or now and then a random one on top. The sequential ones keep their pace.
    fn stable(&mut self, p: &Params) -> (u64, u32, Span) {
        let gap = seconds(p.step_bytes() / (self.rate * (1.0 - p.burst.share)));
        if self.stable.chance(p.stable.random_share) {
            let len = p.sizes.draw(&mut self.stable);
            let offset = anywhere(&mut self.stable, self.capacity, len);
            self.note(offset);
            return (offset, len, gap);
        }
        let len = p.stable.append_kib << 10;
        let i = self.stable.below(self.streams.len() as u64) as usize;
        let offset = if self.streams[i] + u64::from(len) > self.capacity { 0 } else { self.streams[i] };
        self.streams[i] = offset + u64::from(len);
        self.note(offset);
        (offset, len, gap)
    }

    /// The time until the next write of this burst, or until the first of the next burst that has one.
    fn burst_gap(&mut self, p: &Params, mean: f64, now: Time) -> Span {
        let mut at = now;
        loop {
            if self.factor > 0.0 {
                at += seconds(self.burst.exponential(mean / (self.factor * self.rate)));
                if at < self.burst_ends {
                    return at.since(now);
                }
                at = self.burst_ends;
            }
            let b = &p.burst;
            let length = Span::from_millis(self.burst.between(b.length_ms_min, b.length_ms_max));
            self.factor = b.factor_min + (b.factor_max - b.factor_min) * self.burst.unit();
            // Mean bytes of a burst ÷ bytes per second of bursts, less the burst itself.
            let cycle = self.factor * length.as_secs_f64() / b.share;
            at += seconds(self.burst.exponential((cycle - length.as_secs_f64()).max(1e-3)));
            self.burst_ends = at + length;
            if at.since(now) > LONGEST_GAP {
                return LONGEST_GAP;
            }
        }
    }

    fn read(&mut self, p: &Params) -> (u64, u32) {
        let len = p.sizes.draw(&mut self.read);
        let known = self.written.min(RECENT) as u64;
        if known > 0 && self.read.chance(p.read.recent_share) {
            let offset = self.recent[self.read.below(known) as usize];
            return (offset.min(self.capacity - u64::from(len)), len);
        }
        (anywhere(&mut self.read, self.capacity, len), len)
    }
}

fn seconds(s: f64) -> Span {
    Span((s * 1e9) as u64)
}

impl Generator {
    pub fn new(params: &Params, trace: Trace, seed: u64) -> Generator {
        let (read, write) = trace.rates(params);
        let d = &params.disks;
        let mut rates = rates(d.count, d.rate_sigma, d.rate_cap);
        Rng::stream(seed, u64::MAX).shuffle(&mut rates);
        let mean_rate = write / d.count as f64;
        let disk = |(n, r): (u32, &f64)| Disk::new(params, seed, n, r * mean_rate);
        let disks: Vec<Disk> = (0..).zip(&rates).map(disk).collect();
        let mean = params.sizes.mean_bytes();
        let mut g =
            Generator { params: params.clone(), mean, disks, reads: read / write, queue: EventQueue::default() };
        for n in 0..d.count as u32 {
            g.start(n);
        }
        g
    }

    /// Each process starts at a random instant of its first gap.
    fn start(&mut self, n: u32) {
        let d = &mut self.disks[n as usize];
        let p = &self.params;
        if p.burst.share < 1.0 {
            let gap = p.step_bytes() / (d.rate * (1.0 - p.burst.share));
            let at = Time::ZERO + seconds(gap * d.stable.unit());
            self.queue.push(at, (n, Kind::Stable));
        }
        if p.burst.share > 0.0 {
            let gap = d.burst_gap(p, self.mean, Time::ZERO);
            self.queue.push(Time::ZERO + gap, (n, Kind::Burst));
        }
        if self.reads > 0.0 {
            let gap = seconds(d.read.exponential(self.mean / (d.rate * self.reads)));
            self.queue.push(Time::ZERO + gap, (n, Kind::Read));
        }
    }

    /// Capacity of each disk, bytes.
    pub fn capacities(&self) -> Vec<u64> {
        self.disks.iter().map(|d| d.capacity).collect()
    }

    /// The next request; there is always one.
    ///
    /// # Panics
    /// Never: each process has one pending event.
    pub fn advance(&mut self) -> Request {
        let (at, (n, kind)) = self.queue.pop().expect("each process has a pending event");
        let (d, p) = (&mut self.disks[n as usize], &self.params);
        let (offset, len, gap) = match kind {
            Kind::Stable => d.stable(p),
            Kind::Burst => {
                let len = p.sizes.draw(&mut d.burst);
                let offset = anywhere(&mut d.burst, d.capacity, len);
                d.note(offset);
                (offset, len, d.burst_gap(p, self.mean, at))
            }
            Kind::Read => {
                let (offset, len) = d.read(p);
                (offset, len, seconds(d.read.exponential(self.mean / (d.rate * self.reads))))
            }
        };
        self.queue.push(at + gap, (n, kind));
        Request { at, disk: n, write: kind != Kind::Read, offset, len }
    }
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod tests;
