//! How many requests of a replay are simulated in a CPU second, through the whole rack path, set-up excluded:
//!
//! ```text
//! cargo run --release -p rackweave-replay --example replay_speed [TRACE] [REQUESTS] [POLICIES] [SPEED]
//! ```
//!
//! By default the excerpt of TPC-C beside this crate, 1,000,000 requests, `rackblox`.

use std::process::ExitCode;

use rackweave_replay::{Policy, ReplayConfig, ReplayError, replay};

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Rack requests a CPU second that the simulator is held to.
const BAR: u32 = 200_000;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/data/tpcc-head.trace");
    let mut cfg = ReplayConfig::new(args.next().unwrap_or_else(|| own.into()));
    let requests = args.next().map(|n| n.parse());
    let policies = args.next().unwrap_or_else(|| "rackblox".into());
    let speed_factor = args.next().map(|n| n.parse());
    let policies: Result<Vec<Policy>, _> = policies.split(',').map(str::parse).collect();
    match (requests.transpose(), policies, speed_factor.transpose()) {
        (Ok(n), Ok(policies), Ok(factor)) => {
            cfg.requests = n.unwrap_or(cfg.requests);
            cfg.policies = policies;
            cfg.speed = factor.unwrap_or(cfg.speed);
        }
        (Err(e), _, _) => return refuse(&format!("requests: {e}")),
        (_, Err(e), _) => return refuse(&e.to_string()),
        (_, _, Err(e)) => return refuse(&format!("speed: {e}")),
    }
    match speed(&cfg) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => refuse(&e.to_string()),
    }
}

fn speed(cfg: &ReplayConfig) -> Result<(), ReplayError> {
    let report = replay(cfg)?;
    print!("{}", report.table());
    for p in &report.policies {
        println!("{}: {:.1} events a request, {:?}", p.policy, p.events as f64 / p.requests() as f64, p.situations);
        println!("{}: {:.0} requests per CPU second (bar {BAR})", p.policy, p.requests_per_cpu_s());
    }
    Ok(())
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("replay_speed: {why}");
    ExitCode::from(2)
}
