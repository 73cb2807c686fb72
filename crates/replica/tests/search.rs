//! Wider searches than `faults`: writers of the same blocks with any sizes, unreadable copies, late duplicates; and whole
//! sets that crash repeatedly without losing flushed data. Everything is drawn from the seed.

use std::collections::BTreeMap;

use rackweave_core::msg::{IoError, IoReply, IoRequest, Role};
use rackweave_core::rng::seeds;
use rackweave_core::{BlockAddr, Rng, Span};
use rackweave_replica::trace;

use crate::cluster::{Cluster, Net, VOLUME};

const BLOCKS: u64 = 5;
const SERVERS: usize = 3;

/// Whether an unanswered operation of this client changes one of the blocks: a client keeps overlapping ones in order.
fn busy(c: &Cluster, client: usize, first: u64, end: u64) -> bool {
    c.clients[client].pending.values().filter(|p| !p.acked).any(|p| match &p.io {
        IoRequest::Write(w) => {
            w.range.first / 8 < end && first < (w.range.first + u64::from(w.range.count)).div_ceil(8)
        }
        IoRequest::Zero { range, .. } => u64::from(range.first) < end && first < u64::from(range.end()),
        _ => false,
    })
}

/// Submits a write or a zeroing of random blocks.
fn change(c: &mut Cluster, rng: &mut Rng, client: usize, to: usize) -> Option<u64> {
    let first = rng.below(BLOCKS * 8);
    let most = *rng.pick(&[3, 8, 24]);
    let count = rng.between(1, most.min(BLOCKS * 8 - first));
    let (block, blocks) = (first / 8, (first % 8 + count).div_ceil(8));
    if busy(c, client, block, block + blocks) {
        return None;
    }
    if rng.chance(0.25) {
        return Some(c.zero(client, to, block as u32, blocks as u32));
    }
    let whole = rng.chance(0.4);
    let (first, count) = if whole { (block * 8, blocks * 8) } else { (first, count) };
    Some(c.write(client, to, first, count as u32, rng.chance(0.1)))
}

/// Whether every server is a member, runs, and is reached by all.
fn well(c: &Cluster) -> bool {
    c.view.members.iter().filter(|m| m.role == Role::Member).count() == SERVERS
        && c.servers.iter().all(|s| s.up && !s.cut_off)
}

#[expect(clippy::too_many_lines, reason = "steps of one story")]
fn storm(seed: u64) -> Result<(), String> {
    let mut rng = Rng::stream(seed, 4);
    // Late duplicates are recognized only where a block has one writer (protocol rule 14).
    let writers = *rng.pick(&[1, 3]);
    let mut c = Cluster::new(SERVERS, writers, seed, Net { loss: *rng.pick(&[0.02, 0.1]), ..Net::BAD });
    for s in &mut c.servers {
        let mut store = s.store();
        (store.forget_ranges, store.slow) = (rng.chance(0.5), *rng.pick(&[0, 2, 3]));
    }
    let mut answered: Vec<(usize, u64)> = Vec::new();
    // At most one copy of each block is unreadable, so another member has it.
    let mut damaged: Option<usize> = None;
    for n in 0..220 {
        for _ in 0..rng.between(1, 4) {
            let (client, to) = (rng.below(writers as u64) as usize, rng.below(SERVERS as u64) as usize);
            match rng.below(10) {
                _ if c.waiting(client) >= 12 / writers => {}
                0..=3 => {
                    let first = rng.below(BLOCKS * 8 - 8);
                    c.read(client, to, first, rng.between(1, 8) as u32);
                }
                4 => _ = c.flush(client, to),
                _ => answered.extend(change(&mut c, &mut rng, client, to).map(|op| (client, op))),
            }
        }
        if writers == 1 && !answered.is_empty() && rng.chance(0.3) {
            let (client, op) = *rng.pick(&answered);
            c.late_copy(client, op, rng.below(SERVERS as u64) as usize);
        }
        if well(&c) && rng.chance(0.15) {
            let i = *damaged.get_or_insert(rng.below(SERVERS as u64) as usize);
            let addr = BlockAddr::new(VOLUME, rng.below(BLOCKS) as u32);
            // A block in the write cache is not on flash yet.
            if !c.servers[i].store().dirty.contains(&addr) && c.servers[i].store().contents().contains_key(&addr) {
                c.servers[i].store().corrupt.insert(addr);
            }
        }
        if n % 20 == 10 && rng.chance(0.6) {
            let i = rng.below(SERVERS as u64) as usize;
            let sound = c.servers.iter().all(|s| s.store().corrupt.is_empty());
            if well(&c) && sound {
                damaged = None;
                if rng.chance(0.5) { c.crash(i) } else { c.cut_off(i, true) }
            } else {
                (0..SERVERS).for_each(|i| {
                    c.restart(i);
                    c.cut_off(i, false);
                });
            }
        }
        let pause = Span::from_micros(rng.between(10, 6_000));
        c.run_for(pause);
    }
    c.calm();
    let idle = c.run_idle(Span::from_secs(30));
    // Reads of each copy heal it.
    for _ in 0..4 {
        for i in 0..SERVERS {
            c.read(0, i, 0, BLOCKS as u32 * 8);
        }
        c.run_idle(Span::from_secs(5));
    }
    let calm = c.converge(Span::from_secs(10));
    c.close();
    let unread = c.replies.iter().find(|r| matches!(r.2, IoReply::Failed(IoError::Corrupt)));
    if let Some((client, op, _)) = unread {
        let io = &c.clients[*client].pending[op].io;
        return Err(format!("operation {op} of {client} failed, though another copy can be read: {io:?}"));
    }
    if let Some((sector, h)) = c.history.violation() {
        return Err(format!("sector {sector} has no order: {h:?}"));
    }
    if !idle {
        return Err(format!("requests were not answered: {}", c.describe()));
    }
    calm?;
    let left: usize = c.servers.iter().map(|s| s.store().corrupt.len()).sum();
    if left > 0 { Err(format!("{left} copies are not healed")) } else { Ok(()) }
}

