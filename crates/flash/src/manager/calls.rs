//! The calls of Table 3 and their rules: vSSDs and blocks are allocated, written, read and freed.

use rackweave_core::device::{PageImage, Slot, SlotRecord};
use rackweave_core::{BLOCK, Payload, SECTORS_PER_BLOCK, Time, VssdId};

use super::alloc::Units;
use super::api::{AllocDiesError, AllocError, Block, BlockError};
use super::io::{At, Kind, Op, Request, Who, Work};
use super::record::{VSSDS_MAX, VssdRecord};
use super::round::After;
use super::space::{Logical, NONE, PhysState};
use super::vssd::{Life, LogVssd, State, Superblock, slot_record};
use super::{Done, FlashManager, ManagerOut};
use crate::isolation::Isolation;

impl FlashManager {
    /// `AllocVirtualSSD`; answered by [`Done::VssdAllocated`] when that is durable.
    pub fn alloc_vssd(
        &mut self,
        now: Time,
        (isolation, level, capacity): (Isolation, u32, u64),
        token: u64,
        out: &mut ManagerOut,
    ) -> Result<(), AllocError> {
        self.now = self.now.max(now);
        if !self.ready {
            return Err(AllocError::NotReady);
        }
        if let Some(e) = self.failed() {
            return Err(AllocError::Failed(e));
        }
        if self.vssds.len() >= VSSDS_MAX {
            return Err(AllocError::TooMany { max: VSSDS_MAX });
        }
        let id = VssdId(self.next_vssd);
        let units = self.alloc.alloc(id, isolation, level, capacity)?.clone();
        self.next_vssd += 1;
        self.bear((id, level, capacity), units, token, out);
        Ok(())
    }
    /// The same of whole channels or of dies, with an id of the caller's choice that no vSSD has: later ones of
    /// [`FlashManager::alloc_vssd`] are greater. It has dies ([`Isolation::Die`]) in both cases.
    pub fn alloc_dies(
        &mut self,
        now: Time,
        (id, isolation, units): (VssdId, Isolation, u32),
        token: u64,
        out: &mut ManagerOut,
    ) -> Result<(), AllocDiesError> {
        self.now = self.now.max(now);
        if !self.ready {
            return Err(AllocDiesError::NotReady);
        }
        if let Some(e) = self.failed() {
            return Err(AllocDiesError::Failed(e));
        }
        if self.vssds.contains_key(&id) {
            return Err(AllocDiesError::Exists { vssd: id });
        }
        if self.vssds.len() >= VSSDS_MAX {
            return Err(AllocDiesError::TooMany { max: VSSDS_MAX });
        }
        let free = self.alloc.available(isolation);
        let none = AllocDiesError::NoUnits { isolation, asked: units, free };
        let units = self.alloc.alloc_dies(id, isolation, units).ok_or(none)?.clone();
        self.next_vssd = self.next_vssd.max(id.0.saturating_add(1));
        let capacity = units.numbers.len() as u64 * self.alloc.cut().unit_bytes(Isolation::Die);
        self.bear((id, 0, capacity), units, token, out);
        Ok(())
    }
    /// The vSSD has these units; it is recorded when nothing of an earlier one is there.
    fn bear(&mut self, (id, level, capacity): (VssdId, u32, u64), units: Units, token: u64, out: &mut ManagerOut) {
        let cut = *self.alloc.cut();
        let parts = self.cfg.parts(&units);
        self.install(LogVssd::new(VssdRecord { id, level, capacity, units, parts }, &cut));
        self.unborn.push((id, token));
        self.settle_unborn();
        self.pump(out);
    }
    /// Records the vSSDs whose addresses no erase block has any longer from an earlier vSSD; after a power cut such
    /// blocks would be found in them.
    pub(super) fn settle_unborn(&mut self) {
        for (vssd, token) in std::mem::take(&mut self.unborn) {
            let v = &self.vssds[&vssd];
            let borne = |l: Logical| self.drive.map.claims(l) > 0;
            let borne = (0..v.blocks.len() as u32).any(|i| v.lanes(i).any(borne));
            if self.failed().is_none() && borne && !mutant!("flash.manager.born-early") {
                self.unborn.push((vssd, token));
                continue;
            }
            self.live_mut(vssd).life = Life::Live;
            self.rounds.change_record();
            self.rounds.want(After::VssdAllocated { vssd, token });
        }
    }
    /// `DeallocVirtualSSD`; answered by [`Done::VssdFreed`] when that is durable.
    pub fn dealloc_vssd(
        &mut self,
        now: Time,
        vssd: VssdId,
        token: u64,
        out: &mut ManagerOut,
    ) -> Result<(), BlockError> {
        self.now = self.now.max(now);
        let v = self.live(vssd)?;
        if v.busy > 0 || !v.waiting.is_empty() {
            return Err(BlockError::VssdInUse { vssd, requests: v.busy + v.waiting.len() as u32 });
        }
        if let Some(e) = self.failed() {
            return Err(e.into());
        }
        self.live_mut(vssd).life = Life::Dying;
        self.rounds.change_record();
        self.rounds.want(After::VssdFreed { vssd, token });
        self.pump(out);
        Ok(())
    }
    /// The record no longer has the vSSD.
    pub(super) fn vssd_gone(&mut self, vssd: VssdId) {
        let Some(v) = self.vssds.remove(&vssd) else { return };
        let cut = *self.alloc.cut();
        for (die, soft_planes) in v.shares(&cut) {
            let home = self.drive.map.home(die);
            self.dies[home as usize].queue.leave(v.flow, soft_planes);
        }
        v.soft_planes(&cut).into_iter().for_each(|p| self.owners[p as usize] = None);
        for (i, s) in v.blocks.iter().enumerate().filter(|(_, s)| s.state != State::Free) {
            for lane in 0..v.width() {
                self.unmap(v.lane(i as u32, lane), v.pages_in(s.written, lane) > 0);
            }
        }
        self.alloc.free_vssd(vssd);
    }
    /// Takes the address out of the map. `programmed`: its erase block bears it.
    fn unmap(&mut self, l: Logical, programmed: bool) {
        let block = self.drive.map.unmap(l);
        if block == NONE {
            return;
        }
        if self.phys[block as usize].state == PhysState::Moving {
            self.abandon_move(block);
        }
        if programmed {
            self.discard(block);
        } else {
            // Erased, and nothing programmed since.
            self.phys[block as usize].state = PhysState::Clean;
            self.put_free(block);
        }
    }

