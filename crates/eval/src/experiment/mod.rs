//! Experiments repeat figures of papers. `rackweave eval ID` prints the paper's number beside ours.
//!
//! An experiment is a function from [`Options`] to a [`Figure`]. Its inputs are in files that name their source, and the
//! same seed gives the same figure.

mod ageing;
mod block;
mod cloud;
mod isolation;
mod kv;
mod network;
mod predict;
mod rack;
mod rack_wear;
mod schedulers;
mod svg;

use std::fmt::Write as _;
use std::path::Path;

use rackweave_sim::net::{DelayFileError, read_delays};
use serde_json::{Value, json};

use crate::ageing::RatesError;
use crate::cpu::process_cpu;

/// How an experiment is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The short form takes under a minute and has the same bars.
    pub quick: bool,
    pub seed: u64,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Higher,
    Lower,
}

impl Better {
    pub fn name(self) -> &'static str {
        match self {
            Better::Higher => "higher",
            Better::Lower => "lower",
        }
    }
}

/// One number of a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub name: String,
    pub unit: &'static str,
    /// The paper's number, if it gives one.
    pub paper: Option<f64>,
    pub measured: f64,
    pub better: Better,
    /// The bar.
    pub bar: Option<f64>,
    /// Remark to print with it, such as why a cell does not count.
    pub note: Option<Box<str>>,
}

impl Row {
    pub fn new(name: impl Into<String>, unit: &'static str, better: Better, measured: f64) -> Row {
        Row { name: name.into(), unit, paper: None, measured, better, bar: None, note: None }
    }
    pub fn paper(mut self, number: f64) -> Row {
        self.paper = Some(number);
        self
    }
    pub fn bar(mut self, number: f64) -> Row {
        self.bar = Some(number);
        self
    }
    pub fn note(mut self, note: Option<Box<str>>) -> Row {
        self.note = note;
        self
    }
    /// Whether it has a bar and misses it.
    pub fn missed(&self) -> bool {
        // NaN misses every bar.
        self.bar.is_some_and(|bar| match self.better {
            Better::Higher => self.measured.is_nan() || self.measured < bar,
            Better::Lower => self.measured.is_nan() || self.measured > bar,
        })
    }
}

/// The result of an experiment.
#[derive(Clone, Debug)]
pub struct Figure {
    pub experiment: &'static str,
    pub about: &'static str,
    pub seed: u64,
    pub config: Value,
    pub cpu_s: f64,
    pub rows: Vec<Row>,
    /// A drawing that replaces the rows as bars.
    drawing: Option<String>,
}

impl Figure {
    /// Rows that miss their bars.
    pub fn missed(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|r| r.missed())
    }

    /// `{experiment, seed, config, cpu_s, rows: [{name, unit, paper, measured, better, bar, held, note}]}`.
    pub fn json(&self) -> Value {
        let row = |r: &Row| {
            json!({
                "name": r.name, "unit": r.unit, "paper": r.paper, "measured": r.measured, "better": r.better.name(),
                "bar": r.bar, "held": r.bar.map(|_| !r.missed()), "note": r.note,
            })
        };
        json!({
            "experiment": self.experiment, "seed": self.seed, "config": self.config, "cpu_s": self.cpu_s,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }

    /// The table for a terminal.
    pub fn table(&self) -> String {
        let mut t = String::new();
        let wide = self.rows.iter().map(|r| r.name.chars().count()).max().unwrap_or(0).max(4);
        // Writing to a string cannot fail.
        let _ = writeln!(t, "{}: {}; seed {}, {:.1} s of CPU", self.experiment, self.about, self.seed, self.cpu_s);
        let _ = writeln!(t, "{:<wide$} {:>10} {:>10} {:>9}  unit", "", "paper", "measured", "bar");
        for r in &self.rows {
            let number = |n: Option<f64>| n.map_or_else(|| "–".into(), number);
            let bar = r.bar.map_or_else(String::new, |b| match r.better {
                Better::Higher => format!("≥ {}", self::number(b)),
                Better::Lower => format!("≤ {}", self::number(b)),
            });
            let missed = if r.missed() { "  MISSED" } else { "" };
            let note = r.note.as_ref().map_or_else(String::new, |n| format!("  ({n})"));
            let _ = writeln!(
                t,
                "{:<wide$} {:>10} {:>10} {:>9}  {}{missed}{note}",
                r.name,
                number(r.paper),
                number(Some(r.measured)),
                bar,
                r.unit
            );
        }
        t
    }

    /// The rows as bars, with the paper's numbers, or the figure's own drawing.
    pub fn svg(&self) -> String {
        self.drawing.clone().unwrap_or_else(|| svg::svg(self))
    }
}

/// Four significant digits.
fn number(n: f64) -> String {
    let digits = if n == 0.0 { 0 } else { (3 - n.abs().log10().floor() as i32).clamp(0, 4) as usize };
    format!("{n:.digits$}")
}

/// An experiment.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    pub id: &'static str,
    pub about: &'static str,
    run: fn(Options) -> Result<Outcome, ExperimentError>,
}

