use rackweave_core::msg::{GcField, GcOp};
use rackweave_core::rng::Rng;
use rackweave_core::{Span, Time};

use super::{Group, GroupState, Member, Order};
use crate::config::{GcConfig, GcPolicy};
use crate::gc::{GcAction, GcMonitor, GcState};

const MS: u64 = 1_000_000;

fn config() -> GcConfig {
    GcConfig { announce_every: Span::from_secs(1000), background: false, ..GcConfig::default() }
}

/// A group with its members' monitors, and a record of their actions.
struct Rig {
    group: Group,
    gc: Vec<GcMonitor>,
    ratios: Vec<f64>,
    sent: Vec<(usize, GcOp)>,
    /// The last operation of each.
    last: Vec<Option<GcOp>>,
    /// Whether each one's drive collects; it finishes at once when stopped.
    runs: Vec<bool>,
}

impl Rig {
    fn new(members: usize, cfg: GcConfig, seed: u64) -> Rig {
        let gc = (0..members).map(|_| GcMonitor::grouped(cfg, 1)).collect();
        let (ratios, runs) = (vec![0.9; members], vec![false; members]);
        Rig { group: Group::new(cfg, seed), gc, ratios, sent: Vec::new(), last: vec![None; members], runs }
    }
    fn members(&self) -> Vec<Member> {
        let all = self.gc.iter().zip(&self.ratios).enumerate();
        all.map(|(slot, (m, &ratio))| Member { slot, state: m.state(), resting: m.resting(), ratio }).collect()
    }
    fn act(&mut self, now: Time, i: usize) {
        for action in std::mem::take(&mut self.gc[i].actions) {
            match action {
                GcAction::Tell(op) => {
                    self.sent.push((i, op));
                    self.last[i] = Some(op);
                }
                GcAction::Rest => self.runs[i] = false,
                GcAction::Stop => {
                    self.runs[i] = false;
                    self.gc[i].ended(now);
                    self.act(now, i);
                }
                _ => self.runs[i] = true,
            }
        }
    }
    fn apply(&mut self, now: Time, orders: Vec<(usize, Order)>) {
        for (i, order) in orders {
            self.gc[i].apply(now, order);
            self.act(now, i);
        }
    }
    /// Runs until nothing is left to do; returns the number of rounds.
    fn step(&mut self, ms: u64) -> usize {
        let now = Time(ms * MS);
        for round in 0..100 {
            let ratio = self.ratios.iter().sum::<f64>() / self.ratios.len() as f64;
            let orders = self.group.step(now, ratio, &self.members());
            if orders.is_empty() {
                return round;
            }
            self.apply(now, orders);
        }
        panic!("no end within one instant: {:?}", self.group);
    }
    fn timer(&mut self, ms: u64) {
        for i in 0..self.gc.len() {
            self.gc[i].timer(Time(ms * MS), self.ratios[i]);
            self.act(Time(ms * MS), i);
        }
        self.step(ms);
    }
    fn force(&mut self, ms: u64, slot: usize) {
        let orders = self.group.force(Time(ms * MS), slot, &self.members());
        self.apply(Time(ms * MS), orders);
    }
    fn answer(&mut self, ms: u64, i: usize, field: GcField) {
        let asked = self.last[i].expect("it told something");
        self.gc[i].answer(Time(ms * MS), GcOp { field, ..asked });
        self.act(Time(ms * MS), i);
        self.step(ms);
    }
    /// Operations since the last call.
    fn fields(&mut self) -> Vec<(usize, GcField)> {
        self.sent.drain(..).filter(|t| t.1.field != GcField::Idle).map(|t| (t.0, t.1.field)).collect()
    }
}

#[test]
fn all_collect_together_when_the_groups_ratio_says_so_and_end_together() {
    let mut r = Rig::new(3, config(), 1);
    r.ratios = vec![0.10, 0.50, 0.50];
    r.timer(1);
    assert_eq!(r.fields(), [], "one alone is below, and may borrow");
    r.ratios = vec![0.10, 0.40, 0.50];
    r.step(2);
    assert_eq!(r.fields(), [(0, GcField::Soft)], "one after the other");
    for i in 0..3 {
        assert!(r.runs.iter().all(|on| !on));
        r.answer(3, i, GcField::Accept);
    }
    assert_eq!((r.runs.clone(), r.group.state()), (vec![true; 3], GroupState::Collecting));
    // A member with enough blocks rests, and its bits stay: the others still keep its channels busy.
    r.fields();
    r.ratios = vec![0.30, 0.60, 0.40];
    r.step(4);
    assert_eq!((r.runs.clone(), r.gc[1].confirmed()), (vec![true, false, true], Some(true)));
    assert_eq!(r.fields(), []);
    r.ratios = vec![0.40, 0.60, 0.40];
    r.step(5);
    assert_eq!(r.fields(), [0, 1, 2].map(|i| (i, GcField::Finish)));
    assert_eq!(r.runs, [false; 3]);
}

#[test]
fn a_delay_for_any_member_delays_all_and_what_was_granted_is_given_back() {
    let mut r = Rig::new(2, config(), 7);
    r.ratios = vec![0.30; 2];
    r.timer(1);
    r.answer(1, 0, GcField::Accept);
    r.fields();
    r.answer(2, 1, GcField::Delay);
    assert_eq!(r.fields(), [(0, GcField::Finish)]);
    let GroupState::Delayed { until } = r.group.state() else { panic!("{:?}", r.group) };
    assert!((52 * MS..=152 * MS).contains(&until.0), "half of the usual wait, and up to a whole one more: {until:?}");
    r.answer(3, 0, GcField::Finish);
    r.timer(until.0 / MS);
    assert_eq!(r.fields(), [], "not yet");
    r.timer(until.0 / MS + 1);
    assert_eq!(r.fields(), [(0, GcField::Soft)]);
    let other = Rig::new(2, config(), 8).group.delay(Time(2 * MS));
    assert_ne!(other, GroupState::Delayed { until }, "others wait for another time");
}

