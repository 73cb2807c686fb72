//! Virtual SSDs and their superblocks: logical addresses and states.

use std::collections::{BTreeSet, VecDeque};

use rackweave_core::device::{BlockOob, SlotKind, SlotRecord};
use rackweave_core::{BlockAddr, Timestamp, VolumeId, VssdId};

use super::alloc::{Cut, Units};
use super::api::{Block, BlockError};
use super::queue::Flow;
use super::record::VssdRecord;
use super::space::{Logical, NONE};
use super::{FlashManager, VssdStats};
use crate::geometry::Geometry;
use crate::isolation::Isolation;
use crate::oob;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Free,
    /// Its erase blocks are being erased.
    Preparing,
    Open,
    /// Takes no more writes.
    Sealed,
}

/// Operations that a vSSD permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Waits until what was in its place is erased.
    Unborn,
    Live,
    /// Deallocated, and in the record still.
    Dying,
}

/// A superblock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Superblock {
    pub(super) state: State,
    /// A program failed for good: its page has nothing, and none is programmed behind it. Sealed when that is answered.
    pub(super) stopped: bool,
    /// Pages written, those under way included.
    pub(super) written: u32,
    /// Of those, pages whose writes were answered.
    pub(super) readable: u32,
    /// Operations under way.
    pub(super) busy: u32,
}

#[derive(Debug)]
pub(super) struct LogVssd {
    pub(super) id: VssdId,
    pub(super) units: Units,
    level: u32,
    capacity: u64,
    /// Logical addresses of the first superblock of each part, in the order of its pages. Superblock `i` is the part's
    /// `i` mod `parts`, and has each `i` ÷ `parts` × `step` further.
    lanes: Vec<Logical>,
    parts: u16,
    step: u32,
    pub(super) flow: Flow,
    pub(super) blocks: Vec<Superblock>,
    /// Free blocks whose addresses nothing bears.
    pub(super) ready: BTreeSet<u32>,
    pub(super) allocated: u32,
    /// Allocations that wait for a block.
    pub(super) waiting: VecDeque<u64>,
    pub(super) busy: u32,
    pub(super) life: Life,
    pub(super) stats: VssdStats,
}

impl LogVssd {
    pub(super) fn new(r: VssdRecord, cut: &Cut) -> LogVssd {
        let VssdRecord { id, level, capacity, units, parts } = r;
        let planes = u32::from(cut.geometry.planes_per_die);
        let stripes = cut.stripes(units.isolation);
        let soft_planes = u32::from(cut.soft_planes_per_die);
        let dies = u32::from(cut.geometry.dies_per_channel);
        let mut lanes = Vec::new();
        for (part, plane) in (0..parts).flat_map(|part| (0..planes).map(move |plane| (part, plane))) {
            // Soft-planes of one die come one after the other: of different parts.
            let of_part = units.numbers.iter().skip(usize::from(part)).step_by(usize::from(parts));
            match units.isolation {
                Isolation::Channel => {
                    let all = (0..dies).flat_map(|d| of_part.clone().map(move |c| c * dies + d));
                    lanes.extend(all.map(|die| Logical { die, number: plane }));
                }
                Isolation::Die => lanes.extend(of_part.map(|&die| Logical { die, number: plane })),
                Isolation::Software | Isolation::None => lanes.extend(of_part.map(|p| {
                    let number = p % soft_planes * stripes * planes + plane;
                    Logical { die: p / soft_planes, number }
                })),
            }
        }
        let blocks = stripes * u32::from(parts);
        let flow = if units.isolation == Isolation::None { Flow::Shared } else { Flow::Own(id.0) };
        LogVssd {
            id,
            units,
            level,
            capacity,
            lanes,
            parts,
            step: planes,
            flow,
            blocks: vec![Superblock::default(); blocks as usize],
            ready: (0..blocks).collect(),
            allocated: 0,
            waiting: VecDeque::new(),
            busy: 0,
            life: Life::Unborn,
            stats: VssdStats::default(),
        }
    }
    pub(super) fn record(&self) -> VssdRecord {
        let LogVssd { id, level, capacity, parts, .. } = *self;
        VssdRecord { id, level, capacity, parts, units: self.units.clone() }
    }
    pub(super) fn width(&self) -> u32 {
        self.lanes.len() as u32 / u32::from(self.parts)
    }
    pub(super) fn lane(&self, index: u32, lane: u32) -> Logical {
        let parts = u32::from(self.parts);
        let Logical { die, number } = self.lanes[(index % parts * self.width() + lane) as usize];
        Logical { die, number: number + index / parts * self.step }
    }
    /// The part that the unit is in.
    fn part_of(&self, unit: u32) -> u32 {
        self.units.numbers.binary_search(&unit).map_or(0, |i| i as u32 % u32::from(self.parts))
    }
    pub(super) fn lanes(&self, index: u32) -> impl Iterator<Item = Logical> {
        (0..self.width()).map(move |l| self.lane(index, l))
    }
    /// Soft-planes of each logical die that it has.
    pub(super) fn shares(&self, cut: &Cut) -> Vec<(u32, u32)> {
        let parts = u32::from(cut.soft_planes_per_die);
        let whole = matches!(self.units.isolation, Isolation::Channel | Isolation::Die);
        let one_plane = self.lanes.iter().filter(|l| l.number.is_multiple_of(self.step));
        let mut dies: Vec<u32> = one_plane.map(|l| l.die).collect();
        dies.sort_unstable();
        let each = |c: &[u32]| (c[0], if whole { parts } else { c.len() as u32 });
        dies.chunk_by(|a, b| a == b).map(each).collect()
    }
    /// Soft-planes of the drive that it has.
    pub(super) fn soft_planes(&self, cut: &Cut) -> Vec<u32> {
        let parts = u32::from(cut.soft_planes_per_die);
        let per = match self.units.isolation {
            Isolation::Channel => parts * u32::from(cut.geometry.dies_per_channel),
            Isolation::Die => parts,
            Isolation::Software | Isolation::None => 1,
        };
        self.units.numbers.iter().flat_map(|n| n * per..(n + 1) * per).collect()
    }
    /// Pages of a block.
    pub(super) fn pages(&self, g: &Geometry) -> u64 {
        u64::from(self.width()) * u64::from(g.pages_per_block)
    }
    /// Pages of an erase block that hold the first `written` of its superblock.
    pub(super) fn pages_in(&self, written: u32, lane: u32) -> u32 {
        (written + self.width() - 1 - lane) / self.width()
    }
    pub(super) fn allocated(&self, block: Block) -> Result<&Superblock, BlockError> {
        if block.vssd != self.id {
            return Err(BlockError::ForeignBlock { vssd: self.id, block });
        }
        let blocks = self.blocks.len() as u32;
        let s = self.blocks.get(block.index as usize).ok_or(BlockError::NoSuchBlock { block, blocks })?;
        match s.state {
            State::Open | State::Sealed => Ok(s),
            State::Free | State::Preparing => Err(BlockError::FreedBlock { block }),
        }
    }
    pub(super) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }
    pub(super) fn now_ready(&mut self, index: u32) {
        self.ready.insert(index);
    }
    /// As recovery found it.
    pub(super) fn restore(&mut self, index: u32, written: u32, sealed: bool) {
        let state = if sealed { State::Sealed } else { State::Open };
        self.blocks[index as usize] = Superblock { state, written, readable: written, ..Superblock::default() };
        self.ready.remove(&index);
        self.allocated += 1;
    }
    pub(super) fn not_ready(&mut self, index: u32) {
        self.ready.remove(&index);
    }
    pub(super) fn bytes(&self) -> usize {
        self.blocks.len() * size_of::<Superblock>() + self.ready.len() * 8 + self.lanes.len() * size_of::<Logical>()
    }
}

