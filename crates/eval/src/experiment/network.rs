//! RackBlox figure 18: reads' tail under each network scheduler in the switch, storage scheduling plain and coordinated
//! (§4.5.2). Four clients compete for each server's port; nothing else differs.

use rackweave_config::{SchedSection, SchedulingKind};
use serde_json::{Value, json};

use super::rack::READS_QUICK;
use super::schedulers::median;
use super::{Better, ExperimentError, Options, Outcome, Row};
use rackweave_replay::Policy;
use rackweave_replay::rack::{Cell, CellReport, Load, Ports, Scheme, run_once, void};

/// Two servers, so that reads of a collecting vSSD can be redirected; all clients compete for each server's port.
const SERVERS: u32 = 2;
const CLIENTS: u32 = 4;
/// Fraction of the dies' time, and of a port's, that the clients' load takes.
const UTILIZATION: f64 = 0.6;
const PORT_BUSY: f64 = 0.75;
/// The same beside bursts of higher priority, which take a fifth. With much more, queues of a second of work build up,
/// and replicas' messages are lost.
const PORT_BUSY_BESIDE: f64 = 0.5;
const READS: u64 = 300_000;
const SEEDS: u64 = 3;
const SHARES: [f64; 3] = [0.2, 0.5, 0.8];
const SHARES_QUICK: [f64; 1] = [0.5];

/// The schedulers, and the paper's average gain by coordination, where given.
const KINDS: [(&str, SchedulingKind, Option<f64>); 3] = [
    ("TB", SchedulingKind::Tb, None),
    ("FQ", SchedulingKind::Fq, Some(1.21)),
    ("Priority", SchedulingKind::Priority, Some(1.15)),
];

fn read_mean(c: &CellReport) -> f64 {
    c.result.as_ref().map_or(f64::NAN, |r| r.read.summary().mean_us)
}

fn ports(scheduling: SchedulingKind) -> Ports {
    let bursts = scheduling == SchedulingKind::Priority;
    Ports { scheduling, busy: if bursts { PORT_BUSY_BESIDE } else { PORT_BUSY }, bursts }
}

pub(super) fn fig18(o: Options) -> Result<Outcome, ExperimentError> {
    let (reads, seeds) = if o.quick { (READS_QUICK, 1) } else { (READS, SEEDS) };
    let shares: &[f64] = if o.quick { &SHARES_QUICK } else { &SHARES };
    let mut cells = Vec::new();
    for (_, scheduling, _) in KINDS {
        for share in shares {
            for coordinated in [false, true] {
                cells.extend((0..seeds).map(|k| {
                    let cell = Cell::new(Scheme::from(Policy::Rackblox), Load::ycsb(*share));
                    let cell = if o.quick { cell.short(reads) } else { cell.reads(reads) };
                    let sched = Some(SchedSection { coordinated, ..SchedSection::default() });
                    let (utilization, ports, seed) = (UTILIZATION, Some(ports(scheduling)), o.seed + k);
                    Cell { servers: SERVERS, clients: CLIENTS, utilization, ports, sched, seed, ..cell }
                }));
            }
        }
    }
    let reports = run_once(&cells).map_err(|e| ExperimentError::Cell { reason: e.to_string().into() })?;
    let mut cell = reports.chunks(seeds as usize).map(|c| c.iter().collect::<Vec<_>>());
    let mut rows = Vec::new();
    for (name, _, paper) in KINDS {
        let (mut gains, mut means) = (Vec::new(), Vec::new());
        let mut left_out = None;
        for share in shares {
            let (Some(plain), Some(ours)) = (cell.next(), cell.next()) else { break };
            let why = void(plain.iter().chain(&ours).copied(), reads);
            let [before, after] = [&plain, &ours].map(|c| median(c, |r| r.read_us(0.999)));
            let named = |what: &str| format!("{name}, {:.0} % writes: {what}", share * 100.0);
            rows.push(Row::new(named("plain, P99.9 read"), "µs", Better::Lower, before).note(why.clone()));
            rows.push(Row::new(named("coordinated, P99.9 read"), "µs", Better::Lower, after));
            let middle = median(&ours, |r| r.read_us(0.5)) / median(&plain, |r| r.read_us(0.5));
            rows.push(Row::new(named("median read"), "of plain", Better::Lower, middle));
            match why {
                None => {
                    gains.push(before / after);
                    means.push(median(&plain, read_mean) / median(&ours, read_mean));
                }
                why => left_out = why,
            }
        }
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        rows.push(Row::new(format!("{name}: gain of the mean read"), "×", Better::Higher, mean(&means)));
        let gain = Row::new(format!("{name}: gain of P99.9"), "×", Better::Higher, mean(&gains));
        let gain = Row { paper, ..gain };
        rows.push(if gains.is_empty() { gain.note(left_out) } else { gain.bar(1.0) });
    }
    let cells: Vec<Value> = reports.iter().map(CellReport::json).collect();
    let config = json!({
        "profile": "p-ssd", "network": "fast", "servers": SERVERS, "clients": CLIENTS, "utilization": UTILIZATION,
        "port_busy": PORT_BUSY, "port_busy_beside_bursts": PORT_BUSY_BESIDE, "writes": shares, "reads": reads,
        "seeds": seeds, "cells": cells,
    });
    Ok(Outcome::new(config, rows))
}
