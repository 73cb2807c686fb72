//! One node's end of the transport, which the driver calls. The crate's page has the order of calls.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use rackweave_core::map::{Map, map};
use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Rng, Span, Time, VssdId};

use crate::api::{Delivered, Event, Message, SendError, SendOptions, Transmit};
use crate::auth::{Auth, KeyError, Keys};
use crate::config::{Config, ConfigError};
use crate::counters::{Counters, FlowCounts};
use crate::group::{Group, Multicast};
use crate::header::{HEAD_BYTES, Space, TransferId, is_bare, u64_at};
use crate::outgoing::Outgoing;
use crate::peer::{Carrier, Control, Peer, STREAM_PATH};
use crate::progress::Progress;
use crate::receiver::{DIRECT_SPAN, ROUTED_SPAN};

/// Most vSSDs whose server is remembered: those of a rack (RB1). Beyond it all are forgotten.
pub(crate) const HINTS_MAX: usize = 131_072;
/// Most events kept if the driver polls none: several for each peer.
const NEWS_MAX: usize = 65_536;
/// Most packets for a switch's tables that wait to be sent.
const BARE_MAX: usize = 4096;

/// A node's end of the transport.
///
/// `now` never decreases from call to call; a clock that jumps ahead only ends timers early.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) cfg: Config,
    pub(crate) local: NodeId,
    pub(crate) incarnation: u64,
    pub(crate) auth: Auth,
    pub(crate) rng: Rng,
    /// Counter of the last datagram, 56 bits.
    pub(crate) counter: u64,
    pub(crate) peers: Map<NodeId, Peer>,
    pub(crate) deadlines: BTreeSet<(Time, NodeId)>,
    /// Peers with chunks to send, by class.
    pub(crate) ready: [VecDeque<NodeId>; 3],
    /// Silver chunks sent since the last copper one.
    pub(crate) silver_run: u32,
    /// Peers with control messages to send.
    pub(crate) talk: VecDeque<NodeId>,
    /// Peers whose acknowledgements are due.
    pub(crate) owing: VecDeque<(NodeId, Class)>,
    pub(crate) bare: VecDeque<(NodeId, Class, Vec<u8>)>,
    /// Routed messages in flight, by class and number: the peer whose connection holds each.
    pub(crate) routed: [BTreeMap<u64, NodeId>; 3],
    routed_next: [u64; 3],
    pub(crate) groups: Map<NodeId, Group>,
    /// Messages to groups in flight, by class and number.
    pub(crate) multicasts: [BTreeMap<u64, Multicast>; 3],
    pub(crate) group_next: [u64; 3],
    /// The server that last answered for each vSSD.
    pub(crate) hints: Map<VssdId, NodeId>,
    events: VecDeque<Event>,
    /// The current datagram came from a stream.
    pub(crate) by_stream: bool,
    /// Scratch memory for the CRCs of one datagram's data.
    pub(crate) known: Vec<u32>,
    pub(crate) unread_bytes: usize,
    pub(crate) queued_bytes: usize,
    pub(crate) half_bytes: usize,
    pub(crate) counters: Counters,
}

/// Bytes that one of several users of `total` bytes may hold while all hold `held`: never more than is left. However
/// many take all they can, a user with less finds room (dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions
/// on Networking 6(2), 1998, with α = 1).
pub fn fair_bytes(max: usize, total: usize, held: usize) -> usize {
    if mutant!("transport.budget.unbounded") { max } else { max.min(total.saturating_sub(held)) }
}

/// Current state of a peer, for `status`.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerStatus {
    pub peer: NodeId,
    pub incarnation: Option<u64>,
    pub down: bool,
    /// When two processes were last seen to claim to be this node.
    pub twins: Option<Time>,
    pub path: u16,
    pub path_changes: u64,
    /// Longest time without an acknowledgement before the path was changed.
    pub path_change_max: Span,
    pub bad_paths: Vec<u16>,
    pub datagram_bytes: usize,
    pub carrier: Carrier,
    pub stream_uses: u64,
    pub queued_bytes: usize,
    /// Of each class: smoothed and lowest round trip, window and bytes in flight.
    pub flows: [FlowStatus; 3],
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowStatus {
    pub counts: FlowCounts,
    pub rtt: Span,
    pub rtt_min: Span,
    pub window_bytes: u64,
    pub in_flight_bytes: u64,
}

