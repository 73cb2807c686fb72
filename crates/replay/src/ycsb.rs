//! The six core workloads of the Yahoo Cloud Serving Benchmark (Cooper et al., SoCC 2010), drawn like its CoreWorkload.
//! Popularity follows a Zipf law of θ = 0.99, scattered over all records; D prefers the latest records, E scans 1 to
//! 100. A record has 10 fields of 100 bytes.

use rackweave_core::Rng;

/// Bytes of a record's fields.
pub const RECORD_BYTES: u32 = 10 * 100;
/// Longest scan of E.
pub const SCAN_MAX: u64 = 100;
const THETA: f64 = 0.99;
/// Records that the benchmark's scattered law ranks, whatever their actual number (its ScrambledZipfianGenerator) …
const SCATTERED: u64 = 10_000_000_000;
/// … and its value of Σ 1/i^θ over them.
const SCATTERED_ZETA: f64 = 26.469_028_201_783_02;
/// Fraction of the draws of [`popular`] that are the most popular record.
pub const HOTTEST: f64 = 1.0 / SCATTERED_ZETA;

/// One of the six workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// 50 % reads, 50 % updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads.
    C,
    /// 95 % reads of the latest, 5 % inserts.
    D,
    /// 95 % scans, 5 % inserts.
    E,
    /// 50 % reads, 50 % read-modify-writes.
    F,
}

impl Workload {
    pub const ALL: [Workload; 6] = [Workload::A, Workload::B, Workload::C, Workload::D, Workload::E, Workload::F];

    /// Fraction of the operations that only read.
    pub fn reads(self) -> f64 {
        match self {
            Workload::A | Workload::F => 0.5,
            Workload::B | Workload::D | Workload::E => 0.95,
            Workload::C => 1.0,
        }
    }
}

/// One operation. Records are numbered in the order of their insertion; [`key`] scatters them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Read { record: u64 },
    Update { record: u64 },
    Insert { record: u64 },
    Scan { record: u64, records: u64 },
    ReadModifyWrite { record: u64 },
}

/// Key of a record. The benchmark's `user` keys are ordered by this number, so successive records are no neighbours.
pub fn key(record: u64) -> u64 {
    // FNV-1a over the number's bytes, the lowest first, made positive as in Java.
    let bytes = record.to_le_bytes().into_iter();
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(1_099_511_628_211));
    (hash as i64).unsigned_abs()
}

/// A record of `n`, by the benchmark's law of scattered popularity.
pub fn popular(rng: &mut Rng, n: u64) -> u64 {
    let z = Zipf { n: SCATTERED, zeta: SCATTERED_ZETA, zeta_2: term(1) + term(2) };
    key(z.rank(rng)) % n
}

/// Zipf-distributed ranks, by Gray et al. ("Quickly generating billion-record synthetic databases", SIGMOD 1994).
#[derive(Clone, Debug)]
struct Zipf {
    n: u64,
    zeta: f64,
    zeta_2: f64,
}

fn term(i: u64) -> f64 {
    1.0 / (i as f64).powf(THETA)
}

impl Zipf {
    fn over(n: u64) -> Zipf {
        let mut z = Zipf { n: 0, zeta: 0.0, zeta_2: term(1) + term(2) };
        z.grow(n);
        z
    }
    fn grow(&mut self, n: u64) {
        self.zeta += (self.n + 1..=n).map(term).sum::<f64>();
        self.n = self.n.max(n);
    }
    /// A rank below `n`; 0 is the most popular.
    fn rank(&self, rng: &mut Rng) -> u64 {
        let u = rng.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < self.zeta_2 {
            return 1.min(self.n - 1);
        }
        let n = self.n as f64;
        let eta = (1.0 - (2.0 / n).powf(1.0 - THETA)) / (1.0 - self.zeta_2 / self.zeta);
        ((n * (eta * u - eta + 1.0).powf(1.0 / (1.0 - THETA))) as u64).min(self.n - 1)
    }
}

/// The endless operations of a client, determined by the seed.
#[derive(Clone, Debug)]
pub struct Ycsb {
    workload: Workload,
    rng: Rng,
    records: u64,
    popular: Zipf,
}

impl Ycsb {
    /// Operations on a store that has `records` records.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(workload: Workload, records: u64, seed: u64) -> Ycsb {
        assert!(records > 0, "the store is loaded before it is measured");
        let popular = match workload {
            Workload::D => Zipf::over(records),
            _ => Zipf { n: SCATTERED, zeta: SCATTERED_ZETA, zeta_2: term(1) + term(2) },
        };
        Ycsb { workload, rng: Rng::new(seed), records, popular }
    }
    /// Records in the store, inserted ones included.
    pub fn records(&self) -> u64 {
        self.records
    }
    fn existing(&mut self) -> u64 {
        let rank = self.popular.rank(&mut self.rng);
        match self.workload {
            Workload::D => self.records - 1 - rank,
            _ => key(rank) % self.records,
        }
    }
    fn insert(&mut self) -> Op {
        let record = self.records;
        self.records += 1;
        if self.workload == Workload::D {
            self.popular.grow(self.records);
        }
        Op::Insert { record }
    }
}

impl Iterator for Ycsb {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        let reads = self.rng.chance(self.workload.reads());
        Some(match (self.workload, reads) {
            (Workload::E, true) => {
                let record = self.existing();
                Op::Scan { record, records: self.rng.between(1, SCAN_MAX) }
            }
            (_, true) => Op::Read { record: self.existing() },
            (Workload::D | Workload::E, false) => self.insert(),
            (Workload::F, false) => Op::ReadModifyWrite { record: self.existing() },
            (_, false) => Op::Update { record: self.existing() },
        })
    }
}

#[cfg(test)]
#[path = "ycsb_tests.rs"]
mod tests;
