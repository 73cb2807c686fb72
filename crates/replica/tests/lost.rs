//! Blocks that no member can read: shadows are filled all the same, reads fail, and a write replaces them.

use rackweave_core::msg::{Block, Body, Header, IoError, IoReply, Packet, Peer, Role};
use rackweave_core::{BlockAddr, NodeId, Payload, Span, Timestamp};
use rackweave_replica::trace;
use rackweave_replica::{LOST_WAIT, Store};

use crate::cluster::{Cluster, Net, VOLUME};
use crate::memory::Memory;
use crate::single::{One, V, ts};

const MINUTE: Span = Span::from_secs(60);

fn at(block: u32) -> BlockAddr {
    BlockAddr::new(VOLUME, block)
}

/// A set in which blocks 0 to 3 are written.
fn written(members: usize) -> Cluster {
    let mut c = Cluster::new(members, 1, 7, Net::GOOD);
    // The history does not check why a read failed; the tests here do.
    c.track = false;
    for b in 0..4 {
        c.write(0, 0, b * 8, 8, true);
    }
    assert!(c.run_idle(MINUTE));
    c
}

fn read(c: &mut Cluster, from: usize, block: u32) -> IoReply {
    let op = c.read(0, from, u64::from(block) * 8, 8);
    assert!(c.run_idle(MINUTE));
    c.reply(0, op).expect("it was answered").clone()
}

fn members(c: &Cluster) -> usize {
    c.view.members.iter().filter(|m| m.role == Role::Member).count()
}

#[test]
fn a_shadow_completes_beside_the_only_copy_that_cannot_be_read() {
    let mut c = written(2);
    let before = c.servers[0].store().version(at(1));
    c.servers[0].store().corrupt.insert(at(1));
    // Another drive replaces the second server's.
    c.crash(1);
    *c.servers[1].store() = Memory::new();
    c.restart(1);
    c.run_for(Span(LOST_WAIT.0 - Span::from_secs(1).0));
    assert_eq!(members(&c), 1, "the previous drive may return");
    c.run_for(Span::from_secs(5));
    assert_eq!(members(&c), 2, "{:?}", c.view);
    for member in [0, 1, 0] {
        assert_eq!(read(&mut c, member, 1), IoReply::Failed(IoError::Corrupt), "member {member}");
        assert!(matches!(read(&mut c, member, 2), IoReply::Data(_)));
    }
    assert_eq!(c.servers[1].store().version(at(1)), before, "a member that still has it can heal it");
    c.write(0, 1, 8, 8, false);
    assert!(c.run_idle(MINUTE));
    let new = read(&mut c, 0, 1);
    assert!(matches!(&new, IoReply::Data(d) if *d != Payload::zero(4096)), "{new:?}");
    assert_eq!(read(&mut c, 1, 1), new);
    c.converge(MINUTE).expect("the write replaced the lost copies");
}

#[test]
fn a_good_copy_that_comes_back_heals_what_was_lost() {
    let mut c = written(2);
    let good = c.servers[0].store().contents()[&at(1)].clone();
    c.servers[0].store().corrupt.insert(at(1));
    c.crash(1);
    *c.servers[1].store() = Memory::new();
    c.restart(1);
    c.run_for(LOST_WAIT + Span::from_secs(5));
    // As if a third member that has the block had been filled.
    let version = c.servers[1].store().version(at(1));
    c.servers[1].store().put(at(1), version, good.clone());
    assert_eq!(read(&mut c, 0, 1), IoReply::Data(good.clone()));
    assert_eq!(c.servers[0].store().contents()[&at(1)], good);
    assert!(c.servers[0].store().corrupt.is_empty());
}

