//! The life of a message: order among overlapping mutations, window, tries, answer.

use crate::trace;
use rackweave_core::msg::io::WriteRequest;
use rackweave_core::msg::{
    Block, BlockRange, Body, Class, Control, Header, IoError, IoReply, IoRequest, Mutation, Op, Packet, SectorRange,
    message_of, try_of,
};
use rackweave_core::volume;
use rackweave_core::{BLOCK, BlockAddr, Effects, Epoch, SECTORS_PER_BLOCK, Time, VssdId};

use super::{Message, MsgOp, NONE, SLOTS_MAX, State, VolumeClient, next_try, serial_of, slot_of};

/// Mutations of at most this number of blocks are ordered block by block; longer ones by comparing ranges.
const LOCK_BLOCKS_MAX: u32 = 64;

/// Offline I/O waits this many times longer for its answer before another member gets it (PN10): servers hold it back,
/// and a second copy would double the held requests.
const OFFLINE_PATIENCE: u64 = 10;

/// The whole blocks a sector range touches.
fn blocks_of(r: &SectorRange) -> BlockRange {
    let spb = u64::from(SECTORS_PER_BLOCK);
    let first = r.first / spb;
    let end = (r.first + u64::from(r.count)).div_ceil(spb);
    BlockRange { volume: r.volume, first: first as u32, count: (end - first) as u32 }
}

fn overlap(a: &BlockRange, b: &BlockRange) -> bool {
    a.volume == b.volume && a.first < b.end() && b.first < a.end()
}

impl MsgOp {
    /// The blocks it changes.
    fn mutates(&self) -> Option<BlockRange> {
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
            (MsgOp::Status(_), IoReply::Extents(e)) => e.iter().any(|e| e.len >= u64::from(BLOCK)),
            (MsgOp::Read(_) | MsgOp::Status(_) | MsgOp::Control(_), _) => false,
            (_, reply) => *reply == IoReply::Done,
        }
    }
    pub(super) fn is_mutation(&self) -> bool {
        matches!(self, MsgOp::Write { .. } | MsgOp::Zero { .. })
    }
}

impl VolumeClient {
    fn new_message(&mut self, p: u32, set: u32, part: u32, key: u64, op: MsgOp) -> u32 {
        let serial = self.next_serial();
        let volume = self.pending[p as usize].volume;
        let entry = self.messages.vacant_entry();
        let slot = entry.key() as u32;
        debug_assert!(slot < SLOTS_MAX, "MESSAGES_MAX keeps the table this small");
        entry.insert(Message {
            op,
            state: State::Queued,
            pending: p,
            volume,
            set,
            part,
            tag: u64::from(serial) << 32 | u64::from(slot),
            target: VssdId(0),
            key,
            tries: 0,
            turn: 0,
            refused: 0,
            pauses: 0,
            failed: Vec::new(),
            final_by: 0,
            sent_at: Time::ZERO,
            last_only: false,
            sequence: 0,
            after: Epoch(0),
            blockers: 0,
            waiters: Vec::new(),
        });
        self.pending[p as usize].live += 1;
        slot
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
        if self.messages[slot as usize].blockers > 0 {
            self.messages[slot as usize].state = State::Blocked;
            self.stats.overlaps += 1;
        } else {
            self.enqueue(slot);
        }
    }

    fn wait_for(&mut self, slot: u32, older: u32) {
        let tag = self.messages[slot as usize].tag;
        self.messages[older as usize].waiters.push(tag);
        self.messages[slot as usize].blockers += 1;
    }

    fn take_order(&mut self, slot: u32, set: u32, range: BlockRange) {
        let long = range.count > LOCK_BLOCKS_MAX;
        if long {
            let older: Vec<u32> = self
                .messages
                .iter()
                .filter(|&(k, m)| {
                    k as u32 != slot && m.set == set && m.op.mutates().is_some_and(|r| overlap(&r, &range))
                })
                .map(|(k, _)| k as u32)
                .collect();
            older.into_iter().for_each(|o| self.wait_for(slot, o));
            self.sets[set as usize].long_zeros.push(slot);
            return;
        }
        for i in 0..self.sets[set as usize].long_zeros.len() {
            let zero = self.sets[set as usize].long_zeros[i];
            if self.messages[zero as usize].op.mutates().is_some_and(|r| overlap(&r, &range)) {
                self.wait_for(slot, zero);
            }
        }
        for block in range.first..range.end() {
            let addr = BlockAddr::new(range.volume, block);
            if let Some(older) = self.sets[set as usize].lock(addr, slot) {
                self.wait_for(slot, older);
            }
        }
    }

