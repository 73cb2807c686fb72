//! Single transitions of one member: the messages it sends and the state it has after one message.

use std::sync::Arc;

use rackweave_core::msg::io::WriteRequest;
use rackweave_core::msg::peer::{Credit, Inv, InvBlock, ScanEntry};
use rackweave_core::msg::{
    ALL_WITNESSES, Block, BlockRange, Body, Class, Header, IoError, IoReply, IoRequest, LiveVolumes, Member, Mutation,
    Op, Packet, Peer, Role, SectorRange, View, ViewState,
};
use rackweave_core::{
    BlockAddr, Effects, Epoch, Incarnation, NodeId, Payload, SetId, Time, Timestamp, VolumeId, VssdId,
};
use rackweave_replica::trace;
use rackweave_replica::{Replica, ReplicaConfig, Store};

use crate::memory::Memory;

pub const V: VolumeId = VolumeId(3);
const MS: u64 = 1_000_000;

pub struct One {
    pub r: Replica,
    pub store: Memory,
    pub fx: Effects,
    pub now: Time,
}

pub fn view(epoch: u32, role: Role) -> View {
    let m = |i: u32, role| Member {
        vssd: VssdId(1 + i),
        server: NodeId(2 + i),
        incarnation: Incarnation(50 + u64::from(i)),
        role,
    };
    let members = vec![m(0, role), m(1, Role::Member), m(2, Role::Member)];
    View { set: SetId(1), epoch: Epoch(epoch), state: ViewState::Normal, recovered: Epoch(0), members }
}

pub fn ts(version: u64, member: u8) -> Timestamp {
    Timestamp::new(Epoch(4), version, member)
}

pub fn block(b: u32, version: Timestamp, base: Timestamp, rmw: bool) -> InvBlock {
    InvBlock { block: b, version, base, rmw }
}

impl One {
    pub fn new(role: Role) -> One {
        One::with(ReplicaConfig::new(SetId(1), VssdId(1), NodeId(2)), &view(4, role))
    }
    /// The only member of its set.
    pub fn only() -> One {
        let cfg = ReplicaConfig { min_copies: 1, ..ReplicaConfig::new(SetId(1), VssdId(1), NodeId(2)) };
        let all = view(4, Role::Member);
        One::with(cfg, &View { members: all.members[..1].into(), ..all })
    }
    fn with(cfg: ReplicaConfig, view: &View) -> One {
        let r = Replica::new(cfg);
        let mut store = Memory::new();
        store.slow = 0;
        let mut one = One { r, store, fx: Effects::new(), now: Time(1_000) };
        one.r.install(one.now, view, Incarnation(50), &mut one.store, &mut one.fx);
        one.r.set_lease(Time(1_000_000_000));
        one.fx.clear();
        one
    }
    pub fn header(&self, epoch: u32, from: u32) -> Header {
        Header {
            op: Op::Peer,
            vssd: VssdId(1),
            lat: 0,
            class: Class::Silver,
            original_vssd: VssdId(1 + from),
            set: SetId(1),
            epoch: Epoch(epoch),
            incarnation: Incarnation(50 + u64::from(from)),
            request: 77,
        }
    }
    /// Delivers a message of member `from`; returns the answers to it.
    pub fn peer_in(&mut self, epoch: u32, from: u32, body: Peer) -> Vec<Peer> {
        self.peer_as(self.header(epoch, from), from, body)
    }
    pub fn peer_as(&mut self, header: Header, from: u32, body: Peer) -> Vec<Peer> {
        let p = Packet { src: NodeId(2 + from), dst: NodeId(2), header, body: Body::Block(Block::Peer(body)) };
        self.r.handle_peer(self.now, p, &mut self.store, &mut self.fx);
        self.sent()
    }
    pub fn peer(&mut self, from: u32, body: Peer) -> Vec<Peer> {
        self.peer_in(4, from, body)
    }
    pub fn io(&mut self, io: IoRequest) -> Vec<IoReply> {
        let header = Header { op: Op::Write, epoch: self.r.epoch(), ..self.header(0, 9) };
        let p = Packet { src: NodeId(90), dst: NodeId(2), header, body: Body::Block(Block::Io(io)) };
        self.r.handle_io(self.now, p, &mut self.store, &mut self.fx);
        self.replies()
    }
    /// Advances time, with timer events when they are due.
    pub fn later(&mut self, span: rackweave_core::Span) {
        let end = self.now + span;
        while self.r.deadline() <= end {
            self.now = self.now.max(self.r.deadline());
            self.r.handle_timer(self.now, &mut self.store, &mut self.fx);
        }
        self.now = end;
    }
    pub fn sent(&mut self) -> Vec<Peer> {
        let peers = self.fx.packets.drain(..).filter_map(|p| match p.body {
            Body::Block(Block::Peer(x)) => Some(x),
            _ => None,
        });
        peers.collect()
    }
    pub fn replies(&mut self) -> Vec<IoReply> {
        let replies = self.fx.packets.drain(..).filter_map(|p| match p.body {
            Body::Block(Block::Reply(x)) => Some(x),
            _ => None,
        });
        replies.collect()
    }
    pub fn inv(&mut self, from: u32, sequence: u64, b: InvBlock) -> Vec<Peer> {
        let mutation = Mutation { client: Incarnation(9), sequence, floor: 0 };
        let data = Payload::elided(4096, sequence << 8);
        let inv = Inv { volume: V, blocks: [b].into(), data, mutation, attach: 0, fua: false };
        self.peer(from, Peer::Inv(Arc::new(inv)))
    }
    pub fn version(&self, b: u32) -> Timestamp {
        self.store.version(BlockAddr::new(V, b))
    }
    pub fn read(&mut self, b: u32) -> Vec<IoReply> {
        self.io(IoRequest::read(SectorRange { volume: V, first: u64::from(b) * 8, count: 8 }))
    }
}

