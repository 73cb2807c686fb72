//! Requests: checked, cut into messages, answered.

use std::ops::Range;

use rackweave_core::admin;
use rackweave_core::msg::{BlockRange, Control, IoReply, SectorRange};
use rackweave_core::request::{Op, Outcome, Reply, Request, RequestId};
use rackweave_core::volume::{self, Extent};
use rackweave_core::{BLOCK, Effects, Payload, SECTOR, Time, VolumeId};

use super::{
    Attach, AttachStage, Detach, Job, MESSAGES_CROWDED, MESSAGES_MAX, MsgOp, NONE, Newer, OfDisk, Pending,
    REQUEST_MESSAGES_MAX, VolumeClient,
};
use crate::snapshot::Next;
use crate::status::{self, STATUS_BLOCKS_MAX};
use crate::stripe::Striping;

const BLOCK_U64: u64 = BLOCK as u64;

/// Owner and arrival time of a request.
#[derive(Clone, Copy)]
struct Asker {
    now: Time,
    id: RequestId,
}

impl VolumeClient {
    pub(super) fn on_request(&mut self, now: Time, r: Request, fx: &mut Effects) {
        self.stats.requests += 1;
        if self.pending.len() >= self.cfg.requests_max as usize || self.sets.len() >= MESSAGES_MAX {
            self.stats.busy += 1;
            let limit = self.cfg.requests_max;
            return self.answer(r.id, r.op.busy(limit), fx);
        }
        match r.op {
            Op::Volume(op) => self.on_volume_op(now, r.id, op, fx),
            Op::Admin(op) => self.start_admin(now, r.id, op, Job::Admin, fx),
            other => self.answer(r.id, other.not_served(), fx),
        }
    }

    fn on_volume_op(&mut self, now: Time, id: RequestId, op: volume::Op, fx: &mut Effects) {
        if let Some(result) = self.at_once(&op) {
            return self.answer(id, result.into(), fx);
        }
        let who = Asker { now, id };
        let started = match op {
            volume::Op::Attach { name } => return self.start_attach(now, id, name, fx),
            volume::Op::Detach { volume } => self.start_detach(now, id, volume, fx),
            volume::Op::Read { volume, offset, len } => self.start_read(who, volume, offset, len).map(Some),
            volume::Op::Write { volume, offset, data, fua } => {
                let len = match &data {
                    Payload::Bytes(b) => b.len() as u64,
                    other => u64::from(other.len()),
                };
                self.start_write(who, volume, offset, len, Some(data), fua).map(Some)
            }
            // Zeroes that must take room are written as data.
            volume::Op::WriteZeroes { volume, offset, len, fua, allocate: true } => {
                self.start_write(who, volume, offset, len, None, fua).map(Some)
            }
            volume::Op::WriteZeroes { volume, offset, len, fua, allocate: false } => {
                self.start_zeroes(who, volume, offset, len, fua, true).map(Some)
            }
            // Whole blocks only: the sectors at the edges are unchanged.
            volume::Op::Trim { volume, offset, len, fua } => {
                self.start_zeroes(who, volume, offset, len, fua, false).map(Some)
            }
            volume::Op::Flush { volume } => self.start_flush(who, volume, fx).map(Some),
            volume::Op::BlockStatus { volume, offset, len } => self.start_status(who, volume, offset, len).map(Some),
        };
        match started {
            Ok(Some(p)) => self.finish_if_done(p, fx),
            Ok(None) => {}
            Err(e) => self.answer(id, Err(e).into(), fx),
        }
    }

    pub(super) fn answer(&mut self, id: RequestId, result: Outcome, fx: &mut Effects) {
        match result.is_ok() {
            true => self.stats.answered += 1,
            false => self.stats.failed += 1,
        }
        fx.reply(Reply { id, result });
    }

    fn volume(&self, volume: VolumeId) -> Result<u32, volume::Error> {
        match self.volume_index.get(&volume) {
            Some(&v) if self.volumes[v as usize].ready => Ok(v),
            _ => Err(volume::Error::NotAttached { volume }),
        }
    }
    fn writable(&mut self, volume: VolumeId, offset: u64, len: u64) -> Result<u32, volume::Error> {
        let v = self.volume(volume)?;
        self.volumes[v as usize].check(offset, len)?;
        self.volumes[v as usize].check_writer().inspect_err(|_| self.stats.fenced += 1)?;
        Ok(v)
    }

