//! Configuration of a server.

use rackweave_core::msg::control::LogPlace;
use rackweave_core::{DriveId, Layout, NodeId, RackId, SetId, Span, VssdId};
use rackweave_flash::{Share, SsdConfig};
use rackweave_replica::Timeouts;
use rackweave_sched::{SchedConfig, SchedKind};

use crate::service::MakeService;
use crate::swap::{SLICE_MAX, SwapConfig};

/// One vSSD of the server's drive and its place in a set.
#[derive(Clone, Debug)]
pub struct VssdConfig {
    pub id: VssdId,
    pub set: SetId,
    /// Its own flash.
    pub share: Share,
    /// Other members of the set as configured.
    pub peers: Vec<(VssdId, NodeId)>,
    /// Of a log in the drive's log area: the keyspace's that it is for.
    pub keyspace: Option<LogPlace>,
}

/// The set of a slot without a vSSD.
pub const NO_SET: SetId = SetId(u32::MAX);

impl VssdConfig {
    /// A slot of the drive that is kept free for a vSSD that moves here.
    pub fn free(slot: usize, share: Share) -> VssdConfig {
        VssdConfig { id: free_id(slot), set: NO_SET, share, peers: Vec::new(), keyspace: None }
    }
    pub fn is_free(&self) -> bool {
        self.set == NO_SET
    }
    /// The metadata service's plan of slots is not for it: it belongs to its server for good, or is planned by keyspaces.
    pub fn is_log(&self) -> bool {
        self.share.is_log()
    }
}

/// The drive's id for a slot without a vSSD; ids of vSSDs are far below.
pub fn free_id(slot: usize) -> VssdId {
    VssdId(u32::MAX - slot as u32)
}

/// Policy of garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcPolicy {
    /// Requests permission from the switch (RackBlox §3.5).
    Coordinated,
    /// Baseline: collects below the soft threshold without a message to the switch. (With the hard threshold it would
    /// run with fewer free blocks, find emptier victims and erase less: a different amount of work, not another
    /// policy.)
    Uncoordinated,
}

/// Parameters of the garbage-collection monitor (RB4, protocol rules 19 and 20).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GcConfig {
    pub policy: GcPolicy,
    /// Ratio of free to spare blocks below which collection is requested, and may be delayed.
    pub soft_threshold: f64,
    /// Ratio below which it may not be delayed.
    pub gc_threshold: f64,
    /// An episode ends this far above the soft threshold.
    pub hysteresis: f64,
    /// Period of checks of the ratio even if nothing is written.
    pub monitor_every: Span,
    /// First wait until an unanswered request to the switch is repeated, unless round trips take longer; doubled each
    /// time up to `announce_every`.
    pub answer_within: Span,
    /// Unanswered repetitions of a regular request before collection starts anyway.
    pub retries: u32,
    /// Time until a delayed request is repeated.
    pub delayed_again: Span,
    /// Period of announcements to the switch, so that bits do not expire and a restarted switch learns them.
    pub announce_every: Span,
    /// Whether the vSSD collects while it is idle (RB5).
    pub background: bool,
    /// Weight of the last gap between requests when predicting the next one.
    pub idle_alpha: f64,
    /// A longer predicted gap counts as idle.
    pub idle_over: Span,
}

impl GcConfig {
    /// Free ratio at which an episode ends, and below which an idle vSSD collects.
    pub fn episode_ends(&self) -> f64 {
        self.soft_threshold + self.hysteresis
    }
    /// Free ratio at which background collection ends: 0.55 by default, as in the published code. The paper gives no
    /// bound. With more free blocks, victims are collected that the next writes would have emptied, which only causes
    /// wear.
    pub fn background_ends(&self) -> f64 {
        (self.episode_ends() + self.hysteresis).min(1.0)
    }
}

impl Default for GcConfig {
    fn default() -> GcConfig {
        GcConfig {
            policy: GcPolicy::Coordinated,
            soft_threshold: 0.35,
            gc_threshold: 0.25,
            hysteresis: 0.10,
            monitor_every: Span::from_secs(30),
            answer_within: Span::from_millis(10),
            retries: 3,
            delayed_again: Span::from_millis(100),
            announce_every: Span::from_millis(200),
            background: true,
            idle_alpha: 0.5,
            idle_over: Span::from_millis(30),
        }
    }
}

