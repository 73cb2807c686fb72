use rackweave_core::msg::{GcField, GcOp};
use rackweave_core::{Span, Time};

use super::{DriveSwap, Member, Order, SLICE_MAX, SwapConfig, SwapState, Swapper};
use crate::config::{GcConfig, GcPolicy};
use crate::gc::{GcAction, GcMonitor, GcState, Grant};

const MS: u64 = 1_000_000;
const LONGEST: Span = Span::from_millis(5);

fn gc_config() -> GcConfig {
    GcConfig { announce_every: Span::from_secs(1000), background: false, ..GcConfig::default() }
}

/// A swap with the monitors of the drive's vSSDs, and a record of their operations.
struct Rig {
    swap: Swapper,
    gc: Vec<GcMonitor>,
    concerned: Vec<bool>,
    drive: Option<DriveSwap>,
    sent: Vec<(usize, GcField)>,
    last: Vec<Option<GcOp>>,
    resumed: u32,
}

impl Rig {
    fn new(concerned: &[bool], gc: GcConfig, seed: u64) -> Rig {
        Rig {
            swap: Swapper::new(SwapConfig::default(), LONGEST, seed),
            gc: concerned.iter().map(|_| GcMonitor::new(gc, 1)).collect(),
            concerned: concerned.to_vec(),
            drive: Some(DriveSwap { ready: true, held: true, works: false }),
            sent: Vec::new(),
            last: vec![None; concerned.len()],
            resumed: 0,
        }
    }
    fn act(&mut self, i: usize) {
        for action in std::mem::take(&mut self.gc[i].actions) {
            if let GcAction::Tell(op) = action {
                self.last[i] = Some(op);
                self.sent.extend((op.field != GcField::Idle).then_some((i, op.field)));
            }
        }
    }
    fn step(&mut self, ms: u64) {
        let now = Time(ms * MS);
        for _ in 0..100 {
            let all = self.gc.iter().zip(&self.concerned).enumerate();
            let members: Vec<Member> =
                all.map(|(slot, (gc, &concerned))| Member { slot, concerned, grant: gc.grant() }).collect();
            let before = self.swap.state();
            let orders = self.swap.step(now, self.drive, &members);
            if orders.is_empty() && before == self.swap.state() {
                return;
            }
            for order in orders {
                match order {
                    Order::Ask(i) => self.gc[i].ask_for_swap(now),
                    Order::Return(i) => self.gc[i].return_grant(now),
                    Order::Resume => {
                        self.resumed += 1;
                        self.drive.iter_mut().for_each(|d| (d.held, d.works) = (false, true));
                    }
                    Order::Hold => self.drive.iter_mut().for_each(|d| d.held = true),
                }
                (0..self.gc.len()).for_each(|i| self.act(i));
            }
        }
        panic!("no end within one instant: {:?}", self.swap);
    }
    fn answer(&mut self, ms: u64, i: usize, field: GcField) {
        let asked = self.last[i].expect("it sent something");
        self.gc[i].answer(Time(ms * MS), GcOp { field, ..asked });
        self.act(i);
        self.step(ms);
    }
    /// The drive's last command is done.
    fn rests(&mut self, ms: u64) {
        self.drive.iter_mut().for_each(|d| d.works = false);
        self.step(ms);
    }
    fn fields(&mut self) -> Vec<(usize, GcField)> {
        std::mem::take(&mut self.sent)
    }
}

/// Channels of 32 dies may trade places under as many vSSDs as a drive has.
#[test]
fn every_vssd_of_a_drive_of_64_is_asked_for() {
    let mut r = Rig::new(&[true; 64], gc_config(), 1);
    r.step(0);
    for i in 0..64 {
        assert_eq!((r.fields(), r.resumed), (vec![(i, GcField::Swap)], 0));
        r.answer(1, i, GcField::Accept);
    }
    assert_eq!(r.resumed, 1);
}

