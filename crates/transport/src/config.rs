//! Configuration of an endpoint, with defaults and their reasons.

use rackweave_core::{Layout, NodeId, Span};

use crate::header::{HEAD_BYTES, LONG_BYTES};

/// Congestion control of a connection (PN8); each is a module of [`crate::congestion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Delay against a target (Swift); the default.
    Delay,
    /// ECN marks of the switches' queues (DCTCP). Needs switches that mark.
    Ecn,
    /// A constant window in bytes, for comparison.
    Fixed { window: u32 },
}

/// What is retransmitted after a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retransmission {
    /// Only what was lost (PN7).
    Selective,
    /// It and everything sent after it, as ConnectX-4's hardware did (C3 §3.2); for comparison only.
    GoBackN,
}

/// Parameters of an [`crate::Endpoint`], fixed at its creation.
#[derive(Clone, Debug)]
pub struct Config {
    /// Nodes whose packets of operations 1 to 4 may be answered by another node: the racks' switches.
    pub switches: Vec<NodeId>,
    /// Largest datagram in bytes of UDP payload. Default 1,472: Ethernet without jumbo frames. If large datagrams
    /// vanish, smaller ones are used, and this size is tried again later.
    pub datagram_bytes_max: usize,
    /// Largest train of equal datagrams returned at once for GSO, in bytes; zero returns single datagrams. Default 0;
    /// the driver sets what its socket supports.
    pub train_bytes_max: usize,
    pub algorithm: Algorithm,
    /// Round trip of an empty path between two hosts, from the topology; the delay-based control permits a short queue
    /// on top. Longer ones are detected slowly. Default 50 µs: a rack with a software switch.
    pub base_rtt: Span,
    pub retransmission: Retransmission,
    /// Unacknowledged and queued bytes to one peer; beyond it `send` refuses. Default 20 MiB: two of the
    /// longest messages.
    pub queue_bytes_max: usize,
    /// The same for all peers together; a peer gets at most what is left. Default 256 MiB.
    pub queue_bytes_total: usize,
    /// Bytes of incomplete messages from one peer; chunks beyond it are dropped. Default 20 MiB.
    pub reassembly_bytes_max: usize,
    /// The same for all peers together; a peer gets at most what is left. Default 256 MiB.
    pub reassembly_bytes_total: usize,
    /// Delivered bytes that the driver has not polled; beyond it arriving messages are dropped without acknowledgement.
    /// Default 64 MiB.
    pub unread_bytes_max: usize,
    /// Largest message in bytes. Default: the wire format's largest header and body.
    pub message_bytes_max: usize,
    /// How long an acknowledgement waits for a datagram to ride on. Default 500 µs: longer than the answer to a write
    /// in memory, far below the shortest retransmission time.
    pub ack_delay: Span,
    /// Number of unacknowledged datagrams that are acknowledged at once. Default 8.
    pub ack_every: u32,
    /// Bounds of the retransmission time. Defaults: 5 ms (a loaded host's scheduling is slower than its network), 20 ms
    /// before the first measurement, 1 s.
    pub retransmit_min: Span,
    pub retransmit_initial: Span,
    pub retransmit_max: Span,
    /// PN4: the path is changed after this time without an acknowledgement while data is in flight, or after a round trip if
    /// that is longer. Default 20 ms.
    pub sla: Span,
    /// Number of source ports (paths) to each peer. Default 16: if half of all flows vanish, one connection in 65,536
    /// finds no path (with 8, one in 256).
    pub paths: u16,
    /// Time for which a failed path is not used, doubled with each failure up to 64 times. Default 1 s.
    pub path_blacklist: Span,
    /// Time after which a silent peer is sent a ping. Default 500 ms.
    pub keep_alive: Span,
    /// A peer that owes an answer and is silent for this time, over changing paths, is down. Default 3 s.
    pub dead_after: Span,
    /// Fraction of lost datagrams, per mille, above which a stream is requested (PN5). Default 200.
    pub stream_loss_per_mille: u32,
    /// Whether payloads are encrypted if there are keys, or only authenticated. Default true: encryption also costs
    /// less, because the library processes encrypted data faster than authenticated data. Without it captures show
    /// payloads.
    pub encrypt: bool,
    /// Whether messages come with the CRC32C of each 4 KiB of their data (PN3), for nodes that store what they receive.
    /// Default true. Without it, the CRC is computed only where it checks datagrams.
    pub block_crcs: bool,
    /// Newest datagram format of this endpoint: [`crate::VERSION`] or the previous one.
    pub version: u8,
    /// Most peers kept. Default 4,096: 64 servers (RB1), several racks, and their clients.
    pub peers_max: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            switches: vec![Layout::SWITCH],
            datagram_bytes_max: 1472,
            train_bytes_max: 0,
            algorithm: Algorithm::Delay,
            base_rtt: Span::from_micros(50),
            retransmission: Retransmission::Selective,
            queue_bytes_max: 20 << 20,
            queue_bytes_total: 256 << 20,
            reassembly_bytes_max: 20 << 20,
            reassembly_bytes_total: 256 << 20,
            unread_bytes_max: 64 << 20,
            message_bytes_max: rackweave_wire::limits::BODY_MAX as usize + HEAD_BYTES,
            ack_delay: Span::from_micros(500),
            ack_every: 8,
            retransmit_min: Span::from_millis(5),
            retransmit_initial: Span::from_millis(20),
            retransmit_max: Span::from_secs(1),
            sla: Span::from_millis(20),
            paths: 16,
            path_blacklist: Span::from_secs(1),
            keep_alive: Span::from_millis(500),
            dead_after: Span::from_secs(3),
            stream_loss_per_mille: 200,
            encrypt: true,
            block_crcs: true,
            version: crate::VERSION,
            peers_max: 4096,
        }
    }
}

