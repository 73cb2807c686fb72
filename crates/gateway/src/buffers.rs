//! Byte queues without needless copies.

use std::collections::VecDeque;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::session::Chunks;

/// Up to here bytes are copied rather than kept as a slice of the chunk they came in, which is up to 256 KiB: a session holds
/// at most eight times what it has of others' chunks.
pub const SMALL_BYTES: usize = 32 << 10;

/// Small chunks that come one after another become chunks of this size.
const JOINED_BYTES: usize = 256 << 10;

/// Bytes from the socket that are not parsed yet.
#[derive(Debug, Default)]
pub struct Input {
    chunks: VecDeque<Bytes>,
    /// Bytes behind the chunks, in memory of their own.
    small: BytesMut,
    len: usize,
    /// Bytes that are parsed at once, and of which `small` has the first; zero: unknown.
    awaited: usize,
}

impl Input {
    pub fn len(&self) -> usize {
        self.len
    }
    pub fn push(&mut self, mut b: Bytes) {
        self.len += b.len();
        if self.awaited > 0 {
            let missing = self.awaited - self.small.len();
            self.small.extend_from_slice(&b.split_to(missing.min(b.len())));
        }
        if b.is_empty() {
            return;
        }
        if !self.small.is_empty() {
            // Many small chunks cost only their bytes.
            if self.awaited == 0 && self.small.len() + b.len() <= JOINED_BYTES {
                return self.small.extend_from_slice(&b);
            }
            self.freeze();
        }
        self.chunks.push_back(b);
    }
    /// Parsing waits for `awaited` bytes, if known (else zero). Those present are copied to the place where they are
    /// assembled, and a small rest likewise, so that neither keeps others' chunks in memory.
    pub fn release(&mut self, awaited: usize) {
        if self.awaited > 0 {
            return;
        }
        if awaited > self.len {
            let mut joined = BytesMut::with_capacity(awaited);
            self.chunks.drain(..).for_each(|b| joined.extend_from_slice(&b));
            joined.extend_from_slice(&self.small);
            (self.small, self.awaited) = (joined, awaited);
            return;
        }
        let last = self.chunks.back().filter(|b| self.small.is_empty() && b.len() <= SMALL_BYTES);
        if let Some(last) = last {
            self.small = BytesMut::from(&last[..]);
            self.chunks.pop_back();
        }
    }
    fn freeze(&mut self) {
        self.awaited = 0;
        self.chunks.push_back(std::mem::take(&mut self.small).freeze());
    }
    /// The first chunk that is left.
    fn front(&mut self) -> &mut Bytes {
        if self.chunks.is_empty() {
            self.freeze();
        }
        self.chunks.front_mut().expect("length is counted")
    }
    /// The next `n` bytes: a slice of the chunk they are in, copied only where they lie across two.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn take(&mut self, n: usize) -> Bytes {
        self.len -= n;
        if n == 0 {
            return Bytes::new();
        }
        let first = self.front();
        if first.len() > n {
            return first.split_to(n);
        }
        if first.len() == n {
            return self.chunks.pop_front().expect("length is counted");
        }
        let mut joined = BytesMut::with_capacity(n);
        while joined.len() < n {
            let first = self.front();
            let part = first.split_to(first.len().min(n - joined.len()));
            joined.extend_from_slice(&part);
            if first.is_empty() {
                self.chunks.pop_front();
            }
        }
        joined.freeze()
    }
    /// Puts bytes before all others.
    pub fn push_front(&mut self, b: Bytes) {
        self.len += b.len();
        self.chunks.push_front(b);
    }
    /// Moves bytes to `line` up to a line end, while it has less than `max`. Whether the line is complete.
    pub fn take_line(&mut self, line: &mut Vec<u8>, max: usize) -> bool {
        while self.len > 0 && line.len() < max {
            let first = self.front();
            let part = first.len().min(max - line.len());
            let end = first[..part].iter().position(|b| *b == b'\n');
            let taken = first.split_to(end.map_or(part, |e| e + 1));
            line.extend_from_slice(&taken);
            self.took(taken.len());
            if end.is_some() {
                return true;
            }
        }
        false
    }
    /// Moves up to `n` bytes to `to`.
    pub fn move_to(&mut self, to: &mut BytesMut, mut n: usize) {
        while self.len > 0 && n > 0 {
            let first = self.front();
            let taken = first.split_to(first.len().min(n));
            to.extend_from_slice(&taken);
            n -= taken.len();
            self.took(taken.len());
        }
    }
    /// `n` bytes of the first chunk are gone.
    fn took(&mut self, n: usize) {
        self.len -= n;
        if self.chunks.front().is_some_and(Bytes::is_empty) {
            self.chunks.pop_front();
        }
    }
    /// Drops up to `n` bytes; how many there were.
    pub fn skip(&mut self, n: usize) -> usize {
        let n = n.min(self.len);
        let mut left = n;
        while left > 0 {
            let first = self.front();
            let part = first.len().min(left);
            first.advance(part);
            left -= part;
            if first.is_empty() {
                self.chunks.pop_front();
            }
        }
        self.len -= n;
        n
    }
    pub fn clear(&mut self) {
        *self = Input::default();
    }
}

