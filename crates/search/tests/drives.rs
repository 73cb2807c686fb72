//! Drives that wear out, and contents that decay unread.

use rackweave_config::RackConfig;
use rackweave_core::msg::BlockRange;
use rackweave_core::msg::peer::ScanEntry;
use rackweave_core::volume;
use rackweave_core::{BlockAddr, Payload, Rng, Span, Timestamp, VolumeId, VssdId};
use rackweave_rack::sim::{Contents, SimConfig};
use rackweave_server::VssdStatus;

use crate::rig::{Rig, has_rig, small};

const MIB: u64 = 1 << 20;
/// Bytes per write.
const WRITE: u64 = 64 << 10;

struct Rack {
    rig: Rig,
    volume: VolumeId,
    bytes: u64,
    /// Last written contents, by write.
    contents: Vec<Payload>,
    /// Longest duration of a write.
    slowest: Span,
}

has_rig!(Rack);

impl Rack {
    /// Four servers, with a fully written volume.
    fn new(seed: u64, bytes: u64, change: impl FnOnce(&mut RackConfig)) -> Rack {
        let mut cfg = RackConfig { replicas: 2, ..small(4, 32) };
        change(&mut cfg);
        let mut rig = Rig::new(&cfg, SimConfig { contents: Contents::Memory, ..SimConfig::new(seed) });
        let volume = rig.volume("v", bytes).id;
        let contents = vec![Payload::zero(WRITE as u32); (bytes / WRITE) as usize];
        let mut r = Rack { rig, volume, bytes, contents, slowest: Span::ZERO };
        (0..bytes / WRITE).for_each(|k| r.write(k, k + 1));
        r
    }
    /// To flash, because a cache would absorb most of it.
    fn write(&mut self, k: u64, stamp: u64) {
        let data = Payload::elided(WRITE as u32, stamp << 32);
        let op = volume::Op::Write { volume: self.volume, offset: k * WRITE, data: data.clone(), fua: true };
        let begun = self.sim.now();
        assert_eq!(self.ask(op), Ok(volume::Reply::Done));
        self.slowest = self.slowest.max(self.sim.now().since(begun));
        self.contents[k as usize] = data;
    }
    fn flush(&mut self) {
        let volume = self.volume;
        assert_eq!(self.ask(volume::Op::Flush { volume }), Ok(volume::Reply::Done));
    }
    fn check(&mut self) {
        for k in 0..self.bytes / WRITE {
            let op = volume::Op::Read { volume: self.volume, offset: k * WRITE, len: WRITE as u32 };
            assert_eq!(self.ask(op), Ok(volume::Reply::Data(self.contents[k as usize].clone())), "write {k}");
        }
    }
    /// Writes at random until the condition holds, at most `most` times.
    fn write_until(&mut self, most: u64, what: &str, done: impl Fn(&Rack) -> bool) {
        let mut rng = Rng::new(7);
        for n in 0..most {
            if done(self) {
                return;
            }
            let k = rng.below(self.bytes / WRITE);
            self.write(k, 1_000_000 + n);
        }
        panic!("never: {what}");
    }
    fn on(&self, server: u32) -> usize {
        (0..4).filter(|s| self.members(*s).iter().any(|m| m.1 == server)).count()
    }
    fn vssds(&self, server: u32) -> Vec<VssdStatus> {
        self.sim.server(server).expect("runs").status(self.sim.now()).vssds
    }
    fn sum(&self, server: u32, of: fn(&VssdStatus) -> u64) -> u64 {
        self.vssds(server).iter().map(of).sum()
    }
}

#[test]
fn a_drive_that_wears_out_is_left_while_it_is_written_and_nothing_is_lost() {
    let mut r = Rack::new(1, 4 * MIB, |c| {
        (c.ssd.spare, c.repair.replace_after_s, c.repair.mib_per_s) = (Some(1), 1, 0);
    });
    assert_eq!(r.on(0), 2);
    r.sim.disk(0).expect("kept").wear_out_after(2, 12);
    r.write_until(20_000, "worn out", |r| r.vssds(0).iter().any(|v| v.worn_out));
    assert_eq!((r.on(0), r.sum(0, |v| u64::from(v.serving))), (2, 2), "it serves until its contents are elsewhere");
    r.write_until(20_000, "both are elsewhere", |r| r.on(0) == 0 && (0..4).all(|s| r.members(s).len() == 2));
    assert!(r.slowest < Span::from_secs(2), "writes went on: {}", r.slowest);
    r.check();
    // The copies elsewhere are whole without it.
    r.flush();
    let worn = r.node(0);
    r.sim.crash(worn);
    r.run(Span::from_secs(2));
    r.check();
    (0..r.bytes / WRITE).for_each(|k| r.write(k, 3_000_000 + k));
    r.check();
}

