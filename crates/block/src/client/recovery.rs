//! A set that failed whole and recovered: answered, unflushed writes are sent again (`unflushed`).
//!
//! Until that is done no flush is sent, writes are not answered, and the set is not read: users of this client see no
//! loss. If something cannot be resent, pending requests and every later flush fail.

use rackweave_core::msg::{BlockRange, SectorRange};
use rackweave_core::request::RequestId;
use rackweave_core::volume;
use rackweave_core::{Effects, Epoch, SECTORS_PER_BLOCK, Time};

use rackweave_client::State;

use super::{Job, Message, MsgOp, NONE, Pending, VolumeClient, VolumeMessage};
use crate::trace;
use crate::unflushed::{Contents, Unflushed};

impl MsgOp {
    /// Contents that it leaves, and whether they are durable once answered.
    fn contents(self) -> Option<(Contents, bool)> {
        let spb = u64::from(SECTORS_PER_BLOCK);
        match self {
            MsgOp::Write { range, data, fua } => {
                let end = range.first + u64::from(range.count);
                Some((Contents { first: range.first, end, data: Some(data) }, fua))
            }
            MsgOp::Zero { range, fua } => {
                let (first, end) = (u64::from(range.first) * spb, u64::from(range.end()) * spb);
                Some((Contents { first, end, data: None }, fua))
            }
            _ => None,
        }
    }
}

impl VolumeClient {
    /// Changes the kept contents of a volume in one set.
    pub(super) fn unflushed(&mut self, volume: u32, set: u32, change: impl FnOnce(&mut Unflushed)) {
        let Some(s) = self.volumes[volume as usize].share_in(set) else { return };
        self.kept -= s.unflushed.bytes();
        change(&mut s.unflushed);
        self.kept += s.unflushed.bytes();
    }

    /// A mutation was answered by a set that last recovered in `recovered`, by the answer. A mutation first sent when a
    /// later recovery was known is not from before it, whatever the answer says; otherwise a member of another version
    /// could have it resent for ever.
    pub(super) fn mutated(&mut self, now: Time, m: Message, recovered: Epoch, fx: &mut Effects) {
        let (volume, set, recovered) = (m.what.volume, m.set, recovered.max(m.after));
        let Some((contents, durable)) = m.what.op.contents() else { return };
        let Some(stamp) = self.volumes[volume as usize].share_in(set).map(|s| s.mutated) else { return };
        self.unflushed(volume, set, |u| u.answered(contents, stamp, recovered, !durable));
        if self.kept > self.cfg.keep || self.volumes[volume as usize].fenced.is_some() {
            self.unflushed(volume, set, Unflushed::give_up);
        }
        if recovered < self.sets.set(set).recovered {
            // Answered before the failure; the answer arrived after it.
            self.resend(now, set, fx);
        }
    }

    /// A mutation may have happened: the kept contents may be older than the set's.
    pub(super) fn order_unknown(&mut self, volume: u32, set: u32, fx: &mut Effects) {
        self.unflushed(volume, set, Unflushed::give_up);
        self.look_for_loss(volume, set, fx);
    }

    /// This client is not the volume's writer, or was not for a while.
    pub(super) fn give_up_all(&mut self, volume: u32, fx: &mut Effects) {
        for i in 0..self.volumes[volume as usize].shares.len() {
            let set = self.volumes[volume as usize].shares[i].set;
            self.order_unknown(volume, set, fx);
        }
    }

    /// Pending and waiting mutations of the volume are of a past generation (rule 14).
    pub(super) fn fail_mutations(&mut self, volume: u32, fx: &mut Effects) {
        let error = self.volumes[volume as usize].fenced_error();
        let writes = |p: &Pending| matches!(p.job, Job::Write { .. } | Job::Zeroes { .. } | Job::Mutate);
        for (_, p) in self.pending.iter_mut().filter(|(_, p)| p.volume == volume && writes(p)) {
            p.error.get_or_insert_with(|| error.clone());
        }
        let of = |m: &VolumeMessage| m.volume == volume && m.op.is_mutation() && m.pending != NONE;
        let tags: Vec<u64> = self.sets.messages().filter(|(_, m)| of(&m.what)).map(|(_, m)| m.tag).collect();
        for tag in tags {
            if let Some(slot) = self.sets.live(tag) {
                self.stats.fenced += 1;
                self.fail(slot, error.clone(), fx);
            }
        }
    }

