//! Checkpoints: the index, written to its own blocks while the store serves requests.

use std::ops::Bound;

use bytes::Bytes;
use rackweave_core::Payload;
use rackweave_flash::manager::api::{Block, BlockError};

use super::format::{
    ENTRY_HEAD, Kind, Pos, RECORD_HEAD, SEGMENT_HEAD, SegmentHead, encode_entry, encode_head, encode_record,
};
use super::{Broken, Flash, Io, Key, Store};

/// A checkpoint is written when the log has grown by this many times its size, so it adds an eighth to the bytes
/// written …
const GROWTH: u64 = 8;
/// … or by this many blocks, if that is more.
const GROWTH_BLOCKS_MIN: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Pieces,
    /// Waits until the log is programmed up to the position, as entries may refer to it.
    Settle(Pos),
    Sync,
    End,
    EndSync,
}

/// A checkpoint that is being written.
#[derive(Debug)]
struct Writer {
    generation: u64,
    from: Pos,
    /// [`super::log::Log::appended`] when it began.
    appended: u64,
    /// The head's number and its bytes of tombstones when the checkpoint began.
    head_tombs: (u64, u64),
    blocks: Vec<Block>,
    /// Bytes written of the last block.
    at: u32,
    cursor: Bound<Key>,
    entries: u64,
    phase: Phase,
    /// A piece that the drive's queue had no room for.
    refused: Option<Bytes>,
    under_way: bool,
}

#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    /// The start of the newest complete checkpoint, and its blocks.
    from: Pos,
    blocks: Vec<Block>,
    pub(super) next_generation: u64,
    appended: u64,
    wanted: bool,
    writer: Option<Box<Writer>>,
}

impl Checkpoints {
    pub(super) fn from(&self) -> Pos {
        self.from
    }
    pub(super) fn blocks(&self) -> u32 {
        self.blocks.len() as u32
    }
    /// Blocks of the checkpoint that is being written, the requested one included.
    pub(super) fn new_blocks(&self) -> u32 {
        self.writer.as_ref().map_or(0, |w| w.blocks.len() as u32 + u32::from(w.under_way && w.at == 0))
    }
    pub(super) fn all_blocks(&self) -> u32 {
        self.blocks() + self.new_blocks()
    }
    pub(super) fn wants_poll(&self) -> bool {
        self.writer.as_ref().is_some_and(|w| !w.under_way)
    }
    /// Sets the state found by recovery; `behind` is the number of bytes of the log since the checkpoint began.
    pub(super) fn restore(&mut self, from: Pos, blocks: Vec<Block>, next_generation: u64, behind: u64) {
        (self.from, self.blocks, self.next_generation) = (from, blocks, next_generation);
        // As if the log had grown by that much since.
        self.wanted = false;
        self.appended = 0u64.wrapping_sub(behind);
    }
    /// Requests a checkpoint soon; false if it would cover nothing more.
    pub(super) fn force(&mut self, end: Pos) -> bool {
        if self.writer.is_none() && end <= self.from {
            return false;
        }
        self.wanted |= self.writer.is_none();
        true
    }
    pub(super) fn piece_written(&mut self) {
        if let Some(w) = &mut self.writer {
            w.under_way = false;
            if w.phase == Phase::End {
                w.phase = Phase::EndSync;
            }
        }
    }
    pub(super) fn allocated(&mut self, block: Block) {
        if let Some(w) = &mut self.writer {
            w.under_way = false;
            w.blocks.push(block);
            w.at = 0;
        }
    }
}

