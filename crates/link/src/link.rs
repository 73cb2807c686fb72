//! One node's end of the network.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::msg::cloud::LogPair;
use rackweave_core::msg::keys::View;
use rackweave_core::msg::{Body, Packet};
use rackweave_core::{NodeId, Span, Time};
use rackweave_switch::{Prefix, Reach, Ring, Rings};
use rackweave_transport::{
    Config, ConfigError, Endpoint, Event, GroupOptions, Keys, Message, Received, SendError, SendOptions, Train,
    Transmit, Via,
};

use crate::forward::Forward;
use crate::streams::{Action, Change, ConnectionId, StreamLimits, Streams};

/// Time until a message is given up. Nodes repeat it by themselves, and sooner.
const DEADLINE: Span = Span::from_secs(1);
/// Longest time that a deferrable packet is held back for a datagram to join. Meanwhile a read of the written block
/// stalls at the other replicas; consecutive writes come sooner.
const WAIT: Span = Span::from_micros(500);

counters! {
    /// Counters of this end, in addition to the transport's.
    pub struct Counters {
        /// Messages that were not a valid packet, or not for a node here.
        undecodable,
        /// Packets that the transport refused: full queues, or peers that are down.
        unsent,
        /// Those of them without an encoding, or with one that the transport does not know: a program error.
        unsendable as _,
        /// Incarnations that were given up because a peer knew a newer one.
        outdated,
    }
}

/// An action for the driver.
#[derive(Clone, Debug)]
pub enum News {
    /// Deliver to the node.
    Packet(Packet),
    /// Two processes run as this node.
    Twins(NodeId),
    /// The packet with this token was refused, or given up at its deadline. It may have arrived nevertheless.
    Unsent(u64),
    /// To be sent in place of the packet with this token, for which the queue to its receiver had no room.
    Instead(Packet, u64),
}

/// One node's network, above the sockets.
#[derive(Debug)]
pub struct Link {
    node: NodeId,
    is_switch: bool,
    endpoint: Endpoint,
    streams: Streams,
    /// Held-back packets, the time until which the first may be held, and the nodes that other packets were sent to in
    /// this turn.
    waiting: Vec<(Packet, u64)>,
    wait_until: Time,
    going: Vec<NodeId>,
    /// Tokens of refused packets.
    refused: Vec<u64>,
    /// To be sent in place of others, by their tokens.
    refusals: Vec<(Packet, u64)>,
    /// Newest incarnation of this node that a peer has named; zero for none.
    newest: u64,
    rings: Rings,
    /// Number of members of each ring that must have a message whole.
    quorums: BTreeMap<Prefix, usize>,
    /// Addresses whose members the node named.
    named: BTreeSet<NodeId>,
    pub counters: Counters,
}

impl Link {
    /// `incarnation` must be new for `node` ([`crate::incarnation`]).
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn new(
        cfg: Config,
        limits: StreamLimits,
        node: NodeId,
        incarnation: u64,
        keys: Keys,
        seed: u64,
    ) -> Result<Link, ConfigError> {
        Ok(Link {
            node,
            is_switch: cfg.is_switch(node),
            endpoint: Endpoint::new(cfg, node, incarnation, keys, seed)?,
            streams: Streams::new(limits),
            waiting: Vec::new(),
            wait_until: Time::MAX,
            going: Vec::new(),
            refused: Vec::new(),
            refusals: Vec::new(),
            newest: 0,
            rings: Rings::default(),
            quorums: BTreeMap::new(),
            named: BTreeSet::new(),
            counters: Counters::default(),
        })
    }

    /// Sets the members of a ring, as in the switch's tables, and how many of them must have a message whole.
    pub fn set_ring(&mut self, ring: &Ring, quorum: usize) {
        let set = self.rings.set(ring);
        debug_assert!(set.is_ok(), "checked with the configuration: {set:?}");
        self.quorums.insert(ring.prefix, quorum);
    }

    /// Sends a packet of the node; [`News::Unsent`] returns `token`. [`Link::flush`] must follow.
    pub fn send(&mut self, now: Time, p: Packet, token: u64) {
        if p.body.may_wait() {
            self.waiting.push((p, token));
            self.wait_until = self.wait_until.min(now + WAIT);
        } else {
            self.send_packet(now, &p, token);
        }
    }

    /// Called after all packets of a turn: performs what is due.
    pub fn flush(&mut self, now: Time) {
        if !self.waiting.is_empty() {
            self.send_waiting(now);
        }
        self.going.clear();
        if self.endpoint.next_deadline() <= now {
            self.endpoint.handle_timeout(now);
        }
        if self.streams.deadline() <= now {
            self.streams.sweep(now);
        }
    }

