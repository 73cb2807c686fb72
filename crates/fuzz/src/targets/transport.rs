//! Datagrams: their headers, an endpoint that receives them, and the frames of a stream.

use std::collections::BTreeMap;

use arbitrary::{Result, Unstructured};
use bytes::{Bytes, BytesMut};
use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Span, Time};
use rackweave_transport::header::{
    ACK_WORDS_MAX, AckEntry, AckHead, Chunk, HEAD_BYTES, Kind, LONG, OLDEST_VERSION, Parsed, SHORT, Sender, ShortOp,
    Space, TransferId, acks, parse, put_acks, put_brief, put_chunk, put_long, put_short, restore, rewritten,
};
use rackweave_transport::stream::{Deframer, frame_head};
use rackweave_transport::{Config, Endpoint, Event, KeyId, Keys, Message, Received, SendOptions, VERSION};

use crate::corrupt::{corrupt, pieces, rest};
use crate::cost::within;

pub(super) fn header(input: &[u8]) {
    let mut u = Unstructured::new(input);
    _ = choose_header(&mut u);
}

fn choose_header(u: &mut Unstructured<'_>) -> Result<()> {
    let mut bytes = match u.int_in_range(0..=3u8)? {
        0 => rest(u),
        1 => chunk(u)?,
        _ => brief(u)?,
    };
    if u.arbitrary()? {
        corrupt(u, &mut bytes)?;
    }
    any_header(&bytes);
    Ok(())
}

fn sender(u: &mut Unstructured<'_>) -> Result<Sender> {
    let version = u.int_in_range(OLDEST_VERSION..=VERSION)?;
    Ok(Sender {
        node: NodeId(u.arbitrary()?),
        incarnation: u.arbitrary()?,
        version,
        newest: u.arbitrary()?,
        encrypt: u.arbitrary()?,
    })
}

fn transfer(u: &mut Unstructured<'_>) -> Result<TransferId> {
    let space = *u.choose(&[Space::Direct, Space::Routed, Space::Group])?;
    Ok(TransferId { space, number: u.arbitrary()? })
}

fn class(u: &mut Unstructured<'_>) -> Result<Class> {
    u.choose(&[Class::Gold, Class::Silver, Class::Copper]).copied()
}

/// A sound set of acknowledgements.
fn some_acks(u: &mut Unstructured<'_>) -> Result<(AckHead, Vec<AckEntry>)> {
    let head = AckHead {
        whose: u.arbitrary()?,
        echo: u.arbitrary()?,
        hold_ns: u.arbitrary()?,
        received: u.arbitrary()?,
        marked: u.arbitrary()?,
    };
    let mut entries = Vec::new();
    for _ in 0..u.int_in_range(0..=6u8)? {
        let mut bitmap = [0; ACK_WORDS_MAX];
        for w in &mut bitmap[..u.int_in_range(0..=ACK_WORDS_MAX)?] {
            *w = u.arbitrary()?;
        }
        let id = transfer(u)?;
        entries.push(AckEntry { id, done: u.arbitrary()?, attempt: u.arbitrary()?, base: u.arbitrary()?, bitmap });
    }
    Ok((head, entries))
}

