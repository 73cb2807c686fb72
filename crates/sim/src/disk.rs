//! The simulated device behind a server: contents in memory, and a journal of changes that no sync has made durable.
//!
//! Fault model. Process crash: nothing is lost; commands in flight have been executed. Power cut: each program, erase
//! and checkpoint write that no completed sync covers is kept, dropped or torn independently, in any combination,
//! because a file behind the device is written back in any order. A torn page is unreadable; a torn erase leaves some
//! pages unchanged; a torn checkpoint write keeps some of its 512-byte sectors. Corruption: the contents of a slot, or
//! of a checkpoint, change without their checksum. Failure: see [`Breakage`].

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use rackweave_core::device::{
    Backend, BlockOob, DeviceData, DeviceError, DeviceOp, PageAddr, PageImage, PageSpare, Slot, SlotKind,
};
use rackweave_core::media_faults::MediaFaults;
use rackweave_core::{BLOCK, BlockAddr, Payload, Rng};

use crate::meta_area::MetaArea;

/// Unit in which a checkpoint write is kept or lost.
const META_SECTOR: usize = 512;
/// Violations kept for the report; the first one matters most.
const VIOLATIONS_MAX: usize = 16;
/// EIO.
const OS_ERROR_IO: i32 = 5;

#[derive(Clone, Debug, Default)]
enum PageState {
    #[default]
    Erased,
    Written(Rc<PageImage>),
    Torn,
    /// It was durable, and neither contents nor spare area are readable any longer.
    Damaged,
}

#[derive(Clone, Debug, Default)]
struct BlockImage {
    /// Of its last erase.
    oob: BlockOob,
    pages: Vec<PageState>,
    bad: bool,
}

impl BlockImage {
    fn page(&self, i: u16) -> &PageState {
        self.pages.get(usize::from(i)).unwrap_or(&PageState::Erased)
    }
    /// Its out-of-band data: that of the last readable page, which an interrupted erase may have left, else of the erase.
    fn oob(&self) -> BlockOob {
        let of = |p: &PageState| match p {
            PageState::Written(image) => Some(image.oob),
            _ => None,
        };
        self.pages.iter().rev().find_map(of).unwrap_or(self.oob)
    }
    fn set(&mut self, i: u16, s: PageState) {
        let i = usize::from(i);
        if self.pages.len() <= i {
            self.pages.resize(i + 1, PageState::Erased);
        }
        self.pages[i] = s;
    }
}

/// Contents of a device; blocks are shared between images until one changes.
#[derive(Clone, Debug, Default)]
struct Image {
    blocks: Vec<Rc<BlockImage>>,
    meta: MetaArea,
}

