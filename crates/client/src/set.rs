//! The client's state of one replica set: its members, the window of messages in flight, and unanswered mutation
//! sequences.

use std::collections::VecDeque;

use rackweave_core::{Epoch, RoundTrip, SetId, Span, Time, VssdId};

/// Bound of sequences from the floor on, answered or not, and so of every replica's table of this client (protocol rule
/// 7). Mutations wait at the bound until the oldest is answered.
pub const SEQUENCE_SPAN: usize = 4096;

/// Least window, whatever was lost.
const WINDOW_MIN: u32 = 8;

/// Messages that wait for a place in the window, oldest first, and the number of those that have one.
#[derive(Debug, Default)]
pub struct Lane {
    pub queue: VecDeque<u64>,
    pub occupied: u32,
}

#[derive(Debug)]
pub struct SetState {
    pub set: SetId,
    /// Of the newest map; messages to the set are stamped with it.
    pub epoch: Epoch,
    members: Vec<Route>,
    /// The first members, up to this number, are in the set's home rack.
    near: usize,
    pub(crate) reads: Lane,
    pub(crate) writes: Lane,
    /// Whether the sequences from `floor` on are answered or given up; the first never is.
    answered: VecDeque<bool>,
    floor: u64,
    /// The newest sequence whose mutation was given up: a copy of it may wait at some member.
    given_up: u64,
    /// Number of requests for the map when it became known, and whether a map has named it since.
    pub(crate) known_at: u64,
    pub(crate) mapped: bool,
    /// A newer map does not name it.
    pub(crate) ended: bool,
    /// In the list of sets whose messages may go.
    pub(crate) due: bool,
    /// Epoch of its last known recovery.
    pub recovered: Epoch,
    /// Messages that may be in flight in each lane, answers since it grew last, and when it was last cut.
    window: u32,
    answers: u32,
    cut_at: Time,
    /// Measured answer times.
    round_trip: RoundTrip,
}

#[derive(Debug)]
struct Route {
    vssd: VssdId,
    /// Refused or was silent recently: others have priority until then.
    suspect_until: Time,
}

