//! Configuration of a client of sets.

use rackweave_core::{Layout, NodeId, Span};

/// How a [`crate::SetClient`] behaves. Start from [`SetClientConfig::new`], which sets the stated defaults. A zero is
/// taken as the least that works: one message, one microsecond.
#[derive(Clone, Debug)]
pub struct SetClientConfig {
    pub node: NodeId,
    /// Where the racks' switches are. Default: one rack.
    pub layout: Layout,
    /// Distinguishes this run of the client from others until the metadata service has given it an incarnation.
    pub nonce: u64,
    /// Messages in flight to one set, of reads and of mutations each. Default 128: enough to keep a set's dies busy,
    /// small enough that an unreachable set holds little.
    pub window: u32,
    /// First wait for an answer before the next member gets the message; doubles with each try. Default 200 ms, far
    /// above the longest pause of a healthy device.
    pub timeout: Span,
    /// Where the doubling ends. Default 2 s.
    pub timeout_max: Span,
    /// Pause after every member of a set has refused; doubles up to `timeout_max`. Default 5 ms.
    pub retry_delay: Span,
    /// Period of requests for the rack's map in normal operation. Default 2 s.
    pub map_refresh: Span,
}

impl SetClientConfig {
    /// The defaults, for the client at `node`.
    pub fn new(node: NodeId, nonce: u64) -> SetClientConfig {
        SetClientConfig {
            node,
            layout: Layout::new(0, 0),
            nonce,
            window: 128,
            timeout: Span::from_millis(200),
            timeout_max: Span::from_secs(2),
            retry_delay: Span::from_millis(5),
            map_refresh: Span::from_secs(2),
        }
    }
    pub(crate) fn at_least(self) -> SetClientConfig {
        let least = Span::from_micros(1);
        SetClientConfig {
            window: self.window.max(1),
            timeout: self.timeout.max(least),
            timeout_max: self.timeout_max.max(self.timeout).max(least),
            retry_delay: self.retry_delay.max(least),
            map_refresh: self.map_refresh.max(least),
            ..self
        }
    }
}