#[test]
fn members_that_cannot_read_it_do_not_ask_each_other_for_ever() {
    for n in [2, 3] {
        let mut c = written(n);
        for s in &mut c.servers {
            s.store().corrupt.insert(at(1));
        }
        c.run_for(Span::from_secs(1));
        let (sent, looked) = (c.sent(), c.count(trace::CRC_MISMATCH));
        assert_eq!(read(&mut c, 0, 1), IoReply::Failed(IoError::Corrupt));
        c.run_for(Span::from_secs(1));
        let (sent, looked) = (c.sent() - sent, c.count(trace::CRC_MISMATCH) - looked);
        assert!(looked <= n as u64 && sent <= 2 * n as u64, "{n} members: {sent} packets, read {looked} times");
    }
}

/// The whole set of two crashes and recovers; server `newest` has the newest writes, and either may be the leader.
fn recovers_whole(newest: usize) {
    let mut c = written(2);
    // The other server missed the last writes, and neither can read its copy of block 1.
    let newer = Timestamp::new(c.view.epoch, 90, 0);
    c.servers[newest].store().put(at(1), newer, Payload::elided(4096, 5));
    c.servers[newest].store().put(at(2), newer, Payload::elided(4096, 6));
    for s in &mut c.servers {
        s.store().persist(0);
        s.store().done.clear();
        s.store().corrupt.insert(at(1));
    }
    (0..2).for_each(|i| c.crash(i));
    (0..2).for_each(|i| c.restart(i));
    c.run_for(Span::from_secs(5));
    assert_eq!(members(&c), 2, "{:?}", c.view);
    for member in [0, 1] {
        assert_eq!(read(&mut c, member, 1), IoReply::Failed(IoError::Corrupt));
        assert_eq!(read(&mut c, member, 2), IoReply::Data(Payload::elided(4096, 6)), "the other blocks were repaired");
    }
    c.write(0, 1, 8, 8, false);
    assert!(c.run_idle(MINUTE));
    let new = read(&mut c, 0, 1);
    assert_eq!((matches!(new, IoReply::Data(_)), read(&mut c, 1, 1)), (true, new));
    c.converge(MINUTE).expect("both have it");
}

#[test]
fn a_set_recovers_whole_though_a_block_cannot_be_read_anywhere() {
    (0..2).for_each(recovers_whole);
}

/// A healing member asks all others itself, so it gets an answer at once. A shadow gets one when no other member can
/// heal the block.
#[test]
fn a_member_reports_at_once_that_it_cannot_read_a_requested_block() {
    let ask = |o: &mut One, request| {
        o.store.put(BlockAddr::new(V, 1), ts(5, 1), Payload::elided(4096, 1));
        o.store.corrupt.insert(BlockAddr::new(V, 1));
        let header = Header { request, ..o.header(4, 1) };
        assert_eq!(o.peer_as(header, 1, Peer::BlockFetch { addr: BlockAddr::new(V, 1) }), []);
        for done in std::mem::take(&mut o.store.done) {
            o.r.handle_store(o.now, done, &mut o.store, &mut o.fx);
        }
        o.fx.packets.drain(..).map(|p| (p.dst.0 - 2, p.header.request, p.body)).collect::<Vec<_>>()
    };
    let lost = Peer::BlockLost { addr: BlockAddr::new(V, 1), version: ts(5, 1) };
    let mut o = One::new(Role::Member);
    let answers = ask(&mut o, 77);
    assert_eq!(answers, [(1, 77, Body::Block(Block::Peer(lost.clone())))]);
    let mut o = One::new(Role::Member);
    let mut retry = ask(&mut o, u64::MAX);
    let mut requested = Vec::new();
    while let [(to, request, Body::Block(Block::Peer(Peer::BlockFetch { .. })))] = retry[..] {
        requested.push(to);
        assert!(requested.len() <= 2, "each member once: {requested:?}");
        let header = Header { request, ..o.header(4, to) };
        let p = Packet { src: NodeId(2 + to), dst: NodeId(2), header, body: Body::Block(Block::Peer(lost.clone())) };
        o.r.handle_peer(o.now, p, &mut o.store, &mut o.fx);
        retry = o.fx.packets.drain(..).map(|p| (p.dst.0 - 2, p.header.request, p.body)).collect();
    }
    assert_eq!(retry, [(1, u64::MAX, Body::Block(Block::Peer(lost)))], "after {requested:?}");
}
