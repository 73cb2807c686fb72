//! Comparison of members' copies: the first member's reaction to differences, and the others' answers.

use rackweave_core::msg::peer::{BlockSum, CHUNK_BLOCKS, SUMS_MAX};
use rackweave_core::msg::{Block, BlockRange, Body, Peer, Role};
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

/// A first member that has block 0 with contents 5 at this version.
fn one(version: Timestamp) -> One {
    let mut o = One::new(Role::Member);
    o.r.set_lease(Time(1_000_000_000_000));
    o.store.put(at(0), version, data(5));
    o
}

/// Scrubs the blocks to the end of the pass; returns the request that results, and its receivers.
fn scrubbed(o: &mut One, blocks: &[u32]) -> (Option<(u64, BlockRange, u64)>, Vec<NodeId>) {
    for &b in blocks {
        o.r.scrub(o.now, at(b), &mut o.store, &mut o.fx);
    }
    o.r.scrub_ended(o.now, &mut o.store, &mut o.fx);
    let mut requested = (None, Vec::new());
    for p in o.fx.packets.drain(..) {
        if let Body::Block(Block::Peer(Peer::SumsRequest { range, digest })) = p.body {
            requested.0 = Some((p.header.request, range, digest));
            requested.1.push(p.dst);
        }
    }
    requested
}

/// Lets both others answer; returns the messages that result, with their receivers.
fn answered(o: &mut One, sums: [Option<BlockSum>; 2]) -> Vec<(NodeId, u64, Peer)> {
    let (question, requested) = scrubbed(o, &[0]);
    let (request, range, _) = question.expect("requested");
    assert_eq!((range.first, range.count, requested.len()), (0, CHUNK_BLOCKS, 2));
    judged(o, request, range, sums)
}

