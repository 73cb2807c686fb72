//! The order in which client writes start that find no room in the write cache.

use rackweave_core::Span;
use rackweave_core::msg::{Class, IoError, IoReply};
use rackweave_sched::SchedConfig;
use rackweave_server::config::CACHE_SLOTS_MIN;

use super::rack::{Options, Rack, contents};
use super::store::SCHEDULERS;

/// Many times the room of a set's members.
const WRITES: u32 = 1_500;
/// One in this many spent long on the network.
const LATE_ONE_IN: u32 = 5;
/// More than all of them wait.
const LATE_NS: u32 = 100_000_000;

fn small_cache(sched: SchedConfig) -> Rack {
    Rack::serving(Options { cache_slots: 3 * CACHE_SLOTS_MIN, sched, ..Options::default() })
}

#[test]
fn a_write_that_was_long_on_the_way_goes_before_others_where_network_time_counts() {
    for (kind, coordinated) in SCHEDULERS {
        let mut r = small_cache(SchedConfig::new(kind, coordinated));
        // Time begins at zero, and earlier arrivals would look the same.
        r.run(Span::from_secs(1));
        let start = r.now();
        let mut late = Vec::new();
        let mut others = Vec::new();
        for i in 0..WRITES {
            // Consecutive writes are not adjacent in address.
            let io = r.write_request(i * 677 % WRITES, contents(u64::from(i)), false);
            let is_late = i % LATE_ONE_IN == 0;
            r.lat_ns = if is_late { LATE_NS } else { 0 };
            let request = r.send_as(Class::Silver, 0, 0, io);
            if is_late { late.push(request) } else { others.push(request) }
        }
        r.run(Span::from_secs(1));
        assert_eq!(r.answered.len(), WRITES as usize, "{kind:?}, coordinated: {coordinated}");
        let mean = |of: &[u64]| {
            let took: u64 = of.iter().map(|id| r.answered[id].since(start).0).sum();
            took as f64 / of.len() as f64
        };
        let part = mean(&late) / mean(&others);
        if coordinated {
            assert!(part < 0.4, "{kind:?}: late ones took {part:.2} of the others' time");
        } else {
            assert!((0.9..1.1).contains(&part), "{kind:?}: late ones took {part:.2} of the others' time");
        }
    }
}

#[test]
fn writes_beyond_those_that_may_wait_are_refused_and_none_is_forgotten() {
    let mut r = small_cache(SchedConfig::new(Default::default(), true));
    let requests: Vec<u64> = (0..6_000)
        .map(|i| {
            let io = r.write_request(i % 2_000, contents(u64::from(i)), false);
            r.send(0, 0, io)
        })
        .collect();
    let end = r.now() + Span::from_secs(1);
    let mut most = 0;
    while r.now() < end {
        r.run(Span::from_micros(200));
        r.server(0).check().expect("bounds hold");
        most = most.max(r.server(0).status(r.now()).vssds.iter().map(|v| v.queued).max().unwrap_or(0));
    }
    let answers: Vec<_> = requests.iter().map(|&id| r.take_reply(id).expect("each is answered")).collect();
    let refused = answers.iter().filter(|a| matches!(a, IoReply::Failed(IoError::NotServing))).count();
    assert_eq!(answers.iter().filter(|a| **a == IoReply::Done).count() + refused, answers.len());
    assert!(most <= 4_096 && refused > 0 && refused < 2_000, "{most} waited, {refused} refused");
}
