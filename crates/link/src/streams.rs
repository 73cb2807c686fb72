//! Streams to peers while the network loses too many datagrams (PN5): a connection carries the same authenticated datagrams in
//! frames ([`rackweave_transport::stream`]). Every buffer is bounded.
//!
//! No socket: the driver carries out [`Action`]s and reports their results.
//!
//! The node at the other end is identified by the first datagram of its current incarnation; until then it is a stranger.
//! Strangers are few and are closed soon. A frame on a connection that breaks is lost, as a datagram may be: the transport
//! retransmits its chunks.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, Bytes, BytesMut};
use rackweave_core::{NodeId, Span, Time};
use rackweave_transport::stream::{Deframer, FRAME_HEAD_BYTES, frame_head};
use rackweave_transport::{Origin, fair_bytes};

/// Connections whose other end is not identified yet.
const STRANGERS_MAX: usize = 64;
/// Time until an unfinished connection or a stranger is closed.
const STRANGER_WAIT: Span = Span::from_secs(3);
/// The other end has taken nothing for this time although data waits.
const STALLED_AFTER: Span = Span::from_secs(3);
/// Time until an unused connection is closed if its other end does not close it.
const CLOSE_WAIT: Span = Span::from_secs(3);

/// Bounds of bytes that wait to be written. Datagrams beyond them are lost and sent again, as on a full link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    /// To one peer, if all have room. Default 4 MiB.
    pub peer_bytes: usize,
    /// To all peers together. Default 64 MiB.
    pub total_bytes: usize,
}

impl Default for StreamLimits {
    fn default() -> StreamLimits {
        StreamLimits { peer_bytes: 4 << 20, total_bytes: 64 << 20 }
    }
}

/// Names a connection of this node. None is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Action of the driver on its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Begin a connection to the peer. Report whether that was possible ([`Streams::connecting`]), then the result
    /// ([`Streams::connected`], [`Streams::closed`]).
    Connect(ConnectionId, NodeId),
    /// Write [`Streams::output`] as far as the socket takes it, and report it ([`Streams::wrote`]).
    Write(ConnectionId),
    /// Nothing more is written: the other end reads to the end and closes, too.
    Shutdown(ConnectionId),
    /// Close it; it is forgotten here.
    Close(ConnectionId),
}

/// A peer's stream can be used from now on, or no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Up(NodeId),
    Down(NodeId),
}