/// Programs and erases fail all over the rack, which only its status shows.
#[test]
fn programs_that_fail_cost_blocks_and_no_drive_and_are_counted_after_a_start() {
    let mut r = Rack::new(5, 4 * MIB, |c| {
        (c.replicas, c.ssd.program_failures, c.ssd.erase_failures) = (2, 0.0002, 0.001);
    });
    let failed = |r: &Rack, s: u32| r.sum(s, |v| v.blocks_retired.into());
    r.write_until(20_000, "blocks fail on two servers", |r| (0..4).filter(|s| failed(r, *s) > 1).count() > 1);
    r.flush();
    r.run(Span::from_secs(1));
    r.check();
    assert!((0..4).all(|s| !r.sim.server(s).expect("runs").status(r.sim.now()).failed), "no drive has failed");
    let most = (0..4).max_by_key(|s| failed(&r, *s)).expect("four");
    let before: Vec<_> = r.vssds(most).iter().map(|v| (v.blocks_retired, v.blocks_reserve, v.worn_out)).collect();
    r.power_cut(most);
    r.run(Span::from_secs(1));
    r.start(most);
    r.run(Span::from_secs(2));
    let after: Vec<_> = r.vssds(most).iter().map(|v| (v.blocks_retired, v.blocks_reserve, v.worn_out)).collect();
    assert_eq!(after, before, "what was marked is so after a power cut");
    r.check();
    (0..r.bytes / WRITE).for_each(|k| r.write(k, 5_000_000 + k));
    r.check();
}

#[test]
fn one_that_finds_no_room_elsewhere_leaves_its_sets_when_it_can_only_be_read() {
    let mut r = Rack::new(2, 4 * MIB, |c| {
        (c.replicas, c.repair.replace_after_s) = (3, 1);
    });
    assert_eq!(r.on(0), 3);
    r.sim.disk(0).expect("kept").wear_out_after(1, 3);
    r.write_until(40_000, "it can only be read", |r| r.on(0) == 0);
    assert!(r.vssds(0).iter().all(|v| v.blocks_retired > 0));
    assert!((0..4).all(|s| r.members(s).len() >= 2));
    for k in 0..r.bytes / WRITE {
        r.write(k, 2_000_000 + k);
    }
    assert!(r.slowest < Span::from_secs(3), "writes went on: {}", r.slowest);
    r.check();
}

#[test]
fn what_rots_unread_is_found_and_healed_by_scrubbing() {
    let mut r = Rack::new(3, 2 * MIB, |c| c.scrub.every_days = 1.0 / 86_400.0);
    r.flush();
    // Until everything is on flash.
    r.run(Span::from_secs(1));
    let mut rng = Rng::new(5);
    let hurt = r.sim.disk(1).expect("kept");
    for _ in 0..40 {
        assert!(hurt.corrupt(&mut rng));
    }
    let reads = (0..4).map(|s| r.sum(s, |v| v.replica.reads)).sum::<u64>();
    let passes = r.sim.server(1).expect("runs").status(r.sim.now()).scrub_passes;
    r.run(Span::from_secs(4));
    let healed = r.sum(1, |v| v.replica.healed);
    assert!(healed > 0, "of 40 slots some were in use");
    assert_eq!((0..4).map(|s| r.sum(s, |v| v.replica.scrub_lost)).sum::<u64>(), 0);
    assert_eq!((0..4).map(|s| r.sum(s, |v| v.replica.reads)).sum::<u64>(), reads, "no client has read");
    let now = r.sim.server(1).expect("runs").status(r.sim.now());
    assert!(now.scrub_passes >= passes + 2 && now.vssds.iter().all(|v| (0.0..=1.0).contains(&v.scrub_progress)));
    r.run(Span::from_secs(3));
    assert_eq!(r.sum(1, |v| v.replica.healed), healed, "a further pass finds nothing");
    r.check();
    assert_eq!(r.sum(1, |v| v.replica.healed), healed, "nor does a client");
}

