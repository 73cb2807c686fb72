//! Rules that several replicas enforce, so that a set hides a broken one: each is tested at one member alone.

use rackweave_core::msg::io::WriteRequest;
use rackweave_core::msg::peer::{Credit, Inv};
use rackweave_core::msg::{
    Block, BlockRange, Body, Header, IoError, IoReply, IoRequest, LiveVolumes, Mutation, Packet, Peer, Role,
    SectorRange,
};
use rackweave_core::{BlockAddr, Epoch, Incarnation, NodeId, Payload, Timestamp, VssdId};
use rackweave_replica::{Store, StoreDone};

use crate::single::{One, V, acked, block, blocks_asked, compared, ts, view};

const CLIENT: Incarnation = Incarnation(9);

fn mutation(sequence: u64) -> Mutation {
    Mutation { client: CLIENT, sequence, floor: 0 }
}

/// A write of these sectors, by the writer of this generation.
fn write(sequence: u64, attach: u32, first: u64, count: u32) -> IoRequest {
    IoRequest::Write(Box::new(WriteRequest {
        range: SectorRange { volume: V, first, count },
        data: Payload::elided(count * 512, sequence << 16),
        mutation: mutation(sequence),
        attach,
        fua: false,
    }))
}

/// A member with credit at both others.
fn coordinator() -> One {
    let mut o = One::new(Role::Member);
    let credit = Credit { slots: 8, pages: 8, no_space: false };
    for member in [1, 2] {
        o.peer(member, Peer::CreditGrant { credit });
    }
    o
}

/// The block of the coordinator's first invalidation, and the message's request number.
fn sent_block(o: &One) -> Option<(rackweave_core::msg::peer::InvBlock, u64)> {
    o.fx.packets.iter().find_map(|p| match &p.body {
        Body::Block(Block::Peer(Peer::Inv(i))) => Some((i.blocks[0], p.header.request)),
        _ => None,
    })
}

/// Delivers a client's request, without taking the output.
fn ask(o: &mut One, io: IoRequest) {
    let header = Header { epoch: o.r.epoch(), ..o.header(0, 9) };
    let p = Packet { src: NodeId(90), dst: NodeId(2), header, body: Body::Block(Block::Io(io)) };
    o.r.handle_io(o.now, p, &mut o.store, &mut o.fx);
}

fn finish_store(o: &mut One) {
    while let Some(done) = o.store.done.pop() {
        o.r.handle_store(o.now, done, &mut o.store, &mut o.fx);
    }
}

#[test]
fn messages_of_a_members_earlier_life_change_nothing() {
    let mut o = One::new(Role::Member);
    let header = Header { incarnation: Incarnation(41), ..o.header(4, 1) };
    assert!(o.peer_as(header, 1, Peer::Flush).is_empty());
    assert_eq!(o.store.persists, 0);
    assert!(o.peer(1, Peer::Flush).is_empty());
    assert_eq!(o.store.persists, 1, "its current incarnation is served");
}

#[test]
fn an_invalidation_brings_its_writers_generation() {
    let mut o = coordinator();
    let inv = |attach| {
        let data = Payload::elided(4096, 1);
        let blocks = [block(0, ts(3, 1), Timestamp::ZERO, false)].into();
        Peer::Inv(Inv { volume: V, blocks, data, mutation: mutation(1), attach, fua: false }.into())
    };
    assert_eq!(o.peer(1, inv(3)).len(), 1);
    o.peer(1, Peer::Val { volume: V, blocks: [(0, ts(3, 1))].into() });
    assert_eq!(o.io(write(2, 2, 8, 8)), [IoReply::Failed(IoError::Fenced { attach: 3 })]);
}

#[test]
fn a_partial_write_made_from_what_a_range_under_way_covers_is_refused() {
    let mut o = One::new(Role::Member);
    o.inv(1, 1, block(0, ts(3, 1), Timestamp::ZERO, false));
    o.peer(1, Peer::Val { volume: V, blocks: [(0, ts(3, 1))].into() });
    let range = BlockRange { volume: V, first: 0, count: 4 };
    o.peer(1, Peer::InvRange { range, version: ts(7, 1), mutation: mutation(2), attach: 0, fua: false });
    let refused = o.inv(2, 3, block(0, ts(9, 2), ts(3, 1), true));
    assert!(matches!(&refused[..], [Peer::Nack { blocks, .. }] if blocks[0].version == ts(7, 1)), "{refused:?}");
    assert_eq!(o.version(0), ts(7, 1));
    let made_from_it = o.inv(2, 3, block(0, ts(9, 2), ts(7, 1), true));
    assert!(matches!(made_from_it[..], [Peer::Ack { .. }]), "{made_from_it:?}");
}