    pub(super) fn open(&mut self, now: Time, id: RequestId, volume: u32, job: Job) -> u32 {
        let serial = self.sets.next_serial();
        let slot = self.pending.insert(Pending { id, started: now, serial, volume, live: 0, error: None, job }) as u32;
        if let Some(d) = self.cfg.deadline {
            self.deadlines.push_back((now + d, slot, serial));
        }
        slot
    }

    fn start_read(&mut self, who: Asker, volume: VolumeId, offset: u64, len: u32) -> Result<u32, volume::Error> {
        let v = self.volume(volume)?;
        self.volumes[v as usize].check(offset, u64::from(len))?;
        self.volumes[v as usize].check_reader()?;
        let end = offset + u64::from(len);
        let p = self.open(who.now, who.id, v, Job::Read { at: offset, end, parts: Vec::new() });
        self.admit(who.now, p, u64::from(len));
        Ok(p)
    }

    /// Of `data`, or zeroes.
    fn start_write(
        &mut self,
        who: Asker,
        volume: VolumeId,
        offset: u64,
        len: u64,
        data: Option<Payload>,
        fua: bool,
    ) -> Result<u32, volume::Error> {
        let v = self.writable(volume, offset, len)?;
        let job = Job::Write { at: offset, end: offset + len, base: offset, data, fua };
        let p = self.open(who.now, who.id, v, job);
        self.admit(who.now, p, len);
        Ok(p)
    }

    /// Contents are neither read nor sent for them.
    fn start_zeroes(
        &mut self,
        who: Asker,
        volume: VolumeId,
        offset: u64,
        len: u64,
        fua: bool,
        edges: bool,
    ) -> Result<u32, volume::Error> {
        let v = self.writable(volume, offset, len)?;
        let p = self.open(who.now, who.id, v, Job::Zeroes { offset, end: offset + len, fua, edges });
        self.admit(who.now, p, 0);
        Ok(p)
    }

    /// The request may be cut.
    pub(super) fn begin(&mut self, p: u32) {
        if self.begin_on_disk(p) {
            return;
        }
        let pending = &mut self.pending[p as usize];
        match pending.job {
            Job::Zeroes { offset, end, fua, edges } if pending.error.is_none() => {
                pending.job = Job::Mutate;
                self.zero(p, offset, end, fua, edges);
            }
            _ => self.cut(p),
        }
    }

    fn zero(&mut self, p: u32, offset: u64, end: u64, fua: bool, edges: bool) {
        let (first, last) = (offset.div_ceil(BLOCK_U64), end / BLOCK_U64);
        if edges {
            self.zero_sectors(p, offset, end.min(first * BLOCK_U64), fua);
        }
        self.zero_blocks(p, first, last, fua);
        if edges && first <= last {
            self.zero_sectors(p, last * BLOCK_U64, end, fua);
        }
    }

    /// Part of one block.
    fn zero_sectors(&mut self, p: u32, offset: u64, end: u64, fua: bool) {
        if offset < end {
            self.write_piece(p, offset, end, Payload::zero((end - offset) as u32), fua);
        }
    }

    /// One message a set for the volume's blocks `first..end`.
    fn zero_blocks(&mut self, p: u32, first: u64, end: u64, fua: bool) {
        if first >= end {
            return;
        }
        let v = self.pending[p as usize].volume;
        for share in 0..self.volumes[v as usize].striping.sets() {
            let vol = &self.volumes[v as usize];
            if let Some(range) = local_range(&vol.striping, vol.info.id, share, first..end) {
                self.submit(p, share, 0, u64::from(range.first / 16), MsgOp::Zero { range, fua });
            }
        }
    }

    fn start_flush(&mut self, who: Asker, volume: VolumeId, fx: &mut Effects) -> Result<u32, volume::Error> {
        let v = self.volume(volume)?;
        let p = self.open(who.now, who.id, v, Job::Flush);
        let vol = &self.volumes[v as usize];
        for share in 0..vol.striping.sets() {
            let vol = &self.volumes[v as usize];
            let s = &vol.shares[share as usize];
            if (s.clean() || mutant!("block.flush.clean")) && vol.fenced.is_none() {
                self.stats.flushes_saved += 1;
                continue;
            }
            if share > 0 && mutant!("block.flush.one-set") {
                continue;
            }
            self.flush_share(p, share, fx);
        }
        Ok(p)
    }