/// Its only complete member cannot read some blocks: the set is whole again nevertheless, and no old or zero contents
/// are read.
#[test]
fn a_server_is_replaced_though_some_blocks_of_the_other_copy_have_rotted() {
    let mut r = Rack::new(8, 2 * MIB, |c| (c.ssd.spare, c.repair.replace_after_s) = (Some(1), 1));
    r.flush();
    // Until everything is on flash.
    r.run(Span::from_secs(1));
    let mut rng = Rng::new(5);
    for _ in 0..60 {
        assert!(r.sim.disk(0).expect("kept").corrupt(&mut rng));
    }
    let on = |r: &Rig, set: u32| r.members(set).iter().map(|m| m.1).collect::<Vec<_>>();
    let set = (0..4).find(|s| on(&r, *s).contains(&0)).expect("it has some");
    let other = on(&r, set).into_iter().find(|s| *s != 0).expect("two copies");
    let node = r.node(other);
    r.sim.crash(node);
    r.until("the other one is replaced", |r| on(r, set).len() == 2 && !on(r, set).contains(&other));
    let read = |r: &mut Rack, k: u64| {
        let op = volume::Op::Read { volume: r.volume, offset: k * WRITE, len: WRITE as u32 };
        r.ask(op)
    };
    let mut lost = 0;
    for k in 0..r.bytes / WRITE {
        match read(&mut r, k) {
            Ok(volume::Reply::Data(d)) => assert_eq!(d, r.contents[k as usize], "write {k}"),
            Err(volume::Error::Corrupt) => lost += 1,
            other => panic!("write {k}: {other:?}"),
        }
    }
    assert!(lost > 0, "of 60 slots some were in use");
    (0..r.bytes / WRITE).for_each(|k| r.write(k, 9_000_000 + k));
    r.check();
    // The mark does not exceed the copy: new writes are on both.
    let node = r.node(0);
    r.sim.crash(node);
    r.run(Span::from_secs(2));
    r.check();
}

#[test]
fn a_pass_in_which_nothing_could_be_read_is_none() {
    let mut r = Rack::new(4, 2 * MIB, |c| c.scrub.every_days = 1.0 / 86_400.0);
    r.flush();
    let passes = |r: &Rack| r.sim.server(1).expect("runs").status(r.sim.now()).scrub_passes;
    r.run(Span::from_secs(3));
    assert!(passes(&r) > 0);
    // One returns alone: it waits for the others.
    let layout = r.sim.engine().layout();
    (0..4).for_each(|k| r.sim.crash(layout.server(k).expect("a server")));
    r.sim.restart(layout.server(1).expect("a server")).expect("its own contents");
    r.run(Span::from_secs(3));
    let before = passes(&r);
    r.run(Span::from_secs(5));
    assert_eq!(passes(&r), before);
}

/// One copy differs from the rest and matches its checksum, so that no read detects it.
#[test]
fn a_copy_that_is_silently_wrong_is_found_and_healed_by_comparing() {
    for wrong in 0..3 {
        let mut r = Rack::new(6, 2 * MIB, |c| (c.replicas, c.scrub.every_days) = (3, 1.0 / 86_400.0));
        r.flush();
        // Until everything is on flash.
        r.run(Span::from_secs(1));
        let sum = |r: &Rack, of: fn(&VssdStatus) -> u64| (0..4).map(|s| r.sum(s, of)).sum::<u64>();
        assert_eq!(sum(&r, |v| v.replica.scrub_mismatches), 0);
        let mut rng = Rng::new(5);
        for _ in 0..40 {
            assert!(r.sim.disk(wrong).expect("kept").falsify(&mut rng));
        }
        r.run(Span::from_secs(6));
        let found = sum(&r, |v| v.replica.scrub_mismatches);
        assert!(found > 0, "of 40 pages some were in use");
        assert_eq!((sum(&r, |v| v.replica.scrub_undecided), sum(&r, |v| v.replica.scrub_lost)), (0, 0));
        assert_eq!(r.sum(wrong, |v| v.replica.healed), found, "each at the drive that was wrong");
        r.run(Span::from_secs(3));
        assert_eq!(sum(&r, |v| v.replica.scrub_mismatches), found, "a further pass finds nothing");
        // Each copy is right with the others' servers down.
        for other in (0..4).filter(|s| *s != wrong) {
            let node = r.node(other);
            r.sim.crash(node);
            r.run(Span::from_secs(2));
            r.check();
            r.start(other);
            r.run(Span::from_secs(2));
        }
    }
}

