//! The switch as a node: the pipeline, with rewriting and forwarding of the packet.

use rackweave_core::msg::{Body, GcField, GcOp, Op, Packet, Table};
use rackweave_core::{Effects, Event, Layout, Node, NodeId, Time, VssdId};
use rackweave_sched::egress::EgressCounters;

use crate::config::{Redirect, SwitchConfig};
use crate::control::{Announcement, Applied, DataPlane, Update, UpdateError};
use crate::pipeline::{Counters, DropReason, GcHow, Pipeline, Verdict};
use crate::queues::Queues;
use crate::tables::{CheckError, Dump, ReportedState, RowState};
use crate::trace;

/// The switch. Its tables are empty when it starts: servers announce their vSSDs, and their state, again.
#[derive(Debug)]
pub struct Switch {
    node: NodeId,
    names_idle: bool,
    rack: u32,
    /// The other rack's switch.
    far: Option<NodeId>,
    hop_ns: u32,
    pipeline: Pipeline,
    queues: Option<Box<Queues>>,
    /// The driver's timer: the pipeline's deadline, or the time at which a packet leaves its port.
    wake: Time,
}

impl Switch {
    pub fn new(cfg: SwitchConfig) -> Switch {
        Switch {
            node: cfg.node,
            names_idle: cfg.names_idle,
            rack: cfg.rack,
            far: cfg.far,
            hop_ns: u32::try_from(cfg.hop.0).unwrap_or(u32::MAX),
            pipeline: Pipeline::new(&cfg),
            queues: cfg.egress.map(|e| Box::new(Queues::new(e))),
            wake: Time::MAX,
        }
    }
    /// When a state expires next; `Time::MAX` if none is known.
    pub fn deadline(&self) -> Time {
        self.pipeline.deadline()
    }
    /// Increases with every change of rows.
    pub fn generation(&self) -> u64 {
        self.pipeline.generation()
    }
    /// Both tables as they are now.
    pub fn dump(&self) -> Dump {
        self.pipeline.dump()
    }
    /// Number of vSSDs in the tables, and their capacity.
    pub fn rows(&self) -> u32 {
        self.pipeline.rows()
    }
    pub fn rows_max(&self) -> u32 {
        self.pipeline.rows_max()
    }
    pub fn counters(&self) -> &Counters {
        self.pipeline.counters()
    }
    /// Counters of the ports; none without queues.
    pub fn egress(&self) -> Option<EgressCounters> {
        self.queues.as_ref().map(|q| q.counters())
    }
    /// Whether reads avoid collecting replicas, from now on.
    pub fn set_redirect(&mut self, redirect: Redirect) {
        self.pipeline.set_redirect(redirect);
    }
    pub fn redirect(&self) -> Redirect {
        self.pipeline.redirect()
    }
    /// A vSSD's row as it was last announced.
    pub fn announced(&self, vssd: VssdId) -> Option<Announcement> {
        self.pipeline.announced(vssd)
    }
    /// The state of a vSSD, if it has a row.
    pub fn row_state(&self, vssd: VssdId) -> Option<RowState> {
        self.pipeline.row_state(vssd)
    }
    /// The last report of every row's server.
    pub fn reported(&self) -> impl Iterator<Item = ReportedState> {
        self.pipeline.reported()
    }
    /// Whether the tables agree with each other.
    pub fn check(&self) -> Result<(), CheckError> {
        self.pipeline.check()
    }

    fn expire(&mut self, now: Time, fx: &mut Effects) {
        while let Some((vssd, collected)) = self.pipeline.expire_one(now) {
            if collected {
                fx.trace(trace::GC_BITS_EXPIRED, u64::from(vssd.0), 0);
            }
        }
    }

    /// Follows the writer of the tables.
    pub fn apply(&mut self, now: Time, update: &Update) -> Result<Applied, UpdateError<std::convert::Infallible>> {
        self.pipeline.apply(now, update)
    }

    /// NICE §3: a copy to each member behind the address.
    fn copy(&mut self, mut p: Packet, fx: &mut Effects) {
        p.header.lat = p.header.lat.saturating_add(self.hop_ns);
        for &member in self.pipeline.to_ring(p.src, p.dst) {
            fx.send(Packet { dst: member, ..p.clone() });
        }
    }

