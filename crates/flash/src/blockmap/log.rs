//! The two logs: blocks are packed to pages, pages follow one another through a superblock.

use std::collections::VecDeque;

use rackweave_core::{BLOCK, Payload};

use super::summary::{self, Entry, MAGIC, NONE, Summary};
use super::{Answer, BlockMap, Flush, GC_RESERVE, Held, Io, Op, State};
use crate::manager::api::BlockError;

/// What the host writes.
pub(super) const HOST: usize = 0;
/// What collection moves.
pub(super) const GC: usize = 1;

/// What waits for a place.
#[derive(Debug)]
pub(super) enum Item {
    Write {
        lba: u32,
        data: Payload,
        write: usize,
    },
    Trim {
        lba: u32,
        blocks: u32,
        write: usize,
    },
    Flush {
        token: u64,
    },
    /// Valid contents of a victim, from this location.
    Copy {
        lba: u32,
        data: Payload,
        from: u32,
    },
    /// A victim says that this was trimmed.
    TrimCopy {
        lba: u32,
    },
}

/// A slot of the page that is being filled.
#[derive(Debug)]
struct Placed {
    entry: Entry,
    data: Payload,
    write: Option<usize>,
}

/// A page on its way to the flash.
#[derive(Debug)]
pub(super) struct Page {
    stream: usize,
    block: u32,
    data: Payload,
    /// Locations it makes readable.
    locations: Vec<u32>,
    writes: Vec<usize>,
    /// Of a summary: the first sequence it makes safe.
    safe: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Superblock and its next page.
    open: Option<(u32, u32)>,
    /// To be opened next.
    next: Option<u32>,
    asked: bool,
    pub(super) queue: VecDeque<Item>,
    buffer: Vec<Placed>,
    /// Entries of pages since the last summary.
    group: Vec<Entry>,
    /// First sequence that no summary has.
    first: Option<u64>,
    /// First sequences of summaries under way.
    closing: Vec<u64>,
    previous: Option<u32>,
    in_flight: u32,
    /// Turned away by the queue of a die.
    pub(super) refused: Option<Page>,
    /// Somebody waits for a summary.
    close: bool,
}

impl Stream {
    /// The first sequence that a power cut could take away.
    pub(super) fn oldest_unsafe(&self) -> Option<u64> {
        self.closing.iter().copied().chain(self.first).min()
    }
    /// Somebody waits for its summary. False: that is known, or nothing is missing in one.
    pub(super) fn ask_close(&mut self) -> bool {
        self.first.is_some() && !std::mem::replace(&mut self.close, true)
    }
    /// Requests of the host that wait in it, which fails.
    pub(super) fn take_waiting(&mut self) -> (Vec<Item>, Vec<usize>, Option<Page>) {
        let writes = std::mem::take(&mut self.buffer).into_iter().filter_map(|p| p.write).collect();
        (std::mem::take(&mut self.queue).into(), writes, self.refused.take())
    }
}

