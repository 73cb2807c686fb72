//! The server as a node: one drive, and on each of its vSSDs a service and a collection monitor.

mod collect;
mod groups;
mod settings;
mod status;
mod swaps;
mod views;

use std::any::Any;

use rackweave_core::device::Completion;
use rackweave_core::msg::control::VssdLoss;
use rackweave_core::msg::{Block, Body, Class, Control, Header, Op, Packet, Role, Table};
use rackweave_core::request::Reply;
use rackweave_core::{DriveId, Effects, Event, Incarnation, Layout, Node, RackId, SetId, Time, VssdId};
use rackweave_flash::table::EntryState;
use rackweave_flash::{FlashDone, FlashOut, RecoveryError, Ssd};
use rackweave_replica::Fences;

use crate::bounds::OverBound;
use crate::config::{ServerConfig, ServerError, VSSDS_MAX};
use crate::control::Registration;
use crate::logs::LogPlan;
use crate::scrub::Scrub;
use crate::service::{Admitted, Context, FlashEvent, Freed, Service, token_slot};
use crate::slots::{DriveProblem, Plan, SlotState};
use crate::trace;
use crate::vssd::ServedVssd;

/// A storage server. Order of calls: `Event::Timer` first (it starts recovery of the drive, or requests the rack's
/// identity), then any event.
pub struct Server {
    pub(crate) cfg: ServerConfig,
    pub(crate) ssd: Ssd,
    pub(crate) out: FlashOut,
    finished: Vec<FlashDone>,
    /// By slot.
    pub(crate) vssds: Vec<ServedVssd>,
    groups: Vec<groups::GroupSlots>,
    swapper: crate::swap::Swapper,
    pub(crate) plan: Plan,
    pub(crate) log_plan: LogPlan,
    pub(crate) wear: crate::wear::WearReport,
    pub(crate) room: crate::room::RoomReport,
    pub(crate) scrub: Scrub,
    /// As the metadata service reported them, for vSSDs that are added later.
    pub(crate) fences: Fences,
    pub(crate) registration: Registration,
    booted: bool,
    pub(crate) failed: bool,
    /// Since when the host's disk has had no room for the drive's file.
    host_full_at: Option<Time>,
    pub(crate) drive_refused: Option<DriveProblem>,
    lease_reported: bool,
    /// When [`Server::report_loads`] has work if no load changes.
    loads_due: Time,
    /// When the driver will call next.
    wake_at: Time,
    /// When each vSSD has work; kept by [`Server::settle_vssd`], so that an event touches one vSSD only.
    due: [Time; VSSDS_MAX],
    /// vSSDs affected by this event, as bits.
    pub(crate) touched: u64,
    misrouted: u64,
    unix_ms_at_zero: u64,
}

impl Server {
    pub fn new(cfg: ServerConfig) -> Result<Server, ServerError> {
        cfg.validate()?;
        let mut ssd = Ssd::new(cfg.ssd.clone())?;
        ssd.set_drive(cfg.drive);
        let mut vssds = Vec::new();
        for (index, v) in cfg.vssds.iter().enumerate() {
            ssd.alloc_share(v.id, v.share).map_err(|error| ServerError::Alloc { vssd: v.id, error })?;
            ssd.made_for(v.set, if v.is_free() { EntryState::Free } else { EntryState::InUse });
            vssds.push(ServedVssd::new(&cfg, v.clone(), index));
        }
        if let Some((vssd, channels)) = cfg.log_area {
            ssd.alloc_log_area(vssd, channels).map_err(|error| ServerError::Alloc { vssd, error })?;
        }
        let mut server = Server {
            groups: Vec::new(),
            swapper: swaps::swapper(&cfg),
            registration: {
                let mut r = Registration::new(cfg.nonce, cfg.drive, cfg.empty, cfg.heartbeat_every, cfg.drift_ppm);
                cfg.drive_of.into_iter().for_each(|drive| r.request_identity(drive));
                r
            },
            cfg,
            ssd,
            out: FlashOut::default(),
            finished: Vec::new(),
            vssds,
            plan: Plan::default(),
            log_plan: LogPlan::default(),
            wear: Default::default(),
            room: Default::default(),
            scrub: Scrub::default(),
            fences: Fences::default(),
            booted: false,
            failed: false,
            host_full_at: None,
            drive_refused: None,
            lease_reported: true,
            loads_due: Time::ZERO,
            wake_at: Time::MAX,
            due: [Time::MAX; VSSDS_MAX],
            touched: 0,
            misrouted: 0,
            unix_ms_at_zero: 0,
        };
        server.make_groups();
        Ok(server)
    }

