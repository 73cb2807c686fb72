use super::*;

#[test]
fn json_is_as_documented() {
    let experiment = Experiment::named(&EXPERIMENTS, "fb-fig16").expect("there is one");
    let f = experiment.run(Options { quick: true, seed: 1, seeds: None }).expect("runs");
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
    let f = |rows| Figure {
        experiment: "x",
        about: "<&>",
        seed: 1,
        seeds: None,
        config: Value::Null,
        cpu_s: 0.0,
        rows,
        drawing: None,
    };
    let missed = f(vec![row(Better::Higher, 0.5).paper(0.7)]);
    assert!(missed.table().contains("MISSED") && missed.table().contains("≥ 0.9800"), "{}", missed.table());
    assert!(missed.svg().contains("&lt;&amp;&gt;") && missed.svg().contains("#d55e00"));
    let held = f(vec![row(Better::Higher, 0.99)]);
    assert!(!held.table().contains("MISSED") && !held.svg().contains("#d55e00"));
}

#[test]
fn an_experiment_with_one_seed_refuses_several() {
    let e = Experiment::named(&EXPERIMENTS, "fb-fig7").expect("there is one");
    let refused = e.run(Options { quick: true, seed: 1, seeds: Some(5) }).map(|f| f.seed).expect_err("it takes one");
    assert!(refused.to_string().contains("fb-fig7") && refused.to_string().contains("rb-fig16"), "{refused}");
    let several = EXPERIMENTS.iter().filter(|e| e.several).count();
    assert_eq!(several, 12, "figures 9 to 17 and 19 to 21");
}

#[test]
fn an_unknown_experiment_is_refused_with_the_list() {
    let e = Experiment::named(&EXPERIMENTS, "fb-fig99").map(|e| e.id).expect_err("there is none");
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
