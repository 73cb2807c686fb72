//! The bytes of a datagram; `docs/transport.md` has the layout.
//!
//! Both forms begin with RackBlox's nine bytes (RB2). The *long* form is the whole header of the packet (`wire`'s 80
//! bytes) followed by our extension: the switch understands it. The *short* form has an operation of 16 or more and
//! only the fields for routing and authentication; it carries further chunks and control messages of endpoints.

use std::ops::Range;

use rackweave_core::NodeId;
use rackweave_core::msg::{Class, Op};

/// Newest version of the datagram format. Peers that do not know it get the previous one.
pub const VERSION: u8 = 4;
/// Oldest version that is read: a program of the version before begins with it, until it knows its peer.
pub const OLDEST_VERSION: u8 = VERSION - 2;

/// Bytes of the packet's own header (`wire`).
pub const HEAD_BYTES: usize = rackweave_wire::HEADER_BYTES;
/// Bytes of the short form's header.
pub const SHORT_HEAD_BYTES: usize = 44;
/// Longest part of a body before the data that a chunk can tell.
pub const PREFIX_MAX: u16 = u16::MAX;
/// Bytes of a chunk's extension.
pub const EXTENSION_BYTES: usize = 32;
/// Bytes of the extension of a datagram without a chunk.
pub const BRIEF_BYTES: usize = 12;
/// Bytes before acknowledgements and payload, long form.
pub const LONG_BYTES: usize = HEAD_BYTES + EXTENSION_BYTES;
/// Bytes before acknowledgements and payload, short form.
pub const SHORT_BYTES: usize = SHORT_HEAD_BYTES + EXTENSION_BYTES;
/// Bytes for acknowledgements that ride in a datagram with a chunk.
pub const ACK_RESERVE: usize = ACK_HEAD_BYTES + ACKS_RIDING * ACK_ENTRY_BYTES;
/// Acknowledged transfers beside a chunk, without bitmaps.
pub const ACKS_RIDING: usize = 3;
/// Bytes of a set of acknowledgements before its entries.
pub const ACK_HEAD_BYTES: usize = 25;
/// Bytes of an entry without bitmap.
pub const ACK_ENTRY_BYTES: usize = 12;
/// Most 64-chunk words of an entry's bitmap.
pub const ACK_WORDS_MAX: usize = 4;
/// Chunks after the first missing one that an acknowledgement can cover.
pub const ACK_SPAN: u32 = 64 * ACK_WORDS_MAX as u32;

/// In the packet's flags: our extension follows the header.
pub const FLAG_EXTENDED: u8 = 0x80;
const VSSD_AT: usize = 1;
const ORIGINAL_VSSD_AT: usize = 20;
const FLAGS_AT: usize = 11;
const SOURCE_AT: usize = 12;
const DESTINATION_AT: usize = 16;
const VSSD_LAT: Range<usize> = 1..9;
const WIRE_LENGTH_AT: usize = 56;
/// Offset of the chunk's number in its extension.
const NUMBER_AT: usize = 24;

/// The transfer goes through the switch: the vSSD's server answers.
const ROUTED: u8 = 1;
/// The sender cannot send more until this is acknowledged.
const ACK_NOW: u8 = 2;
/// Acknowledgements follow the extension.
const ACKS: u8 = 4;
/// The payload is encrypted.
const ENCRYPTED: u8 = 8;
/// The sender lacks acknowledgements. If the receiver already has this chunk, the path back is broken.
const UNHEARD: u8 = 16;
/// The transfer goes to all members of a group.
const GROUP: u8 = 32;

/// In an acknowledgement's entry: the number space, and whether the message is whole. The high four bits count the
/// bitmap's words.
const ENTRY_ROUTED: u8 = 1;
const ENTRY_DONE: u8 = 2;
const ENTRY_GROUP: u8 = 4;

/// First byte of the short form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ShortOp {
    Chunk = 16,
    Ack = 17,
    /// Requests a Pong on this path; carries a token.
    Ping = 18,
    Pong = 19,
    /// The receiver does not know this incarnation of the sender: requests a proof of liveness (no replay).
    Challenge = 20,
    Proof = 21,
    /// The receiver knows a newer incarnation of the sender: carries the refused one and the newest.
    Outdated = 22,
}

