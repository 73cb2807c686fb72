//! Ownership of a drive's units by virtual SSDs: free lists of channels, dies and soft-planes (FlashBlox §3.1–3.3,
//! §3.5; FB2, FB4).
//!
//! A drive is made of logical channels, dies and soft-planes. Wear leveling moves them over the physical ones
//! ([`super`]); nothing here knows where they lie.

use std::collections::BTreeMap;

use rackweave_core::VssdId;

pub use crate::drive::Free;
use crate::drive::FreeUnits;
use crate::geometry::Geometry;
use crate::isolation::{Isolation, LEVELS_MAX, LevelsError, ThroughputLevels};

impl ThroughputLevels {
    /// Checks the administrator's levels against the drive. The defaults pass on all drives: their highest levels are
    /// more than small ones have.
    pub fn check(&self, cut: &Cut) -> Result<(), LevelsError> {
        let dies = cut.geometry.dies();
        let defaults = ThroughputLevels::default();
        for (isolation, has) in [
            (Isolation::Channel, u32::from(cut.geometry.channels)),
            (Isolation::Die, dies),
            (Isolation::Software, dies * u32::from(cut.soft_planes_per_die)),
        ] {
            let (levels, of) = (self.of(isolation), isolation.unit());
            if levels == defaults.of(isolation) {
                continue;
            }
            if levels.is_empty() || levels.len() > LEVELS_MAX {
                return Err(LevelsError::Count { of, found: levels.len() });
            }
            for (level, &units) in levels.iter().enumerate() {
                let below = level.checked_sub(1).map_or(0, |l| levels[l]);
                if units == 0 || units > has {
                    return Err(LevelsError::Units { level, of, units, has });
                }
                if units < below {
                    return Err(LevelsError::Fewer { level, of, units, below });
                }
            }
        }
        Ok(())
    }
}

/// Division of a drive into units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub geometry: Geometry,
    /// Regions of equal size a die is split into, each striped over all planes of the die (§3.3: 4, of 4 GB).
    pub soft_planes_per_die: u16,
    /// Erase blocks of each plane of a die that vSSDs may use; the others stand in for blocks that fail (FB5: 1 %).
    pub stripes_per_die: u32,
}

impl Cut {
    pub fn new(geometry: Geometry, soft_planes_per_die: u16, over_provisioning: f64) -> Cut {
        let per_die = geometry.blocks_per_die();
        let spare = ((f64::from(per_die) * over_provisioning).ceil() as u32).max(SPARE_BLOCKS_MIN);
        let stripes_per_die = per_die.saturating_sub(spare) / u32::from(geometry.planes_per_die);
        Cut { geometry, soft_planes_per_die: soft_planes_per_die.max(1), stripes_per_die }
    }
    /// Erase blocks of each plane in one unit of a vSSD of this kind, which is the number of its superblocks.
    pub fn stripes(&self, isolation: Isolation) -> u32 {
        match isolation {
            Isolation::Channel | Isolation::Die => self.stripes_per_die,
            Isolation::Software | Isolation::None => self.stripes_per_die / u32::from(self.soft_planes_per_die),
        }
    }
    /// Erase blocks that a superblock takes of each unit.
    pub fn width(&self, isolation: Isolation) -> u32 {
        let planes = u32::from(self.geometry.planes_per_die);
        if isolation == Isolation::Channel { planes * u32::from(self.geometry.dies_per_channel) } else { planes }
    }
    /// Bytes a vSSD can store in one unit (`capacityPerChannel` and its like).
    pub fn unit_bytes(&self, isolation: Isolation) -> u64 {
        u64::from(self.stripes(isolation)) * u64::from(self.width(isolation)) * self.geometry.block_bytes()
    }
}

/// Fewest erase blocks of a die that are not a vSSD's: one to move a block into, one for a block that fails meanwhile.
const SPARE_BLOCKS_MIN: u32 = 2;

/// Units of a vSSD: numbers of channels, dies or soft-planes (a die's four, then the next die's), by its isolation,
/// ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Units {
    pub isolation: Isolation,
    pub numbers: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocVssdError {
    #[error("throughput level {level} is not configured: {isolation}-isolated vSSDs have levels 0 to {last}")]
    Level { level: u32, isolation: Isolation, last: usize },
    #[error("the capacity is 0 bytes, a vSSD has at least 1")]
    NoCapacity,
    #[error(
        "{asked} {} requested (level {level}, {capacity} bytes), {fits} available: \
         a vSSD of up to {fits_bytes} bytes would fit; free are {free}", isolation.unit()
    )]
    NoRoom { isolation: Isolation, level: u32, capacity: u64, asked: u64, fits: u32, fits_bytes: u64, free: Free },
    /// Units named by a stored record, not by an allocation.
    #[error("{unit} {number} is not free or not on the drive")]
    Taken { unit: &'static str, number: u32 },
}

