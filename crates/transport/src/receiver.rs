//! Messages received from one peer in one class: reassembled, checked block by block, acknowledged.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use bytes::Bytes;
use rackweave_core::Time;

use crate::api::Message;
use crate::config::Config;
use crate::crc::{BLOCK_BYTES, append, combine, crc32c, parts};
use crate::header::{
    ACK_HEAD_BYTES, ACK_SPAN, ACK_WORDS_MAX, AckEntry, AckHead, Chunk, HEAD_BYTES, PREFIX_MAX, Space, TransferId,
    restore,
};
use crate::window::Window;

/// Direct messages that a sender may have between its oldest unacknowledged one and its newest.
pub(crate) const DIRECT_SPAN: u64 = 4096;
/// The same through the switch and to groups, where all servers share the numbers.
pub(crate) const ROUTED_SPAN: u64 = 65_536;
/// Whole messages whose acknowledgement is kept for repetition.
const RECENT_MAX: usize = 256;
/// Times that a whole message is acknowledged: one acknowledgement may be lost.
const TIMES: u8 = 2;
/// Incomplete messages of one class; each has a few hundred bytes besides its data.
const INCOMING_MAX: usize = 1024;

/// CRC32C of 4 KiB blocks, computed in any order.
#[derive(Debug, Default)]
struct Blocks {
    /// Bytes from the block's start that were added, and their CRC.
    done: Vec<(usize, u32)>,
}

impl Blocks {
    /// `known` has the CRC of each part within one block, if checking the datagram computed them.
    fn add(&mut self, at: usize, data: &[u8], known: &[u32]) {
        for (i, (at, part)) in parts(at, data).enumerate() {
            self.add_part(at, part.len(), || known.get(i).copied().unwrap_or_else(|| crc32c(part)));
        }
    }
    /// A part within one block.
    #[inline]
    fn add_part(&mut self, at: usize, len: usize, part: impl FnOnce() -> u32) {
        let (block, from) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
        if self.done.len() <= block {
            self.done.resize(block + 1, (0, 0));
        }
        let (done, crc) = &mut self.done[block];
        if *done == from {
            *crc = if from == 0 { part() } else { combine(*crc, part(), len) };
            *done += len;
        }
    }
    /// Appends data to `to`, which holds everything so far. Returns the CRC of the bytes with CRC `before` followed by
    /// the data.
    #[inline]
    fn append(&mut self, to: &mut Vec<u8>, data: &[u8], before: u32) -> u32 {
        append(to, to.len(), data, before, |at, len, crc| self.add_part(at, len, || crc))
    }
    /// The state before an append at that position; [`Blocks::back`] restores it.
    fn before(&self, at: usize) -> (usize, Option<(usize, u32)>) {
        (self.done.len(), self.done.get(at / BLOCK_BYTES).copied())
    }
    fn back(&mut self, at: usize, (blocks, block): (usize, Option<(usize, u32)>)) {
        self.done.truncate(blocks);
        if let Some(block) = block {
            self.done[at / BLOCK_BYTES] = block;
        }
    }
    /// Reads what arrived out of order.
    fn finish(mut self, data: &[u8]) -> Vec<u32> {
        self.done.resize(data.len().div_ceil(BLOCK_BYTES), (0, 0));
        let blocks = data.chunks(BLOCK_BYTES).zip(self.done);
        blocks.map(|(block, (done, crc))| combine(crc, crc32c(&block[done..]), block.len() - done)).collect()
    }
}

/// An incomplete message.
#[derive(Debug)]
struct Incoming {
    like: Chunk,
    /// The packet's header and its body up to the data.
    head: Vec<u8>,
    have_header: bool,
    data: Vec<u8>,
    /// `Some` if the blocks' CRCs are required.
    blocks: Option<Blocks>,
    got: Vec<u64>,
    left: u32,
    /// One more than the highest chunk received.
    top: u32,
    touched: Time,
}

