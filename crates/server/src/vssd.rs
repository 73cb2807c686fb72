//! A vSSD in its server: its service, its collection monitor, its row in the switch.

use rackweave_core::msg::Role;
use rackweave_core::msg::control::{Standing, VssdReport};
use rackweave_core::rng::mix64;
use rackweave_core::{Epoch, Time};
use rackweave_flash::Share;

use crate::config::{ServerConfig, VssdConfig};
use crate::forward::Forwarding;
use crate::gc::{GcMonitor, GcState};
use crate::load::Load;
use crate::requests::Requests;
use crate::service::Service;
use crate::slots::SlotState;

/// The vSSD's row in the switch.
#[derive(Debug, Default)]
pub(crate) struct RowState {
    pub(crate) request: u64,
    pub(crate) answered: bool,
    pub(crate) again_at: Time,
}

/// One slot of the drive.
#[derive(Debug)]
pub(crate) struct ServedVssd {
    pub(crate) cfg: VssdConfig,
    pub(crate) service: Box<dyn Service>,
    pub(crate) slot: SlotState,
    pub(crate) gc: GcMonitor,
    /// As last seen by its channel group.
    pub(crate) gc_seen: GcState,
    /// Free blocks changed since the monitor's last check.
    pub(crate) space_changed: bool,
    pub(crate) forwarding: Forwarding,
    pub(crate) load: Load,
    pub(crate) requests: Requests,
    pub(crate) row: RowState,
    /// Newest view seen: its epoch, and whether this incarnation serves reads in it.
    pub(crate) epoch: Epoch,
    pub(crate) readable: bool,
    pub(crate) role: Option<Role>,
    /// Already reported complete.
    pub(crate) complete: bool,
    /// Its flash has no spare block; it is read-only.
    pub(crate) worn_out: bool,
    pub(crate) read_only: bool,
    pub(crate) gc_episodes: u64,
    pub(crate) gc_unacknowledged: u64,
    pub(crate) gc_background: u64,
}

impl ServedVssd {
    /// For the slot of this number.
    pub(crate) fn new(server: &ServerConfig, cfg: VssdConfig, slot: usize) -> ServedVssd {
        let service = server.services.make(server, &cfg, slot);
        ServedVssd::with_service(server, cfg, service)
    }
    /// For a slot that nothing is in.
    pub(crate) fn vacant(server: &ServerConfig, free: VssdConfig, service: Box<dyn Service>) -> ServedVssd {
        ServedVssd::with_service(server, free, service)
    }
    fn with_service(server: &ServerConfig, cfg: VssdConfig, service: Box<dyn Service>) -> ServedVssd {
        let seed = mix64(server.nonce ^ u64::from(cfg.id.0) << 32);
        let gc =
            if cfg.share.is_shared() { GcMonitor::grouped(server.gc, seed) } else { GcMonitor::new(server.gc, seed) };
        // A store's gets are answered from memory.
        let load = match cfg.share {
            Share::Log { .. } => Load::new(),
            _ => Load::of_dies(cfg.share.dies(&server.ssd.profile.geometry)),
        };
        ServedVssd {
            cfg,
            service,
            slot: SlotState::Settled,
            gc,
            gc_seen: GcState::Idle,
            space_changed: false,
            forwarding: Forwarding::default(),
            load,
            requests: Requests::new(),
            row: RowState::default(),
            epoch: Epoch(0),
            readable: false,
            role: None,
            complete: false,
            worn_out: false,
            read_only: false,
            gc_episodes: 0,
            gc_unacknowledged: 0,
            gc_background: 0,
        }
    }
    /// The slot becomes free, and is erased.
    pub(crate) fn vacate(self, server: &ServerConfig, free: VssdConfig) -> ServedVssd {
        let mut service = self.service;
        service.vacate(server, &free);
        ServedVssd { slot: SlotState::Erasing, ..ServedVssd::with_service(server, free, service) }
    }
    /// Its drive failed for good.
    pub(crate) fn fail(&mut self) {
        self.service.fail();
        self.readable = false;
        self.row.again_at = Time::ZERO;
    }
    pub(crate) fn is_free(&self) -> bool {
        self.cfg.is_free()
    }
    pub(crate) fn is_log(&self) -> bool {
        self.cfg.is_log()
    }
    /// The report for the metadata service. `no_room`: the host's disk has had no room for longer than a lease.
    pub(crate) fn report(&self, no_room: bool) -> VssdReport {
        let Standing { epoch, complete, failed } = self.service.standing();
        let (vssd, set, read_only) = (self.cfg.id, self.cfg.set, self.read_only && !failed);
        VssdReport { vssd, set, epoch, complete, failed, read_only, no_room: no_room && !read_only && !failed }
    }
    /// Whether it serves reads in the newest view.
    pub(crate) fn readable(&self) -> bool {
        self.readable
    }
}
