//! Reported room against a model (protocol rule 34): members report what they hold, restart, leave and come back, volumes are
//! made, and the service restarts. Everything is drawn from the seed.

use std::collections::BTreeMap;

use rackweave_core::admin;
use rackweave_core::msg::Control;
use rackweave_core::msg::control::VssdRoom;
use rackweave_core::rng::seeds;
use rackweave_core::{Incarnation, Rng, Span, VolumeId, VssdId};

use super::harness::{GIB, LEASE, Rack, config};

/// Blocks that every other member may hold as credit: those of a message.
const CREDIT: u64 = 16;
const STRIPE: u64 = 16;
const BLOCK: u64 = 4096;

struct World {
    rng: Rng,
    r: Rack,
    request: u64,
    /// What each vSSD has reported in the incarnation of its server: capacity, and blocks in use.
    reported: BTreeMap<VssdId, (Incarnation, u64, u64)>,
    /// The volumes and their sizes.
    promised: BTreeMap<String, u64>,
    volumes: u64,
}

impl World {
    fn report(&mut self, i: usize) {
        let s = &self.r.servers[i];
        let (node, vssd, now) = (s.node, s.vssd, s.incarnation);
        // Late, of an earlier run.
        let by = if self.rng.chance(0.1) { Incarnation(now.0.saturating_sub(1)) } else { now };
        let capacity = self.rng.between(1, 2 * GIB / BLOCK);
        let used = self.rng.below(capacity);
        let (from, until) = (VolumeId(0), VolumeId(u32::MAX));
        let room = VssdRoom { vssd, capacity, used, from, until, volumes: Box::new([]) };
        if by == now {
            self.reported.insert(vssd, (by, capacity, used));
        }
        self.r.control(node, by, 0, Control::Room(Box::new(room)));
    }
    /// Capacity and room of the set, in bytes.
    fn expected(&self) -> (u64, u64) {
        let v = self.r.view();
        let credit = CREDIT * (v.members.len() as u64).saturating_sub(1);
        let of = |m: &rackweave_core::msg::Member| self.reported.get(&m.vssd).filter(|r| r.0 == m.incarnation);
        let all: Option<Vec<_>> = v.members.iter().map(of).collect();
        let Some(all) = all.filter(|a| !a.is_empty()) else { return (GIB, 0) };
        let least = |of: &dyn Fn(&(Incarnation, u64, u64)) -> u64| all.iter().map(|r| of(r)).min().unwrap_or(0);
        let whole = |blocks: u64| blocks / STRIPE * STRIPE * BLOCK;
        (whole(least(&|r| r.1)), whole(least(&|r| r.1.saturating_sub(r.2 + credit))))
    }
    fn step(&mut self) -> Result<(), String> {
        let i = self.rng.below(3) as usize;
        match self.rng.below(10) {
            0..=3 => self.report(i),
            4 => self.r.start(i),
            5 => self.r.servers[i].silent = !self.r.servers[i].silent,
            6 => self.r.fill_shadows(),
            7 if self.rng.chance(0.2) => {
                self.r.restart_meta();
                self.reported.clear();
            }
            8 => self.create()?,
            9 if self.rng.chance(0.3) => self.delete(),
            _ => self.r.run(Span::from_millis(200)),
        }
        if self.rng.chance(0.1) {
            self.r.run(LEASE * 3);
        }
        self.request += 1;
        let Ok(admin::Reply::Rack(s)) = self.r.admin(self.request, admin::Op::RackStatus) else {
            return Err("no status".into());
        };
        let (found, expected) = ((s.capacity, s.room), self.expected());
        if found == expected && s.promise_limit == self.limit() {
            return Ok(());
        }
        Err(format!(
            "{found:?}, {} promised, of {:?}, not {expected:?}: {:?}",
            s.promise_limit,
            self.r.view(),
            self.reported
        ))
    }
    fn limit(&self) -> u64 {
        (self.expected().0 as f64 * self.r.cfg.overcommit) as u64
    }
    fn delete(&mut self) {
        let Some(name) = self.promised.keys().next().cloned() else { return };
        self.request += 1;
        self.r.admin_unanswered(self.request, admin::Op::VolumeDelete { name: (&*name).into(), force: true });
        self.promised.remove(&name);
    }
    /// A volume is made if what is promised stays within its multiple of the capacity.
    fn create(&mut self) -> Result<(), String> {
        self.request += 1;
        let size = self.rng.between(1, 64) * (GIB / 16);
        let promised: u64 = self.promised.values().sum();
        let fits = promised + size <= self.limit();
        let name = format!("v{}", self.request);
        let made = self.r.admin(self.request, admin::Op::create(&*name, size)).is_ok();
        if made {
            self.promised.insert(name, size);
            self.volumes += 1;
        }
        if made == fits { Ok(()) } else { Err(format!("{size} beside {promised}: {made}, of {:?}", self.expected())) }
    }
}

fn run(seed: u64) -> Result<World, String> {
    let mut r = Rack::new(config());
    r.start_all();
    let (reported, rng) = (BTreeMap::new(), Rng::new(seed));
    let mut w = World { rng, r, request: 1, reported, promised: BTreeMap::new(), volumes: 0 };
    for _ in 0..300 {
        w.step()?;
    }
    Ok(w)
}

#[test]
fn room_is_what_the_members_report() {
    let of = seeds(0..40);
    let volumes: u64 = of.clone().map(|seed| run(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}")).volumes).sum();
    assert!(of != (0..40) || volumes > 100, "{volumes} volumes");
}
