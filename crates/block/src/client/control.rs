//! With the metadata service: attaching, administration, changes of volumes.

use rackweave_core::admin;
use rackweave_core::msg::{Control, FENCE_ALL, RackMap};
use rackweave_core::request::{Outcome, RequestId};
use rackweave_core::volume::{self, VolumeInfo};
use rackweave_core::{Effects, SetId, Time};

use super::order::SetOrder;
use super::{Attach, AttachStage, Job, MsgOp, Pending, VolumeClient};
use crate::volume::Volume;

impl VolumeClient {
    pub(super) fn on_control(&mut self, now: Time, tag: u64, control: Control, fx: &mut Effects) {
        match control {
            Control::ClientWelcome { nonce, incarnation, map } => {
                let taken = self.sets.welcomed(now, nonce, incarnation);
                if taken {
                    self.on_map(now, &map, fx);
                    self.resend_control(now, fx);
                }
            }
            Control::Map(map) => {
                self.sets.map_answered(tag);
                self.on_map(now, &map, fx);
            }
            Control::Attached(result) => self.on_attached(now, tag, result, fx),
            Control::AdminReply(result) => self.on_admin_reply(now, tag, result, fx),
            Control::VolumeChanged { volume, size } => {
                if let Some(&v) = self.volume_index.get(&volume) {
                    self.grow(v, size);
                }
            }
            Control::VolumeLimited { volume, limits } => {
                if let Some(&v) = self.volume_index.get(&volume) {
                    self.volumes[v as usize].limit(limits);
                }
            }
            _ => {}
        }
    }

    /// The volume is larger now.
    fn grow(&mut self, v: u32, size: u64) {
        self.volumes[v as usize].grow(size);
        if !mutant!("block.disk.not-grown") {
            self.grow_disk(self.volumes[v as usize].info.id, size);
        }
    }

    fn on_map(&mut self, now: Time, map: &RackMap, fx: &mut Effects) {
        let changed = self.sets.take_map(map);
        self.orders.resize_with(self.sets.sets(), SetOrder::default);
        if changed {
            self.resend_stranded(now, fx);
        }
        for set in self.sets.ended_sets() {
            self.end_set(now, set, fx);
        }
    }

    /// The set belonged to a deleted volume and no longer exists. The volume's requests fail as at its final fence. Once
    /// none is left, set and volume are forgotten; until then each map repeats this.
    fn end_set(&mut self, now: Time, set: u32, fx: &mut Effects) {
        let tags: Vec<u64> = self.sets.messages_to(set).iter().map(|&slot| self.sets.message(slot).tag).collect();
        for tag in tags {
            if let Some(slot) = self.sets.owner_of(tag) {
                self.on_fenced(now, slot, FENCE_ALL, fx);
            }
        }
        let of_it = |v: &Volume| v.shares.iter().any(|s| s.set == set);
        let volumes: Vec<usize> = self.volumes.iter().filter(|(_, v)| of_it(v)).map(|(v, _)| v).collect();
        for &v in &volumes {
            self.volumes[v].fenced = Some(FENCE_ALL);
        }
        let in_use = volumes.into_iter().filter(|&v| !self.forget_volume(v)).count();
        let order = &self.orders[set as usize];
        let idle = order.resending == 0 && order.parked.is_empty() && !self.resent.contains(&set);
        if in_use == 0 && idle && self.sets.forget_set(self.sets.set(set).set) {
            self.orders[set as usize] = SetOrder::default();
        }
    }

    pub(super) fn set_slot(&mut self, set: SetId) -> u32 {
        let i = self.sets.set_slot(set);
        self.orders.resize_with(self.sets.sets(), SetOrder::default);
        i
    }

    /// The request that control message `tag` belongs to.
    fn control_pending(&self, tag: u64) -> Option<(u32, u32)> {
        let slot = self.sets.control_owner_of(tag)?;
        Some((slot, self.sets.message(slot).what.pending))
    }

    fn on_admin_reply(
        &mut self,
        now: Time,
        tag: u64,
        result: Result<Box<admin::Reply>, Box<admin::Error>>,
        fx: &mut Effects,
    ) {
        let Some((slot, p)) = self.control_pending(tag) else { return };
        let result = result.map(|d| *d).map_err(|e| *e);
        let outcome: Outcome = match &self.pending[p as usize].job {
            Job::Admin => result.into(),
            Job::Detach(_) => result.map(|_| volume::Reply::Done).map_err(|_| volume::Error::WrongAnswer).into(),
            Job::Attach(a) if a.stage == AttachStage::Confirm => return self.on_confirmed(now, slot, p, result, fx),
            _ => return,
        };
        let p = self.release(slot).what.pending;
        let Pending { id, job, .. } = self.pending.remove(p as usize);
        self.answer(id, outcome, fx);
        if let Job::Detach(d) = job {
            self.attach_followers(now, d, fx);
        }
    }

