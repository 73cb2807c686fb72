//! A test rack on one machine: two racks of hosts, a switch each, an ECMP pair of links between the switches.
//!
//! ```text
//!  host host host          host host
//!    |    |    |             |    |
//!  [   switch    ]==u0,u1==[  far   ]
//! ```
//! `switch` hosts a data plane; `far` forwards as Linux does, or hosts the second rack's. Hosts have their node's address and a route to their
//! switch; no ARP is needed. Namespaces without names: they end with the process that made them, however it ends.

use std::io;

use rackweave_core::NodeId;

use crate::frame::mac;
use crate::netns::{Host, Namespace, address};

/// Links between the switches.
pub const UPLINKS: usize = 2;

/// Gateway address of a test rack's hosts and switches: no host has it.
const GATEWAY: &str = "169.254.0.1";

#[derive(Debug)]
pub struct TestRack {
    pub switch: Namespace,
    pub far: Namespace,
    /// Around `switch`.
    pub near_hosts: Vec<Host>,
    /// Around `far`.
    pub far_hosts: Vec<Host>,
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|b| format!("{b:02x}")).join(":")
}

/// Ethernet address of an end of an uplink: of the switch (0) or of the far one (1).
pub fn uplink_mac(end: u8, uplink: usize) -> [u8; 6] {
    [2, 0, 0, 0, end, uplink as u8]
}

/// Name of an interface of the switches to a host.
pub fn port_name(node: NodeId) -> String {
    format!("p{}", node.0)
}

/// Name of both ends of a link between the switches.
pub fn uplink_name(uplink: usize) -> String {
    format!("u{uplink}")
}

impl TestRack {
    /// `switches`: the first rack's, and the second's if it has one.
    ///
    /// # Errors
    /// No root, or no `ip`.
    pub fn new(switches: (NodeId, Option<NodeId>), near: &[NodeId], far: &[NodeId]) -> io::Result<TestRack> {
        let mut rack =
            TestRack { switch: forwarding()?, far: forwarding()?, near_hosts: Vec::new(), far_hosts: Vec::new() };
        let (switch, far_switch) = switches;
        rack.switch.sh(&format!("ip address add {}/32 dev lo", address(switch)))?;
        if let Some(far_switch) = far_switch {
            rack.far.sh(&format!("ip address add {}/32 dev lo", address(far_switch)))?;
        }
        let own = text(mac(switch));
        for &node in near {
            rack.near_hosts.push(connect(&rack.switch, &own, node)?);
        }
        for &node in far {
            rack.far_hosts.push(connect(&rack.far, &text(uplink_mac(1, UPLINKS)), node)?);
        }
        rack.uplinks(&[far, far_switch.as_slice()].concat())?;
        Ok(rack)
    }

    fn uplinks(&self, far: &[NodeId]) -> io::Result<()> {
        let mut hops = String::new();
        for i in 0..UPLINKS {
            let (name, here, there) = (uplink_name(i), text(uplink_mac(0, i)), text(uplink_mac(1, i)));
            self.switch.sh(&format!(
                "ip link add {name} address {here} type veth peer name {name} address {there} netns {far} && \
                 ip link set {name} up && ip neighbour add 169.254.1.{i} lladdr {there} dev {name} nud permanent",
                far = self.far.path()
            ))?;
            self.far.sh(&format!(
                "ip link set {name} up && ip neighbour add 169.254.1.{i} lladdr {here} dev {name} nud permanent"
            ))?;
            hops += &format!(" nexthop via 169.254.1.{i} dev {name} onlink");
        }
        self.far.sh(&format!("ip route add default{hops}"))?;
        for &node in far {
            self.switch.sh(&format!("ip route add {}/32{hops}", address(node)))?;
        }
        Ok(())
    }

    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.near_hosts.iter().chain(&self.far_hosts)
    }

    /// For XDP on the switches' interfaces: whole checksums from the hosts, and far ends that take what was redirected
    /// before there was a packet buffer.
    pub fn ready_for_xdp(&self) -> io::Result<()> {
        for host in self.hosts() {
            host.net.sh("ethtool -K eth0 tx off gro on")?;
        }
        for i in 0..UPLINKS {
            // A switch's process sends to the other's, and one's program redirects to the other while that has none.
            for switch in [&self.switch, &self.far] {
                switch.sh(&format!("ethtool -K {} tx off gro on", uplink_name(i)))?;
            }
        }
        Ok(())
    }
}

/// A namespace that forwards by its routes; of several with equal cost by addresses and UDP ports.
fn forwarding() -> io::Result<Namespace> {
    let net = Namespace::new()?;
    net.run(|| {
        for (name, value) in [
            ("ip_forward", "1"),
            ("fib_multipath_hash_policy", "1"),
            ("conf/all/rp_filter", "0"),
            ("conf/default/rp_filter", "0"),
            ("conf/all/ignore_routes_with_linkdown", "1"),
            ("conf/default/ignore_routes_with_linkdown", "1"),
            ("conf/all/send_redirects", "0"),
            ("conf/default/send_redirects", "0"),
        ] {
            std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value)?;
        }
        Ok(())
    })
    .and_then(|done: io::Result<()>| done)?;
    Ok(net)
}

fn connect(switch: &Namespace, switch_mac: &str, node: NodeId) -> io::Result<Host> {
    let net = Namespace::new()?;
    let (port, ip, own) = (port_name(node), address(node), text(mac(node)));
    switch.sh(&format!(
        "ip link add {port} address {switch_mac} type veth peer name eth0 address {own} netns {} && \
         ip link set {port} up && ip route add {ip}/32 dev {port} && \
         ip neighbour add {ip} lladdr {own} dev {port} nud permanent",
        net.path()
    ))?;
    net.sh(&format!(
        "ip address add {ip}/32 dev eth0 && ip link set eth0 up && ip route add {GATEWAY} dev eth0 && \
         ip route add default via {GATEWAY} && ip neighbour add {GATEWAY} lladdr {switch_mac} dev eth0 nud permanent"
    ))?;
    Ok(Host { node, net })
}
