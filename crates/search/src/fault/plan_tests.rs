use super::*;

#[test]
fn a_plan_is_its_seed_and_survives_being_written_out() {
    for (seed, draw) in (0..200).flat_map(|s| [(s, Plan::draw as fn(u64) -> Plan), (s, Plan::draw_two_racks)]) {
        let p = draw(seed);
        assert_eq!(p, draw(seed));
        assert!(p.faults.iter().filter(|f| f.fault.is_fault()).count() >= FAULTS_MIN);
        assert!(p.params.operations >= OPERATIONS_MIN);
        p.rack().validate().unwrap();
        let text = serde_json::to_string(&p).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), p);
    }
}

#[test]
fn every_seed_has_its_plans() {
    for seed in [0, 1 << 63, u64::MAX] {
        let plans = [Plan::draw(seed), Plan::draw_grouped(seed), Plan::draw_moving(seed), Plan::draw_two_racks(seed)];
        assert!(plans.iter().all(|p| p.seed == seed), "{seed}");
    }
}

#[test]
fn smaller_plans_leave_out_halves_then_single_faults() {
    let p = Plan::draw(3);
    let n = p.faults.len();
    let sizes: Vec<usize> = p.smaller().iter().map(|p| p.faults.len()).collect();
    assert_eq!(sizes[0], n - n.div_ceil(2));
    assert!(sizes.ends_with(&vec![n - 1; n]));
}
