//! The whole state space of one set with two to four replicas: every operation, repetition, late arrival, expiry and
//! restart of a server or the switch in every reachable state, against a model of the rules.

use std::collections::VecDeque;

use rackweave_core::map::{Set, set};
use rackweave_core::msg::{GcField, Packet};
use rackweave_core::{Layout, NodeId, Span, Time};
use rackweave_switch::{DropReason, GcHow, Pipeline, SwitchConfig, Verdict};

use crate::support::{create, gc};

const FIELDS: [GcField; 9] = [
    GcField::Soft,
    GcField::Swap,
    GcField::Swapping,
    GcField::SwapBeside,
    GcField::Regular,
    GcField::Background,
    GcField::Finish,
    GcField::Heartbeat,
    GcField::Idle,
];
const EXPIRE: Span = Span::from_secs(1);

/// The state of one vSSD by the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Replica {
    readable: bool,
    collecting: bool,
    swaps: bool,
    heard: bool,
    /// The newest operation: its request and its answer, and whether its bits have expired since.
    last: Option<(GcField, GcField, bool)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Model {
    replicas: Vec<Replica>,
    /// Expiry steps since the switch started, up to two; 3 means that the state of every replica has been known once.
    started: u8,
}

/// A reachable state: the model, and a real pipeline in it.
#[derive(Clone)]
struct State {
    model: Model,
    pipeline: Pipeline,
    now: Time,
    sequence: Vec<u64>,
    incarnation: Vec<u64>,
}

fn pipeline() -> Pipeline {
    Pipeline::new(&SwitchConfig { bits_expire: EXPIRE, ..SwitchConfig::new(Layout::SWITCH) })
}
fn server(i: usize) -> u32 {
    2 + i as u32
}
fn vssd(i: usize) -> u32 {
    1 + i as u32
}

impl State {
    fn new(readable: &[bool]) -> State {
        let n = readable.len();
        let replicas = readable.iter().map(|&readable| Replica { readable, ..Replica::default() }).collect();
        let mut s = State {
            model: Model { replicas, started: 0 },
            pipeline: pipeline(),
            now: Time::ZERO,
            sequence: vec![10; n],
            incarnation: vec![1; n],
        };
        s.announce_all();
        s
    }
    fn n(&self) -> usize {
        self.model.replicas.len()
    }
    fn process(&mut self, p: &Packet) -> Verdict {
        let verdict = self.pipeline.process(self.now, p.src, &p.header, &p.body);
        self.pipeline.check().expect("tables agree after each packet");
        verdict
    }
    fn announce(&mut self, i: usize) {
        let peers: Vec<_> = (0..self.n()).filter(|&j| j != i).map(|j| (vssd(j), server(j))).collect();
        let mut p = create(vssd(i), server(i), self.model.replicas[i].readable, &peers);
        p.header.incarnation.0 = self.incarnation[i];
        assert_eq!(self.process(&p), Verdict::Table(Ok(())));
    }
    fn announce_all(&mut self) {
        self.pipeline.start(self.now);
        (0..self.n()).for_each(|i| self.announce(i));
    }
    fn op(&mut self, i: usize, field: GcField, sequence: u64) -> Verdict {
        let p = gc(field, vssd(i), server(i), self.incarnation[i], sequence);
        self.process(&p)
    }
    /// Both tables must agree with the model.
    fn compare(&self) {
        let dump = self.pipeline.dump();
        for (i, r) in self.model.replicas.iter().enumerate() {
            let (replica, destination) = (&dump.replica[i], &dump.destination[i]);
            assert_eq!((replica.collecting, destination.collecting), (r.collecting, r.collecting));
            assert_eq!((destination.readable, destination.heard), (r.readable, r.heard));
            assert_eq!(destination.server, NodeId(server(i)));
        }
    }

    fn new_op(&mut self, i: usize, field: GcField) {
        self.sequence[i] += 1;
        let want = self.model.answer(i, field);
        let got = self.op(i, field, self.sequence[i]);
        assert_eq!(got, Verdict::Gc { answer: want, how: GcHow::New }, "{field:?} of {i} in {:?}", self.model);
    }
    fn repeat_op(&mut self, i: usize) {
        let Some((field, answer, expired)) = self.model.replicas[i].last else { return };
        let (answer, how) = match expired {
            false => (answer, GcHow::Duplicate),
            true => (self.model.answer(i, field), GcHow::New),
        };
        let got = self.op(i, field, self.sequence[i]);
        assert_eq!(got, Verdict::Gc { answer, how }, "again {field:?} of {i}");
    }
    fn late_op(&mut self, i: usize, field: GcField) {
        if self.model.replicas[i].last.is_some() {
            let got = self.op(i, field, self.sequence[i] - 1);
            assert_eq!(got, Verdict::Drop(DropReason::StaleGcOp));
        }
        if self.incarnation[i] > 1 {
            let p = gc(field, vssd(i), server(i), self.incarnation[i] - 1, self.sequence[i] + 5);
            assert_eq!(self.process(&p), Verdict::Drop(DropReason::StaleGcOp));
        }
    }
    /// Refreshes the state of every replica that has one, except `i`, whose state expires.
    fn expire(&mut self, i: usize) {
        self.now += Span::from_millis(600);
        assert_eq!(self.pipeline.expire_one(self.now), None, "all were refreshed within the last 500 ms");
        self.refresh_all_but(Some(i));
        self.now += Span::from_millis(500);
        while let Some((v, collected)) = self.pipeline.expire_one(self.now) {
            let r = &mut self.model.replicas[i];
            assert_eq!((v.0, collected), (vssd(i), r.collecting));
            (r.collecting, r.swaps, r.heard) = (false, false, false);
            r.last = r.last.map(|(field, answer, _)| (field, answer, true));
        }
        // All states have the same age.
        self.refresh_all_but(None);
        self.model.started = if self.model.started < 3 { (self.model.started + 1).min(2) } else { 3 };
        self.pipeline.check().unwrap();
    }
    fn refresh_all_but(&mut self, i: Option<usize>) {
        for j in 0..self.n() {
            let r = self.model.replicas[j];
            if Some(j) != i && r.heard {
                let state = (r.swaps, r.collecting);
                self.new_op(
                    j,
                    match state {
                        (true, _) => GcField::Swapping,
                        (_, true) => GcField::Heartbeat,
                        _ => GcField::Idle,
                    },
                );
            }
        }
    }
    fn restart_server(&mut self, i: usize) {
        self.incarnation[i] += 1;
        self.sequence[i] = 10;
        let r = &mut self.model.replicas[i];
        (r.collecting, r.swaps, r.heard, r.last) = (false, false, false, None);
        self.announce(i);
    }
    fn restart_switch(&mut self) {
        self.pipeline = pipeline();
        self.model.started = 0;
        for r in &mut self.model.replicas {
            (r.collecting, r.swaps, r.heard, r.last) = (false, false, false, None);
        }
        self.announce_all();
    }
}