impl FlashManager {
    /// vSSD and superblock that the address belongs to.
    pub(super) fn owner(&self, l: Logical) -> Option<(VssdId, u32)> {
        let cut = self.alloc.cut();
        let soft_planes = u32::from(cut.soft_planes_per_die);
        let stripe = l.number / u32::from(cut.geometry.planes_per_die);
        let share = cut.stripes(Isolation::Software);
        let of_die = (stripe / share).min(soft_planes - 1);
        let id = self.owners.get((l.die * soft_planes + of_die) as usize).copied().flatten()?;
        let v = self.vssds.get(&id)?;
        let (unit, stripe) = match v.units.isolation {
            Isolation::Channel => (cut.geometry.channel_of_die(l.die), stripe),
            Isolation::Die => (l.die, stripe),
            Isolation::Software | Isolation::None => (l.die * soft_planes + of_die, stripe - of_die * share),
        };
        let index = stripe * u32::from(v.parts) + v.part_of(unit);
        (index < v.blocks.len() as u32).then_some((id, index))
    }
    /// No erase block bears an address of the superblock.
    pub(super) fn usable(&self, id: VssdId, index: u32) -> bool {
        let v = &self.vssds[&id];
        v.blocks[index as usize].state == State::Free
            && v.lanes(index).all(|l| self.mapped(l) == NONE && self.drive.map.claims(l) == 0)
    }
    /// Gives the vSSD its units, and its share of the dies.
    pub(super) fn install(&mut self, v: LogVssd) {
        let cut = *self.alloc.cut();
        v.soft_planes(&cut).into_iter().for_each(|p| self.owners[p as usize] = Some(v.id));
        for (die, soft_planes) in v.shares(&cut) {
            let home = self.drive.map.home(die);
            self.dies[home as usize].queue.join(v.flow, soft_planes, self.now);
        }
        self.vssds.insert(v.id, v);
    }
}

/// Owner that a page bears at this address. On a log vSSD the drive puts the table's entry in its place, and takes out
/// no other than its own (protocol rule 30).
pub(super) fn owner_at(l: Logical) -> u32 {
    BlockOob { logical: oob::logical(l.die, l.number), ..BlockOob::default() }.owner()
}

/// Record of a 4 KiB slot of a block at this address, without its checksum.
pub(super) fn slot_record(block: Block, slot: u32, at: Logical) -> SlotRecord {
    let addr = BlockAddr::new(VolumeId(block.vssd.0), slot);
    SlotRecord { kind: SlotKind::Data, addr, version: Timestamp(u64::from(block.index)), crc: 0, owner: owner_at(at) }
}
