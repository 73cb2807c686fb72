//! Collection, a superblock at a time: what is valid in the victim is read, and written again in the log of copies; the
//! victim is freed when nothing that a power cut could take away has its place.
//!
//! Space kept free is lost to data, and data's losses become write amplification. Collection therefore begins late,
//! counts blocks that only wait for a summary as free, and puts such a summary at the end of a page that is filled
//! anyway: with copies of the next victim, if none are left of this one.

use rackweave_core::BLOCK;

use super::log::{GC, HOST, Item};
use super::summary::NONE;
use super::{Answer, BlockMap, GC_RESERVE, Held, Io, Op, State};
use crate::manager::api::BlockError;

/// Superblocks free, or waiting to be freed, below which collection goes on: the reserve and one for the host.
const FREE_LOW: u32 = GC_RESERVE + 1;
/// Reads of a victim under way at a time, and copies that wait for a place (assumed).
const READS_MAX: u32 = 16;

/// A collection under way.
#[derive(Debug)]
pub(super) struct Collect {
    block: u32,
    /// Next slot to look at.
    at: u32,
    reading: u32,
    /// Copies that wait for a place.
    waiting: u32,
    /// Its trims, when they are being copied.
    trims: Option<usize>,
}

/// A superblock that is freed when what replaced its contents is safe, in each log up to this sequence.
#[derive(Debug)]
pub(super) struct Doomed {
    block: u32,
    barriers: [u64; 2],
}

impl BlockMap {
    fn victim(&self) -> Option<u32> {
        let mut best: Option<(f64, u32)> = None;
        for (b, h) in self.held.iter().enumerate() {
            if h.state != State::Full || h.in_flight > 0 {
                continue;
            }
            let age = self.sequence - h.changed;
            let score = self.cfg.victims.score(u64::from(h.valid), u64::from(self.slots), age);
            if best.is_none_or(|(s, _)| score > s) {
                best = Some((score, b as u32));
            }
        }
        best.map(|(_, b)| b)
    }
    /// There is too little that is free, or will be, or a page of copies is to be filled.
    fn wanted(&self) -> bool {
        self.free() + (self.doomed.len() as u32) < FREE_LOW || self.streams[GC].wants_more()
    }
    /// Goes on collecting, or begins. True: something was done.
    pub(super) fn collect(&mut self, io: &mut Io) -> bool {
        if self.failed.is_some() {
            return false;
        }
        if self.collecting.is_none() {
            if !self.wanted() {
                return false;
            }
            let Some(block) = self.victim() else {
                // No further data: the rest of the page is padded.
                return self.streams[GC].close_now();
            };
            self.held[block as usize].state = State::Victim;
            self.stats.victims += 1;
            self.collecting = Some(Collect { block, at: 0, reading: 0, waiting: 0, trims: None });
        }
        let began = self.collecting.as_ref().map(|c| (c.at, c.trims));
        self.read_victim(io);
        let c = self.collecting.as_mut().expect("it was begun");
        let moved = began != Some((c.at, c.trims));
        if c.at < self.slots || c.reading > 0 || c.waiting > 0 {
            return moved;
        }
        let Some(trims) = c.trims else {
            let trims = std::mem::take(&mut self.held[c.block as usize].trims);
            c.waiting += trims.len() as u32;
            c.trims = Some(trims.len());
            self.streams[GC].queue.extend(trims.into_iter().map(|lba| Item::TrimCopy { lba }));
            return true;
        };
        let block = c.block;
        self.collecting = None;
        // Of a trim it is not known what replaced it.
        let host = if trims > 0 { self.sequence } else { self.held[block as usize].replaced[HOST] };
        self.doomed.push(Doomed { block, barriers: [host, self.sequence] });
        true
    }
    fn read_victim(&mut self, io: &mut Io) {
        while let Some(c) = &self.collecting
            && c.reading + c.waiting.div_ceil(self.spp) < READS_MAX
            && c.at < self.slots
            && self.wanted()
        {
            let (block, at) = (c.block, c.at);
            let end = (at / self.spp + 1) * self.spp;
            let valid = |slot: &u32| {
                let lba = self.held[block as usize].lbas[*slot as usize];
                lba != NONE && self.map[lba as usize] == block * self.slots + *slot
            };
            let Some(first) = (at..end).find(valid) else {
                self.collecting.as_mut().expect("it is under way").at = end;
                continue;
            };
            let n = (first..end).take_while(valid).count() as u32;
            let locations = (first..first + n).map(|s| block * self.slots + s).collect();
            let token = self.token(Op::Copy { locations });
            let range = (u64::from(first) * u64::from(BLOCK), u64::from(n) * u64::from(BLOCK));
            let at = (self.cfg.vssd, self.block(block));
            match io.manager.read(io.now, at, range, token, io.out) {
                Ok(()) => {
                    let c = self.collecting.as_mut().expect("it is under way");
                    c.at = first + n;
                    c.reading += 1;
                }
                Err(BlockError::QueueFull { .. }) => {
                    self.forget(token);
                    self.retry = Some(io.now);
                    return;
                }
                Err(e) => {
                    self.forget(token);
                    return self.fail(e);
                }
            }
        }
    }
    pub(super) fn copied(&mut self, locations: Vec<u32>, result: Result<Answer, BlockError>) {
        let Some(c) = self.collecting.as_mut() else { return };
        c.reading -= 1;
        let data = match result {
            Ok(Answer::Data(d)) => d,
            Ok(_) => return,
            // It must not be erased: there is no other copy.
            Err(e) => return self.fail(e),
        };
        c.waiting += locations.len() as u32;
        for (i, from) in (0..).zip(locations) {
            let lba = self.held[(from / self.slots) as usize].lbas[(from % self.slots) as usize];
            self.streams[GC].queue.push_back(Item::Copy { lba, data: data.block(i), from });
        }
    }
    /// A copy that waited has its place, or needs none.
    pub(super) fn copy_placed(&mut self) {
        if let Some(c) = self.collecting.as_mut() {
            c.waiting -= 1;
        }
    }
    /// Frees victims without valid data. True: one was.
    pub(super) fn free_doomed(&mut self, io: &mut Io) -> bool {
        if self.doomed.is_empty() {
            return false;
        }
        let oldest = [HOST, GC].map(|s| self.streams[s].oldest_unsafe());
        let mut freed = false;
        for d in std::mem::take(&mut self.doomed) {
            let safe = oldest.iter().zip(d.barriers).all(|(o, barrier)| o.is_none_or(|o| o > barrier));
            let at = self.block(d.block);
            if !safe {
                self.doomed.push(d);
                continue;
            }
            match io.manager.free_block(io.now, self.cfg.vssd, at, io.out) {
                Ok(()) => {
                    self.held[d.block as usize] = Held::default();
                    self.taken -= 1;
                    freed = true;
                }
                // It is being read still.
                Err(BlockError::Busy { .. }) => self.doomed.push(d),
                Err(e) => self.fail(e),
            }
        }
        // A request waits for a block, and only a summary is missing.
        let Some(barriers) = self.doomed.first().map(|d| d.barriers) else { return freed };
        let rests = self.collecting.is_none() || !self.wanted();
        let starved = self.starved(GC) || (self.starved(HOST) && rests);
        if !freed && starved {
            let goes_on = [!self.starved(HOST) && self.streams[HOST].at_work(), !self.starved(GC)];
            for s in [HOST, GC] {
                freed |= self.streams[s].ask_close(barriers[s], goes_on[s]);
            }
        }
        freed
    }
}
