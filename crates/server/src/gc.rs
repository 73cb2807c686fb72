//! The garbage-collection monitor of one vSSD (RackBlox Algorithm 2, RB4; protocol rules 16, 19, 20).
//!
//! Input: the free ratio and the switch's answers. Output: when to collect, and the `gc_op`s to send. Unanswered ones
//! are repeated at growing intervals ([`Backoff`]), at least five times a second, so that a restarted switch learns the
//! state. A regular request is repeated four times at an even interval; then collection starts.

use rackweave_core::msg::{GcField, GcOp};
use rackweave_core::{Backoff, Span, Time};

use crate::config::{GcConfig, GcPolicy};
use crate::group::Order;
use crate::idle::Idle;

/// Retry interval after a collection that found nothing to free.
pub(crate) const NO_VICTIM_RETRY_INTERVAL: Span = Span::from_secs(1);
/// The same while programs wait for it.
pub(crate) const NO_VICTIM_FORCED_RETRY_INTERVAL: Span = Span::from_millis(50);

/// State of an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GcState {
    #[default]
    Idle,
    /// Requested and unanswered.
    Requested {
        field: GcField,
        tries: u32,
        again_at: Time,
    },
    /// The switch delayed the request.
    Delayed {
        again_at: Time,
    },
    /// Granted; other members of the channel group still wait. Or a swap of dies uses the grant.
    Granted,
    Collecting,
    /// Takes no further victims; those in progress still keep dies busy, so the switch is not informed yet.
    Ending,
    /// Has reported its end to the switch; unanswered.
    Finishing {
        again_at: Time,
    },
}

/// Action for the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcAction {
    Tell(GcOp),
    Start,
    Stop,
    /// Collects without an answer (protocol rule 20).
    StartUnacknowledged,
    /// Collects without a request, because programs wait.
    StartForced,
    /// Collects without a request, because the vSSD is idle (RB5).
    StartIdle,
    /// Takes no further victims; the others of its channel group still collect.
    Rest,
}

/// The vSSD's part in asking for a slice of a swap of dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// May be asked for.
    None,
    /// Asked for and unanswered.
    Asked,
    Delayed,
    Granted,
    /// The vSSD collects because it must, or has asked for that.
    Collects,
    /// A grant is being returned.
    Returning,
}

/// A slice of a swap beside the vSSD's own collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sharing {
    #[default]
    No,
    /// Requested and unanswered.
    Asked,
    /// Delayed by the switch, or overtaken by another operation.
    Delayed,
    /// The switch sends reads elsewhere for both.
    Granted,
}

/// The monitor.
#[derive(Debug)]
pub struct GcMonitor {
    cfg: GcConfig,
    state: GcState,
    /// Sequence of the last operation, which the switch's answer repeats.
    sequence: u64,
    swap_requests: u64,
    /// When it is repeated.
    again: Backoff,
    check_at: Time,
    announce_at: Time,
    no_victim_until: Time,
    force_from: Time,
    idle: Idle,
    /// The vSSD collects because it is idle.
    background: bool,
    /// The gap that was already considered: too little to gain.
    idle_seen: Time,
    /// The announcement that the switch has not answered, and when it is repeated.
    unacked: Option<(GcField, Time)>,
    /// It belongs to a channel group, which decides when it collects.
    grouped: bool,
    resting: bool,
    /// Started without an answer.
    unanswered: bool,
    /// The exchange with the switch is for a swap of dies: [`Grant`].
    for_swap: bool,
    /// The collection was accepted softly; a slice of a swap may share it.
    accepted: bool,
    sharing: Sharing,
    /// The switch has answered this incarnation of the server.
    answered: bool,
    /// Actions in order; taken by the server.
    pub actions: Vec<GcAction>,
}