/// Hermes: a write wins over a read-modify-write of the same base.
#[test]
fn a_whole_write_takes_a_higher_version_than_a_partial_one_from_the_same_base() {
    let version = |io| {
        let mut o = coordinator();
        o.inv(1, 1, block(0, ts(6, 1), Timestamp::ZERO, false));
        o.peer(1, Peer::Val { volume: V, blocks: [(0, ts(6, 1))].into() });
        ask(&mut o, io);
        let (sent, _) = sent_block(&o).expect("an invalidation");
        assert_eq!(sent.base, ts(6, 1));
        sent.version
    };
    assert_eq!(version(write(2, 0, 0, 8)), ts(8, 0));
    assert_eq!(version(write(2, 0, 1, 2)), ts(7, 0));
}

/// A member may have received writes after its acknowledgement in the last epoch.
#[test]
fn an_epoch_change_begins_a_flush_anew_at_every_member() {
    let mut o = One::new(Role::Member);
    let number = |o: &One| {
        let flush = |p: &&Packet| matches!(p.body, Body::Block(Block::Peer(Peer::Flush)));
        o.fx.packets.iter().find(flush).expect("a flush").header.request
    };
    ask(&mut o, IoRequest::Flush { volume: V });
    finish_store(&mut o);
    let first = Header { request: number(&o), ..o.header(4, 1) };
    o.fx.clear();
    assert!(o.peer_as(first, 1, Peer::FlushAck { ok: true }).is_empty());
    o.r.install(o.now, &view(5, Role::Member), Incarnation(50), &mut o.store, &mut o.fx);
    finish_store(&mut o);
    let anew = number(&o);
    let answers = |o: &mut One, from| {
        let header = Header { request: anew, ..o.header(5, from) };
        let src = NodeId(2 + from);
        let p = Packet { src, dst: NodeId(2), header, body: Body::Block(Block::Peer(Peer::FlushAck { ok: true })) };
        o.r.handle_peer(o.now, p, &mut o.store, &mut o.fx);
        o.replies()
    };
    assert_eq!(answers(&mut o, 2), [], "member 1 has not acknowledged in this epoch");
    assert_eq!(answers(&mut o, 1), [IoReply::Done]);
}

/// The writer was fenced while its write lost to another one: a retry would merge onto the new writer's data.
#[test]
fn a_partial_write_that_lost_is_not_tried_again_for_a_writer_that_was_fenced() {
    for fenced in [false, true] {
        let mut o = coordinator();
        ask(&mut o, write(1, 0, 1, 2));
        let (mine, _) = sent_block(&o).expect("an invalidation");
        assert!(mine.rmw);
        o.fx.clear();
        // A whole-block write through another member overtakes it.
        let above = ts(mine.version.version() + 5, 1);
        o.inv(1, 2, block(0, above, Timestamp::ZERO, false));
        if fenced {
            assert!(o.peer(1, Peer::Fence { volume: V, attach: 1 }).is_empty(), "it waits for the write");
        }
        o.fx.clear();
        let p = Packet {
            src: NodeId(3),
            dst: NodeId(2),
            header: o.header(4, 1),
            body: Body::Block(Block::Peer(Peer::Val { volume: V, blocks: [(0, above)].into() })),
        };
        o.r.handle_peer(o.now, p, &mut o.store, &mut o.fx);
        finish_store(&mut o);
        assert_eq!(sent_block(&o).is_some(), !fenced, "retried unless its writer is fenced");
        let answers = o.replies();
        let wanted: &[IoReply] = if fenced { &[IoReply::Failed(IoError::Fenced { attach: 1 })] } else { &[] };
        assert_eq!(answers, wanted);
    }
}

/// A write with FUA of these sectors.
fn durable_write(sequence: u64, first: u64, count: u32) -> IoRequest {
    let IoRequest::Write(mut w) = write(sequence, 0, first, count) else { unreachable!("a write") };
    w.fua = true;
    IoRequest::Write(w)
}

fn flushes(o: &One) -> usize {
    o.fx.packets.iter().filter(|p| matches!(p.body, Body::Block(Block::Peer(Peer::Flush)))).count()
}

