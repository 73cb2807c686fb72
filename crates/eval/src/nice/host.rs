//! A host: one process on one core, a drive for its forced log, a network card.
//!
//! A message costs the core a fixed time to send and to receive, a new connection as much again at both ends, and a round trip.
//! Bytes cost no CPU: copying is many times faster than the links. Acknowledgements of frames are the card's.

use std::any::Any;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;

use bytes::Bytes;
use rackweave_core::node::StoreWrite;
use rackweave_core::{Effects, Event, Node, NodeId, Span, Time};

use super::envelope::{Envelope, To};
use super::net::{BARE_BYTES, Carried, Carrier, Frame, up};

/// Costs that are the same for all schemes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostConfig {
    /// CPU of one message, to send or to receive.
    pub message: Span,
    /// Drive: a forced write, and its bytes a microsecond.
    pub force: Span,
    pub drive_bytes_per_us: u64,
}

/// A process on a host.
pub trait Process: Node<Envelope> + Any {}
impl<N: Node<Envelope> + Any> Process for N {}

#[derive(Debug)]
enum Due {
    /// The core has received it.
    Received(Rc<Envelope>),
    /// The core has sent it.
    Sent(Rc<Envelope>),
    Stored(StoreWrite),
    Timer,
}

pub struct Host {
    me: NodeId,
    cfg: HostConfig,
    process: Box<dyn Process>,
    core_free: Time,
    drive_free: Time,
    due: BinaryHeap<Reverse<(Time, u64)>>,
    what: BTreeMap<u64, Due>,
    next: u64,
    /// The process's timer.
    timer: u64,
    /// Messages that wait for a connection.
    opening: BTreeMap<u64, Rc<Envelope>>,
    /// Frames of each message, not acknowledged yet.
    unacked: BTreeMap<u64, u64>,
    /// What is durable, if it is kept for a restart.
    saved: Option<BTreeMap<Bytes, Bytes>>,
    fx: Effects<Envelope>,
}

