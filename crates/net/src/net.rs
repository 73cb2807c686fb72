//! The way to nodes in other processes: their packets as bytes (`wire`), made reliable (`transport`), in datagrams
//! ([`super::udp`]).
//!
//! The process that hosts the switch also forwards: a datagram that a node addressed to the switch is given to the
//! switch's node as a packet, and goes on with what that decided written over its header. That is the whole data plane;
//! one in the kernel does the same to the same bytes.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::RawFd;

use bytes::BytesMut;
use rackweave_core::msg::{Body, Class, Header, Op, Packet, Peer};
use rackweave_core::{Epoch, Incarnation, Layout, NodeId, SetId, Span, Time};
use rackweave_switch::{Prefix, Reach, Rings};
use rackweave_transport::header::FLAG_EXTENDED;
use rackweave_transport::route::{Routed, rewrite, routed, to_ring};
use rackweave_transport::{
    Config, Endpoint, Event, GroupOptions, KeyId, Keys, Message, PeerStatus, Received, SendOptions, Train, Transmit,
    Via, dscp,
};

use super::incarnation::{Drawn, Incarnations};
use super::stamps::Timed;
use super::streams::{Change, Streams};
use super::udp::{Ecn, Outgoing, Udp};
use rackweave_config::switching::{RingPlan, native_address};
use rackweave_config::{MTU_DEFAULT, MemorySection};
use rackweave_rack::capture::Capture;
use rackweave_runtime::clock::Clock;
use rackweave_runtime::{Local, Network};

/// A message is given up after this: nodes ask again by themselves, and sooner.
const DEADLINE: Span = Span::from_secs(1);
/// Largest datagram between addresses of one machine: the loopback carries 64 KiB in one piece.
const LOOPBACK_DATAGRAM: usize = 65_507;
const LOOPBACK_RETRANSMIT: Span = Span::from_millis(20);
/// Largest train of datagrams for GSO, bytes: what one send takes.
const TRAIN: usize = 65_507;

/// Bytes after which what was made leaves before more is made: the other end has something to do meanwhile, and what the kernel
/// copies is still in a core's own cache.
const SEND_BYTES: usize = 256 << 10;

/// Acknowledgements by themselves wake a process that has nothing to do: on one machine, where the next message seldom is
/// lost and the retransmission time is long, they wait longer for one to ride on.
const LOOPBACK_ACK_DELAY: Span = Span::from_millis(4);
const LOOPBACK_ACK_EVERY: u32 = 32;
/// What may wait for company does so long at the most. Meanwhile a read of the block that was written stalls at the other
/// replicas; writes after each other come sooner.
const WAIT: Span = Span::from_micros(500);

/// Class and flags in a long datagram (docs/transport.md).
const CLASS_AT: usize = 10;
const FLAGS_AT: usize = 11;
const SOURCE_AT: usize = 12;

/// Counts of this end, beside the transport's and the sockets'.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    /// Datagrams passed on by the switch here, and dropped by it.
    forwarded: u64,
    forward_dropped: u64,
    /// Messages that were no packet, by `wire`'s rules or for a node that is not here.
    undecodable: u64,
    /// Packets the transport did not take: full queues, peers that are down.
    unsent: u64,
    /// Incarnations that were left since a peer knew a newer one.
    outdated: u64,
}

/// One node's network.
#[derive(Debug)]
pub struct Net {
    node: NodeId,
    udp: Udp,
    streams: Streams,
    endpoint: Endpoint,
    incarnations: Box<dyn Incarnations>,
    /// By node.
    addresses: Vec<SocketAddr>,
    out: Vec<Outgoing>,
    /// What the switch here is to pass on, and whether it came marked.
    to_forward: Vec<(Routed, BytesMut, bool)>,
    /// Packets that may wait, until when the first may, and to whom others went in this turn.
    waiting: Vec<Packet>,
    wait_until: Time,
    going: Vec<NodeId>,
    twins: Vec<NodeId>,
    /// Newest incarnation of this node that a peer has named; zero: none.
    newest: u64,
    /// It was said that none above that can be written down.
    no_room: bool,
    rings: Rings,
    /// Members of each ring that must have a message whole.
    quorums: BTreeMap<Prefix, usize>,
    /// The rings' addresses are real ones: the switch is in the kernel.
    native_rings: bool,
    counters: Counters,
    capture: Option<Capture>,
}