    fn start_status(&mut self, who: Asker, volume: VolumeId, offset: u64, len: u64) -> Result<u32, volume::Error> {
        let v = self.volume(volume)?;
        let vol = &self.volumes[v as usize];
        vol.check(offset, len)?;
        let first = offset / BLOCK_U64;
        let last_block = (offset + len).div_ceil(BLOCK_U64).min(first + STATUS_BLOCKS_MAX);
        let of_disk = if vol.info.cloud.is_some() && len > 0 { OfDisk::Unknown } else { OfDisk::Extents(Vec::new()) };
        // Each generation of a snapshot has the addresses of a volume.
        let of: Vec<VolumeId> = vol.snapshot.as_ref().map_or_else(|| vec![volume], |s| s.generations().collect());
        let (end, striping, answers) = (offset + len, vol.striping, Vec::new());
        let sets: Vec<u32> = vol.shares.iter().map(|s| s.set).collect();
        let p = self.open(
            who.now,
            who.id,
            v,
            Job::Status { offset, end, last_block, striping, answers, of_disk, newer: Newer::default() },
        );
        if len > 0 && !self.begin_on_disk(p) {
            self.ask_sets(p, first..last_block, &sets, &of);
        }
        Ok(p)
    }
    /// Requests what the sets, by index, have mapped of blocks of each generation.
    pub(super) fn ask_sets(&mut self, p: u32, blocks: Range<u64>, sets: &[u32], generations: &[VolumeId]) {
        let Job::Status { striping, answers, .. } = &mut self.pending[p as usize].job else { return };
        let striping = *striping;
        let mut part = answers.len() as u32;
        answers.resize(answers.len() + sets.len() * generations.len(), Box::default());
        for generation in generations {
            for (share, set) in (0..).zip(sets) {
                if let Some(range) = local_range(&striping, *generation, share, blocks.clone()) {
                    let slot = self.new_message(p, *set, part, u64::from(range.first / 16), MsgOp::Status(range));
                    self.sets.enqueue(slot);
                }
                part += 1;
            }
        }
    }

    /// Informs the metadata service. Generation and state stay, for a later attach.
    fn start_detach(
        &mut self,
        now: Time,
        id: RequestId,
        volume: VolumeId,
        fx: &mut Effects,
    ) -> Result<Option<u32>, volume::Error> {
        let v = self.volume(volume)?;
        self.volumes[v as usize].lost = false;
        let info = &self.volumes[v as usize].info;
        let (name, attach) = (info.name.clone(), info.attach);
        // A pending attach may already have marked the volume as in use at the service.
        if self.pending.iter().any(|(_, p)| matches!(&p.job, Job::Attach(a) if a.name == info.name)) {
            self.answer(id, Ok(volume::Reply::Done).into(), fx);
            return Ok(None);
        }
        let job = Job::Detach(Detach { name, attach, followers: Vec::new() });
        self.start_admin(now, id, admin::Op::VolumeRelease { volume, attach }, job, fx);
        Ok(None)
    }
    /// Attaches that waited for a detach.
    pub(super) fn attach_followers(&mut self, now: Time, Detach { name, followers, .. }: Detach, fx: &mut Effects) {
        followers.into_iter().for_each(|id| self.start_attach(now, id, name.clone(), fx));
    }

    fn start_admin(&mut self, now: Time, id: RequestId, op: admin::Op, job: Job, fx: &mut Effects) {
        let p = self.open(now, id, NONE, job);
        self.submit_control(now, p, Control::Admin(Box::new(op)), fx);
    }