impl Image {
    fn block(&self, b: u32) -> Option<&BlockImage> {
        self.blocks.get(b as usize).map(|b| &**b)
    }
    fn block_mut(&mut self, b: u32) -> &mut BlockImage {
        let b = b as usize;
        if self.blocks.len() <= b {
            self.blocks.resize_with(b + 1, Rc::default);
        }
        Rc::make_mut(&mut self.blocks[b])
    }
    fn apply(&mut self, c: &Change) {
        match c {
            Change::Program { page, image } => {
                self.block_mut(page.block).set(page.page, PageState::Written(image.clone()));
            }
            Change::Erase { block, oob } => *self.block_mut(*block) = BlockImage { oob: *oob, ..BlockImage::default() },
            Change::MarkBad { block } => {
                let b = self.block_mut(*block);
                (b.bad, b.pages) = (true, Vec::new());
            }
            Change::Meta { offset, data } => self.meta.write(*offset, data),
        }
    }
    fn apply_torn(&mut self, c: &Change, rng: &mut Rng) {
        match c {
            Change::Program { page, .. } => self.block_mut(page.block).set(page.page, PageState::Torn),
            Change::Erase { block, oob } => {
                let b = self.block_mut(*block);
                for p in b.pages.iter_mut().filter(|p| !matches!(p, PageState::Erased)) {
                    match rng.below(4) {
                        0 => {}
                        1 => *p = PageState::Torn,
                        _ => *p = PageState::Erased,
                    }
                }
                if rng.chance(0.5) {
                    b.oob = *oob;
                }
            }
            // One row: present or absent.
            Change::MarkBad { .. } => {}
            Change::Meta { offset, data } => {
                for (i, sector) in data.chunks(META_SECTOR).enumerate() {
                    if rng.chance(0.5) {
                        self.meta.write(offset + (i * META_SECTOR) as u64, sector);
                    }
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Change {
    Program { page: PageAddr, image: Rc<PageImage> },
    Erase { block: u32, oob: BlockOob },
    MarkBad { block: u32 },
    Meta { offset: u64, data: Bytes },
}

#[derive(Clone, Debug)]
struct Entry {
    id: u64,
    change: Change,
    /// The first sync submitted after completion; zero before any.
    sync: u64,
}

/// How a device fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Breakage {
    /// Every command fails for good.
    Everything,
    /// Programs, erases, checkpoint writes and syncs fail for good; reads go on.
    Writes,
    /// The next sync fails, once. The changes that it should cover never become durable, even if later syncs succeed.
    /// They stay visible until the process ends, as dirty pages do that a kernel failed to write and marked clean.
    Sync,
}

/// In place of a sync's number: covered by a failed sync.
const LOST: u64 = u64::MAX;

/// A slot that may remain after a power cut.
#[derive(Clone, Copy, Debug)]
pub struct Remnant<'a> {
    pub slot: &'a Slot,
    /// Independent of the cut's draws: a sync covers the program, and no erase of its block is pending or unsynced.
    pub certain: bool,
}

/// A violated NAND rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NandBreach {
    #[error("page {page:?} programmed without an erase since it was last written")]
    ProgramTwice { page: PageAddr },
    #[error("page {page:?} programmed after page {last} of its block")]
    OutOfOrder { page: PageAddr, last: u16 },
    #[error("page {page:?} programmed before the erase of its block completed")]
    EraseUnderWay { page: PageAddr },
    #[error("block {block} erased while a program of it is under way")]
    ProgramUnderWay { block: u32 },
    #[error("block {block} used after it was marked bad")]
    Bad { block: u32 },
}

/// Effects of a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutReport {
    pub kept: u32,
    pub dropped: u32,
    pub torn: u32,
}

/// Probabilities that an unsynced change is dropped or torn.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct CutOdds {
    pub drop: f64,
    pub tear: f64,
}

/// A device that keeps its contents, and loses what a real one may lose.
#[derive(Clone, Debug, Default)]
pub struct FaultDisk {
    live: Image,
    durable: Image,
    journal: VecDeque<Entry>,
    /// Entries of the journal whose completion was not delivered yet.
    under_way: BTreeSet<u64>,
    next_id: u64,
    broken: Option<Breakage>,
    worn_out: Option<MediaFaults>,
    flaws: Option<MediaFaults>,
    /// Blocks that failed so, and the largest number that may.
    flawed: BTreeSet<u32>,
    flawed_max: u32,
    breaches: Vec<NandBreach>,
}

