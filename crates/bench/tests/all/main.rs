//! The experiments that run in virtual time hold their bars; the same seed gives the same figures.

mod killed;

use rackweave_bench::model::multicast::{self, Replication, puts};
use rackweave_bench::model::shares::controls;
use rackweave_bench::model::{black_holes, loss, qos};
use rackweave_core::Span;

#[test]
fn a_port_that_changes_leaves_black_holes() {
    let hole = Span::from_secs(3);
    let (one, many) = (black_holes::run(7, 0.25, 1, hole), black_holes::run(7, 0.25, 16, hole));
    assert!(one.slow >= 20 * many.slow.max(1), "one port {one:?}, many {many:?}");
    assert!(many.change[1] <= Span::from_millis(50) && many.path_changes > 100, "{many:?}");
    assert_eq!((one.lost, many.lost), (0, 0));
    assert_eq!(many, black_holes::run(7, 0.25, 16, hole), "the same seed");
}

#[test]
fn loss_costs_little_goodput_and_go_back_n_much() {
    for (name, cfg) in controls().into_iter().take(3) {
        for (loss, bar) in loss::BARS {
            let (selective, back) = loss::of_lossless(&cfg, loss, Span::from_millis(60));
            assert!(selective >= bar && back < selective, "{name} at {loss}: {selective}, go-back-N {back}");
        }
    }
}

#[test]
fn offline_work_in_its_class_leaves_online_reads_alone() {
    let span = Span::from_millis(300);
    let (alone, beside) = (qos::run(5, 0.0, true, span), qos::run(5, qos::OFFLINE_SHARE, true, span));
    assert!(beside.p99.0 * 100 <= alone.p99.0 * 105, "alone {alone:?}, beside {beside:?}");
    assert!(beside.offline > 0.34, "{beside:?}");
    // The class makes the difference: without it the same work shows.
    let mixed = qos::run(5, qos::OFFLINE_SHARE, false, span);
    assert!(mixed.mean.0 - alone.mean.0 > 5 * beside.mean.0.saturating_sub(alone.mean.0), "{mixed:?}, {beside:?}");
}

#[test]
fn a_put_to_a_group_leaves_the_client_once() {
    let group = |quorum, loss, slow| {
        puts(Replication::Group { quorum }, 65_536, 4, loss, Span::from_millis(slow), Span::from_millis(30))
    };
    let each = puts(Replication::Each, 65_536, 4, 0.0, Span::ZERO, Span::from_millis(30));
    let all = group(3, 0.0, 0);
    let a_put = |p: &multicast::Puts| p.sent_bytes as f64 / p.sent as f64;
    assert!(a_put(&all) < multicast::BYTES_BAR * a_put(&each), "{all:?} {each:?}");
    assert!(all.gbps > 2.0 * each.gbps, "{} and {}", all.gbps, each.gbps);
    for (loss, bar) in multicast::BARS {
        let lossy = group(3, loss, 0);
        assert!(lossy.gbps >= bar * all.gbps, "{loss}: {} of {}", lossy.gbps, all.gbps);
        assert_eq!(lossy.everywhere, lossy.sent, "{loss}");
    }
    // Any two do not wait for the third, which eventually gets everything.
    let (slow, two) = (group(3, 0.0, 5), group(2, 0.0, 5));
    assert!(two.median_us() < multicast::ANY_BAR * group(2, 0.0, 0).median_us(), "{}", two.median_us());
    assert!(slow.median_us() > 3.0 * two.median_us());
    assert_eq!(two.everywhere, two.sent);
    assert_eq!(two.took, group(2, 0.0, 5).took, "the same seed");
}
