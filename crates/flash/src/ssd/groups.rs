//! Channel groups of a drive: dies of shared channels, and loans between vSSDs (RackBlox §3.3, §3.5.2).

use rackweave_core::{Time, VssdId};

use super::{AllocError, FlashOut, Share, Ssd, Violation};
use crate::geometry::Geometry;
use crate::isolation::Isolation;
use crate::table::{self, Extent, Group};
use crate::vssd::{Place, Vssd, checkpoint};

/// Channels that software-isolated vSSDs share, or unisolated ones. Their dies are given out round by round, a die of each channel in turn, so
/// that each vSSD is on all of them.
#[derive(Debug)]
pub(super) struct ChannelGroup {
    channels: u16,
    /// Each of its vSSDs has a token bucket.
    limited: bool,
    /// They are of volumes that chose to share.
    own: bool,
    /// In the order in which they are given out.
    dies: Vec<u32>,
    /// Dies given out.
    given: usize,
    /// Places of its vSSDs.
    members: Vec<usize>,
}

impl ChannelGroup {
    /// On free channels from `first` on.
    fn new(g: &Geometry, first: u16, channels: u16, (limited, own): (bool, bool)) -> ChannelGroup {
        let die = |n: u32| {
            let channel = u32::from(first) + n % u32::from(channels);
            channel * u32::from(g.dies_per_channel) + n / u32::from(channels)
        };
        let dies = (0..u32::from(channels) * u32::from(g.dies_per_channel)).map(die).collect();
        ChannelGroup { channels, limited, own, dies, given: 0, members: Vec::new() }
    }
    /// As the drive's table has it.
    pub(super) fn of(group: &Group) -> ChannelGroup {
        let dies = group.dies.iter().map(|&d| u32::from(d)).collect();
        ChannelGroup { channels: group.channels, limited: false, own: false, dies, given: 0, members: Vec::new() }
    }
    fn left(&self) -> u32 {
        (self.dies.len() - self.given) as u32
    }
    /// The vSSD at `place` has this number of the dies.
    pub(super) fn add(&mut self, place: usize, dies: usize, limited: bool) {
        self.limited = limited;
        self.given += dies;
        self.members.push(place);
    }
    /// `own`, then the other dies of the group.
    pub(super) fn all(&self, own: &[u32]) -> Box<[u32]> {
        own.iter().chain(self.dies.iter().filter(|d| !own.contains(d))).copied().collect()
    }
    pub(super) fn dies(&self) -> &[u32] {
        &self.dies
    }
}

/// Blocks that a vSSD has borrowed of its channel group, and lent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoanStatus {
    pub borrowed_blocks: u32,
    pub lent_blocks: u32,
}