    /// Sets the id of its drive, which the driver has opened. To be called before the first event.
    pub fn set_drive(&mut self, drive: DriveId) {
        self.cfg.drive = drive;
        self.registration.drive = drive;
        self.ssd.set_drive(drive);
    }
    /// Why the drive is not used: it differs from the expected one (protocol rule 30).
    pub fn drive_refused(&self) -> Option<DriveProblem> {
        self.drive_refused
    }
    pub fn ssd(&self) -> &Ssd {
        &self.ssd
    }
    /// For ageing a drive before an evaluation.
    pub fn ssd_mut(&mut self) -> &mut Ssd {
        &mut self.ssd
    }
    /// The service on the vSSD, if it has this type.
    pub fn service<S: Service>(&self, vssd: VssdId) -> Option<&S> {
        let v = self.vssds.iter().find(|v| v.cfg.id == vssd)?;
        let service: &dyn Any = &*v.service;
        service.downcast_ref()
    }
    /// Checks every bound, using counters only: a checker may call it after every event.
    ///
    /// # Errors
    /// The first bound that is exceeded.
    pub fn check(&self) -> Result<(), OverBound> {
        self.vssds.iter().try_for_each(|v| v.service.check(&self.ssd))
    }
    /// [`GcMonitor::confirmed`] of each vSSD, and the sequence of its last operation, in this incarnation of the server.
    pub fn gc_confirmed(&self) -> impl Iterator<Item = (VssdId, (Incarnation, u64), bool)> {
        let incarnation = self.registration.incarnation;
        self.vssds.iter().filter_map(move |v| Some((v.cfg.id, (incarnation?, v.gc.sequence()), v.gc.confirmed()?)))
    }
    /// Whether the metadata service admitted this run, once known. A server whose device began empty although it has
    /// run before is refused.
    pub fn admitted(&self) -> Option<bool> {
        let r = &self.registration;
        if r.refused { Some(false) } else { r.incarnation.map(|_| true) }
    }
    /// The rack's identity, once the metadata service has reported it.
    pub fn rack(&self) -> Option<RackId> {
        self.registration.rack()
    }
    /// Packets for vSSDs that are not here, or not of the named set.
    pub fn misrouted(&self) -> u64 {
        self.misrouted
    }

    /// The incarnation given by the metadata service; zero before.
    pub fn incarnation(&self) -> Incarnation {
        self.registration.incarnation.unwrap_or_default()
    }

    /// Index of a vSSD that belongs to the set (protocol rule 18: a switch may have rewritten it).
    fn place(&mut self, vssd: VssdId, set: SetId) -> Option<usize> {
        let found = self
            .vssds
            .iter()
            .position(|v| v.cfg.id == vssd && (v.cfg.set == set || mutant!("server.identity.any-set")));
        if found.is_none() {
            self.misrouted += 1;
        }
        found
    }