pub fn acked(v: &[Peer]) -> bool {
    matches!(v, [Peer::Ack { .. }])
}
fn refused(v: &[Peer], same_mutation: bool) -> bool {
    matches!(v, [Peer::Nack { blocks, .. }] if blocks[0].same == same_mutation)
}

#[test]
fn an_invalidated_block_is_read_when_validated() {
    let mut o = One::new(Role::Member);
    assert!(acked(&o.inv(1, 1, block(0, ts(3, 1), Timestamp::ZERO, false))));
    assert_eq!(o.r.unresolved(), 1);
    assert!(o.read(0).is_empty());
    let val = |v| Peer::Val { volume: V, blocks: [(0, v)].into() };
    o.peer(1, val(ts(5, 1)));
    assert_eq!(o.r.unresolved(), 1, "a validation of another version has no effect");
    let header = o.header(4, 1);
    let p = Packet { src: NodeId(3), dst: NodeId(2), header, body: Body::Block(Block::Peer(val(ts(3, 1)))) };
    o.r.handle_peer(o.now, p, &mut o.store, &mut o.fx);
    assert_eq!(o.replies(), [IoReply::Data(Payload::elided(4096, 1 << 8))]);
}

#[test]
fn of_two_whole_writes_the_higher_version_stays() {
    let mut o = One::new(Role::Member);
    assert!(acked(&o.inv(1, 1, block(0, ts(3, 2), Timestamp::ZERO, false))));
    assert!(acked(&o.inv(2, 2, block(0, ts(3, 1), Timestamp::ZERO, false))));
    assert_eq!(o.version(0), ts(3, 2));
    assert!(acked(&o.inv(1, 3, block(0, ts(5, 1), Timestamp::ZERO, false))));
    assert_eq!(o.version(0), ts(5, 1));
}

#[test]
fn a_read_modify_write_loses_to_what_it_was_not_made_from() {
    let mut o = One::new(Role::Member);
    o.inv(1, 1, block(0, ts(3, 1), Timestamp::ZERO, false));
    assert!(refused(&o.inv(2, 2, block(0, ts(4, 2), Timestamp::ZERO, true)), false));
    assert!(acked(&o.inv(2, 2, block(0, ts(4, 2), ts(3, 1), true))), "its base was in effect");
    assert!(!refused(&o.inv(1, 3, block(0, ts(3, 2), Timestamp::ZERO, false)), true));
    assert_eq!(o.version(0), ts(4, 2));
}

#[test]
fn a_whole_write_must_pass_a_read_modify_write_in_its_way() {
    let mut o = One::new(Role::Member);
    assert!(acked(&o.inv(1, 1, block(0, ts(9, 1), Timestamp::ZERO, true))));
    assert!(refused(&o.inv(2, 2, block(0, ts(3, 2), Timestamp::ZERO, false)), false));
    assert!(acked(&o.inv(2, 2, block(0, ts(11, 2), Timestamp::ZERO, false))));
    assert_eq!(o.version(0), ts(11, 2));
}

