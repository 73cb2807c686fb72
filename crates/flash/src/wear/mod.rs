//! Wear leveling between channels and dies (FlashBlox §3.1.3–3.2) as decisions: the wear of each die, when to swap, and
//! which dies are swapped. The device and the ageing model report their erases here and carry out the swaps.
//!
//! Wear is counted in bytes erased. Within a die wear is even: its blocks rotate (§3.4), so a die is the smallest unit
//! here.
//!
//! - [`WearPolicy`]: the paper's, without swaps, or ours. They differ in what is swapped ([`Pairing`]) and when
//!   ([`Trigger`]).
//! - [`Leveler`]: the counters, and the policy over them.
//!
//! How often must be swapped to hold an imbalance: [`rackweave_core::wear`].

mod pairing;

use rackweave_core::wear::imbalance;
use rackweave_core::{Span, Time};

use crate::profile::Profile;

/// γ, what a channel is erased by between swaps, is a channel's life ÷ this: 24 TB of 64 GB erased 10,000 times, as in FlashBlox
/// §3.1.5.
const GAMMA_PART: u64 = 27;

/// Trigger of a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// No swap: the paper's NoSwap.
    Never,
    /// This long since the last one, of time that the drive runs.
    Period(Span),
    /// A channel has been erased by γ since the last one, or one of its dies by a die's part of γ (§3.1.5; the part is
    /// ours: an attack on one die would wear it by a channel's worth between two swaps).
    Adaptive {
        /// γ, bytes.
        gamma: u64,
        /// Towards the end of life γ shrinks with the remaining life, since later swaps can no longer make up for a
        /// late one.
        closing: bool,
    },
}

/// Which parts are swapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// §3.1.3: the most worn channel (that is not the calmest already) and the one with the least rate; in both the most
    /// worn die goes with the die of the least rate (§3.2). With many unlike rates the channel that was made calm is
    /// taken again and again, and those of small rates never.
    LeastRate,
    /// The most worn die that a slower one can be found for, and the least worn of those, with their channels if they
    /// are in two; then hot dies go to the least worn ones. Other dies that are as hot do so as well. With one writer
    /// the same as the paper's.
    LeastWorn,
}

/// Policy of wear leveling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WearPolicy {
    pub trigger: Trigger,
    pub pairing: Pairing,
}

impl WearPolicy {
    pub const NO_SWAP: WearPolicy = WearPolicy { trigger: Trigger::Never, pairing: Pairing::LeastRate };

    /// FlashBlox as published, with a fixed period (§3.1.4).
    pub fn flashblox_fixed(period: Span) -> WearPolicy {
        WearPolicy { trigger: Trigger::Period(period), pairing: Pairing::LeastRate }
    }
    /// FlashBlox as published, adaptive (§3.1.5): a swap when a channel was erased by `gamma` bytes.
    pub fn flashblox_adaptive(gamma: u64) -> WearPolicy {
        WearPolicy { trigger: Trigger::Adaptive { gamma, closing: false }, pairing: Pairing::LeastRate }
    }
    /// Ours, with FlashBlox's γ for a drive of this profile.
    pub fn of_drive(profile: &Profile) -> WearPolicy {
        let g = &profile.geometry;
        let channel = u64::from(g.blocks_per_channel()) * g.block_bytes();
        WearPolicy::adaptive((channel * u64::from(profile.endurance) / GAMMA_PART).max(channel))
    }
    /// Ours: [`Pairing::LeastWorn`], γ shrinking towards the end.
    pub fn adaptive(gamma: u64) -> WearPolicy {
        WearPolicy { trigger: Trigger::Adaptive { gamma, closing: true }, pairing: Pairing::LeastWorn }
    }
}

/// Wear of a die.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DieWear {
    /// Bytes erased since it was new.
    pub total: u64,
    /// Bytes erased since the counters were cleared; by these rates are compared, as all were cleared together.
    pub since: u64,
}

/// Dies that trade all their blocks, pair by pair, numbered through the device: two whole channels', or one pair inside
/// a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    pub dies: Vec<(u32, u32)>,
}

/// Closing: γ is at most this part of the most worn die's remaining life.
const CLOSING_PARTS: u64 = 4;
/// γ stays above this part of its full value: each swap costs an erase of the blocks that it moves.
const CLOSING_LEAST_PARTS: u64 = 12;

/// Wear counters of a device and its policy.
#[derive(Clone, Debug)]
pub struct Leveler {
    policy: WearPolicy,
    dies_per_channel: u32,
    /// Bytes a die can be erased before its end of life.
    die_life: u64,
    dies: Vec<DieWear>,
    cleared: Time,
    /// Time that had passed then already, in earlier runs.
    before: Span,
    /// Of a die's `since`: set when the counters are cleared.
    threshold: u64,
    /// Planned and not yet handed out, the next one last.
    planned: Vec<Swap>,
}

