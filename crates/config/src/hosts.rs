//! Which node runs where: the `[hosts]` section of a configuration.
//!
//! ```toml
//! [hosts]
//! meta = "10.0.1.1:7400"
//! switch = "10.0.1.1:7401"
//! servers = ["10.0.1.2:7400", "10.0.1.3:7400", "10.0.1.4:7400", "10.0.1.5:7400"]
//! gateways = ["10.0.1.1:7402"]
//! key_file = "cluster.key"
//! ```
#![allow(clippy::disallowed_types, reason = "a driver's part: it looks hosts up")]

use std::borrow::Cow;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use rackweave_core::{Layout, NodeId};
use serde::{Deserialize, Serialize};

use crate::Problem;

/// Gateways of a rack: each is a client that the metadata service and every replica keep state of.
pub const GATEWAYS_MAX: usize = 64;

/// UDP addresses, `HOST:PORT`, one for each node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostsSection {
    pub meta: String,
    pub switch: String,
    /// Server `i` of the rack is the i-th.
    pub servers: Vec<String>,
    pub gateways: Vec<String>,
    /// The cluster's key (`rackweave keys init`): the path is relative to the configuration's directory. Without it
    /// packets are not authenticated, which is allowed on loopback only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
}

/// One node of a rack, as a user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeName {
    Meta,
    Switch,
    Server(u32),
    Gateway(u32),
}

impl NodeName {
    pub fn id(self, layout: Layout) -> NodeId {
        match self {
            NodeName::Meta => Layout::META,
            NodeName::Switch => Layout::SWITCH,
            NodeName::Server(i) => layout.server(i),
            NodeName::Gateway(i) => layout.client(i),
        }
    }
}

/// Also the name of the node's directory in the data directory.
impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeName::Meta => f.write_str("meta"),
            NodeName::Switch => f.write_str("switch"),
            NodeName::Server(i) => write!(f, "server-{i}"),
            NodeName::Gateway(i) => write!(f, "gateway-{i}"),
        }
    }
}

/// As it is displayed.
impl FromStr for NodeName {
    type Err = ();

    fn from_str(text: &str) -> Result<NodeName, ()> {
        let number = |n: &str| n.parse().map_err(|_| ());
        match text.split_once('-') {
            None if text == "meta" => Ok(NodeName::Meta),
            None if text == "switch" => Ok(NodeName::Switch),
            Some(("server", n)) => Ok(NodeName::Server(number(n)?)),
            Some(("gateway", n)) => Ok(NodeName::Gateway(number(n)?)),
            _ => Err(()),
        }
    }
}

impl HostsSection {
    pub fn layout(&self) -> Layout {
        Layout::new(self.servers.len() as u32, self.gateways.len() as u32)
    }

    /// Every node, in the order of their ids.
    pub fn names(&self) -> impl Iterator<Item = NodeName> + use<> {
        let servers = (0..self.servers.len() as u32).map(NodeName::Server);
        let gateways = (0..self.gateways.len() as u32).map(NodeName::Gateway);
        [NodeName::Meta, NodeName::Switch].into_iter().chain(servers).chain(gateways)
    }

    /// The address of a node as configured.
    pub fn text(&self, name: NodeName) -> Option<&str> {
        match name {
            NodeName::Meta => Some(&self.meta),
            NodeName::Switch => Some(&self.switch),
            NodeName::Server(i) => self.servers.get(i as usize).map(String::as_str),
            NodeName::Gateway(i) => self.gateways.get(i as usize).map(String::as_str),
        }
    }

    fn key(name: NodeName) -> Cow<'static, str> {
        match name {
            NodeName::Meta => "hosts.meta".into(),
            NodeName::Switch => "hosts.switch".into(),
            NodeName::Server(i) => format!("hosts.servers[{i}]").into(),
            NodeName::Gateway(i) => format!("hosts.gateways[{i}]").into(),
        }
    }

    pub(crate) fn problem(name: NodeName, text: &str, rule: impl Into<String>) -> Problem {
        Problem { key: HostsSection::key(name), value: format!("{text:?}"), rule: rule.into() }
    }

    /// What can be said without asking anyone where a host is.
    pub(crate) fn check(&self, servers: u32, out: &mut Vec<Problem>) {
        if self.servers.len() != servers as usize {
            let value = format!("{} addresses", self.servers.len());
            out.push(Problem {
                key: "hosts.servers".into(),
                value,
                rule: format!("one for each of servers ({servers})"),
            });
        }
        if self.gateways.is_empty() || self.gateways.len() > GATEWAYS_MAX {
            let value = format!("{} addresses", self.gateways.len());
            out.push(Problem { key: "hosts.gateways".into(), value, rule: format!("1 to {GATEWAYS_MAX}") });
        }
        let mut seen: Vec<(NodeName, &str)> = Vec::new();
        for name in self.names() {
            let Some(text) = self.text(name) else { continue };
            match text.rsplit_once(':').map(|(host, port)| (host.is_empty(), port.parse::<u16>())) {
                Some((false, Ok(1..))) => {}
                _ => out.push(HostsSection::problem(name, text, "HOST:PORT, the port 1 to 65535")),
            }
            if let Some((other, _)) = seen.iter().find(|(_, t)| *t == text) {
                out.push(HostsSection::taken(name, text, *other));
            }
            seen.push((name, text));
        }
    }

    fn taken(name: NodeName, text: &str, other: NodeName) -> Problem {
        let other = HostsSection::key(other);
        HostsSection::problem(name, text, format!("an address of its own; {other} has this one"))
    }

    /// Where every node is, by node id.
    ///
    /// # Errors
    /// Every host that has no address, is no single address, or is another node's.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>, Vec<Problem>> {
        let (mut all, mut problems): (Vec<(NodeName, SocketAddr)>, _) = (Vec::new(), Vec::new());
        for name in self.names() {
            let Some(text) = self.text(name) else { continue };
            let found = text.to_socket_addrs().map(|mut a| a.next());
            let rule: Cow<'static, str> = match found {
                Ok(Some(a)) => match all.iter().find(|(_, b)| *b == a) {
                    Some((other, _)) => {
                        problems.push(HostsSection::taken(name, text, *other));
                        continue;
                    }
                    None if a.ip().is_unspecified() => "an address that other nodes can send to".into(),
                    None if all.first().is_some_and(|(_, b)| b.is_ipv4() != a.is_ipv4()) => {
                        "all nodes speak IPv4, or all IPv6".into()
                    }
                    None => {
                        all.push((name, a));
                        continue;
                    }
                },
                Ok(None) => "a host name that resolves to an address".into(),
                Err(e) => format!("a host name that resolves ({e})").into(),
            };
            problems.push(HostsSection::problem(name, text, rule));
        }
        if let (None, Some((name, a))) = (&self.key_file, all.iter().find(|(_, a)| !a.ip().is_loopback())) {
            let rule = format!(
                "required when a node is not on loopback ({} is {a}); rackweave keys init creates one",
                HostsSection::key(*name)
            );
            problems.push(Problem { key: "hosts.key_file".into(), value: "nothing".into(), rule });
        }
        if problems.is_empty() { Ok(all.into_iter().map(|(_, a)| a).collect()) } else { Err(problems) }
    }
}

#[cfg(test)]
#[path = "hosts_tests.rs"]
mod tests;
