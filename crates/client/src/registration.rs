//! With the metadata service: registration, and the rack's map.

use std::collections::BTreeSet;

use rackweave_core::msg::{Control, RackMap};
use rackweave_core::{Effects, Incarnation, SetId, Span, Time};

use crate::set_client::SetClient;

/// Least time between two requests for the map: many messages may fail at once.
const MAP_ASK_GAP: Span = Span::from_millis(20);
/// Time between two hellos.
const HELLO_GAP: Span = Span::from_millis(100);

/// State of the registration, and of the map.
#[derive(Debug)]
pub(crate) struct Registration {
    generation: u64,
    /// Next hello or routine request for the map.
    pub due_at: Time,
    map_asked: Option<Time>,
    /// Requests for the map so far, and the newest answered one.
    pub map_asks: u64,
    pub map_answered: u64,
}

impl Registration {
    pub fn new() -> Registration {
        Registration { generation: 0, due_at: Time::ZERO, map_asked: None, map_asks: 0, map_answered: 0 }
    }
}

impl<M> SetClient<M> {
    /// Has registered with the metadata service.
    pub fn registered(&self) -> bool {
        self.incarnation.is_some()
    }
    /// Sends a hello, or the routine request for the map, if it is due.
    pub fn register_or_refresh(&mut self, now: Time, fx: &mut Effects) {
        let registered = self.registered();
        let Some(r) = self.registration.as_mut().filter(|r| r.due_at <= now) else { return };
        if registered {
            r.due_at = now + self.cfg.map_refresh;
            self.ask_map(now, fx);
        } else {
            r.due_at = now + HELLO_GAP;
            self.packet_to_meta(Control::ClientHello { nonce: self.cfg.nonce }, 0, fx);
        }
    }
    /// Requests a newer map, unless it has just done so.
    pub fn ask_map(&mut self, now: Time, fx: &mut Effects) {
        let registered = self.registered();
        let Some(r) = self.registration.as_mut().filter(|_| registered) else { return };
        if r.map_asked.is_some_and(|at| now.since(at) < MAP_ASK_GAP) {
            return;
        }
        r.map_asked = Some(now);
        r.map_asks += 1;
        let (generation, request) = (r.generation, r.map_asks);
        self.packet_to_meta(Control::MapRequest { generation }, request, fx);
    }

    /// The metadata service's welcome to `nonce`. True: it is for this client, which had not registered yet.
    pub fn welcomed(&mut self, now: Time, nonce: u64, incarnation: Incarnation) -> bool {
        let Some(r) = self.registration.as_mut().filter(|_| nonce == self.cfg.nonce) else { return false };
        if self.incarnation.is_some() {
            return false;
        }
        r.due_at = now + self.cfg.map_refresh;
        self.incarnation = Some(incarnation);
        true
    }
    /// Request `number` for the map was answered.
    pub fn map_answered(&mut self, number: u64) {
        if let Some(r) = &mut self.registration {
            r.map_answered = r.map_answered.max(number.min(r.map_asks));
        }
    }
    /// Takes a map over unless it is older. Returns whether anything changed, as [`SetClient::route`] does.
    pub fn take_map(&mut self, map: &RackMap) -> bool {
        let Some(r) = &mut self.registration else { return false };
        if map.generation < r.generation && !mutant!("client.map.older") {
            return false;
        }
        let newer = map.generation > r.generation;
        r.generation = map.generation;
        let answered = r.map_answered;
        let changed =
            map.sets.iter().fold(newer, |changed, s| self.route(s.set, s.epoch, &s.members, newer) || changed);
        let named: BTreeSet<SetId> = map.sets.iter().map(|s| s.set).collect();
        for (_, s) in &mut self.sets {
            let is_named = named.contains(&s.set);
            s.mapped |= is_named;
            // A set that was never named may be newer than the map, unless the map was requested after it was known.
            s.ended = !is_named && (s.mapped || answered > s.known_at || mutant!("client.sets.ended-before-known"));
        }
        changed
    }
}
