//! `rackweave kv bench`: gets and puts of random keys, or the operations of YCSB, one at a time on each connection.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, Instant};

use rackweave_core::rng::mix64;
use rackweave_replay::ycsb::{self, RECORD_BYTES, Workload, Ycsb};

use super::client::{At, Client, Error, Value};
use crate::Failure;
use crate::args::KvBench;

/// Puts without an answer while the keys are created.
const CREATING_MAX: u64 = 32;

/// What is timed, in the order of the report.
#[derive(Clone, Copy)]
enum Kind {
    Get,
    Put,
    Insert,
    /// An MGET of the keys that follow one in the client's order: a rack's keys have none.
    Scan,
    /// A get, then a put.
    Modify,
}
const KINDS: [&str; 5] = ["get", "put", "insert", "scan", "modify"];

/// Latencies of one kind.
#[derive(Default)]
struct Sample(Vec<Duration>);
type Samples = [Sample; KINDS.len()];

impl Sample {
    fn percentile(&self, of_100: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        let at = (last as f64 * of_100 / 100.0).round() as usize;
        self.0.get(at).map_or(0.0, |d| d.as_secs_f64() * 1e6)
    }
}

/// The key of a record that exists before the measurement.
fn key(b: &KvBench, n: u64) -> Vec<u8> {
    match b.ycsb {
        Some(_) => format!("user{}", ycsb::key(n)).into_bytes(),
        None => format!("bench:{n}").into_bytes(),
    }
}
fn value(b: &KvBench, draw: u64) -> Vec<u8> {
    let bytes = if b.ycsb.is_some() { RECORD_BYTES as usize } else { b.value_bytes };
    (0..bytes.div_ceil(8) as u64).flat_map(|i| mix64(draw ^ i << 40).to_le_bytes()).take(bytes).collect()
}

/// Every key gets a value, so that no get is of a missing one.
fn create(at: At<'_>, b: &KvBench) -> Result<(), Error> {
    let mut rack = Client::connect(at)?;
    for n in 0..b.keys {
        rack.send(&[b"SET", &key(b, n), &value(b, n)])?;
        if n >= CREATING_MAX {
            rack.answer()?;
        }
    }
    (0..b.keys.min(CREATING_MAX)).try_for_each(|_| rack.answer().map(|_| ()))
}

/// One connection.
struct Worker<'a> {
    rack: Client,
    b: &'a KvBench,
    number: u64,
    samples: Samples,
    /// Keys in the order that scans follow.
    order: BTreeSet<Vec<u8>>,
}

