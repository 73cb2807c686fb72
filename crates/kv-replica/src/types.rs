//! Identities, versions, conditions and views.

use std::fmt;

use bytes::Bytes;
use rackweave_core::{DriveId, Epoch, Incarnation, NodeId, Span, Time};

/// Longest key.
pub const KEY_MAX: usize = 4096;
/// Longest value.
pub const VALUE_MAX: usize = 1 << 20;
/// Most replicas of a partition (NICE's largest, §6.3).
pub const REPLICAS_MAX: usize = 9;

/// A part of the keys: those whose hash begins with its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(pub u32);

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {}", self.0)
    }
}

/// Order of a key's committed puts: the primary's, never a clock's (rule 28). Zero precedes every put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    pub epoch: Epoch,
    pub counter: u64,
}

/// Identity of a put. Its attempts share it: at most one of them is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PutId {
    pub client: NodeId,
    pub incarnation: Incarnation,
    pub sequence: u64,
}

/// The effect of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// `ttl`: the primary deletes the value after this time.
    Set { value: Bytes, ttl: Option<Span> },
    /// Leaves a tombstone.
    Delete,
}

/// When a put takes effect. The primary judges it in the order of timestamps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    Always,
    /// The key has no value.
    Absent,
    /// The key's value is this one.
    ValueIs(Bytes),
    /// The key's value is that of this put. The primary's own deletion of an expired value.
    WrittenBy(PutId),
}

impl Condition {
    pub fn holds(&self, current: Option<&Version>) -> bool {
        let value = current.and_then(|v| v.value.as_ref());
        match self {
            Condition::Always => true,
            Condition::Absent => value.is_none(),
            Condition::ValueIs(expected) => value == Some(expected),
            Condition::WrittenBy(id) => value.is_some() && current.is_some_and(|v| v.by == *id),
        }
    }
}

/// One attempt of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    pub id: PutId,
    pub attempt: u32,
    /// The client has the final answers of all puts with lower sequences.
    pub floor: u64,
    pub key: Bytes,
    pub condition: Condition,
    pub change: Change,
    /// Any-k: members inform the client as soon as their log is forced.
    pub early: bool,
}

/// What a member's log says of an undecided put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The client sent it in the last active view, or the member missed that view.
    New,
    /// It was undecided when the last view in which this member took part began: a lost member may have applied it.
    Pending,
    /// An earlier primary committed it, and some member may not have applied it.
    Committed(Commit),
}

/// An undecided put in a member's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecided {
    pub put: Put,
    pub standing: Standing,
}

/// A key's committed state at a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub at: Timestamp,
    pub by: PutId,
    /// `None` is a tombstone.
    pub value: Option<Bytes>,
    /// By the clock of the primary that committed it.
    pub expires: Option<Time>,
}

/// Result of a committed put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Applied,
    ConditionFailed,
}

/// A commit: its place in the key's order, and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    pub at: Timestamp,
    pub verdict: Verdict,
    /// When the value expires, by the clock of the primary that committed it first.
    pub expires: Option<Time>,
}

/// A primary's final word about an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Commit(Commit),
    Abort,
    /// It was decided earlier: the record goes, and nothing else changes.
    Forget,
}

impl Decision {
    pub fn at(&self) -> Option<Timestamp> {
        match self {
            Decision::Commit(c) => Some(c.at),
            Decision::Abort | Decision::Forget => None,
        }
    }
}

/// Epochs, as sorted, separate, inclusive ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epochs(Vec<(u32, u32)>);