#[test]
fn of_one_mutation_coordinated_twice_the_lower_waits() {
    let mut o = One::new(Role::Member);
    assert!(acked(&o.inv(1, 1, block(0, ts(5, 1), Timestamp::ZERO, false))));
    assert!(refused(&o.inv(2, 1, block(0, ts(3, 2), Timestamp::ZERO, false)), true));
    o.peer(1, Peer::Val { volume: V, blocks: [(0, ts(5, 1))].into() });
    assert!(acked(&o.inv(2, 1, block(0, ts(3, 2), Timestamp::ZERO, false))));
    assert_eq!(o.version(0), ts(5, 1));
}

#[test]
fn a_late_copy_does_not_come_back_through_a_forgotten_range() {
    let mut o = One::new(Role::Member);
    let first = block(0, ts(3, 1), Timestamp::ZERO, false);
    o.inv(1, 1, first);
    o.peer(1, Peer::Val { volume: V, blocks: [(0, ts(3, 1))].into() });
    let range = BlockRange { volume: V, first: 0, count: 4 };
    let mutation = Mutation { client: Incarnation(9), sequence: 2, floor: 0 };
    assert!(acked(&o.peer(1, Peer::InvRange { range, version: ts(7, 1), mutation, attach: 0, fua: false })));
    o.peer(1, Peer::ValRange { range, version: ts(7, 1) });
    o.store.forget_ranges = true;
    o.store.background();
    o.store.background();
    assert_eq!(o.version(0), Timestamp::ZERO);
    assert!(acked(&o.inv(1, 1, first)));
    assert_eq!((o.version(0), o.r.unresolved()), (Timestamp::ZERO, 0));
}

#[test]
fn another_epoch_is_refused_with_the_present_one() {
    let mut o = One::new(Role::Member);
    assert!(matches!(o.peer_in(3, 1, Peer::Flush)[..], [Peer::StaleEpoch]));
    assert!(o.peer_in(3, 1, Peer::StaleEpoch).is_empty());
    assert!(o.peer_in(5, 1, Peer::Flush).is_empty());
    assert_eq!(o.store.persists, 0);
}

#[test]
fn a_message_to_a_member_names_whom_an_answer_is_for() {
    let mut o = One::new(Role::Member);
    let header = Header { op: Op::Write, epoch: o.r.epoch(), ..o.header(0, 9) };
    let body = Body::Block(Block::Io(IoRequest::Flush { volume: V }));
    o.r.handle_io(o.now, Packet { src: NodeId(90), dst: NodeId(2), header, body }, &mut o.store, &mut o.fx);
    let to_members: Vec<_> = o.fx.packets.drain(..).filter(|p| matches!(p.body, Body::Block(Block::Peer(_)))).collect();
    assert_eq!(to_members.len(), 2);
    // A receiver with another epoch does not know the sender's vSSD.
    assert!(to_members.iter().all(|p| p.header.original_vssd == VssdId(1) && p.header.vssd != p.header.original_vssd));
}

#[test]
fn without_a_lease_or_as_a_shadow_nothing_is_served() {
    let refused = [IoReply::Failed(IoError::NotServing)];
    let mut o = One::new(Role::Shadow);
    assert_eq!(o.read(0), refused);
    assert!(acked(&o.inv(1, 1, block(0, ts(3, 1), Timestamp::ZERO, false))), "a shadow acknowledges");
    let mut o = One::new(Role::Member);
    assert_eq!(o.read(0).len(), 1);
    o.now = Time(1_000_000_000);
    assert_eq!(o.read(0), refused);
    let mut o = One::new(Role::Member);
    o.r.fail();
    assert_eq!(o.read(0), refused, "the metadata service may still choose other members");
    o.r.failure_known();
    assert_eq!(o.read(0), [IoReply::Failed(IoError::Device)], "a broken device does not return, so waiting is useless");
    assert!(o.inv(1, 1, block(0, ts(3, 1), Timestamp::ZERO, false)).is_empty());
}