/// Only some members received a zeroing: each copy matches its checksum, and a zeroed block has none to read.
#[test]
fn a_block_that_is_zeroed_at_one_member_and_held_by_another_is_found_by_comparing() {
    for heard in [&[0][..], &[2], &[0, 1], &[1, 2]] {
        let mut r = Rack::new(6, 2 * MIB, |c| (c.replicas, c.scrub.every_days) = (3, 1.0 / 86_400.0));
        r.flush();
        // Until everything is on flash.
        r.run(Span::from_secs(1));
        let members = r.members(0);
        let held = |r: &Rack, (vssd, server): (VssdId, u32)| {
            let ssd = r.sim.server(server).expect("runs").ssd();
            let mut entries = Vec::new();
            ssd.scan(vssd, (BlockAddr::default(), BlockAddr::unpack(u64::MAX)), usize::MAX, &mut entries);
            entries
        };
        let before = held(&r, members[0]);
        let entry = before[before.len() / 2];
        let (a, v) = (entry.addr, entry.version);
        assert!(entry.mapped && members.iter().all(|m| held(&r, *m) == before));
        let now = r.sim.now();
        let zeroed = Timestamp::new(v.epoch(), v.version() + 2, 1);
        for m in heard.iter().map(|k| members[*k]) {
            let range = BlockRange { volume: a.volume, first: a.block, count: 1 };
            r.sim.server_mut(m.1).expect("runs").ssd_mut().zero_range(now, m.0, range, zeroed);
        }
        r.run(Span::from_secs(6));
        for m in &members {
            let at = held(&r, *m).into_iter().find(|e| e.addr == a);
            assert!(at.is_none_or(|e| !e.mapped && e.version == zeroed), "{heard:?}: {m:?} has {at:?}");
            let others = |all: Vec<ScanEntry>| all.into_iter().filter(|e| e.addr != a).collect::<Vec<_>>();
            assert_eq!(others(held(&r, *m)), others(before.clone()), "nothing else is touched");
        }
        let sum = |of: fn(&VssdStatus) -> u64| (0..4).map(|s| r.sum(s, of)).sum::<u64>();
        assert!((1..=2).contains(&sum(|v| v.replica.scrub_mismatches)) && sum(|v| v.replica.scrub_undecided) == 0);
    }
}

#[test]
fn two_copies_that_differ_are_told_and_left_and_what_is_written_meanwhile_is_no_difference() {
    let mut r = Rack::new(7, 2 * MIB, |c| (c.replicas, c.scrub.every_days) = (2, 1.0 / 86_400.0));
    let sum = |r: &Rack, of: fn(&VssdStatus) -> u64| (0..4).map(|s| r.sum(s, of)).sum::<u64>();
    let mut rng = Rng::new(9);
    let until = r.sim.now() + Span::from_secs(6);
    let mut n = 0;
    while r.sim.now() < until {
        n += 1;
        r.write(rng.below(r.bytes / WRITE), 1_000 + n);
    }
    assert!(n > 500 && sum(&r, |v| v.replica.scrubbed) > 500, "{n} writes during passes");
    assert_eq!(sum(&r, |v| v.replica.scrub_mismatches), 0, "copies of what is written never differ");
    r.flush();
    r.run(Span::from_secs(1));
    for _ in 0..40 {
        assert!(r.sim.disk(1).expect("kept").falsify(&mut rng));
    }
    r.run(Span::from_secs(4));
    let (found, left, healed) = (
        sum(&r, |v| v.replica.scrub_mismatches),
        sum(&r, |v| v.replica.scrub_undecided),
        sum(&r, |v| v.replica.healed),
    );
    assert!(found > 0 && found == left && healed == 0, "found {found}, left {left}, healed {healed}");
}

#[test]
fn scrubbing_never_reads_faster_than_asked_nor_than_16_mib_a_second() {
    for (pass_s, slow) in [(0.1, false), (20.0, true)] {
        let mut r = Rack::new(4, 2 * MIB, |c| c.scrub.every_days = pass_s / 86_400.0);
        r.flush();
        // The first pass begins after the duration of one.
        r.run(Span::from_secs(21));
        let held = r.sum(2, |v| v.mapped_bytes()) / 4096;
        let most = if slow { held / 20 } else { 4_000 };
        assert!(held > 200, "{held}");
        for _ in 0..3 {
            let before = r.sum(2, |v| v.replica.scrubbed);
            r.run(Span::from_secs(1));
            let read = r.sum(2, |v| v.replica.scrubbed) - before;
            assert!(read > 0 && read <= most + 1, "{read} of {held} blocks in a second, {pass_s} s a pass");
        }
    }
}
