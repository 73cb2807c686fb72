//! Ownership of a drive's units by virtual SSDs: free lists of channels, dies and soft-planes (FlashBlox §3.1–3.3,
//! §3.5; FB2, FB4).
//!
//! A drive is made of logical channels, dies and soft-planes. Wear leveling moves them over the physical ones
//! ([`super`]); nothing here knows where they lie.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rackweave_core::VssdId;

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

/// How a drive is cut up.
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
    fn soft_plane(&self, die: u32, part: u16) -> u32 {
        die * u32::from(self.soft_planes_per_die) + u32::from(part)
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

/// Free units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free {
    pub channels: u32,
    /// Of channels that are not free as a whole.
    pub dies: u32,
    /// Of dies that are not free as a whole.
    pub soft_planes: u32,
}

impl fmt::Display for Free {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} channels, {} dies and {} soft-planes", self.channels, self.dies, self.soft_planes)
    }
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
    channels: BTreeSet<u32>,
    /// Free dies of channels that are split.
    dies: BTreeSet<u32>,
    /// Free soft-planes of dies that are split.
    soft_planes: BTreeSet<u32>,
    vssds: BTreeMap<VssdId, Units>,
}

impl Allocator {
    /// A drive of which everything is free.
    pub fn new(cut: Cut, levels: ThroughputLevels, soft_stripe_dies: u32) -> Allocator {
        Allocator {
            channels: (0..u32::from(cut.geometry.channels)).collect(),
            cut,
            levels,
            soft_stripe_dies: soft_stripe_dies.max(1),
            dies: BTreeSet::new(),
            soft_planes: BTreeSet::new(),
            vssds: BTreeMap::new(),
        }
    }
    pub fn cut(&self) -> &Cut {
        &self.cut
    }
    pub fn free(&self) -> Free {
        let len = |s: &BTreeSet<u32>| s.len() as u32;
        Free { channels: len(&self.channels), dies: len(&self.dies), soft_planes: len(&self.soft_planes) }
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
        let fits = self.available(isolation);
        if asked > u64::from(fits) || unit_bytes == 0 {
            let free = self.free();
            let fits_bytes = u64::from(fits) * unit_bytes;
            return Err(AllocVssdError::NoRoom { isolation, level, capacity, asked, fits, fits_bytes, free });
        }
        let numbers = match isolation {
            Isolation::Channel => (0..asked).filter_map(|_| self.channels.pop_first()).collect(),
            Isolation::Die => (0..asked).filter_map(|_| self.take_die()).collect(),
            Isolation::Software | Isolation::None => self.take_soft_planes(asked as usize),
        };
        self.vssds.insert(vssd, Units { isolation, numbers });
        Ok(&self.vssds[&vssd])
    }
    /// Units of this kind that can be had.
    fn available(&self, isolation: Isolation) -> u32 {
        let free = self.free();
        if isolation == Isolation::Channel {
            return free.channels;
        }
        let dies = free.dies + free.channels * u32::from(self.cut.geometry.dies_per_channel);
        if isolation == Isolation::Die {
            return dies;
        }
        free.soft_planes + dies * u32::from(self.cut.soft_planes_per_die)
    }
    /// A die of a channel that is split already, or the first of a free channel, which is split for it.
    fn take_die(&mut self) -> Option<u32> {
        if self.dies.is_empty() {
            let channel = self.channels.pop_first()?;
            self.dies.extend(self.dies_of(channel));
        }
        self.dies.pop_first()
    }
    /// One soft-plane of each die in turn: of the first split dies; where these have too few, of those with most of
    /// them free, and of further dies to reach the width of a stripe, or the room.
    fn take_soft_planes(&mut self, asked: usize) -> Vec<u32> {
        let per_die = usize::from(self.cut.soft_planes_per_die);
        let wanted = (self.soft_stripe_dies as usize).max(asked.div_ceil(per_die)).min(asked);
        loop {
            let mut free: BTreeMap<u32, usize> = BTreeMap::new();
            self.soft_planes.iter().for_each(|p| *free.entry(p / per_die as u32).or_default() += 1);
            let mut most: Vec<(u32, usize)> = free.into_iter().collect();
            let room = |dies: &[(u32, usize)]| dies.iter().take(wanted).map(|(_, n)| n).sum::<usize>();
            if most.len() < wanted || room(&most) < asked {
                most.sort_by_key(|(die, n)| (Reverse(*n), *die));
            }
            if (most.len() < wanted || room(&most) < asked)
                && let Some(die) = self.take_die()
            {
                self.soft_planes.extend((0..self.cut.soft_planes_per_die).map(|k| self.cut.soft_plane(die, k)));
                continue;
            }
            // More dies than wanted only where no die is whole.
            let mut room = 0;
            let enough = most.iter().position(|(_, n)| {
                room += n;
                room >= asked
            });
            let dies = enough.map_or(most.len(), |i| (i + 1).max(wanted));
            return self.take_from(&most.into_iter().take(dies).map(|(die, _)| die).collect(), asked);
        }
    }
    fn take_from(&mut self, dies: &BTreeSet<u32>, asked: usize) -> Vec<u32> {
        let per_die = u32::from(self.cut.soft_planes_per_die);
        let mut taken = Vec::with_capacity(asked);
        while taken.len() < asked {
            let before = taken.len();
            for die in dies {
                let next = self.soft_planes.range(die * per_die..(die + 1) * per_die).next().copied();
                if let Some(p) = next.filter(|_| taken.len() < asked) {
                    self.soft_planes.remove(&p);
                    taken.push(p);
                }
            }
            assert!(taken.len() > before, "as many as were counted free");
        }
        taken.sort_unstable();
        taken
    }
    fn dies_of(&self, channel: u32) -> std::ops::Range<u32> {
        let n = u32::from(self.cut.geometry.dies_per_channel);
        channel * n..(channel + 1) * n
    }