impl Host {
    pub fn new(me: NodeId, cfg: HostConfig, process: impl Process) -> Host {
        Host {
            me,
            cfg,
            process: Box::new(process),
            core_free: Time::ZERO,
            drive_free: Time::ZERO,
            due: BinaryHeap::new(),
            what: BTreeMap::new(),
            next: 0,
            timer: u64::MAX,
            opening: BTreeMap::new(),
            unacked: BTreeMap::new(),
            saved: None,
            fx: Effects::new(),
        }
    }
    /// Keeps its drive's contents, beginning with these.
    pub fn with_saved(mut self, saved: Vec<(Bytes, Bytes)>) -> Host {
        self.saved = Some(saved.into_iter().collect());
        self
    }
    pub fn saved(&self) -> Vec<(Bytes, Bytes)> {
        self.saved.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect()
    }
    /// Messages that have arrived, and that the core has not received.
    pub fn queued(&self) -> usize {
        self.what.values().filter(|d| matches!(d, Due::Received(_))).count()
    }
    pub fn set_config(&mut self, cfg: HostConfig) {
        self.cfg = cfg;
    }
    pub fn process<P: 'static>(&mut self) -> Option<&mut P> {
        (&mut *self.process as &mut dyn Any).downcast_mut()
    }
    /// Runs something in the process now.
    pub fn act<P: 'static, R>(
        &mut self,
        now: Time,
        fx: &mut Effects<Frame>,
        what: impl FnOnce(&mut P, &mut Effects<Envelope>) -> R,
    ) -> Option<R> {
        let process = (&mut *self.process as &mut dyn Any).downcast_mut::<P>()?;
        let result = what(process, &mut self.fx);
        self.pass(now, fx);
        Some(result)
    }

    fn at(&mut self, at: Time, due: Due) -> u64 {
        let seq = self.next;
        self.next += 1;
        self.due.push(Reverse((at, seq)));
        self.what.insert(seq, due);
        seq
    }
    /// The core is busy for this long, after what it has to do already.
    fn work(&mut self, now: Time, takes: Span) -> Time {
        self.core_free = self.core_free.max(now) + takes;
        self.core_free
    }
    fn cost(&self, carrier: Carrier) -> Span {
        if carrier == Carrier::NewTcp { Span(2 * self.cfg.message.0) } else { self.cfg.message }
    }
    /// Carries out the process's effects.
    fn pass(&mut self, now: Time, fx: &mut Effects<Frame>) {
        for envelope in std::mem::take(&mut self.fx.packets) {
            let at = self.work(now, self.cost(envelope.carrier));
            self.at(at, Due::Sent(Rc::new(envelope)));
        }
        for write in std::mem::take(&mut self.fx.stores) {
            let bytes: usize = write.entries.iter().map(|(k, v)| k.len() + v.as_ref().map_or(0, Bytes::len)).sum();
            self.store(now, bytes as u64, write);
        }
        if let Some(at) = self.fx.take_wake() {
            self.what.remove(&self.timer);
            self.timer = if at == Time::MAX { u64::MAX } else { self.at(at.max(now), Due::Timer) };
        }
        self.fx.clear();
        self.set_timer(fx);
    }
    fn store(&mut self, now: Time, bytes: u64, write: StoreWrite) {
        let takes = self.cfg.force + Span(bytes * 1_000 / self.cfg.drive_bytes_per_us);
        self.drive_free = self.drive_free.max(now) + takes;
        self.at(self.drive_free, Due::Stored(write));
    }
    fn set_timer(&mut self, fx: &mut Effects<Frame>) {
        while self.due.peek().is_some_and(|Reverse((_, seq))| !self.what.contains_key(seq)) {
            self.due.pop();
        }
        fx.wake_at(self.due.peek().map_or(Time::MAX, |Reverse((at, _))| *at));
    }

    fn frame(&self, envelope: Rc<Envelope>, id: u64, what: Carried, dest: Option<NodeId>) -> Frame {
        Frame { envelope, id, what, from: self.me, dest, next: up(self.me), bytes: BARE_BYTES, takes: Span::ZERO }
    }
    fn send(&mut self, envelope: Rc<Envelope>, fx: &mut Effects<Frame>) {
        let id = u64::from(self.me.0) << 40 | self.next;
        self.next += 1;
        let what = match (envelope.carrier, &envelope.to) {
            (Carrier::NewTcp, To::Host(_)) => {
                self.opening.insert(id, envelope.clone());
                Carried::Open
            }
            _ => Carried::Whole,
        };
        fx.send(self.frame(envelope, id, what, None));
    }
    fn receive(&mut self, now: Time, f: Frame, fx: &mut Effects<Frame>) {
        let Frame { envelope, id, from, .. } = f;
        match f.what {
            Carried::Open => fx.send(self.frame(envelope, id, Carried::Accept, Some(from))),
            Carried::Accept => {
                if let Some(envelope) = self.opening.remove(&id) {
                    fx.send(self.frame(envelope, id, Carried::Whole, None));
                }
            }
            Carried::Chunk { last } => {
                let unacked = self.unacked.entry(id).or_default();
                *unacked += 1;
                if last || *unacked == envelope.carrier.ack_every() {
                    *unacked = 0;
                    fx.send(self.frame(envelope.clone(), id, Carried::Ack, Some(from)));
                }
                if last {
                    self.unacked.remove(&id);
                    let at = self.work(now, self.cost(envelope.carrier));
                    self.at(at, Due::Received(envelope));
                }
            }
            Carried::Ack | Carried::Whole => {}
        }
    }
    fn run(&mut self, now: Time, fx: &mut Effects<Frame>) {
        while let Some(Reverse((at, seq))) = self.due.peek().copied()
            && at <= now
        {
            self.due.pop();
            let event = match self.what.remove(&seq) {
                Some(Due::Received(envelope)) => Event::Packet(Rc::unwrap_or_clone(envelope)),
                Some(Due::Sent(envelope)) => {
                    self.send(envelope, fx);
                    continue;
                }
                Some(Due::Stored(write)) => {
                    let tag = write.tag;
                    self.keep(write);
                    Event::Stored { tag }
                }
                Some(Due::Timer) => Event::Timer,
                None => continue,
            };
            self.process.handle(now, event, &mut self.fx);
            self.pass(now, fx);
        }
    }
    fn keep(&mut self, write: StoreWrite) {
        let Some(saved) = &mut self.saved else { return };
        for (key, value) in write.entries {
            match value {
                Some(value) => drop(saved.insert(key, value)),
                None => drop(saved.remove(&key)),
            }
        }
    }
}

impl Node<Frame> for Host {
    fn handle(&mut self, now: Time, event: Event<Frame>, fx: &mut Effects<Frame>) {
        match event {
            Event::Packet(f) => self.receive(now, f, fx),
            // The first is the start.
            Event::Timer if self.next == 0 => {
                self.next = 1;
                self.process.handle(now, Event::Timer, &mut self.fx);
                self.pass(now, fx);
            }
            _ => {}
        }
        self.run(now, fx);
        self.set_timer(fx);
    }
}