    /// A second attach of a volume that is attached here shares the first's generation, so that every connection of a
    /// gateway writes as one writer.
    fn start_attach(&mut self, now: Time, id: RequestId, name: Box<str>, fx: &mut Effects) {
        let held = self.volumes.iter().find(|(_, v)| v.info.name == name && v.ready && v.fenced.is_none());
        let held = held.map(|(_, v)| v.info.attach);
        let followers = self.pending.iter_mut().find_map(|(_, p)| match &mut p.job {
            Job::Attach(a) if a.name == name => Some(&mut a.followers),
            Job::Detach(d) if d.name == name && Some(d.attach) == held && !mutant!("block.attach.passes-release") => {
                Some(&mut d.followers)
            }
            _ => None,
        });
        if let Some(followers) = followers {
            if followers.len() >= self.cfg.requests_max as usize {
                self.stats.busy += 1;
                return self.answer(id, Err(volume::Error::Busy { limit: self.cfg.requests_max }).into(), fx);
            }
            followers.push(id);
            return;
        }
        let (stage, question) = match held {
            Some(attach) => {
                let hold = admin::Op::VolumeHold { name: name.clone(), attach };
                (AttachStage::Confirm, Control::Admin(Box::new(hold)))
            }
            None => (AttachStage::Request, Control::Attach { name: name.clone() }),
        };
        let p = self.open(now, id, NONE, Job::Attach(Attach { name, stage, followers: Vec::new() }));
        self.submit_control(now, p, question, fx);
    }

    /// Cuts the rest of a request into messages, up to the number that it may have pending.
    pub(super) fn cut(&mut self, p: u32) {
        let most = if self.sets.len() < MESSAGES_CROWDED { REQUEST_MESSAGES_MAX } else { 1 };
        while self.pending[p as usize].live < most {
            let pending = &mut self.pending[p as usize];
            if pending.error.is_some() {
                return;
            }
            let v = pending.volume as usize;
            match &mut pending.job {
                Job::Read { at, end, parts } if *at < *end => {
                    let vol = &mut self.volumes[v];
                    let next = vol.snapshot.as_mut().map(|s| s.next(p, *at));
                    let (volume, stop) = match next {
                        None => (vol.info.id, *end),
                        Some(Next::Data(generation, stop)) => (generation, stop.min(*end)),
                        Some(Next::Map(read)) => return self.submit(p, read.set, 0, read.block, MsgOp::Map(read)),
                        Some(Next::Wait) => return,
                    };
                    let piece = vol.striping.piece(*at, stop);
                    let part = parts.len() as u32;
                    *at += u64::from(piece.len);
                    if part > 0 || *at < *end {
                        parts.push(Payload::Zero { sectors: 0 });
                    }
                    let range = SectorRange { volume, first: piece.first_sector, count: piece.len / SECTOR };
                    self.submit(p, piece.set, part, piece.first_sector / 128, MsgOp::Read(range));
                }
                Job::Write { at, end, base, data, fua } if *at < *end => {
                    let piece = self.volumes[v].striping.piece(*at, *end);
                    let (from, fua) = (*at, *fua);
                    *at += u64::from(piece.len);
                    let data = match data {
                        Some(d) => d.slice(((from - *base) / u64::from(SECTOR)) as u32, piece.len / SECTOR),
                        None => Payload::zero(piece.len),
                    };
                    self.write_piece(p, from, from + u64::from(piece.len), data, fua);
                }
                _ => return,
            }
        }
    }

    fn write_piece(&mut self, p: u32, from: u64, to: u64, data: Payload, fua: bool) {
        let vol = &self.volumes[self.pending[p as usize].volume as usize];
        let piece = vol.striping.piece(from, to);
        let range = SectorRange { volume: vol.info.id, first: piece.first_sector, count: piece.len / SECTOR };
        self.submit(p, piece.set, 0, piece.first_sector / 128, MsgOp::Write { range, data, fua });
    }

    /// A message of request `p` was answered well.
    pub(super) fn take_part(&mut self, p: u32, part: u32, reply: IoReply, fx: &mut Effects) {
        let pending = &mut self.pending[p as usize];
        match (&mut pending.job, reply) {
            (Job::Read { parts, .. }, IoReply::Data(data)) => {
                if parts.is_empty() {
                    let id = pending.id;
                    self.pending.remove(p as usize);
                    return self.answer(id, Ok(volume::Reply::Data(data)).into(), fx);
                }
                parts[part as usize] = data;
            }
            (Job::Status { answers, .. }, IoReply::Extents(e)) => answers[part as usize] = e,
            _ => {}
        }
        self.cut(p);
        self.finish_if_done(p, fx);
    }

