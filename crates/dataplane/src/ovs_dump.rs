//! The state of an Open vSwitch bridge, read back from its dumps: the configured rings, or the difference.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use rackweave_core::NodeId;

use crate::netns::NODES_MAX;
use crate::ovs::{priority as priority_of, to_member};
use crate::rings::{Prefix, Reach, Ring};

/// Reason why a bridge's state is not that of rings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    #[error("group {line:?}: {what}")]
    Group { line: String, what: &'static str },
    #[error("flow {line:?}: {what}")]
    Flow { line: String, what: &'static str },
    #[error("group {group} is behind no prefix")]
    Unused { group: u32 },
}

/// A ring without its prefix.
type Group = (Reach, Vec<NodeId>);

/// The rings of a bridge, by prefix, from `dump-groups` and `dump-flows` (OpenFlow 1.5). Flows to hosts and answers to ARP
/// are left out.
pub fn rings_in(groups: &str, flows: &str) -> Result<Vec<Ring>, DumpError> {
    let mut known = BTreeMap::new();
    for line in groups.lines().map(str::trim).filter(|l| l.starts_with("group_id=")) {
        let (id, group) = group(line).map_err(|what| DumpError::Group { line: line.into(), what })?;
        known.insert(id, (group, false));
    }
    let mut rings = Vec::new();
    for line in flows.lines().map(str::trim) {
        let Some((of, id)) = line.split_once("actions=group:") else { continue };
        let bad = |what| DumpError::Flow { line: line.into(), what };
        let id: u32 = id.parse().map_err(|_| bad("no group's number"))?;
        let ((reach, members), used) = known.get_mut(&id).ok_or_else(|| bad("there is no such group"))?;
        *used = true;
        let prefix = prefix(of).map_err(bad)?;
        rings.push(Ring { prefix, reach: *reach, members: members.clone() });
    }
    if let Some((&group, _)) = known.iter().find(|(_, (_, used))| !used) {
        return Err(DumpError::Unused { group });
    }
    rings.sort_unstable_by_key(|r| r.prefix);
    Ok(rings)
}

fn prefix(of: &str) -> Result<Prefix, &'static str> {
    let (mut address, mut priority, mut udp) = (None, None, false);
    for part in of.split([',', ' ']).filter(|p| !p.is_empty()) {
        match part.split_once('=') {
            None if part == "udp" => udp = true,
            Some(("priority", n)) => priority = n.parse::<u32>().ok(),
            Some(("nw_dst", a)) => address = Some(a),
            _ => return Err("it matches more than UDP and a destination"),
        }
    }
    if !udp {
        return Err("it matches more than UDP");
    }
    let (address, bits) = match address {
        None => ("0.0.0.0", "0"),
        Some(a) => a.split_once('/').unwrap_or((a, "32")),
    };
    let address: Ipv4Addr = address.parse().map_err(|_| "no address")?;
    let bits: u8 = bits.parse().map_err(|_| "not a prefix of an address")?;
    if priority != Some(priority_of(bits)) {
        return Err("its priority is not that of its prefix's length");
    }
    Ok(Prefix { address, bits })
}

fn group(line: &str) -> Result<(u32, Group), &'static str> {
    let mut parts = line.split(",bucket=");
    let mut head = parts.next().unwrap_or_default().split(',');
    let id = head.next().and_then(|p| p.strip_prefix("group_id=")?.parse().ok()).ok_or("no number")?;
    let rest: Vec<&str> = head.collect();
    let reach = match rest[..] {
        ["type=all"] => Reach::All,
        ["type=select", "selection_method=hash", "fields(ip_src)" | "fields=ip_src"] => Reach::Share,
        _ => return Err("neither all nor a share of the senders"),
    };
    let members = parts.map(member).collect::<Result<Vec<_>, _>>()?;
    Ok((id, (reach, members)))
}

/// The node whose addresses a bucket writes, at whose port it goes out.
fn member(bucket: &str) -> Result<NodeId, &'static str> {
    let (_, actions) = bucket.split_once("actions=").ok_or("a bucket without actions")?;
    let address = actions.strip_prefix("set_field:").and_then(|a| a.split_once("->ip_dst")).map(|(a, _)| a);
    let address: Ipv4Addr = address.and_then(|a| a.parse().ok()).ok_or("a bucket writes no address first")?;
    let node = NodeId::from_ipv4(address.into()).filter(|n| n.0 < NODES_MAX);
    let node = node.ok_or("a bucket writes the address of no node")?;
    if actions != to_member(node) {
        return Err("a bucket does more or less than reach a node");
    }
    Ok(node)
}