/// Configuration of a [`crate::Server`].
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub node: NodeId,
    pub layout: Layout,
    pub ssd: SsdConfig,
    /// The slots of the drive, in order, with their vSSDs unless the metadata service names others.
    pub vssds: Vec<VssdConfig>,
    /// Channels of the drive, after those of the vSSDs, for logs that keyspaces get while the server runs; and the area's name.
    pub log_area: Option<(VssdId, u16)>,
    /// Write cache in 4 KiB blocks, divided equally among the vSSDs.
    pub cache_slots: u64,
    /// Time that the first block of a partly filled page waits until the page is programmed.
    pub linger: Span,
    /// Without a scheduler that holds back: reads of one vSSD at its flash at once, the device's queue depth.
    pub reads_in_flight: u32,
    pub sched: SchedConfig,
    /// Reads of one vSSD that are at a die at once; the rest wait in the scheduler. One is enough for a device that
    /// answers at once; a second keeps the die busy while a completion reaches the server.
    pub reads_per_die: u32,
    pub min_copies: u8,
    pub gc: GcConfig,
    pub swap: SwapConfig,
    /// Period of heartbeats; a lease should last at least three.
    pub heartbeat_every: Span,
    /// Period in which everything on flash is read once and healed where damaged; zero is never.
    pub scrub_every: Span,
    /// Bytes per second that each vSSD fetches from others while it is filled; zero is unlimited.
    pub fill_rate: u64,
    /// Greatest deviation of any clock's rate in the rack, in parts per million.
    pub drift_ppm: u32,
    /// Distinguishes this run of the server from others; drawn by the driver at each start.
    pub nonce: u64,
    /// The drive's rack: before registration the server requests the rack's identity and compares it with this one.
    /// `None` skips the comparison.
    pub drive_of: Option<Option<RackId>>,
    /// The drive's own id; a member with another one counts as replaced (protocol rule 29).
    pub drive: DriveId,
    /// The device began empty without `--replace-ssd`: refused if the server has run before.
    pub empty: bool,
    pub timeouts: Timeouts,
    /// While a vSSD collects, its server forwards reads to the replica that the grant named (RackBlox in software,
    /// §4.1).
    pub forwards_reads: bool,
    /// Whether the switch gets reports of each vSSD's pending reads, by which it chooses replicas.
    pub reports_load: bool,
    /// Constructor of each vSSD's service; blocks by default.
    pub services: MakeService,
}

impl ServerConfig {
    /// With the defaults of the papers and of this version.
    pub fn new(node: NodeId, layout: Layout, ssd: SsdConfig, vssds: Vec<VssdConfig>) -> ServerConfig {
        ServerConfig {
            node,
            layout,
            reads_in_flight: ssd.profile.queue_depth,
            ssd,
            vssds,
            log_area: None,
            cache_slots: 16_384,
            linger: Span::from_millis(5),
            sched: SchedConfig::new(SchedKind::default(), true),
            reads_per_die: READS_PER_DIE,
            min_copies: 2,
            gc: GcConfig::default(),
            swap: SwapConfig::default(),
            heartbeat_every: Span::from_millis(100),
            scrub_every: Span::ZERO,
            fill_rate: 0,
            drift_ppm: 500,
            nonce: 1,
            drive_of: None,
            drive: DriveId::NONE,
            empty: false,
            timeouts: Timeouts::default(),
            forwards_reads: false,
            reports_load: false,
            services: MakeService::new(crate::block::BlockService::make),
        }
    }
}

/// Reads of a vSSD at one die.
pub const READS_PER_DIE: u32 = 2;
/// Fewest cache slots of a vSSD: one message of 64 KiB at each of three coordinators, and as much being programmed.
pub const CACHE_SLOTS_MIN: u64 = 96;
/// Most vSSDs of one server: one for each bit of a set of them, and for each entry of a drive's table.
pub const VSSDS_MAX: usize = 64;

