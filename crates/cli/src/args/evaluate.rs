//! Options of replays, figures and the fault search.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use rackweave_config::Size;
use rackweave_search::fault::PlanKind;

use super::{BlockingUnit, GcVictims, size};

#[derive(Debug, Args)]
pub struct Replay {
    /// The trace; docs/replay.md lists the formats
    pub trace: PathBuf,
    /// Policies to compare, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "baseline,rackblox,rackweave,ideal")]
    pub policy: Vec<String>,
    /// Seed of the run
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Speed-up of the trace's times
    #[arg(long, value_name = "F", default_value_t = 1.0)]
    pub speed: f64,
    /// Poisson arrivals at this rate (requests per second) instead of the trace's times
    #[arg(long, value_name = "R", conflicts_with = "speed")]
    pub rate: Option<f64>,
    /// Requests to measure; the trace is looped as needed
    #[arg(long, value_name = "N", default_value_t = rackweave_replay::REQUESTS_DEFAULT)]
    pub requests: u64,
    /// What a read waits for while its die collects [default: page]
    #[arg(long, value_enum)]
    pub blocking_unit: Option<BlockingUnit>,
    /// Victims of garbage collection [default: greedy]
    #[arg(long, value_enum)]
    pub gc_victims: Option<GcVictims>,
    /// Format of the trace [default: detected]
    #[arg(long)]
    pub format: Option<String>,
    /// Servers of the simulated rack [default: 4]
    #[arg(long, value_name = "N")]
    pub servers: Option<u32>,
    /// One-way link delays: fast, medium, slow, constant:DELAY, exponential:LEAST,MEAN, or a FILE [default: fast]
    #[arg(long, value_name = "NETWORK")]
    pub network: Option<String>,
    /// Size of each SSD [default: by the trace's footprint]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub ssd_size: Option<Size>,
    /// Share of the rack's capacity that the volume fills
    #[arg(long, value_name = "PART")]
    pub utilization: Option<f64>,
    /// Configuration of the simulated rack; refused if a policy or option contradicts a key
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Plot the latency distributions
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Capture the packets of the measured part, of a single policy
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["experiment", "all", "list"]))]
pub struct Eval {
    /// Experiment, by its name in --list
    pub experiment: Option<String>,
    /// Every experiment that runs in virtual time, one after another
    #[arg(long, conflicts_with = "trace")]
    pub all: bool,
    /// List the experiments
    #[arg(long, conflicts_with_all = ["quick", "seed", "seeds", "trace", "json", "svg"])]
    pub list: bool,
    /// Short form: under a minute, same bars
    #[arg(long)]
    pub quick: bool,
    /// Seed of the run
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Seeds from --seed on: each point is the median over them (rb-fig9 to rb-fig17, rb-fig19 to rb-fig21)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100), conflicts_with = "all")]
    pub seeds: Option<u64>,
    /// Recorded one-way delays for rb-predict: whole µs, one per line, plain or zstd
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Write the figure as JSON; with --all a directory, for EXPERIMENT.json each
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the figure as SVG; with --all a directory, for EXPERIMENT.svg each
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["seed", "plan"]))]
pub struct Sim {
    /// Seed of rack, workload and faults
    #[arg(long)]
    pub seed: Option<u64>,
    /// Kind of plan: one-rack, two-racks, moves, groups, or one situation of docs/simulation.md
    #[arg(long, conflicts_with = "plan", default_value_t)]
    pub kind: PlanKind,
    /// Run this plan (JSON) instead: the `plan` of a report
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Run the plan with the transport between nodes
    #[arg(long, conflicts_with = "plan")]
    pub transport: bool,
    /// If a check fails, reduce the faults while it still fails, and report that run
    #[arg(long)]
    pub shrink: bool,
    /// Print the path of the workload's N-th request through all nodes
    #[arg(long, value_name = "N")]
    pub trace_request: Option<u64>,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
    /// Capture the run's packets into this file
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
}