    /// Sends held-back packets that are due, or together with others to the same node: that takes one more datagram in
    /// a call that is made anyway, and no further wake-up at the receiver.
    fn send_waiting(&mut self, now: Time) {
        let due = now >= self.wait_until;
        let (mut waiting, going) = (std::mem::take(&mut self.waiting), std::mem::take(&mut self.going));
        for (p, token) in waiting.extract_if(.., |(p, _)| due || going.contains(&p.dst)) {
            self.send_packet(now, &p, token);
        }
        if mutant!("link.wait.forgotten") {
            waiting.clear();
        }
        (self.waiting, self.going) = (waiting, going);
        if self.waiting.is_empty() {
            self.wait_until = Time::MAX;
        }
    }

    fn send_packet(&mut self, now: Time, p: &Packet, token: u64) {
        if let Body::Keys(keys) = &p.body
            && let Some(view) = keys.new_view().filter(|_| p.dst.is_ring())
        {
            return self.set_members(now, p.dst, view);
        }
        let mut head = Vec::with_capacity(rackweave_wire::HEADER_BYTES + 128);
        let sent = match rackweave_wire::encode_apart(p, &mut head) {
            Ok(data) => Some(self.send_message(now, p.dst, Message { head: head.into(), data }, token)),
            Err(_) => None,
        };
        self.counters.unsent += u64::from(!matches!(sent, Some(Ok(()))));
        match sent {
            Some(Ok(())) => {}
            None | Some(Err(SendError::NotAPacket { .. } | SendError::TooLong { .. })) => self.counters.unsendable += 1,
            Some(Err(SendError::QueueFull { .. } | SendError::AllQueuesFull { .. })) => self.refuse(p, token),
            Some(Err(_)) => self.refused.push(token),
        }
        if !self.going.contains(&p.dst) {
            self.going.push(p.dst);
        }
    }

    /// The queue has no room for the packet, but perhaps for a refusal.
    fn refuse(&mut self, p: &Packet, token: u64) {
        match p.body.refusal().filter(|_| !mutant!("link.full.silent")) {
            Some(body) => self.refusals.push((Packet { body, ..p.clone() }, token)),
            None => self.refused.push(token),
        }
    }

    fn send_message(&mut self, now: Time, to: NodeId, m: Message, token: u64) -> Result<(), SendError> {
        if to.is_ring() {
            return self.send_to_ring(now, to, m, token);
        }
        self.endpoint.send(now, to, m, SendOptions { deadline: now + DEADLINE, token })
    }

    /// The node names the members of a partition of keys behind the partition's address.
    fn set_members(&mut self, now: Time, address: NodeId, view: &View) {
        let members: Vec<NodeId> = view.members.iter().map(|m| m.node).filter(|n| *n != self.node).collect();
        if self.endpoint.set_group(now, address, &members).is_ok() {
            self.named.insert(address);
        } else {
            self.endpoint.remove_group(now, address);
            self.named.remove(&address);
        }
    }

    /// Sends one message to all members of the ring. If only one of them is to receive it, the switch would choose that
    /// one.
    fn send_to_ring(&mut self, now: Time, to: NodeId, m: Message, token: u64) -> Result<(), SendError> {
        let unknown = SendError::UnknownGroup { group: to };
        if let Some(members) = self.endpoint.group(to).filter(|_| self.named.contains(&to)) {
            // One that does not answer does not stop the others: it leaves the view, or its node fetches what it missed.
            let how = GroupOptions { quorum: (members.len() - 1).max(1), deadline: now + DEADLINE, token };
            return self.endpoint.send_group(now, to, m, how);
        }
        let deadline = now + DEADLINE;
        let Some(ring) = self.rings.find(to.ipv4()) else {
            let pair = LogPair::of_address(to).ok_or(unknown)?;
            if self.endpoint.group(to).is_none() {
                self.endpoint.set_group(now, to, &pair.members()).map_err(|_| unknown)?;
            }
            return self.endpoint.send_group(now, to, m, GroupOptions { quorum: 1, deadline, token });
        };
        let quorum = self.quorums.get(&ring.prefix).copied().unwrap_or(ring.members.len());
        if ring.reach == Reach::Share {
            let one = ring.reached(self.node)[0];
            return self.endpoint.send(now, one, m, SendOptions { deadline, token });
        }
        let known = self.endpoint.group(to).is_some();
        let members: Vec<NodeId> = ring.members.iter().copied().filter(|n| *n != self.node).collect();
        let quorum = quorum.min(members.len());
        if !known {
            self.endpoint.set_group(now, to, &members).map_err(|_| unknown)?;
        }
        self.endpoint.send_group(now, to, m, GroupOptions { quorum, deadline, token })
    }

    /// Receives datagrams that arrived together. At the switch, `forward` gets those for others.
    pub fn receive(&mut self, now: Time, t: Train<'_>, mut forward: impl FnMut(Forward)) {
        if !self.is_switch {
            return self.endpoint.receive_train(now, t);
        }
        let Train { segment, at, marked, .. } = t;
        for bytes in t.bytes.chunks_mut(segment) {
            match Forward::of(bytes, self.node, marked) {
                Some(f) => forward(f),
                None => self.endpoint.receive_train(now, Train { bytes, segment, at, marked }),
            }
        }
    }

