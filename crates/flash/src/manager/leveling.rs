//! Moves for wear leveling: dies that are swapped, when [`crate::wear::Leveler`] decides so (FB7, FB8), and inside a
//! die blocks that rest while others age (FB6). A die's erase blocks are one pool, so they rotate between its
//! soft-planes as they are freed and allocated, the least worn first; only data that is never rewritten has to be
//! moved.

use std::collections::{BTreeSet, VecDeque};

use rackweave_core::{Span, Time};

use super::moves::Why;
use super::record::DriveRecord;
use super::round::After;
use super::space::{Logical, NONE, PhysState};
use super::{Done, FlashManager, ManagerOut};
use crate::drive::LastErase;
use crate::wear::{DieWear, Leveler, Swap};

/// For whose sake a block is erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    User,
    Wear,
}

#[derive(Debug)]
pub(super) struct Leveling {
    pub(super) leveler: Leveler,
    /// Logical dies that have blocks elsewhere than at home, and the number to look at next.
    away: Vec<(u32, u32)>,
    /// Physical dies of the swap under way.
    dies: BTreeSet<u32>,
    /// The swap waits for its record.
    recording: bool,
    /// Moves that wait for the pace.
    paced: VecDeque<u32>,
    /// Moves that were given up while they waited.
    pub(super) abandoned: Vec<u32>,
    next_page: Time,
    /// When pages were last released, and how many more may go with them: those of a die's planes go together.
    group: (Time, u16),
    /// Moves go on when the calls under way are done.
    again: bool,
}

impl Leveling {
    pub(super) fn new(leveler: Leveler) -> Leveling {
        Leveling {
            leveler,
            away: Vec::new(),
            dies: BTreeSet::new(),
            recording: false,
            paced: VecDeque::new(),
            abandoned: Vec::new(),
            next_page: Time::ZERO,
            group: (Time::ZERO, 0),
            again: false,
        }
    }
    /// Moves that waited may go on.
    pub(super) fn go_on(&mut self) {
        self.again = true;
    }
    /// A swap is planned, and not durable yet.
    pub(super) fn recording(&self) -> bool {
        self.recording
    }
    fn swapping(&self) -> bool {
        // Blocks away from home do not count: their moves are being started.
        self.recording || !self.dies.is_empty()
    }
    pub(super) fn wake(&self, ready: bool) -> Option<Time> {
        let due = self.leveler.due_at().filter(|_| ready && !self.swapping());
        let paced = self.paced.front().map(|_| self.next_page);
        due.into_iter().chain(paced).min()
    }
    /// Takes the move out of those that wait.
    pub(super) fn unpace(&mut self, id: u32) -> Option<u32> {
        let at = self.paced.iter().position(|p| *p == id)?;
        self.paced.remove(at)
    }
}

impl FlashManager {
    /// A swap is under way.
    pub fn swapping(&self) -> bool {
        self.leveling.swapping()
    }
    /// Starts a swap now, regardless of the policy's period. False: a swap is running, or would gain nothing.
    pub fn swap_now(&mut self, now: Time, out: &mut ManagerOut) -> bool {
        self.now = self.now.max(now);
        if !self.ready || self.failed().is_some() || self.leveling.swapping() {
            return false;
        }
        let swap = self.leveling.leveler.plan(self.now);
        let found = swap.is_some();
        swap.into_iter().for_each(|s| self.start_swap(&s));
        self.pump(out);
        found
    }
    /// As [`FlashManager::swap_now`], with these pairs of physical dies.
    ///
    /// # Panics
    /// If a die is in two pairs or not on the drive.
    pub fn swap_dies(&mut self, now: Time, swap: &Swap, out: &mut ManagerOut) -> bool {
        self.now = self.now.max(now);
        if !self.ready || self.failed().is_some() || self.leveling.swapping() {
            return false;
        }
        self.start_swap(swap);
        self.pump(out);
        true
    }

