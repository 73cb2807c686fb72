//! With the metadata service: registration, the rack's map, attaching, administration.

use rackweave_core::admin;
use rackweave_core::msg::{Control, RackMap};
use rackweave_core::request::{Outcome, RequestId};
use rackweave_core::volume::{self, VolumeInfo};
use rackweave_core::{Effects, SetId, Span, Time};

use super::{Attach, AttachStage, Job, MsgOp, NONE, VolumeClient, serial_of, slot_of};
use crate::set::SetState;
use crate::volume::Volume;

/// Least time between two requests for the map: many messages may fail at once.
const MAP_ASK_GAP: Span = Span::from_millis(20);
/// Time between two hellos.
const HELLO_GAP: Span = Span::from_millis(100);

impl VolumeClient {
    pub(super) fn control_due(&mut self, now: Time, fx: &mut Effects) {
        if self.incarnation.is_none() {
            self.packet_to_meta(Control::ClientHello { nonce: self.cfg.nonce }, 0, fx);
            self.control_at = now + HELLO_GAP;
        } else {
            self.control_at = now + self.cfg.map_refresh;
            self.ask_map(now, fx);
        }
    }

    pub(super) fn ask_map(&mut self, now: Time, fx: &mut Effects) {
        if self.incarnation.is_none() || self.map_asked.is_some_and(|at| now.since(at) < MAP_ASK_GAP) {
            return;
        }
        self.map_asked = Some(now);
        self.map_asks += 1;
        self.packet_to_meta(Control::MapAsk { generation: self.generation }, self.map_asks, fx);
    }

    pub(super) fn on_control(&mut self, now: Time, tag: u64, control: Control, fx: &mut Effects) {
        match control {
            Control::ClientWelcome { nonce, incarnation, map }
                if nonce == self.cfg.nonce && self.incarnation.is_none() =>
            {
                self.incarnation = Some(incarnation);
                self.control_at = now + self.cfg.map_refresh;
                self.on_map(now, &map, fx);
                self.resend_control(now, fx);
            }
            Control::Map(map) => {
                self.map_answered = self.map_answered.max(tag.min(self.map_asks));
                self.on_map(now, &map, fx);
            }
            Control::Attached(result) => self.on_attached(now, tag, result, fx),
            Control::AdminReply(result) => self.on_admin_reply(now, tag, result, fx),
            Control::VolumeChanged { volume, size } => {
                if let Some(&v) = self.volume_index.get(&volume) {
                    self.volumes[v as usize].grow(size);
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

    fn on_map(&mut self, now: Time, map: &RackMap, fx: &mut Effects) {
        if map.generation < self.generation && !mutant!("block.map.older") {
            return;
        }
        let newer = map.generation > self.generation;
        self.generation = map.generation;
        let mut changed = newer;
        for route in &map.sets {
            let i = self.set_slot(route.set);
            let set = &mut self.sets[i as usize];
            set.epoch = route.epoch.max(set.epoch);
            let same = set.members() == route.members.len() && route.members.iter().all(|&m| set.has(m));
            if !same || newer {
                set.set_members(&route.members);
                changed = true;
            }
        }
        if changed {
            self.resend_stranded(now, fx);
        }
    }

    fn set_slot(&mut self, set: SetId) -> u32 {
        *self.set_index.entry(set).or_insert_with(|| {
            self.sets.push(SetState::new(set));
            self.sets.len() as u32 - 1
        })
    }

    /// The request that control message `tag` belongs to.
    fn control_pending(&self, tag: u64) -> Option<(u32, u32)> {
        let m = self.messages.get(slot_of(tag) as usize)?;
        (serial_of(m.tag) == serial_of(tag) && m.set == NONE).then_some((slot_of(tag), m.pending))
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
            Job::Detach => result.map(|_| volume::Reply::Done).map_err(|_| volume::Error::WrongAnswer).into(),
            Job::Attach(a) if a.stage == AttachStage::Confirm => return self.on_confirmed(now, slot, p, result, fx),
            _ => return,
        };
        let p = self.release(slot).pending;
        let id = self.pending.remove(p as usize).id;
        self.answer(id, outcome, fx);
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
                    self.volumes[v as usize].grow(info.size);
                    self.volumes[v as usize].limit(info.limits);
                    return self.finish_if_done(p, fx);
                }
                let Job::Attach(a) = &mut pending.job else { return };
                a.stage = AttachStage::Ask;
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
        if !matches!(&self.pending[p as usize].job, Job::Attach(a) if a.stage == AttachStage::Ask) {
            return;
        }
        debug_assert!(matches!(self.messages[slot as usize].op, MsgOp::Control(_)));
        self.release(slot);
        let info = match result {
            Ok(info) => *info,
            Err(e) => {
                let error = match *e {
                    admin::VolumeError::Unknown { name } => volume::Error::Unknown { name },
                    _ => volume::Error::WrongAnswer,
                };
                return self.fail_part(p, error, fx);
            }
        };
        let (id, attach, size) = (info.id, info.attach, info.size);
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
        if let Job::Attach(a) = &mut pending.job {
            a.stage = AttachStage::Fence;
        }
        for share in 0..if mutant!("block.attach.no-fence") { 1 } else { self.volumes[v as usize].striping.sets() } {
            self.submit(p, share, 0, u64::from(share), MsgOp::Fence { attach });
        }
        self.ask_map(now, fx);
    }

    /// The volume of this name is deleted. Ids are not reused, so its kept contents are dropped.
    fn forget(&mut self, name: &str) {
        let gone: Vec<usize> = self.volumes.iter().filter(|(_, v)| *v.info.name == *name).map(|(v, _)| v).collect();
        for v in gone {
            let in_use = |volume: u32| volume as usize == v;
            if self.pending.iter().any(|(_, p)| in_use(p.volume)) || self.messages.iter().any(|(_, m)| in_use(m.volume))
            {
                continue;
            }
            self.limited.retain(|&l| l as usize != v);
            let gone = self.volumes.remove(v);
            self.kept -= gone.shares.iter().map(|s| s.unflushed.bytes()).sum::<u64>();
            self.volume_index.remove(&gone.info.id);
        }
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
                Ok(volume::Reply::Attached(vol.info.clone()))
            }
        };
        for follower in attach.followers {
            self.answer(follower, result.clone().into(), fx);
        }
        self.answer(id, result.into(), fx);
    }
}
