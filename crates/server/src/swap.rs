//! Swaps of dies under the vSSDs of a drive (FB7–FB9), while they serve. The drive decides what trades places and moves it
//! ([`rackweave_flash::Ssd::begin_due_swap`]); here is decided when its moves may keep dies busy (protocol rule 35).
//!
//! Moves run in *slices*. Before each, the switch is asked softly for every vSSD of the two dies, one after another in order of their
//! ids: two drives that ask for the same sets in different orders would deny each other. It accepts if another replica is idle,
//! as before a collection, and if none swaps: of a set one drive swaps at a time. If one vSSD is delayed, or
//! collects without having been accepted, the grants of the others are returned and asked for again after a time drawn from
//! the seed (rule 20). While a slice runs the switch sends the vSSDs' reads elsewhere. At its end the moves are held; when the
//! command under way is done the grants are returned, so that another replica may collect or swap.
//!
//! A pure state machine over the vSSDs' monitors ([`crate::gc`]), which handle the exchange with the switch.

use rackweave_core::rng::mix64;
use rackweave_core::{Span, Time};
use rackweave_flash::wear::WearPolicy;

use crate::gc::Grant;

/// The longest slice (protocol rule 35).
pub const SLICE_MAX: Span = Span::from_millis(100);
/// Interval at which the wear of the dies is looked at, and a swap that had nothing to move.
const LOOK_INTERVAL: Span = Span::from_secs(1);
/// The same of vSSDs that wait for their own collection.
const COLLECTS_RETRY_INTERVAL: Span = Span::from_millis(10);

/// Parameters of the swaps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwapConfig {
    /// When dies trade places, and which.
    pub policy: WearPolicy,
    /// Longest time from the last grant to the end of the slice's last command.
    pub slice: Span,
    /// Least time between slices.
    pub pause: Span,
}

impl Default for SwapConfig {
    /// No swaps.
    fn default() -> SwapConfig {
        SwapConfig { policy: WearPolicy::NO_SWAP, slice: SLICE_MAX, pause: SLICE_MAX }
    }
}

/// Counters since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapStatus {
    pub begun: u64,
    /// Begun by an earlier run of the server.
    pub found: u64,
    pub ended: u64,
    pub slices: u64,
    /// Slices that not every vSSD was granted.
    pub refused: u64,
    pub under_way: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapState {
    /// No swap is under way.
    Idle,
    Pausing {
        until: Time,
    },
    Asking {
        until: Time,
    },
    Working {
        until: Time,
    },
    /// Held; its last command is under way.
    Ending,
}

/// The drive's swap.
#[derive(Clone, Copy, Debug)]
pub struct DriveSwap {
    /// It has something to do.
    pub ready: bool,
    pub held: bool,
    /// One of its commands keeps a die busy.
    pub works: bool,
}

/// A vSSD of the drive.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub slot: usize,
    /// One of its dies trades places.
    pub concerned: bool,
    pub grant: Grant,
}

impl Member {
    fn granted(&self) -> bool {
        self.grant == Grant::Granted
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// For the vSSD in this slot.
    Ask(usize),
    Return(usize),
    /// For the drive.
    Resume,
    Hold,
}

/// The state machine. Members are passed in the order of their ids.
#[derive(Debug)]
pub struct Swapper {
    cfg: SwapConfig,
    /// A slice is held this long before its end, for the command under way.
    longest: Span,
    seed: u64,
    state: SwapState,
    look_at: Time,
    pub(crate) counts: SwapStatus,
}

impl Swapper {
    /// `longest`: the longest command of a swap.
    pub fn new(cfg: SwapConfig, longest: Span, seed: u64) -> Swapper {
        let (state, counts) = (SwapState::Idle, SwapStatus::default());
        Swapper { cfg, longest, seed, state, look_at: Time::ZERO, counts }
    }
    pub fn policy(&self) -> WearPolicy {
        self.cfg.policy
    }
    pub fn state(&self) -> SwapState {
        self.state
    }
    pub fn status(&self) -> SwapStatus {
        SwapStatus { under_way: self.state != SwapState::Idle, ..self.counts }
    }
    /// When [`Swapper::step`] has work although nothing has happened.
    pub fn deadline(&self) -> Time {
        match self.state {
            SwapState::Idle => self.look_at,
            SwapState::Pausing { until } | SwapState::Asking { until } | SwapState::Working { until } => until,
            SwapState::Ending => Time::MAX,
        }
    }
    /// Whether it is time to look if a swap is due.
    pub fn is_due(&mut self, now: Time) -> bool {
        let due = self.state == SwapState::Idle && now >= self.look_at;
        if due {
            self.look_at = if self.cfg.policy == WearPolicy::NO_SWAP { Time::MAX } else { now + LOOK_INTERVAL };
        }
        due
    }
    /// The drive's swap is over: another may have been planned with it.
    pub fn ended(&mut self, now: Time) {
        self.counts.ended += 1;
        self.look_at = now;
    }

