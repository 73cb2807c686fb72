//! Where the blocks of a drive lie whose dies were swapped: a start reads the out-of-band data of all of them, before it recovers
//! the vSSDs.
//!
//! Of two blocks that bear an address, the one with more readable pages counts; of equals, which have the same contents, the
//! one that is away from its die, whose move then begins anew. What is left over gets the addresses that are: of blocks that
//! failed, that were never erased, or that lost. One that bears another address than it gets is erased first, after a sync, so
//! that no later start finds it.

use std::collections::VecDeque;

use rackweave_core::Time;
use rackweave_core::device::{DeviceData, DeviceError, DeviceOp};

use super::{FlashOut, RecoveryError, Ssd};
use crate::drive::map::NONE;
use crate::oob::{self, Address, Owner};
use crate::table::TableError;
use crate::vssd::Pending;

/// Reads under way: more than dies, so that none rests.
const READS_MAX: usize = 128;

/// A block, as found.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// The address that it bears, by its number of all.
    address: Option<u32>,
    owner: Owner,
    pages: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Oobs,
    /// Pages of blocks that bear the same address are counted.
    Pages,
    Sync,
    Erases,
    SyncErased,
}

#[derive(Debug)]
pub(super) struct Places {
    step: Step,
    found: Vec<Found>,
    /// Blocks to be read, or erased.
    next: Vec<u32>,
    under_way: usize,
    /// By address.
    places: Vec<u32>,
    stale: Vec<u32>,
    error: Option<RecoveryError>,
}

