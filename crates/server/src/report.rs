//! Statistics of a server: the source of `status` and of the metrics.

use rackweave_core::msg::Role;
use rackweave_core::{BLOCK, BlockAddr, Epoch, Incarnation, NodeId, SetId, Span, SsdId, Time, VssdId};
use rackweave_flash::isolation::Isolation;
use rackweave_flash::{BlockWear, FlashStats, LoanStatus, Space};
use rackweave_replica::ReplicaStats;

use crate::block::write_cache::CacheStats;
use crate::gc::GcState;
use crate::requests::RequestStats;
use crate::swap::SwapStatus;

/// Most lost blocks listed for a vSSD: one or two screens; the rest is counted.
pub const LOST_LISTED_MAX: usize = 256;

/// Current state of one server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerReport {
    pub node: NodeId,
    pub ssd: SsdId,
    /// `None` before the metadata service has admitted it.
    pub incarnation: Option<Incarnation>,
    /// Recovery of the drive is done.
    pub recovered: bool,
    /// The drive has failed for good.
    pub failed: bool,
    pub lease_until: Time,
    /// Completed scrubbing passes over all flash contents.
    pub scrub_passes: u64,
    pub swaps: SwapStatus,
    pub vssds: Vec<VssdStatus>,
}

/// Current state of one vSSD. Counters are since the server started; those that its service does not have are zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VssdStatus {
    pub vssd: VssdId,
    pub set: SetId,
    pub epoch: Epoch,
    /// `None`: not in the view.
    pub role: Option<Role>,
    pub serving: bool,
    pub gc: GcState,
    /// Of a log vSSD, which has none of the page layer's counters.
    pub store: Option<StoreStatus>,
    pub space: Space,
    pub flash: FlashStats,
    pub requests: RequestStats,
    pub wear: BlockWear,
    /// `None` if unknown.
    pub isolation: Option<Isolation>,
    /// Its dies, by number on the drive, and the number of those of a channel.
    pub dies: Box<[u32]>,
    pub dies_per_channel: u16,
    /// How long the drive's last start took to recover it.
    pub recovery_took: Span,
    pub loans: LoanStatus,
    pub replica: ReplicaStats,
    pub cache: CacheStats,
    pub cache_used: u64,
    pub cache_slots: u64,
    pub cache_dirty: u64,
    pub blocks_retired: u32,
    pub blocks_reserve: u32,
    pub worn_out: bool,
    pub gc_episodes: u64,
    /// Episodes that began although the switch did not answer.
    pub gc_unacknowledged: u64,
    /// Episodes that began because the vSSD was idle.
    pub gc_background: u64,
    /// The channel group of the drive that it collects with.
    pub group: Option<u32>,
    pub queued: u64,
    pub reads_held: u64,
    pub pages_held: u64,
    pub read_depth: u64,
    pub page_depth: u64,
    pub redirected_reads: u64,
    /// Current rate of offline writes in bytes per second, and number of those that waited (PN10).
    pub offline_write_rate: u64,
    pub offline_writes_delayed: u64,
    pub queue_full: u64,
    pub lost_blocks: u64,
    /// The first of them.
    pub lost: Box<[BlockAddr]>,
    pub scrub_progress: f64,
}

/// Current state of the store on a log vSSD. Counters are since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StoreStatus {
    /// What the log has: keys, or cloud disks.
    pub contents: &'static str,
    /// Number of the keyspace whose keys it has.
    pub keyspace: Option<u32>,
    pub free_ratio: f64,
    /// Blocks of its log: all, and those that are free.
    pub blocks: u32,
    pub blocks_free: u32,
    pub block_bytes: u64,
    pub keys: u64,
    /// Partitions of whose views the server is a member, and those of which it is the primary.
    pub partitions: u64,
    pub primary_of: u64,
    /// Puts in its log without a decision.
    pub undecided: u64,
    /// Bytes of current records.
    pub live_bytes: u64,
    /// Bytes of further records that it can take.
    pub room_bytes: u64,
    pub gets: u64,
    pub puts: u64,
    /// Puts refused because the store is full.
    pub refused: u64,
    pub compactions: u64,
    pub written_bytes: u64,
    pub erases: u64,
    /// Bytes written for each byte of a record.
    pub write_amplification: f64,
}

impl VssdStatus {
    pub fn erases(&self) -> u64 {
        self.store.map_or(self.flash.erases, |s| s.erases)
    }
    /// Blocks that collection took.
    pub fn victims(&self) -> u64 {
        self.store.map_or(self.flash.gc_victims, |s| s.compactions)
    }
    pub fn free_ratio(&self) -> f64 {
        self.store.map_or_else(|| self.space.free_ratio(), |s| s.free_ratio)
    }
    pub fn waf(&self) -> f64 {
        self.store.map_or_else(|| self.flash.waf(), |s| s.write_amplification)
    }
    /// Of a store: bytes of current records.
    pub fn mapped_bytes(&self) -> u64 {
        if let Some(s) = &self.store {
            return s.live_bytes;
        }
        self.space.mapped_slots * u64::from(BLOCK)
    }
    /// Its channels: those with at least one of its dies, by number on the drive.
    pub fn channels(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.dies.iter().map(|die| die / u32::from(self.dies_per_channel.max(1))).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
    /// Most bytes that it may map.
    pub fn exported_bytes(&self) -> u64 {
        if let Some(s) = &self.store {
            return u64::from(s.blocks) * s.block_bytes;
        }
        self.space.exported_slots * u64::from(BLOCK)
    }
}

impl GcState {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            GcState::Idle => "idle",
            GcState::Requested { .. } => "requested",
            GcState::Delayed { .. } => "delayed",
            GcState::Granted => "granted",
            GcState::Collecting => "collecting",
            GcState::Ending => "ending",
            GcState::Finishing { .. } => "finishing",
        }
    }
}