impl GcMonitor {
    /// `seed`: for the jitter of repetitions.
    pub fn new(cfg: GcConfig, seed: u64) -> GcMonitor {
        GcMonitor {
            cfg,
            state: GcState::Idle,
            sequence: 0,
            swap_requests: 0,
            again: Backoff::new(cfg.answer_within, cfg.announce_every, seed),
            check_at: Time::ZERO,
            announce_at: Time::ZERO,
            no_victim_until: Time::ZERO,
            force_from: Time::ZERO,
            idle: Idle::new(cfg.idle_alpha, cfg.idle_over),
            background: false,
            idle_seen: Time::MAX,
            unacked: None,
            grouped: false,
            resting: false,
            unanswered: false,
            for_swap: false,
            accepted: false,
            sharing: Sharing::No,
            answered: false,
            actions: Vec::new(),
        }
    }
    /// For a member of a channel group, whose orders it follows.
    pub fn grouped(cfg: GcConfig, seed: u64) -> GcMonitor {
        GcMonitor { grouped: true, ..GcMonitor::new(cfg, seed) }
    }
    /// Whether it collects with its group without taking victims.
    pub fn resting(&self) -> bool {
        self.collecting() && self.resting
    }
    pub fn state(&self) -> GcState {
        self.state
    }
    pub fn collecting(&self) -> bool {
        self.state == GcState::Collecting
    }
    /// Whether it collects, as confirmed by the switch. `None` while an exchange with the switch is pending, and before
    /// the first. The switch's state for this incarnation agrees with it.
    pub fn confirmed(&self) -> Option<bool> {
        match self.state {
            _ if !self.answered || self.unacked.is_some() => None,
            GcState::Requested { .. } | GcState::Finishing { .. } => None,
            GcState::Granted | GcState::Collecting | GcState::Ending => Some(true),
            GcState::Idle | GcState::Delayed { .. } => Some(false),
        }
    }
    /// Of the last operation.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }
    fn coordinated(&self) -> bool {
        self.cfg.policy == GcPolicy::Coordinated
    }

    /// Sets other thresholds, possibly another policy. A pending request is restarted under the new policy; a running
    /// collection goes on.
    pub fn set_config(&mut self, now: Time, cfg: GcConfig) {
        let was_coordinated = self.coordinated();
        self.cfg = cfg;
        self.idle.set(cfg.idle_alpha, cfg.idle_over);
        self.again.set(cfg.answer_within, cfg.announce_every);
        self.check_at = now;
        if self.coordinated() == was_coordinated {
            return;
        }
        self.unacked = None;
        let exchanges =
            matches!(self.state, GcState::Requested { .. } | GcState::Delayed { .. } | GcState::Finishing { .. });
        if exchanges || self.state == GcState::Granted {
            (self.state, self.for_swap) = (GcState::Idle, false);
        }
        self.accepted = false;
        if self.sharing != Sharing::No {
            self.sharing = Sharing::Delayed;
        }
        // Without reports a switch lets the state expire; when they resume it must be informed at once.
        self.announce_at = now;
    }

    /// Returns when to repeat it without an answer.
    fn send(&mut self, now: Time, field: GcField) -> Time {
        self.sequence += 1;
        self.unacked = None;
        if self.sharing == Sharing::Asked {
            // Its answer comes no more.
            self.sharing = Sharing::Delayed;
        }
        self.announce_at = now + self.cfg.announce_every;
        self.repeat(field);
        self.again.first(now)
    }
    fn repeat(&mut self, field: GcField) {
        if self.coordinated() {
            self.actions.push(GcAction::Tell(GcOp { field, sequence: self.sequence }));
        }
    }
    fn ask(&mut self, now: Time, field: GcField) {
        self.for_swap = false;
        let again_at = self.send(now, field);
        self.state = GcState::Requested { field, tries: 0, again_at };
    }
    /// Announces the collection until it is answered.
    fn announce(&mut self, now: Time, field: GcField) {
        let again_at = self.send(now, field);
        self.unacked = self.coordinated().then_some((field, again_at));
    }
    fn start(&mut self, action: GcAction) {
        if self.state == GcState::Granted && self.for_swap {
            // The slice's last command may be under way.
            self.sharing = Sharing::Granted;
        }
        (self.state, self.for_swap, self.accepted) = (GcState::Collecting, false, false);
        self.resting = false;
        self.background = action == GcAction::StartIdle;
        self.actions.push(action);
    }
    fn stop(&mut self) {
        self.actions.push(GcAction::Stop);
        self.state = GcState::Ending;
    }
    fn finish(&mut self, now: Time) {
        self.background = false;
        // A request to share is superseded by what follows.
        if std::mem::take(&mut self.sharing) == Sharing::Granted {
            (self.state, self.for_swap) = (GcState::Granted, true);
            return;
        }
        if self.coordinated() && !mutant!("server.gc.no-finish") {
            let again_at = self.send(now, GcField::Finish);
            self.state = GcState::Finishing { again_at };
        } else {
            self.state = GcState::Idle;
        }
    }