    /// `AllocBlock`; answered by [`Done::BlockAllocated`]. Waits while blocks that were freed are being erased.
    pub fn alloc_block(&mut self, now: Time, vssd: VssdId, token: u64, out: &mut ManagerOut) -> Result<(), BlockError> {
        self.now = self.now.max(now);
        let v = self.live(vssd)?;
        if let Some(e) = self.failed() {
            return Err(e.into());
        }
        let blocks = v.blocks.len() as u32;
        if v.allocated + v.waiting.len() as u32 >= blocks {
            return Err(BlockError::NoFreeBlock { vssd, blocks });
        }
        self.live_mut(vssd).waiting.push_back(token);
        self.serve_waiting(out, vssd);
        self.pump(out);
        Ok(())
    }

    /// `FreeBlock`: the block is erased some time after the next sync.
    pub fn free_block(
        &mut self,
        now: Time,
        vssd: VssdId,
        block: Block,
        out: &mut ManagerOut,
    ) -> Result<(), BlockError> {
        self.now = self.now.max(now);
        let v = self.live(vssd)?;
        let s = *v.allocated(block)?;
        if s.busy > 0 {
            return Err(BlockError::Busy { block, requests: s.busy });
        }
        if let Some(e) = self.failed() {
            return Err(e.into());
        }
        let lanes: Vec<(Logical, bool)> =
            (0..v.width()).map(|l| (v.lane(block.index, l), v.pages_in(s.written, l) > 0)).collect();
        let v = self.live_mut(vssd);
        v.blocks[block.index as usize] = Superblock::default();
        v.allocated -= 1;
        lanes.into_iter().for_each(|(l, programmed)| self.unmap(l, programmed));
        if self.usable(vssd, block.index) {
            self.live_mut(vssd).now_ready(block.index);
        }
        self.settle_waiting(out);
        self.pump(out);
        Ok(())
    }