/// Why bytes are not a valid datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("{len} bytes, {need} needed")]
    Truncated { len: usize, need: usize },
    #[error("operation {op} is unknown")]
    Op { op: u8 },
    #[error("version {version} is unknown")]
    Version { version: u8 },
    #[error("traffic class {class} is unknown")]
    Class { class: u8 },
    #[error("flags {flags:#04x} are unknown here")]
    Flags { flags: u8 },
    #[error("chunk {chunk} of {chunk_bytes} bytes in a body of {body}, {payload} bytes here")]
    Chunk { chunk: u16, chunk_bytes: u16, body: u32, payload: usize },
    #[error("a set of acknowledgements that does not fit its length")]
    Acks,
    #[error("vssd_id {vssd:#x} in place of {original:#x}, which no switch rewrites in operation {op}")]
    Vssd { op: u8, vssd: u32, original: u32 },
}

/// Offsets of the parts that differ between the forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    pub counter_at: usize,
    pub tag_at: usize,
    pub extension_at: usize,
}

pub const LONG: Form = Form { counter_at: 48, tag_at: 64, extension_at: HEAD_BYTES };
pub const SHORT: Form = Form { counter_at: 20, tag_at: 28, extension_at: SHORT_HEAD_BYTES };
/// Bytes of the tag.
pub const TAG_BYTES: usize = 16;
/// First version whose tag covers the destination of a datagram that no switch routes.
pub const BOUND_VERSION: u8 = 4;

/// Fields that a switch may rewrite (protocol rule 18): vssd_id and lat, and the destination of what it routes. The tag does not
/// cover them. To be called once the datagram has version and flags.
pub fn rewritten(d: &[u8], form: Form) -> impl Iterator<Item = Range<usize>> + use<> {
    let (version, flags) = (d[form.extension_at], d[form.extension_at + 1]);
    let bound =
        version >= BOUND_VERSION && flags & (ROUTED | GROUP) == 0 && !mutant!("transport.destination.uncovered");
    std::iter::once(VSSD_LAT).chain((!bound).then_some(DESTINATION_AT..DESTINATION_AT + 4))
}

/// Number space of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// Transfers to one peer.
    #[default]
    Direct,
    /// Transfers through the switch, to the vSSD's server.
    Routed,
    /// Transfers to groups: the same one for every member (NI3).
    Group,
}

/// Number of a transfer, unique in its space, class, sender and incarnation of the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId {
    pub space: Space,
    pub number: u64,
}

/// The extension of a datagram with a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub id: TransferId,
    /// Number of times that the sender split the message again.
    pub attempt: u8,
    pub ack_now: bool,
    /// The sender has received no acknowledgement for several timeouts.
    pub unheard: bool,
    /// Bytes of the packet's body, all chunks together.
    pub body_bytes: u32,
    pub number: u16,
    /// Bytes per chunk, except the last.
    pub chunk_bytes: u16,
    /// Bytes of the body before the data. [`PREFIX_MAX`]: these or more, and the receiver does not divide the body.
    pub prefix_bytes: u16,
}

impl Chunk {
    pub fn count(&self) -> u32 {
        self.body_bytes.div_ceil(u32::from(self.chunk_bytes)).max(1)
    }
    pub fn range(&self) -> Range<usize> {
        let start = usize::from(self.number) * usize::from(self.chunk_bytes);
        start..(start + usize::from(self.chunk_bytes)).min(self.body_bytes as usize)
    }
    /// Bytes of the payload before the data, and the position of the rest in the data.
    pub fn data_at(&self) -> (usize, usize) {
        let (range, prefix) = (self.range(), usize::from(self.prefix_bytes));
        let cut = prefix.clamp(range.start, range.end) - range.start;
        (cut, (range.start + cut).saturating_sub(prefix))
    }
}

/// Purpose of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A packet without extension, for a switch's tables: [`is_bare`].
    Bare,
    Chunk(Chunk),
    Ack,
    Ping {
        token: u64,
    },
    Pong {
        token: u64,
    },
    Challenge {
        token: u64,
    },
    Proof {
        answer: u64,
        token: u64,
    },
    Outdated {
        refused: u64,
        newest: u64,
    },
}

/// A datagram with consistent lengths and fields, not yet authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    pub kind: Kind,
    pub form: Form,
    pub class: Class,
    pub source: NodeId,
    pub destination: NodeId,
    /// Incarnation of the sender's transport; of the packet's sender if bare.
    pub incarnation: u64,
    /// The highest byte is the key id.
    pub counter: u64,
    pub version: u8,
    /// Newest version that the sender speaks.
    pub newest: u8,
    pub encrypted: bool,
    /// Range of the acknowledgements.
    pub acks: Range<usize>,
    pub payload: Range<usize>,
}