/// Why a server does not start.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ServerError {
    #[error("a server needs 1 to {VSSDS_MAX} vSSDs, not {vssds}")]
    Vssds { vssds: usize },
    #[error("{slots} cache slots are too few: {CACHE_SLOTS_MIN} for each of {vssds} vSSDs")]
    CacheSlots { slots: u64, vssds: usize },
    #[error("thresholds 0 < gc {gc} < soft {soft} and soft + hysteresis {hysteresis} < 1 do not hold")]
    Thresholds { gc: f64, soft: f64, hysteresis: f64 },
    #[error("gc.idle_alpha is {alpha}, not in (0, 1]")]
    Alpha { alpha: f64 },
    #[error("a slice of a swap of dies is {slice}, not more than 0 and at most {SLICE_MAX} (protocol rule 35)")]
    Slice { slice: Span },
    #[error("{key} is zero")]
    Zero { key: &'static str },
    #[error(transparent)]
    Profile(#[from] rackweave_flash::ProfileError),
    #[error("{vssd}: {error}")]
    Alloc { vssd: VssdId, error: rackweave_flash::AllocError },
}

impl ServerConfig {
    /// What the entries of the drive's table have, in their order.
    pub fn shares(&self) -> Vec<Share> {
        let area = self.log_area.map(|(_, channels)| Share::Log { channels });
        self.vssds.iter().map(|v| v.share).chain(area).collect()
    }
    /// Slots for vSSDs with blocks, which share the write cache.
    pub fn page_vssds(&self) -> u64 {
        self.vssds.iter().filter(|v| !v.is_log()).count() as u64
    }
    /// Logs in the log area that the server can serve at a time.
    pub fn area_logs_max(&self) -> usize {
        if self.log_area.is_some() { VSSDS_MAX - self.vssds.len() } else { 0 }
    }
    /// Checks everything that the server relies on.
    pub fn validate(&self) -> Result<(), ServerError> {
        let vssds = self.vssds.len();
        if vssds == 0 || vssds > VSSDS_MAX {
            return Err(ServerError::Vssds { vssds });
        }
        let pages = self.page_vssds();
        if pages > 0 && self.cache_slots / pages < CACHE_SLOTS_MIN {
            let vssds = pages as usize;
            return Err(ServerError::CacheSlots { slots: self.cache_slots, vssds });
        }
        let GcConfig { gc_threshold: gc, soft_threshold: soft, hysteresis, .. } = self.gc;
        if !(0.0 < gc && gc < soft && hysteresis >= 0.0 && soft + hysteresis < 1.0) {
            return Err(ServerError::Thresholds { gc, soft, hysteresis });
        }
        let alpha = self.gc.idle_alpha;
        if !(alpha > 0.0 && alpha <= 1.0) {
            return Err(ServerError::Alpha { alpha });
        }
        let slice = self.swap.slice;
        if slice == Span::ZERO || slice > SLICE_MAX {
            return Err(ServerError::Slice { slice });
        }
        let spans = [
            ("heartbeat_every", self.heartbeat_every),
            ("gc.monitor_every", self.gc.monitor_every),
            ("gc.answer_within", self.gc.answer_within),
            ("gc.delayed_again", self.gc.delayed_again),
            ("gc.announce_every", self.gc.announce_every),
            ("gc.idle_over", self.gc.idle_over),
        ];
        if let Some((key, _)) = spans.iter().find(|(_, s)| *s == Span::ZERO) {
            return Err(ServerError::Zero { key });
        }
        for (key, target) in
            [("sched.read_target", self.sched.read_target), ("sched.write_target", self.sched.write_target)]
        {
            if target == Span::ZERO && self.sched.kind != SchedKind::Fifo {
                return Err(ServerError::Zero { key });
            }
        }
        if self.reads_per_die == 0 {
            return Err(ServerError::Zero { key: "sched.reads_per_die" });
        }
        if self.reads_in_flight == 0 {
            return Err(ServerError::Zero { key: "reads_in_flight" });
        }
        Ok(())
    }
}