impl Incoming {
    fn new(c: &Chunk, now: Time, summed: bool) -> Incoming {
        Incoming {
            like: *c,
            head: vec![0; HEAD_BYTES + usize::from(c.prefix_bytes)],
            have_header: false,
            data: Vec::new(),
            blocks: summed.then(Blocks::default),
            got: vec![0; (c.count() as usize).div_ceil(64)],
            left: c.count(),
            top: 0,
            touched: now,
        }
    }
    fn same(&self, c: &Chunk) -> bool {
        let key = |c: &Chunk| (c.body_bytes, c.chunk_bytes, c.prefix_bytes, c.attempt);
        key(&self.like) == key(c)
    }
    fn has(&self, chunk: u32) -> bool {
        self.got[chunk as usize / 64] >> (chunk % 64) & 1 == 1
    }
    fn add(&mut self, c: &Chunk, header: Option<&[u8]>, payload: &[u8], known: &[u32]) {
        if let (Some(header), false) = (header, self.have_header) {
            self.head[..HEAD_BYTES].copy_from_slice(header);
            self.have_header = true;
        }
        let (cut, at) = c.data_at();
        let (head, data) = payload.split_at(cut);
        self.head[HEAD_BYTES + c.range().start.min(usize::from(c.prefix_bytes))..][..cut].copy_from_slice(head);
        if !data.is_empty() {
            self.put(at, data, known);
        }
        self.got[usize::from(c.number) / 64] |= 1 << (c.number % 64);
        self.left -= 1;
    }
    /// In order, nothing has to be filled with zeros first.
    fn put(&mut self, at: usize, data: &[u8], known: &[u32]) {
        if let Some(blocks) = &mut self.blocks {
            blocks.add(at, data, known);
        }
        if self.data.is_empty() {
            self.data.reserve_exact((self.like.body_bytes - u32::from(self.like.prefix_bytes)) as usize);
        }
        let end = at + data.len();
        if self.data.len() < at {
            self.data.resize(at, 0);
        }
        let inside = self.data.len().min(end) - at;
        self.data[at..at + inside].copy_from_slice(&data[..inside]);
        self.data.extend_from_slice(&data[inside..]);
    }
    /// Appends data. Returns the CRC of the bytes with CRC `before` followed by the data, if CRCs are required.
    #[inline]
    fn append(&mut self, data: &[u8], before: u32) -> u32 {
        if let Some(blocks) = &mut self.blocks {
            return blocks.append(&mut self.data, data, before);
        }
        self.data.extend_from_slice(data);
        0
    }
    fn entry(&self) -> AckEntry {
        let count = self.like.count();
        let base = (0..count).find(|c| !self.has(*c)).unwrap_or(count);
        let mut bitmap = [0; ACK_WORDS_MAX];
        for i in 0..ACK_SPAN.min(count.saturating_sub(base + 1)) {
            bitmap[i as usize / 64] |= u64::from(self.has(base + 1 + i)) << (i % 64);
        }
        AckEntry { id: self.like.id, done: false, attempt: self.like.attempt, base: base as u16, bitmap }
    }
}

/// Result of a received chunk.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The message is whole, with its blocks' CRCs.
    Whole(Message, Vec<u32>),
    /// The datagram holds the whole message: see [`Receiver::whole`].
    Single,
    Stored,
    /// It had arrived already.
    Duplicate,
    /// It contradicts an earlier chunk of the same message.
    Contradicts,
    /// Too many incomplete messages.
    NoRoom,
    /// The driver does not poll delivered messages.
    Unread,
}

/// Datagrams with chunks that arrived together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub at: Time,
    /// Their number, and the latest one's counter.
    pub datagrams: u32,
    pub counter: u64,
    pub marked: bool,
    pub ack_now: bool,
}

/// A datagram with a chunk and its context.
#[derive(Debug)]
pub(crate) struct Datagram<'a> {
    pub bytes: &'a [u8],
    pub payload: Range<usize>,
    pub long: bool,
    /// CRC32C of each part of the data within one block, or empty.
    pub known: &'a [u32],
    /// Whether the message is delivered with its blocks' CRCs.
    pub summed: bool,
}