    fn enqueue(&mut self, slot: u32) {
        let m = &mut self.messages[slot as usize];
        m.state = State::Queued;
        let set = &mut self.sets[m.set as usize];
        let lane = if m.op.is_mutation() { &mut set.writes } else { &mut set.reads };
        lane.queue.push_back(m.tag);
        if !set.due {
            set.due = true;
            self.due.push(m.set);
        }
    }

    pub(super) fn live(&self, tag: u64) -> Option<u32> {
        let slot = slot_of(tag);
        self.messages.get(slot as usize).is_some_and(|m| m.tag == tag).then_some(slot)
    }

    /// Sends what the windows of `set` have room for.
    pub(super) fn pump(&mut self, now: Time, set: u32, fx: &mut Effects) {
        let window = self.sets[set as usize].window(self.cfg.window);
        loop {
            let s = &mut self.sets[set as usize];
            if s.reads.occupied >= window {
                break;
            }
            let Some(tag) = s.reads.queue.pop_front() else { break };
            if let Some(slot) = self.live(tag) {
                self.sets[set as usize].reads.occupied += 1;
                self.send(now, slot, fx);
            }
        }
        loop {
            let s = &mut self.sets[set as usize];
            if s.writes.occupied >= window || !s.may_mutate() {
                break;
            }
            let Some(tag) = s.writes.queue.pop_front() else { break };
            let Some(slot) = self.live(tag) else { continue };
            let s = &mut self.sets[set as usize];
            s.writes.occupied += 1;
            let (sequence, after) = (s.next_sequence(), s.recovered);
            let m = &mut self.messages[slot as usize];
            (m.sequence, m.after) = (sequence, after);
            let volume = &self.volumes[self.messages[slot as usize].volume as usize];
            match volume.check_writer() {
                Ok(()) => self.send(now, slot, fx),
                Err(e) => self.fail(slot, e, fx),
            }
        }
    }

    /// One more try, at the next member in turn.
    pub(super) fn send(&mut self, now: Time, slot: u32, fx: &mut Effects) {
        if !self.still_wanted(slot) {
            let p = self.release(slot).pending;
            return self.finish_if_done(p, fx);
        }
        let m = &mut self.messages[slot as usize];
        if m.tries > 0 {
            m.tag = next_try(m.tag);
        }
        if m.set == NONE {
            return self.send_control(now, slot, fx);
        }
        let set = &self.sets[m.set as usize];
        let Some(target) = set.pick(now, m.key, m.turn) else {
            m.tries += 1;
            m.final_by = 0;
            return self.pause(now, slot, fx);
        };
        if m.tries > 0 {
            let request = self.pending.get(m.pending as usize).map_or(0, |p| p.id.0);
            fx.trace(trace::CLIENT_RETRY, request, u64::from(m.tries));
            if m.op.is_mutation() && m.target != target {
                fx.trace(trace::CLIENT_COORDINATOR_CHANGE, request, u64::from(target.0));
            }
        }
        m.target = target;
        m.state = State::Flying;
        let (tag, tries, volume) = (m.tag, m.tries, m.volume as usize);
        let timeout = set.timeout().max(self.cfg.timeout).min(self.cfg.timeout_max);
        m.tries += 1;
        if tries == 0 {
            m.sent_at = now;
        }
        let (op, set_id, epoch) = (matches!(m.op, MsgOp::Read(_) | MsgOp::Status(_)), set.set, set.epoch);
        let op = if op { Op::Read } else { Op::Write };
        let body = Body::Block(Block::Io(self.body(slot)));
        let class = self.volumes[volume].info.class;
        let header = Header { epoch, class, ..self.header(op, target, set_id, tag) };
        self.stats.messages += 1;
        let dst = self.cfg.layout.switch_of(target);
        fx.send(Packet { src: self.cfg.node, dst, header, body });
        if class == Class::Copper {
            // Its servers serve others first.
            let wait = self.backoff(self.cfg.timeout * OFFLINE_PATIENCE, tries);
            self.timers.add(now + wait, tag);
        } else if tries == 0 && timeout == self.cfg.timeout {
            self.timers.add_ordered(now + timeout, tag);
        } else {
            let wait = self.backoff(timeout, tries);
            self.timers.add(now + wait, tag);
        }
    }

