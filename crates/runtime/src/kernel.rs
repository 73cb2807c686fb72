//! The switch's node when its tables and programs are in the kernel. It writes the rows that servers announce, and
//! keeps the programs on their interfaces. Reads, writes and `load`s never reach it; `gc_op`s only with two racks.
//!
//! The programs are attached by links that this process owns: they are removed when it ends, however it ends.

use std::collections::BTreeMap;

use rackweave_core::msg::{Body, Op, Packet, Table};
use rackweave_core::{Effects, Event, Incarnation, Layout, Node, NodeId, Span, Time, VssdId};
use rackweave_dataplane::{
    Hook, KernelConfig, KernelFault, KernelSwitch, LoadError, Port, PortPlace, SlowPath, TwoRacks, frame, interface,
};
use rackweave_switch::control::{Announcement, Change, DataPlane, RowResult};
use rackweave_transport::Keys;

use crate::control::SwitchState;
use rackweave_config::RackConfig;
use rackweave_config::switching::{DataPlaneKind, PortPlan};
use rackweave_rack::build;
use rackweave_switch::Redirect;
use rackweave_switch::rings::KeyRings;

/// Period of checks of the interfaces, and the longest time for which flows use an interface that went down.
const WATCH: Span = Span::from_millis(200);

/// Why the switch is not in the kernel.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    #[error("{error}{}", hint())]
    Load { error: LoadError },
    #[error("interface {name:?} of switch.ports does not exist on this host")]
    NoInterface { name: String },
    #[error("interface {name:?}: {error}{}", hint())]
    Attach { name: String, error: KernelFault },
    #[error("{error}")]
    Fault { error: KernelFault },
}

impl From<KernelFault> for PlaneError {
    fn from(error: KernelFault) -> PlaneError {
        PlaneError::Fault { error }
    }
}

fn hint() -> &'static str {
    // SAFETY: has no preconditions.
    if unsafe { libc::geteuid() } == 0 { "" } else { " (it needs root, or CAP_BPF and CAP_NET_ADMIN)" }
}

/// State of one interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Interface index; zero if it is missing.
    index: u32,
    running: bool,
}

#[derive(Debug)]
pub struct KernelNode {
    kind: DataPlaneKind,
    node: NodeId,
    switch: KernelSwitch,
    /// With two racks.
    slow_path: Option<SlowPath>,
    /// Time of the next check of the interfaces.
    look_at: Time,
    ports: Vec<PortPlan>,
    /// Interfaces by name, as configured in the programs.
    interfaces: BTreeMap<String, Seen>,
    keys: Keys,
    key_rings: KeyRings,
    /// Incarnations whose keys the program has.
    incarnations: BTreeMap<NodeId, Incarnation>,
    /// Of the last check of the interfaces.
    port_fault: Option<PlaneError>,
    /// Of the last change of cluster keys.
    key_fault: Option<KernelFault>,
    /// Of the last packet that was to change a row, or the state of its vSSD, in the kernel.
    row_faults: BTreeMap<VssdId, KernelFault>,
}

impl KernelNode {
    /// Loads the programs of a rack's switch and attaches them to the interfaces of `ports`, in the network namespace of this
    /// process.
    pub fn start(cfg: &RackConfig, rack: u32, ports: Vec<PortPlan>, keys: Keys) -> Result<KernelNode, PlaneError> {
        let kind = cfg.switch.data_plane;
        let hook = if kind == DataPlaneKind::Xdp { Hook::Xdp } else { Hook::Tc };
        let as_process = build::switch_config(cfg, rack);
        let own = as_process.node;
        let switch = KernelSwitch::load(KernelConfig {
            hook,
            redirect: as_process.redirect,
            require_mac: !keys.is_none(),
            two_racks: as_process.far.map(|_| TwoRacks { rack, far_reads: as_process.far_reads }),
            ..KernelConfig::new(own)
        })
        .map_err(|error| PlaneError::Load { error })?;
        let mut node = KernelNode {
            kind,
            node: own,
            switch,
            slow_path: as_process.far.map(|_| SlowPath::new(as_process)),
            look_at: Time::ZERO,
            ports,
            interfaces: BTreeMap::new(),
            keys,
            key_rings: KeyRings::default(),
            incarnations: BTreeMap::new(),
            port_fault: None,
            key_fault: None,
            row_faults: BTreeMap::new(),
        };
        // An ARP request for the switch's own address is answered by its ports; nothing is sent to the entry itself.
        node.switch.set_port(own, Port { ifindex: 0, mac: frame::mac(own), place: PortPlace::Peer })?;
        for ring in build::rings(cfg) {
            node.switch.set_ring(&ring)?;
        }
        node.look()?;
        match node.interfaces.iter().find(|(_, seen)| seen.index == 0) {
            Some((name, _)) => Err(PlaneError::NoInterface { name: name.clone() }),
            None => Ok(node),
        }
    }

