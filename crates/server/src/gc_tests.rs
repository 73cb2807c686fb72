use rackweave_core::msg::{GcField, GcOp};
use rackweave_core::{Span, Time};

use super::{GcAction, GcMonitor, GcState};
use crate::config::{GcConfig, GcPolicy};

const MS: u64 = 1_000_000;

fn monitor() -> GcMonitor {
    let cfg = GcConfig { announce_every: Span::from_secs(1000), background: false, ..GcConfig::default() };
    GcMonitor::new(cfg, 1)
}

/// In use until 100 ms, and already considered.
fn with_background() -> GcMonitor {
    let mut m = GcMonitor::new(GcConfig { announce_every: Span::from_secs(1000), ..GcConfig::default() }, 1);
    (0..=100).for_each(|ms| m.request(Time(ms * MS)));
    m.timer(Time(100 * MS), 0.44);
    assert_eq!(sent(&mut m), [GcField::Idle]);
    m
}

fn sent(m: &mut GcMonitor) -> Vec<GcField> {
    let fields = m.actions.iter().filter_map(|a| match a {
        GcAction::Tell(op) => Some(op.field),
        _ => None,
    });
    let fields = fields.collect();
    m.actions.clear();
    fields
}

fn answer(m: &mut GcMonitor, now: u64, field: GcField) {
    let sequence = m.sequence;
    m.answer(Time(now), GcOp { field, sequence });
}

#[test]
fn soft_request_accepted_collects_until_ten_points_above() {
    let mut m = monitor();
    m.check(Time(0), 0.34);
    assert_eq!(sent(&mut m), [GcField::Soft]);
    answer(&mut m, 1, GcField::Accept);
    assert_eq!(m.actions, [GcAction::Start]);
    m.actions.clear();
    m.check(Time(2), 0.44);
    assert!(m.collecting() && m.actions.is_empty());
    m.check(Time(3), 0.46);
    assert_eq!(m.actions, [GcAction::Stop]);
    m.actions.clear();
    // Victims in progress still keep dies busy: the switch is informed of the end when they are done.
    assert_eq!(m.state(), GcState::Ending);
    m.check(Time(4), 0.47);
    assert!(m.actions.is_empty());
    m.ended(Time(5));
    assert_eq!(sent(&mut m), [GcField::Finish]);
    answer(&mut m, 6, GcField::Finish);
    assert_eq!(m.state(), GcState::Idle);
}

#[test]
fn delayed_request_is_asked_again_with_a_new_sequence() {
    let mut m = monitor();
    m.check(Time(0), 0.30);
    let first = m.sequence;
    sent(&mut m);
    answer(&mut m, 0, GcField::Delay);
    assert_eq!(m.deadline().0.min(100 * MS), m.deadline().0);
    m.timer(Time(99 * MS), 0.30);
    assert!(sent(&mut m).is_empty());
    m.timer(Time(100 * MS), 0.30);
    assert_eq!(sent(&mut m), [GcField::Soft]);
    assert!(m.sequence > first);
    m.answer(Time(101 * MS), GcOp { field: GcField::Accept, sequence: first });
    assert!(!m.collecting(), "an answer to the older request counts for nothing");
}

#[test]
fn unacknowledged_regular_collects_after_three_retries_and_soft_never() {
    let mut m = monitor();
    m.check(Time(0), 0.20);
    assert_eq!(sent(&mut m), [GcField::Regular]);
    for i in 1..=3 {
        m.timer(Time(10 * i * MS), 0.20);
        assert_eq!(sent(&mut m), [GcField::Regular], "retry {i}");
        assert!(!m.collecting());
    }
    m.timer(Time(40 * MS), 0.20);
    assert_eq!(m.actions, [GcAction::StartUnacknowledged]);

    let mut m = monitor();
    m.check(Time(0), 0.30);
    sent(&mut m);
    for _ in 1..200 {
        m.timer(m.deadline(), 0.30);
        assert!(matches!(m.state(), GcState::Requested { field: GcField::Soft, .. }));
    }
}

