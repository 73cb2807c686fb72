//! Two hosts on links of 1 Gbit/s, and between them Open vSwitch, which maps an address of a unicast ring to the server (NI10), or the
//! kernel's bridge.

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use rackweave_core::{Layout, NodeId};
use rackweave_dataplane::netns::{Namespace, Star, address};
use rackweave_dataplane::ovs::OvsSwitch;
use rackweave_dataplane::{Prefix, Reach, Ring};

use super::ends::Site;
use super::requests::{CLIENT, SERVER};

const MTU: u16 = 1_500;
/// NICE's unicast ring.
const RING: Prefix = Prefix { address: Ipv4Addr::new(10, 10, 0, 0), bits: 24 };
/// An address of it.
const KEY: [u8; 4] = [10, 10, 0, 1];

/// What is between the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    Ovs,
    Bridge,
}

/// Namespaces and Open vSwitch end when this is dropped.
#[derive(Debug)]
pub struct Hosts {
    pub site: Site,
    _star: Star,
    _ovs: Option<OvsSwitch>,
}

/// Why there can be no such hosts here, if there is a reason.
pub fn unavailable() -> Option<String> {
    OvsSwitch::unavailable()
}

/// # Errors
/// Without root, namespaces, or Open vSwitch.
pub fn hosts(between: Between) -> io::Result<Hosts> {
    let star = Star::new(Layout::SWITCH, &[SERVER, CLIENT])?;
    let ovs = match between {
        Between::Ovs => {
            let ovs = OvsSwitch::start(&star)?;
            ovs.set_rings(&star.switch, &[Ring { prefix: RING, reach: Reach::Share, members: vec![SERVER] }])?;
            Some(ovs)
        }
        Between::Bridge => {
            star.offloads(false)?;
            star.switch.sh("ip link add br0 type bridge && ip link set br0 up")?;
            for node in [SERVER, CLIENT] {
                star.switch.sh(&format!("ip link set p{} master br0", node.0))?;
            }
            None
        }
    };
    let net = |node: NodeId| Namespace::open(Path::new(&star.host(node).net.path()));
    let (server, client) = (net(SERVER)?, net(CLIENT)?);
    for host in [&server, &client] {
        // Two packets pass at once: the rate holds for short writes too.
        host.sh("tc qdisc add dev eth0 root tbf rate 1gbit burst 3028 latency 50ms")?;
    }
    client.sh(&format!("ip route add {}/{} dev eth0", RING.address, RING.bits))?;
    let target = if between == Between::Ovs { KEY.into() } else { address(SERVER).into() };
    let site = Site {
        server: address(SERVER).into(),
        target,
        client: address(CLIENT).into(),
        mtu: MTU,
        namespaces: Some((server, client)),
    };
    Ok(Hosts { site, _star: star, _ovs: ovs })
}
