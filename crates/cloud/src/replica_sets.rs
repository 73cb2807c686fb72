//! The storage layer of a rack: the replica sets of blocks, which a server's proxies use as clients (DF8).
//!
//! A generation's stripes are in the volume's sets in turn, at the addresses of a direct volume with its number, and the blocks of its map at
//! addresses above all of these. The volume's epoch is the writer generation that replicas fence by (protocol rule 14). Every change is made as FUA, so one that is answered is on the flash of every member of
//! its set.

use std::collections::BTreeMap;

use rackweave_client::{Composed, Failure, SetClient, SetClientConfig, SetMessage};
use rackweave_core::msg::io::WriteRequest;
use rackweave_core::msg::{
    Block, BlockRange, Body, Class, Control, Header, IoError, IoReply, IoRequest, Mutation, Op, Packet, SectorRange,
};
use rackweave_core::{Effects, Epoch, Incarnation, Payload, SECTORS_PER_BLOCK, SetId, Time, VolumeId};

use crate::chunk::{ChunkAnswer, ChunkOp, ChunkRequest};

#[derive(Debug)]
enum SetOp {
    Fence,
    Read {
        first: u64,
        count: u32,
    },
    Write {
        first: u64,
        data: Payload,
    },
    /// Blocks.
    Zero {
        first: u32,
        count: u32,
    },
}

#[derive(Debug)]
struct Request {
    tag: u64,
    volume: VolumeId,
    epoch: Epoch,
    op: SetOp,
}

impl SetMessage for Request {
    fn is_mutation(&self) -> bool {
        matches!(self.op, SetOp::Write { .. } | SetOp::Zero { .. })
    }
}

impl Request {
    fn compose(&self, mutation: Mutation) -> Composed {
        let (volume, attach) = (self.volume, self.epoch.0);
        let fua = !mutant!("cloud.move.not-durable");
        let io = match &self.op {
            SetOp::Fence => IoRequest::Fence { volume, attach },
            SetOp::Read { first, count } => IoRequest::read(SectorRange { volume, first: *first, count: *count }),
            SetOp::Write { first, data } => {
                let range = SectorRange { volume, first: *first, count: data.sectors() };
                IoRequest::Write(Box::new(WriteRequest { range, data: data.clone(), fua, attach, mutation }))
            }
            SetOp::Zero { first, count } => {
                let range = BlockRange { volume, first: *first, count: *count };
                IoRequest::Zero { range, fua, attach, mutation }
            }
        };
        let op = if matches!(self.op, SetOp::Read { .. }) { Op::Read } else { Op::Write };
        Composed { op, class: Class::Silver, body: Body::Block(Block::Io(io)) }
    }
    /// The answer that a good reply is. Any other reply counts as lost.
    fn answer(&self, reply: IoReply) -> Option<ChunkAnswer> {
        match (&self.op, reply) {
            (SetOp::Read { count, .. }, IoReply::Data(data)) if data.sectors() == *count => {
                Some(ChunkAnswer::Data(data))
            }
            (SetOp::Read { .. }, _) => None,
            (_, IoReply::Done) => Some(ChunkAnswer::Done),
            _ => None,
        }
    }
}

/// A server's requests to replica sets. Times passed to it never go back.
#[derive(Debug)]
pub struct ReplicaSets {
    sets: SetClient<Request>,
    /// Sets that have not answered a fence, by its tag.
    fences: BTreeMap<u64, usize>,
    answers: Vec<(u64, ChunkAnswer)>,
}

impl ReplicaSets {
    /// Of a server that the metadata service has admitted as this incarnation.
    pub fn new(cfg: SetClientConfig, incarnation: Incarnation) -> ReplicaSets {
        let sets = SetClient::admitted(cfg, incarnation);
        ReplicaSets { sets, fences: BTreeMap::new(), answers: Vec::new() }
    }
    /// Requests without an answer.
    pub fn pending(&self) -> usize {
        self.sets.len()
    }
    pub fn take_answers(&mut self) -> Vec<(u64, ChunkAnswer)> {
        std::mem::take(&mut self.answers)
    }
    /// When [`ReplicaSets::handle_timer`] is due.
    pub fn deadline(&mut self) -> Time {
        self.sets.deadline()
    }