/// A datagram with a chunk, in either form, which must be read as it was written.
fn chunk(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let (from, class, destination, counter) = (sender(u)?, class(u)?, NodeId(u.arbitrary()?), u.arbitrary()?);
    let chunk_bytes = u.int_in_range(1..=1400u16)?;
    let count = u.int_in_range(1..=40u16)?;
    let last = u.int_in_range(1..=chunk_bytes)?;
    let body_bytes = u32::from(count - 1) * u32::from(chunk_bytes) + u32::from(last);
    let number = u.int_in_range(0..=count - 1)?;
    let prefix_bytes = u.int_in_range(0..=body_bytes.min(900) as u16)?;
    let (id, attempt) = (transfer(u)?, u.arbitrary()?);
    let (ack_now, unheard) = (u.arbitrary()?, u.arbitrary()?);
    let c = Chunk { id, attempt, ack_now, unheard, body_bytes, number, chunk_bytes, prefix_bytes };
    let riding = if u.arbitrary()? { Some(some_acks(u)?) } else { None };
    let long = number == 0 || u.arbitrary()?;
    let mut b = Vec::new();
    if long {
        let mut head = [0; HEAD_BYTES];
        head[0] = Op::Write as u8;
        head[9] = 1;
        head[10] = class as u8;
        head[12..16].copy_from_slice(&from.node.0.to_be_bytes());
        head[56..60].copy_from_slice(&body_bytes.to_be_bytes());
        put_long(&mut b, &head, destination, counter);
        let mut again = b.clone();
        restore(&mut again);
        head[16..20].copy_from_slice(&destination.0.to_be_bytes());
        assert_eq!(again, head, "put_long and restore");
    } else {
        put_short(&mut b, ShortOp::Chunk, class, &from, destination, counter);
    }
    put_chunk(&mut b, &from, &c, riding.is_some());
    if let Some((head, entries)) = &riding {
        put_acks(&mut b, head, entries);
    }
    let payload = b.len();
    b.resize(payload + c.range().len(), 0x5a);
    let p = parse(&b).expect("what was written is read");
    assert_eq!((p.kind, p.form), (Kind::Chunk(c), if long { LONG } else { SHORT }));
    assert_eq!((p.class, p.source, p.destination, p.counter), (class, from.node, destination, counter));
    assert_eq!((p.incarnation, p.version, p.newest), (from.incarnation, from.version, from.newest));
    assert_eq!((p.encrypted, p.payload.clone()), (from.encrypt, payload..b.len()));
    assert_eq!(p.acks.is_empty(), riding.is_none());
    if let Some((head, entries)) = riding {
        let (h, e) = acks(&b[p.acks]);
        assert_eq!((h, e.collect::<Vec<_>>()), (head, entries));
    }
    Ok(b)
}

/// A datagram without a chunk.
fn brief(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let (from, class, destination, counter) = (sender(u)?, class(u)?, NodeId(u.arbitrary()?), u.arbitrary()?);
    let all = [ShortOp::Ack, ShortOp::Ping, ShortOp::Pong, ShortOp::Challenge, ShortOp::Proof];
    let op = *u.choose(&all)?;
    let mut b = Vec::new();
    put_short(&mut b, op, class, &from, destination, counter);
    put_brief(&mut b, &from, op == ShortOp::Ack);
    let (answer, token): (u64, u64) = (u.arbitrary()?, u.arbitrary()?);
    let kind = match op {
        ShortOp::Ack => {
            let (head, entries) = some_acks(u)?;
            put_acks(&mut b, &head, &entries);
            Kind::Ack
        }
        ShortOp::Proof => {
            b.extend_from_slice(&answer.to_be_bytes());
            Kind::Proof { answer, token }
        }
        ShortOp::Ping => Kind::Ping { token },
        ShortOp::Pong => Kind::Pong { token },
        _ => Kind::Challenge { token },
    };
    if op != ShortOp::Ack {
        b.extend_from_slice(&token.to_be_bytes());
    }
    let p = parse(&b).expect("what was written is read");
    assert_eq!((p.kind, p.class, p.source, p.destination, p.counter), (kind, class, from.node, destination, counter));
    Ok(b)
}

/// Any bytes: an error, or ranges within them; what is read of a chunk is written again as it was.
fn any_header(b: &[u8]) {
    let Ok(p) = within(0, || parse(b)) else { return };
    assert!(p.acks.end <= b.len() && p.payload.end <= b.len());
    if !p.acks.is_empty() {
        let (_, entries) = acks(&b[p.acks.clone()]);
        for e in entries {
            _ = e.has(u32::from(e.base));
            assert!(e.words() <= ACK_WORDS_MAX);
        }
    }
    if let Kind::Chunk(c) = p.kind {
        chunk_again(b, &p, &c);
    }
}

