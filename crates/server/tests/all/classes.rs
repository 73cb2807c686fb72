//! Online and offline work on the same vSSDs (PN10, C3 figure 18), in virtual time.

use std::collections::BTreeMap;

use rackweave_core::msg::{Class, IoRequest, SectorRange};
use rackweave_core::{BLOCK, Payload, Rng, SECTORS_PER_BLOCK, Span, Time};

use super::rack::{Options, Rack, VOLUME};

/// Blocks that exist to be read; offline writes go after them.
const BLOCKS: u32 = 8_192;
/// Offline writes wrap around here.
const WRITTEN_TO: u32 = 9 * BLOCKS;
/// Blocks of one offline request.
const LONG: u32 = 16;
/// Blocks of an offline read: a page.
const PAGE: u32 = 4;
const ONLINE_EVERY: Span = Span::from_micros(800);
const OFFLINE_EVERY: Span = Span::from_micros(4_800);
/// 64 KiB offline writes in flight at any time: the writer never runs out.
const OFFLINE_WRITES: usize = 4;
const SPAN: Span = Span::from_secs(22);
/// Without classes the effect shows at once.
const SPAN_MIXED: Span = Span::from_secs(5);
/// The tokens start at the full rate; the time before this is left out in all runs.
const SETTLE: Span = Span::from_secs(2);

struct Outcome {
    p99: Span,
    online_bytes: u64,
    offline_bytes: u64,
    offline_written: u64,
}

fn rack() -> Rack {
    let mut r = Rack::serving(Options { ssd_bytes: 3 << 30, cache_slots: 3 * 4096, ..Options::default() });
    for first in (0..BLOCKS).step_by(LONG as usize) {
        let io = r.write_request(first, Payload::elided(LONG * BLOCK, u64::from(first)), false);
        assert!(r.ask(0, 0, &io, Span::from_secs(5)).is_some());
    }
    r.flush(0);
    r.run(Span::from_secs(1));
    r
}

fn read(block: u32, count: u32) -> IoRequest {
    let first = u64::from(block) * u64::from(SECTORS_PER_BLOCK);
    IoRequest::read(SectorRange { volume: VOLUME, first, count: count * SECTORS_PER_BLOCK })
}

/// Online 4 KiB reads at random times; optionally offline 16 KiB reads at this interval and a writer that never runs
/// out.
fn run(span: Span, offline: Option<(Class, Span)>) -> Outcome {
    let (mut r, mut rng) = (rack(), Rng::new(18));
    let start = r.now();
    let wait = |rng: &mut Rng, mean: Span| Span(rng.exponential(mean.0 as f64) as u64);
    let (mut online, mut other): (BTreeMap<u64, Time>, BTreeMap<u64, bool>) = Default::default();
    let (mut next_online, mut next_read, mut next_block) = (start, start, BLOCKS);
    let (mut took, mut bytes, mut written) = (Vec::new(), 0, 0);
    while r.now() < start + span {
        if let Some((class, every)) = offline {
            while other.values().filter(|w| **w).count() < OFFLINE_WRITES {
                let io = r.write_request(next_block, Payload::elided(LONG * BLOCK, u64::from(next_block)), false);
                next_block = if next_block < WRITTEN_TO { next_block + LONG } else { BLOCKS };
                other.insert(r.send_as(class, 0, 0, io), true);
            }
            if next_read <= r.now() {
                let block = rng.below(u64::from(BLOCKS / PAGE)) as u32 * PAGE;
                other.insert(r.send_as(class, 0, rng.below(3) as usize, read(block, PAGE)), false);
                next_read = r.now() + wait(&mut rng, every);
            }
        }
        if next_online <= r.now() {
            let block = rng.below(u64::from(BLOCKS)) as u32;
            let id = r.send_as(Class::Silver, 0, rng.below(3) as usize, read(block, 1));
            online.insert(id, r.now());
            next_online = r.now() + wait(&mut rng, ONLINE_EVERY);
        }
        let until = next_online.min(if offline.is_some() { next_read } else { Time::MAX });
        r.run_until_answer(until);
        for (id, at) in std::mem::take(&mut r.answered) {
            let settled = at > start + SETTLE;
            if let Some(sent) = online.remove(&id) {
                if !settled {
                    continue;
                }
                took.push(at.since(sent));
            } else if let Some(write) = other.remove(&id)
                && settled
                && at != Time::MAX
            {
                bytes += u64::from(if write { LONG } else { PAGE } * BLOCK);
                written += u64::from(write) * u64::from(LONG * BLOCK);
            }
        }
    }
    took.sort_unstable();
    let p99 = took[took.len() * 99 / 100];
    Outcome { p99, online_bytes: took.len() as u64 * u64::from(BLOCK), offline_bytes: bytes, offline_written: written }
}

#[test]
fn offline_work_at_two_fifths_of_the_throughput_leaves_online_reads_alone() {
    let alone = run(SPAN, None);
    let classed = run(SPAN, Some((Class::Copper, OFFLINE_EVERY)));
    let mixed = run(SPAN_MIXED, Some((Class::Silver, OFFLINE_EVERY)));
    let part = |o: &Outcome| o.offline_bytes as f64 / (o.offline_bytes + o.online_bytes) as f64;
    let slower = |o: &Outcome| o.p99.0 as f64 / alone.p99.0 as f64;
    println!(
        "online P99 {} alone; {} with offline work at {:.0} % of the throughput ({} KiB/s written); {} without classes",
        alone.p99,
        classed.p99,
        part(&classed) * 100.0,
        classed.offline_written / ((SPAN.0 - SETTLE.0) / 1_000_000_000) / 1024,
        mixed.p99,
    );
    assert!(part(&classed) >= 0.39, "offline {:.2} of the throughput", part(&classed));
    assert!(classed.offline_written > 0, "the writer goes on");
    assert!(slower(&classed) <= 1.05, "P99 × {:.3}", slower(&classed));
    assert!(slower(&mixed) > 1.5, "without classes P99 × {:.3}: nothing was shown", slower(&mixed));
}