    /// Rates and the time of their last clearing start anew where the record has none.
    pub(super) fn restore_wear(&mut self, record: &DriveRecord) {
        let (g, policy) = (*self.geometry(), *self.leveling.leveler.policy());
        let per_die = g.blocks_per_die() as usize;
        let total = |blocks: &[LastErase]| blocks.iter().map(|e| u64::from(e.count())).sum::<u64>();
        let dies = self.drive.blocks.all().chunks(per_die).enumerate().map(|(i, d)| {
            let total = total(d) * g.block_bytes();
            DieWear { total, since: record.cleared.get(i).map_or(0, |c| total.saturating_sub(*c)) }
        });
        let life = self.leveling.leveler.die_life();
        let ago = Span(record.cleared_at.map_or(0, |at| self.device_time().saturating_sub(at)).saturating_mul(1000));
        let leveler = Leveler::resumed(policy, g.dies_per_channel, life, dies.collect(), self.now);
        self.leveling.leveler = leveler.cleared_before(ago);
    }
    /// The block has been erased. Erases by wear leveling count as wear, but not in the workload's rates.
    pub(super) fn note_erase(&mut self, block: u32, why: For) {
        let die = self.die_of(block);
        let bytes = self.geometry().block_bytes();
        match why {
            For::User => self.leveling.leveler.erased(die, bytes),
            For::Wear => self.leveling.leveler.moved(die, bytes),
        }
        let l = self.phys[block as usize].logical();
        if let Some((vssd, _)) = self.owner(l) {
            self.live_mut(vssd).stats.erases += 1;
        }
        let d = &mut self.dies[die as usize];
        d.erases += 1;
        if d.erases >= (self.geometry().blocks_per_die() / LOOKS_A_ROUND).max(1) {
            self.dies[die as usize].erases = 0;
            self.rotate(die);
        }
        self.level();
        self.leveling.again = true;
    }
    /// Moves the block of the die that aged least to the most worn one that is free, if they are far apart.
    fn rotate(&mut self, die: u32) {
        if !self.ready || self.dies[die as usize].moving > 0 || self.leveling.dies.contains(&die) {
            return;
        }
        let n = self.geometry().blocks_per_die();
        let blocks = die * n..(die + 1) * n;
        let written = |b: u32| {
            let l = self.phys[b as usize].logical();
            self.pages_of(l) > 0 && !self.failing(l)
        };
        let at_rest = blocks.filter(|b| self.phys[*b as usize].state == PhysState::Mapped && written(*b));
        let Some(young) = at_rest.min_by_key(|b| (self.drive.blocks.count(*b), *b)) else { return };
        let Some(worn) = self.dies[die as usize].free.most_worn() else { return };
        let apart = self.drive.blocks.count(worn).saturating_sub(self.drive.blocks.count(young));
        if apart > self.cfg.die_spread {
            self.start_move(young, Why::Rotation);
        }
    }
    /// Begins a swap that is due, and lets moves go on that waited for time.
    pub(super) fn level(&mut self) {
        while self.may_page() {
            let Some(id) = self.leveling.paced.pop_front() else { break };
            self.move_on(id);
        }
        if !self.ready || self.failed().is_some() || self.leveling.swapping() {
            return;
        }
        if self.leveling.leveler.due(self.now)
            && let Some(swap) = self.leveling.leveler.plan(self.now)
        {
            self.start_swap(&swap);
        }
    }
    /// True: the move may read its next page now.
    pub(super) fn pace(&mut self, id: u32) -> bool {
        let Some(each) = self.page_pace() else { return true };
        if !self.may_page() {
            self.leveling.paced.push_back(id);
            return false;
        }
        let planes = self.planes_at_once();
        let l = &mut self.leveling;
        l.group = if self.now >= l.next_page { (self.now, planes - 1) } else { (l.group.0, l.group.1 - 1) };
        // Missed time is made up for.
        l.next_page = l.next_page.max(Time(self.now.0.saturating_sub(CATCH_UP.0))) + each;
        true
    }
    fn may_page(&self) -> bool {
        let l = &self.leveling;
        self.now >= l.next_page || (self.now == l.group.0 && l.group.1 > 0)
    }
    fn start_swap(&mut self, swap: &Swap) {
        self.stats.swaps += 1;
        for &(x, y) in &swap.dies {
            self.drive.map.swap_homes(x, y);
            self.leveling.dies.extend([x, y]);
            self.trade_shares(x as usize, y as usize);
        }
        self.leveling.recording = true;
        self.rounds.change_record();
        self.rounds.want(After::Swap);
    }
    fn trade_shares(&mut self, x: usize, y: usize) {
        let of_x: Vec<_> = self.dies[x].queue.shares().collect();
        let of_y: Vec<_> = self.dies[y].queue.shares().collect();
        for (from, to, shares) in [(x, y, of_x), (y, x, of_y)] {
            for (flow, soft_planes) in shares {
                self.dies[from].queue.leave(flow, soft_planes);
                self.dies[to].queue.join(flow, soft_planes, self.now);
            }
        }
    }
    /// The dies' new homes are durable.
    pub(super) fn swap_recorded(&mut self, out: &mut ManagerOut) {
        self.leveling.recording = false;
        self.resume_swap(out);
    }
    /// Moves all blocks home that a swap left away, after a start.
    pub(super) fn resume_swap(&mut self, out: &mut ManagerOut) {
        let away = |d: &u32| self.is_away(*d);
        self.leveling.away = (0..self.drive.map.dies()).filter(away).map(|d| (d, 0)).collect();
        for d in 0..self.drive.map.dies() {
            self.drive.map.set_from(d, self.elsewhere(d));
        }
        let homes: Vec<u32> = self.leveling.away.iter().map(|(d, _)| self.drive.map.home(*d)).collect();
        self.leveling.dies = homes.into_iter().collect();
        if self.leveling.away.is_empty() && self.stats.swaps > 0 {
            out.done.push(Done::Swapped);
        }
        // The pace begins here: nothing was missed before.
        self.leveling.next_page = self.leveling.next_page.max(self.now);
        self.leveling.again = true;
    }
    fn is_away(&self, logical: u32) -> bool {
        self.elsewhere(logical) != self.drive.map.home(logical)
    }
    /// A physical die with blocks of the logical one, other than its home; its home if there is none.
    fn elsewhere(&self, logical: u32) -> u32 {
        let home = self.drive.map.home(logical);
        let mut dies = self.drive.map.of_die(logical).map(|b| self.die_of(b));
        dies.find(|die| *die != home).unwrap_or(home)
    }
    pub(super) fn moves_wait(&self) -> bool {
        !self.leveling.away.is_empty() && self.moves.is_empty()
    }
    /// Starts the moves that can be started: [`MOVES_A_PLANE`] to each die for each of its planes.
    pub(super) fn start_moves(&mut self, out: &mut ManagerOut) {
        for id in std::mem::take(&mut self.leveling.abandoned) {
            self.end_abandoned(id);
        }
        if !std::mem::take(&mut self.leveling.again) || !self.ready || self.failed().is_some() {
            return;
        }
        let mut away = std::mem::take(&mut self.leveling.away);
        let any = !away.is_empty();
        away.retain_mut(|(die, at)| {
            let goes_on = self.move_next(*die, at);
            if !goes_on {
                // No further move from there, and no new data there.
                self.drive.map.set_from(*die, self.drive.map.home(*die));
            }
            goes_on
        });
        self.leveling.away = away;
        if any && self.leveling.away.is_empty() {
            (0..self.drive.map.dies()).for_each(|d| self.drive.map.set_from(d, self.drive.map.home(d)));
            self.leveling.dies.clear();
            out.done.push(Done::Swapped);
        }
    }
    /// A write of the superblock has failed and others of it are under way: how far it reaches is not known yet.
    fn failing(&self, l: Logical) -> bool {
        let Some((vssd, index)) = self.owner(l) else { return false };
        self.vssds[&vssd].blocks[index as usize].stopped && self.writes.contains_key(&super::api::Block { vssd, index })
    }
    /// A vSSD waits for erase blocks of the die.
    fn blocks_wanted(&self, die: u32) -> bool {
        let at_home = |l: Logical| self.drive.map.home(l.die) == die;
        self.vssds.values().any(|v| !v.waiting.is_empty() && v.ready.first().is_some_and(|i| v.lanes(*i).any(at_home)))
    }
    /// Planes of a die that moves use together.
    fn planes_at_once(&self) -> u16 {
        if self.cfg.multi_plane { self.geometry().planes_per_die } else { 1 }
    }
    /// The erase block at this address is elsewhere than at home, and can be moved now.
    fn may_go(&self, l: Logical, home: u32) -> bool {
        let block = self.mapped(l);
        block != NONE
            && self.die_of(block) != home
            && self.phys[block as usize].state == PhysState::Mapped
            && !self.failing(l)
    }
    /// False: all blocks of the logical die are at home.
    fn move_next(&mut self, die: u32, at: &mut u32) -> bool {
        let (home, n) = (self.drive.map.home(die), self.drive.map.numbers());
        let first = *at;
        // A request that waits for a block of the die needs one of each plane at once; moves would take them one by
        // one.
        let moves_a_die = if self.blocks_wanted(home) { 1 } else { MOVES_A_PLANE * u32::from(self.planes_at_once()) };
        for number in (first..n).chain(0..first) {
            if self.dies[home as usize].moving >= moves_a_die {
                return true;
            }
            let l = Logical { die, number };
            let block = self.mapped(l);
            if !self.may_go(l, home) {
                continue;
            }
            if !self.start_move(block, Why::Swap) {
                // A worn-out die takes no more: blocks elsewhere stay there.
                return self.coming(home);
            }
            *at = (number + 1) % n;
        }
        self.is_away(die)
    }
}

/// Moves that had to wait run faster than their pace until they have made up for this much.
const CATCH_UP: Span = Span::from_millis(500);
/// Moves to a die at a time, for each of its planes: one reads at the old die while the other programs.
const MOVES_A_PLANE: u32 = 2;
/// Times a die is looked at for blocks that rest while it is erased once through.
const LOOKS_A_ROUND: u32 = 64;
