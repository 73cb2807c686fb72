//! A process for each node: the loop of [`crate::embedded`] around one node, with a network to the others.
//!
//! Reading order: [`crate::hosts`] (who is where), [`net`], [`udp`], [`stamps`], `notes` and [`streams`] (packets between processes), [`incarnation`] (which process of a node), [`node`] (one process),
//! [`kernel`] (the switch's where it is in the kernel), [`processes`] (all of them on one machine), [`watch`] (whether they live), [`namespaces`] (hosts for
//! them), [`ask`] (their state put together), [`channel`] (from another host). Keys: [`key`], [`rotate`], [`authority`].
#![allow(clippy::disallowed_types, reason = "a driver: it opens files and sockets")]

pub mod ask;
pub mod authority;
pub mod channel;
mod held;
pub mod incarnation;
pub mod kernel;
pub mod key;
mod links;
pub mod namespaces;
pub mod net;
pub mod node;
mod notes;
mod policy;
pub mod processes;
pub mod rotate;
pub mod stamps;
pub mod streams;
pub mod udp;
pub mod watch;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::config::{ConfigError, Problem, RackConfig};
use crate::embedded::up::STORE_FILE;
use crate::hosts::{HostsSection, NodeName};
use crate::switching::DataPlaneKind;

/// Why processes of a rack do not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum DistributedError {
    #[error("{path}: it has no [hosts] section; a process for each node needs an address for each")]
    NoHosts { path: PathBuf },
    #[error(
        "the configuration has [hosts]: `rackweave up --processes` starts its nodes on this machine, `rackweave node` one \
         of them"
    )]
    Hosts,
    #[error("{path}: it has no [hosts] and [control] sections, by which its nodes are asked")]
    NoControl { path: PathBuf },
    #[error(transparent)]
    Secure(#[from] crate::embedded::secure::SecureError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{name}: servers of the rack are 0 to {}, its gateways 0 to {}", servers - 1, gateways - 1)]
    UnknownNode { name: NodeName, servers: usize, gateways: usize },
    #[error("hosts.{name} = {address}: not on loopback; `rackweave node` starts a node on its own machine")]
    Elsewhere { name: NodeName, address: SocketAddr },
    #[error("{data} holds a rack that runs in {made}; it cannot run in {asked}")]
    Made { data: PathBuf, made: &'static str, asked: &'static str },
    #[error(transparent)]
    Key(#[from] key::KeyFileError),
    #[error("{path}: the node's counter of incarnations: {error}")]
    Incarnation { path: PathBuf, error: io::Error },
    #[error("{name} on {address}: {error}")]
    Bind { name: NodeName, address: SocketAddr, error: io::Error },
    #[error(transparent)]
    Net(#[from] net::NetError),
    #[error("network namespaces: {0} (they need root, iproute2 and ethtool)")]
    Namespaces(io::Error),
    #[error("--{option} {address}: nothing outside reaches a port in the gateway's namespace; unix:PATH does")]
    NoWayIn { option: &'static str, address: String },
    #[error("the configuration has [hosts] or [switch]: --netns makes its own")]
    NotOurs,
    #[error("switch in the kernel ({plane}): {error}")]
    DataPlane { plane: DataPlaneKind, error: kernel::PlaneError },
    #[error(transparent)]
    Capture(#[from] crate::capture::CaptureError),
    #[error("{name} ended at once ({status}): {last}")]
    Child { name: NodeName, status: String, last: String },
    #[error("starting {name}: {error}")]
    Spawn { name: NodeName, error: io::Error },
}

const TOGETHER: &str = "one process";
const APART: &str = "a process for each node";

/// For a rack in one process: its directory and configuration must not be of one in several.
pub(crate) fn refuse(data: &Path, cfg: &RackConfig) -> Result<(), DistributedError> {
    if cfg.hosts.is_some() {
        return Err(DistributedError::Hosts);
    }
    let only = "left out: nodes of one process send no packets (--processes)";
    let mut problems = Vec::new();
    let mut none =
        |key: &'static str, value: String| problems.push(Problem { key: key.into(), value, rule: only.into() });
    cfg.paths.iter().for_each(|n| none("paths", n.to_string()));
    if cfg.mtu != net::MTU_DEFAULT {
        none("mtu", cfg.mtu.to_string());
    }
    if !problems.is_empty() {
        return Err(ConfigError::Rules(problems).into());
    }
    if data.join(NodeName::Meta.to_string()).exists() {
        return Err(DistributedError::Made { data: data.into(), made: APART, asked: TOGETHER });
    }
    Ok(())
}

/// For a rack in several processes: its directory must not be of one in one.
fn refuse_together(data: &Path) -> Result<(), DistributedError> {
    if data.join(STORE_FILE).exists() {
        return Err(DistributedError::Made { data: data.into(), made: TOGETHER, asked: APART });
    }
    Ok(())
}

/// Where every node is, by node id.
fn addresses(hosts: &HostsSection) -> Result<Vec<SocketAddr>, DistributedError> {
    hosts.resolve().map_err(|problems: Vec<Problem>| ConfigError::Rules(problems).into())
}