/// Why a node has no network.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error("{address}: {error}")]
    Bind { address: SocketAddr, error: io::Error },
    #[error("transport: {0}")]
    Transport(#[from] rackweave_transport::ConfigError),
}

/// The network between hosts, and what becomes of what it brings.
#[derive(Clone, Copy, Debug)]
pub struct Links {
    /// Source ports of a node; the transport's number unless told.
    pub paths: Option<u16>,
    /// Bytes of the largest IP packet.
    pub mtu: u16,
    /// Whether what arrives is kept: its blocks' CRCs are computed on the way in (PN3).
    pub kept: bool,
    /// Bytes that all peers together may fill ([`MemorySection::network_bytes`]).
    pub memory: usize,
}

impl Default for Links {
    fn default() -> Links {
        Links { paths: None, mtu: MTU_DEFAULT, kept: true, memory: MemorySection::default().network_bytes() }
    }
}

/// UDP's payload of an IP packet as long as the network takes.
fn datagram_bytes(mtu: u16, addresses: &[SocketAddr]) -> usize {
    let ip = if addresses.iter().any(SocketAddr::is_ipv6) { 40 } else { 20 };
    usize::from(mtu) - ip - 8
}

impl Net {
    /// `addresses` are by node; `incarnation` was never used by `node` before ([`super::incarnation`]).
    pub fn new(
        node: NodeId,
        addresses: Vec<SocketAddr>,
        keys: Keys,
        incarnation: u64,
        seed: u64,
    ) -> Result<Net, NetError> {
        let version = rackweave_transport::VERSION;
        Net::speaking(version, Links::default(), node, addresses, keys, incarnation, seed)
    }

    /// With `version` as the newest of the datagram format that it speaks.
    pub fn speaking(
        version: u8,
        links: Links,
        node: NodeId,
        addresses: Vec<SocketAddr>,
        keys: Keys,
        incarnation: u64,
        seed: u64,
    ) -> Result<Net, NetError> {
        let eighth = links.memory / 8;
        let mut cfg = Config {
            version,
            train_bytes_max: TRAIN,
            block_crcs: links.kept,
            queue_bytes_total: eighth * 3,
            reassembly_bytes_total: eighth * 3,
            unread_bytes_max: eighth,
            ..Config::default()
        };
        if addresses.iter().all(|a| a.ip().is_loopback()) {
            // One path, and nothing to measure.
            (cfg.paths, cfg.datagram_bytes_max) = (1, LOOPBACK_DATAGRAM);
            // Nothing is lost here but when a process does not run for long enough, as happens with more of them than cores.
            (cfg.retransmit_min, cfg.retransmit_initial) = (LOOPBACK_RETRANSMIT, LOOPBACK_RETRANSMIT);
            (cfg.ack_delay, cfg.ack_every) = (LOOPBACK_ACK_DELAY, LOOPBACK_ACK_EVERY);
        } else {
            cfg.paths = links.paths.unwrap_or(cfg.paths);
            cfg.datagram_bytes_max = datagram_bytes(links.mtu, &addresses);
        }
        let own = addresses[node.0 as usize];
        let failed = |error| NetError::Bind { address: own, error };
        let udp = Udp::bind(own, cfg.paths).map_err(failed)?;
        let streams = Streams::bind(own, eighth).map_err(failed)?;
        let endpoint = Endpoint::new(cfg, node, incarnation, keys, seed)?;
        let counters = Counters::default();
        Ok(Net {
            node,
            udp,
            streams,
            endpoint,
            incarnations: Box::new(Drawn { last: incarnation }),
            addresses,
            out: Vec::new(),
            to_forward: Vec::new(),
            waiting: Vec::new(),
            wait_until: Time::MAX,
            going: Vec::new(),
            twins: Vec::new(),
            newest: 0,
            no_room: false,
            rings: Rings::default(),
            quorums: BTreeMap::new(),
            native_rings: false,
            counters,
            capture: None,
        })
    }

