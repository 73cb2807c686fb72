//! Messages: what each says, and what its answers mean.

use crate::trace;
use rackweave_client::{Composed, Failure, META, Sent, State};
use rackweave_cloud::map;
use rackweave_core::msg::io::WriteRequest;
use rackweave_core::msg::{
    Block, BlockRange, Body, Control, Header, IoError, IoReply, IoRequest, Mutation, Op, SectorRange,
};
use rackweave_core::volume::{self, VolumeInfo};
use rackweave_core::{BLOCK, Effects, Epoch, SECTORS_PER_BLOCK, Time};

use super::{Message, MsgOp, NONE, VolumeClient, VolumeMessage};
use crate::snapshot::MapRead;

/// The whole blocks a sector range touches.
fn blocks_of(r: &SectorRange) -> BlockRange {
    let spb = u64::from(SECTORS_PER_BLOCK);
    let first = r.first / spb;
    let end = (r.first + u64::from(r.count)).div_ceil(spb);
    BlockRange { volume: r.volume, first: first as u32, count: (end - first) as u32 }
}

impl MsgOp {
    /// The blocks it changes.
    pub(super) fn mutates(&self) -> Option<BlockRange> {
        match self {
            MsgOp::Write { range, .. } => Some(blocks_of(range)),
            MsgOp::Zero { range, .. } => Some(*range),
            _ => None,
        }
    }
    /// Whether `reply` answers it. Any other reply counts as lost.
    fn fits(&self, reply: &IoReply) -> bool {
        match (self, reply) {
            (MsgOp::Read(range), IoReply::Data(data)) => {
                data.sectors() == range.count || mutant!("block.stripe.read-short")
            }
            (MsgOp::Map(read), IoReply::Data(data)) => data.sectors() == read.range.count,
            (MsgOp::Status(_), IoReply::Extents(e)) => e.iter().any(|e| e.len >= u64::from(BLOCK)),
            (MsgOp::Read(_) | MsgOp::Map(_) | MsgOp::Status(_) | MsgOp::Control(_), _) => false,
            (_, reply) => *reply == IoReply::Done,
        }
    }
    pub(super) fn is_mutation(&self) -> bool {
        matches!(self, MsgOp::Write { .. } | MsgOp::Zero { .. })
    }
    pub(super) fn is_read(&self) -> bool {
        matches!(self, MsgOp::Read(_) | MsgOp::Map(_) | MsgOp::Status(_))
    }
    /// As the replicas get it.
    fn compose(&self, volume: &VolumeInfo, mutation: Mutation) -> Composed {
        let snapshot = volume.frozen.as_ref().map(|_| volume.id);
        let io = match self {
            MsgOp::Read(range) | MsgOp::Map(MapRead { range, .. }) => IoRequest::Read { range: *range, snapshot },
            MsgOp::Write { range, data, fua } => IoRequest::Write(Box::new(WriteRequest {
                range: *range,
                data: data.clone(),
                fua: *fua && !mutant!("block.fua.dropped"),
                attach: volume.attach,
                mutation,
            })),
            MsgOp::Zero { range, fua } => IoRequest::Zero { range: *range, fua: *fua, attach: volume.attach, mutation },
            MsgOp::Flush { .. } => IoRequest::Flush { volume: volume.id },
            MsgOp::Fence { attach } => IoRequest::Fence { volume: volume.id, attach: *attach },
            MsgOp::Status(range) => IoRequest::Status { range: *range, snapshot },
            MsgOp::Control(_) => unreachable!("control messages go to the metadata service"),
        };
        let op = if self.is_read() { Op::Read } else { Op::Write };
        Composed { op, class: volume.class, body: Body::Block(Block::Io(io)) }
    }
}

impl VolumeClient {
    pub(super) fn new_message(&mut self, p: u32, set: u32, part: u32, key: u64, op: MsgOp) -> u32 {
        let pending = &mut self.pending[p as usize];
        pending.live += 1;
        let volume = pending.volume;
        let message = VolumeMessage { op, pending: p, volume, part, blockers: 0, waiters: Vec::new() };
        self.sets.insert(set, key, message)
    }

    /// Creates a message to the set at `share` of the request's volume. It is sent when order and window permit.
    pub(super) fn submit(&mut self, p: u32, share: u32, part: u32, key: u64, op: MsgOp) {
        let volume = self.pending[p as usize].volume as usize;
        let set = self.volumes[volume].shares[share as usize].set;
        let range = op.mutates();
        let slot = self.new_message(p, set, part, key, op);
        if let Some(range) = range {
            self.volumes[volume].shares[share as usize].mutating += 1;
            if !mutant!("block.order.none") {
                self.take_order(slot, set, range);
            }
        }
        if self.sets.message(slot).what.blockers > 0 {
            self.stats.overlaps += 1;
        } else {
            self.sets.enqueue(slot);
        }
    }

