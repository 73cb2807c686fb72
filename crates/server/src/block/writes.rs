//! Client writes while the write cache has no room for them, here or at another member (RB6, RB7, RB10).
//!
//! A write with room starts at once and then waits only for the network. Without room the replica has one write at a
//! time, which requests credit from the members (protocol rule 9); the others wait here, in the scheduler's order. The
//! load of the dies is limited where pages are programmed, not here.

use rackweave_core::msg::{Block, Body, IoRequest, Packet};
use rackweave_core::{BlockAddr, SECTORS_PER_BLOCK, Span, Time};
use rackweave_sched::{Item, Kind, Room, Sched, SchedConfig, Scheduler};

/// Most waiting writes of one vSSD, as at a replica; a further one is refused and retried by its client.
pub const WRITES_MAX: usize = 4_096;

/// The waiting writes of one vSSD.
#[derive(Debug)]
pub struct Writes {
    sched: Sched<Packet>,
    /// Time until a write is dropped, as at a replica: its client has sent it again.
    wait_max: Span,
}

impl Writes {
    pub fn new(cfg: SchedConfig, wait_max: Span) -> Writes {
        Writes { sched: Sched::new(SchedConfig { limit: WRITES_MAX, ..cfg }, 1), wait_max }
    }
    pub fn len(&self) -> usize {
        self.sched.len()
    }
    pub fn is_empty(&self) -> bool {
        self.sched.is_empty()
    }
    /// Adds a write that arrived now and spends `net` on the network, in both directions. Returns a packet that is not
    /// a write or exceeds the bound.
    pub fn push(&mut self, now: Time, p: Packet, net: Span) -> Result<(), Packet> {
        let Body::Block(Block::Io(IoRequest::Write(w))) = &p.body else { return Err(p) };
        let block = (w.range.first / u64::from(SECTORS_PER_BLOCK)) as u32;
        let place = BlockAddr::new(w.range.volume, block).pack();
        let item = Item { enqueued_at: now, net, kind: Kind::Write, lane: 0, place, what: p };
        self.sched.push(item).map_err(|item| item.what)
    }
    /// The next write.
    pub fn pop(&mut self, now: Time) -> Option<Packet> {
        loop {
            let item = self.sched.pop(now, 0, Room { reads: false, writes: true })?;
            self.sched.unused(Kind::Write);
            if now.since(item.enqueued_at) <= self.wait_max {
                return Some(item.what);
            }
        }
    }
}

/// Whether it is a write; other mutations need no room for blocks.
pub fn is_write(p: &Packet) -> bool {
    matches!(p.body, Body::Block(Block::Io(IoRequest::Write(_))))
}

#[cfg(test)]
mod tests {
    use rackweave_core::msg::io::WriteRequest;
    use rackweave_core::msg::{Class, Header, Mutation, Op, SectorRange};
    use rackweave_core::{Epoch, Incarnation, NodeId, Payload, SetId, VolumeId, VssdId};
    use rackweave_sched::SchedKind;

    use super::*;

    fn packet(request: u64, body: Body) -> Packet {
        let (node, vssd) = (NodeId(9), VssdId(1));
        let (set, epoch, incarnation) = (SetId(0), Epoch(1), Incarnation(1));
        let (op, class, original_vssd) = (Op::Write, Class::Silver, vssd);
        let header = Header { op, vssd, lat: 0, class, original_vssd, set, epoch, incarnation, request };
        Packet { src: node, dst: node, header, body }
    }
    fn write(request: u64) -> Packet {
        let range = SectorRange { volume: VolumeId(1), first: 8 * request, count: 8 };
        let mutation = Mutation { client: Incarnation(1), sequence: request, floor: 0 };
        let write = WriteRequest { range, data: Payload::elided(4096, request), fua: false, attach: 1, mutation };
        packet(request, Body::Block(Block::Io(IoRequest::Write(Box::new(write)))))
    }

    #[test]
    fn what_waited_too_long_is_forgotten_and_only_writes_wait() {
        let (wait_max, start) = (Span::from_secs(2), Time::ZERO + Span::from_secs(1));
        let mut w = Writes::new(SchedConfig::new(SchedKind::Kyber, true), wait_max);
        let flush = packet(0, Body::Block(Block::Io(IoRequest::Flush { volume: VolumeId(1) })));
        assert!(!is_write(&flush) && w.push(start, flush, Span::ZERO).is_err());
        for i in 1..=3 {
            assert!(w.push(start + Span::from_millis(i), write(i), Span::ZERO).is_ok());
        }
        let now = start + Span::from_millis(2) + wait_max;
        assert_eq!(w.pop(now).map(|p| p.header.request), Some(2), "the first arrived more than two seconds ago");
        assert_eq!(w.len(), 1);
        assert!(w.pop(now + wait_max).is_none() && w.is_empty());
    }

    #[test]
    fn as_many_wait_as_may() {
        let mut w = Writes::new(SchedConfig::new(SchedKind::Deadline, false), Span::from_secs(2));
        let taken = (0..=WRITES_MAX as u64).filter(|&i| w.push(Time::ZERO, write(i), Span::ZERO).is_ok()).count();
        assert_eq!((taken, w.len()), (WRITES_MAX, WRITES_MAX));
    }
}