/// Memory left for received messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub reassembly: usize,
    pub unread: usize,
}

#[derive(Debug)]
pub(crate) struct Receiver {
    direct: Window,
    routed: Window,
    group: Window,
    incoming: BTreeMap<TransferId, Incoming>,
    /// Bytes that incomplete messages take or will take.
    pub bytes: usize,
    echo: u64,
    echo_at: Time,
    received: u32,
    marked: u32,
    /// Incomplete messages to acknowledge.
    partial: Vec<TransferId>,
    /// Whole messages, and how often each was acknowledged.
    recent: VecDeque<(AckEntry, u8)>,
    /// Datagrams since the last acknowledgement, and when the next is due.
    waiting: u32,
    /// The next one is due at once: a message to a group has a gap, or is whole.
    urgent: bool,
    pub ack_at: Time,
    /// Chunks that arrived before one with a lower number of their message, since this was last taken.
    pub early: u32,
    /// Whether it is in the endpoint's queue of due acknowledgements.
    pub due: bool,
}

impl Receiver {
    pub fn new() -> Receiver {
        Receiver {
            direct: Window::new(DIRECT_SPAN),
            routed: Window::new(ROUTED_SPAN),
            group: Window::new(ROUTED_SPAN),
            incoming: BTreeMap::new(),
            bytes: 0,
            echo: 0,
            echo_at: Time::ZERO,
            received: 0,
            marked: 0,
            partial: Vec::new(),
            recent: VecDeque::new(),
            waiting: 0,
            urgent: false,
            ack_at: Time::MAX,
            early: 0,
            due: false,
        }
    }

    /// Takes an authenticated datagram with a chunk.
    pub fn chunk(&mut self, now: Time, c: &Chunk, d: &Datagram<'_>, room: Room) -> Outcome {
        if self.window(c.id).seen(c.id.number) {
            if !self.window(c.id).forgotten(c.id.number) {
                self.done(c);
            }
            return Outcome::Duplicate;
        }
        let header = d.long.then(|| &d.bytes[..HEAD_BYTES]);
        if c.count() == 1 && d.long {
            if c.body_bytes as usize + HEAD_BYTES > room.unread {
                return Outcome::Unread;
            }
            self.forget(c.id);
            self.finish(c);
            return Outcome::Single;
        }
        if let Some(old) = self.incoming.get(&c.id)
            && !old.same(c)
            && !mutant!("transport.chunk.contradicts")
        {
            match c.attempt.wrapping_sub(old.like.attempt) {
                0 => return Outcome::Contradicts,
                1..128 => self.forget(c.id),
                _ => return Outcome::Duplicate,
            }
        }
        let size = c.body_bytes as usize + HEAD_BYTES;
        if !self.incoming.contains_key(&c.id) {
            if size > room.reassembly || self.incoming.len() >= INCOMING_MAX {
                return Outcome::NoRoom;
            }
            self.bytes += size;
            self.incoming.insert(c.id, Incoming::new(c, now, d.summed));
        }
        let Some(i) = self.incoming.get_mut(&c.id) else { return Outcome::NoRoom };
        if i.has(u32::from(c.number)) {
            self.pend(c.id);
            return Outcome::Duplicate;
        }
        if i.left == 1 && size > room.unread {
            i.touched = now;
            return Outcome::Unread;
        }
        i.touched = now;
        self.urgent |= c.id.space == Space::Group && u32::from(c.number) > i.top;
        self.early += u32::from(u32::from(c.number) > i.top);
        i.top = i.top.max(u32::from(c.number) + 1);
        i.add(c, header, &d.bytes[d.payload.clone()], d.known);
        if i.left > 0 && !(i.left == 1 && mutant!("transport.chunk.early")) {
            if i.left == 1 && mutant!("transport.ack.before-whole") {
                self.done(c);
            }
            self.pend(c.id);
            return Outcome::Stored;
        }
        let Some(mut i) = self.incoming.remove(&c.id) else { return Outcome::NoRoom };
        self.bytes -= size;
        self.partial.retain(|p| *p != c.id);
        self.finish(c);
        restore(&mut i.head[..HEAD_BYTES]);
        if i.like.prefix_bytes == PREFIX_MAX && !mutant!("transport.head.cut") {
            i.head.append(&mut i.data);
            i.blocks = None;
        }
        let crcs = i.blocks.map_or_else(Vec::new, |b| b.finish(&i.data));
        Outcome::Whole(Message { head: i.head.into(), data: i.data.into() }, crcs)
    }

