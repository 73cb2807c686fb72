//! Wear leveling between the dies of the page layer (FB7, FB8): [`Leveler`] decides, [`super::swap`] moves.
//!
//! Channels take part if each of their dies is of a vSSD's own dies or channels; those of channel groups do not, nor do channels
//! with dies that no vSSD has. A die's rate of wear counts from the last swap on, over restarts: the drive's table has the erases of
//! each die at that time. Erases of the swap itself count as wear alone.

use rackweave_core::Time;

use super::{FlashOut, Ssd, SwapError};
use crate::wear::{DieWear, Leveler, WearPolicy};

#[derive(Debug)]
pub(super) struct Leveling {
    leveler: Leveler,
    /// Physical dies that take part, channel by channel.
    dies: Vec<u32>,
    /// Erases of each when last looked at, and those since by a swap.
    seen: Vec<(u64, u64)>,
}

impl Ssd {
    /// Levels wear by this policy, once the drive has recovered.
    pub fn level_dies(&mut self, now: Time, policy: WearPolicy) {
        let (g, profile) = (*self.geometry(), &self.cfg.profile);
        let per_channel = u32::from(g.dies_per_channel);
        let whole = |c: &u32| (c * per_channel..(c + 1) * per_channel).all(|d| self.is_swappable(d));
        let channels: Vec<u32> = (0..u32::from(g.channels)).filter(whole).collect();
        if channels.is_empty() {
            self.leveling = None;
            return;
        }
        let dies: Vec<u32> = channels.iter().flat_map(|c| c * per_channel..(c + 1) * per_channel).collect();
        let seen: Vec<(u64, u64)> = dies.iter().map(|&d| (self.drive.blocks.erases(d), 0)).collect();
        let bytes = g.block_bytes();
        let wear = |(&die, &(erases, _)): (&u32, &(u64, u64))| {
            // A table from before rates were kept counts from now on.
            let unknown = if self.table.homes.is_empty() { 0 } else { erases };
            let cleared = self.table.cleared.get(die as usize).map_or(unknown, |c| *c);
            DieWear { total: erases * bytes, since: erases.saturating_sub(cleared) * bytes }
        };
        let wear = dies.iter().zip(&seen).map(wear).collect();
        let life = u64::from(g.blocks_per_die()) * bytes * u64::from(profile.endurance);
        let leveler = Leveler::resumed(policy, g.dies_per_channel, life, wear, now);
        self.leveling = Some(Box::new(Leveling { leveler, dies, seen }));
    }
    /// The leveler with what was erased up to now; `None`: nothing can be leveled.
    pub fn leveler(&mut self) -> Option<&mut Leveler> {
        let bytes = self.geometry().block_bytes();
        let l = self.leveling.as_mut()?;
        for (i, (&die, (seen, moved))) in (0..).zip(l.dies.iter().zip(&mut l.seen)) {
            let erases = self.drive.blocks.erases(die);
            let all = erases.saturating_sub(std::mem::replace(seen, erases));
            let by_swap = std::mem::take(moved).min(all);
            l.leveler.moved(i, by_swap * bytes);
            l.leveler.erased(i, (all - by_swap) * bytes);
        }
        Some(&mut l.leveler)
    }
    /// A swap has erased the block.
    pub(super) fn moved_erase(&mut self, block: u32) {
        let die = self.geometry().die_of(block);
        let l = self.leveling.as_mut();
        if let Some((l, i)) = l.and_then(|l| l.dies.iter().position(|d| *d == die).map(|i| (l, i))) {
            l.seen[i].1 += 1;
        }
    }
    /// Begins the swap that is due, held. False: none is due, or nothing would be gained.
    ///
    /// # Errors
    /// As [`Ssd::swap_dies`].
    pub fn begin_due_swap(&mut self, now: Time, out: &mut FlashOut) -> Result<bool, SwapError> {
        if self.failed().is_some() || self.leveler().is_none_or(|l| !l.due(now)) {
            return Ok(false);
        }
        if self.swapping() {
            return Err(SwapError::UnderWay);
        }
        let swap = self.leveling.as_mut().and_then(|l| {
            let pairs = l.leveler.plan(now)?.dies;
            let physical = |d: u32| l.dies[d as usize];
            Some(pairs.into_iter().map(|(x, y)| (physical(x), physical(y))).collect::<Vec<_>>())
        });
        let Some(pairs) = swap else { return Ok(false) };
        self.swap_dies(now, &pairs, out)?;
        self.hold_swap();
        Ok(true)
    }
}
