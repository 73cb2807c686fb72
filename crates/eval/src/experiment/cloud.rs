//! DiffForward §2, §5: forwarding traffic and latency of a thousand cloud disks, with the model of [`crate::cloud`].

use rackweave_cloud::burst::BurstConfig;
use rackweave_core::Span;
use serde_json::{Value, json};

use super::{Better, ExperimentError, Options, Outcome, Row};
use crate::cloud::SERVERS;
use crate::cloud::logs::NODE_BYTES;
use crate::cloud::params::Params;
use crate::cloud::run::{Measured, RunConfig, run};
use crate::cloud::scheme::{Kind, Merge, Scheme};
use crate::cloud::survey::{Accuracy, survey};
use crate::cloud::traffic::{COARSE, FINE};
use crate::cloud::workload::Trace;
use rackweave_replay::cpu::on_all_cores;

/// Lengths of a full run, of a run of a sweep, and of any run of a short form.
const SLICE: Span = Span::from_secs(600);
const SWEEP: Span = Span::from_secs(60);
const QUICK: Span = Span::from_secs(20);
/// Lengths of surveys; detection is judged after a minute.
const SURVEY: Span = Span::from_secs(7200);
const SURVEY_DETECT: Span = Span::from_secs(600);
const SURVEY_QUICK: Span = Span::from_secs(300);
const MIB: f64 = 1048576.0;
/// Baselines whose best is compared with: all that the paper calls existing, without replication.
const MOVED: [&str; 3] = ["segmentation", "migration, mean", "migration, EWMA"];
/// Two log copies against one: at most a tenth more.
const TWO_COPIES_MAX: f64 = 1.1;

/// Runs of one figure.
struct Runs {
    length: Span,
    seed: u64,
    cells: Vec<(String, RunConfig)>,
    results: Vec<Measured>,
}

impl Runs {
    fn new(o: Options, full: Span) -> Runs {
        let length = if o.quick { QUICK } else { full };
        Runs { length, seed: o.seed, cells: Vec::new(), results: Vec::new() }
    }
    fn add(&mut self, name: impl Into<String>, scheme: Scheme, trace: Trace, utilization: f64) {
        let cfg = RunConfig { scheme, trace, utilization, length: self.length, seed: self.seed };
        self.cells.push((name.into(), cfg));
    }
    fn run(&mut self, p: &Params) {
        self.results = on_all_cores(&self.cells, |(_, cfg)| run(p, *cfg));
    }
    fn all(&self) -> impl Iterator<Item = (&str, &Measured)> {
        self.cells.iter().map(|c| c.0.as_str()).zip(&self.results)
    }
    fn of(&self, name: &str, value: Value1) -> f64 {
        self.all().find(|(n, _)| *n == name).map_or(f64::NAN, |(_, m)| value(m))
    }
    fn best(&self, names: &[String], value: Value1) -> f64 {
        names.iter().map(|n| self.of(n, value)).fold(f64::INFINITY, f64::min)
    }
    fn config(&self) -> Value {
        let cell = |((name, c), m): (&(String, RunConfig), &Measured)| {
            json!({
                "name": name, "trace": c.trace.name(), "utilization": c.utilization, "links": [m.links.0, m.links.1],
                "reads": m.read.count(), "writes": m.write.count(), "written_bytes": m.written, "logged_bytes": m.logged,
                "migrations": m.migrations, "unfinished": m.unfinished,
            })
        };
        json!({
            "inputs": "crates/eval/data/diffforward.toml", "servers": SERVERS, "seconds": self.length.as_secs_f64(),
            "cells": self.cells.iter().zip(&self.results).map(cell).collect::<Vec<_>>(),
        })
    }
}

type Value1 = fn(&Measured) -> f64;
/// The paper's numbers, by cell.
type Papers = &'static [(&'static str, f64)];

const COV: Value1 = |m| m.traffic.balance(FINE).cov;
const MAX_MIN: Value1 = |m| m.traffic.balance(FINE).max_min;
const WRITE_MEAN: Value1 = |m| m.write.summary().mean_us / 1e3;
const WRITE_P99: Value1 = |m| m.write.summary().p99_us / 1e3;
const READ_MEAN: Value1 = |m| m.read.summary().mean_us / 1e3;
const READ_P99: Value1 = |m| m.read.summary().p99_us / 1e3;