/// Bytes for the socket, in chunks for `writev`. Headers are gathered; payloads are passed on as they are.
#[derive(Debug, Default)]
pub struct Output {
    chunks: VecDeque<Bytes>,
    /// Headers after the last chunk.
    tail: BytesMut,
    len: usize,
}

/// Headers gathered in one allocation.
const TAIL_BYTES: usize = 4096;

impl Output {
    pub fn len(&self) -> usize {
        self.len
    }
    /// Appends what `write` writes.
    pub fn small(&mut self, write: impl FnOnce(&mut BytesMut)) {
        if self.tail.capacity() - self.tail.len() < 64 {
            self.close_tail();
            self.tail = BytesMut::with_capacity(TAIL_BYTES);
        }
        let before = self.tail.len();
        write(&mut self.tail);
        self.len += self.tail.len() - before;
    }
    pub fn payload(&mut self, b: Bytes) {
        if b.is_empty() {
            return;
        }
        self.close_tail();
        self.len += b.len();
        self.chunks.push_back(b);
    }
    /// `n` zero bytes, without making them.
    pub fn zeros(&mut self, mut n: usize) {
        static ZEROS: [u8; 65_536] = [0; 65_536];
        while n > 0 {
            let part = n.min(ZEROS.len());
            self.payload(Bytes::from_static(&ZEROS[..part]));
            n -= part;
        }
    }
    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
    }
    /// All chunks, in order.
    pub fn chunks(&mut self) -> Chunks<'_> {
        self.close_tail();
        self.chunks.iter()
    }
    /// The first `n` bytes have been written.
    pub fn advance(&mut self, n: usize) {
        self.close_tail();
        let mut left = n.min(self.len);
        self.len -= left;
        while left > 0 {
            let first = self.chunks.front_mut().expect("length is counted");
            let part = first.len().min(left);
            first.advance(part);
            left -= part;
            if first.is_empty() {
                self.chunks.pop_front();
            }
        }
    }
}

/// Reads big-endian integers from an option's data; `None` past its end.
pub struct Fields(pub Bytes);

impl Fields {
    pub fn u16(&mut self) -> Option<u16> {
        (self.0.len() >= 2).then(|| self.0.get_u16())
    }
    pub fn u32(&mut self) -> Option<u32> {
        (self.0.len() >= 4).then(|| self.0.get_u32())
    }
    pub fn bytes(&mut self, n: u32) -> Option<Bytes> {
        (self.0.len() >= n as usize).then(|| self.0.split_to(n as usize))
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Writes `n` zero bytes in place.
pub fn put_zeros(b: &mut BytesMut, n: usize) {
    b.put_bytes(0, n);
}
