//! Requests of administration: each change is executed once, and refused while the store may not take it.

use rackweave_core::admin::{self, Isolation, SetError, VolumeCreate, VolumeError};
use rackweave_core::msg::{Body, Control, Header, Packet};
use rackweave_core::request::{self, Reply, Request};
use rackweave_core::volume::VolumeInfo;
use rackweave_core::{Effects, Epoch, Incarnation, Layout, NodeId, SetId, Time, VolumeId, VssdId};

use crate::members::{self, Evidence, Place};
use crate::node::Meta;
use crate::volumes::{self, Limits};

/// Answers to administration requests that are remembered, so that a repeated request is not executed again.
const ANSWERS_MAX: usize = 1_024;

pub(crate) type Answer = Result<Box<admin::Reply>, Box<admin::Error>>;

impl Meta {
    pub(crate) fn request(&mut self, now: Time, r: Request, fx: &mut Effects) {
        let request::Op::Admin(op) = &r.op else {
            return self.out.reply(Reply { id: r.id, result: r.op.not_served() });
        };
        let answer = self.admin(now, Layout::META, (Incarnation(0), 0), op, fx);
        let at_once = waits_for_no_store(op, answer.as_ref().err());
        let reply = Reply { id: r.id, result: answer.into() };
        if at_once { self.out.reply_at_once(reply) } else { self.out.reply(reply) }
    }

    pub(crate) fn admin_request(&mut self, now: Time, src: NodeId, header: Header, op: &admin::Op, fx: &mut Effects) {
        let answer = self.admin_once(now, src, (header.incarnation, header.request), op, fx);
        let at_once = waits_for_no_store(op, answer.as_ref().err().map(|e| &**e));
        let header = self.header(header.request, SetId(0), Epoch(0));
        let p = Packet { src: Layout::META, dst: src, header, body: Body::Control(Control::AdminReply(answer)) };
        if at_once { self.out.send_at_once(p) } else { self.out.send(p) }
    }

    fn admin_once(
        &mut self,
        now: Time,
        src: NodeId,
        by: (Incarnation, u64),
        op: &admin::Op,
        fx: &mut Effects,
    ) -> Answer {
        if only_reads(op) {
            return self.admin(now, src, by, op, fx).map(Box::new).map_err(Box::new);
        }
        if let Some((_, answer)) = self.answers.iter().find(|(known, _)| *known == by && !mutant!("meta.admin.twice")) {
            return answer.clone();
        }
        let answer = self.admin(now, src, by, op, fx).map(Box::new).map_err(Box::new);
        if answer.as_ref().is_err_and(|e| matches!(**e, admin::Error::NotStored { .. })) {
            return answer;
        }
        if self.answers.len() == ANSWERS_MAX {
            self.answers.pop_front();
        }
        self.answers.push_back((by, answer.clone()));
        answer
    }

    /// Why the operator's change is refused.
    fn not_stored(&self, op: &admin::Op) -> Option<Box<str>> {
        let rests_on_it = may_wait(op) || matches!(op, admin::Op::SetRecover { .. });
        let older = self.store_older.clone().filter(|_| rests_on_it && !mutant!("meta.store.older-unrefused"));
        older.or_else(|| self.store_problem().filter(|_| may_wait(op)))
    }