/// Free lists of a drive's units, and who has the others.
#[derive(Clone, Debug)]
pub struct Allocator {
    cut: Cut,
    levels: ThroughputLevels,
    /// Most dies that a vSSD of soft-planes is striped over.
    soft_stripe_dies: u32,
    units: FreeUnits,
    vssds: BTreeMap<VssdId, Units>,
}

impl Allocator {
    /// A drive of which everything is free.
    pub fn new(cut: Cut, levels: ThroughputLevels, soft_stripe_dies: u32) -> Allocator {
        Allocator {
            units: FreeUnits::new(&cut.geometry, cut.soft_planes_per_die),
            cut,
            levels,
            soft_stripe_dies: soft_stripe_dies.max(1),
            vssds: BTreeMap::new(),
        }
    }
    pub fn cut(&self) -> &Cut {
        &self.cut
    }
    pub fn free(&self) -> Free {
        self.units.free()
    }
    /// Units of this kind that can be had.
    pub fn available(&self, isolation: Isolation) -> u32 {
        self.units.available(isolation)
    }
    pub fn units(&self, vssd: VssdId) -> Option<&Units> {
        self.vssds.get(&vssd)
    }

    /// Units for a vSSD: as many as its throughput level or its capacity needs, whichever is more (FB4), the first
    /// free ones of a linear search.
    pub fn alloc(
        &mut self,
        vssd: VssdId,
        isolation: Isolation,
        level: u32,
        capacity: u64,
    ) -> Result<&Units, AllocVssdError> {
        let levels = self.levels.of(isolation);
        let last = levels.len().saturating_sub(1);
        let tput = *levels.get(level as usize).ok_or(AllocVssdError::Level { level, isolation, last })?;
        if capacity == 0 {
            return Err(AllocVssdError::NoCapacity);
        }
        let unit_bytes = self.cut.unit_bytes(isolation);
        let asked = capacity.div_ceil(unit_bytes.max(1)).max(u64::from(tput)).max(1);
        let fits = self.units.available(isolation);
        if asked > u64::from(fits) || unit_bytes == 0 {
            let free = self.free();
            let fits_bytes = u64::from(fits) * unit_bytes;
            return Err(AllocVssdError::NoRoom { isolation, level, capacity, asked, fits, fits_bytes, free });
        }
        let numbers = match isolation {
            Isolation::Channel => (0..asked).filter_map(|_| self.units.take_channel()).collect(),
            Isolation::Die => (0..asked).filter_map(|_| self.units.take_die()).collect(),
            Isolation::Software | Isolation::None => self.units.take_soft_planes(asked as usize, self.soft_stripe_dies),
        };
        self.vssds.insert(vssd, Units { isolation, numbers });
        Ok(&self.vssds[&vssd])
    }
    /// Dies for a vSSD: those of this number of whole channels, or this number of dies. `None`: there are not as many free.
    pub fn alloc_dies(&mut self, vssd: VssdId, isolation: Isolation, asked: u32) -> Option<&Units> {
        if asked == 0 || asked > self.available(isolation) {
            return None;
        }
        let per_channel = u32::from(self.cut.geometry.dies_per_channel);
        let mut numbers: Vec<u32> = match isolation {
            Isolation::Channel => {
                let channels = (0..asked).filter_map(|_| self.units.take_channel());
                channels.flat_map(|c| c * per_channel..(c + 1) * per_channel).collect()
            }
            Isolation::Die => (0..asked).filter_map(|_| self.units.take_die()).collect(),
            Isolation::Software | Isolation::None => return None,
        };
        numbers.sort_unstable();
        self.vssds.insert(vssd, Units { isolation: Isolation::Die, numbers });
        self.vssds.get(&vssd)
    }
    /// Takes these units for the vSSD, as a record of the drive names them.
    pub fn restore(&mut self, vssd: VssdId, units: Units) -> Result<(), AllocVssdError> {
        let unit = units.isolation.unit();
        for &number in &units.numbers {
            if !self.units.take(units.isolation, number) {
                return Err(AllocVssdError::Taken { unit, number });
            }
        }
        self.vssds.insert(vssd, units);
        Ok(())
    }
    /// Frees the vSSD's units.
    pub fn free_vssd(&mut self, vssd: VssdId) -> Option<Units> {
        let units = self.vssds.remove(&vssd)?;
        units.numbers.iter().for_each(|&n| self.units.give(units.isolation, n));
        Some(units)
    }
}