    /// Checks the free ratio: at each block allocation, at each erase, and every `monitor_every`.
    pub fn check(&mut self, now: Time, ratio: f64) {
        if self.grouped {
            return;
        }
        let (hard, soft) = (ratio < self.cfg.gc_threshold, ratio < self.cfg.soft_threshold);
        match self.state {
            GcState::Idle | GcState::Finishing { .. } => {
                if now < self.no_victim_until {
                } else if !self.coordinated() {
                    if soft {
                        self.start(GcAction::Start);
                    }
                } else if hard {
                    self.ask(now, GcField::Regular);
                } else if soft && self.state == GcState::Idle {
                    self.ask(now, GcField::Soft);
                }
                self.look_idle(now, ratio);
            }
            GcState::Requested { field: GcField::Soft | GcField::Swap, .. } => {
                if hard {
                    self.ask(now, GcField::Regular);
                } else if !soft && !self.for_swap {
                    // It may have been accepted: the bits must not stay.
                    self.finish(now);
                }
            }
            GcState::Granted if self.for_swap && hard && now >= self.no_victim_until => {
                self.announce(now, GcField::Regular);
                self.start(GcAction::Start);
            }
            GcState::Requested { .. } | GcState::Granted => {}
            GcState::Delayed { .. } => {
                if hard {
                    self.ask(now, GcField::Regular);
                } else if !soft && !self.for_swap {
                    self.state = GcState::Idle;
                }
            }
            GcState::Collecting if self.background => {
                if hard {
                    self.no_background(now);
                } else if ratio >= self.cfg.background_ends() {
                    self.stop();
                }
            }
            GcState::Collecting => {
                if ratio >= self.cfg.episode_ends() {
                    self.stop();
                }
            }
            GcState::Ending => {
                if self.background && hard {
                    self.no_background(now);
                } else if soft && !self.background {
                    // The switch's grant stands.
                    let accepted = self.accepted;
                    self.start(GcAction::Start);
                    self.accepted = accepted;
                }
            }
        }
    }
    /// A background collection continues as a regular one.
    fn no_background(&mut self, now: Time) {
        self.announce(now, GcField::Regular);
        self.start(GcAction::Start);
    }
    /// Collects while the vSSD is idle, beyond the free ratio at which an episode ends.
    fn look_idle(&mut self, now: Time, ratio: f64) {
        let may = self.state == GcState::Idle && self.collects_idle() && now >= self.no_victim_until;
        if !may || now < self.idle.from() {
            return;
        }
        if ratio < self.cfg.episode_ends() {
            self.announce(now, GcField::Background);
            self.start(GcAction::StartIdle);
        } else {
            self.idle_seen = self.idle.from();
        }
    }
    fn collects_idle(&self) -> bool {
        self.cfg.background && !self.grouped
    }
    /// Carries out an order of its channel group.
    pub fn apply(&mut self, now: Time, order: Order) {
        match (order, self.state) {
            (Order::Request(field), _) => self.ask(now, field),
            (Order::Return, GcState::Granted | GcState::Requested { .. }) => self.finish(now),
            (Order::Return, GcState::Delayed { .. }) => self.state = GcState::Idle,
            (Order::Start, _) if self.unanswered => self.start(GcAction::StartUnacknowledged),
            (Order::Start, _) => self.start(GcAction::Start),
            (Order::Force, _) => {
                self.announce(now, GcField::Regular);
                self.start(GcAction::StartForced);
            }
            (Order::Rest, GcState::Collecting) => self.rest(),
            (Order::Stop, GcState::Collecting) => self.stop(),
            (Order::Return | Order::Rest | Order::Stop, _) => {}
        }
    }
    /// How often such grants were asked for.
    pub fn swap_requests(&self) -> u64 {
        self.swap_requests
    }
    /// The vSSD's grant for a slice of a swap of dies.
    pub fn grant(&self) -> Grant {
        match self.state {
            GcState::Idle => Grant::None,
            GcState::Finishing { .. } => Grant::Returning,
            GcState::Collecting | GcState::Ending => match self.sharing {
                Sharing::No if self.accepted && self.collecting() => Grant::None,
                Sharing::No => Grant::Collects,
                Sharing::Asked => Grant::Asked,
                Sharing::Granted if self.accepted => Grant::Granted,
                // Not for another command, if it must collect.
                Sharing::Delayed | Sharing::Granted => Grant::Delayed,
            },
            _ if !self.for_swap => Grant::Collects,
            GcState::Requested { .. } => Grant::Asked,
            GcState::Delayed { .. } => Grant::Delayed,
            GcState::Granted => Grant::Granted,
        }
    }
    /// Asks the switch for a slice of a swap of dies (protocol rule 35), if it may be [asked for](Grant::None). The slice
    /// shares a running collection; if that ends first, its grant is the swap's.
    pub fn ask_for_swap(&mut self, now: Time) {
        if self.grant() != Grant::None {
            return;
        }
        let requests = self.coordinated() && !mutant!("server.swap.unasked");
        self.swap_requests += 1;
        if self.collecting() {
            self.sharing = Sharing::Granted;
            if requests && !mutant!("server.swap.shares-unasked") {
                self.announce(now, GcField::SwapBeside);
                self.sharing = Sharing::Asked;
            }
            return;
        }
        if requests {
            self.ask(now, GcField::Swap);
        } else {
            self.state = GcState::Granted;
        }
        self.for_swap = true;
    }
    /// Returns the grant of [`GcMonitor::ask_for_swap`], or what may be one. A collection goes on.
    pub fn return_grant(&mut self, now: Time) {
        if matches!(self.state, GcState::Collecting | GcState::Ending) {
            if matches!(std::mem::take(&mut self.sharing), Sharing::Asked | Sharing::Granted) {
                // It collects and does not swap; the answer to a request counts no more.
                self.announce(now, GcField::Heartbeat);
            }
            return;
        }
        match self.grant() {
            Grant::Asked | Grant::Granted if mutant!("server.swap.bit-stays") => {}
            Grant::Asked | Grant::Granted => self.finish(now),
            Grant::Delayed => (self.state, self.for_swap) = (GcState::Idle, false),
            Grant::None | Grant::Collects | Grant::Returning => {}
        }
    }
    /// Has a grant for a slice of a swap.
    fn swaps(&self) -> bool {
        self.for_swap && self.state == GcState::Granted || self.sharing == Sharing::Granted
    }
    fn rest(&mut self) {
        self.resting = true;
        self.actions.push(GcAction::Rest);
    }
    /// A request of the vSSD arrived: it is not idle.
    #[inline]
    pub fn request(&mut self, now: Time) {
        self.idle.request(now);
        if self.background && self.collecting() {
            self.stop();
        }
    }

