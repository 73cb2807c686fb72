//! Runs plans of the fault search, in a process that may be broken.

use rackweave_search::fault::{PlanKind, SimOptions, run_plan};

/// Printed after each plan that passes.
pub const PASSED: &str = "passed";
/// Begins the line of the first plan that fails, before its failure in JSON; nothing follows.
pub const FAILED: &str = "failed ";
/// Begins the last line, before how often the mutant's place was reached.
pub const REACHED: &str = "reached ";

/// A broken node may want any amount of memory: that ends this process, not the machine.
const MEMORY_MAX: u64 = 4 << 30;

/// Plan number `n` has seed `first_seed` + `n` / kinds, of the kinds in turn.
pub fn plan_of(kinds: &[PlanKind], first_seed: u64, n: u64) -> (PlanKind, u64) {
    let k = kinds.len() as u64;
    (kinds[(n % k) as usize], first_seed + n / k)
}

pub fn run(kinds: &[PlanKind], transport: bool, first_seed: u64, skip: u64, count: u64) {
    limit_memory();
    // A node's panic is a failed plan, and reported as such.
    std::panic::set_hook(Box::new(|_| ()));
    for n in skip..skip + count {
        let (kind, seed) = plan_of(kinds, first_seed, n);
        let mut plan = kind.draw(seed);
        if transport {
            plan = plan.over_transport();
        }
        let report = run_plan(&plan, &SimOptions::default());
        if let Some(failure) = report.failure {
            println!("{FAILED}{}", serde_json::to_string(&failure).expect("strings"));
            break;
        }
        println!("{PASSED}");
    }
    println!("{REACHED}{}", reached());
}

#[cfg(mutants)]
fn reached() -> u64 {
    rackweave_core::mutants::reached()
}
#[cfg(not(mutants))]
fn reached() -> u64 {
    0
}

fn limit_memory() {
    let limit = libc::rlimit { rlim_cur: MEMORY_MAX, rlim_max: MEMORY_MAX };
    // SAFETY: a plain call with a pointer that is valid for its length.
    let refused = unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
    assert_eq!(refused, 0, "a lower limit is always granted");
}
