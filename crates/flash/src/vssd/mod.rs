//! A virtual SSD with a page-mapped layer on it: frontiers striped over its dies, a map of 4 KiB slots, range records.

pub(crate) mod blocks;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod clear;
pub(crate) mod dead;
pub(crate) mod failed;
pub(crate) mod frontier;
pub(crate) mod gc;
pub(crate) mod loan;
pub(crate) mod map;
pub(crate) mod moving;
pub(crate) mod prefill;
mod program;
pub(crate) mod ranges;
pub(crate) mod recovery;
pub(crate) mod scan;
pub(crate) mod sync;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use rackweave_core::device::{BlockOob, DeviceCommand, DeviceOp, PageAddr, Slot, SlotKind, SlotRecord};
use rackweave_core::msg::BlockRange;
use rackweave_core::node::Trace;
use rackweave_core::rng::mix64;
use rackweave_core::{BLOCK, BlockAddr, Payload, Span, Time, Timestamp, TracePoint, VssdId};

use crate::drive::{BlockMap, Drive};
use crate::gc_policy::Lifespan;
use crate::hold::{Admission, FlashLocation, ReadTry};
use crate::oob::{Address, Owner};
use crate::profile::Profile;
use crate::ssd::{FlashDone, FlashOut, FlashStats, Share, Space, SsdConfig};
use crate::table::{Extent, Table};
use crate::trace;
use blocks::{Blocks, NONE, PAD, RANGE_VOLUME};
use frontier::{Frontier, NO_FRONTIER, Taker, Waiting};
use map::PageMap;
use ranges::Ranges;

/// Blocks that only the collector and range records may take: one to collect into, one for a second frontier of the
/// collector, one for range records, one for a partly filled block that a power cut closed.
pub(crate) const GC_RESERVE: u32 = 4;
/// One host frontier for this many blocks of a small vSSD, and one frontier of the collector for that many: open blocks
/// are lost to data. The collector has one command at a die at a time, so its pace comes from its frontiers' dies.
const BLOCKS_PER_HOST_FRONTIER: u32 = 16;
const BLOCKS_PER_GC_FRONTIER: u32 = 32;
/// One block in this many is set aside for range records.
const BLOCKS_PER_RANGE_BLOCK: u32 = 256;

/// A command in flight, by its tag.
#[derive(Debug)]
pub(crate) enum Pending {
    Read {
        vssd: u8,
        read: SlotRead,
    },
    Program {
        vssd: u8,
        block: u32,
        page: u16,
        epoch: u64,
        by: By,
        slots: Arc<[Slot]>,
    },
    GcRead {
        vssd: u8,
        victim: u8,
        page: u16,
    },
    Erase {
        vssd: u8,
        block: u32,
    },
    MarkBad {
        vssd: u8,
        block: u32,
    },
    Sync {
        vssd: u8,
    },
    Spares {
        vssd: u8,
        block: u32,
    },
    MetaRead {
        vssd: u8,
    },
    MetaWrite {
        vssd: u8,
        epoch: u64,
        piece: bool,
    },
    RangeRead {
        vssd: u8,
        group: u32,
    },
    Table(TableStep),
    /// Of the checkpoints of a vSSD that gets another number of units.
    Blank,
    /// Of a block that moves between dies.
    Move,
    /// Of a start that looks for blocks that moved.
    Place {
        block: u32,
    },
}

/// A command for the drive's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableStep {
    Read,
    Write,
    Sync,
    /// Of the other copy, once the change is durable.
    Double,
    SyncBoth,
}

/// A slot that the host reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotRead {
    pub(crate) token: u64,
    pub(crate) slot: u32,
    pub(crate) addr: u64,
    pub(crate) version: u64,
    /// The next slot that its command reads, by its place in the same table, or [`NONE`].
    pub(crate) next: u32,
}

/// On whose behalf a page is programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Host { token: u64 },
    Gc { victim: u8 },
    Ranges,
}

impl By {
    fn taker(self) -> Taker {
        match self {
            By::Host { .. } => Taker::Host,
            By::Gc { .. } => Taker::Collector,
            By::Ranges => Taker::Ranges,
        }
    }
}