impl Worker<'_> {
    /// Records beyond those that every client knows are this client's own.
    fn key(&self, record: u64) -> Vec<u8> {
        let mut key = key(self.b, record);
        if record >= self.b.keys {
            key.extend(format!(":{}", self.number).into_bytes());
        }
        key
    }
    fn timed(&mut self, kind: Kind, requests: &[&[&[u8]]]) -> Result<(), Error> {
        let begun = Instant::now();
        for request in requests {
            let answer = self.rack.call(request)?;
            let missing = |v: &Value| *v == Value::Null;
            if missing(&answer) || matches!(&answer, Value::List(all) if all.iter().any(missing)) {
                return Err(Error::Refused("a key is gone: something else deletes the benchmark's keys".into()));
            }
        }
        self.samples[kind as usize].0.push(begun.elapsed());
        Ok(())
    }
    /// Gets and puts of keys that are equally popular.
    fn uniform(&mut self, end: Instant) -> Result<(), Error> {
        for i in 0.. {
            if Instant::now() >= end {
                break;
            }
            let draw = mix64(mix64(self.b.seed ^ self.number << 48) ^ i);
            let key = self.key(draw % self.b.keys);
            if mix64(draw) % 100 >= u64::from(self.b.reads) {
                self.timed(Kind::Put, &[&[b"SET", &key, &value(self.b, draw)]])?;
            } else {
                self.timed(Kind::Get, &[&[b"GET", &key]])?;
            }
        }
        Ok(())
    }
    fn ycsb(&mut self, workload: Workload, end: Instant) -> Result<(), Error> {
        if workload == Workload::E {
            self.order = (0..self.b.keys).map(|n| self.key(n)).collect();
        }
        let ops = Ycsb::new(workload, self.b.keys, mix64(self.b.seed ^ self.number << 48));
        for (op, i) in ops.zip(0..) {
            if Instant::now() >= end {
                break;
            }
            let new = value(self.b, mix64(self.number << 48 ^ i));
            match op {
                ycsb::Op::Read { record } => self.timed(Kind::Get, &[&[b"GET", &self.key(record)]])?,
                ycsb::Op::Update { record } => self.timed(Kind::Put, &[&[b"SET", &self.key(record), &new]])?,
                ycsb::Op::Insert { record } => {
                    let key = self.key(record);
                    self.timed(Kind::Insert, &[&[b"SET", &key, &new]])?;
                    if workload == Workload::E {
                        self.order.insert(key);
                    }
                }
                ycsb::Op::Scan { record, records } => {
                    let keys: Vec<_> = self.order.range(self.key(record)..).take(records as usize).cloned().collect();
                    let request: Vec<&[u8]> =
                        std::iter::once(&b"MGET"[..]).chain(keys.iter().map(Vec::as_slice)).collect();
                    self.timed(Kind::Scan, &[&request])?;
                }
                ycsb::Op::ReadModifyWrite { record } => {
                    let key = self.key(record);
                    self.timed(Kind::Modify, &[&[b"GET", &key], &[b"SET", &key, &new]])?;
                }
            }
        }
        Ok(())
    }
}

/// One connection until the end.
fn client(at: At<'_>, b: &KvBench, number: u64, end: Instant) -> Result<Samples, Error> {
    let mut w = Worker { rack: Client::connect(at)?, b, number, samples: Samples::default(), order: BTreeSet::new() };
    match b.ycsb {
        Some(workload) => w.ycsb(workload, end)?,
        None => w.uniform(end)?,
    }
    Ok(w.samples)
}

pub fn run(at: At<'_>, b: &KvBench, out: &mut impl Write) -> Result<(), Failure> {
    create(at, b)?;
    let begun = Instant::now();
    let end = begun + Duration::from_secs(b.seconds);
    let all: Vec<Result<Samples, Error>> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..u64::from(b.clients)).map(|n| s.spawn(move || client(at, b, n, end))).collect();
        let ended = |t: std::thread::ScopedJoinHandle<'_, _>| t.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
        threads.into_iter().map(ended).collect()
    });
    let took = begun.elapsed().as_secs_f64();
    let mut sums = Samples::default();
    for samples in all {
        for (sum, sample) in sums.iter_mut().zip(samples?) {
            sum.0.extend(sample.0);
        }
    }
    sums.iter_mut().for_each(|s| s.0.sort_unstable());
    let rows = || KINDS.into_iter().zip(&sums).filter(|(_, s)| !s.0.is_empty());
    if b.json.json {
        let row = |(kind, s): (&str, &Sample)| {
            serde_json::json!({
                "kind": kind, "requests": s.0.len(), "per_s": s.0.len() as f64 / took, "p50_us": s.percentile(50.0),
                "p99_us": s.percentile(99.0), "max_us": s.percentile(100.0),
            })
        };
        writeln!(out, "{}", serde_json::json!({ "seconds": took, "rows": rows().map(row).collect::<Vec<_>>() }))?;
        return Ok(());
    }
    writeln!(
        out,
        "{:<6} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "", "requests", "a second", "p50 us", "p99 us", "max us"
    )?;
    for (kind, s) in rows() {
        let [p50, p99, max] = [50.0, 99.0, 100.0].map(|p| s.percentile(p));
        let n = s.0.len();
        writeln!(out, "{kind:<6} {n:>10} {:>10.0} {p50:>10.0} {p99:>10.0} {max:>10.0}", n as f64 / took)?;
    }
    Ok(())
}