impl Endpoint {
    /// `incarnation` increases from process to process of this node and is never reused: a durable counter. `seed` is
    /// for challenges and the choice of paths.
    pub fn new(cfg: Config, local: NodeId, incarnation: u64, keys: Keys, seed: u64) -> Result<Endpoint, ConfigError> {
        cfg.check()?;
        Ok(Endpoint {
            cfg,
            local,
            incarnation,
            auth: Auth::new(keys),
            rng: Rng::stream(seed, u64::from(local.0)),
            counter: 0,
            peers: map(),
            deadlines: BTreeSet::new(),
            ready: Default::default(),
            silver_run: 0,
            talk: VecDeque::new(),
            owing: VecDeque::new(),
            bare: VecDeque::new(),
            routed: Default::default(),
            routed_next: [0; 3],
            groups: map(),
            multicasts: Default::default(),
            group_next: [0; 3],
            hints: map(),
            events: VecDeque::new(),
            by_stream: false,
            known: Vec::new(),
            unread_bytes: 0,
            queued_bytes: 0,
            half_bytes: 0,
            counters: Counters::default(),
        })
    }

    /// Continues under another incarnation of the node, as if its process had restarted: messages in flight and the
    /// state of peers are dropped; delivered messages and counters stay.
    pub fn renew(&mut self, incarnation: u64) {
        assert!(incarnation > self.incarnation, "{incarnation} after {}: nonces would repeat", self.incarnation);
        let (keys, seed) = (self.auth.keys().clone(), self.rng.next_u64());
        let renewed = Endpoint::new(self.cfg.clone(), self.local, incarnation, keys, seed);
        let mut renewed = renewed.expect("the configuration was checked");
        let delivered = self.events.drain(..).filter(|e| matches!(e, Event::Delivered(_)));
        (renewed.events, renewed.unread_bytes) = (delivered.collect(), self.unread_bytes);
        renewed.counters = self.counters;
        *self = renewed;
    }

    /// Sends a packet's message to a node. Operations 3 and 4 to the switch reach the server of the vSSD. `gc_op`
    /// and `load` are one datagram without retransmission: the sender repeats a `gc_op` (protocol rule 16), and the
    /// next `load` counts for a lost one.
    pub fn send(&mut self, now: Time, to: NodeId, message: Message, how: SendOptions) -> Result<(), SendError> {
        let result = self.take_message(now, to, message, how);
        match result {
            Ok(()) => self.counters.messages_sent += 1,
            Err(_) => self.counters.messages_refused += 1,
        }
        result
    }

    fn take_message(&mut self, now: Time, to: NodeId, message: Message, how: SendOptions) -> Result<(), SendError> {
        let (op, class) = self.check(&message)?;
        if how.deadline <= now {
            return Err(SendError::Late);
        }
        if is_bare(op) {
            return self.take_bare(to, class, &message);
        }
        let routed = self.cfg.is_switch(to) && (op == Op::Read as u8 || op == Op::Write as u8);
        let vssd = VssdId((u64_at(&message.head, 1) >> 32) as u32);
        let holder = if routed { self.hints.get(&vssd).copied().unwrap_or(to) } else { to };
        self.make_peer(now, holder)?;
        self.check_room(holder, class, routed, message.len())?;
        let number = self.routed_next[class as usize];
        let Some(peer) = self.peers.get_mut(&holder) else { return Err(SendError::PeerDown { to: holder }) };
        let chunk_bytes = peer.chunk_bytes();
        let tx = &mut peer.flow(class).tx;
        let id = if routed { TransferId { space: Space::Routed, number } } else { tx.next_direct() };
        self.queued_bytes += message.len();
        let (by, settles) = (routed.then_some(to), op == Op::Write as u8);
        let o = Outgoing::new(now, message, id, how.token, how.deadline);
        tx.push(Outgoing { vssd, by, settles, ..o }, chunk_bytes);
        peer.used = now;
        if routed {
            self.routed_next[class as usize] += 1;
            self.routed[class as usize].insert(number, holder);
        }
        self.touch(now, holder);
        Ok(())
    }

