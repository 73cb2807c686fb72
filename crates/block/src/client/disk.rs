//! Cloud disks: their requests go to the volume's [`VDisk`] instead of replica sets.
//!
//! The writer generation of the attach is the VDisk's incarnation, so a later writer of the volume fences it (protocol rules 14
//! and 25). Whatever a disk acknowledged is forced, so a flush has nothing to wait for.

use std::collections::{BTreeMap, VecDeque};

use rackweave_cloud::VDisk;
use rackweave_cloud::allocation::Allocated;
use rackweave_cloud::burst::{BurstConfig, Detector};
use rackweave_cloud::client::{Answer, Done, Op, REQUESTS_MAX, RequestError, SECTORS_MAX};
use rackweave_cloud::msg::Packet;
use rackweave_cloud::stripe::{Shape, Striping};
use rackweave_cloud::types::Extent;
use rackweave_core::volume;
use rackweave_core::{
    BLOCK, Effects, Event, Incarnation, Layout, Node, Payload, SECTOR, SECTORS_PER_BLOCK, Time, VolumeId, msg,
};

use super::{AttachStage, Job, Newer, OfDisk, VolumeClient};
use crate::snapshot::Snapshot;
use crate::volume::Volume;
use crate::{status, stripe as block, trace};

/// Most generations of a disk or snapshot that are asked for what they have allocated.
const GENERATIONS_ASKED: usize = 16;

/// A request by its slot and serial.
type Asked = (u32, u32);

pub(super) struct Disk {
    vdisk: VDisk<Detector>,
    /// Requests that are not cut to the end.
    waiting: VecDeque<Asked>,
    /// By number of the VDisk's request: the request, and the place of the answer in it.
    asked: BTreeMap<u64, (Asked, u32)>,
    /// The attach that waits for the first view.
    attaching: Option<Asked>,
    wake_at: Time,
    fx: Effects<Packet>,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk").field("attached", &self.vdisk.is_attached()).finish_non_exhaustive()
    }
}

impl Disk {
    /// Passes on what the VDisk sends, and notes when it is due.
    fn pass(&mut self, now: Time, fx: &mut Effects) {
        self.fx.packets.drain(..).for_each(|p| fx.send(p.into_message()));
        fx.traces.append(&mut self.fx.traces);
        self.fx.clear();
        self.wake_at = self.wake_at.min(self.vdisk.next_tick(now));
    }
    fn handle(&mut self, now: Time, event: Event<Packet>, fx: &mut Effects) {
        if matches!(event, Event::Timer) {
            self.wake_at = Time::MAX;
        }
        self.vdisk.handle(now, event, &mut self.fx);
        self.pass(now, fx);
    }
}

/// Whether each generation is asked for its part in the snapshot's allocation.
fn is_asked(snapshot: &Snapshot) -> bool {
    snapshot.generations().count() <= GENERATIONS_ASKED
}

/// The next part of a request, up to what a VDisk takes at once. `None`: it is cut to the end.
fn next_part(job: &mut Job) -> Option<(Op, u32)> {
    let most = u64::from(SECTORS_MAX) * u64::from(SECTOR);
    let sectors = |at: u64, end: u64| Extent::new(at / u64::from(SECTOR), ((end - at) / u64::from(SECTOR)) as u32);
    match job {
        Job::Read { at, end, parts } if *at < *end => {
            let (from, to) = (*at, (*end).min(*at + most));
            *at = to;
            parts.push(Payload::Zero { sectors: 0 });
            Some((Op::Read { extent: sectors(from, to) }, parts.len() as u32 - 1))
        }
        Job::Write { at, end, base, data, fua } if *at < *end => {
            let (from, to) = (*at, (*end).min(*at + most));
            *at = to;
            let extent = sectors(from, to);
            let data = match data {
                Some(d) => d.slice(((from - *base) / u64::from(SECTOR)) as u32, extent.count),
                None => Payload::Zero { sectors: extent.count },
            };
            Some((Op::Write { first: extent.first, data, fua: *fua }, 0))
        }
        Job::Zeroes { offset, end, edges, .. } => {
            let block = u64::from(BLOCK);
            if !*edges {
                // Whole blocks only: the sectors at the edges are unchanged.
                (*offset, *end) = (offset.next_multiple_of(block), *end / block * block);
            }
            if *offset >= *end {
                return None;
            }
            let (from, to) = (*offset, (*end).min(*offset + most));
            *offset = to;
            let extent = sectors(from, to);
            Some((if *edges { Op::Zeroes { extent } } else { Op::Discard { extent } }, 0))
        }
        Job::Status { offset, last_block, of_disk: of @ OfDisk::Unknown, .. } => {
            *of = OfDisk::Asked;
            let first = *offset / u64::from(BLOCK);
            Some((Op::Allocation { extent: sectors(first * u64::from(BLOCK), *last_block * u64::from(BLOCK)) }, 0))
        }
        _ => None,
    }
}

