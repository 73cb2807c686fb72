//! Statistics of a server: the source of `status` and of the metrics.

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

/// Counters and gauges of a vSSD that `status` and the metrics show, each declared here only: `name: type = "help"`, then kind
/// and name of its metric if it has one. Expands to a call of the macro `$with` with all of them.
#[macro_export]
macro_rules! vssd_stats {
    ($with:ident) => {
        $with! {
            gc_runs: u64 = "Victim blocks collected" Counter "rackweave_vssd_gc_runs_total",
            gc_episodes: u64 = "Episodes of collection" Counter "rackweave_vssd_gc_episodes_total",
            erases: u64 = "Blocks erased" Counter "rackweave_vssd_erases_total",
            free_ratio: f64 = "Free blocks by spare blocks" Gauge "rackweave_vssd_free_ratio",
            blocks_borrowed: u64 = "Erase blocks borrowed of its channel group" Gauge "rackweave_vssd_blocks_borrowed",
            blocks_lent: u64 = "Erase blocks lent to its channel group" Gauge "rackweave_vssd_blocks_lent",
            mapped_bytes: u64 = "Bytes mapped to flash" Gauge "rackweave_vssd_mapped_bytes",
            exported_bytes: u64 = "Most bytes that it may map",
            cache_used: u64 = "Write cache slots in use" Gauge "rackweave_vssd_cache_used_slots",
            cache_slots: u64 = "Slots of the write cache",
            waf: f64 = "Slots programmed by slots written" Gauge "rackweave_vssd_write_amplification",
            host_slots: u64 = "Slots programmed for the host" Counter "rackweave_vssd_host_slots_total",
            moved_slots: u64 = "Slots programmed by collection and as range records" Counter "rackweave_vssd_moved_slots_total",
            summed_slots: u64 = "Slots programmed for the host whose CRC32C came with them" Counter "rackweave_vssd_summed_slots_total",
            redirected_reads: u64 = "Reads redirected here" Counter "rackweave_vssd_redirected_reads_total",
            queued: u64 = "Requests that wait for their turn" Gauge "rackweave_vssd_queued",
            reads_held: u64 = "Reads held back before their dies" Gauge "rackweave_vssd_reads_held",
            pages_held: u64 = "Pages held back before their dies" Gauge "rackweave_vssd_pages_held",
            read_depth: u64 = "Reads that Kyber lets be under way" Gauge "rackweave_vssd_read_depth",
            page_depth: u64 = "Pages that Kyber lets be under way" Gauge "rackweave_vssd_page_depth",
            scrubbed: u64 = "Blocks read in turn" Counter "rackweave_vssd_scrubbed_total",
            healed: u64 = "Blocks healed by another copy" Counter "rackweave_vssd_healed_total",
            scrub_lost: u64 = "Blocks read in turn that no member could heal" Counter "rackweave_vssd_scrub_lost_total",
            lost_blocks: u64 = "Blocks marked as lost" Gauge "rackweave_vssd_lost_blocks",
            scrub_mismatches: u64 = "Blocks on which members differed" Counter "rackweave_vssd_scrub_mismatches_total",
            scrub_undecided: u64 = "Blocks on which members differed and nothing could decide" Counter "rackweave_vssd_scrub_undecided_total",
            scrub_progress: f64 = "Part read in this pass" Gauge "rackweave_vssd_scrub_progress",
            blocks_retired: u64 = "Erase blocks that failed" Gauge "rackweave_vssd_blocks_retired",
            blocks_reserve: u64 = "Erase blocks that may fail until the vSSD is worn out" Gauge "rackweave_vssd_blocks_reserve",
            blocks_unreadable: u64 = "Erase blocks with a page that could not be read" Counter "rackweave_vssd_blocks_unreadable_total",
        }
    };
}

macro_rules! status_struct {
    ($($name:ident: $type:ty = $help:literal $($kind:ident $metric:literal)?,)*) => {
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
            pub blocks_total: u64,
            pub blocks_free: u64,
            pub worn_out: bool,
            /// Episodes of collection begun though the switch did not answer.
            pub gc_unacknowledged: u64,
            /// Episodes begun because the vSSD was idle.
            pub gc_background: u64,
            /// The channel group of the drive that it collects with.
            pub group: Option<u32>,
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
            /// Runs of blocks digested in fills and recoveries of this incarnation.
            pub runs_compared: u64,
            pub lost: Box<[BlockAddr]>,
            $(#[doc = $help] pub $name: $type,)*
        }
    };
}
vssd_stats!(status_struct);

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