/// Environment of a vSSD while it handles an event.
pub(crate) struct Io<'a> {
    pub(crate) now: Time,
    pub(crate) drive: &'a mut Drive<Pending>,
    pub(crate) cfg: &'a SsdConfig,
    pub(crate) table: &'a Table,
    pub(crate) out: &'a mut FlashOut,
}

impl Io<'_> {
    /// The command names its block by the address.
    pub(crate) fn submit(&mut self, pending: Pending, op: DeviceOp, done_at: Time) {
        let collects = matches!(pending, Pending::Program { by: By::Gc { .. }, .. });
        self.drive.submit_at_address(self.now, pending, (op, done_at), collects, &mut self.out.commands);
    }
    /// Adds a slot to the last command, if that reads the one before it of the same page: the die's register has the page
    /// by then, and the slot is only one more to transfer.
    fn read_on(&mut self, die: u32, page: PageAddr, within: u8, read: SlotRead, held: bool) -> bool {
        let Some(DeviceCommand { tag, op, done_at, .. }) = self.out.commands.last_mut() else { return false };
        let page = PageAddr { block: self.drive.map.place(page.block), page: page.page };
        let (first, count) = match *op {
            DeviceOp::ReadSlot { page: p, slot } if p == page => (slot, 1),
            DeviceOp::ReadSlots { page: p, first, count } if p == page => (first, count),
            _ => return false,
        };
        if within != first + count {
            return false;
        }
        let mut last = *tag as usize;
        while let Some(Pending::Read { read: SlotRead { next, .. }, .. }) = self.drive.pending.get(last)
            && *next != NONE
        {
            last = *next as usize;
        }
        let added = self.drive.pending.vacant_key() as u32;
        let Some(Pending::Read { vssd, read: before }) = self.drive.pending.get_mut(last) else { return false };
        let end = if held {
            Some(self.drive.clock.read_held_on(self.now, die, *done_at))
        } else {
            self.drive.clock.read_on(self.now, die, *done_at)
        };
        let Some(end) = end else { return false };
        before.next = added;
        let vssd = *vssd;
        self.drive.pending.insert(Pending::Read { vssd, read });
        (*op, *done_at) = (DeviceOp::ReadSlots { page, first, count: count + 1 }, end);
        true
    }
    pub(crate) fn trace(&mut self, point: TracePoint, a: u64, b: u64) {
        self.out.traces.push(Trace { point, a, b });
    }
}

/// Durable records of a vSSD that could not be read when it was recovered (protocol rule 29): spare areas of pages, and range records.
/// Addresses that they were about show what was there before, or nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    pub records: u32,
    /// Which, as a sum: zero if none is lost.
    pub digest: u64,
}

impl Losses {
    fn add(&mut self, block: u32, page: u16, erased: u64) {
        self.records += 1;
        let place = u64::from(block) << 16 | u64::from(page);
        self.digest = self.digest.wrapping_add(mix64(mix64(place).wrapping_add(erased))).max(1);
    }
}

/// Erase blocks of a vSSD: its frontiers', those for collection and bad blocks, and the rest for data.
struct Division {
    host: u32,
    collector: u32,
    range_blocks: u32,
    spared: u32,
    exported: u32,
}

impl Division {
    /// Of `n` blocks on this number of dies.
    fn of(n: u32, dies: u32, p: &Profile) -> Division {
        let host = (n / BLOCKS_PER_HOST_FRONTIER).clamp(1, dies.max(1));
        let collector = (n / BLOCKS_PER_GC_FRONTIER).clamp(1, dies.max(1));
        let range_blocks = n.div_ceil(BLOCKS_PER_RANGE_BLOCK);
        let spared = (f64::from(n) * (p.over_provisioning + p.device_over_provisioning)).ceil() as u32;
        let reserve = if mutant!("flash.room.no-reserve") { 0 } else { host + collector + GC_RESERVE + range_blocks };
        let exported = n.saturating_sub(spared.max(1)).saturating_sub(reserve);
        Division { host, collector, range_blocks, spared, exported }
    }
}

/// Where a vSSD lies.
#[derive(Debug)]
pub(crate) struct Place {
    /// Its logical dies, its own first, then those of the others of its channel group; or soft-planes, by their number of the drive.
    pub(crate) dies: Box<[u32]>,
    pub(crate) own: u32,
    /// Soft-planes of a die, of which each of `dies` is one; 1: they are whole.
    pub(crate) parts: u32,
    /// Its part of the checkpoint area.
    pub(crate) area: Extent,
}

