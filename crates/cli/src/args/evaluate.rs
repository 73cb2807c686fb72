//! Options of replays, figures and the fault search.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use rackweave_config::Size;
use rackweave_search::fault::PlanKind;

use super::{BlockingUnit, GcVictims, size};

#[derive(Debug, Args)]
pub struct Replay {
    /// The trace (docs/replay.md lists the formats)
    pub trace: PathBuf,
    /// Policies to compare, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "baseline,rackblox,rackweave,ideal")]
    pub policy: Vec<String>,
    /// Names the run: the same seed gives the same numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The trace's time runs this many times as fast
    #[arg(long, value_name = "F", default_value_t = 1.0)]
    pub speed: f64,
    /// Poisson arrivals, requests a second, instead of the trace's times
    #[arg(long, value_name = "R", conflicts_with = "speed")]
    pub rate: Option<f64>,
    /// Requests to measure; the trace is looped until there are as many
    #[arg(long, value_name = "N", default_value_t = rackweave_eval::replay::REQUESTS_DEFAULT)]
    pub requests: u64,
    /// What a collection keeps reads of its die waiting for [default: page]
    #[arg(long, value_enum)]
    pub blocking_unit: Option<BlockingUnit>,
    /// Which blocks garbage collection takes [default: greedy]
    #[arg(long, value_enum)]
    pub gc_victims: Option<GcVictims>,
    /// Format of the trace [default: found out]
    #[arg(long)]
    pub format: Option<String>,
    /// Servers of the simulated rack [default: 4]
    #[arg(long, value_name = "N")]
    pub servers: Option<u32>,
    /// Delays of the simulated links: fast, medium, slow, constant:DELAY, exponential:LEAST,MEAN, or a FILE of them
    /// [default: fast]
    #[arg(long, value_name = "NETWORK")]
    pub network: Option<String>,
    /// Size of each device [default: by the trace's footprint]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub ssd_size: Option<Size>,
    /// Part of the rack's room that the volume fills
    #[arg(long, value_name = "PART")]
    pub utilization: Option<f64>,
    /// Configuration of the simulated rack (TOML); refused if policies or options set one of its keys to something else
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Plot how rare each latency is
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write the packets of the measured part as a capture; of one policy
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["experiment", "list"]))]
pub struct Eval {
    /// The experiment, as --list names it
    pub experiment: Option<String>,
    /// Print all experiments
    #[arg(long, conflicts_with_all = ["quick", "seed", "trace", "json", "svg"])]
    pub list: bool,
    /// The short form: under a minute, held to the same bars
    #[arg(long)]
    pub quick: bool,
    /// Names the run: the same seed gives the same numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Recorded one-way delays, for rb-predict: whole microseconds, one a line, plain or zstd-compressed
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Write the numbers as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw them as bars
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["seed", "plan"]))]
pub struct Sim {
    /// Draws the rack, its workload and its faults
    #[arg(long)]
    pub seed: Option<u64>,
    /// Kind of rack to draw: one-rack, two-racks, moves, groups, or a plan of one situation: half-crashes, few-blocks,
    /// severed, set-cuts, single-copies, chosen-replica, severed-racks, left-alone, noisy-racks, stand-still
    #[arg(long, conflicts_with = "plan", default_value_t)]
    pub kind: PlanKind,
    /// Run this plan instead: the `plan` of a report, perhaps edited (JSON)
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// If a check fails, leave out faults as long as it still does, and report that run
    #[arg(long)]
    pub shrink: bool,
    /// Print the way of the workload's n-th request through all nodes
    #[arg(long, value_name = "N")]
    pub trace_request: Option<u64>,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
    /// Write its packets as a capture
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
}
