//! Statistics of a server: the source of `status` and of the metrics.

use rackweave_core::msg::Role;
use rackweave_core::{BLOCK, BlockAddr, Epoch, Incarnation, NodeId, SetId, SsdId, Time, VssdId};
use rackweave_flash::{FlashStats, LoanStatus, Space};
use rackweave_replica::ReplicaStats;

use crate::block::write_cache::CacheStats;
use crate::gc::GcState;

/// Lost blocks that a vSSD names: as many as a screen or two shows; the rest is counted.
pub const LOST_LISTED_MAX: usize = 256;

/// One server, now.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerReport {
    pub node: NodeId,
    pub ssd: SsdId,
    /// `None` before the metadata service has welcomed it.
    pub incarnation: Option<Incarnation>,
    /// Recovery of the drive is done.
    pub recovered: bool,
    /// The drive has failed for good.
    pub failed: bool,
    pub lease_until: Time,
    /// Passes over all that its flash holds that were finished.
    pub scrub_passes: u64,
    pub vssds: Vec<VssdStatus>,
}

/// One vSSD, now. Counters are since the server started; those that its service has none of are zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VssdStatus {
    pub vssd: VssdId,
    pub set: SetId,
    pub epoch: Epoch,
    /// `None`: not in the view.
    pub role: Option<Role>,
    pub serving: bool,
    pub gc: GcState,
    pub space: Space,
    pub flash: FlashStats,
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
    /// Episodes of collection begun though the switch did not answer.
    pub gc_unacknowledged: u64,
    /// Episodes begun because the vSSD was idle.
    pub gc_background: u64,
    /// The channel group of the drive that it collects with.
    pub group: Option<u32>,
    pub queued: u64,
    pub reads_held: u64,
    pub pages_held: u64,
    pub read_depth: u64,
    pub page_depth: u64,
    pub redirected_reads: u64,
    /// Bytes per second that offline writes get now, and those that waited for their turn (PN10).
    pub offline_write_rate: u64,
    pub offline_writes_delayed: u64,
    pub queue_full: u64,
    pub lost_blocks: u64,
    /// The first of them.
    pub lost: Box<[BlockAddr]>,
    pub scrub_progress: f64,
}

impl VssdStatus {
    pub fn mapped_bytes(&self) -> u64 {
        self.space.mapped_slots * u64::from(BLOCK)
    }
    /// Most bytes that it may map.
    pub fn exported_bytes(&self) -> u64 {
        self.space.exported_slots * u64::from(BLOCK)
    }
}

impl GcState {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            GcState::Idle => "idle",
            GcState::Asking { .. } => "asking",
            GcState::Delayed { .. } => "delayed",
            GcState::Granted => "granted",
            GcState::Collecting => "collecting",
            GcState::Ending => "ending",
            GcState::Finishing { .. } => "finishing",
        }
    }
}