    /// Sends what the windows of `set` have room for.
    pub(super) fn pump(&mut self, now: Time, set: u32, fx: &mut Effects) {
        while let Some(slot) = self.sets.next_read(set) {
            self.send(now, slot, fx);
        }
        while let Some(slot) = self.sets.next_mutation(set) {
            let volume = &self.volumes[self.sets.message(slot).what.volume as usize];
            match volume.check_writer() {
                Ok(()) => self.send(now, slot, fx),
                Err(e) => self.fail(slot, e, fx),
            }
        }
    }

    /// One more try.
    pub(super) fn send(&mut self, now: Time, slot: u32, fx: &mut Effects) {
        if !self.still_wanted(slot) {
            let p = self.release(slot).what.pending;
            return self.finish_if_done(p, fx);
        }
        let m = &self.sets.message(slot).what;
        if let MsgOp::Control(control) = &m.op {
            let control = (**control).clone();
            return self.sets.send_control(now, slot, control, fx);
        }
        let volume = &self.volumes[m.volume as usize].info;
        let sent = self.sets.send(now, slot, |m, mutation| m.op.compose(volume, mutation), fx);
        if let Sent::Again { tries, member, moved } = sent {
            let m = &self.sets.message(slot).what;
            let request = self.pending.get(m.pending as usize).map_or(0, |p| p.id.0);
            fx.trace(trace::CLIENT_RETRY, request, u64::from(tries));
            if moved && m.op.is_mutation() {
                fx.trace(trace::CLIENT_COORDINATOR_CHANGE, request, u64::from(member.0));
            }
        }
    }

    pub(super) fn on_timeout(&mut self, now: Time, tag: u64, fx: &mut Effects) {
        if let Some(slot) = self.sets.timed_out(now, tag, fx) {
            self.send(now, slot, fx);
        }
    }

    pub(super) fn on_reply(&mut self, now: Time, header: Header, reply: IoReply, fx: &mut Effects) {
        let tag = header.request;
        let Some(slot) = self.sets.owner_of(tag) else { return };
        let set = self.sets.message(slot).set;
        if header.epoch > self.sets.set(set).recovered {
            self.set_recovered(now, set, header.epoch, fx);
        }
        // A flush that must be repeated is gone by now.
        let Some(slot) = self.sets.owner_of(tag) else { return };
        let IoReply::Failed(error) = reply else {
            // An answer to any try completes it.
            let m = self.sets.message(slot);
            if !m.what.op.fits(&reply) || (m.last_only && m.tag != tag && !mutant!("block.read.any-try")) {
                return;
            }
            let read = m.what.op.is_read();
            self.sets.answered(now, slot, tag);
            if read && self.orders[set as usize].resending > 0 && !mutant!("block.resend.read-at-once") {
                return self.sets.pause(now, slot, fx);
            }
            return self.succeed(now, slot, header.epoch, reply, fx);
        };
        match self.sets.failed(now, slot, (tag, header.vssd), error, fx) {
            Failure::TryNext => self.send(now, slot, fx),
            Failure::Paused => {}
            Failure::Final => match error {
                IoError::Fenced { attach } => self.on_fenced(now, slot, attach, fx),
                IoError::NoSpace => self.fail(slot, volume::Error::NoSpace, fx),
                IoError::Corrupt => self.fail(slot, volume::Error::Corrupt, fx),
                IoError::Device | IoError::NotServing | IoError::Malformed => self.fail(slot, volume::Error::Io, fx),
            },
        }
    }

    pub(super) fn on_fenced(&mut self, now: Time, slot: u32, attach: u32, fx: &mut Effects) {
        let m = &self.sets.message(slot).what;
        if let MsgOp::Status(_) = m.op
            && let p = m.pending
            && !mutant!("block.status.outdated-fences")
            && self.is_outdated(p)
        {
            self.release(slot);
            return self.finish_if_done(p, fx);
        }
        let m = &self.sets.message(slot).what;
        let volume = &mut self.volumes[m.volume as usize];
        if (attach <= volume.info.attach || mutant!("block.fence.ignored")) && !matches!(m.op, MsgOp::Fence { .. }) {
            // Sent before our own newer attach: the same mutation goes again under it.
            return self.send(now, slot, fx);
        }
        if volume.fenced.is_none() {
            fx.trace(trace::CLIENT_FENCED, u64::from(volume.info.id.0), u64::from(attach));
        }
        volume.fenced = Some(attach);
        self.stats.fenced += 1;
        let error = volume.fenced_error();
        let v = m.volume;
        self.give_up_all(v, fx);
        self.fail(slot, error, fx);
    }

