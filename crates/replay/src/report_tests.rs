use super::*;
use crate::trace::Format;

fn policy(name: &'static str, erases: u64) -> PolicyReport {
    let mut read = Latencies::new();
    let mut write = Latencies::new();
    for us in 1..=100 {
        read.record(Span::from_micros(us));
        write.record(Span::from_micros(us * 10));
    }
    PolicyReport {
        policy: name,
        read,
        write,
        trims: 1,
        flushes: 2,
        failed: 0,
        rounded: 0,
        redirects: 3,
        gc_runs: 4,
        erases,
        waf: 1.5,
        busy: BusyShare::default(),
        offered_for: Span::ZERO,
        cpu: Span::from_millis(1),
        took: Span::from_secs(2),
        events: 9,
        situations: vec![("Redirect", 3)],
        first_failure: None,
    }
}

fn report(policies: Vec<PolicyReport>) -> Report {
    Report {
        trace: "t.trace".into(),
        format: Format::Mqsim,
        network: "fast",
        seed: 7,
        speed: 1.0,
        rack: RackFacts {
            servers: 4,
            ssd_bytes: 8 << 30,
            volume_bytes: 7 << 30,
            footprint_bytes: 1 << 26,
            devices: 2,
            out_of_order: 3,
        },
        policies,
    }
}

#[test]
fn json_has_the_documented_keys() {
    let j = report(vec![policy("baseline", 100), policy("rackblox", 104)]).json();
    for p in ["baseline", "rackblox"] {
        for op in ["read", "write"] {
            for key in ["count", "mean_us", "p50_us", "p90_us", "p99_us", "p999_us", "max_us"] {
                assert!(j[p][op][key].is_number(), "{p}.{op}.{key}");
            }
        }
        for key in ["seed", "redirects", "gc_runs", "erases", "waf", "cpu_s", "requests_per_cpu_s"] {
            assert!(j[p][key].is_number(), "{p}.{key}");
        }
        assert_eq!(j[p]["gc_ran"], true);
    }
    assert_eq!((&j["seed"], &j["out_of_order"]), (&7.into(), &3.into()));
    assert_eq!(j["void"], false);
    assert!(j["void_reason"].is_null());
    assert_eq!(j["baseline"]["requests_per_cpu_s"], 203_000.0);
}

#[test]
fn erases_more_than_five_percent_apart_void_the_run() {
    assert_eq!(report(vec![policy("baseline", 100), policy("rackblox", 105)]).void(), None);
    let r = report(vec![policy("baseline", 100), policy("rackblox", 106), policy("ideal", 101)]);
    let want = Void::Erases { policy: "rackblox", erases: 106, other: "baseline", other_erases: 100 };
    assert_eq!(r.void(), Some(want));
    assert_eq!(r.json()["void"], true);
    assert!(r.table().contains("VOID: rackblox erased 106 blocks"), "{}", r.table());
    assert!(report(vec![policy("baseline", 0), policy("rackblox", 1)]).void().is_some());
    assert_eq!(report(vec![policy("baseline", 0), policy("rackblox", 0)]).void(), None);
}

#[test]
fn failed_requests_void_the_run() {
    let mut bad = policy("ideal", 100);
    bad.failed = 1;
    bad.first_failure = Some("no space left".into());
    let r = report(vec![policy("baseline", 100), bad]);
    assert!(matches!(r.void(), Some(Void::Failed { policy: "ideal", failed: 1, .. })));
}

#[test]
fn a_run_without_collection_says_so() {
    let mut idle = policy("baseline", 0);
    idle.gc_runs = 0;
    let r = report(vec![idle]);
    assert!(r.table().contains("under baseline no garbage collection ran"), "{}", r.table());
    assert_eq!(r.json()["gc_ran"], false);
}
