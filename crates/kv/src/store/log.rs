//! The head of the log: records are appended in memory, written page by page, and forced by group commit.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use rackweave_core::Payload;
use rackweave_flash::manager::api::{Block, BlockError};

use super::format::{ENTRY_HEAD, Kind, Pos, RECORD_HEAD, SegmentHead, encode_head, encode_record, record_len};
use super::{
    Answer, Broken, Durability, Flash, HELD_BYTES_MAX, HELD_MAX, Io, Key, Loc, PutError, Segment, Store,
    UNWRITTEN_BYTES_MAX, change_len,
};

/// Pending writes of the log: enough to give every die of a channel several.
const WRITES_MAX: usize = 32;
/// Bytes of the record that begins a batch.
pub(super) const BATCH_LEN: u32 = RECORD_HEAD + 8;
/// Pages of one write.
const WRITE_PAGES_MAX: usize = 8;

/// A change of one key.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) key: Key,
    /// `None`: a deletion.
    pub(super) value: Option<Bytes>,
}

/// A put or delete, or a batch of them.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) parts: Vec<Part>,
    pub(super) batch: bool,
    pub(super) durability: Durability,
    pub(super) token: u64,
}

impl Change {
    pub(super) fn one(key: &[u8], value: Option<Bytes>, durability: Durability, token: u64) -> Change {
        Change { parts: vec![Part { key: key.into(), value }], batch: false, durability, token }
    }
    fn bytes(&self) -> usize {
        self.parts.iter().map(|p| p.key.len() + p.value.as_ref().map_or(0, Bytes::len)).sum()
    }
    fn deletes_only(&self) -> bool {
        self.parts.iter().all(|p| p.value.is_none())
    }
    fn answer(&self, result: Result<bool, PutError>) -> Answer {
        let token = self.token;
        if !self.batch && self.deletes_only() {
            return Answer::Deleted { token, result };
        }
        Answer::Put { token, result: result.map(|_| ()) }
    }
}

/// What a change needs of the log.
#[derive(Clone, Copy, Debug, Default)]
struct Need {
    /// Bytes of its records; zero: none, as it deletes only keys that are not there.
    len: u32,
    /// Growth of the live data, and of the index in a checkpoint.
    grow: i64,
    entries: u64,
}

/// The block being filled.
#[derive(Debug)]
struct Head {
    block: u32,
    number: u64,
    /// Offset of the next record.
    at: u32,
    /// The last bytes before `at` that are not written yet: less than a page after each append.
    buf: Vec<u8>,
}

/// Pages that are being written.
#[derive(Debug)]
pub(super) struct Chunk {
    block: u32,
    offset: u32,
    end: Pos,
    data: Bytes,
    token: u64,
    done: bool,
}

/// A forced change that is not durable yet.
#[derive(Debug)]
struct Waiter {
    end: Pos,
    keys: Vec<Key>,
    answer: Answer,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    head: Option<Head>,
    /// The next head.
    spare: Option<u32>,
    allocating: bool,
    pub(super) next_number: u64,
    /// Changes that are not in the log yet.
    pub(super) held: VecDeque<Change>,
    held_bytes: usize,
    /// The end of the log; the ends of its parts that are cut into pages, programmed, and durable.
    pub(super) end: Pos,
    cut: Pos,
    pub(super) written: Pos,
    synced: Pos,
    /// Pages that wait for the drive, and pending writes, in order.
    pub(super) queue: VecDeque<Chunk>,
    writing: VecDeque<Chunk>,
    unwritten_bytes: usize,
    /// Unprogrammed values, by the end position of their record.
    unwritten: BTreeMap<Pos, Bytes>,
    waiting: VecDeque<Waiter>,
    /// Keys with forced changes that are not durable, with the end position of the last of them.
    locked: BTreeMap<Key, Pos>,
    syncing: bool,
    /// The last segment whose pages may be written: all before it are durable, so that a power cut leaves a prefix of the log.
    begun: u64,
    /// Position up to which the log must be programmed, and the pending flush.
    wanted: Pos,
    flushing: Pos,
    /// Bytes appended since the store was opened.
    pub(super) appended: u64,
}