    fn admin(
        &mut self,
        now: Time,
        src: NodeId,
        by: (Incarnation, u64),
        op: &admin::Op,
        fx: &mut Effects,
    ) -> Result<admin::Reply, admin::Error> {
        if let Some(why) = self.not_stored(op) {
            return Err(admin::Error::NotStored { why });
        }
        self.review_room(op);
        match op {
            admin::Op::VolumeCreate(volume) => self.create(now, volume, by, fx),
            admin::Op::CloudCreate { .. } => self.create_disk(op, by),
            admin::Op::VolumeClass { name, offline } => {
                let info = volumes::info(self.volumes.classify(name, *offline)?);
                self.put_volume(info.id);
                Ok(admin::Reply::from(info))
            }
            admin::Op::VolumeLimit { name, iops, bytes_per_s } => {
                let v = self.volumes.limit(name, *iops, *bytes_per_s)?;
                let (info, writer) = (volumes::info(v), v.writer);
                let news = Control::VolumeLimited { volume: info.id, limits: info.limits };
                Ok(self.volume_changed(info, writer, news))
            }
            admin::Op::VolumeGrow { name, size } => self.grow(name, *size, fx),
            admin::Op::VolumeDelete { name, force } => {
                self.volumes.has_no_snapshots(name)?;
                let v = self.volumes.delete(name, *force, &self.cfg.layout)?;
                let (id, sets) = (v.id, v.to_clear.clone());
                self.set_jobs.clear(id, &sets);
                self.delete_disk(id);
                self.put_volume(id);
                Ok(admin::Reply::Done)
            }
            admin::Op::SnapshotCreate { .. }
            | admin::Op::SnapshotRemove { .. }
            | admin::Op::VolumeClone { .. }
            | admin::Op::VolumeRename { .. }
            | admin::Op::VolumeRollback { .. }
            | admin::Op::VolumeFlatten { .. } => self.snapshot_op(op, by, fx),
            admin::Op::VolumeHold { name, .. } if self.volumes.is_snapshot(name) => {
                Ok(admin::Reply::from(self.snapshot_to_read(name)?))
            }
            admin::Op::VolumeHold { name, attach } => {
                let (info, changed) = self.volumes.hold(name, *attach, src)?;
                if changed {
                    self.put_volume(info.id);
                }
                Ok(admin::Reply::from(info))
            }
            admin::Op::VolumeRelease { volume, attach } => {
                if self.volumes.release(*volume, *attach) {
                    self.put_volume(*volume);
                }
                Ok(admin::Reply::Done)
            }
            admin::Op::SetRecover { set, without } => {
                self.recover_set(now, *set, without, fx)?;
                Ok(admin::Reply::Done)
            }
            admin::Op::VolumeUnits { name, unit, count } => self.change_units(now, name, (*unit, *count), fx),
            admin::Op::KeyspaceCreate { name, replicas, isolation, units } => {
                self.create_keyspace(now, (name, *replicas), (*isolation, *units), by, fx)
            }
            admin::Op::KeyspaceDelete { name } => self.delete_keyspace(now, name, fx),
            admin::Op::VssdMove { vssd, to } => Ok(self.move_vssd(now, *vssd, *to, fx)?),
            admin::Op::ServerAdd => Ok(self.add_server(now)?),
            admin::Op::ServerDrain { server } => Ok(self.drain(now, *server, fx)?),
            admin::Op::ServerRemove { server } => Ok(self.remove(now, *server)?),
            admin::Op::ServerEnded { server, incarnation } => {
                self.server_ended(now, *server, *incarnation, fx);
                Ok(admin::Reply::Done)
            }
            _ => self.admin_read(now, op),
        }
    }
    fn admin_read(&self, now: Time, op: &admin::Op) -> Result<admin::Reply, admin::Error> {
        match op {
            admin::Op::Servers => Ok(admin::Reply::Servers(self.server_infos(now))),
            admin::Op::SnapshotList { volume } => self.list_snapshots(volume.as_deref()),
            admin::Op::VolumeUse { name } => Ok(admin::Reply::Use(self.volume_use(name)?)),
            admin::Op::VolumeInfo { name } if name.contains('@') => {
                Ok(admin::Reply::from(self.with_use(self.snapshot_to_read(name)?)))
            }
            admin::Op::VolumeInfo { name } => {
                let v = self.with_use(volumes::info(self.volumes.find(name)?));
                let snapshots = self.snapshot_infos(Some(v.id)).remove(&v.id);
                Ok(admin::Reply::from(self.with_snapshots(v, snapshots)))
            }
            admin::Op::VolumeExplain { size, isolation, own } => {
                Ok(admin::Reply::Explained(Box::new(self.explain(now, *size, *isolation, *own))))
            }
            admin::Op::VolumeList => Ok(self.list_volumes()),
            admin::Op::KeyspaceInfo { name } => self.keyspace_info(name),
            admin::Op::KeyspaceList => Ok(self.keyspace_list()),
            admin::Op::RackStatus => Ok(admin::Reply::Rack(Box::new(self.status(now)))),
            _ => Err(admin::Error::NotServed),
        }
    }

    fn grow(&mut self, name: &str, size: u64, fx: &mut Effects) -> Result<admin::Reply, admin::Error> {
        if self.volumes.find(name)?.cloud.is_some() {
            return self.grow_disk(name, size, fx);
        }
        let own = self.limits_to_grow(name, size)?;
        let v = self.volumes.grow(name, size, own.as_ref().map_or(&self.limits[..], std::slice::from_ref))?;
        let (info, writer) = (volumes::info(v), v.writer);
        let news = Control::VolumeChanged { volume: info.id, size: info.size };
        Ok(self.volume_changed(info, writer, news))
    }

    /// Volumes get the racks as homes in turn: the next one that has room.
    fn create(
        &mut self,
        now: Time,
        v: &VolumeCreate,
        by: (Incarnation, u64),
        fx: &mut Effects,
    ) -> Result<admin::Reply, admin::Error> {
        let (name, size) = (&v.name, v.size);
        if self.volumes.created_by(name, by) {
            return Ok(admin::Reply::from(self.with_units(volumes::info(self.volumes.find(name)?))));
        }
        if let Some(own) = v.own {
            return self.create_own(now, (v, own), by, fx);
        }
        let id = self.free_volume_id();
        let limits = self.shared_limits(id, size, v.isolation)?;
        let info = volumes::info(self.volumes.create(id, name, size, by, &limits)?);
        self.volume_id_taken();
        self.put_volume(id);
        Ok(admin::Reply::from(info))
    }

