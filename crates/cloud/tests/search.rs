//! Everything at once: a client of a small disk while servers, clients and the metadata role crash, lose power together, are cut
//! off, get empty drives, and while other clients attach. `RACKWEAVE_SEEDS` sets the number of seeds.

use rackweave_cloud::Config;
use rackweave_cloud::burst::BurstConfig;
use rackweave_cloud::client::Op;
use rackweave_cloud::config::MergeMode;
use rackweave_cloud::log::LogLimits;
use rackweave_cloud::stripe::Shape;
use rackweave_cloud::trace as t;
use rackweave_cloud::types::Extent;
use rackweave_core::trace::Coverage;
use rackweave_core::{NodeId, Rng, Span, Time, TracePoint};
use rackweave_sim::LinkFaults;
use rackweave_sim::storm::{self, links, network};

use crate::rest;
use crate::world::{META, World};

const OPS: u64 = 2_000;
/// Disks grow up to this number of bytes.
const DISK_MAX: u64 = 12 * 4096;
/// Faults and requests end by then.
const RAGE_MAX: Time = Time(600_000_000_000);
/// After the last fault everything is served and whole within this time.
const CALM: Span = Span::from_secs(20);

/// Short enough for both routes within a run.
const DETECTION: BurstConfig = BurstConfig {
    threshold: Span::from_millis(10),
    bucket: Span::from_millis(20),
    window: Span::from_millis(200),
    ..BurstConfig::PAPER
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    General,
    /// Servers lose power together, again and again.
    Cuts,
    /// Clients attach and crash more often than anything else.
    Attaches,
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    kind: Kind,
    /// The disk may grow.
    grows: bool,
    /// The storage layer may be slow, and stores may stand still.
    slow: bool,
}

struct Storm {
    w: World,
    rng: Rng,
    /// Of snapshots.
    forks: Rng,
    /// Of looks for what is allocated.
    looks: Rng,
    /// Of growth, if the disk grows.
    grows: Option<Rng>,
    /// Of servers' stores that stand still, if any do.
    stalls: Option<Rng>,
    kind: Kind,
    faults: u64,
}

impl Storm {
    fn new(seed: u64, Plan { kind, grows, slow }: Plan) -> Storm {
        let mut rng = Rng::stream(seed, 77 + kind as u64);
        let mut more = Rng::stream(seed, 177 + kind as u64);
        let servers = rng.between(3, 5) as u32;
        let small = rng.chance(0.3);
        let log_copies = *more.pick(&[1, 2, 2, 2, 2]);
        let config = Config {
            copies: *rng.pick(&[2, 3, 3]),
            lease: Span::from_millis(*rng.pick(&[60, 150])),
            heartbeat: Span::from_millis(20),
            drift_ppm: *rng.pick(&[200, 20_000]),
            give_up: Span::from_millis(*rng.pick(&[12, 40])),
            log: LogLimits {
                file: 16 << 10,
                bytes: if small { 24 << 10 } else { 1 << 20 },
                entries: if small { 24 } else { 4096 },
            },
            merge: *rng.pick(&[MergeMode::Prioritized, MergeMode::Prioritized, MergeMode::Asap, MergeMode::Limited(2)]),
            merge_foreground_bytes: if small { 8 << 10 } else { 128 << 10 },
            overlay_bytes: if small { 12 << 10 } else { 64 << 10 },
            move_after: Span::from_millis(*more.pick(&[0, 2, 20])),
            by_multicast: seed / 4 % 2 == 1,
            ..Config::default()
        };
        let stripes = rng.between(2, 5);
        let segment = stripes.div_ceil(2) * 4096;
        let shape = Shape::new(stripes * 4096, segment, 4096, log_copies);
        let network = network(&mut rng);
        let mut w = World::new(seed, config, servers, shape, network);
        w.burst.set(*rng.pick(&[0.2, 0.5, 0.5, 0.9]));
        w.detection = more.chance(0.25).then_some(DETECTION);
        // Slower than the retry time: a read that began anew with each retry would never end.
        let mut slowness = Rng::stream(seed, 577 + kind as u64);
        if slow && slowness.chance(0.25) {
            w.storage.borrow_mut().answer_us = (6_000, 20_000);
        }
        let grows = grows.then(|| Rng::stream(seed, 377 + kind as u64));
        Storm {
            w,
            rng,
            forks: Rng::stream(seed, 277 + kind as u64),
            looks: Rng::stream(seed, 477 + kind as u64),
            grows,
            stalls: (slow && slowness.chance(0.5)).then_some(slowness),
            kind,
            faults: 0,
        }
    }

