//! A client that attaches its volume again and again, while another writer takes it, whole sets crash, members have no
//! space, and copies of messages come late; against a model of every sector.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::msg::{Block, Body, IoRequest};
use rackweave_core::request::Operation;
use rackweave_core::rng::seeds;
use rackweave_core::{Payload, Rng, Span, volume};

use super::rack::{MEMBERS, Rack, VOLUME, vssd};

const SECTORS: u64 = 256;
/// Stripes of 32 sectors over two sets.
const SETS: u64 = 2;
const STRIPE: u64 = 32;
const ROUNDS: u32 = 40;

/// Values of a sector in the order in which they were written; zero was there before.
#[derive(Clone, Debug)]
struct Sector {
    values: Vec<u64>,
    /// Reads return this value or a later one.
    sure: usize,
    /// A read has returned this one. Unless a set crashes, none returns an earlier one.
    seen: usize,
    /// It is on flash, or a later one.
    durable: usize,
}

/// A request under way.
enum Asked {
    /// The sectors, and each one's value.
    Write { sectors: Vec<(u64, usize)>, fua: bool },
    /// The sectors as they were, the first of them, and how often sets had crashed.
    Read { first: u64, before: Vec<Sector>, crashes: u32 },
    /// All sectors as they were.
    Flush { before: Vec<Sector>, crashes: u32 },
}

