//! What each member has: an answered FLUSH or FUA write is durable on all of them, no cache gets more than it has slots for, and
//! members whose flash fails leave. Everything is drawn from the seed.

use std::collections::BTreeMap;

use rackweave_core::msg::{IoReply, IoRequest, Role, ViewState};
use rackweave_core::rng::seeds;
use rackweave_core::{Epoch, Rng, Span, Time};

use crate::cluster::{Cluster, Net, VOLUME};
use crate::memory::Memory;

/// Slots of the smallest cache.
const SLOTS: u64 = 96;
const SERVERS: usize = 3;

/// A view, and then an answer, reach everybody within this time.
const LATE: Span = Span::from_millis(50);

/// Contents that a sector was given, in order, each with its operation.
type Values = Vec<(u64, u64)>;

struct World {
    c: Cluster,
    rng: Rng,
    sectors: Vec<Values>,
    /// Of each FLUSH and FUA write under way: how many contents of each sector must be durable.
    promised: BTreeMap<u64, Vec<usize>>,
    seen: usize,
    /// Operations up to this one may have been lost, unless they were flushed: then the whole set recovered in that epoch.
    lost: (u64, Epoch),
    /// When the view had enough members to acknowledge writes.
    enough_at: Time,
    /// Members that were looked at after such an answer.
    looked: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::stream(seed, 7);
        let net = Net { loss: *rng.pick(&[0.0, 0.05, 0.15]), ..Net::BAD };
        // Few blocks, or more than the cache and the flash have room for.
        let blocks = *rng.pick(&[6, 160]);
        let pages = if rng.chance(0.3) { blocks.max(100) - 10 } else { 1 << 20 };
        let (slots, writes_back) = *rng.pick(&[(SLOTS, 2), (SLOTS, 10), (4096, usize::MAX)]);
        let forget_ranges = rng.chance(0.5);
        let store = || {
            let mut store = Memory::new();
            (store.slots, store.pages, store.writes_back) = (slots, pages, writes_back);
            store.forget_ranges = forget_ranges;
            store
        };
        let c = Cluster::with_stores(SERVERS, 1, seed, net, store);
        let sectors = vec![vec![(0, 0)]; 8 * blocks as usize];
        World {
            c,
            rng,
            sectors,
            promised: BTreeMap::new(),
            seen: 0,
            lost: (0, Epoch(0)),
            enough_at: Time::ZERO,
            looked: 0,
        }
    }
    fn done(&self, op: u64) -> bool {
        op == 0 || matches!(self.c.reply(0, op), Some(IoReply::Done))
    }
    /// An unanswered operation may change one of these sectors: the client keeps such ones in order.
    fn busy(&self, first: u64, end: u64) -> bool {
        let blocks = |a: u64, b: u64| (a / 8, b.div_ceil(8));
        let (first, end) = blocks(first, end);
        self.c.clients[0].pending.values().filter(|p| !p.acked).any(|p| {
            let (a, b) = match &p.io {
                IoRequest::Write(w) => blocks(w.range.first, w.range.first + u64::from(w.range.count)),
                IoRequest::Zero { range, .. } => (u64::from(range.first), u64::from(range.end())),
                _ => return false,
            };
            a < end && first < b
        })
    }
    fn change(&mut self, to: usize) {
        let (all, most) = (self.sectors.len() as u64, *self.rng.pick(&[8, 12, 120]));
        let first = self.rng.below(all);
        let count = self.rng.between(1, (all - first).min(most));
        let whole = self.rng.chance(0.4);
        let (first, end) =
            if whole { (first / 8 * 8, (first + count).div_ceil(8) * 8) } else { (first, first + count) };
        if self.busy(first, end) || !self.c.may_change(0) {
            return;
        }
        if whole && self.rng.chance(0.2) {
            let op = self.c.zero(0, to, (first / 8) as u32, ((end - first) / 8) as u32);
            (first..end).for_each(|s| self.sectors[s as usize].push((0, op)));
            return;
        }
        let fua = self.rng.chance(0.3);
        let op = self.c.write(0, to, first, (end - first) as u32, fua);
        let IoRequest::Write(w) = &self.c.clients[0].pending[&op].io else { unreachable!() };
        for s in first..end {
            self.sectors[s as usize].push((w.data.identity((s - first) as u32), op));
        }
        if fua {
            let mut durable = vec![0; self.sectors.len()];
            (first..end).for_each(|s| durable[s as usize] = self.sectors[s as usize].len() - 1);
            self.promised.insert(op, durable);
        }
    }
    fn flush(&mut self, to: usize) {
        let counts = |op| op > self.lost.0 && self.done(op);
        let newest = |v: &Values| (0..v.len()).rev().find(|&k| counts(v[k].1)).unwrap_or(0);
        let durable = self.sectors.iter().map(newest).collect();
        let op = self.c.flush(0, to);
        self.promised.insert(op, durable);
    }
    /// Looks at all members once an answer has come that promises something.
    fn look(&mut self) -> Result<(), String> {
        if let Some(i) = (0..SERVERS).find(|&i| self.c.servers[i].store().over > 0) {
            let over = self.c.servers[i].store().over;
            return Err(format!("server {i} got {over} blocks more than its cache has slots for"));
        }
        if self.c.view.recovered > self.lost.1 {
            let newest = self.sectors.iter().flatten().map(|v| v.1).max().unwrap_or(0);
            self.lost = (newest, self.c.view.recovered);
            self.promised.clear();
        }
        let new = self.c.replies[self.seen..].to_vec();
        self.seen = self.c.replies.len();
        let members = self.c.view.members.iter().filter(|m| m.role == Role::Member).count();
        if members >= 2 {
            self.enough_at = self.c.now();
        }
        for (_, op, reply) in new {
            let Some(promised) = self.promised.remove(&op) else { continue };
            let v = self.c.view.clone();
            if reply != IoReply::Done || v.state != ViewState::Normal {
                continue;
            }
            let members: Vec<usize> =
                v.members.iter().filter(|m| m.role == Role::Member).map(|m| m.vssd.0 as usize - 1).collect();
            if self.c.now().since(self.enough_at) > LATE {
                return Err(format!("{op} was answered in {v:?}"));
            }
            for &i in &members {
                self.looked += 1;
                for (s, &from) in promised.iter().enumerate() {
                    let durable = self.c.servers[i].store().durable(VOLUME, s as u64);
                    let values = &self.sectors[s];
                    if !values[from..].iter().any(|v| v.0 == durable) {
                        return Err(format!(
                            "{op} was answered, and sector {s} is {durable:x} on server {i}, of {values:x?} from {from} on: {v:?}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }
    fn fault(&mut self) {
        let i = self.rng.below(SERVERS as u64) as usize;
        let well = self.c.view.members.iter().filter(|m| m.role == Role::Member).count() == SERVERS
            && self.c.servers.iter().all(|s| s.up && !s.cut_off && !s.store().broken);
        if !well {
            for i in 0..SERVERS {
                if self.c.servers[i].store().broken {
                    self.c.crash(i);
                }
                self.c.servers[i].store().broken = false;
                self.c.restart(i);
                self.c.cut_off(i, false);
            }
            return;
        }
        match self.rng.below(4) {
            0 => self.c.crash(i),
            1 => self.c.cut_off(i, true),
            2 => self.c.servers[i].store().broken = true,
            _ => {
                // Two in a row: what the last member takes is not acknowledged.
                self.c.crash(i);
                self.c.cut_off((i + 1) % SERVERS, true);
            }
        }
    }
}

fn run(seed: u64) -> Result<World, String> {
    let mut w = World::new(seed);
    let (pace, most) = *w.rng.pick(&[(1, 8), (1, 24), (8, 24)]);
    let mut fault_at = w.c.now() + Span::from_millis(50);
    for _ in 0..250 * pace {
        let to = w.rng.below(SERVERS as u64) as usize;
        match w.rng.below(8) {
            0 if w.c.waiting(0) < 2 * most => w.flush(to),
            _ if w.c.waiting(0) > most => {}
            1 => _ = w.c.read(0, to, w.rng.below(w.sectors.len() as u64 - 4), 4),
            _ => w.change(to),
        }
        if w.c.now() > fault_at {
            w.fault();
            fault_at = w.c.now() + Span::from_millis(w.rng.between(10, 150));
        }
        let pause = w.rng.between(10, 8_000 / pace);
        for _ in 0..8 {
            w.c.run_for(Span::from_micros(pause / 8 + 1));
            w.look()?;
        }
    }
    for i in 0..SERVERS {
        if w.c.servers[i].store().broken {
            w.c.crash(i);
        }
        w.c.servers[i].store().broken = false;
    }
    w.c.calm();
    let idle = w.c.run_idle(Span::from_secs(30));
    w.look()?;
    let calm = w.c.converge(Span::from_secs(10));
    w.c.close();
    // What was not flushed may be gone once the whole set has recovered.
    let recovered = w.lost.1 > Epoch(0);
    if let Some((sector, h)) = w.c.history.violation().filter(|_| !recovered) {
        return Err(format!("sector {sector} has no order: {h:?}"));
    }
    if !idle {
        let room: Vec<_> =
            w.c.servers
                .iter()
                .map(|s| {
                    let s = s.store();
                    (s.slots, s.pages, s.contents().len(), s.dirty.len())
                })
                .collect();
        return Err(format!("requests were not answered: {room:?} {}", w.c.describe()));
    }
    calm.map(|()| w)
}

#[test]
fn what_is_answered_as_durable_is_durable_on_every_member() {
    let of = seeds(0..40);
    let looked: u64 = of.clone().map(|s| run(s).unwrap_or_else(|e| panic!("seed {s}: {e}")).looked).sum();
    assert!(of != (0..40) || looked > 1_000, "{looked} members");
}
