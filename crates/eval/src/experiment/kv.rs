//! FlashBlox §4.2.1 and §4.3.1: key-value stores under YCSB that share a drive, and one that is migrated.

use std::cell::RefCell;
use std::rc::Rc;

use rackweave_core::{Span, SsdId};
use rackweave_flash::backend::Memory;
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::ManagerConfig;
use rackweave_flash::wear::Swap;
use rackweave_flash::{Geometry, Profile};
use rackweave_kv::store::Durability;
use serde_json::{Value, json};

use super::{Better, ExperimentError, Options, Outcome, Row};
use crate::tenants::kv::{KvClients, KvLoad, KvTenant};
use crate::tenants::{Bench, BenchError, TenantOutcome, unit_levels};
use rackweave_replay::ycsb::{RECORD_BYTES, Workload};

/// The drive and its stores, scaled down from the paper's channels of 64 GB with 32 GB of records.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// p-ssd has 4 planes of 1024 blocks of 256 pages. Planes of a die work in parallel only for moves, so one plane of
    /// 256 blocks differs only in size; a block has fewer pages.
    pages_per_block: u16,
    warm_up: Span,
    window: Span,
}

impl Scale {
    fn of(o: Options) -> Scale {
        let ms = Span::from_millis;
        if o.quick {
            Scale { pages_per_block: 16, warm_up: ms(100), window: ms(600) }
        } else {
            Scale { pages_per_block: 64, warm_up: ms(1000), window: ms(5000) }
        }
    }
    fn drive(&self, channels: u16) -> Result<ManagerConfig, BenchError> {
        let mut p = Profile::builtin("p-ssd").unwrap_or_else(|| unreachable!("it is built in"));
        p.geometry = Geometry {
            channels,
            dies_per_channel: DIES,
            planes_per_die: 1,
            blocks_per_plane: 256,
            pages_per_block: self.pages_per_block,
            ..p.geometry
        };
        let mut cfg = ManagerConfig::new(SsdId(0), p);
        cfg.levels = unit_levels(&cfg);
        // Software isolation stripes over all dies (§4.2.1).
        cfg.soft_stripe_dies = cfg.profile.geometry.dies();
        Ok(cfg)
    }
    /// Half of a channel.
    fn load(&self, seed: u64) -> KvLoad {
        let channel = u64::from(DIES) * 256 * u64::from(self.pages_per_block) * 16_384;
        let records = channel / 2 / u64::from(RECORD_BYTES + 40);
        KvLoad { records, ageing: 1.2, clients: CLIENTS, durability: Durability::Forced, seed }
    }
    fn config(&self, channels: u16, planes: u16, clients: usize) -> Value {
        let load = self.load(0);
        json!({
            "profile": "p-ssd", "channels": channels, "dies_per_channel": DIES, "planes_per_die": planes,
            "blocks_per_plane": 256 / planes, "pages_per_block": self.pages_per_block, "records": load.records,
            "record_bytes": RECORD_BYTES, "clients": clients, "durability": "forced", "window_ms": self.window.0 / 1_000_000,
        })
    }
}

const DIES: u16 = 4;
/// Clients of a store that shares a drive, each with one request at a time. They are many, since the paper raises their
/// number until throughput no longer grows (§4.2).
const CLIENTS: usize = 64;
/// Clients of a store that is migrated (assumed; the paper gives no number).
const CLIENTS_MIGRATED: usize = 16;
const ISOLATIONS: [Isolation; 3] = [Isolation::Channel, Isolation::Die, Isolation::Software];

/// vSSDs of one channel each, or of the same number of dies or soft-planes spread over all channels.
fn vssds(b: &mut Bench, isolation: Isolation, n: u16) -> Result<Vec<rackweave_core::VssdId>, BenchError> {
    let dies = u32::from(DIES);
    match isolation {
        Isolation::Channel => (0..n).map(|_| b.alloc(isolation, 1)).collect(),
        Isolation::Die => {
            // Allocation would otherwise give whole channels: all dies are taken, then released in the intended order.
            let all: Vec<_> = (0..u32::from(n) * dies).map(|_| b.alloc(isolation, 1)).collect::<Result<_, _>>()?;
            let each = usize::from(DIES / n);
            let mut given = Vec::new();
            for store in 0..usize::from(n) {
                for channel in all.chunks(usize::from(DIES)) {
                    for die in &channel[store * each..(store + 1) * each] {
                        b.dealloc(*die)?;
                    }
                }
                given.push(b.alloc(isolation, dies)?);
            }
            Ok(given)
        }
        _ => {
            let parts = u32::from(b.manager().config().soft_planes_per_die);
            (0..n).map(|_| b.alloc(isolation, dies * parts)).collect()
        }
    }
}

