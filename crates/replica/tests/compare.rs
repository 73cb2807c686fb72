//! What the first member does when what the others hold differs from what it has, and what they do when asked.

use rackweave_core::msg::peer::BlockSum;
use rackweave_core::msg::{BlockRange, Body, Peer, Role};
use rackweave_core::{BlockAddr, Epoch, NodeId, Payload, Time, Timestamp};
use rackweave_replica::Store;

use crate::single::{One, V, block, ts};

fn at(b: u32) -> BlockAddr {
    BlockAddr::new(V, b)
}

fn data(n: u64) -> Payload {
    Payload::Bytes(vec![n as u8; 4096].into())
}

fn sum(b: u32, version: Timestamp, n: u64) -> BlockSum {
    BlockSum { block: b, version, crc: data(n).crc32c() }
}

/// A first member with block 0, contents 5, at this version.
fn one(version: Timestamp) -> One {
    let mut o = One::new(Role::Member);
    o.r.set_lease(Time(1_000_000_000_000));
    o.store.put(at(0), version, data(5));
    o
}

/// It reads blocks in turn to the end; its question and whom it asks.
fn scrubbed(o: &mut One, blocks: &[u32]) -> (Option<(u64, BlockRange, u64)>, Vec<NodeId>) {
    for &b in blocks {
        o.r.scrub(o.now, at(b), &mut o.store, &mut o.fx);
    }
    o.r.scrub_ended(o.now, &mut o.store, &mut o.fx);
    let mut asked = (None, Vec::new());
    for p in o.fx.packets.drain(..) {
        if let Body::Peer(Peer::SumsAsk { range, digest }) = p.body {
            asked.0 = Some((p.header.request, range, digest));
            asked.1.push(p.dst);
        }
    }
    asked
}

/// Both others answer; what is sent then, with who gets it.
fn answered(o: &mut One, sums: [Option<BlockSum>; 2]) -> Vec<(NodeId, u64, Peer)> {
    let (question, asked) = scrubbed(o, &[0]);
    let (request, range, _) = question.expect("asked");
    assert_eq!((range.first, range.count, asked.len()), (0, 1, 2));
    judged(o, request, range, sums)
}

fn judged(o: &mut One, request: u64, range: BlockRange, sums: [Option<BlockSum>; 2]) -> Vec<(NodeId, u64, Peer)> {
    for (k, s) in sums.iter().enumerate() {
        let mut header = o.header(4, 1 + k as u32);
        header.request = request;
        let body = Peer::Sums { range, same: s.is_none(), sums: s.iter().copied().collect() };
        let p =
            rackweave_core::msg::Packet { src: NodeId(3 + k as u32), dst: NodeId(2), header, body: Body::Peer(body) };
        o.r.handle_peer(o.now, p, &mut o.store, &mut o.fx);
    }
    if o.r.deadline() <= o.now {
        o.r.handle_timer(o.now, &mut o.store, &mut o.fx);
    }
    let sent = o.fx.packets.drain(..).filter_map(|p| match p.body {
        Body::Peer(x) => Some((p.dst, p.header.request, x)),
        _ => None,
    });
    sent.collect()
}

fn counts(o: &One) -> (u64, u64, u64) {
    (o.r.stats().scrub_mismatches, o.r.stats().scrub_undecided, o.r.stats().healed)
}

#[test]
fn what_is_alike_needs_nothing() {
    let mut o = one(ts(5, 1));
    assert!(answered(&mut o, [None, Some(sum(0, ts(5, 1), 5))]).is_empty());
    assert_eq!(counts(&o), (0, 0, 0));
}