    /// A message of request `p` failed for good: the request fails when its other messages are answered.
    pub(super) fn fail_part(&mut self, p: u32, error: volume::Error, fx: &mut Effects) {
        let pending = &mut self.pending[p as usize];
        pending.error.get_or_insert(error);
        self.finish_if_done(p, fx);
    }

    pub(super) fn finish_if_done(&mut self, p: u32, fx: &mut Effects) {
        if self.pending[p as usize].live > 0 || self.hold(p, fx) || self.begins_again(p, fx) || self.asks_newer(p) {
            return;
        }
        let Pending { id, volume, error, job, .. } = self.pending.remove(p as usize);
        let result = match (error, job) {
            (error, Job::Attach(a)) => return self.finish_attach(id, volume, error, a, fx),
            (error, Job::Resend { set }) => return self.finish_resend(volume, set, error.is_none(), fx),
            (Some(e), _) => Err(e),
            (None, Job::Flush) if self.volumes[volume as usize].lost => {
                Err(volume::Error::Lost { volume: self.volumes[volume as usize].info.id })
            }
            (None, Job::Read { parts, .. }) => Ok(volume::Reply::Data(match parts.len() {
                0 => Payload::zero(0),
                _ => Payload::concat(&parts),
            })),
            (None, Job::Status { offset, end, last_block, striping, answers, of_disk, .. }) => {
                let of_each = answers.chunks(striping.sets() as usize);
                let each = of_each.map(|a| status::merge(&striping, offset / BLOCK_U64, last_block, a));
                let own = if let OfDisk::Extents(e) = of_disk { Some(e).filter(|e| !e.is_empty()) } else { None };
                let each = each.chain(own);
                let mut extents = each.reduce(|a, b| status::either(&a, &b)).unwrap_or_default();
                trim_edges(&mut extents, offset, end);
                Ok(volume::Reply::Extents(extents))
            }
            (None, _) => Ok(volume::Reply::Done),
        };
        self.answer(id, result.into(), fx);
    }

    /// The request's deadline has passed.
    pub(super) fn give_up(&mut self, now: Time, p: u32, fx: &mut Effects) {
        self.abandon_messages(p, fx);
        let pending = &mut self.pending[p as usize];
        let waited = now.since(pending.started);
        if let Job::Admin = pending.job {
            let id = self.pending.remove(p as usize).id;
            return self.answer(id, Err(admin::Error::TimedOut { waited }).into(), fx);
        }
        if let Job::Detach(_) = pending.job {
            return self.give_up_detach(now, p, fx);
        }
        pending.live = 0;
        pending.error = Some(volume::Error::TimedOut { waited });
        self.finish_if_done(p, fx);
    }
    /// The service may still release the generation, so the next attach gets another.
    fn give_up_detach(&mut self, now: Time, p: u32, fx: &mut Effects) {
        let Pending { id, started, job, .. } = self.pending.remove(p as usize);
        self.answer(id, Err(volume::Error::TimedOut { waited: now.since(started) }).into(), fx);
        let Job::Detach(d) = job else { return };
        let released = self.volumes.iter_mut().find(|(_, v)| v.info.name == d.name && v.info.attach == d.attach);
        if let Some((_, v)) = released {
            v.ready = false;
        }
        self.attach_followers(now, d, fx);
    }
}

/// A volume's blocks in a set, if any are there.
fn local_range(striping: &Striping, volume: VolumeId, share: u32, blocks: Range<u64>) -> Option<BlockRange> {
    let (a, b) = (striping.blocks_before(share, blocks.start), striping.blocks_before(share, blocks.end));
    (a < b).then(|| BlockRange { volume, first: a as u32, count: (b - a) as u32 })
}

/// Extents of whole blocks, cut to the requested bytes `offset..end`.
fn trim_edges(extents: &mut Vec<Extent>, offset: u64, end: u64) {
    if let Some(first) = extents.first_mut() {
        first.len -= offset % BLOCK_U64;
    }
    let total: u64 = extents.iter().map(|e| e.len).sum();
    let over = (offset + total).saturating_sub(end);
    if let Some(last) = extents.last_mut() {
        last.len -= over;
    }
    extents.retain(|e| e.len > 0);
}