type Clients = Rc<RefCell<KvClients>>;

struct Stores {
    bench: Bench,
    clients: Vec<Clients>,
}

impl Stores {
    /// Stores that are filled and aged.
    fn new(cfg: ManagerConfig, isolation: Isolation, n: u16, load: KvLoad) -> Result<Stores, BenchError> {
        let memory = Memory::new(cfg.profile.geometry);
        let mut bench = Bench::new(cfg, memory)?;
        let mut clients = Vec::new();
        for (vssd, i) in vssds(&mut bench, isolation, n)?.into_iter().zip(0..) {
            let (c, tenants) = KvTenant::of(&[vssd], KvLoad { seed: load.seed + i, ..load });
            tenants.into_iter().for_each(|t| _ = bench.add(t));
            clients.push(c);
        }
        bench.prepare()?;
        Ok(Stores { bench, clients })
    }
    fn run(&mut self, workloads: &[Workload], scale: &Scale) -> Vec<TenantOutcome> {
        for (c, w) in self.clients.iter().zip(workloads) {
            c.borrow_mut().switch(*w);
        }
        self.bench.begin();
        self.bench.run(scale.warm_up);
        self.bench.measure(scale.window)
    }
}

/// Workloads of the first store and of the others, which have the same one or the one with most writes.
fn set() -> Vec<(Workload, Workload)> {
    let same = Workload::ALL.map(|w| (w, w));
    let beside_a = [Workload::B, Workload::C, Workload::D].map(|w| (w, Workload::A));
    same.into_iter().chain(beside_a).collect()
}

/// Measurements of the first store.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    ops_per_s: f64,
    mean_us: f64,
    read_p99_us: f64,
    update_p99_us: f64,
}

fn seen(o: &TenantOutcome) -> Seen {
    let count: u64 = o.kinds.iter().map(|k| k.latency.count).sum();
    let sum: f64 = o.kinds.iter().map(|k| k.latency.mean_us * k.latency.count as f64).sum();
    let p99 = |kinds: &[&str]| kinds.iter().map(|k| o.latency(k)).find(|s| s.count > 0).map_or(f64::NAN, |s| s.p99_us);
    Seen {
        ops_per_s: o.ops_per_s(),
        mean_us: sum / count.max(1) as f64,
        read_p99_us: p99(&["read", "scan"]),
        update_p99_us: p99(&["update", "insert", "read-modify-write"]),
    }
}

/// Measurements by isolation, then by member of [`set`].
fn shared(n: u16, o: Options) -> Result<Vec<Vec<Seen>>, BenchError> {
    let scale = Scale::of(o);
    let one = |isolation: Isolation| -> Result<Vec<Seen>, BenchError> {
        let mut stores = Stores::new(scale.drive(n)?, isolation, n, scale.load(o.seed))?;
        let mut all = Vec::new();
        for (first, others) in set() {
            let mut workloads = vec![others; usize::from(n)];
            workloads[0] = first;
            all.push(seen(&stores.run(&workloads, &scale)[0]));
        }
        Ok(all)
    };
    // A drive's contents are in memory, 6 GB for four stores, so such drives are run in sequence.
    if n > 2 && !o.quick {
        return ISOLATIONS.into_iter().map(one).collect();
    }
    std::thread::scope(|s| {
        let runs = ISOLATIONS.map(|i| s.spawn(move || one(i)));
        runs.into_iter().map(|r| r.join().unwrap_or_else(|p| std::panic::resume_unwind(p))).collect()
    })
}