    /// `WriteData`: whole pages where the block's next ones go, which is at `offset` if one is given; answered by
    /// [`Done::Written`].
    pub fn write(
        &mut self,
        now: Time,
        (vssd, block): (VssdId, Block),
        offset: Option<u64>,
        data: &Payload,
        token: u64,
        out: &mut ManagerOut,
    ) -> Result<(), BlockError> {
        self.now = self.now.max(now);
        let v = self.live(vssd)?;
        let s = *v.allocated(block)?;
        let (page_bytes, bytes) = (self.geometry().page_bytes, u64::from(data.len()));
        let (written, size) =
            (u64::from(s.written) * u64::from(page_bytes), v.pages(self.geometry()) * u64::from(page_bytes));
        if bytes == 0 || !bytes.is_multiple_of(u64::from(page_bytes)) {
            return Err(BlockError::UnalignedLength { bytes, page_bytes });
        }
        let offset = offset.unwrap_or(written);
        if !offset.is_multiple_of(u64::from(page_bytes)) {
            return Err(BlockError::UnalignedOffset { offset, unit: page_bytes });
        }
        if offset < written {
            return Err(BlockError::WrittenTwice { block, offset, written });
        }
        if s.state == State::Sealed || s.stopped {
            return Err(BlockError::Sealed { block, written });
        }
        if offset.saturating_add(bytes) > size {
            return Err(BlockError::PastEnd { block, offset, bytes, size });
        }
        if offset > written {
            return Err(BlockError::OutOfOrder { block, offset, written });
        }
        if let Some(e) = self.failed() {
            return Err(e.into());
        }
        let pages = (bytes / u64::from(page_bytes)) as u32;
        self.room_at_dies(v, block.index, s.written..s.written + pages)?;
        let v = self.live_mut(vssd);
        v.stats.pages_written += u64::from(pages);
        v.blocks[block.index as usize].written += pages;
        v.blocks[block.index as usize].busy += 1;
        v.busy += 1;
        let op = Op { token, block, kind: Kind::Write { pages }, left: pages, error: None };
        let op = self.ops.insert(op) as u32;
        self.writes.entry(block).or_default().push_back(op);
        for i in 0..pages {
            self.write_page(op, block, s.written + i, data, i);
        }
        self.pump(out);
        Ok(())
    }
    fn write_page(&mut self, op: u32, block: Block, page: u32, data: &Payload, from: u32) {
        let v = &self.vssds[&block.vssd];
        let (logical, flow) = (v.lane(block.index, page % v.width()), v.flow);
        let at = (page / v.width()) as u16;
        let spp = self.geometry().slots_per_page() as u32;
        let slots = (0..spp).map(|s| {
            let data = data.slice((from * spp + s) * SECTORS_PER_BLOCK, SECTORS_PER_BLOCK);
            let record = SlotRecord { crc: data.sum(), ..slot_record(block, page * spp + s, logical) };
            Slot { data, record }
        });
        let slots = slots.collect();
        self.sequence += 1;
        let image = Box::new(PageImage { sequence: self.sequence, oob: Default::default(), slots });
        let work = Work::Program { page: at, image };
        self.enqueue(Request { flow, who: Who::Op(op), at: At::Logical(logical), work }, false);
    }
    fn room_at_dies(&self, v: &LogVssd, index: u32, pages: std::ops::Range<u32>) -> Result<(), BlockError> {
        let depth = self.cfg.profile.queue_depth;
        let mut more = vec![0; self.dies.len()];
        for p in pages {
            let block = self.mapped(v.lane(index, p % v.width()));
            let die = self.die_of(block);
            more[die as usize] += 1;
            if self.dies[die as usize].queue.waiting() as u32 + more[die as usize] > depth {
                return Err(BlockError::QueueFull { die, depth });
            }
        }
        Ok(())
    }

    /// `ReadData`: `bytes` from `offset` of the block on, in units of 4096; answered by [`Done::Read`].
    pub fn read(
        &mut self,
        now: Time,
        (vssd, block): (VssdId, Block),
        (offset, bytes): (u64, u64),
        token: u64,
        out: &mut ManagerOut,
    ) -> Result<(), BlockError> {
        self.now = self.now.max(now);
        let unit = u64::from(BLOCK);
        let v = self.live(vssd)?;
        let s = *v.allocated(block)?;
        if bytes == 0 || !bytes.is_multiple_of(unit) {
            return Err(BlockError::UnalignedLength { bytes, page_bytes: BLOCK });
        }
        if !offset.is_multiple_of(unit) {
            return Err(BlockError::UnalignedOffset { offset, unit: BLOCK });
        }
        let written = u64::from(s.readable) * u64::from(self.geometry().page_bytes);
        if offset.saturating_add(bytes) > written {
            return Err(BlockError::Unwritten { block, offset, bytes, written });
        }
        let spp = self.geometry().slots_per_page() as u64;
        let (first, end) = (offset / unit, (offset + bytes) / unit);
        let pages = (first / spp) as u32..end.div_ceil(spp) as u32;
        self.room_at_dies(v, block.index, pages.clone())?;
        let v = self.live_mut(vssd);
        v.stats.reads += pages.len() as u64;
        v.blocks[block.index as usize].busy += 1;
        v.busy += 1;
        let n = pages.len();
        let op = Op { token, block, kind: Kind::Read { parts: vec![None; n] }, left: n as u32, error: None };
        let op = self.ops.insert(op) as u32;
        for (part, page) in pages.enumerate() {
            let v = &self.vssds[&vssd];
            let (l, flow, at) = (v.lane(block.index, page % v.width()), v.flow, (page / v.width()) as u16);
            let begin = u64::from(page) * spp;
            let slots = (first.max(begin) - begin) as u8..(end.min(begin + spp) - begin) as u8;
            let work = Work::Read { page: at, slots, part: part as u32, superpage: page };
            self.enqueue(Request { flow, who: Who::Op(op), at: At::Logical(l), work }, false);
        }
        self.pump(out);
        Ok(())
    }
    /// Makes all earlier answered writes durable; answered by [`Done::Synced`]. A failed one is final.
    pub fn sync(&mut self, now: Time, token: u64, out: &mut ManagerOut) {
        self.now = self.now.max(now);
        self.rounds.want(After::Sync { token });
        self.pump(out);
    }

