//! Healing: an unreadable block takes another member's contents only if they have the same version.

use rackweave_core::msg::{
    ALL_WITNESSES, Block, Body, FENCE_ALL, Header, IoError, IoReply, IoRequest, LiveVolumes, Member, Packet, Peer,
    Role, SectorRange, View, ViewState,
};
use rackweave_core::{BlockAddr, Epoch, Incarnation, NodeId, Payload, SetId, Timestamp, VolumeId, VssdId};
use rackweave_replica::{Store, StoreError};

use crate::single::{One, V, block, ts};

fn at() -> BlockAddr {
    BlockAddr::new(V, 0)
}

fn data(n: u64) -> Payload {
    Payload::elided(4096, n << 8)
}

/// A member whose block 0 has this version and cannot be read.
fn corrupt(version: Timestamp) -> One {
    damaged(One::new(Role::Member), version)
}
fn damaged(mut o: One, version: Timestamp) -> One {
    o.store.put(at(), version, data(1));
    o.store.corrupt.insert(at());
    o
}

/// Delivers the store's completed reads.
fn finish(o: &mut One) {
    for done in std::mem::take(&mut o.store.done) {
        o.r.handle_store(o.now, done, &mut o.store, &mut o.fx);
    }
}

/// The requests for block 0 that were sent: receivers and request numbers.
fn requested(o: &mut One) -> Vec<(u32, u64)> {
    let retry =
        o.fx.packets
            .drain(..)
            .filter(|p| matches!(p.body, Body::Block(Block::Peer(Peer::BlockFetch { addr })) if addr == at()));
    retry.map(|p| (p.dst.0 - 2, p.header.request)).collect()
}

/// A client reads the block; returns the member that is asked for it, and the request number.
fn read(o: &mut One) -> (u32, u64) {
    let range = SectorRange { volume: V, first: 0, count: 8 };
    assert!(o.io(IoRequest::read(range)).is_empty());
    finish(o);
    requested(o)[..].first().copied().expect("another member gets the request")
}

fn answer(o: &mut One, epoch: u32, (from, request): (u32, u64), version: Timestamp, data: Option<Payload>) {
    let header = Header { request, ..o.header(epoch, from) };
    let body = Body::Block(Block::Peer(Peer::Block { addr: at(), version, data }));
    let p = Packet { src: NodeId(2 + from), dst: NodeId(2), header, body };
    o.r.handle_peer(o.now, p, &mut o.store, &mut o.fx);
}

#[test]
fn a_late_answer_about_an_older_version_does_not_replace_a_newer_one() {
    let mut o = corrupt(ts(3, 1));
    let ask = read(&mut o);
    o.inv(1, 9, block(0, ts(5, 1), Timestamp::ZERO, false));
    o.peer(1, Peer::Val { volume: V, blocks: [(0, ts(5, 1))].into() });
    // The newer contents are read from flash, which takes a while.
    o.store.slow = 1;
    for _ in 0..2 {
        answer(&mut o, 4, ask, ts(3, 1), Some(data(1)));
        assert!(o.replies().is_empty());
    }
    assert_eq!((o.version(0), &o.store.contents()[&at()]), (ts(5, 1), &data(9)));
    finish(&mut o);
    assert_eq!(o.replies(), [IoReply::Data(data(9))]);
}

/// The contents are those that were to be replayed: the other member has them as Valid.
#[test]
fn a_damaged_block_that_is_to_be_replayed_takes_another_members_contents() {
    let mut o = One::new(Role::Member);
    o.inv(1, 9, block(0, ts(5, 1), Timestamp::ZERO, false));
    o.store.corrupt.insert(at());
    o.now = o.r.deadline();
    o.r.handle_timer(o.now, &mut o.store, &mut o.fx);
    finish(&mut o);
    let ask = requested(&mut o)[..].first().copied().expect("another member gets the request");
    answer(&mut o, 4, ask, ts(5, 1), Some(data(9)));
    finish(&mut o);
    let is_replay = |p: &Packet| match &p.body {
        Body::Block(Block::Peer(Peer::Inv(i))) => i.blocks[0].version == ts(5, 1) && i.data == data(9),
        _ => false,
    };
    assert_eq!(o.fx.packets.iter().filter(|p| is_replay(p)).count(), 2, "both others get it");
    assert_eq!(o.store.contents()[&at()], data(9));
}