    /// Attaches to new interfaces, and directs flows to those that are up.
    fn look(&mut self) -> Result<(), PlaneError> {
        for i in 0..self.ports.len() {
            let mut changed = false;
            for (name, _) in self.ports[i].ways.clone() {
                let seen = Seen { index: interface::index(&name).unwrap_or(0), running: interface::running(&name) };
                let before = self.interfaces.get(&name).copied().unwrap_or_default();
                if seen.index != 0 && seen.index != before.index {
                    let attached = self.switch.attach(&name);
                    attached.map_err(|error| PlaneError::Attach { name: name.clone(), error })?;
                }
                changed |= self.interfaces.insert(name, seen) != Some(seen);
            }
            if changed {
                self.set_ports(i)?;
            }
        }
        Ok(())
    }

    fn set_ports(&mut self, i: usize) -> Result<(), KernelFault> {
        let plan = &self.ports[i];
        let port = |(name, mac): &(String, [u8; 6])| {
            let place = if interface::is_veth(name) { PortPlace::Peer } else { PortPlace::Wire };
            Port { ifindex: self.interfaces[name].index, mac: *mac, place }
        };
        let running: Vec<Port> = plan.ways.iter().filter(|w| self.interfaces[&w.0].running).map(port).collect();
        let all = if running.is_empty() { plan.ways.iter().map(port).collect() } else { running };
        for &node in &plan.nodes {
            self.switch.set_ports(node, &all)?;
        }
        Ok(())
    }

    /// Where reads go from now on.
    pub fn set_redirect(&mut self, redirect: Redirect) -> Result<(), KernelFault> {
        self.switch.set_redirect(redirect)
    }

    /// Applies changed cluster keys. New keys are added before old ones are removed, so that every `gc_op` is accepted.
    pub fn set_keys(&mut self, keys: Keys) {
        let before = std::mem::replace(&mut self.keys, keys);
        let incarnations: Vec<_> = self.incarnations.iter().map(|(&node, &incarnation)| (node, incarnation)).collect();
        let result = incarnations.iter().try_for_each(|&(node, incarnation)| self.put_keys(node, incarnation));
        for ended in before.live().filter(|id| self.keys.live().all(|k| k != *id)) {
            for &(node, incarnation) in &incarnations {
                // The key may be missing already.
                let _ = self.switch.remove_key(ended.0, node, incarnation);
            }
        }
        self.key_fault = result.err();
    }
    fn put_keys(&mut self, node: NodeId, incarnation: Incarnation) -> Result<(), KernelFault> {
        self.keys.of_gc(node, incarnation.0).try_for_each(|(id, key)| self.switch.set_key(id.0, node, incarnation, key))
    }
    fn learn(&mut self, node: NodeId, incarnation: Incarnation) -> Result<(), KernelFault> {
        if self.incarnations.get(&node) == Some(&incarnation) {
            return Ok(());
        }
        if let Some(before) = self.incarnations.remove(&node) {
            self.forget(node, before);
        }
        self.put_keys(node, incarnation)?;
        self.incarnations.insert(node, incarnation);
        Ok(())
    }
    fn forget(&mut self, node: NodeId, incarnation: Incarnation) {
        for id in self.keys.live() {
            let _ = self.switch.remove_key(id.0, node, incarnation);
        }
    }

