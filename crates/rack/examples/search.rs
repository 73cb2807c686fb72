//! Fault search over a range of seeds: `cargo run --release --example search -- FROM TO [--verbose] [--break RULE]
//! [--request N] [--kind KIND]`.
//! Prints every seed that fails and, over all, which situations occurred. `--break` breaks a rule on purpose and stops
//! at the first seed that notices; `--request` shows the way of the workload's N-th request.

use rackweave_rack::fault::{PlanKind, SimOptions, run_plan};
use rackweave_rack::sim::{Coverage, RackFaults};
use rackweave_replica::Faults;

fn broken(rule: &str) -> SimOptions {
    let (mut f, mut rack) = (Faults::default(), RackFaults::default());
    match rule {
        "lease" => f.skip_lease = true,
        "replay" => f.skip_replay = true,
        "dedup" => f.drop_dedup = true,
        "shadow" => f.serve_shadow = true,
        "fence" => f.ignore_fence = true,
        "tombstone" => f.lose_tombstone = true,
        "recovery" => f.skip_recovery = true,
        "merge" => f.merge_blindly = true,
        "credit" => f.forget_credit = true,
        "flush" => f.flush_early = true,
        "silence" => f.hide_recovery = true,
        "copies" => f.acknowledge_alone = true,
        "erase" => rack.erase_early = true,
        "sequence" => rack.ignore_sequence = true,
        "far-sequence" => rack.ignore_far_sequence = true,
        "telling" => rack.tell_once = true,
        "removal" => rack.remove_early = true,
        "drift" => rack.drift_beyond = true,
        "alone" => rack.recover_alone = true,
        _ => panic!(
            "--break lease|replay|dedup|shadow|fence|tombstone|recovery|merge|credit|flush|silence|copies|erase|sequence|far-sequence|\
             telling|removal|drift|alone, not {rule:?}"
        ),
    }
    SimOptions { faults: f, rack_faults: rack, ..SimOptions::default() }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: u64| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (from, to) = (number(0, 0), number(1, 30));
    let verbose = args.iter().any(|a| a == "--verbose");
    let rule = args.iter().position(|a| a == "--break").and_then(|i| args.get(i + 1));
    let request = args.iter().position(|a| a == "--request").and_then(|i| args.get(i + 1));
    let trace_request = request.and_then(|r| r.parse().ok());
    let options = SimOptions { trace_request, ..rule.map_or(SimOptions::default(), |r| broken(r)) };
    let kind = args.iter().position(|a| a == "--kind").and_then(|i| args.get(i + 1));
    let kind: PlanKind = kind.map_or(Ok(PlanKind::default()), |k| k.parse()).unwrap_or_else(|e| panic!("--kind: {e}"));
    let mut coverage = Coverage::default();
    let mut failed = 0;
    for seed in from..to {
        let report = run_plan(&kind.draw(seed), &options);
        coverage.merge(&report.coverage);
        failed += u64::from(!report.passed());
        if verbose || !report.passed() {
            println!("{report}\n");
        }
        if failed > 0 && rule.is_some() {
            break;
        }
    }
    let seen: Vec<String> = coverage.seen().map(|(p, n)| format!("{} {n}", p.name())).collect();
    println!("{} seeds, {failed} failed; coverage {}", to - from, seen.join(", "));
    std::process::exit(i32::from(failed > 0));
}