#[test]
fn while_the_set_recovers_and_in_another_life_s_role_nothing_is_served() {
    let refused = [IoReply::Failed(IoError::NotServing)];
    let recovering =
        View { state: ViewState::Recovering { leader: VssdId(2), witnesses: ALL_WITNESSES }, ..view(5, Role::Member) };
    let mut o = One::new(Role::Member);
    o.r.install(o.now, &recovering, Incarnation(50), &mut o.store, &mut o.fx);
    o.fx.clear();
    assert_eq!(o.read(0), refused, "others may hold something newer");
    // The server has restarted: the view's member is an earlier incarnation.
    let mut o = One::new(Role::Member);
    o.r.install(o.now, &view(5, Role::Member), Incarnation(51), &mut o.store, &mut o.fx);
    o.fx.clear();
    assert_eq!((o.r.role(), o.read(0)), (None, refused.to_vec()));
}

#[test]
fn a_flush_and_a_fence_wait_for_every_member() {
    let mut o = One::new(Role::Member);
    let header = |o: &One, from| Header { request: o.fx.packets[0].header.request, ..o.header(4, from) };
    let ask = |o: &mut One, io| {
        let p = Packet { src: NodeId(90), dst: NodeId(2), header: o.header(4, 9), body: Body::Block(Block::Io(io)) };
        o.r.handle_io(o.now, p, &mut o.store, &mut o.fx);
        [header(o, 1), header(o, 2)]
    };
    let answer = |o: &mut One, header: Header, from: u32, body| {
        let p = Packet { src: NodeId(2 + from), dst: NodeId(2), header, body: Body::Block(Block::Peer(body)) };
        o.r.handle_peer(o.now, p, &mut o.store, &mut o.fx);
        o.replies()
    };
    let [first, second] = ask(&mut o, IoRequest::Flush { volume: V });
    let done = o.store.done.pop().expect("persisted here");
    o.r.handle_store(o.now, done, &mut o.store, &mut o.fx);
    assert!(answer(&mut o, first, 1, Peer::FlushAck { ok: true }).is_empty(), "one of two");
    assert_eq!(answer(&mut o, second, 2, Peer::FlushAck { ok: true }), [IoReply::Done]);
    let [first, second] = ask(&mut o, IoRequest::Fence { volume: V, attach: 3 });
    assert!(answer(&mut o, first, 1, Peer::FenceAck { attach: 3 }).is_empty(), "one of two");
    assert_eq!(answer(&mut o, second, 2, Peer::FenceAck { attach: 3 }), [IoReply::Done]);
}

#[test]
fn an_unvalidated_block_is_replayed_with_its_version() {
    let mut o = One::new(Role::Member);
    o.inv(1, 1, block(0, ts(3, 1), Timestamp::ZERO, false));
    o.now = o.r.deadline();
    o.r.handle_timer(o.now, &mut o.store, &mut o.fx);
    let sent = o.sent();
    let replays = sent.iter().filter(|p| matches!(p, Peer::Inv(i) if i.blocks[0].version == ts(3, 1)));
    assert_eq!(replays.count(), 2);
    assert!(o.fx.traces.iter().any(|t| t.point == trace::WRITE_REPLAY));
}

#[test]
fn a_flush_is_acknowledged_when_persisted() {
    let mut o = One::new(Role::Member);
    assert!(o.peer(1, Peer::Flush).is_empty());
    assert!(o.peer(1, Peer::Flush).is_empty(), "a repeated request starts nothing");
    assert_eq!(o.store.persists, 1);
    let done = o.store.done.pop().expect("persisted");
    o.r.handle_store(o.now, done, &mut o.store, &mut o.fx);
    assert!(matches!(o.sent()[..], [Peer::FlushAck { ok: true }]));
}

#[test]
fn a_flush_begins_where_the_set_has_enough_copies() {
    let alone = View { members: view(4, Role::Member).members[..1].into(), ..view(4, Role::Member) };
    let mut o = One::with(ReplicaConfig::new(SetId(1), VssdId(1), NodeId(2)), &alone);
    assert_eq!(o.io(IoRequest::Flush { volume: V }), []);
    assert_eq!(o.store.persists, 0);
    let two = View { members: view(5, Role::Member).members[..2].into(), ..view(5, Role::Member) };
    o.r.install(o.now, &two, Incarnation(50), &mut o.store, &mut o.fx);
    o.r.set_lease(Time(1_000_000_000));
    assert_eq!(o.store.persists, 1, "it waited for that");
    assert!(o.sent().contains(&Peer::Flush));
}

