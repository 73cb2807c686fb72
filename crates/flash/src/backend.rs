//! Backends without files.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use rackweave_core::device::{
    Backend, BlockOob, DeviceData, DeviceError, DeviceOp, PageAddr, PageImage, PageSpare, Slot, SlotRecord,
};
use rackweave_core::{BLOCK, Payload};

use crate::geometry::Geometry;

/// A rule of NAND flash that a command broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NandViolation {
    #[error("page {page:?} programmed, but page {expected} is next in its block")]
    OutOfOrder { page: PageAddr, expected: u16 },
    #[error("page {page:?} programmed twice without an erase")]
    Reprogrammed { page: PageAddr },
    #[error("{page:?} is outside the device")]
    Outside { page: PageAddr },
    #[error("a page of {slots} slots programmed into {page:?}, a page has {expected}")]
    PageSize { page: PageAddr, slots: u32, expected: u32 },
    #[error("block {block} erased with count {given}, less than its {truth} erases")]
    EraseCount { block: u32, given: u16, truth: u16, unknown: u16 },
    #[error("block {block} used after it was marked bad")]
    Bad { block: u32 },
}

#[derive(Clone, Debug, Default)]
struct MemBlock {
    oob: BlockOob,
    /// Next page in order; pages before it are used, complete or torn.
    next: u16,
    pages: Vec<Option<PageImage>>,
    /// Number of erases, whether or not they were recorded.
    erases: u16,
    /// Erases since the last whole one that a power cut interrupted.
    torn: u16,
    /// All interrupted ones but the first of each series: the block alone cannot tell of them.
    unknown: u16,
    /// Marked so.
    bad: bool,
    /// Pages whose spare areas are damaged.
    unreadable: Vec<u16>,
}

/// Contents in memory, as they were given. Keeps NAND's rules itself and remembers what broke them.
#[derive(Clone, Debug)]
pub struct Memory {
    geometry: Geometry,
    blocks: Vec<MemBlock>,
    meta: BytesMut,
    violations: Vec<NandViolation>,
}

impl Memory {
    pub fn new(geometry: Geometry) -> Memory {
        let blocks = vec![MemBlock::default(); geometry.blocks() as usize];
        Memory { geometry, blocks, meta: BytesMut::new(), violations: Vec::new() }
    }
    /// Commands that broke a rule so far (they were not carried out).
    pub fn violations(&self) -> &[NandViolation] {
        &self.violations
    }
    /// Erases the block really had.
    pub fn erases(&self, block: u32) -> u16 {
        self.blocks.get(block as usize).map_or(0, |b| b.erases)
    }
    /// The block is marked bad.
    pub fn is_bad(&self, block: u32) -> bool {
        self.blocks.get(block as usize).is_some_and(|b| b.bad)
    }
    /// The checkpoint area, for tests that damage it.
    pub fn meta_mut(&mut self) -> &mut [u8] {
        &mut self.meta
    }
    /// Changes one stored slot, for tests that damage it. False if nothing is there.
    pub fn damage(&mut self, page: PageAddr, slot: u8, data: Payload) -> bool {
        let stored = self.blocks.get_mut(page.block as usize).and_then(|b| b.pages.get_mut(usize::from(page.page)));
        let slot = stored.and_then(Option::as_mut).and_then(|p| Arc::make_mut(&mut p.slots).get_mut(usize::from(slot)));
        slot.map(|s| s.data = data).is_some()
    }
    /// Changes the record of one stored slot: a misdirected write, for tests. False if nothing is there.
    pub fn misdirect(&mut self, page: PageAddr, slot: u8, record: SlotRecord) -> bool {
        let stored = self.blocks.get_mut(page.block as usize).and_then(|b| b.pages.get_mut(usize::from(page.page)));
        let slot = stored.and_then(Option::as_mut).and_then(|p| Arc::make_mut(&mut p.slots).get_mut(usize::from(slot)));
        slot.map(|s| s.record = record).is_some()
    }
    /// A power cut during the program: the page is used up and holds nothing.
    pub fn tear_program(&mut self, page: PageAddr) {
        if let Some(b) = self.blocks.get_mut(page.block as usize)
            && b.next == page.page
        {
            b.next += 1;
            b.pages.push(None);
        }
    }
    /// Makes the page unreadable.
    pub fn lose_page(&mut self, page: PageAddr) {
        let block = self.blocks.get_mut(page.block as usize);
        if let Some(p) = block.and_then(|b| b.pages.get_mut(usize::from(page.page))) {
            *p = None;
        }
    }
    /// Damages its spare area, so that the page's contents are unknown.
    pub fn damage_spare(&mut self, page: PageAddr) {
        self.lose_page(page);
        if let Some(b) = self.blocks.get_mut(page.block as usize) {
            b.unreadable.push(page.page);
        }
    }
    /// A power cut during the erase: some pages are gone, the block counts as erased once more.
    pub fn tear_erase(&mut self, block: u32, keep: impl Fn(u16) -> bool) {
        if let Some(b) = self.blocks.get_mut(block as usize) {
            b.erases += 1;
            b.torn += 1;
            for (i, p) in b.pages.iter_mut().enumerate().filter(|(i, _)| !keep(*i as u16)) {
                let _ = i;
                *p = None;
            }
        }
    }

