//! A process per node: the loop of [`rackweave_runtime`] around one node, with a network to the others.
//!
//! Reading order: [`rackweave_config::hosts`] (addresses), [`net`], [`udp`], [`stamps`], `notes` and [`streams`]
//! (packets between processes), [`incarnation`] (the runs of a node), [`node`] (one process), [`kernel`] (the switch's
//! process if it is in the kernel), [`processes`] (all of them on one machine), [`rackweave_runtime::watch`]
//! (heartbeats), [`namespaces`] (their hosts), [`ask`] (their combined state), [`channel`] (access from another host).
//! Keys: [`key`], [`rotate`], [`authority`].
#![allow(clippy::disallowed_types, reason = "a driver: it opens files and sockets")]

/// Makes [`rackweave_core::mutant`] available in every module.
#[macro_use]
extern crate rackweave_core;

pub mod ask;
pub mod authority;
pub mod channel;
mod held;
pub mod incarnation;
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

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rackweave_config::hosts::HostsSection;
use rackweave_config::switching::DataPlaneKind;
use rackweave_config::{ConfigError, Problem};
use rackweave_core::{Layout, NodeName};
use rackweave_rack::build::BuildError;
use rackweave_runtime::datadir::DataDirError;
use rackweave_runtime::net::ListenError;
use rackweave_runtime::up::{APART, STORE_FILE, TOGETHER, UpError};
use rackweave_runtime::{kernel, key};

/// Why the processes of a rack did not start, or did not end cleanly.
#[derive(Debug, thiserror::Error)]
pub enum DistributedError {
    #[error("{path}: no [hosts] section, which gives each node its address")]
    NoHosts { path: PathBuf },
    #[error("{path}: no [hosts] and [control] sections, which name the control channel of its nodes")]
    NoControl { path: PathBuf },
    #[error(transparent)]
    Secure(#[from] rackweave_runtime::secure::SecureError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Up(#[from] UpError),
    #[error(
        "{name}: the rack has servers 0 to {}, gateways 0 to {} and switches of racks 0 to {}",
        .rack.servers() - 1, .rack.clients() - 1, .rack.racks() - 1
    )]
    UnknownNode { name: NodeName, rack: Layout },
    #[error("hosts.{name} = {address}: not on loopback; `rackweave node` starts a node on its own machine")]
    Elsewhere { name: NodeName, address: SocketAddr },
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
    #[error("the configuration has [hosts] or [switch]: --netns generates both")]
    NotOurs,
    #[error("--gateways {gateways}: hosts.gateways of the configuration has the rack's gateways")]
    Gateways { gateways: u32 },
    #[error("switch in the kernel ({plane}): {error}")]
    DataPlane { plane: DataPlaneKind, error: kernel::PlaneError },
    #[error(transparent)]
    Capture(#[from] rackweave_rack::capture::CaptureError),
    #[error("{name} ended at once ({status}): {last}")]
    Child { name: NodeName, status: String, last: String },
    #[error("starting {name}: {error}")]
    Spawn { name: NodeName, error: io::Error },
}

impl DistributedError {
    /// See [`UpError::is_refusal`].
    pub fn is_refusal(&self) -> bool {
        matches!(self, DistributedError::Up(e) if e.is_refusal())
    }
}

/// Errors of a start that are the same in one process and in several.
macro_rules! as_in_one_process {
    ($($error:ty),*) => {
        $(impl From<$error> for DistributedError {
            fn from(e: $error) -> DistributedError {
                DistributedError::Up(e.into())
            }
        })*
    };
}
as_in_one_process!(io::Error, DataDirError, ListenError, BuildError);

/// Refuses a directory of a rack in one process.
fn refuse_together(data: &Path) -> Result<(), DistributedError> {
    if data.join(STORE_FILE).exists() {
        return Err(UpError::Made { data: data.into(), made: TOGETHER, asked: APART }.into());
    }
    Ok(())
}

/// The address of every node, by node id.
fn addresses(hosts: &HostsSection) -> Result<Vec<SocketAddr>, DistributedError> {
    hosts.resolve().map_err(|problems: Vec<Problem>| ConfigError::Rules(problems).into())
}
