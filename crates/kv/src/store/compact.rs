//! Compaction (§3.5, FB10): the block with the least live data is read from start to end, its live records are appended
//! to the log, and the block is freed.

use rackweave_core::Payload;
use rackweave_flash::manager::api::{Block, BlockError};

use super::format::{Item, Kind, Pos, Record, Scanner};
use super::{Broken, Flash, Io, Loc, Store};

#[derive(Debug)]
pub(super) struct Compaction {
    block: u32,
    number: u64,
    scanner: Scanner,
    pub(super) reading: bool,
}

impl Store {
    pub(super) fn compact(&mut self, fx: &mut Flash<'_>) {
        loop {
            if self.compaction.is_none() {
                if !self.wants_compaction() {
                    return;
                }
                self.free_the_dead();
                let Some(block) = self.victim() else { return };
                let number = self.segments[&block].number;
                let Ok(info) = fx.manager.block(self.block(block)) else { return };
                let scanner = Scanner::new(number, self.page, (info.written as u32, self.size), 0);
                self.compaction = Some(Compaction { block, number, scanner, reading: false });
            }
            if self.log.is_full() || !self.compact_next(fx) {
                return;
            }
        }
    }
    /// Processes one record, or gives up a damaged block. False if it must wait, or the block is done.
    fn compact_next(&mut self, fx: &mut Flash<'_>) -> bool {
        let c = self.compaction.as_mut().expect("under way");
        if c.reading {
            return false;
        }
        match c.scanner.item() {
            Item::Record(r) => {
                let (block, number) = (c.block, c.number);
                if self.must_move(block, number, &r) {
                    if !self.log_ready(fx, r.len) {
                        return false;
                    }
                    self.append(r.kind, r.key[..].into(), r.value.clone());
                    self.stats.moved_bytes += u64::from(r.len);
                }
                if let Some(c) = &mut self.compaction {
                    c.scanner.advance(&r);
                }
                true
            }
            Item::More { offset, bytes } => {
                let at = (self.cfg.vssd, Block { vssd: self.cfg.vssd, index: c.block });
                let token = self.token(Io::Chunk);
                match fx.manager.read(fx.now, at, (u64::from(offset), u64::from(bytes)), token, fx.out) {
                    Ok(()) => self.compaction.as_mut().expect("under way").reading = true,
                    Err(e) => {
                        self.refused(token);
                        if !matches!(e, BlockError::QueueFull { .. }) {
                            self.compaction_read(Err(e));
                            return true;
                        }
                    }
                }
                false
            }
            Item::End | Item::Torn => {
                let block = Block { vssd: self.cfg.vssd, index: c.block };
                self.compaction = None;
                self.stats.compactions += 1;
                self.log.flush_soon();
                self.releasing.push((block, self.log.end));
                false
            }
            Item::Corrupt { .. } => {
                self.leave_corrupt();
                true
            }
        }
    }
    fn leave_corrupt(&mut self) {
        let Some(c) = self.compaction.take() else { return };
        self.stats.corrupt_blocks += 1;
        if let Some(s) = self.segments.get_mut(&c.block) {
            s.corrupt = true;
        }
    }
    pub(super) fn compaction_read(&mut self, result: Result<Payload, BlockError>) {
        let Some(c) = &mut self.compaction else { return };
        c.reading = false;
        match result {
            Ok(data) => c.scanner.feed(data.to_bytes()),
            Err(_) => self.leave_corrupt(),
        }
    }
    fn must_move(&self, block: u32, number: u64, r: &Record) -> bool {
        let known = self.index.get(&r.key[..]);
        match r.kind {
            Kind::Put => known == Some(&Loc { block, offset: r.offset, len: r.len }),
            // Once a complete checkpoint has begun behind it, no older record of its key is replayed.
            Kind::Delete => {
                let covered = Pos { segment: number, offset: r.offset } < self.checkpoint.from();
                known.is_none() && !covered && self.cfg.broken != Some(Broken::LoseTombstones)
            }
            Kind::Entries | Kind::End | Kind::Batch => false,
        }
    }
    /// Whether the block of the log is complete, and not being freed. Its batches are durable: a moved record must not
    /// survive a power cut in which the rest of its batch is lost.
    fn settled(&self, block: u32, number: u64) -> bool {
        let batch = self.segments.get(&block).map_or(0, |s| s.batch_end);
        let durable = batch == 0 || Pos { segment: number, offset: batch } <= self.log.synced();
        number < self.log.written.segment
            && durable
            && !self.log.is_head(block)
            && !self.releasing.iter().any(|(b, _)| b.index == block)
    }
    fn free_the_dead(&mut self) {
        let dead = self.segments.iter().filter(|(b, s)| s.live + s.tombs == 0 && self.settled(**b, s.number));
        let dead: Vec<u32> = dead.map(|(b, _)| *b).collect();
        if dead.is_empty() {
            return;
        }
        self.log.flush_soon();
        for block in dead {
            self.releasing.push((self.block(block), self.log.end));
        }
    }
    /// The block to compact, if space is needed and a block yields some.
    pub(super) fn victim(&self) -> Option<u32> {
        let packed = self.packed();
        let most = packed.saturating_sub(self.gain_min());
        let held = |s: &super::Segment| s.live + s.tombs;
        let candidates = self.segments.iter();
        let candidates = candidates.filter(|(b, s)| held(s) <= most && !s.corrupt && self.settled(**b, s.number));
        let score = |s: &super::Segment| self.cfg.victims.score(held(s), packed, self.now.since(s.changed).0);
        // Of equal scores, the oldest.
        let best = candidates.max_by(|(_, a), (_, b)| score(a).total_cmp(&score(b)).then(b.number.cmp(&a.number)));
        best.map(|(block, _)| *block)
    }
    /// Frees compacted blocks, and starts a sync that lets them count as free.
    pub(super) fn release(&mut self, fx: &mut Flash<'_>) {
        let early = self.cfg.broken == Some(Broken::FreeEarly);
        let mut rest = Vec::new();
        for (block, at) in std::mem::take(&mut self.releasing) {
            if at > self.log.written && !early {
                rest.push((block, at));
                continue;
            }
            match fx.manager.free_block(fx.now, block.vssd, block, fx.out) {
                Ok(()) => {
                    if let Some(s) = self.segments.remove(&block.index) {
                        self.tombs -= s.tombs;
                    }
                    self.freed += 1;
                }
                // A read of the block is pending.
                Err(BlockError::Busy { .. }) => rest.push((block, at)),
                Err(e) => self.fail(e),
            }
        }
        self.releasing.extend(rest);
        if self.freed > self.freed_durably && !self.syncing_freed && self.failed.is_none() {
            self.syncing_freed = true;
            let token = self.token(Io::FreedSync { freed: self.freed });
            fx.manager.sync(fx.now, token, fx.out);
        }
    }
}
