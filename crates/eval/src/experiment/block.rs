//! FlashBlox §2.1, §4.1, §4.2.2 and §4.3.1: volumes of several tenants on one drive ([`crate::tenants::block`]).

use rackweave_core::{BLOCK, Span, SsdId, VssdId};
use rackweave_flash::backend::Memory;
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::ManagerConfig;
use rackweave_flash::wear::Swap;
use rackweave_flash::{Geometry, Profile};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Better, ExperimentError, Options, Outcome, Row};
use crate::tenants::block::{BlockRequest, BlockTenant, Client, Requests, Shared, scattered, sequential};
use crate::tenants::{Arrivals, Bench, TenantOutcome, unit_levels};
use rackweave_replay::trace::TraceReader;

const FILE: &str = include_str!("../../data/flashblox-tenants.toml");
const SEARCH: &[u8] = include_bytes!("../../data/wsrch-small.trace.zst");

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    device: DeviceConfig,
    volume: VolumeConfig,
    fig1: Fig1,
    fig7: Fig7,
    search: Search,
    mapreduce: MapReduce,
    migration: Migration,
    workload: Vec<Mix>,
}
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceConfig {
    dies_per_channel: u16,
    planes_per_die: u16,
    pages_per_block: u16,
    page_bytes: u32,
}
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumeConfig {
    exported: f64,
    fill_kib: u32,
}
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fig1 {
    channels: u16,
    shares: Vec<u32>,
    writes: Vec<f64>,
    io_kib: u32,
    depth: u32,
    soft_planes_per_die: u16,
    exported: f64,
}
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fig7 {
    channels: u16,
    depth: u32,
    random_kib: u32,
    sequential_kib: u32,
}
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Search {
    writes: f64,
    speed: f64,
    most: u32,
}
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MapReduce {
    writes: f64,
    io_kib: u32,
    depth: u32,
}
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Migration {
    bytes_per_s: f64,
    wait_us: u64,
}
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mix {
    name: String,
    writes: f64,
    pattern: String,
    io_kib: u32,
}

fn config() -> Config {
    toml::from_str(FILE).expect("the built-in file is right, as every run of a figure checks")
}

/// 4 KiB blocks.
fn blocks(kib: u32) -> u32 {
    kib * 1024 / BLOCK
}

fn drive(c: &Config, channels: u16, blocks_per_plane: u32) -> ManagerConfig {
    let mut p = Profile::builtin("p-ssd").expect("built in");
    let DeviceConfig { dies_per_channel, planes_per_die, pages_per_block, page_bytes } = c.device;
    p.geometry = Geometry { channels, dies_per_channel, planes_per_die, blocks_per_plane, pages_per_block, page_bytes };
    let mut cfg = ManagerConfig::new(SsdId(0), p);
    // Contents are elided, and nothing damages them.
    cfg.verify = false;
    cfg.soft_stripe_dies = cfg.profile.geometry.dies();
    cfg.levels = unit_levels(&cfg);
    cfg
}

fn said(c: &ManagerConfig, more: Value) -> Value {
    let g = c.profile.geometry;
    json!({
        "tenants": "crates/eval/data/flashblox-tenants.toml", "profile": c.profile.name,
        "channels": g.channels, "dies_per_channel": g.dies_per_channel, "planes_per_die": g.planes_per_die,
        "blocks_per_plane": g.blocks_per_plane, "pages_per_block": g.pages_per_block,
        "soft_planes_per_die": c.soft_planes_per_die, "run": more,
    })
}

/// 4 KiB blocks of a volume on this number of channels' worth of flash.
fn exported(cfg: &ManagerConfig, channels: f64, part: f64) -> u32 {
    let g = cfg.profile.geometry;
    (g.slots() as f64 / f64::from(g.channels) * channels * part) as u32 / 64 * 64
}

/// Number of units of this kind in a channel.
fn units(cfg: &ManagerConfig, isolation: Isolation) -> u32 {
    let dies = u32::from(cfg.profile.geometry.dies_per_channel);
    match isolation {
        Isolation::Channel => 1,
        Isolation::Die => dies,
        Isolation::Software | Isolation::None => dies * u32::from(cfg.soft_planes_per_die),
    }
}