impl Log {
    pub(super) fn waiters(&self) -> usize {
        self.waiting.len()
    }
    pub(super) fn spare_blocks(&self) -> u32 {
        u32::from(self.spare.is_some()) + u32::from(self.allocating)
    }
    pub(super) fn allocated(&mut self, block: Block) {
        self.allocating = false;
        self.spare = Some(block.index);
    }
    /// Starts the log behind all existing segments.
    pub(super) fn begin(&mut self, number: u64) {
        let here = Pos { segment: number, offset: 0 };
        (self.next_number, self.end, self.cut, self.written) = (number, here, here, here);
        (self.synced, self.wanted, self.flushing) = (here, here, here);
        self.begun = number - 1;
    }
    pub(super) fn head_number(&self) -> u64 {
        self.head.as_ref().map_or(self.next_number, |h| h.number)
    }
    pub(super) fn is_head(&self, block: u32) -> bool {
        self.head.as_ref().is_some_and(|h| h.block == block)
    }
    /// The value whose record ends at this position, if it is not programmed yet.
    pub(super) fn unwritten(&self, end: Pos) -> Option<&Bytes> {
        self.unwritten.get(&end)
    }
    /// The position up to which the log must be durable before gets of the key are answered.
    pub(super) fn locked(&self, key: &[u8]) -> Option<Pos> {
        self.locked.get(key).copied()
    }
    pub(super) fn is_full(&self) -> bool {
        self.unwritten_bytes > UNWRITTEN_BYTES_MAX
    }
    pub(super) fn synced(&self) -> Pos {
        self.synced
    }
    /// Programs the log up to its end.
    pub(super) fn flush_soon(&mut self) {
        self.wanted = self.end;
    }
    pub(super) fn give_up(&mut self, e: PutError) -> Vec<Answer> {
        let mut all: Vec<Answer> = self.waiting.drain(..).map(|w| with_error(w.answer, e)).collect();
        all.extend(self.held.drain(..).map(|c| c.answer(Err(e))));
        self.held_bytes = 0;
        self.locked.clear();
        all
    }
    /// Cuts whole pages off the head's buffer.
    fn cut_pages(&mut self, page: u32) {
        let Some(h) = &mut self.head else { return };
        let page = page as usize;
        while h.buf.len() >= page {
            let n = (h.buf.len() / page).min(WRITE_PAGES_MAX) * page;
            let offset = h.at - h.buf.len() as u32;
            let rest = h.buf.split_off(n);
            let data = Bytes::from(std::mem::replace(&mut h.buf, rest));
            let end = Pos { segment: h.number, offset: offset + n as u32 };
            self.cut = end;
            self.queue.push_back(Chunk { block: h.block, offset, end, data, token: 0, done: false });
        }
    }
    /// Pads the last page and cuts it off.
    fn flush(&mut self, page: u32) {
        let Some(h) = &mut self.head else { return };
        let fill = h.buf.len().next_multiple_of(page as usize) - h.buf.len();
        h.buf.resize(h.buf.len() + fill, 0);
        h.at += fill as u32;
        self.unwritten_bytes += fill;
        self.end.offset = h.at;
        self.appended += fill as u64;
        self.cut_pages(page);
        self.flushing = self.cut;
    }
}

fn with_error(a: Answer, e: PutError) -> Answer {
    match a {
        Answer::Put { token, .. } => Answer::Put { token, result: Err(e) },
        Answer::Deleted { token, .. } => Answer::Deleted { token, result: Err(e) },
        other => other,
    }
}