#[test]
fn a_fence_waits_for_older_writers() {
    let mut o = One::new(Role::Member);
    o.inv(1, 1, block(0, ts(3, 1), Timestamp::ZERO, false));
    assert!(o.peer(1, Peer::Fence { volume: V, attach: 1 }).is_empty());
    o.peer(1, Peer::Val { volume: V, blocks: [(0, ts(3, 1))].into() });
    assert!(matches!(o.peer(1, Peer::Fence { volume: V, attach: 1 })[..], [Peer::FenceAck { attach: 1 }]));
}

pub fn write(sequence: u64) -> IoRequest {
    IoRequest::Write(Box::new(WriteRequest {
        range: SectorRange { volume: V, first: sequence * 8, count: 8 },
        data: Payload::elided(4096, sequence),
        mutation: Mutation { client: Incarnation(9), sequence, floor: 0 },
        attach: 0,
        fua: false,
    }))
}

pub fn invalidations(sent: &[Peer]) -> usize {
    sent.iter().filter(|p| matches!(p, Peer::Inv(_))).count()
}

#[test]
fn what_a_larger_view_began_a_member_left_alone_carries_out_and_does_not_answer() {
    let alone = |epoch| {
        let all = view(epoch, Role::Member);
        View { members: all.members[..1].into(), ..all }
    };
    let persisted = |o: &mut One| {
        o.store.background();
        for done in std::mem::take(&mut o.store.done) {
            o.r.handle_store(o.now, done, &mut o.store, &mut o.fx);
        }
    };
    let mut o = One::new(Role::Member);
    let credit = Credit { slots: 8, pages: 8, no_space: false };
    for member in [1, 2] {
        o.peer(member, Peer::CreditGrant { credit });
    }
    let fence = |attach| IoRequest::Fence { volume: V, attach };
    o.io(write(1));
    o.io(IoRequest::Flush { volume: V });
    o.io(fence(0));
    let waits = |o: &mut One| o.replies().iter().filter(|r| **r == IoReply::Failed(IoError::NotServing)).count();
    o.r.install(o.now, &alone(5), Incarnation(50), &mut o.store, &mut o.fx);
    persisted(&mut o);
    assert_eq!(waits(&mut o), 3, "write, flush and fence must be retried");
    assert_eq!(o.r.unresolved(), 0);
    assert!(matches!(o.read(1)[..], [IoReply::Data { .. }]), "reads are served");
    for io in [write(1), write(2)] {
        assert_eq!(o.io(io), [], "no answer yet");
    }
    assert_eq!(o.io(fence(0)), [IoReply::Failed(IoError::NotServing)]);
    assert_eq!(o.io(IoRequest::Flush { volume: V }), []);
    persisted(&mut o);
    assert_eq!(o.replies(), [], "a server outside the view may have it only in memory");
    o.sent();
    o.r.install(o.now, &view(6, Role::Member), Incarnation(50), &mut o.store, &mut o.fx);
    let requested = |p: &Packet| matches!(p.body, Body::Block(Block::Peer(Peer::Flush)));
    assert_eq!(o.fx.packets.iter().filter(|p| requested(p)).count(), 2, "the flush starts at the new members");
    assert_eq!(o.replies(), [IoReply::Done], "that write is in effect, and two others have it");
    persisted(&mut o);
    assert_eq!(o.replies(), [], "the others have not acknowledged the flush");
}

#[test]
fn a_corrupt_block_waits_while_no_member_can_provide_another_copy() {
    let read = |o: &mut One, b| {
        let requested = o.read(b);
        assert_eq!(requested, [], "the read waits for the flash");
        for done in std::mem::take(&mut o.store.done) {
            o.r.handle_store(o.now, done, &mut o.store, &mut o.fx);
        }
        o.replies()
    };
    let of = |epoch, n: usize| {
        let all = view(epoch, Role::Member);
        View { members: all.members[..n].into(), ..all }
    };
    let mut o = One::new(Role::Member);
    o.store.corrupt.insert(BlockAddr::new(V, 1));
    o.r.install(o.now, &of(5, 1), Incarnation(50), &mut o.store, &mut o.fx);
    assert_eq!(read(&mut o, 1), [IoReply::Failed(IoError::NotServing)], "servers outside the view may have it");
    o.r.install(o.now, &of(6, 2), Incarnation(50), &mut o.store, &mut o.fx);
    assert_eq!(read(&mut o, 1), [], "another member gets the request");
}

