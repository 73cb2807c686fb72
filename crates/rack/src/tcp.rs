//! TCP between simulated nodes, as far as streams use it: connections that deliver bytes in order, or break. A host
//! retransmits what was not acknowledged, refuses segments of connections that it does not know, and forgets all of them
//! when its node ends.
//!
//! Segments cross the same links as datagrams, so they are lost, repeated, reordered and cut off alike. They are never
//! damaged: TCP's checksum is taken as perfect.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use rackweave_core::{NodeId, Rng, Span, Time};
use rackweave_link::Link;
use rackweave_link::streams::{Action, ConnectionId};

/// Bytes that a socket holds until they are acknowledged.
const WINDOW: usize = 256 << 10;
/// Bytes of a segment; hosts send several packets' worth at a time (TSO).
const SEGMENT: usize = 16 << 10;
/// First retransmission timeout, and the longest: Linux's least one, and a bound that lets a rack recover within a run.
const RETRANSMIT_FIRST: Span = Span::from_millis(200);
const RETRANSMIT_MAX: Span = Span::from_secs(2);
/// Retransmissions without an answer after which a connection is broken.
const RETRANSMITS_MAX: u32 = 6;
/// Repeated acknowledgements after which the first missing segment counts as lost (RFC 5681, fast retransmit).
const DUPLICATE_ACKS: u32 = 3;
/// Bytes of a segment's head: what it is, the connection, and an offset.
const HEAD: usize = 17;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// Opens a connection.
    Syn = 1,
    SynAck,
    /// Bytes from an offset on.
    Data,
    /// All bytes below an offset arrived.
    Ack,
    /// Nothing follows the offset.
    Fin,
    /// There is no such connection, or it is closed.
    Reset,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        [Kind::Syn, Kind::SynAck, Kind::Data, Kind::Ack, Kind::Fin, Kind::Reset].into_iter().find(|k| *k as u8 == byte)
    }
}

/// A segment and its receiver. `path`: its addresses and ports, which select a path through the network.
pub(crate) struct Segment {
    pub to: NodeId,
    pub path: u16,
    pub bytes: Bytes,
}

#[derive(Debug)]
struct Connection {
    id: ConnectionId,
    /// This end's SYN was answered, or it answered the other end's.
    open: bool,
    /// Bytes from the first unacknowledged one on, and their offset.
    unacked: BytesMut,
    acked: u64,
    /// Offset of the next byte to send.
    next: u64,
    /// Nothing is written after the bytes so far.
    ends: bool,
    /// Offset of the next byte to receive, and segments after it, by offset, which wait for those before them.
    received: u64,
    early: BTreeMap<u64, Bytes>,
    /// Retransmissions since the last progress, and the time of the next.
    tries: u32,
    /// Acknowledgements without progress since then.
    repeated: u32,
    retransmit_at: Time,
}

impl Connection {
    fn new(id: ConnectionId, open: bool) -> Connection {
        Connection {
            id,
            open,
            unacked: BytesMut::new(),
            acked: 0,
            next: 0,
            ends: false,
            received: 0,
            early: BTreeMap::new(),
            tries: 0,
            repeated: 0,
            retransmit_at: Time::MAX,
        }
    }
    /// Waits for an answer of the other end.
    fn waits(&self) -> bool {
        !self.open || !self.unacked.is_empty() || self.ends
    }
    fn rearm(&mut self, now: Time) {
        let span = Span((RETRANSMIT_FIRST.0 << self.tries.min(8)).min(RETRANSMIT_MAX.0));
        self.retransmit_at = if self.waits() { now + span } else { Time::MAX };
    }
}

/// Names a connection in the network: its other end, and a number drawn by the end that opened it.
type Name = (NodeId, u64);

/// The TCP of one node's host.
#[derive(Debug, Default)]
pub(crate) struct Tcp {
    connections: BTreeMap<Name, Connection>,
    names: BTreeMap<ConnectionId, Name>,
    out: VecDeque<(NodeId, u64, Bytes)>,
}