    /// Processes a packet for the tables, and reports a deleted row.
    fn processed(&mut self, now: Time, p: &Packet, fx: &mut Effects) -> Verdict {
        let before = self.pipeline.counters().rows_deleted;
        let verdict = self.pipeline.process(now, p.src, &p.header, &p.body);
        if self.pipeline.counters().rows_deleted > before {
            fx.trace(trace::ROW_DELETED, u64::from(p.header.vssd.0), p.header.incarnation.0);
        }
        verdict
    }

    fn packet(&mut self, now: Time, mut p: Packet, fx: &mut Effects) {
        let view = match &p.body {
            Body::Keys(keys) => keys.new_view(),
            _ => None,
        };
        match view {
            Some(view) if p.dst == self.node && p.src == Layout::META => {
                return self.pipeline.view_announced(p.header.incarnation, view);
            }
            // It names the members to its sender's own network, if that has any use for them.
            Some(_) if p.dst.is_ring() => return,
            _ => {}
        }
        if p.dst.is_ring() {
            return self.copy(p, fx);
        }
        if self.far == Some(p.src) {
            return self.far_reports(now, &p, fx);
        }
        if let (Op::Load, &Body::Table(Table::Load(load))) = (p.header.op, &p.body) {
            return self.pipeline.load_reported(now, p.src, &p.header, load);
        }
        if p.dst != self.node {
            return self.crossing(p, fx);
        }
        let verdict = self.processed(now, &p, fx);
        self.inform_far(&p, verdict, fx);
        p.header.lat = p.header.lat.saturating_add(self.hop_ns);
        match verdict {
            Verdict::Forward { to } => {
                p.dst = to;
                fx.send(p);
            }
            Verdict::Redirect { to, vssd } => {
                fx.trace(trace::REDIRECT, u64::from(p.header.vssd.0), u64::from(vssd.0));
                if vssd.rack() != p.header.vssd.rack() {
                    fx.trace(trace::REDIRECT_FAR, u64::from(p.header.vssd.0), u64::from(vssd.0));
                }
                p.dst = to;
                p.header.vssd = vssd;
                fx.send(p);
            }
            Verdict::Gc { answer, how } => self.answer_gc(p, answer, how, fx),
            Verdict::RequestFar => {
                if let Some(far) = self.far {
                    fx.send(Packet { src: self.node, dst: far, ..p });
                }
            }
            Verdict::Table(result) => {
                p.header.op = Op::Reply;
                self.answer(p, Body::Table(Table::Answer(result)), fx);
            }
            Verdict::Drop(reason) => {
                if let (DropReason::StaleGcOp, Body::Table(Table::Gc(op))) = (reason, &p.body) {
                    fx.trace(trace::GC_OP_STALE, u64::from(p.header.vssd.0), op.sequence);
                }
            }
        }
    }

    /// Packets between nodes, which also queue here if ports have queues. The tables concern those that are addressed to the
    /// switch: a service whose clients know its servers names no vSSD.
    fn crossing(&mut self, mut p: Packet, fx: &mut Effects) {
        p.header.lat = p.header.lat.saturating_add(self.hop_ns);
        fx.send(p);
    }

    /// Informs the other rack's switch: rows as they were announced, and after each `gc_op` of a vSSD whether it
    /// collects. No retransmission: servers announce all of it periodically, and incarnation and sequence identify
    /// repeated, late and reordered reports.
    fn inform_far(&self, p: &Packet, verdict: Verdict, fx: &mut Effects) {
        let Some(far) = self.far.filter(|_| !mutant!("switch.far.not-informed")) else { return };
        let body = match (&p.body, verdict) {
            (Body::Table(Table::Create(row)), Verdict::Table(Ok(())))
                if row.peers.iter().any(|m| m.0.rack() != self.rack) =>
            {
                p.body.clone()
            }
            (Body::Table(Table::Delete), Verdict::Table(Ok(()))) => Body::Table(Table::Delete),
            (Body::Table(Table::Gc(GcOp { sequence, .. })), Verdict::Gc { .. }) => {
                let Some(field) = self.pipeline.state_for_far(p.header.vssd) else { return };
                Body::Table(Table::Gc(GcOp { field, sequence: *sequence }))
            }
            _ => return,
        };
        fx.send(Packet { src: self.node, dst: far, header: p.header, body });
    }

