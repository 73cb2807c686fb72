//! Logs that keyspaces get, and give back, while the server runs: in the log area of its drive.
//!
//! The metadata service's plan names them. The drive's own record says which logs it has. Before anything is changed the two are
//! compared: a log that the metadata service has not given out yet, or one missing that the drive had, means that one of them is an
//! earlier copy, and the drive is not used. Then logs that are not planned are deleted, and planned ones made. A log is served when the
//! metadata service has recorded that the drive has it, so one that it takes for new is empty, or of a keyspace that an
//! earlier copy of its store does not know. Each has a slot while it is served. Slots keep their numbers: that of a deleted log is
//! vacant until another log needs one.

use rackweave_core::keyspace::KeyspaceId;
use rackweave_core::msg::control::{DriveRefusal, LogPlace, Standing};
use rackweave_core::msg::{Control, Packet};
use rackweave_core::{Effects, Epoch, Span, Time, VssdId};
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::api::{AllocDiesError, BlockError};
use rackweave_flash::{Share, Ssd};

use crate::bounds::OverBound;
use crate::config::{ServerConfig, VSSDS_MAX, VssdConfig};
use crate::node::Server;
use crate::report::VssdStatus;
use crate::service::{Admitted, Collect, Context, FlashEvent, Programs, Room, Service, ServiceLoad};
use crate::trace;
use crate::vssd::ServedVssd;

/// Interval at which a log is made or deleted again that was in use, or had no room.
const LOGS_RETRY_INTERVAL: Span = Span::from_millis(50);

/// The metadata service's plan for the log area.
#[derive(Debug, Default)]
pub(crate) struct LogPlan {
    number: u64,
    logs: Vec<LogPlace>,
    confirmed: bool,
    /// Serial numbers of the planned logs that the drive had when that was last reported.
    reported: Vec<u32>,
    /// The drive has not answered yet.
    making: Vec<LogPlace>,
    /// Serial numbers: likewise.
    deleting: Vec<u32>,
    retry_at: Option<Time>,
}

impl LogPlan {
    /// When the next retry is due.
    pub(crate) fn deadline(&self) -> Time {
        self.retry_at.unwrap_or(Time::MAX)
    }
    fn has(&self, serial: u32) -> bool {
        self.logs.iter().any(|p| p.keyspace.serial() == serial)
    }
}

/// As the drive knows it.
pub(crate) fn isolation(place: &LogPlace) -> Isolation {
    match place.isolation {
        rackweave_core::admin::Isolation::Channel => Isolation::Channel,
        rackweave_core::admin::Isolation::Die => Isolation::Die,
        rackweave_core::admin::Isolation::Software => Isolation::Software,
        rackweave_core::admin::Isolation::None => Isolation::None,
    }
}

impl Server {
    /// A plan of the metadata service for this incarnation.
    pub(crate) fn take_logs(
        &mut self,
        now: Time,
        number: u64,
        next_serial: u32,
        logs: Vec<LogPlace>,
        fx: &mut Effects,
    ) {
        let older = number < self.log_plan.number && !mutant!("server.log.older-plan");
        if older || self.drive_refused.is_some() || self.failed {
            return;
        }
        if let Some(why) = self.other_logs(next_serial, &logs) {
            return self.refuse_drive(why.into());
        }
        (self.log_plan.number, self.log_plan.logs, self.log_plan.confirmed) = (number, logs, false);
        self.log_plan.reported.clear();
        self.reconcile_logs(now, fx);
    }
    /// Whether the drive or the metadata service's store is an earlier copy.
    fn other_logs(&self, next: u32, logs: &[LogPlace]) -> Option<DriveRefusal> {
        let there = self.ssd.area_logs();
        let unknown = there.iter().find(|s| **s >= next && !mutant!("server.log.unknown-deleted"));
        let missing =
            logs.iter().find(|p| p.made && !there.contains(&p.keyspace.serial()) && !mutant!("server.log.made-again"));
        let unknown = unknown.map(|&serial| DriveRefusal::UnknownLog { serial, next });
        unknown.or_else(|| missing.map(|p| DriveRefusal::MissingLog { vssd: p.vssd }))
    }