impl Tcp {
    /// When [`Tcp::retransmit`] has work.
    pub fn deadline(&self) -> Time {
        self.connections.values().map(|c| c.retransmit_at).min().unwrap_or(Time::MAX)
    }

    /// The next segment to send.
    pub fn poll_transmit(&mut self) -> Option<Segment> {
        let (to, number, bytes) = self.out.pop_front()?;
        Some(Segment { to, path: number as u16, bytes })
    }

    /// Carries out the link's actions on its connections.
    pub fn carry_out(&mut self, now: Time, link: &mut Link, rng: &mut Rng) {
        while let Some(action) = link.poll_streams(now) {
            match action {
                Action::Connect(id, peer) => {
                    let name = (peer, rng.next_u64());
                    self.names.insert(id, name);
                    self.connections.insert(name, Connection::new(id, false));
                    self.push(name, Kind::Syn, 0, &[]);
                    self.rearm(now, name);
                    link.streams_mut().connecting(id, true);
                }
                Action::Write(id) => self.write(now, id, link),
                Action::Shutdown(id) => {
                    if let Some(&name) = self.names.get(&id)
                        && let Some(c) = self.connections.get_mut(&name)
                    {
                        c.ends = true;
                        self.send_rest(now, name);
                    }
                }
                Action::Close(id) => {
                    if let Some(name) = self.names.remove(&id) {
                        self.connections.remove(&name);
                        self.push(name, Kind::Reset, 0, &[]);
                    }
                }
            }
        }
    }

    /// Takes the link's output as far as there is room.
    fn write(&mut self, now: Time, id: ConnectionId, link: &mut Link) {
        let Some(&name) = self.names.get(&id) else { return };
        let Some(c) = self.connections.get_mut(&name).filter(|c| c.open && !c.ends) else { return };
        let mut taken = 0;
        for part in link.streams().output(id) {
            let n = part.len().min(WINDOW - c.unacked.len());
            c.unacked.extend_from_slice(&part[..n]);
            taken += n;
        }
        link.streams_mut().wrote(now, id, taken);
        self.send_rest(now, name);
    }

    /// Sends what was not sent yet.
    fn send_rest(&mut self, now: Time, name: Name) {
        let Some(c) = self.connections.get_mut(&name) else { return };
        let from = (c.next - c.acked) as usize;
        let rest = c.unacked[from..].to_vec();
        let (at, ends) = (c.next, c.ends);
        c.next += rest.len() as u64;
        let end = c.next;
        for (i, piece) in rest.chunks(SEGMENT).enumerate() {
            self.push(name, Kind::Data, at + (i * SEGMENT) as u64, piece);
        }
        if ends {
            self.push(name, Kind::Fin, end, &[]);
        }
        self.rearm_if_idle(now, name);
    }

    /// Sends again what was not acknowledged in time; connections that get no answer break.
    pub fn retransmit(&mut self, now: Time, link: &mut Link) {
        let due: Vec<Name> = self.connections.iter().filter(|(_, c)| c.retransmit_at <= now).map(|(n, _)| *n).collect();
        for name in due {
            let Some(c) = self.connections.get_mut(&name) else { continue };
            c.tries += 1;
            if c.tries > RETRANSMITS_MAX {
                self.broken(name, link);
                continue;
            }
            c.next = c.acked;
            if c.open {
                self.send_rest(now, name);
            } else {
                self.push(name, Kind::Syn, 0, &[]);
            }
            self.rearm(now, name);
        }
    }

