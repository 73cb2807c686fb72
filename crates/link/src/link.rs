//! One node's end.

use std::collections::BTreeMap;

use rackweave_core::msg::Packet;
use rackweave_core::{NodeId, Span, Time};
use rackweave_switch::{Prefix, Reach, Ring, Rings};
use rackweave_transport::{
    Config, ConfigError, Endpoint, Event, GroupOptions, Heard, Keys, Message, Received, SendError, SendOptions, Train,
    Transmit,
};

use crate::forward::Forward;

/// A message is given up after this: nodes repeat it by themselves, and sooner.
const DEADLINE: Span = Span::from_secs(1);
/// What may wait for company does so at most this long. Meanwhile a read of the block that was written stalls at the other
/// replicas; writes after each other come sooner.
const WAIT: Span = Span::from_micros(500);

/// Counts of this end, beside the transport's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that were no packet, by `wire`'s rules or for a node that is not here.
    pub undecodable: u64,
    /// Packets the transport did not take: full queues, peers that are down.
    pub unsent: u64,
    /// Packets that have no bytes, or none that the transport knows: a program error.
    pub unsendable: u64,
    /// Incarnations that were left since a peer knew a newer one.
    pub outdated: u64,
}

/// Something that the driver carries out.
#[derive(Clone, Debug)]
pub enum News {
    /// For the node.
    Packet(Packet),
    /// Connect a stream to the peer, then call [`Endpoint::stream_up`] or [`Endpoint::stream_down`].
    OpenStream(NodeId),
    /// The stream to the peer is no longer used.
    CloseStream(NodeId),
    /// The stream to the peer, if there is one, brings nothing.
    AbortStream(NodeId),
    /// Two processes run as this node.
    Twins(NodeId),
    /// The packet of this token was refused, or given up at its deadline; it may have arrived all the same.
    Unsent(u64),
}

/// One node's network, above its sockets.
#[derive(Debug)]
pub struct Link {
    node: NodeId,
    is_switch: bool,
    endpoint: Endpoint,
    /// Packets that may wait, until when the first may, and to whom others went in this turn.
    waiting: Vec<(Packet, u64)>,
    wait_until: Time,
    going: Vec<NodeId>,
    /// Tokens of packets that were refused.
    refused: Vec<u64>,
    /// Newest incarnation of this node that a peer has named; zero: none.
    newest: u64,
    rings: Rings,
    /// Members of each ring that must have a message whole.
    quorums: BTreeMap<Prefix, usize>,
    pub counters: Counters,
}

impl Link {
    /// `incarnation` was never used by `node` before ([`crate::incarnation`]).
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn new(cfg: Config, node: NodeId, incarnation: u64, keys: Keys, seed: u64) -> Result<Link, ConfigError> {
        Ok(Link {
            node,
            is_switch: cfg.is_switch(node),
            endpoint: Endpoint::new(cfg, node, incarnation, keys, seed)?,
            waiting: Vec::new(),
            wait_until: Time::MAX,
            going: Vec::new(),
            refused: Vec::new(),
            newest: 0,
            rings: Rings::default(),
            quorums: BTreeMap::new(),
            counters: Counters::default(),
        })
    }

    /// Who is behind a ring's addresses, as the switch's tables say, and how many of them must have a message whole.
    pub fn set_ring(&mut self, ring: &Ring, quorum: usize) {
        let set = self.rings.set(ring);
        debug_assert!(set.is_ok(), "checked with the configuration: {set:?}");
        self.quorums.insert(ring.prefix, quorum);
    }

    /// Takes a packet of the node; `token` comes back in [`News::Unsent`]. [`Link::flush`] must follow.
    pub fn send(&mut self, now: Time, p: Packet, token: u64) {
        if p.body.may_wait() {
            self.waiting.push((p, token));
            self.wait_until = self.wait_until.min(now + WAIT);
        } else {
            self.send_packet(now, &p, token);
        }
    }

    /// All packets of a turn were sent; what is due happens.
    pub fn flush(&mut self, now: Time) {
        if !self.waiting.is_empty() {
            self.send_waiting(now);
        }
        self.going.clear();
        if self.endpoint.next_deadline() <= now {
            self.endpoint.handle_timeout(now);
        }
    }