fn chunk_again(b: &[u8], p: &Parsed, c: &Chunk) {
    let (cut, at) = c.data_at();
    assert!(cut <= p.payload.len() && at <= c.body_bytes as usize);
    let from = Sender {
        node: p.source,
        incarnation: p.incarnation,
        version: p.version,
        newest: p.newest,
        encrypt: p.encrypted,
    };
    let mut again = b[..p.form.extension_at].to_vec();
    put_chunk(&mut again, &from, c, !p.acks.is_empty());
    assert_eq!(again, b[..again.len()], "a chunk has one encoding");
}

const NOW: Time = Time(5_000_000);
/// Most messages of a script.
const MESSAGES_MAX: u64 = 12;

/// Two endpoints. Their datagrams are lost, delayed, repeated and corrupted.
pub(super) fn endpoint(input: &[u8]) {
    _ = converse(&mut Unstructured::new(input));
}

fn converse(u: &mut Unstructured<'_>) -> Result<()> {
    let keyed: bool = u.arbitrary()?;
    let keys = if keyed { Keys::one(KeyId(7), [7; 32]).expect("a key") } else { Keys::none() };
    let end = |node: u32| Endpoint::new(Config::default(), NodeId(node), 1, keys.clone(), 1).expect("configuration");
    let mut t = Two { a: end(2), b: end(3), now: NOW, sent: BTreeMap::new(), network: Vec::new(), keyed };
    let mut number = 0;
    for _ in 0..u.int_in_range(1..=48u8)? {
        match u.int_in_range(0..=7u8)? {
            0 | 1 if number < MESSAGES_MAX => {
                number += 1;
                t.send(u, number)?;
            }
            2 | 3 => t.deliver(u)?,
            4 => t.deliver_bent(u)?,
            5 => {
                t.now += Span(u.int_in_range(0..=200_000_000u64)?);
                t.a.handle_timeout(t.now);
                t.b.handle_timeout(t.now);
            }
            6 => t.deliver_all(),
            _ => {
                let n = u.int_in_range(0..=300usize)?;
                let any = u.bytes(n.min(u.len()))?.to_vec();
                t.give(false, &any);
            }
        }
        t.take();
    }
    Ok(())
}

struct Two {
    a: Endpoint,
    b: Endpoint,
    now: Time,
    /// By number, and whether they have arrived.
    sent: BTreeMap<u64, (Message, bool)>,
    /// To the first of the two, and the bytes.
    network: Vec<(bool, Vec<u8>)>,
    keyed: bool,
}