    /// What is to be done now. The caller repeats the call until it is nothing. `swap`: none is under way.
    pub fn step(&mut self, now: Time, swap: Option<DriveSwap>, members: &[Member]) -> Vec<Order> {
        let left = members.iter().filter(|m| !m.concerned || swap.is_none());
        let mut orders = returns(left);
        let Some(swap) = swap else {
            self.state = SwapState::Idle;
            return orders;
        };
        let one = mutant!("server.swap.one-vssd");
        let concerned: Vec<Member> =
            members.iter().filter(|m| m.concerned).take(if one { 1 } else { usize::MAX }).copied().collect();
        orders.extend(match self.state {
            SwapState::Idle => {
                self.state = SwapState::Pausing { until: now };
                Vec::new()
            }
            SwapState::Pausing { until } if now >= until => {
                let until = if swap.ready { now + self.cfg.slice } else { now + LOOK_INTERVAL };
                self.state = if swap.ready { SwapState::Asking { until } } else { SwapState::Pausing { until } };
                Vec::new()
            }
            SwapState::Asking { until } => self.ask(now, until, &concerned),
            SwapState::Working { until } => {
                let granted = concerned.iter().all(Member::granted);
                if granted && now < until && swap.ready && !swap.held {
                    return orders;
                }
                self.state = SwapState::Ending;
                vec![Order::Hold]
            }
            SwapState::Ending if !swap.works || mutant!("server.swap.ends-early") => {
                self.state = SwapState::Pausing { until: now + self.cfg.pause };
                returns(concerned.iter())
            }
            SwapState::Pausing { .. } | SwapState::Ending => Vec::new(),
        });
        orders
    }
    fn ask(&mut self, now: Time, until: Time, concerned: &[Member]) -> Vec<Order> {
        if concerned.iter().any(|m| m.grant == Grant::Collects) {
            self.state = SwapState::Pausing { until: now + COLLECTS_RETRY_INTERVAL };
            return returns(concerned.iter());
        }
        if concerned.iter().any(|m| m.grant == Grant::Delayed) || now >= until {
            self.counts.refused += 1;
            let again = self.cfg.pause.0.max(1);
            let more = mix64(self.seed ^ mix64(self.counts.refused)) % (again + 1);
            self.state = SwapState::Pausing { until: now + Span(again / 2 + more) };
            return if mutant!("server.swap.keeps-others") { Vec::new() } else { returns(concerned.iter()) };
        }
        // A grant that is being returned must have been before the vSSD is asked for again.
        match concerned.iter().find(|m| !m.granted()) {
            Some(m) if m.grant == Grant::None => vec![Order::Ask(m.slot)],
            Some(_) => Vec::new(),
            None => {
                self.counts.slices += 1;
                let (slice, longest) = (self.cfg.slice.0, self.longest.0);
                let works = slice.saturating_sub(longest).max(slice / 2);
                self.state = SwapState::Working { until: now + Span(works) };
                vec![Order::Resume]
            }
        }
    }
}

fn returns<'a>(of: impl Iterator<Item = &'a Member>) -> Vec<Order> {
    let held = of.filter(|m| matches!(m.grant, Grant::Asked | Grant::Granted | Grant::Delayed));
    held.map(|m| Order::Return(m.slot)).collect()
}

#[cfg(test)]
#[path = "swap_tests.rs"]
mod tests;