impl FaultDisk {
    pub fn new() -> FaultDisk {
        FaultDisk::default()
    }
    /// Executes `op`. The number is for [`FaultDisk::complete`] when the completion is delivered.
    pub fn submit(&mut self, op: &DeviceOp) -> (Result<DeviceData, DeviceError>, u64) {
        self.next_id += 1;
        let id = self.next_id;
        if self.refuses(op) {
            return (Err(DeviceError::Backend { os_error: OS_ERROR_IO }), id);
        }
        if let Some(block) = op.block().filter(|b| self.live.block(*b).is_some_and(|b| b.bad)) {
            if matches!(op, DeviceOp::Program { .. } | DeviceOp::Erase { .. }) {
                self.breach(NandBreach::Bad { block });
            }
            return (Err(DeviceError::BadBlock { block }), id);
        }
        if let Some(Err(e)) = self.flaws.map(|f| f.check(op))
            && let Some(block) = op.block()
            && (self.flawed.contains(&block) || self.flawed.len() < self.flawed_max as usize)
        {
            self.flawed.insert(block);
            return (Err(e), id);
        }
        if let Some(Err(e)) = self.worn_out.map(|f| f.check(op)) {
            return (Err(e), id);
        }
        let change = match op {
            DeviceOp::Program { page, image } => {
                self.check_program(*page);
                Change::Program { page: *page, image: Rc::new((**image).clone()) }
            }
            DeviceOp::Erase { block, oob } => {
                self.check_erase(*block);
                Change::Erase { block: *block, oob: *oob }
            }
            DeviceOp::MarkBad { block } => Change::MarkBad { block: *block },
            DeviceOp::WriteMeta { offset, data } => Change::Meta { offset: *offset, data: data.clone() },
            DeviceOp::Sync => {
                self.cover(id);
                return (Ok(DeviceData::None), id);
            }
            read => return (self.read(read), id),
        };
        self.live.apply(&change);
        self.journal.push_back(Entry { id, change, sync: 0 });
        self.under_way.insert(id);
        (Ok(DeviceData::None), id)
    }

    /// The completion of `id` was delivered. `sync`: it was a successful [`DeviceOp::Sync`].
    pub fn complete(&mut self, id: u64, sync: bool) {
        if !sync {
            self.under_way.remove(&id);
            return;
        }
        let durable = &mut self.durable;
        self.journal.retain(|e| {
            let covered = e.sync != 0 && e.sync <= id;
            if covered {
                durable.apply(&e.change);
            }
            !covered
        });
    }

    /// Whether a program's completion is not delivered yet: its page is on flash and in no map.
    pub fn programs_under_way(&self) -> bool {
        self.any_under_way(|c| matches!(c, Change::Program { .. }))
    }
    fn any_under_way(&self, is: impl Fn(&Change) -> bool) -> bool {
        let entry = |id: &u64| self.journal.binary_search_by_key(id, |e| e.id).ok();
        self.under_way.iter().filter_map(entry).any(|i| is(&self.journal[i].change))
    }
    /// This sync covers the completed changes that no earlier one covers.
    fn cover(&mut self, sync: u64) {
        let under_way = &self.under_way;
        let covered = self.journal.iter_mut().filter(|e| e.sync == 0 && !under_way.contains(&e.id));
        covered.for_each(|e| e.sync = sync);
    }

    /// From now on every block fails its erases after between `least` and `least + spread` of them, by its number.
    pub fn wear_out_after(&mut self, least: u16, spread: u16) {
        self.worn_out = Some(MediaFaults::none().end_of_life(least.into(), spread.into()));
    }
    /// From now on programs and erases fail as drawn, until `blocks_max` blocks have failed.
    pub fn fail_by(&mut self, flaws: MediaFaults, blocks_max: u32) {
        (self.flaws, self.flawed_max) = (Some(flaws), blocks_max);
    }

    /// Whether `op` fails. A failed sync loses the changes that it should cover.
    fn refuses(&mut self, op: &DeviceOp) -> bool {
        let read = !matches!(
            op,
            DeviceOp::Program { .. }
                | DeviceOp::Erase { .. }
                | DeviceOp::MarkBad { .. }
                | DeviceOp::WriteMeta { .. }
                | DeviceOp::Sync
        );
        match self.broken {
            Some(Breakage::Everything) => true,
            Some(Breakage::Writes) => !read,
            Some(Breakage::Sync) if matches!(op, DeviceOp::Sync) => {
                self.broken = None;
                self.cover(LOST);
                true
            }
            _ => false,
        }
    }

    /// The server's process ended. The device keeps all changes except those that a failed sync lost.
    pub fn process_crash(&mut self) {
        self.under_way.clear();
        let before = self.journal.len();
        self.journal.retain(|e| e.sync != LOST);
        if self.journal.len() < before {
            self.live = self.durable.clone();
            self.journal.iter().for_each(|e| self.live.apply(&e.change));
        }
    }

