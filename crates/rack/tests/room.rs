//! Room that is reported can be written, and is nearly all that can be (protocol rule 34).

use rackweave_core::request::{AdminOp, RackStatus, ReplyData, RequestError, RequestId, RequestOp};
use rackweave_core::{Payload, Rng, Span, VolumeId};
use rackweave_rack::config::TimingConfig;
use rackweave_rack::sim::SimConfig;

use crate::rig::{Rig, small};

const BLOCK: u64 = 4096;
/// Writes under way: the rack is filled in less time.
const DEPTH: usize = 32;

#[derive(Clone, Copy, Debug)]
struct Case {
    servers: u32,
    replicas: u32,
    mib: u64,
}

/// Sizes and counts of drives; without `RACKWEAVE_ROOM=all` the first three.
const CASES: [Case; 12] = [
    Case { servers: 3, replicas: 3, mib: 64 },
    Case { servers: 4, replicas: 3, mib: 128 },
    Case { servers: 3, replicas: 2, mib: 96 },
    Case { servers: 3, replicas: 3, mib: 256 },
    Case { servers: 4, replicas: 3, mib: 1024 },
    Case { servers: 2, replicas: 2, mib: 512 },
    Case { servers: 5, replicas: 3, mib: 64 },
    Case { servers: 5, replicas: 2, mib: 300 },
    Case { servers: 6, replicas: 3, mib: 200 },
    Case { servers: 7, replicas: 3, mib: 768 },
    Case { servers: 8, replicas: 2, mib: 128 },
    Case { servers: 4, replicas: 4, mib: 2048 },
];

fn status(r: &mut Rig) -> RackStatus {
    match r.admin(AdminOp::RackStatus) {
        Ok(ReplyData::Rack(s)) => *s,
        other => panic!("{other:?}"),
    }
}

/// Writes what is told, many at a time, until one is refused for want of room. How many bytes were taken.
fn fill(r: &mut Rig, volume: VolumeId, writes: impl Iterator<Item = (u64, u32)>) -> Result<u64, u64> {
    let (mut taken, mut full, mut writes) = (0, false, writes.peekable());
    let mut under_way: Vec<(RequestId, u32)> = Vec::new();
    while !under_way.is_empty() || (!full && writes.peek().is_some()) {
        while under_way.len() < DEPTH && !full {
            let Some((offset, len)) = writes.next() else { break };
            let data = Payload::elided(len, (1 + offset) << 20);
            under_way.push((r.submit(RequestOp::Write { volume, offset, data, fua: false }), len));
        }
        r.run(Span::from_micros(500));
        under_way.retain(|&(id, len)| match r.answer(id) {
            None => true,
            Some(Ok(_)) => {
                taken += u64::from(len);
                false
            }
            Some(Err(RequestError::NoSpace)) => {
                full = true;
                false
            }
            Some(other) => panic!("{other:?}"),
        });
    }
    if full { Err(taken) } else { Ok(taken) }
}

/// Fills the room that is reported, then whatever is left; returns both.
fn filled(c: Case, random: bool) -> (u64, u64) {
    let mut cfg = small(c.servers, c.mib);
    (cfg.replicas, cfg.ssd.timing) = (c.replicas, TimingConfig::None);
    cfg.min_copies = cfg.min_copies.min(c.replicas);
    let mut r = Rig::new(&cfg, SimConfig::new(u64::from(c.servers) + c.mib));
    r.run(Span::from_secs(4));
    let before = status(&mut r);
    assert!(before.used == 0 && before.room > 0 && before.room <= before.capacity, "{before:?}");
    let v = r.volume("v", before.room).id;
    let mut rng = Rng::new(c.mib);
    // In order with large writes, or each block by itself in any order.
    let len = if random { BLOCK } else { 16 * BLOCK };
    let mut all: Vec<u64> = (0..before.room / len).collect();
    if random {
        (1..all.len()).rev().for_each(|i| all.swap(i, rng.below(i as u64 + 1) as usize));
    }
    let taken = fill(&mut r, v, all.into_iter().map(|i| (i * len, len as u32)));
    assert_eq!(taken, Ok(before.room / len * len), "{c:?}: no room before the reported room is used");
    assert_eq!(r.ask(RequestOp::Flush { volume: v }), Ok(ReplyData::Done));
    r.run(Span::from_secs(3));
    let after = status(&mut r);
    assert!(after.room <= before.room / 100, "{c:?}: {} of {} left", after.room, before.room);
    match r.admin(AdminOp::VolumeList) {
        Ok(ReplyData::Volumes(v)) => assert_eq!(v[0].used, before.room / len * len, "{c:?}: used by the volume"),
        other => panic!("{other:?}"),
    }
    // Set by set, as a volume could be written that favours the emptiest.
    let more = r.volume("more", before.room).id;
    let units = |k: u64| (0..1 << 14).map(move |i| ((i * u64::from(c.servers) + k) * 16 * BLOCK, BLOCK as u32));
    let mut extra = 0;
    for k in 0..u64::from(c.servers) {
        let bytes = before.room;
        extra += fill(&mut r, more, units(k).take_while(|w| w.0 + BLOCK <= bytes)).unwrap_or_else(|taken| taken);
    }
    (before.room, before.room + extra)
}

#[test]
fn reported_room_can_be_written_and_is_nearly_all_that_can() {
    let all = std::env::var("RACKWEAVE_ROOM").is_ok_and(|v| v == "all");
    for &c in &CASES[..if all { CASES.len() } else { 3 }] {
        for random in [false, true] {
            let (room, held) = filled(c, random);
            let ratio = room as f64 / held as f64;
            println!("{c:?}, {}: {ratio:.4} ({room} of {held} bytes)", if random { "random" } else { "in order" });
            assert!((0.98..=1.0).contains(&ratio), "{c:?}, random {random}: {ratio:.4}");
        }
    }
}