impl Epochs {
    pub fn none() -> Epochs {
        Epochs::default()
    }
    /// `first` to `last`, both included; empty if `first` is greater.
    pub fn range(first: Epoch, last: Epoch) -> Epochs {
        let mut e = Epochs::none();
        e.add(first, last);
        e
    }
    pub fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    pub fn contains(&self, e: Epoch) -> bool {
        self.0.iter().any(|&(a, b)| (a..=b).contains(&e.0))
    }
    /// Whether all of `first` to `last` are in it.
    pub fn covers(&self, first: Epoch, last: Epoch) -> bool {
        first > last || self.0.iter().any(|&(a, b)| a <= first.0 && last.0 <= b)
    }
    pub fn first(&self) -> Option<Epoch> {
        self.0.first().map(|r| Epoch(r.0))
    }
    /// Number of epochs.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|&(a, b)| u64::from(b - a) + 1).sum()
    }
    pub fn add(&mut self, first: Epoch, last: Epoch) {
        if first > last {
            return;
        }
        self.0.push((first.0, last.0));
        self.0.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for &(a, b) in &self.0 {
            match merged.last_mut() {
                Some(l) if a <= l.1.saturating_add(1) => l.1 = l.1.max(b),
                _ => merged.push((a, b)),
            }
        }
        self.0 = merged;
    }
    pub fn union(&mut self, other: &Epochs) {
        other.0.iter().for_each(|&(a, b)| self.add(Epoch(a), Epoch(b)));
    }
    /// Those that `other` does not have.
    pub fn minus(&self, other: &Epochs) -> Epochs {
        let mut rest = self.0.clone();
        for &(a, b) in &other.0 {
            let cut = |&(x, y): &(u32, u32)| {
                let left = (x < a).then(|| (x, y.min(a.saturating_sub(1))));
                let right = (y > b).then(|| (x.max(b.saturating_add(1)), y));
                [left, right].into_iter().flatten().filter(|r| r.0 <= r.1).collect::<Vec<_>>()
            };
            rest = rest.iter().flat_map(cut).collect();
        }
        Epochs(rest)
    }
    /// Those that `other` has too.
    pub fn common(&self, other: &Epochs) -> Epochs {
        self.minus(&self.minus(other))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// One of the partition's own nodes.
    Home,
    /// In the place of a lost one.
    Handoff,
    /// Takes part in puts of this view, and leaves with the next.
    Leaving,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub drive: DriveId,
    pub role: Role,
    /// Epochs whose committed puts it holds completely (rule 28a).
    pub holds: Epochs,
    /// Epochs that it has to fetch.
    pub wants: Epochs,
    /// The first epoch of its current stint: it was a member in every view since.
    pub since: Epoch,
    /// It was a member of the last view that became active, with this drive: its log has every put that was undecided
    /// when that view began, and every put that it may have committed.
    pub witness: bool,
}

/// The members of a partition in one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub partition: Partition,
    pub epoch: Epoch,
    pub primary: NodeId,
    /// The last view that became active before this one; zero if none did.
    pub active: Epoch,
    pub members: Vec<Member>,
}

impl View {
    pub fn member(&self, n: NodeId) -> Option<&Member> {
        self.members.iter().find(|m| m.node == n)
    }
    /// The epoch before this view's.
    pub fn last(&self) -> Epoch {
        Epoch(self.epoch.0 - 1)
    }
    /// Whether the member holds what was committed in all earlier epochs.
    pub fn is_full(&self, m: &Member) -> bool {
        m.holds.covers(Epoch(1), self.last())
    }
    /// Members that answer any get.
    pub fn readable(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.members.iter().filter(|m| m.role != Role::Leaving && self.is_full(m)).map(|m| m.node)
    }
    /// Members that gets are sent to: those that answer any, and hand-offs, which forward others to the primary.
    pub fn getters(&self) -> impl Iterator<Item = NodeId> + '_ {
        let some = |m: &&Member| m.role == Role::Handoff || m.role == Role::Home && self.is_full(m);
        self.members.iter().filter(some).map(|m| m.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ranges: &[(u32, u32)]) -> Epochs {
        let mut e = Epochs::none();
        ranges.iter().for_each(|&(a, b)| e.add(Epoch(a), Epoch(b)));
        e
    }

    #[test]
    fn epochs_are_a_set() {
        for seed in 0..200 {
            let mut rng = rackweave_core::Rng::new(seed);
            let mut sets = [(Epochs::none(), [false; 20]), (Epochs::none(), [false; 20])];
            for (e, flat) in &mut sets {
                for _ in 0..rng.below(5) {
                    let a = rng.between(1, 19);
                    let b = rng.between(a, 19);
                    e.add(Epoch(a as u32), Epoch(b as u32));
                    flat[a as usize..=b as usize].fill(true);
                }
            }
            let [(a, x), (b, y)] = &sets;
            let mut both = a.clone();
            both.union(b);
            for i in 1..20 {
                let e = Epoch(i as u32);
                assert_eq!(a.contains(e), x[i], "{a:?}");
                assert_eq!(both.contains(e), x[i] || y[i]);
                assert_eq!(a.minus(b).contains(e), x[i] && !y[i], "{a:?} {b:?}");
                assert_eq!(a.common(b).contains(e), x[i] && y[i]);
            }
            assert_eq!(a.count(), x.iter().filter(|v| **v).count() as u64);
        }
        assert_eq!(of(&[(1, 2), (3, 5)]).ranges(), [(1, 5)]);
        assert!(of(&[(1, 5)]).covers(Epoch(2), Epoch(5)) && !of(&[(1, 2), (4, 5)]).covers(Epoch(1), Epoch(5)));
        assert!(Epochs::none().covers(Epoch(1), Epoch(0)), "nothing is covered by nothing");
    }
}
