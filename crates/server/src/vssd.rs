//! One slot of a server: a replica, a write cache and a collection monitor, and their row in the switch.

use rackweave_core::msg::Role;
use rackweave_core::msg::control::VssdReport;
use rackweave_core::rng::mix64;
use rackweave_core::{Epoch, Time};
use rackweave_replica::{Replica, ReplicaConfig};
use rackweave_sched::Predictor;

use crate::classes::{Classes, OFFLINE_SHARE, QUEUE_MAX};
use crate::config::{ServerConfig, VssdConfig};
use crate::die_queues::DieQueues;
use crate::forward::Forwarding;
use crate::gc::{GcMonitor, GcState};
use crate::load::Load;
use crate::slots::SlotState;
use crate::write_cache::{WriteCache, WriteCacheConfig};
use crate::writes::Writes;

/// Page programs under way for each die of a vSSD: one in its registers, one behind it.
const PAGES_A_DIE: usize = 2;

/// The vSSD's row in the switch.
#[derive(Debug, Default)]
pub(crate) struct RowState {
    pub(crate) request: u64,
    pub(crate) answered: bool,
    pub(crate) again_at: Time,
}

#[derive(Debug)]
pub(crate) struct Vssd {
    pub(crate) cfg: VssdConfig,
    pub(crate) replica: Replica,
    pub(crate) cache: WriteCache,
    pub(crate) slot: SlotState,
    pub(crate) gc: GcMonitor,
    /// As its channel group saw it last.
    pub(crate) gc_seen: GcState,
    pub(crate) forwarding: Forwarding,
    pub(crate) classes: Classes,
    pub(crate) load: Load,
    pub(crate) held: Writes,
    /// How long answers of reads, and of writes, will be on the way.
    pub(crate) predict: [Predictor; 2],
    pub(crate) row: RowState,
    /// Newest view seen: its epoch, and whether this life serves reads in it.
    pub(crate) epoch: Epoch,
    pub(crate) readable: bool,
    pub(crate) role: Option<Role>,
    /// Reported complete already.
    pub(crate) complete: bool,
    /// Its flash has no block in reserve any more; it can be read only.
    pub(crate) worn_out: bool,
    pub(crate) read_only: bool,
    pub(crate) try_again_at: Time,
    pub(crate) redirected_reads: u64,
    pub(crate) queue_full: u64,
    pub(crate) gc_episodes: u64,
    pub(crate) gc_unacknowledged: u64,
    pub(crate) gc_background: u64,
}

impl Vssd {
    /// In the slot of this number.
    pub(crate) fn new(server: &ServerConfig, cfg: VssdConfig, index: usize) -> Vssd {
        let g = &server.ssd.profile.geometry;
        let dies = cfg.share.dies(g) as usize;
        let cache = WriteCacheConfig {
            vssd: cfg.id,
            index,
            slots_per_page: g.slots_per_page(),
            capacity: server.cache_slots / server.vssds.len() as u64,
            pages_max: dies * PAGES_A_DIE,
            linger: server.linger,
        };
        let seed = mix64(server.nonce ^ u64::from(cfg.id.0) << 32);
        let mut replica = ReplicaConfig::new(cfg.set, cfg.id, server.node);
        (replica.min_copies, replica.timeouts) = (server.min_copies, server.timeouts);
        replica.fill_rate = server.fill_rate;
        Vssd {
            replica: Replica::new(replica),
            cache: WriteCache::new(
                cache,
                DieQueues::new(server.sched, g.dies(), server.reads_per_die, server.ssd.profile.read),
            ),
            predict: [Predictor::new(), Predictor::new()],
            slot: SlotState::Settled,
            gc: if cfg.share.is_shared() {
                GcMonitor::grouped(server.gc, seed)
            } else {
                GcMonitor::new(server.gc, seed)
            },
            gc_seen: GcState::Idle,
            forwarding: Forwarding::default(),
            classes: Classes::new(&server.ssd.profile, dies),
            load: Load::new(),
            held: Writes::new(server.sched, server.timeouts.stall),
            row: RowState::default(),
            epoch: Epoch(0),
            readable: false,
            role: None,
            complete: false,
            worn_out: false,
            read_only: false,
            try_again_at: Time::MAX,
            redirected_reads: 0,
            queue_full: 0,
            gc_episodes: 0,
            gc_unacknowledged: 0,
            gc_background: 0,
            cfg,
        }
    }
    /// Its drive failed for good.
    pub(crate) fn fail(&mut self) {
        self.cache.fail();
        self.replica.fail();
        self.readable = false;
        self.row.again_at = Time::ZERO;
    }
    pub(crate) fn is_free(&self) -> bool {
        self.cfg.is_free()
    }
    /// The report for the metadata service. `no_room`: the host's disk has had none for longer than a lease.
    pub(crate) fn report(&self, no_room: bool) -> VssdReport {
        let report = self.replica.report();
        let read_only = self.read_only && !report.failed;
        VssdReport { read_only, no_room: no_room && !read_only && !report.failed, ..report }
    }
    /// Serves reads in the newest view.
    pub(crate) fn readable(&self) -> bool {
        self.readable
    }
    /// Somebody waits for its flash.
    pub(crate) fn is_busy(&self) -> bool {
        self.classes.reads() > 0 || self.cache.reads_at_flash().0 > 0 || self.cache.pages_under_way() > 0
    }
    /// Reads at the flash or held back before it, of all classes and of the offline ones.
    pub(crate) fn reads_max(&self, cfg: &ServerConfig) -> (usize, usize) {
        let at_flash = cfg.reads_in_flight as usize;
        let all = if self.cache.dies.is_some() { QUEUE_MAX } else { at_flash };
        (all, (at_flash / OFFLINE_SHARE).max(1))
    }
}
