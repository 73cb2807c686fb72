//! The transport over modelled links: paths that change, puts to a group; the same seed gives the same figures.

use rackweave_core::Span;
use rackweave_eval::transport::black_holes;
use rackweave_eval::transport::multicast::{self, Replication, puts};

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
fn a_put_to_a_group_leaves_the_client_once() {
    let group = |quorum, loss, slow| {
        puts(7, Replication::Group { quorum }, 65_536, 4, loss, Span::from_millis(slow), Span::from_millis(30))
    };
    let each = puts(7, Replication::Each, 65_536, 4, 0.0, Span::ZERO, Span::from_millis(30));
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
