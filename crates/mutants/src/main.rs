//! Breaks one rule at a time and looks which check notices: `make mutants`.
//!
//! A mutant is a place marked by `rackweave_core::mutant!`, listed in [`registry`]. Each runs in processes of its own: the
//! fault search first ([`search`]), then the unit tests of the crates it names ([`units`]).
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "starts processes, on threads, and reads clocks"
)]

mod child;
mod components;
mod process;
mod registry;
mod score;
mod search;
mod units;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use rackweave_search::fault::PlanKind;

use crate::registry::{Mutant, Verdict};
use crate::score::{Outcome, Score};

/// Seeds of each search, unless the command line overrides it: the bar of the score.
const SEEDS: u64 = 300;
/// Seeds of each kind before crates' own searches, which are quicker, have their turn.
const SEEDS_FIRST: u64 = 5;

#[derive(Debug, Parser)]
#[command(name = "rackweave-mutants", about = "Break one rule at a time and see which check notices")]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Only mutants whose name contains this; repeatable
    #[arg(long, value_name = "PART")]
    only: Vec<String>,
    /// Only every tenth of those that a search is known to catch, beginning with the (N mod 10)th
    #[arg(long, value_name = "N", conflicts_with = "both")]
    tenth: Option<usize>,
    /// Each by the checks that the list says catch it: searches, or the tests of its crates
    #[arg(long, conflicts_with_all = ["both", "searches_only", "units_only"])]
    as_listed: bool,
    /// Seeds of each search
    #[arg(long, default_value_t = SEEDS)]
    seeds: u64,
    /// Plans of each kind, if they are to be fewer: they take longest
    #[arg(long, value_name = "N")]
    plans: Option<u64>,
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    first_seed: u64,
    /// Unit tests too, though a search has noticed
    #[arg(long)]
    both: bool,
    /// No unit tests
    #[arg(long, conflicts_with = "both")]
    searches_only: bool,
    /// No searches
    #[arg(long, conflicts_with_all = ["both", "searches_only", "tenth"])]
    units_only: bool,
    /// Unit tests of these crates only; repeatable
    #[arg(long, value_name = "CRATE")]
    tests_of: Vec<String>,
    /// Only mutants that nothing is known to catch
    #[arg(long)]
    open: bool,
    /// Mutants under way at once
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Begin no further mutant after this many seconds
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,
    /// Write the outcomes as JSON, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// List the mutants and run none
    #[arg(long)]
    list: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run plans in this process, with the mutant of its environment
    #[command(hide = true)]
    Child {
        #[arg(long, value_delimiter = ',')]
        kinds: Vec<PlanKind>,
        /// With the transport between nodes
        #[arg(long)]
        transport: bool,
        #[arg(long)]
        first_seed: u64,
        /// Plans that are left out, and that are run, in order of seed and then kind
        #[arg(long)]
        skip: u64,
        #[arg(long)]
        count: u64,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Command::Child { kinds, transport, first_seed, skip, count }) = &args.command {
        child::run(kinds, *transport, *first_seed, *skip, *count);
        return ExitCode::SUCCESS;
    }
    let chosen = choose(&args);
    if args.list {
        chosen.iter().for_each(|m| println!("{}", score::line(m)));
        println!("{}", score::counts(&chosen));
        return ExitCode::SUCCESS;
    }
    if !cfg!(mutants) {
        eprintln!("built without --cfg mutants: no rule can be broken; use make mutants");
        return ExitCode::from(2);
    }
    if chosen.is_empty() {
        eprintln!("no mutant has such a name; --list shows all");
        return ExitCode::from(2);
    }
    let mut packages = units::packages(&chosen);
    packages.retain(|p| args.tests_of.is_empty() || args.tests_of.iter().any(|t| t == p));
    let binaries = match units::build(&packages) {
        Ok(b) => b,
        Err(e) => {
            eprintln!("unit tests: {e}");
            return ExitCode::from(2);
        }
    };
    let score = Score::new(run_all(&args, &chosen, &binaries));
    println!("{score}");
    if let Some(path) = &args.json
        && let Err(e) = std::fs::write(path, score.json())
    {
        eprintln!("{}: {e}", path.display());
        return ExitCode::from(2);
    }
    let complete = args.only.is_empty() && args.tenth.is_none() && !args.open && !args.as_listed;
    if score.passes(complete) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn choose(args: &Args) -> Vec<&'static Mutant> {
    let named = |m: &Mutant| args.only.is_empty() || args.only.iter().any(|part| m.name.contains(part.as_str()));
    let turn = |i: usize| args.tenth.is_none_or(|n| i % 10 == n % 10);
    let open = |m: &Mutant| !args.open || matches!(m.verdict, Verdict::Open(_));
    let wanted = |m: &Mutant| named(m) && open(m) && (args.tenth.is_none() || m.verdict == Verdict::Searched);
    registry::all().filter(|m| wanted(m)).enumerate().filter(|(i, _)| turn(*i)).map(|(_, m)| m).collect()
}

/// Outcomes in order of the list; mutants that were not begun in time are left out.
fn run_all(args: &Args, mutants: &[&'static Mutant], binaries: &[units::Binary]) -> Vec<Outcome> {
    let end = args.seconds.map(|s| Instant::now() + Duration::from_secs(s));
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    let work = || {
        while end.is_none_or(|e| Instant::now() < e)
            && let i = next.fetch_add(1, Ordering::Relaxed)
            && let Some(m) = mutants.get(i)
        {
            let outcome = run_one(args, m, binaries);
            println!("{}", score::progress(&outcome));
            outcomes.lock().expect("no holder panics").push((i, outcome));
        }
    };
    std::thread::scope(|s| {
        for _ in 0..args.jobs.max(1) {
            s.spawn(work);
        }
    });
    let mut outcomes = outcomes.into_inner().expect("no holder panics");
    outcomes.sort_by_key(|o| o.0);
    outcomes.into_iter().map(|o| o.1).collect()
}

fn run_one(args: &Args, m: &'static Mutant, binaries: &[units::Binary]) -> Outcome {
    let begun = Instant::now();
    // The searches of crates are among their tests.
    let by_tests = args.as_listed && m.verdict != Verdict::Searched;
    let seeds = if args.units_only { 0 } else { args.seeds };
    let plans = if by_tests { 0 } else { seeds.min(args.plans.unwrap_or(seeds)) };
    let mut unit = if by_tests { units::run(m, binaries) } else { None };
    let mut search = search::run(m, args.first_seed, plans.min(SEEDS_FIRST));
    if search.found.is_none() && unit.is_none() && (!by_tests || m.verdict == Verdict::Tested) {
        search.found = components::run(m, binaries, args.first_seed, seeds);
    }
    if search.found.is_none() {
        search.go_on(m, args.first_seed, plans);
    }
    if !args.searches_only && !args.as_listed && (args.both || search.found.is_none()) {
        unit = units::run(m, binaries);
    }
    Outcome { mutant: m, search, unit, seconds: begun.elapsed().as_secs_f64() }
}
