//! Channel groups: their orders, and blocks that their vSSDs lend each other.

use rackweave_core::{Effects, Time};

use super::Server;
use crate::group::{Group, Member, Order};
use crate::service::Freed;
use crate::slots::SlotState;
use crate::trace;

/// Most rounds of orders at one instant: each advances a member or the group, and none returns to an earlier state.
const ROUNDS_MAX: usize = 64;

/// A channel group of the drive, and its slots.
pub(crate) struct GroupSlots {
    pub(crate) machine: Group,
    pub(crate) slots: Vec<usize>,
}

impl Server {
    /// By the drive's channel groups.
    pub(super) fn make_groups(&mut self) {
        for i in (0..self.vssds.len()).filter(|&i| !self.vssds[i].is_log()).collect::<Vec<_>>() {
            let Some(g) = self.ssd.channel_group(self.vssds[i].cfg.id) else { continue };
            while self.groups.len() <= g {
                let seed = u64::from(self.cfg.ssd.id.0) << 8 | self.groups.len() as u64;
                self.groups.push(GroupSlots { machine: Group::new(self.cfg.gc, seed), slots: Vec::new() });
            }
            self.groups[g].slots.push(i);
        }
    }
    /// The channel group of the slot.
    pub(super) fn group_of(&self, i: usize) -> Option<usize> {
        self.groups.iter().position(|g| g.slots.contains(&i))
    }
    fn members(&self, g: usize) -> Vec<Member> {
        let settled = |i: &&usize| !self.vssds[**i].is_free() && self.vssds[**i].slot == SlotState::Settled;
        let mut slots: Vec<usize> = self.groups[g].slots.iter().filter(settled).copied().collect();
        slots.sort_unstable_by_key(|&i| self.vssds[i].cfg.id);
        let member = |slot: usize| {
            let gc = &self.vssds[slot].gc;
            Member { slot, state: gc.state(), resting: gc.resting(), ratio: self.free_ratio(slot) }
        };
        slots.into_iter().map(member).collect()
    }
    /// Free ÷ spare of the group's vSSDs together.
    fn group_ratio(&self, members: &[Member]) -> f64 {
        let spaces = members.iter().map(|m| self.ssd.space(self.vssds[m.slot].cfg.id));
        let (free, spare) = spaces.fold((0.0, 0.0), |(free, spare), s| {
            let blocks = f64::from(s.spare_blocks);
            (free + s.free_ratio() * blocks, spare + blocks)
        });
        if spare > 0.0 { free / spare } else { 1.0 }
    }

    /// Runs the group until nothing is left to do now.
    pub(super) fn step_group(&mut self, now: Time, g: usize, fx: &mut Effects) {
        if self.failed || self.registration.incarnation.is_none() {
            return;
        }
        for _ in 0..ROUNDS_MAX {
            let members = self.members(g);
            let ratio = self.group_ratio(&members);
            let orders = self.groups[g].machine.step(now, ratio, &members);
            if orders.is_empty() {
                break;
            }
            self.apply(now, orders, fx);
        }
        self.groups[g].slots.clone().into_iter().for_each(|i| self.vssds[i].gc_seen = self.vssds[i].gc.state());
    }
    fn apply(&mut self, now: Time, orders: Vec<(usize, Order)>, fx: &mut Effects) {
        for (i, order) in orders {
            self.vssds[i].gc.apply(now, order);
            self.run_gc(now, i, fx);
            self.touched |= 1 << i;
        }
    }
    /// Programs wait for a block: borrows one, or lets all members collect. Returns whether free blocks changed.
    pub(super) fn short_of_blocks(&mut self, now: Time, i: usize, g: usize, fx: &mut Effects) -> bool {
        let (id, mut borrowed) = (self.vssds[i].cfg.id, false);
        loop {
            let blocks = self.ssd.borrow(now, id, &mut self.out);
            if blocks == 0 {
                break;
            }
            borrowed = true;
            fx.trace(trace::BLOCKS_BORROWED, u64::from(id.0), u64::from(blocks));
            self.vssds[i].service.handle_freed(Freed::Block);
            if !self.with(now, i, fx, |service, cx| service.poll_programs(cx)).waits_for_block {
                return true;
            }
        }
        if !self.failed && self.registration.incarnation.is_some() {
            let members = self.members(g);
            let orders = self.groups[g].machine.force(now, i, &members);
            self.apply(now, orders, fx);
        }
        borrowed
    }
    pub(super) fn groups_due(&self) -> Time {
        let waits = self.failed || self.registration.incarnation.is_none();
        let due = self.groups.iter().map(|g| g.machine.deadline()).min().filter(|_| !waits);
        due.unwrap_or(Time::MAX)
    }
}