    /// Operation and class, if the message is a packet of this node.
    pub(crate) fn check(&self, m: &Message) -> Result<(u8, Class), SendError> {
        let (len, limit) = (m.len(), self.cfg.message_bytes_max);
        if len > limit {
            return Err(SendError::TooLong { len, limit });
        }
        let wrong = SendError::NotAPacket { len };
        if m.head.len() < HEAD_BYTES {
            return Err(wrong);
        }
        let word = |at: usize| (u64_at(&m.head, at) >> 32) as usize;
        let class = match m.head[10] {
            0 => Class::Gold,
            1 => Class::Silver,
            2 => Class::Copper,
            _ => return Err(wrong),
        };
        let known = (Op::CreateVssd as u8..=Op::Load as u8).contains(&m.head[0]);
        if !known || word(12) != self.local.0 as usize || word(56) != len - HEAD_BYTES {
            return Err(wrong);
        }
        Ok((m.head[0], class))
    }

    fn take_bare(&mut self, to: NodeId, class: Class, message: &Message) -> Result<(), SendError> {
        let len = message.len();
        if len > HEAD_BYTES + 16 {
            return Err(SendError::TooLong { len, limit: HEAD_BYTES + 16 });
        }
        if self.bare.len() >= BARE_MAX {
            return Err(SendError::QueueFull { to, queued: self.bare.len() * len, limit: BARE_MAX * len });
        }
        let mut d = message.join().to_vec();
        // The server's key in both directions: the switch has none of its own.
        let owner = if self.cfg.is_switch(self.local) { to } else { self.local };
        let incarnation = u64_at(&d, 32);
        self.auth.seal_gc(owner, incarnation, &mut d);
        self.bare.push_back((to, class, d));
        Ok(())
    }

    pub(crate) fn check_room(&self, to: NodeId, class: Class, routed: bool, len: usize) -> Result<(), SendError> {
        let Some(peer) = self.peers.get(&to) else { return Err(SendError::PeerDown { to }) };
        if peer.down {
            return Err(SendError::PeerDown { to });
        }
        let queued = peer.queued_bytes();
        if queued + len > self.cfg.queue_bytes_max {
            return Err(SendError::QueueFull { to, queued, limit: self.cfg.queue_bytes_max });
        }
        if queued + len > fair_bytes(self.cfg.queue_bytes_max, self.cfg.queue_bytes_total, self.queued_bytes) {
            return Err(SendError::AllQueuesFull { queued: self.queued_bytes, limit: self.cfg.queue_bytes_total });
        }
        // Half of what the receiver remembers, so that nothing in flight is ever too old for it.
        let (span, limit) = if routed {
            let oldest = self.routed[class as usize].first_key_value();
            (oldest.map_or(0, |(n, _)| self.routed_next[class as usize] - n), ROUTED_SPAN / 2)
        } else {
            (peer.flows[class as usize].tx.direct_span(), DIRECT_SPAN / 2)
        };
        if span >= limit { Err(SendError::WindowFull { to, limit }) } else { Ok(()) }
    }

