//! The network to nodes in other processes: packets as bytes (`wire`), made reliable (`transport`), in datagrams
//! ([`super::udp`]).
//!
//! Everything that needs no socket is in [`rackweave_link`]. The process that hosts the switch also forwards
//! ([`rackweave_link::forward`]).

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::RawFd;

use rackweave_core::{Layout, NodeId, Time};
use rackweave_link::streams::StreamLimits;
use rackweave_link::{Forward, Link, News, forward, on_one_machine};
use rackweave_transport::{Config, KeyId, Keys, PeerStatus, dscp};

use super::incarnation::{Drawn, Incarnations};
use super::stamps::Timed;
use super::streams::Streams;
use super::udp::{Ecn, Outgoing, Udp};
use rackweave_config::switching::{RingPlan, native_address};
use rackweave_config::{MTU_DEFAULT, MemorySection};
use rackweave_rack::capture::Capture;
use rackweave_runtime::clock::Clock;
use rackweave_runtime::{Local, Network};

/// Largest train of datagrams for GSO in bytes: the maximum of one send.
const TRAIN: usize = 65_507;

/// Bytes after which datagrams are sent before more are made: the receiver can start meanwhile, and the kernel copies
/// data that is still in the core's cache.
const SEND_BYTES: usize = 256 << 10;

/// Offsets of class and source in a datagram (docs/transport.md).
const CLASS_AT: usize = 10;
const SOURCE_AT: usize = 12;

counters! {
    /// Datagrams forwarded and dropped by the switch here.
    struct Counters { forwarded, forward_dropped }
}

/// The network of one node.
#[derive(Debug)]
pub struct Net {
    node: NodeId,
    udp: Udp,
    streams: Streams,
    link: Link,
    incarnations: Box<dyn Incarnations>,
    /// By node id.
    addresses: Vec<SocketAddr>,
    out: Vec<Outgoing>,
    /// Datagrams for the switch here to forward.
    to_forward: Vec<Forward>,
    twins: Vec<NodeId>,
    /// Whether it was reported that no higher incarnation can be stored.
    no_room: bool,
    /// Ring addresses are real ones, because the switch is in the kernel.
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

/// The network between hosts, and the handling of what arrives.
#[derive(Clone, Debug)]
pub struct Links {
    /// Source ports of a node; the transport's number by default.
    pub paths: Option<u16>,
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// Whether contents are stored on arrival: the CRCs of their blocks are then computed on receipt (PN3).
    pub kept: bool,
    /// Bytes that all peers together may fill ([`MemorySection::network_bytes`]).
    pub memory: usize,
    /// Switches of the racks.
    pub switches: Vec<NodeId>,
}

impl Default for Links {
    fn default() -> Links {
        let (memory, switches) = (MemorySection::default().network_bytes(), vec![Layout::SWITCH]);
        Links { paths: None, mtu: MTU_DEFAULT, kept: true, memory, switches }
    }
}

/// UDP payload of the largest IP packet that the network takes.
fn datagram_bytes(mtu: u16, addresses: &[SocketAddr]) -> usize {
    let ip = if addresses.iter().any(SocketAddr::is_ipv6) { 40 } else { 20 };
    usize::from(mtu) - ip - 8
}

impl Net {
    /// `addresses` are by node id; `incarnation` must be new for `node` ([`super::incarnation`]).
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

