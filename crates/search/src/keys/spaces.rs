//! The keyspace beside the first: made, used, deleted, and made anew, by commands of the first client.

use rackweave_core::admin::{self, Isolation, KeyspaceError};
use rackweave_core::keyspace::Keyspace;
use rackweave_core::request::{Operation, Reply, Request, RequestId};
use rackweave_core::{Span, Time, kv};

use super::{PATIENCE, Run, Violation};

/// Commands have ids above those of requests of keys.
const FIRST_COMMAND: u64 = 1 << 40;
/// Interval of commands.
const EVERY: Span = Span::from_millis(100);

#[derive(Debug, Default, PartialEq)]
enum State {
    /// Of the one that is to be next.
    #[default]
    Missing,
    /// It is made, and does not serve yet.
    Made,
    Serves(Keyspace),
    /// Its deletion is asked for.
    Going,
}

/// Keyspaces beside the first, one after the other.
#[derive(Debug, Default)]
pub(super) struct Spaces {
    /// Whether there are any.
    wanted: bool,
    replaced: Vec<u64>,
    state: State,
    /// The number of the last one.
    pub(super) made: u32,
    /// The command under way.
    asked: Option<RequestId>,
    commands: u64,
    next_at: Time,
    /// Requests that reached one that was gone.
    pub(super) too_late: u64,
    /// Longest value of each.
    pub(super) value_max: u32,
}

impl Spaces {
    pub(super) fn new(replaced: Option<Vec<u64>>) -> Spaces {
        Spaces { wanted: replaced.is_some(), replaced: replaced.unwrap_or_default(), made: 1, ..Spaces::default() }
    }
    fn name(&self) -> Box<str> {
        format!("space-{}", self.made).into()
    }
    /// Whether a request in this one may find nobody.
    pub(super) fn is_gone(&self, store: u32) -> bool {
        store > 0 && (store < self.made || store == self.made && self.state == State::Going)
    }
    pub(super) fn within(&self, store: u32, op: kv::Op) -> kv::Op {
        match &self.state {
            State::Serves(keyspace) if store > 0 => kv::Op::In { keyspace: *keyspace, op: Box::new(op) },
            _ => op,
        }
    }
}

impl Run {
    /// Sends the next command, if one is due.
    pub(super) fn tend_spaces(&mut self) {
        let now = self.sim.now();
        let s = &mut self.spaces;
        if !s.wanted || s.asked.is_some() || now < s.next_at {
            return;
        }
        let name = s.name();
        let op = match s.state {
            State::Missing => {
                let replicas = Some(1 + s.made % self.plan.replicas);
                let units = u32::from(self.sim.config().kv.own_channels);
                admin::Op::KeyspaceCreate { name, replicas, isolation: Isolation::Channel, units }
            }
            State::Made => admin::Op::KeyspaceInfo { name },
            State::Serves(_) if s.replaced.first().is_some_and(|at| self.next >= *at) => {
                s.replaced.remove(0);
                s.state = State::Going;
                admin::Op::KeyspaceDelete { name }
            }
            State::Serves(_) => return,
            State::Going => admin::Op::KeyspaceDelete { name },
        };
        s.commands += 1;
        let id = RequestId(FIRST_COMMAND + s.commands);
        (s.asked, s.next_at) = (Some(id), now + EVERY);
        self.sim.submit(now, 0, Request::new(id, op));
    }
    pub(super) fn space_answered(&mut self, reply: Reply) -> Result<(), Violation> {
        let s = &mut self.spaces;
        if s.asked.take_if(|id| *id == reply.id).is_none() {
            return Ok(());
        }
        let Some(answer) = admin::Op::result(reply.result) else { return Ok(()) };
        let again = |e: &admin::Error| {
            use admin::Error::{Busy, NotStored, TimedOut};
            // Servers are away; a repetition of a command that was carried out.
            let fits =
                matches!(e, admin::Error::Keyspace(KeyspaceError::Replicas { .. } | KeyspaceError::Duplicate { .. }));
            fits || matches!(e, Busy { .. } | NotStored { .. } | TimedOut { .. })
        };
        match (&s.state, answer) {
            (State::Missing, Ok(_) | Err(admin::Error::Keyspace(KeyspaceError::Duplicate { .. }))) => {
                s.state = State::Made;
            }
            (State::Made, Ok(admin::Reply::Keyspace(info))) => {
                if info.serves() {
                    // Values have 16 bytes more.
                    s.value_max = info.value_max - 16;
                    s.state = State::Serves(info.keyspace());
                }
            }
            (State::Going, Ok(_) | Err(admin::Error::Keyspace(KeyspaceError::Unknown { .. }))) => {
                (s.state, s.made) = (State::Missing, s.made + 1);
            }
            (_, Err(e)) if again(&e) => {}
            (state, answer) => {
                return Err(Violation::Keyspace { state: format!("{state:?}"), answer: format!("{answer:?}") });
            }
        }
        Ok(())
    }
    /// The keyspace of the next request.
    pub(super) fn drawn_space(&mut self) -> u32 {
        if !matches!(self.spaces.state, State::Serves(_)) {
            return 0;
        }
        if self.rng.chance(0.5) { self.spaces.made } else { 0 }
    }
    /// Nothing fails any more: the keyspaces that there are, when the last one serves.
    pub(super) fn last_spaces(&mut self) -> Result<Vec<u32>, Violation> {
        self.spaces.replaced.clear();
        let until = self.sim.now() + PATIENCE;
        while self.spaces.wanted && !matches!(self.spaces.state, State::Serves(_)) {
            if self.sim.now() > until {
                return Err(self.stuck());
            }
            self.tend_spaces();
            self.step()?;
        }
        Ok(if self.spaces.wanted { vec![0, self.spaces.made] } else { vec![0] })
    }
}
