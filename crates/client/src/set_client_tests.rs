//! Messages through the client of sets, with members played by the tests.

use rackweave_core::msg::{Block, Body, Class, Control, IoRequest, Op, RackMap, SetRoute};
use rackweave_core::{Effects, Epoch, Incarnation, NodeId, SetId, Span, Time, VolumeId, VssdId};

use super::Failure::*;
use super::*;
use crate::SetClientConfig;

const SET: SetId = SetId(7);
const MEMBERS: [VssdId; 3] = [VssdId(1), VssdId(2), VssdId(3)];

/// A read or a mutation.
struct Plain {
    mutation: bool,
}

impl SetMessage for Plain {
    fn is_mutation(&self) -> bool {
        self.mutation
    }
}

fn config() -> SetClientConfig {
    SetClientConfig { window: 2, ..SetClientConfig::new(NodeId(40), 9) }
}

struct Rig {
    client: SetClient<Plain>,
    now: Time,
    fx: Effects,
    /// Sequences of the mutations sent.
    sequences: Vec<u64>,
}

impl Rig {
    fn new(client: SetClient<Plain>) -> Rig {
        Rig { client, now: Time::ZERO + Span::from_secs(1), fx: Effects::new(), sequences: Vec::new() }
    }
    fn registered() -> Rig {
        let mut r = Rig::new(SetClient::new(config()));
        assert!(r.client.welcomed(r.now, 9, Incarnation(5)) && !r.client.welcomed(r.now, 9, Incarnation(6)));
        r.map(1);
        r
    }
    fn map(&mut self, generation: u64) -> bool {
        let route = SetRoute { set: SET, epoch: Epoch(3), members: MEMBERS.to_vec() };
        self.client.take_map(&RackMap { generation, sets: vec![route] })
    }
    fn add(&mut self, mutation: bool) -> u32 {
        let set = self.client.set_slot(SET);
        let slot = self.client.insert(set, 0, Plain { mutation });
        self.client.enqueue(slot);
        slot
    }
    fn send(&mut self, slot: u32) -> Sent {
        let sequences = &mut self.sequences;
        let compose = |m: &Plain, mutation: Mutation| {
            if m.mutation {
                sequences.push(mutation.sequence);
            }
            let body = Body::Block(Block::Io(IoRequest::Flush { volume: VolumeId(1) }));
            Composed { op: Op::Write, class: Class::Silver, body }
        };
        self.client.send(self.now, slot, compose, &mut self.fx)
    }
    fn send_next_read(&mut self) -> u32 {
        let slot = self.client.next_read(0).expect("the window has room");
        assert_eq!(self.send(slot), Sent::First);
        slot
    }
    /// The last try is answered with `error`.
    fn fail(&mut self, slot: u32, from: VssdId, error: IoError) -> Failure {
        let tag = self.client.message(slot).tag;
        self.client.failed(self.now, slot, (tag, from), error, &mut self.fx)
    }
    /// Targets of the messages to members since the last call.
    fn targets(&mut self) -> Vec<VssdId> {
        let to_members = self.fx.packets.drain(..).filter(|p| p.header.op != Op::Control);
        to_members.map(|p| p.header.vssd).collect()
    }
    fn requested_map(&self) -> bool {
        self.fx.packets.iter().any(|p| matches!(p.body, Body::Control(Control::MapRequest { .. })))
    }
}

#[test]
fn a_set_takes_as_many_messages_as_its_window() {
    let mut r = Rig::registered();
    for _ in 0..3 {
        r.add(false);
    }
    assert_eq!((r.client.pop_due_set(), r.client.pop_due_set()), (Some(0), None), "each once");
    let first = r.send_next_read();
    r.send_next_read();
    assert_eq!(r.client.next_read(0), None);
    r.client.release(first);
    assert_eq!(r.client.pop_due_set(), Some(0));
    assert!(r.client.next_read(0).is_some());
}