fn pair((first, others): (Workload, Workload), n: u16) -> String {
    if first == others { format!("{n} × {first:?}") } else { format!("{first:?} beside {} × {others:?}", n - 1) }
}

/// A row for each member of the set, which compares channel isolation with another isolation; and the best of them.
fn ratios(
    rows: &mut Vec<Row>,
    all: &[Vec<Seen>],
    (n, against): (u16, usize),
    (what, paper, bar): (&str, f64, Option<f64>),
    ratio: impl Fn(&Seen, &Seen) -> f64,
) {
    let other = ISOLATIONS[against];
    let mut best = f64::NAN;
    for (i, p) in set().into_iter().enumerate() {
        let r = ratio(&all[0][i], &all[against][i]);
        if r.is_finite() {
            rows.push(Row::new(format!("{}: {what}", pair(p, n)), "channel ÷", Better::Higher, r));
            if let Some(row) = rows.last_mut() {
                row.name = format!("{}, against {other}", row.name);
            }
            best = best.max(r);
        }
    }
    let mut row = Row::new(format!("best: {what}, against {other}"), "×", Better::Higher, best).paper(paper);
    row.bar = bar;
    rows.push(row);
}

/// Figures 8 and 9: two stores.
pub(super) fn two(o: Options) -> Result<Outcome, ExperimentError> {
    let all = shared(2, o)?;
    let mut rows = Vec::new();
    for (against, tput, mean, p99, bars) in [(2, 1.6, 1.4, 2.6, true), (1, 1.3, 1.2, 1.7, false)] {
        let bar = |b| bars.then_some(b);
        ratios(&mut rows, &all, (2, against), ("throughput", tput, bar(1.5)), |a, b| a.ops_per_s / b.ops_per_s);
        ratios(&mut rows, &all, (2, against), ("mean latency", mean, None), |a, b| b.mean_us / a.mean_us);
        ratios(&mut rows, &all, (2, against), ("P99 of reads", p99, bar(2.6)), |a, b| b.read_p99_us / a.read_p99_us);
        let update = |a: &Seen, b: &Seen| b.update_p99_us / a.update_p99_us;
        ratios(&mut rows, &all, (2, against), ("P99 of updates", p99, bar(2.6)), update);
    }
    Ok(Outcome::new(Scale::of(o).config(2, 1, CLIENTS), rows))
}

/// Figure 10: four stores.
pub(super) fn four(o: Options) -> Result<Outcome, ExperimentError> {
    let all = shared(4, o)?;
    let mut rows = Vec::new();
    for (against, bar) in [(2, Some(3.1)), (1, None)] {
        ratios(&mut rows, &all, (4, against), ("P99 of reads", 2.7, bar), |a, b| b.read_p99_us / a.read_p99_us);
        let update = |a: &Seen, b: &Seen| b.update_p99_us / a.update_p99_us;
        ratios(&mut rows, &all, (4, against), ("P99 of updates", 3.1, bar), update);
    }
    Ok(Outcome::new(Scale::of(o).config(4, 1, CLIENTS), rows))
}

/// Rate of the paper's single-threaded migration, in bytes per second (§4.3.1).
const MOVE_BYTES_PER_S: u64 = 78_900_000;
/// Planes of a die in that experiment.
const PLANES_MIGRATED: u16 = 4;
/// Workloads whose store is migrated.
const MIGRATED: [Workload; 4] = [Workload::A, Workload::B, Workload::C, Workload::F];

/// A store before and while its channel is moved to another one.
#[derive(Clone, Copy, Debug)]
struct Migrated {
    before: Seen,
    during: Seen,
    bytes_per_s: f64,
}