    /// A part of the operation is done; the last one answers.
    pub(super) fn op_part_done(&mut self, out: &mut ManagerOut, op: u32, error: Option<BlockError>) {
        let o = &mut self.ops[op as usize];
        o.error = o.error.or(error);
        o.left -= 1;
        let (left, write, block) = (o.left, matches!(o.kind, Kind::Write { .. }), o.block);
        if write && error.is_some() {
            self.live_mut(block.vssd).blocks[block.index as usize].stopped = true;
        }
        if left > 0 {
            return;
        }
        if !write {
            return self.op_done(out, op);
        }
        // Writes of a block are answered in order: what is answered can be read after a power cut, for no page before
        // it is missing.
        while let Some(&first) = self.writes.get(&block).and_then(|w| w.front())
            && self.ops[first as usize].left == 0
        {
            self.writes.get_mut(&block).expect("it was there").pop_front();
            self.op_done(out, first);
        }
        if self.writes.get(&block).is_some_and(std::collections::VecDeque::is_empty) {
            self.writes.remove(&block);
            if self.swapping() {
                self.leveling.go_on();
            }
            self.cut_off(block);
        }
    }
    /// A write of the block failed: it ends where what was answered ends.
    fn cut_off(&mut self, block: Block) {
        let v = self.live_mut(block.vssd);
        let s = &mut v.blocks[block.index as usize];
        if s.state != State::Sealed {
            return;
        }
        s.written = s.readable;
        let v = &self.vssds[&block.vssd];
        let written = v.blocks[block.index as usize].written;
        let beyond = (0..v.width()).filter(|l| v.pages_in(written, *l) == 0).map(|l| v.lane(block.index, l));
        beyond.collect::<Vec<_>>().into_iter().for_each(|l| self.unmap(l, true));
        self.leveling.go_on();
    }
    fn op_done(&mut self, out: &mut ManagerOut, op: u32) {
        let Op { token, block, kind, mut error, .. } = self.ops.remove(op as usize);
        let page_bytes = self.geometry().page_bytes;
        let v = self.live_mut(block.vssd);
        v.busy -= 1;
        let s = &mut v.blocks[block.index as usize];
        s.busy -= 1;
        match kind {
            Kind::Alloc if error.is_none() => s.state = State::Open,
            Kind::Alloc => {
                *s = Superblock::default();
                v.allocated -= 1;
                let lanes: Vec<Logical> = v.lanes(block.index).collect();
                lanes.into_iter().for_each(|l| self.unmap(l, false));
                self.live_mut(block.vssd).now_ready(block.index);
            }
            // Pages behind a failed write cannot be read.
            Kind::Write { .. } if s.state == State::Sealed => {
                let written = u64::from(s.readable) * u64::from(page_bytes);
                error = error.or(Some(BlockError::Sealed { block, written }));
            }
            Kind::Write { .. } if error.is_some() => s.state = State::Sealed,
            Kind::Write { pages } => s.readable += pages,
            _ => {}
        }
        out.done.push(match kind {
            Kind::Alloc => Done::BlockAllocated { token, result: error.map_or(Ok(block), Err) },
            Kind::Write { .. } => Done::Written { token, result: error.map_or(Ok(()), Err) },
            Kind::Read { parts } => {
                let parts: Vec<Payload> = parts.into_iter().flatten().collect();
                Done::Read { token, result: error.map_or_else(|| Ok(Payload::concat(&parts)), Err) }
            }
        });
    }
}