impl Ssd {
    /// Dies of the first channel group of this number of channels with enough left, or of a new one on free channels.
    pub(super) fn alloc_shared(
        &mut self,
        id: VssdId,
        share: Share,
        channels: u16,
        dies: u32,
    ) -> Result<(), AllocError> {
        let (g, limited) = (*self.geometry(), matches!(share, Share::Software { .. }));
        let own = matches!(share, Share::Software { own: true, .. }) && !mutant!("flash.group.mixed");
        let like = |c: &ChannelGroup| (c.channels, c.limited, c.own) == (channels, limited, own);
        let per_channel = u32::from(g.dies_per_channel);
        let k = match self.groups.iter().position(|c| like(c) && c.left() >= dies) {
            Some(k) => k,
            None => {
                let first = self.units.run(Isolation::Channel, u32::from(channels)).ok();
                let of_size = self.groups.iter().filter(|c| like(c));
                let free = first
                    .map_or(of_size.map(ChannelGroup::left).max().unwrap_or(0), |_| u32::from(channels) * per_channel);
                let Some(first) = first.filter(|_| dies <= free && channels > 0) else {
                    return Err(AllocError::NoShared { asked: dies, channels, free });
                };
                self.groups.push(ChannelGroup::new(&g, first as u16, channels, (limited, own)));
                self.groups.len() - 1
            }
        };
        let c = &self.groups[k];
        let own = &c.dies[c.given..c.given + dies as usize];
        let each = checkpoint::unit_bytes(&g, g.blocks_per_die());
        let behind = if per_channel > 1 { Ssd::meta_bytes(&g) } else { table::area_bytes(&g) };
        let first = c.dies.iter().min().copied().unwrap_or(0);
        let area = Extent { at: behind + u64::from(first + c.given as u32) * each, len: u64::from(dies) * each };
        let place = self.vssds.len();
        let added = self.add(id, share, Place { dies: c.all(own), own: dies, parts: 1, area });
        if added.is_err() {
            self.groups.retain(|c| c.given > 0);
            return added;
        }
        let c = &mut self.groups[k];
        // A channel of a group belongs to the group alone.
        self.units.take_dies(c.dies.iter().copied());
        c.add(place, dies as usize, limited);
        self.note_group(place, k);
        if limited {
            self.drive.clock.limit(place as u8, dies);
        }
        Ok(())
    }
    /// The table says which channel group the vSSD is of.
    fn note_group(&mut self, place: usize, k: usize) {
        let of = |c: &ChannelGroup| Group { channels: c.channels, dies: c.dies.iter().map(|&d| d as u16).collect() };
        self.table.groups = self.groups.iter().map(of).collect();
        self.table.entries[place].group = Some(k as u8);
    }
    /// The channel group of the vSSD, if it shares channels.
    pub fn channel_group(&self, vssd: VssdId) -> Option<usize> {
        let i = self.index(vssd);
        self.groups.iter().position(|c| c.members.contains(&i))
    }
    pub fn loans(&self, vssd: VssdId) -> LoanStatus {
        let v = self.get(vssd);
        LoanStatus { borrowed_blocks: v.borrowed(), lent_blocks: v.lent() }
    }
    /// Takes a unit of free blocks over from the vSSD of the same channel group that has most of them to lend. Returns how
    /// many; the first of those that are equal lends.
    pub fn borrow(&mut self, now: Time, vssd: VssdId, out: &mut FlashOut) -> u32 {
        let i = self.index(vssd);
        let Some(group) = self.groups.iter().find(|c| c.members.contains(&i)) else { return 0 };
        if self.failed().is_some() || !self.vssds[i].may_borrow() {
            return 0;
        }
        let others = group.members.iter().copied().filter(|&j| j != i);
        let Some(lender) = others.max_by_key(|&j| (self.vssds[j].lendable(), usize::MAX - j)) else { return 0 };
        let count = self.vssds[lender].lendable().min(self.vssds[i].loan_unit());
        let lent = self.vssds[lender].lend(count);
        if !lent.is_empty() {
            self.with(i, now, out, |v, io| v.borrow(io, &lent));
        }
        lent.len() as u32
    }
    /// Empties borrowed blocks and returns them, as collection that is still [running](Ssd::gc_running): to be called
    /// after [`Ssd::gc_stop`]. Blocks whose data finds no room stay borrowed.
    pub fn give_back(&mut self, now: Time, vssd: VssdId, out: &mut FlashOut) {
        let i = self.index(vssd);
        self.with(i, now, out, Vssd::give_back);
    }
    /// Lenders learn what became of their blocks.
    pub(super) fn tell_lenders(&mut self, i: usize, now: Time, out: &mut FlashOut) {
        let news = std::mem::take(&mut self.vssds[i].loans.news);
        for n in news {
            let lender = self.vssds.iter().position(|v| v.is_home_of(n.block));
            if let Some(j) = lender {
                self.with(j, now, out, |v, io| v.told(io, n));
            }
        }
    }
    /// Each block of a group is with one vSSD.
    pub(super) fn check_holders(&self, c: &ChannelGroup) -> Result<(), Violation> {
        let per_die = self.geometry().blocks_per_die();
        let given = c.members.iter().flat_map(|&i| self.vssds[i].own_dies());
        for block in given.flat_map(|die| die * per_die..(die + 1) * per_die) {
            let holders = c.members.iter().filter(|&&i| self.vssds[i].holds(block)).count();
            if holders != 1 {
                return Err(Violation::Holders { block, holders });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Charge;
    use crate::{Profile, SsdConfig};
    use rackweave_core::SsdId;

    fn drive() -> Ssd {
        Ssd::new(SsdConfig::new(SsdId(0), Profile::builtin("p-ssd").expect("built in"))).expect("whole")
    }

    #[test]
    fn an_unisolated_vssd_takes_all_it_can_get_of_a_bus_and_a_software_isolated_one_its_part() {
        let took = |share: Share| {
            let mut ssd = drive();
            ssd.alloc_share(VssdId(1), share).expect("room");
            ssd.drive.clock.works_for(0);
            (0..1000).fold(Time::ZERO, |now, _| ssd.drive.clock.read(now, 0, 4, Charge::Device))
        };
        let (channels, dies) = (1, 1);
        let (alone, unlimited) = (took(Share::Dies(1)), took(Share::None { channels, dies }));
        let limited = took(Share::Software { channels, dies, own: false });
        assert!(unlimited == alone && limited.0 > unlimited.0 + unlimited.0 / 4, "{unlimited:?} {limited:?}");
    }

    #[test]
    fn unisolated_and_software_isolated_vssds_are_in_channel_groups_of_their_own() {
        let mut ssd = drive();
        let (channels, dies) = (8, 8);
        for (id, share) in [
            (1, Share::Software { channels, dies, own: false }),
            (2, Share::None { channels, dies }),
            (3, Share::None { channels, dies }),
            (4, Share::Software { channels, dies, own: false }),
        ] {
            ssd.alloc_share(VssdId(id), share).expect("room");
        }
        assert_eq!([1, 2, 3, 4].map(|id| ssd.channel_group(VssdId(id))), [Some(0), Some(1), Some(1), Some(0)]);
    }

    #[test]
    fn volumes_that_chose_to_share_are_in_channel_groups_of_their_own() {
        let mut ssd = drive();
        let share = |own| Share::Software { channels: 4, dies: 1, own };
        let all = [false, true, true, false];
        for (id, own) in (1..).zip(all) {
            ssd.alloc_share(VssdId(id), share(own)).expect("room");
        }
        assert_eq!(ssd.table().check_shares(&all.map(share)), Ok(()), "another start finds the drive as configured");
        assert_eq!([1, 2, 3, 4].map(|id| ssd.channel_group(VssdId(id))), [Some(0), Some(1), Some(1), Some(0)]);
    }
}