impl Two {
    fn send(&mut self, u: &mut Unstructured<'_>, number: u64) -> Result<()> {
        let (prefix, data) = (u.int_in_range(0..=200usize)?, u.int_in_range(0..=6000usize)?);
        let class = class(u)?;
        let mut head = vec![number as u8; HEAD_BYTES + prefix];
        head[..HEAD_BYTES].fill(0);
        (head[0], head[9], head[10]) = (Op::Peer as u8, 1, class as u8);
        head[12..16].copy_from_slice(&2u32.to_be_bytes());
        head[40..48].copy_from_slice(&number.to_be_bytes());
        head[56..60].copy_from_slice(&((prefix + data) as u32).to_be_bytes());
        let m = Message { head: head.into(), data: Bytes::from(vec![!number as u8; data]) };
        let how = SendOptions { deadline: Time::MAX, token: number };
        if self.a.send(self.now, NodeId(3), m.clone(), how).is_ok() {
            self.sent.insert(number, (m, false));
        }
        Ok(())
    }
    fn give(&mut self, to_a: bool, d: &[u8]) {
        let to = if to_a { &mut self.a } else { &mut self.b };
        to.receive(self.now, Received { datagram: BytesMut::from(d), at: self.now, marked: false });
    }
    fn deliver(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        if self.network.is_empty() {
            return Ok(());
        }
        let i = u.choose_index(self.network.len())?;
        let (to_a, d) = self.network[i].clone();
        // It may be delivered again later.
        if u.ratio(3u8, 4u8)? {
            self.network.remove(i);
        }
        self.give(to_a, &d);
        Ok(())
    }
    fn deliver_all(&mut self) {
        for (to_a, d) in std::mem::take(&mut self.network) {
            self.give(to_a, &d);
        }
    }
    fn deliver_bent(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let Some((to_a, d)) = self.network.get(u.choose_index(self.network.len().max(1))?) else { return Ok(()) };
        let (to_a, mut d) = (*to_a, d.clone());
        corrupt(u, &mut d)?;
        if !self.keyed && u.ratio(3u8, 4u8)? {
            // Without keys anyone can make the checksum right; what comes of it was not sent.
            seal(&mut d);
            self.sent.clear();
        }
        self.give(to_a, &d);
        Ok(())
    }
    /// Checks what arrives: with keys each sent message at most once, unchanged.
    fn take(&mut self) {
        for to_a in [false, true] {
            let from = if to_a { &mut self.b } else { &mut self.a };
            while let Some(t) = from.poll_transmit(self.now) {
                for d in t.bytes.chunks(t.segment.unwrap_or(t.bytes.len()).max(1)) {
                    self.network.push((to_a, d.to_vec()));
                }
            }
        }
        self.network.truncate(256);
        while let Some(e) = self.b.poll_event() {
            let Event::Delivered(d) = e else { continue };
            if !self.keyed {
                continue;
            }
            let number = u64::from_be_bytes(d.message.head[40..48].try_into().expect("8 bytes"));
            let (m, arrived) = self.sent.get_mut(&number).expect("it was sent");
            assert!(!std::mem::replace(arrived, true), "message {number} arrives twice");
            let (got, was) = (&d.message.head, &m.head);
            assert_eq!((&got[..1], &got[9..16], &got[20..]), (&was[..1], &was[9..16], &was[20..]));
            assert_eq!(d.message.data, m.data);
        }
        while self.a.poll_event().is_some() {}
        for e in [&self.a, &self.b] {
            let c = e.counters();
            assert_eq!(c.received, c.accepted + c.dropped());
            assert!(e.held_bytes() < 64 << 20, "{} bytes held", e.held_bytes());
        }
    }
}

fn seal(d: &mut [u8]) {
    let form = if d.first().is_some_and(|op| *op < 16) { LONG } else { SHORT };
    let tag = form.tag_at;
    if d.len() < form.extension_at + 2 {
        return;
    }
    let mut zeroed = d.to_vec();
    rewritten(d, form).chain(std::iter::once(tag..tag + 16)).for_each(|r| zeroed[r].fill(0));
    d[tag..tag + 16].fill(0);
    d[tag..tag + 4].copy_from_slice(&crc32c::crc32c(&zeroed).to_be_bytes());
}

/// Frames. The datagrams do not depend on how the stream is cut.
pub(super) fn stream(input: &[u8]) {
    let mut u = Unstructured::new(input);
    let mut bytes = Vec::new();
    let mut framed = Vec::new();
    for _ in 0..u.int_in_range(0..=6u8).unwrap_or(0) {
        let n = u.int_in_range(0..=400usize).unwrap_or(0);
        framed.push(vec![n as u8; n]);
        bytes.extend_from_slice(&frame_head(n));
        bytes.resize(bytes.len() + n, n as u8);
    }
    assert_eq!(deframed(&[&bytes]), (framed, true));
    _ = corrupt(&mut u, &mut bytes);
    let whole = deframed(&[&bytes]);
    assert_eq!(whole, deframed(&pieces(&mut u, &bytes)));
    assert!(whole.0.iter().map(Vec::len).sum::<usize>() <= bytes.len());
}

fn deframed(parts: &[&[u8]]) -> (Vec<Vec<u8>>, bool) {
    let mut d = Deframer::new();
    let mut all = Vec::new();
    for part in parts {
        d.buffer().extend_from_slice(part);
        loop {
            match d.next_datagram() {
                Ok(Some(datagram)) => all.push(datagram.to_vec()),
                Ok(None) => break,
                Err(_) => return (all, false),
            }
        }
    }
    (all, true)
}
