//! The two logs: blocks are packed to pages, and pages fill a superblock in order. The last page of a superblock, and
//! one that a request waits for, ends with a summary.

use std::collections::VecDeque;

use rackweave_core::{BLOCK, Payload};

use super::summary::{self, Entry, Group, MAGIC, NONE, Summary};
use super::{Answer, BlockMap, Flush, GC_RESERVE, Held, Io, Op, State};
use crate::manager::api::BlockError;

/// Data written by the host.
pub(super) const HOST: usize = 0;
/// Data moved by collection.
pub(super) const GC: usize = 1;

/// Data that waits for a place.
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
    location: u32,
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
    /// With a summary: the first sequence it makes safe.
    safe: Option<u64>,
}

/// Decision about the page that is being filled.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// It ends with a summary, and has room for it.
    summary: bool,
    /// Due by its place in the superblock or the number of entries, without a request.
    due: bool,
    /// It would have room for one.
    fits: bool,
    takes: bool,
    /// Entries that it may bring.
    entries: usize,
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
    /// Entries since the last summary, of the buffer too.
    group: Group,
    /// First sequence that no summary has.
    first: Option<u64>,
    /// First sequences of summaries under way.
    closing: Vec<u64>,
    previous: Option<u32>,
    in_flight: u32,
    /// Turned away by the queue of a die.
    pub(super) refused: Option<Page>,
    /// A request waits for a summary.
    close: bool,
    /// A summary is to end the page that is being filled.
    soon: bool,
}