    fn look_for_loss(&mut self, volume: u32, set: u32, fx: &mut Effects) {
        let epoch = self.sets.set(set).recovered;
        if self.volumes[volume as usize].share_in(set).is_some_and(|s| s.unflushed.lost(epoch)) {
            self.lose(volume, set, fx);
        }
    }

    /// Unflushed writes are gone. Requests under way may have been answered in part by then: they fail.
    fn lose(&mut self, volume: u32, index: u32, fx: &mut Effects) {
        let (set, v) = (self.sets.set(index), &mut self.volumes[volume as usize]);
        if !v.lost {
            fx.trace(trace::WRITE_LOST, u64::from(set.set.0), u64::from(set.recovered.0));
        }
        v.lost = true;
        v.shares.iter_mut().filter(|s| s.set == index).for_each(|s| s.unflushed.reported(set.recovered));
        let error = volume::Error::Lost { volume: v.info.id };
        let writes = |p: &Pending| matches!(p.job, Job::Write { .. } | Job::Mutate | Job::Flush);
        for (_, p) in self.pending.iter_mut().filter(|(_, p)| p.volume == volume && writes(p)) {
            p.error.get_or_insert_with(|| error.clone());
        }
    }

    /// An answer showed a recovery of the set.
    pub(super) fn set_recovered(&mut self, now: Time, set: u32, epoch: Epoch, fx: &mut Effects) {
        self.sets.set_mut(set).recovered = epoch;
        self.resend(now, set, fx);
    }

    /// Resends mutations that were answered before the set's last recovery.
    fn resend(&mut self, now: Time, set: u32, fx: &mut Effects) {
        let epoch = self.sets.set(set).recovered;
        let volumes: Vec<u32> = self.volumes.iter().map(|(v, _)| v as u32).collect();
        for v in volumes {
            let Some(share) = self.volumes[v as usize].shares.iter().position(|s| s.set == set) else { continue };
            let (serial, mut old) = (self.sets.next_serial(), Vec::new());
            self.unflushed(v, set, |u| {
                old = if mutant!("block.resend.none") { Vec::new() } else { u.take_old(epoch, serial) };
            });
            self.look_for_loss(v, set, fx);
            if old.is_empty() {
                continue;
            }
            let (started, job) = (now, Job::Resend { set });
            let pending = Pending { id: RequestId(0), started, serial, volume: v, live: 0, error: None, job };
            let p = self.pending.insert(pending) as u32;
            self.orders[set as usize].resending += 1;
            self.resending += 1;
            for c in old {
                self.stats.resent += 1;
                fx.trace(trace::WRITE_RESENT, u64::from(self.sets.set(set).set.0), u64::from(epoch.0));
                self.submit(p, share as u32, 0, c.first / 128, self.again(v, c));
            }
        }
        if self.orders[set as usize].resending > 0 {
            self.park_flushes(set, fx);
        }
    }

    fn again(&self, volume: u32, c: Contents) -> MsgOp {
        let (volume, spb) = (self.volumes[volume as usize].info.id, u64::from(SECTORS_PER_BLOCK));
        let sectors = c.end - c.first;
        match c.data {
            Some(data) => {
                MsgOp::Write { range: SectorRange { volume, first: c.first, count: sectors as u32 }, data, fua: false }
            }
            None => {
                let range = BlockRange { volume, first: (c.first / spb) as u32, count: (sectors / spb) as u32 };
                MsgOp::Zero { range, fua: false }
            }
        }
    }

    /// False for a resent message whose contents were overwritten while it waited.
    pub(super) fn still_wanted(&mut self, slot: u32) -> bool {
        if self.resending == 0 {
            return true;
        }
        let Message { what: m, set, .. } = self.sets.message(slot);
        let resends = self.pending.get(m.pending as usize).filter(|p| matches!(p.job, Job::Resend { .. }));
        let Some(job) = resends.map(|p| p.serial) else { return true };
        let spb = u64::from(SECTORS_PER_BLOCK);
        let (first, end) = match &m.op {
            MsgOp::Write { range, .. } => (range.first, range.first + u64::from(range.count)),
            MsgOp::Zero { range, .. } => (u64::from(range.first) * spb, u64::from(range.end()) * spb),
            _ => return true,
        };
        let (volume, set) = (m.volume, *set);
        self.volumes[volume as usize]
            .share_in(set)
            .is_some_and(|s| s.unflushed.wanted(first, end, job) || mutant!("block.resend.overwritten"))
    }