    /// Where further incarnations come from, if a peer knows a newer one than this process has.
    pub fn incarnations_from(&mut self, kept: Box<dyn Incarnations>) {
        self.incarnations = kept;
    }

    /// Writes down every datagram from now on.
    pub fn capture(&mut self, capture: Capture) {
        self.capture = Some(capture);
    }

    /// Who is behind the addresses of NICE's rings, as the switch's tables say; `native`: they are addresses of the network.
    pub fn set_rings(&mut self, plans: Vec<RingPlan>, native: bool) {
        self.native_rings = native;
        for plan in plans {
            let set = self.rings.set(&plan.ring);
            debug_assert!(set.is_ok(), "checked with the configuration: {set:?}");
            self.quorums.insert(plan.ring.prefix, plan.quorum);
        }
    }

    fn transmit(&mut self, now: Time, nodes: &mut dyn Local) -> io::Result<()> {
        let mut made = 0;
        while let Some(t) = self.endpoint.poll_transmit(now) {
            if made >= SEND_BYTES {
                self.capture_leaving();
                self.udp.send(&mut self.out)?;
                made = 0;
            }
            made += t.bytes.len();
            let Some(to) = self.address(t.to) else { continue };
            let path = match t.via {
                Via::Path(path) => path,
                Via::Stream => {
                    self.put_into_stream(now, &t);
                    continue;
                }
            };
            let (bytes, segment) = (t.bytes, t.segment);
            let ecn = if t.ecn { Ecn::Capable } else { Ecn::Not };
            let timed = t.timed.then_some(Timed { peer: t.peer, class: t.class, stamp: t.stamp });
            let peer = Some(t.peer);
            self.out.push(Outgoing { to, path, bytes, segment, dscp: dscp(t.class), ecn, timed, peer });
        }
        self.take_events(now, nodes);
        self.streams.flush(now);
        self.capture_leaving();
        self.udp.send(&mut self.out)?;
        self.hear_of_leaving(now);
        Ok(())
    }

    /// Tells the transport what the sockets found too long; false if there was nothing.
    fn too_long(&mut self, now: Time) -> bool {
        let all = self.udp.take_too_long();
        all.iter().for_each(|t| self.endpoint.too_long(now, t.peer, t.bytes));
        !all.is_empty()
    }

    fn hear_of_leaving(&mut self, now: Time) {
        let endpoint = &mut self.endpoint;
        self.udp.left(now, |l| endpoint.transmitted(l.timed.peer, l.timed.class, l.timed.stamp, l.at.min(now)));
    }

    fn put_into_stream(&mut self, now: Time, t: &Transmit) {
        let one = t.segment.unwrap_or(t.bytes.len()).max(1);
        for at in (0..t.bytes.len()).step_by(one) {
            self.streams.send(now, t.peer, t.bytes.slice(at..(at + one).min(t.bytes.len())));
        }
    }

    fn capture_leaving(&mut self) {
        let Some(capture) = &mut self.capture else { return };
        for o in &self.out {
            let from = self.udp.local(o.path).unwrap_or(self.addresses[self.node.0 as usize]);
            let each = o.segment.unwrap_or(o.bytes.len()).max(1);
            o.bytes.chunks(each).for_each(|d| capture.datagram(from, o.to, o.dscp << 2 | o.ecn as u8, d));
        }
        capture.flush();
    }

    /// Packets that may wait go when their time has come, or with others to the same node: one datagram more in a call
    /// that is made anyway, and no wake-up more at the other end.
    fn send_waiting(&mut self, now: Time) {
        let due = now >= self.wait_until;
        let (mut waiting, going) = (std::mem::take(&mut self.waiting), std::mem::take(&mut self.going));
        for p in waiting.extract_if(.., |p| due || going.contains(&p.dst)) {
            self.send_packet(now, &p);
        }
        (self.waiting, self.going) = (waiting, going);
        if self.waiting.is_empty() {
            self.wait_until = Time::MAX;
        }
    }

