//! Finished puts by client: a put that comes again is answered, not executed again (rule 7).

use std::collections::BTreeMap;

use rackweave_core::{Incarnation, NodeId};

use crate::types::PutId;
pub use crate::types::{Ending, Finished, FinishedPuts};

/// Most finished puts above a client's floor. No client gives out a sequence that far above its floor.
pub const WINDOW_MAX: usize = 256;

/// Whether an ending counts instead of the known one.
pub(crate) fn replaces(ending: &Ending, known: &Ending) -> bool {
    let final_here = match (known.how, ending.how) {
        (Finished::Aborted(a), Finished::Aborted(b)) => b > a,
        (Finished::Aborted(_), Finished::Committed(_)) => true,
        (Finished::Committed(_), _) => false,
    };
    let first = mutant!("kv-replica.endings.first-counts");
    ending.epoch > known.epoch && !first || (ending.epoch == known.epoch || first) && final_here
}

/// A client's puts in one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientState {
    pub incarnation: Incarnation,
    pub floor: u64,
    pub finished: BTreeMap<u64, Ending>,
}

/// Whether to execute an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Fresh,
    Finished(Ending),
    /// Below the floor, or of an earlier incarnation of the client.
    Stale,
}

impl From<FinishedPuts> for ClientState {
    fn from(puts: FinishedPuts) -> ClientState {
        let FinishedPuts { incarnation, floor, finished, .. } = puts;
        ClientState { incarnation, floor, finished: finished.into_iter().collect() }
    }
}

impl ClientState {
    /// For another member, without those that it will hear of otherwise.
    pub fn without(&self, client: NodeId, excluded: impl Fn(&PutId) -> bool) -> FinishedPuts {
        let ClientState { incarnation, floor, finished } = self;
        let (incarnation, floor) = (*incarnation, *floor);
        let sent = finished.iter().filter(|(s, _)| !excluded(&PutId { client, incarnation, sequence: **s }));
        FinishedPuts { client, incarnation, floor, finished: sent.map(|(s, e)| (*s, *e)).collect() }
    }
    pub fn admit(&self, id: PutId, attempt: u32) -> Admission {
        if mutant!("kv-replica.dedup.drop") {
            return Admission::Fresh;
        }
        if id.incarnation < self.incarnation {
            return Admission::Stale;
        }
        if id.incarnation > self.incarnation {
            return Admission::Fresh;
        }
        if id.sequence < self.floor {
            return Admission::Stale;
        }
        match self.finished.get(&id.sequence) {
            Some(Ending { how: Finished::Aborted(last), .. }) if *last < attempt => Admission::Fresh,
            Some(e) => Admission::Finished(*e),
            None => Admission::Fresh,
        }
    }
    /// Records a decision, and raises the floor. Nothing changes if the put is of an earlier run of the client.
    pub fn finish(&mut self, id: PutId, floor: u64, ending: Ending) {
        if id.incarnation > self.incarnation {
            *self = ClientState { incarnation: id.incarnation, floor: 0, finished: BTreeMap::new() };
        }
        if id.incarnation == self.incarnation {
            self.floor = self.floor.max(floor);
            self.add(id.sequence, ending);
            self.trim();
        }
    }
    /// The put is undecided: a decision that this member recorded was a lost primary's, and counts no more.
    pub fn reopen(&mut self, id: PutId) {
        if id.incarnation == self.incarnation {
            self.finished.remove(&id.sequence);
        }
    }
    /// Adds what another member knows.
    pub fn merge(&mut self, other: &ClientState) {
        if other.incarnation > self.incarnation {
            *self = other.clone();
        } else if other.incarnation == self.incarnation {
            self.floor = self.floor.max(other.floor);
            other.finished.iter().for_each(|(sequence, ending)| self.add(*sequence, *ending));
            self.trim();
        }
    }
    fn add(&mut self, sequence: u64, ending: Ending) {
        if sequence >= self.floor && self.finished.get(&sequence).is_none_or(|known| replaces(&ending, known)) {
            self.finished.insert(sequence, ending);
        }
    }
    /// The client keeps fewer puts above its floor ([`crate::ring_client`]): what goes is below it.
    fn trim(&mut self) {
        self.finished = self.finished.split_off(&self.floor);
        while self.finished.len() > WINDOW_MAX {
            self.finished.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Epoch;

    use super::*;
    use crate::types::Verdict;

    fn id(incarnation: u64, sequence: u64) -> PutId {
        PutId { client: NodeId(9), incarnation: Incarnation(incarnation), sequence }
    }
    fn aborted(epoch: u32, attempt: u32) -> Ending {
        Ending { epoch: Epoch(epoch), how: Finished::Aborted(attempt) }
    }
    fn done(epoch: u32) -> Ending {
        Ending { epoch: Epoch(epoch), how: Finished::Committed(Verdict::Applied) }
    }

    #[test]
    fn each_put_is_executed_once() {
        let mut c = ClientState::default();
        assert_eq!(c.admit(id(1, 5), 1), Admission::Fresh);
        c.finish(id(1, 5), 0, aborted(2, 1));
        assert_eq!(c.admit(id(1, 5), 1), Admission::Finished(aborted(2, 1)));
        assert_eq!(c.admit(id(1, 5), 2), Admission::Fresh);
        c.finish(id(1, 5), 3, done(2));
        c.finish(id(1, 5), 3, aborted(2, 7));
        assert_eq!(c.admit(id(1, 5), 9), Admission::Finished(done(2)), "a commit is final in its epoch");
        assert_eq!(c.admit(id(1, 2), 1), Admission::Stale, "below the floor");
        let mut other = ClientState::default();
        other.finish(id(1, 6), 6, done(2));
        c.merge(&other);
        assert_eq!((c.admit(id(1, 5), 1), c.admit(id(1, 6), 1)), (Admission::Stale, Admission::Finished(done(2))));
        c.finish(id(2, 0), 0, done(3));
        assert_eq!(c.admit(id(1, 8), 1), Admission::Stale, "an earlier incarnation");
        let before = c.clone();
        c.finish(id(1, 8), 0, done(3));
        assert_eq!(c, before);
    }

    #[test]
    fn a_later_epoch_decides_anew() {
        let mut lost = ClientState::default();
        lost.finish(id(1, 5), 0, done(2));
        lost.finish(id(1, 6), 0, aborted(2, 1));
        let mut others = ClientState::default();
        others.finish(id(1, 5), 0, aborted(3, 1));
        others.finish(id(1, 6), 0, done(3));
        let mut a = lost.clone();
        a.merge(&others);
        let mut b = others.clone();
        b.merge(&lost);
        assert_eq!((&a, &b), (&others, &others), "in either order");
        lost.reopen(id(1, 5));
        assert_eq!(lost.admit(id(1, 5), 1), Admission::Fresh);
    }
}