    /// With `version` as the newest datagram format that it speaks.
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
            switches: links.switches,
            ..Config::default()
        };
        if addresses.iter().all(|a| a.ip().is_loopback()) {
            on_one_machine(&mut cfg);
        } else {
            cfg.paths = links.paths.unwrap_or(cfg.paths);
            cfg.datagram_bytes_max = datagram_bytes(links.mtu, &addresses);
        }
        let own = addresses[node.0 as usize];
        let failed = |error| NetError::Bind { address: own, error };
        let udp = Udp::bind(own, cfg.paths).map_err(failed)?;
        let streams = Streams::bind(own).map_err(failed)?;
        let limits = StreamLimits { total_bytes: eighth, ..StreamLimits::default() };
        let link = Link::new(cfg, limits, node, incarnation, keys, seed)?;
        Ok(Net {
            node,
            udp,
            streams,
            link,
            incarnations: Box::new(Drawn { last: incarnation }),
            addresses,
            out: Vec::new(),
            to_forward: Vec::new(),
            twins: Vec::new(),
            no_room: false,
            native_rings: false,
            counters: Counters::default(),
            capture: None,
        })
    }

    /// Source of further incarnations, for when a peer knows a newer one than this process has.
    pub fn incarnations_from(&mut self, kept: Box<dyn Incarnations>) {
        self.incarnations = kept;
    }

    /// Captures every datagram from now on.
    pub fn capture(&mut self, capture: Capture) {
        self.capture = Some(capture);
    }

    /// Sets the members behind ring addresses, as in the switch's tables; `native`: ring addresses are addresses of the
    /// network.
    pub fn set_rings(&mut self, plans: Vec<RingPlan>, native: bool) {
        self.native_rings = native;
        for plan in plans {
            self.link.set_ring(&plan.ring, plan.quorum);
        }
    }

    fn transmit(&mut self, now: Time, nodes: &mut dyn Local) -> io::Result<()> {
        let mut made = 0;
        while let Some((t, path)) = self.link.poll_transmit(now) {
            if made >= SEND_BYTES {
                self.capture_departures();
                self.udp.send(&mut self.out)?;
                made = 0;
            }
            made += t.bytes.len();
            let Some(to) = self.address(t.to) else { continue };
            let (bytes, segment) = (t.bytes, t.segment);
            let ecn = if t.ecn { Ecn::Capable } else { Ecn::Not };
            let timed = t.timed.then_some(Timed { peer: t.peer, class: t.class, stamp: t.stamp });
            let peer = Some(t.peer);
            self.out.push(Outgoing { to, path, bytes, segment, dscp: dscp(t.class), ecn, timed, peer });
        }
        self.take_events(now, nodes);
        self.streams.carry_out(now, &mut self.link, &self.addresses);
        self.capture_departures();
        self.udp.send(&mut self.out)?;
        self.record_departures(now);
        Ok(())
    }

    /// Reports datagrams that were too long to the transport; false if there were none.
    fn too_long(&mut self, now: Time) -> bool {
        let all = self.udp.take_too_long();
        all.iter().for_each(|t| self.link.endpoint_mut().too_long(now, t.peer, t.bytes));
        !all.is_empty()
    }

    fn record_departures(&mut self, now: Time) {
        let endpoint = self.link.endpoint_mut();
        self.udp.left(now, |l| endpoint.transmitted(l.timed.peer, l.timed.class, l.timed.stamp, l.at.min(now)));
    }

    fn capture_departures(&mut self) {
        let Some(capture) = &mut self.capture else { return };
        for o in &self.out {
            let from = self.udp.local(o.path).unwrap_or(self.addresses[self.node.0 as usize]);
            let each = o.segment.unwrap_or(o.bytes.len()).max(1);
            o.bytes.chunks(each).for_each(|d| capture.datagram(from, o.to, o.dscp << 2 | o.ecn as u8, d));
        }
        capture.flush();
    }

    /// Destination of datagrams for a node or a ring address.
    fn address(&self, to: NodeId) -> Option<SocketAddr> {
        if to.is_ring() && self.native_rings {
            return Some(native_address(to));
        }
        self.addresses.get(to.first_hop().0 as usize).copied()
    }

    fn take_events(&mut self, now: Time, nodes: &mut dyn Local) {
        while let Some(news) = self.link.poll(now) {
            match news {
                News::Packet(p) => nodes.deliver(p),
                News::Twins(peer) => self.twins.push(peer),
                News::Unsent(_) => {}
                News::Instead(p, _) => self.link.send(now, p, 0),
            }
        }
    }

    /// Continues under a newer incarnation if a peer knows one. Messages in flight are lost with the old one; nodes
    /// repeat them.
    fn renew(&mut self) -> io::Result<()> {
        let Some(newest) = self.link.outdated() else { return Ok(()) };
        let next = match self.incarnations.above(newest) {
            // Peers drop what it sends and report that again, which causes another attempt.
            Err(e) if e.kind() == io::ErrorKind::StorageFull => {
                if !std::mem::replace(&mut self.no_room, true) {
                    let _ = writeln!(
                        io::stderr(),
                        "rackweave: an incarnation above {newest} cannot be written down ({e}): peers hear nothing from here until \
                         there is room on the host's disk"
                    );
                }
                return Ok(());
            }
            next => next?,
        };
        self.no_room = false;
        self.link.renew(next);
        Ok(())
    }

    /// Lets the switch decide where a datagram goes, and sends a copy to each destination.
    fn forward(&mut self, now: Time, mut f: Forward, nodes: &mut dyn Local) {
        nodes.pass(now, f.packet());
        let mut decided = nodes.take_outbound();
        self.counters.forward_dropped += u64::from(decided.len() == 0);
        while let Some(p) = decided.next() {
            let Some(&to) = self.addresses.get(p.dst.0 as usize) else {
                self.counters.forward_dropped += 1;
                continue;
            };
            self.counters.forwarded += 1;
            let (bytes, dscp) = (f.copy(&p, decided.len() == 0), dscp(p.header.class));
            let ecn = if f.marked { Ecn::Marked } else { Ecn::Capable };
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
        self.link.deadline()
    }

    fn receive(&mut self, now: Time, nodes: &mut dyn Local) -> io::Result<bool> {
        self.record_departures(now);
        let mut to_forward = std::mem::take(&mut self.to_forward);
        let (link, node) = (&mut self.link, self.node);
        let mut capture = self.capture.as_mut().map(|c| (c, &self.addresses[..]));
        let some = self.udp.receive(now, |t| {
            if let Some((capture, addresses)) = &mut capture {
                t.bytes.chunks(t.segment).for_each(|d| capture_arrived(capture, addresses, node, d, t.marked));
            }
            link.receive(now, t, |f| to_forward.push(f));
        })?;
        for f in to_forward.drain(..) {
            self.forward(now, f, nodes);
        }
        self.to_forward = to_forward;
        if some {
            self.take_events(now, nodes);
        }
        Ok(some)
    }

    fn receive_streams(&mut self, now: Time, nodes: &mut dyn Local) -> io::Result<()> {
        self.streams.handle(now, &mut self.link)?;
        self.take_events(now, nodes);
        Ok(())
    }

    fn send(&mut self, now: Time, nodes: &mut dyn Local) -> io::Result<()> {
        nodes.take_outbound().for_each(|p| self.link.send(now, p, 0));
        self.link.flush(now);
        self.take_events(now, nodes);
        self.renew()?;
        self.transmit(now, nodes)?;
        // Datagrams that were too long have been split again.
        while self.too_long(now) {
            self.transmit(now, nodes)?;
        }
        Ok(())
    }

    fn keys(&self) -> Vec<u8> {
        let keys = self.link.endpoint().keys();
        let mut ids: Vec<u8> = keys.live().map(|id| id.0).collect();
        ids.sort_by_key(|id| keys.sending() != Some(KeyId(*id)));
        ids
    }

    fn set_keys(&mut self, keys: Keys) {
        self.link.set_keys(keys);
    }

    /// One per path, one that listens, and the streams, independent of the number of peers and users of this node.
    fn sockets(&self) -> usize {
        self.udp.sockets() + 1 + self.link.streams().len()
    }
    fn peers(&self) -> Vec<PeerStatus> {
        self.link.endpoint().peers()
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
        let (own, link, captured) = (&self.counters, &self.link, self.capture.iter().flat_map(|c| c.counters.all()));
        let sockets = self.udp.counters.all().chain(link.streams().counters.all());
        let all = own.all().chain(link.counters.all()).chain(captured).chain(sockets);
        let all = all.chain(link.endpoint().counters().all());
        all.filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_string(), n)).collect()
    }
}

/// Records the source node's address, because the port of its path is recorded where it was sent.
fn capture_arrived(capture: &mut Capture, addresses: &[SocketAddr], node: NodeId, d: &[u8], marked: bool) {
    let source = d.get(SOURCE_AT..SOURCE_AT + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    let own = addresses[node.0 as usize];
    let from = source.and_then(|s| addresses.get(s as usize)).copied().unwrap_or(own);
    let ecn = if marked { Ecn::Marked } else { Ecn::Capable };
    let class = d.get(CLASS_AT).map_or(0, |c| dscp(forward::class(*c)));
    capture.datagram(from, own, class << 2 | ecn as u8, d);
}

#[cfg(test)]
#[path = "net_tests.rs"]
mod tests;
