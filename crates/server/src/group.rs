//! When the vSSDs of a channel group collect: all together (RackBlox §3.5.2, RB9), because each keeps the others'
//! channels busy when it collects.
//!
//! A pure state machine over its members' monitors ([`crate::gc`]), which handle the exchange with the switch. Input:
//! their states and their common free ratio; output: an order for each. Below the thresholds it requests collection for
//! every member, and starts when all are granted. One *delay* delays all: the grants are returned, and requested again
//! after a time drawn from the seed (protocol rule 20).

use rackweave_core::msg::GcField;
use rackweave_core::rng::mix64;
use rackweave_core::{Span, Time};

use crate::config::{GcConfig, GcPolicy};
use crate::gc::{GcState, NO_VICTIM_FORCED_RETRY_INTERVAL, NO_VICTIM_RETRY_INTERVAL};

/// Shortest time from an end until programs without a block start the next episode: the reason for the end will not
/// have changed at once.
const FORCE_RETRY_INTERVAL: Span = Span::from_millis(1);

/// State of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    Idle,
    /// Requests collection for its members: soft requests in order of their ids, regular ones all at once.
    Requested(GcField),
    /// A member's request was delayed.
    Delayed {
        until: Time,
    },
    Collecting,
    /// Members finish their victims in progress, and announce the end.
    Ending,
}

/// A member, by the state of its monitor.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub slot: usize,
    pub state: GcState,
    /// Collects with the others, but has nothing more to gain.
    pub resting: bool,
    /// Its own free ÷ spare.
    pub ratio: f64,
}

/// Order for a member's monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Request(GcField),
    /// Returns an unused grant.
    Return,
    Start,
    /// Collects without a request, because programs wait.
    Force,
    /// Takes no further victims while the others go on.
    Rest,
    Stop,
}

/// The state machine. Members are passed in the order of their ids.
#[derive(Debug)]
pub struct Group {
    cfg: GcConfig,
    seed: u64,
    state: GroupState,
    delays: u64,
    check_at: Time,
    no_victim_until: Time,
    force_from: Time,
    /// Slots whose programs waited: the episode does not end before they have enough blocks.
    forced: u32,
}

impl Group {
    pub fn new(cfg: GcConfig, seed: u64) -> Group {
        Group {
            cfg,
            seed,
            state: GroupState::Idle,
            delays: 0,
            check_at: Time::ZERO,
            no_victim_until: Time::ZERO,
            force_from: Time::ZERO,
            forced: 0,
        }
    }
    pub fn state(&self) -> GroupState {
        self.state
    }
    /// Sets other thresholds. With another policy, monitors with a pending request restart, and so does the group.
    pub fn set_config(&mut self, now: Time, cfg: GcConfig) {
        let another = self.cfg.policy != cfg.policy;
        self.cfg = cfg;
        self.check_at = now;
        if another && matches!(self.state, GroupState::Requested(_) | GroupState::Delayed { .. }) {
            self.state = GroupState::Idle;
        }
    }
    /// When [`Group::step`] may have work although nothing has happened.
    pub fn deadline(&self) -> Time {
        let state = match self.state {
            GroupState::Delayed { until } => until,
            GroupState::Idle => self.no_victim_until,
            _ => Time::MAX,
        };
        let state = if state == Time::ZERO { Time::MAX } else { state };
        state.min(self.check_at)
    }

    /// Orders for the members; `ratio` is the group's. The caller repeats the call until there are none.
    pub fn step(&mut self, now: Time, ratio: f64, members: &[Member]) -> Vec<(usize, Order)> {
        if now >= self.check_at {
            self.check_at = now + self.cfg.monitor_every;
        }
        if self.state == GroupState::Ending && members.iter().all(|m| !works(m.state)) {
            self.state = GroupState::Idle;
        }
        if now >= self.no_victim_until {
            self.no_victim_until = Time::ZERO;
        }
        let (hard, soft) = (ratio < self.cfg.gc_threshold, ratio < self.cfg.soft_threshold);
        match self.state {
            GroupState::Idle if !soft || self.no_victim_until > now || members.is_empty() => return Vec::new(),
            GroupState::Idle if self.cfg.policy == GcPolicy::Uncoordinated => {
                self.state = GroupState::Collecting;
                return all(members, Order::Start, |_| true);
            }
            GroupState::Idle => self.state = GroupState::Requested(GcField::Soft),
            GroupState::Delayed { .. } if !soft => self.state = GroupState::Idle,
            GroupState::Delayed { until } if hard || now >= until => self.state = GroupState::Requested(GcField::Soft),
            _ => {}
        }
        match self.state {
            GroupState::Requested(_) if hard => self.request_regular(members),
            GroupState::Requested(GcField::Regular) => self.request_regular(members),
            GroupState::Requested(_) => self.request_soft(now, soft, members),
            GroupState::Collecting => self.collect(now, ratio, members),
            _ => Vec::new(),
        }
    }