    /// Creates the peer if it is unknown and there is room for it.
    pub(crate) fn make_peer(&mut self, now: Time, node: NodeId) -> Result<(), SendError> {
        if self.peers.contains_key(&node) {
            return Ok(());
        }
        if self.peers.len() >= self.cfg.peers_max {
            let idle = self.peers.values().filter(|p| p.idle()).min_by_key(|p| (p.heard, p.node)).map(|p| p.node);
            let Some(idle) = idle else { return Err(SendError::TooManyPeers { peers: self.peers.len() }) };
            if let Some(gone) = self.peers.remove(&idle) {
                self.deadlines.remove(&(gone.deadline, idle));
            }
        }
        let path = self.rng.below(u64::from(self.cfg.paths)) as u16;
        self.peers.insert(node, Peer::new(node, &self.cfg, path, now));
        Ok(())
    }

    /// The next event for the driver.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Event::Delivered(d) = &event {
            self.unread_bytes -= d.message.len();
        }
        Some(event)
    }
    pub(crate) fn deliver(&mut self, from: NodeId, class: Class, message: Message, crcs: Vec<u32>) {
        self.unread_bytes += message.len();
        self.counters.messages_delivered += 1;
        self.counters.summed_bytes += if crcs.is_empty() { 0 } else { message.data.len() as u64 };
        self.events.push_back(Event::Delivered(Delivered { from, class, message, crcs }));
    }
    /// Status events beyond the bound are dropped, because `peers` reports the same. Results of messages never are.
    pub(crate) fn event(&mut self, e: Event) {
        let of_message = matches!(e, Event::GaveUp { .. } | Event::GroupReached { .. } | Event::GroupDone { .. });
        if self.events.len() < NEWS_MAX || of_message {
            self.events.push_back(e);
        }
    }

    /// When [`Endpoint::handle_timeout`] has work; [`Time::MAX`] for never.
    pub fn next_deadline(&self) -> Time {
        self.deadlines.first().map_or(Time::MAX, |(at, _)| *at)
    }

    /// The kernel reported a datagram's departure time, which round trips are then measured from. Optional.
    pub fn transmitted(&mut self, peer: NodeId, class: Class, stamp: u64, at: Time) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.flow(class).tx.departed_at(stamp, at);
        }
    }

    /// Applies the changes by an acknowledgement or a timer.
    pub(crate) fn book(&mut self, now: Time, node: NodeId, class: Class, p: Progress) {
        self.counters.chunks_lost += u64::from(p.lost);
        self.counters.chunks_lost_spuriously += u64::from(p.spurious);
        self.counters.acks_repeated += u64::from(p.repeated);
        self.book_group(now, class, &p);
        for o in &p.finished {
            self.counters.messages_acked += 1;
            self.queued_bytes -= o.message.len();
            if o.id.space == Space::Routed {
                self.routed[class as usize].remove(&o.id.number);
            }
            if let Some(number) = o.group {
                self.part_done(class, number, node, None);
            }
        }
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if p.arrived > 0 {
            peer.path_works = now;
        }
        if peer.carrier != Carrier::Stream {
            peer.loss_lost = peer.loss_lost.saturating_add(p.lost - p.lost_shared).saturating_sub(p.spurious);
        }
        self.sizes(now, node, &p);
    }

    /// Number of unacknowledged messages to all peers.
    pub fn unacknowledged(&self) -> usize {
        self.peers.values().flat_map(|p| &p.flows).map(|f| f.tx.transfers.len()).sum()
    }
    /// Bytes held for messages: to send, incomplete, and not polled.
    pub fn held_bytes(&self) -> usize {
        self.queued_bytes + self.half_bytes + self.unread_bytes
    }
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
    pub fn local(&self) -> NodeId {
        self.local
    }
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }
    pub fn keys(&self) -> &Keys {
        self.auth.keys()
    }
    /// Changes the keys in place; see [`Keys`] for how to rotate them.
    pub fn change_keys(&mut self, change: impl FnOnce(&mut Keys) -> Result<(), KeyError>) -> Result<(), KeyError> {
        let mut keys = self.auth.keys().clone();
        change(&mut keys)?;
        self.auth.set_keys(keys);
        Ok(())
    }

    /// The driver has opened the stream to the peer: its datagrams are returned with [`crate::Via::Stream`] from now
    /// on.
    pub fn stream_up(&mut self, now: Time, peer: NodeId) {
        if let Some(p) = self.peers.get_mut(&peer)
            && p.carrier != Carrier::Stream
        {
            p.carry_by(Carrier::Stream);
            (p.loss_sent, p.loss_lost, p.loss_at) = (0, 0, now);
            p.flows.iter_mut().for_each(|f| {
                f.tx.lose_all();
                f.tx.unshare_all();
            });
            // Tells the other end whose stream it is, and answers a peer that was considered dead.
            p.say(Control::Ping { path: STREAM_PATH, token: self.rng.next_u64() | u64::from(STREAM_PATH) });
            p.stream_uses += 1;
            p.stream_since = now;
            self.counters.stream_uses += 1;
            self.touch(now, peer);
        }
    }
    /// The stream is closed, or cannot be opened: datagrams are used again.
    pub fn stream_down(&mut self, now: Time, peer: NodeId) {
        if let Some(p) = self.peers.get_mut(&peer) {
            p.carry_by(Carrier::Datagrams);
            (p.loss_sent, p.loss_lost, p.loss_at) = (0, 0, now);
            p.flows.iter_mut().for_each(|f| f.tx.lose_all());
            self.touch(now, peer);
        }
    }

    /// All peers, by id.
    pub fn peers(&self) -> Vec<PeerStatus> {
        let mut all: Vec<PeerStatus> = self.peers.values().map(status).collect();
        all.sort_by_key(|p| p.peer);
        all
    }

    /// Adds the peer to the queues that it belongs to, and its deadline to the list.
    pub(crate) fn touch(&mut self, now: Time, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        for (i, class) in CLASSES.into_iter().enumerate() {
            let flow = &mut peer.flows[i];
            if !flow.tx.queued && flow.tx.has_work() {
                flow.tx.queued = true;
                self.ready[i].push_back(node);
            }
            if flow.rx.ack_at <= now && !flow.rx.due {
                flow.rx.due = true;
                self.owing.push_back((node, class));
            }
        }
        if !peer.controls.is_empty() && !peer.talking {
            peer.talking = true;
            self.talk.push_back(node);
        }
        let held_up = std::mem::take(&mut peer.holds_up);
        let deadline = peer.next_deadline(&self.cfg);
        if deadline != peer.deadline {
            self.deadlines.remove(&(peer.deadline, node));
            peer.deadline = deadline;
            if deadline != Time::MAX {
                self.deadlines.insert((deadline, node));
            }
        }
        held_up.into_iter().for_each(|(group, class)| self.ready_group(group, class));
    }
}

