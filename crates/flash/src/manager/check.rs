//! The manager's invariants, checked from scratch.

use std::collections::BTreeMap;

use super::FlashManager;
use super::round::After;
use super::space::{Logical, NONE, PhysState};
use super::vssd::State;

/// An invariant found broken by [`FlashManager::check`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManagerViolation {
    #[error("logical block {number} of die {die} is mapped to erase block {block}, which bears another address")]
    Reverse { die: u32, number: u32, block: u32 },
    #[error("erase block {block} is mapped by two addresses")]
    Twice { block: u32 },
    #[error("erase block {block} holds data and no address is mapped to it")]
    Unmapped { block: u32 },
    #[error("erase block {block} is {times} times in a free list, being {state}")]
    Free { block: u32, times: u32, state: &'static str },
    #[error("logical block {number} of die {die} counts {counted} erase blocks that bear it still, {found} do")]
    Claims { die: u32, number: u32, counted: u32, found: u32 },
    #[error("block {index} of {vssd} is allocated and an erase block of it is missing, or it is not and has one")]
    Superblock { vssd: rackweave_core::VssdId, index: u32 },
}

impl FlashManager {
    /// Checks that maps are a bijection, that every erase block is in one place, and that what is counted is so. Reads
    /// all state: for checkers of simulations and tests.
    pub fn check(&self) -> Result<(), ManagerViolation> {
        if !self.ready {
            return Ok(());
        }
        let mut by = vec![false; self.phys.len()];
        for (here, block) in self.drive.map.mapped() {
            if std::mem::replace(&mut by[block as usize], true) {
                return Err(ManagerViolation::Twice { block });
            }
            if self.phys[block as usize].logical() != here {
                return Err(ManagerViolation::Reverse { die: here.die, number: here.number, block });
            }
        }
        let mut listed = vec![0; self.phys.len()];
        self.dies.iter().flat_map(|d| d.free.blocks()).for_each(|b| listed[b as usize] += 1);
        for (block, p) in self.phys.iter().enumerate() {
            let (mapped, times) = (by[block], listed[block]);
            let block = block as u32;
            let (state, wanted) = match p.state {
                PhysState::Dirty if mapped => ("being prepared", 0),
                PhysState::Dirty => ("to be erased", 1),
                PhysState::Clean => ("erased", 1),
                PhysState::Mapped | PhysState::Moving if !mapped => return Err(ManagerViolation::Unmapped { block }),
                _ => ("in use", 0),
            };
            if times != wanted {
                return Err(ManagerViolation::Free { block, times, state });
            }
        }
        self.check_claims()?;
        for v in self.vssds.values() {
            for (index, s) in v.blocks.iter().enumerate() {
                let index = index as u32;
                if s.state == State::Preparing {
                    // A failed block may have no successor; then it is dropped.
                    continue;
                }
                let mut lanes = v.lanes(index).enumerate();
                let missing = |(lane, l): (usize, Logical)| {
                    let needed = match s.state {
                        State::Free => false,
                        State::Open | State::Preparing => true,
                        State::Sealed => v.pages_in(s.written, lane as u32) > 0,
                    };
                    // A superblock sealed by a failed write keeps all its erase blocks.
                    (self.mapped(l) != NONE) != needed && (needed || s.state != State::Sealed)
                };
                if self.failed().is_none() && lanes.any(missing) {
                    return Err(ManagerViolation::Superblock { vssd: v.id, index });
                }
            }
        }
        Ok(())
    }
    fn check_claims(&self) -> Result<(), ManagerViolation> {
        let mut found: BTreeMap<Logical, u32> = BTreeMap::new();
        let stale = self.phys.iter().filter(|p| p.state == PhysState::Stale).map(|p| p.logical());
        let bearing = self.rounds.waiting().filter_map(|a| match a {
            After::Unclaim { logical } => Some(*logical),
            _ => None,
        });
        let abandoned = self.moves.iter().filter(|(_, m)| m.abandoned).map(|(_, m)| m.logical);
        stale.chain(bearing).chain(abandoned).for_each(|l| *found.entry(l).or_default() += 1);
        let map = &self.drive.map;
        for l in (0..map.dies() * map.numbers()).map(|a| map.address(a)) {
            let (counted, found) = (u32::from(map.claims(l)), found.get(&l).copied().unwrap_or(0));
            if found != counted && self.failed().is_none() {
                return Err(ManagerViolation::Claims { die: l.die, number: l.number, counted, found });
            }
        }
        Ok(())
    }
}