    /// Takes chunks that follow `first`, which has arrived, and consist of data only. `next` passes the chunk with that
    /// number to its argument, which appends it, and which takes a CRC and the chunk and returns the CRC of both;
    /// `next` returns whether the chunk was valid. It stops before the message's last chunk, and before the last
    /// missing one. Returns their number.
    pub fn run(
        &mut self,
        now: Time,
        first: &Chunk,
        mut next: impl FnMut(u16, &mut dyn FnMut(u32, &[u8]) -> u32) -> bool,
    ) -> u32 {
        let Some(i) = self.incoming.get_mut(&first.id).filter(|i| i.same(first)) else { return 0 };
        let (mut count, after) = (0, first.range().end);
        let Some(mut at) = after.checked_sub(usize::from(first.prefix_bytes)) else { return 0 };
        for number in first.number + 1..(first.count() - 1) as u16 {
            if at != i.data.len() || i.has(u32::from(number)) || i.left == 1 {
                break;
            }
            let before = i.blocks.as_ref().map(|b| b.before(at));
            if !next(number, &mut |sum, chunk| i.append(chunk, sum)) {
                i.data.truncate(at);
                if let (Some(blocks), Some(before)) = (&mut i.blocks, before) {
                    blocks.back(at, before);
                }
                break;
            }
            i.got[usize::from(number) / 64] |= 1 << (number % 64);
            i.left -= 1;
            i.top = i.top.max(u32::from(number) + 1);
            (at, count) = (i.data.len(), count + 1);
        }
        i.touched = now;
        count
    }

    /// The message of a datagram that holds all of it.
    pub fn whole(c: &Chunk, d: &Datagram<'_>) -> (Message, Vec<u32>) {
        let (cut, _) = c.data_at();
        let data_at = d.payload.start + cut;
        let mut head = Vec::with_capacity(HEAD_BYTES + cut);
        head.extend_from_slice(&d.bytes[..HEAD_BYTES]);
        head.extend_from_slice(&d.bytes[d.payload.start..data_at]);
        restore(&mut head[..HEAD_BYTES]);
        let data = &d.bytes[data_at..d.payload.end];
        if !d.summed || !d.known.is_empty() {
            return (Message { head: head.into(), data: Bytes::copy_from_slice(data) }, d.known.to_vec());
        }
        let (mut copy, mut crcs) =
            (Vec::with_capacity(data.len()), Vec::with_capacity(data.len().div_ceil(BLOCK_BYTES)));
        append(&mut copy, 0, data, 0, |_, _, crc| crcs.push(crc));
        (Message { head: head.into(), data: copy.into() }, crcs)
    }