/// Slots of live data that a vSSD with this share of a drive takes ([`Space::exported_slots`]), through bad blocks,
/// loans and range records, while its flash takes programs at all.
pub fn exported_slots(p: &Profile, share: Share) -> u64 {
    let (g, dies) = (&p.geometry, share.dies(&p.geometry));
    if dies == 0 {
        return 0;
    }
    u64::from(Division::of(share.blocks(g), dies, p).exported) * u64::from(g.slots_per_block())
}

#[derive(Debug)]
pub(crate) struct Vssd {
    pub(crate) id: VssdId,
    pub(crate) index: u8,
    /// Of its entry in the drive's table, as durable.
    pub(crate) generation: u16,
    /// As in its [`Place`].
    dies: Box<[u32]>,
    parts: u32,
    /// Blocks of its own dies: the first ones.
    pub(crate) home: u32,
    pub(crate) loans: loan::Loans,
    /// Losses found by recovery.
    pub(crate) losses: Losses,
    /// Addresses of blocks whose copy here is a mark that their contents are lost. On flash the marks are in spare areas alone, so no
    /// checkpoint describes a block that has one.
    pub(crate) lost: BTreeSet<u64>,
    /// Byte of the checkpoint area where this vSSD's part begins.
    pub(crate) meta0: u64,
    pub(crate) blocks: Blocks,
    pub(crate) map: PageMap,
    pub(crate) ranges: Ranges,
    pub(crate) dead: dead::DeadVolumes,
    host: Vec<Frontier>,
    /// Pages left in the blocks of `host`.
    open_pages: u32,
    collector: Vec<Frontier>,
    /// Of the host's and of the collector's frontiers, those for short-lived data; with none, nothing is kept apart.
    short: [usize; 2],
    lifespan: Lifespan,
    /// Where the search goes on, for the host and the collector, and each for data of any, short and long life.
    cursor: [usize; 6],
    open_on: Vec<u16>,
    waiting: VecDeque<Waiting>,
    pub(crate) sequence: u64,
    exported: u64,
    /// Number of blocks that failed for good; at one number none is left in reserve for the next failure (FB5's part of
    /// the device), at a higher one collection cannot reclaim what data may need.
    retired: u32,
    retired_worn: u32,
    retired_max: u32,
    range_reserve: u64,
    pub(crate) gc: gc::Gc,
    pub(crate) sync: sync::Syncs,
    pub(crate) checkpoint: checkpoint::Checkpoint,
    pub(crate) recovery: Option<Box<recovery::Recovery>>,
    pub(crate) recovery_took: Span,
    /// The sync that a move of one of its blocks waited for is done; whether it succeeded.
    pub(crate) move_synced: Option<bool>,
    pub(crate) sweep_at: u32,
    pub(crate) clearing: clear::Clearing,
    pub(crate) stats: FlashStats,
}

impl Vssd {
    pub(crate) fn new(id: VssdId, owner: Owner, at: Place, p: &Profile) -> Vssd {
        let g = &p.geometry;
        let Place { dies: all, own, parts, area } = at;
        let each = g.blocks_per_die() / parts;
        let (dies, n) = (own, own * each);
        let blocks = Blocks::new((all.len() as u32, own), each, g.pages_per_block, g.slots_per_page() as u32);
        let Division { host, collector, range_blocks, spared, exported } = Division::of(n, dies, p);
        let spb = u64::from(g.slots_per_block());
        Vssd {
            id,
            index: owner.index,
            generation: owner.generation,
            home: n,
            loans: loan::Loans::new(g, n, spared),
            meta0: area.at,
            blocks,
            map: PageMap::new(),
            ranges: Ranges::new(),
            dead: dead::DeadVolumes::default(),
            host: vec![NO_FRONTIER; host as usize],
            open_pages: 0,
            collector: vec![NO_FRONTIER; collector as usize],
            short: [0; 2],
            lifespan: Lifespan::default(),
            cursor: [0; 6],
            open_on: vec![0; all.len()],
            waiting: VecDeque::new(),
            sequence: 1,
            exported: u64::from(exported) * spb,
            retired: 0,
            retired_worn: ((f64::from(n) * p.device_over_provisioning).ceil() as u32).max(1),
            retired_max: spared.max(1),
            range_reserve: u64::from(range_blocks) * spb,
            gc: gc::Gc::new(n, all.len() as u32, collector),
            sync: sync::Syncs::new(),
            checkpoint: checkpoint::Checkpoint::new(n, area.len, g),
            recovery: None,
            recovery_took: Span::ZERO,
            losses: Losses::default(),
            lost: BTreeSet::new(),
            move_synced: None,
            sweep_at: 0,
            clearing: clear::Clearing::No,
            stats: FlashStats::default(),
            dies: all,
            parts,
        }
    }

