//! Storage I/O schedulers of a server: which of the waiting requests of one vSSD starts next.
//!
//! A server holds back requests beyond a limit in flight, and asks a [`Scheduler`] whenever one may start. [`Fifo`] is
//! the no-op scheduler of RackBlox (RB7); [`WriteTokens`] limits writes while reads are slow (PN10).

mod tokens;

use std::collections::VecDeque;

pub use tokens::{TokenConfig, WriteTokens};

use rackweave_core::{Span, Time};

/// Which queue of a scheduler a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Read,
    Write,
}

/// What a scheduler may look at, and the request itself.
#[derive(Clone, Debug)]
pub struct Item<T> {
    /// When the server got it.
    pub enqueued_at: Time,
    /// Network latency so far (untrusted; [`clamp_lat`] first).
    pub net: Span,
    pub kind: Kind,
    pub what: T,
}

/// Longest network latency that is believed: a sender could otherwise put itself before everybody.
pub const NET_MAX: Span = Span::from_secs(1);

/// The `lat` of a header as a span that may be used.
pub fn clamp_lat(lat_ns: u32) -> Span {
    Span::from_nanos(u64::from(lat_ns)).min(NET_MAX)
}

/// Chooses among waiting requests.
pub trait Scheduler<T> {
    /// Adds one; gives it back if the scheduler's bound is reached (the sender asks again).
    fn push(&mut self, item: Item<T>) -> Result<(), Item<T>>;
    /// Takes the one that goes next.
    fn pop(&mut self, now: Time) -> Option<Item<T>>;
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// First in, first out (RB7, "no-op").
#[derive(Debug)]
pub struct Fifo<T> {
    queue: VecDeque<Item<T>>,
    limit: usize,
}

impl<T> Fifo<T> {
    /// At most `limit` requests wait.
    pub fn new(limit: usize) -> Fifo<T> {
        Fifo { queue: VecDeque::new(), limit }
    }
}

impl<T> Scheduler<T> for Fifo<T> {
    fn push(&mut self, item: Item<T>) -> Result<(), Item<T>> {
        if self.queue.len() >= self.limit {
            return Err(item);
        }
        self.queue.push_back(item);
        Ok(())
    }
    fn pop(&mut self, _now: Time) -> Option<Item<T>> {
        self.queue.pop_front()
    }
    fn len(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(what: u32) -> Item<u32> {
        Item { enqueued_at: Time(u64::from(what)), net: Span::ZERO, kind: Kind::Read, what }
    }

    #[test]
    fn fifo_keeps_the_order() {
        let mut f = Fifo::new(8);
        for i in 0..8 {
            f.push(item(i)).expect("room");
        }
        for i in 0..8 {
            assert_eq!(f.pop(Time::ZERO).map(|x| x.what), Some(i));
        }
        assert!(f.pop(Time::ZERO).is_none());
    }

    #[test]
    fn a_full_queue_gives_the_request_back() {
        let mut f = Fifo::new(1);
        f.push(item(0)).expect("room");
        assert_eq!(f.push(item(7)).map_err(|i| i.what), Err(7));
        assert_eq!(f.len(), 1);
    }

    #[test]
    fn an_absurd_latency_is_clamped() {
        assert_eq!(clamp_lat(1_000), Span::from_micros(1));
        assert_eq!(clamp_lat(u32::MAX), NET_MAX);
    }
}
