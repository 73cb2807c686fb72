//! A run's volumes: where they are used, and short-lived ones.

use rackweave_core::admin::{self, VolumeError};
use rackweave_core::request::{Op, Outcome};
use rackweave_core::volume::{self, VolumeInfo};
use rackweave_core::{BLOCK, BlockAddr, Rng, SetId, VolumeId};

use super::{QUIET_MAX, Run};
use crate::fault::report::Failure;
use crate::fault::workload::Kind;

/// Places of a sparse volume.
const PLACES: u32 = 6;

pub(super) struct Volume {
    pub name: String,
    pub blocks: u32,
    /// Used parts: first blocks and lengths, in order and disjoint.
    pub places: Vec<(u32, u32)>,
    pub info: Option<VolumeInfo>,
    /// Its writer, as far as clients know.
    pub writer: Option<u32>,
    /// Number of times that its client created one.
    created: u32,
}

/// An operation on a short-lived volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passing {
    Create,
    Grow,
    Delete,
    /// A read after the deletion was answered.
    After,
}

/// A volume that is deleted, or in an unknown state.
pub(super) struct Gone {
    pub id: VolumeId,
    pub sets: Vec<SetId>,
    client: u32,
    blocks: u32,
    /// The deletion was answered.
    deleted: bool,
}

impl Volume {
    pub fn new(name: String, blocks: u32) -> Volume {
        Volume { name, blocks, places: vec![(0, blocks)], info: None, writer: None, created: 0 }
    }
    /// A volume of `gib` GiB of which `used` blocks are used: at its ends, around the limits of 32-bit byte, sector and
    /// signed block numbers, and elsewhere.
    pub fn sparse(name: String, used: u32, gib: u64, rng: &mut Rng) -> Volume {
        let blocks = (gib << 30).div_euclid(u64::from(BLOCK)) as u32;
        let each = (used / PLACES).max(4);
        let mut firsts = vec![0, blocks - each];
        let edges = [1 << 20, 1 << 29, 1u32 << 30].map(|edge| edge - each / 2);
        firsts.extend(edges.into_iter().filter(|e| e + 2 * each < blocks));
        while firsts.len() < PLACES as usize {
            let first = rng.below(u64::from(blocks - each)) as u32;
            if firsts.iter().all(|f| f.abs_diff(first) > each) {
                firsts.push(first);
            }
        }
        firsts.sort_unstable();
        Volume { blocks, places: firsts.into_iter().map(|f| (f, each)).collect(), ..Volume::new(name, blocks) }
    }
    pub fn id(&self) -> VolumeId {
        self.info.as_ref().map_or(VolumeId(0), |i| i.id)
    }
    /// The sets that it is striped over.
    pub fn sets(&self) -> &[SetId] {
        self.info.as_ref().map_or(&[], |i| &i.sets)
    }
    /// Every used block.
    pub fn used(&self) -> impl Iterator<Item = u32> {
        self.places.iter().flat_map(|&(first, blocks)| first..first + blocks)
    }
}

