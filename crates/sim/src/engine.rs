//! The virtual-time driver: delivers events to nodes in order of (time, sequence) and carries out their effects.

use bytes::Bytes;
use rackweave_core::device::{Completion, DeviceCommand, DeviceOp};
use rackweave_core::layout::Place;
use rackweave_core::msg::Packet;
use rackweave_core::node::Trace;
use rackweave_core::request::{Reply, Request, RequestId};
use rackweave_core::trace::Coverage;
use rackweave_core::{Effects, Event, Layout, Message, Node, NodeId, NodeKind, Rng, Span, SsdId, Time, TracePoint};

use crate::clock::NodeClock;
use crate::cpu::{SAMPLE_EVERY, Stopwatch};
use crate::disk::{CutOdds, CutReport, Disk};
use crate::net::NetState;
use crate::queue::EventQueue;
use crate::store::{COMMIT_TIME, Store};
use crate::trace::{Costs, EventKind, STORES_LOST, Step, TraceHash};

/// This many events at one instant are a loop of nodes that answer each other without time passing.
const SAME_INSTANT_MAX: u32 = 4_000_000;
/// Most lines of a timeline.
const STEPS_MAX: usize = 4096;

/// Recipient of an event, and the driver's work before the node handles it.
#[derive(Clone, Copy)]
enum For {
    /// `received`: it has passed the receiver's link already.
    Receiver {
        node: NodeId,
        bytes: u32,
        received: bool,
    },
    Submitter {
        node: NodeId,
        run: u32,
        disk_id: u64,
        sync: bool,
    },
    Writer {
        node: NodeId,
        run: u32,
    },
    Sleeper {
        node: NodeId,
    },
    Asked {
        node: NodeId,
    },
}

/// Holds the event as the node takes it: taking it apart and reassembling it would copy it each time.
struct Pending<M> {
    event: Event<M>,
    to: For,
    /// Whether it descends from the recorded request.
    followed: bool,
}

struct Slot<N> {
    node: Option<N>,
    kind: NodeKind,
    /// Distinguishes completions of one run from those of the next.
    run: u32,
    clock: NodeClock,
    /// The node's timer, and the earliest queued event that checks it.
    wake: Time,
    queued: Time,
    store: Store,
}

struct Timeline {
    request: RequestId,
    /// The client that received the request; `None` before.
    node: Option<NodeId>,
    steps: Vec<Step>,
    done: bool,
}

/// Records sent packets.
pub trait Recorder<M = Packet> {
    fn sent(&mut self, now: Time, packet: &M);
}

/// Nodes of type `N` on virtual time, which exchange messages of type `M`. Nodes of tests only need [`Node`]; those of
/// a rack are `rackweave_rack::sim::RackNode`.
pub struct Engine<N, M = Packet> {
    now: Time,
    layout: Layout,
    nodes: Vec<Slot<N>>,
    disks: Vec<Option<Disk>>,
    queue: EventQueue<Pending<M>>,
    net: NetState,
    fx: Effects<M>,
    rng: Rng,
    replies: Vec<(Time, NodeId, Reply)>,
    hash: TraceHash,
    coverage: Coverage,
    costs: Costs,
    events: u64,
    same_instant: u32,
    timeline: Option<Timeline>,
    /// Whether a controller answers `gc_op`s: see [`Engine::set_controller`].
    controller: bool,
    /// Trace records since they were last taken, for a checker that requested them.
    tap: Option<Vec<(NodeId, Trace)>>,
    recorder: Option<Box<dyn Recorder<M>>>,
    carry: Option<Carry<M>>,
    lost: Option<Lost<M>>,
    all_crosses_switch: bool,
    store_time: Span,
}

/// Whether to lose a packet; see [`Engine::lose`].
type Lost<M> = Box<dyn FnMut(&M) -> bool>;
/// What becomes of a packet; see [`Engine::carry_by`].
type Carry<M> = Box<dyn FnMut(M, &mut Vec<M>)>;

impl<N: Node<M>, M: Message> Engine<N, M> {
    pub fn new(net: NetState, seed: u64) -> Engine<N, M> {
        let layout = net.layout().clone();
        let slot = |place: &Place| Slot {
            node: None,
            kind: place.name.kind,
            run: 0,
            clock: NodeClock::default(),
            wake: Time::MAX,
            queued: Time::MAX,
            store: Store::new(),
        };
        Engine {
            now: Time::ZERO,
            nodes: layout.places().iter().map(slot).collect(),
            layout,
            disks: Vec::new(),
            queue: EventQueue::default(),
            net,
            fx: Effects::new(),
            rng: Rng::stream(seed, 0x656e_6769),
            replies: Vec::new(),
            hash: TraceHash(seed),
            coverage: Coverage::default(),
            costs: Costs::default(),
            events: 0,
            same_instant: 0,
            timeline: None,
            controller: false,
            tap: None,
            recorder: None,
            carry: None,
            lost: None,
            all_crosses_switch: false,
            store_time: COMMIT_TIME,
        }
    }