impl VolumeClient {
    fn cloud_volume(&self, id: VolumeId) -> Option<u32> {
        let v = *self.volume_index.get(&id)?;
        let Volume { info, snapshot, .. } = &self.volumes[v as usize];
        (info.cloud.is_some() || snapshot.is_some()).then_some(v)
    }
    /// Answers what needs nobody. All of a snapshot of many generations counts as allocated: every one would be asked.
    pub(super) fn at_once(&self, op: &volume::Op) -> Option<Result<volume::Reply, volume::Error>> {
        let id = match op {
            volume::Op::Flush { volume } | volume::Op::BlockStatus { volume, .. } => *volume,
            _ => return None,
        };
        let v = &self.volumes[self.cloud_volume(id)? as usize];
        if !v.ready {
            return Some(Err(volume::Error::NotAttached { volume: id }));
        }
        Some(match *op {
            volume::Op::BlockStatus { .. } if v.snapshot.as_ref().is_none_or(is_asked) => return None,
            volume::Op::BlockStatus { offset, len, .. } => {
                v.check(offset, len).and_then(|()| v.check_reader()).map(|()| {
                    let all = volume::Extent { len, mapped: true };
                    volume::Reply::Extents(if len > 0 { vec![all] } else { Vec::new() })
                })
            }
            _ if v.snapshot.is_some() => Ok(volume::Reply::Done),
            _ => v.check_writer().map(|()| volume::Reply::Done),
        })
    }
    /// Whether the request is a cloud disk's, which takes it from here.
    pub(super) fn begin_on_disk(&mut self, p: u32) -> bool {
        let pending = &mut self.pending[p as usize];
        let volume = &self.volumes[pending.volume as usize];
        if volume.info.cloud.is_none() {
            return false;
        }
        let id = volume.info.id;
        let Some(disk) = self.disks.get_mut(&id) else {
            // The client was fenced while the request waited for the volume's limit.
            pending.error.get_or_insert_with(|| volume.fenced_error());
            return true;
        };
        // As long as it is not cut to the end.
        pending.live += 1;
        disk.waiting.push_back((p, pending.serial));
        self.due_disks.push(id);
        true
    }

    /// The metadata service made this client the volume's writer.
    pub(super) fn attach_disk(&mut self, now: Time, p: u32, v: u32, shape: Shape, fx: &mut Effects) {
        let (id, attach) = (self.volumes[v as usize].info.id, self.volumes[v as usize].info.attach);
        if let Some(old) = self.disks.remove(&id) {
            self.fail_all(v, old, fx);
        }
        let parts = self.cfg.cloud.clone().zip(Striping::of(&shape).ok()).zip(Detector::new(BurstConfig::PAPER).ok());
        let Some(((config, striping), detector)) = parts else {
            return self.fail_part(p, volume::Error::WrongAnswer, fx);
        };
        let (me, run) = (self.cfg.sets.node, Incarnation(attach.into()));
        let vdisk = VDisk::new(me, Layout::META, id, striping, config, run, detector);
        let pending = &mut self.pending[p as usize];
        pending.live += 1;
        if let Job::Attach(a) = &mut pending.job {
            a.stage = AttachStage::Fence;
        }
        let mut disk = Disk {
            vdisk,
            waiting: VecDeque::new(),
            asked: BTreeMap::new(),
            attaching: Some((p, pending.serial)),
            wake_at: Time::MAX,
            fx: Effects::new(),
        };
        disk.handle(now, Event::Timer, fx);
        self.disks.insert(id, disk);
    }
    pub(super) fn grow_disk(&mut self, id: VolumeId, size: u64) {
        if let Some(disk) = self.disks.get_mut(&id) {
            disk.vdisk.grow(size);
        }
    }
    /// Its requests fail: another writer has the volume.
    fn fail_all(&mut self, v: u32, disk: Disk, fx: &mut Effects) {
        let error = self.volumes[v as usize].fenced_error();
        let asked = disk.asked.into_values().map(|a| a.0).chain(disk.waiting).chain(disk.attaching);
        for (p, serial) in asked {
            if let Some(pending) = self.pending.get_mut(p as usize).filter(|p| p.serial == serial) {
                pending.live = 0;
                self.fail_part(p, error.clone(), fx);
            }
        }
    }

