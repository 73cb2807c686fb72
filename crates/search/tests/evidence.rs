//! Replacement × latent damage × slowness (protocol rule 29): a rack stops, drives are damaged and replaced, and it
//! restarts. No block reads as anything but its flushed contents, and fails only without a good copy.

use std::collections::BTreeSet;

use rackweave_core::admin;
use rackweave_core::volume;
use rackweave_core::{BLOCK, BlockAddr, Layout, NodeId, Payload, Rng, SetId, Span, VolumeId};
use rackweave_rack::sim::{Contents, SimConfig};
use rackweave_sim::FaultDisk;

use crate::rig::{Rig, has_rig, small};

const BLOCKS: u32 = 256;
const SERVERS: u32 = 3;
/// Number of combinations, unless `RACKWEAVE_EVIDENCE` overrides it.
const COMBINATIONS: u64 = 110;
/// Time limit until the set serves, or waits for the operator's decision and reports so. A lone member reports after 30
/// s that no other has a block.
const DECIDED_WITHIN: Span = Span::from_secs(90);
/// Time limit of a read.
const READ_WITHIN: Span = Span::from_secs(60);

/// Damage to a drive while the rack is stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Damage {
    replaced: bool,
    /// Fractions of blocks with damaged contents, and of pages lost with their spare areas.
    contents: f64,
    spares: f64,
    /// Reachable only now and then.
    slow: bool,
}

impl Damage {
    const NONE: Damage = Damage { replaced: false, contents: 0.0, spares: 0.0, slow: false };
    fn draw(rng: &mut Rng) -> Damage {
        let contents = *rng.pick(&[0.0, 0.0, 0.05, 0.3, 1.0]);
        let spares = *rng.pick(&[0.0, 0.0, 0.0, 0.02, 0.2]);
        Damage { replaced: rng.chance(0.25), contents, spares, slow: rng.chance(0.25) }
    }
}

struct Rack {
    rig: Rig,
    volume: VolumeId,
    /// How long slow servers are unreachable and reachable.
    pauses: Rng,
}

has_rig!(Rack);

fn data(block: u32, generation: u64) -> Payload {
    Payload::elided(BLOCK, (u64::from(block) << 8 | generation) << 16)
}

/// Contents of the blocks when the rack stopped, all flushed: some written twice, some zeroed, some never written.
fn expected(block: u32) -> Payload {
    match block % 8 {
        0 => Payload::zero(BLOCK),
        1 => Payload::zero(BLOCK),
        2 | 3 => data(block, 2),
        _ => data(block, 1),
    }
}

impl Rack {
    fn new(seed: u64) -> Rack {
        let mut cfg = small(SERVERS, 32);
        cfg.client.keep_kib = 0;
        // Longer than a slow server is ever silent.
        cfg.lease.span_ms = 4_000;
        let mut r = Rack {
            rig: Rig::new(&cfg, SimConfig { contents: Contents::Memory, ..SimConfig::new(seed) }),
            volume: VolumeId(0),
            pauses: Rng::stream(seed, 0x7061_7573),
        };
        r.volume = r.volume("v", u64::from(BLOCKS * BLOCK)).id;
        for generation in 1..=2 {
            let wanted = |b: &u32| if generation == 1 { !b.is_multiple_of(8) } else { matches!(b % 8, 2 | 3) };
            for block in (0..BLOCKS).filter(wanted) {
                r.done(volume::Op::Write {
                    volume: r.volume,
                    offset: at(block),
                    data: data(block, generation),
                    fua: false,
                });
            }
            r.done(volume::Op::Flush { volume: r.volume });
        }
        for block in (0..BLOCKS).filter(|b| b % 8 == 1) {
            r.done(volume::Op::Trim { volume: r.volume, offset: at(block), len: u64::from(BLOCK), fua: false });
        }
        r.done(volume::Op::Flush { volume: r.volume });
        r
    }
    fn done(&mut self, op: volume::Op) {
        assert_eq!(self.ask(op), Ok(volume::Reply::Done));
    }
    fn disk(&mut self, i: u32) -> &mut FaultDisk {
        self.sim.disk(i).expect("keeps contents")
    }