#[test]
fn a_slice_begins_when_every_vssd_of_the_dies_has_granted_it_and_is_over_after_100_ms() {
    let mut r = Rig::new(&[true, false, true], gc_config(), 1);
    r.step(0);
    assert_eq!(r.fields(), [(0, GcField::Swap)], "one after the other");
    r.answer(1, 0, GcField::Accept);
    assert_eq!((r.fields(), r.resumed), (vec![(2, GcField::Swap)], 0));
    r.answer(2, 2, GcField::Accept);
    assert_eq!((r.resumed, r.swap.status().slices), (1, 1));
    assert_eq!(r.gc[0].confirmed(), Some(true));
    r.step(96);
    assert_eq!(r.swap.state(), SwapState::Working { until: Time(97 * MS) });
    r.step(97);
    assert!(r.drive.is_some_and(|d| d.held) && r.fields().is_empty(), "its command is under way");
    r.rests(101);
    assert_eq!(r.fields(), [(0, GcField::Finish), (2, GcField::Finish)]);
    r.answer(101, 0, GcField::Finish);
    r.answer(101, 2, GcField::Finish);
    r.step(200);
    assert_eq!(r.fields(), [], "others have time between slices");
    r.step(201);
    assert_eq!(r.fields(), [(0, GcField::Swap)]);
}

#[test]
fn one_delay_returns_the_grants_of_all_for_a_time_drawn_from_the_seed() {
    let mut again = Vec::new();
    for seed in [7, 8] {
        let mut r = Rig::new(&[true, true, true], gc_config(), seed);
        r.step(0);
        r.answer(0, 0, GcField::Accept);
        r.fields();
        r.answer(1, 1, GcField::Delay);
        assert_eq!((r.fields(), r.gc[1].state()), (vec![(0, GcField::Finish)], GcState::Idle));
        assert_eq!((r.resumed, r.swap.status().refused), (0, 1));
        let SwapState::Pausing { until } = r.swap.state() else { panic!("{:?}", r.swap) };
        assert!((51 * MS..=151 * MS).contains(&until.0), "{until:?}");
        again.push(until);
        r.answer(2, 0, GcField::Finish);
        r.step(until.0 / MS + 1);
        assert_eq!(r.fields(), [(0, GcField::Swap)]);
    }
    assert_ne!(again[0], again[1]);
}

#[test]
fn grants_are_returned_when_the_switch_does_not_answer_for_the_others() {
    let mut r = Rig::new(&[true, true], gc_config(), 1);
    r.step(0);
    r.answer(0, 0, GcField::Accept);
    r.fields();
    r.step(99);
    assert_eq!(r.fields(), []);
    r.step(100);
    assert_eq!(r.fields(), [(0, GcField::Finish), (1, GcField::Finish)], "the second may have been accepted");
}

#[test]
fn a_vssd_that_collects_comes_first() {
    let mut r = Rig::new(&[true, true], gc_config(), 1);
    r.gc[1].check(Time(0), 0.30);
    r.act(1);
    r.fields();
    r.step(0);
    assert_eq!((r.fields(), r.swap.status().refused), (vec![], 0), "it has asked for itself");
    assert_eq!(r.swap.state(), SwapState::Pausing { until: Time(10 * MS) });
    // In a slice: programs wait, or the free blocks are too few.
    for forced in [true, false] {
        let mut r = Rig::new(&[true, true], gc_config(), 1);
        r.step(0);
        r.answer(0, 0, GcField::Accept);
        r.answer(0, 1, GcField::Accept);
        r.fields();
        if forced {
            r.gc[1].force(Time(MS))
        } else {
            r.gc[1].check(Time(MS), 0.20)
        }
        r.act(1);
        assert_eq!((r.fields(), r.gc[1].collecting()), (vec![(1, GcField::Regular)], true));
        r.step(1);
        assert!(r.drive.is_some_and(|d| d.held));
        assert_eq!((r.gc[1].grant(), r.fields()), (Grant::Delayed, vec![]), "the command under way is the last");
        r.rests(4);
        assert_eq!(r.fields(), [(0, GcField::Finish), (1, GcField::Heartbeat)]);
        assert_eq!(r.gc[1].grant(), Grant::Collects, "it goes on");
    }
    // Asked for the swap: the vSSD's own request replaces it.
    let mut r = Rig::new(&[true], gc_config(), 1);
    r.step(0);
    r.gc[0].check(Time(MS), 0.30);
    assert_eq!(r.gc[0].grant(), Grant::Asked);
    r.gc[0].check(Time(MS), 0.20);
    r.act(0);
    r.step(1);
    assert_eq!(r.fields(), [(0, GcField::Swap), (0, GcField::Regular)]);
    // A slice delays collection that was not urgent until its end.
    let mut r = Rig::new(&[true], gc_config(), 1);
    r.step(0);
    r.answer(0, 0, GcField::Accept);
    r.gc[0].check(Time(MS), 0.30);
    r.step(97);
    r.rests(98);
    r.answer(98, 0, GcField::Finish);
    assert!(r.gc[0].deadline() <= Time(98 * MS));
    r.fields();
    r.gc[0].timer(Time(98 * MS), 0.30);
    r.act(0);
    assert_eq!((r.fields(), r.gc[0].grant()), (vec![(0, GcField::Soft)], Grant::Collects));
}