impl Leveler {
    /// Of a new device. `die_life`: bytes a die can be erased, its size times its blocks' endurance.
    ///
    /// # Panics
    /// As [`Leveler::resumed`].
    pub fn new(policy: WearPolicy, channels: u16, dies_per_channel: u16, die_life: u64) -> Leveler {
        let dies = vec![DieWear::default(); usize::from(channels) * usize::from(dies_per_channel)];
        Leveler::resumed(policy, dies_per_channel, die_life, dies, Time::ZERO)
    }
    /// Of a device whose erase counts are known from its flash.
    ///
    /// # Panics
    /// If a channel has no die, or the policy a period of no time.
    pub fn resumed(policy: WearPolicy, dies_per_channel: u16, die_life: u64, dies: Vec<DieWear>, now: Time) -> Leveler {
        assert!(dies_per_channel > 0, "a channel has a die");
        assert!(policy.trigger != Trigger::Period(Span::ZERO), "a period takes time");
        let dies_per_channel = u32::from(dies_per_channel);
        let mut l = Leveler {
            policy,
            dies_per_channel,
            die_life,
            dies,
            cleared: now,
            before: Span::ZERO,
            threshold: 0,
            planned: Vec::new(),
        };
        l.threshold = l.threshold_now();
        l
    }

    /// The counters were cleared this long ago already.
    pub fn cleared_before(mut self, ago: Span) -> Leveler {
        self.before = ago;
        self
    }
    /// Time since the counters were cleared.
    pub fn since_cleared(&self, now: Time) -> Span {
        Span(now.since(self.cleared).0.saturating_add(self.before.0))
    }
    pub fn policy(&self) -> &WearPolicy {
        &self.policy
    }
    /// Every die, channel by channel.
    pub fn dies(&self) -> &[DieWear] {
        &self.dies
    }
    /// Counts erases of a die, except those of a swap ([`Leveler::moved`]).
    ///
    /// # Panics
    /// If the device has no such die.
    pub fn erased(&mut self, die: u32, bytes: u64) {
        let d = &mut self.dies[die as usize];
        d.total = d.total.saturating_add(bytes);
        d.since = d.since.saturating_add(bytes);
    }
    /// Counts erases that a swap itself causes: wear, but none of the workload's.
    ///
    /// # Panics
    /// As [`Leveler::erased`].
    pub fn moved(&mut self, die: u32, bytes: u64) {
        let d = &mut self.dies[die as usize];
        d.total = d.total.saturating_add(bytes);
    }

    /// Whether it is time for [`Leveler::plan`].
    pub fn due(&self, now: Time) -> bool {
        self.planned()
            || match self.policy.trigger {
                Trigger::Never => false,
                Trigger::Period(period) => self.since_cleared(now) >= period,
                Trigger::Adaptive { .. } => self.dies.iter().any(|d| d.since >= self.threshold),
            }
    }
    /// Whether swaps that belong to the last one are still to be made.
    pub fn planned(&self) -> bool {
        !self.planned.is_empty()
    }
    /// When a period ends.
    pub fn due_at(&self) -> Option<Time> {
        match self.policy.trigger {
            Trigger::Period(period) => Some(self.cleared + Span(period.0.saturating_sub(self.before.0))),
            Trigger::Never | Trigger::Adaptive { .. } => None,
        }
    }
    /// Bytes that a die may be erased since the counters were cleared before a swap is due.
    pub fn due_bytes(&self) -> Option<u64> {
        matches!(self.policy.trigger, Trigger::Adaptive { .. }).then_some(self.threshold)
    }

    /// Decides what is swapped, and clears the counters, whether there is anything to swap or not. Where several
    /// swaps are wanted at once it hands out one at a call: they are independent, and each is made before the next.
    pub fn plan(&mut self, now: Time) -> Option<Swap> {
        if let Some(next) = self.planned.pop() {
            return Some(next);
        }
        self.planned = pairing::choose(self.policy.pairing, &self.dies, self.dies_per_channel);
        self.planned.reverse();
        for d in &mut self.dies {
            d.since = 0;
        }
        (self.cleared, self.before) = (now, Span::ZERO);
        self.threshold = self.threshold_now();
        self.planned.pop()
    }

    fn threshold_now(&self) -> u64 {
        let Trigger::Adaptive { gamma, closing } = self.policy.trigger else { return u64::MAX };
        let gamma = (gamma / u64::from(self.dies_per_channel)).max(1);
        if !closing {
            return gamma;
        }
        let worst = self.dies.iter().map(|d| d.total).max().unwrap_or(0);
        let left = self.die_life.saturating_sub(worst) / CLOSING_PARTS;
        left.clamp((gamma / CLOSING_LEAST_PARTS).max(1), gamma)
    }

    /// A die has reached its end of life.
    pub fn worn_out(&self) -> bool {
        self.dies.iter().any(|d| d.total >= self.die_life)
    }
    /// Bytes a die can be erased.
    pub fn die_life(&self) -> u64 {
        self.die_life
    }
    /// ξ = σ_max ÷ σ_avg over channels (§3.1.4); 1 for a new device.
    pub fn imbalance(&self) -> f64 {
        let channels = self.dies.chunks(self.dies_per_channel as usize).map(|c| c.iter().map(|d| d.total).sum());
        imbalance(channels.map(|c: u64| c as f64))
    }
    /// The same over dies.
    pub fn die_imbalance(&self) -> f64 {
        imbalance(self.dies.iter().map(|d| d.total as f64))
    }
}

#[cfg(test)]
#[path = "wear_tests.rs"]
mod tests;
