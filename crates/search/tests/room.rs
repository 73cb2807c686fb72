//! Reported room can be written, and is nearly all that can be (protocol rule 34).

use rackweave_config::{Isolation, Levels, TimingConfig};
use rackweave_core::admin::{self, RackStatus};
use rackweave_core::request::RequestId;
use rackweave_core::volume;
use rackweave_core::{Payload, Rng, Span, VolumeId};
use rackweave_rack::sim::{Contents, SimConfig};
use rackweave_server::VssdStatus;

use crate::rig::{Rig, small};

const BLOCK: u64 = 4096;
/// Writes in flight, which shorten the filling.
const DEPTH: usize = 32;

/// State or history of the drives when their room is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    New,
    /// Each has a free slot.
    Spare,
    /// Blocks have failed while half of the room was overwritten at random.
    Flawed,
    /// Neighbours lend each other blocks: one set was overwritten until one borrowed.
    Lending,
    /// A range record for every other stripe unit of a part of a volume.
    Ranges,
    /// A volume was written in one set only.
    Uneven,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    servers: u32,
    replicas: u32,
    mib: u64,
    shape: Shape,
}

const fn case(servers: u32, replicas: u32, mib: u64, shape: Shape) -> Case {
    Case { servers, replicas, mib, shape }
}

/// Sizes and numbers of drives, and what else changes their room. `RACKWEAVE_ROOM=all` fills all of them, a number
/// those with drives of that size in MiB; by default those with drives below 128 MiB are filled.
const CASES: [Case; 17] = [
    case(3, 3, 64, Shape::New),
    case(4, 3, 128, Shape::New),
    case(3, 2, 96, Shape::New),
    case(3, 3, 256, Shape::New),
    case(4, 3, 1024, Shape::New),
    case(2, 2, 512, Shape::New),
    case(5, 3, 192, Shape::New),
    case(5, 2, 300, Shape::New),
    case(6, 3, 200, Shape::New),
    case(7, 3, 768, Shape::New),
    case(8, 2, 128, Shape::New),
    case(4, 4, 2048, Shape::New),
    case(4, 3, 80, Shape::Spare),
    case(3, 2, 112, Shape::Flawed),
    case(3, 3, 96, Shape::Lending),
    case(3, 3, 80, Shape::Ranges),
    case(3, 3, 72, Shape::Uneven),
];
/// Writes between checks whether drives have reached their state, and most checks.
const AGING_WRITES: u64 = 2048;
const AGINGS_MAX: u32 = 64;
/// Drives below this size are filled in every test run.
const SMALL_MIB: u64 = 128;

fn status(r: &mut Rig) -> RackStatus {
    match r.admin(admin::Op::RackStatus) {
        Ok(admin::Reply::Rack(s)) => *s,
        other => panic!("{other:?}"),
    }
}

/// Performs the writes, many at a time, until one is refused for lack of room. Returns the number of bytes taken.
fn fill(r: &mut Rig, volume: VolumeId, writes: impl Iterator<Item = (u64, u32)>) -> Result<u64, u64> {
    let (mut taken, mut full, mut writes) = (0, false, writes.peekable());
    let mut under_way: Vec<(RequestId, u32)> = Vec::new();
    while !under_way.is_empty() || (!full && writes.peek().is_some()) {
        while under_way.len() < DEPTH && !full {
            let Some((offset, len)) = writes.next() else { break };
            let data = Payload::elided(len, (1 + offset) << 20);
            under_way.push((r.submit(volume::Op::Write { volume, offset, data, fua: false }), len));
        }
        r.run(Span::from_micros(500));
        under_way.retain(|&(id, len)| match r.answer(id) {
            None => true,
            Some(Ok(_)) => {
                taken += u64::from(len);
                false
            }
            Some(Err(volume::Error::NoSpace)) => {
                full = true;
                false
            }
            Some(other) => panic!("{other:?}"),
        });
    }
    if full { Err(taken) } else { Ok(taken) }
}

/// A stripe unit of `Case::servers` sets.
const UNIT: u64 = 16 * BLOCK;

fn rack(c: Case) -> Rig {
    let mut cfg = small(c.servers, c.mib);
    (cfg.replicas, cfg.ssd.timing) = (c.replicas, TimingConfig::None);
    cfg.min_copies = cfg.min_copies.min(c.replicas);
    let mut sim = SimConfig::new(u64::from(c.servers) + c.mib);
    match c.shape {
        Shape::Spare => cfg.ssd.spare = Some(1),
        Shape::Flawed => {
            (cfg.ssd.program_failures, cfg.ssd.erase_failures) = (0.0002, 0.001);
            (sim.contents, sim.flawed_blocks_max) = (Contents::Memory, 4);
        }
        Shape::Lending => cfg.ssd.isolation = Levels::One(Isolation::Software),
        Shape::New | Shape::Ranges | Shape::Uneven => {}
    }
    let mut r = Rig::new(&cfg, sim);
    r.run(Span::from_secs(4));
    r
}

fn vssds(r: &Rig) -> impl Iterator<Item = VssdStatus> {
    let servers = (0..).map_while(|s| r.sim.server(s));
    servers.flat_map(|s| s.status(r.sim.now()).vssds)
}