    /// The rack stops, its drives are damaged as drawn, and it restarts. Returns for each drive the blocks of the set
    /// whose contents are damaged or lost with their records.
    fn stand_still(&mut self, damage: &[Damage], rng: &mut Rng) -> Vec<BTreeSet<BlockAddr>> {
        (0..SERVERS).for_each(|i| self.power_cut(i));
        let mut bad = Vec::new();
        for (i, d) in (0..).zip(damage) {
            let mut lost: BTreeSet<BlockAddr> = BTreeSet::new();
            if d.replaced {
                self.sim.replace_disk(i);
            } else {
                self.disk(i).damage(|a| {
                    let hit = lost.contains(&a) || rng.chance(d.contents);
                    if hit {
                        lost.insert(a);
                    }
                    hit
                });
                let gone = self.disk(i).damage_spares(|| rng.chance(d.spares));
                lost.extend(gone);
            }
            bad.push(lost);
        }
        (0..SERVERS).for_each(|i| self.start(i));
        bad
    }
    /// Cuts or mends the servers' links.
    fn stutter(&mut self, slow: &[NodeId], on: bool) {
        let nodes = self.sim.engine().layout().nodes();
        for &s in slow {
            for other in (0..nodes).map(NodeId).filter(|n| *n != s) {
                self.sim.engine_mut().net().block(s, other, on);
                self.sim.engine_mut().net().block(other, s, on);
            }
        }
    }
    /// Runs for `span`, with slow servers reachable now and then.
    fn pass(&mut self, span: Span, slow: &[NodeId], mut done: impl FnMut(&mut Rack) -> bool) -> bool {
        let mut passed = Span::ZERO;
        while passed < span {
            let (silent, heard) = (self.pauses.between(20, 250), self.pauses.between(50, 150));
            for (cut, ms) in [(true, silent), (false, heard)] {
                self.stutter(slow, cut);
                for _ in 0..ms / 10 {
                    if done(self) {
                        self.stutter(slow, false);
                        return true;
                    }
                    self.run(Span::from_millis(10));
                }
            }
            passed += Span::from_millis(silent + heard);
        }
        self.stutter(slow, false);
        false
    }
    /// Views, and the states of servers and client.
    fn describe(&self) -> String {
        use std::fmt::Write as _;
        let now = self.sim.now();
        let mut out = String::new();
        for set in 0..SERVERS {
            let view = self.sim.meta().and_then(|m| m.view(SetId(set)));
            let _ = writeln!(out, "{view:?}");
        }
        for i in 0..SERVERS {
            let Some(s) = self.sim.server(i) else { continue };
            let status = s.status(self.sim.engine().local_time(self.node(i)));
            let _ = writeln!(out, "server {i}: failed {}, lease until {:?}", status.failed, status.lease_until);
            for v in &status.vssds {
                let counts =
                    (v.replica.reads, v.replica.not_serving, v.replica.stale_epochs, v.replica.healed, v.queued);
                let _ = writeln!(out, "  {:?} {:?} {:?} serves {} {counts:?}", v.set, v.role, v.epoch, v.serving);
            }
        }
        let _ = writeln!(out, "at {now:?}: {:?}", self.sim.client(0).map(|c| c.stats()));
        out
    }
    fn waits_for_word(&mut self) -> Vec<SetId> {
        let now = self.sim.now();
        let status = self.sim.meta().expect("lives").status(now);
        status.sets.iter().filter(|s| s.waits_for == [Layout::META]).map(|s| s.set).collect()
    }
    /// Whether all members of all sets are present.
    fn whole(&self) -> bool {
        (0..SERVERS).all(|set| self.members(set).len() == SERVERS as usize)
    }
    /// Whether at least two members of each set serve by their own state: the metadata service may not have noticed yet
    /// that they stopped.
    fn serves(&self) -> bool {
        let served = |set: u32| {
            let of = |i: u32| {
                let status = self.sim.server(i)?.status(self.sim.engine().local_time(self.node(i)));
                status.vssds.iter().find(|v| v.set == SetId(set)).map(|v| v.serving)
            };
            (0..SERVERS).filter(|&i| of(i) == Some(true)).count() >= 2
        };
        (0..SERVERS).all(served)
    }
    /// Result of reading the block, once it no longer waits.
    fn read(&mut self, block: u32, slow: &[NodeId]) -> Result<Payload, volume::Error> {
        let volume = self.volume;
        let id = self.submit(volume::Op::Read { volume, offset: at(block), len: BLOCK });
        let answered = self.pass(READ_WITHIN, slow, |r| r.answer(id).is_some());
        assert!(answered, "block {block} was neither read nor refused: {}", self.describe());
        match self.wait(id) {
            Ok(volume::Reply::Data(d)) => Ok(d),
            Ok(other) => panic!("{other:?}"),
            Err(e) => Err(e),
        }
    }
}

fn at(block: u32) -> u64 {
    u64::from(block) * u64::from(BLOCK)
}

