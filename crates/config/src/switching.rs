//! The switch's data plane: the `[switch]` section of a configuration.
//!
//! ```toml
//! [switch]
//! data_plane = "tc"
//! [[switch.ports]]
//! nodes = ["server-0"]
//! interfaces = ["p2"]
//! [[switch.ports]]
//! nodes = ["server-1", "gateway-0"]
//! interfaces = ["u0", "u1"]
//! macs = ["02:00:00:00:01:00", "02:00:00:00:01:01"]
//! [[switch.rings]]
//! prefix = "10.11.0.0/24"
//! members = ["server-0", "server-1", "server-2"]
//! ```

use std::borrow::Cow;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

use rackweave_core::{Layout, NodeId};
use rackweave_dataplane::{WAYS_MAX, frame, interface};
use rackweave_switch::{Prefix, Reach, Ring};
use serde::{Deserialize, Serialize};

use crate::hosts::HostsSection;
use crate::{EgressSection, Problem, SchedulingKind};
use rackweave_core::{NodeKind, NodeName};

/// UDP port of every node when the switch is in the kernel.
pub const UDP_PORT: u16 = rackweave_wire::pcap::UDP_PORT;

/// What forwards packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataPlaneKind {
    /// The switch's process; packets are sent to it.
    #[default]
    Process,
    /// BPF programs at the traffic control hook of the interfaces to the hosts.
    Tc,
    /// BPF programs in the driver, before a packet buffer is allocated.
    Xdp,
}

impl fmt::Display for DataPlaneKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DataPlaneKind::Process => "process",
            DataPlaneKind::Tc => "tc",
            DataPlaneKind::Xdp => "xdp",
        })
    }
}

/// The destination that the switch chooses for a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RedirectKind {
    /// The replica that the client addressed.
    Off,
    /// An idle replica, if the addressed one collects (RB3).
    #[default]
    Gc,
    /// The replica with the fewest waiting reads, rarely one that collects.
    Load,
}

/// Nodes behind one interface of the switch's host, or behind several of equal cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortSection {
    /// The rack whose switch has these interfaces.
    #[serde(default, skip_serializing_if = "is_first_rack")]
    pub rack: u32,
    pub nodes: Vec<String>,
    pub interfaces: Vec<String>,
    /// Ethernet address of the far end of each interface. By default 02:00 followed by the first node's IPv4 address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub macs: Vec<String>,
}

fn is_first_rack(rack: &u32) -> bool {
    *rack == 0
}

/// The members of a ring that a packet reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReachKind {
    #[default]
    All,
    Share,
}

/// A replica group behind addresses of NICE's rings (NI1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RingSection {
    /// For example "10.11.0.0/24", within 10.10.0.0/15.
    pub prefix: String,
    #[serde(default)]
    pub reach: ReachKind,
    pub members: Vec<String>,
    /// Members that must have received a message completely (any k, NI3); by default all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quorum: Option<usize>,
}

/// A checked ring section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingPlan {
    pub ring: Ring,
    pub quorum: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SwitchSection {
    pub data_plane: DataPlaneKind,
    pub redirect: RedirectKind,
    /// With `racks.count = 2`: whether a read goes to the other rack if all replicas in its own rack collect; by
    /// default yes. Disable it where the path between racks takes longer than a wait for collection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far_reads: Option<bool>,
    /// Order in which packets leave the switch, if its ports have a rate.
    pub scheduling: SchedulingKind,
    /// Rate and queues of the ports. By default nothing queues in the switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressSection>,
    /// For a data plane in the kernel: the interface of each node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortSection>,
    /// Groups of servers behind virtual addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rings: Vec<RingSection>,
}

/// A checked port section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    pub nodes: Vec<NodeId>,
    /// Interfaces, and the Ethernet addresses of their far ends.
    pub ways: Vec<(String, [u8; 6])>,
}

/// Address of a node when the switch is in the kernel: its virtual address is then a real one.
pub fn native_address(node: NodeId) -> SocketAddr {
    (Ipv4Addr::from(node.ipv4()), UDP_PORT).into()
}

fn mac(text: &str) -> Option<[u8; 6]> {
    let mut parts = text.split(':').map(|p| (p.len() == 2).then(|| u8::from_str_radix(p, 16).ok()).flatten());
    let mut to = [0; 6];
    for b in &mut to {
        *b = parts.next()??;
    }
    parts.next().is_none().then_some(to)
}

impl SwitchSection {
    pub(crate) fn check(&self, layout: &Layout, keys: bool, hosts: Option<&HostsSection>, out: &mut Vec<Problem>) {
        self.ring_plans(layout, out);
        self.check_egress(layout.servers(), keys, hosts.is_some(), out);
        if self.data_plane == DataPlaneKind::Process {
            return;
        }
        let Some(hosts) = hosts else {
            let rule = "only with [hosts]: a data plane in the kernel connects hosts".into();
            out.push(Problem { key: "switch.data_plane".into(), value: self.data_plane.to_string(), rule });
            return;
        };
        let layout = hosts.layout();
        for name in hosts.names() {
            let Some(native) = layout.id(name).map(native_address) else { continue };
            let text = hosts.text(name).unwrap_or_default();
            if text.parse() != Ok(native) {
                let rule = format!("{native} with switch.data_plane = {}", self.data_plane);
                out.push(hosts.problem(name, text, rule));
            }
        }
        for (i, port) in self.ports.iter().enumerate().filter(|(_, port)| port.rack >= layout.racks()) {
            let rule = format!("below racks.count ({})", layout.racks());
            out.push(Problem { key: format!("switch.ports[{i}].rack").into(), value: port.rack.to_string(), rule });
        }
        (0..layout.racks()).for_each(|rack| drop(self.plan(hosts, rack, out)));
    }