    /// From now on the switch handles all packets between nodes, because they queue there. Otherwise it handles only
    /// packets addressed to it, which saves events.
    pub fn all_crosses_switch(&mut self) {
        self.all_crosses_switch = true;
    }

    pub fn now(&self) -> Time {
        self.now
    }
    pub fn layout(&self) -> Layout {
        self.layout.clone()
    }
    pub fn node(&self, n: NodeId) -> Option<&N> {
        self.nodes[n.0 as usize].node.as_ref()
    }
    pub fn node_mut(&mut self, n: NodeId) -> Option<&mut N> {
        self.nodes[n.0 as usize].node.as_mut()
    }
    pub fn net(&mut self) -> &mut NetState {
        &mut self.net
    }
    pub fn disk(&mut self, ssd: SsdId) -> Option<&mut Disk> {
        self.disks.get_mut(ssd.0 as usize)?.as_mut()
    }
    pub fn hash(&self) -> TraceHash {
        self.hash
    }
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }
    /// Counts a trace point of the driver.
    pub fn note(&mut self, p: TracePoint) {
        self.coverage.count(p);
    }
    /// Keeps every node's trace records until [`Engine::tapped`] takes them.
    pub fn tap(&mut self) {
        self.tap = Some(Vec::new());
    }
    pub fn tapped(&mut self) -> &mut Vec<(NodeId, Trace)> {
        self.tap.get_or_insert_default()
    }
    /// Places the node that answers `gc_op`s as far from the servers as hosts are from each other, off their packets'
    /// path.
    pub fn set_controller(&mut self, controller: bool) {
        self.controller = controller;
    }
    /// Passes every packet to the recorder when it is sent, lost or not. The recorder does not affect the run.
    pub fn record_by(&mut self, recorder: Box<dyn Recorder<M>>) {
        self.recorder = Some(recorder);
    }
    /// From now on what `carry` makes of a packet that a node sends goes in its place: a packet that was encoded and decoded, or one
    /// for each receiver.
    pub fn carry_by(&mut self, carry: impl FnMut(M, &mut Vec<M>) + 'static) {
        self.carry = Some(Box::new(carry));
    }
    /// From now on matching packets are lost when they are sent, in addition to the network's faults.
    pub fn lose(&mut self, lost: impl FnMut(&M) -> bool + 'static) {
        self.lost = Some(Box::new(lost));
    }
    pub fn costs(&self) -> &Costs {
        &self.costs
    }
    pub fn events(&self) -> u64 {
        self.events
    }
    /// Number of pending events.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }
    /// The entries that a node's own store would hold after a restart.
    pub fn saved(&self, n: NodeId) -> Vec<(Bytes, Bytes)> {
        self.nodes[n.0 as usize].store.saved()
    }
    /// From now on a commit of a node's own store takes this long; a node's writes stay in order.
    pub fn set_store_time(&mut self, span: Span) {
        self.store_time = span;
    }
    /// Replaces the store of a node that does not run.
    pub fn put_saved(&mut self, n: NodeId, store: Vec<(Bytes, Bytes)>) {
        self.nodes[n.0 as usize].store.put_saved(store);
    }
    /// Current reading of a node's clock.
    pub fn local_time(&self, n: NodeId) -> Time {
        self.nodes[n.0 as usize].clock.local(self.now)
    }
    pub fn clock(&self, n: NodeId) -> NodeClock {
        self.nodes[n.0 as usize].clock
    }
    pub fn set_clock(&mut self, n: NodeId, clock: NodeClock) {
        self.nodes[n.0 as usize].clock = clock;
    }
    pub fn put_disk(&mut self, ssd: SsdId, disk: Disk) {
        let i = ssd.0 as usize;
        if self.disks.len() <= i {
            self.disks.resize_with(i + 1, || None);
        }
        self.disks[i] = Some(disk);
    }

    /// Starts a node: its first event is a timer, now.
    pub fn start(&mut self, n: NodeId, node: N) {
        let slot = &mut self.nodes[n.0 as usize];
        slot.node = Some(node);
        slot.run += 1;
        slot.wake = self.now;
        slot.queued = self.now;
        self.queue.push(self.now, Pending { event: Event::Timer, to: For::Sleeper { node: n }, followed: false });
    }

    /// Ends a node's run: its state, timer and pending completions are lost; commands given to its devices have been
    /// executed. Of its pending store writes, a prefix is durable.
    pub fn crash(&mut self, n: NodeId, ssds: &[SsdId]) -> Option<N> {
        let slot = &mut self.nodes[n.0 as usize];
        slot.run += 1;
        slot.wake = Time::MAX;
        slot.queued = Time::MAX;
        if slot.store.cut(&mut self.rng) > 0 {
            self.coverage.count(STORES_LOST);
        }
        for s in ssds {
            if let Some(Some(Disk::Fault(d))) = self.disks.get_mut(s.0 as usize) {
                d.process_crash();
            }
        }
        self.nodes[n.0 as usize].node.take()
    }

    /// Cuts the power of a device, whose server must have crashed.
    pub fn power_cut(&mut self, ssd: SsdId, odds: CutOdds) -> CutReport {
        match self.disks.get_mut(ssd.0 as usize) {
            Some(Some(Disk::Fault(d))) => d.power_cut(odds, &mut self.rng),
            _ => CutReport::default(),
        }
    }

    /// Records the path of the first request with this id through all nodes.
    pub fn follow(&mut self, request: RequestId) {
        self.timeline = Some(Timeline { request, node: None, steps: Vec::new(), done: false });
    }
    pub fn timeline(&self) -> &[Step] {
        self.timeline.as_ref().map_or(&[], |t| &t.steps)
    }

    /// Delivers a request to `node` at `at` (not before now).
    pub fn submit(&mut self, at: Time, node: NodeId, request: Request) {
        let event = Event::Request(request);
        self.queue.push_in_order(at.max(self.now), Pending { event, to: For::Asked { node }, followed: false });
    }
    /// Delivers a packet from outside the rack to the switch at `at`.
    pub fn inject(&mut self, at: Time, packet: M) {
        let node = self.crosses(&packet);
        let to = For::Receiver { node, bytes: packet.bytes(), received: false };
        self.queue.push(at.max(self.now), Pending { event: Event::Packet(packet), to, followed: false });
    }
    /// Calls a node from outside, now; its effects are carried out as those of an event. `None` if it does not run.
    pub fn act<R>(&mut self, n: NodeId, what: impl FnOnce(&mut N, Time, &mut Effects<M>) -> R) -> Option<R> {
        let slot = &mut self.nodes[n.0 as usize];
        let result = what(slot.node.as_mut()?, slot.clock.local(self.now), &mut self.fx);
        self.apply(n, false);
        Some(result)
    }
    /// Sends a packet on behalf of its sender, now.
    pub fn post(&mut self, packet: M) {
        self.send(packet.from(), packet, false);
    }
    pub fn next_time(&self) -> Option<Time> {
        self.queue.next_time()
    }
    pub fn replies(&mut self) -> std::vec::Drain<'_, (Time, NodeId, Reply)> {
        self.replies.drain(..)
    }
    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Delivers the next event; false if none is pending.
    ///
    /// # Panics
    /// If nodes answer each other endlessly at one instant.
    pub fn step(&mut self) -> bool {
        let Some((time, pending)) = self.queue.pop() else { return false };
        if time == self.now {
            self.same_instant += 1;
            assert!(self.same_instant < SAME_INSTANT_MAX, "livelock: {SAME_INSTANT_MAX} events at {time:?}");
        } else {
            self.same_instant = 0;
            self.now = time;
        }
        self.dispatch(pending);
        true
    }

    /// Delivers all events up to and including `until`.
    pub fn run_until(&mut self, until: Time) {
        while self.queue.next_time().is_some_and(|t| t <= until) {
            self.step();
        }
        self.now = self.now.max(until);
    }

    fn dispatch(&mut self, pending: Pending<M>) {
        let Pending { event, to, followed } = pending;
        match to {
            For::Receiver { node, bytes, received } => self.deliver(node, event, bytes, received, followed),
            For::Submitter { node, run, disk_id, sync } => {
                let Event::Completion(completion) = &event else { return };
                if self.nodes[node.0 as usize].run != run {
                    return;
                }
                if disk_id != 0
                    && let Some(Some(d)) = self.disks.get_mut(completion.ssd.0 as usize)
                {
                    d.complete(disk_id, sync && completion.result.is_ok());
                }
                let tag = completion.tag;
                self.handle(node, EventKind::Completion, tag, event, followed);
            }
            For::Writer { node, run } => {
                let Event::Stored { tag } = event else { return };
                let slot = &mut self.nodes[node.0 as usize];
                if slot.run != run {
                    return;
                }
                slot.store.stored();
                self.handle(node, EventKind::Stored, tag, event, followed);
            }
            For::Sleeper { node } => self.wake(node),
            For::Asked { node } => {
                let Event::Request(request) = &event else { return };
                let id = request.id;
                let timeline = self.timeline.as_mut().filter(|t| t.node.is_none() && t.request == id);
                let follow = timeline.map(|t| t.node = Some(node)).is_some();
                self.handle(node, EventKind::Request, id.0, event, follow);
            }
        }
    }

    fn deliver(&mut self, dst: NodeId, mut event: Event<M>, bytes: u32, received: bool, followed: bool) {
        let Event::Packet(packet) = &mut event else { return };
        // The switch is not a host: it forwards at line rate, and waiting on a link is charged to the receiver.
        if !received && self.layout.kind(dst) != Some(NodeKind::Switch) {
            let at = self.net.receive(self.now, dst, bytes);
            if at > self.now {
                packet.add_latency(at.since(self.now));
                self.queue
                    .push(at, Pending { event, to: For::Receiver { node: dst, bytes, received: true }, followed });
                return;
            }
        }
        let mark = packet.mark();
        self.handle(dst, EventKind::Packet, mark, event, followed);
    }

    fn wake(&mut self, node: NodeId) {
        let slot = &mut self.nodes[node.0 as usize];
        if slot.queued != self.now {
            return;
        }
        slot.queued = Time::MAX;
        if slot.wake > self.now {
            self.set_wake(node, None);
            return;
        }
        slot.wake = Time::MAX;
        self.handle(node, EventKind::Timer, 0, Event::Timer, false);
    }

    /// `local`: the new timer in the node's own time. At most one event per node waits; an earlier timer replaces it.
    fn set_wake(&mut self, node: NodeId, local: Option<Time>) {
        let slot = &mut self.nodes[node.0 as usize];
        if let Some(local) = local {
            slot.wake = slot.clock.true_time(local).max(self.now);
        }
        if slot.wake < slot.queued {
            slot.queued = slot.wake;
            self.queue.push(slot.wake, Pending { event: Event::Timer, to: For::Sleeper { node }, followed: false });
        }
    }

    fn handle(&mut self, n: NodeId, kind: EventKind, mark: u64, event: Event<M>, followed: bool) {
        let Some(slot) = self.nodes.get_mut(n.0 as usize) else { return };
        let Some(node) = &mut slot.node else { return };
        self.events += 1;
        self.hash.add(self.now.0);
        self.hash.add(mark ^ u64::from(n.0) << 8 ^ kind as u64);
        let what = followed.then(|| describe(&event));
        let local = slot.clock.local(self.now);
        let cost = &mut self.costs.0[slot.kind as usize];
        cost.events += 1;
        if self.events.is_multiple_of(SAMPLE_EVERY) {
            let watch = Stopwatch::start();
            node.handle(local, event, &mut self.fx);
            cost.sampled += 1;
            cost.sampled_ns += watch.elapsed_ns();
        } else {
            node.handle(local, event, &mut self.fx);
        }
        if let Some(what) = what {
            self.record(n, kind, what);
        }
        self.apply(n, followed);
    }

    #[cold]
    fn record(&mut self, node: NodeId, kind: EventKind, what: String) {
        let (now, fx) = (self.now, &self.fx);
        if let Some(t) = self.timeline.as_mut().filter(|t| !t.done && t.steps.len() < STEPS_MAX) {
            t.steps.push(Step { time: now, node, kind, what, traces: fx.traces.clone() });
        }
    }

    /// Carries out the node's effects and clears them.
    #[inline]
    fn apply(&mut self, n: NodeId, followed: bool) {
        if !self.fx.traces.is_empty() {
            self.count_traces(n);
        }
        if !self.fx.packets.is_empty() {
            let mut packets = std::mem::take(&mut self.fx.packets);
            if let Some(carry) = &mut self.carry {
                std::mem::take(&mut packets).into_iter().for_each(|p| carry(p, &mut packets));
            }
            packets.drain(..).for_each(|p| self.send(n, p, followed));
            self.fx.packets = packets;
        }
        if !self.fx.commands.is_empty() {
            let mut commands = std::mem::take(&mut self.fx.commands);
            commands.drain(..).for_each(|c| self.command(n, c, followed));
            self.fx.commands = commands;
        }
        if !self.fx.stores.is_empty() || !self.fx.replies.is_empty() {
            self.store_and_reply(n, followed);
        }
        if let Some(at) = self.fx.take_wake() {
            self.nodes[n.0 as usize].wake = Time::MAX;
            self.set_wake(n, Some(at));
        }
    }

    fn count_traces(&mut self, n: NodeId) {
        for t in self.fx.traces.drain(..) {
            self.hash.add(u64::from(t.point.id()) ^ t.a << 16);
            self.hash.add(t.b);
            self.coverage.count(t.point);
            if let Some(tap) = &mut self.tap {
                tap.push((n, t));
            }
        }
    }

    fn store_and_reply(&mut self, n: NodeId, followed: bool) {
        for w in self.fx.stores.drain(..) {
            let slot = &mut self.nodes[n.0 as usize];
            let (event, to) = (Event::Stored { tag: w.tag }, For::Writer { node: n, run: slot.run });
            let at = slot.store.begin(self.now, w, self.store_time);
            self.queue.push(at, Pending { event, to, followed });
        }
        for r in self.fx.replies.drain(..) {
            self.hash.add(r.id.0 ^ u64::from(r.result.is_ok()) << 63);
            if let Some(t) = self.timeline.as_mut().filter(|t| t.node == Some(n) && t.request == r.id && !t.done) {
                let what = match r.result.error() {
                    None => "answered".to_string(),
                    Some(e) => format!("failed: {e}"),
                };
                t.steps.push(Step { time: self.now, node: n, kind: EventKind::Reply, what, traces: Vec::new() });
                t.done = true;
            }
            self.replies.push((self.now, n, r));
        }
    }

    fn send(&mut self, n: NodeId, mut packet: M, followed: bool) {
        let bytes = packet.bytes();
        if let Some(recorder) = &mut self.recorder {
            recorder.sent(self.now, &packet);
        }
        if self.lost.as_mut().is_some_and(|lost| lost(&packet)) {
            return;
        }
        let from_switch = self.nodes[n.0 as usize].kind == NodeKind::Switch;
        let hop = from_switch && !(self.controller && packet.is_gc_op());
        let seen = self.all_crosses_switch && !from_switch;
        let node = if seen { self.crosses(&packet) } else { packet.to() };
        let arrivals = self.net.send(self.now, n, node, bytes, hop);
        let [Some(first), second] = arrivals.map(|at| at.map(|at| at + packet.takes())) else { return };
        let to = For::Receiver { node, bytes, received: false };
        if let Some(at) = second {
            self.queue.push(at, Pending { event: Event::Packet(packet.clone()), to, followed });
        }
        // The switch adds its own hop.
        if !from_switch {
            packet.add_latency(first.since(self.now));
        }
        self.queue.push(first, Pending { event: Event::Packet(packet), to, followed });
    }

    /// The switch on a packet's path: its receiver's, otherwise that of its sender's rack.
    fn crosses(&self, p: &M) -> NodeId {
        let to = p.to();
        if self.layout.kind(to) == Some(NodeKind::Switch) {
            return to;
        }
        self.layout.switch_near(if self.layout.rack(to).is_some() { to } else { p.from() })
    }

    fn command(&mut self, n: NodeId, c: DeviceCommand, followed: bool) {
        let slot = &self.nodes[n.0 as usize];
        let Some(Some(disk)) = self.disks.get_mut(c.ssd.0 as usize) else { return };
        let (result, disk_id) = disk.submit(&c.op);
        let at = slot.clock.true_time(c.done_at).max(self.now);
        let to = For::Submitter { node: n, run: slot.run, disk_id, sync: matches!(c.op, DeviceOp::Sync) };
        let event = Event::Completion(Completion { ssd: c.ssd, tag: c.tag, result });
        self.queue.push(at, Pending { event, to, followed });
    }
}

/// Short description of an event for a timeline.
#[cold]
fn describe<M: Message>(event: &Event<M>) -> String {
    let text = match event {
        Event::Packet(p) => p.describe(),
        Event::Timer => "timer".into(),
        Event::Completion(c) => format!("{} tag {:#x}: {:?}", c.ssd, c.tag, c.result),
        Event::Stored { tag } => format!("tag {tag}"),
        Event::Request(r) => format!("{}: {:?}", r.id.0, r.op),
    };
    text.chars().take(160).collect()
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