    fn body(&self, slot: u32) -> IoRequest {
        let m = &self.messages[slot as usize];
        let volume = &self.volumes[m.volume as usize].info;
        let mutation = || Mutation {
            client: self.incarnation.unwrap_or_default(),
            sequence: if mutant!("block.retry.new-sequence") {
                m.sequence + (u64::from(m.tries) << 40)
            } else {
                m.sequence
            },
            floor: self.sets[m.set as usize].floor(),
        };
        match &m.op {
            MsgOp::Read(range) => IoRequest::Read { range: *range },
            MsgOp::Write { range, data, fua } => IoRequest::Write(Box::new(WriteRequest {
                range: *range,
                data: data.clone(),
                fua: *fua && !mutant!("block.fua.dropped"),
                attach: volume.attach,
                mutation: mutation(),
            })),
            MsgOp::Zero { range, fua } => {
                IoRequest::Zero { range: *range, fua: *fua, attach: volume.attach, mutation: mutation() }
            }
            MsgOp::Flush { .. } => IoRequest::Flush { volume: volume.id },
            MsgOp::Fence { attach } => IoRequest::Fence { volume: volume.id, attach: *attach },
            MsgOp::Status(range) => IoRequest::Status { range: *range },
            MsgOp::Control(_) => unreachable!("control messages go to the metadata service"),
        }
    }

    /// No member can be addressed: waits, longer each time, and requests a newer map.
    pub(super) fn pause(&mut self, now: Time, slot: u32, fx: &mut Effects) {
        self.ask_map(now, fx);
        let m = &mut self.messages[slot as usize];
        m.state = State::Waiting;
        m.refused = 0;
        let pauses = m.pauses;
        m.pauses += 1;
        // An answer to an earlier try no longer decides whether it failed.
        m.tag = next_try(m.tag);
        let tag = m.tag;
        let wait = self.backoff(self.cfg.retry_delay, pauses);
        self.timers.add(now + wait, tag);
    }

    pub(super) fn on_timeout(&mut self, now: Time, tag: u64, fx: &mut Effects) {
        let Some(slot) = self.live(tag) else { return };
        let m = &mut self.messages[slot as usize];
        if m.state == State::Flying {
            self.stats.timeouts += 1;
            let (set, target) = (m.set, m.target);
            if set != NONE {
                self.sets[set as usize].suspect(target, now, self.cfg.timeout * 4);
                self.sets[set as usize].narrow(now, self.cfg.timeout);
                self.ask_map(now, fx);
                if !self.budget.take(now) {
                    self.stats.held_back += 1;
                    let wait = self.backoff(self.cfg.timeout, 0);
                    return self.timers.add(now + wait, tag);
                }
            }
            self.messages[slot as usize].turn += 1;
        }
        self.send(now, slot, fx);
    }

    pub(super) fn on_reply(&mut self, now: Time, header: Header, reply: IoReply, fx: &mut Effects) {
        let (tag, from) = (header.request, header.vssd);
        let slot = slot_of(tag);
        let ours =
            |m: &&Message| (serial_of(m.tag) == serial_of(tag) || mutant!("block.reply.any-message")) && m.set != NONE;
        let Some(m) = self.messages.get(slot as usize).filter(ours) else { return };
        let set = m.set;
        if header.epoch > self.sets[set as usize].recovered {
            self.set_recovered(now, set, header.epoch, fx);
        }
        // A flush that must be repeated is gone by now.
        let Some(m) = self.messages.get(slot as usize).filter(ours) else { return };
        let IoReply::Failed(error) = reply else {
            // An answer to any try completes it.
            if !m.op.fits(&reply) || (m.last_only && m.tag != tag && !mutant!("block.read.any-try")) {
                return;
            }
            self.sets[set as usize].widen();
            if try_of(tag) == 0 {
                let took = now.since(m.sent_at);
                self.sets[set as usize].answered_after(took);
            }
            let Some(m) = self.messages.get(slot as usize) else { return };
            let reads = matches!(m.op, MsgOp::Read(_) | MsgOp::Status(_));
            if reads && self.sets[set as usize].resending > 0 && !mutant!("block.resend.read-at-once") {
                return self.pause(now, slot, fx);
            }
            return self.succeed(now, slot, header.epoch, reply, fx);
        };
        if m.tag != tag || m.state != State::Flying {
            return;
        }
        match error {
            IoError::NotServing => self.refused(now, slot, from, fx),
            IoError::Device | IoError::Corrupt => self.device_failed(now, slot, from, error, fx),
            IoError::Fenced { attach } => self.on_fenced(now, slot, attach, fx),
            IoError::NoSpace => self.fail(slot, volume::Error::NoSpace, fx),
            IoError::Malformed => self.fail(slot, volume::Error::Io, fx),
        }
    }

