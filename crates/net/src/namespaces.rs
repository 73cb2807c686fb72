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
    rack: TestRack,
    layout: Layout,
    /// Number of servers with a host.
    servers: usize,
}

impl Namespaces {
    /// Creates the hosts of all nodes; the second half of the servers is in the second rack, the gateways are in the first.
    /// Addresses are those of a rack of up to `servers_max` servers.
    ///
    /// # Errors
    /// Missing privileges, or a missing tool.
    pub fn new(
        servers: u32,
        servers_max: u32,
        gateways: u32,
        data_plane: DataPlaneKind,
    ) -> Result<Namespaces, DistributedError> {
        let layout = Layout::new(servers_max, gateways);
        let here = &layout.ids(NodeKind::Server)[..servers as usize];
        let (near, far) = here.split_at(servers.div_ceil(2) as usize);
        let near = [&[Layout::META], near, layout.ids(NodeKind::Client)].concat();
        let made = TestRack::new(Layout::SWITCH, &near, far);
        let made = made.and_then(|rack| {
            if data_plane == DataPlaneKind::Xdp {
                rack.ready_for_xdp()?;
            }
            Ok(rack)
        });
        Ok(Namespaces { rack: made.map_err(DistributedError::Namespaces)?, layout, servers: servers as usize })
    }

    /// The namespace of a node.
    pub fn of(&self, name: NodeName) -> &Namespace {
        let id = self.layout.id(name);
        self.rack.hosts().find(|h| Some(h.node) == id).map_or(&self.rack.switch, |h| &h.net)
    }

    /// Addresses of the nodes.
    pub fn hosts(&self, key_file: std::path::PathBuf) -> HostsSection {
        let address = |n: NodeId| native_address(n).to_string();
        HostsSection {
            meta: address(Layout::META),
            switches: vec![address(Layout::SWITCH)],
            servers: self.layout.ids(NodeKind::Server).iter().map(|n| address(*n)).collect(),
            gateways: self.layout.ids(NodeKind::Client).iter().map(|n| address(*n)).collect(),
            key_file: Some(key_file),
        }
    }

    /// The switch's interfaces.
    pub fn ports(&self) -> Vec<PortSection> {
        let near = self.rack.near_hosts.iter().map(|h| PortSection {
            nodes: vec![self.name(h.node).to_string()],
            interfaces: vec![port_name(h.node)],
            macs: Vec::new(),
        });
        let far = self.rack.far_hosts.iter().map(|h| h.node);
        // Servers that may be added get their hosts with the next start.
        let reserved = self.layout.ids(NodeKind::Server)[self.servers..].iter().copied();
        let far = PortSection {
            nodes: far.chain(reserved).map(|n| self.name(n).to_string()).collect(),
            interfaces: (0..UPLINKS).map(uplink_name).collect(),
            macs: (0..UPLINKS).map(|i| uplink_mac(1, i).map(|b| format!("{b:02x}")).join(":")).collect(),
        };
        near.chain([far].into_iter().filter(|f| !f.nodes.is_empty())).collect()
    }

    fn name(&self, id: NodeId) -> NodeName {
        // Hosts are nodes of this layout.
        self.layout.name(id).unwrap_or(NodeName::META)
    }

    /// One line per namespace: its name, and the argument for `nsenter --net=`.
    pub fn listed(&self) -> String {
        let (switch, far) = (self.rack.switch.path(), self.rack.far.path());
        let hosts = self.rack.hosts().map(|h| format!("{} {}\n", self.name(h.node), h.net.path()));
        format!("switch {switch}\nfar {far}\n") + &hosts.collect::<String>()
    }
}