#[inline]
fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}
#[inline]
fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
#[inline]
pub(crate) fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) << 32 | u64::from(u32_at(b, at + 4))
}

/// The chunk number in `b`, if it differs from the parsed `first` only in counter, tag, number, vSSD and latency, and
/// has the same length.
#[inline]
pub(crate) fn continued(first: &[u8], form: Form, b: &[u8]) -> Option<u16> {
    let same = b.len() == first.len()
        && if form == LONG { same::<48, 64, HEAD_BYTES>(first, b) } else { same::<20, 28, SHORT_HEAD_BYTES>(first, b) };
    same.then(|| u16_at(b, form.extension_at + NUMBER_AT))
}

/// With constant offsets, these are comparisons of words.
#[inline]
fn same<const COUNTER_AT: usize, const TAG_AT: usize, const EXTENSION_AT: usize>(a: &[u8], b: &[u8]) -> bool {
    let number = EXTENSION_AT + NUMBER_AT;
    a[0] == b[0]
        && a[VSSD_LAT.end..COUNTER_AT] == b[VSSD_LAT.end..COUNTER_AT]
        && a[COUNTER_AT + 8..TAG_AT] == b[COUNTER_AT + 8..TAG_AT]
        && a[TAG_AT + TAG_BYTES..number] == b[TAG_AT + TAG_BYTES..number]
        && a[number + 2..EXTENSION_AT + EXTENSION_BYTES] == b[number + 2..EXTENSION_AT + EXTENSION_BYTES]
}

const _: () = assert!(LONG.counter_at == 48 && LONG.tag_at == 64 && SHORT.counter_at == 20 && SHORT.tag_at == 28);

fn need(b: &[u8], need: usize) -> Result<(), Malformed> {
    if b.len() < need { Err(Malformed::Truncated { len: b.len(), need }) } else { Ok(()) }
}

/// Parses a datagram. Any bytes give a value or an error.
pub fn parse(b: &[u8]) -> Result<Parsed, Malformed> {
    need(b, SHORT_HEAD_BYTES + BRIEF_BYTES)?;
    let class = match b[10] {
        0 => Class::Gold,
        1 => Class::Silver,
        2 => Class::Copper,
        class => return Err(Malformed::Class { class }),
    };
    let long = (Op::CreateVssd as u8..=Op::Load as u8).contains(&b[0]);
    let form = if long { LONG } else { SHORT };
    let mut parsed = Parsed {
        kind: Kind::Bare,
        form,
        class,
        source: NodeId(u32_at(b, SOURCE_AT)),
        destination: NodeId(u32_at(b, DESTINATION_AT)),
        incarnation: 0,
        counter: 0,
        version: 0,
        newest: 0,
        encrypted: false,
        acks: 0..0,
        payload: 0..0,
    };
    if long {
        need(b, HEAD_BYTES)?;
        unchanged(b)?;
        parsed.counter = u64_at(b, form.counter_at);
        if b[FLAGS_AT] & FLAG_EXTENDED == 0 {
            return bare(b, parsed);
        }
        need(b, LONG_BYTES)?;
        return chunk(b, parsed);
    }
    parsed.counter = u64_at(b, form.counter_at);
    if b[FLAGS_AT] != 0 {
        return Err(Malformed::Flags { flags: b[FLAGS_AT] });
    }
    match b[0] {
        16 => {
            need(b, SHORT_BYTES)?;
            chunk(b, parsed)
        }
        op @ 17..=22 => brief(b, op, parsed),
        op => Err(Malformed::Op { op }),
    }
}

/// No switch rewrites the vssd_id of packets for its tables. The tag does not cover it, so it must equal the original
/// one, which the tag covers.
fn unchanged(b: &[u8]) -> Result<(), Malformed> {
    let (op, vssd, original) = (b[0], u32_at(b, VSSD_AT), u32_at(b, ORIGINAL_VSSD_AT));
    let of_tables = is_bare(op) || op == Op::CreateVssd as u8 || op == Op::DelVssd as u8;
    if of_tables && vssd != original && !mutant!("transport.vssd.unchecked") {
        Err(Malformed::Vssd { op, vssd, original })
    } else {
        Ok(())
    }
}

/// Operations that a switch handles in the kernel: one datagram without extension, with a tag of its own.
pub fn is_bare(op: u8) -> bool {
    op == Op::GcOp as u8 || op == Op::Load as u8
}

