//! Swaps of dies: the orders of [`crate::swap::Swapper`] for the drive and the vSSDs' monitors.

use rackweave_core::msg::Role;
use rackweave_core::{Effects, Time, VssdId};

use super::Server;
use crate::config::ServerConfig;
use crate::gc::{GcState, Grant};
use crate::slots::SlotState;
use crate::swap::{DriveSwap, Member, Order, SwapState, Swapper};
use crate::trace;
use crate::vssd::ServedVssd;

/// Most rounds of orders at one instant: each advances the swap or a monitor, and none returns to an earlier state.
const ROUNDS_MAX: usize = 64;

pub(super) fn swapper(cfg: &ServerConfig) -> Swapper {
    let p = &cfg.ssd.profile;
    Swapper::new(cfg.swap, p.read.max(p.program).max(p.erase), cfg.nonce)
}

impl Server {
    /// The drive has recovered: its wear is leveled from now on.
    pub(super) fn level(&mut self, now: Time, fx: &mut Effects) {
        self.ssd.level_dies(now, self.swapper.policy());
        if self.ssd.swapping() {
            self.swapper.counts.found += 1;
            fx.trace(trace::SWAP_FOUND, u64::from(self.cfg.ssd.id.0), 0);
        }
    }
    pub(super) fn swapped(&mut self, now: Time, fx: &mut Effects) {
        self.swapper.ended(now);
        fx.trace(trace::SWAP_ENDED, u64::from(self.cfg.ssd.id.0), 0);
    }
    fn swaps_wait(&self) -> bool {
        self.failed || self.registration.incarnation.is_none() || !self.registration.ready
    }
    pub(super) fn swap_deadline(&self) -> Time {
        if self.swaps_wait() { Time::MAX } else { self.swapper.deadline() }
    }
    /// Whether [`Server::step_swap`] may have work: between slices only at the deadline, or when the swap is over.
    pub(super) fn swap_may_step(&self, now: Time) -> bool {
        let happens = match self.swapper.state() {
            SwapState::Idle => false,
            SwapState::Pausing { .. } => !self.ssd.swapping(),
            SwapState::Asking { .. } | SwapState::Working { .. } | SwapState::Ending => true,
        };
        (happens || now >= self.swapper.deadline()) && !self.swaps_wait()
    }

    /// Runs the swap until nothing is left to do now.
    pub(super) fn step_swap(&mut self, now: Time, fx: &mut Effects) {
        if self.swapper.is_due(now) && !self.ssd.swapping() {
            // An error cannot be: the drive works, and dies that take part may trade places.
            if self.ssd.begin_due_swap(now, &mut self.out) == Ok(true) {
                self.swapper.counts.begun += 1;
                fx.trace(trace::SWAP_BEGUN, u64::from(self.cfg.ssd.id.0), 0);
            }
        }
        for _ in 0..ROUNDS_MAX {
            let swap = self.ssd.swapping().then(|| DriveSwap {
                ready: self.ssd.swap_ready(),
                held: self.ssd.swap_held(),
                works: self.ssd.swap_works(),
            });
            let (before, counts, members) = (self.swapper.state(), self.swapper.counts, self.swap_members());
            let orders = self.swapper.step(now, swap, &members);
            if orders.is_empty() && self.swapper.state() == before {
                return;
            }
            let granted = members.iter().filter(|m| m.concerned).count() as u64;
            let drive = u64::from(self.cfg.ssd.id.0);
            if self.swapper.counts.refused > counts.refused {
                fx.trace(trace::SWAP_REFUSED, drive, granted);
            }
            if self.swapper.counts.slices > counts.slices {
                fx.trace(trace::SWAP_SLICE, drive, granted);
                if let Some(i) = self.swaps_moving() {
                    fx.trace(trace::SWAP_OF_MOVING, drive, i as u64);
                }
            }
            orders.into_iter().for_each(|o| self.apply_swap(now, o, fx));
        }
    }
    fn apply_swap(&mut self, now: Time, order: Order, fx: &mut Effects) {
        match order {
            Order::Ask(i) | Order::Return(i) => {
                let gc = &mut self.vssds[i].gc;
                match order {
                    Order::Ask(_) => gc.ask_for_swap(now),
                    _ => gc.return_grant(now),
                }
                self.run_gc(now, i, fx);
                self.touched |= 1 << i;
            }
            Order::Resume => self.ssd.resume_swap(now, &mut self.out),
            Order::Hold => self.ssd.hold_swap(),
        }
    }
    /// A slot of the dies that trade places whose vSSD has come or gone, and is not complete or not erased yet.
    fn swaps_moving(&self) -> Option<usize> {
        let moving = |v: &ServedVssd| {
            v.slot == SlotState::Erasing || v.role == Some(Role::Shadow) && !v.service.standing().complete
        };
        let mut slots = self.ssd.swap_vssds().filter_map(|id| self.vssds.iter().position(|v| v.cfg.id == id));
        slots.find(|&i| moving(&self.vssds[i]))
    }
    /// While a command of a swap keeps a die busy: vSSDs of the two dies, and whether each lets the switch know. For checkers.
    pub fn swap_announced(&self) -> impl Iterator<Item = (VssdId, bool)> + '_ {
        let trade = self.ssd.swap_vssds().filter(|_| self.ssd.swap_works());
        let served = trade.filter_map(|id| self.vssds.iter().find(|v| v.cfg.id == id && !v.is_free()));
        let announces = |gc: GcState| matches!(gc, GcState::Granted | GcState::Collecting | GcState::Ending);
        served.map(move |v| (v.cfg.id, announces(v.gc.state())))
    }
    /// vSSDs with a grant for a swap, and its number; after the drive has failed the switch lets them expire. For checkers.
    pub fn swap_granted(&self) -> impl Iterator<Item = (VssdId, u64)> + '_ {
        let granted = self.vssds.iter().filter(|v| v.gc.grant() == Grant::Granted && !self.failed);
        granted.map(|v| (v.cfg.id, v.gc.swap_requests()))
    }
    /// vSSDs of the drive, in order of their ids. Free slots have none: nothing is asked for them.
    fn swap_members(&self) -> Vec<Member> {
        let trade: Vec<VssdId> = self.ssd.swap_vssds().collect();
        let mut slots: Vec<usize> = (0..self.vssds.len()).filter(|&i| !self.vssds[i].is_free()).collect();
        slots.sort_unstable_by_key(|&i| self.vssds[i].cfg.id);
        let member = |slot: usize| {
            let v = &self.vssds[slot];
            Member { slot, concerned: trade.contains(&v.cfg.id), grant: v.gc.grant() }
        };
        slots.into_iter().map(member).collect()
    }
}