    fn window(&self, id: TransferId) -> &Window {
        match id.space {
            Space::Direct => &self.direct,
            Space::Routed => &self.routed,
            Space::Group => &self.group,
        }
    }
    fn forget(&mut self, id: TransferId) {
        if let Some(i) = self.incoming.remove(&id) {
            self.bytes -= i.like.body_bytes as usize + HEAD_BYTES;
            self.partial.retain(|p| *p != id);
        }
    }
    fn finish(&mut self, c: &Chunk) {
        let window = match c.id.space {
            Space::Direct => &mut self.direct,
            Space::Routed => &mut self.routed,
            Space::Group => &mut self.group,
        };
        window.insert(c.id.number);
        self.urgent |= c.id.space == Space::Group;
        self.done(c);
    }
    fn done(&mut self, c: &Chunk) {
        let entry = AckEntry { id: c.id, done: true, attempt: c.attempt, ..AckEntry::default() };
        self.recent.retain(|(e, _)| e.id != c.id);
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((entry, 0));
    }
    fn pend(&mut self, id: TransferId) {
        if !self.partial.contains(&id) {
            self.partial.push(id);
        }
    }
    /// A newer datagram has arrived before this one.
    pub fn is_late(&self, counter: u64) -> bool {
        counter < self.echo
    }
    /// Datagrams with chunks are to be acknowledged: soon, or once `ack_every` of them wait.
    pub fn arrived(&mut self, now: Time, a: Arrival, cfg: &Config) {
        if a.counter > self.echo {
            (self.echo, self.echo_at) = (a.counter, a.at);
        }
        self.received = self.received.wrapping_add(a.datagrams);
        self.marked = self.marked.wrapping_add(if a.marked { a.datagrams } else { 0 });
        self.waiting += a.datagrams;
        let at_once = a.ack_now || self.waiting >= cfg.ack_every || std::mem::take(&mut self.urgent);
        self.ack_at = self.ack_at.min(if at_once { now } else { now + cfg.ack_delay });
    }
    pub fn has_pending_acks(&self) -> bool {
        self.ack_at != Time::MAX
    }
    /// Acknowledgements that fit into `bytes`, new ones first. `None` if none is due or the head does not fit.
    pub fn acks(&mut self, now: Time, whose: u32, bytes: usize) -> Option<(AckHead, Vec<AckEntry>)> {
        let mut left = bytes.checked_sub(ACK_HEAD_BYTES)?;
        let mut entries = Vec::new();
        let mut take = |e: AckEntry| {
            let fits = e.bytes() <= left && entries.len() < usize::from(u8::MAX);
            if fits {
                left -= e.bytes();
                entries.push(e);
            }
            fits
        };
        for (e, times) in self.recent.iter_mut().rev() {
            if *times == 0 && take(*e) {
                *times += 1;
            }
        }
        let incoming = &self.incoming;
        self.partial.retain(|id| incoming.get(id).is_some_and(|i| !take(i.entry())));
        let all = self.partial.is_empty() && self.recent.iter().all(|(_, times)| *times > 0);
        for (e, times) in self.recent.iter_mut().rev() {
            if *times > 0 && *times < TIMES && !entries_has(&entries, e) && e.bytes() <= left && entries.len() < 255 {
                left -= e.bytes();
                entries.push(*e);
                *times += 1;
            }
        }
        self.recent.retain(|(_, times)| *times < TIMES);
        if all {
            (self.ack_at, self.waiting) = (Time::MAX, 0);
        }
        if entries.is_empty() {
            return None;
        }
        let hold_ns = u32::try_from(now.since(self.echo_at).0).unwrap_or(u32::MAX);
        Some((AckHead { whose, echo: self.echo, hold_ns, received: self.received, marked: self.marked }, entries))
    }
    /// Drops incomplete messages without a chunk since `before`: their sender gave up. Returns their number.
    pub fn expire(&mut self, before: Time) -> u64 {
        let old: Vec<TransferId> =
            self.incoming.iter().filter(|(_, i)| i.touched <= before).map(|(id, _)| *id).collect();
        old.iter().for_each(|id| self.forget(*id));
        old.len() as u64
    }
    /// When the least recently extended incomplete message was extended.
    pub fn oldest(&self) -> Option<Time> {
        self.incoming.values().map(|i| i.touched).min()
    }
}

fn entries_has(entries: &[AckEntry], e: &AckEntry) -> bool {
    entries.iter().any(|have| have.id == e.id)
}