#[test]
fn what_nobody_answers_is_told_less_and_less_often_and_goes_on() {
    let mut m = GcMonitor::new(GcConfig { background: false, ..GcConfig::default() }, 1);
    m.timer(Time(0), 0.30);
    sent(&mut m);
    let mut times = vec![Time(0)];
    while times.len() < 100 {
        let now = m.deadline();
        m.timer(now, 0.30);
        if !sent(&mut m).is_empty() {
            times.push(now);
        }
    }
    let waits: Vec<u64> = times.windows(2).map(|t| t[1].since(t[0]).0 / MS).collect();
    assert_eq!(waits[0], 10);
    assert!((15..=25).contains(&waits[1]) && (30..=50).contains(&waits[2]), "{waits:?}");
    assert!(waits[5..].iter().all(|w| (150..=250).contains(w)), "{waits:?}");
    // Answers take 30 ms, so nothing is repeated before that.
    let mut at = *times.last().expect("there are some");
    for _ in 0..20 {
        answer(&mut m, at.0 + 30 * MS, GcField::Delay);
        at = m.deadline();
        m.timer(at, 0.30);
        assert_eq!(sent(&mut m), [GcField::Soft]);
    }
    assert!((30 * MS..45 * MS).contains(&m.deadline().since(at).0), "{:?}", m.deadline().since(at));
}

#[test]
fn soft_becomes_regular_below_the_hard_threshold() {
    let mut m = monitor();
    m.check(Time(0), 0.30);
    sent(&mut m);
    m.check(Time(1), 0.24);
    assert_eq!(sent(&mut m), [GcField::Regular]);
    answer(&mut m, 2, GcField::Delay);
    assert!(matches!(m.state(), GcState::Requested { field: GcField::Regular, .. }), "regular is never delayed");
}

#[test]
fn a_lost_finish_is_repeated() {
    let mut m = monitor();
    m.check(Time(0), 0.20);
    answer(&mut m, 0, GcField::Accept);
    m.check(Time(1), 0.50);
    m.ended(Time(1));
    m.actions.clear();
    m.timer(Time(20 * MS), 0.50);
    assert_eq!(sent(&mut m), [GcField::Finish]);
}

#[test]
fn asked_for_no_more_takes_the_bits_back() {
    let mut m = monitor();
    m.check(Time(0), 0.30);
    sent(&mut m);
    m.check(Time(1), 0.60);
    assert_eq!(sent(&mut m), [GcField::Finish]);
}

#[test]
fn nothing_to_collect_is_not_tried_again_at_once_unless_forced() {
    let mut m = monitor();
    m.check(Time(0), 0.20);
    answer(&mut m, 0, GcField::Accept);
    m.no_victim(Time(1));
    answer(&mut m, 2, GcField::Finish);
    m.actions.clear();
    m.check(Time(3), 0.20);
    assert_eq!(m.state(), GcState::Idle);
    m.force(Time(4));
    assert_eq!(m.state(), GcState::Idle);
    m.force(Time(60 * MS));
    assert!(m.collecting());
    assert_eq!(m.actions.last(), Some(&GcAction::StartForced));
}

#[test]
fn the_baseline_collects_where_the_coordinated_asks_and_tells_nobody() {
    let mut m = GcMonitor::new(GcConfig { policy: GcPolicy::Uncoordinated, ..GcConfig::default() }, 1);
    m.timer(Time(1), 0.36);
    assert!(m.actions.is_empty());
    m.check(Time(2), 0.34);
    assert_eq!(m.actions, [GcAction::Start]);
    m.check(Time(3), 0.50);
    assert_eq!(m.actions, [GcAction::Start, GcAction::Stop]);
    m.ended(Time(4));
    assert_eq!(m.state(), GcState::Idle);
}

#[test]
fn a_collecting_vssd_refreshes_its_bits() {
    let mut m = GcMonitor::new(GcConfig::default(), 1);
    m.timer(Time(0), 0.9);
    assert_eq!(sent(&mut m), [GcField::Idle]);
    m.check(Time(1), 0.2);
    answer(&mut m, 1, GcField::Accept);
    sent(&mut m);
    m.timer(Time(300 * MS), 0.3);
    assert_eq!(sent(&mut m), [GcField::Heartbeat]);
}