impl Stream {
    /// The first sequence that a power cut could take away.
    pub(super) fn oldest_unsafe(&self) -> Option<u64> {
        self.closing.iter().copied().chain(self.first).min()
    }
    /// Requests a summary of everything up to this sequence: in the page that is being filled, if the log `goes_on`,
    /// else at once. False: requested before, or nothing is missing.
    pub(super) fn ask_close(&mut self, barrier: u64, goes_on: bool) -> bool {
        if self.first.is_none_or(|f| f > barrier) {
            return false;
        }
        let new = !std::mem::replace(&mut self.soon, true);
        new | (!goes_on && self.close_now())
    }
    /// The summary that is to come comes at once. False: that is known, or none is.
    pub(super) fn close_now(&mut self) -> bool {
        self.soon && !std::mem::replace(&mut self.close, true)
    }
    /// Its page is to have a summary, when it is full.
    pub(super) fn wants_more(&self) -> bool {
        self.soon && !self.close
    }
    pub(super) fn at_work(&self) -> bool {
        self.in_flight > 0
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
            let plan = self.plan(s);
            let st = &self.streams[s];
            let (empty, waits) = (st.buffer.is_empty(), st.close && !st.group.is_empty());
            // No write is pending, or writes wait for this: the page is padded.
            let hurried = !empty && s == HOST && st.in_flight == 0;
            if !plan.takes || self.would_look_like_summary(s) || (plan.due && empty && self.whole_page_waits(s)) {
                self.emit(io, s, plan.summary);
            } else if let Some(item) = self.streams[s].queue.pop_front() {
                self.place(s, item, plan.entries);
            } else if waits || hurried {
                self.emit(io, s, plan.fits && (plan.summary || waits));
            } else {
                break;
            }
            more = true;
        }
        let st = &mut self.streams[s];
        st.close &= st.first.is_some();
        st.soon &= st.first.is_some();
        more
    }
    /// The last slot of a page of data is never taken for a summary's.
    fn would_look_like_summary(&self, s: usize) -> bool {
        let st = &self.streams[s];
        let Some(Item::Write { data, .. } | Item::Copy { data, .. }) = st.queue.front() else { return false };
        st.buffer.len() as u32 + 1 == self.spp && looks_like_summary(data)
    }
    /// A page's worth of one request is next: in one page it is read by one die, so it is not split over a page that has a
    /// summary and the one behind, nor all that follow. (Copies fill what there is: a victim must fit one superblock.)
    fn whole_page_waits(&self, s: usize) -> bool {
        let queue = &self.streams[s].queue;
        match (queue.front(), queue.get(self.spp as usize - 1)) {
            (Some(Item::Write { write: a, .. }), Some(Item::Write { write: b, .. })) => a == b,
            _ => false,
        }
    }
    /// Room of the page that is being filled. A summary always fits the next page: one is written before it could grow
    /// too long within two further pages.
    fn plan(&self, s: usize) -> Plan {
        let st = &self.streams[s];
        let (filled, spp) = (st.buffer.len() as u32, self.spp);
        let last = st.open.is_some_and(|(_, page)| page + 1 == self.pages);
        let long = st.group.slots(2 * spp as usize + 1) > spp;
        let fits = filled + st.group.slots(0) <= spp;
        let due = fits && (last || long);
        let summary = due || (fits && st.soon);
        let takes = if summary { filled + 1 + st.group.slots(1) <= spp } else { filled < spp && !long };
        let entries =
            if summary { st.group.room(spp - filled) } else { st.group.room(spp).saturating_sub(2 * spp as usize) };
        Plan { summary, due, fits, takes, entries }
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

    /// `entries`: as many may come of it.
    fn place(&mut self, s: usize, item: Item, entries: usize) {
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
                let n = blocks.min(entries as u32);
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
        self.invalidate(old, s);
    }
    fn log_trim(&mut self, s: usize, lba: u32) {
        let sequence = self.next_sequence(s);
        let (block, _) = self.streams[s].open.expect("there is an open block");
        self.held[block as usize].trims.push(lba);
        self.streams[s].group.push(Entry { sequence, lba, slot: NONE });
    }
    fn put(&mut self, s: usize, lba: u32, data: Payload, write: Option<usize>) {
        let (block, page) = self.streams[s].open.expect("there is an open block");
        let sequence = self.next_sequence(s);
        let slot = page * self.spp + self.streams[s].buffer.len() as u32;
        let location = block * self.slots + slot;
        let old = std::mem::replace(&mut self.map[lba as usize], location);
        if old != NONE {
            self.invalidate(old, s);
        }
        let h = &mut self.held[block as usize];
        h.valid += 1;
        h.changed = sequence;
        h.lbas.push(lba);
        self.fresh.insert(location, data.clone());
        self.streams[s].group.push(Entry { sequence, lba, slot });
        self.streams[s].buffer.push(Placed { location, data, write });
    }

    /// Programs what the buffer holds, filled up, with a summary at the end.
    fn emit(&mut self, io: &mut Io, s: usize, summary: bool) {
        let (block, page) = self.streams[s].open.expect("there is an open block");
        let placed = std::mem::take(&mut self.streams[s].buffer);
        let mut parts: Vec<Payload> = placed.iter().map(|p| p.data.clone()).collect();
        let mut safe = None;
        let end = if summary {
            let bytes = self.summary(s);
            safe = self.streams[s].first.take();
            self.streams[s].closing.extend(safe);
            self.streams[s].soon = false;
            self.stats.summaries += bytes.len() as u64 / u64::from(BLOCK);
            Some(Payload::Bytes(bytes))
        } else {
            let filler = placed.len() as u32..self.spp;
            let sequence = self.sequence;
            let entry = |i| Entry { sequence, lba: NONE, slot: page * self.spp + i };
            filler.for_each(|i| self.streams[s].group.push(entry(i)));
            None
        };
        let slots = |p: &Payload| p.len() / BLOCK;
        let filler = self.spp - placed.len() as u32 - end.as_ref().map_or(0, slots);
        parts.extend(std::iter::repeat_n(Payload::zero(BLOCK), filler as usize));
        parts.extend(end);
        let lbas = &mut self.held[block as usize].lbas;
        lbas.resize(((page + 1) * self.spp) as usize, NONE);
        let locations = placed.iter().map(|p| p.location).collect();
        let writes = placed.iter().filter_map(|p| p.write).collect();
        self.stats.filler += u64::from(filler);
        self.next_page(io, Page { stream: s, block, data: Payload::concat(&parts), locations, writes, safe });
    }
    /// Of all since the one before, of the page that is being filled too.
    fn summary(&mut self, s: usize) -> bytes::Bytes {
        let (block, page) = self.streams[s].open.expect("there is an open block");
        let st = &mut self.streams[s];
        let entries = st.group.take();
        let previous = st.previous.replace(page).unwrap_or(NONE);
        let (vssd, exported) = (self.cfg.vssd.0, u64::from(self.cfg.blocks));
        summary::encode(&Summary { vssd, block, page, previous, exported, copies: s == GC, entries })
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
