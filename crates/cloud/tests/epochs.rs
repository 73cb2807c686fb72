//! One epoch after another: each round draws what begins an epoch, and what fails before, while and after it begins. Then nothing
//! fails until all requests are answered and every segment is whole; a run in which that takes too long fails. Invariants of views,
//! leases, batches and fences are checked throughout ([`crate::checks`]). `RACKWEAVE_SEEDS` sets the number of seeds.

use rackweave_cloud::Config;
use rackweave_cloud::client::Op;
use rackweave_cloud::config::MergeMode;
use rackweave_cloud::log::LogLimits;
use rackweave_cloud::stripe::Shape;
use rackweave_cloud::trace as t;
use rackweave_cloud::types::Extent;
use rackweave_core::trace::Coverage;
use rackweave_core::{NodeId, Rng, Span, TracePoint};
use rackweave_sim::LinkFaults;
use rackweave_sim::clock::NodeClock;
use rackweave_sim::storm::{self, links, network};

use crate::rest;
use crate::world::{META, VOLUME, World};

const ROUNDS: u32 = 24;
/// Disks grow up to this number of bytes.
const DISK_MAX: u64 = 12 * 4096;
/// Everything is served and whole this long after a round's last fault.
const CALM: Span = Span::from_secs(4);
/// No message is on its way for longer.
const LATE_MAX: Span = Span::from_millis(500);
/// Clocks apart by at most this.
const DRIFT_PPM: u32 = 20_000;

/// When a snapshot is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivesUp {
    Never,
    /// When its fork has just been decided.
    Decided,
}

struct Epochs {
    w: World,
    rng: Rng,
    /// Share of the time in which clients have something to do. It is drawn again and again.
    busy: f64,
    gives_up: GivesUp,
    forked: u64,
}

impl Epochs {
    fn new(seed: u64) -> Epochs {
        let mut rng = Rng::stream(seed, 0x6570_6f63);
        let servers = rng.between(3, 5) as u32;
        let lease = Span::from_millis(*rng.pick(&[60, 150, 500]));
        let config = Config {
            copies: *rng.pick(&[2, 3]),
            lease,
            heartbeat: Span::from_millis(20),
            drift_ppm: DRIFT_PPM,
            give_up: Span::from_millis(*rng.pick(&[12, 40])),
            log: LogLimits { file: 16 << 10, bytes: 1 << 20, entries: 4096 },
            merge: *rng.pick(&[MergeMode::Prioritized, MergeMode::Asap, MergeMode::Limited(2)]),
            // A server that is left out may have something to move when it comes back.
            move_after: *rng.pick(&[
                Span::ZERO,
                Span::from_millis(2),
                Span::from_millis(20),
                lease.scale(3, 2),
                lease * 2,
            ]),
            by_multicast: rng.chance(0.5),
            ..Config::default()
        };
        let stripes = rng.between(2, 5);
        let shape = Shape::new(stripes * 4096, stripes.div_ceil(2) * 4096, 4096, *rng.pick(&[1, 2, 2, 2]));
        let network = network(&mut rng);
        let mut w = World::new(seed, config, servers, shape, network);
        w.burst.set(*rng.pick(&[0.2, 0.5, 0.9]));
        // A switch need not know the address of any pair.
        w.switch.copied.set(*rng.pick(&[0.9, 0.5, 0.0]));
        w.storage.borrow_mut().astray = *rng.pick(&[0.0, 0.02, 0.1]);
        let half = i64::from(DRIFT_PPM / 2);
        for n in w.hosts.servers.clone().into_iter().chain([META]) {
            let some = rng.between(0, 2 * half as u64) as i64 - half;
            let drift_ppm = *rng.pick(&[-half, -half, half, half, some]) as i32;
            w.engine.set_clock(n, NodeClock { offset_ns: rng.below(5_000_000), drift_ppm });
        }
        Epochs { w, rng, busy: 0.5, gives_up: GivesUp::Never, forked: 0 }
    }

