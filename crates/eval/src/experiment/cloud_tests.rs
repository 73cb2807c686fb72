use super::super::Experiment;
use super::*;
use crate::experiment::Figure;

fn quick(id: &str) -> Figure {
    Experiment::named(id).expect("there is one").run(Options { quick: true, seed: 1 }).expect("runs")
}

fn at(f: &Figure, name: &str) -> f64 {
    f.rows.iter().find(|r| r.name == name).unwrap_or_else(|| panic!("no row {name:?}")).measured
}

/// Bars that the quick forms of `df-fig12` and `df-fig14` miss (docs/results/cloud.md). Remove a bar here once it is met.
const MISSED: [&str; 7] = [
    "W1: CoV against segmentation",
    "W1: max ÷ min against segmentation",
    "W1: bursts alone, CoV",
    "W1: bursts alone, max ÷ min",
    "W1: write mean, two log copies ÷ one",
    "W1: write P99, two log copies ÷ one",
    "W1: read P99, two log copies ÷ one",
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
fn diffforward_is_the_most_even_and_answers_soonest() {
    let o = Options { quick: true, seed: 1 };
    let runs = all_schemes(o, &Params::builtin().expect("valid"), SLICE);
    let (balance, latency) = (balance_rows(o, &runs), latency_rows(o, &runs));
    let value = |rows: &[Row], name: String| {
        rows.iter().find(|r| r.name == name).unwrap_or_else(|| panic!("no row {name:?}")).measured
    };
    let cov = |s: &str| value(&balance, format!("W1: {s}: CoV"));
    assert!(cov("diffforward") < 0.5 * cov("segmentation") && cov("segmentation") < 0.8 * cov("none"));
    assert!(cov("diffforward") < cov("replication") && cov("diffforward, two copies") < 1.1 * cov("diffforward"));
    let mean = |s: &str| value(&latency, format!("W1: {s}: write mean"));
    assert!(mean("diffforward") < 0.53 * mean("segmentation") && mean("diffforward") < mean("replication"));
    assert!(mean("segmentation") < mean("none"));
    let missed: Vec<_> = balance.iter().chain(&latency).filter(|r| r.missed()).map(|r| r.name.as_str()).collect();
    assert_eq!(missed, MISSED);
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