impl SetState {
    pub fn new(set: SetId) -> SetState {
        SetState {
            set,
            epoch: Epoch(0),
            members: Vec::new(),
            near: 0,
            reads: Lane::default(),
            writes: Lane::default(),
            answered: VecDeque::new(),
            floor: 1,
            given_up: 0,
            known_at: 0,
            mapped: false,
            ended: false,
            due: false,
            recovered: Epoch(0),
            window: u32::MAX,
            answers: 0,
            cut_at: Time::ZERO,
            round_trip: RoundTrip::UNKNOWN,
        }
    }
    pub(crate) fn known_since(set: SetId, known_at: u64) -> SetState {
        SetState { known_at, ..SetState::new(set) }
    }
    pub fn set_members(&mut self, members: &[VssdId]) {
        // The home rack has most of them; at a tie none is farther.
        let near = |m: &&VssdId| 2 * members.iter().filter(|o| o.rack() == m.rack()).count() >= members.len();
        let far = |m: &&VssdId| !near(m);
        let in_order = members.iter().filter(near).chain(members.iter().filter(far));
        self.near = members.iter().filter(near).count();
        self.members.clear();
        self.members.extend(in_order.map(|&vssd| Route { vssd, suspect_until: Time::ZERO }));
    }
    pub fn members(&self) -> usize {
        self.members.len()
    }
    pub fn has(&self, vssd: VssdId) -> bool {
        self.members.iter().any(|m| m.vssd == vssd)
    }
    /// Whether there are members, each of them in `of`.
    pub fn all_in(&self, of: &[VssdId]) -> bool {
        !self.members.is_empty() && self.members.iter().all(|m| of.contains(&m.vssd))
    }
    /// The member for `key`: the same for the same key while all are healthy, keys spread evenly over the home rack.
    /// `turn` counts the members tried before.
    pub fn pick(&self, now: Time, key: u64, turn: u32) -> Option<VssdId> {
        let n = self.members.len();
        if n == 0 {
            return None;
        }
        let near = self.near;
        let in_turn = |k: usize| {
            let k = (turn as usize + k) % n;
            &self.members[if k < near { ((key % near as u64) as usize + k) % near } else { k }]
        };
        let fit = (0..n).map(in_turn).find(|m| m.suspect_until <= now);
        Some(fit.unwrap_or(in_turn(0)).vssd)
    }
    pub fn suspect(&mut self, vssd: VssdId, now: Time, span: Span) {
        if let Some(m) = self.members.iter_mut().find(|m| m.vssd == vssd) {
            m.suspect_until = now + span;
        }
    }
    /// The first try of a message was answered after this time.
    pub fn answered_after(&mut self, took: Span) {
        self.round_trip.add(took);
    }
    /// Number of messages that may be in flight in a lane, at most `most`.
    pub fn window(&self, most: u32) -> u32 {
        self.window.min(most)
    }
    /// A message was answered: the window grows by one per window of answers.
    pub fn widen(&mut self) {
        self.answers += 1;
        if self.answers >= self.window {
            (self.window, self.answers) = (self.window.saturating_add(1), 0);
        }
    }
    /// No answer arrived in time: halves the window, at most once per `within` (AIMD). Unless a server has failed,
    /// messages are lost or late because too many are in flight.
    pub fn narrow(&mut self, now: Time, within: Span) {
        if now >= self.cut_at + within {
            let most = self.window.min(self.reads.occupied.max(self.writes.occupied));
            (self.window, self.answers, self.cut_at) = ((most / 2).max(WINDOW_MIN), 0, now);
        }
    }
    /// Time after which an unanswered message counts as lost (RFC 6298): a slow set must not get every request twice.
    pub fn timeout(&self) -> Span {
        self.round_trip.bound()
    }
    /// False while a mutation that was given up is at the floor or above: a copy of it that waits at a member could be carried out
    /// after a newer one of the same blocks. A member that has received the floor carries out none below it.
    pub fn may_mutate(&self) -> bool {
        let none_waits = self.given_up < self.floor || mutant!("client.floor.given-up-passed");
        self.answered.len() < SEQUENCE_SPAN && none_waits
    }
    /// A sequence for a new mutation.
    pub fn next_sequence(&mut self) -> u64 {
        self.answered.push_back(false);
        self.floor + self.answered.len() as u64 - 1
    }
    pub fn floor(&self) -> u64 {
        self.floor + if mutant!("client.floor.early") { self.answered.len() as u64 } else { 0 }
    }
    /// The mutation has failed, or nobody waits for it any more. It may have happened, or not.
    pub fn sequence_given_up(&mut self, sequence: u64) {
        self.given_up = self.given_up.max(sequence);
        self.sequence_answered(sequence);
    }
    pub fn sequence_answered(&mut self, sequence: u64) {
        self.answered[(sequence - self.floor) as usize] = true;
        while self.answered.front() == Some(&true) {
            self.answered.pop_front();
            self.floor += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_mutation_follows_one_that_was_given_up_before_the_floor_has_passed_it() {
        let mut s = SetState::new(SetId(0));
        (0..3).for_each(|_| _ = s.next_sequence());
        s.sequence_given_up(2);
        assert!(!s.may_mutate());
        s.sequence_answered(3);
        assert!(!s.may_mutate(), "the first is not answered");
        s.sequence_answered(1);
        assert!(s.may_mutate());
        assert_eq!((s.floor(), s.next_sequence()), (4, 4));
        s.sequence_given_up(4);
        assert!(s.may_mutate(), "nothing older is under way");
    }

    #[test]
    fn the_floor_passes_answered_sequences_only() {
        let mut s = SetState::new(SetId(0));
        assert_eq!((s.next_sequence(), s.next_sequence(), s.next_sequence()), (1, 2, 3));
        s.sequence_answered(2);
        assert_eq!(s.floor(), 1);
        s.sequence_answered(1);
        assert_eq!(s.floor(), 3);
        s.sequence_answered(3);
        assert_eq!((s.floor(), s.next_sequence()), (4, 4));
        while s.may_mutate() {
            s.next_sequence();
        }
        assert_eq!(s.answered.len(), SEQUENCE_SPAN);
    }

    #[test]
    fn a_member_in_another_rack_is_tried_when_those_at_home_are_suspect() {
        let mut s = SetState::new(SetId(0));
        let (a, b, far) = (VssdId(1 << 24 | 1), VssdId(1 << 24 | 2), VssdId(3));
        s.set_members(&[far, a, b]);
        let picks: Vec<_> = (0..4).filter_map(|key| s.pick(Time(1), key, 0)).collect();
        assert_eq!(picks, [a, b, a, b]);
        let turns: Vec<_> = (0..3).filter_map(|turn| s.pick(Time(1), 1, turn)).collect();
        assert_eq!(turns, [b, a, far]);
        s.suspect(a, Time(1), Span(10));
        s.suspect(b, Time(1), Span(10));
        assert_eq!(s.pick(Time(5), 0, 0), Some(far));
        s.set_members(&[a, far]);
        let picks: Vec<_> = (0..2).filter_map(|key| s.pick(Time(20), key, 0)).collect();
        assert_eq!(picks, [a, far], "at a tie both are near");
    }

    #[test]
    fn the_window_halves_once_for_what_was_lost_together_and_grows_by_one_for_each_that_is_answered() {
        let (mut s, within) = (SetState::new(SetId(0)), Span::from_millis(200));
        assert_eq!(s.window(128), 128);
        s.reads.occupied = 100;
        let mut now = Time::ZERO + within;
        let mut windows = Vec::new();
        for _ in 0..5 {
            (0..100).for_each(|_| s.narrow(now, within));
            windows.push(s.window(128));
            now += within;
        }
        assert_eq!(windows, [50, 25, 12, 8, 8]);
        (0..8 + 9 + 10).for_each(|_| s.widen());
        assert_eq!(s.window(128), 11);
        (0..1_000_000).for_each(|_| s.widen());
        assert_eq!(s.window(128), 128);
    }

    #[test]
    fn what_counts_as_lost_follows_what_answers_take() {
        let mut s = SetState::new(SetId(0));
        (0..100).for_each(|_| s.answered_after(Span::from_millis(1)));
        assert!(s.timeout() < Span::from_millis(2), "{:?}", s.timeout());
        (0..100).for_each(|_| s.answered_after(Span::from_millis(500)));
        assert!(s.timeout() > Span::from_millis(499), "{:?}", s.timeout());
    }

    #[test]
    fn suspects_are_tried_last() {
        let mut s = SetState::new(SetId(0));
        assert_eq!(s.pick(Time(1), 0, 0), None);
        s.set_members(&[VssdId(1), VssdId(2), VssdId(3)]);
        assert_eq!(s.pick(Time(1), 4, 0), Some(VssdId(2)));
        s.suspect(VssdId(2), Time(1), Span(10));
        assert_eq!(s.pick(Time(5), 4, 0), Some(VssdId(3)));
        assert_eq!(s.pick(Time(11), 4, 0), Some(VssdId(2)));
        for v in [1, 2, 3] {
            s.suspect(VssdId(v), Time(20), Span(10));
        }
        assert_eq!(s.pick(Time(21), 4, 0), Some(VssdId(2)));
    }
}