impl Model {
    fn answer(&mut self, i: usize, field: GcField) -> GcField {
        use GcField::*;
        let before = self.replicas[i];
        let (answer, collecting) = match field {
            Soft if self.may_collect(i) => (Accept, true),
            Soft => (Delay, false),
            Swap | SwapBeside if self.may_collect(i) && self.no_other_swaps(i) => (Accept, true),
            Swap | SwapBeside => (Delay, field == SwapBeside),
            Regular | Background => (Accept, true),
            Heartbeat | Swapping => (field, true),
            _ => (field, false),
        };
        let swaps = match field {
            Swap | SwapBeside => answer == Accept,
            Swapping => true,
            Soft | Regular | Background => before.swaps && answer == Accept,
            _ => false,
        };
        self.replicas[i] =
            Replica { collecting, swaps, heard: true, last: Some((field, answer, false)), readable: before.readable };
        answer
    }
    fn may_collect(&mut self, i: usize) -> bool {
        if self.started == 2 || self.replicas.iter().all(|r| r.heard) {
            self.started = 3;
        }
        self.started == 3 && self.another_serves(i)
    }
    fn another_serves(&self, i: usize) -> bool {
        self.replicas.iter().enumerate().any(|(j, r)| j != i && r.readable && r.heard && !r.collecting)
    }
    /// Protocol rule 35.
    fn no_other_swaps(&self, i: usize) -> bool {
        self.replicas.iter().enumerate().all(|(j, r)| j == i || r.heard && !r.swaps)
    }
    fn all_readable_collect(&self) -> bool {
        self.replicas.iter().filter(|r| r.readable).all(|r| r.collecting)
    }
}

/// Visits every reachable state, breadth first, and returns their number.
fn explore(readable: &[bool], fields: &[GcField], faults: bool, visit: impl Fn(&State)) -> usize {
    let mut seen: Set<Model> = set();
    let first = State::new(readable);
    seen.insert(first.model.clone());
    let mut queue = VecDeque::from([first]);
    while let Some(state) = queue.pop_front() {
        let mut go = |step: &dyn Fn(&mut State)| {
            let mut next = state.clone();
            step(&mut next);
            next.compare();
            visit(&next);
            if seen.insert(next.model.clone()) {
                queue.push_back(next);
            }
        };
        for i in 0..state.n() {
            for &field in fields {
                go(&|s| s.new_op(i, field));
                go(&|s| s.late_op(i, field));
            }
            go(&|s| s.repeat_op(i));
            if faults {
                go(&|s| s.expire(i));
                go(&|s| s.restart_server(i));
            }
        }
        if faults {
            go(&State::restart_switch);
        }
    }
    seen.len()
}

fn masks(n: usize) -> impl Iterator<Item = Vec<bool>> {
    (1..1u32 << n).map(move |mask| (0..n).map(|i| mask & (1 << i) != 0).collect())
}

#[test]
fn all_states_of_two_and_three_replicas_with_faults() {
    let mut states = 0;
    for readable in (2..=3).flat_map(masks) {
        states += explore(&readable, &FIELDS, true, |_| {});
    }
    assert!(states > 20_000, "{states}");
}

#[test]
fn all_states_of_four_replicas() {
    for readable in [vec![true; 4], vec![true, true, true, false], vec![true, false, false, false]] {
        let fields = [GcField::Soft, GcField::Regular, GcField::Finish];
        assert!(explore(&readable, &fields, false, |_| {}) > 200);
    }
}

/// The purpose of protocol rule 15: if all requests are soft, a readable replica is always idle.
#[test]
fn asking_never_leaves_a_set_without_an_idle_replica() {
    for readable in (2..=4).flat_map(masks) {
        let fields = [GcField::Soft, GcField::Swap, GcField::Finish, GcField::Idle];
        explore(&readable, &fields, false, |s| assert!(!s.model.all_readable_collect(), "{:?}", s.model));
    }
}