/// Delivers a member's message, without taking the output.
fn hear(o: &mut One, header: Header, from: u32, body: Peer) {
    let p = Packet { src: NodeId(2 + from), dst: NodeId(2), header, body: Body::Block(Block::Peer(body)) };
    o.r.handle_peer(o.now, p, &mut o.store, &mut o.fx);
}

fn val(o: &mut One, b: u32, version: Timestamp) {
    let header = o.header(4, 1);
    hear(o, header, 1, Peer::Val { volume: V, blocks: [(b, version)].into() });
}

#[test]
fn a_flush_that_a_member_could_not_do_is_not_done() {
    let mut o = One::new(Role::Member);
    ask(&mut o, IoRequest::Flush { volume: V });
    finish_store(&mut o);
    let header = |o: &One, from| Header { request: o.fx.packets[0].header.request, ..o.header(4, from) };
    let (first, second) = (header(&o, 1), header(&o, 2));
    hear(&mut o, first, 1, Peer::FlushAck { ok: false });
    hear(&mut o, second, 2, Peer::FlushAck { ok: true });
    assert_eq!(o.replies(), []);
}

#[test]
fn what_could_not_be_made_durable_is_acknowledged_by_no_member() {
    let failed = |o: &mut One| {
        let Some(StoreDone::Persisted { token, .. }) = o.store.done.pop() else { panic!("nothing is persisted") };
        o.r.handle_store(o.now, StoreDone::Persisted { token, ok: false }, &mut o.store, &mut o.fx);
        o.sent()
    };
    let mut o = One::new(Role::Member);
    assert!(o.peer(1, Peer::Flush).is_empty());
    assert!(matches!(failed(&mut o)[..], [Peer::FlushAck { ok: false }]));
    let mut o = One::new(Role::Member);
    let (blocks, data) = ([block(0, ts(3, 1), Timestamp::ZERO, false)].into(), Payload::elided(4096, 1));
    let inv = Inv { volume: V, blocks, data, mutation: mutation(1), attach: 0, fua: true };
    assert!(o.peer(1, Peer::Inv(inv.into())).is_empty());
    assert_eq!(failed(&mut o), []);
}

#[test]
fn a_range_with_fua_is_acknowledged_when_it_is_durable() {
    let mut o = One::new(Role::Member);
    let range = BlockRange { volume: V, first: 0, count: 4 };
    let inv = |fua| Peer::InvRange { range, version: ts(7, 1), mutation: mutation(2), attach: 0, fua };
    assert_eq!(o.peer(1, inv(true)), []);
    finish_store(&mut o);
    assert!(matches!(o.sent()[..], [Peer::Ack { .. }]));
}

#[test]
fn a_durable_write_that_is_in_effect_already_is_answered_when_that_is_durable() {
    let mut o = coordinator();
    o.inv(1, 1, block(0, ts(3, 1), Timestamp::ZERO, false));
    val(&mut o, 0, ts(3, 1));
    ask(&mut o, durable_write(1, 0, 8));
    assert_eq!((flushes(&o), o.replies()), (2, vec![]), "the write took effect without a request to make it durable");
    ask(&mut o, write(1, 0, 0, 8));
    assert_eq!(o.replies(), [IoReply::Done]);
}

/// A later write is based on it, so it took effect; no member has made it durable.
#[test]
fn a_durable_partial_write_that_took_effect_elsewhere_is_answered_when_it_is_durable() {
    let mut o = coordinator();
    ask(&mut o, durable_write(1, 1, 2));
    let (mine, _) = sent_block(&o).expect("an invalidation");
    finish_store(&mut o);
    o.fx.clear();
    let above = ts(mine.version.version() + 5, 1);
    o.inv(1, 2, block(0, above, mine.version, true));
    o.fx.clear();
    val(&mut o, 0, above);
    finish_store(&mut o);
    assert_eq!((flushes(&o), o.replies()), (2, vec![]));
}