#[test]
fn writers_of_the_same_blocks_and_copies_that_cannot_be_read() {
    for seed in seeds(0..40) {
        storm(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// Values written to a block, in order; each covers the whole block.
#[derive(Clone, Debug, Default)]
struct Block {
    values: Vec<u64>,
    /// The operation of each entry of `values`.
    ops: Vec<u64>,
    /// Index of the newest flushed value: no read may return an older one.
    floor: usize,
}

/// One writer, and crashes of the whole set. Flushed and FUA writes survive.
fn crashes(seed: u64) -> Result<u64, String> {
    let mut rng = Rng::stream(seed, 5);
    let mut c = Cluster::new(SERVERS, 1, seed, Net { loss: *rng.pick(&[0.0, 0.05]), ..Net::BAD });
    c.track = false;
    for s in &mut c.servers {
        s.store().forget_ranges = rng.chance(0.5);
    }
    let mut blocks: BTreeMap<u64, Block> =
        (0..BLOCKS).map(|b| (b, Block { values: vec![0], ops: vec![0], floor: 0 })).collect();
    // Operations up to `lost` may have been lost, unless they were flushed: then the whole set recovered.
    let (mut recovered, mut lost) = (c.view.recovered, 0);
    for round in 0..4 {
        for _ in 0..rng.between(4, 40) {
            if std::mem::replace(&mut recovered, c.view.recovered) != c.view.recovered {
                lost = blocks.values().flat_map(|b| &b.ops).copied().max().unwrap_or(0);
            }
            let to = rng.below(SERVERS as u64) as usize;
            let b = rng.below(BLOCKS);
            match rng.below(12) {
                0 | 1 => flush(&mut c, &mut blocks, lost, to),
                2 if c.servers.iter().all(|s| s.up) => c.crash(to),
                3 => (0..SERVERS).for_each(|i| c.restart(i)),
                _ if busy(&c, 0, b, b + 1) => {}
                4 => {
                    let op = c.zero(0, to, b as u32, 1);
                    let block = blocks.get_mut(&b).expect("one of them");
                    block.values.push(0);
                    block.ops.push(op);
                }
                k => {
                    let op = c.write(0, to, b * 8, 8, k == 5);
                    let IoRequest::Write(w) = &c.clients[0].pending[&op].io else { unreachable!() };
                    let value = w.data.identity(0);
                    let block = blocks.get_mut(&b).expect("one of them");
                    block.values.push(value);
                    block.ops.push(op);
                    if k == 5 {
                        c.run_idle(Span::from_millis(rng.between(1, 200)));
                        if c.reply(0, op) == Some(&IoReply::Done) {
                            block.floor = block.values.len() - 1;
                        }
                    }
                }
            }
            c.run_for(Span::from_micros(rng.between(10, 4_000)));
        }
        (0..SERVERS).for_each(|i| c.crash(i));
        let before: Vec<u64> = c.clients[0].pending.iter().filter(|(_, p)| !p.acked).map(|(op, _)| *op).collect();
        c.clients[0].pending.clear();
        c.run_for(Span::from_millis(rng.between(1, 200)));
        for i in 0..SERVERS {
            c.run_for(Span::from_millis(rng.between(1, 40)));
            c.restart(i);
        }
        c.converge(Span::from_secs(20))?;
        for (b, block) in &mut blocks {
            let mut seen = Vec::new();
            for i in 0..SERVERS {
                let r = c.read(0, i, b * 8, 8);
                c.run_idle(Span::from_secs(10));
                let Some(IoReply::Data(d)) = c.reply(0, r) else { return Err("no answer".into()) };
                seen.push(d.identity(0));
            }
            // A message in flight may still arrive; its epoch is over.
            let at = (block.floor..block.values.len()).rev().find(|&k| block.values[k] == seen[0]);
            if at.is_none() || seen.iter().any(|v| *v != seen[0]) {
                return Err(format!("round {round}: block {b} is {seen:?}, of {block:?}; unanswered {before:?}"));
            }
            *block = Block { values: vec![seen[0]], ops: vec![0], floor: 0 };
        }
    }
    Ok(u64::from(c.view.epoch.0))
}

/// With no operation in flight: if the flush succeeds, all writes answered before it are durable, except those up to `lost`.
fn flush(c: &mut Cluster, blocks: &mut BTreeMap<u64, Block>, lost: u64, to: usize) {
    let answered = |c: &Cluster, op: u64| op == 0 || (op > lost && c.reply(0, op) == Some(&IoReply::Done));
    let newest = |b: &Block| (0..b.values.len()).rev().find(|&k| answered(c, b.ops[k])).unwrap_or(0);
    let floors: Vec<usize> = blocks.values().map(newest).collect();
    let recovered = c.view.recovered;
    let op = c.flush(0, to);
    c.run_idle(Span::from_millis(300));
    if c.reply(0, op) == Some(&IoReply::Done) && c.view.recovered == recovered {
        for (b, floor) in blocks.values_mut().zip(floors) {
            b.floor = b.floor.max(floor);
        }
    }
}

#[test]
fn whole_sets_crash_again_and_again_and_nothing_flushed_is_lost() {
    let of = seeds(0..40);
    let epochs: u64 = of.clone().map(|s| crashes(s).unwrap_or_else(|e| panic!("seed {s}: {e}"))).sum();
    assert!(of != (0..40) || epochs > 400, "{epochs} epochs");
}

/// Two blocks, of which one copy after another becomes unreadable: healing reads meet writes through other members.
fn healing(seed: u64) -> Result<u64, String> {
    let mut rng = Rng::stream(seed, 6);
    let mut c = Cluster::new(SERVERS, 2, seed, Net { loss: *rng.pick(&[0.0, 0.05, 0.2]), ..Net::BAD });
    for s in &mut c.servers {
        s.store().slow = *rng.pick(&[0, 2]);
    }
    for _ in 0..150 {
        let block = rng.below(2);
        let addr = BlockAddr::new(VOLUME, block as u32);
        let (damaged, writer) = (rng.below(SERVERS as u64) as usize, rng.below(SERVERS as u64) as usize);
        let elsewhere = (0..SERVERS).any(|i| c.servers[i].store().corrupt.contains(&addr));
        let there = !c.servers[damaged].store().dirty.contains(&addr)
            && c.servers[damaged].store().contents().contains_key(&addr);
        if there && !elsewhere {
            c.servers[damaged].store().corrupt.insert(addr);
            c.read(1, damaged, block * 8, 8);
        }
        if rng.chance(0.5) {
            c.run_for(Span::from_micros(rng.between(1, 400)));
        }
        if !busy(&c, 0, block, block + 1) {
            c.write(0, writer, block * 8, 8, false);
        }
        for _ in 0..rng.below(3) {
            c.run_for(Span::from_micros(rng.between(1, 600)));
            if c.waiting(1) < 6 {
                c.read(1, rng.below(SERVERS as u64) as usize, block * 8, 8);
            }
        }
        c.run_for(Span::from_micros(rng.between(10, 3_000)));
    }
    c.calm();
    let idle = c.run_idle(Span::from_secs(30));
    c.close();
    if let Some((sector, h)) = c.history.violation() {
        return Err(format!("sector {sector} has no order: {h:?}"));
    }
    if idle { Ok(c.count(trace::BLOCK_HEALED)) } else { Err(format!("requests were not answered: {}", c.describe())) }
}

#[test]
fn reads_that_heal_meet_writes() {
    let of = seeds(0..40);
    let healed: u64 = of.clone().map(|s| healing(s).unwrap_or_else(|e| panic!("seed {s}: {e}"))).sum();
    assert!(of != (0..40) || healed > 400, "{healed} healed");
}