/// A client with the whole volume.
fn whole(blocks: u32, requests: Requests, arrivals: Arrivals) -> Client {
    Client { first: 0, blocks, requests, arrivals, kinds: ["read", "write"] }
}

struct Tenants {
    bench: Bench,
    fill: u32,
    shared: Vec<Shared>,
}

impl Tenants {
    fn new(c: &Config, cfg: &ManagerConfig) -> Result<Tenants, ExperimentError> {
        let bench = Bench::new(cfg.clone(), Memory::new(cfg.profile.geometry))?;
        Ok(Tenants { bench, fill: blocks(c.volume.fill_kib), shared: Vec::new() })
    }
    fn add(&mut self, vssds: &[VssdId], clients: Vec<Client>) -> Result<(), ExperimentError> {
        let (number, shared) = (self.shared.len(), Shared::default());
        let t = BlockTenant::new(self.bench.manager(), number, vssds, self.fill, clients, shared.clone())?;
        self.bench.add(Box::new(t));
        self.shared.push(shared);
        Ok(())
    }
    fn start(&mut self, warm_up: Span) -> Result<(), ExperimentError> {
        self.bench.prepare()?;
        self.bench.begin();
        self.bench.run(warm_up);
        Ok(())
    }
    fn written(&self) -> u64 {
        self.shared.iter().map(|s| s.stats.get().written).sum()
    }
}

fn mb_s(o: &TenantOutcome) -> f64 {
    o.bytes_per_s() / 1e6
}

/// Figure 1.
pub(super) fn four_tenants(o: Options) -> Result<Outcome, ExperimentError> {
    let c = config();
    let f = &c.fig1;
    let mut cfg = drive(&c, f.channels, 256);
    cfg.soft_planes_per_die = f.soft_planes_per_die;
    cfg.levels = unit_levels(&cfg);
    let window = Span::from_millis(if o.quick { 1_000 } else { 10_000 });
    let mut results = Vec::new();
    for isolation in [Isolation::Software, Isolation::Channel] {
        let mut t = Tenants::new(&c, &cfg)?;
        for (i, (&share, &writes)) in (0..).zip(f.shares.iter().zip(&f.writes)) {
            let n = exported(&cfg, f64::from(share), f.exported);
            let vssd = t.bench.alloc(isolation, share * units(&cfg, isolation))?;
            let requests = sequential(n, blocks(f.io_kib), writes, o.seed + i);
            t.add(&[vssd], vec![whole(n, requests, Arrivals::closed(f.depth))])?;
        }
        t.start(Span::from_millis(500))?;
        results.push(t.bench.measure(window));
    }
    let [software, channel] = &results[..] else { unreachable!("two were measured") };
    let (mut rows, mut best) = (Vec::new(), 0.0f64);
    for (i, (s, h)) in software.iter().zip(channel).enumerate() {
        let kind = if f.writes[i] > 0.0 { "write" } else { "read" };
        let name = format!("tenant {} ({} channels, {kind}s)", i + 1, f.shares[i]);
        let (a, b) = (s.latency(kind).p99_us, h.latency(kind).p99_us);
        best = best.max(a / b);
        rows.push(Row::new(format!("{name}: P99, software"), "µs", Better::Lower, a));
        rows.push(Row::new(format!("{name}: P99, channel"), "µs", Better::Lower, b));
        rows.push(Row::new(format!("{name}: software"), "MB/s", Better::Higher, mb_s(s)));
        rows.push(Row::new(format!("{name}: channel"), "MB/s", Better::Higher, mb_s(h)));
    }
    let total = |r: &[TenantOutcome]| r.iter().map(mb_s).sum::<f64>();
    rows.push(Row::new("P99, software ÷ channel, best tenant", "×", Better::Higher, best).paper(1.7).bar(1.7));
    let gain = total(channel) / total(software);
    rows.push(Row::new("throughput of all, channel ÷ software", "×", Better::Higher, gain).paper(1.108));
    Ok(Outcome::new(said(&cfg, json!({"window_s": window.as_secs_f64()})), rows))
}

