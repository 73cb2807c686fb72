//! What the parts of a server use of it, and the continuations of its forced writes.

use std::collections::VecDeque;
use std::sync::Arc;

use rackweave_core::journal::{Change, Journal};
use rackweave_core::{Effects, Epoch, NodeId, Time, TracePoint, VolumeId};

use crate::chunk::{Asked, Asks, ChunkOp, Shares};
use crate::config::Config;
use crate::msg::{Body, Packet};
use crate::types::Serial;

/// What is done when a write is durable. Answers bear the epoch of their request.
#[derive(Clone, Debug)]
pub(crate) enum Forced {
    Sealed {
        volume: VolumeId,
        epoch: Epoch,
    },
    Answer(Packet),
    Batch {
        volume: VolumeId,
        epoch: Epoch,
        segment: u32,
        number: u64,
    },
    /// Records of a deleted volume were removed.
    Dropped {
        volume: VolumeId,
    },
    /// Nothing waits.
    Done,
}

pub(crate) struct Ctx<'a> {
    pub me: NodeId,
    pub meta: NodeId,
    pub now: Time,
    /// Whether the server's lease runs.
    pub leased: bool,
    pub volume: VolumeId,
    pub epoch: Epoch,
    /// Bytes of contents that the store can take.
    pub room: u64,
    pub config: &'a Config,
    /// Whether the storage layer makes no change of an earlier epoch.
    pub fenced: bool,
    pub shares: Arc<Shares>,
    pub asks: &'a mut Asks,
    pub journal: &'a mut Journal<Forced>,
    pub fx: &'a mut Effects<Packet>,
    /// Messages to other parts of the same server.
    pub own: &'a mut VecDeque<Packet>,
}

impl Ctx<'_> {
    pub fn packet(&self, to: NodeId, body: Body) -> Packet {
        Packet { from: self.me, to, volume: self.volume, epoch: self.epoch, body }
    }
    pub fn send(&mut self, to: NodeId, body: Body) {
        let packet = self.packet(to, body);
        if to == self.me { self.own.push_back(packet) } else { self.fx.send(packet) }
    }
    /// Requests something of a generation in the storage layer.
    pub fn ask_of(&mut self, generation: VolumeId, op: ChunkOp, what: Asked) {
        self.asks.ask((self.volume, self.epoch), Arc::clone(&self.shares), (generation, op), what);
    }
    /// Requests something of the current generation.
    pub fn ask(&mut self, op: ChunkOp, what: Asked) {
        self.ask_of(self.shares.backing.generation, op, what);
    }
    /// Writes the changes; then the message is sent.
    pub fn force(&mut self, changes: Vec<Change>, to: NodeId, body: Body) {
        let packet = self.packet(to, body);
        self.journal.force(self.fx, changes, Forced::Answer(packet));
    }
    pub fn trace(&mut self, point: TracePoint, a: u64, b: u64) {
        self.fx.trace(point, a, b);
    }
    pub fn trace_serial(&mut self, point: TracePoint, serial: Serial) {
        self.fx.trace(point, self.volume.0.into(), serial.0);
    }
}
