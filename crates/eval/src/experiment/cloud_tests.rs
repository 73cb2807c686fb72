use super::*;

#[test]
fn equal_seeds_give_equal_figures() {
    let rows = |seed| {
        let mut runs = Runs::new(Options { quick: true, seed, seeds: None }, SWEEP);
        runs.length = Span::from_secs(2);
        runs.add("one", Scheme::DIFFFORWARD, Trace::W1, 0.3);
        runs.run(&Params::builtin().expect("valid"));
        (runs.of("one", COV), runs.of("one", WRITE_MEAN), runs.results[0].write.count())
    };
    assert_eq!(rows(3), rows(3));
    assert_ne!(rows(3), rows(4));
}