fn traces(o: Options) -> &'static [Trace] {
    if o.quick { &[Trace::W1] } else { &[Trace::W1, Trace::W2] }
}

fn inputs() -> Result<Params, ExperimentError> {
    Ok(Params::builtin()?)
}

fn row(name: impl Into<String>, unit: &'static str, measured: f64) -> Row {
    Row::new(name, unit, Better::Lower, measured)
}

/// How much less `ours` is than `other`; more is better.
fn less(name: String, ours: f64, other: f64) -> Row {
    Row::new(name, "less, of it", Better::Higher, 1.0 - ours / other)
}

/// Figure 2, and what §2.3 and §2.4 say of the trace: the generator's calibration and its validation.
pub(super) fn imbalance(o: Options) -> Result<Outcome, ExperimentError> {
    let p = inputs()?;
    let length = if o.quick { SURVEY_QUICK } else { SURVEY };
    let s = survey(&p, Trace::W1, BurstConfig::PAPER, length, o.seed);
    let (fine, coarse) = (s.traffic.balance(FINE), s.traffic.balance(COARSE));
    let rows = vec![
        row("CoV, 100 ms", "", fine.cov).paper(1.01),
        row("CoV, 100 s", "", coarse.cov).paper(0.38),
        row("max ÷ min, 100 ms", "×", fine.max_min).paper(50.5),
        row("max ÷ min, 100 s", "×", coarse.max_min).paper(2.8),
        row("bytes where max ÷ min > 58", "of all", s.traffic.share_above(58.0)).paper(0.5),
        Row::new("Spearman: traffic, share of random writes", "", Better::Higher, s.spearman).paper(0.61),
        Row::new("EWMA's error, 5 s", "of it", Better::Higher, s.ewma_5s).paper(1.0).bar(1.0),
        Row::new("EWMA's error, 100 ms", "of it", Better::Higher, s.ewma_fine).paper(2.0),
    ];
    let config = json!({"inputs": "crates/eval/data/diffforward.toml", "seconds": length.as_secs_f64()});
    Ok(Outcome::new(config, rows))
}

/// All schemes on the traces, at one utilization.
fn all_schemes(o: Options, p: &Params, full: Span) -> Runs {
    let mut runs = Runs::new(o, full);
    for trace in traces(o) {
        for s in Scheme::ALL {
            runs.add(format!("{}: {}", trace.name(), s.name), s, *trace, p.model.utilization);
        }
    }
    runs.run(p);
    runs
}

/// Figures 12, 13 and 5 (a, b).
pub(super) fn balance(o: Options) -> Result<Outcome, ExperimentError> {
    let runs = all_schemes(o, &inputs()?, SLICE);
    Ok(Outcome::new(runs.config(), balance_rows(o, &runs)))
}

fn balance_rows(o: Options, runs: &Runs) -> Vec<Row> {
    let mut rows = Vec::new();
    for (what, unit, value) in [("CoV", "", COV), ("max ÷ min", "×", MAX_MIN)] {
        rows.extend(runs.all().map(|(name, m)| row(format!("{name}: {what}"), unit, value(m))));
    }
    for trace in traces(o) {
        let t = trace.name();
        let ours = |value| runs.of(&format!("{t}: diffforward"), value);
        let other = |s: &str, value| runs.of(&format!("{t}: {s}"), value);
        for (s, cov, max_min, held) in [
            ("segmentation", 0.66, 0.82, true),
            ("migration, mean", 0.7, 0.85, false),
            ("migration, EWMA", 0.7, 0.85, false),
            ("replication", 0.24, 0.25, false),
        ] {
            // Against migration and replication the bar is to be no worse.
            let bar = |paper| if held { paper } else { 0.0 };
            rows.push(less(format!("{t}: CoV against {s}"), ours(COV), other(s, COV)).paper(cov).bar(bar(cov)));
            let spread = less(format!("{t}: max ÷ min against {s}"), ours(MAX_MIN), other(s, MAX_MIN));
            rows.push(spread.paper(max_min).bar(bar(max_min)));
        }
        let bursts = |value: fn(&Measured) -> f64| runs.of(&format!("{t}: diffforward"), value);
        let alone = bursts(|m| m.bursts.balance(FINE).cov);
        rows.push(row(format!("{t}: bursts alone, CoV"), "", alone).paper(0.13).bar(0.13));
        let alone = bursts(|m| m.bursts.balance(FINE).max_min);
        rows.push(row(format!("{t}: bursts alone, max ÷ min"), "×", alone).paper(1.63).bar(1.63));
        let twice = other("diffforward, two copies", COV) / ours(COV);
        rows.push(row(format!("{t}: CoV, two log copies ÷ one"), "×", twice).bar(TWO_COPIES_MAX));
    }
    rows
}

