//! Changes that a store has taken in this epoch (protocol rule 7), by client and sequence. A store that was restarted has another
//! epoch and refuses changes of the last one, so this needs no place on flash.

use std::collections::BTreeMap;

use rackweave_core::Incarnation;
use rackweave_core::msg::{KvError, Mutation};

/// Clients whose changes are remembered; the one idle for longest goes first. A gateway is one.
pub const CLIENTS_MAX: usize = 4096;
/// Changes remembered of a client above its floor: as many as a client has sequences unanswered.
pub const CHANGES_MAX: usize = 4096;

pub(crate) type Outcome = Result<bool, KvError>;

#[derive(Debug, Default)]
struct Client {
    floor: u64,
    /// `None`: unanswered.
    changes: BTreeMap<u64, Option<Outcome>>,
    used: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Never seen; remembered from now on.
    New,
    /// Its answer comes, or the client has it.
    Silent,
    Answered(Outcome),
    /// Too much is remembered of this client.
    TooMany,
}

#[derive(Debug, Default)]
pub(crate) struct Changes {
    clients: BTreeMap<Incarnation, Client>,
    uses: u64,
}

impl Changes {
    pub(crate) fn see(&mut self, m: Mutation) -> Seen {
        if !self.clients.contains_key(&m.client) && self.clients.len() >= CLIENTS_MAX && !self.make_room() {
            return Seen::TooMany;
        }
        self.uses += 1;
        let c = self.clients.entry(m.client).or_default();
        c.used = self.uses;
        if m.floor > c.floor {
            c.floor = m.floor;
            c.changes = c.changes.split_off(&m.floor);
        }
        if m.sequence < c.floor {
            return Seen::Silent;
        }
        match c.changes.get(&m.sequence) {
            Some(None) => Seen::Silent,
            Some(Some(outcome)) => Seen::Answered(*outcome),
            None if c.changes.len() >= CHANGES_MAX => Seen::TooMany,
            None => {
                c.changes.insert(m.sequence, None);
                Seen::New
            }
        }
    }
    pub(crate) fn answered(&mut self, m: Mutation, outcome: Outcome) {
        if let Some(change) = self.clients.get_mut(&m.client).and_then(|c| c.changes.get_mut(&m.sequence)) {
            *change = Some(outcome);
        }
    }
    /// It was not taken after all: a repetition is new.
    pub(crate) fn forget(&mut self, m: Mutation) {
        if let Some(c) = self.clients.get_mut(&m.client) {
            c.changes.remove(&m.sequence);
        }
    }
    /// Forgets the client that is idle for longest, if it waits for nothing.
    fn make_room(&mut self) -> bool {
        let idle = self.clients.iter().filter(|(_, c)| c.changes.values().all(Option::is_some));
        let Some(oldest) = idle.min_by_key(|(_, c)| c.used).map(|(id, _)| *id) else { return false };
        self.clients.remove(&oldest);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(client: u64, sequence: u64, floor: u64) -> Mutation {
        Mutation { client: Incarnation(client), sequence, floor }
    }

    #[test]
    fn a_change_is_new_once_and_its_answer_is_repeated() {
        let mut c = Changes::default();
        assert_eq!((c.see(change(1, 5, 1)), c.see(change(1, 5, 1))), (Seen::New, Seen::Silent));
        c.answered(change(1, 5, 1), Ok(true));
        assert_eq!((c.see(change(1, 5, 1)), c.see(change(2, 5, 1))), (Seen::Answered(Ok(true)), Seen::New));
        assert_eq!(c.see(change(1, 7, 6)), Seen::New);
        assert_eq!(c.see(change(1, 5, 1)), Seen::Silent, "it is below the floor, which never falls");
        c.forget(change(1, 7, 6));
        assert_eq!(c.see(change(1, 7, 6)), Seen::New);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut c = Changes::default();
        (0..CHANGES_MAX as u64).for_each(|s| assert_eq!(c.see(change(0, s, 0)), Seen::New));
        assert_eq!(c.see(change(0, u64::MAX, 0)), Seen::TooMany);
        assert_eq!(c.see(change(0, u64::MAX, 9)), Seen::New);
        for client in 1..CLIENTS_MAX as u64 {
            c.see(change(client, 1, 0));
            c.answered(change(client, 1, 0), Ok(false));
        }
        assert_eq!(c.see(change(u64::MAX, 1, 0)), Seen::New, "in the place of client 1");
        assert_eq!(c.clients.len(), CLIENTS_MAX);
        assert_eq!(c.see(change(2, 1, 0)), Seen::Answered(Ok(false)));
        assert_eq!(c.see(change(1, 1, 0)), Seen::New);
        assert!(c.clients.contains_key(&Incarnation(0)), "it waits for answers");
    }
}