    fn succeed(&mut self, now: Time, slot: u32, recovered: Epoch, reply: IoReply, fx: &mut Effects) {
        let m = self.release(slot);
        self.sets.pay();
        let (p, part, volume) = (m.what.pending, m.what.part, m.what.volume);
        match m.what.op {
            MsgOp::Flush { mark } => {
                self.unflushed(volume, m.set, |u| u.flushed(mark));
                if let Some(s) = self.volumes[volume as usize].share_in(m.set) {
                    s.flushed = s.flushed.max(mark);
                }
            }
            MsgOp::Map(read) => return self.on_map_block(p, read, &reply, fx),
            MsgOp::Write { .. } | MsgOp::Zero { .. } => self.mutated(now, m, recovered, fx),
            _ => {}
        }
        self.take_part(p, part, reply, fx);
    }

    /// A block of a snapshot's map.
    fn on_map_block(&mut self, p: u32, read: MapRead, reply: &IoReply, fx: &mut Effects) {
        let v = self.pending[p as usize].volume as usize;
        let (Some(snapshot), IoReply::Data(data)) = (&mut self.volumes[v].snapshot, reply) else { return };
        match snapshot.found(p, read, data) {
            Ok(Some(next)) => self.submit(p, next.set, 0, next.block, MsgOp::Map(next)),
            Ok(None) => {
                self.cut(p);
                self.finish_if_done(p, fx);
            }
            Err(map::Malformed) => self.fail_part(p, volume::Error::Corrupt, fx),
        }
    }
    pub(super) fn fail(&mut self, slot: u32, error: volume::Error, fx: &mut Effects) {
        self.may_have_copies(slot, fx);
        let m = self.release(slot);
        self.fail_part(m.what.pending, error, fx);
    }
    /// The message ends without a good answer. A mutation that was sent may be in effect in part, or become so.
    fn may_have_copies(&mut self, slot: u32, fx: &mut Effects) {
        let m = self.sets.message(slot);
        if !m.what.op.is_mutation() || m.sequence == 0 || m.tries == 0 || mutant!("block.failed.no-copies") {
            return;
        }
        let (set, volume) = (m.set, m.what.volume);
        if let Some(s) = self.volumes[volume as usize].share_in(set) {
            s.copies = true;
        }
        self.order_unknown(volume, set, fx);
    }

    /// Removes the message from every table and wakes those that waited for it. Of its request only the count changes.
    pub(super) fn release(&mut self, slot: u32) -> Message {
        let mut m = self.sets.release(slot);
        if let Some(p) = self.pending.get_mut(m.what.pending as usize) {
            p.live -= 1;
        }
        if m.set == META {
            return m;
        }
        if let MsgOp::Map(_) = m.what.op
            && let Some(s) = &mut self.volumes[m.what.volume as usize].snapshot
        {
            s.arrived(m.what.pending);
        }
        if let Some(range) = m.what.op.mutates() {
            self.orders[m.set as usize].release(slot, range);
            if let Some(share) = self.volumes[m.what.volume as usize].share_in(m.set) {
                share.mutated += 1;
                share.mutating -= 1;
            }
        }
        self.unblock(&std::mem::take(&mut m.what.waiters));
        m
    }

    /// Gives request `p` up. A pending mutation may be applied or not; by the floor replicas do not apply it later.
    pub(super) fn abandon_messages(&mut self, p: u32, fx: &mut Effects) {
        let of = |(slot, m): (u32, &Message)| (m.what.pending == p).then_some(slot);
        let slots: Vec<u32> = self.sets.messages().filter_map(of).collect();
        for slot in slots {
            let m = self.sets.message_mut(slot);
            if m.state == State::Held {
                m.what.pending = NONE;
                continue;
            }
            self.may_have_copies(slot, fx);
            self.release(slot);
        }
    }

    /// The map has changed: messages that wait for a member, or for an answer of one that left, are sent again.
    pub(super) fn resend_stranded(&mut self, now: Time, fx: &mut Effects) {
        self.sets.stranded().into_iter().for_each(|slot| self.send(now, slot, fx));
    }

    pub(super) fn submit_control(&mut self, now: Time, p: u32, control: Control, fx: &mut Effects) {
        let slot = self.new_message(p, META, 0, 0, MsgOp::Control(Box::new(control)));
        self.send(now, slot, fx);
    }

    /// Registered: pending requests go out.
    pub(super) fn resend_control(&mut self, now: Time, fx: &mut Effects) {
        self.sets.controls().into_iter().for_each(|slot| self.send(now, slot, fx));
    }
}
