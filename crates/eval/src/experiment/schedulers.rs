//! RackBlox figure 17: reads' tail under each storage scheduler, plain and coordinated (§4.5.1), all else equal.

use rackweave_config::{SchedConfigKind, SchedSection};
use rackweave_sim::Network;
use serde_json::{Value, json};

use super::rack::READS_QUICK;
use super::{Better, ExperimentError, Options, Outcome, Row};
use rackweave_replay::Policy;
use rackweave_replay::rack::{Cell, CellReport, Load, READS_MIN, Scheme, run_once, void};

/// The short form has these of [`POINTS`]: queues, with the figures' network.
const POINTS_QUICK: std::ops::Range<usize> = 2..3;
/// Planned utilization at which reads queue at the dies of popular blocks, but no die is busy for 90 % of the time.
const QUEUES: f64 = 0.55;
/// Seeds whose median counts.
const SEEDS: u64 = 3;
/// The schedulers, with the paper's gain by coordination.
const KINDS: [(&str, SchedConfigKind, f64); 3] = [
    ("FIFO", SchedConfigKind::Fifo, 1.5),
    ("Deadline", SchedConfigKind::Deadline, 1.36),
    ("Kyber", SchedConfigKind::Kyber, 1.24),
];

/// A point of comparison.
struct Point {
    name: &'static str,
    policy: Policy,
    /// As [`Network::parse`] reads it.
    network: &'static str,
    utilization: f64,
    writes: f64,
}

/// Half of the dies' time, at which a read seldom waits for others; and a utilization at which reads queue at the dies
/// of popular blocks, with the figures' network, a slow one, and a drawn one whose delays vary as much as the queues'.
const POINTS: [Point; 5] = [
    Point {
        name: "half busy, collection as it comes",
        policy: Policy::Baseline,
        network: "fast",
        utilization: 0.5,
        writes: 0.5,
    },
    Point { name: "half busy", policy: Policy::Rackblox, network: "fast", utilization: 0.5, writes: 0.5 },
    Point { name: "queues", policy: Policy::Rackblox, network: "fast", utilization: QUEUES, writes: 0.2 },
    Point { name: "queues, slow network", policy: Policy::Rackblox, network: "slow", utilization: QUEUES, writes: 0.2 },
    Point {
        name: "queues, delays of milliseconds",
        policy: Policy::Rackblox,
        network: "exponential:200us,2ms",
        utilization: QUEUES,
        writes: 0.2,
    },
];

pub(super) fn median(reports: &[&CellReport], of: impl Fn(&CellReport) -> f64) -> f64 {
    let mut all: Vec<f64> = reports.iter().map(|c| of(c)).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Plain beside coordinated, YCSB.
pub(super) fn fig17(o: Options) -> Result<Outcome, ExperimentError> {
    let (reads, seeds) =
        if o.quick { (READS_QUICK, o.seeds.unwrap_or(1)) } else { (READS_MIN, o.seeds.unwrap_or(SEEDS)) };
    let points = if o.quick { &POINTS[POINTS_QUICK] } else { &POINTS };
    let mut cells = Vec::new();
    for p in points {
        let network = Network::parse(p.network).map_err(|e| ExperimentError::Cell { reason: e.to_string().into() })?;
        for (_, kind, _) in KINDS {
            for coordinated in [false, true] {
                cells.extend((0..seeds).map(|k| {
                    let sched = Some(SchedSection { kind, coordinated, ..SchedSection::default() });
                    let cell = Cell::new(Scheme::from(p.policy), Load::ycsb(p.writes));
                    let cell = if o.quick { cell.short(reads) } else { cell.reads(reads) };
                    let (network, seed) = (network.clone(), o.seed.wrapping_add(k));
                    Cell { sched, seed, network, utilization: p.utilization, ..cell }
                }));
            }
        }
    }
    let reports = run_once(&cells).map_err(|e| ExperimentError::Cell { reason: e.to_string().into() })?;
    let mut cell = reports.chunks(seeds as usize).map(|c| c.iter().collect::<Vec<_>>());
    let mut rows = Vec::new();
    for p in points {
        for (name, _, paper) in KINDS {
            let (Some(plain), Some(ours)) = (cell.next(), cell.next()) else { break };
            let why = void(plain.iter().chain(&ours).copied(), reads);
            let [before, after] = [&plain, &ours].map(|c| median(c, |r| r.read_us(0.999)));
            let named = |what: &str| format!("{}, {name}: {what}", p.name);
            rows.push(Row::new(named("plain, P99.9 read"), "µs", Better::Lower, before).note(why.clone()));
            rows.push(Row::new(named("coordinated, P99.9 read"), "µs", Better::Lower, after));
            let gain = Row::new(named("gain"), "×", Better::Higher, before / after).paper(paper);
            rows.push(if why.is_none() { gain.bar(1.0) } else { gain.note(why) });
            let middle = median(&ours, |r| r.read_us(0.5)) / median(&plain, |r| r.read_us(0.5));
            rows.push(Row::new(named("median read"), "of plain", Better::Lower, middle));
        }
    }
    let cells: Vec<Value> = reports.iter().map(CellReport::json).collect();
    let points: Vec<Value> = points
        .iter()
        .map(|p| {
            json!({
                "name": p.name, "policy": p.policy.name(), "network": p.network, "utilization": p.utilization,
                "writes": p.writes,
            })
        })
        .collect();
    let config = json!({"profile": "p-ssd", "points": points, "reads": reads, "seeds": seeds, "cells": cells});
    Ok(Outcome::new(config, rows))
}