struct World {
    rng: Rng,
    rack: Rack,
    sectors: Vec<Sector>,
    asked: BTreeMap<u64, Asked>,
    /// The client keeps everything until it is flushed.
    keeps: bool,
    /// A set crashed since the volume was last let go of: what the client does not keep may be gone.
    crashed: bool,
    crashes: u32,
    /// Something may not be kept: the volume was attached anew or taken, or members had no space, since it was let go of.
    stale: bool,
    /// In which generation a value was submitted.
    generations: BTreeMap<u64, u32>,
    /// The client's generation.
    held: u32,
    seed: u64,
    next: u64,
    met: BTreeSet<&'static str>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::stream(seed, 0x6174);
        let keeps = rng.chance(0.7);
        let refresh = Span::from_millis(*rng.pick(&[2, 20, 2_000]));
        let rack = Rack::new(SETS as u32, (STRIPE / 8) as u32, SECTORS * 512, seed, |c| {
            c.sets.timeout = Span::from_millis(3);
            c.sets.map_refresh = refresh;
            c.keep = if keeps { c.keep } else { 8192 };
        });
        let sector = Sector { values: vec![0], sure: 0, seen: 0, durable: 0 };
        let (asked, generations, met) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let sectors = vec![sector; SECTORS as usize];
        let mut w = World {
            rng,
            rack,
            sectors,
            asked,
            keeps,
            crashed: false,
            crashes: 0,
            stale: false,
            generations,
            held: 0,
            seed,
            next: 0,
            met,
        };
        w.rack.faults.loss = w.rng.below(10) as f64 / 100.0;
        w.rack.faults.duplicate = w.rng.below(30) as f64 / 100.0;
        w.rack.faults.late = Span::from_millis(w.rng.below(12));
        w.rack.faults.odd = *w.rng.pick(&[0.0, 0.0, 0.05]);
        // One of the sets has just been made: a late map does not name it.
        w.rack.named = 1;
        let before = Span(w.rng.below(8_000_000));
        w.rack.run_for(before);
        (w.rack.named, w.rack.generation) = (SETS as u32, w.rack.generation + 1);
        w.attach();
        w.stale = false;
        w
    }

    fn draw(&mut self) -> (u64, u64) {
        let first = if self.rng.chance(0.6) { 8 * self.rng.below(4) } else { self.rng.below(SECTORS) };
        (first, self.rng.between(1, 64).min(SECTORS - first))
    }
    fn submit(&mut self) {
        let (first, count) = self.draw();
        let (offset, len) = (first * 512, count as u32 * 512);
        let (id, asked) = match self.rng.below(10) {
            0..5 => {
                self.next += 1;
                let (data, fua) = (Payload::elided(len, self.next), self.rng.chance(0.2));
                let generation = self.rack.info.attach;
                let sectors = (0..count).map(|i| {
                    let value = data.identity(i as u32);
                    self.generations.insert(value, generation);
                    let s = &mut self.sectors[(first + i) as usize];
                    s.values.push(value);
                    (first + i, s.values.len() - 1)
                });
                let sectors = sectors.collect();
                let op = volume::Op::Write { volume: VOLUME, offset, data, fua };
                (self.rack.submit(op), Asked::Write { sectors, fua })
            }
            5..9 => {
                let before = self.sectors[first as usize..(first + count) as usize].to_vec();
                let asked = Asked::Read { first, before, crashes: self.crashes };
                (self.rack.submit(volume::Op::Read { volume: VOLUME, offset, len }), asked)
            }
            _ => {
                let asked = Asked::Flush { before: self.sectors.clone(), crashes: self.crashes };
                (self.rack.submit(volume::Op::Flush { volume: VOLUME }), asked)
            }
        };
        self.asked.insert(id, asked);
    }

    fn on_flash(&self, sector: u64) -> u64 {
        let (stripe, within) = (sector / STRIPE, sector % STRIPE);
        let at = stripe / SETS * STRIPE + within;
        self.rack.sets[(stripe % SETS) as usize].durable.0.get(&at).copied().unwrap_or(0)
    }
    fn place_of(&self, sector: u64, value: u64) -> usize {
        let values = &self.sectors[sector as usize].values;
        let found = values.iter().rposition(|v| *v == value);
        found.unwrap_or_else(|| panic!("seed {}: sector {sector} has a value that was never written", self.seed))
    }

    /// What is answered is in the set, unless it crashed without the client's knowledge: then it is sent again first.
    fn is_there(&self, sector: u64, place: usize, informed: &[bool]) {
        let (stripe, within) = (sector / STRIPE, sector % STRIPE);
        let (set, at) = ((stripe % SETS) as usize, stripe / SETS * STRIPE + within);
        if informed[set] {
            let now = self.rack.sets[set].sectors.get(&at).copied().unwrap_or(0);
            let now = self.place_of(sector, now);
            assert!(now >= place, "seed {}: sector {sector}: {place} is answered, and {now} is there", self.seed);
        }
    }

    fn may_lose(&self) -> bool {
        self.crashed && (self.stale || !self.keeps)
    }
    /// Looks at the answers that have come.
    fn answers(&mut self) {
        let ready: Vec<u64> = self.asked.keys().copied().filter(|id| self.rack.replies.contains_key(id)).collect();
        for id in ready {
            let asked = self.asked.remove(&id).expect("just seen");
            let outcome = self.rack.replies.remove(&id).expect("just seen");
            let result = volume::Op::result(outcome).expect("a reply of the volume API");
            let informed = self.rack.informed.remove(&id).expect("with the answer");
            if let (Asked::Write { sectors, .. }, Ok(_)) = (&asked, &result) {
                sectors.iter().for_each(|(sector, place)| self.is_there(*sector, *place, &informed));
            }
            self.answered(asked, result);
        }
    }
    fn answered(&mut self, asked: Asked, result: Result<volume::Reply, volume::Error>) {
        let seed = self.seed;
        match (asked, result) {
            (Asked::Write { sectors, fua }, Ok(_)) => {
                for (i, place) in sectors {
                    let s = &mut self.sectors[i as usize];
                    s.sure = s.sure.max(place);
                    s.durable = if fua { s.durable.max(place) } else { s.durable };
                }
            }
            (Asked::Read { first, before, crashes }, Ok(volume::Reply::Data(data))) => {
                for (i, was) in (first..).zip(before) {
                    let place = self.place_of(i, data.identity((i - first) as u32));
                    let kept = if self.may_lose() { was.durable.min(was.sure) } else { was.sure };
                    let least = if crashes == self.crashes { kept.max(was.seen) } else { kept };
                    assert!(place >= least, "seed {seed}: sector {i} reads value {place}, not {least} or later");
                    if crashes == self.crashes {
                        let s = &mut self.sectors[i as usize];
                        s.seen = s.seen.max(place);
                    }
                }
                self.met.insert("read");
            }
            (Asked::Flush { before, crashes }, Ok(_)) => {
                for (i, was) in (0..).zip(before) {
                    let place = self.place_of(i, self.on_flash(i));
                    let least = if crashes == self.crashes { was.sure.max(was.seen) } else { was.sure };
                    assert!(place >= least, "seed {seed}: sector {i}: {place} on flash after a flush, not {least}");
                    self.sectors[i as usize].durable = self.sectors[i as usize].durable.max(least);
                }
                self.met.insert("flushed");
            }
            (_, Err(volume::Error::Lost { .. })) => {
                assert!(self.may_lose(), "seed {seed}: lost although everything is kept");
                self.reported_lost();
                self.met.insert("lost");
            }
            (_, Err(volume::Error::NoSpace)) => {
                self.met.insert("no space");
            }
            (_, Err(volume::Error::Fenced { .. } | volume::Error::NotAttached { .. })) => {
                self.met.insert("fenced");
            }
            (_, other) => panic!("seed {seed}: {other:?}"),
        }
    }
    fn reported_lost(&mut self) {
        self.sectors.iter_mut().for_each(|s| (s.sure, s.seen) = (s.sure.min(s.durable), 0));
    }
    fn settle(&mut self) {
        let end = self.rack.now() + Span::from_secs(600);
        while !self.asked.is_empty() {
            assert!(self.rack.now() < end, "seed {}: requests are never answered", self.seed);
            self.rack.run_for(Span::from_millis(1));
            self.answers();
        }
    }

    /// Another writer has the volume, and leaves other values. No request that this client has under way takes effect after that.
    fn steal(&mut self) {
        self.rack.info.attach += 1;
        self.stale = true;
        for s in &mut self.rack.sets {
            s.fence = self.rack.info.attach;
        }
        for sector in 0..SECTORS {
            if self.rng.chance(0.5) {
                let (stripe, within) = (sector / STRIPE, sector % STRIPE);
                let (set, at) = ((stripe % SETS) as usize, stripe / SETS * STRIPE + within);
                self.next += 1;
                let value = Payload::elided(512, self.next).identity(0);
                self.rack.sets[set].sectors.insert(at, value);
                self.rack.sets[set].durable.0.insert(at, value);
                self.sectors[sector as usize].values.push(value);
            }
        }
        // The other writer flushed.
        for s in &mut self.rack.sets {
            s.durable.0 = s.sectors.clone();
        }
        self.met.insert("stolen");
    }
    fn attach(&mut self) {
        if self.rng.chance(0.5) {
            // Otherwise with requests under way.
            self.settle();
        }
        self.check_sent();
        let before = self.held;
        self.held = self.rack.attach().expect("it is there").attach;
        (self.rack.info.attach, self.stale) = (self.held, self.stale || self.held > before);
        self.answers();
        if self.held == before {
            return;
        }
        for (i, s) in self.rack.sets.iter().enumerate() {
            assert!(s.fence >= self.held, "seed {}: set {i} takes writes of earlier generations", self.seed);
        }
        // Requests that were under way took effect or never will, and nothing is kept of earlier ones.
        self.settle();
        for sector in 0..SECTORS {
            let (stripe, within) = (sector / STRIPE, sector % STRIPE);
            let set = &self.rack.sets[(stripe % SETS) as usize];
            let at = stripe / SETS * STRIPE + within;
            let (now, flash) = (set.sectors.get(&at).copied().unwrap_or(0), self.on_flash(sector));
            // Until it is written again it is this, or after a crash the one on flash.
            let answered = self.place_of(sector, now) <= self.sectors[sector as usize].sure;
            let s = &mut self.sectors[sector as usize];
            s.values.push(flash);
            (s.durable, s.sure, s.seen) = (s.values.len() - 1, s.values.len() - 1, 0);
            if now != flash {
                s.values.push(now);
                s.sure += usize::from(answered);
            }
        }
        self.check_sent();
    }
    /// Flushes. If that reports a loss, detaches, attaches and flushes again.
    fn flush_and_report(&mut self) {
        for _ in 0..3 {
            let asked = Asked::Flush { before: self.sectors.clone(), crashes: self.crashes };
            match self.rack.run(volume::Op::Flush { volume: VOLUME }) {
                Ok(_) => {
                    self.answered(asked, Ok(volume::Reply::Done));
                    (self.crashed, self.stale) = (false, self.rack.faults.full);
                    return;
                }
                Err(volume::Error::Lost { .. }) if self.may_lose() => self.reported_lost(),
                Err(e) => panic!("seed {}: {e:?}", self.seed),
            }
            self.rack.run(volume::Op::Detach { volume: VOLUME }).expect("it is attached");
            self.attach();
        }
        panic!("seed {}: what was lost is reported again and again", self.seed);
    }
    /// Members leave and return, while requests are under way. One of each set stays.
    fn members_change(&mut self) {
        for _ in 0..self.rng.between(1, 5) {
            let member = vssd(self.rng.below(SETS) as u32, self.rng.below(u64::from(MEMBERS - 1)) as u32);
            self.rack.change_member(member);
            self.submit();
            let span = Span(self.rng.below(6_000_000));
            self.rack.run_for(span);
            self.answers();
        }
        self.met.insert("other members");
    }
    /// Members have no room for a short time; a copy of what they refuse may come when they have.
    fn short_of_room(&mut self) {
        if self.rng.chance(0.7) {
            self.settle();
            self.flush_and_report();
        }
        (self.rack.faults.full, self.stale) = (true, true);
        (0..self.rng.between(1, 3)).for_each(|_| self.submit());
        if self.rng.chance(0.5) {
            self.settle();
            self.flush_and_report();
        } else {
            let short = Span(self.rng.below(4_000_000));
            self.rack.run_for(short);
        }
        (self.rack.faults.full, self.stale) = (false, true);
        let late = Span(self.rng.below(15_000_000));
        self.rack.run_for(late);
        self.answers();
        self.met.insert("short of room");
        for _ in 0..self.rng.between(0, 3) {
            self.submit();
        }
        self.settle();
        self.flush_and_report();
    }
    /// No write goes out under a generation later than that in which it was submitted.
    fn check_sent(&mut self) {
        for p in std::mem::take(&mut self.rack.sent) {
            let Body::Block(Block::Io(IoRequest::Write(w))) = p.body else { continue };
            let value = w.data.identity(0);
            if let Some(&generation) = self.generations.get(&value) {
                assert_eq!(w.attach, generation, "seed {}: a write goes again under another generation", self.seed);
            }
        }
    }
    fn round(&mut self) {
        for _ in 0..self.rng.between(1, 8) {
            self.submit();
            let span = Span(self.rng.below(2_000_000));
            self.rack.run_for(span);
            self.answers();
            if self.rng.chance(0.1) {
                self.rack.crash(self.rng.below(SETS) as u32);
                (self.crashed, self.crashes) = (true, self.crashes + 1);
                self.sectors.iter_mut().for_each(|s| s.seen = 0);
            }
        }
        match self.rng.below(16) {
            0 => {
                self.steal();
                self.rack.run_for(Span(self.rng.below(5_000_000)));
                self.attach();
            }
            1 => {
                // Another client attached it, and wrote nothing.
                self.rack.info.attach += 1;
                self.attach();
            }
            2..4 => {
                self.settle();
                self.flush_and_report();
            }
            4 => {
                self.rack.faults.full = !self.rack.faults.full;
                // In what order parts of what fails took effect is not known.
                self.stale = true;
            }
            5..9 => self.settle(),
            13 => self.short_of_room(),
            14 => self.members_change(),
            _ => {}
        }
        self.check_sent();
    }
}

#[test]
fn a_volume_that_is_attached_again_and_again_is_one_array() {
    let of = seeds(0..60);
    let mut met = BTreeSet::new();
    for seed in of.clone() {
        println!("seed {seed}");
        let mut w = World::new(seed);
        (0..ROUNDS).for_each(|_| w.round());
        w.rack.faults.full = false;
        w.settle();
        met.append(&mut w.met);
    }
    let all = ["read", "flushed", "lost", "no space", "fenced", "stolen", "short of room", "other members"];
    assert!(of != (0..60) || all.iter().all(|what| met.contains(what)), "never met: {met:?}");
}