/// The newer version is not Valid yet: after an answer with it, another member could still return older contents.
#[test]
fn a_read_that_heals_waits_until_what_overtook_it_is_valid() {
    let mut o = corrupt(ts(3, 1));
    let ask = read(&mut o);
    o.inv(1, 9, block(0, ts(5, 1), Timestamp::ZERO, false));
    o.store.slow = 1;
    answer(&mut o, 4, ask, ts(3, 1), Some(data(1)));
    finish(&mut o);
    assert_eq!(o.replies(), []);
    let body = Body::Block(Block::Peer(Peer::Val { volume: V, blocks: [(0, ts(5, 1))].into() }));
    let p = Packet { src: NodeId(3), dst: NodeId(2), header: o.header(4, 1), body };
    o.r.handle_peer(o.now, p, &mut o.store, &mut o.fx);
    finish(&mut o);
    assert_eq!(o.replies(), [IoReply::Data(data(9))]);
}

#[test]
fn a_corrupt_block_is_healed_with_its_own_version_only() {
    let mut o = corrupt(ts(5, 1));
    let first = read(&mut o);
    answer(&mut o, 4, first, ts(3, 1), Some(data(7)));
    let second = requested(&mut o);
    assert!(matches!(second[..], [(to, _)] if to != first.0), "the next member gets the request: {second:?}");
    answer(&mut o, 4, second[0], ts(5, 1), Some(data(1)));
    assert_eq!(o.replies(), [IoReply::Data(data(1))]);
    assert_eq!((o.r.stats().healed, o.store.corrupt.len()), (1, 0));
    // All have answered, and nobody has it.
    let mut o = corrupt(ts(5, 1));
    let first = read(&mut o);
    answer(&mut o, 4, first, ts(3, 1), Some(data(7)));
    let second = requested(&mut o)[0];
    answer(&mut o, 4, second, Timestamp::ZERO, None);
    assert_eq!(o.replies(), [IoReply::Failed(IoError::Corrupt)]);
    // A silent member may still have the block: the client must retry.
    let mut o = corrupt(ts(5, 1));
    let first = read(&mut o);
    answer(&mut o, 4, first, ts(3, 1), Some(data(7)));
    let replies = (0..40).find_map(|_| {
        o.later(rackweave_core::Span::from_millis(50));
        Some(o.replies()).filter(|r| !r.is_empty())
    });
    assert_eq!(replies, Some(vec![IoReply::Failed(IoError::NotServing)]));
    // A copy with a fill's stamp has the same contents.
    let mut o = corrupt(ts(5, 1));
    let ask = read(&mut o);
    answer(&mut o, 4, ask, ts(1, 2), Some(data(1)));
    assert_eq!(o.replies(), [IoReply::Data(data(1))]);
}