impl Store {
    pub(super) fn change(&mut self, fx: &mut Flash<'_>, c: Change) -> Result<(), PutError> {
        self.now = self.now.max(fx.now);
        if !self.open {
            return Err(PutError::NotOpen);
        }
        if let Some(e) = self.failed {
            return Err(PutError::Failed(e));
        }
        let (requests, bytes) = (self.log.held.len(), self.log.held_bytes);
        if requests >= HELD_MAX || bytes + c.bytes() > HELD_BYTES_MAX {
            return Err(PutError::Busy { requests, bytes });
        }
        self.log.held_bytes += c.bytes();
        self.log.held.push_back(c);
        self.pump(fx);
        Ok(())
    }
    /// Appends waiting changes as far as space allows.
    pub(super) fn admit(&mut self, fx: &mut Flash<'_>) {
        while let Some(c) = self.log.held.front() {
            let (need, deletes) = (self.need(c), c.deletes_only());
            if !deletes && let Err(after_checkpoint) = self.fits(need.grow, need.entries) {
                if after_checkpoint && self.checkpoint.force(self.log.end) {
                    break;
                }
                self.refuse_full(need.len);
                continue;
            }
            if need.len > 0 && self.log.is_full() {
                break;
            }
            if need.len > 0 && !self.roomy() {
                if !self.stuck() {
                    break;
                }
                // A deletion may make a block worth compacting.
                if !deletes || !self.roomy_for_deletes() {
                    self.refuse_full(need.len);
                    continue;
                }
            }
            if need.len > 0 && !self.log_ready(fx, need.len) {
                break;
            }
            let c = self.pop_held();
            if need.len > 0 {
                self.append_change(&c, need.len);
                self.stats.record_bytes += u64::from(need.len);
            }
            self.appended_change(c, need.len > 0);
        }
    }
    fn need(&self, c: &Change) -> Need {
        let mut need = Need::default();
        for p in &c.parts {
            let old = self.index.get(&p.key);
            if p.value.is_none() && old.is_none() {
                continue;
            }
            let len = change_len(&p.key, p.value.as_ref());
            // A record that becomes obsolete in a damaged block frees no space.
            let gone = old.filter(|l| !self.is_damaged(l.block)).map_or(0, |l| l.len);
            need.len += len;
            need.grow += i64::from(len) - i64::from(gone);
            need.entries += if old.is_none() { (ENTRY_HEAD + p.key.len()) as u64 } else { 0 };
        }
        if c.batch && need.len > 0 {
            need.len += BATCH_LEN;
        }
        need
    }
    /// Appends the records of a change, of this length together, to the head, which must have room for all.
    fn append_change(&mut self, c: &Change, len: u32) {
        if c.batch {
            let bytes = (len - BATCH_LEN).to_le_bytes();
            self.append(Kind::Batch, Key::default(), Bytes::copy_from_slice(&bytes));
        }
        for p in &c.parts {
            match &p.value {
                Some(value) => self.append(Kind::Put, p.key.clone(), value.clone()),
                None if self.index.contains_key(&p.key) => self.append(Kind::Delete, p.key.clone(), Bytes::new()),
                None => {}
            }
        }
        let head = self.log.head.as_ref().map(|h| (h.block, h.at));
        if let Some((block, at)) = head.filter(|_| c.batch)
            && let Some(s) = self.segments.get_mut(&block)
        {
            s.batch_end = at;
        }
    }
    fn refuse_full(&mut self, bytes: u32) {
        let damaged = self.segments.values().filter(|s| s.corrupt).count() as u32;
        let error = PutError::Full { bytes, live: self.live, blocks: self.blocks, damaged };
        let c = self.pop_held();
        self.answers.push(c.answer(Err(error)));
    }
    /// Whether no command of the log is pending.
    pub(super) fn log_is_idle(&self) -> bool {
        self.log.queue.is_empty() && self.log.writing.is_empty()
    }
    fn pop_held(&mut self) -> Change {
        let c = self.log.held.pop_front().expect("a held change");
        self.log.held_bytes -= c.bytes();
        c
    }
    fn appended_change(&mut self, c: Change, existed: bool) {
        let end = self.log.end;
        let answer = c.answer(Ok(existed));
        let early = self.cfg.broken == Some(Broken::AckBeforeForce);
        if c.durability == Durability::Buffered || early || end <= self.log.synced {
            return self.answers.push(answer);
        }
        let keys: Vec<Key> = c.parts.into_iter().map(|p| p.key).collect();
        keys.iter().for_each(|k| _ = self.log.locked.insert(k.clone(), end));
        self.log.waiting.push_back(Waiter { end, keys, answer });
    }
    /// Whether the head has room for a record of this length; requests a block if there is no head.
    pub(super) fn log_ready(&mut self, fx: &mut Flash<'_>, len: u32) -> bool {
        let (size, page) = (self.size, self.page);
        if self.log.head.as_ref().is_some_and(|h| h.at + len > size) {
            self.log.flush(page);
            self.log.head = None;
        }
        if self.log.head.is_none()
            && let Some(block) = self.log.spare.take()
        {
            let number = self.log.next_number;
            self.log.next_number += 1;
            let buf = encode_head(&SegmentHead::Log { number }).to_vec();
            let at = buf.len() as u32;
            self.log.head = Some(Head { block, number, at, buf });
            self.log.end = Pos { segment: number, offset: at };
            self.log.unwritten_bytes += at as usize;
            let s = Segment { end: at, ..Segment::new(number, self.now) };
            self.segments.insert(block, s);
        }
        let half_full = self.log.head.as_ref().is_none_or(|h| h.at > size / 2);
        if half_full && self.log.spare.is_none() && !self.log.allocating {
            self.allocate(fx);
        }
        self.log.head.is_some()
    }
    fn allocate(&mut self, fx: &mut Flash<'_>) {
        if self.free_blocks() == 0 {
            return;
        }
        let token = self.token(Io::Alloc);
        match fx.manager.alloc_block(fx.now, self.cfg.vssd, token, fx.out) {
            Ok(()) => self.log.allocating = true,
            Err(e) => {
                self.refused(token);
                self.fail(e);
            }
        }
    }
    /// Appends a record to the head, which must be ready.
    pub(super) fn append(&mut self, kind: Kind, key: Key, value: Bytes) {
        let h = self.log.head.as_mut().expect("it is ready");
        let (block, number, offset) = (h.block, h.number, h.at);
        let len = record_len(key.len(), value.len());
        encode_record(&mut h.buf, (number, offset), kind, &key, &value);
        h.at += len;
        self.log.end = Pos { segment: number, offset: h.at };
        self.log.unwritten_bytes += len as usize;
        self.log.appended += u64::from(len);
        let s = self.segments.get_mut(&block).expect("the head is one");
        (s.end, s.changed) = (h.at, self.now);
        match kind {
            Kind::Put => {
                self.log.unwritten.insert(self.log.end, value);
                self.index_set(key, Some(Loc { block, offset, len }));
            }
            Kind::Delete => {
                s.tombs += u64::from(len);
                self.tombs += u64::from(len);
                self.index_set(key, None);
            }
            Kind::Batch | Kind::Entries | Kind::End => {}
        }
        self.log.cut_pages(self.page);
    }

