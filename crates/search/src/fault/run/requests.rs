//! Requests of a run's clients, and their answers.

use rackweave_core::admin;
use rackweave_core::request::{self, Op, Reply, Request, RequestId};
use rackweave_core::volume::{self, VolumeInfo};
use rackweave_core::{NodeId, SECTOR, Span, Time};

use super::{ATTACH_RETRY, Agenda, PendingOp, Run};
use crate::check::{OpId, Outcome};
use crate::fault::report::Failure;
use crate::fault::workload::{self, Kind, Target};

/// Fraction of a writer's requests on a sparse volume that zero everything from one place to another.
const FAR_SHARE: f64 = 0.04;

impl Run<'_> {
    pub(super) fn submit(&mut self, client: u32, op: impl Into<Op>, volume: usize, kind: Kind, lane: bool) -> u64 {
        let op = op.into();
        self.next_request += 1;
        let id = self.next_request;
        self.history.at(self.sim.now());
        let history = self.note(client, volume, &op);
        if let Some(h) = history {
            self.history.label(h, id);
        }
        self.pending.insert((client, id), PendingOp { volume, kind, history, lane, fill: None, passing: None });
        *self.stats.operations.entry(kind).or_default() += 1;
        let at = self.sim.now();
        self.sim.submit(at, client, Request { id: RequestId(id), op });
        id
    }

    fn note(&mut self, client: u32, volume: usize, op: &Op) -> Option<OpId> {
        let Op::Volume(op) = op else { return None };
        let generation = self.attached[client as usize][volume].unwrap_or(0);
        let id = match *op {
            // It may be that of a deleted volume.
            volume::Op::Read { volume, .. } => volume,
            _ => self.volumes[volume].id(),
        };
        let incarnation = self.starts[client as usize] * self.plan.params.clients + client;
        let sector = u64::from(SECTOR);
        Some(match *op {
            volume::Op::Read { offset, len, .. } => self.history.read(id, offset / sector, len / SECTOR),
            volume::Op::Write { offset, ref data, fua, .. } => {
                self.history.write(incarnation, id, offset / sector, data, fua, generation)
            }
            volume::Op::Trim { offset, len, fua, .. } | volume::Op::WriteZeroes { offset, len, fua, .. } => {
                let of_block = u64::from(rackweave_core::SECTORS_PER_BLOCK);
                let places = self.volumes[volume].places.iter();
                let places = places.map(|p| u64::from(p.0) * of_block..u64::from(p.0 + p.1) * of_block);
                self.history.zero(incarnation, id, offset / sector..(offset + len) / sector, places, fua, generation)
            }
            volume::Op::Flush { .. } => self.history.flush(incarnation, id),
            volume::Op::Attach { .. } | volume::Op::Detach { .. } | volume::Op::BlockStatus { .. } => return None,
        })
    }

    pub(super) fn replies(&mut self) -> Result<(), Failure> {
        for (at, client, reply) in self.sim.take_replies() {
            self.history.at(at);
            self.progress = at;
            self.reply(client, reply)?;
        }
        Ok(())
    }

    fn reply(&mut self, client: u32, reply: Reply) -> Result<(), Failure> {
        let Some(op) = self.pending.remove(&(client, reply.id.0)) else {
            return Err(Failure::Unexpected(format!("client {client} answered request {} twice", reply.id.0)));
        };
        let outcome = match &reply.result {
            request::Outcome::Volume(Ok(volume::Reply::Data(p))) => Outcome::Data(p),
            other if other.is_ok() => Outcome::Done,
            _ => Outcome::Failed,
        };
        if let Some(h) = op.history {
            self.history.answered(h, outcome);
            if reply.result.is_ok() {
                self.check_members(client, op.volume, h)?;
            }
        }
        if let Some(what) = op.passing {
            self.passed(client, op.volume, what, &reply.result)?;
            if let Some(e) = reply.result.error() {
                *self.stats.errors.entry(format!("{what:?} {e}")).or_default() += 1;
            }
            return Ok(());
        }
        match reply.result {
            request::Outcome::Volume(Ok(volume::Reply::Attached(info))) => self.on_attached(client, op.volume, *info),
            request::Outcome::Volume(Err(e)) => self.on_error(client, &op, &e)?,
            request::Outcome::Admin(Ok(admin::Reply::Volume(info))) => self.volumes[op.volume].info = Some(*info),
            other => {
                if let Some(e) = other.error() {
                    return Err(Failure::Unexpected(format!("{:?}: {e}", op.kind)));
                }
            }
        }
        if let Some(next) = op.fill.filter(|_| !self.quiet) {
            self.fill_on(client, next);
        }
        if op.lane && !self.quiet {
            let at = self.think();
            self.plan_at(at, Agenda::Issue { client });
        }
        Ok(())
    }

    fn on_attached(&mut self, client: u32, volume: usize, info: VolumeInfo) {
        self.history.fenced(info.id, info.attach);
        self.attached[client as usize][volume] = Some(info.attach);
        self.volumes[volume].info = Some(info);
        self.volumes[volume].writer = Some(client);
    }

    fn on_error(&mut self, client: u32, op: &PendingOp, e: &volume::Error) -> Result<(), Failure> {
        let name = format!("{:?} {e}", op.kind);
        *self.stats.errors.entry(name).or_default() += 1;
        match e {
            // Deleted, or not grown as far as this client knows.
            volume::Error::Fenced { .. }
            | volume::Error::NotAttached { .. }
            | volume::Error::Unknown { .. }
            | volume::Error::OutOfRange { .. }
                if self.is_passing(op.volume) =>
            {
                Ok(())
            }
            volume::Error::Fenced { .. } => {
                self.attached[client as usize][op.volume] = None;
                if op.kind == Kind::Read {
                    return Err(Failure::Unexpected(format!("a read was fenced: {e}")));
                }
                Ok(())
            }
            volume::Error::NotAttached { .. } | volume::Error::NoSpace | volume::Error::Busy { .. } => Ok(()),
            // The volume is released and attached again: flushes fail until then.
            volume::Error::Lost { volume } if self.history.crashed() => {
                if op.kind == Kind::Flush {
                    self.submit(client, volume::Op::Detach { volume: *volume }, op.volume, Kind::Attach, false);
                }
                Ok(())
            }
            // The only good copy may have been lost with the power of the others, or with its device.
            volume::Error::Corrupt if self.corrupted && (self.history.crashed() || self.breakage.any) => Ok(()),
            volume::Error::Corrupt if self.lost_by_a_fill(op.volume) => Ok(()),
            // The member with the only copy has left its set for longer than its lease; it may return (rule 29).
            volume::Error::Corrupt if self.stood_still && self.has_departed(op.volume) => Ok(()),
            volume::Error::Io if self.breakage.all => Ok(()),
            _ => {
                let not_whole = self.watch.describe(&self.sim);
                Err(Failure::Unexpected(format!("{:?}: {e}; sets that are not whole: {not_whole}", op.kind)))
            }
        }
    }

    fn has_departed(&mut self, volume: usize) -> bool {
        let sets = self.volumes[volume].info.as_ref().map(|i| i.sets.clone());
        sets.is_some_and(|sets| !self.watch.are_full(&self.sim, &sets))
    }
    fn lost_by_a_fill(&self, volume: usize) -> bool {
        self.volumes[volume].info.as_ref().is_some_and(|i| self.gave_way.contains(&i.id))
    }

    pub(super) fn think(&mut self) -> Time {
        let p = &self.plan.params;
        let per_lane = f64::from(p.operations) / f64::from(p.clients * p.depth);
        let mean = p.span_ms as f64 * 1e6 / per_lane;
        self.sim.now() + Span(self.rng.exponential(mean) as u64)
    }

    pub(super) fn attach(&mut self, client: u32, volume: usize) {
        let name = self.volumes[volume].name.clone().into_boxed_str();
        self.submit(client, volume::Op::Attach { name }, volume, Kind::Attach, false);
    }

    pub(super) fn issue(&mut self, client: u32) {
        if self.issued >= self.plan.params.operations || self.down.contains_key(&self.client_node(client)) {
            return;
        }
        let shared = self.shared();
        let passing = self.passing_now(client).filter(|_| self.rng.chance(0.3));
        let volume = passing.unwrap_or_else(|| if self.rng.chance(0.5) { client as usize } else { shared });
        let busy = self.pending.iter().any(|(k, p)| k.0 == client && p.volume == volume && p.kind == Kind::Attach);
        let never = self.attached[client as usize][volume].is_none() && (volume != shared || self.rng.chance(0.5));
        if busy || never {
            let at = self.think();
            self.plan_at(at, Agenda::Issue { client });
            return;
        }
        let writer = self.attached[client as usize][volume].is_some();
        let v = &self.volumes[volume];
        let (id, bytes, ragged) = (v.id(), self.plan.params.bytes, self.plan.params.ragged);
        let contents = self.plan.seed ^ (self.next_request + 1) << 20;
        let (kind, op) = if v.places.len() > 1 && writer && self.rng.chance(FAR_SHARE) {
            workload::draw_far(&mut self.rng, id, &v.places)
        } else {
            let &(at, blocks) = if v.places.len() == 1 { &v.places[0] } else { self.rng.pick(&v.places) };
            workload::draw(&mut self.rng, Target { volume: id, at, blocks, writer }, bytes, ragged, contents)
        };
        self.issued += 1;
        self.submit(client, op, volume, kind, true);
    }

    pub(super) fn try_attach(&mut self, client: u32, volume: usize) {
        if self.down.contains_key(&self.client_node(client)) {
            return;
        }
        // A writer's requests under its old generation could not be told from those under the new one.
        if self.store_is_older() || self.pending.iter().any(|(k, p)| k.0 == client && p.volume == volume) {
            let at = self.sim.now() + ATTACH_RETRY;
            self.plan_at(at, Agenda::Attach { client, volume });
            return;
        }
        self.attach(client, volume);
    }

    pub(super) fn client_node(&self, client: u32) -> NodeId {
        self.sim.engine().layout().client(client)
    }
}