/// Request number of the messages that recall page credit.
pub const RECALL: u64 = u64::MAX;

/// Member 1 gives back all `granted` pages but `keep`.
pub fn given_back(o: &mut One, granted: u64, keep: u64) -> Vec<Peer> {
    let header = Header { request: RECALL, ..o.header(4, 1) };
    o.peer_as(header, 1, Peer::CreditRequest { slots_used: 0, pages_used: granted - keep, want_pages: 0 })
}

pub fn ask(want_pages: u32) -> Peer {
    Peer::CreditRequest { slots_used: 0, pages_used: 0, want_pages }
}

/// The end of the address space.
pub const END: BlockAddr = BlockAddr { volume: VolumeId(u32::MAX), block: u32::MAX };
/// The start of the source's second piece.
const STALE: BlockAddr = BlockAddr { volume: V, block: 1024 };

/// The shadow's digests differ from the source's in two pieces; the source sends the runs of the first.
pub fn compared(o: &mut One, entries: &[u32]) -> Vec<Peer> {
    let from = BlockAddr::default();
    let entry = |&b: &u32| {
        let version = Timestamp::new(Epoch(3), 5, 1);
        ScanEntry { addr: BlockAddr::new(V, b), count: 1, version, mapped: true }
    };
    let header = Header { request: BlockAddr::default().pack(), ..o.header(4, 1) };
    let requested = o.peer_as(header, 1, Peer::Digests { entries: [(from, 1), (STALE, 1)].into(), next: None });
    assert_eq!(requested, [Peer::ScanRequest { from, until: STALE }]);
    o.peer(1, Peer::Scan { from, until: STALE, entries: entries.iter().map(entry).collect() })
}

pub fn blocks_asked(sent: &[Peer]) -> Vec<u32> {
    let requested = sent.iter().filter_map(|p| if let Peer::BlockFetch { addr } = p { Some(addr.block) } else { None });
    requested.collect()
}

#[test]
fn a_full_shadow_copies_the_rest_once_its_stale_blocks_are_gone() {
    let mut o = One::new(Role::Shadow);
    let stale = STALE;
    for b in 0..3 {
        o.store.put(BlockAddr::new(V, stale.block + b), Timestamp::new(Epoch(2), 9, 0), Payload::elided(4096, 1));
    }
    o.store.pages = 4;
    for member in [1, 2] {
        let from = VssdId(1 + member);
        o.peer(member, Peer::Clients { records: [].into(), volumes: LiveVolumes::default(), from });
    }
    let source = [0, 1, 2];
    let requested = blocks_asked(&compared(&mut o, &source));
    assert_eq!(requested, [0], "stale blocks take all pages but one");
    let ask = |want_pages| Peer::CreditRequest { slots_used: 0, pages_used: 0, want_pages };
    assert!(o.peer(2, ask(1)).is_empty(), "no refusal, as pages are about to be free");
    let copy = |o: &mut One, block: u32| {
        let (addr, version) = (BlockAddr::new(V, block), Timestamp::new(Epoch(3), 5, 1));
        let header = Header { request: u64::MAX, ..o.header(4, 1) };
        o.peer_as(header, 1, Peer::Block { addr, version, data: Some(Payload::elided(4096, 7)) })
    };
    assert_eq!(copy(&mut o, 0), [Peer::ScanRequest { from: stale, until: END }]);
    o.peer(1, Peer::Scan { from: stale, until: END, entries: [].into() });
    assert!(!o.store.mapped(stale));
    assert_eq!(o.store.persists, 0, "not filled yet");
    o.now = o.r.deadline();
    o.r.handle_timer(o.now, &mut o.store, &mut o.fx);
    assert!(o.sent().iter().any(|p| matches!(p, Peer::DigestRequest { .. })));
    assert_eq!(blocks_asked(&compared(&mut o, &source)), [1, 2]);
    // One of four pages is used, and two are reserved for the copies.
    let granted = o.peer(2, ask(2));
    assert!(
        matches!(granted[..], [Peer::CreditGrant { credit }] if credit.no_space && credit.pages == 1),
        "{granted:?}"
    );
    copy(&mut o, 1);
    assert_eq!(
        copy(&mut o, 2),
        [Peer::ScanRequest { from: stale, until: END }],
        "its tombstones differ from no record"
    );
    o.peer(1, Peer::Scan { from: stale, until: END, entries: [].into() });
    assert_eq!(o.store.persists, 1, "filled");
}