    /// Handles `create_vssd` and `del_vssd`, and views of partitions of keys: their members are behind an address. With two racks
    /// also `gc_op`s, and what the other rack's switch sends. Anything else has bypassed the programs and is dropped.
    fn packet(&mut self, now: Time, p: Packet, fx: &mut Effects) -> Result<(), KernelFault> {
        match &p.body {
            Body::Table(Table::Create(row)) => {
                let incarnation = p.header.incarnation;
                // The metadata service announces partitions of keys, with its own incarnation.
                if p.src == row.server && self.incarnations.get(&row.server).is_none_or(|&known| known < incarnation) {
                    self.learn(row.server, incarnation)?;
                }
            }
            // XDP has no rings; the configuration of clients says so.
            Body::Keys(keys) if p.src == Layout::META && self.kind != DataPlaneKind::Xdp => {
                let change = keys.new_view().and_then(|v| self.key_rings.change(p.header.incarnation, v));
                // Those that the table has no room for are reached by other ways.
                let _ = change.map(|c| self.switch.change_ring(&c)).transpose()?;
                return Ok(());
            }
            _ => {}
        }
        match &mut self.slow_path {
            Some(slow_path) => slow_path.packet(&mut self.switch, now, p, fx),
            None => self.row(now, p, fx),
        }
    }

    fn row(&mut self, now: Time, p: Packet, fx: &mut Effects) -> Result<(), KernelFault> {
        let (vssd, incarnation) = (p.header.vssd, p.header.incarnation);
        let change = match &p.body {
            Body::Table(Table::Create(row)) => {
                let (epoch, request) = (p.header.epoch, p.header.request);
                Change::Create(Announcement { vssd, incarnation, epoch, request, row: (**row).clone() })
            }
            Body::Table(Table::Delete) if p.header.op == Op::DelVssd => Change::Delete { vssd, incarnation },
            _ => return Ok(()),
        };
        let result = match self.switch.change(now, &change)? {
            RowResult::Stale => return Ok(()),
            RowResult::Done => Ok(()),
            RowResult::Refused(e) => Err(e),
        };
        let mut header = p.header;
        header.op = Op::Reply;
        fx.send(Packet { src: self.node, dst: p.src, header, body: Body::Table(Table::Answer(result)) });
        Ok(())
    }

    fn timer(&mut self, now: Time, fx: &mut Effects) {
        if let Some(slow_path) = &mut self.slow_path {
            slow_path.timer(now, fx);
        }
        if now >= self.look_at {
            self.look_at = now + WATCH;
            self.port_fault = self.look().err();
        }
    }

    /// What `status` says of the data plane.
    fn fault(&self) -> Option<String> {
        let mut rows = self.row_faults.iter().map(|(vssd, e)| format!("{vssd}: {e}"));
        let others = self.row_faults.len().saturating_sub(1);
        let more = if others > 0 { format!(" (and {others} more vSSDs)") } else { String::new() };
        let of_rows = rows.next().map(|first| first + &more);
        let (ports, keys) = (self.port_fault.iter(), self.key_fault.iter());
        let all: Vec<String> =
            ports.map(ToString::to_string).chain(keys.map(ToString::to_string)).chain(of_rows).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Tables and counters in the kernel.
    pub fn state(&self) -> SwitchState {
        let mut state = SwitchState {
            data_plane: self.kind.to_string(),
            redirect: build::redirect_name(self.switch.redirect()).into(),
            error: self.fault(),
            ..Default::default()
        };
        let counters = match &self.slow_path {
            Some(slow_path) => slow_path.counters(&self.switch),
            None => self.switch.counters(),
        };
        match (self.switch.rows(), counters) {
            (Ok(rows), Ok(all)) => {
                (state.rows, state.rows_max) = (rows, self.switch.rows_max());
                state.counters = seen(all.all());
            }
            (Err(e), _) | (_, Err(e)) => state.error = Some(e.to_string()),
        }
        for (name, seen) in &self.interfaces {
            let how = match (seen.index, seen.running) {
                (0, _) => "missing",
                (_, false) => "down",
                (_, true) => "up",
            };
            state.interfaces.push((name.clone(), how.into()));
        }
        state
    }
}

impl Node for KernelNode {
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
        match event {
            Event::Packet(p) => {
                let vssd = p.header.vssd;
                match self.packet(now, p, fx) {
                    Ok(()) => _ = self.row_faults.remove(&vssd),
                    Err(e) => _ = self.row_faults.insert(vssd, e),
                }
            }
            Event::Timer => self.timer(now, fx),
            _ => {}
        }
        let expiry = self.slow_path.as_ref().map_or(Time::MAX, SlowPath::deadline);
        fx.wake_at(self.look_at.min(expiry));
    }
}

/// Counters that are not zero.
pub fn seen(all: impl Iterator<Item = (&'static str, u64)>) -> Vec<(String, u64)> {
    all.filter(|(_, n)| *n > 0).map(|(name, n)| (name.into(), n)).collect()
}
