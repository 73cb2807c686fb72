//! Requests that wait for an erase block of a die without a free one: allocations, superblocks of which an erase
//! failed, blocks that failed to program. They wait while a block is about to become free. If none is, the die is worn
//! out for its vSSD, which gets no block unless one is freed.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::VssdId;
use rackweave_core::device::DeviceError;

use super::api::{Block, BlockError};
use super::io::{Kind, Op, Who};
use super::leveling::For;
use super::space::{Logical, Phys, PhysState};
use super::vssd::{LogVssd, State, Superblock};
use super::{Done, FlashManager, ManagerOut};

/// A superblock that is being prepared has no erase block at this address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lacking {
    op: u32,
    logical: Logical,
}

/// A die has no free erase block.
struct Short {
    die: u32,
    coming: bool,
}

impl FlashManager {
    /// Something of a vSSD is stopped until a die has a free erase block.
    pub(super) fn short_of_blocks(&self) -> bool {
        !self.stranded.is_empty() || !self.lacking.is_empty()
    }
    /// Gives what is stopped an erase block, or up. Before allocations: theirs are not answered yet.
    pub(super) fn settle_short(&mut self, out: &mut ManagerOut) {
        if self.failed().is_some() || !self.short_of_blocks() {
            return;
        }
        for id in std::mem::take(&mut self.stranded) {
            self.find_target(out, id);
        }
        for Lacking { op, logical } in std::mem::take(&mut self.lacking) {
            self.give_block(out, op, logical);
        }
    }
    /// The device failed: no erase completes.
    pub(super) fn fail_lacking(&mut self, out: &mut ManagerOut, e: DeviceError) {
        for Lacking { op, .. } in std::mem::take(&mut self.lacking) {
            self.op_part_done(out, op, Some(e.into()));
        }
    }
    /// The die that has too few erase blocks for the next block of the vSSD, and gets none.
    pub(super) fn worn(&self, v: &LogVssd) -> Option<u32> {
        let mut wanted = BTreeMap::<u32, usize>::new();
        let free = || v.blocks.iter().zip(0..).find(|(s, _)| s.state == State::Free).map(|(_, i)| i);
        let next = v.ready.first().copied().or_else(free);
        next.into_iter().flat_map(|next| v.lanes(next)).find_map(|l| {
            let die = self.place_for(l);
            let n = wanted.entry(die).or_default();
            *n += 1;
            (self.dies[die as usize].free.len() < *n && !self.place_comes(l)).then_some(die)
        })
    }
    /// Erase blocks have become free, or addresses.
    pub(super) fn settle_waiting(&mut self, out: &mut ManagerOut) {
        self.settle_short(out);
        let waiting: Vec<VssdId> = self.vssds.values().filter(|v| !v.waiting.is_empty()).map(|v| v.id).collect();
        waiting.into_iter().for_each(|v| self.serve_waiting(out, v));
    }
    pub(super) fn serve_waiting(&mut self, out: &mut ManagerOut, vssd: VssdId) {
        loop {
            let v = &self.vssds[&vssd];
            if v.waiting.is_empty() {
                return;
            }
            if let Some(e) = self.failed() {
                return self.refuse_waiting(out, vssd, e.into());
            }
            let Some(&index) = v.ready.first() else {
                return self.rounds.hurry();
            };
            match self.prepare(out, vssd, index) {
                Ok(()) => {}
                // Something is on its way to the die's free list.
                Err(Short { coming: true, .. }) => return self.rounds.hurry(),
                Err(Short { die, coming: false }) => {
                    return self.refuse_waiting(out, vssd, BlockError::WornOut { vssd, die });
                }
            }
        }
    }
    fn refuse_waiting(&mut self, out: &mut ManagerOut, vssd: VssdId, e: BlockError) {
        let waiting = std::mem::take(&mut self.live_mut(vssd).waiting);
        out.done.extend(waiting.into_iter().map(|token| Done::BlockAllocated { token, result: Err(e) }));
    }
    /// Takes erase blocks for the superblock, for the first that waits.
    fn prepare(&mut self, out: &mut ManagerOut, vssd: VssdId, index: u32) -> Result<(), Short> {
        let lanes: Vec<Logical> = self.vssds[&vssd].lanes(index).collect();
        for (i, &l) in lanes.iter().enumerate() {
            let home = self.place_for(l);
            if let Some(block) = self.take_free(home, l.number) {
                let dirty = self.phys[block as usize].state == PhysState::Dirty;
                self.map(l, block);
                if dirty {
                    self.phys[block as usize].state = PhysState::Dirty;
                }
                continue;
            }
            for &l in &lanes[..i] {
                let block = self.drive.map.unmap(l);
                if self.phys[block as usize].state != PhysState::Dirty {
                    self.phys[block as usize].state = PhysState::Clean;
                }
                self.put_free(block);
            }
            return Err(Short { die: home, coming: self.place_comes(l) });
        }
        let v = self.live_mut(vssd);
        let token = v.waiting.pop_front().expect("somebody waits");
        v.ready.remove(&index);
        v.allocated += 1;
        v.busy += 1;
        v.blocks[index as usize] = Superblock { state: State::Preparing, busy: 1, ..Superblock::default() };
        let flow = v.flow;
        let block = Block { vssd, index };
        let dirty: Vec<u32> = lanes
            .iter()
            .map(|l| self.mapped(*l))
            .filter(|b| self.phys[*b as usize].state == PhysState::Dirty)
            .collect();
        let op = Op { token, block, kind: Kind::Alloc, left: dirty.len() as u32 + 1, error: None };
        let op = self.ops.insert(op) as u32;
        dirty.into_iter().for_each(|b| self.erase(b, flow, Who::Op(op)));
        self.op_part_done(out, op, None);
        Ok(())
    }
    /// An erase block of a superblock that is being prepared was erased, or failed to.
    pub(super) fn prepared(&mut self, out: &mut ManagerOut, op: u32, block: u32, bad: bool) {
        if !bad {
            self.phys[block as usize].state = PhysState::Mapped;
            self.note_erase(block, For::User);
            return self.op_part_done(out, op, None);
        }
        let l = self.phys[block as usize].logical();
        self.retire(block, None);
        self.drive.map.unmap(l);
        self.give_block(out, op, l);
    }
    /// An erase block for a superblock that is being prepared, as soon as there is one.
    fn give_block(&mut self, out: &mut ManagerOut, op: u32, l: Logical) {
        let vssd = self.ops[op as usize].block.vssd;
        let Some(block) = self.take_free(self.place_for(l), l.number) else {
            if self.place_comes(l) {
                return self.lacking.push(Lacking { op, logical: l });
            }
            let die = self.drive.map.home(l.die);
            return self.op_part_done(out, op, Some(BlockError::WornOut { vssd, die }));
        };
        let dirty = self.phys[block as usize].state == PhysState::Dirty;
        self.map(l, block);
        if dirty {
            let flow = self.vssds[&vssd].flow;
            self.phys[block as usize].state = PhysState::Dirty;
            return self.erase(block, flow, Who::Op(op));
        }
        self.op_part_done(out, op, None);
    }
    /// An erase block is on its way to where one for the address may be.
    pub(super) fn place_comes(&self, l: Logical) -> bool {
        let (home, from) = (self.drive.map.home(l.die), self.drive.map.from(l.die));
        self.coming(home) || (from != home && self.coming(from))
    }
    /// Erase blocks of the die are about to become free: obsolete, or moving to another die.
    pub(super) fn coming(&self, die: u32) -> bool {
        let homes = || self.blocks_of(die).filter_map(|(_, p)| self.leaves_for(die, p)).collect::<BTreeSet<u32>>();
        let planes = u32::from(self.geometry().planes_per_die);
        let makes_room = |home| (0..planes).any(|n| self.free_in_plane(home, n) > 0) || self.emptied(home);
        self.emptied(die) || homes().into_iter().any(makes_room)
    }
    /// Erase blocks of the die become free independently of other requests.
    fn emptied(&self, die: u32) -> bool {
        let mut blocks = self.blocks_of(die);
        blocks.any(|(b, p)| match p.state {
            PhysState::Stale => true,
            PhysState::Moving => self.vacates(b),
            _ => false,
        }) || self.given_up(die)
    }
    /// While dies are swapped: the die where this erase block, which lies elsewhere, is moved as soon as there is room.
    fn leaves_for(&self, die: u32, p: &Phys) -> Option<u32> {
        let (l, map) = (p.logical().die, &self.drive.map);
        if p.state != PhysState::Mapped || l >= map.dies() {
            return None;
        }
        let (home, from) = (map.home(l), map.from(l));
        let moves = self.ready && (self.leveling.recording() || from != home);
        (moves && home != die).then_some(home)
    }
    fn blocks_of(&self, die: u32) -> impl Iterator<Item = (u32, &Phys)> {
        let n = self.geometry().blocks_per_die();
        (die * n..(die + 1) * n).map(|b| (b, &self.phys[b as usize]))
    }
}