#[test]
fn an_idle_vssd_collects_without_approval_and_tells_until_it_is_heard() {
    let mut m = with_background();
    assert!((150 * MS..160 * MS).contains(&m.deadline().0), "60 ms of a gap make 30 predicted: {:?}", m.deadline());
    m.timer(Time(150 * MS), 0.44);
    assert!(m.actions.is_empty());
    m.timer(Time(160 * MS), 0.44);
    assert_eq!(m.actions.last(), Some(&GcAction::StartIdle));
    assert_eq!(sent(&mut m), [GcField::Background]);
    for _ in 1..=5 {
        m.timer(m.deadline(), 0.44);
        assert_eq!(sent(&mut m), [GcField::Background], "nobody has answered");
    }
    answer(&mut m, 2000 * MS, GcField::Accept);
    m.timer(Time(3000 * MS), 0.44);
    assert!(m.actions.is_empty() && m.collecting());
    // It continues until victims are worth little.
    m.check(Time(3001 * MS), 0.54);
    assert!(m.actions.is_empty());
    m.check(Time(3002 * MS), 0.56);
    assert_eq!(m.actions, [GcAction::Stop]);
}

#[test]
fn a_request_stops_background_collection_and_a_gap_is_looked_at_once() {
    let mut m = with_background();
    m.timer(Time(160 * MS), 0.44);
    answer(&mut m, 161 * MS, GcField::Accept);
    m.actions.clear();
    m.request(Time(162 * MS));
    assert_eq!(m.actions, [GcAction::Stop]);
    // Still ending, below the soft threshold: it began without approval and must not continue without.
    m.actions.clear();
    m.check(Time(163 * MS), 0.30);
    assert!(m.actions.is_empty());
    m.ended(Time(164 * MS));
    assert_eq!(sent(&mut m), [GcField::Finish]);
    answer(&mut m, 165 * MS, GcField::Finish);
    let from = m.deadline();
    m.timer(from, 0.50);
    assert!(m.actions.is_empty(), "there is enough");
    assert!(m.deadline() > Time(1000 * MS), "and the timer has nothing more to do in this gap");
}

#[test]
fn an_episode_is_not_stopped_by_requests_and_background_becomes_one_below_the_hard_threshold() {
    let mut m = with_background();
    m.check(Time(110 * MS), 0.34);
    answer(&mut m, 110 * MS, GcField::Accept);
    m.actions.clear();
    m.request(Time(111 * MS));
    assert!(m.actions.is_empty() && m.collecting());

    for ending in [false, true] {
        let mut m = with_background();
        m.timer(Time(160 * MS), 0.44);
        m.actions.clear();
        if ending {
            m.request(Time(161 * MS));
        }
        m.check(Time(162 * MS), 0.24);
        assert_eq!(m.actions.last(), Some(&GcAction::Start));
        assert_eq!(sent(&mut m), [GcField::Regular]);
        m.request(Time(163 * MS));
        assert!(m.actions.is_empty() && m.collecting());
    }
}

#[test]
fn another_policy_takes_over_where_the_last_one_stood() {
    let coordinated = GcConfig { announce_every: Span::from_secs(1000), background: false, ..GcConfig::default() };
    let alone = GcConfig { policy: GcPolicy::Uncoordinated, ..coordinated };
    // It was denied; now it collects without a request.
    let mut m = monitor();
    m.check(Time(0), 0.34);
    answer(&mut m, 1, GcField::Delay);
    m.actions.clear();
    m.set_config(Time(2), alone);
    assert_eq!(m.deadline(), Time(2), "at once");
    m.timer(Time(2), 0.34);
    assert_eq!(m.actions, [GcAction::Start]);
    m.actions.clear();
    // It continues, and informs the switch, which knows nothing of it, at once.
    m.set_config(Time(3), coordinated);
    m.timer(Time(3), 0.40);
    assert!(m.collecting());
    assert_eq!(sent(&mut m), [GcField::Heartbeat]);
    m.check(Time(4), 0.46);
    m.actions.clear();
    m.ended(Time(5));
    assert_eq!(sent(&mut m), [GcField::Finish]);
    // An end that will not be answered is final.
    m.set_config(Time(6), alone);
    assert_eq!(m.state(), GcState::Idle);
    // Other thresholds alone change nothing.
    m.set_config(Time(7), GcConfig { soft_threshold: 0.30, ..alone });
    m.timer(Time(7), 0.34);
    assert_eq!((m.state(), m.actions.len()), (GcState::Idle, 0));
}