    fn page(&self, page: PageAddr) -> Result<&PageImage, DeviceError> {
        let b = self.blocks.get(page.block as usize).ok_or(DeviceError::Unwritten { page })?;
        b.pages.get(usize::from(page.page)).and_then(Option::as_ref).ok_or(DeviceError::Unwritten { page })
    }
    fn program(&mut self, page: PageAddr, image: &PageImage) -> Result<DeviceData, DeviceError> {
        let broken = |m: &mut Memory, v| {
            m.violations.push(v);
            Err(DeviceError::Unwritten { page })
        };
        if page.block >= self.geometry.blocks() || page.page >= self.geometry.pages_per_block {
            return broken(self, NandViolation::Outside { page });
        }
        let expected = self.geometry.slots_per_page() as u32;
        if image.slots.len() as u32 != expected {
            return broken(self, NandViolation::PageSize { page, slots: image.slots.len() as u32, expected });
        }
        let next = self.blocks[page.block as usize].next;
        if page.page < next {
            return broken(self, NandViolation::Reprogrammed { page });
        }
        if page.page > next {
            return broken(self, NandViolation::OutOfOrder { page, expected: next });
        }
        let b = &mut self.blocks[page.block as usize];
        b.oob = image.oob;
        b.next += 1;
        b.pages.push(Some(image.clone()));
        Ok(DeviceData::None)
    }
    fn erase(&mut self, block: u32, oob: BlockOob) -> Result<DeviceData, DeviceError> {
        let page = PageAddr { block, page: 0 };
        let Some(b) = self.blocks.get_mut(block as usize) else {
            self.violations.push(NandViolation::Outside { page });
            return Err(DeviceError::Unwritten { page });
        };
        b.erases += 1;
        b.unknown += std::mem::take(&mut b.torn).saturating_sub(1);
        let (given, truth, unknown) = (oob.erase_count, b.erases, b.unknown);
        if given < truth {
            self.violations.push(NandViolation::EraseCount { block, given, truth, unknown });
        }
        b.oob = oob;
        b.next = 0;
        b.pages.clear();
        b.unreadable.clear();
        Ok(DeviceData::None)
    }
    fn mark_bad(&mut self, block: u32) -> Result<DeviceData, DeviceError> {
        let page = PageAddr { block, page: 0 };
        let Some(b) = self.blocks.get_mut(block as usize) else {
            self.violations.push(NandViolation::Outside { page });
            return Err(DeviceError::Unwritten { page });
        };
        b.bad = true;
        b.pages.clear();
        Ok(DeviceData::None)
    }
    fn oob(&self, block: u32) -> Result<DeviceData, DeviceError> {
        let page = PageAddr { block, page: 0 };
        let b = self.blocks.get(block as usize).ok_or(DeviceError::Unwritten { page })?;
        let pages = b.pages.iter().take_while(|p| p.is_some()).count() as u16;
        Ok(DeviceData::Oob { oob: b.oob, pages })
    }
    fn spares(&self, block: u32) -> Result<DeviceData, DeviceError> {
        let page = PageAddr { block, page: 0 };
        let b = self.blocks.get(block as usize).ok_or(DeviceError::Unwritten { page })?;
        let pages = b.pages.iter().enumerate().filter_map(|(i, p)| {
            let p = p.as_ref()?;
            let records = p.slots.iter().map(|s| s.record).collect();
            Some(PageSpare { page: i as u16, sequence: p.sequence, records })
        });
        Ok(DeviceData::Spares { oob: b.oob, pages: pages.collect(), unreadable: b.unreadable[..].into() })
    }
}