    /// Limits of the sets that a volume with this id would lie on.
    pub(crate) fn shared_limits(
        &self,
        id: VolumeId,
        size: u64,
        isolation: Option<Isolation>,
    ) -> Result<Limits, VolumeError> {
        let level = isolation.unwrap_or(self.limits[0].level);
        let homes: Vec<&Limits> = self.limits.iter().filter(|l| l.level == level).collect();
        let turn = id.0 as usize;
        let home = |i: usize| homes[(turn + i) % homes.len()];
        let room = (0..homes.len()).map(home).find(|l| self.volumes.room(l) >= size);
        room.or(homes.first().copied())
            .cloned()
            .ok_or_else(|| VolumeError::NoLevel { level, has: self.cfg.distinct_levels().into() })
    }

    pub(crate) fn free_volume_id(&self) -> VolumeId {
        let deleted = || self.volumes.by_id.values().find(|v| v.deleting).map(|v| v.id);
        let again = mutant!("meta.volume.reuse-id").then(deleted).flatten();
        again.unwrap_or(self.first_unused_volume())
    }

    pub(crate) fn volume_id_taken(&mut self) {
        self.rack.next_volume += 1;
        self.put_rack();
    }

    /// Stores the changed volume, and notifies its writer.
    pub(crate) fn volume_changed(&mut self, info: VolumeInfo, writer: Option<NodeId>, news: Control) -> admin::Reply {
        self.put_volume(info.id);
        if let Some(writer) = writer {
            self.say(writer, 0, news);
        }
        admin::Reply::from(info)
    }

    /// Lets the set recover although these servers never return.
    fn recover_set(&mut self, now: Time, set: SetId, without: &[NodeId], fx: &mut Effects) -> Result<(), SetError> {
        let &i = self.by_set.get(&set).ok_or(SetError::Unknown { set })?;
        let s = &self.sets[i];
        let places: (&[Place], &[Evidence]) = (&s.places, &s.evidence);
        let (state, members) = members::recover_without(&s.view, &s.holders, places, &self.servers, now, without)?;
        let before: Vec<VssdId> = self.sets[i].in_use().collect();
        self.sets[i].holders.retain(|m| !without.contains(&m.server));
        if self.new_view(i, state, members, fx) {
            self.left(now, i, &before);
            self.push_map(now);
        }
        Ok(())
    }
}

pub(crate) fn only_reads(op: &admin::Op) -> bool {
    matches!(
        op,
        admin::Op::VolumeInfo { .. }
            | admin::Op::VolumeList
            | admin::Op::SnapshotList { .. }
            | admin::Op::VolumeUse { .. }
            | admin::Op::VolumeExplain { .. }
            | admin::Op::KeyspaceInfo { .. }
            | admin::Op::KeyspaceList
            | admin::Op::RackStatus
            | admin::Op::Servers
    )
}

/// Reads return the current state, because a status must be able to report why a store hangs. An unacknowledged change
/// in it may still be lost. A refusal because the store takes no changes depends on no write. Clients take the id of a keyspace from
/// an answer, so that one is durable: otherwise another could get the id.
fn waits_for_no_store(op: &admin::Op, refusal: Option<&admin::Error>) -> bool {
    let names = matches!(op, admin::Op::KeyspaceInfo { .. } | admin::Op::KeyspaceList);
    only_reads(op) && !names || matches!(refusal, Some(admin::Error::NotStored { .. }))
}

/// Changes that the rack can run without.
fn may_wait(op: &admin::Op) -> bool {
    match op {
        admin::Op::VolumeCreate(_)
        | admin::Op::CloudCreate { .. }
        | admin::Op::VolumeClass { .. }
        | admin::Op::VolumeLimit { .. }
        | admin::Op::VolumeGrow { .. }
        | admin::Op::VolumeDelete { .. }
        | admin::Op::SnapshotCreate { .. }
        | admin::Op::SnapshotRemove { .. }
        | admin::Op::VolumeClone { .. }
        | admin::Op::VolumeRename { .. }
        | admin::Op::VolumeRollback { .. }
        | admin::Op::VolumeFlatten { .. }
        | admin::Op::VolumeUnits { .. }
        | admin::Op::KeyspaceCreate { .. }
        | admin::Op::KeyspaceDelete { .. }
        | admin::Op::VssdMove { .. }
        | admin::Op::ServerAdd
        | admin::Op::ServerDrain { .. }
        | admin::Op::ServerRemove { .. } => !mutant!("meta.store.full-unrefused"),
        admin::Op::VolumeHold { .. }
        | admin::Op::VolumeRelease { .. }
        | admin::Op::SetRecover { .. }
        | admin::Op::ServerEnded { .. }
        | admin::Op::VolumeInfo { .. }
        | admin::Op::VolumeList
        | admin::Op::SnapshotList { .. }
        | admin::Op::VolumeUse { .. }
        | admin::Op::VolumeExplain { .. }
        | admin::Op::KeyspaceInfo { .. }
        | admin::Op::KeyspaceList
        | admin::Op::RackStatus
        | admin::Op::Servers => false,
    }
}