/// Figures 14, 15 and 5 (c, d).
pub(super) fn latency(o: Options) -> Result<Outcome, ExperimentError> {
    let runs = all_schemes(o, &inputs()?, SLICE);
    Ok(Outcome::new(runs.config(), latency_rows(o, &runs)))
}

fn latency_rows(o: Options, runs: &Runs) -> Vec<Row> {
    let mut rows = Vec::new();
    let papers: [(&str, Value1, Papers); 4] = [
        (
            "write mean",
            WRITE_MEAN,
            &[
                ("W1: segmentation", 11.8),
                ("W1: migration, mean", 14.3),
                ("W1: migration, EWMA", 12.9),
                ("W1: replication", 17.1),
                ("W1: diffforward", 6.3),
            ],
        ),
        (
            "write P99",
            WRITE_P99,
            &[
                ("W1: segmentation", 230.0),
                ("W1: migration, mean", 256.8),
                ("W1: migration, EWMA", 246.0),
                ("W1: replication", 227.0),
                ("W1: diffforward", 72.0),
            ],
        ),
        ("read mean", READ_MEAN, &[]),
        ("read P99", READ_P99, &[]),
    ];
    for (what, value, paper) in papers {
        for (name, m) in runs.all() {
            let mut r = row(format!("{name}: {what}"), "ms", value(m));
            r.paper = paper.iter().find(|(n, _)| *n == name).map(|(_, ms)| *ms);
            rows.push(r);
        }
    }
    for trace in traces(o) {
        let t = trace.name();
        let others = MOVED.map(|s| format!("{t}: {s}"));
        let [ours, twice, replicated] =
            ["diffforward", "diffforward, two copies", "replication"].map(|s| format!("{t}: {s}"));
        for (what, value, paper, bar) in [
            ("write mean", WRITE_MEAN, 0.47, 0.47),
            ("write P99", WRITE_P99, 0.7, 0.7),
            ("read mean", READ_MEAN, 0.15, 0.0),
            ("read P99", READ_P99, 0.19, 0.0),
        ] {
            let (one, best) = (runs.of(&ours, value), runs.best(&others, value));
            rows.push(less(format!("{t}: {what} against the best moved"), one, best).paper(paper).bar(bar));
            rows.push(less(format!("{t}: {what} against replication"), one, runs.of(&replicated, value)).bar(0.0));
            let ratio = runs.of(&twice, value) / one;
            rows.push(row(format!("{t}: {what}, two log copies ÷ one"), "×", ratio).bar(TWO_COPIES_MAX));
        }
    }
    rows
}

/// Figure 16: utilization of the links.
pub(super) fn utilization(o: Options) -> Result<Outcome, ExperimentError> {
    let p = inputs()?;
    let mut runs = Runs::new(o, SWEEP);
    let name = |u: u32, s: &str| format!("{u} %: {s}");
    let steps: &[u32] = if o.quick { &[10, 40] } else { &[10, 20, 30, 40] };
    for u in steps {
        for s in &Scheme::ALL[1..] {
            runs.add(name(*u, s.name), *s, Trace::W1, f64::from(*u) / 100.0);
        }
    }
    runs.run(&p);
    let mut rows = Vec::new();
    for (what, value) in
        [("write mean", WRITE_MEAN), ("write P99", WRITE_P99), ("read mean", READ_MEAN), ("read P99", READ_P99)]
    {
        rows.extend(runs.all().map(|(name, m)| row(format!("{name}: {what}"), "ms", value(m))));
    }
    let others: Vec<_> = MOVED.iter().chain(&["replication"]).map(|s| name(40, s)).collect();
    for (what, value, paper) in [("write mean", WRITE_MEAN, 0.66), ("write P99", WRITE_P99, 0.6)] {
        let (ours, best) = (runs.of(&name(40, "diffforward"), value), runs.best(&others, value));
        rows.push(less(format!("40 %: {what} against the best"), ours, best).paper(paper).bar(paper));
    }
    Ok(Outcome::new(runs.config(), rows))
}