    /// The drive has no victim in progress.
    pub fn ended(&mut self, now: Time) {
        if self.state == GcState::Ending {
            self.finish(now);
        }
    }

    /// Programs wait for a free block: collects at once and announces it.
    pub fn force(&mut self, now: Time) {
        if !self.collecting() && now >= self.force_from {
            self.announce(now, GcField::Regular);
            self.start(GcAction::StartForced);
        }
    }

    /// No victim would free anything.
    pub fn no_victim(&mut self, now: Time) {
        if self.grouped {
            if self.collecting() && !self.resting {
                self.rest();
            }
        } else if self.collecting() {
            self.no_victim_until = now + NO_VICTIM_RETRY_INTERVAL;
            self.force_from = now + NO_VICTIM_FORCED_RETRY_INTERVAL;
            self.actions.push(GcAction::Stop);
            self.finish(now);
        }
    }

    /// The switch's answer.
    pub fn answer(&mut self, now: Time, op: GcOp) {
        if op.sequence != self.sequence && !mutant!("server.gc.any-answer") {
            return;
        }
        self.unacked = None;
        self.answered = true;
        self.again.answered(now);
        if self.sharing == Sharing::Asked {
            self.sharing = if op.field == GcField::Accept { Sharing::Granted } else { Sharing::Delayed };
            return;
        }
        match (self.state, op.field) {
            (GcState::Requested { .. }, GcField::Accept) if self.grouped || self.for_swap => self.granted(false),
            (GcState::Requested { field, .. }, GcField::Accept) => {
                self.start(GcAction::Start);
                self.accepted = field == GcField::Soft;
            }
            (GcState::Requested { .. }, GcField::Delay) if mutant!("server.gc.delay-accepts") => {
                self.start(GcAction::Start)
            }
            (GcState::Requested { field: GcField::Soft | GcField::Swap, .. }, GcField::Delay) => {
                let again_at = if self.grouped || self.for_swap { Time::MAX } else { now + self.cfg.delayed_again };
                self.state = GcState::Delayed { again_at };
            }
            (GcState::Finishing { .. }, GcField::Finish) => {
                self.state = GcState::Idle;
                if std::mem::take(&mut self.for_swap) {
                    // During the swap collection was not asked for.
                    self.check_at = now;
                }
            }
            // Acceptance of an announcement, an answer to one, or a repeated answer.
            _ => {}
        }
    }

