//! The whole public traces, if they are available.

use rackweave_core::Span;
use rackweave_replay::trace::{Format, TraceReader};
use rackweave_replay::workload::Workload;

use crate::shared;

fn load(test: &str, name: &str) -> Option<Workload> {
    shared(test, name).map(|p| Workload::load(&p, None).unwrap())
}

#[test]
fn tpcc_small() {
    let Some(w) = load("tpcc_small", "mqsim/tpcc-small.trace.zst") else { return };
    let s = w.survey();
    assert_eq!((w.format(), s.requests, s.writes, s.devices.len()), (Format::Mqsim, 6_999, 2_618, 16));
    assert_eq!((s.bytes_read + s.bytes_written, s.out_of_order), (59_718_656, 0));
    assert_eq!(s.span, Span(1_075_002_000 - 938_513_000));
}

#[test]
fn wsrch_small() {
    let Some(w) = load("wsrch_small", "mqsim/wsrch-small.trace.zst") else { return };
    let s = w.survey();
    assert_eq!((w.format(), s.requests, s.reads, s.devices.len()), (Format::Mqsim, 24_783, 24_779, 6));
}

#[test]
fn cloudphysics() {
    let Some(w) = load("cloudphysics", "cloudphysics/cloudPhysicsIO.vscsi.zst") else { return };
    let s = w.survey();
    assert_eq!((w.format(), s.requests, s.writes), (Format::Vscsi, 113_872, 66_898));
    assert_eq!(s.span, Span::from_micros(7_200_089_885));
}

#[test]
fn opencas() {
    let Some(p) = shared("opencas", "opencas/ycsb-a-rocksdb-optane-p4800x.csv.zst") else { return };
    let w = Workload::load(&p, None).unwrap();
    let s = w.survey();
    assert_eq!((w.format(), s.requests, s.writes, s.reads), (Format::OpenCas, 64_420, 64_188, 1));
    assert_eq!(TraceReader::open(&p, Some(Format::OpenCas)).unwrap().filter_map(Result::ok).count(), 64_420);
}
