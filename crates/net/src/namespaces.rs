//! The hosts of `rackweave up --netns`: network namespaces on this machine, one per node, in two racks.

use rackweave_core::{Layout, NodeId, NodeKind};
use rackweave_dataplane::netns::Namespace;
use rackweave_dataplane::testrack::{TestRack, UPLINKS, port_name, uplink_mac, uplink_name};

use super::DistributedError;
use rackweave_config::hosts::HostsSection;
use rackweave_config::switching::{DataPlaneKind, PortSection, native_address};
use rackweave_core::NodeName;

/// The nodes' hosts. They end with this process.
#[derive(Debug)]
pub struct Namespaces {
    hosts: TestRack,
    layout: Layout,
    /// Number of servers with a host.
    servers: usize,
}

impl Namespaces {
    /// Creates the hosts of all nodes of `layout`; the second half of the first `servers` is in the second rack, the gateways are in the
    /// first. With two racks in `layout` each has a switch.
    ///
    /// # Errors
    /// Missing privileges, or a missing tool.
    pub fn new(servers: u32, layout: Layout, data_plane: DataPlaneKind) -> Result<Namespaces, DistributedError> {
        let here = &layout.ids(NodeKind::Server)[..servers as usize];
        let (near, far) = here.split_at(servers.div_ceil(2) as usize);
        let near = [&[Layout::META], near, layout.ids(NodeKind::Client)].concat();
        let switches = (Layout::SWITCH, layout.ids(NodeKind::Switch).get(1).copied());
        let made = TestRack::new(switches, &near, far);
        let made = made.and_then(|hosts| {
            if data_plane == DataPlaneKind::Xdp {
                hosts.ready_for_xdp()?;
            }
            Ok(hosts)
        });
        Ok(Namespaces { hosts: made.map_err(DistributedError::Namespaces)?, layout, servers: servers as usize })
    }

    /// The namespace of a node.
    pub fn of(&self, name: NodeName) -> &Namespace {
        let id = self.layout.id(name);
        let switch = if id == Some(Layout::SWITCH) { &self.hosts.switch } else { &self.hosts.far };
        self.hosts.hosts().find(|h| Some(h.node) == id).map_or(switch, |h| &h.net)
    }

    /// Addresses of the nodes.
    pub fn addresses(&self, key_file: std::path::PathBuf) -> HostsSection {
        let all = |kind: NodeKind| self.layout.ids(kind).iter().map(|n| native_address(*n).to_string()).collect();
        HostsSection {
            meta: native_address(Layout::META).to_string(),
            switches: all(NodeKind::Switch),
            servers: all(NodeKind::Server),
            gateways: all(NodeKind::Client),
            key_file: Some(key_file),
        }
    }

    /// The switches' interfaces.
    pub fn ports(&self) -> Vec<PortSection> {
        let TestRack { near_hosts, far_hosts, .. } = &self.hosts;
        let near = near_hosts.iter().map(|h| self.port(0, h.node));
        // Servers that may be added get their hosts with the next start.
        let reserved = self.layout.ids(NodeKind::Server)[self.servers..].iter().copied();
        let mut beyond: Vec<NodeId> = far_hosts.iter().map(|h| h.node).chain(reserved).collect();
        let Some(&far_switch) = self.layout.ids(NodeKind::Switch).get(1) else {
            return near.chain(self.uplinks(0, &beyond)).collect();
        };
        beyond.push(far_switch);
        let far = far_hosts.iter().map(|h| self.port(1, h.node));
        let back: Vec<NodeId> = near_hosts.iter().map(|h| h.node).chain([Layout::SWITCH]).collect();
        near.chain(self.uplinks(0, &beyond)).chain(far).chain(self.uplinks(1, &back)).collect()
    }

    fn port(&self, rack: u32, node: NodeId) -> PortSection {
        let nodes = vec![self.name(node).to_string()];
        PortSection { rack, nodes, interfaces: vec![port_name(node)], macs: Vec::new() }
    }

    /// The links of a rack's switch to the other rack; none if no node is there.
    fn uplinks(&self, rack: u32, beyond: &[NodeId]) -> Option<PortSection> {
        let far_end = if rack == 0 { 1 } else { 0 };
        let mac = |i| uplink_mac(far_end, i).map(|b| format!("{b:02x}")).join(":");
        (!beyond.is_empty()).then(|| PortSection {
            rack,
            nodes: beyond.iter().map(|n| self.name(*n).to_string()).collect(),
            interfaces: (0..UPLINKS).map(uplink_name).collect(),
            macs: (0..UPLINKS).map(mac).collect(),
        })
    }

    fn name(&self, id: NodeId) -> NodeName {
        // Hosts are nodes of this layout.
        self.layout.name(id).unwrap_or(NodeName::META)
    }

    /// One line per namespace: its name, and the argument for `nsenter --net=`.
    pub fn listed(&self) -> String {
        let (switch, far) = (self.hosts.switch.path(), self.hosts.far.path());
        let hosts = self.hosts.hosts().map(|h| format!("{} {}\n", self.name(h.node), h.net.path()));
        let second = self.layout.racks() > 1;
        let second = if second { format!("switch-1 {far}\n") } else { String::new() };
        format!("switch {switch}\nfar {far}\n{second}") + &hosts.collect::<String>()
    }
}