#[test]
fn a_message_that_every_member_refuses_waits_and_the_map_is_requested() {
    let mut r = Rig::registered();
    r.add(false);
    let slot = r.send_next_read();
    for k in 1..3 {
        let from = r.client.message(slot).target;
        assert_eq!(r.fail(slot, from, IoError::NotServing), TryNext, "another has not been tried");
        assert_eq!(r.send(slot), Sent::Again { tries: k, member: MEMBERS[k as usize], moved: true });
    }
    assert!(r.requested_map());
    assert_eq!(r.fail(slot, MEMBERS[2], IoError::NotServing), Paused);
    assert_eq!((r.client.message(slot).state, r.targets()), (State::Waiting, MEMBERS.to_vec()));
    assert!(!r.map(0), "an older map");
    assert!(r.map(2) && r.client.stranded() == [slot], "a newer map");
}

#[test]
fn a_device_failure_is_final_when_a_map_requested_since_names_no_other_member() {
    let mut r = Rig::registered();
    r.add(false);
    let slot = r.send_next_read();
    let fail_all = |r: &mut Rig| {
        MEMBERS.map(|from| {
            let outcome = r.fail(slot, from, IoError::Device);
            if outcome == TryNext {
                r.send(slot);
            }
            outcome
        })
    };
    assert_eq!(fail_all(&mut r), [TryNext, TryNext, Paused]);
    r.now += Span::from_secs(1);
    r.send(slot);
    assert_eq!(fail_all(&mut r), [TryNext, TryNext, Paused], "no map was requested since");
    r.client.map_answered(2);
    r.send(slot);
    assert_eq!(fail_all(&mut r), [TryNext, TryNext, Final]);
    assert_eq!(r.fail(slot, VssdId(9), IoError::Corrupt), TryNext, "one that has left is not concerned");
    assert_eq!(r.fail(slot, MEMBERS[0], IoError::NoSpace), Final, "another member would have no room either");
}

#[test]
fn a_retry_keeps_the_sequence_and_goes_to_the_next_member() {
    let mut r = Rig::registered();
    let (first, second) = (r.add(true), r.add(true));
    assert_eq!((r.client.next_mutation(0), r.client.next_mutation(0)), (Some(first), Some(second)));
    r.send(first);
    r.send(second);
    r.now += Span::from_millis(200);
    let tag = r.client.pop_timer(r.now).expect("no answer in time");
    let slot = r.client.timed_out(r.now, tag, &mut r.fx).expect("to be sent again");
    assert_eq!(r.send(slot), Sent::Again { tries: 1, member: MEMBERS[1], moved: true });
    assert_eq!(r.sequences, [1, 2, 1]);
    assert_eq!(r.client.owner_of(tag), Some(first));
    let late = r.client.failed(r.now, slot, (tag, MEMBERS[0]), IoError::NoSpace, &mut r.fx);
    assert_eq!(late, Paused, "the later try may succeed");
}

#[test]
fn an_owner_s_client_takes_no_answers_to_its_earlier_incarnation() {
    let tag_of = |incarnation| {
        let mut r = Rig::new(SetClient::routed_by_owner(config(), Incarnation(incarnation)));
        assert!(r.client.route(SET, Epoch(2), &MEMBERS, false) && !r.client.route(SET, Epoch(2), &MEMBERS, false));
        r.add(false);
        let slot = r.send_next_read();
        assert_eq!(r.fx.packets[0].header.incarnation, Incarnation(incarnation));
        (r.client.message(slot).tag, r)
    };
    let (old, _) = tag_of(3);
    let (new, mut r) = tag_of(4);
    assert_eq!((r.client.owner_of(old), r.client.owner_of(new)), (None, Some(0)));
    let outcomes = MEMBERS.map(|from| r.fail(0, from, IoError::Device));
    assert_eq!(outcomes[2], Final, "its map is never old");
    assert!(!r.requested_map());
}

#[test]
fn without_members_a_message_waits() {
    let mut r = Rig::new(SetClient::routed_by_owner(config(), Incarnation(1)));
    r.add(false);
    let slot = r.client.next_read(0).expect("it may go");
    assert_eq!((r.send(slot), r.targets()), (Sent::Paused, vec![]));
    r.client.route(SET, Epoch(1), &MEMBERS[..1], false);
    assert_eq!(r.client.stranded(), [slot]);
    assert_eq!(r.send(slot), Sent::Again { tries: 1, member: MEMBERS[0], moved: true });
}

const OTHER: SetId = SetId(9);