    /// Pending flushes of the set are repeated afterwards: they might miss the resent writes.
    fn park_flushes(&mut self, set: u32, fx: &mut Effects) {
        let flush = |m: &Message| m.set == set && matches!(m.what.op, MsgOp::Flush { .. });
        let slots: Vec<u32> = self.sets.messages().filter(|(_, m)| flush(m)).map(|(k, _)| k).collect();
        for slot in slots {
            let p = self.release(slot).what.pending;
            self.park(p, set, fx);
        }
    }

    fn park(&mut self, p: u32, set: u32, fx: &mut Effects) {
        let Some(pending) = self.pending.get_mut(p as usize) else { return };
        pending.live += 1;
        self.orders[set as usize].parked.push((p, pending.serial));
        let s = self.sets.set(set);
        fx.trace(trace::FLUSH_AFTER_RECOVERY, u64::from(s.set.0), u64::from(s.recovered.0));
    }

    /// Request `p` flushes one set.
    pub(super) fn flush_share(&mut self, p: u32, share: u32, fx: &mut Effects) {
        let s = &self.volumes[self.pending[p as usize].volume as usize].shares[share as usize];
        let (set, mark) = (s.set, s.mutated);
        if self.orders[set as usize].resending > 0 && !mutant!("block.resend.flush-at-once") {
            return self.park(p, set, fx);
        }
        self.submit(p, share, 0, u64::from(share), MsgOp::Flush { mark });
    }

    /// Whether the answer of request `p`, a write, waits for the resent mutations, which may include a part of it.
    pub(super) fn hold(&mut self, p: u32, fx: &mut Effects) -> bool {
        let pending = &self.pending[p as usize];
        if self.resending == 0
            || mutant!("block.resend.answer-at-once")
            || pending.error.is_some()
            || !matches!(pending.job, Job::Write { .. } | Job::Mutate)
        {
            return false;
        }
        let behind = |set: u32| self.orders[set as usize].resending > 0;
        if !self.volumes[pending.volume as usize].shares.iter().any(|s| behind(s.set)) {
            return false;
        }
        fx.trace(trace::ANSWER_AFTER_RECOVERY, pending.id.0, 0);
        self.held.push((p, pending.serial));
        true
    }

    /// A [`Job::Resend`] has ended.
    pub(super) fn finish_resend(&mut self, volume: u32, set: u32, good: bool, fx: &mut Effects) {
        self.orders[set as usize].resending -= 1;
        self.resending -= 1;
        self.resent.push(set);
        if !good {
            self.order_unknown(volume, set, fx);
        }
    }

    /// Requests that waited for the set go on, if nothing is left to resend.
    pub(super) fn after_resend(&mut self, now: Time, set: u32, fx: &mut Effects) {
        if self.orders[set as usize].resending == 0 {
            self.resend(now, set, fx);
        }
        if self.orders[set as usize].resending > 0 {
            return;
        }
        for (p, serial) in std::mem::take(&mut self.orders[set as usize].parked) {
            let Some(pending) = self.pending.get_mut(p as usize).filter(|x| x.serial == serial && x.live > 0) else {
                continue;
            };
            pending.live -= 1;
            let volume = pending.volume as usize;
            if let Some(share) = self.volumes[volume].shares.iter().position(|s| s.set == set) {
                self.flush_share(p, share as u32, fx);
            }
        }
        // Earlier ones may read the contents from before, whenever their answers arrive.
        let sent = |m: &Message| matches!(m.state, State::Waiting | State::InFlight);
        let again = self.sets.messages().filter(|(_, m)| m.set == set && sent(m) && m.what.op.is_read());
        let again: Vec<u32> = again.map(|(k, _)| k).collect();
        for slot in again {
            self.sets.message_mut(slot).last_only = true;
            self.send(now, slot, fx);
        }
        for (p, serial) in std::mem::take(&mut self.held) {
            if self.pending.get(p as usize).is_some_and(|x| x.serial == serial) {
                self.finish_if_done(p, fx);
            }
        }
    }
}
