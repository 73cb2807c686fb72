//! The experiments that run in virtual time hold their bars; the same seed gives the same figures.

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
    // What keeps it so is the class: without it the same work shows.
    let mixed = qos::run(5, qos::OFFLINE_SHARE, false, span);
    assert!(mixed.mean.0 - alone.mean.0 > 5 * beside.mean.0.saturating_sub(alone.mean.0), "{mixed:?}, {beside:?}");
}