/// Load of a tenant of figure 7.
#[derive(Clone)]
struct Job {
    name: String,
    writes: f64,
    blocks: u32,
    pattern: Pattern,
}
#[derive(Clone, Copy, PartialEq)]
enum Pattern {
    Uniform,
    Popular,
    Sequential,
}

impl Job {
    fn requests(&self, size: u32, seed: u64) -> Requests {
        match self.pattern {
            Pattern::Sequential => sequential(size, self.blocks, self.writes, seed),
            p => scattered(size, self.blocks, self.writes, seed, p == Pattern::Popular),
        }
    }
}

fn jobs(c: &Config, quick: bool) -> Vec<[Job; 2]> {
    let fio = |name: &str, writes, sequential| Job {
        name: name.into(),
        writes,
        blocks: blocks(if sequential { c.fig7.sequential_kib } else { c.fig7.random_kib }),
        pattern: if sequential { Pattern::Sequential } else { Pattern::Uniform },
    };
    let (rw, rr, sw, sr) = (fio("RW", 1.0, false), fio("RR", 0.0, false), fio("SW", 1.0, true), fio("SR", 0.0, true));
    let mix = |name: &str| {
        let m = c.workload.iter().find(|m| m.name == name).expect("it is in the file");
        let pattern = if m.pattern == "sequential" { Pattern::Sequential } else { Pattern::Popular };
        Job { name: m.name.clone(), writes: m.writes, blocks: blocks(m.io_kib), pattern }
    };
    let all = vec![
        [rw.clone(), sw.clone()],
        [rw.clone(), rw.clone()],
        [mix("TPC-C"), mix("MapReduce")],
        [rw, rr],
        [sw.clone(), sw.clone()],
        [sw, sr],
        [mix("cloud storage"), mix("web search")],
        [mix("PageRank"), mix("TPC-B")],
        [mix("TATP"), mix("TPC-E")],
    ];
    if quick { all.into_iter().take(2).collect() } else { all }
}

/// Figure 7. Isolated tenants write at their own rates. The write amplification of a kind of vSSD is therefore that of
/// its tenants, weighted by each tenant's writes in the shared map, so that the same writes are compared.
pub(super) fn amplification(o: Options) -> Result<Outcome, ExperimentError> {
    let mut c = config();
    if o.quick {
        c.device.pages_per_block /= 2;
    }
    // With this number, soft-planes evenly divide a die's space without over-provisioning, so all kinds have equal flash.
    let mut cfg = drive(&c, c.fig7.channels, if o.quick { 255 } else { 510 });
    // Superblocks have the same size in all isolated vSSDs.
    cfg.superblock_soft_planes = u32::from(c.device.dies_per_channel);
    let n = exported(&cfg, 1.0, c.volume.exported);
    let mut rows = Vec::new();
    for pair in jobs(&c, o.quick) {
        let name = format!("{} + {}", pair[0].name, pair[1].name);
        let client = |i: usize, first: u32| {
            // At most the bound of a volume's waiting requests.
            let arrivals = Arrivals::closed(c.fig7.depth.min(2048 / pair[i].blocks));
            Client { first, ..whole(n, pair[i].requests(n, o.seed + i as u64), arrivals) }
        };
        // The shared vSSD has all channels; both tenants use one map and the same blocks.
        let shared = waf(&c, &cfg, n, |t| {
            let vssd = t.bench.alloc(Isolation::Channel, u32::from(c.fig7.channels))?;
            t.add(&[vssd], vec![client(0, 0), client(1, n)])
        })?;
        let all: u64 = shared.written.iter().sum();
        let share = |i: usize| shared.written[i] as f64 / all as f64;
        rows.push(Row::new(format!("{name}: shared page-level FTL"), "WAF", Better::Lower, shared.waf[0]));
        let valid =
            |kind: &str, v| Row::new(format!("{name}: {kind}, valid part of what is written"), "", Better::Lower, v);
        rows.push(valid("shared", shared.valid[0]));
        let mut cpu = 0.0;
        for isolation in [Isolation::Channel, Isolation::Die, Isolation::Software, Isolation::None] {
            let own = waf(&c, &cfg, n, |t| {
                for i in 0..2 {
                    let vssd = t.bench.alloc(isolation, units(&cfg, isolation))?;
                    t.add(&[vssd], vec![client(i, 0)])?;
                }
                Ok(())
            })?;
            cpu += own.us / 4.0;
            let weighted = |of: &[f64]| share(0) * of[0] + share(1) * of[1];
            let waf = weighted(&own.waf);
            rows.push(Row::new(format!("{name}: {isolation}"), "WAF", Better::Lower, waf).bar(shared.waf[0]));
            rows.push(valid(&isolation.to_string(), weighted(&own.valid)));
        }
        rows.push(Row::new(format!("{name}: CPU, isolated ÷ shared"), "×", Better::Lower, cpu / shared.us).paper(1.06));
    }
    Ok(Outcome::new(said(&cfg, json!({"exported": c.volume.exported})), rows))
}