/// Of the vSSD that is written most, and so collects most, there would be no slice otherwise.
#[test]
fn a_slice_shares_the_grant_of_a_collection_that_was_accepted_softly() {
    let begin = |field| {
        let mut r = Rig::new(&[true, true], gc_config(), 1);
        r.gc[1].check(Time(0), if field == GcField::Soft { 0.30 } else { 0.20 });
        r.act(1);
        r.answer(0, 1, GcField::Accept);
        r.step(10);
        r
    };
    let mut r = begin(GcField::Regular);
    assert_eq!((r.fields(), r.resumed), (vec![(1, GcField::Regular)], 0), "nobody else may be idle");
    // Soft: the switch must say that no other copy collects or swaps.
    let shared = || {
        let mut r = begin(GcField::Soft);
        assert_eq!(r.fields(), [(1, GcField::Soft), (0, GcField::Swap)]);
        r.answer(11, 0, GcField::Accept);
        assert_eq!((r.resumed, r.fields()), (0, vec![(1, GcField::SwapBeside)]));
        assert_eq!((r.gc[1].grant(), r.gc[1].confirmed()), (Grant::Asked, None));
        r
    };
    let mut r = shared();
    r.answer(12, 1, GcField::Accept);
    assert_eq!((r.resumed, r.gc[1].grant()), (1, Grant::Granted));
    r.step(107);
    r.rests(108);
    assert_eq!(r.fields(), [(0, GcField::Finish), (1, GcField::Heartbeat)]);
    assert!(r.gc[1].collecting(), "it goes on");
    assert_eq!(r.gc[1].grant(), Grant::None, "and may be asked for again");
    // Delayed: the collection goes on.
    let mut r = shared();
    r.answer(12, 1, GcField::Delay);
    assert_eq!((r.fields(), r.resumed, r.swap.status().refused), (vec![(0, GcField::Finish)], 0, 1));
    assert_eq!((r.gc[1].collecting(), r.gc[1].grant()), (true, Grant::None));
    // No answer in the time of a slice: a later one counts no more.
    let mut r = shared();
    let asked = r.last[1].unwrap();
    r.step(111);
    assert_eq!(r.fields(), [(0, GcField::Finish), (1, GcField::Heartbeat)]);
    r.gc[1].answer(Time(112 * MS), GcOp { field: GcField::Accept, ..asked });
    assert_eq!(r.gc[1].grant(), Grant::None);
    // The collection ends before the answer: the vSSD is asked for when the switch has heard of the end.
    let mut r = shared();
    let asked = r.last[1].unwrap();
    r.gc[1].check(Time(12 * MS), 0.46);
    r.gc[1].ended(Time(13 * MS));
    r.act(1);
    r.gc[1].answer(Time(14 * MS), GcOp { field: GcField::Accept, ..asked });
    r.step(14);
    assert_eq!((r.fields(), r.gc[1].grant()), (vec![(1, GcField::Finish)], Grant::Returning));
    r.answer(15, 1, GcField::Finish);
    assert_eq!((r.fields(), r.resumed), (vec![(1, GcField::Swap)], 0));
    // The collection ends in the slice: the bit stays until that is over.
    let mut r = shared();
    r.answer(12, 1, GcField::Accept);
    r.gc[1].check(Time(20 * MS), 0.46);
    assert_eq!(r.gc[1].grant(), Grant::Granted);
    r.gc[1].ended(Time(21 * MS));
    r.act(1);
    r.step(21);
    assert_eq!((r.fields(), r.gc[1].grant(), r.gc[1].confirmed()), (vec![], Grant::Granted, Some(true)));
    r.step(107);
    r.rests(108);
    assert_eq!(r.fields(), [(0, GcField::Finish), (1, GcField::Finish)]);
}

#[test]
fn a_slices_vssd_that_must_collect_and_finds_no_victim_does_not_begin_again() {
    let mut r = Rig::new(&[true], gc_config(), 1);
    r.step(0);
    r.answer(0, 0, GcField::Accept);
    r.fields();
    r.gc[0].check(Time(MS), 0.20);
    r.act(0);
    assert_eq!(r.fields(), [(0, GcField::Regular)]);
    r.gc[0].no_victim(Time(2 * MS));
    r.gc[0].check(Time(3 * MS), 0.20);
    r.act(0);
    assert_eq!((r.fields(), r.gc[0].grant()), (vec![], Grant::Granted));
}

