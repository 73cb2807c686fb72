//! Exchange between a server and its switch: the row of each vSSD, its collection, and its pending reads.

use rackweave_core::msg::{Body, GcField, GcOp, Header, Op, Packet, Table, TableError, VssdRow};
use rackweave_core::{Effects, Span, Time};

use super::Server;
use crate::forward::Forwarding;
use crate::gc::GcAction;
use crate::service::Collect;
use crate::trace;

/// Interval at which an unanswered `create_vssd` is repeated: fifty a second per vSSD, 320 KB for the 64 that a
/// server may have. A restarted switch then knows them at once.
const ROW_RETRY_INTERVAL: Span = Span::from_millis(20);
/// Retry interval while the switch's tables are full.
const ROW_FULL_RETRY_INTERVAL: Span = Span::from_secs(1);

impl Server {
    pub(crate) fn to_switch(&self, header: Header, body: Body, fx: &mut Effects) {
        let dst = self.cfg.layout.switch_of(header.vssd);
        fx.send(Packet { src: self.cfg.node, dst, header, body });
    }

    pub(super) fn announce_row(&mut self, now: Time, i: usize, fx: &mut Effects) {
        let every = self.cfg.gc.announce_every;
        let v = &mut self.vssds[i];
        v.row.again_at = now + if v.row.answered { every } else { ROW_RETRY_INTERVAL };
        v.row.answered = false;
        let row = VssdRow { server: self.cfg.node, readable: v.readable, peers: v.cfg.peers.clone() };
        let header = self.header(Op::CreateVssd, i, self.vssds[i].row.request);
        self.to_switch(header, Body::Table(Table::Create(Box::new(row))), fx);
    }

    pub(super) fn row_answer(&mut self, now: Time, header: Header, result: Result<(), TableError>) {
        let every = self.cfg.gc.announce_every;
        let Some(i) = self.vssds.iter().position(|v| v.cfg.id == header.vssd) else { return };
        let v = &mut self.vssds[i];
        if v.row.request != header.request {
            return;
        }
        self.touched |= 1 << i;
        v.row.answered = true;
        v.row.again_at = now + if result.is_ok() { every } else { ROW_FULL_RETRY_INTERVAL };
    }

    pub(super) fn gc_answer(&mut self, now: Time, header: Header, op: GcOp) {
        let me = self.incarnation();
        let Some(i) = self.vssds.iter().position(|v| v.cfg.id == header.vssd) else { return };
        if header.incarnation == me {
            let v = &mut self.vssds[i];
            if self.cfg.forwards_reads && op.field == GcField::Accept {
                v.forwarding.granted(header.original_vssd, &v.cfg.peers);
            }
            v.gc.answer(now, op);
            self.touched |= 1 << i;
        }
    }

    /// Records the latency of the requests that these packets answer.
    pub(super) fn measure_answers(&mut self, now: Time, packets: &[Packet]) {
        for p in packets.iter().filter(|p| p.header.op == Op::Reply) {
            if let Some(v) = self.vssds.iter_mut().find(|v| v.cfg.id == p.header.vssd && !v.requests.is_idle()) {
                v.requests.answered(now, p);
            }
        }
    }

    /// Sends changed loads of its vSSDs to the switch; `fx.packets[sent..]` are the packets of this event. Returns when
    /// the next report is due.
    pub(super) fn report_loads(&mut self, now: Time, sent: usize, fx: &mut Effects) -> Time {
        let erases_changed = std::mem::take(&mut self.out.erases_changed);
        for p in &fx.packets[sent..] {
            if p.body.answers_read()
                && let Some(v) = self.vssds.iter_mut().find(|v| v.cfg.id == p.header.vssd)
            {
                v.load.answered();
            }
        }
        if !erases_changed && now < self.loads_due && !self.vssds.iter().any(|v| v.load.changed()) {
            debug_assert!(self.vssds.iter().all(|v| v.load.erasing() == v.service.erasing(&self.ssd)));
            return self.loads_due;
        }
        let mut at = Time::MAX;
        for i in 0..self.vssds.len() {
            let v = &mut self.vssds[i];
            let erasing = v.service.erasing(&self.ssd);
            if let Some(load) = v.load.report(now, || v.service.load().without_reads(), erasing) {
                let header = self.header(Op::Load, i, 0);
                self.to_switch(header, Body::Table(Table::Load(load)), fx);
            }
            at = at.min(self.vssds[i].load.deadline());
        }
        self.loads_due = at;
        at
    }

    pub(super) fn free_ratio(&self, i: usize) -> f64 {
        self.vssds[i].service.free_ratio(&self.ssd)
    }

    /// Carries out the monitor's actions.
    pub(super) fn run_gc(&mut self, now: Time, i: usize, fx: &mut Effects) {
        let mut k = 0;
        while k < self.vssds[i].gc.actions.len() {
            let action = self.vssds[i].gc.actions[k];
            let name = u64::from(self.vssds[i].cfg.id.0);
            k += 1;
            match action {
                GcAction::Tell(op) => {
                    let header = self.header(Op::GcOp, i, op.sequence);
                    self.to_switch(header, Body::Table(Table::Gc(op)), fx);
                }
                GcAction::Start | GcAction::StartUnacknowledged | GcAction::StartForced | GcAction::StartIdle => {
                    self.vssds[i].gc_episodes += 1;
                    if action != GcAction::Start {
                        self.vssds[i].forwarding = Forwarding::default();
                    }
                    let permille = (self.free_ratio(i) * 1000.0) as u64;
                    fx.trace(trace::GC_START, name, permille);
                    if action == GcAction::StartUnacknowledged {
                        self.vssds[i].gc_unacknowledged += 1;
                        fx.trace(trace::GC_UNACKNOWLEDGED, name, permille);
                    }
                    if action == GcAction::StartIdle {
                        self.vssds[i].gc_background += 1;
                        fx.trace(trace::GC_WHILE_IDLE, name, permille);
                    }
                    if action == GcAction::StartForced {
                        fx.trace(trace::GC_FORCED, name, permille);
                    }
                    self.order(now, i, Collect::Start, fx);
                }
                GcAction::Rest => self.order(now, i, Collect::Rest, fx),
                GcAction::Stop => {
                    fx.trace(trace::GC_END, name, (self.free_ratio(i) * 1000.0) as u64);
                    self.order(now, i, Collect::Stop, fx);
                    if !self.vssds[i].service.collecting(&self.ssd) {
                        self.vssds[i].gc.ended(now);
                    }
                }
            }
        }
        self.vssds[i].gc.actions.clear();
    }
    fn order(&mut self, now: Time, i: usize, order: Collect, fx: &mut Effects) {
        self.with(now, i, fx, |service, cx| service.collect(cx, order));
    }
}