/// A map of these sets.
fn map_of(generation: u64, sets: &[SetId]) -> RackMap {
    let route = |&set: &SetId| SetRoute { set, epoch: Epoch(3), members: MEMBERS.to_vec() };
    RackMap { generation, sets: sets.iter().map(route).collect() }
}

#[test]
fn a_set_that_a_newer_map_does_not_name_has_ended() {
    let mut r = Rig::registered();
    r.client.take_map(&map_of(2, &[SET, OTHER]));
    assert!(r.client.ended_sets().is_empty());
    r.client.take_map(&map_of(1, &[SET]));
    assert!(r.client.ended_sets().is_empty(), "an older map");
    r.client.take_map(&map_of(3, &[SET]));
    let other = r.client.set_slot(OTHER);
    assert_eq!(r.client.ended_sets(), [other]);
}

#[test]
fn a_set_that_no_map_has_named_may_be_newer_than_the_map() {
    let mut r = Rig::registered();
    r.client.ask_map(r.now, &mut r.fx);
    // It becomes known, by an attach, while the request is under way.
    let other = r.client.set_slot(OTHER);
    r.client.map_answered(1);
    r.client.take_map(&map_of(2, &[SET]));
    assert!(r.client.ended_sets().is_empty(), "the map may be from before");
    r.now += Span::from_secs(1);
    r.client.ask_map(r.now, &mut r.fx);
    r.client.map_answered(2);
    r.client.take_map(&map_of(2, &[SET]));
    assert_eq!(r.client.ended_sets(), [other]);
}

/// Of three mutations, the first is sent, and the second has its sequence.
fn two_of_three() -> (Rig, u32, u32) {
    let mut r = Rig::registered();
    let slots = [0; 3].map(|_| r.add(true));
    assert_eq!((r.client.next_mutation(0), r.client.next_mutation(0)), (Some(slots[0]), Some(slots[1])));
    r.send(slots[0]);
    (r, slots[0], slots[1])
}

#[test]
fn a_mutation_that_was_given_up_holds_up_new_ones_until_all_older_ones_are_answered() {
    let (mut r, first, second) = two_of_three();
    r.send(second);
    r.client.release(second);
    assert_eq!(r.client.next_mutation(0), None, "a copy of it may wait at a member");
    while r.client.pop_due_set().is_some() {}
    let tag = r.client.message(first).tag;
    r.client.answered(r.now, first, tag);
    r.client.release(first);
    assert_eq!(r.client.pop_due_set(), Some(0));
    assert!(r.client.next_mutation(0).is_some());
}

#[test]
fn one_that_was_answered_or_never_sent_holds_up_nothing() {
    for sent in [true, false] {
        let (mut r, _, second) = two_of_three();
        if sent {
            r.send(second);
            let tag = r.client.message(second).tag;
            r.client.answered(r.now, second, tag);
        }
        r.client.release(second);
        assert!(r.client.next_mutation(0).is_some(), "sent: {sent}");
    }
}

/// The network may have repeated it: one member refused the first copy, and the second finds room.
#[test]
fn one_that_was_refused_holds_up_new_ones() {
    for error in [IoError::NoSpace, IoError::Fenced { attach: 1 }] {
        let (mut r, _, second) = two_of_three();
        r.send(second);
        assert_eq!(r.fail(second, MEMBERS[0], error), Final);
        r.client.release(second);
        assert_eq!(r.client.next_mutation(0), None);
    }
}

#[test]
fn a_set_is_forgotten_without_messages_and_its_place_is_used_again() {
    let mut r = Rig::registered();
    r.client.take_map(&map_of(2, &[SET, OTHER]));
    let other = r.client.set_slot(OTHER);
    let slot = r.client.insert(other, 0, Plain { mutation: true });
    r.client.enqueue(slot);
    assert_eq!(r.client.messages_to(other), [slot]);
    assert!(!r.client.forget_set(OTHER) && !r.client.forget_set(SetId(1)));
    r.client.release(slot);
    assert!(r.client.forget_set(OTHER) && !r.client.forget_set(OTHER));
    assert_eq!((r.client.known(), r.client.sets()), (1, 1));
    assert_eq!(r.client.pop_due_set(), None, "nor is it due");
    assert_eq!(r.client.set_slot(SetId(10)), other);
    assert_eq!(r.client.set(other).floor(), 1);
}