    fn request(&mut self, c: NodeId) {
        let sectors = self.w.striping.sectors();
        let count = self.rng.between(1, 12.min(sectors));
        let extent = Extent::new(self.rng.below(sectors - count + 1), count as u32);
        if self.looks.chance(0.1) {
            self.w.submit(c, Op::Allocation { extent });
        }
        match self.rng.below(20) {
            0 => self.w.submit(c, Op::Zeroes { extent }),
            1 => {
                let whole = Extent::new(extent.first / 8 * 8, 8);
                self.w.submit(c, Op::Discard { extent: whole });
            }
            2 => self.w.submit(c, Op::Flush),
            3..=10 => {
                let data = self.w.value(extent.count);
                let fua = self.rng.chance(0.1);
                self.w.submit(c, Op::Write { first: extent.first, data, fua });
            }
            _ => self.w.submit(c, Op::Read { extent }),
        }
    }

    /// By one stripe or two.
    fn grow(&mut self) {
        let Some(rng) = &mut self.grows else { return };
        let bytes = self.w.shape.bytes + rng.between(1, 2) * 4096;
        if rng.chance(0.004) && bytes <= DISK_MAX {
            self.w.grow(bytes);
        }
    }
    /// A server's store stands still, or all go on.
    fn stall(&mut self) {
        let Some(rng) = &mut self.stalls else { return };
        if rng.chance(0.003) {
            let s = *rng.pick(&self.w.hosts.servers);
            self.w.slow_store(s, Span::from_secs(3600));
        } else if rng.chance(0.003) {
            self.stalls_end();
        }
    }
    fn stalls_end(&mut self) {
        self.w.hosts.servers.clone().into_iter().for_each(|s| self.w.slow_store(s, Span::ZERO));
    }
    fn start_all(&mut self) {
        if !self.w.is_up(META) {
            self.w.start_meta();
        }
        self.w.hosts.servers.clone().into_iter().for_each(|s| self.w.start_server(s));
    }
    fn cut_power(&mut self) {
        let share = *self.rng.pick(&[1.0, 1.0, 0.7]);
        for s in self.w.hosts.servers.clone() {
            if self.rng.chance(share) {
                self.w.crash(s);
            }
        }
        for n in [META, self.w.hosts.clients[0], self.w.hosts.clients[1]] {
            if self.rng.chance(0.3) {
                self.w.crash(n);
            }
        }
    }
    /// An empty drive, if everything has all its copies: more would be two losses. An entry with one copy survives none.
    fn replace(&mut self) {
        if self.w.shape.log_copies < 2 {
            return;
        }
        let all_up = self.w.hosts.servers.iter().all(|s| self.w.is_up(*s));
        if all_up && self.w.whole().is_ok() {
            let s = *self.rng.pick(&self.w.hosts.servers);
            self.w.crash(s);
            self.w.replace_drive(s);
            if self.rng.chance(0.5) {
                self.w.start_server(s);
            }
            // Until all is whole again nothing else is lost for good.
            let _ = self.w.until(Span::from_millis(600), |w| w.whole());
        }
    }
    /// A client crashes, or another attaches while it runs.
    fn change_client(&mut self) {
        let c = *self.rng.pick(&self.w.hosts.clients);
        self.w.crash(c);
        if self.rng.chance(0.8) {
            self.w.start_client(c);
        }
    }

    fn fault(&mut self) {
        self.faults += 1;
        let s = *self.rng.pick(&self.w.hosts.servers);
        if self.forks.chance(0.4) {
            self.w.snapshot();
        }
        match self.rng.below(14) {
            0 | 1 if self.kind == Kind::Cuts => self.cut_power(),
            0..=5 if self.kind == Kind::Attaches => self.change_client(),
            0..=2 => self.w.crash(s),
            3 => self.cut_power(),
            4 => {
                let mut others = self.w.hosts.parties();
                others.retain(|_| self.rng.chance(0.6));
                others.retain(|n| *n != s);
                self.w.cut(s, &others);
            }
            5 => self.w.cut(s, &[META]),
            6 => {
                let others = self.w.hosts.other_servers(s);
                self.w.cut(s, &others);
            }
            7 => {
                self.w.crash(META);
                if self.rng.chance(0.7) {
                    self.w.start_meta();
                }
            }
            8 | 9 => self.change_client(),
            10 => self.replace(),
            11 => {
                let faults = links(&mut self.rng);
                self.w.faults(faults);
            }
            12 => {
                let to = *self.rng.pick(&self.w.hosts.servers);
                let extra = Span::from_millis(self.rng.between(1, 200));
                self.w.engine.net().delay_way(s, to, extra);
            }
            _ => {
                self.w.crash(s);
                self.w.start_server(s);
            }
        }
    }
    fn repair(&mut self) {
        match self.rng.below(4) {
            0 => self.start_all(),
            1 => self.w.engine.net().heal(),
            _ => {
                if let Some(s) = self.w.hosts.servers.iter().copied().find(|s| !self.w.is_up(*s)) {
                    self.w.start_server(s);
                }
                if self.rng.chance(0.5) && !self.w.is_up(META) {
                    self.w.start_meta();
                }
            }
        }
        self.some_client();
    }
    /// Some client has the disk, or is about to.
    fn some_client(&mut self) {
        let runs = |c: &NodeId| self.w.client(*c).is_some_and(|c| !c.is_fenced());
        if !self.w.hosts.clients.iter().any(runs) {
            let c = *self.rng.pick(&self.w.hosts.clients);
            self.w.crash(c);
            self.w.start_client(c);
        }
    }

