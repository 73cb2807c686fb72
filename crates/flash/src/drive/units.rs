//! Units of a drive that no virtual SSD has (FB4): channels; dies of channels that are split; soft-planes of dies that are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::geometry::Geometry;
use crate::isolation::Isolation;

/// Number of free units.
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

#[derive(Clone, Debug)]
pub(crate) struct FreeUnits {
    dies_per_channel: u32,
    all_dies: u32,
    soft_planes_per_die: u32,
    channels: BTreeSet<u32>,
    /// Of channels that are split.
    dies: BTreeSet<u32>,
    /// Of dies that are split.
    soft_planes: BTreeSet<u32>,
}

impl FreeUnits {
    /// Of a drive of which everything is free.
    pub(crate) fn new(g: &Geometry, soft_planes_per_die: u16) -> FreeUnits {
        FreeUnits {
            dies_per_channel: u32::from(g.dies_per_channel),
            all_dies: g.dies(),
            soft_planes_per_die: u32::from(soft_planes_per_die),
            channels: (0..u32::from(g.channels)).collect(),
            dies: BTreeSet::new(),
            soft_planes: BTreeSet::new(),
        }
    }
    pub(crate) fn free(&self) -> Free {
        let len = |s: &BTreeSet<u32>| s.len() as u32;
        Free { channels: len(&self.channels), dies: len(&self.dies), soft_planes: len(&self.soft_planes) }
    }
    /// Units of this kind that can be had.
    pub(crate) fn available(&self, isolation: Isolation) -> u32 {
        let free = self.free();
        let dies = free.dies + free.channels * self.dies_per_channel;
        match isolation {
            Isolation::Channel => free.channels,
            Isolation::Die => dies,
            Isolation::Software | Isolation::None => free.soft_planes + dies * self.soft_planes_per_die,
        }
    }
    /// First number of the first run of free channels, or of free dies, that has this length.
    ///
    /// # Errors
    /// The length of the longest run.
    pub(crate) fn run(&self, isolation: Isolation, len: u32) -> Result<u32, u32> {
        let of_channel = isolation == Isolation::Channel;
        let all = if of_channel { self.all_dies / self.dies_per_channel } else { self.all_dies };
        let free = |n: u32| match of_channel {
            true => self.channels.contains(&n),
            false => self.dies.contains(&n) || self.channels.contains(&(n / self.dies_per_channel)),
        };
        let (mut run, mut longest) = (0, 0);
        for n in 0..all {
            run = if free(n) { run + 1 } else { 0 };
            longest = longest.max(run);
            if run == len {
                return Ok(n + 1 - len);
            }
        }
        Err(longest)
    }

    /// Allocates a unit. False: it is not free, or not on the drive.
    pub(crate) fn take(&mut self, isolation: Isolation, number: u32) -> bool {
        match isolation {
            Isolation::Channel => self.channels.remove(&number),
            Isolation::Die => self.split_for_die(number) && self.dies.remove(&number),
            Isolation::Software | Isolation::None => {
                let die = number / self.soft_planes_per_die;
                if self.split_for_die(die) && self.dies.remove(&die) {
                    self.soft_planes.extend(self.soft_planes_of(die));
                }
                self.soft_planes.remove(&number)
            }
        }
    }
    /// Allocates the free ones of the dies.
    pub(crate) fn take_dies(&mut self, dies: impl IntoIterator<Item = u32>) {
        for die in dies {
            self.take(Isolation::Die, die);
        }
    }
    pub(crate) fn take_channel(&mut self) -> Option<u32> {
        self.channels.pop_first()
    }
    /// A die of a channel that is split already, or the first of a free channel, which is split for it.
    pub(crate) fn take_die(&mut self) -> Option<u32> {
        if self.dies.is_empty() {
            let channel = self.channels.pop_first()?;
            self.dies.extend(self.dies_of(channel));
        }
        self.dies.pop_first()
    }
    /// One soft-plane of each of `stripe` dies in turn: of the first split dies; where these have too few, of those with
    /// most of them free, and of further dies to reach the width of a stripe, or the room.
    pub(crate) fn take_soft_planes(&mut self, asked: usize, stripe: u32) -> Vec<u32> {
        let per_die = self.soft_planes_per_die as usize;
        let wanted = (stripe as usize).max(asked.div_ceil(per_die)).min(asked);
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
                self.soft_planes.extend(self.soft_planes_of(die));
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
        let mut taken = Vec::with_capacity(asked);
        while taken.len() < asked {
            let before = taken.len();
            for die in dies {
                let next = self.soft_planes.range(self.soft_planes_of(*die)).next().copied();
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
    /// Splits the die's channel if it is free as a whole. False: no such die.
    fn split_for_die(&mut self, die: u32) -> bool {
        let channel = die / self.dies_per_channel;
        if self.channels.remove(&channel) {
            self.dies.extend(self.dies_of(channel));
        }
        die < self.all_dies
    }
    fn dies_of(&self, channel: u32) -> std::ops::Range<u32> {
        channel * self.dies_per_channel..(channel + 1) * self.dies_per_channel
    }
    fn soft_planes_of(&self, die: u32) -> std::ops::Range<u32> {
        die * self.soft_planes_per_die..(die + 1) * self.soft_planes_per_die
    }

    /// Frees a unit. Dies that are free as a whole are merged, then channels.
    pub(crate) fn give(&mut self, isolation: Isolation, number: u32) {
        match isolation {
            Isolation::Channel => {
                self.channels.insert(number);
            }
            Isolation::Die => self.give_die(number),
            Isolation::Software | Isolation::None => self.give_soft_plane(number),
        }
    }
    fn give_soft_plane(&mut self, p: u32) {
        self.soft_planes.insert(p);
        let die = p / self.soft_planes_per_die;
        if self.soft_planes_of(die).all(|p| self.soft_planes.contains(&p)) {
            for p in self.soft_planes_of(die) {
                self.soft_planes.remove(&p);
            }
            self.give_die(die);
        }
    }
    fn give_die(&mut self, die: u32) {
        self.dies.insert(die);
        let channel = die / self.dies_per_channel;
        if self.dies_of(channel).all(|d| self.dies.contains(&d)) {
            for d in self.dies_of(channel) {
                self.dies.remove(&d);
            }
            self.channels.insert(channel);
        }
    }
}