/// Why a configuration is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("datagram_bytes_max = {bytes}; {DATAGRAM_BYTES_MIN} to {DATAGRAM_BYTES_MAX} can be used")]
    Datagram { bytes: usize },
    #[error("paths = 0; at least one source port is needed")]
    NoPaths,
    #[error("version = {version}; versions {} and {} can be spoken", crate::VERSION - 1, crate::VERSION)]
    Version { version: u8 },
    #[error("{key} = {bytes} cannot hold one message of {message} bytes")]
    TooSmall { key: &'static str, bytes: usize, message: usize },
    #[error("{key} = 0; it must be longer")]
    Zero { key: &'static str },
}

/// Every network carries this size (IPv6's least MTU of 1,280, RFC 8200, without IP and UDP headers, rounded).
pub const DATAGRAM_BYTES_MIN: usize = 1200;
/// Limit of UDP's length field, less the IP header.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;

impl Config {
    pub fn is_switch(&self, node: NodeId) -> bool {
        self.switches.contains(&node)
    }

    pub fn check(&self) -> Result<(), ConfigError> {
        let bytes = self.datagram_bytes_max;
        if !(DATAGRAM_BYTES_MIN..=DATAGRAM_BYTES_MAX).contains(&bytes) {
            return Err(ConfigError::Datagram { bytes });
        }
        if self.paths == 0 {
            return Err(ConfigError::NoPaths);
        }
        if self.version != crate::VERSION && self.version != crate::VERSION - 1 {
            return Err(ConfigError::Version { version: self.version });
        }
        let message = self.message_bytes_max;
        let bounds = [
            ("queue_bytes_max", self.queue_bytes_max),
            ("queue_bytes_total", self.queue_bytes_total),
            ("reassembly_bytes_max", self.reassembly_bytes_max),
            ("reassembly_bytes_total", self.reassembly_bytes_total),
            ("unread_bytes_max", self.unread_bytes_max),
        ];
        if let Some(&(key, bytes)) = bounds.iter().find(|(_, bytes)| *bytes < message) {
            return Err(ConfigError::TooSmall { key, bytes, message });
        }
        let spans = [
            ("retransmit_min", self.retransmit_min),
            ("sla", self.sla),
            ("keep_alive", self.keep_alive),
            ("dead_after", self.dead_after),
            ("path_blacklist", self.path_blacklist),
        ];
        match spans.iter().find(|(_, span)| span.0 == 0) {
            Some(&(key, _)) => Err(ConfigError::Zero { key }),
            None => Ok(()),
        }
    }

    /// Bytes of a message's body per chunk in a datagram of `datagram` bytes, beside a full set of acknowledgements.
    pub(crate) fn chunk_bytes(datagram: usize) -> usize {
        datagram - LONG_BYTES - crate::header::ACK_RESERVE
    }
}
