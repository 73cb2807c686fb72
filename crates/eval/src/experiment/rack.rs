//! RackBlox §4.2 to §4.5: latency and throughput of a rack under load, with cells of [`rackweave_replay::rack`].
//!
//! A *point* is one load at one utilization under every scheme, by one seed or several; figures show medians over the
//! seeds. A void point is shown with the reason, and no bar considers it. Latencies are shown *both ways*: drives whose
//! reads suspend nothing, as in the paper, and drives whose reads suspend erases and the collector's programs, the same
//! for every scheme.

use rackweave_config::BlockingConfig;
use rackweave_core::Span;
use rackweave_sim::Network;
use serde_json::{Value, json};

use super::{Better, ExperimentError, Options, Outcome, Row};
use rackweave_replay::Policy;
use rackweave_replay::rack::{Cell, CellReport, Load, READS_MIN, Scheme, run_once, void};
use rackweave_replay::svg::curves;

/// Reads of a cell of the short forms ([`Cell::short`]).
pub(super) const READS_QUICK: u64 = 40_000;
/// YCSB's shares of writes.
const SHARES: [f64; 5] = [0.0, 0.2, 0.5, 0.8, 1.0];
const SOME_SHARES: [f64; 3] = [0.2, 0.5, 0.8];
/// Fraction of time that dies are busy: collection leaves each vSSD idle time, as on the paper's testbed …
const UTILIZATION: f64 = 0.3;
/// … and higher ones, which leave less and less, for some shares.
const OTHER_UTILIZATIONS: [f64; 3] = [0.4, 0.5, 0.7];
/// The share of the short forms.
const SHARE: f64 = 0.5;
/// Least writes of a cell of a full form. Schemes end with different numbers of free blocks, up to a hundred apart,
/// which must be small compared with their erases.
const WRITES_MIN: u64 = 500_000;
/// Above this utilization they are up to three hundred apart, so the number of requests is doubled.
const LONGER_ABOVE: f64 = 0.4;
/// By whole blocks a vSSD frees one block at a time, at any load: at a higher load replicas would collect without end.
const BLOCK_UTILIZATION: f64 = 0.1;
/// There the write cache of a vSSD is scaled down with the drive: to 0.04 % of it, or 0.4 GB of the paper's 1 TB. The
/// configuration's own cache would correspond to 32 GB, and absorb all writes during a block's collection.
const BLOCK_CACHE_SLOTS: u64 = 96;
/// Seeds of the full forms whose median counts, without [`Options::seeds`].
const SEEDS: u64 = 2;
/// A scheme this much below `ideal` shows that `ideal` bounds nothing there.
const BELOW_IDEAL_MAX: f64 = 0.01;
/// Bars of read P99.9, `rackweave` ÷ `ideal`, up to [`BOUND_UTILIZATION`]: without and with suspension.
const BOUND: [f64; 2] = [1.25, 1.05];
const BOUND_UTILIZATION: f64 = 0.5;
/// Greatest permitted difference of two seeds' P99; beyond it the run was too short.
const SEEDS_DIFFER_MAX: f64 = 0.05;

/// The compared schemes: the baselines, and all policies but the one that differs from VDC only by its buckets.
fn schemes() -> Vec<Scheme> {
    let policies = [Policy::Rackblox, Policy::Rackweave, Policy::Ideal];
    Scheme::BASELINES.into_iter().chain(policies.map(Scheme::from)).collect()
}

/// One load under all schemes.
struct Point {
    load: Load,
    utilization: f64,
    suspends: bool,
    schemes: Vec<&'static str>,
    /// By seed, then by scheme.
    seeds: Vec<Vec<CellReport>>,
    void: Option<Box<str>>,
}

