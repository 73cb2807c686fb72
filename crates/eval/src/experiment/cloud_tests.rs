use super::super::Experiment;
use super::*;
use crate::experiment::Figure;

fn quick(id: &str) -> Figure {
    Experiment::named(id).expect("there is one").run(Options { quick: true, seed: 1 }).expect("runs")
}

fn at(f: &Figure, name: &str) -> f64 {
    f.rows.iter().find(|r| r.name == name).unwrap_or_else(|| panic!("no row {name:?}")).measured
}

/// Bars that the quick form of `df-fig12` misses (docs/results/cloud.md). Remove a bar here once it is met.
const BALANCE_MISSED: [&str; 4] = [
    "W1: CoV against segmentation",
    "W1: max ÷ min against segmentation",
    "W1: bursts alone, CoV",
    "W1: bursts alone, max ÷ min",
];

#[test]
fn the_generated_disks_are_those_of_the_paper() {
    let f = quick("df-fig2");
    for (name, low, high) in [
        ("CoV, 100 ms", 0.9, 1.1),
        ("CoV, 100 s", 0.25, 0.5),
        ("max ÷ min, 100 ms", 20.0, 80.0),
        ("Spearman: traffic, share of random writes", 0.55, 0.7),
        ("EWMA's error, 5 s", 1.0, 2.5),
        ("EWMA's error, 100 ms", 1.7, 2.1),
    ] {
        let value = at(&f, name);
        assert!((low..=high).contains(&value), "{name}: {value}");
    }
}

#[test]
fn diffforward_is_the_most_even_and_segmentation_better_than_nothing() {
    let f = quick("df-fig12");
    let cov = |s: &str| at(&f, &format!("W1: {s}: CoV"));
    assert!(cov("diffforward") < 0.5 * cov("segmentation") && cov("segmentation") < 0.8 * cov("none"));
    assert!(cov("diffforward") < cov("replication") && cov("diffforward, two copies") < 1.1 * cov("diffforward"));
    let missed: Vec<_> = f.missed().map(|r| r.name.as_str()).collect();
    assert_eq!(missed, BALANCE_MISSED);
}

#[test]
fn diffforward_answers_soonest_and_replication_waits_for_its_chain() {
    let f = quick("df-fig14");
    let mean = |s: &str| at(&f, &format!("W1: {s}: write mean"));
    assert!(mean("diffforward") < 0.53 * mean("segmentation") && mean("diffforward") < mean("replication"));
    assert!(mean("segmentation") < mean("none"));
}

#[test]
fn merging_by_priority_costs_least() {
    let f = quick("df-fig20");
    let more = |m: &str| at(&f, &format!("{m}: write mean, more than without merging"));
    assert!(more("prioritized") <= more("limited") && more("limited") < more("ASAP"), "{}", f.table());
    assert!(at(&f, "paper's: recall, by bytes") >= 0.8 && at(&f, "published: recall, by bytes") >= 0.6);
}

#[test]
fn equal_seeds_give_equal_figures() {
    let rows = |seed| {
        let mut runs = Runs::new(Options { quick: true, seed }, SWEEP);
        runs.length = Span::from_secs(2);
        runs.add("one", Scheme::DIFFFORWARD, Trace::W1, 0.3);
        runs.run(&Params::builtin().expect("valid"));
        (runs.of("one", COV), runs.of("one", WRITE_MEAN), runs.results[0].write.count())
    };
    assert_eq!(rows(3), rows(3));
    assert_ne!(rows(3), rows(4));
}
