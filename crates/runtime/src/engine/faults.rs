//! Faults on purpose, for demonstrations: servers that end, links that are cut.

use std::collections::BTreeSet;

use rackweave_core::msg::Packet;
use rackweave_core::{Event, Layout, NodeId};
use rackweave_device::{FileIo, FileSsd};

use super::{Device, Engine, Host, Nodes, Reverse};
use crate::store::MetaStore;
use rackweave_rack::build::BuildError;

/// Cut links. The nodes of a rack form a star around its switch: a node's only link is that to its switch, and racks
/// are connected only by the link between their switches.
#[derive(Debug)]
pub(super) struct Links {
    layout: Layout,
    cut: BTreeSet<(NodeId, NodeId)>,
    lost: u64,
}

fn both(a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    (a.min(b), a.max(b))
}

impl Links {
    pub fn new(layout: Layout) -> Links {
        Links { layout, cut: BTreeSet::new(), lost: 0 }
    }
    /// Whether the packet is lost on a cut link; counts it.
    pub fn lose(&mut self, p: &Packet) -> bool {
        if self.cut.is_empty() {
            return false;
        }
        let (from, to) = (p.src, p.dst.first_hop());
        let (a, b) = (self.layout.switch_near(from), self.layout.switch_near(to));
        let ways = [both(from, to), both(from, a), both(to, b), both(a, b)];
        let lost = ways.iter().any(|w| self.cut.contains(w));
        self.lost += u64::from(lost);
        lost
    }
}

/// Why a node that ended does not start again.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    #[error("its last sync has not ended")]
    Syncing,
    #[error(transparent)]
    Build(#[from] BuildError),
}

impl<N: Nodes, F: FileIo, M: MetaStore> Engine<N, F, M> {
    /// Cuts or mends the link between two nodes. False if nothing changed.
    pub fn cut_link(&mut self, a: NodeId, b: NodeId, cut: bool) -> bool {
        let link = both(a, b);
        if cut { self.links.cut.insert(link) } else { self.links.cut.remove(&link) }
    }
    pub fn links_cut(&self) -> impl Iterator<Item = (NodeId, NodeId)> + '_ {
        self.links.cut.iter().copied()
    }
    /// Number of packets lost on cut links.
    pub fn lost_on_links(&self) -> u64 {
        self.links.lost
    }

    /// Ends a server and closes its device file without a sync: what was not written to the file is lost.
    pub fn end_server(&mut self, node: NodeId, device: usize) {
        self.nodes.end(node);
        self.queue.retain(|(n, _)| *n != node);
        self.due.retain(|Reverse(d)| d.node != node);
        self.wakes[node.0 as usize] = rackweave_core::Time::MAX;
        let Some(d) = self.devices.get_mut(device) else { return };
        d.dead = true;
        d.syncs.next.clear();
        d.host.forget();
        match &mut d.syncs.running {
            // The descriptor stays open until the sync ends.
            Some((_, waiting)) => waiting.clear(),
            None => d.file = None,
        }
    }
    /// Reserves places for devices of servers that do not run yet, up to `devices` in all.
    pub fn reserve(&mut self, devices: u32) {
        while self.devices.len() < devices as usize {
            self.devices.push(Device { file: None, syncs: Default::default(), host: Host::new(), dead: true });
        }
    }
    /// Whether the server of this device has ended.
    pub fn has_ended(&self, device: usize) -> bool {
        self.devices.get(device).is_some_and(|d| d.dead)
    }
    /// Whether a sync of it is still running.
    pub fn still_syncs(&self, device: usize) -> bool {
        self.devices.get(device).is_some_and(|d| d.syncs.running.is_some())
    }
    /// The device of a server that has a place, before the first [`Engine::run`].
    pub fn place_device(&mut self, device: u32, file: FileSsd<F>) {
        self.nodes.set_drive(device, file.drive_id());
        self.devices[device as usize] = Device::new(file);
    }
    /// Starts a server that has ended, on its reopened device.
    pub fn begin_server(&mut self, node: NodeId, device: usize, file: FileSsd<F>) -> Result<(), Stopped> {
        if self.still_syncs(device) {
            return Err(Stopped::Syncing);
        }
        self.nodes.set_drive(device as u32, file.drive_id());
        self.nodes.begin(node)?;
        self.devices[device] = Device::new(file);
        self.queue.push_back((node, Event::Timer));
        Ok(())
    }
}