#[test]
fn who_missed_a_write_is_sent_it_again_by_one_that_has_it() {
    let mut o = one(ts(5, 1));
    let sent = answered(&mut o, [None, Some(sum(0, ts(3, 1), 4))]);
    let replays = sent.iter().filter(|(_, _, p)| matches!(p, Peer::Inv(i) if i.blocks[0].version == ts(5, 1)));
    assert_eq!((replays.count(), sent.len()), (2, 2));
    assert_eq!(counts(&o), (1, 0, 0));
    // Here it was missed: another is asked to.
    let mut o = one(ts(5, 1));
    let sent = answered(&mut o, [Some(sum(0, ts(5, 1), 5)), Some(sum(0, ts(7, 2), 6))]);
    let addr = at(0);
    assert!(
        matches!(&sent[..], [(NodeId(4), _, Peer::ReplayAsk { addr: a, version })] if (*a, *version) == (addr, ts(7, 2)))
    );
    // One that is asked, and has it.
    let mut o = one(ts(5, 1));
    assert!(o.peer(1, Peer::ReplayAsk { addr, version: ts(4, 1) }).is_empty());
    o.peer(1, Peer::ReplayAsk { addr, version: ts(5, 1) });
    assert_eq!(o.r.unresolved(), 1);
    o.r.handle_timer(o.now, &mut o.store, &mut o.fx);
    assert_eq!(o.sent().iter().filter(|p| matches!(p, Peer::Inv(_))).count(), 2);
}

#[test]
fn what_a_fill_stamped_anew_is_behind_nobody_but_is_compared() {
    let (old, fill) = (Timestamp::new(Epoch(3), 7, 1), Timestamp::new(Epoch(4), 1, 2));
    let mut o = one(old);
    assert!(answered(&mut o, [None, Some(sum(0, fill, 5))]).is_empty());
    assert_eq!(counts(&o), (0, 0, 0));
    let mut o = one(old);
    let sent = answered(&mut o, [None, Some(sum(0, fill, 6))]);
    let crc = data(5).crc32c();
    assert!(
        matches!(&sent[..], [(NodeId(4), _, Peer::HealAsk { version, crc: c, .. })] if (*version, *c) == (fill, crc))
    );
    // Written since everywhere but there.
    let mut o = one(ts(5, 1));
    let sent = answered(&mut o, [None, Some(sum(0, Timestamp::new(Epoch(4), 1, 2), 4))]);
    assert!(sent.iter().all(|(_, _, p)| matches!(p, Peer::Inv(_))) && sent.len() == 2);
}

#[test]
fn one_that_is_alone_with_its_contents_takes_the_others_and_only_those() {
    let mut o = one(ts(5, 1));
    let sent = answered(&mut o, [Some(sum(0, ts(5, 1), 6)), Some(sum(0, ts(5, 1), 6))]);
    let [(_, request, Peer::BlockAsk { .. })] = sent[..] else { panic!("{sent:?}") };
    let version = ts(5, 1);
    let reply = |o: &mut One, request: u64, n: u64| {
        let mut header = o.header(4, 1);
        header.request = request;
        o.peer_as(header, 1, Peer::Block { addr: at(0), version, data: Some(data(n)) })
    };
    assert!(matches!(reply(&mut o, request, 7)[..], [Peer::BlockAsk { .. }]), "that is not what most have");
    assert_eq!(counts(&o), (1, 0, 0));
    assert!(reply(&mut o, request, 6).is_empty());
    assert_eq!(counts(&o), (1, 0, 1));
    let [rackweave_core::msg::IoReply::Data(held)] = &o.read(0)[..] else { panic!("read") };
    assert_eq!(held.crc32c(), data(6).crc32c());
}

#[test]
fn where_no_contents_have_a_majority_nothing_is_overwritten() {
    let mut o = one(ts(5, 1));
    assert!(answered(&mut o, [Some(sum(0, ts(5, 1), 6)), Some(sum(0, ts(5, 1), 7))]).is_empty());
    assert_eq!(counts(&o), (1, 1, 0));
}

#[test]
fn what_is_written_meanwhile_is_left_to_the_next_pass() {
    let mut o = one(ts(5, 1));
    let (question, _) = scrubbed(&mut o, &[0]);
    let (request, range, _) = question.expect("asked");
    let newer = || [Some(sum(0, ts(9, 1), 9)), Some(sum(0, ts(9, 1), 9))];
    o.inv(1, 9, block(0, ts(9, 1), ts(5, 1), false));
    assert!(judged(&mut o, request, range, newer()).is_empty(), "not Valid here");
    let mut o = one(ts(5, 1));
    let (question, _) = scrubbed(&mut o, &[0]);
    let (request, range, _) = question.expect("asked");
    o.inv(1, 9, block(0, ts(9, 1), ts(5, 1), false));
    o.peer(1, Peer::Val { volume: V, blocks: [(0, ts(9, 1))].into() });
    assert!(judged(&mut o, request, range, newer()).is_empty(), "newer than what was read");
    assert_eq!(counts(&o), (0, 0, 0));
}