    fn refused(&mut self, now: Time, slot: u32, from: VssdId, fx: &mut Effects) {
        self.stats.refusals += 1;
        self.ask_map(now, fx);
        let m = &mut self.messages[slot as usize];
        let set = &mut self.sets[m.set as usize];
        let who = if set.has(from) { from } else { m.target };
        set.suspect(who, now, self.cfg.timeout);
        m.turn += 1;
        m.refused += 1;
        if m.refused as usize >= set.members() {
            self.pause(now, slot, fx);
        } else {
            self.send(now, slot, fx);
        }
    }

    /// Another member may have a sound device, though it does not answer now. The request fails once each has failed
    /// and the metadata service has reported that no other member is expected.
    fn device_failed(&mut self, now: Time, slot: u32, from: VssdId, error: IoError, fx: &mut Effects) {
        let m = &mut self.messages[slot as usize];
        let set = &mut self.sets[m.set as usize];
        if !set.has(from) {
            // A read redirected to a former member: the addressed member is not concerned.
            return self.refused(now, slot, from, fx);
        }
        m.turn += 1;
        set.suspect(from, now, self.cfg.timeout);
        if !m.failed.contains(&from) {
            m.failed.push(from);
        }
        // A map requested from now on shows whether other members are expected.
        let asked_next = self.map_asks + 1;
        self.ask_map(now, fx);
        let m = &mut self.messages[slot as usize];
        let set = &mut self.sets[m.set as usize];
        if !set.all_in(&m.failed) {
            self.send(now, slot, fx);
        } else if m.final_by == 0 || self.map_answered < m.final_by {
            // All are tried again: one may have been repaired by then.
            m.failed.clear();
            m.final_by = if m.final_by == 0 { asked_next } else { m.final_by };
            self.pause(now, slot, fx);
        } else {
            let error = if error == IoError::Corrupt { volume::Error::Corrupt } else { volume::Error::Io };
            self.fail(slot, error, fx);
        }
    }

    fn on_fenced(&mut self, now: Time, slot: u32, attach: u32, fx: &mut Effects) {
        let m = &self.messages[slot as usize];
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
        self.budget.answered();
        let (p, part) = (m.pending, m.part);
        match m.op {
            MsgOp::Flush { mark } => {
                self.unflushed(m.volume, m.set, |u| u.flushed(mark));
                if let Some(s) = self.volumes[m.volume as usize].share_in(m.set) {
                    s.flushed = s.flushed.max(mark);
                }
            }
            MsgOp::Write { .. } | MsgOp::Zero { .. } => self.mutated(now, m, recovered, fx),
            _ => {}
        }
        self.take_part(p, part, reply, fx);
    }

    pub(super) fn fail(&mut self, slot: u32, error: volume::Error, fx: &mut Effects) {
        let m = self.release(slot);
        let refused = m.tries == 0 || (m.tries == 1 && error == volume::Error::NoSpace);
        if m.op.is_mutation() && !refused {
            self.order_unknown(m.volume, m.set, fx);
        }
        self.fail_part(m.pending, error, fx);
    }

