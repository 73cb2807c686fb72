//! RackBlox figure 21: the gain of RackBlox over VDC if two vSSDs of a drive share its channels behind token buckets, and
//! if each has its own channels (§4.5.4).

use rackweave_config::Isolation;
use serde_json::{Value, json};

use super::rack::READS_QUICK;
use super::{Better, ExperimentError, Options, Outcome, Row};
use rackweave_replay::rack::{Cell, CellReport, Load, READS_MIN, Scheme, run_once, void};
use rackweave_replay::svg::curves;

/// Reads of a cell of the full form: with half of them, the schemes' erases differ by more than 5 %.
const READS: u64 = 2 * READS_MIN;
/// Seeds whose median counts.
const SEEDS: u64 = 3;
/// Isolation of a drive's vSSDs, and the paper's gain at P99.9.
const LEVELS: [(&str, Isolation, f64); 2] =
    [("software-isolated", Isolation::Software, 1.47), ("hardware-isolated", Isolation::Channel, 1.51)];
const SCHEMES: [&str; 3] = ["vdc", "rackblox", "ideal"];

fn median(reports: &[CellReport], of: impl Fn(&CellReport) -> f64) -> f64 {
    let mut all: Vec<f64> = reports.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// YCSB with half writes at half of the dies' time, on drives of two channels and two vSSDs.
pub(super) fn fig21(o: Options) -> Result<Outcome, ExperimentError> {
    let (reads, seeds) = if o.quick { (READS_QUICK, o.seeds.unwrap_or(1)) } else { (READS, o.seeds.unwrap_or(SEEDS)) };
    let failed = |e: &dyn std::fmt::Display| ExperimentError::Cell { reason: e.to_string().into() };
    let schemes = SCHEMES.map(Scheme::named).into_iter().collect::<Result<Vec<_>, _>>().map_err(|e| failed(&e))?;
    let mut cells = Vec::new();
    for (_, isolation, _) in LEVELS {
        for scheme in &schemes {
            cells.extend((0..seeds).map(|k| {
                let cell = Cell::new(*scheme, Load::ycsb(0.5));
                let cell = if o.quick { cell.short(reads) } else { cell.reads(reads) };
                Cell { isolation, seed: o.seed.wrapping_add(k), ..cell }
            }));
        }
    }
    let reports = run_once(&cells).map_err(|e| failed(&e))?;
    let mut of_scheme = reports.chunks(seeds as usize);
    let (mut rows, mut drawn) = (Vec::new(), Vec::new());
    for (name, _, paper) in LEVELS {
        let of: Vec<&[CellReport]> = of_scheme.by_ref().take(SCHEMES.len()).collect();
        let why = void(of.iter().copied().flatten(), reads);
        let mut note = why.clone();
        for (scheme, cells) in SCHEMES.iter().zip(&of) {
            for (part, at) in [("P99", 0.99), ("P99.9", 0.999)] {
                for (kind, us) in
                    [("read", median(cells, |c| c.read_us(at))), ("write", median(cells, |c| c.write_us(at)))]
                {
                    let row = Row::new(format!("{name}: {kind} {part}, {scheme}"), "ms", Better::Lower, us / 1e3);
                    rows.push(row.note(note.take()));
                }
            }
            let episodes = median(cells, |c| c.result.as_ref().map_or(f64::NAN, |r| r.gc_runs as f64));
            rows.push(Row::new(format!("{name}: episodes of collection, {scheme}"), "", Better::Lower, episodes));
            drawn.extend(cells[0].result.as_ref().map(|r| (format!("{scheme}, {name}"), &r.read, &r.write)));
        }
        let gain = |kind: &str, us: &dyn Fn(&CellReport) -> f64| {
            let ratio = median(of[0], us) / median(of[1], us);
            Row::new(format!("{name}: {kind} P99.9, vdc ÷ rackblox"), "×", Better::Higher, ratio)
        };
        let reads = gain("read", &|c| c.read_us(0.999)).paper(paper);
        rows.push(if why.is_none() { reads.bar(paper) } else { reads.note(why) });
        rows.push(gain("write", &|c| c.write_us(0.999)));
    }
    let cells: Vec<Value> = reports.iter().map(CellReport::json).collect();
    let config = json!({
        "profile": "p-ssd", "network": "fast", "writes": 0.5, "utilization": 0.5, "reads": reads, "seeds": seeds,
        "isolation": LEVELS.map(|l| l.1.name()), "cells": cells,
    });
    let named: Vec<_> = drawn.iter().map(|(name, read, write)| (name.as_str(), *read, *write)).collect();
    let drawing = Some(curves("YCSB, 50 % writes, by isolation", &named));
    Ok(Outcome { config, rows, drawing })
}