impl Backend for Memory {
    fn execute(&mut self, op: &DeviceOp) -> Result<DeviceData, DeviceError> {
        if let Some(block) = op.block().filter(|b| self.is_bad(*b)) {
            if matches!(op, DeviceOp::Program { .. } | DeviceOp::Erase { .. }) {
                self.violations.push(NandViolation::Bad { block });
            }
            return Err(DeviceError::BadBlock { block });
        }
        match op {
            DeviceOp::ReadSlot { page, slot } => {
                let found = self.page(*page)?.slots.get(usize::from(*slot));
                found.cloned().map(DeviceData::Slot).ok_or(DeviceError::Unwritten { page: *page })
            }
            DeviceOp::ReadSlots { page, first, count } => {
                let found = self.page(*page)?.slots.get(usize::from(*first)..usize::from(first + count));
                found.map(|s| DeviceData::Page(s.into())).ok_or(DeviceError::Unwritten { page: *page })
            }
            DeviceOp::ReadPage { page } => Ok(DeviceData::Page(self.page(*page)?.slots[..].into())),
            DeviceOp::Program { page, image } => self.program(*page, image),
            DeviceOp::Erase { block, oob } => self.erase(*block, *oob),
            DeviceOp::MarkBad { block } => self.mark_bad(*block),
            DeviceOp::Sync => Ok(DeviceData::None),
            DeviceOp::ReadSpares { block } => self.spares(*block),
            DeviceOp::ReadOob { block } => self.oob(*block),
            DeviceOp::WriteMeta { offset, data } => {
                let at = *offset as usize;
                if self.meta.len() < at + data.len() {
                    self.meta.resize(at + data.len(), 0);
                }
                self.meta[at..at + data.len()].copy_from_slice(data);
                Ok(DeviceData::None)
            }
            DeviceOp::ReadMeta { offset, len } => {
                let from = (*offset as usize).min(self.meta.len());
                let to = from.saturating_add(*len as usize).min(self.meta.len());
                Ok(DeviceData::Meta(Bytes::copy_from_slice(&self.meta[from..to])))
            }
        }
    }
}

/// Keeps nothing: reads answer zeroes, spare areas and checkpoints are empty. For replays that only want times; reads
/// must not be verified.
#[derive(Clone, Copy, Debug, Default)]
pub struct Discard;

impl Backend for Discard {
    fn execute(&mut self, op: &DeviceOp) -> Result<DeviceData, DeviceError> {
        Ok(match op {
            DeviceOp::ReadSlot { .. } => {
                DeviceData::Slot(Slot { data: Payload::zero(BLOCK), record: SlotRecord::default() })
            }
            DeviceOp::ReadSlots { .. } | DeviceOp::ReadPage { .. } => DeviceData::Page(Box::default()),
            DeviceOp::ReadSpares { .. } => {
                DeviceData::Spares { oob: BlockOob::default(), pages: Box::default(), unreadable: Box::default() }
            }
            DeviceOp::ReadOob { .. } => DeviceData::Oob { oob: BlockOob::default(), pages: 0 },
            DeviceOp::ReadMeta { .. } => DeviceData::Meta(Bytes::new()),
            DeviceOp::Program { .. }
            | DeviceOp::Erase { .. }
            | DeviceOp::MarkBad { .. }
            | DeviceOp::Sync
            | DeviceOp::WriteMeta { .. } => DeviceData::None,
        })
    }
}