    /// Removes the message from every table and wakes those that waited for it. Of its request only the count changes.
    pub(super) fn release(&mut self, slot: u32) -> Message {
        let m = self.messages.remove(slot as usize);
        if let Some(p) = self.pending.get_mut(m.pending as usize) {
            p.live -= 1;
        }
        if m.set == NONE {
            return m;
        }
        let set = &mut self.sets[m.set as usize];
        if m.state != State::Blocked && m.state != State::Ghost {
            let queued = m.state == State::Queued && m.tries == 0 && m.sequence == 0;
            let lane = if m.op.is_mutation() { &mut set.writes } else { &mut set.reads };
            lane.occupied -= u32::from(!queued);
        }
        if m.sequence != 0 {
            set.sequence_answered(m.sequence);
        }
        if let Some(range) = m.op.mutates() {
            if range.count > LOCK_BLOCKS_MAX {
                set.long_zeros.retain(|&z| z != slot);
            } else {
                (range.first..range.end()).for_each(|b| set.unlock(BlockAddr::new(range.volume, b), slot));
            }
            if let Some(share) = self.volumes[m.volume as usize].share_in(m.set) {
                share.mutated += 1;
                share.mutating -= 1;
            }
        }
        if !set.due {
            set.due = true;
            self.due.push(m.set);
        }
        self.unblock(&m.waiters);
        m
    }

    fn unblock(&mut self, waiters: &[u64]) {
        for &tag in waiters {
            let Some(slot) = self.live(tag) else { continue };
            let w = &mut self.messages[slot as usize];
            w.blockers -= 1;
            if w.blockers > 0 {
                continue;
            }
            if w.state == State::Ghost {
                self.release(slot);
            } else {
                self.enqueue(slot);
            }
        }
    }

    /// Gives request `p` up. A pending mutation may be applied or not; by the floor replicas do not apply it later.
    pub(super) fn abandon_messages(&mut self, p: u32, fx: &mut Effects) {
        let slots: Vec<u32> =
            self.messages.iter().filter(|(_, m)| m.pending == p).map(|(slot, _)| slot as u32).collect();
        for slot in slots {
            let m = &mut self.messages[slot as usize];
            if m.state == State::Blocked {
                m.pending = NONE;
                m.state = State::Ghost;
                continue;
            }
            if m.sequence != 0 {
                // Its effect may be read later, and must then be covered by the next flush: the set never counts as
                // clean.
                let (set, volume) = (m.set, m.volume as usize);
                if let Some(s) = self.volumes[volume].share_in(set) {
                    s.mutating += 1;
                }
                self.order_unknown(volume as u32, set, fx);
            }
            self.release(slot);
        }
    }

    /// The map has changed: messages that wait for a member, or for an answer of one that left, are sent again.
    pub(super) fn resend_stranded(&mut self, now: Time, fx: &mut Effects) {
        let slots: Vec<u32> = self
            .messages
            .iter()
            .filter(|(_, m)| match m.state {
                State::Waiting => m.set != NONE,
                State::Flying => m.set != NONE && !self.sets[m.set as usize].has(m.target),
                _ => false,
            })
            .map(|(slot, _)| slot as u32)
            .collect();
        for slot in slots {
            self.messages[slot as usize].refused = 0;
            self.send(now, slot, fx);
        }
    }

    pub(super) fn submit_control(&mut self, now: Time, p: u32, control: Control, fx: &mut Effects) {
        let slot = self.new_message(p, NONE, 0, 0, MsgOp::Control(Box::new(control)));
        self.send(now, slot, fx);
    }

    fn send_control(&mut self, now: Time, slot: u32, fx: &mut Effects) {
        let m = &mut self.messages[slot as usize];
        m.state = State::Flying;
        let (tag, tries) = (m.tag, m.tries);
        m.tries += 1;
        let MsgOp::Control(control) = &m.op else { return };
        let control = (**control).clone();
        if self.incarnation.is_some() {
            self.stats.messages += 1;
            // One number for all tries, so that the metadata service recognizes a repetition.
            self.packet_to_meta(control, message_of(tag), fx);
        }
        let wait = self.backoff(self.cfg.timeout, tries);
        self.timers.add(now + wait, tag);
    }

    /// Registered: pending requests go out.
    pub(super) fn resend_control(&mut self, now: Time, fx: &mut Effects) {
        let slots: Vec<u32> = self.messages.iter().filter(|(_, m)| m.set == NONE).map(|(s, _)| s as u32).collect();
        slots.into_iter().for_each(|slot| self.send(now, slot, fx));
    }
}
