//! Cells: a generated load on a whole rack, by policy.

use rackweave_config::SchedulingKind;
use rackweave_replay::Policy;
use rackweave_replay::rack::{Cell, CellReport, Load, Ports, READS_MIN, Scheme, run_all, void};

/// Small enough for a test.
fn tiny(policy: impl Into<Scheme>, load: Load) -> Cell {
    let cell = Cell { seed: 3, utilization: 0.4, wear_in: 0.3, ..Cell::new(policy, load) }.reads(12_000);
    Cell { warm_up: 2_400, ..cell }
}

/// Every policy and baseline.
fn all() -> Vec<Scheme> {
    Policy::ALL.into_iter().map(Scheme::from).chain(Scheme::BASELINES).collect()
}

/// The part of a report that must not depend on the machine.
fn comparable(c: &CellReport) -> serde_json::Value {
    let mut json = c.json();
    json.as_object_mut().unwrap().remove("cpu_s");
    json
}

#[test]
fn every_policy_answers_all_and_the_same_cell_gives_the_same_numbers() {
    let cells: Vec<Cell> = all().into_iter().map(|p| tiny(p, Load::ycsb(0.5))).collect();
    let twice = [cells.clone(), cells.clone()].concat();
    let reports = run_all(&twice).unwrap();
    let (first, second) = reports.split_at(cells.len());
    for ((cell, a), b) in cells.iter().zip(first).zip(second) {
        let r = a.result.as_ref().expect("the rack keeps up");
        assert_eq!((r.requests(), r.failed), (cell.requests, 0), "{}", a.policy);
        assert!(r.read.count() > 11_000 && r.write.count() > 11_000, "{}", a.policy);
        assert!(r.busy.dies_mean > 0.1 && r.busy.die_max >= r.busy.dies_mean, "{}: {:?}", a.policy, r.busy);
        assert_eq!(comparable(a), comparable(b), "{}", a.policy);
        assert!(a.void(READS_MIN).is_some(), "a million reads are required");
        assert_eq!(a.void(10_000), None);
    }
    let other = Cell { seed: 4, ..cells[0].clone() }.run().unwrap();
    assert_ne!(comparable(&first[0])["read"], comparable(&other)["read"]);
}

#[test]
fn cells_that_must_not_be_compared_say_why() {
    let mut report = tiny(Policy::Baseline, Load::ycsb(0.5)).run().unwrap();
    let with = |change: &dyn Fn(&mut rackweave_replay::report::PolicyReport)| {
        let mut c = report.clone();
        change(c.result.as_mut().unwrap());
        c
    };
    let (busy, failed) = (with(&|r| r.busy.die_max = 0.91), with(&|r| r.failed = 2));
    let (few, more) = (with(&|r| r.erases = 100), with(&|r| r.erases = 106));
    assert!(busy.void(0).unwrap().contains("91 %"), "{:?}", busy.void(0));
    assert!(failed.void(0).unwrap().starts_with("2 requests failed"));
    assert!(void([&few, &more].into_iter(), 0).unwrap().contains("erased 106"));
    let same = with(&|r| r.erases = 105);
    assert_eq!(void([&few, &same].into_iter(), 0), None);
    report.result = None;
    report.overloaded = Some("too much".into());
    assert_eq!(void([&few, &report].into_iter(), 0).as_deref(), Some("baseline: too much"));
}

#[test]
fn the_controller_s_servers_forward_reads_and_its_switch_none() {
    let cell = |policy| {
        let cell = Cell { seed: 3, wear_in: 1.0, ..Cell::new(policy, Load::ycsb(0.5)) }.reads(40_000);
        Cell { warm_up: 40_000, ..cell }
    };
    let reports = run_all(&[cell(Scheme::SOFTWARE), cell(Scheme::VDC), cell(Policy::Rackblox.into())]).unwrap();
    let [software, vdc, rackblox] = &reports[..] else { unreachable!("three were run") };
    let result = |c: &CellReport| c.result.clone().expect("the rack keeps up");
    assert!(result(software).redirects > 500, "{}", software.json());
    assert_eq!(result(vdc).redirects, 0);
    // A forwarded read takes one more hop.
    assert!(software.read_us(0.5) >= rackblox.read_us(0.5), "{} {}", software.json(), rackblox.json());
}

#[test]
fn reads_wait_at_the_switch_s_ports_and_behind_bursts_of_higher_priority() {
    let cell = |ports| Cell { servers: 2, clients: 4, ports, ..tiny(Policy::Rackblox, Load::ycsb(0.5)) };
    let ports = |scheduling, bursts| cell(Some(Ports { scheduling, busy: 0.6, bursts }));
    let cells = [
        cell(None),
        ports(SchedulingKind::Fq, false),
        ports(SchedulingKind::Tb, false),
        ports(SchedulingKind::Priority, false),
        ports(SchedulingKind::Priority, true),
    ];
    let reports = run_all(&cells).unwrap();
    for (cell, r) in cells.iter().zip(&reports) {
        let result = r.result.as_ref().expect("the rack keeps up");
        assert_eq!((result.requests(), result.failed), (cell.requests, 0), "{:?}", cell.ports);
    }
    let [none, queued @ .., behind] = &reports[..] else { unreachable!("five were run") };
    for r in queued {
        assert!(r.read_us(0.5) > none.read_us(0.5), "{} {}", r.json(), none.json());
    }
    // A burst occupies a port for two milliseconds in ten.
    assert!(behind.read_us(0.99) > queued[2].read_us(0.99) + 500.0, "{} {}", behind.json(), queued[2].json());
}

#[test]
fn a_worn_in_drive_collects_as_it_goes_on_to() {
    let cell = |wear_in, warm_up| {
        let cell = Cell { wear_in, ..Cell::new(Policy::Ideal, Load::ycsb(0.8)) }.reads(20_000);
        Cell { warm_up, ..cell }
    };
    let reports = run_all(&[cell(1.5, 50_000), cell(1.5, 150_000), cell(0.0, 50_000)]).unwrap();
    let waf = |i: usize| reports[i].result.as_ref().expect("the rack keeps up").waf;
    assert!(waf(0) > 2.0 && (waf(1) / waf(0) - 1.0).abs() < 0.15, "{} then {}", waf(0), waf(1));
    assert!(waf(2) < waf(0) / 1.5, "{} on drives that were only filled, {} on worn ones", waf(2), waf(0));
}
