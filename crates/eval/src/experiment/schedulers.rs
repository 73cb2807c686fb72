//! RackBlox figure 17: reads' tail under each storage scheduler, plain and coordinated (§4.5.1). Nothing else differs.

use rackweave_rack::config::{SchedConfigKind, SchedSection};
use serde_json::{Value, json};

use super::{Better, ExperimentError, Options, Outcome, Row};
use crate::rack::{Cell, CellReport, Load, READS_MIN, Scheme, run_all, void};
use crate::replay::Policy;

/// Reads of a cell of the short form.
const READS_QUICK: u64 = 100_000;
/// Seeds whose median counts.
const SEEDS: u64 = 3;
/// The schedulers, and what the paper says coordination gains.
const KINDS: [(&str, SchedConfigKind, f64); 3] = [
    ("FIFO", SchedConfigKind::Fifo, 1.5),
    ("Deadline", SchedConfigKind::Deadline, 1.36),
    ("Kyber", SchedConfigKind::Kyber, 1.24),
];
/// Garbage collection beside them: nobody coordinates it, or the switch does.
const COLLECTION: [(&str, Policy); 2] =
    [("collection as it comes", Policy::Baseline), ("coordinated collection", Policy::Rackblox)];

fn median(reports: &[&CellReport], of: impl Fn(&CellReport) -> f64) -> f64 {
    let mut all: Vec<f64> = reports.iter().map(|c| of(c)).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Plain beside coordinated, YCSB with half writes, half of the dies' time.
pub(super) fn fig17(o: Options) -> Result<Outcome, ExperimentError> {
    let (reads, seeds) = if o.quick { (READS_QUICK, 1) } else { (READS_MIN, SEEDS) };
    let mut cells = Vec::new();
    for (_, policy) in COLLECTION {
        for (_, kind, _) in KINDS {
            for coordinated in [false, true] {
                cells.extend((0..seeds).map(|k| {
                    let sched = SchedSection { kind, coordinated, ..SchedSection::default() };
                    let cell = Cell::new(Scheme::from(policy), Load::ycsb(0.5)).reads(reads);
                    Cell { sched: Some(sched), seed: o.seed + k, ..cell }
                }));
            }
        }
    }
    let reports = run_all(&cells).map_err(|e| ExperimentError::Cell { reason: e.to_string().into() })?;
    let mut cell = reports.chunks(seeds as usize).map(|c| c.iter().collect::<Vec<_>>());
    let mut rows = Vec::new();
    for (how, _) in COLLECTION {
        for (name, _, paper) in KINDS {
            let (Some(plain), Some(ours)) = (cell.next(), cell.next()) else { break };
            let why = void(plain.iter().chain(&ours).copied(), reads);
            let [before, after] = [&plain, &ours].map(|c| median(c, |r| r.read_us(0.999)));
            let named = |what: &str| format!("{how}, {name}: {what}");
            rows.push(Row::new(named("plain, P99.9 read"), "µs", Better::Lower, before).note(why.clone()));
            rows.push(Row::new(named("coordinated, P99.9 read"), "µs", Better::Lower, after));
            let gain = Row::new(named("gain"), "×", Better::Higher, before / after).paper(paper);
            rows.push(if why.is_none() { gain.bar(1.0) } else { gain.note(why) });
            let mean = median(&ours, |r| r.read_us(0.5)) / median(&plain, |r| r.read_us(0.5));
            rows.push(Row::new(named("median read"), "of plain", Better::Lower, mean));
        }
    }
    let cells: Vec<Value> = reports.iter().map(CellReport::json).collect();
    let config = json!({
        "profile": "p-ssd", "network": "fast", "writes": 0.5, "utilization": 0.5, "reads": reads, "seeds": seeds,
        "cells": cells,
    });
    Ok(Outcome::new(config, rows))
}