    /// Calls the service of the vSSD at `i`, lending it the drive.
    pub(crate) fn with<R>(
        &mut self,
        now: Time,
        i: usize,
        fx: &mut Effects,
        call: impl FnOnce(&mut dyn Service, &mut Context<'_>) -> R,
    ) -> R {
        let v = &mut self.vssds[i];
        let mut cx = Context {
            now,
            ssd: &mut self.ssd,
            out: &mut self.out,
            fx,
            registered: self.registration.incarnation.is_some(),
            incarnation: self.registration.incarnation.unwrap_or_default(),
            unix_ms_at_zero: self.unix_ms_at_zero,
            forward_to: v.forwarding.target(&v.gc),
            changed: false,
        };
        let result = call(&mut *v.service, &mut cx);
        self.touched |= u64::from(cx.changed) << i;
        result
    }

    /// Passes a packet to the service of its vSSD.
    fn pass_to_service(&mut self, now: Time, p: Packet, fx: &mut Effects) {
        // Of keys a packet's set is the partition, of cloud disks the volume. Replies of replicas and the map are for a service that
        // is their client.
        let i = match p.body {
            Body::Keys(_) | Body::Cloud(_) | Body::Block(Block::Reply(_)) | Body::Control(_) => {
                self.logs().find(|&i| self.vssds[i].service.takes(&p))
            }
            _ => self.place(p.header.vssd, p.header.set),
        };
        let Some(i) = i else { return };
        let v = &mut self.vssds[i];
        match p.header.op {
            Op::Read | Op::Write if self.registration.incarnation.is_some() => {
                v.gc.request(now);
                v.requests.arrived(now, &p);
                if self.cfg.reports_load && p.header.op == Op::Read {
                    v.load.arrived(now);
                }
                if !v.gc.actions.is_empty() {
                    self.touched |= 1 << i;
                }
            }
            Op::Peer if p.body.replicates() => v.gc.request(now),
            _ => {}
        }
        if self.with(now, i, fx, |service, cx| service.handle_packet(cx, p)) == Admitted::Joined {
            self.vssds[i].load.answered();
        }
    }

    fn packet(&mut self, now: Time, p: Packet, fx: &mut Effects) {
        match p.body {
            Body::Control(Control::Map(_)) => self.pass_to_service(now, p, fx),
            Body::Control(c) => {
                if matches!(c, Control::Lease { .. } | Control::ServerWelcome { .. }) {
                    self.registration.received(p.header.request);
                }
                self.control(now, c, fx);
            }
            Body::Table(Table::Gc(op)) => self.gc_answer(now, p.header, op),
            Body::Table(Table::Answer(result)) => {
                if !self.row_forgotten(now, p.header, fx) {
                    self.row_answer(now, p.header, result);
                }
            }
            // No other message about tables is for a server.
            Body::Table(_) => {}
            _ => self.pass_to_service(now, p, fx),
        }
    }

    fn control(&mut self, now: Time, c: Control, fx: &mut Effects) {
        match c {
            Control::ServerWelcome { nonce, incarnation, volumes } => {
                let first = self.registration.welcomed(now, nonce, incarnation);
                if self.registration.incarnation == Some(incarnation) {
                    self.fences.learn(&volumes);
                    for i in 0..self.vssds.len() {
                        self.with(now, i, fx, |service, cx| service.learn_volumes(cx, &volumes));
                    }
                }
                if first {
                    self.ssd.note_incarnation(now, incarnation, &mut self.out);
                    self.vssds.iter_mut().for_each(|v| v.row.again_at = now);
                    self.touched = u64::MAX >> (VSSDS_MAX - self.vssds.len());
                }
            }
            Control::Vssds { plan, incarnation, vssds } if self.registration.incarnation == Some(incarnation) => {
                self.take_plan(now, plan, vssds, fx);
            }
            Control::Logs { plan, incarnation, next_serial, logs }
                if self.registration.incarnation == Some(incarnation) =>
            {
                self.take_logs(now, plan, next_serial, logs, fx);
            }
            Control::Lease { sequence, span, views } => {
                // The views come first: a lease is for serving in them.
                views.iter().for_each(|v| self.install(now, v, fx));
                if self.registration.leased(sequence, span) {
                    let until = self.registration.lease_until;
                    self.lease_reported = false;
                    self.vssds.iter_mut().for_each(|v| v.service.set_lease(until));
                }
                if self.registration.knows_failure(sequence) {
                    self.vssds.iter_mut().for_each(|v| v.service.failure_known());
                }
            }
            Control::NewView(view) => self.install(now, &view, fx),
            Control::ServerRefused { nonce } => {
                self.registration.refused(nonce);
            }
            Control::DriveRefused { nonce, why } if self.registration.refused(nonce) => {
                self.refuse_drive((*why).into())
            }
            Control::RackIs { nonce, rack } => self.registration.rack_is(now, nonce, rack),
            _ => {}
        }
    }

    pub(crate) fn to_meta(&self, c: Control, fx: &mut Effects) {
        let request = if matches!(c, Control::Heartbeat { .. }) { self.registration.last_received() } else { 0 };
        let mut header = self.header(Op::Control, 0, request);
        (header.vssd, header.original_vssd, header.set) = (VssdId(0), VssdId(0), SetId(0));
        fx.send(Packet { src: self.cfg.node, dst: Layout::META, header, body: Body::Control(c) });
    }

    pub(crate) fn header(&self, op: Op, i: usize, request: u64) -> Header {
        let v = &self.vssds[i];
        Header {
            class: Class::Gold,
            set: v.cfg.set,
            epoch: v.epoch,
            incarnation: self.incarnation(),
            request,
            ..Header::addressed(op, v.cfg.id)
        }
    }

    fn completion(&mut self, now: Time, c: Completion) {
        if c.ssd == self.cfg.ssd.id {
            self.ssd.handle(now, c, &mut self.out);
        }
    }

    /// Passes on what the drive has finished.
    fn flash_done(&mut self, now: Time, d: FlashDone, fx: &mut Effects) {
        match d {
            FlashDone::Recovered { result } => self.drive_recovered(now, result, fx),
            FlashDone::Read { token, addr, version, result } => {
                self.flash_event(now, token, FlashEvent::Read { token, addr, version, result }, fx);
            }
            FlashDone::Programmed { token, result } => {
                let ok = result.is_ok();
                self.flash_event(now, token, FlashEvent::Programmed { token, ok }, fx);
                if !ok {
                    self.device_failed(fx);
                }
            }
            FlashDone::Synced { token, result } => {
                let ok = result.is_ok();
                self.flash_event(now, token, FlashEvent::Synced { token, ok }, fx);
                if !ok {
                    self.device_failed(fx);
                }
            }
            FlashDone::BlockFreed { .. } | FlashDone::BlockFailed { .. } => {
                let Some(i) = self.slot_of(&d) else { return };
                self.touched |= 1 << i;
                self.note_worn(now, i);
                let v = &mut self.vssds[i];
                v.space_changed = true;
                if matches!(d, FlashDone::BlockFreed { .. }) {
                    v.service.handle_freed(Freed::Block);
                }
            }
            FlashDone::GcIdle { .. } => {
                let Some(i) = self.slot_of(&d) else { return };
                self.touched |= 1 << i;
                if self.vssds[i].slot == SlotState::Settled {
                    self.vssds[i].gc.no_victim(now);
                }
            }
            // A failed drive is reported as such, not its contents.
            FlashDone::Recorded { result } => {
                if result.is_ok() {
                    self.registration.table = self.ssd.table().report();
                    self.registration.hurry(now);
                }
            }
            FlashDone::Log { vssd, done } => {
                if let Some(i) = self.vssds.iter().position(|v| v.cfg.id == vssd) {
                    self.with(now, i, fx, |service, cx| service.handle_flash(cx, FlashEvent::Log(done)));
                }
            }
            FlashDone::LogMade { vssd, result } => self.log_made(now, vssd, result.is_ok(), fx),
            FlashDone::LogGone { serial, result } => self.log_gone(now, serial, result.is_ok(), fx),
            FlashDone::Swapped => {
                self.reconcile(now, fx);
                self.swapped(now, fx);
            }
            FlashDone::Joined { result, .. } => {
                if let Some(i) = self.slot_of(&d).filter(|_| result.is_ok()) {
                    self.slot_joined(now, i, fx);
                }
            }
            FlashDone::Assigned { result, .. } => {
                if let Some(i) = self.slot_of(&d).filter(|_| result.is_ok()) {
                    self.slot_assigned(now, i, fx);
                }
            }
            FlashDone::Cleared { result, .. } => {
                if let Some(i) = self.slot_of(&d) {
                    self.slot_cleared(now, i, result.is_ok(), fx);
                }
            }
        }
    }

    fn drive_recovered(&mut self, now: Time, result: Result<(), RecoveryError>, fx: &mut Effects) {
        match result {
            Ok(()) => {
                self.registration.table = self.ssd.table().report();
                self.adopt_table(now, fx);
                self.level(now, fx);
            }
            Err(RecoveryError::Table(e)) => return self.refuse_drive(e.into()),
            Err(RecoveryError::Device(_)) => self.device_failed(fx),
        }
        (0..self.vssds.len()).for_each(|i| self.note_worn(now, i));
        self.touched |= self.logs().fold(0, |bits, i| bits | 1 << i);
        self.registration.losses = self.losses();
        self.registration.ready = true;
        self.registration.hurry(now);
    }
    /// Passes an answer to the service that gave the token to the drive.
    fn flash_event(&mut self, now: Time, token: u64, event: FlashEvent, fx: &mut Effects) {
        self.with(now, token_slot(token), fx, |service, cx| service.handle_flash(cx, event));
    }

    /// Slots with log vSSDs.
    fn logs(&self) -> impl Iterator<Item = usize> {
        self.vssds.iter().enumerate().filter(|(_, v)| v.is_log()).map(|(i, _)| i)
    }
    /// Losses of the drive, by slot.
    fn losses(&self) -> Vec<VssdLoss> {
        let pages = self.vssds.iter().enumerate().filter(|(_, v)| !v.is_log());
        let found = pages.map(|(slot, v)| (slot as u8, self.ssd.losses(v.cfg.id)));
        let lost = found.filter(|(_, l)| l.records > 0);
        lost.map(|(slot, l)| VssdLoss { slot, records: l.records, digest: l.digest }).collect()
    }

    /// Protocol rule 12: for good, for every vSSD of the drive.
    fn device_failed(&mut self, fx: &mut Effects) {
        if self.failed || mutant!("server.failure.ignored") {
            return;
        }
        self.failed = true;
        for (i, v) in self.vssds.iter_mut().enumerate() {
            v.fail();
            self.touched |= 1 << i;
        }
        self.registration.hurry(Time::ZERO);
        fx.trace(trace::DEVICE_FAILED, u64::from(self.cfg.ssd.id.0), 0);
    }

    /// Runs until nothing is left to pass on: flash to cache, cache to replica, replica to cache.
    #[inline]
    fn settle(&mut self, now: Time, fx: &mut Effects) {
        if self.touched != 0 || !self.out.done.is_empty() || self.ssd.failed().is_some() {
            self.pass_on(now, fx);
        }
    }
    fn pass_on(&mut self, now: Time, fx: &mut Effects) {
        loop {
            while !self.out.done.is_empty() {
                std::mem::swap(&mut self.out.done, &mut self.finished);
                let mut finished = std::mem::take(&mut self.finished);
                finished.drain(..).for_each(|d| self.flash_done(now, d, fx));
                self.finished = finished;
            }
            if !self.failed && self.ssd.failed().is_some() {
                self.device_failed(fx);
            }
            if self.touched == 0 {
                return;
            }
            let i = self.touched.trailing_zeros() as usize;
            self.touched &= self.touched - 1;
            self.settle_vssd(now, i, fx);
        }
    }

    /// Reads the drive's contents, once.
    fn boot(&mut self, now: Time) {
        if !self.booted && self.registration.may_use_drive() {
            self.booted = true;
            self.ssd.boot(now, &mut self.out);
        }
    }

    fn settle_vssd(&mut self, now: Time, i: usize, fx: &mut Effects) {
        let mut programs = self.with(now, i, fx, |service, cx| service.poll_programs(cx));
        let group = if self.groups.is_empty() { None } else { self.group_of(i) };
        if programs.waits_for_block {
            match group {
                Some(g) => programs.allocated |= self.short_of_blocks(now, i, g, fx),
                None => self.vssds[i].gc.force(now),
            }
        }
        let v = &mut self.vssds[i];
        let space_changed = std::mem::take(&mut v.space_changed) | programs.allocated;
        if programs.no_victim {
            v.gc.no_victim(now);
        }
        if space_changed {
            v.gc.check(now, v.service.free_ratio(&self.ssd));
            if !v.service.collecting(&self.ssd) {
                v.gc.ended(now);
            }
        }
        if !v.gc.actions.is_empty() {
            self.run_gc(now, i, fx);
        }
        if let Some(g) = group
            && (space_changed || self.vssds[i].gc.state() != self.vssds[i].gc_seen || self.vssds[i].gc.resting())
        {
            self.step_group(now, g, fx);
        }
        let at = self.with(now, i, fx, |service, cx| service.poll_answers(cx));
        let v = &mut self.vssds[i];
        if v.role == Some(Role::Shadow) && !v.complete && v.service.standing().complete {
            v.complete = true;
            self.registration.hurry(now);
        }
        if v.is_log() {
            self.note_readable(now, i);
        }
        self.due[i] = self.deadline_of(&self.vssds[i], at);
    }
    /// A log vSSD has no view: it serves when its service does.
    fn note_readable(&mut self, now: Time, i: usize) {
        let v = &mut self.vssds[i];
        let serves = v.service.standing().complete && self.registration.incarnation.is_some();
        if v.readable != serves {
            v.readable = serves;
            (v.row.answered, v.row.again_at) = (false, now);
            v.row.request += 1;
        }
    }

    fn timers(&mut self, now: Time, fx: &mut Effects) {
        for i in 0..self.vssds.len() {
            if self.due[i] <= now {
                self.vssd_timer(now, i, fx);
            }
        }
        for g in 0..self.groups.len() {
            if self.groups[g].machine.deadline() <= now {
                self.step_group(now, g, fx);
            }
        }
        if self.registration.deadline() <= now {
            let no_room = self.registration.waits_too_long(now, self.host_full_at);
            let planned = self.vssds.iter().filter(|v| !v.is_free() && !v.is_log());
            let vssds = planned.map(|v| v.report(no_room)).collect();
            if self.registration.is_unconfirmed() {
                self.to_meta(self.registration.hello(), fx);
            }
            let message = self.registration.message(now, vssds, self.failed);
            self.to_meta(message, fx);
            if self.vssds.iter().any(|v| v.service.wants_volumes()) {
                // Answered as when this incarnation was new.
                self.to_meta(self.registration.hello(), fx);
            }
            self.report_wear(now, fx);
            self.report_room(now, fx);
        }
        if self.plan.deadline() <= now {
            self.forget_rows(now, fx);
            self.retry_units(now, fx);
        }
        self.retry_logs(now, fx);
        if self.scrub_deadline() <= now {
            self.scrub(now, fx);
        }
        if !self.lease_reported && now >= self.registration.lease_until && self.registration.lease_until > Time::ZERO {
            self.lease_reported = true;
            for v in self.vssds.iter().filter(|v| v.role.is_some()) {
                fx.trace(trace::LEASE_EXPIRED, u64::from(v.cfg.set.0), u64::from(v.epoch.0));
            }
        }
    }

    fn vssd_timer(&mut self, now: Time, i: usize, fx: &mut Effects) {
        self.touched |= 1 << i;
        self.with(now, i, fx, |service, cx| service.handle_timer(cx));
        if self.registration.incarnation.is_none() || self.vssds[i].is_free() {
            return;
        }
        // The row comes first: without one the switch knows no vSSD that might collect.
        if self.vssds[i].row.again_at <= now {
            self.announce_row(now, i, fx);
        }
        if self.vssds[i].gc.deadline() <= now && !self.failed {
            let ratio = self.free_ratio(i);
            self.vssds[i].gc.timer(now, ratio);
            self.run_gc(now, i, fx);
        }
    }

    /// `at`: its service's.
    fn deadline_of(&self, v: &ServedVssd, at: Time) -> Time {
        if self.registration.incarnation.is_none() || v.is_free() {
            return at;
        }
        let gc = if self.failed { Time::MAX } else { v.gc.deadline() };
        at.min(v.row.again_at).min(gc)
    }

    fn next_deadline(&self) -> Time {
        let lease = if self.lease_reported { Time::MAX } else { self.registration.lease_until };
        let due = self.due[..self.vssds.len()].iter().copied().min().unwrap_or(Time::MAX);
        self.registration
            .deadline()
            .min(lease)
            .min(due)
            .min(self.groups_due())
            .min(self.plan.deadline())
            .min(self.log_plan.deadline())
            .min(self.scrub_deadline())
            .min(self.swap_deadline())
    }
}

impl Node for Server {
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
        let (mut sent, me) = (fx.packets.len(), self.cfg.node);
        self.event(now, event, fx);
        // A service may be a client of another one here.
        while let Some(i) = fx.packets[sent..].iter().position(|p| p.dst == me) {
            sent += i;
            let p = fx.packets.remove(sent);
            self.event(now, Event::Packet(p), fx);
        }
    }
}