    /// Takes these units for the vSSD, as a record of the drive names them.
    pub fn restore(&mut self, vssd: VssdId, units: Units) -> Result<(), AllocVssdError> {
        let unit = units.isolation.unit();
        for &number in &units.numbers {
            let taken = match units.isolation {
                Isolation::Channel => self.channels.remove(&number),
                Isolation::Die => self.split_for_die(number) && self.dies.remove(&number),
                Isolation::Software | Isolation::None => {
                    let die = number / u32::from(self.cut.soft_planes_per_die);
                    if self.split_for_die(die) && self.dies.remove(&die) {
                        let parts = 0..self.cut.soft_planes_per_die;
                        self.soft_planes.extend(parts.map(|k| self.cut.soft_plane(die, k)));
                    }
                    self.soft_planes.remove(&number)
                }
            };
            if !taken {
                return Err(AllocVssdError::Taken { unit, number });
            }
        }
        self.vssds.insert(vssd, units);
        Ok(())
    }
    /// Splits the die's channel if it is free as a whole. False: no such die.
    fn split_for_die(&mut self, die: u32) -> bool {
        let channel = self.cut.geometry.channel_of_die(die);
        if self.channels.remove(&channel) {
            self.dies.extend(self.dies_of(channel));
        }
        die < self.cut.geometry.dies()
    }

    /// Gives the vSSD's units back; dies that are free as a whole again, and then channels, are put together.
    pub fn free_vssd(&mut self, vssd: VssdId) -> Option<Units> {
        let units = self.vssds.remove(&vssd)?;
        match units.isolation {
            Isolation::Channel => self.channels.extend(&units.numbers),
            Isolation::Die => units.numbers.iter().for_each(|&d| self.free_die(d)),
            Isolation::Software | Isolation::None => units.numbers.iter().for_each(|&p| self.free_soft_plane(p)),
        }
        Some(units)
    }
    fn free_soft_plane(&mut self, p: u32) {
        self.soft_planes.insert(p);
        let die = p / u32::from(self.cut.soft_planes_per_die);
        let parts = self.cut.soft_plane(die, 0)..self.cut.soft_plane(die + 1, 0);
        if parts.clone().all(|p| self.soft_planes.contains(&p)) {
            parts.for_each(|p| {
                self.soft_planes.remove(&p);
            });
            self.free_die(die);
        }
    }
    fn free_die(&mut self, die: u32) {
        self.dies.insert(die);
        let channel = self.cut.geometry.channel_of_die(die);
        let mut all = self.dies_of(channel);
        if all.clone().all(|d| self.dies.contains(&d)) {
            all.by_ref().for_each(|d| {
                self.dies.remove(&d);
            });
            self.channels.insert(channel);
        }
    }
}