    /// Where datagrams for a node, or for an address of the rings, are sent.
    fn address(&self, to: NodeId) -> Option<SocketAddr> {
        if to.is_ring() && self.native_rings {
            return Some(native_address(to));
        }
        self.addresses.get(to.first_hop().0 as usize).copied()
    }

    fn send_packet(&mut self, now: Time, p: &Packet) {
        let mut head = Vec::with_capacity(rackweave_wire::HEADER_BYTES + 128);
        let taken = rackweave_wire::encode_apart(p, &mut head).is_ok_and(|data| {
            let m = Message { head: head.into(), data };
            if p.dst.is_ring() {
                return self.send_to_ring(now, p.dst, m);
            }
            self.endpoint.send(now, p.dst, m, SendOptions { deadline: now + DEADLINE, token: 0 }).is_ok()
        });
        self.counters.unsent += u64::from(!taken);
        if !self.going.contains(&p.dst) {
            self.going.push(p.dst);
        }
    }

    /// To all behind the address by one message; if one of them is to get it, the switch would choose that one.
    fn send_to_ring(&mut self, now: Time, to: NodeId, m: Message) -> bool {
        let Some(ring) = self.rings.find(to.ipv4()) else { return false };
        let quorum = self.quorums.get(&ring.prefix).copied().unwrap_or(ring.members.len());
        let deadline = now + DEADLINE;
        if ring.reach == Reach::Share {
            let one = ring.reached(self.node)[0];
            return self.endpoint.send(now, one, m, SendOptions { deadline, token: 0 }).is_ok();
        }
        let known = self.endpoint.group(to).is_some();
        let members: Vec<NodeId> = ring.members.iter().copied().filter(|n| *n != self.node).collect();
        let quorum = quorum.min(members.len());
        (known || self.endpoint.set_group(now, to, &members).is_ok())
            && self.endpoint.send_group(now, to, m, GroupOptions { quorum, deadline, token: 0 }).is_ok()
    }

    fn take_events(&mut self, now: Time, nodes: &mut dyn Local) {
        loop {
            self.hear_streams(now);
            let Some(event) = self.endpoint.poll_event() else { return };
            let d = match event {
                Event::Delivered(d) => d,
                Event::StreamWanted { peer } => {
                    if let Some(&address) = self.addresses.get(peer.0 as usize) {
                        self.streams.open(now, peer, address);
                    }
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
                Event::Twins { peer } => {
                    self.twins.push(peer);
                    continue;
                }
                Event::Outdated { newest } => {
                    self.newest = self.newest.max(newest);
                    continue;
                }
                Event::GaveUp { .. }
                | Event::GroupReached { .. }
                | Event::GroupDone { .. }
                | Event::PeerUp { .. }
                | Event::PathChanged { .. } => continue,
            };
            match rackweave_wire::decode_apart(&d.message.head, &d.message.data, d.crcs) {
                // Who it is from is what was authenticated.
                Ok(p) if p.src == d.from && p.dst == self.node => nodes.deliver(p),
                _ => self.counters.undecodable += 1,
            }
        }
    }

    /// Goes on as a newer incarnation if a peer knows one. What was under way is lost with the old one: nodes repeat it.
    fn renew(&mut self) -> io::Result<()> {
        if self.newest <= self.endpoint.incarnation() || mutant!("net.incarnation.stays-outdated") {
            return Ok(());
        }
        let next = match self.incarnations.above(self.newest) {
            // Peers drop what it sends and say so again: it is tried again then.
            Err(e) if e.kind() == io::ErrorKind::StorageFull => {
                if !std::mem::replace(&mut self.no_room, true) {
                    let wanted = self.newest;
                    let _ = writeln!(
                        io::stderr(),
                        "rackweave: an incarnation above {wanted} cannot be written down ({e}): peers hear nothing from here until \
                         there is room on the host's disk"
                    );
                }
                return Ok(());
            }
            next => next?,
        };
        self.no_room = false;
        self.endpoint.renew(next);
        self.streams.abort_all();
        self.counters.outdated += 1;
        Ok(())
    }

    /// Tells the transport which streams came and went.
    fn hear_streams(&mut self, now: Time) {
        for change in self.streams.take_changes() {
            match change {
                Change::Up(peer) => self.endpoint.stream_up(now, peer),
                Change::Down(peer) => self.endpoint.stream_down(now, peer),
            }
        }
    }

    /// Asks the switch where a datagram goes, and sends it there: a copy to each if there are several.
    fn forward(&mut self, now: Time, by: Routed, mut d: BytesMut, marked: bool, nodes: &mut dyn Local) {
        nodes.pass(now, summary(by, d[CLASS_AT]));
        let mut decided = nodes.take_outbound();
        self.counters.forward_dropped += u64::from(decided.len() == 0);
        while let Some(p) = decided.next() {
            let Some(&to) = self.addresses.get(p.dst.0 as usize) else {
                self.counters.forward_dropped += 1;
                continue;
            };
            let mut copy = if decided.len() == 0 { std::mem::take(&mut d) } else { d.clone() };
            rewrite(&mut copy, p.dst, p.header.vssd, p.header.lat);
            self.counters.forwarded += 1;
            let (bytes, dscp) = (copy.freeze(), dscp(p.header.class));
            let ecn = if marked { Ecn::Marked } else { Ecn::Capable };
            self.out.push(Outgoing { to, path: 0, bytes, segment: None, dscp, ecn, timed: None, peer: None });
        }
    }
}

impl Network for Net {
    fn datagrams(&self) -> RawFd {
        self.udp.as_raw_fd()
    }