/// Its data is durable under the first version, which was replaced by a higher one.
#[test]
fn a_durable_write_that_began_anew_is_answered_when_that_is_durable() {
    let mut o = coordinator();
    ask(&mut o, durable_write(1, 0, 8));
    let (mine, request) = sent_block(&o).expect("an invalidation");
    let first = o.store.done.pop().expect("a persist in progress");
    o.fx.clear();
    let over = ts(mine.version.version() + 3, 1);
    let blocks = [rackweave_core::msg::peer::NackBlock { block: 0, version: over, same: false }].into();
    let header = Header { request, ..o.header(4, 1) };
    hear(&mut o, header, 1, Peer::Nack { blocks, credit: Credit { slots: 8, pages: 8, no_space: false } });
    let (anew, request) = sent_block(&o).expect("another round");
    assert!(anew.version > over);
    for from in [1, 2] {
        let header = Header { request, ..o.header(4, from) };
        hear(&mut o, header, from, Peer::Ack { credit: Credit { slots: 8, pages: 8, no_space: false } });
    }
    o.r.handle_store(o.now, first, &mut o.store, &mut o.fx);
    assert_eq!(o.replies(), []);
    finish_store(&mut o);
    assert_eq!(o.replies(), [IoReply::Done]);
}

#[test]
fn a_block_without_a_page_takes_credit_for_one_at_every_member() {
    let mut o = One::new(Role::Member);
    for member in [1, 2] {
        o.peer(member, Peer::CreditGrant { credit: Credit { slots: 8, pages: 1, no_space: false } });
    }
    ask(&mut o, write(1, 0, 0, 8));
    ask(&mut o, write(2, 0, 8, 8));
    assert_eq!(o.r.unresolved(), 1, "the second waits for a page");
}

/// The range's record may be forgotten while a late copy of a write under it is still in flight.
#[test]
fn a_write_is_above_every_range_of_its_epoch() {
    let mut o = coordinator();
    let range = BlockRange { volume: V, first: 0, count: 4 };
    o.peer(1, Peer::InvRange { range, version: ts(7, 1), mutation: mutation(1), attach: 0, fua: false });
    o.peer(1, Peer::ValRange { range, version: ts(7, 1) });
    ask(&mut o, write(2, 0, 800, 8));
    let (sent, _) = sent_block(&o).expect("an invalidation");
    assert!(sent.version > ts(7, 1), "{:?}", sent.version);
}

#[test]
fn a_range_gives_way_to_a_partial_write_under_way_that_was_not_made_from_it() {
    let mut o = One::new(Role::Member);
    o.inv(1, 1, block(1, ts(9, 1), ts(3, 1), true));
    let range = BlockRange { volume: V, first: 0, count: 4 };
    let inv = |version| Peer::InvRange { range, version, mutation: mutation(2), attach: 0, fua: false };
    let refused = o.peer(2, inv(ts(7, 2)));
    assert!(matches!(&refused[..], [Peer::Nack { blocks, .. }] if blocks[0].version == ts(9, 1)), "{refused:?}");
    assert!(matches!(o.peer(2, inv(ts(11, 2)))[..], [Peer::Ack { .. }]));
}

#[test]
fn blocks_under_way_are_part_of_a_newer_range() {
    let mut o = One::new(Role::Member);
    o.inv(1, 1, block(1, ts(3, 1), Timestamp::ZERO, false));
    let range = BlockRange { volume: V, first: 0, count: 4 };
    o.peer(2, Peer::InvRange { range, version: ts(7, 2), mutation: mutation(2), attach: 0, fua: false });
    o.peer(2, Peer::ValRange { range, version: ts(7, 2) });
    assert_eq!(o.r.unresolved(), 0);
    assert_eq!(o.read(1), [IoReply::Data(Payload::zero(4096))]);
}

#[test]
fn a_partial_write_older_than_what_is_held_is_refused() {
    let mut o = One::new(Role::Member);
    o.inv(1, 1, block(0, ts(9, 1), Timestamp::ZERO, false));
    val(&mut o, 0, ts(9, 1));
    let refused = o.inv(2, 2, block(0, ts(6, 2), ts(5, 2), true));
    assert!(matches!(&refused[..], [Peer::Nack { blocks, .. }] if blocks[0].version == ts(9, 1)), "{refused:?}");
}

#[test]
fn a_partial_write_that_lost_is_executed_when_it_comes_again() {
    let mut o = coordinator();
    o.inv(1, 1, block(0, ts(4, 1), ts(3, 1), true));
    o.inv(2, 2, block(0, ts(9, 2), ts(3, 1), false));
    val(&mut o, 0, ts(9, 2));
    o.fx.clear();
    ask(&mut o, write(1, 0, 1, 2));
    let (sent, _) = sent_block(&o).expect("an invalidation");
    assert!(sent.rmw && sent.base == ts(9, 2));
    assert_eq!(o.replies(), []);
}

