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
mod nice;
mod nice_load;
mod predict;
mod rack;
mod rack_wear;
mod schedulers;
mod svg;
mod transport;

use std::fmt::Write as _;
use std::path::Path;

use rackweave_sim::net::{DelayFileError, read_delays};
use serde_json::{Value, json};

use crate::ageing::RatesError;
use rackweave_replay::cpu::process_cpu;

/// How an experiment is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The short form takes under a minute and has the same bars.
    pub quick: bool,
    pub seed: u64,
    /// Seeds from `seed` on, of which each point's median counts; the experiment's own number without it.
    pub seeds: Option<u64>,
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
    /// [`Options::seeds`].
    pub seeds: Option<u64>,
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

    /// `{experiment, seed, seeds, config, cpu_s, rows: [{name, unit, paper, measured, better, bar, held, note}]}`.
    pub fn json(&self) -> Value {
        let row = |r: &Row| {
            json!({
                "name": r.name, "unit": r.unit, "paper": r.paper, "measured": r.measured, "better": r.better.name(),
                "bar": r.bar, "held": r.bar.map(|_| !r.missed()), "note": r.note,
            })
        };
        json!({
            "experiment": self.experiment, "seed": self.seed, "seeds": self.seeds, "config": self.config, "cpu_s": self.cpu_s,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }

    /// The table for a terminal.
    pub fn table(&self) -> String {
        let mut t = String::new();
        let wide = self.rows.iter().map(|r| r.name.chars().count()).max().unwrap_or(0).max(4);
        let seeds = match self.seeds {
            Some(n @ 2..) => format!("seeds {} to {}, medians", self.seed, self.seed.wrapping_add(n - 1)),
            _ => format!("seed {}", self.seed),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(t, "{}: {}; {seeds}, {:.1} s of CPU", self.experiment, self.about, self.cpu_s);
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
    /// Conditions of a live experiment. Others run in virtual time, and the same seed gives the same figure.
    pub needs: Option<&'static str>,
    /// It takes [`Options::seeds`].
    several: bool,
    run: fn(Options) -> Result<Outcome, ExperimentError>,
}

/// Result of an experiment's function.
pub struct Outcome {
    config: Value,
    rows: Vec<Row>,
    drawing: Option<String>,
}

impl Outcome {
    pub fn new(config: Value, rows: Vec<Row>) -> Outcome {
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
    #[error("{id} runs with one seed: several are for {known}")]
    OneSeed { id: &'static str, known: String },
    #[error("{id} takes no recorded delays: only {PREDICT} does")]
    NoDelays { id: &'static str },
    #[error("{path}: {reason}")]
    Delays { path: String, reason: Box<str> },
    /// A live experiment lacks something that it needs, or one of its processes failed.
    #[error("{reason}")]
    Live { reason: Box<str> },
    #[error("cell: {reason}")]
    Cell { reason: Box<str> },
    #[error(transparent)]
    Volume(#[from] rackweave_flash::blockmap::MapError),
}

/// The experiment that accepts other delays than the built-in ones.
const PREDICT: &str = "rb-predict";

/// The experiments in virtual time. Live ones are in `rackweave-bench`.
pub const EXPERIMENTS: [Experiment; 54] = [
    Experiment::new(
        "df-fig2",
        "DiffForward figure 2 and §2.3: the unbalanced traffic of generated disks",
        cloud::imbalance,
    ),
    Experiment::new(
        "df-fig12",
        "DiffForward figures 5, 12 and 13: evenness of the servers' traffic, by scheme",
        cloud::balance,
    ),
    Experiment::new("df-fig14", "DiffForward figures 5, 14 and 15: latency, by scheme", cloud::latency),
    Experiment::new("df-fig16", "DiffForward figure 16: latency, by utilization of the links", cloud::utilization),
    Experiment::new("df-fig17", "DiffForward figure 17: size of segments", cloud::segments),
    Experiment::new("df-fig18", "DiffForward figure 18: sensitivity of the detection of bursts", cloud::sensitivity),
    Experiment::new("df-fig19", "DiffForward figure 19: parts of latency", cloud::breakdown),
    Experiment::new("df-fig20", "DiffForward figure 20: detection, index, logs, merging", cloud::overheads),
    Experiment::new(
        "fb-fig1",
        "FlashBlox figure 1: four tenants with 1, 2, 2 and 3 of 8 channels",
        block::four_tenants,
    ),
    Experiment::new(
        "fb-fig7",
        "FlashBlox figure 7: write amplification of two volumes, by isolation",
        block::amplification,
    ),
    Experiment::new("fb-fig8", "FlashBlox figures 8 and 9: two key-value stores on a drive", kv::two),
    Experiment::new("fb-fig10", "FlashBlox figure 10: four key-value stores on a drive", kv::four),
    Experiment::new("fb-fig11", "FlashBlox figure 11: web search beside MapReduce", block::search),
    Experiment::new("fb-fig12", "FlashBlox figure 12: a key-value store while its channel is migrated", kv::migration),
    Experiment::new(
        "fb-fig13",
        "FlashBlox figure 13: web search and MapReduce while their channels trade places",
        block::migration,
    ),
    Experiment::new("fb-fig14", "FlashBlox figure 14: life under channel and die killers", ageing::killers),
    Experiment::new(
        "fb-fig15",
        "FlashBlox figure 15: wear imbalance of fourteen workloads, by scheme",
        ageing::imbalance,
    ),
    Experiment::new("fb-fig16", "FlashBlox figure 16: erases of each channel after three years", ageing::erases),
    Experiment::new("fb-table5", "FlashBlox table 5: life of SSDs with randomly drawn workloads", ageing::lifetimes),
    Experiment::new("ni-fig6", "NICE figure 6: gets, by size and routing", nice::gets),
    Experiment::new("ni-fig7", "NICE figure 7: puts to three replicas, by size and routing", nice::puts),
    Experiment::new("ni-fig8", "NICE figure 8: bytes on all links for a put", nice::link_bytes),
    Experiment::new("ni-fig9", "NICE figure 9: bytes at the primary, of those at a secondary", nice::evenness),
    Experiment::new("ni-fig10", "NICE figure 10: puts of 4 B, by number of replicas", nice::small_by_replicas),
    Experiment::new("ni-fig11", "NICE figure 11: puts of 1 MiB, by number of replicas", nice::large_by_replicas),
    Experiment::new(
        "ni-fig12",
        "NICE figure 12: a hot object of 4 B, by number of replicas and clients",
        nice_load::hot_small,
    ),
    Experiment::new(
        "ni-fig13",
        "NICE figure 13: a hot object of 1 MiB, by number of replicas and clients",
        nice_load::hot_large,
    ),
    Experiment::new("ni-fig14", "NICE figure 14: a secondary is lost and comes back", nice_load::failure),
    Experiment::new("ni-fig15", "NICE figure 15: YCSB C and F", nice_load::ycsb),
    Experiment::new("ni-fig16", "NICE figure 16: latency under skewed clients", nice_load::skewed_clients),
    Experiment::new("ni-fig17", "NICE figure 17: latency with a slow replica", nice_load::slow_replica),
    Experiment::new("ni-quorum", "NICE §5: puts that return when any k replicas have them", nice_load::quorum),
    Experiment::new(
        "pn-fig14d",
        "C3 figure 14 d: I/Os longer than a second, with black holes on one of two equal-cost paths",
        transport::black_holes,
    ),
    Experiment::new(
        "pn-fig16",
        "C3 figure 16: shares of hosts of unlike speed (38 Gb/s each, where hardware gave 41 and 31)",
        transport::unlike_hosts,
    ),
    Experiment::new(
        "pn-fig17",
        "C3 figure 17: shares across pods (steady, where hardware gave 45 and 20 Gb/s)",
        transport::across_pods,
    ),
    Experiment::new("pn-fig18", "C3 figure 18: online reads beside offline writes", transport::classes),
    Experiment::new(
        "pn-loss",
        "C3 §3.2: goodput under random loss, selective retransmission and go-back-N",
        transport::losses,
    ),
    Experiment::new(
        "pn-multicast",
        "NICE figures 7 and 8: a put to three replicas, once to their group or to each",
        transport::multicast,
    ),
    Experiment::new("rb-fig9", "RackBlox figure 9: P99.9 of reads and writes, by share of writes", rack::fig9)
        .several(),
    Experiment::new("rb-fig10", "RackBlox figure 10: P99 of reads and writes, by share of writes", rack::fig10)
        .several(),
    Experiment::new("rb-fig11", "RackBlox figure 11: mean latency, by share of writes", rack::fig11).several(),
    Experiment::new("rb-fig12", "RackBlox figure 12: throughput, by share of writes", rack::fig12).several(),
    Experiment::new("rb-fig13", "RackBlox figure 13: P99.9 of six workloads", rack::fig13).several(),
    Experiment::new("rb-fig14", "RackBlox figure 14: throughput of six workloads", rack::fig14).several(),
    Experiment::new("rb-fig15", "RackBlox figure 15: P99.9, the storage's part and all of it", rack::fig15).several(),
    Experiment::new("rb-fig16", "RackBlox figure 16: distribution of latency", rack::fig16).several(),
    Experiment::new("rb-fig17", "RackBlox figure 17: storage schedulers, plain and coordinated", schedulers::fig17)
        .several(),
    Experiment::new(
        "rb-fig18",
        "RackBlox figure 18: network schedulers, storage scheduling plain and coordinated",
        network::fig18,
    ),
    Experiment::new("rb-fig19", "RackBlox figure 19: read latency, by device and network", rack::fig19).several(),
    Experiment::new("rb-fig20", "RackBlox figure 20: gain, by device, network and share of writes", rack::fig20)
        .several(),
    Experiment::new("rb-fig21", "RackBlox figure 21: gain, by isolation of a drive's vSSDs", isolation::fig21)
        .several(),
    Experiment::new("rb-fig22", "RackBlox figure 22: wear of each server's SSDs after a year", rack_wear::servers),
    Experiment::new(
        "rb-fig23",
        "RackBlox figure 23: wear of a rack's SSDs after one and five years",
        rack_wear::whole_rack,
    ),
    Experiment::new(PREDICT, "RackBlox §3.4: how well network latency is predicted", predict::accuracies),
];

impl Experiment {
    pub const fn new(
        id: &'static str,
        about: &'static str,
        run: fn(Options) -> Result<Outcome, ExperimentError>,
    ) -> Experiment {
        Experiment { id, about, needs: None, several: false, run }
    }
    /// Its points may be medians over several seeds.
    const fn several(self) -> Experiment {
        Experiment { several: true, ..self }
    }
    /// A live experiment: its figure depends on the machine.
    pub const fn live(self, needs: &'static str) -> Experiment {
        Experiment { needs: Some(needs), ..self }
    }

    /// # Errors
    /// No experiment of `all` has this name.
    pub fn named(all: &[Experiment], id: &str) -> Result<Experiment, ExperimentError> {
        let known = || all.iter().map(|e| e.id).collect::<Vec<_>>().join(", ");
        let found = all.iter().find(|e| e.id == id);
        found.copied().ok_or_else(|| ExperimentError::Unknown { id: id.into(), known: known() })
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
        if options.seeds.is_some() && !self.several {
            let known: Vec<&str> = EXPERIMENTS.iter().filter(|e| e.several).map(|e| e.id).collect();
            return Err(ExperimentError::OneSeed { id: self.id, known: known.join(", ") });
        }
        let began = process_cpu();
        let Outcome { config, rows, drawing } = run()?;
        let cpu_s = process_cpu().as_secs_f64() - began.as_secs_f64();
        Ok(Figure {
            experiment: self.id,
            about: self.about,
            seed: options.seed,
            seeds: options.seeds,
            config,
            cpu_s,
            rows,
            drawing,
        })
    }
}

#[cfg(test)]
#[path = "experiment_tests.rs"]
mod tests;