    /// The logical dies of its own blocks.
    pub(crate) fn own_dies(&self) -> impl Iterator<Item = u32> {
        self.dies[..(self.home / self.blocks.blocks_per_die) as usize].iter().map(|d| d / self.parts)
    }
    /// It has soft-planes, on dies that others have too.
    pub(crate) fn shares_dies(&self) -> bool {
        self.parts > 1
    }
    pub(crate) fn owner(&self) -> Owner {
        Owner { index: self.index, generation: self.generation }
    }
    /// The block's address, as its number of all addresses of the drive.
    pub(crate) fn address(&self, block: u32) -> u32 {
        let (die, within) = self.blocks.within_die(block);
        self.dies[die as usize] * self.blocks.blocks_per_die + within
    }
    /// The logical die of the block's address, and its number there.
    pub(crate) fn logical(&self, block: u32) -> (u32, u32) {
        let (address, per_die) = (self.address(block), self.blocks.blocks_per_die * self.parts);
        (address / per_die, address % per_die)
    }
    /// Its number on the device.
    pub(crate) fn on_device(&self, map: &BlockMap, block: u32) -> u32 {
        map.place(self.address(block))
    }
    /// The device's die that it lies on.
    pub(crate) fn die(&self, map: &BlockMap, block: u32) -> u32 {
        map.die_of(self.dies[self.blocks.die_of(block) as usize] / self.parts, || self.address(block))
    }
    /// A page by its block's address.
    pub(crate) fn page_addr(&self, block: u32, page: u16) -> PageAddr {
        PageAddr { block: self.address(block), page }
    }
    pub(crate) fn erase_count(&self, io: &Io, block: u32) -> u16 {
        io.drive.blocks.count(self.on_device(&io.drive.map, block))
    }
    pub(crate) fn oob(&self, io: &Io, block: u32) -> BlockOob {
        let (die, number) = self.logical(block);
        let unmarked = block >= self.home && mutant!("flash.loan.unmarked");
        let owner = if unmarked { Owner::default() } else { self.owner() };
        let address = Address { owner, die, block: number };
        io.drive.blocks.oob(self.on_device(&io.drive.map, block), address.pack())
    }

    // Reads.