struct Amplification {
    /// By map.
    waf: Vec<f64>,
    /// By map: mean valid fraction of the written slots that are not being collected.
    valid: Vec<f64>,
    /// 4 KiB blocks by client.
    written: Vec<u64>,
    /// CPU time per programmed page.
    us: f64,
}

#[derive(Clone, Copy, Default)]
struct Mean {
    sum: f64,
    n: f64,
}

impl Mean {
    fn add(&mut self, x: f64) {
        self.sum += x;
        self.n += 1.0;
    }
    fn get(&self) -> f64 {
        self.sum / self.n
    }
}

/// Volumes are overwritten once on average before the measurement, and half of them during it.
fn waf(
    c: &Config,
    cfg: &ManagerConfig,
    volume: u32,
    add: impl FnOnce(&mut Tenants) -> Result<(), ExperimentError>,
) -> Result<Amplification, ExperimentError> {
    let mut t = Tenants::new(c, cfg)?;
    add(&mut t)?;
    t.start(Span::ZERO)?;
    let laid = t.written();
    let until = |t: &mut Tenants, blocks: f64| {
        while ((t.written() - laid) as f64) < blocks {
            t.bench.run(Span::from_millis(20));
        }
    };
    let by_client = |t: &Tenants| t.shared.iter().flat_map(|s| s.written.borrow().clone()).collect::<Vec<u64>>();
    let all = f64::from(volume) * 2.0;
    until(&mut t, all);
    let (before, written): (Vec<_>, _) = (t.shared.iter().map(|s| s.stats.get()).collect(), by_client(&t));
    let cpu = rackweave_replay::cpu::thread_cpu();
    let mut used = vec![Mean::default(); t.shared.len()];
    while ((t.written() - laid) as f64) < all * 1.5 {
        t.shared.iter().for_each(|s| s.occupancy.set(None));
        t.bench.run(Span::from_millis(5));
        for (mean, s) in used.iter_mut().zip(&t.shared) {
            s.occupancy.get().iter().for_each(|o| mean.add(o.valid as f64 / o.used as f64));
        }
    }
    let cpu = Span(rackweave_replay::cpu::thread_cpu().0 - cpu.0);
    let since: Vec<_> = t.shared.iter().zip(&before).map(|(s, b)| s.stats.get().since(b)).collect();
    let programmed: u64 = since.iter().map(|s| s.programmed).sum();
    Ok(Amplification {
        waf: since.iter().map(|s| s.waf()).collect(),
        valid: used.iter().map(Mean::get).collect(),
        written: by_client(&t).iter().zip(&written).map(|(a, b)| a - b).collect(),
        us: cpu.as_micros_f64() / programmed as f64,
    })
}

