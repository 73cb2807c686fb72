//! Members that do not answer, and members that answer but have not finished.

use rackweave_core::msg::{Block, Body, Control, IoRequest, Peer, Role};
use rackweave_core::{Span, Time};

use crate::single::{One, V};

/// A report would make the metadata service remove the member, whose drive may wait for space for minutes.
#[test]
fn a_member_that_answers_and_does_not_finish_is_not_reported_as_silent() {
    let mut o = One::new(Role::Member);
    let end = Time::ZERO + Span::from_secs(60);
    o.r.set_lease(end);
    for _ in 0..2 {
        o.io(IoRequest::Flush { volume: V });
        o.now += Span::from_millis(1);
    }
    let (mut requested, mut reported) = (0, 0);
    while o.r.deadline() < end {
        o.now = o.r.deadline();
        o.r.handle_timer(o.now, &mut o.store, &mut o.fx);
        for p in std::mem::take(&mut o.fx.packets) {
            match p.body {
                Body::Block(Block::Peer(Peer::ClientsRequest)) => {
                    requested += 1;
                    o.peer(p.dst.0 - 2, Peer::StaleEpoch);
                }
                Body::Control(Control::Silent { .. }) => reported += 1,
                _ => {}
            }
        }
    }
    assert!(requested > 1_000, "each is requested repeatedly: {requested}");
    assert_eq!(reported, 0, "both answered every time");
}
