//! Waiting requests: reads by lane, writes together, each queue in its order.

use std::collections::BTreeMap;

use rackweave_core::Time;

use crate::{Item, Kind, SchedConfig};

/// Order of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Arrival,
    /// [`Item::began`]: Prio.
    Began,
    /// [`Item::place`]; the order of arrival is kept as well.
    Place,
}

/// Place in a queue: its order's key, then the order of arrival.
pub(crate) type Key = (u64, u64);

#[derive(Debug)]
pub(crate) struct Queue<T> {
    order: Order,
    items: BTreeMap<Key, Item<T>>,
    /// With [`Order::Place`]: the order of arrival.
    arrived: BTreeMap<u64, u64>,
}

impl<T> Queue<T> {
    pub(crate) fn new(order: Order) -> Queue<T> {
        Queue { order, items: BTreeMap::new(), arrived: BTreeMap::new() }
    }
    fn push(&mut self, number: u64, item: Item<T>) {
        let by = match self.order {
            Order::Arrival => item.enqueued_at.0,
            Order::Began => item.began().0,
            Order::Place => item.place,
        };
        if self.order == Order::Place {
            self.arrived.insert(number, by);
        }
        self.items.insert((by, number), item);
    }
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
    /// The first request and its key.
    pub(crate) fn first(&self) -> Option<(Key, &Item<T>)> {
        self.items.first_key_value().map(|(k, i)| (*k, i))
    }
    /// The first request from a place on.
    pub(crate) fn first_from(&self, place: u64) -> Option<Key> {
        self.items.range((place, 0)..).next().map(|(k, _)| *k)
    }
    /// The request that has waited longest (by Prio, if that is the queue's order).
    pub(crate) fn oldest(&self) -> Option<(Key, &Item<T>)> {
        if self.order != Order::Place {
            return self.first();
        }
        let (&number, &by) = self.arrived.first_key_value()?;
        self.items.get_key_value(&(by, number)).map(|(k, i)| (*k, i))
    }
    fn take(&mut self, key: Key) -> Option<Item<T>> {
        self.arrived.remove(&key.1);
        self.items.remove(&key)
    }
}

/// The queues of a vSSD.
#[derive(Debug)]
pub(crate) struct Queues<T> {
    pub(crate) cfg: SchedConfig,
    reads: Vec<Queue<T>>,
    writes: Queue<T>,
    number: u64,
    len: usize,
}

impl<T> Queues<T> {
    /// `plain` is the order if the scheduler is not coordinated.
    pub(crate) fn new(cfg: SchedConfig, lanes: u32, plain: Order) -> Queues<T> {
        let order = if cfg.coordinated { Order::Began } else { plain };
        let reads = (0..lanes).map(|_| Queue::new(order)).collect();
        Queues { cfg, reads, writes: Queue::new(order), number: 0, len: 0 }
    }
    pub(crate) fn push(&mut self, item: Item<T>) -> Result<(), Item<T>> {
        if self.len >= self.cfg.limit {
            return Err(item);
        }
        let queue = match item.kind {
            Kind::Read => match self.reads.get_mut(item.lane as usize) {
                Some(queue) => queue,
                None => return Err(item),
            },
            Kind::Write => &mut self.writes,
        };
        queue.push(self.number, item);
        self.number += 1;
        self.len += 1;
        Ok(())
    }
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    /// Requests of a kind that a lane could start. The lane must exist.
    pub(crate) fn of(&self, lane: u32, kind: Kind) -> &Queue<T> {
        match kind {
            Kind::Read => &self.reads[lane as usize],
            Kind::Write => &self.writes,
        }
    }
    pub(crate) fn take(&mut self, lane: u32, kind: Kind, key: Key) -> Option<Item<T>> {
        let queue = match kind {
            Kind::Read => &mut self.reads[lane as usize],
            Kind::Write => &mut self.writes,
        };
        let item = queue.take(key);
        self.len -= usize::from(item.is_some());
        item
    }
    pub(crate) fn take_first(&mut self, lane: u32, kind: Kind) -> Option<Item<T>> {
        let (key, _) = self.of(lane, kind).first()?;
        self.take(lane, kind, key)
    }
    /// Whether the request that has waited longest is past its target.
    pub(crate) fn late(&self, now: Time, lane: u32, kind: Kind) -> bool {
        self.of(lane, kind)
            .oldest()
            .is_some_and(|(_, i)| now.since(i.enqueued_at) + self.cfg.net(i.net) >= self.cfg.target(kind))
    }
}