    fn request(&mut self, c: NodeId) {
        let sectors = self.w.striping.sectors();
        let count = self.rng.between(1, 12.min(sectors));
        let extent = Extent::new(self.rng.below(sectors - count + 1), count as u32);
        match self.rng.below(20) {
            0 => self.w.submit(c, Op::Zeroes { extent }),
            1 => self.w.submit(c, Op::Discard { extent: Extent::new(extent.first / 8 * 8, 8) }),
            2 => self.w.submit(c, Op::Allocation { extent }),
            3..=11 => {
                let data = self.w.value(extent.count);
                self.w.submit(c, Op::Write { first: extent.first, data, fua: false });
            }
            _ => self.w.submit(c, Op::Read { extent }),
        }
    }
    /// Time passes, while clients work.
    fn pass(&mut self, span: Span) {
        let end = self.w.engine.now() + span;
        while self.w.engine.now() < end {
            for c in self.w.hosts.clients.clone() {
                while self.w.serves(c) && self.w.under_way(c) < 6 && self.rng.chance(self.busy) {
                    self.request(c);
                }
            }
            let step = Span::from_micros(self.rng.between(50, 1_000));
            self.w.run(step.min(end.since(self.w.engine.now())));
            self.give_up_what_is_decided();
        }
    }
    fn give_up_what_is_decided(&mut self) {
        let forked = self.w.coverage().get(t::FORKED);
        if forked > std::mem::replace(&mut self.forked, forked) && self.gives_up == GivesUp::Decided {
            _ = self.w.abort_snapshot();
        }
    }
    /// A time from none to some leases.
    fn moment(&mut self) -> Span {
        let most = *self.rng.pick(&[1, 500, 3_000, 30_000, 3 * self.w.config.lease.0 / 1_000]);
        Span::from_micros(self.rng.below(most))
    }
    fn wait(&mut self) {
        self.busy = *self.rng.pick(&[0.0, 0.1, 0.5, 0.8]);
        let moment = self.moment();
        self.pass(moment);
    }
    fn any_server(&mut self) -> NodeId {
        *self.rng.pick(&self.w.hosts.servers)
    }
    fn start(&mut self, n: NodeId) {
        if n != META {
            self.w.start_server(n);
        } else if !self.w.is_up(META) {
            self.w.start_meta();
        }
    }
    fn restart(&mut self, n: NodeId) {
        self.w.crash(n);
        if self.rng.chance(0.3) {
            self.wait();
        }
        self.start(n);
    }
    /// A client attaches: one that runs ends, or is fenced.
    fn attach(&mut self) {
        let c = *self.rng.pick(&self.w.hosts.clients);
        self.w.crash(c);
        self.w.start_client(c);
    }

    /// Begins an epoch, perhaps with a snapshot or another size.
    fn begin(&mut self) {
        match self.rng.below(6) {
            0 | 1 => self.attach(),
            2 => _ = self.w.snapshot(),
            3 => {
                let bytes = self.w.shape.bytes + 4096;
                _ = bytes <= DISK_MAX && self.w.grow(bytes);
            }
            4 => _ = self.w.flatten(),
            _ => {
                let s = self.any_server();
                self.restart(s);
            }
        }
    }
    /// The metadata role or a server ends while an epoch begins.
    fn interrupted(&mut self) {
        self.begin();
        if self.rng.chance(0.6) {
            let moment = Span::from_micros(self.rng.below(2_000));
            self.w.run(moment);
        } else {
            self.wait();
        }
        let n = if self.rng.chance(0.7) { META } else { self.any_server() };
        self.restart(n);
    }
    /// A server is cut off until an epoch begins without it, and comes back. Some clients may reach it meanwhile, and others not.
    fn left_out(&mut self) {
        let s = self.any_server();
        self.w.cut(s, &[META]);
        if self.rng.chance(0.3) {
            let others = self.w.hosts.other_servers(s);
            self.w.cut(s, &others);
        }
        self.wait();
        if self.rng.chance(0.4) {
            // What goes to both is on one.
            let (c, t) = (*self.rng.pick(&self.w.hosts.clients), self.any_server());
            self.w.cut(c, &[t]);
            let moment = Span::from_micros(self.rng.below(15_000));
            self.pass(moment);
        }
        if self.rng.chance(0.4) {
            let all = self.w.hosts.parties();
            self.w.cut(s, &all);
        }
        for _ in 0..self.rng.below(3) {
            self.begin();
            self.wait();
        }
        if self.rng.chance(0.5) {
            // What the server has still to move stays as it is.
            self.busy = 0.0;
        }
        let leases = self.rng.between(0, 3_000);
        self.pass(Span::from_micros(self.w.config.lease.0 / 1_000_000 * leases));
        self.w.engine.net().heal();
        for _ in 0..self.rng.between(1, 3) {
            if self.rng.chance(0.5) {
                self.returned(s)
            } else {
                self.wait()
            }
            self.restart(s);
        }
        self.wait();
    }
    /// Passes the time until an epoch has the server, and up to 1.5 ms more.
    fn returned(&mut self, s: NodeId) {
        let out = |w: &World| w.server(s).is_none_or(|s| s.view(VOLUME).is_none());
        for _ in 0..300 {
            if !out(&self.w) {
                break;
            }
            self.pass(Span::from_micros(250));
        }
        let moment = Span::from_micros(self.rng.below(1_500));
        self.w.run(moment);
    }
    /// Two servers lose power, and one of them its drive. What it had is on the other one, which starts later.
    fn drive_lost(&mut self) {
        if self.w.shape.log_copies < 2 || self.w.whole().is_err() {
            return;
        }
        let lost = self.any_server();
        let others = self.w.hosts.other_servers(lost);
        let other = *self.rng.pick(&others);
        let both = self.rng.chance(0.7);
        self.w.crash(lost);
        if both {
            self.w.crash(other);
        }
        self.w.replace_drive(lost);
        self.wait();
        self.w.start_server(lost);
        self.wait();
        if self.rng.chance(0.3) {
            self.begin();
            self.wait();
        }
        self.w.start_server(other);
    }
    /// A snapshot that is given up: at any time, or when its fork has just been decided.
    fn given_up(&mut self) {
        self.gives_up = *self.rng.pick(&[GivesUp::Never, GivesUp::Decided]);
        _ = self.w.snapshot();
        self.wait();
        if self.gives_up == GivesUp::Never {
            _ = self.w.abort_snapshot();
        }
        self.wait();
    }