fn judged(o: &mut One, request: u64, range: BlockRange, sums: [Option<BlockSum>; 2]) -> Vec<(NodeId, u64, Peer)> {
    for (k, s) in sums.iter().enumerate() {
        let mut header = o.header(4, 1 + k as u32);
        header.request = request;
        let body = Peer::Sums { range, same: s.is_none(), sums: s.iter().copied().collect() };
        let p = rackweave_core::msg::Packet {
            src: NodeId(3 + k as u32),
            dst: NodeId(2),
            header,
            body: Body::Block(Block::Peer(body)),
        };
        o.r.handle_peer(o.now, p, &mut o.store, &mut o.fx);
    }
    if o.r.deadline() <= o.now {
        o.r.handle_timer(o.now, &mut o.store, &mut o.fx);
    }
    let sent = o.fx.packets.drain(..).filter_map(|p| match p.body {
        Body::Block(Block::Peer(x)) => Some((p.dst, p.header.request, x)),
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
    // This member missed the write: it asks another one to replay it.
    let mut o = one(ts(5, 1));
    let sent = answered(&mut o, [Some(sum(0, ts(5, 1), 5)), Some(sum(0, ts(7, 2), 6))]);
    let addr = at(0);
    assert!(
        matches!(&sent[..], [(NodeId(4), _, Peer::ReplayRequest { addr: a, version })] if (*a, *version) == (addr, ts(7, 2)))
    );
    // A member that has the version replays it on request.
    let mut o = one(ts(5, 1));
    assert!(o.peer(1, Peer::ReplayRequest { addr, version: ts(4, 1) }).is_empty());
    o.peer(1, Peer::ReplayRequest { addr, version: ts(5, 1) });
    assert_eq!(o.r.unresolved(), 1);
    o.r.handle_timer(o.now, &mut o.store, &mut o.fx);
    assert_eq!(o.sent().iter().filter(|p| matches!(p, Peer::Inv(_))).count(), 2);
}

#[test]
fn a_block_stamped_by_a_fill_is_not_outdated_but_is_compared() {
    let (old, fill) = (Timestamp::new(Epoch(3), 7, 1), Timestamp::new(Epoch(4), 1, 2));
    let mut o = one(old);
    assert!(answered(&mut o, [None, Some(sum(0, fill, 5))]).is_empty());
    assert_eq!(counts(&o), (0, 0, 0));
    let mut o = one(old);
    let sent = answered(&mut o, [None, Some(sum(0, fill, 6))]);
    let crc = data(5).crc32c();
    assert!(
        matches!(&sent[..], [(NodeId(4), _, Peer::HealRequest { version, crc: c, .. })] if (*version, *c) == (fill, crc))
    );
    // All members but that one have a later write.
    let mut o = one(ts(5, 1));
    let sent = answered(&mut o, [None, Some(sum(0, Timestamp::new(Epoch(4), 1, 2), 4))]);
    assert!(sent.iter().all(|(_, _, p)| matches!(p, Peer::Inv(_))) && sent.len() == 2);
}

#[test]
fn one_that_is_alone_with_its_contents_takes_the_others_and_only_those() {
    let mut o = one(ts(5, 1));
    let sent = answered(&mut o, [Some(sum(0, ts(5, 1), 6)), Some(sum(0, ts(5, 1), 6))]);
    let [(_, request, Peer::BlockFetch { .. })] = sent[..] else { panic!("{sent:?}") };
    let version = ts(5, 1);
    let reply = |o: &mut One, request: u64, n: u64| {
        let mut header = o.header(4, 1);
        header.request = request;
        o.peer_as(header, 1, Peer::Block { addr: at(0), version, data: Some(data(n)) })
    };
    assert!(
        matches!(reply(&mut o, request, 7)[..], [Peer::BlockFetch { .. }]),
        "these are not the majority's contents"
    );
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
    let (request, range, _) = question.expect("requested");
    let newer = || [Some(sum(0, ts(9, 1), 9)), Some(sum(0, ts(9, 1), 9))];
    o.inv(1, 9, block(0, ts(9, 1), ts(5, 1), false));
    assert!(judged(&mut o, request, range, newer()).is_empty(), "the block is not Valid here");
    let mut o = one(ts(5, 1));
    let (question, _) = scrubbed(&mut o, &[0]);
    let (request, range, _) = question.expect("requested");
    o.inv(1, 9, block(0, ts(9, 1), ts(5, 1), false));
    o.peer(1, Peer::Val { volume: V, blocks: [(0, ts(9, 1))].into() });
    assert!(judged(&mut o, request, range, newer()).is_empty(), "newer than the version that was read");
    assert_eq!(counts(&o), (0, 0, 0));
}

#[test]
fn a_silent_member_is_left_out_and_later_gets_no_request() {
    let mut o = one(ts(5, 1));
    for _ in 0..2 {
        assert_eq!(scrubbed(&mut o, &[0]).1.len(), 2);
        o.now = o.r.deadline();
        o.r.handle_timer(o.now, &mut o.store, &mut o.fx);
    }
    assert_eq!(scrubbed(&mut o, &[0]).1.len(), 0);
}

#[test]
fn a_member_answers_with_its_valid_blocks() {
    let mut o = one(ts(5, 1));
    o.store.put(at(1), ts(6, 1), data(6));
    o.inv(1, 9, block(2, ts(9, 1), Timestamp::ZERO, false));
    let range = BlockRange { volume: V, first: 0, count: 8 };
    let sent = o.peer(1, Peer::SumsRequest { range, digest: 0 });
    let [Peer::Sums { same: false, sums, .. }] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(**sums, [sum(0, ts(5, 1), 5), sum(1, ts(6, 1), 6)]);
    let (question, _) = scrubbed(&mut o, &[0, 1]);
    let digest = question.expect("requested").2;
    let sent = o.peer(1, Peer::SumsRequest { range, digest });
    assert!(matches!(&sent[..], [Peer::Sums { same: true, sums, .. }] if sums.is_empty()));
    // No range reaches over the end of its chunk.
    let over = BlockRange { first: 1000, count: 100, ..range };
    assert!(o.peer(1, Peer::SumsRequest { range: over, digest: 0 }).is_empty());
}

#[test]
fn what_is_read_while_others_answer_is_compared_afterwards_chunk_by_chunk() {
    let mut o = one(ts(5, 1));
    let next = CHUNK_BLOCKS;
    for b in [3, 1, next + 1, next] {
        o.store.put(at(b), ts(5, 1), data(5));
    }
    let (question, _) = scrubbed(&mut o, &[0]);
    let (first, range, _) = question.expect("requested");
    // Out of order, one block twice, and beyond the end of the chunk.
    assert_eq!(scrubbed(&mut o, &[3, 1, 3, next + 1, next]).0, None, "one comparison at a time");
    let sent = judged(&mut o, first, range, [None, None]);
    let requested = |sent: &[(NodeId, u64, Peer)]| match sent {
        [(_, request, Peer::SumsRequest { range, .. }), (_, _, Peer::SumsRequest { .. })] => (*request, *range),
        other => panic!("{other:?}"),
    };
    let (second, range) = requested(&sent);
    assert_eq!((range.first, range.count), (0, CHUNK_BLOCKS));
    assert!(judged(&mut o, second, range, [None, None]).is_empty(), "waits for more reads, or the end of the pass");
    let (question, _) = scrubbed(&mut o, &[]);
    let (_, range, _) = question.expect("requested");
    assert_eq!((range.first, range.count), (next, CHUNK_BLOCKS));
    assert_eq!(counts(&o), (0, 0, 0));
}

/// The same elided contents may be held as one seed, or as eight identities; zeroes likewise.
#[test]
fn how_contents_are_held_makes_no_difference() {
    let (whole, zero) = (Payload::elided(4096, 77), Payload::zero(4096));
    let apart = |p: &Payload| Payload::Mixed((0..8).map(|i| p.identity(i)).collect::<Vec<_>>().into());
    for (here, there) in [(&whole, apart(&whole)), (&zero, apart(&zero))] {
        let requested = |data: Payload| {
            let mut o = one(ts(5, 1));
            o.store.put(at(1), ts(5, 1), data);
            scrubbed(&mut o, &[0, 1]).0.expect("requested").2
        };
        assert_eq!(requested(here.clone()), requested(there));
    }
    assert_ne!(whole, zero);
}

/// Its request is answered with these lists, each to the end of the range. Then it asks one member for block `b` alone,
/// which has `has`. Returns the messages that result, with their receivers.
fn suspected(o: &mut One, b: u32, lists: [Vec<BlockSum>; 2], has: (Timestamp, Option<Payload>)) -> Vec<(NodeId, Peer)> {
    let (question, _) = scrubbed(o, &[0]);
    let (request, range, _) = question.expect("requested");
    let as_of = |o: &One, k: u32, request| rackweave_core::msg::Header { request, ..o.header(4, k) };
    let packet = |o: &mut One, k: u32, request, body| {
        let (src, header) = (NodeId(2 + k), as_of(o, k, request));
        let p = rackweave_core::msg::Packet { src, dst: NodeId(2), header, body: Body::Block(Block::Peer(body)) };
        o.r.handle_peer(o.now, p, &mut o.store, &mut o.fx);
        let sent = o.fx.packets.drain(..).filter_map(|p| match p.body {
            Body::Block(Block::Peer(x)) => Some((p.dst, p.header.request, x)),
            _ => None,
        });
        sent.collect::<Vec<_>>()
    };
    let mut requested = Vec::new();
    for (k, sums) in (1..).zip(lists) {
        requested.extend(packet(o, k, request, Peer::Sums { range, same: false, sums: sums.into() }));
    }
    let [(whom, request, Peer::BlockFetch { addr })] = requested[..] else { panic!("{requested:?}") };
    assert_eq!(addr, at(b));
    let (version, data) = has;
    let mut sent = packet(o, whom.0 - 2, request, Peer::Block { addr, version, data });
    if o.r.deadline() <= o.now {
        o.r.handle_timer(o.now, &mut o.store, &mut o.fx);
        sent.extend(o.fx.packets.drain(..).filter_map(|p| match p.body {
            Body::Block(Block::Peer(x)) => Some((p.dst, 0, x)),
            _ => None,
        }));
    }
    sent.into_iter().map(|(to, _, p)| (to, p)).collect()
}

/// Whether this zeroing is sent again to both others.
fn zeroes_again(sent: &[(NodeId, Peer)], b: u32, v: Timestamp) -> bool {
    let zeroes = |p: &Peer| matches!(p, Peer::InvRange { range, version, .. } if (range.first, range.count, *version) == (b, 1, v));
    sent.len() == 2 && sent.iter().all(|(_, p)| zeroes(p))
}

#[test]
fn what_another_member_lacks_is_written_there_again_or_was_zeroed_here_unheard() {
    let (own, newer) = (ts(5, 1), ts(7, 2));
    let has = || vec![sum(0, own, 5)];
    // The member has no record of the block, or an older zeroing.
    for theirs in [Timestamp::ZERO, ts(3, 1)] {
        let mut o = one(own);
        let sent = suspected(&mut o, 0, [has(), vec![]], (theirs, None));
        let again = |p: &Peer| matches!(p, Peer::Inv(i) if i.blocks[0].version == own);
        assert!(sent.len() == 2 && sent.iter().all(|(_, p)| again(p)), "{sent:?}");
        assert_eq!(counts(&o), (1, 0, 0));
    }
    let mut o = one(own);
    let sent = suspected(&mut o, 0, [has(), vec![]], (newer, None));
    assert!(
        matches!(&sent[..], [(NodeId(4), Peer::ReplayRequest { addr, version })] if (*addr, *version) == (at(0), newer)),
        "{sent:?}"
    );
    // A member that has the zeroing replays it on request.
    let mut o = one(own);
    let range = BlockRange { volume: V, first: 0, count: 9 };
    o.store.put_range(range, newer);
    assert!(o.peer(1, Peer::ReplayRequest { addr: at(0), version: own }).is_empty());
    o.peer(1, Peer::ReplayRequest { addr: at(0), version: newer });
    o.r.handle_timer(o.now, &mut o.store, &mut o.fx);
    let sent: Vec<_> = o.sent().into_iter().map(|p| (NodeId(0), p)).collect();
    assert!(zeroes_again(&sent, 0, newer), "{sent:?}");
}

#[test]
fn what_is_zeroed_here_and_not_there_is_zeroed_there_again_or_was_written_unheard() {
    let (old, zeroed, newer) = (ts(4, 1), ts(6, 1), ts(8, 2));
    let one = || {
        let mut o = one(ts(5, 1));
        o.store.put_range(BlockRange { volume: V, first: 700, count: 2 }, zeroed);
        o
    };
    let lists = |v| [vec![sum(0, ts(5, 1), 5)], vec![sum(0, ts(5, 1), 5), sum(700, v, 4)]];
    let mut o = one();
    let sent = suspected(&mut o, 700, lists(old), (old, Some(data(4))));
    assert!(zeroes_again(&sent, 700, zeroed), "{sent:?}");
    assert_eq!(counts(&o), (1, 0, 0));
    let mut o = one();
    let sent = suspected(&mut o, 700, lists(newer), (newer, Some(data(4))));
    assert!(matches!(&sent[..], [(NodeId(4), Peer::ReplayRequest { version, .. })] if *version == newer), "{sent:?}");
    // A fill's stamp does not show the age of the contents, but equal contents are no mismatch.
    let fill = Timestamp::new(Epoch(4), 1, 2);
    for (there, mismatches) in [(data(4), 1), (data(0), 0)] {
        let mut o = one();
        assert!(suspected(&mut o, 700, lists(fill), (fill, Some(there))).is_empty());
        assert_eq!(counts(&o), (mismatches, mismatches, 0));
    }
}

#[test]
fn what_was_on_its_way_there_or_changes_here_is_no_difference() {
    let own = ts(5, 1);
    let mut o = one(own);
    assert!(suspected(&mut o, 0, [vec![sum(0, own, 5)], vec![]], (own, Some(data(5)))).is_empty());
    assert_eq!(counts(&o), (0, 0, 0));
    // A chunk without a mapped block here is compared, too.
    let mut o = One::new(Role::Member);
    o.r.set_lease(Time(1_000_000_000_000));
    o.store.put_range(BlockRange { volume: V, first: 0, count: 2 }, own);
    let sent = suspected(&mut o, 1, [vec![], vec![sum(1, ts(3, 1), 4)]], (ts(3, 1), Some(data(4))));
    assert!(zeroes_again(&sent, 1, own), "{sent:?}");
}

#[test]
fn a_list_that_ends_early_says_nothing_of_what_comes_after() {
    let mut o = one(ts(5, 1));
    for b in 0..SUMS_MAX + 9 {
        o.store.put(at(b), ts(5, 1), data(5));
    }
    let range = BlockRange { volume: V, first: 0, count: CHUNK_BLOCKS };
    let sent = o.peer(1, Peer::SumsRequest { range, digest: 0 });
    let [Peer::Sums { range, sums, .. }] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((range.first, range.count, sums.len()), (0, SUMS_MAX, SUMS_MAX as usize));
    // The same for the requesting member.
    let mut o = one(ts(5, 1));
    let (question, _) = scrubbed(&mut o, &[0]);
    let (request, range, _) = question.expect("requested");
    let told = BlockRange { first: 1, count: range.count - 1, ..range };
    for k in 1..3 {
        let header = rackweave_core::msg::Header { request, ..o.header(4, k) };
        assert!(o.peer_as(header, k, Peer::Sums { range: told, same: false, sums: [].into() }).is_empty());
    }
    assert_eq!(counts(&o), (0, 0, 0));
}