    /// Packets of the other rack's switch concern vSSDs there, except answers to requests. Requests get an answer.
    fn far_reports(&mut self, now: Time, p: &Packet, fx: &mut Effects) {
        let header = &p.header;
        let here = header.vssd.rack() == self.rack;
        match &p.body {
            Body::Table(Table::Gc(op)) if here && matches!(op.field, GcField::Accept | GcField::Delay) => {
                self.far_answers(now, p, *op, fx);
            }
            Body::Table(Table::Gc(op)) if !here && matches!(op.field, GcField::Swap | GcField::SwapBeside) => {
                let Some(answer) = self.pipeline.far_requests(now, header, *op) else { return };
                let accepts = answer == GcField::Accept;
                let point = if accepts { trace::FAR_SWAP_ACCEPTED } else { trace::FAR_SWAP_DELAYED };
                fx.trace(point, u64::from(header.vssd.0), op.sequence);
                let body = Body::Table(Table::Gc(GcOp { field: answer, sequence: op.sequence }));
                fx.send(Packet { src: self.node, dst: p.src, header: p.header, body });
            }
            _ if here && !mutant!("switch.far.own-rows") => self.pipeline.refuse_far(),
            Body::Table(Table::Gc(op)) => {
                let point =
                    if self.pipeline.far_state(now, header, *op) { trace::FAR_STATE } else { trace::FAR_STATE_STALE };
                fx.trace(point, u64::from(header.vssd.0), op.sequence);
            }
            Body::Table(Table::Create(_) | Table::Delete) => {
                self.processed(now, p, fx);
            }
            _ => self.pipeline.refuse_far(),
        }
    }

    /// The server has its answer. The other switch, which has the vSSD swap if it accepted, hears of one that is delayed after all.
    fn far_answers(&mut self, now: Time, p: &Packet, op: GcOp, fx: &mut Effects) {
        let Some((server, requested, answer)) = self.pipeline.far_answers(now, &p.header, op) else { return };
        let body = Body::Table(Table::Gc(GcOp { field: requested, sequence: op.sequence }));
        let request = Packet { src: server, dst: self.node, header: p.header, body };
        self.inform_far(&request, Verdict::Gc { answer, how: GcHow::New }, fx);
        self.answer_gc(request, answer, GcHow::New, fx);
    }

    fn answer_gc(&mut self, mut p: Packet, answer: GcField, how: GcHow, fx: &mut Effects) {
        let Body::Table(Table::Gc(GcOp { field: asked, sequence })) = p.body else { return };
        let point = match (how, asked, answer) {
            (GcHow::Duplicate, ..) => Some(trace::GC_OP_DUPLICATE),
            (_, GcField::Soft, GcField::Accept) => Some(trace::GC_ACCEPTED),
            (_, GcField::Swap | GcField::SwapBeside, GcField::Accept) => Some(trace::SWAP_ACCEPTED),
            (_, GcField::Soft | GcField::Swap | GcField::SwapBeside, _) => Some(trace::GC_DELAYED),
            (_, GcField::Regular, _) => Some(trace::GC_REGULAR),
            (_, GcField::Background, _) => Some(trace::GC_BACKGROUND),
            _ => None,
        };
        if let Some(point) = point {
            fx.trace(point, u64::from(p.header.vssd.0), sequence);
        }
        if self.names_idle && answer == GcField::Accept {
            p.header.original_vssd = self.pipeline.idle_peer(p.header.vssd).unwrap_or(p.header.vssd);
        }
        self.answer(p, Body::Table(Table::Gc(GcOp { field: answer, sequence })), fx);
    }

    /// Line 24: back to the sender.
    fn answer(&self, p: Packet, body: Body, fx: &mut Effects) {
        fx.send(Packet { src: self.node, dst: p.src, header: p.header, body });
    }
}

impl Node for Switch {
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
        self.pipeline.start(now);
        if let Some(queues) = &mut self.queues {
            queues.release(now, fx);
        }
        let first = fx.packets.len();
        if self.wake <= now {
            self.expire(now, fx);
        }
        if let Event::Packet(p) = event {
            self.packet(now, p, fx);
        }
        let mut deadline = self.pipeline.deadline();
        if let Some(queues) = &mut self.queues {
            queues.hold(now, first, fx);
            deadline = deadline.min(queues.next());
        }
        if deadline != self.wake {
            self.wake = deadline;
            fx.wake_at(deadline);
        }
    }
}
