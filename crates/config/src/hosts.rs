//! Addresses of the nodes: the `[hosts]` section of a configuration.
//!
//! ```toml
//! [hosts]
//! meta = "10.0.1.1:7400"
//! switch = "10.0.1.1:7401"          # of two racks a list, with one for each
//! servers = ["10.0.1.2:7400", "10.0.1.3:7400", "10.0.1.4:7400", "10.0.1.5:7400"]
//! gateways = ["10.0.1.1:7402"]
//! key_file = "cluster.key"
//! ```
#![allow(clippy::disallowed_types, reason = "a driver's part: it looks hosts up")]

use std::borrow::Cow;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::slice;

use rackweave_core::{Layout, NodeId, NodeKind, NodeName};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Problem;

/// Gateways of a rack: the metadata service and every replica keep state for each.
pub const GATEWAYS_MAX: usize = 64;

/// UDP addresses, `HOST:PORT`, one per node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostsSection {
    pub meta: String,
    /// Entry `i` is the switch of rack `i`; in the file a single one is not a list.
    #[serde(rename = "switch", serialize_with = "one_or_list", deserialize_with = "of_one_or_list")]
    pub switches: Vec<String>,
    /// Entry `i` is server `i` of the rack.
    pub servers: Vec<String>,
    pub gateways: Vec<String>,
    /// The cluster key file (`rackweave keys init`), relative to the configuration's directory. Without it packets are
    /// not authenticated, which is permitted on loopback only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
}

impl HostsSection {
    pub fn layout(&self) -> Layout {
        let racks = self.switches.len().max(1) as u32;
        Layout::of_racks(racks, self.servers.len() as u32, self.gateways.len() as u32)
    }

    /// The kinds of nodes, each with its key and its addresses.
    fn lists(&self) -> [(NodeKind, &'static str, &[String]); NodeKind::COUNT] {
        [
            (NodeKind::Meta, "meta", slice::from_ref(&self.meta)),
            (NodeKind::Switch, "switch", &self.switches),
            (NodeKind::Server, "servers", &self.servers),
            (NodeKind::Client, "gateways", &self.gateways),
        ]
    }

    /// All nodes, in the order of their ids.
    pub fn names(&self) -> impl Iterator<Item = NodeName> + use<> {
        let layout = self.layout();
        (0..layout.nodes()).filter_map(move |i| layout.name(NodeId(i)))
    }

    /// The address of a node as configured.
    pub fn text(&self, name: NodeName) -> Option<&str> {
        let (.., addresses) = self.lists().into_iter().find(|l| l.0 == name.kind)?;
        addresses.get(name.index as usize).map(String::as_str)
    }

    fn key(&self, name: NodeName) -> Cow<'static, str> {
        let key = self.lists().into_iter().find(|l| l.0 == name.kind).map_or("", |l| l.1);
        let single = name.kind == NodeKind::Meta || name.kind == NodeKind::Switch && self.switches.len() == 1;
        if single { format!("hosts.{key}").into() } else { format!("hosts.{key}[{}]", name.index).into() }
    }

    pub(crate) fn problem(&self, name: NodeName, text: &str, rule: impl Into<String>) -> Problem {
        Problem { key: self.key(name), value: format!("{text:?}"), rule: rule.into() }
    }

    /// Checks that need no name resolution.
    pub(crate) fn check(&self, racks: u32, (servers, servers_max): (u32, u32), out: &mut Vec<Problem>) {
        if self.switches.len() != racks as usize {
            let value = format!("{} addresses", self.switches.len());
            let rule = match racks {
                1 => "one: a list of two only with racks.count = 2".into(),
                _ => format!("a list with one for each rack (racks.count = {racks})"),
            };
            out.push(Problem { key: "hosts.switch".into(), value, rule });
        }
        if self.servers.len() != servers_max as usize {
            let value = format!("{} addresses", self.servers.len());
            let rule = if servers == servers_max {
                format!("one for each of servers ({servers})")
            } else {
                format!("one for each of servers_max ({servers_max}): those beyond servers ({servers}) may be added")
            };
            out.push(Problem { key: "hosts.servers".into(), value, rule });
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
                _ => out.push(self.problem(name, text, "HOST:PORT, the port 1 to 65535")),
            }
            if let Some((other, _)) = seen.iter().find(|(_, t)| *t == text) {
                out.push(self.taken(name, text, *other));
            }
            seen.push((name, text));
        }
    }

    fn taken(&self, name: NodeName, text: &str, other: NodeName) -> Problem {
        let other = self.key(other);
        self.problem(name, text, format!("an address of its own; {other} has this one"))
    }

    /// The address of every node, by node id.
    ///
    /// # Errors
    /// Every host that does not resolve, resolves to several addresses, or has another node's address.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>, Vec<Problem>> {
        let (mut all, mut problems): (Vec<(NodeName, SocketAddr)>, _) = (Vec::new(), Vec::new());
        for name in self.names() {
            let Some(text) = self.text(name) else { continue };
            let found = text.to_socket_addrs().map(|mut a| a.next());
            let rule: Cow<'static, str> = match found {
                Ok(Some(a)) => match all.iter().find(|(_, b)| *b == a) {
                    Some((other, _)) => {
                        problems.push(self.taken(name, text, *other));
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
            problems.push(self.problem(name, text, rule));
        }
        if let (None, Some((name, a))) = (&self.key_file, all.iter().find(|(_, a)| !a.ip().is_loopback())) {
            let rule = format!(
                "required when a node is not on loopback ({} is {a}); rackweave keys init creates one",
                self.key(*name)
            );
            problems.push(Problem { key: "hosts.key_file".into(), value: "nothing".into(), rule });
        }
        if problems.is_empty() { Ok(all.into_iter().map(|(_, a)| a).collect()) } else { Err(problems) }
    }
}

fn one_or_list<S: Serializer>(all: &[String], s: S) -> Result<S::Ok, S::Error> {
    match all {
        [one] => one.serialize(s),
        all => all.serialize(s),
    }
}

fn of_one_or_list<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    struct OneOrList;
    impl<'de> Visitor<'de> for OneOrList {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an address, or a list with one for each rack")
        }
        fn visit_str<E: Error>(self, one: &str) -> Result<Vec<String>, E> {
            Ok(vec![one.into()])
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<String>, A::Error> {
            std::iter::from_fn(|| list.next_element().transpose()).collect()
        }
    }
    d.deserialize_any(OneOrList)
}

#[cfg(test)]
#[path = "hosts_tests.rs"]
mod tests;