    fn rage(&mut self) {
        let quick = Span::from_micros(self.rng.between(100, 1_500));
        // Requests that are never answered end it: that is a failure.
        while (self.w.ops < OPS || self.faults < 6) && self.w.engine.now() < RAGE_MAX {
            for c in self.w.hosts.clients.clone() {
                while self.w.serves(c) && self.w.under_way(c) < 10 && self.rng.chance(0.7) {
                    self.request(c);
                }
            }
            self.w.run(quick);
            if self.rng.chance(0.02) {
                self.fault();
            }
            if self.rng.chance(0.03) {
                self.repair();
            }
            if self.forks.chance(0.02) {
                self.w.snapshot();
            }
            self.grow();
            self.stall();
            if self.forks.chance(0.01) {
                self.w.flatten();
            }
            if self.forks.chance(0.002) {
                _ = self.w.abort_snapshot();
            }
            if self.rng.chance(0.01) {
                let pause = Span::from_millis(self.rng.between(1, 400));
                self.w.run(pause);
            }
        }
    }

    fn end(&mut self) -> Result<(), String> {
        self.w.engine.net().heal();
        self.w.faults(LinkFaults::NONE);
        self.stalls_end();
        self.start_all();
        self.some_client();
        if self.rng.chance(0.3) {
            self.w.hosts.servers.clone().into_iter().for_each(|s| self.w.crash(s));
            self.start_all();
        }
        rest::all_is_answered_and_moved(&mut self.w, CALM)
    }
}

fn run(seed: u64, plan: Plan, all: &mut Coverage) -> Result<(), String> {
    let mut s = Storm::new(seed, plan);
    let c = s.w.hosts.clients[0];
    let _ = s.w.attach(c, Span::from_secs(2));
    s.rage();
    let result = s.end();
    all.merge(s.w.coverage());
    result
}

fn search(kind: Kind, usual: u64, must: &[TracePoint]) {
    storm::search(0..usual, must, |seed, all| run(seed, Plan { kind, grows: true, slow: true }, all));
}

#[test]
fn blocks_stay_linearizable_and_durable_through_all_faults() {
    let must = [
        t::ADOPTED,
        t::ALLOCATION_BEGUN_AGAIN,
        t::APPEND_ADOPTED,
        t::APPEND_REPEATED,
        t::DEAD_ENTRY,
        t::EQUALIZED,
        t::FENCED,
        t::FILLED,
        t::FLATTENED,
        t::FORKED,
        t::FORK_ABORTED,
        t::FORK_HELD,
        t::GROWN,
        t::LEFT_OUT,
        t::LOG_FULL,
        t::MERGED,
        t::MERGE_REPEATED,
        t::MERGE_SUSPENDED,
        t::MOVED,
        t::MOVE_OVERTAKEN,
        t::NO_LEASE,
        t::OUTDATED,
        t::READ_HELD,
        t::READ_INCOMPLETE,
        t::READ_OUTDATED,
        t::RECOVERY_WAITS,
        t::RESCHEDULED,
        t::STORAGE_FENCED,
        t::STORE_STALLED,
        t::STRIPE_COPIED,
        t::VOIDED,
        t::WRITE_REPEATED,
    ];
    search(Kind::General, 24, &must);
}

#[test]
fn power_cuts_of_all_servers_lose_nothing_that_was_answered() {
    search(Kind::Cuts, 16, &[t::RECOVERY_WAITS, t::APPEND_ADOPTED, t::EQUALIZED]);
}

#[test]
fn clients_attach_and_crash_in_the_middle_of_everything() {
    search(Kind::Attaches, 16, &[t::FENCED, t::ADOPTED, t::VOID_ADOPTED]);
}

/// Seeds that found faults.
#[test]
fn seeds_that_found_faults_pass() {
    let general = [102, 461].map(|seed| (seed, Kind::General, false));
    let attaches = [83, 693].map(|seed| (seed, Kind::Attaches, false));
    let earlier = general.into_iter().chain(attaches).chain([(56, Kind::Cuts, false)]);
    for (seed, kind, grows) in earlier.chain([700_164, 904_073].map(|seed| (seed, Kind::General, true))) {
        let plan = Plan { kind, grows, slow: false };
        run(seed, plan, &mut Coverage::default()).unwrap_or_else(|e| panic!("{plan:?}, seed {seed}: {e}"));
    }
}