counters! {
    /// Counts since the process was started.
    pub struct Counters {
        opened as "streams_opened", accepted as "streams_accepted", failed as "streams_failed",
        /// Closed because the other end took nothing for too long.
        stalled as "streams_stalled",
        /// Strangers that were turned away or never identified themselves.
        strangers as "streams_from_strangers",
        frames_sent as "stream_frames_sent", frames_received as "stream_frames_received",
        /// Datagrams without room or connection.
        frames_refused as "stream_frames_refused",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Open,
    /// Closes once the queued data is written.
    Closing,
}

#[derive(Debug)]
struct Connection {
    state: State,
    peer: Option<NodeId>,
    /// The node that it claims to be, which receives the proof of liveness.
    claims: Option<NodeId>,
    deframer: Deframer,
    out: VecDeque<Bytes>,
    out_bytes: usize,
    /// Time of the last change of state, or when the other end last took data.
    since: Time,
}

impl Connection {
    /// When its time limit passes.
    fn deadline(&self) -> Option<Time> {
        match self.state {
            State::Connecting => Some(self.since + STRANGER_WAIT),
            State::Open if self.peer.is_none() => Some(self.since + STRANGER_WAIT),
            State::Open => (!self.out.is_empty()).then(|| self.since + STALLED_AFTER),
            State::Closing => Some(self.since + CLOSE_WAIT),
        }
    }
}

/// All streams of one node.
#[derive(Debug)]
pub struct Streams {
    limits: StreamLimits,
    connections: BTreeMap<ConnectionId, Connection>,
    next: u64,
    /// The connection used for writing.
    peers: BTreeMap<NodeId, ConnectionId>,
    changes: Vec<Change>,
    actions: VecDeque<Action>,
    /// Connections with queued data.
    touched: Vec<ConnectionId>,
    pub counters: Counters,
}

impl Streams {
    pub(crate) fn new(limits: StreamLimits) -> Streams {
        Streams {
            limits,
            connections: BTreeMap::new(),
            next: 0,
            peers: BTreeMap::new(),
            changes: Vec::new(),
            actions: VecDeque::new(),
            touched: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// When [`Streams::sweep`] has work.
    pub(crate) fn deadline(&self) -> Time {
        self.connections.values().filter_map(Connection::deadline).min().unwrap_or(Time::MAX)
    }
    /// Number of connections, strangers included.
    pub fn len(&self) -> usize {
        self.connections.len()
    }
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }
    pub fn contains(&self, id: ConnectionId) -> bool {
        self.connections.contains_key(&id)
    }
    /// The node at the other end, once that is known.
    pub fn peer(&self, id: ConnectionId) -> Option<NodeId> {
        self.connections.get(&id)?.peer
    }
    /// Whether the peer has a stream that is open.
    pub fn reaches(&self, peer: NodeId) -> bool {
        self.peers.get(&peer).is_some_and(|id| self.connections[id].state == State::Open)
    }
    /// Bytes that wait to be written: of all, and of the connection with the most.
    pub fn held_bytes(&self) -> usize {
        self.connections.values().map(|c| c.out_bytes).sum()
    }
    pub fn held_bytes_max(&self) -> usize {
        self.connections.values().map(|c| c.out_bytes).max().unwrap_or(0)
    }

    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// The driver's next action.
    pub(crate) fn poll(&mut self, now: Time) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        while let Some(id) = self.touched.pop() {
            match self.connections.get(&id) {
                None => {}
                Some(c) if c.state == State::Closing && c.out.is_empty() => {
                    self.ended(now, id);
                    return Some(Action::Shutdown(id));
                }
                Some(_) => return Some(Action::Write(id)),
            }
        }
        None
    }

    /// Starts to connect to `peer`, unless connected; [`Change::Up`] or [`Change::Down`] follows.
    pub(crate) fn open(&mut self, now: Time, peer: NodeId) {
        if let Some(id) = self.peers.get(&peer) {
            match self.connections[id].state {
                State::Open => self.changes.push(Change::Up(peer)),
                State::Connecting => {}
                State::Closing => self.changes.push(Change::Down(peer)),
            }
            return;
        }
        let id = self.add(now, State::Connecting, Some(peer));
        self.peers.insert(peer, id);
        self.actions.push_back(Action::Connect(id, peer));
    }

    /// The stream to `peer` is no longer used; it is closed once queued data is written.
    pub(crate) fn done(&mut self, now: Time, peer: NodeId) {
        let Some(&id) = self.peers.get(&peer) else { return };
        let Some(c) = self.connections.get_mut(&id) else { return };
        (c.state, c.since) = (State::Closing, now);
        self.touched.push(id);
    }

    /// The peer is dead, or takes nothing: closes its connections, the one that is used last.
    pub(crate) fn abort(&mut self, peer: NodeId) {
        let of_peer = self.connections.iter().filter(|(_, c)| c.peer == Some(peer)).map(|(id, _)| *id);
        let mut all: Vec<ConnectionId> = of_peer.collect();
        all.sort_by_key(|id| self.peers.get(&peer) == Some(id));
        all.into_iter().for_each(|id| self.close(id));
    }

    /// This node has a new incarnation; closes all streams.
    pub(crate) fn abort_all(&mut self) {
        let all: Vec<ConnectionId> = self.connections.keys().copied().collect();
        all.into_iter().for_each(|id| self.close(id));
    }

    /// Queues a datagram on the peer's stream.
    pub(crate) fn send(&mut self, now: Time, peer: NodeId, datagram: Bytes) {
        let room = fair_bytes(self.limits.peer_bytes, self.limits.total_bytes, self.held_bytes());
        let claimed = || self.connections.iter().find(|(_, c)| c.claims == Some(peer)).map(|(id, _)| *id);
        let open = |id: &&ConnectionId| self.connections.get(id).is_some_and(|c| c.state == State::Open);
        // The proof goes by the peer's own connection while this node's is being made.
        let id = self.peers.get(&peer).filter(open).copied().or_else(claimed);
        let Some((id, c)) = id.and_then(|id| Some((id, self.connections.get_mut(&id)?))) else {
            self.counters.frames_refused += 1;
            return;
        };
        let full = c.out_bytes + datagram.len() > room && !mutant!("link.stream.unbounded");
        if c.state != State::Open || full {
            self.counters.frames_refused += 1;
            return;
        }
        if c.out.is_empty() {
            c.since = now;
            self.touched.push(id);
        }
        c.out_bytes += FRAME_HEAD_BYTES + datagram.len();
        c.out.push_back(Bytes::copy_from_slice(&frame_head(datagram.len())));
        c.out.push_back(datagram);
        self.counters.frames_sent += 1;
    }

    /// Closes connections whose time limit has passed.
    pub(crate) fn sweep(&mut self, now: Time) {
        let late = |c: &Connection| c.deadline().is_some_and(|at| at <= now);
        let late: Vec<ConnectionId> = self.connections.iter().filter(|(_, c)| late(c)).map(|(id, _)| *id).collect();
        for id in late {
            match &self.connections[&id] {
                c if c.state == State::Open && c.peer.is_none() => self.counters.strangers += 1,
                c if c.state == State::Open => self.counters.stalled += 1,
                c if c.state == State::Connecting => self.counters.failed += 1,
                _ => {}
            }
            self.close(id);
        }
    }

    // ---- reports of the driver ----

    /// A node connected to this one; `None` if it is turned away.
    pub fn accepted(&mut self, now: Time) -> Option<ConnectionId> {
        let strangers = self.connections.values().filter(|c| c.peer.is_none()).count();
        if strangers >= STRANGERS_MAX && !mutant!("link.stream.strangers") {
            self.counters.strangers += 1;
            return None;
        }
        self.counters.accepted += 1;
        Some(self.add(now, State::Open, None))
    }

    /// A connection is being made, or cannot be made.
    pub fn connecting(&mut self, id: ConnectionId, possible: bool) {
        self.counters.opened += u64::from(possible);
        if !possible {
            self.closed(id);
        }
    }

    /// The connection is made.
    pub fn connected(&mut self, now: Time, id: ConnectionId) {
        let Some(c) = self.connections.get_mut(&id).filter(|c| c.state == State::Connecting) else { return };
        (c.state, c.since) = (State::Open, now);
        let peer = c.peer;
        self.touched.push(id);
        if let Some(peer) = peer {
            self.use_for(peer, id);
        }
    }
    pub fn is_connecting(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|c| c.state == State::Connecting)
    }

    /// The other end closed the connection, or it broke.
    pub fn closed(&mut self, id: ConnectionId) {
        self.counters.failed += u64::from(self.is_connecting(id));
        self.close(id);
    }

    /// Bytes arrived. `take` gets each datagram and returns its sender.
    pub(crate) fn received(
        &mut self,
        now: Time,
        id: ConnectionId,
        bytes: &[u8],
        mut take: impl FnMut(BytesMut) -> Origin,
    ) {
        if let Some(c) = self.connections.get_mut(&id) {
            c.deframer.buffer().extend_from_slice(bytes);
        }
        loop {
            let Some(c) = self.connections.get_mut(&id) else { return };
            let datagram = match c.deframer.next_datagram() {
                Ok(Some(datagram)) => datagram,
                Ok(None) => return,
                Err(_) => return self.turn_away(id),
            };
            self.counters.frames_received += 1;
            // Nothing more is written to one that is closing, whoever is at its other end.
            let stranger = c.peer.is_none() && (c.state == State::Open || mutant!("link.stream.used-closing"));
            match take(datagram) {
                Origin::Proven(node) if stranger => self.greet(now, node, id),
                Origin::Unproven(node) if stranger && mutant!("link.stream.unproven") => self.greet(now, node, id),
                Origin::Unproven(node) if stranger => c.claims = Some(node),
                Origin::Nobody if stranger => return self.turn_away(id),
                _ => {}
            }
        }
    }

    /// Bytes that wait to be written, in parts.
    pub fn output(&self, id: ConnectionId) -> impl Iterator<Item = &Bytes> {
        let c = self.connections.get(&id).filter(|c| c.state != State::Connecting);
        c.into_iter().flat_map(|c| &c.out)
    }

    /// The first `n` bytes of the output were written.
    pub fn wrote(&mut self, now: Time, id: ConnectionId, n: usize) {
        let Some(c) = self.connections.get_mut(&id).filter(|_| n > 0) else { return };
        c.since = now;
        c.out_bytes -= n;
        let mut left = n;
        while let Some(first) = c.out.front_mut().filter(|_| left > 0) {
            let taken = left.min(first.len());
            left -= taken;
            if taken < first.len() && mutant!("link.stream.part-again") {
                c.out_bytes += taken;
                break;
            }
            first.advance(taken);
            if first.is_empty() || mutant!("link.stream.part-lost") {
                c.out_bytes -= first.len();
                c.out.pop_front();
            }
        }
        if c.out.is_empty() && c.state == State::Closing {
            self.touched.push(id);
        }
    }

    // ---- connections ----

    fn add(&mut self, now: Time, state: State, peer: Option<NodeId>) -> ConnectionId {
        self.next += 1;
        let id = ConnectionId(self.next);
        let (claims, deframer, out) = (None, Deframer::new(), VecDeque::new());
        self.connections.insert(id, Connection { state, peer, claims, deframer, out, out_bytes: 0, since: now });
        id
    }

    /// A connection was identified as from `node`. If both ends have opened one, both read both.
    fn greet(&mut self, now: Time, node: NodeId, id: ConnectionId) {
        if let Some(c) = self.connections.get_mut(&id) {
            (c.peer, c.claims, c.since) = (Some(node), None, now);
        }
        self.use_for(node, id);
    }

    /// Frames to the peer go by this connection, unless another is open.
    fn use_for(&mut self, peer: NodeId, id: ConnectionId) {
        if self.peers.get(&peer) == Some(&id) || !self.reaches(peer) {
            if !mutant!("link.stream.unused") {
                self.peers.insert(peer, id);
            }
            self.changes.push(Change::Up(peer));
        }
    }

    /// The bytes are not from a node.
    fn turn_away(&mut self, id: ConnectionId) {
        self.counters.strangers += u64::from(self.peer(id).is_none());
        self.close(id);
    }

    /// All was written to a connection that is no longer used.
    fn ended(&mut self, now: Time, id: ConnectionId) {
        let Some(c) = self.connections.get_mut(&id) else { return };
        if let Some(peer) = c.peer.take()
            && self.peers.get(&peer) == Some(&id)
        {
            self.peers.remove(&peer);
            c.since = now;
        }
    }

    fn close(&mut self, id: ConnectionId) {
        let Some(c) = self.connections.remove(&id) else { return };
        self.actions.push_back(Action::Close(id));
        if let Some(peer) = c.peer
            && self.peers.get(&peer) == Some(&id)
        {
            self.peers.remove(&peer);
            if !mutant!("link.stream.down-unsaid") {
                self.changes.push(Change::Down(peer));
            }
            // Frames are lost with it, but the other end's connection is still there.
            let other = |(_, o): &(&ConnectionId, &Connection)| o.peer == Some(peer) && o.state == State::Open;
            let other = self.connections.iter().rev().find(other).map(|(id, _)| *id);
            if let Some(id) = other.filter(|_| c.state == State::Open) {
                self.use_for(peer, id);
            }
        }
    }
}

#[cfg(test)]
#[path = "streams_tests.rs"]
mod tests;
