//! Surveying a trace, looping it, and mapping it to a volume.

use std::path::PathBuf;

use rackweave_core::Span;
use rackweave_replay::trace::{Format, TraceOp};
use rackweave_replay::workload::{Plan, Planned, STRIPE_BYTES, Workload, WorkloadError};

use crate::own;

const PLAN: Plan = Plan { volume_bytes: 64 << 20, speed: 1.0, rate: None, seed: 1 };

/// A trace in a file of this test's own.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("rackweave-replay-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Scratch(path)
    }
    fn load(&self) -> Result<Workload, WorkloadError> {
        Workload::load(&self.0, Some(Format::Mqsim))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn play(w: &Workload, plan: Plan, n: usize) -> Vec<Planned> {
    let mut player = w.play(plan).unwrap();
    (0..n).map(|_| player.advance().unwrap()).collect()
}

#[test]
fn loops_go_on_in_time_and_elsewhere_in_space() {
    let s = Scratch::new("loops", "1000 0 0 8 0\n2000 0 8 8 1\n4000 0 16 8 0\n");
    let w = s.load().unwrap();
    let p = play(&w, PLAN, 9);
    let times: Vec<u64> = p.iter().map(|r| r.at.0).collect();
    // The trace is 3,000 ns long, with a mean gap of 1,500 ns.
    assert_eq!(times, [0, 1000, 3000, 4500, 5500, 7500, 9000, 10_000, 12_000]);
    assert_eq!(p[0].offset, 0);
    let shift = p[3].offset;
    assert!(shift > 0 && shift.is_multiple_of(STRIPE_BYTES), "{shift}");
    assert_eq!([p[3].offset, p[4].offset, p[5].offset].map(|o| o - shift), [0, 4096, 8192]);
    assert_eq!(p[6].offset, 2 * shift % PLAN.volume_bytes);
}

#[test]
fn speed_divides_time() {
    let w = Workload::load(&own("tpcc-head.trace"), None).unwrap();
    let (one, four) = (play(&w, PLAN, 3000), play(&w, Plan { speed: 4.0, ..PLAN }, 3000));
    for (a, b) in one.iter().zip(&four) {
        assert!(a.at.0.abs_diff(b.at.0 * 4) < 8, "{a:?} {b:?}");
    }
}

#[test]
fn devices_get_regions_and_requests_stay_inside() {
    let w = Workload::load(&own("tpcc-head.trace"), None).unwrap();
    let player = w.play(PLAN).unwrap();
    let region = player.region_bytes();
    assert_eq!(region, 4 << 20);
    let mut regions = std::collections::BTreeSet::new();
    for r in play(&w, PLAN, 10_000) {
        assert!(r.offset + r.len <= PLAN.volume_bytes);
        assert_eq!(r.offset / region, (r.offset + r.len - 1) / region, "crosses a region: {r:?}");
        assert!(r.offset % 512 == 0 && r.len % 512 == 0 && r.len > 0);
        regions.insert(r.offset / region);
    }
    assert_eq!(regions.len(), 16);
}

#[test]
fn sector_alignment_is_kept_and_odd_bytes_are_rounded_outwards() {
    let w = Workload::load(&own("tpcc-head.trace"), None).unwrap();
    let unaligned = play(&w, PLAN, 1500).iter().filter(|r| r.offset % 4096 != 0).count();
    assert!(unaligned > 1000, "{unaligned} of 1500 not on 4 KiB");
    let s = Scratch::new("odd", "");
    std::fs::write(&s.0, "1,R,100,1000,0\n1,W,512,512,1\n").unwrap();
    let w = Workload::load(&s.0, Some(Format::Alibaba)).unwrap();
    let p = play(&w, PLAN, 2);
    assert_eq!((p[0].offset, p[0].len, p[0].rounded), (0, 1536, true));
    assert_eq!((p[1].offset, p[1].len, p[1].rounded), (512, 512, false));
}

#[test]
fn times_never_go_back() {
    let s = Scratch::new("back", "5000 0 0 8 0\n3000 0 8 8 1\n9000 0 16 8 0\n");
    let w = s.load().unwrap();
    assert_eq!(w.survey().out_of_order, 1);
    let p = play(&w, PLAN, 30);
    assert!(p.windows(2).all(|x| x[0].at <= x[1].at), "{p:?}");
    assert_eq!(p[1].at, Span::ZERO);
}

#[test]
fn poisson_arrivals_have_their_rate_and_seed() {
    let w = Workload::load(&own("tpcc-head.trace"), None).unwrap();
    let plan = Plan { rate: Some(10_000.0), ..PLAN };
    let p = play(&w, plan, 20_000);
    let took = p.last().unwrap().at.as_secs_f64();
    assert!((took - 2.0).abs() < 0.1, "{took}");
    assert_eq!(p, play(&w, plan, 20_000));
    assert_ne!(p[0].at, play(&w, Plan { seed: 2, ..plan }, 1)[0].at);
}

#[test]
fn traces_without_times_or_requests_are_refused() {
    let s = Scratch::new("same", "5 0 0 8 0\n5 0 8 8 1\n");
    let w = s.load().unwrap();
    assert!(matches!(w.play(PLAN).err(), Some(WorkloadError::NoTimes { requests: 2, .. })));
    assert!(w.play(Plan { rate: Some(1.0), ..PLAN }).is_ok());
    let s = Scratch::new("empty", "\n\n");
    assert!(matches!(s.load(), Err(WorkloadError::Empty { .. })));
    let s = Scratch::new("one", "5 0 0 8 0\n");
    let p = play(&s.load().unwrap(), PLAN, 3);
    assert!(p[0].at < p[1].at && p[1].at < p[2].at);
    let s = Scratch::new("long", "5 0 0 8 0\n6 0 0 2097153 0\n");
    assert!(matches!(s.load(), Err(WorkloadError::TooLong { request: 2, len: 1_073_742_336, .. })));
}

#[test]
fn a_long_request_is_cut_to_its_region() {
    let s = Scratch::new("region", "5 0 40 400000 0\n6 1 7 8 1\n");
    let p = play(&s.load().unwrap(), PLAN, 2);
    assert_eq!((p[0].op, p[0].offset, p[0].len), (TraceOp::Write, 0, 32 << 20));
    assert_eq!((p[1].offset, p[1].len), ((32 << 20) + 7 * 512, 4096));
}