#[test]
fn regular_is_asked_for_all_at_once_and_never_denied() {
    let mut r = Rig::new(2, config(), 1);
    r.ratios = vec![0.30; 2];
    r.timer(1);
    r.answer(1, 0, GcField::Accept);
    r.ratios = vec![0.20; 2];
    r.step(2);
    let regular = r.fields();
    assert_eq!(regular.last(), Some(&(1, GcField::Regular)), "the other one is granted already: {regular:?}");
    // Without answers it counts as granted after three repetitions.
    for ms in [12, 22, 32] {
        r.timer(ms);
        assert_eq!(r.fields(), [(1, GcField::Regular)]);
        assert_eq!(r.runs, [false; 2]);
    }
    r.timer(42);
    assert_eq!(r.runs, [true; 2]);
    r.timer(42 + 25);
    assert_eq!(r.fields(), [(1, GcField::Regular)], "and it is told still");
}

#[test]
fn a_forced_start_and_an_end_do_not_alternate_within_an_instant() {
    let mut r = Rig::new(2, config(), 1);
    // One member is out of blocks, the group has many.
    r.ratios = vec![0.05, 0.95];
    r.timer(1);
    r.force(1, 0);
    r.step(1);
    assert_eq!((r.runs.clone(), r.group.state()), (vec![true, false], GroupState::Collecting), "the other one rests");
    for _ in 0..1000 {
        r.force(1, 0);
        assert_eq!(r.step(1), 0);
    }
    // Nothing to gain: it ends, and does not start again at once however often programs request it.
    r.gc[0].no_victim(Time(MS));
    r.act(Time(MS), 0);
    r.step(1);
    assert!(!r.runs[0]);
    for ms in 1..51 {
        r.force(ms, 0);
        r.step(ms);
        assert!(!r.runs[0], "{ms} ms");
    }
    r.force(52, 0);
    assert!(r.runs[0]);
    r.ratios[0] = 0.46;
    r.step(53);
    assert!(!r.runs[0], "it has what it needs");
}

#[test]
fn without_coordination_nobody_is_told() {
    let mut r = Rig::new(2, GcConfig { policy: GcPolicy::Uncoordinated, ..config() }, 1);
    r.ratios = vec![0.30; 2];
    r.timer(1);
    assert_eq!(r.runs, [true; 2]);
    r.ratios = vec![0.50; 2];
    r.step(2);
    assert_eq!((r.runs.clone(), r.sent.len()), (vec![false; 2], 0));
    r.step(3);
    assert_eq!(r.group.state(), GroupState::Idle);
}

/// Two servers, two sets with a member on each, a switch that accepts while the other member is idle, and lost
/// messages.
#[test]
fn groups_that_ask_for_each_others_replicas_all_collect_and_never_both_softly() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut rigs = [Rig::new(2, config(), 2 * seed), Rig::new(2, config(), 2 * seed + 1)];
        // The switch's state: by server and member, the newest sequence and whether it collects.
        let mut rows = [[(0u64, false); 2]; 2];
        let mut episodes = [0; 2];
        for ms in 1..6_000 {
            for s in 0..2 {
                let collected = rigs[s].runs.iter().any(|on| *on);
                for k in 0..2 {
                    let change = if rigs[s].runs[k] { 0.02 } else { -0.002 * rng.unit() };
                    rigs[s].ratios[k] = (rigs[s].ratios[k] + change).clamp(0.01, 0.95);
                }
                rigs[s].timer(ms);
                rigs[s].sent.sort_by_key(|t| t.0);
                for (k, op) in std::mem::take(&mut rigs[s].sent) {
                    if rng.chance(0.05) || op.sequence < rows[s][k].0 {
                        continue;
                    }
                    let peer = rows[1 - s][k].1;
                    let (answer, collects) = match op.field {
                        GcField::Soft if peer => (GcField::Delay, false),
                        GcField::Finish => (GcField::Finish, false),
                        GcField::Idle => (GcField::Idle, false),
                        _ => (GcField::Accept, true),
                    };
                    rows[s][k] = (op.sequence, collects);
                    if !rng.chance(0.05) {
                        rigs[s].gc[k].answer(Time(ms * MS), GcOp { field: answer, ..op });
                        rigs[s].act(Time(ms * MS), k);
                        rigs[s].step(ms);
                    }
                }
                let collects = rigs[s].runs.iter().any(|on| *on);
                episodes[s] += u32::from(collects && !collected);
                for (gc, row) in rigs[s].gc.iter().zip(&rows[s]) {
                    // Between exchanges the switch and the server agree.
                    let agree = gc.confirmed().is_none_or(|c| c == row.1);
                    assert!(agree, "seed {seed}, {ms} ms, server {s}: {gc:?}, {row:?}");
                }
            }
        }
        assert!(episodes[0] >= 3 && episodes[1] >= 3, "seed {seed}: {episodes:?}");
    }
}

#[test]
fn a_group_without_members_asks_for_nothing() {
    let mut g = Group::new(config(), 1);
    assert_eq!(g.step(Time::ZERO, 0.0, &[]), []);
    assert_eq!((g.state(), g.force(Time(MS), 0, &[])), (GroupState::Idle, vec![]));
    let m = Member { slot: 3, state: GcState::Idle, resting: false, ratio: 0.3 };
    assert_eq!(g.step(Time(MS), 0.3, &[m]), [(3, Order::Request(GcField::Soft))]);
}
