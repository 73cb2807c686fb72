//! A message in flight to one peer: its chunks, and the state of each.

use rackweave_core::{NodeId, Time, VssdId};

use crate::api::Message;
use crate::header::{ACK_SPAN, Chunk, HEAD_BYTES, PREFIX_MAX, TransferId};

/// States of a chunk other than the counter of its last datagram; counters lie between them.
pub(crate) const UNSENT: u64 = 0;
pub(crate) const LOST: u64 = u64::MAX - 1;
pub(crate) const ARRIVED: u64 = u64::MAX;

/// A message in flight.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub message: Message,
    pub id: TransferId,
    pub token: u64,
    pub deadline: Time,
    /// When half of its time has passed.
    pub late: Time,
    /// The vSSD that a routed message addresses; identifies the server it last went to.
    pub vssd: VssdId,
    /// The switch that a routed message goes through.
    pub by: Option<NodeId>,
    /// A routed message has its first responder: the rest goes there directly (protocol rule 13).
    pub bound: bool,
    /// Whether the vSSD's own server answers it: a read may be redirected.
    pub settles: bool,
    /// Number of the message to a group of which this is one member's part.
    pub group: Option<u64>,
    /// Unsent chunks are sent in the group's datagrams.
    pub shared: bool,
    /// It has several chunks and counts as being sent.
    pub begun: bool,
    pub attempt: u8,
    pub chunk_bytes: usize,
    pub chunks: Vec<u64>,
    /// First unsent chunk; first chunk that has not arrived; number that have not.
    pub next: u32,
    pub base: u32,
    pub left: u32,
}

impl Outgoing {
    /// A message for its receiver itself.
    pub fn new(now: Time, message: Message, id: TransferId, token: u64, deadline: Time) -> Outgoing {
        Outgoing {
            message,
            id,
            token,
            deadline,
            late: now + deadline.since(now) / 2,
            vssd: VssdId(0),
            by: None,
            bound: false,
            settles: false,
            group: None,
            shared: false,
            begun: false,
            attempt: 0,
            chunk_bytes: 0,
            chunks: Vec::new(),
            next: 0,
            base: 0,
            left: 0,
        }
    }
    pub fn prefix_bytes(&self) -> usize {
        self.message.head.len() - HEAD_BYTES
    }
    pub fn body_bytes(&self) -> usize {
        self.message.len() - HEAD_BYTES
    }
    /// Splits the message into chunks of the given size, with nothing sent.
    pub fn cut(&mut self, chunk_bytes: usize) {
        let least = self.body_bytes().div_ceil(usize::from(u16::MAX - 1)).max(1);
        self.chunk_bytes = chunk_bytes.clamp(least, usize::from(u16::MAX));
        let count = self.body_bytes().div_ceil(self.chunk_bytes).max(1);
        self.chunks.clear();
        self.chunks.resize(count, UNSENT);
        (self.next, self.base, self.left) = (0, 0, count as u32);
    }
    pub fn chunk(&self, number: u32, ack_now: bool) -> Chunk {
        Chunk {
            id: self.id,
            attempt: self.attempt,
            ack_now,
            unheard: false,
            body_bytes: self.body_bytes() as u32,
            number: number as u16,
            chunk_bytes: self.chunk_bytes as u16,
            prefix_bytes: self.prefix_bytes().min(usize::from(PREFIX_MAX)) as u16,
        }
    }
    pub fn has_some_arrived(&self) -> bool {
        (self.left as usize) < self.chunks.len()
    }
    pub fn may_send_more(&self) -> bool {
        (self.next as usize) < self.chunks.len() && self.next <= self.base.saturating_add(ACK_SPAN)
    }
}

/// A chunk's bytes: those before the data, and those of the data.
pub(crate) fn pieces<'a>(m: &'a Message, c: &Chunk) -> (&'a [u8], &'a [u8]) {
    let range = c.range();
    let prefix = &m.head[HEAD_BYTES..];
    let split = prefix.len();
    (
        &prefix[range.start.min(split)..range.end.min(split)],
        &m.data[range.start.max(split) - split..range.end.max(split) - split],
    )
}