    fn request_regular(&mut self, members: &[Member]) -> Vec<(usize, Order)> {
        self.state = GroupState::Requested(GcField::Regular);
        if let Some(begin) = self.begin(members) {
            return begin;
        }
        let unasked = |m: &Member| match m.state {
            GcState::Requested { field, .. } => field != GcField::Regular,
            GcState::Idle | GcState::Delayed { .. } | GcState::Finishing { .. } => true,
            _ => false,
        };
        all(members, Order::Request(GcField::Regular), unasked)
    }
    fn request_soft(&mut self, now: Time, soft: bool, members: &[Member]) -> Vec<(usize, Order)> {
        let delayed = members.iter().any(|m| matches!(m.state, GcState::Delayed { .. }));
        if delayed || !soft {
            self.state = if soft { self.delay(now) } else { GroupState::Idle };
            let held =
                |m: &Member| matches!(m.state, GcState::Requested { .. } | GcState::Granted | GcState::Delayed { .. });
            return all(members, Order::Return, held);
        }
        if let Some(begin) = self.begin(members) {
            return begin;
        }
        // One at a time: two groups that request each other's replicas in different orders would deny each other.
        let next = members.iter().find(|m| m.state != GcState::Granted && m.state != GcState::Collecting);
        let idle = next.filter(|m| m.state == GcState::Idle);
        idle.map(|m| (m.slot, Order::Request(GcField::Soft))).into_iter().collect()
    }
    fn delay(&mut self, now: Time) -> GroupState {
        self.delays += 1;
        let again = self.cfg.delayed_again.0;
        let more = mix64(self.seed ^ mix64(self.delays)) % (again + 1);
        GroupState::Delayed { until: now + Span(again / 2 + more) }
    }
    /// All start once each is granted.
    fn begin(&mut self, members: &[Member]) -> Option<Vec<(usize, Order)>> {
        let granted = |m: &Member| matches!(m.state, GcState::Granted | GcState::Collecting);
        if members.is_empty() || !members.iter().all(granted) {
            return None;
        }
        self.state = GroupState::Collecting;
        Some(all(members, Order::Start, |m| m.state == GcState::Granted))
    }

    fn collect(&mut self, now: Time, ratio: f64, members: &[Member]) -> Vec<(usize, Order)> {
        let collecting = |m: &Member| m.state == GcState::Collecting;
        let needs = |m: &Member| self.forced >> m.slot & 1 == 1 && !m.resting && m.ratio < self.cfg.episode_ends();
        let no_victim = members.iter().filter(|m| collecting(m)).all(|m| m.resting);
        let enough = ratio >= self.cfg.episode_ends() && !members.iter().any(|m| collecting(m) && needs(m));
        let starved = |m: &Member| self.forced >> m.slot & 1 == 1 && m.resting && m.ratio < self.cfg.episode_ends();
        let starved = members.iter().any(starved);
        if enough || no_victim {
            self.state = GroupState::Ending;
            self.forced = 0;
            self.force_from =
                now + if starved || !enough { NO_VICTIM_FORCED_RETRY_INTERVAL } else { FORCE_RETRY_INTERVAL };
            if !enough {
                self.no_victim_until = now + NO_VICTIM_RETRY_INTERVAL;
            }
            return all(members, Order::Stop, collecting);
        }
        // Beyond this, victims are collected that the next writes would have emptied.
        let has_all = |m: &Member| collecting(m) && !m.resting && !needs(m) && m.ratio >= self.cfg.background_ends();
        all(members, Order::Rest, has_all)
    }

    /// Programs of the member in this slot wait for a block that no neighbour can lend: all collect at once.
    pub fn force(&mut self, now: Time, slot: usize, members: &[Member]) -> Vec<(usize, Order)> {
        let works = members.iter().any(|m| m.slot == slot && m.state == GcState::Collecting && !m.resting);
        if now < self.force_from || works || !members.iter().any(|m| m.slot == slot) {
            return Vec::new();
        }
        self.force_from = now + FORCE_RETRY_INTERVAL;
        self.forced |= 1 << slot;
        self.state = GroupState::Collecting;
        all(members, Order::Force, |m| m.slot == slot || m.state != GcState::Collecting)
    }
}

/// The switch does not know yet that the member has ended.
fn works(state: GcState) -> bool {
    matches!(state, GcState::Collecting | GcState::Ending | GcState::Granted | GcState::Requested { .. })
}

fn all(members: &[Member], order: Order, which: impl Fn(&Member) -> bool) -> Vec<(usize, Order)> {
    members.iter().filter(|m| which(m)).map(|m| (m.slot, order)).collect()
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