fn bare(b: &[u8], mut p: Parsed) -> Result<Parsed, Malformed> {
    if !is_bare(b[0]) {
        return Err(Malformed::Flags { flags: b[FLAGS_AT] });
    }
    let body = u32_at(b, WIRE_LENGTH_AT) as usize;
    if b.len() - HEAD_BYTES != body {
        return Err(Malformed::Truncated { len: b.len(), need: HEAD_BYTES.saturating_add(body) });
    }
    p.incarnation = u64_at(b, 32);
    p.payload = HEAD_BYTES..b.len();
    Ok(p)
}

/// Version, flags and incarnation, which begin every extension.
fn common(b: &[u8], p: &mut Parsed, allowed: u8) -> Result<u8, Malformed> {
    let at = p.form.extension_at;
    p.version = b[at];
    if !(OLDEST_VERSION..=VERSION).contains(&p.version) {
        return Err(Malformed::Version { version: p.version });
    }
    let flags = b[at + 1];
    if flags & !allowed != 0 {
        return Err(Malformed::Flags { flags });
    }
    p.newest = b[at + 3];
    p.encrypted = flags & ENCRYPTED != 0;
    p.incarnation = u64_at(b, at + 4);
    Ok(flags)
}

fn chunk(b: &[u8], mut p: Parsed) -> Result<Parsed, Malformed> {
    let at = p.form.extension_at;
    let flags = common(b, &mut p, ROUTED | ACK_NOW | ACKS | ENCRYPTED | UNHEARD | GROUP)?;
    let space = match flags & (ROUTED | GROUP) {
        0 => Space::Direct,
        ROUTED => Space::Routed,
        GROUP => Space::Group,
        _ => return Err(Malformed::Flags { flags }),
    };
    let c = Chunk {
        id: TransferId { space, number: u64_at(b, at + 12) },
        attempt: b[at + 2],
        ack_now: flags & ACK_NOW != 0,
        unheard: flags & UNHEARD != 0,
        body_bytes: u32_at(b, at + 20),
        number: u16_at(b, at + NUMBER_AT),
        chunk_bytes: u16_at(b, at + 26),
        prefix_bytes: u16_at(b, at + 28),
    };
    let mut from = at + EXTENSION_BYTES;
    if flags & ACKS != 0 {
        let len = acks_len(&b[from..])?;
        p.acks = from..from + len;
        from += len;
    }
    p.payload = from..b.len();
    let wrong =
        Malformed::Chunk { chunk: c.number, chunk_bytes: c.chunk_bytes, body: c.body_bytes, payload: p.payload.len() };
    let fits = c.chunk_bytes > 0
        && c.body_bytes <= rackweave_wire::limits::BODY_MAX
        && u32::from(c.prefix_bytes) <= c.body_bytes
        && u32::from(c.number) < c.count()
        && c.count() <= u32::from(u16::MAX)
        && c.range().len() == p.payload.len()
        && usize::from(u16_at(b, at + 30)) == p.payload.len();
    // The first chunk carries the packet's header, which only the long form has.
    if !fits || (c.number == 0 && p.form == SHORT) || (p.form == LONG && u32_at(b, WIRE_LENGTH_AT) != c.body_bytes) {
        return Err(wrong);
    }
    p.kind = Kind::Chunk(c);
    Ok(p)
}

fn brief(b: &[u8], op: u8, mut p: Parsed) -> Result<Parsed, Malformed> {
    let acks = op == ShortOp::Ack as u8;
    let flags = common(b, &mut p, if acks { ACKS } else { 0 })?;
    let from = p.form.extension_at + BRIEF_BYTES;
    let rest = match op {
        17 => {
            if flags & ACKS == 0 {
                return Err(Malformed::Acks);
            }
            let len = acks_len(&b[from..])?;
            p.acks = from..from + len;
            p.kind = Kind::Ack;
            len
        }
        21 => {
            need(b, from + 16)?;
            p.kind = Kind::Proof { answer: u64_at(b, from), token: u64_at(b, from + 8) };
            16
        }
        22 => {
            need(b, from + 16)?;
            p.kind = Kind::Outdated { refused: u64_at(b, from), newest: u64_at(b, from + 8) };
            16
        }
        op => {
            need(b, from + 8)?;
            let token = u64_at(b, from);
            p.kind = match op {
                18 => Kind::Ping { token },
                19 => Kind::Pong { token },
                _ => Kind::Challenge { token },
            };
            8
        }
    };
    if b.len() != from + rest {
        return Err(Malformed::Truncated { len: b.len(), need: from + rest });
    }
    Ok(p)
}