    /// The rings; appends their problems to `out`.
    pub fn ring_plans(&self, layout: &Layout, out: &mut Vec<Problem>) -> Vec<RingPlan> {
        let mut all: Vec<RingPlan> = Vec::new();
        for (i, section) in self.rings.iter().enumerate() {
            let mut wrong = |part: &str, value: String, rule: String| {
                out.push(Problem { key: format!("switch.rings[{i}].{part}").into(), value, rule });
            };
            let mut members = Vec::new();
            for text in &section.members {
                let server = text.parse::<NodeName>().ok().filter(|name| name.kind == NodeKind::Server);
                match server.and_then(|name| layout.id(name)) {
                    Some(id) if !members.contains(&id) => members.push(id),
                    _ => wrong("members", format!("{text:?}"), "server-N of the rack, each once".into()),
                }
            }
            let parsed = section.prefix.split_once('/').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            let of_rings = |&(address, bits): &(Ipv4Addr, u8)| {
                bits >= 15 && NodeId::from_ipv4(u32::from(address)).is_some_and(NodeId::is_ring)
            };
            let Some((address, bits)) = parsed.filter(of_rings) else {
                let rule = "a prefix of addresses within 10.10.0.0/15, for instance 10.11.0.0/24".into();
                wrong("prefix", format!("{:?}", section.prefix), rule);
                continue;
            };
            let reach = match section.reach {
                ReachKind::All => Reach::All,
                ReachKind::Share => Reach::Share,
            };
            let quorum = section.quorum.unwrap_or(members.len());
            let ring = Ring { prefix: Prefix { address, bits }, reach, members };
            if let Err(e) = ring.check() {
                wrong("prefix", section.prefix.clone(), format!("not a valid ring: {e}"));
            }
            if all.iter().any(|p| p.ring.prefix == ring.prefix) {
                wrong("prefix", section.prefix.clone(), "a prefix that no other ring has".into());
            }
            if quorum == 0 || quorum > ring.members.len() {
                wrong("quorum", quorum.to_string(), format!("1 to the {} members", ring.members.len()));
            }
            all.push(RingPlan { ring, quorum });
        }
        if self.data_plane == DataPlaneKind::Xdp && !self.rings.is_empty() {
            let rule = "none with data_plane = \"xdp\": XDP cannot copy a packet for each member".into();
            out.push(Problem { key: "switch.rings".into(), value: format!("{} rings", self.rings.len()), rule });
        }
        all
    }

    /// The ports of a rack's switch; appends their problems to `out`.
    pub fn plan(&self, hosts: &HostsSection, rack: u32, out: &mut Vec<Problem>) -> Vec<PortPlan> {
        let (mut all, mut seen) = (Vec::new(), Vec::new());
        let (own, racks) = (NodeName { kind: NodeKind::Switch, index: rack }, hosts.layout().racks());
        for (i, port) in self.ports.iter().enumerate().filter(|(_, port)| port.rack == rack) {
            let key = |part: &str| Cow::Owned(format!("switch.ports[{i}].{part}"));
            let mut wrong = |part, value: String, rule: &str| {
                out.push(Problem { key: key(part), value, rule: rule.into() });
            };
            let mut nodes = Vec::new();
            for text in &port.nodes {
                match text.parse::<NodeName>().ok().filter(|&n| n != own && hosts.text(n).is_some()) {
                    None if racks > 1 => {
                        let rule = "meta, server-N, gateway-N or the other rack's switch of [hosts]";
                        wrong("nodes", format!("{text:?}"), rule);
                    }
                    None => wrong("nodes", format!("{text:?}"), "meta, server-N or gateway-N of [hosts]"),
                    Some(n) if seen.contains(&n) => {
                        wrong("nodes", format!("{text:?}"), "each node behind one port only")
                    }
                    Some(n) => {
                        seen.push(n);
                        nodes.extend(hosts.layout().id(n));
                    }
                }
            }
            if port.nodes.is_empty() {
                wrong("nodes", "none".into(), "at least one");
            }
            if port.interfaces.is_empty() || port.interfaces.len() > WAYS_MAX {
                let value = format!("{} entries", port.interfaces.len());
                wrong("interfaces", value, &format!("1 to {WAYS_MAX}"));
            }
            for name in port.interfaces.iter().filter(|n| n.is_empty() || n.len() > interface::NAME_MAX) {
                wrong("interfaces", format!("{name:?}"), "the name of an interface, 1 to 15 bytes");
            }
            if !port.macs.is_empty() && port.macs.len() != port.interfaces.len() {
                wrong("macs", format!("{} entries", port.macs.len()), "one for each of the interfaces, or none");
            }
            let convention = nodes.first().map_or([0; 6], |&n| frame::mac(n));
            let mut ways = Vec::new();
            for (i, name) in port.interfaces.iter().enumerate() {
                let far = port.macs.get(i).map_or(Some(convention), |text| mac(text));
                if far.is_none() {
                    wrong("macs", format!("{:?}", port.macs[i]), "an Ethernet address such as 02:00:0a:00:00:03");
                }
                ways.push((name.clone(), far.unwrap_or_default()));
            }
            all.push(PortPlan { nodes, ways });
        }
        // Requests of these nodes, and to the other rack's switch, must pass the program on an interface.
        for name in hosts.names().filter(|&n| n != own && n != NodeName::META) {
            if !seen.contains(&name) {
                let place = if racks > 1 { format!(" of rack {rack}") } else { String::new() };
                let rule = format!("a port{place} with {name} behind it");
                out.push(Problem { key: "switch.ports".into(), value: format!("{} ports", self.ports.len()), rule });
            }
        }
        all
    }
}

#[cfg(test)]
#[path = "switching_tests.rs"]
mod tests;
