//! Messages wait until the state that they depend on is durable.

use std::collections::VecDeque;

use bytes::Bytes;
use rackweave_cloud::Meta as Disks;
use rackweave_core::msg::Packet;
use rackweave_core::node::{STORES_MAX, StoreWrite};
use rackweave_core::request::Reply;
use rackweave_core::{Effects, map};
use rackweave_kv_replica::Membership;

use crate::keyspaces;

/// Most messages that wait for the store. A longer queue means that the store hangs; dropped messages are requested
/// again.
const WAITING_MAX: usize = 65_536;
/// Most writes under way, beside those of keys and cloud disks.
pub const WRITES_MAX: usize = STORES_MAX - Membership::WRITES_MAX - keyspaces::WRITES_MAX - Disks::WRITES_MAX;

enum Out {
    Packet(Packet),
    Reply(Reply),
}

/// Changes without a write, and messages in order of decision, each behind the writes before it. Changes are written at
/// the end of an event. While [`WRITES_MAX`] writes are pending, those of several events are gathered, each key with
/// its last value.
pub struct Outbox {
    /// Tag of the last write, and of the last durable one.
    issued: u64,
    durable: u64,
    waiting: VecDeque<(u64, Out)>,
    entries: Vec<(Bytes, Option<Bytes>)>,
    place: map::Map<Bytes, usize>,
    out: Vec<Out>,
    at_once: Vec<Out>,
}

impl Outbox {
    pub fn new() -> Outbox {
        Outbox {
            issued: 0,
            durable: 0,
            waiting: VecDeque::new(),
            entries: Vec::new(),
            place: map::map(),
            out: Vec::new(),
            at_once: Vec::new(),
        }
    }
    /// Whether the most writes are pending.
    pub fn is_full(&self) -> bool {
        self.issued - self.durable >= WRITES_MAX as u64
    }
    /// Adds a durable change, which replaces an earlier one of the same key in the same write. Returns the tag of the
    /// write.
    pub fn put(&mut self, key: Bytes, value: Option<Bytes>) -> u64 {
        if let Some(&i) = self.place.get(&key) {
            self.entries[i].1 = value;
        } else {
            self.place.insert(key.clone(), self.entries.len());
            self.entries.push((key, value));
        }
        self.issued + 1
    }
    /// Whether the write with this tag, and all earlier ones, are durable.
    pub fn is_durable(&self, tag: u64) -> bool {
        tag <= self.durable
    }
    /// Whether every decided change is durable.
    pub fn all_durable(&self) -> bool {
        self.issued == self.durable && self.entries.is_empty()
    }
    pub fn send(&mut self, p: Packet) {
        self.out.push(Out::Packet(p));
    }
    /// Sends a message that depends on no pending write, ahead of waiting ones.
    pub fn send_at_once(&mut self, p: Packet) {
        self.at_once.push(Out::Packet(p));
    }
    pub fn reply(&mut self, r: Reply) {
        self.out.push(Out::Reply(r));
    }
    pub fn reply_at_once(&mut self, r: Reply) {
        self.at_once.push(Out::Reply(r));
    }
    /// At the end of an event: emits one atomic write with all changes, and the messages that need not wait.
    pub fn flush(&mut self, fx: &mut Effects) {
        self.at_once.drain(..).for_each(|o| emit(o, fx));
        if !self.entries.is_empty() && (!self.is_full() || mutant!("meta.outbox.unbounded")) {
            self.issued += 1;
            self.place.clear();
            fx.store(StoreWrite { tag: self.issued, entries: std::mem::take(&mut self.entries) });
        }
        if self.issued == self.durable || mutant!("meta.outbox.early") {
            self.out.drain(..).for_each(|o| emit(o, fx));
            return;
        }
        let behind = self.issued + u64::from(!self.entries.is_empty());
        for o in self.out.drain(..) {
            if self.waiting.len() < WAITING_MAX || matches!(o, Out::Reply(_)) {
                self.waiting.push_back((behind, o));
            }
        }
    }
    /// The write `tag` and all earlier ones are durable.
    pub fn stored(&mut self, tag: u64, fx: &mut Effects) {
        self.durable = tag;
        while self.waiting.front().is_some_and(|(behind, _)| *behind <= tag) {
            let (_, o) = self.waiting.pop_front().expect("looked at it");
            emit(o, fx);
        }
    }
}

fn emit(o: Out, fx: &mut Effects) {
    match o {
        Out::Packet(p) => fx.send(p),
        Out::Reply(r) => fx.reply(r),
    }
}