#[test]
fn who_does_not_answer_is_left_out_and_in_the_end_not_asked() {
    let mut o = one(ts(5, 1));
    for _ in 0..2 {
        assert_eq!(scrubbed(&mut o, &[0]).1.len(), 2);
        o.now = o.r.deadline();
        o.r.handle_timer(o.now, &mut o.store, &mut o.fx);
    }
    assert_eq!(scrubbed(&mut o, &[0]).1.len(), 0);
}

#[test]
fn a_member_that_is_asked_tells_what_is_valid_there() {
    let mut o = one(ts(5, 1));
    o.store.put(at(1), ts(6, 1), data(6));
    o.inv(1, 9, block(2, ts(9, 1), Timestamp::ZERO, false));
    let range = BlockRange { volume: V, first: 0, count: 8 };
    let sent = o.peer(1, Peer::SumsAsk { range, digest: 0 });
    let [Peer::Sums { same: false, sums, .. }] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(**sums, [sum(0, ts(5, 1), 5), sum(1, ts(6, 1), 6)]);
    let (question, _) = scrubbed(&mut o, &[0, 1]);
    let digest = question.expect("asked").2;
    let sent = o.peer(1, Peer::SumsAsk { range, digest });
    assert!(matches!(&sent[..], [Peer::Sums { same: true, sums, .. }] if sums.is_empty()));
    // No range reaches over the end of its chunk.
    let over = BlockRange { first: 1000, count: 100, ..range };
    assert!(o.peer(1, Peer::SumsAsk { range: over, digest: 0 }).is_empty());
}

#[test]
fn what_is_read_while_others_answer_is_compared_afterwards_chunk_by_chunk() {
    let mut o = one(ts(5, 1));
    let next = rackweave_core::msg::peer::CHUNK_BLOCKS;
    for b in [3, 1, next + 1, next] {
        o.store.put(at(b), ts(5, 1), data(5));
    }
    let (question, _) = scrubbed(&mut o, &[0]);
    let (first, range, _) = question.expect("asked");
    // In another order than they lie, one twice, and on into the next chunk.
    assert_eq!(scrubbed(&mut o, &[3, 1, 3, next + 1, next]).0, None, "one comparison at a time");
    let sent = judged(&mut o, first, range, [None, None]);
    let asked = |sent: &[(NodeId, u64, Peer)]| match sent {
        [(_, request, Peer::SumsAsk { range, .. }), (_, _, Peer::SumsAsk { .. })] => (*request, *range),
        other => panic!("{other:?}"),
    };
    let (second, range) = asked(&sent);
    assert_eq!((range.first, range.count), (1, 3));
    assert!(judged(&mut o, second, range, [None, None]).is_empty(), "until more is read, or the pass is over");
    let (question, _) = scrubbed(&mut o, &[]);
    let (_, range, _) = question.expect("asked");
    assert_eq!((range.first, range.count), (next, 2));
    assert_eq!(counts(&o), (0, 0, 0));
}

/// The same elided contents are held as one seed here and as eight identities there, or as zeroes.
#[test]
fn how_contents_are_held_makes_no_difference() {
    let (whole, zero) = (Payload::elided(4096, 77), Payload::zero(4096));
    let apart = |p: &Payload| Payload::Mixed((0..8).map(|i| p.identity(i)).collect::<Vec<_>>().into());
    for (here, there) in [(&whole, apart(&whole)), (&zero, apart(&zero))] {
        let asked = |data: Payload| {
            let mut o = one(ts(5, 1));
            o.store.put(at(1), ts(5, 1), data);
            scrubbed(&mut o, &[0, 1]).0.expect("asked").2
        };
        assert_eq!(asked(here.clone()), asked(there));
    }
    assert_ne!(whole, zero);
}