/// Ages the drives before their room is read.
fn age(r: &mut Rig, c: Case, room: u64) {
    let (sets, mut rng) = (u64::from(c.servers), Rng::new(c.mib ^ 7));
    let volume = r.volume("old", room).id;
    let done = match c.shape {
        Shape::New | Shape::Spare => Ok(0),
        Shape::Flawed | Shape::Lending => {
            let units = room / 2 / UNIT;
            let mut done = fill(r, volume, (0..units).map(|i| (i * UNIT, UNIT as u32)));
            for round in 0.. {
                let aged = match c.shape {
                    Shape::Flawed => round == AGINGS_MAX || vssds(r).any(|v| v.blocks_retired > 0),
                    _ => vssds(r).any(|v| v.loans.borrowed_blocks > 0),
                };
                if aged || done.is_err() {
                    break;
                }
                assert!(round < AGINGS_MAX, "{c:?}: nobody borrows");
                let every = if c.shape == Shape::Lending { sets } else { 1 };
                let mut at =
                    || (rng.below(units / every) * every * UNIT + rng.below(UNIT / BLOCK) * BLOCK, BLOCK as u32);
                done = fill(r, volume, (0..AGING_WRITES).map(|_| at()));
            }
            assert!(c.shape == Shape::Lending || vssds(r).any(|v| v.blocks_retired > 0), "{c:?}: no block has failed");
            done
        }
        Shape::Ranges => {
            let all: Vec<u64> = (0..room / UNIT / 2).step_by(2).map(|i| i * UNIT).collect();
            let done = fill(r, volume, all.iter().map(|&at| (at, UNIT as u32)));
            for &offset in &all {
                let trim = volume::Op::Trim { volume, offset, len: UNIT, fua: false };
                assert_eq!(r.ask(trim), Ok(volume::Reply::Done));
            }
            done
        }
        Shape::Uneven => fill(r, volume, (0..room / UNIT / sets / 8).map(|i| (i * sets * UNIT, UNIT as u32))),
    };
    assert!(done.is_ok(), "{c:?}: {done:?}");
    assert_eq!(r.ask(volume::Op::Flush { volume }), Ok(volume::Reply::Done));
    r.run(Span::from_secs(3));
}

/// Fills the reported room, then whatever is left; returns both.
fn filled(c: Case, random: bool) -> (u64, u64) {
    let mut r = rack(c);
    let fresh = status(&mut r);
    assert!(fresh.used == 0 && fresh.room > 0 && fresh.room <= fresh.capacity, "{fresh:?}");
    age(&mut r, c, fresh.room);
    let room = status(&mut r).room;
    assert!(room > 0 && room <= fresh.room, "{c:?}: {room} of {}", fresh.room);
    let v = r.volume("v", 2 * room).id;
    let mut rng = Rng::new(c.mib);
    // In order with large writes, or single blocks in random order.
    let len = if random { BLOCK } else { UNIT };
    let mut all: Vec<u64> = (0..room / len).collect();
    if random {
        (1..all.len()).rev().for_each(|i| all.swap(i, rng.below(i as u64 + 1) as usize));
    }
    let taken = fill(&mut r, v, all.into_iter().map(|i| (i * len, len as u32)));
    assert_eq!(taken, Ok(room / len * len), "{c:?}: no room before the reported room is used");
    assert_eq!(r.ask(volume::Op::Flush { volume: v }), Ok(volume::Reply::Done));
    r.run(Span::from_secs(3));
    let after = status(&mut r);
    assert!(after.room <= room / 100, "{c:?}: {} of {room} left", after.room);
    match r.admin(admin::Op::VolumeList) {
        Ok(admin::Reply::Volumes(all)) => {
            let used = all.iter().find(|info| info.id == v).map(|info| info.used);
            assert_eq!(used, Some(room / len * len), "{c:?}: used by the volume");
        }
        other => panic!("{other:?}"),
    }
    (room, room + left(&mut r, c, v, room))
}

/// Bytes that can be written beyond the reported room: the volume's next ones if a set has room that no volume reaches
/// in order, otherwise set by set, as for a volume that favours the emptiest.
fn left(r: &mut Rig, c: Case, v: VolumeId, room: u64) -> u64 {
    if c.shape == Shape::Uneven {
        let next = (room / UNIT * UNIT..2 * room - UNIT).step_by(BLOCK as usize);
        return fill(r, v, next.map(|at| (at, BLOCK as u32))).unwrap_or_else(|taken| taken);
    }
    let more = r.volume("more", room).id;
    let units = |k: u64| (0..1 << 14).map(move |i| ((i * u64::from(c.servers) + k) * UNIT, BLOCK as u32));
    (0..u64::from(c.servers))
        .map(|k| fill(r, more, units(k).take_while(|w| w.0 + BLOCK <= room)).unwrap_or_else(|taken| taken))
        .sum()
}

#[test]
fn reported_room_can_be_written_and_is_nearly_all_that_can() {
    let wanted = std::env::var("RACKWEAVE_ROOM").unwrap_or_default();
    let chosen = |c: &&Case| match wanted.as_str() {
        "" => c.mib < SMALL_MIB,
        "all" => true,
        mib => mib == c.mib.to_string(),
    };
    for &c in CASES.iter().filter(chosen) {
        for random in [false, true] {
            let (room, held) = filled(c, random);
            let ratio = room as f64 / held as f64;
            println!("{c:?}, {}: {ratio:.4} ({room} of {held} bytes)", if random { "random" } else { "in order" });
            assert!((0.98..=1.0).contains(&ratio), "{c:?}, random {random}: {ratio:.4}");
        }
    }
}