/// Figure 17: size of segments.
pub(super) fn segments(o: Options) -> Result<Outcome, ExperimentError> {
    let p = inputs()?;
    let mut runs = Runs::new(o, SWEEP);
    let sizes: &[Option<u64>] =
        if o.quick { &[None, Some(64)] } else { &[None, Some(128), Some(64), Some(32), Some(16)] };
    let name = |s: &Option<u64>, scheme: &str| match s {
        None => format!("whole disks: {scheme}"),
        Some(gib) => format!("{gib} GiB: {scheme}"),
    };
    for size in sizes {
        for s in [Scheme::SEGMENTATION, Scheme::MIG_EWMA, Scheme::DIFFFORWARD] {
            runs.add(
                name(size, s.name),
                Scheme { segment: size.map(|g| g << 30), ..s },
                Trace::W1,
                p.model.utilization,
            );
        }
    }
    runs.run(&p);
    let mut rows = Vec::new();
    let values: [(&str, &'static str, Value1); 4] = [
        ("CoV", "", COV),
        ("max ÷ min", "×", MAX_MIN),
        ("write mean", "ms", WRITE_MEAN),
        ("write P99", "ms", WRITE_P99),
    ];
    for (what, unit, value) in values {
        rows.extend(runs.all().map(|(name, m)| row(format!("{name}: {what}"), unit, value(m))));
    }
    for (what, _, value) in values {
        let ratio = |s| {
            let others = ["segmentation", "migration, EWMA"].map(|o| name(s, o));
            runs.of(&name(s, "diffforward"), value) / runs.best(&others, value)
        };
        let worst = sizes.iter().map(ratio).fold(0.0, f64::max);
        rows.push(row(format!("{what}: diffforward ÷ best of others, worst size"), "×", worst).bar(1.0));
    }
    Ok(Outcome::new(runs.config(), rows))
}

/// Figure 18: sensitivity of detection.
pub(super) fn sensitivity(o: Options) -> Result<Outcome, ExperimentError> {
    let p = inputs()?;
    let mut runs = Runs::new(o, SWEEP);
    let betas: &[u32] = if o.quick { &[10, 400] } else { &[10, 25, 50, 100, 200, 400] };
    let name = |u: u32, beta: u32| format!("{u} %: β = {:.2}", f64::from(beta) / 100.0);
    let loads: &[u32] = if o.quick { &[30] } else { &[30, 10] };
    for u in loads {
        for beta in betas {
            let burst = BurstConfig { beta_percent: *beta, ..BurstConfig::PAPER };
            let kind = Kind::DiffForward { copies: 1, merge: Merge::Prioritized, burst };
            let scheme = Scheme { kind, ..Scheme::DIFFFORWARD };
            runs.add(name(*u, *beta), scheme, Trace::W1, f64::from(*u) / 100.0);
        }
        let kind = Kind::DiffForward { copies: 1, merge: Merge::Prioritized, burst: BurstConfig::PUBLISHED };
        runs.add(
            format!("{u} %: published code"),
            Scheme { kind, ..Scheme::DIFFFORWARD },
            Trace::W1,
            f64::from(*u) / 100.0,
        );
    }
    runs.run(&p);
    let mut rows = Vec::new();
    let logged: Value1 = |m| m.logged as f64 / m.written as f64;
    for (what, unit, value) in [
        ("write mean", "ms", WRITE_MEAN),
        ("write P99", "ms", WRITE_P99),
        ("CoV", "", COV),
        ("logged", "of bytes", logged),
    ] {
        rows.extend(runs.all().map(|(name, m)| row(format!("{name}: {what}"), unit, value(m))));
    }
    let mean = |beta: &&u32| runs.of(&name(30, **beta), WRITE_MEAN);
    let best = betas.iter().min_by(|a, b| mean(a).total_cmp(&mean(b)));
    rows.push(row("30 %: β of the least mean", "", best.map_or(f64::NAN, |b| f64::from(*b) / 100.0)).paper(0.5));
    Ok(Outcome::new(runs.config(), rows))
}

/// Figure 19: parts of latency.
pub(super) fn breakdown(o: Options) -> Result<Outcome, ExperimentError> {
    let p = inputs()?;
    let mut runs = Runs::new(o, SWEEP);
    for s in [Scheme::SEGMENTATION, Scheme::DIFFFORWARD] {
        runs.add(s.name, s, Trace::W1, p.model.utilization);
    }
    runs.run(&p);
    let mut rows = Vec::new();
    for (i, part) in ["waiting", "transfer", "storage"].into_iter().enumerate() {
        for (name, m) in runs.all() {
            for (op, parts) in [("write", &m.write_parts), ("read", &m.read_parts)] {
                let s = parts[i].summary();
                rows.push(row(format!("{name}: {op}, {part}, mean"), "ms", s.mean_us / 1e3));
                rows.push(row(format!("{name}: {op}, {part}, P99"), "ms", s.p99_us / 1e3));
            }
        }
    }
    let mean: Value1 = |m| m.write_parts[..2].iter().map(|l| l.summary().mean_us).sum();
    let wait_p99: Value1 = |m| m.write_parts[0].summary().p99_us;
    let transfer_p99: Value1 = |m| m.write_parts[1].summary().p99_us;
    for (what, value, paper) in [
        ("write: waiting and transfer, mean", mean, 0.5),
        ("write: waiting, P99", wait_p99, 0.76),
        ("write: transfer, P99", transfer_p99, 0.77),
    ] {
        let (ours, other) = (runs.of("diffforward", value), runs.of("segmentation", value));
        rows.push(less(format!("{what} against segmentation"), ours, other).paper(paper).bar(paper));
    }
    Ok(Outcome::new(runs.config(), rows))
}

fn accuracies(name: &str, a: Accuracy, bars: bool) -> [Row; 4] {
    let values = [
        ("recall, by bytes", a.recall_bytes, 0.8),
        ("precision, by bytes", a.precision_bytes, 0.92),
        ("recall, by intervals", a.recall_intervals, 0.8),
        ("precision, by intervals", a.precision_intervals, 0.92),
    ];
    values.map(|(what, measured, paper)| {
        let r = Row::new(format!("{name}: {what}"), "", Better::Higher, measured).paper(paper);
        if bars { r.bar(paper) } else { r }
    })
}

/// Figure 20: accuracy of detection; sizes of index and logs; cost of merging.
pub(super) fn overheads(o: Options) -> Result<Outcome, ExperimentError> {
    let p = inputs()?;
    let length = if o.quick { SURVEY_QUICK } else { SURVEY_DETECT };
    let mut rows = Vec::new();
    for (name, burst, bars) in [("paper's", BurstConfig::PAPER, true), ("published", BurstConfig::PUBLISHED, false)] {
        rows.extend(accuracies(name, survey(&p, Trace::W1, burst, length, o.seed).accuracy, bars));
    }
    let mut runs = Runs::new(o, SLICE);
    let modes = [("no merging", Merge::None), ("ASAP", Merge::Asap), ("limited", Merge::Limited)];
    for (name, merge) in modes.into_iter().chain([("prioritized", Merge::Prioritized)]) {
        runs.add(name, Scheme::diffforward(name, 1, merge), Trace::W1, p.model.utilization);
    }
    runs.run(&p);
    let index: Value1 = |m| m.index_max.iter().max().map_or(0.0, |n| (n * NODE_BYTES) as f64 / MIB);
    rows.push(row("largest index of a disk", "MiB", runs.of("prioritized", index)).paper(1.93).bar(2.0));
    let logs: Value1 = |m| m.log_bytes.iter().sum::<u64>() as f64 / m.log_bytes.len().max(1) as f64 / MIB;
    let all = runs.of("prioritized", logs);
    rows.push(row("logs of a server, mean", "MiB", all).paper(3072.0));
    rows.push(row("sub-log, mean", "MiB", all / p.disks.count as f64).paper(3.0).bar(3.0));
    for (what, value, papers, bar) in
        [("write mean", WRITE_MEAN, [0.44, 0.38, 0.13], 0.13), ("write P99", WRITE_P99, [3.0, 3.0, 0.47], 0.47)]
    {
        let without = runs.of("no merging", value);
        rows.push(row(format!("no merging: {what}"), "ms", without));
        for (name, paper) in ["ASAP", "limited", "prioritized"].into_iter().zip(papers) {
            let more = runs.of(name, value) / without - 1.0;
            let r = row(format!("{name}: {what}, more than without merging"), "of it", more).paper(paper);
            rows.push(if name == "prioritized" { r.bar(bar) } else { r });
        }
    }
    Ok(Outcome::new(runs.config(), rows))
}

#[cfg(test)]
#[path = "cloud_tests.rs"]
mod tests;
