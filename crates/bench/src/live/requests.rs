//! The request code, common to all carriers: a client that keeps writes in flight, and a server that keeps blocks.

use std::time::Instant;

use bytes::Bytes;
use hdrhistogram::Histogram;
use rackweave_core::msg::io::WriteRequest;
use rackweave_core::msg::{Block, Body, Header, IoReply, IoRequest, Mutation, Op, Packet, SectorRange};
use rackweave_core::payload::Payload;
use rackweave_core::{
    BLOCK, Effects, Epoch, Event, Incarnation, NodeId, SECTOR, SECTORS_PER_BLOCK, SetId, Time, VolumeId, VssdId,
};
use rackweave_runtime::engine::Nodes;

pub const SERVER: NodeId = NodeId(2);
pub const CLIENT: NodeId = NodeId(3);
pub const NODES: u32 = 4;
/// Blocks that the server keeps, as in a write cache.
const KEPT: usize = 4096;
/// Longest recorded latency, ns.
const LATENCY_MAX: u64 = 10_000_000_000;

/// Blocks by number, as a write cache has them: the bytes shared, with the CRC32C of each 4 KiB.
#[derive(Debug)]
pub struct Blocks {
    kept: Vec<(Payload, u32)>,
    pub writes: u64,
}

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks { kept: vec![(Payload::zero(0), 0); KEPT], writes: 0 }
    }
}

impl Blocks {
    /// Stores data from this sector on. Callers pass the blocks' checksums if they have them (PN3).
    pub fn write(&mut self, first_sector: u64, data: &Payload) {
        let first = (first_sector * u64::from(SECTOR) / u64::from(BLOCK)) as usize;
        for (i, at) in (0..data.sectors()).step_by(SECTORS_PER_BLOCK as usize).enumerate() {
            let block = data.slice(at, SECTORS_PER_BLOCK.min(data.sectors() - at));
            let crc = block.sum();
            self.kept[(first + i) % KEPT] = (block, crc);
        }
        self.writes += 1;
    }
}

/// Latencies of one measured run, with its start and end.
#[derive(Debug)]
pub struct Measured {
    pub latencies: Histogram<u64>,
    pub seconds: f64,
}

/// Counts requests through a warm-up and the measured part.
#[derive(Debug)]
pub struct Load {
    pub bytes: usize,
    warm_up: u64,
    count: u64,
    pub sent: u64,
    pub done: u64,
    latencies: Histogram<u64>,
    pub from: Option<Instant>,
    seconds: f64,
}

impl Load {
    pub fn new(bytes: usize, warm_up: u64, count: u64) -> Load {
        let latencies = Histogram::new_with_max(LATENCY_MAX, 3).expect("bounds of a histogram");
        Load { bytes, warm_up, count, sent: 0, done: 0, latencies, from: None, seconds: 0.0 }
    }
    pub fn total(&self) -> u64 {
        self.warm_up + self.count
    }
    /// First sector of the next write.
    pub fn next_sector(&mut self) -> u64 {
        self.sent += 1;
        (self.sent - 1) * (self.bytes as u64 / u64::from(SECTOR))
    }
    /// Records the answer to a request sent at `sent`. True when the measured part begins.
    pub fn answered(&mut self, sent: Instant) -> bool {
        self.done += 1;
        let now = Instant::now();
        if let Some(from) = self.from {
            self.latencies.saturating_record((now - sent).as_nanos() as u64);
            self.seconds = (now - from).as_secs_f64();
        }
        if self.done == self.warm_up {
            self.from = Some(now);
            return true;
        }
        false
    }
    pub fn over(&self) -> bool {
        self.done >= self.total()
    }
    pub fn measured(self) -> Measured {
        Measured { latencies: self.latencies, seconds: self.seconds }
    }
}

fn packet(src: NodeId, dst: NodeId, op: Op, request: u64, body: Body) -> Packet {
    let header = Header {
        set: SetId(1),
        epoch: Epoch(1),
        incarnation: Incarnation(1),
        request,
        ..Header::addressed(op, VssdId(7))
    };
    Packet { src, dst, header, body }
}

/// The node of one end: a driver's loop runs it as it runs the rack's.
#[derive(Debug)]
pub enum End {
    Server(Blocks),
    Client(Box<Client>),
}

#[derive(Debug)]
pub struct Client {
    pub load: Load,
    depth: u64,
    data: Bytes,
    /// Send times of pending requests, by number modulo the depth.
    sent: Vec<Instant>,
    /// Set when the measured part has begun.
    pub begun: bool,
}

impl Client {
    pub fn new(load: Load, depth: u64) -> Client {
        let data = Bytes::from(vec![0x5a; load.bytes]);
        Client { load, depth, data, sent: vec![Instant::now(); depth as usize], begun: false }
    }
    fn send(&mut self, request: u64, fx: &mut Effects) {
        let range =
            SectorRange { volume: VolumeId(1), first: self.load.next_sector(), count: self.data.len() as u32 / SECTOR };
        let mutation =
            Mutation { client: Incarnation(1), sequence: request, floor: request.saturating_sub(self.depth) };
        let data = Payload::Bytes(self.data.clone());
        let write = WriteRequest { range, data, fua: false, attach: 1, mutation };
        self.sent[(request % self.depth) as usize] = Instant::now();
        fx.send(packet(CLIENT, SERVER, Op::Write, request, Body::Block(Block::Io(IoRequest::Write(Box::new(write))))));
    }
    fn handle(&mut self, event: &Event, fx: &mut Effects) {
        match event {
            Event::Timer => (0..self.depth).for_each(|n| self.send(n, fx)),
            Event::Packet(p) => {
                assert_eq!(p.body, Body::Block(Block::Reply(IoReply::Done)), "an answer");
                let slot = (p.header.request % self.depth) as usize;
                self.begun |= self.load.answered(self.sent[slot]);
                if self.load.sent < self.load.total() {
                    self.send(p.header.request + self.depth, fx);
                }
            }
            _ => {}
        }
    }
}

impl End {
    fn id(&self) -> NodeId {
        if matches!(self, End::Server(_)) { SERVER } else { CLIENT }
    }
}

impl Nodes for End {
    fn handle(&mut self, _: NodeId, _: Time, event: Event, fx: &mut Effects) {
        match self {
            End::Client(c) => c.handle(&event, fx),
            End::Server(blocks) => {
                let Event::Packet(p) = event else { return };
                let Body::Block(Block::Io(IoRequest::Write(w))) = p.body else { return };
                blocks.write(w.range.first, &w.data);
                fx.send(packet(SERVER, p.src, Op::Reply, p.header.request, Body::Block(Block::Reply(IoReply::Done))));
            }
        }
    }
    fn count(&self) -> u32 {
        NODES
    }
    fn hosts(&self, node: NodeId) -> bool {
        node == self.id()
    }
}