impl Server {
    fn event(&mut self, now: Time, event: Event, fx: &mut Effects) {
        self.boot(now);
        let sent = fx.packets.len();
        match event {
            Event::Packet(p) => {
                self.packet(now, p, fx);
                self.boot(now);
            }
            Event::Completion(c) => self.completion(now, c),
            Event::Request(r) => {
                fx.reply(Reply { id: r.id, result: r.op.not_served() });
            }
            Event::Timer | Event::Stored { .. } => {}
        }
        self.settle(now, fx);
        let mut at = self.next_deadline();
        if at <= now {
            self.timers(now, fx);
            self.boot(now);
            self.settle(now, fx);
            at = self.next_deadline();
        }
        if self.swap_may_step(now) {
            self.step_swap(now, fx);
            self.settle(now, fx);
            at = self.next_deadline();
        }
        self.measure_answers(now, &fx.packets[sent..]);
        if self.cfg.reports_load {
            at = at.min(self.report_loads(now, sent, fx));
        }
        if !self.out.commands.is_empty() {
            fx.commands.append(&mut self.out.commands);
        }
        if !self.out.traces.is_empty() {
            fx.traces.append(&mut self.out.traces);
        }
        // A timer that is set too early costs one idle call; resetting it for every request costs far more.
        if at < self.wake_at || self.wake_at <= now {
            self.wake_at = at;
            fx.wake_at(at);
        }
    }
}
