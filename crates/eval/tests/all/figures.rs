//! Every figure's short form holds its shape: who is better, and by how much at the least.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "the day chooses a third")]

use std::time::{SystemTime, UNIX_EPOCH};

use rackweave_eval::experiment::{EXPERIMENTS, Experiment, Figure, Options};

use crate::nice_shapes::NICE;
use crate::shapes::{GUARDS, Guard, SOAK, Shape};

/// Chooses the guards: `all`, a third (`0` to `2`), or the names of experiments, separated by commas. Without it the day
/// chooses a third.
const CHOICE: &str = "RACKWEAVE_FIGURES";
const THIRDS: usize = 3;
const SEED: u64 = 1;

/// Value of a row. Its unit follows its name after a bar where names are not unique.
fn value(f: &Figure, name: &str) -> f64 {
    let (name, unit) = name.split_once(" | ").map_or((name, None), |(name, unit)| (name, Some(unit)));
    let row = f.rows.iter().find(|r| r.name == name && unit.is_none_or(|u| r.unit == u));
    row.unwrap_or_else(|| panic!("{}: no row {name:?} of unit {unit:?}\n{}", f.experiment, f.table())).measured
}

/// Why the figure does not have this shape.
fn wrong(f: &Figure, shape: &Shape) -> Option<String> {
    match *shape {
        Shape::Times { over, under, least, paper } => {
            let times = value(f, over) / value(f, under);
            // NaN is wrong, too.
            let holds = times >= least;
            (!holds).then(|| format!("{over} is {times:.3} × {under}, at least {least} expected (bar {paper:?})"))
        }
        Shape::Between { row, low, high } => {
            let measured = value(f, row);
            (!(low..=high).contains(&measured)).then(|| format!("{row}: {measured}, not from {low} to {high}"))
        }
        Shape::NearPaper { part, within } => {
            let mut rows = f.rows.iter().filter(|r| r.name.contains(part) && r.paper.is_some()).peekable();
            if rows.peek().is_none() {
                return Some(format!("no row with {part:?} has a number of the paper"));
            }
            let far = rows.find(|r| r.paper.is_some_and(|p| (r.measured / p - 1.0).abs() >= within))?;
            Some(format!("{}: {} against the paper's {:?}", far.name, far.measured, far.paper))
        }
    }
}

/// Runs a guard's figure; returns each shape that it does not have.
fn check(guard: &Guard) -> Vec<String> {
    let experiment = Experiment::named(&EXPERIMENTS, guard.id).expect("in the list");
    let f = experiment.run(Options { quick: true, seed: SEED, seeds: None }).expect("runs");
    println!("{}", f.table());
    let mut all: Vec<String> = guard.shapes.iter().filter_map(|s| wrong(&f, s)).collect();
    if let Some(known) = guard.missed {
        let missed: Vec<_> = f.missed().map(|r| r.name.as_str()).collect();
        if missed != known {
            all.push(format!("misses its bars at {missed:?}, not at {known:?}"));
        }
    }
    all.iter().map(|why| format!("{}: {why}", guard.id)).collect()
}

fn guards() -> impl Iterator<Item = &'static Guard> {
    GUARDS.iter().chain(&NICE)
}

/// The guards that run today, and why these.
fn chosen() -> (Vec<&'static Guard>, String) {
    let day = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() / 86_400;
    let third = |n: usize| guards().filter(move |g| g.third == n).collect::<Vec<_>>();
    match std::env::var(CHOICE) {
        Err(_) => {
            let n = (day % THIRDS as u64) as usize;
            (third(n), format!("third {n}, of day {day}; {CHOICE}={n} repeats it"))
        }
        Ok(all) if all == "all" => (guards().collect(), "all".into()),
        Ok(choice) => match choice.parse::<usize>() {
            Ok(n) => {
                assert!(n < THIRDS, "{CHOICE}={n}: thirds are 0 to {}", THIRDS - 1);
                (third(n), format!("third {n}"))
            }
            Err(_) => {
                let named = |id| guards().find(|g| g.id == id);
                let found =
                    choice.split(',').map(|id| named(id).unwrap_or_else(|| panic!("{CHOICE}: no figure {id:?}")));
                (found.collect(), choice.clone())
            }
        },
    }
}

#[test]
fn figures_hold_their_shapes() {
    let (guards, which) = chosen();
    println!("figures: {which}");
    let wrong: Vec<String> = guards.into_iter().flat_map(check).collect();
    assert!(wrong.is_empty(), "figures: {which}\n{}", wrong.join("\n"));
}

#[test]
fn every_figure_has_a_guard_that_can_fail() {
    let guarded: Vec<_> = guards().map(|g| g.id).collect();
    for e in EXPERIMENTS {
        assert_eq!(guarded.iter().filter(|id| **id == e.id).count(), 1, "{}", e.id);
    }
    assert_eq!(guarded.len(), EXPERIMENTS.len());
    for g in guards() {
        assert!(!g.shapes.is_empty() && (g.third < THIRDS || g.third == SOAK), "{}", g.id);
    }
    // A shape that does not hold is noticed.
    let f = Experiment::named(&EXPERIMENTS, "rb-predict")
        .and_then(|e| e.run(Options { quick: true, seed: SEED, seeds: None }));
    let f = f.expect("runs");
    let (a, b) = ("fast, as recorded: within 25 µs", "fast, shuffled: within 25 µs");
    let times = value(&f, a) / value(&f, b);
    let shape = |least| Shape::Times { over: a, under: b, least, paper: None };
    assert_eq!(wrong(&f, &shape(times * 0.99)), None);
    assert!(wrong(&f, &shape(times * 1.01)).is_some() && wrong(&f, &shape(f64::NAN)).is_some());
    assert!(wrong(&f, &Shape::Between { row: a, low: 0.0, high: 1.0 }).is_some());
    assert!(wrong(&f, &Shape::NearPaper { part: "shuffled", within: 9.0 }).is_some(), "the paper has no such number");
}