pub(crate) const CLASSES: [Class; 3] = [Class::Gold, Class::Silver, Class::Copper];

fn status(p: &Peer) -> PeerStatus {
    let flow = |i: usize| {
        let tx = &p.flows[i].tx;
        FlowStatus {
            counts: tx.counts,
            rtt: tx.rtt.smoothed(),
            rtt_min: tx.rtt.min(),
            window_bytes: tx.window(),
            in_flight_bytes: tx.in_flight(),
        }
    };
    PeerStatus {
        peer: p.node,
        incarnation: p.incarnation,
        down: p.down,
        twins: p.twins,
        path: p.paths.current,
        path_changes: p.paths.changes,
        path_change_max: p.paths.change_max,
        bad_paths: p.paths.bad().collect(),
        datagram_bytes: p.datagram,
        carrier: p.carrier,
        stream_uses: p.stream_uses,
        queued_bytes: p.queued_bytes(),
        flows: [flow(0), flow(1), flow(2)],
    }
}

/// A transmission of one datagram.
pub(crate) fn single(to: NodeId, via: crate::api::Via, class: Class, bytes: Vec<u8>, stamp: u64) -> Transmit {
    Transmit { to, via, class, ecn: true, bytes: Bytes::from(bytes), segment: None, peer: to, stamp, timed: false }
}