    /// The device lost power.
    pub fn power_cut(&mut self, odds: CutOdds, rng: &mut Rng) -> CutReport {
        let mut report = CutReport::default();
        self.under_way.clear();
        for e in std::mem::take(&mut self.journal) {
            let draw = rng.unit();
            if e.sync == LOST || draw < odds.drop {
                report.dropped += 1;
            } else if draw < odds.drop + odds.tear {
                self.durable.apply_torn(&e.change, rng);
                report.torn += 1;
            } else {
                self.durable.apply(&e.change);
                report.kept += 1;
            }
        }
        self.live = self.durable.clone();
        report
    }

    /// Possible remains of a power cut at this moment.
    pub fn remnants(&self) -> impl Iterator<Item = Remnant<'_>> {
        let gone = |e: &Entry| match e.change {
            Change::Erase { block, .. } | Change::MarkBad { block } => Some(block),
            Change::Program { .. } | Change::Meta { .. } => None,
        };
        let gone: BTreeSet<u32> = self.journal.iter().filter_map(gone).collect();
        let blocks = self.durable.blocks.iter().enumerate();
        let durable = blocks.flat_map(move |(b, block)| {
            let certain = !gone.contains(&(b as u32));
            block.pages.iter().map(move |p| (p, certain))
        });
        let durable = durable.filter_map(|(p, certain)| match p {
            PageState::Written(image) => Some((&**image, certain)),
            PageState::Erased | PageState::Torn | PageState::Damaged => None,
        });
        let unsynced = self.journal.iter().filter_map(|e| match &e.change {
            Change::Program { image, .. } => Some((&**image, false)),
            _ => None,
        });
        durable
            .chain(unsynced)
            .flat_map(|(image, certain)| image.slots.iter().map(move |slot| Remnant { slot, certain }))
    }

    /// Commands fail from now on.
    pub fn fail(&mut self, how: Breakage) {
        self.broken = Some(how);
    }

    /// Commands succeed again; lost data stays lost.
    pub fn mend(&mut self) {
        self.broken = None;
    }

    /// Bytes of the checkpoint area from here on.
    pub fn meta(&self, at: u64, len: usize) -> Vec<u8> {
        (at as usize..at as usize + len).map(|i| self.durable.meta.byte(i)).collect()
    }
    /// Changes a byte in the used part of the checkpoint area; false if it is empty, or the byte is one of those to `keep`.
    pub fn corrupt_checkpoint(&mut self, rng: &mut Rng, keep: Range<u64>) -> bool {
        let sectors = self.durable.meta.written(META_SECTOR);
        if sectors.is_empty() {
            return false;
        }
        let at = rng.pick(&sectors) * META_SECTOR + rng.below(META_SECTOR as u64) as usize;
        if keep.contains(&(at as u64)) {
            return false;
        }
        for image in [&mut self.live, &mut self.durable] {
            let byte = image.meta.byte(at);
            image.meta.write(at as u64, &[byte ^ 0x40]);
        }
        true
    }

    /// Changes bytes of the checkpoint area from here on.
    pub fn flip_meta(&mut self, at: u64, len: usize) {
        for image in [&mut self.live, &mut self.durable] {
            let from = at as usize;
            let bytes: Vec<u8> = (from..from + len).map(|i| image.meta.byte(i) ^ 0x15).collect();
            image.meta.write(at, &bytes);
        }
    }

    /// Changes the contents of one stored page under its checksums; false: nothing is stored.
    pub fn corrupt(&mut self, rng: &mut Rng) -> bool {
        self.change(rng, false)
    }

    /// Changes the contents of one stored page together with its checksums, as if something else had been written;
    /// false if nothing is stored.
    pub fn falsify(&mut self, rng: &mut Rng) -> bool {
        self.change(rng, true)
    }

    /// Changes the contents of all stored versions of the chosen blocks without their checksums; returns the number of
    /// slots.
    pub fn damage(&mut self, mut hit: impl FnMut(BlockAddr) -> bool) -> u32 {
        let mut changed = 0;
        self.each_page(|_, p| {
            let slots =
                p.slots.iter().map(|s| s.record.kind == SlotKind::Data && hit(s.record.addr)).collect::<Vec<_>>();
            if !slots.contains(&true) {
                return None;
            }
            let mut p = p.clone();
            for (s, _) in Arc::make_mut(&mut p.slots).iter_mut().zip(slots).filter(|(_, hit)| *hit) {
                s.data = Payload::elided(BLOCK, !u64::from(s.record.crc));
                changed += 1;
            }
            Some(PageState::Written(Rc::new(p)))
        });
        changed
    }
    /// Makes drawn pages unreadable, including their spare areas. Returns the blocks that they held.
    pub fn damage_spares(&mut self, mut hit: impl FnMut() -> bool) -> Vec<BlockAddr> {
        let mut gone = Vec::new();
        self.each_page(|_, p| {
            hit().then(|| {
                gone.extend(p.slots.iter().filter(|s| s.record.kind == SlotKind::Data).map(|s| s.record.addr));
                PageState::Damaged
            })
        });
        gone
    }
    /// Changes the contents of range records without their checksum; returns the number of slots.
    pub fn damage_ranges(&mut self) -> u32 {
        let mut changed = 0;
        self.each_page(|_, p| {
            if p.slots.iter().all(|s| s.record.kind != SlotKind::Ranges) {
                return None;
            }
            let mut p = p.clone();
            for s in Arc::make_mut(&mut p.slots).iter_mut().filter(|s| s.record.kind == SlotKind::Ranges) {
                s.data = Payload::elided(BLOCK, 1);
                changed += 1;
            }
            Some(PageState::Written(Rc::new(p)))
        });
        changed
    }
    /// Visits stored pages. The server must be stopped, so that its unsynced changes are lost or durable.
    fn each_page(&mut self, mut change: impl FnMut(PageAddr, &PageImage) -> Option<PageState>) {
        for block in 0..self.live.blocks.len() as u32 {
            for page in 0..self.live.blocks[block as usize].pages.len() as u16 {
                let PageState::Written(p) = self.live.blocks[block as usize].page(page).clone() else { continue };
                if let Some(new) = change(PageAddr { block, page }, &p) {
                    self.live.block_mut(block).set(page, new.clone());
                    self.durable.block_mut(block).set(page, new);
                }
            }
        }
    }

    fn change(&mut self, rng: &mut Rng, checksums: bool) -> bool {
        let written: Vec<(u32, u16)> = (0..self.live.blocks.len() as u32)
            .flat_map(|b| {
                let pages = &self.live.blocks[b as usize].pages;
                (0..pages.len()).filter(|&p| matches!(pages[p], PageState::Written(_))).map(move |p| (b, p as u16))
            })
            .collect();
        if written.is_empty() {
            return false;
        }
        let &(block, page) = rng.pick(&written);
        let flip = Payload::elided(BLOCK, rng.next_u64());
        for image in [&mut self.live, &mut self.durable] {
            let b = image.block_mut(block);
            if let PageState::Written(p) = b.page(page).clone() {
                let mut p = (*p).clone();
                for s in Arc::make_mut(&mut p.slots).iter_mut().filter(|s| s.record.kind == SlotKind::Data) {
                    s.data = flip.clone();
                    if checksums {
                        s.record.crc = flip.crc32c();
                    }
                }
                b.set(page, PageState::Written(Rc::new(p)));
            }
        }
        true
    }

    /// Rules that commands violated so far (the first [`VIOLATIONS_MAX`]).
    pub fn breaches(&self) -> &[NandBreach] {
        &self.breaches
    }

    fn breach(&mut self, b: NandBreach) {
        if self.breaches.len() < VIOLATIONS_MAX {
            self.breaches.push(b);
        }
    }

    fn check_program(&mut self, page: PageAddr) {
        if self.any_under_way(|c| matches!(c, Change::Erase { block, .. } if *block == page.block)) {
            self.breach(NandBreach::EraseUnderWay { page });
        }
        let Some(b) = self.live.block(page.block) else { return };
        let last = b.pages.iter().rposition(|p| !matches!(p, PageState::Erased));
        if !matches!(b.page(page.page), PageState::Erased) {
            self.breach(NandBreach::ProgramTwice { page });
        } else if let Some(last) = last.filter(|&l| l > usize::from(page.page)) {
            self.breach(NandBreach::OutOfOrder { page, last: last as u16 });
        }
    }

    fn check_erase(&mut self, block: u32) {
        if self.any_under_way(|c| matches!(c, Change::Program { page, .. } if page.block == block)) {
            self.breach(NandBreach::ProgramUnderWay { block });
        }
    }

    fn read(&self, op: &DeviceOp) -> Result<DeviceData, DeviceError> {
        let written = |page: PageAddr| match self.live.block(page.block).map(|b| b.page(page.page)) {
            Some(PageState::Written(image)) => Ok(image),
            _ => Err(DeviceError::Unwritten { page }),
        };
        match op {
            DeviceOp::ReadSlot { page, slot } => {
                let image = written(*page)?;
                let slot: &Slot = image.slots.get(usize::from(*slot)).ok_or(DeviceError::Unwritten { page: *page })?;
                Ok(DeviceData::Slot(slot.clone()))
            }
            DeviceOp::ReadSlots { page, first, count } => {
                let wanted = usize::from(*first)..usize::from(first + count);
                let slots = written(*page)?.slots.get(wanted).ok_or(DeviceError::Unwritten { page: *page })?;
                Ok(DeviceData::Page(slots.into()))
            }
            DeviceOp::ReadPage { page } => Ok(DeviceData::Page(written(*page)?.slots[..].into())),
            DeviceOp::ReadSpares { block } => Ok(self.spares(*block)),
            DeviceOp::ReadOob { block } => Ok(self.oob(*block)),
            DeviceOp::ReadMeta { offset, len } => Ok(DeviceData::Meta(self.live.meta.read(*offset, *len as usize))),
            DeviceOp::Program { .. }
            | DeviceOp::Erase { .. }
            | DeviceOp::MarkBad { .. }
            | DeviceOp::Sync
            | DeviceOp::WriteMeta { .. } => Ok(DeviceData::None),
        }
    }

    fn oob(&self, block: u32) -> DeviceData {
        let Some(b) = self.live.block(block) else {
            return DeviceData::Oob { oob: BlockOob::default(), pages: 0 };
        };
        let pages = b.pages.iter().take_while(|p| matches!(p, PageState::Written(_))).count() as u16;
        DeviceData::Oob { oob: b.oob(), pages }
    }

    fn spares(&self, block: u32) -> DeviceData {
        let Some(b) = self.live.block(block) else {
            let (pages, unreadable) = (Box::default(), Box::default());
            return DeviceData::Spares { oob: BlockOob::default(), pages, unreadable };
        };
        let pages = b.pages.iter().enumerate().filter_map(|(i, p)| match p {
            PageState::Written(image) => Some(PageSpare {
                page: i as u16,
                sequence: image.sequence,
                records: image.slots.iter().map(|s| s.record).collect(),
            }),
            _ => None,
        });
        let damaged = b.pages.iter().enumerate().filter(|(_, p)| matches!(p, PageState::Damaged));
        let unreadable = damaged.map(|(i, _)| i as u16).collect();
        DeviceData::Spares { oob: b.oob(), pages: pages.collect(), unreadable }
    }
}

/// The device behind a server's commands.
pub enum Disk {
    /// Keeps contents and injects faults.
    Fault(Box<FaultDisk>),
    /// A backend without a journal, for evaluation.
    Plain(Box<dyn Backend>),
}

impl Disk {
    /// Executes a command; [`Disk::complete`] takes the returned number.
    pub fn submit(&mut self, op: &DeviceOp) -> (Result<DeviceData, DeviceError>, u64) {
        match self {
            Disk::Fault(d) => d.submit(op),
            Disk::Plain(b) => (b.execute(op), 0),
        }
    }
    pub fn complete(&mut self, id: u64, sync: bool) {
        if let Disk::Fault(d) = self {
            d.complete(id, sync);
        }
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
