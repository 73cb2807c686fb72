//! Fault search over a range of seeds: `cargo run --release --example search -- FROM TO [--verbose]`.
//! Prints every seed that fails and, over all, which situations occurred.

use rackweave_rack::fault::{SimOptions, run_seed};
use rackweave_rack::sim::Coverage;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: u64| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (from, to) = (number(0, 0), number(1, 30));
    let verbose = args.iter().any(|a| a == "--verbose");
    let mut coverage = Coverage::default();
    let mut failed = 0;
    for seed in from..to {
        let report = run_seed(seed, &SimOptions::default());
        coverage.merge(&report.coverage);
        failed += u64::from(!report.passed());
        if verbose || !report.passed() {
            println!("{report}\n");
        }
    }
    let seen: Vec<String> = coverage.seen().map(|(p, n)| format!("{} {n}", p.name())).collect();
    println!("{} seeds, {failed} failed; coverage {}", to - from, seen.join(", "));
    std::process::exit(i32::from(failed > 0));
}