    /// Begins a request. [`ReplicaSets::pump`] sends it.
    pub fn request(&mut self, now: Time, r: ChunkRequest, fx: &mut Effects) {
        let ChunkRequest { tag, generation: volume, epoch, shares, op } = r;
        let place = match &op {
            ChunkOp::Fence => {
                self.fences.insert(tag, shares.sets.len());
                for set in &shares.sets {
                    self.insert(*set, Request { tag, volume, epoch, op: SetOp::Fence });
                }
                return self.sets.ask_map(now, fx);
            }
            ChunkOp::Read { extent } | ChunkOp::Write { extent, .. } | ChunkOp::Zero { extent } => {
                shares.place(*extent)
            }
            ChunkOp::ReadMap { block } | ChunkOp::WriteMap { block, .. } => shares.place_map(*block),
        };
        let Some((set, first)) = place else {
            return self.answers.push((tag, ChunkAnswer::Failed));
        };
        let block = (first / u64::from(SECTORS_PER_BLOCK)) as u32;
        let op = match op {
            ChunkOp::Write { data, .. } | ChunkOp::WriteMap { data, .. } => SetOp::Write { first, data },
            ChunkOp::Zero { extent } => SetOp::Zero { first: block, count: extent.count / SECTORS_PER_BLOCK },
            ChunkOp::Read { extent } => SetOp::Read { first, count: extent.count },
            ChunkOp::ReadMap { .. } | ChunkOp::Fence => SetOp::Read { first, count: SECTORS_PER_BLOCK },
        };
        self.insert(set, Request { tag, volume, epoch, op });
    }
    fn insert(&mut self, set: SetId, request: Request) {
        let index = self.sets.set_slot(set);
        let key = match request.op {
            SetOp::Read { first, .. } => first / 128,
            _ => request.tag,
        };
        let slot = self.sets.insert(index, key, request);
        self.sets.enqueue(slot);
    }
    /// Sends what the windows have room for.
    pub fn pump(&mut self, now: Time, fx: &mut Effects) {
        while let Some(set) = self.sets.pop_due_set() {
            while let Some(slot) = self.sets.next_read(set) {
                self.send(now, slot, fx);
            }
            while let Some(slot) = self.sets.next_mutation(set) {
                self.send(now, slot, fx);
            }
        }
    }
    fn send(&mut self, now: Time, slot: u32, fx: &mut Effects) {
        self.sets.send(now, slot, Request::compose, fx);
    }
    fn finish(&mut self, slot: u32, answer: ChunkAnswer) {
        let Request { tag, op, .. } = self.sets.release(slot).what;
        if !matches!(answer, ChunkAnswer::Failed | ChunkAnswer::Unreadable) {
            self.sets.pay();
        }
        let SetOp::Fence = op else { return self.answers.push((tag, answer)) };
        let Some(left) = self.fences.get_mut(&tag) else { return };
        *left -= 1;
        if answer == ChunkAnswer::Failed || *left == 0 {
            self.fences.remove(&tag);
            self.answers.push((tag, answer));
        }
    }

    /// A packet that is no message of cloud disks: a replica's answer, or the rack's map.
    pub fn handle_packet(&mut self, now: Time, p: Packet, fx: &mut Effects) {
        match p.body {
            Body::Block(Block::Reply(reply)) => self.on_reply(now, &p.header, reply, fx),
            Body::Control(Control::Map(map)) => {
                self.sets.map_answered(p.header.request);
                if self.sets.take_map(&map) {
                    self.sets.stranded().into_iter().for_each(|slot| self.send(now, slot, fx));
                }
            }
            _ => {}
        }
    }
    fn on_reply(&mut self, now: Time, header: &Header, reply: IoReply, fx: &mut Effects) {
        let tag = header.request;
        let Some(slot) = self.sets.owner_of(tag) else { return };
        let IoReply::Failed(error) = reply else {
            if let Some(answer) = self.sets.message(slot).what.answer(reply) {
                self.sets.answered(now, slot, tag);
                self.finish(slot, answer);
            }
            return;
        };
        match self.sets.failed(now, slot, (tag, header.vssd), error, fx) {
            Failure::TryNext => self.send(now, slot, fx),
            Failure::Paused => {}
            Failure::Final => {
                let reads = matches!(self.sets.message(slot).what.op, SetOp::Read { .. });
                let unreadable = reads && matches!(error, IoError::Device | IoError::Corrupt);
                self.finish(slot, if unreadable { ChunkAnswer::Unreadable } else { ChunkAnswer::Failed });
            }
        }
    }
    pub fn handle_timer(&mut self, now: Time, fx: &mut Effects) {
        while let Some(tag) = self.sets.pop_timer(now) {
            if let Some(slot) = self.sets.timed_out(now, tag, fx) {
                self.send(now, slot, fx);
            }
        }
        self.sets.register_or_refresh(now, fx);
    }
}