/// Runs one combination: returns how many blocks were right and refused, and whether the operator had to decide.
fn combination(seed: u64, damage: [Damage; 3]) -> (u32, u32, bool) {
    let mut rng = Rng::stream(seed, 0x6576_6964);
    let mut r = Rack::new(seed);
    let bad = r.stand_still(&damage, &mut rng);
    let slow: Vec<NodeId> = (0..SERVERS).filter(|i| damage[*i as usize].slow).map(|i| r.node(i)).collect();
    let decided = r.pass(DECIDED_WITHIN, &slow, |r| !r.waits_for_word().is_empty() || r.serves());
    assert!(decided, "{damage:?}: neither serves nor says what it waits for");
    let sets = r.waits_for_word();
    for &set in &sets {
        let word = admin::Op::SetRecover { set, without: Box::new([]) };
        assert_eq!(r.admin(word), Ok(admin::Reply::Done));
    }
    assert!(r.pass(DECIDED_WITHIN, &slow, |r| r.serves()), "{damage:?}: does not serve after the word");
    let places = r.places();
    let (mut right, mut refused) = (0, 0);
    for block in 0..BLOCKS {
        let good = (0..3).any(|i| !damage[i].replaced && !bad[i].contains(&places[block as usize]));
        match r.read(block, &slow) {
            Ok(d) if d == expected(block) => right += 1,
            // Nothing shows what was flushed, which was reported to the operator.
            Ok(_) if !sets.is_empty() => refused += 1,
            Ok(d) => panic!("{damage:?}: block {block} read as {d:?} (a good copy: {good})"),
            Err(volume::Error::Corrupt | volume::Error::Io) if !good => refused += 1,
            // The server with the block was silent for longer than its lease, and is not in the view: once it is back
            // it heals the others.
            Err(volume::Error::Corrupt | volume::Error::Io) if !slow.is_empty() => {
                assert!(r.pass(DECIDED_WITHIN, &[], |r| r.whole()), "{damage:?}: not whole: {}", r.describe());
                assert_eq!(r.read(block, &[]), Ok(expected(block)), "{damage:?}: block {block}");
                right += 1;
            }
            Err(e) => panic!("{damage:?}: block {block}: {e:?}, a good copy: {good}"),
        }
    }
    (right, refused, !sets.is_empty())
}

impl Rack {
    /// Address of each block in its set.
    fn places(&mut self) -> Vec<BlockAddr> {
        let (stripe, sets) = (self.stripe(), SERVERS);
        let of = |b: u32| BlockAddr::new(self.volume, b / (stripe * sets) * stripe + b % stripe);
        (0..BLOCKS).map(of).collect()
    }
    fn stripe(&self) -> u32 {
        self.sim.config().stripe_blocks
    }
}

/// Damage on the first, another replaced, the third whole.
#[test]
fn a_good_copy_heals_though_its_member_is_slow() {
    let one = Damage { contents: 0.4, ..Damage::NONE };
    let damage = [one, Damage { replaced: true, ..Damage::NONE }, Damage { slow: true, ..Damage::NONE }];
    assert_eq!(combination(1, damage), (BLOCKS, 0, false));
}

/// Two damaged, the third replaced: what neither can read is an error, and nothing is zero.
#[test]
fn what_two_lost_and_the_third_never_had_is_an_error() {
    let all = Damage { contents: 1.0, ..Damage::NONE };
    let (right, refused, word) = combination(2, [all, Damage { replaced: true, ..Damage::NONE }, all]);
    assert_eq!((right, refused, word), (BLOCKS / 4, BLOCKS * 3 / 4, false));
}

#[test]
fn drives_that_all_lost_records_wait_for_the_operators_word() {
    let some = Damage { spares: 0.3, ..Damage::NONE };
    let (_, _, word) = combination(3, [some, some, Damage { replaced: true, ..Damage::NONE }]);
    assert!(word);
}

#[test]
fn no_drawn_combination_reads_a_wrong_block() {
    let count = std::env::var("RACKWEAVE_EVIDENCE").ok().and_then(|n| n.parse().ok()).unwrap_or(COMBINATIONS);
    let (mut right, mut refused, mut words) = (0, 0, 0);
    for seed in 0..count {
        let mut rng = Rng::stream(seed, 0x636f_6d62);
        let mut damage = [0; 3].map(|_| Damage::draw(&mut rng));
        if damage.iter().all(|d| d.replaced) {
            damage[rng.below(3) as usize].replaced = false;
        }
        let (r, e, w) = combination(100 + seed, damage);
        (right, refused, words) = (right + u64::from(r), refused + u64::from(e), words + u64::from(w));
    }
    println!("{count} combinations: {right} blocks right, {refused} refused, {words} waited for the word");
    assert!(refused > 0 && words > 0 && right > refused, "{right} {refused} {words}");
}