/// The host's file fails the read. Other members may have the block; without others the client waits, as the error
/// may be temporary.
#[test]
fn an_unreadable_block_is_healed_and_a_lone_member_never_reports_it_lost() {
    let unreadable = |mut o: One| {
        o.store.why = StoreError::Unreadable;
        o
    };
    let mut o = unreadable(corrupt(ts(5, 1)));
    let ask = read(&mut o);
    answer(&mut o, 4, ask, ts(5, 1), Some(data(1)));
    assert_eq!((o.replies(), o.r.stats().healed), (vec![IoReply::Data(data(1))], 1));
    // All have answered, and nobody has it.
    let mut o = unreadable(corrupt(ts(5, 1)));
    let first = read(&mut o);
    answer(&mut o, 4, first, ts(3, 1), None);
    let second = requested(&mut o)[0];
    answer(&mut o, 4, second, ts(3, 1), None);
    assert_eq!(o.replies(), [IoReply::Failed(IoError::Corrupt)]);
    let only = |why| {
        let mut o = damaged(One::only(), ts(5, 1));
        o.store.why = why;
        let range = SectorRange { volume: V, first: 0, count: 8 };
        o.io(IoRequest::read(range));
        finish(&mut o);
        o.replies()
    };
    assert_eq!(only(StoreError::Corrupt), [IoReply::Failed(IoError::Corrupt)]);
    assert_eq!(only(StoreError::Unreadable), [IoReply::Failed(IoError::NotServing)]);
}

/// Recovering members may hold different contents. The leader asks for the copies that it may adopt; a member that
/// cannot read its own says so at once.
#[test]
fn in_a_recovery_a_member_answers_for_its_own_copy_only() {
    let mut o = corrupt(ts(5, 1));
    recover(&mut o, 2);
    let header = Header { request: u64::MAX, ..o.header(5, 1) };
    assert!(o.peer_as(header, 1, Peer::BlockFetch { addr: at() }).is_empty());
    finish(&mut o);
    let said = o.sent();
    assert!(matches!(said[..], [Peer::BlockLost { version, .. }] if version == ts(5, 1)), "{said:?}");
    // All members have reported the same to the leader.
    let mark = Peer::MarkLost { addr: at(), version: ts(5, 1) };
    let said = o.peer_as(header, 1, mark.clone());
    assert!(matches!(said[..], [Peer::LostMarked { version, .. }] if version == ts(5, 1)), "{said:?}");
    assert_eq!((o.version(0), o.store.corrupt.len()), (ts(5, 1), 1));
    // Only the leader marks blocks.
    let mut o = corrupt(ts(5, 1));
    recover(&mut o, 3);
    let header = Header { request: u64::MAX, ..o.header(5, 1) };
    assert!(o.peer_as(header, 1, mark).is_empty());
}

/// Installs a view in which the set recovers; the members are 0 to 2, this one is 0.
fn recover(o: &mut One, leader: u32) {
    let m = |i: u32| Member {
        vssd: VssdId(1 + i),
        server: NodeId(2 + i),
        incarnation: Incarnation(50 + u64::from(i)),
        role: Role::Member,
    };
    let state = ViewState::Recovering { leader: VssdId(leader), witnesses: ALL_WITNESSES };
    let members = vec![m(0), m(1), m(2)];
    let view = View { set: SetId(1), epoch: Epoch(5), state, recovered: Epoch(0), members };
    o.r.install(o.now, &view, Incarnation(50), &mut o.store, &mut o.fx);
    o.fx.clear();
}

/// A message of a member of the set that recovers.
fn tell(o: &mut One, from: u32, request: u64, body: Peer) {
    let header = Header { request, ..o.header(5, from) };
    let p = Packet { src: NodeId(2 + from), dst: NodeId(2), header, body: Body::Block(Block::Peer(body)) };
    o.r.handle_peer(o.now, p, &mut o.store, &mut o.fx);
}

/// The other members' digests and scans: member 1 has block 0 at `first`, member 2 at version 9.
fn compared(o: &mut One, first: Timestamp) {
    for from in 1..3 {
        tell(o, from, 0, Peer::Digests { entries: [(BlockAddr::default(), 0)].into(), next: None });
    }
    let (start, until) = (BlockAddr::default(), BlockAddr { volume: VolumeId(u32::MAX), block: u32::MAX });
    let scan = |v| {
        let entry = rackweave_core::msg::peer::ScanEntry { addr: at(), count: 1, version: v, mapped: true };
        Peer::Scan { from: start, until, entries: [entry].into() }
    };
    tell(o, 1, u64::MAX, scan(first));
    leads(o);
    tell(o, 2, u64::MAX, scan(ts(4, 9)));
}

