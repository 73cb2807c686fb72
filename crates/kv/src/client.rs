//! A client of the key-value stores on the log vSSDs of a rack's servers, each of which has one copy of its keys.
//!
//! It is a [`Node`]: it takes [`store::Op`]s and answers each once. A request is sent again until its store answers. A change names the
//! epoch of the store; if the store has another one by the time it answers, the change is in doubt, and is not sent again.

use rackweave_client::{Composed, SetClient, SetClientConfig, SetMessage};
use rackweave_core::msg::kv::{KEY_MAX, KvDelete, KvPut, VALUE_MAX};
use rackweave_core::msg::{Body, Class, Header, Kv, KvError, Mutation, Op};
use rackweave_core::request::{Reply, RequestId};
use rackweave_core::{Effects, Epoch, Event, Incarnation, Node, SetId, Time, VssdId, request, store};

use crate::trace;

/// Requests that may be pending.
pub const REQUESTS_MAX: usize = 4096;

#[derive(Debug)]
struct Request {
    id: RequestId,
    op: store::Op,
    /// The epoch in which it was sent as a change; zero: in none that a store can have.
    sent_in: Epoch,
}

impl SetMessage for Request {
    fn is_mutation(&self) -> bool {
        !matches!(self.op, store::Op::Get { .. })
    }
}

impl Request {
    fn compose(&self, mutation: Mutation) -> Composed {
        let (op, body) = match &self.op {
            store::Op::Get { key, .. } => (Op::Read, Kv::Get { key: key.clone() }),
            store::Op::Put { key, value, .. } => {
                (Op::Write, Kv::Put(Box::new(KvPut { key: key.clone(), mutation, value: value.clone() })))
            }
            store::Op::Delete { key, .. } => (Op::Write, Kv::Delete(Box::new(KvDelete { key: key.clone(), mutation }))),
        };
        Composed { op, class: Class::Silver, body: Body::Kv(body) }
    }
}

#[derive(Debug)]
pub struct KvClient {
    sets: SetClient<Request>,
    /// Of each store: its index among the sets, and its vSSD.
    stores: Vec<(u32, VssdId, SetId)>,
}

impl KvClient {
    /// A client of these stores, by number. `cfg.nonce` must differ in each run.
    pub fn new(cfg: SetClientConfig, stores: &[(VssdId, SetId)]) -> KvClient {
        let incarnation = Incarnation(cfg.nonce);
        let mut sets = SetClient::routed_by_owner(cfg, incarnation);
        let route = |&(vssd, set): &(VssdId, SetId)| {
            sets.route(set, Epoch(0), &[vssd], false);
            (sets.set_slot(set), vssd, set)
        };
        let stores = stores.iter().map(route).collect();
        KvClient { sets, stores }
    }
    /// Unanswered requests.
    pub fn pending(&self) -> usize {
        self.sets.len()
    }