/// The messages that a shadow sends until `end`, with their times in milliseconds.
fn asked_until(o: &mut One, end: u64) -> Vec<(u64, Peer)> {
    let mut requested = Vec::new();
    while o.r.deadline() <= Time(end) {
        o.now = o.r.deadline();
        o.r.handle_timer(o.now, &mut o.store, &mut o.fx);
        requested.extend(o.sent().into_iter().map(|p| (o.now.0 / MS, p)));
    }
    o.now = Time(end);
    requested
}

#[test]
fn an_unanswered_fill_backs_off() {
    let mut o = One::new(Role::Shadow);
    let requested = asked_until(&mut o, 4_000 * MS);
    let mut times: Vec<u64> = requested.iter().map(|a| a.0).collect();
    times.dedup();
    let gaps: Vec<u64> = times.windows(2).map(|t| t[1] - t[0]).collect();
    // In whole turns of 20 ms; each delay varies by up to a quarter.
    assert!(times[0] <= 40 && gaps[0] <= 60 && gaps[1] <= 120, "{times:?}");
    assert!(gaps[4..].iter().all(|g| (240..=420).contains(g)), "{gaps:?}");
    assert!(requested.iter().all(|a| a.1 == Peer::ClientsRequest));
}

#[test]
fn a_fill_whose_answers_are_slow_asks_for_each_block_once() {
    let mut o = One::new(Role::Shadow);
    let slow = 70 * MS;
    for member in [1, 2] {
        let from = VssdId(1 + member);
        o.peer(member, Peer::Clients { records: [].into(), volumes: LiveVolumes::default(), from });
    }
    // The digests take 70 ms and are requested again meanwhile. From then on the delay is known.
    let again = asked_until(&mut o, slow);
    assert!(again.iter().any(|a| matches!(a.1, Peer::DigestRequest { .. })));
    let from = BlockAddr::default();
    let header = Header { request: from.pack(), ..o.header(4, 1) };
    o.peer_as(header, 1, Peer::Digests { entries: [(from, 1)].into(), next: None });
    asked_until(&mut o, 2 * slow);
    let version = Timestamp::new(Epoch(3), 5, 1);
    let entry = |b| ScanEntry { addr: BlockAddr::new(V, b), count: 1, version, mapped: true };
    let sent = o.peer(1, Peer::Scan { from, until: END, entries: (0..64).map(entry).collect() });
    let mut under_way: Vec<(u64, u32)> = blocks_asked(&sent).into_iter().map(|b| (o.now.0 + slow, b)).collect();
    let mut requested: Vec<u32> = under_way.iter().map(|u| u.1).collect();
    while !under_way.is_empty() {
        let (at, b) = under_way.remove(0);
        let mut sent: Vec<Peer> = asked_until(&mut o, at).into_iter().map(|a| a.1).collect();
        let (addr, version) = (BlockAddr::new(V, b), Timestamp::new(Epoch(3), 5, 1));
        let header = Header { request: u64::MAX, ..o.header(4, 1) };
        sent.extend(o.peer_as(header, 1, Peer::Block { addr, version, data: Some(Payload::elided(4096, 7)) }));
        let more = blocks_asked(&sent);
        requested.extend(&more);
        under_way.extend(more.into_iter().map(|b| (at + slow, b)));
    }
    requested.sort_unstable();
    assert_eq!(requested, (0..64).collect::<Vec<u32>>());
}