/// The store may return a version that arrived during the read: an invalidation, which is not Valid yet.
#[test]
fn a_read_that_finds_something_newer_waits_until_that_is_valid() {
    let mut o = One::new(Role::Member);
    o.inv(1, 1, block(0, ts(3, 1), Timestamp::ZERO, false));
    val(&mut o, 0, ts(3, 1));
    o.store.slow = 1;
    assert_eq!(o.read(0), []);
    let Some(StoreDone::Read { token, addr, .. }) = o.store.done.pop() else { panic!("a read") };
    o.inv(1, 2, block(0, ts(5, 1), Timestamp::ZERO, false));
    let result = Ok(Payload::elided(4096, 2 << 8));
    let late = StoreDone::Read { token, addr, version: ts(5, 1), result };
    o.r.handle_store(o.now, late, &mut o.store, &mut o.fx);
    assert_eq!(o.replies(), [], "the write may have reached no other member");
    val(&mut o, 0, ts(5, 1));
    finish_store(&mut o);
    assert_eq!(o.replies(), [IoReply::Data(Payload::elided(4096, 2 << 8))]);
}

#[test]
fn members_are_sent_no_copy_of_a_block_that_is_not_valid() {
    let mut o = One::new(Role::Member);
    let addr = BlockAddr::new(V, 0);
    o.inv(1, 1, block(0, ts(3, 1), Timestamp::ZERO, false));
    assert_eq!(o.peer(2, Peer::BlockFetch { addr }), []);
    val(&mut o, 0, ts(3, 1));
    assert!(matches!(o.peer(2, Peer::BlockFetch { addr })[..], [Peer::Block { version, .. }] if version == ts(3, 1)));
    // The block is invalidated during the read.
    o.store.slow = 1;
    assert_eq!(o.peer(2, Peer::BlockFetch { addr }), []);
    o.inv(1, 2, block(0, ts(5, 1), Timestamp::ZERO, false));
    let Some(StoreDone::Read { token, .. }) = o.store.done.pop() else { panic!("a read") };
    let result = Ok(Payload::elided(4096, 2 << 8));
    let late = StoreDone::Read { token, addr, version: ts(5, 1), result };
    o.r.handle_store(o.now, late, &mut o.store, &mut o.fx);
    assert_eq!(o.sent(), []);
}

/// Flash may forget the range's record once it has no older copy, while one is in flight from the shadow's source.
#[test]
fn a_shadow_copies_nothing_older_than_a_range_that_was_zeroed_while_it_fills() {
    let mut o = One::new(Role::Shadow);
    for member in [1, 2] {
        let from = VssdId(1 + member);
        o.peer(member, Peer::Clients { records: [].into(), volumes: LiveVolumes::default(), from });
    }
    assert_eq!(blocks_asked(&compared(&mut o, &[0, 9])), [0, 9]);
    let range = BlockRange { volume: V, first: 0, count: 4 };
    o.peer(1, Peer::InvRange { range, version: ts(7, 1), mutation: mutation(1), attach: 0, fua: false });
    o.peer(1, Peer::ValRange { range, version: ts(7, 1) });
    o.store.forget_ranges = true;
    o.store.background();
    for b in [0, 9] {
        let (addr, version) = (BlockAddr::new(V, b), Timestamp::new(Epoch(3), 5, 1));
        let header = Header { request: u64::MAX, ..o.header(4, 1) };
        o.peer_as(header, 1, Peer::Block { addr, version, data: Some(Payload::elided(4096, 7)) });
        assert_eq!(o.store.mapped(addr), b == 9, "block {b}");
    }
}

/// The write goes to the earlier epoch's members only: it would change the block after the fill has passed it.
#[test]
fn a_shadow_does_not_begin_to_copy_while_a_write_of_an_earlier_epoch_is_unresolved() {
    let mut o = One::new(Role::Member);
    let written = ts(1, 1);
    assert!(acked(&o.inv(1, 1, block(3, written, ts(0, 0), false))));
    let mut filled = view(5, Role::Member);
    filled.members[2].role = Role::Shadow;
    o.r.install(o.now, &filled, Incarnation(50), &mut o.store, &mut o.fx);
    o.sent();
    assert_eq!(o.peer_in(5, 2, Peer::ClientsRequest), []);
    o.peer_in(5, 1, Peer::Val { volume: V, blocks: [(3, written)].into() });
    let tables = o.peer_in(5, 2, Peer::ClientsRequest);
    assert!(matches!(tables[..], [Peer::Clients { .. }]), "{tables:?}");
}
