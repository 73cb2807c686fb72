//! Commands that run a simulated rack, or a model: no data directory, no sockets.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rackweave_config::{BlockingConfig, Written};
use rackweave_device::private;
use rackweave_eval::experiment::{EXPERIMENTS, Experiment, Figure, Options};
use rackweave_rack::capture::Capture;
use rackweave_replay::svg::svg;
use rackweave_replay::{Policy, ReplayConfig};
use rackweave_search::fault::{SimOptions, run_plan, shrink};
use rackweave_sim::Network;

use crate::Failure;
use crate::args::{BlockingUnit, Eval, Replay, Sim};

pub fn replay(a: &Replay) -> Result<ExitCode, Failure> {
    let mut cfg = ReplayConfig::new(&a.trace);
    cfg.policies = a.policy.iter().map(|p| p.parse::<Policy>()).collect::<Result<_, _>>()?;
    cfg.format = a.format.as_deref().map(str::parse).transpose()?;
    cfg.seed = a.seed;
    cfg.speed = a.speed;
    cfg.rate = a.rate;
    cfg.requests = a.requests;
    cfg.ssd_bytes = a.ssd_size.map(|s| s.0);
    if let Some(n) = &a.network {
        cfg.network = Network::parse(n)?;
    }
    if let Some(path) = &a.config {
        let (rack, written) = Written::parse(&read(path)?)?;
        (cfg.rack, cfg.written) = (rack, Some(written));
    }
    if let Some(n) = a.servers {
        cfg.rack.servers = n;
    }
    if let Some(unit) = a.blocking_unit {
        cfg.rack.ssd.blocking_unit = match unit {
            BlockingUnit::Page => BlockingConfig::Page,
            BlockingUnit::Block => BlockingConfig::Block,
        };
        // With whole blocks no read interrupts a collection.
        cfg.rack.gc.yields &= cfg.rack.ssd.blocking_unit == BlockingConfig::Page;
    }
    if let Some(victims) = a.gc_victims {
        cfg.rack.gc.victims = victims.into();
    }
    if let Some(u) = a.utilization {
        cfg.utilization = u;
    }
    cfg.pcap.clone_from(&a.pcap);
    writable([&a.json, &a.svg])?;
    let report = rackweave_replay::replay(&cfg)?;
    writeln!(std::io::stdout().lock(), "{}", report.table())?;
    if let Some(path) = &a.json {
        write(path, &serde_json::to_string_pretty(&report.json())?)?;
    }
    if let Some(path) = &a.svg {
        write(path, &svg(&report))?;
    }
    // A void run has printed why; scripts see it by the status.
    Ok(if report.void().is_some() { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

pub fn eval(a: &Eval) -> Result<ExitCode, Failure> {
    let mut out = std::io::stdout().lock();
    let all: Vec<Experiment> = EXPERIMENTS.into_iter().chain(rackweave_bench::EXPERIMENTS).collect();
    if a.all {
        return eval_all(a, &all, &mut out);
    }
    let Some(id) = &a.experiment else {
        for e in all {
            let needs = e.needs.map_or_else(String::new, |needs| format!(" (live: {needs})"));
            writeln!(out, "{:<12} {}{needs}", e.id, e.about)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    writable([&a.json, &a.svg])?;
    let (experiment, options) =
        (Experiment::named(&all, id)?, Options { quick: a.quick, seed: a.seed, seeds: a.seeds });
    let figure = match &a.trace {
        None => experiment.run(options)?,
        Some(path) => experiment.run_on(options, path)?,
    };
    print(&figure, &mut out, a.json.as_deref(), a.svg.as_deref())?;
    // The table has named the rows that missed their bars; scripts see it by the status.
    Ok(if figure.missed().next().is_some() { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn print(figure: &Figure, out: &mut impl Write, json: Option<&Path>, svg: Option<&Path>) -> Result<(), Failure> {
    writeln!(out, "{}", figure.table().trim_end())?;
    if let Some(path) = json {
        write(path, &serde_json::to_string_pretty(&figure.json())?)?;
    }
    if let Some(path) = svg {
        write(path, &figure.svg())?;
    }
    Ok(())
}

/// Every experiment whose figure does not depend on the machine, and a summary.
fn eval_all(a: &Eval, all: &[Experiment], out: &mut impl Write) -> Result<ExitCode, Failure> {
    for dir in [&a.json, &a.svg].into_iter().flatten() {
        private::directory(dir).map_err(named(dir))?;
    }
    let (mut rows, mut missed, mut cpu_s) = (0, Vec::new(), 0.0);
    let (live, virtual_time): (Vec<Experiment>, Vec<_>) = all.iter().partition(|e| e.needs.is_some());
    for e in &virtual_time {
        let figure = e.run(Options { quick: a.quick, seed: a.seed, seeds: None })?;
        let file = |dir: &Option<PathBuf>, kind| dir.as_ref().map(|d| d.join(format!("{}.{kind}", e.id)));
        print(&figure, out, file(&a.json, "json").as_deref(), file(&a.svg, "svg").as_deref())?;
        writeln!(out)?;
        cpu_s += figure.cpu_s;
        rows += figure.rows.iter().filter(|r| r.bar.is_some()).count();
        missed.extend(figure.missed().map(|r| format!("{}: {}", e.id, r.name)));
    }
    for e in &live {
        writeln!(out, "SKIP {}: live, by its name only", e.id)?;
    }
    missed.iter().try_for_each(|m| writeln!(out, "MISSED {m}"))?;
    let (n, held) = (virtual_time.len(), rows - missed.len());
    writeln!(out, "{n} experiments, {cpu_s:.0} s of CPU: {held} of {rows} rows with a bar hold it")?;
    Ok(if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
struct FileError {
    path: String,
    error: std::io::Error,
}

fn named(path: &Path) -> impl FnOnce(std::io::Error) -> FileError {
    let path = path.display().to_string();
    |error| FileError { path, error }
}

fn read(path: &Path) -> Result<String, FileError> {
    std::fs::read_to_string(path).map_err(named(path))
}

/// Refuses files that cannot be written before a run of minutes, not after it.
fn writable(files: [&Option<PathBuf>; 2]) -> Result<(), FileError> {
    for path in files.into_iter().flatten() {
        private::report_file(path).map_err(named(path))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), FileError> {
    private::report(path, format!("{}\n", text.trim_end()).as_bytes()).map_err(named(path))
}

pub fn sim(a: &Sim) -> Result<ExitCode, Failure> {
    if let Some(path) = &a.pcap {
        // An error of ours, not of the run.
        Capture::create(path)?;
    }
    let options = SimOptions { trace_request: a.trace_request, pcap: a.pcap.clone() };
    let plan = match (&a.plan, a.seed) {
        (Some(path), _) => {
            let text = read(path)?;
            serde_json::from_str(&text).map_err(|error| PlanError { path: path.display().to_string(), error })?
        }
        (None, seed) => {
            let plan = a.kind.draw(seed.unwrap_or_default());
            if a.transport { plan.over_transport() } else { plan }
        }
    };
    let mut report = run_plan(&plan, &options);
    if a.shrink
        && !report.passed()
        && let Some(smaller) = shrink(&plan, &options)
    {
        report = run_plan(&smaller, &options);
    }
    let mut out = std::io::stdout().lock();
    if a.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        writeln!(out, "{report}")?;
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

#[derive(Debug, thiserror::Error)]
#[error("{path}: not a plan of a fault search: {error}")]
struct PlanError {
    path: String,
    error: serde_json::Error,
}