    fn granted(&mut self, unanswered: bool) {
        (self.state, self.unanswered) = (GcState::Granted, unanswered);
    }

    /// When [`GcMonitor::timer`] has work.
    pub fn deadline(&self) -> Time {
        let state = match self.state {
            GcState::Requested { again_at, .. } | GcState::Delayed { again_at } | GcState::Finishing { again_at } => {
                again_at
            }
            GcState::Idle | GcState::Granted | GcState::Collecting | GcState::Ending => Time::MAX,
        };
        let announce = if self.coordinated() { self.announce_at } else { Time::MAX };
        let unacked = self.unacked.map_or(Time::MAX, |u| u.1);
        state.min(self.check_at).min(announce).min(unacked).min(self.idle_deadline())
    }
    fn idle_deadline(&self) -> Time {
        let from = self.idle.from();
        if self.state == GcState::Idle && self.collects_idle() && self.idle_seen != from {
            from.max(self.no_victim_until)
        } else {
            Time::MAX
        }
    }

    /// Repeats unanswered and delayed requests, announces, and checks the ratio.
    pub fn timer(&mut self, now: Time, ratio: f64) {
        match self.state {
            GcState::Requested { field, tries, again_at } if now >= again_at => {
                if (field == GcField::Regular || mutant!("server.gc.soft-unacked")) && tries >= self.cfg.retries {
                    if self.grouped {
                        self.granted(true);
                    } else {
                        self.start(GcAction::StartUnacknowledged);
                    }
                    self.unacked = Some((field, self.again.again(now)));
                } else {
                    let regular = field == GcField::Regular;
                    let again_at = if regular { self.again.evenly(now) } else { self.again.again(now) };
                    self.state = GcState::Requested { field, tries: tries.saturating_add(1), again_at };
                    self.repeat(field);
                }
            }
            GcState::Delayed { again_at } if now >= again_at => self.ask(now, GcField::Soft),
            GcState::Finishing { .. } if !self.coordinated() => self.state = GcState::Idle,
            GcState::Finishing { again_at } if now >= again_at => {
                self.state = GcState::Finishing { again_at: self.again.again(now) };
                self.repeat(GcField::Finish);
            }
            _ => {}
        }
        if let Some((field, again_at)) = self.unacked
            && now >= again_at
        {
            self.unacked = (!mutant!("server.gc.announce-once")).then(|| (field, self.again.again(now)));
            if self.unacked.is_some() {
                self.repeat(field);
            }
        }
        if now >= self.announce_at && self.coordinated() && !mutant!("server.gc.no-announce") {
            match self.state {
                _ if self.unacked.is_some() => self.announce_at = now + self.cfg.announce_every,
                GcState::Granted | GcState::Collecting | GcState::Ending => {
                    let field = if self.swaps() { GcField::Swapping } else { GcField::Heartbeat };
                    self.send(now, field);
                }
                GcState::Idle | GcState::Delayed { .. } => _ = self.send(now, GcField::Idle),
                // A pending request is repeated anyway, and must stay the last operation.
                GcState::Requested { .. } | GcState::Finishing { .. } => {
                    self.announce_at = now + self.cfg.announce_every;
                }
            }
        }
        if now >= self.check_at {
            self.check_at = now + self.cfg.monitor_every;
            self.check(now, ratio);
        }
        self.look_idle(now, ratio);
    }
}

#[cfg(test)]
#[path = "gc_tests.rs"]
mod tests;