/// Result of an experiment's function.
struct Outcome {
    config: Value,
    rows: Vec<Row>,
    drawing: Option<String>,
}

impl Outcome {
    fn new(config: Value, rows: Vec<Row>) -> Outcome {
        Outcome { config, rows, drawing: None }
    }
}

/// Why there is no figure.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    #[error("no experiment is named {id:?}; there are {known}")]
    Unknown { id: String, known: String },
    #[error(transparent)]
    Rates(#[from] RatesError),
    #[error(transparent)]
    Cloud(#[from] crate::cloud::params::ParamsError),
    #[error(transparent)]
    Bench(#[from] crate::tenants::BenchError),
    #[error("{id} takes no recorded delays: only {PREDICT} does")]
    NoDelays { id: &'static str },
    #[error("{path}: {reason}")]
    Delays { path: String, reason: Box<str> },
    #[error("cell: {reason}")]
    Cell { reason: Box<str> },
    #[error(transparent)]
    Volume(#[from] rackweave_flash::blockmap::MapError),
}

/// The experiment that accepts other delays than the built-in ones.
const PREDICT: &str = "rb-predict";

/// All experiments.
pub const EXPERIMENTS: [Experiment; 35] = [
    Experiment {
        id: "df-fig2",
        about: "DiffForward figure 2 and §2.3: the unbalanced traffic of generated disks",
        run: cloud::imbalance,
    },
    Experiment {
        id: "df-fig12",
        about: "DiffForward figures 5, 12 and 13: evenness of the servers' traffic, by scheme",
        run: cloud::balance,
    },
    Experiment { id: "df-fig14", about: "DiffForward figures 5, 14 and 15: latency, by scheme", run: cloud::latency },
    Experiment {
        id: "df-fig16",
        about: "DiffForward figure 16: latency, by utilization of the links",
        run: cloud::utilization,
    },
    Experiment { id: "df-fig17", about: "DiffForward figure 17: size of segments", run: cloud::segments },
    Experiment {
        id: "df-fig18",
        about: "DiffForward figure 18: sensitivity of the detection of bursts",
        run: cloud::sensitivity,
    },
    Experiment { id: "df-fig19", about: "DiffForward figure 19: parts of latency", run: cloud::breakdown },
    Experiment {
        id: "df-fig20",
        about: "DiffForward figure 20: detection, index, logs, merging",
        run: cloud::overheads,
    },
    Experiment {
        id: "fb-fig1",
        about: "FlashBlox figure 1: four tenants with 1, 2, 2 and 3 of 8 channels",
        run: block::four_tenants,
    },
    Experiment {
        id: "fb-fig7",
        about: "FlashBlox figure 7: write amplification of two volumes, by isolation",
        run: block::amplification,
    },
    Experiment { id: "fb-fig8", about: "FlashBlox figures 8 and 9: two key-value stores on a drive", run: kv::two },
    Experiment { id: "fb-fig10", about: "FlashBlox figure 10: four key-value stores on a drive", run: kv::four },
    Experiment { id: "fb-fig11", about: "FlashBlox figure 11: web search beside MapReduce", run: block::search },
    Experiment {
        id: "fb-fig12",
        about: "FlashBlox figure 12: a key-value store while its channel is migrated",
        run: kv::migration,
    },
    Experiment {
        id: "fb-fig13",
        about: "FlashBlox figure 13: web search and MapReduce while their channels trade places",
        run: block::migration,
    },
    Experiment {
        id: "fb-fig14",
        about: "FlashBlox figure 14: life under channel and die killers",
        run: ageing::killers,
    },
    Experiment {
        id: "fb-fig15",
        about: "FlashBlox figure 15: wear imbalance of fourteen workloads, by scheme",
        run: ageing::imbalance,
    },
    Experiment {
        id: "fb-fig16",
        about: "FlashBlox figure 16: erases of each channel after three years",
        run: ageing::erases,
    },
    Experiment {
        id: "fb-table5",
        about: "FlashBlox table 5: life of SSDs with randomly drawn workloads",
        run: ageing::lifetimes,
    },
    Experiment {
        id: "rb-fig9",
        about: "RackBlox figure 9: P99.9 of reads and writes, by share of writes",
        run: rack::fig9,
    },
    Experiment {
        id: "rb-fig10",
        about: "RackBlox figure 10: P99 of reads and writes, by share of writes",
        run: rack::fig10,
    },
    Experiment { id: "rb-fig11", about: "RackBlox figure 11: mean latency, by share of writes", run: rack::fig11 },
    Experiment { id: "rb-fig12", about: "RackBlox figure 12: throughput, by share of writes", run: rack::fig12 },
    Experiment { id: "rb-fig13", about: "RackBlox figure 13: P99.9 of six workloads", run: rack::fig13 },
    Experiment { id: "rb-fig14", about: "RackBlox figure 14: throughput of six workloads", run: rack::fig14 },
    Experiment {
        id: "rb-fig15",
        about: "RackBlox figure 15: P99.9, the storage's part and all of it",
        run: rack::fig15,
    },
    Experiment { id: "rb-fig16", about: "RackBlox figure 16: distribution of latency", run: rack::fig16 },
    Experiment {
        id: "rb-fig17",
        about: "RackBlox figure 17: storage schedulers, plain and coordinated",
        run: schedulers::fig17,
    },
    Experiment {
        id: "rb-fig18",
        about: "RackBlox figure 18: network schedulers, storage scheduling plain and coordinated",
        run: network::fig18,
    },
    Experiment { id: "rb-fig19", about: "RackBlox figure 19: read latency, by device and network", run: rack::fig19 },
    Experiment {
        id: "rb-fig20",
        about: "RackBlox figure 20: gain, by device, network and share of writes",
        run: rack::fig20,
    },
    Experiment {
        id: "rb-fig21",
        about: "RackBlox figure 21: gain, by isolation of a drive's vSSDs",
        run: isolation::fig21,
    },
    Experiment {
        id: "rb-fig22",
        about: "RackBlox figure 22: wear of each server's SSDs after a year",
        run: rack_wear::servers,
    },
    Experiment {
        id: "rb-fig23",
        about: "RackBlox figure 23: wear of a rack's SSDs after one and five years",
        run: rack_wear::whole_rack,
    },
    Experiment {
        id: PREDICT, about: "RackBlox §3.4: how well network latency is predicted", run: predict::accuracies
    },
];

impl Experiment {
    /// # Errors
    /// No experiment has this name.
    pub fn named(id: &str) -> Result<Experiment, ExperimentError> {
        EXPERIMENTS
            .into_iter()
            .find(|e| e.id == id)
            .ok_or_else(|| ExperimentError::Unknown { id: id.into(), known: EXPERIMENTS.map(|e| e.id).join(", ") })
    }

    /// Runs it.
    ///
    /// # Errors
    /// Its inputs are invalid.
    pub fn run(&self, options: Options) -> Result<Figure, ExperimentError> {
        self.figure(options, || (self.run)(options))
    }
    /// Runs it with the recorded one-way delays of a file ([`read_delays`]).
    ///
    /// # Errors
    /// The experiment takes no delays, or the file has none.
    pub fn run_on(&self, options: Options, delays: &Path) -> Result<Figure, ExperimentError> {
        if self.id != PREDICT {
            return Err(ExperimentError::NoDelays { id: self.id });
        }
        let wrong = |e: DelayFileError| ExperimentError::Delays {
            path: delays.display().to_string(),
            reason: e.to_string().into(),
        };
        let delays_ns = read_delays(delays).map_err(wrong)?;
        let source = delays.file_name().unwrap_or_default().to_string_lossy();
        self.figure(options, || Ok(predict::accuracies_of(options, &delays_ns, &source)))
    }
    fn figure(
        &self,
        options: Options,
        run: impl FnOnce() -> Result<Outcome, ExperimentError>,
    ) -> Result<Figure, ExperimentError> {
        let began = process_cpu();
        let Outcome { config, rows, drawing } = run()?;
        let cpu_s = process_cpu().as_secs_f64() - began.as_secs_f64();
        Ok(Figure { experiment: self.id, about: self.about, seed: options.seed, config, cpu_s, rows, drawing })
    }
}

#[cfg(test)]
#[path = "experiment_tests.rs"]
mod tests;
