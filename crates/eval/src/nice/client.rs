//! A client host: threads that send one request at a time.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::{Effects, Event, Node, Rng, Span, Time};

use super::envelope::Envelope;

/// A client's side of a scheme.
pub trait Store {
    /// Begins a put and returns its number.
    fn put(&mut self, now: Time, key: Bytes, bytes: u64, fx: &mut Effects<Envelope>) -> u64;
    fn get(&mut self, now: Time, key: Bytes, fx: &mut Effects<Envelope>) -> u64;
    fn handle(&mut self, now: Time, event: Event<Envelope>, fx: &mut Effects<Envelope>);
    /// Numbers of the requests that have ended.
    fn done(&mut self) -> Vec<u64>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Get {
        key: u64,
    },
    Put {
        key: u64,
        bytes: u64,
    },
    /// A get, then a put of the same key: one operation.
    Modify {
        key: u64,
        bytes: u64,
    },
}

/// What a client does.
pub struct Load {
    pub threads: usize,
    /// Operations; a thread that finds none left ends.
    pub count: u64,
    /// Mean of the exponentially distributed time between an answer and the thread's next request.
    pub think: Span,
    /// The next operation, by the client's random numbers.
    pub next: Box<dyn FnMut(&mut Rng) -> Op>,
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub op: Op,
    pub began: Time,
    pub ended: Time,
}

impl Done {
    pub fn us(&self) -> f64 {
        self.ended.since(self.began).0 as f64 / 1e3
    }
}

pub fn key(number: u64) -> Bytes {
    Bytes::from(format!("user{number:020}"))
}

pub struct Client {
    store: Box<dyn Store>,
    rng: Rng,
    load: Option<Load>,
    /// When threads that think send next.
    thinking: Vec<Time>,
    /// When the store's timer is due.
    store_at: Time,
    under_way: BTreeMap<u64, (Op, Time)>,
    done: Vec<Done>,
}

impl Client {
    pub fn new(store: Box<dyn Store>, rng: Rng) -> Client {
        let (thinking, under_way, done) = (Vec::new(), BTreeMap::new(), Vec::new());
        Client { store, rng, load: None, thinking, store_at: Time::MAX, under_way, done }
    }
    pub fn begin(&mut self, now: Time, load: Load, fx: &mut Effects<Envelope>) {
        let threads = load.threads;
        self.load = Some(load);
        (0..threads).for_each(|_| self.think(now));
        self.go_on(now, fx);
    }
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.load.as_ref().is_none_or(|l| l.count == 0)
    }
    pub fn take_done(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.done)
    }
    fn think(&mut self, now: Time) {
        let Some(load) = &self.load else { return };
        let span = if load.think == Span::ZERO { 0.0 } else { self.rng.exponential(load.think.0 as f64) };
        self.thinking.push(now + Span(span as u64));
    }
    /// Threads that are due send their requests.
    fn go_on(&mut self, now: Time, fx: &mut Effects<Envelope>) {
        let due = self.thinking.iter().filter(|at| **at <= now).count();
        self.thinking.retain(|at| *at > now);
        for _ in 0..due {
            let Some(load) = self.load.as_mut().filter(|l| l.count > 0) else { break };
            load.count -= 1;
            let op = (load.next)(&mut self.rng);
            let number = match op {
                Op::Put { key: k, bytes } => self.store.put(now, key(k), bytes, fx),
                Op::Get { key: k } | Op::Modify { key: k, .. } => self.store.get(now, key(k), fx),
            };
            self.under_way.insert(number, (op, now));
        }
        if self.load.as_ref().is_some_and(|l| l.count == 0) {
            self.thinking.clear();
        }
        if let Some(at) = fx.take_wake() {
            self.store_at = at;
        }
        fx.wake_at(self.thinking.iter().copied().min().unwrap_or(Time::MAX).min(self.store_at));
    }
}

impl Node<Envelope> for Client {
    fn handle(&mut self, now: Time, event: Event<Envelope>, fx: &mut Effects<Envelope>) {
        let for_store = !matches!(event, Event::Timer) || self.store_at <= now;
        if for_store {
            if matches!(event, Event::Timer) {
                self.store_at = Time::MAX;
            }
            self.store.handle(now, event, fx);
        }
        for number in self.store.done() {
            match self.under_way.remove(&number) {
                Some((Op::Modify { key: k, bytes }, began)) => {
                    // Its second half, which ends as the whole.
                    let number = self.store.put(now, key(k), bytes, fx);
                    self.under_way.insert(number, (Op::Put { key: k, bytes }, began));
                }
                Some((op, began)) => {
                    self.done.push(Done { op, began, ended: now });
                    self.think(now);
                }
                None => {}
            }
        }
        self.go_on(now, fx);
    }
}
