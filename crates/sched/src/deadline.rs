//! Deadline, as in Linux's mq-deadline (RB7): reads and writes have separate queues, each kept by address and by arrival.
//! A direction is served in batches, by address from the end of the last batch. A batch begins with the oldest request
//! if that is past its deadline. Reads go first, but a write batch follows after a number of read batches.
//!
//! Coordinated: a queue goes by Prio alone, network time counts towards the deadline, and a direction with an expired
//! deadline goes before one without.

use rackweave_core::Time;

use crate::queue::{Key, Order, Queues};
use crate::{Done, Item, Kind, Room, SchedConfig, Scheduler};

/// Requests of a batch (`fifo_batch`).
const BATCH: u32 = 16;
/// Read batches that may go before a waiting write (`writes_starved`).
const WRITES_STARVED: u32 = 2;

/// The deadline scheduler.
#[derive(Debug)]
pub struct Deadline<T> {
    queues: Queues<T>,
    /// Direction of the current batch, and the number of its requests served.
    direction: Kind,
    batched: u32,
    starved: u32,
    /// The place behind the last read of each lane, and behind the last write.
    read_at: Vec<u64>,
    write_at: u64,
}

impl<T> Deadline<T> {
    pub fn new(cfg: SchedConfig, lanes: u32) -> Deadline<T> {
        Deadline {
            queues: Queues::new(cfg, lanes, Order::Place),
            direction: Kind::Read,
            batched: BATCH,
            starved: 0,
            read_at: vec![0; lanes as usize],
            write_at: 0,
        }
    }

    /// Next request of the batch.
    fn next(&self, lane: u32, kind: Kind) -> Option<Key> {
        let queue = self.queues.of(lane, kind);
        if self.queues.cfg.coordinated {
            return queue.first().map(|(key, _)| key);
        }
        let from = match kind {
            Kind::Read => self.read_at[lane as usize],
            Kind::Write => self.write_at,
        };
        queue.first_from(from)
    }

    /// The direction of a new batch.
    fn choose(&mut self, now: Time, lane: u32, room: Room) -> Option<Kind> {
        let reads = room.reads && !self.queues.of(lane, Kind::Read).is_empty();
        let writes = room.writes && !self.queues.of(lane, Kind::Write).is_empty();
        if !reads && !writes {
            return None;
        }
        let urgent = writes
            && self.queues.cfg.coordinated
            && self.queues.late(now, lane, Kind::Write)
            && !self.queues.late(now, lane, Kind::Read);
        if reads && writes && !urgent && self.starved < WRITES_STARVED {
            self.starved += 1;
            return Some(Kind::Read);
        }
        if writes {
            self.starved = 0;
            return Some(Kind::Write);
        }
        Some(Kind::Read)
    }
}

impl<T> Scheduler<T> for Deadline<T> {
    fn push(&mut self, item: Item<T>) -> Result<(), Item<T>> {
        self.queues.push(item)
    }
    fn pop(&mut self, now: Time, lane: u32, room: Room) -> Option<Item<T>> {
        let goes_on = match self.direction {
            Kind::Read => room.reads,
            Kind::Write => room.writes,
        };
        let more = self.next(lane, self.direction).filter(|_| goes_on && self.batched < BATCH);
        let (kind, key) = if let Some(key) = more {
            (self.direction, key)
        } else {
            let kind = self.choose(now, lane, room)?;
            let next = self.next(lane, kind).filter(|_| kind == self.direction && !self.queues.late(now, lane, kind));
            let oldest = self.queues.of(lane, kind).oldest().map(|(key, _)| key);
            (self.direction, self.batched) = (kind, 0);
            (kind, next.or(oldest)?)
        };
        self.batched += 1;
        let item = self.queues.take(lane, kind, key)?;
        match kind {
            Kind::Read => self.read_at[lane as usize] = item.place.saturating_add(1),
            Kind::Write => self.write_at = item.place.saturating_add(1),
        }
        Some(item)
    }
    fn at_once(&mut self, _kind: Kind) -> bool {
        true
    }
    fn unused(&mut self, _kind: Kind) {}
    fn done(&mut self, _now: Time, _done: Done) -> bool {
        false
    }
    fn depth(&self, _kind: Kind) -> Option<(u32, u32)> {
        None
    }
    fn len(&self) -> usize {
        self.queues.len()
    }
    fn waiting(&self, lane: u32, kind: Kind) -> usize {
        self.queues.of(lane, kind).len()
    }
}