    /// Receives bytes from a stream.
    pub fn receive_by_stream(&mut self, now: Time, id: ConnectionId, bytes: &[u8]) {
        let endpoint = &mut self.endpoint;
        let take = |datagram| endpoint.receive_by_stream(now, Received { datagram, at: now, marked: false });
        self.streams.received(now, id, bytes, take);
    }

    /// The next action for the driver.
    pub fn poll(&mut self, now: Time) -> Option<News> {
        if let Some(token) = self.refused.pop() {
            return Some(News::Unsent(token));
        }
        if let Some((p, token)) = self.refusals.pop() {
            return Some(News::Instead(p, token));
        }
        loop {
            self.apply_stream_changes(now);
            return Some(match self.endpoint.poll_event()? {
                Event::Delivered(d) => {
                    match rackweave_wire::decode_apart(&d.message.head, &d.message.data, d.crcs) {
                        // The sender is the authenticated one.
                        Ok(p) if p.src == d.from && p.dst == self.node => News::Packet(p),
                        _ => {
                            self.counters.undecodable += 1;
                            continue;
                        }
                    }
                }
                Event::StreamWanted { peer } => {
                    self.streams.open(now, peer);
                    continue;
                }
                Event::StreamDone { peer } => {
                    self.streams.done(now, peer);
                    continue;
                }
                Event::PeerDown { peer } | Event::StreamStuck { peer } => {
                    self.streams.abort(peer);
                    continue;
                }
                Event::Twins { peer } => News::Twins(peer),
                Event::GaveUp { token, .. } => News::Unsent(token),
                Event::Outdated { newest } => {
                    self.newest = self.newest.max(newest);
                    continue;
                }
                Event::GroupDone { token, missing, .. } if !missing.is_empty() => News::Unsent(token),
                Event::GroupReached { .. }
                | Event::GroupDone { .. }
                | Event::PeerUp { .. }
                | Event::PathChanged { .. } => continue,
            });
        }
    }

    /// The newer incarnation of this node that a peer knows, if any. [`Link::renew`] with one above it must follow;
    /// otherwise that peer accepts nothing.
    pub fn outdated(&self) -> Option<u64> {
        (self.newest > self.endpoint.incarnation() && !mutant!("link.incarnation.stays-outdated"))
            .then_some(self.newest)
    }

    /// Reports opened and closed streams to the endpoint.
    fn apply_stream_changes(&mut self, now: Time) {
        for change in self.streams.take_changes() {
            match change {
                Change::Up(peer) => self.endpoint.stream_up(now, peer),
                Change::Down(peer) => self.endpoint.stream_down(now, peer),
            }
        }
    }

    /// Continues under a newer incarnation. Messages in flight are lost with the old one; nodes repeat them. Its streams
    /// are closed.
    pub fn renew(&mut self, incarnation: u64) {
        self.endpoint.renew(incarnation);
        self.streams.abort_all();
        self.counters.outdated += 1;
    }

    /// The next datagrams to send and their path; `None` when there are no more. Frames of streams are queued there.
    pub fn poll_transmit(&mut self, now: Time) -> Option<(Transmit, u16)> {
        loop {
            let t = self.endpoint.poll_transmit(now)?;
            match t.via {
                Via::Path(path) => return Some((t, path)),
                Via::Stream => self.put_into_stream(now, &t),
            }
        }
    }

    fn put_into_stream(&mut self, now: Time, t: &Transmit) {
        let one = t.segment.unwrap_or(t.bytes.len()).max(1);
        for at in (0..t.bytes.len()).step_by(one) {
            self.streams.send(now, t.peer, t.bytes.slice(at..(at + one).min(t.bytes.len())));
        }
    }

    /// The next action of the driver on its connections.
    pub fn poll_streams(&mut self, now: Time) -> Option<Action> {
        self.streams.poll(now)
    }

    /// When [`Link::flush`] has work even if the node sends nothing.
    pub fn deadline(&self) -> Time {
        self.endpoint.next_deadline().min(self.wait_until).min(self.streams.deadline())
    }

    /// Replaces the keys; see [`Keys`] for how they rotate.
    pub fn set_keys(&mut self, keys: Keys) {
        let set = self.endpoint.change_keys(|k| {
            *k = keys;
            Ok(())
        });
        debug_assert!(set.is_ok(), "nothing is checked here");
    }

    /// Held-back packets, which are sent under the incarnation of that time.
    pub fn waiting(&self) -> impl Iterator<Item = &Packet> {
        self.waiting.iter().map(|(p, _)| p)
    }
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
    pub fn streams(&self) -> &Streams {
        &self.streams
    }
    /// Access for connections' events: made, accepted, written, closed.
    pub fn streams_mut(&mut self) -> &mut Streams {
        &mut self.streams
    }
    /// Access for the sockets' events: departure times, datagrams that were too long.
    pub fn endpoint_mut(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