    fn on_confirmed(
        &mut self,
        now: Time,
        slot: u32,
        p: u32,
        result: Result<admin::Reply, admin::Error>,
        fx: &mut Effects,
    ) {
        self.release(slot);
        match result {
            Ok(admin::Reply::Volume(info)) => {
                let held = self.volume_index.get(&info.id).copied().filter(|&v| {
                    let vol = &self.volumes[v as usize];
                    vol.ready && vol.fenced.is_none() && vol.info.attach == info.attach
                });
                let pending = &mut self.pending[p as usize];
                if let Some(v) = held {
                    pending.volume = v;
                    self.grow(v, info.size);
                    self.volumes[v as usize].limit(info.limits);
                    return self.finish_if_done(p, fx);
                }
                let Job::Attach(a) = &mut pending.job else { return };
                a.stage = AttachStage::Request;
                let name = a.name.clone();
                self.submit_control(now, p, Control::Attach { name }, fx);
            }
            Err(admin::Error::Volume(admin::VolumeError::Unknown { name })) => {
                self.forget(&name);
                self.fail_part(p, volume::Error::Unknown { name }, fx);
            }
            Ok(_) | Err(_) => self.fail_part(p, volume::Error::WrongAnswer, fx),
        }
    }

    fn on_attached(
        &mut self,
        now: Time,
        tag: u64,
        result: Result<Box<VolumeInfo>, Box<admin::VolumeError>>,
        fx: &mut Effects,
    ) {
        let Some((slot, p)) = self.control_pending(tag) else { return };
        if !matches!(&self.pending[p as usize].job, Job::Attach(a) if a.stage == AttachStage::Request) {
            return;
        }
        debug_assert!(matches!(self.sets.message(slot).what.op, MsgOp::Control(_)));
        self.release(slot);
        let info = match result {
            Ok(info) => *info,
            Err(e) => {
                let error = match *e {
                    admin::VolumeError::Unknown { name } | admin::VolumeError::BeingMade { name } => {
                        volume::Error::Unknown { name }
                    }
                    _ => volume::Error::WrongAnswer,
                };
                return self.fail_part(p, error, fx);
            }
        };
        let (id, attach, size, cloud) = (info.id, info.attach, info.size, info.cloud);
        let sets: Vec<u32> = info.sets.iter().map(|&s| self.set_slot(s)).collect();
        let count = sets.len() as u32;
        let Some(volume) = Volume::new(info, sets) else {
            return self.fail_part(p, volume::Error::NotAddressable { volume: id, size, sets: count }, fx);
        };
        let v = match self.volume_index.get(&id) {
            Some(&v) => {
                // Another writer may have been here: kept contents may not be the newest, and unanswered mutations must
                // not go again under our newer generation, over that writer's.
                if !mutant!("block.attach.keeps-unflushed") {
                    self.give_up_all(v, fx);
                }
                if !mutant!("block.attach.keeps-unanswered") {
                    self.fail_mutations(v, fx);
                }
                self.volumes[v as usize].renew(volume);
                v
            }
            None => {
                self.forget(&volume.info.name);
                let v = self.volumes.insert(volume) as u32;
                self.volume_index.insert(id, v);
                v
            }
        };
        let pending = &mut self.pending[p as usize];
        pending.volume = v;
        if let Some(shape) = cloud {
            return self.attach_disk(now, p, v, shape, fx);
        }
        if let Job::Attach(a) = &mut pending.job {
            a.stage = AttachStage::Fence;
        }
        if self.volumes[v as usize].snapshot.is_some() {
            // Nobody writes it.
            self.sets.ask_map(now, fx);
            return self.finish_if_done(p, fx);
        }
        for share in 0..if mutant!("block.attach.no-fence") { 1 } else { self.volumes[v as usize].striping.sets() } {
            self.submit(p, share, 0, u64::from(share), MsgOp::Fence { attach });
        }
        self.sets.ask_map(now, fx);
    }

    /// The volume of this name is deleted. Ids are not reused, so its kept contents are dropped.
    fn forget(&mut self, name: &str) {
        let gone: Vec<usize> = self.volumes.iter().filter(|(_, v)| *v.info.name == *name).map(|(v, _)| v).collect();
        for v in gone {
            self.forget_volume(v);
        }
    }
    /// Forgets a deleted volume, unless a request or message is for it.
    fn forget_volume(&mut self, v: usize) -> bool {
        let in_use = |volume: u32| volume as usize == v;
        if self.pending.iter().any(|(_, p)| in_use(p.volume))
            || self.sets.messages().any(|(_, m)| in_use(m.what.volume))
        {
            return false;
        }
        self.limited.retain(|&l| l as usize != v);
        let gone = self.volumes.remove(v);
        self.kept -= gone.shares.iter().map(|s| s.unflushed.bytes()).sum::<u64>();
        self.volume_index.remove(&gone.info.id);
        self.disks.remove(&gone.info.id);
        true
    }

    pub(super) fn finish_attach(
        &mut self,
        id: RequestId,
        volume: u32,
        error: Option<volume::Error>,
        attach: Attach,
        fx: &mut Effects,
    ) {
        let result = match error {
            Some(e) => Err(e),
            None => {
                let vol = &mut self.volumes[volume as usize];
                if attach.stage == AttachStage::Fence {
                    vol.ready = true;
                    vol.fenced = None;
                }
                Ok(volume::Reply::Attached(Box::new(vol.info.clone())))
            }
        };
        for follower in attach.followers {
            self.answer(follower, result.clone().into(), fx);
        }
        self.answer(id, result.into(), fx);
    }
}
