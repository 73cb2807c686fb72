//! The map, from the log: of each block the last summary, then the one before it, and so on. The last page of a full
//! block is one; of a block that was being written when the power went, pages are looked at from its end on.
//!
//! A power cut may leave no superblock free: collection was filling the last one, and its victims have each something that
//! counts, such as a block of which the host's newer write was in no summary yet. Then that superblock of copies is left
//! out and freed: what was copied to it is still in its victims. For it was begun last, so nothing was written where a
//! victim of its was; and none has begun to be erased, or all that counted in it would be durable elsewhere, and it would
//! be free.

use rackweave_core::Payload;

use super::summary::{self, NONE, Summary, Unreadable};
use super::{Answer, BlockMap, Held, Io, MapDone, MapError, Op, RETRY, State};
use crate::manager::api::{Block, BlockError};

/// Blocks whose summaries are read at a time.
const BLOCKS_AT_ONCE: usize = 64;

#[derive(Debug)]
pub(super) struct Recovery {
    /// Blocks not looked at yet, and their pages.
    blocks: Vec<(Block, u32)>,
    under_way: usize,
    /// Of those under way, what waits for room in the queue of its die: block and page.
    refused: Vec<(Block, u32)>,
    /// By logical block: sequence of the entry that counts.
    newest: Vec<u64>,
    /// Trims: the block whose summary has it, logical block, sequence.
    trims: Vec<(u32, u32, u64)>,
    /// By superblock, its first sequence, and whether it holds copies.
    begun: Vec<Option<(u64, bool)>>,
    /// A superblock of copies that is left out.
    left_out: Option<u32>,
    error: Option<MapError>,
}