impl Point {
    fn name(&self) -> String {
        let kind = match self.load.name {
            "YCSB" => format!("{:.0} % writes", self.load.writes * 100.0),
            other => other.to_owned(),
        };
        let suspension = if self.suspends { ", suspension" } else { "" };
        format!("{kind}, {:.0} % busy{suspension}", self.utilization * 100.0)
    }
    /// A scheme whose reads' P99.9 is below that of `ideal`.
    fn below_ideal(&self) -> Option<Box<str>> {
        let at = |s: &str| self.median(s, |c| c.read_us(0.999));
        let below = |s: &&&str| at(s) < at("ideal") * (1.0 - BELOW_IDEAL_MAX);
        let by = |s: &&str| format!("{s} is {:.1} % below ideal", (1.0 - at(s) / at("ideal")) * 100.0).into();
        self.schemes.iter().find(below).map(by)
    }
    /// The median over the seeds; NaN without such a scheme.
    fn median(&self, scheme: &str, value: impl Fn(&CellReport) -> f64) -> f64 {
        let Some(i) = self.schemes.iter().position(|s| *s == scheme) else { return f64::NAN };
        let mut values: Vec<f64> = self.seeds.iter().map(|s| value(&s[i])).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }
    /// One scheme over another.
    fn ratio(&self, over: &str, under: &str, value: impl Fn(&CellReport) -> f64) -> f64 {
        self.median(over, &value) / self.median(under, &value)
    }
    /// Largest relative difference of two seeds' P99.
    fn seeds_differ(&self) -> f64 {
        let apart = |i: usize, value: &dyn Fn(&CellReport) -> f64| {
            let values = self.seeds.iter().map(|s| value(&s[i])).filter(|v| v.is_finite());
            values.clone().fold(0.0, f64::max) / values.fold(f64::INFINITY, f64::min) - 1.0
        };
        let all =
            (0..self.schemes.len()).flat_map(|i| [apart(i, &|c| c.read_us(0.99)), apart(i, &|c| c.write_us(0.99))]);
        all.filter(|a| a.is_finite()).fold(0.0, f64::max)
    }
}

/// Cells of a figure.
struct Sweep {
    loads: Vec<Load>,
    utilizations: Vec<f64>,
    schemes: Vec<Scheme>,
    seeds: u64,
    reads: u64,
    profile: &'static str,
    network: Network,
    blocking: BlockingConfig,
    cache_slots: Option<u64>,
    suspends: bool,
}

/// A sweep both ways.
struct Both {
    sweep: Sweep,
    plain: Vec<Point>,
    suspending: Vec<Point>,
}