/// Identifies an incarnation of a node in a set of acknowledgements.
pub fn whose(node: NodeId, incarnation: u64) -> u32 {
    let mut both = [0; 12];
    both[..4].copy_from_slice(&node.0.to_be_bytes());
    both[4..].copy_from_slice(&incarnation.to_be_bytes());
    crate::crc::crc32c(&both)
}

/// A set of acknowledgements of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckHead {
    /// Owner of the acknowledged transfers: [`whose`]. A redirected datagram carries them to another node.
    pub whose: u32,
    /// Counter of the latest datagram with a chunk that arrived.
    pub echo: u64,
    /// Time from its arrival until this was sent in ns: host time, not network time.
    pub hold_ns: u32,
    /// Datagrams with chunks received in this incarnation of their sender, wrapping.
    pub received: u32,
    /// Those of them that a switch marked.
    pub marked: u32,
}

/// The received chunks of one transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckEntry {
    pub id: TransferId,
    pub done: bool,
    pub attempt: u8,
    /// The first missing chunk.
    pub base: u16,
    /// Bit i: chunk `base + 1 + i` has arrived.
    pub bitmap: [u64; ACK_WORDS_MAX],
}

impl AckEntry {
    /// Number of words of the bitmap to send.
    pub fn words(&self) -> usize {
        self.bitmap.iter().rposition(|w| *w != 0).map_or(0, |i| i + 1)
    }
    pub fn bytes(&self) -> usize {
        ACK_ENTRY_BYTES + 8 * self.words()
    }
    pub fn has(&self, chunk: u32) -> bool {
        let base = u32::from(self.base);
        match chunk.checked_sub(base + 1) {
            None => self.done || chunk < base,
            Some(i) => self.done || (i < ACK_SPAN && self.bitmap[i as usize / 64] >> (i % 64) & 1 == 1),
        }
    }
}

/// Bytes of the set at the front of `b`, checked to be complete.
fn acks_len(b: &[u8]) -> Result<usize, Malformed> {
    if b.len() < ACK_HEAD_BYTES {
        return Err(Malformed::Acks);
    }
    let mut at = ACK_HEAD_BYTES;
    for _ in 0..b[ACK_HEAD_BYTES - 1] {
        let Some(&flags) = b.get(at) else { return Err(Malformed::Acks) };
        let words = usize::from(flags >> 4);
        let both = ENTRY_ROUTED | ENTRY_GROUP;
        if flags & 0x08 != 0 || flags & both == both || words > ACK_WORDS_MAX {
            return Err(Malformed::Acks);
        }
        at += ACK_ENTRY_BYTES + 8 * words;
    }
    if at > b.len() { Err(Malformed::Acks) } else { Ok(at) }
}

/// Decodes a set that `parse` found.
pub fn acks(b: &[u8]) -> (AckHead, impl Iterator<Item = AckEntry> + '_) {
    let head = AckHead {
        whose: u32_at(b, 0),
        echo: u64_at(b, 4),
        hold_ns: u32_at(b, 12),
        received: u32_at(b, 16),
        marked: u32_at(b, 20),
    };
    let mut at = ACK_HEAD_BYTES;
    let entries = (0..b[ACK_HEAD_BYTES - 1]).map(move |_| {
        let flags = b[at];
        let space = match flags & (ENTRY_ROUTED | ENTRY_GROUP) {
            ENTRY_ROUTED => Space::Routed,
            ENTRY_GROUP => Space::Group,
            _ => Space::Direct,
        };
        let words = usize::from(flags >> 4);
        let mut bitmap = [0; ACK_WORDS_MAX];
        for (i, w) in bitmap[..words].iter_mut().enumerate() {
            *w = u64_at(b, at + ACK_ENTRY_BYTES + 8 * i);
        }
        let entry = AckEntry {
            id: TransferId { space, number: u64_at(b, at + 2) },
            done: flags & ENTRY_DONE != 0,
            attempt: b[at + 1],
            base: u16_at(b, at + 10),
            bitmap,
        };
        at += ACK_ENTRY_BYTES + 8 * words;
        entry
    });
    (head, entries)
}