    pub(super) fn on_disk_packet(&mut self, now: Time, p: msg::Packet, fx: &mut Effects) {
        let Some(p) = Packet::of_message(p) else { return };
        let id = p.volume;
        if let Some(disk) = self.disks.get_mut(&id) {
            disk.handle(now, Event::Packet(p), fx);
            self.due_disks.push(id);
        }
    }
    pub(super) fn disk_timers(&mut self, now: Time, fx: &mut Effects) {
        for (id, disk) in self.disks.iter_mut().filter(|(_, d)| d.wake_at <= now) {
            disk.handle(now, Event::Timer, fx);
            self.due_disks.push(*id);
        }
    }
    pub(super) fn disks_deadline(&self) -> Time {
        self.disks.values().map(|d| d.wake_at).min().unwrap_or(Time::MAX)
    }
    /// Takes answers, and cuts what waits.
    pub(super) fn settle_disks(&mut self, now: Time, fx: &mut Effects) {
        while let Some(id) = self.due_disks.pop() {
            let Some(v) = self.cloud_volume(id) else { continue };
            let Some(mut disk) = self.disks.remove(&id) else { continue };
            if disk.vdisk.is_fenced() {
                let fenced = &mut self.volumes[v as usize].fenced;
                if fenced.is_none() {
                    self.stats.fenced += 1;
                }
                fenced.get_or_insert(0);
                self.fail_all(v, disk, fx);
                continue;
            }
            if disk.vdisk.is_attached()
                && let Some((p, serial)) = disk.attaching.take()
            {
                self.one_less(p, serial, fx);
            }
            for done in disk.vdisk.take_done() {
                self.disk_answered(now, &mut disk, done, fx);
            }
            self.cut_for_disk(now, &mut disk, fx);
            disk.pass(now, fx);
            self.disks.insert(id, disk);
        }
    }
    /// One of the request's parts is done.
    fn one_less(&mut self, p: u32, serial: u32, fx: &mut Effects) {
        if let Some(pending) = self.pending.get_mut(p as usize).filter(|p| p.serial == serial) {
            pending.live -= 1;
            self.finish_if_done(p, fx);
        }
    }
    fn disk_answered(&mut self, now: Time, disk: &mut Disk, done: Done, fx: &mut Effects) {
        let Some(((p, serial), part)) = disk.asked.remove(&done.request) else { return };
        if let Some(pending) = self.pending.get_mut(p as usize).filter(|p| p.serial == serial) {
            match (&mut pending.job, done.answer) {
                (Job::Read { parts, .. }, Answer::Data(data)) => parts[part as usize] = data,
                (Job::Status { .. }, Answer::Allocated(allocated)) => self.ask_generations(now, p, allocated, fx),
                (_, Answer::Unreadable) => pending.error = Some(volume::Error::Corrupt),
                _ => {}
            }
        }
        self.one_less(p, serial, fx);
    }
    /// The log and the overlays have told what they have: the disk's generations have the rest.
    fn ask_generations(&mut self, now: Time, p: u32, allocated: Allocated, fx: &mut Effects) {
        let pending = &mut self.pending[p as usize];
        let unit = self.volumes[pending.volume as usize].info.stripe_blocks;
        let Job::Status { offset, last_block, striping, of_disk, .. } = &mut pending.job else { return };
        let first = *offset / u64::from(BLOCK);
        *last_block = (*last_block).min(allocated.end / u64::from(SECTORS_PER_BLOCK)).max(first + 1);
        let generations: Vec<VolumeId> = allocated.backing.chain().take(GENERATIONS_ASKED + 1).collect();
        let sets = block::Striping::new(allocated.sets.len() as u32, unit);
        let Some(sets) = sets.filter(|_| generations.len() <= GENERATIONS_ASKED) else {
            let len = (*last_block - first) * u64::from(BLOCK);
            *of_disk = OfDisk::Extents(vec![volume::Extent { len, mapped: true }]);
            return;
        };
        *striping = sets;
        *of_disk = OfDisk::Extents(status::covering(first, *last_block, &allocated.extents));
        let last = *last_block;
        let sets: Vec<u32> = allocated.sets.iter().map(|&s| self.set_slot(s)).collect();
        self.sets.ask_map(now, fx);
        if mutant!("block.status.all-at-once") {
            return self.ask_sets(p, first..last, &sets, &generations);
        }
        if let Job::Status { newer, .. } = &mut self.pending[p as usize].job {
            *newer = Newer { generations, sets };
        }
        self.asks_newer(p);
    }
    /// Whether a further generation of the disk is asked.
    pub(super) fn asks_newer(&mut self, p: u32) -> bool {
        loop {
            let pending = &mut self.pending[p as usize];
            let Job::Status { offset, last_block, newer, .. } = &mut pending.job else { return false };
            let Some(generation) = newer.generations.pop().filter(|_| pending.error.is_none()) else { return false };
            let (blocks, sets) = (*offset / u64::from(BLOCK)..*last_block, newer.sets.clone());
            let before = pending.live;
            self.ask_sets(p, blocks, &sets, &[generation]);
            if self.pending[p as usize].live > before {
                return true;
            }
        }
    }
    /// A generation of the disk is gone, as after it was flattened: its proxies know others by now.
    pub(super) fn is_outdated(&mut self, p: u32) -> bool {
        let Some(pending) = self.pending.get_mut(p as usize) else { return false };
        let of_disk = self.volumes[pending.volume as usize].info.cloud.is_some();
        match &mut pending.job {
            Job::Status { of_disk: state, .. } if of_disk => {
                *state = OfDisk::Outdated;
                true
            }
            _ => false,
        }
    }
    /// Whether the request begins again.
    pub(super) fn begins_again(&mut self, p: u32, fx: &mut Effects) -> bool {
        let pending = &mut self.pending[p as usize];
        let Job::Status { answers, of_disk: of @ OfDisk::Outdated, newer, .. } = &mut pending.job else { return false };
        if pending.error.is_some() {
            return false;
        }
        answers.clear();
        *newer = Newer::default();
        *of = OfDisk::Unknown;
        fx.trace(trace::ALLOCATION_OUTDATED, pending.id.0, 0);
        // Without the disk it fails, as another client has it.
        self.begin_on_disk(p) && self.pending[p as usize].live > 0
    }
    fn cut_for_disk(&mut self, now: Time, disk: &mut Disk, fx: &mut Effects) {
        while let Some(&(p, serial)) = disk.waiting.front() {
            if disk.vdisk.under_way() >= REQUESTS_MAX {
                return;
            }
            let live = self.pending.get_mut(p as usize).filter(|p| p.serial == serial && p.error.is_none());
            let Some((op, part)) = live.and_then(|p| next_part(&mut p.job)) else {
                disk.waiting.pop_front();
                self.one_less(p, serial, fx);
                continue;
            };
            match disk.vdisk.submit(now, &mut disk.fx, op) {
                Ok(n) => {
                    disk.asked.insert(n, ((p, serial), part));
                    self.pending[p as usize].live += 1;
                }
                // The volume's size was checked, and there is room for a request: only the writer may have changed.
                Err(RequestError::Range { .. } | RequestError::Busy | RequestError::Fenced) => {
                    let id = self.volumes[self.pending[p as usize].volume as usize].info.id;
                    self.pending[p as usize].error = Some(volume::Error::NotAttached { volume: id });
                }
            }
        }
    }
}
