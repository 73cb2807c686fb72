use std::sync::OnceLock;

use super::*;

/// Too slow to run on every change; their parts have tests of their own.
const LONG: [&str; 3] = ["fb-fig8", "fb-fig10", "fb-fig12"];

/// Experiments on a rack under load: cells have tests of their own.
const RACK: &str = "rb-";
/// Experiments on cloud disks have tests of their own (`cloud_tests.rs`).
const CLOUD: &str = "df-";
/// Experiments on a rack's wear only.
const WEAR: [&str; 2] = ["rb-fig22", "rb-fig23"];

/// The quick forms of all other experiments, with seed 1.
fn figures() -> &'static [Figure] {
    static ALL: OnceLock<Vec<Figure>> = OnceLock::new();
    ALL.get_or_init(|| {
        let loaded = |id: &str| id.starts_with(RACK) && !WEAR.contains(&id) || id.starts_with(CLOUD);
        let short = EXPERIMENTS.iter().filter(|e| !LONG.contains(&e.id) && !loaded(e.id));
        short.map(|e| e.run(Options { quick: true, seed: 1 }).expect("runs")).collect()
    })
}

fn quick(id: &str) -> &'static Figure {
    figures().iter().find(|f| f.experiment == id).expect("there is one")
}

fn measured(f: &Figure, name: &str, unit: &str) -> f64 {
    let row = f.rows.iter().find(|r| r.name == name && r.unit == unit);
    row.unwrap_or_else(|| panic!("no row {name:?} of unit {unit:?}")).measured
}

/// Bars that the quick forms miss, for the reasons in docs/results/tenants.md. Remove a bar here once it is met again.
const MISSED: &[(&str, &str)] = &[
    ("fb-fig7", "RW + SW: software"),
    ("fb-fig7", "RW + RW: channel"),
    ("fb-fig7", "RW + RW: die"),
    ("fb-fig7", "RW + RW: software"),
    ("fb-fig7", "RW + RW: none"),
    ("fb-fig13", "alone: moved at"),
    ("fb-fig13", "alone: search read P99 more"),
    ("fb-fig13", "alone: search write P99 more"),
    ("fb-fig13", "with a replica: moved at"),
    ("fb-fig13", "with a replica: search write P99 more"),
];

#[test]
fn every_experiment_holds_its_bars() {
    for f in figures() {
        let missed: Vec<_> = f.missed().map(|r| r.name.as_str()).collect();
        let known: Vec<_> = MISSED.iter().filter(|(id, _)| *id == f.experiment).map(|(_, name)| *name).collect();
        assert_eq!(missed, known, "{}", f.experiment);
        assert!(f.rows.iter().any(|r| r.bar.is_some()), "{} has no bar", f.experiment);
    }
}

#[test]
fn what_leveling_has_no_part_in_agrees_with_the_paper() {
    // These figures depend on the rates and the model, not on the policies.
    for r in &quick("fb-table5").rows {
        let inputs = r.name.contains("no swap") || r.name.ends_with("ideal");
        let (true, Some(paper)) = (inputs, r.paper) else { continue };
        assert!((r.measured / paper - 1.0).abs() < 0.13, "{}: {} against the paper's {paper}", r.name, r.measured);
    }
    let f = quick("fb-fig15");
    assert!((measured(f, "no swap: imbalance", "max ÷ mean") / 3.1 - 1.0).abs() < 0.06);
    assert!((measured(f, "no swap: life", "years") - 1.2).abs() < 0.01);
}

#[test]
fn the_rack_is_the_more_even_the_more_is_swapped() {
    let f = quick("rb-fig23");
    let year = |scheme: &str| measured(f, &format!("{scheme}: after a year, over SSDs"), "max ÷ mean");
    let [none, paper, both] = ["no swap", "paper's rule, local", "paper's rule, local and global"].map(year);
    let [local, ours] = ["ours, local", "ours, local and global"].map(year);
    assert!(none > 1.3 * paper && paper >= both && both > 1.1 * local && local > 1.1 * ours && ours > 1.0);
    let servers = quick("rb-fig22");
    assert_eq!(servers.rows.iter().filter(|r| r.name.starts_with("server ")).count(), 64);
}

#[test]
fn json_is_as_documented() {
    let f = quick("fb-fig16");
    let json = f.json();
    assert_eq!((&json["experiment"], &json["seed"]), (&json!("fb-fig16"), &json!(1)));
    assert!(json["cpu_s"].is_number() && json["config"]["gamma_bytes"].is_number());
    let rows = json["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), f.rows.len());
    let held = rows.iter().find(|r| r["bar"].is_number()).expect("one has a bar");
    assert_eq!((&held["better"], &held["held"], &held["paper"]), (&json!("lower"), &json!(true), &Value::Null));
}

#[test]
fn a_row_is_missed_on_the_wrong_side_of_its_bar_only() {
    let row = |better, measured| Row::new("a", "b", better, measured).bar(0.98);
    assert!(!row(Better::Higher, 0.98).missed() && row(Better::Higher, 0.979).missed());
    assert!(!row(Better::Lower, 0.98).missed() && row(Better::Lower, 0.981).missed());
    assert!(row(Better::Higher, f64::NAN).missed() && row(Better::Lower, f64::NAN).missed());
    assert!(!Row::new("a", "b", Better::Higher, 0.0).missed());
    let f =
        |rows| Figure { experiment: "x", about: "<&>", seed: 1, config: Value::Null, cpu_s: 0.0, rows, drawing: None };
    let missed = f(vec![row(Better::Higher, 0.5).paper(0.7)]);
    assert!(missed.table().contains("MISSED") && missed.table().contains("≥ 0.9800"), "{}", missed.table());
    assert!(missed.svg().contains("&lt;&amp;&gt;") && missed.svg().contains("#d55e00"));
    let held = f(vec![row(Better::Higher, 0.99)]);
    assert!(!held.table().contains("MISSED") && !held.svg().contains("#d55e00"));
}

#[test]
fn an_unknown_experiment_is_refused_with_the_list() {
    let e = Experiment::named("fb-fig99").map(|e| e.id).expect_err("there is none");
    assert!(e.to_string().contains("\"fb-fig99\"") && e.to_string().contains("fb-fig14"), "{e}");
}

#[test]
fn numbers_have_four_digits_that_count() {
    let shown =
        [(0.0, "0"), (0.98, "0.9800"), (1.0 / 3.0, "0.3333"), (13.8, "13.80"), (9_999.4, "9999"), (1e6, "1000000")];
    for (n, text) in shown {
        assert_eq!(number(n), text);
    }
}