impl Both {
    fn config(&self) -> Value {
        json!({"plain": self.sweep.config(&self.plain), "suspending": self.sweep.config(&self.suspending)})
    }
    /// Every scheme's value at every point.
    fn values(&self, what: &str, unit: &'static str, better: Better, value: Value1, rows: &mut Vec<Row>) {
        values(&self.plain, what, unit, better, value, rows);
        values(&self.suspending, what, unit, better, value, rows);
    }
    /// Best ratios: on drives as the paper's, with the paper's number and the bar, and on drives that suspend.
    fn gains(&self, gains: &[Gain<'_>], rows: &mut Vec<Row>) {
        for &(name, over, under, value, paper, bar) in gains {
            let row = gain(&self.plain, name, over, under, value).paper(paper);
            rows.push(match bar {
                Some(bar) => row.bar(bar),
                None => row,
            });
            rows.push(gain(&self.suspending, &format!("{name}, suspension"), over, under, value));
        }
    }
}

impl Sweep {
    fn new(o: Options, loads: Vec<Load>) -> Sweep {
        Sweep {
            loads,
            utilizations: vec![UTILIZATION],
            schemes: schemes(),
            seeds: o.seeds.unwrap_or(1),
            reads: if o.quick { READS_QUICK } else { READS_MIN },
            profile: "p-ssd",
            network: Network::fast(Network::excerpt()),
            blocking: BlockingConfig::Page,
            cache_slots: None,
            suspends: false,
        }
    }
    /// Runs it both ways.
    fn both(mut self, seed: u64) -> Result<Both, ExperimentError> {
        let plain = self.run(seed)?;
        self.suspends = true;
        let suspending = self.run(seed)?;
        Ok(Both { sweep: self, plain, suspending })
    }
    /// Reads of a cell, at least [`Sweep::reads`].
    fn reads_of(&self, load: Load, utilization: f64) -> u64 {
        let longer = if utilization > LONGER_ABOVE { 2 } else { 1 };
        let a_write = if load.writes > 0.0 { (1.0 - load.writes) / load.writes } else { 0.0 };
        (self.reads * longer).max((WRITES_MIN as f64 * a_write) as u64)
    }
    fn run(&self, seed: u64) -> Result<Vec<Point>, ExperimentError> {
        let points = || self.utilizations.iter().flat_map(|u| self.loads.iter().map(move |l| (*u, *l)));
        let cell = |utilization, load, seed, scheme: &Scheme| {
            let mut c = match self.reads < READS_MIN {
                true => Cell::new(*scheme, load).short(self.reads),
                false => Cell::new(*scheme, load).reads(self.reads_of(load, utilization)),
            };
            (c.utilization, c.seed, c.blocking) = (utilization, seed, self.blocking);
            (c.profile, c.network) = (self.profile.into(), self.network.clone());
            (c.cache_slots, c.suspends) = (self.cache_slots, self.suspends);
            c
        };
        let cells: Vec<Cell> = points()
            .flat_map(|(u, l)| (0..self.seeds).map(move |k| (u, l, seed.wrapping_add(k))))
            .flat_map(|(u, l, seed)| self.schemes.iter().map(move |s| cell(u, l, seed, s)))
            .collect();
        let reports = run_once(&cells).map_err(|e| ExperimentError::Cell { reason: e.to_string().into() })?;
        let mut seeds = reports.chunks(self.schemes.len()).map(<[_]>::to_vec);
        let point = |(utilization, load)| {
            let seeds: Vec<_> = seeds.by_ref().take(self.seeds as usize).collect();
            let void = seeds.iter().find_map(|s| void(s.iter(), self.reads));
            let schemes = self.schemes.iter().map(|s| s.name).collect();
            let point = Point { load, utilization, suspends: self.suspends, schemes, seeds, void: None };
            Point { void: void.or_else(|| point.below_ideal()), ..point }
        };
        Ok(points().map(point).collect())
    }
    fn config(&self, points: &[Point]) -> Value {
        let cells = |p: &Point| -> Vec<Value> { p.seeds.iter().flatten().map(CellReport::json).collect() };
        json!({
            "profile": self.profile, "network": self.network.name, "seeds": self.seeds, "reads": self.reads,
            "blocking_unit": format!("{:?}", self.blocking).to_lowercase(), "cache_slots_of_vssd": self.cache_slots,
            "servers": rackweave_replay::rack::SERVERS, "replicas": rackweave_replay::rack::REPLICAS, "clients": rackweave_replay::rack::CLIENTS,
            "ssd_bytes": rackweave_replay::rack::SSD_BYTES, "free_after": [rackweave_replay::rack::FREE_AFTER.0, rackweave_replay::rack::FREE_AFTER.1],
            "points": points.iter().map(|p| json!({
                "load": p.load.name, "writes": p.load.writes, "utilization": p.utilization, "void": p.void, "cells": cells(p),
            })).collect::<Vec<_>>(),
        })
    }
}

/// YCSB by share of writes; the full form has [`SEEDS`], and some shares with one seed at the other utilizations.
fn ycsb(o: Options) -> Result<Both, ExperimentError> {
    let shares: &[f64] = if o.quick { &[SHARE] } else { &SHARES };
    let mut sweep = Sweep::new(o, shares.iter().map(|w| Load::ycsb(*w)).collect());
    if o.quick {
        return sweep.both(o.seed);
    }
    sweep.seeds = o.seeds.unwrap_or(SEEDS);
    let mut both = sweep.both(o.seed)?;
    let mut busier = Sweep::new(o, SOME_SHARES.iter().map(|w| Load::ycsb(*w)).collect());
    busier.utilizations = OTHER_UTILIZATIONS.to_vec();
    let busier = busier.both(o.seed)?;
    both.plain.extend(busier.plain);
    both.suspending.extend(busier.suspending);
    Ok(both)
}

type Value1 = fn(&CellReport) -> f64;

fn ms(us: f64) -> f64 {
    us / 1e3
}
const READ_P999: Value1 = |c| ms(c.read_us(0.999));
const WRITE_P999: Value1 = |c| ms(c.write_us(0.999));
const READ_P99: Value1 = |c| ms(c.read_us(0.99));
const WRITE_P99: Value1 = |c| ms(c.write_us(0.99));
const READ_MEAN: Value1 =
    |c| c.result.as_ref().filter(|r| r.read.count() > 0).map_or(f64::NAN, |r| ms(r.read.summary().mean_us));
const WRITE_MEAN: Value1 =
    |c| c.result.as_ref().filter(|r| r.write.count() > 0).map_or(f64::NAN, |r| ms(r.write.summary().mean_us));
const IOPS: Value1 = CellReport::iops;
const WAF: Value1 = |c| c.result.as_ref().map_or(f64::NAN, |r| r.waf);

/// Every scheme's value at every point.
fn values(points: &[Point], what: &str, unit: &'static str, better: Better, value: Value1, rows: &mut Vec<Row>) {
    for p in points {
        let mut note = p.void.as_ref().map(|why| format!("VOID: {why}").into());
        for s in &p.schemes {
            let v = p.median(s, value);
            if v.is_finite() {
                rows.push(Row::new(format!("{}: {what}{s}", p.name()), unit, better, v).note(note.take()));
            }
        }
    }
}

/// The counted point whose ratio is greatest (`Higher` is better) or least.
fn best(points: &[Point], better: Better, ratio: impl Fn(&Point) -> f64) -> Option<(f64, String)> {
    let counted = points.iter().filter(|p| p.void.is_none()).map(|p| (ratio(p), p.name()));
    let finite = counted.filter(|r| r.0.is_finite());
    match better {
        Better::Higher => finite.max_by(|a, b| a.0.total_cmp(&b.0)),
        Better::Lower => finite.min_by(|a, b| a.0.total_cmp(&b.0)),
    }
}

/// A row of the best ratio of one scheme over another; the note names the point.
fn gain(points: &[Point], name: &str, over: &str, under: &str, value: Value1) -> Row {
    let (ratio, at) =
        best(points, Better::Higher, |p| p.ratio(over, under, value)).unwrap_or((f64::NAN, "no point counts".into()));
    Row::new(format!("{name}: {over} ÷ {under}, best"), "×", Better::Higher, ratio).note(Some(at.into()))
}

/// A row of the worst ratio of one scheme over another.
fn worst(points: &[Point], name: &str, over: &str, under: &str, better: Better, value: Value1) -> Row {
    let other = if better == Better::Lower { Better::Higher } else { Better::Lower };
    let (ratio, at) =
        best(points, other, |p| p.ratio(over, under, value)).unwrap_or((f64::NAN, "no point counts".into()));
    Row::new(format!("{name}: {over} ÷ {under}, worst"), "×", better, ratio).note(Some(at.into()))
}

/// Bars of policy `rackweave`, both ways.
fn past_the_paper(both: &Both, rows: &mut Vec<Row>) {
    for (points, how, bound) in [(&both.plain, "", BOUND[0]), (&both.suspending, ", suspension", BOUND[1])] {
        past_the_paper_on(points, how, bound, rows);
    }
}

fn past_the_paper_on(points: &[Point], how: &str, bound: f64, rows: &mut Vec<Row>) {
    let at_most =
        |p: &Point| if p.utilization > BOUND_UTILIZATION { f64::NAN } else { p.ratio("rackweave", "ideal", READ_P999) };
    if let Some((ratio, at)) = best(points, Better::Higher, at_most) {
        let name = format!("read P99.9{how}: rackweave ÷ ideal, worst up to {:.0} % busy", BOUND_UTILIZATION * 100.0);
        rows.push(Row::new(name, "×", Better::Lower, ratio).bar(bound).note(Some(at.into())));
    }
    let closed = |p: &Point| {
        let at = |scheme| p.median(scheme, READ_P999);
        let gap = at("rackblox") - at("ideal");
        // Without a gap there is nothing to close.
        if gap > at("ideal") * 0.02 { (at("rackblox") - at("rackweave")) / gap } else { f64::NAN }
    };
    if let Some((part, at)) = best(points, Better::Lower, closed) {
        let row =
            Row::new(format!("read P99.9{how}: gap of rackblox to ideal closed, least"), "of it", Better::Higher, part);
        rows.push(row.bar(0.8).note(Some(at.into())));
    }
    for (name, value) in [("read P99.9", READ_P999), ("write P99.9", WRITE_P999)] {
        let name = format!("{name}{how}");
        rows.push(worst(points, &name, "rackweave", "rackblox", Better::Lower, value).bar(1.02));
    }
    rows.push(worst(points, &format!("WAF{how}"), "rackweave", "rackblox", Better::Lower, WAF).bar(1.01));
}

/// A row that shows whether the run was long enough, if there are several seeds.
fn length(points: &[Point], rows: &mut Vec<Row>) {
    if points.iter().all(|p| p.seeds.len() < 2) {
        return;
    }
    let (most, at) = best(points, Better::Higher, Point::seeds_differ).unwrap_or((f64::NAN, "no point counts".into()));
    let row = Row::new("P99 of the seeds apart, most", "of it", Better::Lower, most);
    rows.push(row.bar(SEEDS_DIFFER_MAX).note(Some(at.into())));
}

/// Figure 9.
pub(super) fn fig9(o: Options) -> Result<Outcome, ExperimentError> {
    let both = ycsb(o)?;
    let mut rows = Vec::new();
    both.values("read P99.9, ", "ms", Better::Lower, READ_P999, &mut rows);
    both.values("write P99.9, ", "ms", Better::Lower, WRITE_P999, &mut rows);
    let paper = [
        ("read P99.9", "vdc", "rackblox", READ_P999, 4.4, Some(4.4)),
        ("read P99.9", "vdc", "software", READ_P999, 2.4, None),
        ("read P99.9", "software", "rackblox", READ_P999, 1.84, Some(1.5)),
        ("write P99.9", "vdc", "rackblox", WRITE_P999, 1.4, Some(1.3)),
    ];
    both.gains(&paper, &mut rows);
    past_the_paper(&both, &mut rows);
    length(&both.plain, &mut rows);
    let bars = [("vdc", "rackblox", 4.4, 4.4), ("software", "rackblox", 1.84, 1.5)];
    let held: [Held<'_>; 2] =
        [("read P99.9", READ_P999, &bars), ("write P99.9", WRITE_P999, &[("vdc", "rackblox", 1.4, 1.3)])];
    let blocks = whole_blocks(o, block_loads(o), held, &mut rows)?;
    Ok(Outcome::new(json!({"page": both.config(), "block": blocks}), rows))
}

/// YCSB's shares of writes that are also run by whole blocks.
fn block_loads(o: Options) -> Vec<Load> {
    let shares: &[f64] = if o.quick { &[SHARE] } else { &SOME_SHARES };
    shares.iter().map(|w| Load::ycsb(*w)).collect()
}

/// A value's name, the schemes of its ratio, the value, the paper's ratio, and the bar.
type Gain<'a> = (&'a str, &'a str, &'a str, Value1, f64, Option<f64>);

/// A percentile, and the required ratios of schemes: the paper's, and the bar.
type Held<'a> = (&'a str, Value1, &'a [(&'a str, &'a str, f64, f64)]);

/// The other blocking unit (protocol rule 21), with which a die is busy until its victim is erased: the same ratios with
/// the same bars.
fn whole_blocks(
    o: Options,
    loads: Vec<Load>,
    held: [Held<'_>; 2],
    rows: &mut Vec<Row>,
) -> Result<Value, ExperimentError> {
    let (blocking, utilizations) = (BlockingConfig::Block, vec![BLOCK_UTILIZATION]);
    let cache_slots = Some(BLOCK_CACHE_SLOTS);
    let sweep = Sweep { blocking, utilizations, cache_slots, ..Sweep::new(o, loads) };
    let points = sweep.run(o.seed)?;
    for (name, value, bars) in held {
        let name = format!("by whole blocks, {name}");
        values(&points, &format!("{name}, "), "ms", Better::Lower, value, rows);
        let ratio = |&(over, under, paper, bar): &(&str, &str, f64, f64)| {
            gain(&points, &name, over, under, value).paper(paper).bar(bar)
        };
        rows.extend(bars.iter().map(ratio));
    }
    Ok(sweep.config(&points))
}

/// Figure 10.
pub(super) fn fig10(o: Options) -> Result<Outcome, ExperimentError> {
    let both = ycsb(o)?;
    let mut rows = Vec::new();
    both.values("read P99, ", "ms", Better::Lower, READ_P99, &mut rows);
    both.values("write P99, ", "ms", Better::Lower, WRITE_P99, &mut rows);
    let paper = [
        ("read P99", "vdc", "rackblox", READ_P99, 2.1, Some(2.1)),
        ("write P99", "vdc", "rackblox", WRITE_P99, 1.3, Some(1.3)),
    ];
    both.gains(&paper, &mut rows);
    length(&both.plain, &mut rows);
    let held: [Held<'_>; 2] = [
        ("read P99", READ_P99, &[("vdc", "rackblox", 2.1, 2.1)]),
        ("write P99", WRITE_P99, &[("vdc", "rackblox", 1.3, 1.3)]),
    ];
    let blocks = whole_blocks(o, block_loads(o), held, &mut rows)?;
    Ok(Outcome::new(json!({"page": both.config(), "block": blocks}), rows))
}

/// Figure 11.
pub(super) fn fig11(o: Options) -> Result<Outcome, ExperimentError> {
    let both = ycsb(o)?;
    let mut rows = Vec::new();
    both.values("mean read, ", "ms", Better::Lower, READ_MEAN, &mut rows);
    both.values("mean write, ", "ms", Better::Lower, WRITE_MEAN, &mut rows);
    for (name, value) in [("mean read", READ_MEAN), ("mean write", WRITE_MEAN)] {
        rows.push(worst(&both.plain, name, "rackblox", "vdc", Better::Lower, value).paper(1.0).bar(1.03));
    }
    Ok(Outcome::new(both.config(), rows))
}

/// Figures 12 and 14.
fn throughput(both: &Both) -> Outcome {
    let mut rows = Vec::new();
    both.values("", "requests/s", Better::Higher, IOPS, &mut rows);
    rows.push(worst(&both.plain, "requests/s", "rackblox", "vdc", Better::Higher, IOPS).paper(1.0).bar(0.97));
    Outcome::new(both.config(), rows)
}
pub(super) fn fig12(o: Options) -> Result<Outcome, ExperimentError> {
    Ok(throughput(&ycsb(o)?))
}
pub(super) fn fig14(o: Options) -> Result<Outcome, ExperimentError> {
    Ok(throughput(&six(o).both(o.seed)?))
}

/// Table 2; in the short form the workload with the paper's greatest gain.
fn six(o: Options) -> Sweep {
    Sweep::new(o, if o.quick { vec![Load::AUCTIONMARK] } else { Load::SIX.to_vec() })
}

/// Figure 13.
pub(super) fn fig13(o: Options) -> Result<Outcome, ExperimentError> {
    let both = six(o).both(o.seed)?;
    let mut rows = Vec::new();
    both.values("read P99.9, ", "ms", Better::Lower, READ_P999, &mut rows);
    both.values("write P99.9, ", "ms", Better::Lower, WRITE_P999, &mut rows);
    let paper = [
        ("read P99.9", "vdc", "rackblox", READ_P999, 7.9, Some(5.8)),
        ("read P99.9", "software", "rackblox", READ_P999, 1.84, Some(1.5)),
        ("read P99", "vdc", "rackblox", READ_P99, 2.9, None),
        ("write P99.9", "vdc", "rackblox", WRITE_P999, 1.4, Some(1.3)),
    ];
    both.gains(&paper, &mut rows);
    past_the_paper(&both, &mut rows);
    if o.quick {
        // By whole blocks there is figure 9.
        return Ok(Outcome::new(both.config(), rows));
    }
    let loads = vec![Load::SEATS, Load::AUCTIONMARK, Load::TPC_C];
    let bars = [("vdc", "rackblox", 7.9, 5.8), ("software", "rackblox", 1.84, 1.5)];
    let held: [Held<'_>; 2] =
        [("read P99.9", READ_P999, &bars), ("write P99.9", WRITE_P999, &[("vdc", "rackblox", 1.4, 1.3)])];
    let blocks = whole_blocks(o, loads, held, &mut rows)?;
    Ok(Outcome::new(json!({"page": both.config(), "block": blocks}), rows))
}

/// §4.4 separates the parts of coordination: ordering alone, then collection as well.
fn with_coord_io(o: Options, loads: Vec<Load>) -> Sweep {
    let mut sweep = Sweep::new(o, loads);
    sweep.schemes.insert(1, Scheme::COORD_IO);
    sweep
}

/// Figure 15: the storage's share is the latency over a network without delay.
pub(super) fn fig15(o: Options) -> Result<Outcome, ExperimentError> {
    let shares: &[f64] = if o.quick { &[SHARE] } else { &SHARES };
    let mut sweep = with_coord_io(o, shares.iter().map(|w| Load::ycsb(*w)).collect());
    let total = sweep.run(o.seed)?;
    let config = sweep.config(&total);
    sweep.network = Network::constant(Span::ZERO);
    let storage = sweep.run(o.seed)?;
    let mut rows = Vec::new();
    for (points, part) in [(&storage, "storage"), (&total, "total")] {
        values(points, &format!("read P99.9, {part}, "), "ms", Better::Lower, READ_P999, &mut rows);
        values(points, &format!("write P99.9, {part}, "), "ms", Better::Lower, WRITE_P999, &mut rows);
    }
    rows.push(gain(&total, "read P99.9", "vdc", "coord-io", READ_P999).paper(1.23));
    rows.push(gain(&total, "write P99.9", "vdc", "coord-io", WRITE_P999).paper(1.4));
    rows.push(gain(&total, "read P99.9", "coord-io", "rackblox", READ_P999).paper(4.3));
    Ok(Outcome::new(config, rows))
}

/// Figure 16.
pub(super) fn fig16(o: Options) -> Result<Outcome, ExperimentError> {
    let both = with_coord_io(o, vec![Load::ycsb(SHARE)]).both(o.seed)?;
    let mut rows = Vec::new();
    let parts: [(&str, Value1); 5] = [
        ("P50", |c| ms(c.read_us(0.5))),
        ("P90", |c| ms(c.read_us(0.9))),
        ("P99", READ_P99),
        ("P99.9", READ_P999),
        ("P99.99", |c| ms(c.read_us(0.9999))),
    ];
    for (name, value) in parts {
        both.values(&format!("read {name}, "), "ms", Better::Lower, value, &mut rows);
    }
    both.gains(&[("read P99.9", "vdc", "rackblox", READ_P999, 4.3, None)], &mut rows);
    let results = both.plain[0].seeds[0].iter().filter_map(|c| Some((c.policy, c.result.as_ref()?)));
    let named: Vec<_> = results.map(|(name, r)| (name, &r.read, &r.write)).collect();
    let drawing = Some(curves("YCSB, 50 % writes", &named));
    Ok(Outcome { config: both.config(), rows, drawing })
}

/// The points of one device on one network, by their names.
type OfDevice = (String, Vec<Point>);

/// Every device on every network.
fn matrix(o: Options, shares: &[f64]) -> Result<(Value, Vec<OfDevice>), ExperimentError> {
    let delays = Network::excerpt();
    let mut networks = vec![Network::fast(delays.clone()), Network::medium(delays.clone()), Network::slow(delays)];
    if o.quick {
        networks.remove(1);
    }
    let mut all = Vec::new();
    let mut config = Vec::new();
    for profile in ["optane", "intel-dc", "p-ssd"] {
        for network in &networks {
            let mut sweep = Sweep::new(o, shares.iter().map(|w| Load::ycsb(*w)).collect());
            (sweep.profile, sweep.network) = (profile, network.clone());
            sweep.schemes.retain(|s| matches!(s.name, "vdc" | "rackblox"));
            let points = sweep.run(o.seed)?;
            config.push(sweep.config(&points));
            all.push((format!("{profile}, {}", network.name), points));
        }
    }
    Ok((Value::Array(config), all))
}

/// Figure 19.
pub(super) fn fig19(o: Options) -> Result<Outcome, ExperimentError> {
    let (config, all) = matrix(o, &[0.5])?;
    let parts: [(&str, Value1); 3] = [("P50", |c| ms(c.read_us(0.5))), ("P99", READ_P99), ("P99.9", READ_P999)];
    let mut rows = Vec::new();
    for (name, points) in &all {
        for (part, value) in parts {
            values(points, &format!("{name}, read {part}, "), "ms", Better::Lower, value, &mut rows);
        }
    }
    Ok(Outcome::new(config, rows))
}

/// Figure 20.
pub(super) fn fig20(o: Options) -> Result<Outcome, ExperimentError> {
    let shares: &[f64] = if o.quick { &[0.5] } else { &[0.2, 0.5, 0.8] };
    let (config, all) = matrix(o, shares)?;
    let mut rows = Vec::new();
    for (name, points) in &all {
        for p in points {
            let ratio = p.ratio("vdc", "rackblox", READ_P999);
            let note = p.void.as_ref().map(|why| format!("VOID: {why}").into());
            let row = Row::new(format!("{name}, {}: read P99.9, vdc ÷ rackblox", p.name()), "×", Better::Higher, ratio);
            rows.push(row.note(note));
        }
    }
    Ok(Outcome::new(config, rows))
}
