//! `rackweave kv bench`: gets and puts of random keys, one request at a time on each connection.

use std::io::Write;
use std::time::{Duration, Instant};

use rackweave_core::rng::mix64;

use super::client::{Client, Error, Value};
use crate::Failure;
use crate::args::KvBench;

/// Puts without an answer while the keys are created.
const CREATING_MAX: u64 = 32;

/// Latencies of one kind of requests.
#[derive(Default)]
struct Sample(Vec<Duration>);

impl Sample {
    fn percentile(&self, of_100: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        let at = (last as f64 * of_100 / 100.0).round() as usize;
        self.0.get(at).map_or(0.0, |d| d.as_secs_f64() * 1e6)
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("bench:{n}").into_bytes()
}
fn value(bytes: usize, draw: u64) -> Vec<u8> {
    (0..bytes.div_ceil(8) as u64).flat_map(|i| mix64(draw ^ i << 40).to_le_bytes()).take(bytes).collect()
}

/// Every key gets a value, so that no get is of a missing one.
fn create(uri: &str, b: &KvBench) -> Result<(), Error> {
    let mut rack = Client::connect(uri)?;
    for n in 0..b.keys {
        rack.send(&[b"SET", &key(n), &value(b.value_bytes, n)])?;
        if n >= CREATING_MAX {
            rack.answer()?;
        }
    }
    (0..b.keys.min(CREATING_MAX)).try_for_each(|_| rack.answer().map(|_| ()))
}

/// One connection until the end: gets, puts.
fn client(uri: &str, b: &KvBench, number: u64, end: Instant) -> Result<[Sample; 2], Error> {
    let mut rack = Client::connect(uri)?;
    let mut samples = [Sample::default(), Sample::default()];
    let mut i = 0;
    while Instant::now() < end {
        let draw = mix64(mix64(b.seed ^ number << 48) ^ i);
        i += 1;
        let (key, put) = (key(draw % b.keys), mix64(draw) % 100 >= u64::from(b.reads));
        let new = if put { value(b.value_bytes, draw) } else { Vec::new() };
        let begun = Instant::now();
        let answer = if put { rack.call(&[b"SET", &key, &new])? } else { rack.call(&[b"GET", &key])? };
        samples[usize::from(put)].0.push(begun.elapsed());
        if answer == Value::Null {
            return Err(Error::Refused(format!(
                "{} is gone: something else deletes the benchmark's keys",
                String::from_utf8_lossy(&key)
            )));
        }
    }
    Ok(samples)
}

pub fn run(uri: &str, b: &KvBench, out: &mut impl Write) -> Result<(), Failure> {
    create(uri, b)?;
    let begun = Instant::now();
    let end = begun + Duration::from_secs(b.seconds);
    let all: Vec<Result<[Sample; 2], Error>> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..u64::from(b.clients)).map(|n| s.spawn(move || client(uri, b, n, end))).collect();
        let ended = |t: std::thread::ScopedJoinHandle<'_, _>| t.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
        threads.into_iter().map(ended).collect()
    });
    let took = begun.elapsed().as_secs_f64();
    let mut sums = [Sample::default(), Sample::default()];
    for samples in all {
        for (sum, sample) in sums.iter_mut().zip(samples?) {
            sum.0.extend(sample.0);
        }
    }
    sums.iter_mut().for_each(|s| s.0.sort_unstable());
    let rows = || ["get", "put"].into_iter().zip(&sums).filter(|(_, s)| !s.0.is_empty());
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
        "{:<4} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "", "requests", "a second", "p50 us", "p99 us", "max us"
    )?;
    for (kind, s) in rows() {
        let [p50, p99, max] = [50.0, 99.0, 100.0].map(|p| s.percentile(p));
        let n = s.0.len();
        writeln!(out, "{kind:<4} {n:>10} {:>10.0} {p50:>10.0} {p99:>10.0} {max:>10.0}", n as f64 / took)?;
    }
    Ok(())
}