impl Store {
    /// Whether a checkpoint is being written or has been requested.
    pub(super) fn checkpoint_comes(&self) -> bool {
        self.checkpoint.writer.is_some() || self.checkpoint_due()
    }
    fn checkpoint_due(&self) -> bool {
        let grown = self.log.appended.wrapping_sub(self.checkpoint.appended);
        let due = (GROWTH * self.index_bytes).max(GROWTH_BLOCKS_MIN * u64::from(self.size));
        self.checkpoint.wanted || grown >= due
    }
    pub(super) fn write_checkpoint(&mut self, fx: &mut Flash<'_>) {
        if self.checkpoint.writer.is_none() {
            if !self.checkpoint_due() {
                return;
            }
            self.begin_checkpoint();
        }
        // At most four states: piece, sync, end, sync.
        for _ in 0..4 {
            let w = self.checkpoint.writer.as_mut().expect("under way");
            if w.under_way {
                return;
            }
            match w.phase {
                Phase::Pieces => self.write_piece(fx),
                Phase::Settle(at) => {
                    if self.cfg.broken == Some(Broken::CheckpointEarly) {
                        w.phase = Phase::End;
                        continue;
                    }
                    if self.log.written < at {
                        return;
                    }
                    w.phase = Phase::Sync;
                }
                Phase::Sync | Phase::EndSync => {
                    w.under_way = true;
                    let token = self.token(Io::PieceSync { freed: self.freed });
                    fx.manager.sync(fx.now, token, fx.out);
                }
                Phase::End => self.write_end(fx),
            }
        }
    }
    fn begin_checkpoint(&mut self) {
        let head = self.log.head_number();
        let tombs = self.segments.values().find(|s| s.number == head).map_or(0, |s| s.tombs);
        self.checkpoint.wanted = false;
        self.checkpoint.writer = Some(Box::new(Writer {
            generation: self.checkpoint.next_generation,
            from: self.log.end,
            appended: self.log.appended,
            head_tombs: (head, tombs),
            blocks: Vec::new(),
            at: self.size,
            cursor: Bound::Unbounded,
            entries: 0,
            phase: Phase::Pieces,
            refused: None,
            under_way: false,
        }));
        self.checkpoint.next_generation += 1;
    }
    fn write_piece(&mut self, fx: &mut Flash<'_>) {
        if self.try_again(fx) || !self.has_room(fx) {
            return;
        }
        let max = self.piece_max();
        let w = self.checkpoint.writer.as_mut().expect("under way");
        let head = if w.at == 0 { SEGMENT_HEAD } else { 0 };
        let room = (max - head - RECORD_HEAD) as usize;
        let mut body = Vec::with_capacity(room);
        for (key, l) in self.index.range((w.cursor.clone(), Bound::Unbounded)) {
            if body.len() + ENTRY_HEAD + key.len() > room {
                break;
            }
            encode_entry(&mut body, key, (l.block, l.offset, l.len));
            w.entries += 1;
            w.cursor = Bound::Excluded(key.clone());
        }
        if body.is_empty() {
            w.phase = Phase::Settle(self.log.end);
            return self.log.flush_soon();
        }
        self.send_record(fx, Kind::Entries, &body);
    }
    fn write_end(&mut self, fx: &mut Flash<'_>) {
        if self.try_again(fx) || !self.has_room(fx) {
            return;
        }
        let entries = self.checkpoint.writer.as_ref().expect("under way").entries;
        self.send_record(fx, Kind::End, &entries.to_le_bytes());
    }
    /// Whether the block has room for another piece; requests the next block if not.
    fn has_room(&mut self, fx: &mut Flash<'_>) -> bool {
        let max = self.piece_max();
        let w = self.checkpoint.writer.as_mut().expect("under way");
        if w.at + max <= self.size {
            return true;
        }
        if self.free_blocks() == 0 {
            return false;
        }
        let token = self.token(Io::PieceAlloc);
        match fx.manager.alloc_block(fx.now, self.cfg.vssd, token, fx.out) {
            Ok(()) => {
                let w = self.checkpoint.writer.as_mut().expect("under way");
                (w.under_way, w.at) = (true, 0);
            }
            Err(e) => {
                self.refused(token);
                self.fail(e);
            }
        }
        false
    }
    fn send_record(&mut self, fx: &mut Flash<'_>, kind: Kind, body: &[u8]) {
        let page = self.page as usize;
        let w = self.checkpoint.writer.as_ref().expect("under way");
        let mut buf = Vec::new();
        if w.at == 0 {
            let part = w.blocks.len() as u32 - 1;
            let head = SegmentHead::Checkpoint { generation: w.generation, part, from: w.from };
            buf.extend_from_slice(&encode_head(&head));
        }
        let offset = w.at + buf.len() as u32;
        encode_record(&mut buf, (w.generation, offset), kind, &[], body);
        buf.resize(buf.len().next_multiple_of(page), 0);
        self.send_piece(fx, buf.into());
    }
    /// Retries a refused piece; true if there was one.
    fn try_again(&mut self, fx: &mut Flash<'_>) -> bool {
        let w = self.checkpoint.writer.as_mut().expect("under way");
        let Some(data) = w.refused.take() else { return false };
        self.send_piece(fx, data);
        true
    }
    fn send_piece(&mut self, fx: &mut Flash<'_>, data: Bytes) {
        let token = self.token(Io::Piece);
        let w = self.checkpoint.writer.as_mut().expect("under way");
        let at = (self.cfg.vssd, *w.blocks.last().expect("it has room"));
        let (offset, n) = (u64::from(w.at), data.len() as u32);
        match fx.manager.write(fx.now, at, Some(offset), &Payload::Bytes(data.clone()), token, fx.out) {
            Ok(()) => {
                w.under_way = true;
                w.at += n;
                self.stats.written_bytes += u64::from(n);
                self.stats.checkpoint_bytes += u64::from(n);
            }
            Err(BlockError::QueueFull { .. }) => {
                w.refused = Some(data);
                self.refused(token);
            }
            Err(e) => {
                self.refused(token);
                self.fail(e);
            }
        }
    }
    pub(super) fn checkpoint_synced(&mut self, fx: &mut Flash<'_>) {
        let Some(w) = &mut self.checkpoint.writer else { return };
        w.under_way = false;
        if w.phase == Phase::Sync {
            w.phase = Phase::End;
            return;
        }
        let Some(w) = self.checkpoint.writer.take() else { return };
        let old = std::mem::replace(&mut self.checkpoint.blocks, w.blocks);
        (self.checkpoint.from, self.checkpoint.appended) = (w.from, w.appended);
        self.stats.checkpoints += 1;
        for s in self.segments.values_mut().filter(|s| s.number <= w.head_tombs.0) {
            let covered = if s.number < w.head_tombs.0 { s.tombs } else { w.head_tombs.1 };
            s.tombs -= covered;
            self.tombs -= covered;
        }
        for block in old {
            match fx.manager.free_block(fx.now, block.vssd, block, fx.out) {
                Ok(()) => self.freed += 1,
                Err(e) => self.fail(e),
            }
        }
    }
}
