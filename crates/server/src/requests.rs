//! Latency of a vSSD's requests at its server: from the first arrival of a client's read or write to its answer.
//!
//! It is measured for every service alike: a request is known by its sender and number, and its answer repeats the
//! number. Refused requests do not count.

use rackweave_core::latency::{Latencies, Percentiles};
use rackweave_core::map::{Map, map};
use rackweave_core::msg::{Op, Packet, message_of};
use rackweave_core::{NodeId, Span, Time};

/// A request that has waited for longer gets no answer: its client has repeated it with another number, or is gone.
const FORGOTTEN_AFTER: Span = Span::from_secs(60);
/// Number of pending requests above which forgotten ones are looked for.
const PENDING_MIN: usize = 1024;

/// Latency of a vSSD's reads and writes, of any service. A message's tries count as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestStats {
    pub reads: Percentiles,
    pub writes: Percentiles,
}

#[derive(Debug)]
pub(crate) struct Requests {
    /// Arrival of each pending read and write, by sender and message.
    pending: Map<(NodeId, u64), (Time, Op)>,
    /// Number of pending requests at which forgotten ones are looked for.
    sweep_at: usize,
    reads: Latencies,
    writes: Latencies,
}

impl Requests {
    pub(crate) fn new() -> Requests {
        Requests { pending: map(), sweep_at: PENDING_MIN, reads: Latencies::default(), writes: Latencies::default() }
    }
    pub(crate) fn arrived(&mut self, now: Time, p: &Packet) {
        let measured = p.header.op == Op::Read || p.header.op == Op::Write && p.body.writes();
        if !measured {
            return;
        }
        if self.pending.len() >= self.sweep_at {
            self.pending.retain(|_, (since, _)| now.since(*since) < FORGOTTEN_AFTER);
            self.sweep_at = (2 * self.pending.len()).max(PENDING_MIN);
        }
        self.pending.entry((p.src, message_of(p.header.request))).or_insert((now, p.header.op));
    }
    /// The server sends this packet to a client.
    pub(crate) fn answered(&mut self, now: Time, p: &Packet) {
        let Some((since, op)) = self.pending.remove(&(p.dst, message_of(p.header.request))) else { return };
        if p.body.refuses() {
            return;
        }
        match op {
            Op::Read => self.reads.record(now.since(since)),
            _ => self.writes.record(now.since(since)),
        }
    }
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }
    pub(crate) fn stats(&self) -> RequestStats {
        RequestStats { reads: self.reads.percentiles(), writes: self.writes.percentiles() }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::msg::io::WriteRequest;
    use rackweave_core::msg::{Block, Body, Header, IoError, IoReply, IoRequest, Mutation, SectorRange, TRY_SHIFT};
    use rackweave_core::{Epoch, Incarnation, Payload, SetId, VolumeId, VssdId};

    use super::*;

    fn packet(op: Op, request: u64, body: Block) -> Packet {
        let (set, epoch, incarnation, vssd) = (SetId(0), Epoch(1), Incarnation(1), VssdId(1));
        let header = Header { set, epoch, incarnation, request, ..Header::addressed(op, vssd) };
        Packet { src: NodeId(9), dst: NodeId(9), header, body: Body::Block(body) }
    }
    fn read(request: u64) -> Packet {
        let range = SectorRange { volume: VolumeId(1), first: 8, count: 8 };
        packet(Op::Read, request, Block::Io(IoRequest::read(range)))
    }
    fn write(request: u64) -> Packet {
        let range = SectorRange { volume: VolumeId(1), first: 8, count: 8 };
        let mutation = Mutation { client: Incarnation(1), sequence: request, floor: 0 };
        let write = WriteRequest { range, data: Payload::elided(4096, request), fua: false, attach: 1, mutation };
        packet(Op::Write, request, Block::Io(IoRequest::Write(Box::new(write))))
    }
    fn reply(request: u64, reply: IoReply) -> Packet {
        packet(Op::Reply, request, Block::Reply(reply))
    }
    fn at(us: u64) -> Time {
        Time::ZERO + Span::from_micros(us)
    }

    #[test]
    fn a_request_counts_from_its_first_try_to_its_answer() {
        let mut r = Requests::new();
        r.arrived(at(10), &read(5));
        r.arrived(at(20), &write(6));
        r.arrived(at(30), &read(5 | 1 << TRY_SHIFT));
        r.answered(at(110), &reply(5 | 1 << TRY_SHIFT, IoReply::Data(Payload::zero(4096))));
        r.answered(at(111), &reply(5, IoReply::Data(Payload::zero(4096))));
        r.answered(at(520), &reply(6, IoReply::Done));
        let s = r.stats();
        assert_eq!((s.reads.count, s.writes.count), (1, 1));
        assert!(s.reads.max.0.abs_diff(100_000) < 1_000 && s.writes.max.0.abs_diff(500_000) < 5_000, "{s:?}");
        assert!(r.is_idle());
    }

    #[test]
    fn refusals_and_other_requests_do_not_count() {
        let mut r = Requests::new();
        r.arrived(at(1), &read(1));
        r.answered(at(2), &reply(1, IoReply::Failed(IoError::NotServing)));
        r.arrived(at(3), &packet(Op::Write, 2, Block::Io(IoRequest::Flush { volume: VolumeId(1) })));
        r.answered(at(4), &reply(2, IoReply::Done));
        assert!(r.is_idle() && r.stats() == RequestStats::default());
    }

    #[test]
    fn what_is_never_answered_is_forgotten() {
        let mut r = Requests::new();
        for n in 0..20 * PENDING_MIN as u64 {
            r.arrived(Time::ZERO + Span::from_millis(100 * n), &read(n << (TRY_SHIFT + 8)));
        }
        assert!(r.pending.len() <= 2 * PENDING_MIN, "{}", r.pending.len());
    }
}
