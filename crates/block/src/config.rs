//! Configuration of a volume client.

use rackweave_core::{Layout, NodeId, Span};

/// How a [`crate::VolumeClient`] behaves. Start from [`ClientConfig::new`], which sets the stated defaults. A zero is
/// taken as the least that works: one message, one request, one microsecond.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    pub node: NodeId,
    /// Where the racks' switches are. Default: one rack.
    pub layout: Layout,
    /// Distinguishes this run of the client from others until the metadata service has given it an incarnation.
    pub nonce: u64,
    /// Messages in flight to one set, of reads and of mutations each. Default 128: enough to keep a set's dies busy,
    /// small enough that an unreachable set holds little.
    pub window: u32,
    /// Bound of unanswered requests; more are refused with `Busy`. Default 65,536: 512 gateway sessions of 128 commands
    /// each, so that none of them is ever refused.
    pub requests_max: u32,
    /// First wait for an answer before the next member gets the request; doubles with each try. Default 200 ms, far
    /// above the longest pause of a healthy device.
    pub timeout: Span,
    /// Where the doubling ends. Default 2 s.
    pub timeout_max: Span,
    /// Pause after every member of a set has refused; doubles up to `timeout_max`. Default 5 ms.
    pub retry_delay: Span,
    /// Period of requests for the rack's map in normal operation. Default 2 s.
    pub map_refresh: Span,
    /// After this long a request is given up with `TimedOut`; what it would change may have happened or not, and no
    /// longer will. Default: never.
    pub deadline: Option<Span>,
    /// Bytes of unflushed writes kept, to be sent again if all replicas of a set fail together. Beyond, such a failure
    /// is reported by the next flush. Default 64 MiB.
    pub keep: u64,
}

impl ClientConfig {
    /// The defaults, for the client at `node`.
    pub fn new(node: NodeId, nonce: u64) -> ClientConfig {
        ClientConfig {
            node,
            layout: Layout::new(0, 0),
            nonce,
            window: 128,
            requests_max: 65_536,
            timeout: Span::from_millis(200),
            timeout_max: Span::from_secs(2),
            retry_delay: Span::from_millis(5),
            map_refresh: Span::from_secs(2),
            deadline: None,
            keep: 64 << 20,
        }
    }
}
