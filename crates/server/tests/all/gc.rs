use rackweave_core::msg::{Body, GcField, IoReply, Packet, Table};
use rackweave_core::{Rng, Span};
use rackweave_server::trace;
use rackweave_server::{GcPolicy, GcState};
use rackweave_switch::trace as switch_trace;

use super::rack::{LEASE, Options, Rack, contents};

/// Time between two overwrites.
const PAUSE: Span = Span::from_micros(400);

fn small(policy: GcPolicy) -> Options {
    Options { ssd_bytes: 96 << 20, cache_slots: 3 * 128, policy, ..Options::default() }
}

/// Fills most of set 0 and overwrites at random until `done`.
fn churn(r: &mut Rack, done: impl Fn(&Rack) -> bool) {
    let exported = r.server(0).status(r.now()).vssds[0].exported_bytes() / 4096;
    let blocks = (exported * 6 / 10) as u32;
    let mut rng = Rng::new(7);
    for i in 0..200_000u32 {
        let block = if i < blocks { i } else { rng.below(u64::from(blocks)) as u32 };
        assert_eq!(r.write(0, block, contents(u64::from(i))), Some(IoReply::Done), "write {i}");
        if i >= blocks {
            // A closed-loop writer would take every block as it is freed, and no episode would end.
            r.run(PAUSE);
            if i % 64 == 0 && done(r) {
                return;
            }
        }
    }
    panic!("did not happen: {:?}", r.server(0).status(r.now()));
}

fn sum(r: &Rack, what: impl Fn(&rackweave_server::VssdStatus) -> u64) -> u64 {
    r.servers().flat_map(|s| s.status(r.now()).vssds).map(|v| what(&v)).sum()
}

#[test]
fn soft_requests_are_accepted_delayed_and_episodes_end() {
    let mut r = Rack::serving(small(GcPolicy::Coordinated));
    churn(&mut r, |r| r.count(trace::GC_END) >= 6);
    assert!(r.count(switch_trace::GC_ACCEPTED) > 0);
    assert!(sum(&r, |v| v.flash.erases) > 0 && sum(&r, |v| v.gc_episodes) >= 6);
    assert_eq!(sum(&r, |v| v.gc_unacknowledged), 0);
    r.run(LEASE * 2);
    r.assert_nand();
    assert!(r.count(switch_trace::GC_DELAYED) > 0, "three replicas with the same writes never met");
}

#[test]
fn unacknowledged_regular_requests_collect_anyway() {
    fn gc_lost(p: &Packet) -> bool {
        matches!(p.body, Body::Table(Table::Gc(op)) if op.field != GcField::Idle)
    }
    let mut r = Rack::serving(small(GcPolicy::Coordinated));
    r.lose(gc_lost);
    churn(&mut r, |r| r.count(trace::GC_UNACKNOWLEDGED) >= 1 && r.count(trace::GC_END) >= 1);
    assert_eq!(r.count(switch_trace::GC_ACCEPTED), 0);
    r.lose(|_| false);
    r.run(LEASE);
    let stuck = |s: GcState| matches!(s, GcState::Finishing { .. });
    assert!(r.servers().all(|s| s.status(r.now()).vssds.iter().all(|v| !stuck(v.gc))));
    r.assert_nand();
}

#[test]
fn the_baseline_collects_alone_and_asks_nobody() {
    let mut r = Rack::serving(small(GcPolicy::Uncoordinated));
    churn(&mut r, |r| r.count(trace::GC_END) >= 3);
    let asked = [switch_trace::GC_ACCEPTED, switch_trace::GC_DELAYED, switch_trace::GC_REGULAR];
    assert!(asked.iter().all(|&p| r.count(p) == 0));
    r.run(Span::from_secs(1));
    r.assert_nand();
}

#[test]
fn reads_of_a_collecting_replica_are_served_elsewhere() {
    let mut r = Rack::serving(small(GcPolicy::Coordinated));
    churn(&mut r, |r| {
        r.servers().any(|s| s.status(r.now()).vssds.iter().any(|v| v.set.0 == 0 && v.gc == GcState::Collecting))
    });
    for member in 0..3 {
        for b in 0..8 {
            assert!(matches!(r.read_from(0, member, b, 1), Some(IoReply::Data(_))));
        }
    }
    assert!(sum(&r, |v| v.redirected_reads) > 0 && r.count(trace::REDIRECT) > 0);
}

#[test]
fn an_idle_vssd_collects_in_the_background_until_it_is_used() {
    let mut r = Rack::serving(small(GcPolicy::Coordinated));
    churn(&mut r, |r| r.count(trace::GC_END) >= 3);
    let lowest = |r: &Rack| {
        let all = r.servers().flat_map(|s| s.status(r.now()).vssds);
        all.filter(|v| v.set.0 == 0).map(|v| v.space.free_ratio()).fold(1.0, f64::min)
    };
    let before = lowest(&r);
    assert!(before < 0.45 && r.count(trace::GC_WHILE_IDLE) == 0, "{before} free while it was written");
    r.run(Span::from_millis(100));
    assert!(r.count(trace::GC_WHILE_IDLE) > 0 && r.count(switch_trace::GC_BACKGROUND) > 0);
    let collects = |r: &Rack| r.servers().flat_map(|s| s.status(r.now()).vssds).any(|v| v.gc == GcState::Collecting);
    assert!(collects(&r));
    let ends = r.count(trace::GC_END);
    assert_eq!(r.write(0, 0, contents(1)), Some(IoReply::Done));
    assert!(r.count(trace::GC_END) > ends, "it was used");
    r.run(Span::from_secs(5));
    assert!(lowest(&r) >= 0.45 && !collects(&r), "{} free after {before}", lowest(&r));
    assert!(sum(&r, |v| v.gc_background) > 0);
    r.assert_nand();
}
