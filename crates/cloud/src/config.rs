//! What clients, servers and the metadata role must agree on.

use rackweave_core::Span;

use crate::log::LogLimits;

/// Most writes of a proxy's batch: its jobs, of which one may be a merge.
pub const BATCH_WRITES_MAX: usize = crate::segment::JOBS_MAX + crate::merger::AHEAD_MAX;

/// When logs are merged (DF4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeMode {
    Never,
    /// While the clients' queue depths are zero.
    Prioritized,
    /// As soon as possible.
    Asap,
    /// At most this many entries at a time.
    Limited(usize),
}

#[derive(Clone, Debug)]
pub struct Config {
    /// Copies of a segment.
    pub copies: usize,
    /// Segments with fewer holders take no writes (rule 4).
    pub min_copies: usize,
    /// A server serves for this long after it sent a heartbeat that was answered.
    pub lease: Span,
    /// Largest drift between two clocks, in parts per million (rule 2).
    pub drift_ppm: u32,
    pub heartbeat: Span,
    /// How often nodes look for what is due.
    pub tick: Span,
    /// How often the metadata role looks for servers that were lost or came back.
    pub check: Span,
    /// An unanswered message is repeated after this time.
    pub retry: Span,
    /// An append is given up after this time without both acknowledgements.
    pub give_up: Span,
    /// Appends are sent once, to the address of their two servers ([`LogPair`]); those without an answer go to each.
    ///
    /// [`LogPair`]: rackweave_core::msg::cloud::LogPair
    pub by_multicast: bool,
    pub log: LogLimits,
    pub merge: MergeMode,
    /// Most bytes of a proxy's batch; a message's contents at least.
    pub batch_bytes: u64,
    /// A proxy takes no writes while its overlay has more bytes.
    pub overlay_bytes: u64,
    /// A stripe moves to the storage layer when it has not changed for this long, or half of the overlay's bytes are taken.
    pub move_after: Span,
    /// Above, a sub-log's entries are merged in the foreground.
    pub merge_foreground_bytes: u64,
    /// A client's reported queue depth counts for this long (rule 26).
    pub depth_expiry: Span,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            copies: 3,
            min_copies: 2,
            lease: Span::from_millis(300),
            drift_ppm: 1_000,
            heartbeat: Span::from_millis(100),
            tick: Span::from_millis(2),
            check: Span::from_millis(20),
            retry: Span::from_millis(5),
            give_up: Span::from_millis(40),
            by_multicast: false,
            log: LogLimits::default(),
            merge: MergeMode::Prioritized,
            batch_bytes: 1 << 20,
            overlay_bytes: 4 << 20,
            move_after: Span::from_millis(20),
            merge_foreground_bytes: 16 << 20,
            depth_expiry: Span::from_millis(100),
        }
    }
}

impl Config {
    /// A server's lease, as another clock may measure it.
    pub fn foreign_lease(&self) -> Span {
        if mutant!("cloud.lease.no-drift") {
            return self.lease;
        }
        self.lease.scale(1_000_000 + 3 * u64::from(self.drift_ppm), 1_000_000)
    }
}