    /// Carries out the plan as far as possible now.
    pub(crate) fn reconcile_logs(&mut self, now: Time, fx: &mut Effects) {
        if self.log_plan.number == 0 || self.log_plan.confirmed || self.drive_refused.is_some() || self.failed {
            return;
        }
        self.log_plan.retry_at = None;
        for serial in self.ssd.area_logs() {
            if !self.log_plan.has(serial) {
                self.drop_log(now, serial, fx);
            }
        }
        let mut settled = true;
        for place in self.log_plan.logs.clone() {
            settled &= self.have_log(now, place, fx);
        }
        if self.drive_refused.is_some() {
            return;
        }
        let (there, p) = (self.ssd.area_logs(), &mut self.log_plan);
        let idle = p.making.is_empty() && p.deleting.is_empty() && p.retry_at.is_none();
        p.confirmed = settled && idle && !self.plan.has_rows(true);
        // The drive names a log that is being made; after a power cut it may be gone.
        let durable = |s: &u32| {
            let making = p.making.iter().any(|l| l.keyspace.serial() == *s) && !mutant!("server.log.made-early");
            there.contains(s) && !making
        };
        let made: Vec<u32> = p.logs.iter().map(|l| l.keyspace.serial()).filter(durable).collect();
        // Some may never have room, or a row may never be forgotten while the switch is away: others do not wait for that.
        if p.confirmed || made != p.reported {
            p.reported = made.clone();
            self.to_meta(Control::LogsDone { plan: self.log_plan.number, made, done: self.log_plan.confirmed }, fx);
        }
    }
    /// The logs of keyspaces that it serves.
    pub fn keyspace_logs(&self) -> impl Iterator<Item = (KeyspaceId, VssdId)> {
        self.vssds.iter().filter_map(|v| Some((v.cfg.keyspace?.keyspace, v.cfg.id)))
    }
    /// Slot of the log with this serial number.
    fn log_slot(&self, serial: u32) -> Option<usize> {
        self.vssds.iter().position(|v| v.cfg.keyspace.is_some_and(|p| p.keyspace.serial() == serial))
    }
    /// The plan has no such log.
    fn drop_log(&mut self, now: Time, serial: u32, fx: &mut Effects) {
        if let Some(i) = self.log_slot(serial).filter(|_| !mutant!("server.log.served-deleted")) {
            let before = self.vssds[i].cfg.clone();
            self.forget_row(now, &before);
            fx.trace(trace::VSSD_RELEASED, u64::from(before.id.0), u64::from(before.set.0));
            // Not before: what the service asked the drive for is answered, and nobody listens.
            self.vssds[i] = ServedVssd::vacant(&self.cfg, VssdConfig::free(i, before.share), Box::new(NoService));
            self.touched |= 1 << i;
        }
        match self.ssd.delete_log(now, serial, &mut self.out) {
            Ok(()) => self.log_plan.deleting.push(serial),
            Err(BlockError::VssdInUse { .. }) => self.log_plan.retry_at = Some(now + LOGS_RETRY_INTERVAL),
            // The drive has failed: nothing is retried.
            Err(_) => {}
        }
    }
    /// Whether the drive has the planned log, which is served if the metadata service knows that.
    fn have_log(&mut self, now: Time, place: LogPlace, fx: &mut Effects) -> bool {
        let serial = place.keyspace.serial();
        if let Some(i) = self.log_slot(serial) {
            self.vssds[i].cfg.keyspace = Some(place);
            return true;
        }
        if self.log_plan.making.iter().any(|p| p.keyspace.serial() == serial) {
            return false;
        }
        if self.ssd.area_logs().contains(&serial) {
            if place.made || mutant!("server.log.adopted") {
                return self.serve_log(now, place, fx);
            }
            if self.ssd.area_log_used(serial) {
                self.refuse_drive(DriveRefusal::OtherLog { serial }.into());
            }
            return true;
        }
        let units = (isolation(&place), u32::from(place.units));
        match self.ssd.create_log(now, (serial, place.vssd), units, &mut self.out) {
            Ok(()) => self.log_plan.making.push(place),
            // Until a log is gone that is being deleted, or the plan changes.
            Err(AllocDiesError::NoUnits { .. } | AllocDiesError::Exists { .. } | AllocDiesError::NotReady) => {
                self.log_plan.retry_at = Some(now + LOGS_RETRY_INTERVAL);
            }
            Err(AllocDiesError::TooMany { .. } | AllocDiesError::Failed(_)) => {}
        }
        false
    }
    /// Puts the log, which the drive has, in a slot. False: none is left.
    fn serve_log(&mut self, now: Time, place: LogPlace, fx: &mut Effects) -> bool {
        let Some((_, channels)) = self.cfg.log_area else { return false };
        let vacant = self.vssds.iter().position(|v| v.is_log() && v.is_free());
        let new = Some(self.vssds.len()).filter(|n| *n < VSSDS_MAX);
        let Some(i) = vacant.or(new) else { return false };
        self.ssd.name_log(place.keyspace.serial(), place.vssd);
        let (share, set) = (Share::Log { channels }, place.keyspace.log_set());
        let cfg = VssdConfig { id: place.vssd, set, share, peers: Vec::new(), keyspace: Some(place) };
        self.serve(now, i, cfg, fx);
        true
    }