impl Run<'_> {
    pub(super) fn shared(&self) -> usize {
        self.plan.params.clients as usize
    }
    /// The client's short-lived volume.
    fn passing(&self, client: u32) -> usize {
        self.shared() + 1 + client as usize
    }
    /// That volume, while it exists and is attached.
    pub(super) fn passing_now(&self, client: u32) -> Option<usize> {
        let v = self.passing(client);
        self.attached[client as usize].get(v).copied().flatten().map(|_| v)
    }
    pub(super) fn is_passing(&self, volume: usize) -> bool {
        volume > self.shared()
    }

    fn ask(&mut self, client: u32, volume: usize, what: Passing, op: impl Into<Op>) {
        let kind = if what == Passing::After { Kind::Read } else { Kind::Attach };
        let id = self.submit(client, op, volume, kind, false);
        if let Some(p) = self.pending.get_mut(&(client, id)) {
            p.passing = Some(what);
        }
    }

    /// Creates, grows or deletes the client's volume, unless that is in progress or impossible now.
    pub(super) fn pass(&mut self, client: u32, what: Passing, force: bool) {
        let v = self.passing(client);
        let busy = self.pending.iter().any(|(k, p)| k.0 == client && p.volume == v && p.kind == Kind::Attach);
        let absent = self.volumes.get(v).is_none_or(|v| v.info.is_none());
        if busy
            || self.store_is_older()
            || self.down.contains_key(&self.client_node(client))
            || absent != (what == Passing::Create)
        {
            return;
        }
        if what == Passing::Create {
            let blocks = self.plan.params.own_blocks;
            let volume = &mut self.volumes[v];
            let created = volume.created + 1;
            *volume = Volume { created, ..Volume::new(format!("passing{client}-{created}"), blocks) };
        }
        let name = self.volumes[v].name.clone().into_boxed_str();
        let size = u64::from(self.volumes[v].blocks) * u64::from(BLOCK);
        let op = match what {
            Passing::Create => admin::Op::create(name, size),
            Passing::Grow => admin::Op::VolumeGrow { name, size: (size + size / 2).next_multiple_of(u64::from(BLOCK)) },
            Passing::Delete => admin::Op::VolumeDelete { name, force },
            Passing::After => return,
        };
        self.ask(client, v, what, op);
    }

    pub(super) fn passed(
        &mut self,
        client: u32,
        volume: usize,
        what: Passing,
        result: &Outcome,
    ) -> Result<(), Failure> {
        match (what, result) {
            (Passing::Create, Outcome::Admin(Ok(admin::Reply::Volume(info)))) => {
                self.volumes[volume].info = Some(*info.clone());
                self.attach(client, volume);
            }
            (Passing::Grow, Outcome::Admin(Ok(admin::Reply::Volume(info)))) => {
                let blocks = (info.size / u64::from(BLOCK)) as u32;
                self.volumes[volume].blocks = blocks;
                self.volumes[volume].places = vec![(0, blocks)];
            }
            (Passing::Delete, Outcome::Admin(Ok(_))) => {
                let id = self.volumes[volume].id();
                self.leave(volume, true);
                let op = volume::Op::Read { volume: id, offset: 0, len: BLOCK };
                self.ask(client, volume, Passing::After, op);
            }
            (Passing::Delete, Outcome::Admin(Err(admin::Error::Volume(VolumeError::InUse { .. })))) => {}
            (Passing::Delete, _) => self.leave(volume, false),
            // Sets are informed one after another; until then the volume is unchanged.
            (Passing::After, Outcome::Volume(Ok(data))) if self.quiet => {
                return Err(Failure::Unexpected(format!(
                    "a volume is read that every set knows to be deleted: {data:?}"
                )));
            }
            _ => {}
        }
        Ok(())
    }

    /// The volume is deleted, or its state is unknown.
    fn leave(&mut self, volume: usize, deleted: bool) {
        let client = (volume - self.shared() - 1) as u32;
        let v = &mut self.volumes[volume];
        if let Some(info) = v.info.take() {
            self.gone.push(Gone { id: info.id, sets: info.sets, client, blocks: v.blocks, deleted });
        }
        self.attached.iter_mut().for_each(|a| a[volume] = None);
    }
    /// Whether its deletion is pending.
    pub(super) fn is_leaving(&self, volume: usize) -> bool {
        self.pending.values().any(|p| p.volume == volume && p.passing == Some(Passing::Delete))
    }
    /// A client ends: whether a pending deletion of its volume was executed is unknown.
    pub(super) fn forget(&mut self, client: u32) {
        let volume = self.passing(client);
        if self.is_leaving(volume) {
            self.leave(volume, false);
        }
    }
    pub(super) fn attach_passing(&mut self, client: u32) {
        let v = self.passing(client);
        if self.volumes.get(v).is_some_and(|v| v.info.is_some()) {
            self.try_attach(client, v);
        }
    }

    /// A deleted volume can no longer be read.
    pub(super) fn read_deleted(&mut self) -> Result<(), Failure> {
        for (client, id) in self.gone.iter().filter(|g| g.deleted).map(|g| (g.client, g.id)).collect::<Vec<_>>() {
            let op = volume::Op::Read { volume: id, offset: 0, len: BLOCK };
            self.ask(client, self.passing(client), Passing::After, op);
        }
        self.drain("deleted volumes are read", QUIET_MAX)
    }

    /// No server maps a block of a deleted volume.
    pub(super) fn deleted_are_gone(&self) -> Result<(), String> {
        for g in self.gone.iter().filter(|g| g.deleted) {
            let views = g.sets.iter().filter_map(|&s| self.sim.meta()?.view(s));
            for m in views.flat_map(|v| &v.members) {
                let Some(server) = self.sim.server(rackweave_core::Layout::server_number(m.server)) else { continue };
                let mapped = (0..g.blocks).find(|&b| server.ssd().mapped(m.vssd, BlockAddr::new(g.id, b)));
                if let Some(b) = mapped {
                    return Err(format!("{} of deleted {} is still mapped by {m:?}", BlockAddr::new(g.id, b), g.id));
                }
            }
        }
        Ok(())
    }
}