/// Measurements by workload. With `replica`, a copy on a third channel serves the reads meanwhile.
fn migrate(o: Options, replica: bool) -> Result<Vec<Migrated>, BenchError> {
    let scale = Scale::of(o);
    let mut cfg = scale.drive(3)?;
    // The same number of blocks in four planes, as in the paper's drive: moves use the planes together.
    let g = &mut cfg.profile.geometry;
    (g.planes_per_die, g.blocks_per_plane) = (PLANES_MIGRATED, g.blocks_per_plane / u32::from(PLANES_MIGRATED));
    cfg.levels = unit_levels(&cfg);
    cfg.move_bytes_per_s = Some(MOVE_BYTES_PER_S);
    migrate_on(&scale, cfg, KvLoad { clients: CLIENTS_MIGRATED, ..scale.load(o.seed) }, replica)
}
fn migrate_on(scale: &Scale, cfg: ManagerConfig, load: KvLoad, replica: bool) -> Result<Vec<Migrated>, BenchError> {
    let mut bench = Bench::new(cfg.clone(), Memory::new(cfg.profile.geometry))?;
    let copies = if replica { 2 } else { 1 };
    let all: Vec<_> = (0..copies).map(|_| bench.alloc(Isolation::Channel, 1)).collect::<Result<_, _>>()?;
    let (clients, tenants) = KvTenant::of(&all, load);
    tenants.into_iter().for_each(|t| _ = bench.add(t));
    bench.prepare()?;
    let dies = u32::from(DIES);
    let swap = Swap { dies: (0..dies).map(|d| (d, 2 * dies + d)).collect() };
    let mut found = Vec::new();
    for w in MIGRATED {
        clients.borrow_mut().switch(w);
        bench.begin();
        bench.run(scale.warm_up);
        let before = seen(&bench.measure(scale.window)[0]);
        clients.borrow_mut().reader = copies - 1;
        let moved = |b: &Bench| -> u64 {
            let stats = all.iter().filter_map(|v| b.manager().vssd_stats(*v).ok());
            stats.map(|s| s.pages_moved).sum::<u64>() * u64::from(cfg.profile.geometry.page_bytes)
        };
        let moved_before = moved(&bench);
        bench.act(|now, m, out| m.swap_dies(now, &swap, out));
        let most = Span::from_secs(60);
        let outcome = &bench.measure_until(most, |m| !m.swapping())[0];
        let bytes_per_s = (moved(&bench) - moved_before) as f64 / outcome.window.as_secs_f64();
        clients.borrow_mut().reader = 0;
        found.push(Migrated { before, during: seen(outcome), bytes_per_s });
    }
    Ok(found)
}

/// Figure 12: a store while its channel is migrated.
pub(super) fn migration(o: Options) -> Result<Outcome, ExperimentError> {
    let (alone, replicated) = std::thread::scope(|s| {
        let runs = [false, true].map(|replica| s.spawn(move || migrate(o, replica)));
        let [a, r] = runs.map(|r| r.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        Ok::<_, BenchError>((a?, r?))
    })?;
    let mut rows = Vec::new();
    for (i, w) in MIGRATED.into_iter().enumerate() {
        let Migrated { before, during, bytes_per_s } = alone[i];
        let rate = Row::new(format!("{w:?}: moved at"), "MB/s", Better::Higher, bytes_per_s / 1e6);
        rows.push(rate.paper(78.9).bar(78.9 * 0.99));
        let mut push = |w: Workload, what: &str, (paper, bar): (Option<f64>, Option<f64>), percent: f64| {
            if percent.is_finite() {
                let mut row = Row::new(format!("{w:?}: {what}"), "%", Better::Lower, percent);
                (row.paper, row.bar) = (paper, bar);
                rows.push(row);
            }
        };
        let more = |a: f64, b: f64| (b / a - 1.0) * 100.0;
        push(w, "throughput lost", (Some(33.8), Some(20.0)), -more(before.ops_per_s, during.ops_per_s));
        push(w, "P99 of reads, more", (Some(22.1), Some(15.0)), more(before.read_p99_us, during.read_p99_us));
        push(w, "P99 of updates, more", (Some(18.7), Some(15.0)), more(before.update_p99_us, during.update_p99_us));
        let Migrated { before, during, .. } = replicated[i];
        push(w, "P99 of reads from the replica, more", (None, Some(5.0)), more(before.read_p99_us, during.read_p99_us));
    }
    Ok(Outcome::new(Scale::of(o).config(3, PLANES_MIGRATED, CLIENTS_MIGRATED), rows))
}

#[cfg(test)]
#[path = "kv_tests.rs"]
mod tests;
