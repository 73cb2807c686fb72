//! Cells of RackBlox's figures by hand, to look at one or to tune a policy:
//!
//! ```text
//! cargo run --release -p rackweave-replay --example rack_cell -- [policies=vdc,software,rackblox,ideal] [load=ycsb|tpc-h|seats|auctionmark|tpc-c|twitter] [writes=0.5]
//!     [utilization=0.5] [reads=200000] [blocking=page|block] [network=fast] [profile=p-ssd] [ssd=2G] [channels=2] [seed=1]
//!     [sched=fifo|deadline|kyber] [coordinated=true|false] [reads_per_die=2]
//!     [far_reads=true|false] [between_us=10]
//!     [ports=tb|fq|priority] [servers=4] [clients=16]
//!     [wear_in=2] [warm_up=REQUESTS] [cache_slots=96] [write_through=true|false]
//!     [host_program_suspend=true|false] [suspends=true|false] [collecting_reads=8] [erasing_reads=8]
//! ```

use std::process::ExitCode;

use rackweave_config::{BlockingConfig, SchedConfigKind, SchedSection, SchedulingKind, Size};
use rackweave_core::Span;
use rackweave_replay::rack::{Cell, CellReport, Load, Ports, Scheme, run_all, void};
use rackweave_sim::Network;

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("rack_cell: {e}");
            ExitCode::from(2)
        }
    }
}

fn blocking(value: &str) -> Result<BlockingConfig, String> {
    match value {
        "page" => Ok(BlockingConfig::Page),
        "block" => Ok(BlockingConfig::Block),
        _ => Err(format!("{value:?} is neither page nor block")),
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut policies = "vdc,software,rackblox,ideal".to_string();
    let (mut cell, mut reads) = (Cell::new(Scheme::VDC, Load::ycsb(0.5)), 200_000);
    let mut warm_up: Option<u64> = None;
    for a in std::env::args().skip(1) {
        let (key, value) = a.split_once('=').ok_or_else(|| format!("{a:?} is not key=value"))?;
        match key {
            "policies" => policies = value.into(),
            "writes" => cell.load.writes = value.parse()?,
            "load" => {
                let known = || Load::SIX.map(|l| l.name).join(", ");
                let found = Load::SIX.into_iter().find(|l| l.name.eq_ignore_ascii_case(value));
                cell.load = found.ok_or_else(|| format!("no load is named {value:?}; there are {}", known()))?;
            }
            "utilization" => cell.utilization = value.parse()?,
            "reads" => reads = value.parse()?,
            "seed" => cell.seed = value.parse()?,
            "cache_slots" => cell.cache_slots = Some(value.parse()?),
            "suspends" => cell.suspends = value.parse()?,
            "host_program_suspend" => cell.host_program_suspend = value.parse()?,
            "write_through" => cell.write_through = value.parse()?,
            "wear_in" => cell.wear_in = value.parse()?,
            "warm_up" => warm_up = Some(value.parse()?),
            "network" => cell.network = Network::parse(value)?,
            "blocking" => cell.blocking = blocking(value)?,
            "sched" | "coordinated" | "reads_per_die" => {
                let sched = cell.sched.get_or_insert_with(SchedSection::default);
                match key {
                    "sched" => {
                        sched.kind = match value {
                            "fifo" => SchedConfigKind::Fifo,
                            "deadline" => SchedConfigKind::Deadline,
                            "kyber" => SchedConfigKind::Kyber,
                            _ => return Err(format!("{value:?} is neither fifo, deadline nor kyber").into()),
                        };
                    }
                    "coordinated" => sched.coordinated = value.parse()?,
                    _ => sched.reads_per_die = value.parse()?,
                }
            }
            "far_reads" => cell.far_reads = Some(value.parse()?),
            "between_us" => cell.network.between_racks = Span::from_micros(value.parse()?),
            "clients" => cell.clients = value.parse()?,
            "servers" => cell.servers = value.parse()?,
            "ports" => {
                let kind = match value {
                    "tb" => SchedulingKind::Tb,
                    "fq" => SchedulingKind::Fq,
                    "priority" => SchedulingKind::Priority,
                    _ => return Err(format!("{value:?} is neither tb, fq nor priority").into()),
                };
                cell.ports = Some(Ports { scheduling: kind, busy: 0.7, bursts: kind == SchedulingKind::Priority });
            }
            "channels" => cell.channels = value.parse()?,
            "ssd" => cell.ssd_bytes = Size::parse(value)?.0,
            "collecting_reads" => cell.weights.collecting = Some(value.parse()?),
            "erasing_reads" => cell.weights.erasing = value.parse()?,
            "profile" => cell.profile = value.into(),
            _ => return Err(format!("no setting is named {key:?}").into()),
        }
    }
    let policies: Vec<Scheme> = policies.split(',').map(Scheme::named).collect::<Result<_, _>>()?;
    let mut cells: Vec<Cell> =
        policies.into_iter().map(|policy| Cell { policy, ..cell.clone() }.reads(reads)).collect();
    cells.iter_mut().for_each(|c| c.warm_up = warm_up.unwrap_or(c.warm_up));
    print(&run_all(&cells)?);
    Ok(())
}

fn print(reports: &[CellReport]) {
    println!(
        "{:<10} {:<5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10}",
        "policy", "op", "count", "mean µs", "p50", "p99", "p99.9", "max"
    );
    for c in reports {
        let Some(r) = &c.result else {
            println!("{:<10} {}", c.policy, c.overloaded.as_deref().unwrap_or_default());
            continue;
        };
        for (op, l) in [("read", r.read.summary()), ("write", r.write.summary())] {
            println!(
                "{:<10} {op:<5} {:>9} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>10.1}",
                c.policy, l.count, l.mean_us, l.p50_us, l.p99_us, l.p999_us, l.max_us
            );
        }
        println!(
            "{:<10} {:.0}/s offered, {:.0}/s; dies {:.3} busy, busiest {:.3}, bus {:.3}; {} erases, WAF {:.3}, {} redirects, \
             {} episodes; {:.2} s of {:.1} CPU s",
            "",
            c.rate,
            c.iops(),
            r.busy.dies_mean,
            r.busy.die_max,
            r.busy.bus_max,
            r.erases,
            r.waf,
            r.redirects,
            r.gc_runs,
            r.took.as_secs_f64(),
            r.cpu.as_secs_f64()
        );
        println!("{:<10} {:?}", "", r.situations);
    }
    if let Some(why) = void(reports.iter(), 0) {
        println!("VOID: {why}");
    }
}