impl BlockMap {
    /// Finds out what is on the flash; ends with [`MapDone::Recovered`].
    pub fn recover(&mut self, io: &mut Io) {
        self.recover_without(io, None);
    }
    fn recover_without(&mut self, io: &mut Io, left_out: Option<u32>) {
        let mut blocks = Vec::new();
        let mut from = 0;
        while let Ok(Some(block)) = io.manager.next_block(self.cfg.vssd, from) {
            from = block.index + 1;
            let written = io.manager.block(block).map_or(0, |b| b.written);
            blocks.push((block, (written / u64::from(self.page_bytes)) as u32));
        }
        self.taken = blocks.len() as u32;
        blocks.reverse();
        let newest = vec![0; self.map.len()];
        self.map.fill(NONE);
        self.held.fill(Held::default());
        self.recovery = Some(Box::new(Recovery {
            blocks,
            under_way: 0,
            refused: Vec::new(),
            newest,
            trims: Vec::new(),
            begun: vec![None; self.held.len()],
            left_out,
            error: None,
        }));
        self.recover_more(io);
    }
    fn recover_more(&mut self, io: &mut Io) {
        loop {
            let Some(r) = self.recovery.as_mut() else { return };
            if r.under_way >= BLOCKS_AT_ONCE || r.error.is_some() {
                break;
            }
            let Some((block, pages)) = r.blocks.pop() else { break };
            self.held[block.index as usize].state = State::Full;
            self.held[block.index as usize].lbas = vec![NONE; self.slots as usize];
            if pages > 0 && r.left_out != Some(block.index) {
                r.under_way += 1;
                self.read_summary(io, block, pages - 1);
            }
        }
        if self.recovery.as_ref().is_some_and(|r| r.under_way == 0) {
            self.recovered(io);
        }
    }
    fn read_summary(&mut self, io: &mut Io, block: Block, page: u32) {
        let range = (u64::from(page) * u64::from(self.page_bytes), u64::from(self.page_bytes));
        let token = self.token(Op::Chain { block, page });
        if let Err(e) = io.manager.read(io.now, (self.cfg.vssd, block), range, token, io.out) {
            self.forget(token);
            if matches!(e, BlockError::QueueFull { .. })
                && let Some(r) = self.recovery.as_mut()
            {
                r.refused.push((block, page));
                self.retry = Some(io.now + RETRY);
                return;
            }
            self.chain_ends(io, Some(e.into()));
        }
    }
    /// Reads again what the queues of dies had no room for.
    pub(super) fn read_refused_summaries(&mut self, io: &mut Io) {
        self.retry = None;
        let refused = self.recovery.as_mut().map_or(Vec::new(), |r| std::mem::take(&mut r.refused));
        refused.into_iter().for_each(|(block, page)| self.read_summary(io, block, page));
    }
    pub(super) fn chained(&mut self, io: &mut Io, (block, page): (Block, u32), result: Result<Answer, BlockError>) {
        let data = match result {
            Ok(Answer::Data(d)) => d,
            Ok(_) => return,
            Err(e) => return self.chain_ends(io, Some(e.into())),
        };
        let own = |s: &Summary| s.vssd == self.cfg.vssd.0 && s.block == block.index && s.page == page;
        let found = match bytes_of(&data).map(|b| summary::decode(&b)) {
            Some(Err(Unreadable::Version(found))) => return self.chain_ends(io, Some(MapError::Version { found })),
            found => found.and_then(Result::ok).filter(own),
        };
        let previous = match found {
            Some(s) if s.exported != u64::from(self.cfg.blocks) => {
                let e = MapError::OtherSize { found: s.exported, asked: self.cfg.blocks };
                return self.chain_ends(io, Some(e));
            }
            Some(s) => {
                s.entries.iter().for_each(|e| self.take_entry(block, e));
                // The summary that is read last is the block's first.
                if let (Some(r), Some(first)) = (self.recovery.as_mut(), s.entries.first()) {
                    r.begun[block.index as usize] = Some((first.sequence, s.copies));
                }
                if s.previous != NONE && s.previous >= page {
                    // One that names itself or a later page would be read for ever.
                    return self.chain_ends(io, Some(MapError::Corrupt { block, page }));
                }
                (s.previous != NONE).then_some(s.previous)
            }
            // Also where one was due: its program failed while a later one was pending. Nothing that it would have
            // listed was answered as durable.
            None => page.checked_sub(1),
        };
        match previous {
            Some(p) => self.read_summary(io, block, p),
            None => self.chain_ends(io, None),
        }
    }
    fn take_entry(&mut self, block: Block, e: &summary::Entry) {
        let Some(r) = self.recovery.as_mut() else { return };
        if e.lba >= self.cfg.blocks || (e.slot != NONE && e.slot >= self.slots) {
            return;
        }
        let h = &mut self.held[block.index as usize];
        if e.slot == NONE {
            r.trims.push((block.index, e.lba, e.sequence));
        } else {
            h.lbas[e.slot as usize] = e.lba;
        }
        h.changed = h.changed.max(e.sequence);
        self.sequence = self.sequence.max(e.sequence);
        if e.sequence <= r.newest[e.lba as usize] {
            return;
        }
        r.newest[e.lba as usize] = e.sequence;
        self.map[e.lba as usize] = if e.slot == NONE { NONE } else { block.index * self.slots + e.slot };
    }
    fn chain_ends(&mut self, io: &mut Io, error: Option<MapError>) {
        if let Some(r) = self.recovery.as_mut() {
            r.under_way -= 1;
            r.error = r.error.or(error);
        }
        self.recover_more(io);
    }
    fn recovered(&mut self, io: &mut Io) {
        let Some(r) = self.recovery.take() else { return };
        if let Some(e) = r.error {
            return self.done.push(MapDone::Recovered { result: Err(e) });
        }
        for &l in self.map.iter().filter(|l| **l != NONE) {
            self.held[(l / self.slots) as usize].valid += 1;
        }
        // A trim that something newer stands for keeps no block: a victim whose contents are elsewhere is free at once.
        // Collection may have nothing else to go on with.
        for (block, lba, sequence) in r.trims {
            if r.newest[lba as usize] == sequence {
                self.held[block as usize].trims.push(lba);
            }
        }
        // Blocks of which nothing was kept hold no trim either.
        for b in 0..self.held.len() {
            let h = &self.held[b];
            let kept = h.valid > 0 || !h.trims.is_empty();
            let at = self.block(b as u32);
            if h.state == State::Full && !kept && io.manager.free_block(io.now, self.cfg.vssd, at, io.out).is_ok() {
                self.held[b] = Held::default();
                self.taken -= 1;
            }
        }
        let begun_last = (0..).zip(&r.begun).filter_map(|(b, f)| f.map(|(first, copies)| (first, copies, b))).max();
        if let (0, None, Some((_, true, last))) = (self.free(), r.left_out, begun_last) {
            return self.recover_without(io, Some(last));
        }
        self.ready = true;
        self.done.push(MapDone::Recovered { result: Ok(()) });
        self.go_on(io);
    }
}

/// The bytes; `None` of contents that have none, which are no summary.
fn bytes_of(data: &Payload) -> Option<bytes::Bytes> {
    data.bytes().map(|_| data.to_bytes())
}