    fn streams(&self) -> RawFd {
        self.streams.as_raw_fd()
    }

    fn deadline(&self) -> Time {
        self.endpoint.next_deadline().min(self.streams.deadline()).min(self.wait_until)
    }

    fn receive(&mut self, now: Time, nodes: &mut dyn Local) -> io::Result<bool> {
        self.hear_of_leaving(now);
        let mut to_forward = std::mem::take(&mut self.to_forward);
        let (endpoint, node) = (&mut self.endpoint, self.node);
        let mut capture = self.capture.as_mut().map(|c| (c, &self.addresses[..]));
        let some = self.udp.receive(now, |t| {
            if let Some((capture, addresses)) = &mut capture {
                t.bytes.chunks(t.segment).for_each(|d| capture_arrived(capture, addresses, node, d, t.marked));
            }
            if node != Layout::SWITCH {
                return endpoint.receive_train(now, t);
            }
            let Train { segment, at, marked, .. } = t;
            for bytes in t.bytes.chunks_mut(segment) {
                match by_switch(bytes) {
                    Some(by) => to_forward.push((by, BytesMut::from(&*bytes), marked)),
                    None => endpoint.receive_train(now, Train { bytes, segment, at, marked }),
                }
            }
        })?;
        for (by, datagram, marked) in to_forward.drain(..) {
            self.forward(now, by, datagram, marked, nodes);
        }
        self.to_forward = to_forward;
        if some {
            self.take_events(now, nodes);
        }
        Ok(some)
    }

    fn receive_streams(&mut self, now: Time, nodes: &mut dyn Local) -> io::Result<()> {
        let endpoint = &mut self.endpoint;
        let take = |datagram| endpoint.receive_by_stream(now, Received { datagram, at: now, marked: false });
        self.streams.handle(now, take)?;
        self.take_events(now, nodes);
        Ok(())
    }

    fn send(&mut self, now: Time, nodes: &mut dyn Local) -> io::Result<()> {
        for p in nodes.take_outbound() {
            if may_wait(&p) {
                self.waiting.push(p);
                self.wait_until = self.wait_until.min(now + WAIT);
            } else {
                self.send_packet(now, &p);
            }
        }
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
        self.take_events(now, nodes);
        self.renew()?;
        self.transmit(now, nodes)?;
        // What was too long has been cut anew.
        while self.too_long(now) {
            self.transmit(now, nodes)?;
        }
        Ok(())
    }

    fn keys(&self) -> Vec<u8> {
        let keys = self.endpoint.keys();
        let mut ids: Vec<u8> = keys.live().map(|id| id.0).collect();
        ids.sort_by_key(|id| keys.sending() != Some(KeyId(*id)));
        ids
    }