    pub(crate) fn version(&self, addr: u64) -> u64 {
        self.held(addr).0
    }
    /// Version of the block, and whether it is mapped.
    pub(crate) fn held(&self, addr: u64) -> (u64, bool) {
        match self.map.held(addr) {
            (NONE, _) => (self.ranges.version(addr), false),
            (slot, version) => (self.version_in(slot, version), true),
        }
    }
    /// The die that has the block.
    pub(crate) fn die_of(&self, map: &BlockMap, addr: u64) -> Option<u32> {
        let (slot, _) = self.map.held(addr);
        (slot != NONE).then(|| self.die(map, self.blocks.block_of(slot)))
    }
    /// The version in a slot, which the map may have given.
    fn version_in(&self, slot: u32, told: Option<u64>) -> u64 {
        told.unwrap_or_else(|| self.blocks.version(slot))
    }
    /// Touches what is about to change of these blocks, all at once: the memory is then waited for once, not block by block.
    fn foresee(&self, addrs: impl Iterator<Item = u64>) {
        let touched = addrs.fold(0, |t, addr| match self.map.held(addr) {
            (NONE, _) => t,
            (slot, version) => t ^ self.version_in(slot, version) ^ self.blocks.valid_word(slot),
        });
        std::hint::black_box(touched);
    }
    pub(crate) fn read_if(
        &mut self,
        io: &mut Io,
        addr: u64,
        token: u64,
        turn: impl FnOnce(FlashLocation) -> Admission,
    ) -> ReadTry {
        let Some((lies, read)) = self.find(io, addr, token) else { return ReadTry::Joined };
        if io.read_on(lies.die, lies.page, lies.slot, read, false) {
            self.count_read(read.slot);
            return ReadTry::Joined;
        }
        match turn(lies) {
            Admission::Now => {
                let done_at = io.drive.clock.host_read(io.now, lies.die, 1);
                self.start_read(io, lies, read, done_at)
            }
            Admission::Waits => {
                io.drive.clock.hold_read(io.now, lies.die);
                ReadTry::Held
            }
            Admission::Joins => ReadTry::Held,
        }
    }
    /// `time`: of the die it waited for, if no other has taken it.
    pub(crate) fn read_held(
        &mut self,
        io: &mut Io,
        addr: u64,
        token: u64,
        (die, time): (u32, Option<Time>),
    ) -> ReadTry {
        let Some((lies, read)) = self.find(io, addr, token) else { return ReadTry::Joined };
        if io.read_on(lies.die, lies.page, lies.slot, read, true) {
            self.count_read(read.slot);
            return ReadTry::Joined;
        }
        let done_at = time.filter(|_| die == lies.die);
        let done_at = done_at.unwrap_or_else(|| io.drive.clock.host_read(io.now, lies.die, 1));
        self.start_read(io, lies, read, done_at)
    }
    /// Where the block is; answers if it is not mapped.
    fn find(&mut self, io: &mut Io, addr: u64, token: u64) -> Option<(FlashLocation, SlotRead)> {
        let (slot, version) = self.map.held(addr);
        if slot == NONE {
            self.stats.reads += 1;
            io.out.done.push(FlashDone::Read {
                token,
                addr: BlockAddr::unpack(addr),
                version: Timestamp(self.ranges.version(addr)),
                result: Ok(Payload::zero(BLOCK)),
            });
            return None;
        }
        let block = self.blocks.block_of(slot);
        let (page, within) = self.blocks.page_of(slot);
        let die = self.die(&io.drive.map, block);
        let lies = FlashLocation { die, page: self.page_addr(block, page), slot: within };
        Some((lies, SlotRead { token, slot, addr, version: self.version_in(slot, version), next: NONE }))
    }
    fn count_read(&mut self, slot: u32) {
        self.stats.reads += 1;
        let block = self.blocks.block_of(slot);
        self.blocks.all[block as usize].reads += 1;
    }
    fn start_read(&mut self, io: &mut Io, lies: FlashLocation, read: SlotRead, done_at: Time) -> ReadTry {
        self.count_read(read.slot);
        let op = DeviceOp::ReadSlot { page: lies.page, slot: lies.slot };
        io.submit(Pending::Read { vssd: self.index, read }, op, done_at);
        ReadTry::Started { die: lies.die }
    }
    pub(crate) fn read_done(&mut self, slot: u32) {
        let block = self.blocks.block_of(slot);
        self.blocks.all[block as usize].reads -= 1;
    }

    /// Blocks of its own that failed.
    pub(crate) fn retired(&self) -> u32 {
        self.retired
    }
    /// Blocks that may still fail until it is worn out.
    pub(crate) fn reserve(&self) -> u32 {
        self.retired_worn.saturating_sub(self.retired)
    }
    pub(crate) fn worn_out(&self) -> bool {
        self.retired >= self.retired_worn
    }
    pub(crate) fn read_only(&self) -> bool {
        self.retired >= self.retired_max
    }

    // Range records.