/// Times, lengths and offsets of a recorded web search, looped and `speed` times as fast.
fn search_load(c: &Config, volume: u32, seed: u64) -> (Requests, Arrivals) {
    let s = &c.search;
    let reader = TraceReader::new(std::io::Cursor::new(SEARCH), Some("wsrch-small.trace.zst"), None);
    let records: Vec<_> = reader.expect("built in").map(|r| r.expect("built in")).collect();
    let (first, last) = (records[0].at, records[records.len() - 1].at);
    let (period, speed) = (last.since(first), s.speed);
    let times: Vec<Span> = records.iter().map(|r| r.at.since(first)).collect();
    let times = (0..).flat_map(move |round| {
        let base = period * round;
        let scaled = move |t: &Span| Span(((base + *t).0 as f64 / speed) as u64);
        times.iter().map(scaled).collect::<Vec<_>>()
    });
    let mut rng = rackweave_core::Rng::stream(seed, 13);
    let writes = s.writes;
    let requests = records.into_iter().cycle().map(move |r| {
        let blocks = (r.len.div_ceil(u64::from(BLOCK)).max(1) as u32).min(volume);
        let place = r.offset / u64::from(BLOCK) + u64::from(r.device) * 7_919;
        let lba = (place % u64::from(volume - blocks + 1)) as u32;
        BlockRequest { write: rng.chance(writes), lba, blocks }
    });
    (Box::new(requests), Arrivals::open(times, s.most))
}

fn search_client(c: &Config, volume: u32, seed: u64) -> Client {
    let (requests, arrivals) = search_load(c, volume, seed);
    whole(volume, requests, arrivals)
}
fn mapreduce_client(c: &Config, volume: u32, seed: u64) -> Client {
    let m = &c.mapreduce;
    whole(volume, sequential(volume, blocks(m.io_kib), m.writes, seed), Arrivals::closed(m.depth))
}

/// Figure 11.
pub(super) fn search(o: Options) -> Result<Outcome, ExperimentError> {
    let c = config();
    let cfg = drive(&c, 2, 256);
    let n = exported(&cfg, 1.0, c.volume.exported);
    let window = Span::from_secs(if o.quick { 4 } else { 30 });
    let mut results = Vec::new();
    for isolation in [Isolation::None, Isolation::Software, Isolation::Channel] {
        let mut t = Tenants::new(&c, &cfg)?;
        for i in 0..2 {
            let vssd = t.bench.alloc(isolation, units(&cfg, isolation))?;
            let client = if i == 0 { search_client(&c, n, o.seed) } else { mapreduce_client(&c, n, o.seed) };
            t.add(&[vssd], vec![client])?;
        }
        t.start(Span::from_secs(if o.quick { 2 } else { 10 }))?;
        results.push((isolation, t.bench.measure(window)));
    }
    let p99 = |i: usize| results[i].1[0].latency("read").p99_us;
    let bandwidth = |i: usize| mb_s(&results[i].1[1]);
    let mut rows = Vec::new();
    for (i, (isolation, r)) in results.iter().enumerate() {
        let name = if *isolation == Isolation::None { "unisolated".into() } else { isolation.to_string() };
        rows.push(Row::new(format!("{name}: web search, read P99"), "µs", Better::Lower, p99(i)));
        let writes = r[0].latency("write").p99_us;
        rows.push(Row::new(format!("{name}: web search, write P99"), "µs", Better::Lower, writes));
        rows.push(Row::new(format!("{name}: web search"), "requests/s", Better::Higher, r[0].ops_per_s()));
        rows.push(Row::new(format!("{name}: MapReduce"), "MB/s", Better::Higher, bandwidth(i)));
    }
    let gain = p99(0) / p99(2);
    rows.push(Row::new("search P99, unisolated ÷ channel", "×", Better::Higher, gain).paper(2.0).bar(2.0));
    let lost = 1.0 - bandwidth(2) / bandwidth(0);
    rows.push(Row::new("MapReduce lost, channel", "of unisolated", Better::Lower, lost).paper(0.36));
    let cost = bandwidth(0) / bandwidth(1);
    rows.push(Row::new("MapReduce, unisolated ÷ software", "×", Better::Lower, cost).paper(4.0).bar(4.0));
    Ok(Outcome::new(said(&cfg, json!({"window_s": window.as_secs_f64()})), rows))
}

