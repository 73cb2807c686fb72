//! Fault search over a range of seeds: `cargo run --release --example search -- FROM TO [--verbose] [--request N]
//! [--kind KIND] [--transport]`. Prints every failing seed, and the trace points reported over all seeds. `--request`
//! shows the path of the workload's N-th request.

use rackweave_core::trace::Coverage;
use rackweave_search::fault::{PlanKind, SimOptions, run_plan};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: u64| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (from, to) = (number(0, 0), number(1, 30));
    let transport = args.iter().any(|a| a == "--transport");
    let verbose = args.iter().any(|a| a == "--verbose");
    let request = args.iter().position(|a| a == "--request").and_then(|i| args.get(i + 1));
    let trace_request = request.and_then(|r| r.parse().ok());
    let options = SimOptions { trace_request, ..SimOptions::default() };
    let kind = args.iter().position(|a| a == "--kind").and_then(|i| args.get(i + 1));
    let kind: PlanKind = kind.map_or(Ok(PlanKind::default()), |k| k.parse()).unwrap_or_else(|e| panic!("--kind: {e}"));
    let mut coverage = Coverage::default();
    let mut failed = 0;
    for seed in from..to {
        let mut plan = kind.draw(seed);
        if transport {
            plan = plan.over_transport();
        }
        let report = run_plan(&plan, &options);
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
