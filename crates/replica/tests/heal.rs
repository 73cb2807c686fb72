//! Contents taken from another member for a block that cannot be read here: only those of the version that is wanted.

use rackweave_core::msg::{Body, Header, IoReply, IoRequest, Member, Packet, Peer, Role, SectorRange, View, ViewState};
use rackweave_core::{BlockAddr, Epoch, Incarnation, NodeId, Payload, SetId, Timestamp, VssdId};
use rackweave_replica::Store;

use crate::single::{One, V, block, ts};

fn at() -> BlockAddr {
    BlockAddr::new(V, 0)
}

fn data(n: u64) -> Payload {
    Payload::elided(4096, n << 8)
}

/// A member whose block 0 has this version and cannot be read.
fn corrupt(version: Timestamp) -> One {
    let mut o = One::new(Role::Member);
    o.store.put(at(), version, data(1));
    o.store.corrupt.insert(at());
    o
}

/// What the store has read comes.
fn finish(o: &mut One) {
    for done in std::mem::take(&mut o.store.done) {
        o.r.handle_store(o.now, done, &mut o.store, &mut o.fx);
    }
}

/// The questions for block 0 that were sent: whom, and by which number.
fn asked(o: &mut One) -> Vec<(u32, u64)> {
    let asks = o.fx.packets.drain(..).filter(|p| matches!(p.body, Body::Peer(Peer::BlockAsk { addr }) if addr == at()));
    asks.map(|p| (p.dst.0 - 2, p.header.request)).collect()
}

/// A client reads the block; whom its member asks, and by which number.
fn read(o: &mut One) -> (u32, u64) {
    let range = SectorRange { volume: V, first: 0, count: 8 };
    assert!(o.io(IoRequest::Read { range }).is_empty());
    finish(o);
    asked(o)[..].first().copied().expect("another member is asked")
}

fn answer(o: &mut One, epoch: u32, (from, request): (u32, u64), version: Timestamp, data: Option<Payload>) {
    let header = Header { request, ..o.header(epoch, from) };
    let body = Body::Peer(Peer::Block { addr: at(), version, data });
    let p = Packet { src: NodeId(2 + from), dst: NodeId(2), header, body };
    o.r.handle_peer(o.now, p, &mut o.store, &mut o.fx);
}

#[test]
fn a_late_answer_about_an_older_version_does_not_replace_a_newer_one() {
    let mut o = corrupt(ts(3, 1));
    let ask = read(&mut o);
    o.inv(1, 9, block(0, ts(5, 1), Timestamp::ZERO, false));
    o.peer(1, Peer::Val { volume: V, blocks: [(0, ts(5, 1))].into() });
    // What is there now comes from flash, and takes a while.
    o.store.slow = 1;
    for _ in 0..2 {
        answer(&mut o, 4, ask, ts(3, 1), Some(data(1)));
        assert!(o.replies().is_empty());
    }
    assert_eq!((o.version(0), &o.store.contents()[&at()]), (ts(5, 1), &data(9)));
    finish(&mut o);
    assert_eq!(o.replies(), [IoReply::Data(data(9))]);
}

#[test]
fn a_corrupt_block_is_healed_with_its_own_version_only() {
    let mut o = corrupt(ts(5, 1));
    let first = read(&mut o);
    answer(&mut o, 4, first, ts(3, 1), Some(data(7)));
    let second = asked(&mut o);
    assert!(matches!(second[..], [(to, _)] if to != first.0), "the next one is asked: {second:?}");
    answer(&mut o, 4, second[0], Timestamp::ZERO, None);
    let third = asked(&mut o);
    assert_eq!(third, [first]);
    answer(&mut o, 4, third[0], ts(5, 1), Some(data(1)));
    assert_eq!(o.replies(), [IoReply::Data(data(1))]);
    assert_eq!((o.r.stats().healed, o.store.corrupt.len()), (1, 0));
    // What a fill stamped anew has the same contents.
    let mut o = corrupt(ts(5, 1));
    let ask = read(&mut o);
    answer(&mut o, 4, ask, ts(1, 2), Some(data(1)));
    assert_eq!(o.replies(), [IoReply::Data(data(1))]);
}

/// Members that recover may hold different contents. The newest is healed by who has the same; if nobody has, it was never
/// flushed, and what others have takes its place, under a version of its own.
#[test]
fn a_recovery_takes_the_newest_copy_from_who_has_it_before_it_goes_back() {
    let m = |i: u32| Member {
        vssd: VssdId(1 + i),
        server: NodeId(2 + i),
        incarnation: Incarnation(50 + u64::from(i)),
        role: Role::Member,
    };
    let state = ViewState::Recovering { leader: VssdId(2) };
    let members = vec![m(0), m(1), m(2)];
    let view = View { set: SetId(1), epoch: Epoch(5), state, recovered: Epoch(0), members };
    let begin = |version: Timestamp| {
        let mut o = corrupt(version);
        o.r.install(o.now, &view, Incarnation(50), &mut o.store, &mut o.fx);
        o.fx.clear();
        let header = Header { request: u64::MAX, ..o.header(5, 1) };
        assert!(o.peer_as(header, 1, Peer::BlockAsk { addr: at() }).is_empty());
        finish(&mut o);
        o
    };
    let given = |o: &mut One| {
        let blocks = o.sent().into_iter().filter_map(|p| match p {
            Peer::Block { version, data, .. } => Some((version, data)),
            _ => None,
        });
        blocks.collect::<Vec<_>>()
    };
    for newest in [ts(5, 1), ts(1, 0)] {
        let mut o = begin(newest);
        let first = asked(&mut o)[0];
        answer(&mut o, 5, first, ts(3, 1).min(Timestamp::new(Epoch(3), 3, 1)), Some(data(7)));
        let second = asked(&mut o)[0];
        assert_ne!(first.0, second.0);
        answer(&mut o, 5, second, newest, Some(data(1)));
        assert_eq!(given(&mut o), [(newest, Some(data(1)))]);
    }
    let mut o = begin(ts(5, 1));
    let mut asks = 0;
    loop {
        let next = asked(&mut o);
        let Some(&ask) = next.first() else { break };
        asks += 1;
        answer(&mut o, 5, ask, Timestamp::new(Epoch(3), 3, 1), Some(data(7)));
        if o.fx.packets.iter().any(|p| matches!(p.body, Body::Peer(Peer::Block { .. }))) {
            break;
        }
    }
    assert!(asks > 2, "each was asked before: {asks}");
    assert_eq!(given(&mut o), [(ts(5, 1), Some(data(7)))]);
    assert_eq!((o.r.stats().healed, o.store.corrupt.len()), (0, 1), "not put in its place here");
}
