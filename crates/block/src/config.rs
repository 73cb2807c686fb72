//! Configuration of a volume client.

use rackweave_client::SetClientConfig;
use rackweave_core::{NodeId, Span};

/// How a [`crate::VolumeClient`] behaves. Start from [`ClientConfig::new`], which sets the stated defaults.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Windows, tries, timeouts.
    pub sets: SetClientConfig,
    /// Bound of unanswered requests, at least one; more are refused with `Busy`. Default 65,536: 512 gateway sessions of
    /// 128 commands each, so that none of them is ever refused.
    pub requests_max: u32,
    /// After this long a request is given up with `TimedOut`; what it would change may have happened or not, and no
    /// longer will. Default: never.
    pub deadline: Option<Span>,
    /// Bytes of unflushed writes kept, to be sent again if all replicas of a set fail together. Beyond, such a failure
    /// is reported by the next flush. Default 64 MiB.
    pub keep: u64,
    /// Of cloud disks, as the rack's servers have it. Default: the rack has none.
    pub cloud: Option<rackweave_cloud::Config>,
}

impl ClientConfig {
    /// The defaults, for the client at `node`.
    pub fn new(node: NodeId, nonce: u64) -> ClientConfig {
        let sets = SetClientConfig::new(node, nonce);
        ClientConfig { sets, requests_max: 65_536, deadline: None, keep: 64 << 20, cloud: None }
    }
}