/// Appends a set of acknowledgements.
pub fn put_acks(to: &mut Vec<u8>, head: &AckHead, entries: &[AckEntry]) {
    to.extend_from_slice(&head.whose.to_be_bytes());
    to.extend_from_slice(&head.echo.to_be_bytes());
    to.extend_from_slice(&head.hold_ns.to_be_bytes());
    to.extend_from_slice(&head.received.to_be_bytes());
    to.extend_from_slice(&head.marked.to_be_bytes());
    to.push(entries.len() as u8);
    for e in entries {
        let words = e.words();
        let space = match e.id.space {
            Space::Direct => 0,
            Space::Routed => ENTRY_ROUTED,
            Space::Group => ENTRY_GROUP,
        };
        to.push(space | if e.done { ENTRY_DONE } else { 0 } | (words as u8) << 4);
        to.push(e.attempt);
        to.extend_from_slice(&e.id.number.to_be_bytes());
        to.extend_from_slice(&e.base.to_be_bytes());
        e.bitmap[..words].iter().for_each(|w| to.extend_from_slice(&w.to_be_bytes()));
    }
}

/// The sender's fields of every datagram.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    pub node: NodeId,
    pub incarnation: u64,
    pub version: u8,
    /// Newest version that it speaks.
    pub newest: u8,
    pub encrypt: bool,
}

/// Appends the short form's header.
pub fn put_short(to: &mut Vec<u8>, op: ShortOp, class: Class, from: &Sender, destination: NodeId, counter: u64) {
    to.push(op as u8);
    to.extend_from_slice(&[0; 8]);
    to.extend_from_slice(&[from.version, class as u8, 0]);
    to.extend_from_slice(&from.node.0.to_be_bytes());
    to.extend_from_slice(&destination.0.to_be_bytes());
    to.extend_from_slice(&counter.to_be_bytes());
    to.extend_from_slice(&[0; TAG_BYTES]);
}

/// Appends the packet's header in the long form.
pub fn put_long(to: &mut Vec<u8>, head: &[u8], destination: NodeId, counter: u64) {
    let start = to.len();
    to.extend_from_slice(&head[..HEAD_BYTES]);
    let h = &mut to[start..];
    h[FLAGS_AT] |= FLAG_EXTENDED;
    h[DESTINATION_AT..DESTINATION_AT + 4].copy_from_slice(&destination.0.to_be_bytes());
    h[LONG.counter_at..LONG.counter_at + 8].copy_from_slice(&counter.to_be_bytes());
}

/// Restores the packet's header from before [`put_long`], except what the switch rewrote.
pub fn restore(head: &mut [u8]) {
    head[FLAGS_AT] &= !FLAG_EXTENDED;
    head[LONG.counter_at..LONG.counter_at + 8].fill(0);
    head[LONG.tag_at..LONG.tag_at + TAG_BYTES].fill(0);
}

/// Appends a chunk's extension.
pub fn put_chunk(to: &mut Vec<u8>, from: &Sender, c: &Chunk, acks: bool) {
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    let mut flags = flag(c.ack_now, ACK_NOW) | flag(acks, ACKS) | flag(c.unheard, UNHEARD);
    flags |= flag(c.id.space == Space::Routed, ROUTED) | flag(c.id.space == Space::Group, GROUP);
    if from.encrypt {
        flags |= ENCRYPTED;
    }
    to.extend_from_slice(&[from.version, flags, c.attempt, from.newest]);
    to.extend_from_slice(&from.incarnation.to_be_bytes());
    to.extend_from_slice(&c.id.number.to_be_bytes());
    to.extend_from_slice(&c.body_bytes.to_be_bytes());
    to.extend_from_slice(&c.number.to_be_bytes());
    to.extend_from_slice(&c.chunk_bytes.to_be_bytes());
    to.extend_from_slice(&c.prefix_bytes.to_be_bytes());
    to.extend_from_slice(&(c.range().len() as u16).to_be_bytes());
}

/// Appends header and extension of a chunk that follows one of the same length, whose datagram begins at `like`.
pub(crate) fn put_continued(to: &mut Vec<u8>, like: usize, form: Form, counter: u64, number: u16) {
    let start = to.len();
    to.extend_from_within(like..like + form.extension_at + EXTENSION_BYTES);
    let h = &mut to[start..];
    h[form.counter_at..form.counter_at + 8].copy_from_slice(&counter.to_be_bytes());
    h[form.tag_at..form.tag_at + TAG_BYTES].fill(0);
    h[form.extension_at + NUMBER_AT..][..2].copy_from_slice(&number.to_be_bytes());
}

/// Appends the extension of a datagram without a chunk.
pub fn put_brief(to: &mut Vec<u8>, from: &Sender, acks: bool) {
    to.extend_from_slice(&[from.version, u8::from(acks) * ACKS, 0, from.newest]);
    to.extend_from_slice(&from.incarnation.to_be_bytes());
}
