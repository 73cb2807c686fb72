//! What a server tells of itself: the source of `status` and of the metrics.

use rackweave_core::msg::Role;
use rackweave_core::{BlockAddr, Epoch, Incarnation, NodeId, SetId, SsdId, Time, VssdId};

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
    /// Free ÷ spare blocks (protocol rule 19).
    pub free_ratio: f64,
    pub blocks_total: u64,
    pub blocks_free: u64,
    pub mapped_bytes: u64,
    pub exported_bytes: u64,
    pub erases: u64,
    /// Erase blocks that failed for good, how many more may until it is worn out and its contents are to move, and whether it
    /// is.
    pub blocks_retired: u64,
    pub blocks_reserve: u64,
    pub worn_out: bool,
    /// Times that a page of one could not be read, so that it was emptied and erased.
    pub blocks_unreadable: u64,
    /// Episodes of collection begun by the monitor.
    pub gc_episodes: u64,
    /// Of those, begun though the switch did not answer.
    pub gc_unacknowledged: u64,
    /// And those begun because the vSSD was idle.
    pub gc_background: u64,
    /// The channel group of the drive that it collects with, blocks borrowed of its others, and lent to them.
    pub group: Option<u32>,
    pub blocks_borrowed: u64,
    pub blocks_lent: u64,
    /// Victim blocks collected.
    pub gc_runs: u64,
    /// Slots programmed ÷ slots programmed for the host.
    pub waf: f64,
    /// Slots programmed for the host, and beyond that: by collection and as range records.
    pub host_slots: u64,
    pub moved_slots: u64,
    /// Slots programmed for the host whose CRC32C came with them (PN3).
    pub summed_slots: u64,
    pub cache_capacity: u64,
    pub cache_used: u64,
    pub cache_dirty: u64,
    pub cache_absorbed: u64,
    pub cache_hits: u64,
    pub cache_misses: u64,
    pub syncs: u64,
    pub persists: u64,
    pub reads: u64,
    pub writes: u64,
    pub ranges: u64,
    pub flushes: u64,
    /// Reads that the switch sent here instead of where the client had.
    pub redirected_reads: u64,
    /// Requests waiting in the scheduler, and turned away because it was full.
    pub queued: u64,
    /// Reads of blocks, and pages of the cache, that are held back before their dies.
    pub reads_held: u64,
    pub pages_held: u64,
    /// Tokens of Kyber's domains, and those in use: reads, pages. `None`: another scheduler.
    pub read_tokens: Option<(u32, u32)>,
    pub page_tokens: Option<(u32, u32)>,
    /// Bytes per second that offline writes get now, and those that waited for their turn (PN10).
    pub offline_write_rate: u64,
    pub offline_writes_delayed: u64,
    pub queue_full: u64,
    pub conflicts: u64,
    pub replays: u64,
    pub retransmits: u64,
    pub duplicates: u64,
    pub stale_epochs: u64,
    pub not_serving: u64,
    pub no_space: u64,
    pub healed: u64,
    /// Blocks read because their turn had come, and those of them that no member could heal.
    pub scrubbed: u64,
    pub scrub_lost: u64,
    /// Runs of blocks digested in fills and recoveries of this life.
    pub runs_compared: u64,
    /// Blocks of which members held different contents or versions; those of them where nothing told which were right.
    pub scrub_mismatches: u64,
    pub scrub_undecided: u64,
    /// Blocks whose copy is a mark that their contents are lost, and the first [`LOST_LISTED_MAX`] of them.
    pub lost_blocks: u64,
    pub lost: Box<[BlockAddr]>,
    /// What the present pass has read of what the flash holds, at most 1.
    pub scrub_progress: f64,
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