    pub(crate) fn zero_range(&mut self, range: &BlockRange, version: u64) {
        if self.is_dead(range.volume) {
            return;
        }
        self.hide(range, version);
        self.ranges.add(range, version);
        self.drain_freed();
    }
    /// Unmaps every block of the range that is older.
    pub(crate) fn hide(&mut self, range: &BlockRange, version: u64) {
        let volume = u64::from(range.volume.0) << 32;
        let mut older = Vec::new();
        for (k, chunk) in self.map.over(range).filter(|c| c.1.mapped > 0) {
            let first = k * u64::from(rackweave_core::msg::peer::CHUNK_BLOCKS);
            for (i, slot) in chunk.slots().enumerate() {
                let addr = first + i as u64;
                if slot != NONE
                    && range.contains((addr - volume) as u32)
                    && (self.blocks.version(slot) < version || mutant!("flash.ranges.newer-hidden"))
                {
                    older.push(addr);
                }
            }
        }
        for addr in older {
            let slot = self.map.unset(addr);
            self.blocks.clear_valid(slot);
            self.lost.remove(&addr);
        }
    }
    pub(crate) fn drain_freed(&mut self) {
        while let Some(slot) = self.ranges.freed.pop() {
            self.blocks.clear_valid(slot);
        }
    }
    /// Programs pending range records, a page of groups at a time.
    pub(crate) fn flush_ranges(&mut self, io: &mut Io) {
        self.ranges.compact(RANGE_GROUPS_MIN);
        self.drain_freed();
        let owner = self.owner().packed();
        while self.ranges.has_pending() {
            let mut slots = Vec::with_capacity(self.blocks.spp as usize);
            while slots.len() < self.blocks.spp as usize {
                let Some((group, version, bytes)) = self.ranges.take_group() else { break };
                let data = Payload::Bytes(bytes);
                let record = SlotRecord {
                    kind: SlotKind::Ranges,
                    addr: BlockAddr::unpack(RANGE_VOLUME | u64::from(group)),
                    version: Timestamp(version),
                    crc: data.crc32c(),
                    owner,
                };
                slots.push(Slot { data, record });
            }
            if !slots.is_empty() {
                self.stats.range_slots += slots.len() as u64;
                self.program_ranges(io, slots);
            }
        }
    }
    /// Looks through a few more blocks for older copies that range records hide; ends a pass when all were seen.
    fn sweep(&mut self, io: &mut Io) {
        if self.ranges.is_empty() {
            return;
        }
        let n = self.blocks.all.len() as u32;
        for _ in 0..SWEEP_BLOCKS {
            if self.sweep_at >= n {
                self.sweep_at = 0;
                let dropped = self.ranges.end_pass();
                self.drain_freed();
                if dropped > 0 {
                    io.trace(trace::TOMBSTONE_DROPPED, u64::from(self.id.0), dropped);
                }
                return;
            }
            for r in self.blocks.records(self.sweep_at).iter().filter(|r| r.addr < RANGE_VOLUME) {
                self.ranges.saw(r.addr, r.version);
            }
            self.sweep_at += 1;
        }
    }

    // Views for other modules.

    /// Pages left in the host's open blocks, counted anew.
    pub(crate) fn count_open_pages(&self) -> u32 {
        let left = |f: &Frontier| u32::from(self.blocks.pages - self.blocks.all[f.block as usize].next_page);
        self.host.iter().filter(|f| f.block != NONE).map(left).sum()
    }

    /// Slots mapped, and the most that may be.
    pub(crate) fn room(&self) -> (u64, u64) {
        let extra = (self.ranges.group_count() as u64).saturating_sub(self.range_reserve);
        (self.map.mapped + extra, self.exported)
    }
    pub(crate) fn space(&self) -> Space {
        let total = self.blocks.here;
        let needed = self.blocks.valid.div_ceil(u64::from(self.blocks.spb)) as u32;
        let taken = self.collector.len() as u32 + GC_RESERVE;
        let (mapped_slots, exported_slots) = self.room();
        Space {
            blocks_total: total,
            blocks_free: self.blocks.free_count.saturating_sub(GC_RESERVE),
            open_pages: self.open_pages,
            spare_blocks: total.saturating_sub(needed).saturating_sub(taken + self.retired).max(1),
            pages_per_block: self.blocks.pages,
            mapped_slots,
            exported_slots,
        }
    }
    pub(crate) fn state_bytes(&self) -> u64 {
        self.blocks.state_bytes() + self.map.state_bytes() + self.ranges.state_bytes()
    }
}

/// Blocks looked through with each erase: a pass takes about one rewrite of the vSSD and its cost stays small beside
/// the erase's own. With collection at rest nothing is erased, and no record could go.
const SWEEP_BLOCKS: u32 = 2;
/// Fewer groups than this are not worth packing again.
const RANGE_GROUPS_MIN: usize = 64;

/// Address of a slot as the reverse map keeps it.
pub(crate) fn packed(r: &SlotRecord) -> u64 {
    match r.kind {
        SlotKind::Pad => PAD,
        SlotKind::Data => r.addr.pack(),
        SlotKind::Ranges => RANGE_VOLUME | u64::from(r.addr.block),
    }
}
