//! Finished puts by client: a put that comes again is answered, not executed again (rule 7).

use std::collections::BTreeMap;

use rackweave_core::Incarnation;

use crate::types::{PutId, Verdict};

/// Most finished puts above a client's floor. Clients keep fewer under way.
pub const WINDOW_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    Committed(Verdict),
    /// This attempt and all before it.
    Aborted(u32),
}

/// A client's puts in one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientState {
    pub incarnation: Incarnation,
    pub floor: u64,
    pub finished: BTreeMap<u64, Finished>,
}

/// Whether to execute an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Fresh,
    Finished(Finished),
    /// Below the floor, or of an earlier incarnation of the client.
    Stale,
}

impl ClientState {
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
            Some(Finished::Aborted(last)) if *last < attempt => Admission::Fresh,
            Some(f) => Admission::Finished(*f),
            None => Admission::Fresh,
        }
    }
    /// Records a decision, and raises the floor. False if the put is stale.
    pub fn finish(&mut self, id: PutId, floor: u64, how: Finished) -> bool {
        if id.incarnation > self.incarnation {
            *self = ClientState { incarnation: id.incarnation, floor: 0, finished: BTreeMap::new() };
        }
        if id.incarnation < self.incarnation {
            return false;
        }
        self.floor = self.floor.max(floor);
        let known = self.finished.get(&id.sequence);
        let newer = match (known, how) {
            (None, _) | (Some(Finished::Aborted(_)), Finished::Committed(_)) => true,
            (Some(Finished::Aborted(a)), Finished::Aborted(b)) => b > *a,
            (Some(Finished::Committed(_)), _) => false,
        };
        if newer && id.sequence >= self.floor {
            self.finished.insert(id.sequence, how);
        }
        self.finished = self.finished.split_off(&self.floor);
        while self.finished.len() > WINDOW_MAX {
            self.finished.pop_first();
        }
        true
    }
    /// Adds what another member knows.
    pub fn merge(&mut self, other: &ClientState) {
        if other.incarnation > self.incarnation {
            *self = other.clone();
        } else if other.incarnation == self.incarnation {
            self.floor = self.floor.max(other.floor);
            for (sequence, how) in &other.finished {
                let keep = match (self.finished.get(sequence), how) {
                    (Some(Finished::Committed(_)), _) => true,
                    (Some(Finished::Aborted(a)), Finished::Aborted(b)) => a >= b,
                    _ => false,
                };
                if !keep {
                    self.finished.insert(*sequence, *how);
                }
            }
            self.finished = self.finished.split_off(&self.floor);
        }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::NodeId;

    use super::*;

    fn id(incarnation: u64, sequence: u64) -> PutId {
        PutId { client: NodeId(9), incarnation: Incarnation(incarnation), sequence }
    }

    #[test]
    fn each_put_is_executed_once() {
        let mut c = ClientState::default();
        assert_eq!(c.admit(id(1, 5), 1), Admission::Fresh);
        assert!(c.finish(id(1, 5), 0, Finished::Aborted(1)));
        assert_eq!(c.admit(id(1, 5), 1), Admission::Finished(Finished::Aborted(1)));
        assert_eq!(c.admit(id(1, 5), 2), Admission::Fresh);
        let done = Finished::Committed(Verdict::Applied);
        assert!(c.finish(id(1, 5), 3, done));
        c.finish(id(1, 5), 3, Finished::Aborted(7));
        assert_eq!(c.admit(id(1, 5), 9), Admission::Finished(done), "a commit is final");
        assert_eq!(c.admit(id(1, 2), 1), Admission::Stale, "below the floor");
        let mut other = ClientState::default();
        other.finish(id(1, 6), 6, done);
        c.merge(&other);
        assert_eq!((c.admit(id(1, 5), 1), c.admit(id(1, 6), 1)), (Admission::Stale, Admission::Finished(done)));
        assert!(c.finish(id(2, 0), 0, done));
        assert_eq!(c.admit(id(1, 8), 1), Admission::Stale, "an earlier incarnation");
        assert!(!c.finish(id(1, 8), 0, done));
    }
}