    fn round(&mut self) -> Result<(), String> {
        self.gives_up = GivesUp::Never;
        self.wait();
        if self.rng.chance(0.3) {
            let faults = links(&mut self.rng);
            self.w.faults(faults);
        }
        match self.rng.below(10) {
            0..=2 => self.interrupted(),
            3..=6 => self.left_out(),
            7 => self.drive_lost(),
            8 => self.given_up(),
            _ => {
                self.begin();
                self.wait();
                self.begin();
            }
        }
        self.calm()
    }
    fn calm(&mut self) -> Result<(), String> {
        self.w.engine.net().heal();
        self.w.faults(LinkFaults::NONE);
        self.start(META);
        self.w.hosts.servers.clone().into_iter().for_each(|s| self.start(s));
        let runs = |w: &World| w.hosts.clients.iter().any(|c| w.client(*c).is_some_and(|c| !c.is_fenced()));
        let writer = |w: &World| w.hosts.clients.iter().copied().find(|c| w.serves(*c));
        let served = |w: &World| writer(w).map(|_| ()).ok_or("no client has the disk".to_string());
        let whole = loop {
            if !runs(&self.w) {
                self.attach();
            }
            let whole = self.w.until(CALM, |w| if runs(w) { w.whole().and(served(w)) } else { Ok(()) });
            // A late message of a client that has ended may fence the one that runs.
            if runs(&self.w) {
                break whole;
            }
        };
        let c = writer(&self.w);
        // The disk's new end, too.
        if let Some(c) = c {
            self.w.read(c, self.w.striping.sectors() - 8, 8);
        }
        let idle = self.w.settle(CALM);
        self.w.sound()?;
        if idle && c.is_some() { whole } else { Err(format!("not answered: {whole:?}, {}", rest::waits(&self.w))) }
    }
}

fn run(seed: u64, all: &mut Coverage) -> Result<(), String> {
    let mut s = Epochs::new(seed);
    let c = s.w.hosts.clients[0];
    let _ = s.w.attach(c, Span::from_secs(2));
    let mut result = Ok(());
    for round in 0..ROUNDS {
        result = s.round().map_err(|e| format!("round {round}: {e}"));
        if result.is_err() {
            break;
        }
    }
    let result = result.and_then(|()| {
        s.w.run(LATE_MAX);
        s.calm()?;
        rest::all_is_answered_and_moved(&mut s.w, CALM)
    });
    all.merge(s.w.coverage());
    result
}

const MUST: &[TracePoint] = &[
    t::ADOPTED,
    t::APPEND_ADOPTED,
    t::DEAD_ENTRY,
    t::EQUALIZED,
    t::FENCED,
    t::FILLED,
    t::FLATTENED,
    t::FORKED,
    t::FORK_ABORTED,
    t::GROWN,
    t::LEFT_OUT,
    t::NO_LEASE,
    t::RECOVERY_WAITS,
    t::STRIPE_COPIED,
    t::VOIDED,
];

#[test]
fn each_epoch_begins_with_what_the_last_one_answered() {
    storm::search(0..20, MUST, run);
}