/// If the ends were read one at a time, each could be overwritten while the other is read, without end.
#[test]
fn parts_of_a_partial_write_are_kept_until_both_ends_are_there() {
    let mut one = One::new(Role::Member);
    let val = |one: &mut One, b: u32, version| {
        one.peer(1, Peer::Val { volume: V, blocks: [(b, version)].into() });
    };
    for b in 0..2 {
        assert!(acked(&one.inv(1, 1 + u64::from(b), block(b, ts(4, 1), Timestamp::ZERO, false))));
        val(&mut one, b, ts(4, 1));
    }
    // Reads complete later.
    one.store.slow = 1;
    let range = SectorRange { volume: V, first: 4, count: 8 };
    let mutation = Mutation { client: Incarnation(10), sequence: 1, floor: 0 };
    let write = WriteRequest { range, data: Payload::elided(4096, 7 << 30), fua: false, attach: 0, mutation };
    assert!(one.io(IoRequest::Write(Box::new(write))).is_empty());
    let both = std::mem::take(&mut one.store.done);
    assert_eq!(both.len(), 2, "both ends are read");
    // One end is overwritten before its read completes.
    assert!(acked(&one.inv(1, 9, block(0, ts(8, 1), ts(4, 1), false))));
    val(&mut one, 0, ts(8, 1));
    for done in both {
        one.r.handle_store(one.now, done, &mut one.store, &mut one.fx);
    }
    let mut again = std::mem::take(&mut one.store.done);
    assert_eq!(again.len(), 1, "only that one is read again");
    one.fx.clear();
    one.r.handle_store(one.now, again.remove(0), &mut one.store, &mut one.fx);
    assert!(one.store.done.is_empty(), "nothing is read a third time");
    let requested = one.sent();
    assert!(requested.iter().any(|p| matches!(p, Peer::CreditRequest { .. })), "the write continues: {requested:?}");
}

/// A fenced client gives a mutation up and lets its floor pass it. A replay of the mutation needs the data stored, not
/// the answer that the client has stopped waiting.
#[test]
fn what_is_below_the_floor_and_never_came_is_taken() {
    let mut o = One::new(Role::Member);
    let inv = |sequence, floor, b: InvBlock| Inv {
        volume: V,
        blocks: [b].into(),
        data: Payload::elided(4096, sequence << 8),
        mutation: Mutation { client: Incarnation(9), sequence, floor },
        attach: 0,
        fua: false,
    };
    let late = Timestamp::new(Epoch(3), 5, 2);
    assert!(acked(&o.peer(1, Peer::Inv(Arc::new(inv(7, 7, block(1, ts(3, 1), Timestamp::ZERO, false)))))));
    assert!(acked(&o.peer(2, Peer::Inv(Arc::new(inv(4, 2, block(0, late, Timestamp::ZERO, false)))))));
    assert_eq!(o.version(0), late);
    let range = BlockRange { volume: V, first: 8, count: 4 };
    let mutation = Mutation { client: Incarnation(9), sequence: 5, floor: 2 };
    let inv = Peer::InvRange { range, version: late, mutation, attach: 0, fua: false };
    assert!(acked(&o.peer(2, inv)));
    assert_eq!(o.version(9), late);
}

/// Flash forgets range records, and this member forgets the oldest ones of its epoch. It then cannot know whether a
/// late write was zeroed by one of them, or never arrived.
#[test]
fn what_a_forgotten_range_may_have_zeroed_waits_for_a_new_epoch() {
    let mut o = One::new(Role::Member);
    let data = |sequence| Payload::elided(4096, sequence << 8);
    let inv = |sequence, floor, b: InvBlock| {
        let mutation = Mutation { client: Incarnation(9), sequence, floor };
        Peer::Inv(Arc::new(Inv {
            volume: V,
            blocks: [b].into(),
            data: data(sequence),
            mutation,
            attach: 0,
            fua: false,
        }))
    };
    for i in 0..70 {
        let range = BlockRange { volume: V, first: 100 * i, count: 1 };
        let version = ts(10 + u64::from(i), 1);
        let mutation = Mutation { client: Incarnation(9), sequence: 10 + u64::from(i), floor: 0 };
        assert!(acked(&o.peer(1, Peer::InvRange { range, version, mutation, attach: 0, fua: false })));
        o.peer(1, Peer::ValRange { range, version });
    }
    o.store.forget_ranges = true;
    o.store.background();
    assert!(acked(&o.peer(1, inv(90, 90, block(50, ts(100, 1), Timestamp::ZERO, false)))));
    // A range that is remembered: the block stays zeroed.
    assert!(acked(&o.peer(1, inv(3, 3, block(6_900, ts(5, 1), Timestamp::ZERO, false)))));
    assert_eq!(o.version(6_900), Timestamp::ZERO);
    // Newer than every forgotten range.
    assert!(acked(&o.peer(1, inv(4, 3, block(7, ts(60, 1), Timestamp::ZERO, false)))));
    assert_eq!(o.version(7), ts(60, 1));
    assert_eq!(o.peer(1, inv(5, 3, block(0, ts(5, 1), Timestamp::ZERO, false))), []);
    assert_eq!(o.version(0), Timestamp::ZERO);
}