impl BlockMap {
    /// Places what waits. True: something was done.
    pub(super) fn fill(&mut self, io: &mut Io, s: usize) -> bool {
        let mut more = false;
        while self.failed.is_none() && self.ready_to_place(io, s) {
            let Some((_, page)) = self.streams[s].open else { break };
            let st = &self.streams[s];
            let room = summary::entries_max(self.page_bytes);
            let due = page + 1 == self.pages || st.group.len() + self.spp as usize + 1 > room;
            let (filled, empty) = (st.buffer.len(), st.buffer.is_empty());
            // Nobody writes any more, or waits for this before he writes: what is missing is filled up.
            let hurried = !empty && (st.close || (s == HOST && st.in_flight == 0));
            let closes = st.close && !st.group.is_empty();
            if due && empty {
                self.emit_summary(io, s);
            } else if due || filled == self.spp as usize {
                self.emit_data(io, s);
            } else if let Some(item) = self.streams[s].queue.pop_front() {
                self.place(s, item);
            } else if hurried {
                self.emit_data(io, s);
            } else if closes {
                self.emit_summary(io, s);
            } else {
                break;
            }
            more = true;
        }
        let st = &mut self.streams[s];
        st.close &= st.first.is_some();
        more
    }
    /// There is an open superblock, and nothing that was turned away.
    fn ready_to_place(&mut self, io: &mut Io, s: usize) -> bool {
        if let Some(page) = self.streams[s].refused.take() {
            self.send(io, page);
        }
        if self.streams[s].refused.is_some() {
            return false;
        }
        if self.streams[s].open.is_none()
            && let Some(block) = self.streams[s].next.take()
        {
            self.streams[s].open = Some((block, 0));
            self.streams[s].previous = None;
        }
        let st = &self.streams[s];
        let wanted = match st.open {
            None => !st.queue.is_empty(),
            // The host's next block is there before it is needed: it may have to be erased.
            Some((_, page)) => s == HOST && page >= self.pages / 2,
        };
        if wanted && st.next.is_none() && !st.asked && self.free() > reserve(s) {
            self.streams[s].asked = true;
            self.taken += 1;
            let token = self.token(Op::Alloc { stream: s });
            if let Err(e) = io.manager.alloc_block(io.now, self.cfg.vssd, token, io.out) {
                self.forget(token);
                self.fail(e);
            }
        }
        self.streams[s].open.is_some()
    }
    /// Something waits for a superblock, and none may be taken.
    pub(super) fn starved(&self, s: usize) -> bool {
        let st = &self.streams[s];
        !st.queue.is_empty() && st.open.is_none() && st.next.is_none() && !st.asked && self.free() <= reserve(s)
    }
    pub(super) fn allocated(&mut self, s: usize, result: Result<Answer, BlockError>) {
        self.streams[s].asked = false;
        match result {
            Ok(Answer::Block(b)) => {
                let lbas = Vec::with_capacity(self.slots as usize);
                self.held[b.index as usize] = Held { state: State::Open, lbas, ..Held::default() };
                self.streams[s].next = Some(b.index);
            }
            Ok(_) => {}
            Err(e) => self.fail(e),
        }
    }

    fn place(&mut self, s: usize, item: Item) {
        match item {
            Item::Write { lba, data, write } => {
                self.stats.written += 1;
                self.put(s, lba, data, Some(write));
            }
            Item::Copy { lba, data, from } => {
                self.copy_placed();
                // Written anew in the meantime: nothing to move.
                if self.map[lba as usize] == from {
                    self.stats.moved += 1;
                    self.put(s, lba, data, None);
                }
            }
            Item::Trim { lba, blocks, write } => {
                // As many as this summary takes; the rest next.
                let room = summary::entries_max(self.page_bytes) - self.streams[s].group.len() - self.spp as usize;
                let n = blocks.min(room as u32);
                (lba..lba + n).for_each(|lba| self.trim_one(s, lba));
                if n < blocks {
                    return self.streams[s].queue.push_front(Item::Trim { lba: lba + n, blocks: blocks - n, write });
                }
                self.write_part_done(write, None);
            }
            Item::TrimCopy { lba } => {
                self.copy_placed();
                if self.map[lba as usize] == NONE {
                    self.log_trim(s, lba);
                }
            }
            Item::Flush { token } => {
                self.flushes.push(Flush { token, barrier: self.sequence });
                self.streams[s].close = true;
            }
        }
    }
    fn next_sequence(&mut self, s: usize) -> u64 {
        self.sequence += 1;
        self.streams[s].first.get_or_insert(self.sequence);
        self.sequence
    }
    fn trim_one(&mut self, s: usize, lba: u32) {
        let old = std::mem::replace(&mut self.map[lba as usize], NONE);
        if old == NONE {
            return;
        }
        self.log_trim(s, lba);
        self.invalidate(old);
    }
    fn log_trim(&mut self, s: usize, lba: u32) {
        let sequence = self.next_sequence(s);
        let (block, _) = self.streams[s].open.expect("there is an open block");
        self.held[block as usize].trims.push(lba);
        self.streams[s].group.push(Entry { sequence, lba, slot: NONE });
    }
    fn put(&mut self, s: usize, lba: u32, data: Payload, write: Option<usize>) {
        let (block, page) = self.streams[s].open.expect("there is an open block");
        // A page of data must not look like a summary.
        if self.streams[s].buffer.is_empty() && looks_like_summary(&data) {
            let entry = Entry { sequence: self.sequence, lba: NONE, slot: NONE };
            self.streams[s].buffer.push(Placed { entry, data: Payload::zero(BLOCK), write: None });
            self.held[block as usize].lbas.push(NONE);
        }
        let sequence = self.next_sequence(s);
        let slot = page * self.spp + self.streams[s].buffer.len() as u32;
        let location = block * self.slots + slot;
        let old = std::mem::replace(&mut self.map[lba as usize], location);
        if old != NONE {
            self.invalidate(old);
        }
        let h = &mut self.held[block as usize];
        h.valid += 1;
        h.changed = sequence;
        h.lbas.push(lba);
        self.fresh.insert(location, data.clone());
        self.streams[s].buffer.push(Placed { entry: Entry { sequence, lba, slot }, data, write });
    }