    fn request(&mut self, now: Time, id: RequestId, op: store::Op, fx: &mut Effects) {
        let Some(&(set, ..)) = self.stores.get(op.store() as usize) else {
            let (store, stores) = (op.store(), self.stores.len() as u32);
            return fx.reply(Reply::new(id, Err(store::Error::NoStore { store, stores })));
        };
        let (key, value) = (op.key().len(), if let store::Op::Put { value, .. } = &op { value.len() } else { 0 });
        let refused = if key == 0 || key > KEY_MAX as usize {
            Some(store::Error::KeyLength { len: key, max: KEY_MAX })
        } else if value > VALUE_MAX as usize {
            Some(store::Error::ValueTooLong { len: value, max: VALUE_MAX })
        } else if self.sets.len() >= REQUESTS_MAX {
            Some(store::Error::Busy { limit: REQUESTS_MAX as u32 })
        } else {
            None
        };
        if let Some(e) = refused {
            return fx.reply(Reply::new(id, Err(e)));
        }
        let slot = self.sets.insert(set, 0, Request { id, op, sent_in: Epoch(0) });
        self.sets.enqueue(slot);
        self.pump(now, fx);
    }
    /// Sends what the windows have room for.
    fn pump(&mut self, now: Time, fx: &mut Effects) {
        while let Some(set) = self.sets.pop_due_set() {
            while let Some(slot) = self.sets.next_read(set) {
                self.send(now, slot, fx);
            }
            while let Some(slot) = self.sets.next_mutation(set) {
                self.send(now, slot, fx);
            }
        }
    }
    /// One more try.
    fn send(&mut self, now: Time, slot: u32, fx: &mut Effects) {
        let m = self.sets.message(slot);
        let epoch = self.sets.set(m.set).epoch;
        let (store, earlier) = (m.what.op.store(), m.what.sent_in);
        if m.what.is_mutation() {
            if earlier > Epoch(0) && earlier < epoch && !mutant!("kv.client.sends-doubtful") {
                return self.finish(slot, Err(store::Error::InDoubt { store }), fx);
            }
            self.sets.message_mut(slot).what.sent_in = epoch;
        }
        self.sets.send(now, slot, Request::compose, fx);
    }
    fn finish(&mut self, slot: u32, result: Result<store::Reply, store::Error>, fx: &mut Effects) {
        let m = self.sets.release(slot);
        if let Err(store::Error::InDoubt { .. }) = result {
            fx.trace(trace::KV_IN_DOUBT, m.what.id.0, 0);
        }
        self.sets.pay();
        fx.reply(Reply::new(m.what.id, result));
    }

    fn answer(&mut self, now: Time, header: &Header, body: Kv, fx: &mut Effects) {
        let tag = header.request;
        let Some(slot) = self.sets.owner_of(tag) else { return };
        let m = self.sets.message(slot);
        let (is_change, store) = (m.what.is_mutation(), m.what.op.store());
        let result = match body {
            Kv::Got(result) if !is_change => result.map(store::Reply::Value),
            Kv::Changed(result) if is_change => {
                let delete = matches!(m.what.op, store::Op::Delete { .. });
                result.map(|existed| if delete { store::Reply::Deleted { existed } } else { store::Reply::Done })
            }
            _ => return,
        };
        // Gets report a new epoch too, so that the next change is not in doubt.
        let (_, vssd, set) = self.stores[store as usize];
        self.sets.route(set, header.epoch, &[vssd], false);
        let error = match result {
            Ok(reply) => {
                self.sets.answered(now, slot, tag);
                return self.finish(slot, Ok(reply), fx);
            }
            Err(e) => e,
        };
        if error == KvError::Epoch {
            if self.sets.is_last_try(slot, tag) {
                self.send(now, slot, fx);
            }
            return;
        }
        if !self.sets.is_last_try(slot, tag) {
            return;
        }
        let error = match error {
            KvError::NotServing => {
                if self.sets.refused(now, slot, header.vssd, fx) {
                    self.send(now, slot, fx);
                }
                return;
            }
            KvError::Full => store::Error::Full { store },
            KvError::ValueTooLong { len, max } => store::Error::ValueTooLong { len: len as usize, max },
            KvError::KeyLength { len } => store::Error::KeyLength { len: len as usize, max: KEY_MAX },
            KvError::Corrupt => store::Error::Corrupt { store },
            KvError::Device | KvError::Epoch => store::Error::Device { store },
        };
        self.finish(slot, Err(error), fx);
    }
}

impl Node for KvClient {
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
        match event {
            Event::Request(request::Request { id, op: request::Op::Store(op) }) => self.request(now, id, op, fx),
            Event::Request(r) => fx.reply(Reply { id: r.id, result: r.op.not_served() }),
            Event::Packet(p) => {
                if let Body::Kv(body) = p.body {
                    self.answer(now, &p.header, body, fx);
                }
            }
            Event::Timer => {
                while let Some(tag) = self.sets.pop_timer(now) {
                    if let Some(slot) = self.sets.timed_out(now, tag, fx) {
                        self.send(now, slot, fx);
                    }
                }
            }
            Event::Completion(_) | Event::Stored { .. } => {}
        }
        self.pump(now, fx);
        fx.wake_at(self.sets.deadline());
    }
}