    pub fn receive(&mut self, now: Time, from: NodeId, mut segment: Bytes, link: &mut Link) {
        if segment.len() < HEAD {
            return;
        }
        let Some(kind) = Kind::of(segment.get_u8()) else { return };
        let (name, offset) = ((from, segment.get_u64()), segment.get_u64());
        let known = self.connections.contains_key(&name);
        match kind {
            Kind::Syn if !known => match link.streams_mut().accepted(now) {
                Some(id) => {
                    self.names.insert(id, name);
                    self.connections.insert(name, Connection::new(id, true));
                    self.push(name, Kind::SynAck, 0, &[]);
                }
                None => self.push(name, Kind::Reset, 0, &[]),
            },
            Kind::Syn => self.push(name, Kind::SynAck, 0, &[]),
            Kind::Reset if known => self.broken(name, link),
            Kind::Reset => {}
            _ if !known => self.push(name, Kind::Reset, 0, &[]),
            Kind::SynAck => self.connected(now, name, link),
            Kind::Data => self.data(now, name, offset, segment, link),
            Kind::Ack => self.acked(now, name, offset, link),
            Kind::Fin => {
                if self.connections.get(&name).is_some_and(|c| c.received == offset) {
                    self.broken(name, link);
                }
            }
        }
    }

    fn connected(&mut self, now: Time, name: Name, link: &mut Link) {
        let Some(c) = self.connections.get_mut(&name).filter(|c| !c.open) else { return };
        (c.open, c.tries) = (true, 0);
        let id = c.id;
        link.streams_mut().connected(now, id);
        self.rearm(now, name);
    }

    fn data(&mut self, now: Time, name: Name, offset: u64, bytes: Bytes, link: &mut Link) {
        let Some(c) = self.connections.get_mut(&name) else { return };
        let (id, end) = (c.id, offset + bytes.len() as u64);
        if end > c.received && end <= c.received + WINDOW as u64 {
            let kept = c.early.entry(offset).or_default();
            if kept.len() < bytes.len() {
                *kept = bytes;
            }
        }
        while let Some(first) = c.early.first_entry().filter(|e| *e.key() <= c.received) {
            let (at, bytes) = first.remove_entry();
            let known = (c.received - at) as usize;
            if known < bytes.len() {
                c.received = at + bytes.len() as u64;
                link.receive_by_stream(now, id, &bytes[known..]);
            }
        }
        let received = c.received;
        self.push(name, Kind::Ack, received, &[]);
    }

    fn acked(&mut self, now: Time, name: Name, offset: u64, link: &mut Link) {
        let Some(c) = self.connections.get_mut(&name) else { return };
        let sent = c.acked + c.unacked.len() as u64;
        if offset == c.acked && !c.unacked.is_empty() {
            c.repeated += 1;
            if c.repeated == DUPLICATE_ACKS {
                c.next = c.acked;
                self.send_rest(now, name);
            }
            return;
        }
        if offset <= c.acked || offset > sent {
            return;
        }
        c.unacked.advance((offset - c.acked) as usize);
        (c.acked, c.next, c.tries, c.repeated) = (offset, c.next.max(offset), 0, 0);
        let id = c.id;
        self.rearm(now, name);
        self.write(now, id, link);
    }

    /// The other end closed the connection, or does not answer.
    fn broken(&mut self, name: Name, link: &mut Link) {
        let Some(c) = self.connections.remove(&name) else { return };
        self.names.remove(&c.id);
        link.streams_mut().closed(c.id);
    }

    fn rearm(&mut self, now: Time, name: Name) {
        self.connections.get_mut(&name).into_iter().for_each(|c| c.rearm(now));
    }
    fn rearm_if_idle(&mut self, now: Time, name: Name) {
        let idle = self.connections.get_mut(&name).filter(|c| c.retransmit_at == Time::MAX);
        idle.into_iter().for_each(|c| c.rearm(now));
    }

    fn push(&mut self, (to, number): Name, kind: Kind, offset: u64, bytes: &[u8]) {
        let mut segment = BytesMut::with_capacity(HEAD + bytes.len());
        segment.put_u8(kind as u8);
        segment.put_u64(number);
        segment.put_u64(offset);
        segment.extend_from_slice(bytes);
        self.out.push_back((to, number, segment.freeze()));
    }
}