/// Programs wait for a block while the last victim is erased.
#[test]
fn the_answer_to_another_operation_grants_no_slice() {
    let mut r = Rig::new(&[true], gc_config(), 1);
    r.gc[0].check(Time(0), 0.30);
    r.act(0);
    r.answer(0, 0, GcField::Accept);
    r.step(1);
    assert_eq!(r.gc[0].grant(), Grant::Asked);
    r.gc[0].check(Time(2 * MS), 0.46);
    r.gc[0].force(Time(3 * MS));
    r.act(0);
    assert_eq!(r.fields(), [(0, GcField::Soft), (0, GcField::SwapBeside), (0, GcField::Regular)]);
    r.answer(4, 0, GcField::Accept);
    assert_eq!((r.resumed, r.swap.status().refused, r.gc[0].collecting()), (0, 1, true));
}

/// Its blocks run out again before the last of its victims is erased.
#[test]
fn a_collection_that_is_resumed_keeps_its_grant_and_the_slices() {
    let mut r = Rig::new(&[true], gc_config(), 1);
    r.gc[0].check(Time(0), 0.30);
    r.act(0);
    r.answer(0, 0, GcField::Accept);
    r.step(1);
    r.answer(2, 0, GcField::Accept);
    assert_eq!((r.resumed, r.gc[0].grant()), (1, Grant::Granted));
    r.gc[0].check(Time(3 * MS), 0.46);
    assert_eq!(r.gc[0].state(), GcState::Ending);
    r.gc[0].check(Time(4 * MS), 0.30);
    r.step(4);
    assert_eq!((r.gc[0].collecting(), r.gc[0].grant()), (true, Grant::Granted));
    assert_eq!(r.swap.state(), SwapState::Working { until: Time(97 * MS) });
}

#[test]
fn grants_of_vssds_that_the_swap_no_longer_concerns_are_returned() {
    let mut r = Rig::new(&[true, true], gc_config(), 1);
    r.step(0);
    r.answer(0, 0, GcField::Accept);
    r.answer(0, 1, GcField::Accept);
    r.fields();
    // The vSSD was released: its slot is free.
    r.concerned[1] = false;
    r.step(1);
    assert_eq!((r.fields(), r.swap.state()), (vec![(1, GcField::Finish)], SwapState::Working { until: Time(95 * MS) }));
    // The swap is over.
    r.drive = None;
    r.step(2);
    assert_eq!((r.fields(), r.swap.state()), (vec![(0, GcField::Finish)], SwapState::Idle));
    // Another vSSD has come into a slice: it has not granted it.
    let mut r = Rig::new(&[true, false], gc_config(), 1);
    r.step(0);
    r.answer(0, 0, GcField::Accept);
    r.concerned[1] = true;
    r.step(1);
    assert_eq!((r.swap.state(), r.drive.is_some_and(|d| d.held)), (SwapState::Ending, true));
}

#[test]
fn a_swap_with_nothing_to_move_asks_nobody() {
    let mut r = Rig::new(&[true], gc_config(), 1);
    r.drive = Some(DriveSwap { ready: false, held: true, works: false });
    (0..900).for_each(|ms| r.step(ms));
    assert_eq!(r.fields(), []);
    r.drive = Some(DriveSwap { ready: true, held: true, works: false });
    r.step(1000);
    assert_eq!(r.fields(), [(0, GcField::Swap)]);
    r.answer(1000, 0, GcField::Accept);
    // It has run out of work: the slice ends early.
    r.drive = Some(DriveSwap { ready: false, held: false, works: false });
    r.step(1001);
    assert_eq!(r.fields(), [(0, GcField::Finish)]);
}

#[test]
fn the_baseline_swaps_in_slices_too_and_asks_nobody() {
    let mut r = Rig::new(&[true, true], GcConfig { policy: GcPolicy::Uncoordinated, ..gc_config() }, 1);
    r.step(0);
    assert_eq!((r.resumed, r.fields()), (1, vec![]));
    r.step(95);
    r.rests(96);
    assert!(r.gc.iter().all(|m| m.state() == GcState::Idle));
    assert_eq!(SLICE_MAX, Span::from_millis(100));
}