impl Ssd {
    /// Ends with [`Ssd::recover`].
    pub(super) fn find_places(&mut self, now: Time, out: &mut FlashOut) {
        self.take_homes();
        let n = self.geometry().blocks();
        self.places = Some(Box::new(Places {
            step: Step::Oobs,
            found: vec![Found::default(); n as usize],
            next: (0..n).rev().filter(|b| !self.is_log_block(*b)).collect(),
            under_way: 0,
            places: Vec::new(),
            stale: Vec::new(),
            error: None,
        }));
        self.places_on(now, out);
    }
    fn places_on(&mut self, now: Time, out: &mut FlashOut) {
        while let Some(p) = self.places.as_mut().filter(|p| p.under_way < READS_MAX && p.error.is_none())
            && let Some(block) = p.next.pop()
        {
            p.under_way += 1;
            let step = p.step;
            let die = self.geometry().die_of(block);
            let (op, done_at) = match step {
                Step::Erases => self.erase_stale(now, block, die),
                Step::Pages => {
                    let bytes = u64::from(self.geometry().slots_per_block()) * 16;
                    (DeviceOp::ReadSpares { block }, self.drive.clock.spares(now, die, bytes))
                }
                _ => (DeviceOp::ReadOob { block }, self.drive.clock.spares(now, die, oob::OOB_BYTES as u64)),
            };
            self.drive.submit(now, Pending::Place { block }, (op, done_at), false, &mut out.commands);
        }
        if self.places.as_ref().is_some_and(|p| p.under_way == 0) {
            self.places_next(now, out);
        }
    }
    fn erase_stale(&mut self, now: Time, block: u32, die: u32) -> (DeviceOp, Time) {
        let done_at = self.drive.clock.erase(now, die, crate::timing::Charge::Device);
        // An erase that was not noted may have come before.
        self.drive.blocks.raise(block, self.drive.blocks.count(block).saturating_add(1));
        self.drive.blocks.erase(block, now.0 / 1000);
        let address = self.places.as_ref().and_then(|p| p.places.iter().position(|b| *b == block)).unwrap_or(0);
        let l = self.drive.map.address(address as u32);
        let per_die = self.geometry().blocks_per_die();
        let entry = self.table.entries.iter().find(|e| e.units.iter().any(|u| u.has(l.die, l.number, per_die)));
        let owner = entry.map_or(Owner::default(), |e| self.table.leader(e).owner());
        let address = Address { owner, die: l.die, block: l.number };
        (DeviceOp::Erase { block, oob: self.drive.blocks.oob(block, address.pack()) }, done_at)
    }
    pub(super) fn place_found(
        &mut self,
        now: Time,
        block: u32,
        result: Result<DeviceData, DeviceError>,
        out: &mut FlashOut,
    ) {
        let (dies, per_die) = (self.geometry().dies(), self.geometry().blocks_per_die());
        let Some(p) = &mut self.places else { return };
        p.under_way -= 1;
        match (p.step, result) {
            (Step::Oobs, Ok(DeviceData::Oob { oob, pages })) => {
                self.drive.blocks.found(block, oob.erase_count, oob.erase_time);
                let a = Address::unpack(oob.logical);
                // No vSSD has the generation zero: the block was never erased.
                let bears = a.owner.generation > 0 && a.die < dies && a.block < per_die;
                let address = bears.then_some(a.die * per_die + a.block);
                p.found[block as usize] = Found { address, owner: a.owner, pages };
            }
            (Step::Pages, Ok(DeviceData::Spares { pages, .. })) => p.found[block as usize].pages = pages.len() as u16,
            (Step::Oobs | Step::Pages, Err(DeviceError::BadBlock { .. })) => {
                p.found[block as usize] = Found::default();
            }
            // Its out-of-band data cannot be read, and no address is known.
            (Step::Oobs | Step::Pages, Err(DeviceError::Unwritten { .. })) => {}
            // The vSSD that gets it finds it so.
            (Step::Erases, Err(DeviceError::BadBlock { .. })) => {
                self.drive.submit(
                    now,
                    Pending::Place { block },
                    (DeviceOp::MarkBad { block }, now),
                    false,
                    &mut out.commands,
                );
                p.under_way += 1;
            }
            (_, Err(e)) => p.error = Some(e.into()),
            (_, Ok(_)) => {}
        }
        self.places_on(now, out);
    }
    /// All commands of the step are done.
    fn places_next(&mut self, now: Time, out: &mut FlashOut) {
        let Some(mut p) = self.places.take() else { return };
        if let Some(e) = p.error {
            return self.recovered(Err(e), now, out);
        }
        match p.step {
            Step::Oobs => {
                (p.step, p.next) = (Step::Pages, rivals(&p.found));
            }
            Step::Pages => {
                if let Err(e) = self.place_all(&mut p) {
                    return self.recovered(Err(e.into()), now, out);
                }
                if p.stale.is_empty() {
                    return self.places_known(now, &p.places, out);
                }
                p.step = Step::Sync;
            }
            Step::Sync => {
                (p.step, p.next) = (Step::Erases, std::mem::take(&mut p.stale));
            }
            Step::Erases => p.step = Step::SyncErased,
            Step::SyncErased => return self.places_known(now, &p.places, out),
        }
        if matches!(p.step, Step::Sync | Step::SyncErased) {
            p.under_way = 1;
            self.drive.sync(now, Pending::Place { block: NONE }, &mut out.commands);
        }
        self.places = Some(p);
        self.places_on(now, out);
    }
    /// Decides where each address lies.
    fn place_all(&self, p: &mut Places) -> Result<(), TableError> {
        let g = self.geometry();
        let n = p.found.len();
        let mut places = vec![NONE; n];
        for block in 0..n as u32 {
            let f = p.found[block as usize];
            let Some(address) = f.address else { continue };
            let home = self.drive.map.home(address / g.blocks_per_die());
            let rank = |b: u32| (p.found[b as usize].pages, g.die_of(b) != home);
            let held = &mut places[address as usize];
            let better = *held == NONE || (rank(block) > rank(*held)) != mutant!("flash.places.shorter");
            if better {
                *held = block;
            }
        }
        let mut placed = vec![false; n];
        places.iter().filter(|b| **b != NONE).for_each(|b| placed[*b as usize] = true);
        let left: Vec<u32> = (0..n as u32).filter(|b| !placed[*b as usize]).collect();
        for &block in &left {
            let f = p.found[block as usize];
            let known = self.table.entries.get(usize::from(f.owner.index));
            if f.address.is_some() && known.is_none_or(|e| e.generation < f.owner.generation) {
                return Err(TableError::Foreign { block, found: f.owner });
            }
        }
        // Where it is at home, if there is such a place.
        let mut on_die = vec![VecDeque::new(); g.dies() as usize];
        left.iter().for_each(|&b| on_die[g.die_of(b) as usize].push_back(b));
        for address in 0..n as u32 {
            if places[address as usize] == NONE {
                let home = self.drive.map.home(address / g.blocks_per_die());
                places[address as usize] = on_die[home as usize].pop_front().unwrap_or(NONE);
            }
        }
        let mut rest = on_die.into_iter().flatten();
        places.iter_mut().filter(|b| **b == NONE).for_each(|b| *b = rest.next().unwrap_or(NONE));
        let bears_other = |b: &u32| p.found[*b as usize].address.is_some_and(|a| places[a as usize] != *b);
        let erased = left.into_iter().filter(|_| !mutant!("flash.places.stale-kept"));
        p.stale = erased.filter(bears_other).rev().collect();
        p.places = places;
        Ok(())
    }
    fn places_known(&mut self, now: Time, places: &[u32], out: &mut FlashOut) {
        for (address, &block) in (0..).zip(places).filter(|(a, b)| a != *b) {
            let l = self.drive.map.address(address);
            self.drive.map.map(l, block);
        }
        self.recover(now, false, out);
    }
}

/// Blocks that bear an address which another one bears too.
fn rivals(found: &[Found]) -> Vec<u32> {
    let mut bearers = vec![0u8; found.len()];
    let addresses = || found.iter().map(|f| f.address);
    addresses().flatten().for_each(|a| bearers[a as usize] = bearers[a as usize].saturating_add(1));
    let several = |a: Option<u32>| a.is_some_and(|a| bearers[a as usize] > 1);
    (0..).zip(addresses()).filter(|(_, a)| several(*a)).map(|(block, _)| block).collect()
}