/// The messages that the leader sent, with their receivers.
fn leads(o: &mut One) -> Vec<(u32, Peer)> {
    let of = |p: Packet| match p.body {
        Body::Block(Block::Peer(b)) => Some((p.dst.0 - 2, b)),
        _ => None,
    };
    o.fx.packets.drain(..).filter_map(of).collect()
}

/// No readable copy reaches the floor, and one member is silent: the leader adopts nothing and marks nothing. When that
/// member reports its copy as unreadable, too, the block is marked as lost on all.
#[test]
fn silence_is_no_answer_and_a_block_that_no_member_can_read_is_marked() {
    let mut o = corrupt(ts(4, 7));
    recover(&mut o, 1);
    compared(&mut o, ts(4, 7));
    assert!(matches!(leads(&mut o)[..], [(2, Peer::BlockFetch { .. })]), "the newest first");
    tell(&mut o, 2, u64::MAX, Peer::BlockLost { addr: at(), version: ts(4, 9) });
    finish(&mut o);
    let requested = leads(&mut o);
    assert!(
        matches!(requested[..], [(1, Peer::BlockFetch { .. })]),
        "the leader cannot read its own copy: {requested:?}"
    );
    for _ in 0..40 {
        o.later(rackweave_core::Span::from_secs(1));
        let again = leads(&mut o);
        assert!(again.iter().all(|(to, p)| (*to, p) == (1, &Peer::BlockFetch { addr: at() })), "{again:?}");
    }
    tell(&mut o, 1, u64::MAX, Peer::BlockLost { addr: at(), version: ts(4, 7) });
    let marks = leads(&mut o);
    let mark = Peer::MarkLost { addr: at(), version: ts(4, 9) };
    assert_eq!(marks, [(1, mark.clone()), (2, mark)]);
    assert_eq!((o.version(0), o.store.corrupt.len()), (ts(4, 9), 1));
    for from in 1..3 {
        assert!(leads(&mut o).is_empty());
        tell(&mut o, from, u64::MAX, Peer::LostMarked { addr: at(), version: ts(4, 9) });
    }
    let last = leads(&mut o);
    assert!(matches!(last[..], [(1, Peer::Flush), (2, Peer::Flush)]), "durable before any member serves: {last:?}");
}

/// A volume is deleted while its set recovers, and only the holder of a block knows of it: it says so, and the leader
/// goes on without the block.
#[test]
fn a_recovery_goes_on_without_a_volume_that_only_another_member_knows_to_be_deleted() {
    let mut holder = One::new(Role::Member);
    holder.store.put(at(), ts(4, 9), data(1));
    recover(&mut holder, 2);
    holder.r.learn_volumes(&mut holder.store, &LiveVolumes { first_unused: VolumeId(V.0 + 1), writers: [].into() });
    tell(&mut holder, 1, u64::MAX, Peer::BlockFetch { addr: at() });
    let [(1, said @ Peer::Fence { attach: FENCE_ALL, .. })] = &leads(&mut holder)[..] else { panic!("no answer") };

    let mut o = One::new(Role::Member);
    o.store.put(at(), ts(4, 7), data(1));
    recover(&mut o, 1);
    compared(&mut o, ts(4, 7));
    assert!(matches!(leads(&mut o)[..], [(2, Peer::BlockFetch { .. })]));
    tell(&mut o, 2, u64::MAX, said.clone());
    o.later(rackweave_core::Span::from_secs(1));
    let last: Vec<Peer> =
        leads(&mut o).into_iter().map(|l| l.1).filter(|p| !matches!(p, Peer::FenceAck { .. })).collect();
    assert!(matches!(last[..], [Peer::Flush, Peer::Flush, ..]), "{last:?}");
    assert_eq!(o.version(0), Timestamp::ZERO);
}