    /// Programs what the buffer holds, filled up.
    fn emit_data(&mut self, io: &mut Io, s: usize) {
        let (block, _) = self.streams[s].open.expect("there is an open block");
        let placed = std::mem::take(&mut self.streams[s].buffer);
        let mut parts: Vec<Payload> = placed.iter().map(|p| p.data.clone()).collect();
        parts.resize(self.spp as usize, Payload::zero(BLOCK));
        let filler = self.spp as usize - placed.len();
        self.held[block as usize].lbas.extend(std::iter::repeat_n(NONE, filler));
        let real = placed.iter().filter(|p| p.entry.lba != NONE);
        self.streams[s].group.extend(real.clone().map(|p| p.entry));
        let locations = real.map(|p| block * self.slots + p.entry.slot).collect();
        let writes = placed.iter().filter_map(|p| p.write).collect();
        let data = Payload::concat(&parts);
        self.next_page(io, Page { stream: s, block, data, locations, writes, safe: None });
    }
    fn emit_summary(&mut self, io: &mut Io, s: usize) {
        let (block, page) = self.streams[s].open.expect("there is an open block");
        let st = &mut self.streams[s];
        let entries = std::mem::take(&mut st.group);
        let safe = st.first.take();
        st.closing.extend(safe);
        let previous = st.previous.replace(page).unwrap_or(NONE);
        let (vssd, exported) = (self.cfg.vssd.0, u64::from(self.cfg.blocks));
        let summary = Summary { vssd, block, page, previous, exported, entries };
        let data = Payload::Bytes(summary::encode(&summary, self.page_bytes));
        self.held[block as usize].lbas.extend(std::iter::repeat_n(NONE, self.spp as usize));
        self.stats.summaries += 1;
        self.next_page(io, Page { stream: s, block, data, locations: Vec::new(), writes: Vec::new(), safe });
    }
    fn next_page(&mut self, io: &mut Io, page: Page) {
        let s = page.stream;
        let (block, at) = self.streams[s].open.expect("there is an open block");
        self.streams[s].open = Some((block, at + 1)).filter(|_| at + 1 < self.pages);
        let h = &mut self.held[block as usize];
        h.in_flight += 1;
        if at + 1 == self.pages {
            h.state = State::Full;
        }
        self.stats.programmed += u64::from(self.spp);
        self.streams[s].in_flight += 1;
        self.send(io, page);
    }
    fn send(&mut self, io: &mut Io, page: Page) {
        let at = (self.cfg.vssd, self.block(page.block));
        let (s, data) = (page.stream, page.data.clone());
        let token = self.token(Op::Page(page));
        match io.manager.write(io.now, at, None, &data, token, io.out) {
            Ok(()) => {}
            Err(e) => {
                let Op::Page(page) = self.forget(token) else { unreachable!("it was put there") };
                if matches!(e, BlockError::QueueFull { .. }) {
                    self.streams[s].refused = Some(page);
                } else {
                    self.programmed(page, Err(e));
                }
            }
        }
    }
    pub(super) fn programmed(&mut self, page: Page, result: Result<(), BlockError>) {
        let Page { stream, block, locations, writes, safe, .. } = page;
        self.streams[stream].in_flight -= 1;
        self.held[block as usize].in_flight -= 1;
        if let Err(e) = result {
            // Contents stay in memory to be read; they are not on the flash.
            self.fail(e);
        } else {
            for l in locations {
                self.fresh.remove(&l);
            }
            if let Some(at) = safe.and_then(|safe| self.streams[stream].closing.iter().position(|c| *c == safe)) {
                self.streams[stream].closing.remove(at);
            }
        }
        writes.into_iter().for_each(|w| self.write_part_done(w, result.err().map(Into::into)));
    }
}

/// Free superblocks that this log leaves.
fn reserve(s: usize) -> u32 {
    if s == HOST { GC_RESERVE } else { 0 }
}

fn looks_like_summary(data: &Payload) -> bool {
    data.bytes().is_some_and(|b| b.starts_with(&MAGIC))
}
