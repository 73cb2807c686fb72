//! Two network namespaces and a veth pair between them. They have no names, and end with this process, however it ends.

use std::io;

use rackweave_dataplane::netns::Namespace;

use super::ends::Site;

/// Hosts whose packets have at most this number of bytes.
///
/// # Errors
/// Without root, or without namespaces.
pub fn site(mtu: u16) -> io::Result<Site> {
    let (server, client) = (Namespace::new()?, Namespace::new()?);
    server.sh(&format!("ip link add rwb0 type veth peer name rwb1 netns {}", client.path()))?;
    for (n, device, address) in [(&server, "rwb0", "10.99.0.1"), (&client, "rwb1", "10.99.0.2")] {
        n.sh(&format!("ip addr add {address}/24 dev {device} && ip link set {device} mtu {mtu} up"))?;
    }
    let (to, from) = ([10, 99, 0, 1].into(), [10, 99, 0, 2].into());
    Ok(Site { server: to, target: to, client: from, mtu, namespaces: Some((server, client)) })
}