    fn set_keys(&mut self, keys: Keys) {
        let set = self.endpoint.change_keys(|k| {
            *k = keys;
            Ok(())
        });
        debug_assert!(set.is_ok(), "nothing is checked here");
    }

    /// One a path, one that listens, and the streams, however many peers and users of this node there are.
    fn sockets(&self) -> usize {
        self.udp.sockets() + 1 + self.streams.len()
    }
    fn peers(&self) -> Vec<PeerStatus> {
        self.endpoint.peers()
    }

    fn keep_time_of(&mut self, clock: &Clock) {
        self.udp.keep_time_of(clock);
    }
    fn take_twins(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.twins)
    }

    fn timestamps(&self) -> String {
        self.udp.timestamps()
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let (c, u, s) = (&self.counters, &self.udp.counters, &self.streams.counters);
        let own = [
            ("forwarded", c.forwarded),
            ("forward_dropped", c.forward_dropped),
            ("undecodable", c.undecodable),
            ("capture_left_out", self.capture.as_ref().map_or(0, |c| c.left_out)),
            ("unsent", c.unsent),
            ("outdated", c.outdated),
            ("receive_calls", u.receive_calls),
            ("send_calls", u.send_calls),
            ("send_refused", u.send_refused),
            ("send_too_long", u.send_too_long),
            ("arrivals_stamped", u.received_stamped),
            ("leavings_asked", u.leaving_asked),
            ("leavings_stamped", u.leaving_told),
            ("streams_opened", s.opened),
            ("streams_accepted", s.accepted),
            ("streams_failed", s.failed),
            ("streams_stalled", s.stalled),
            ("streams_from_strangers", s.strangers),
            ("stream_frames_sent", s.frames_sent),
            ("stream_frames_received", s.frames_received),
            ("stream_frames_refused", s.frames_refused),
        ];
        let all = own.into_iter().chain(self.endpoint.counters().all());
        all.filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_string(), n)).collect()
    }
}

/// Where it came from is where its source lives: the port of its path is seen where it left.
fn capture_arrived(capture: &mut Capture, addresses: &[SocketAddr], node: NodeId, d: &[u8], marked: bool) {
    let source = d.get(SOURCE_AT..SOURCE_AT + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    let own = addresses[node.0 as usize];
    let from = source.and_then(|s| addresses.get(s as usize)).copied().unwrap_or(own);
    let ecn = if marked { Ecn::Marked } else { Ecn::Capable };
    let class = d.get(CLASS_AT).map_or(0, |c| dscp(class(*c)));
    capture.datagram(from, own, class << 2 | ecn as u8, d);
}

/// What the switch routes by, if the datagram was sent to it or to a ring.
fn by_switch(d: &[u8]) -> Option<Routed> {
    let extended = || d[FLAGS_AT] & FLAG_EXTENDED != 0;
    to_ring(d).or_else(|| routed(d).filter(|r| r.destination == Layout::SWITCH && extended()))
}

fn class(byte: u8) -> Class {
    match byte {
        0 => Class::Gold,
        1 => Class::Silver,
        _ => Class::Copper,
    }
}

/// Nobody waits for it: that a write is valid everywhere, told after its client was answered.
fn may_wait(p: &Packet) -> bool {
    matches!(p.body, Body::Peer(Peer::Val { .. }))
}

/// A read or write as the switch's node sees it, with the latency of this hop alone to come. It looks at no body of
/// theirs.
fn summary(by: Routed, class: u8) -> Packet {
    let header = Header {
        op: if by.read { Op::Read } else { Op::Write },
        vssd: by.vssd,
        lat: 0,
        class: self::class(class),
        original_vssd: by.vssd,
        set: SetId(0),
        epoch: Epoch(0),
        incarnation: Incarnation(0),
        request: by.request,
    };
    Packet { src: by.source, dst: by.destination, header, body: Body::DelVssd }
}

#[cfg(test)]
#[path = "net_tests.rs"]
mod tests;
