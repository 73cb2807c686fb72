//! Nothing is said before what it rests on is durable.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use rackweave_core::msg::Packet;
use rackweave_core::node::StoreWrite;
use rackweave_core::request::Reply;
use rackweave_core::{Effects, map};

/// Messages that may wait for the store; a longer queue means a store that hangs, and what is dropped is asked again.
const WAITING_MAX: usize = 65_536;

enum Out {
    Packet(Packet),
    Reply(Reply),
}

/// Writes of the event in hand, and messages in the order they were decided, each behind the writes before it.
pub struct Outbox {
    issued: u64,
    outstanding: BTreeSet<u64>,
    waiting: VecDeque<(u64, Out)>,
    entries: Vec<(Bytes, Option<Bytes>)>,
    place: map::Map<Bytes, usize>,
    out: Vec<Out>,
    at_once: Vec<Packet>,
}

impl Outbox {
    pub fn new() -> Outbox {
        Outbox {
            issued: 0,
            outstanding: BTreeSet::new(),
            waiting: VecDeque::new(),
            entries: Vec::new(),
            place: map::map(),
            out: Vec::new(),
            at_once: Vec::new(),
        }
    }
    /// Adds a durable write; a later one of the same key in the same event replaces it.
    pub fn put(&mut self, key: Bytes, value: Option<Bytes>) {
        if let Some(&i) = self.place.get(&key) {
            self.entries[i].1 = value;
            return;
        }
        self.place.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
    }
    pub fn send(&mut self, p: Packet) {
        self.out.push(Out::Packet(p));
    }
    /// What rests on nothing that is not durable yet: ahead of what waits.
    pub fn send_at_once(&mut self, p: Packet) {
        self.at_once.push(p);
    }
    pub fn reply(&mut self, r: Reply) {
        self.out.push(Out::Reply(r));
    }
    /// At the end of an event: one atomic write of all entries, and the messages that need not wait.
    pub fn flush(&mut self, fx: &mut Effects) {
        self.at_once.drain(..).for_each(|p| fx.send(p));
        if !self.entries.is_empty() {
            self.issued += 1;
            self.outstanding.insert(self.issued);
            self.place.clear();
            fx.store(StoreWrite { tag: self.issued, entries: std::mem::take(&mut self.entries) });
        }
        if self.outstanding.is_empty() || mutant!("meta.outbox.early") {
            self.out.drain(..).for_each(|o| emit(o, fx));
            return;
        }
        for o in self.out.drain(..) {
            if self.waiting.len() < WAITING_MAX || matches!(o, Out::Reply(_)) {
                self.waiting.push_back((self.issued, o));
            }
        }
    }
    /// The write `tag` is durable.
    pub fn stored(&mut self, tag: u64, fx: &mut Effects) {
        self.outstanding.remove(&tag);
        let durable = self.outstanding.first().map_or(u64::MAX, |&first| first - 1);
        while self.waiting.front().is_some_and(|(behind, _)| *behind <= durable) {
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