/// Figure 13: the channels of both tenants are swapped. With `replicas`, each tenant's replica serves its reads meanwhile.
fn migrate(c: &Config, o: Options, replicas: bool) -> Result<(ManagerConfig, Vec<Row>), ExperimentError> {
    let mut cfg = drive(c, 4, if o.quick { 64 } else { 256 });
    cfg.move_bytes_per_s = Some(c.migration.bytes_per_s as u64);
    cfg.background_wait_max = Span::from_micros(c.migration.wait_us);
    let n = exported(&cfg, 1.0, c.volume.exported);
    let mut t = Tenants::new(c, &cfg)?;
    let vssds = (0..4).map(|_| t.bench.alloc(Isolation::Channel, 1)).collect::<Result<Vec<_>, _>>()?;
    let own = |i: usize| if replicas { vec![vssds[i], vssds[i + 2]] } else { vec![vssds[i]] };
    t.add(&own(0), vec![search_client(c, n, o.seed)])?;
    t.add(&own(1), vec![mapreduce_client(c, n, o.seed)])?;
    t.start(Span::from_secs(if o.quick { 4 } else { 10 }))?;
    let calm = t.bench.measure(Span::from_secs(if o.quick { 6 } else { 20 }));
    let dies = u32::from(c.device.dies_per_channel);
    let swap = Swap { dies: (0..dies).map(|d| (d, dies + d)).collect() };
    let moved = |t: &Tenants| -> u64 {
        let stats = vssds.iter().filter_map(|v| t.bench.manager().vssd_stats(*v).ok());
        stats.map(|s| s.pages_moved).sum::<u64>() * u64::from(c.device.page_bytes)
    };
    t.bench.act(|now, m, out| m.swap_dies(now, &swap, out));
    if replicas {
        t.shared.iter().for_each(|s| s.reads_from.set(1));
    }
    let before = moved(&t);
    let busy = t.bench.measure_until(Span::from_secs(600), |m| !m.swapping());
    let rate = (moved(&t) - before) as f64 / busy[0].window.as_secs_f64() / 1e6;

    let p99 = |r: &[TenantOutcome], kind| r[0].latency(kind).p99_us;
    let name = if replicas { "with a replica" } else { "alone" };
    let loss = 1.0 - mb_s(&busy[1]) / mb_s(&calm[1]);
    let reads = p99(&busy, "read") / p99(&calm, "read") - 1.0;
    let writes = p99(&busy, "write") / p99(&calm, "write") - 1.0;
    let us = |what: &str, v| Row::new(format!("{name}: web search, {what}"), "µs", Better::Lower, v);
    let mut rows = vec![
        us("read P99 before", p99(&calm, "read")),
        us("read P99 meanwhile", p99(&busy, "read")),
        us("write P99 before", p99(&calm, "write")),
        us("write P99 meanwhile", p99(&busy, "write")),
        Row::new(format!("{name}: MapReduce before"), "MB/s", Better::Higher, mb_s(&calm[1])),
        Row::new(format!("{name}: MapReduce meanwhile"), "MB/s", Better::Higher, mb_s(&busy[1])),
        Row::new(format!("{name}: moved at"), "MB/s", Better::Higher, rate).paper(78.9).bar(78.9 * 0.99),
    ];
    let part = |what: &str, v| Row::new(format!("{name}: {what}"), "of before", Better::Lower, v);
    rows.push(part("MapReduce lost", loss).paper(0.367).bar(0.20));
    rows.push(part("search read P99 more", reads).paper(0.342).bar(if replicas { 0.05 } else { 0.15 }));
    rows.push(part("search write P99 more", writes).paper(0.342).bar(0.15));
    Ok((cfg, rows))
}

pub(super) fn migration(o: Options) -> Result<Outcome, ExperimentError> {
    let c = config();
    let (cfg, mut rows) = migrate(&c, o, false)?;
    rows.extend(migrate(&c, o, true)?.1);
    Ok(Outcome::new(said(&cfg, json!({"bytes_per_s": c.migration.bytes_per_s})), rows))
}
