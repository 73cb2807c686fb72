//! First in, first out (RB7, "no-op"). Coordinated, the largest Prio goes first, of reads and writes together.

use rackweave_core::Time;

use crate::queue::{Order, Queues};
use crate::{Done, Item, Kind, Room, SchedConfig, Scheduler};

/// The no-op scheduler.
#[derive(Debug)]
pub struct Fifo<T> {
    queues: Queues<T>,
}

impl<T> Fifo<T> {
    pub fn new(cfg: SchedConfig, lanes: u32) -> Fifo<T> {
        Fifo { queues: Queues::new(cfg, lanes, Order::Arrival) }
    }
}

impl<T> Scheduler<T> for Fifo<T> {
    fn push(&mut self, item: Item<T>) -> Result<(), Item<T>> {
        self.queues.push(item)
    }
    fn pop(&mut self, _now: Time, lane: u32, room: Room) -> Option<Item<T>> {
        let first = |kind, may: bool| self.queues.of(lane, kind).first().map(|(key, _)| key).filter(|_| may);
        let kind = match (first(Kind::Read, room.reads), first(Kind::Write, room.writes)) {
            (None, None) => return None,
            (Some(read), Some(write)) if write < read => Kind::Write,
            (None, Some(_)) => Kind::Write,
            _ => Kind::Read,
        };
        self.queues.take_first(lane, kind)
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
