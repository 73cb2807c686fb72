use super::*;
use crate::report::{PolicyReport, RackFacts};
use crate::trace::Format;
use rackweave_core::Rng;

fn drawn(policies: &[(&'static str, f64)], writes: bool) -> String {
    let policies = policies
        .iter()
        .map(|&(policy, tail_us)| {
            let (mut read, mut write) = (Latencies::new(), Latencies::new());
            let mut rng = Rng::new(5);
            for _ in 0..200_000 {
                let us = 90.0 + rng.exponential(20.0) + if rng.chance(0.003) { rng.exponential(tail_us) } else { 0.0 };
                read.record(Span((us * 1e3) as u64));
                if writes {
                    write.record(Span((us * 400.0) as u64));
                }
            }
            PolicyReport {
                policy,
                read,
                write,
                trims: 0,
                flushes: 0,
                failed: 0,
                rounded: 0,
                redirects: 0,
                gc_runs: 1,
                erases: 1,
                waf: 1.0,
                busy: crate::report::BusyShare::default(),
                offered_for: Span::ZERO,
                cpu: Span(1),
                took: Span(1),
                events: 9,
                situations: vec![("Redirect", 3)],
                first_failure: None,
            }
        })
        .collect();
    let rack = RackFacts { servers: 4, ssd_bytes: 1, volume_bytes: 1, footprint_bytes: 1, devices: 1, out_of_order: 0 };
    svg(&Report {
        trace: "a<b&c.trace".into(),
        format: Format::Mqsim,
        network: "fast",
        seed: 1,
        speed: 1.0,
        rack,
        policies,
    })
}

#[test]
fn a_plot_has_a_curve_for_each_policy_and_kind() {
    let s = drawn(&[("baseline", 4000.0), ("rackblox", 300.0), ("ideal", 50.0)], true);
    assert!(s.starts_with("<svg ") && s.ends_with("</svg>\n"));
    assert_eq!(s.matches("<polyline").count(), 6);
    assert!(s.contains("a&lt;b&amp;c.trace") && !s.contains("a<b"));
    assert!(s.len() < 60_000, "{} bytes", s.len());
    assert_eq!(s.matches("<text").count(), s.matches("</text>").count());
    if let Some(path) = std::env::var_os("RACKWEAVE_SVG") {
        std::fs::write(path, &s).unwrap();
    }
}

#[test]
fn curves_stay_inside_their_panel() {
    let s = drawn(&[("baseline", 1e7)], true);
    for points in s.split("points=\"").skip(1) {
        for p in points.split('"').next().unwrap().split(' ') {
            let (x, y) = p.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((LEFT..=LEFT + 2.0 * WIDTH + BETWEEN).contains(&x) && (TOP..=TOP + HEIGHT).contains(&y), "{p}");
        }
    }
}

#[test]
fn a_kind_without_requests_says_so() {
    let s = drawn(&[("baseline", 100.0)], false);
    assert_eq!(s.matches("<polyline").count(), 1);
    assert!(s.contains("none measured"));
}