    /// Group commit: one flush and one sync at a time, each for all changes that wait at its start.
    pub(super) fn commit(&mut self, fx: &mut Flash<'_>) {
        let wanted = self.log.waiting.back().map_or(self.log.wanted, |w| w.end.max(self.log.wanted));
        if wanted > self.log.cut && self.log.flushing <= self.log.written && !self.gathers {
            self.log.flush(self.page);
        }
        let covers = self.log.written;
        let begins = self.next_segment().filter(|_| self.log.writing.is_empty());
        let due = begins.is_some() || self.log.waiting.front().is_some_and(|w| w.end <= covers);
        if !self.log.syncing && due {
            let token = self.token(Io::CommitSync { covers, freed: self.freed, begins });
            self.log.syncing = true;
            self.stats.commits += 1;
            fx.manager.sync(fx.now, token, fx.out);
        }
    }
    pub(super) fn committed(&mut self, covers: Pos, begins: Option<u64>) {
        self.log.syncing = false;
        self.log.begun = self.log.begun.max(begins.unwrap_or(0));
        self.log.synced = self.log.synced.max(covers);
        while self.log.waiting.front().is_some_and(|w| w.end <= covers) {
            let Some(w) = self.log.waiting.pop_front() else { break };
            self.answers.push(w.answer);
            for key in &w.keys {
                if self.log.locked.get(key).is_some_and(|p| *p <= covers) {
                    self.log.locked.remove(key);
                }
            }
        }
        self.read_unlocked();
    }
    /// The segment whose first pages wait until all before it is durable: a power cut may take pages of one block, and leave
    /// those of another that were written later.
    fn next_segment(&self) -> Option<u64> {
        let first = self.log.queue.front().filter(|_| self.cfg.broken != Some(Broken::OverlapSegments))?;
        Some(first.end.segment).filter(|n| *n > self.log.begun)
    }
    /// Submits pages to the drive.
    pub(super) fn write(&mut self, fx: &mut Flash<'_>) {
        while self.log.writing.len() < WRITES_MAX && self.failed.is_none() && self.next_segment().is_none() {
            let Some(mut c) = self.log.queue.pop_front() else { return };
            let token = self.token(Io::Write);
            let at = (self.cfg.vssd, self.block(c.block));
            let data = Payload::Bytes(c.data.clone());
            match fx.manager.write(fx.now, at, Some(u64::from(c.offset)), &data, token, fx.out) {
                Ok(()) => {
                    self.stats.written_bytes += c.data.len() as u64;
                    c.token = token;
                    self.log.writing.push_back(c);
                }
                Err(e) => {
                    self.refused(token);
                    self.log.queue.push_front(c);
                    if !matches!(e, BlockError::QueueFull { .. }) {
                        self.fail(e);
                    }
                    return;
                }
            }
        }
    }
    pub(super) fn log_written(&mut self, token: u64) {
        // The token of a completed write may be in use again.
        if let Some(c) = self.log.writing.iter_mut().find(|c| !c.done && c.token == token) {
            c.done = true;
        }
        while self.log.writing.front().is_some_and(|c| c.done) {
            let Some(c) = self.log.writing.pop_front() else { break };
            self.log.written = c.end;
            self.log.unwritten_bytes -= c.data.len();
        }
        while let Some(first) = self.log.unwritten.first_entry()
            && *first.key() <= self.log.written
        {
            first.remove();
        }
    }
}
