//! Clients: their incarnations, and the rack's map for them.

use rackweave_core::msg::{Control, RackMap, Role, SetRoute, ViewState};
use rackweave_core::{Incarnation, NodeId, Time};

use crate::members;
use crate::node::{Meta, Set};

/// Clients that get new maps unsolicited; others request them.
const CLIENTS_MAX: usize = 4_096;

impl Meta {
    pub(crate) fn client_hello(&mut self, now: Time, src: NodeId, request: u64, nonce: u64) {
        let incarnation = match self.clients.get(&src) {
            Some(&(known, incarnation)) if known == nonce && incarnation != Incarnation(0) => incarnation,
            _ => {
                // A new incarnation: the earlier one no longer uses its volumes.
                for id in self.volumes.release_all(src) {
                    self.put_volume(id);
                }
                self.next_incarnation()
            }
        };
        self.remember_client(src, nonce, incarnation);
        let map = Box::new(self.map(now));
        self.say(src, request, Control::ClientWelcome { nonce, incarnation, map });
    }

    pub(crate) fn remember_client(&mut self, src: NodeId, nonce: u64, incarnation: Incarnation) {
        if self.clients.len() < CLIENTS_MAX || self.clients.contains_key(&src) {
            let entry = self.clients.entry(src).or_insert((nonce, incarnation));
            if nonce != 0 {
                *entry = (nonce, incarnation);
            }
        }
    }

    pub(crate) fn map(&self, now: Time) -> RackMap {
        let waits =
            |s: &Set| members::others_may_come(&s.view, &s.holders, (&s.places, &s.evidence), &self.servers, now);
        let route = |s: &Set| SetRoute {
            set: s.view.set,
            epoch: s.view.epoch,
            members: match s.view.state {
                ViewState::Normal if waits(s) => Vec::new(),
                ViewState::Normal => s.view.members.iter().filter(|m| m.role == Role::Member).map(|m| m.vssd).collect(),
                ViewState::Recovering { .. } => Vec::new(),
            },
        };
        // Every change of a view increments one epoch, so the sum increases with each.
        let live = || self.sets.iter().filter(|s| !s.has_ended());
        let generation =
            live().map(|s| u64::from(s.view.epoch.0)).sum::<u64>().saturating_add(self.own.ids.epochs_gone);
        RackMap { generation, sets: live().map(route).collect() }
    }

    /// Answers requests for the map. An answer makes a device's failure final, so there is none until all members have
    /// reported: the client repeats the request.
    pub(crate) fn send_map(&mut self, now: Time, client: NodeId, request: u64) {
        if self.sets.iter().all(|s| members::heard(&s.view, &s.places, &self.servers, now)) {
            let map = Box::new(self.map(now));
            self.say(client, request, Control::Map(map));
        }
    }

    pub(crate) fn push_map(&mut self, now: Time) {
        let map = self.map(now);
        let clients: Vec<NodeId> = self.clients.keys().copied().collect();
        for c in clients {
            self.say(c, 0, Control::Map(Box::new(map.clone())));
        }
    }
}