    /// Packets that may wait go when their time has come, or with others to the same node: one datagram more in a call
    /// that is made anyway, and no wake-up more at the other end.
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
        let mut head = Vec::with_capacity(rackweave_wire::HEADER_BYTES + 128);
        match rackweave_wire::encode_apart(p, &mut head) {
            Ok(data) => match self.send_message(now, p.dst, Message { head: head.into(), data }, token) {
                Ok(()) => {}
                Err(SendError::NotAPacket { .. } | SendError::TooLong { .. }) => self.counters.unsendable += 1,
                Err(_) => {
                    self.counters.unsent += 1;
                    self.refused.push(token);
                }
            },
            Err(_) => self.counters.unsendable += 1,
        }
        if !self.going.contains(&p.dst) {
            self.going.push(p.dst);
        }
    }

    fn send_message(&mut self, now: Time, to: NodeId, m: Message, token: u64) -> Result<(), SendError> {
        if to.is_ring() {
            return self.send_to_ring(now, to, m, token);
        }
        self.endpoint.send(now, to, m, SendOptions { deadline: now + DEADLINE, token })
    }

    /// To all behind the address by one message; if one of them is to get it, the switch would choose that one.
    fn send_to_ring(&mut self, now: Time, to: NodeId, m: Message, token: u64) -> Result<(), SendError> {
        let unknown = SendError::UnknownGroup { group: to };
        let Some(ring) = self.rings.find(to.ipv4()) else { return Err(unknown) };
        let quorum = self.quorums.get(&ring.prefix).copied().unwrap_or(ring.members.len());
        let deadline = now + DEADLINE;
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

    /// Datagrams that arrived together. At the switch `forward` gets those that go on to others.
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

    /// A datagram that came out of a stream.
    pub fn receive_by_stream(&mut self, now: Time, r: Received) -> Heard {
        self.endpoint.receive_by_stream(now, r)
    }

    /// What the driver carries out next.
    pub fn poll(&mut self) -> Option<News> {
        if let Some(token) = self.refused.pop() {
            return Some(News::Unsent(token));
        }
        loop {
            return Some(match self.endpoint.poll_event()? {
                Event::Delivered(d) => {
                    match rackweave_wire::decode_apart(&d.message.head, &d.message.data, d.crcs) {
                        // Who it is from is what was authenticated.
                        Ok(p) if p.src == d.from && p.dst == self.node => News::Packet(p),
                        _ => {
                            self.counters.undecodable += 1;
                            continue;
                        }
                    }
                }
                Event::StreamWanted { peer } => News::OpenStream(peer),
                Event::StreamDone { peer } => News::CloseStream(peer),
                Event::PeerDown { peer } | Event::StreamStuck { peer } => News::AbortStream(peer),
                Event::Twins { peer } => News::Twins(peer),
                Event::GaveUp { token, .. } => News::Unsent(token),
                Event::Outdated { newest } => {
                    self.newest = self.newest.max(newest);
                    continue;
                }
                Event::GroupReached { .. }
                | Event::GroupDone { .. }
                | Event::PeerUp { .. }
                | Event::PathChanged { .. } => continue,
            });
        }
    }

    /// A peer knows a newer incarnation of this node: which. [`Link::renew`] with one above it must follow, or nothing gets
    /// through to that peer.
    pub fn outdated(&self) -> Option<u64> {
        (self.newest > self.endpoint.incarnation() && !mutant!("link.incarnation.stays-outdated"))
            .then_some(self.newest)
    }

    /// Goes on as a newer incarnation. What was under way is lost with the old one: nodes repeat it. Streams of the old one must be
    /// closed.
    pub fn renew(&mut self, incarnation: u64) {
        self.endpoint.renew(incarnation);
        self.counters.outdated += 1;
    }

    /// The next bytes to send, until there are none.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit> {
        self.endpoint.poll_transmit(now)
    }

    /// When [`Link::flush`] has something to do even if the node sends nothing.
    pub fn deadline(&self) -> Time {
        self.endpoint.next_deadline().min(self.wait_until)
    }

    /// Replaces the keys; see [`Keys`] for how they rotate.
    pub fn set_keys(&mut self, keys: Keys) {
        let set = self.endpoint.change_keys(|k| {
            *k = keys;
            Ok(())
        });
        debug_assert!(set.is_ok(), "nothing is checked here");
    }

    /// Packets that wait for company, and leave as the incarnation that is there by then.
    pub fn waiting(&self) -> impl Iterator<Item = &Packet> {
        self.waiting.iter().map(|(p, _)| p)
    }
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
    /// For what the sockets know: streams that came and went, times of leaving, datagrams that were too long.
    pub fn endpoint_mut(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }
}