    /// The drive has the new log, or has failed.
    pub(crate) fn log_made(&mut self, now: Time, vssd: VssdId, ok: bool, fx: &mut Effects) {
        self.log_plan.making.retain(|p| p.vssd != vssd);
        if ok {
            self.reconcile_logs(now, fx);
        }
    }
    /// The log is deleted, or the drive has failed.
    pub(crate) fn log_gone(&mut self, now: Time, serial: u32, ok: bool, fx: &mut Effects) {
        self.log_plan.deleting.retain(|s| *s != serial);
        if ok {
            self.reconcile_logs(now, fx);
        }
    }
    /// Tries again what had no room, or was in use.
    pub(crate) fn retry_logs(&mut self, now: Time, fx: &mut Effects) {
        if self.log_plan.retry_at.take_if(|at| *at <= now).is_some() {
            self.reconcile_logs(now, fx);
        }
    }
}

/// In the slot of a log that was deleted.
#[derive(Debug)]
struct NoService;

impl Service for NoService {
    fn load(&self) -> ServiceLoad {
        ServiceLoad::default()
    }
    fn free_ratio(&self, _: &Ssd) -> f64 {
        1.0
    }
    fn collect(&mut self, _: &mut Context<'_>, _: Collect) {}
    fn collecting(&self, _: &Ssd) -> bool {
        false
    }
    fn erasing(&self, _: &Ssd) -> bool {
        false
    }
    fn room(&self, _: &Ssd) -> Room {
        Room::default()
    }
    fn standing(&self) -> Standing {
        Standing { epoch: Epoch(0), complete: false, failed: false }
    }
    fn status(&self, _: Time, _: &Ssd, _: &mut VssdStatus) {}
    fn check(&self, _: &Ssd) -> Result<(), OverBound> {
        Ok(())
    }
    fn handle_packet(&mut self, _: &mut Context<'_>, _: Packet) -> Admitted {
        Admitted::Taken
    }
    fn handle_flash(&mut self, _: &mut Context<'_>, _: FlashEvent) {}
    fn handle_timer(&mut self, _: &mut Context<'_>) {}
    fn fail(&mut self) {}
    fn vacate(&mut self, _: &ServerConfig, _: &VssdConfig) {}
    fn poll_programs(&mut self, _: &mut Context<'_>) -> Programs {
        Programs::default()
    }
    fn poll_answers(&mut self, _: &mut Context<'_>) -> Time {
        Time::MAX
    }
}
