//! Client requests: reads wait for their turn, or go to a replica that does not collect; writes start at once if there
//! is room for them, offline ones as far as they have tokens.

use rackweave_core::msg::{Block, Body, Header, IoError, IoReply, IoRequest, Op, Packet};
use rackweave_core::{BlockAddr, Epoch, SECTORS_PER_BLOCK, Time};
use rackweave_sched::{Kind, clamp_lat};

use super::BlockService;
use super::classes::{OFFLINE_SHARE, QUEUE_MAX, is_offline};
use super::vssd_io::ReadRequest;
use super::writes::is_write;
use crate::service::{Admitted, Context};
use crate::trace;

impl BlockService {
    pub(super) fn io(&mut self, cx: &mut Context<'_>, p: Packet) -> Admitted {
        if !cx.registered {
            cx.fx.send(refusal(&p));
            return Admitted::Taken;
        }
        let reads = matches!(p.body, Body::Block(Block::Io(IoRequest::Read { .. })));
        if self.coordinated {
            let kind = if reads { Kind::Read } else { Kind::Write };
            self.predict[kind as usize].arrived(clamp_lat(p.header.lat));
        }
        if !reads {
            self.admit_mutation(cx, p);
        } else if self.replica.is_reading(&p) {
            return Admitted::Joined;
        } else {
            self.admit_read(cx, p);
        }
        Admitted::Taken
    }
    fn admit_mutation(&mut self, cx: &mut Context<'_>, p: Packet) {
        if self.classes.write_at_once(cx.now, &p) {
            return self.start_write(cx, p);
        }
        cx.changed = true;
        if let Err(p) = self.classes.push_write(p) {
            cx.fx.send(refusal(&p));
        }
    }
    fn admit_read(&mut self, cx: &mut Context<'_>, p: Packet) {
        if let Some(p) = cx.forwarded(&p) {
            cx.fx.trace(trace::REDIRECT, u64::from(p.header.original_vssd.0), u64::from(p.header.vssd.0));
            return cx.fx.send(p);
        }
        if p.header.original_vssd != p.header.vssd {
            self.redirected_reads += 1;
        }
        if first_block(&p).is_some_and(|a| self.io.die_is_full(a, cx.ssd)) {
            self.queue_full += 1;
            return cx.fx.send(refusal(&p));
        }
        if self.classes.at_once(&p, self.io.reads_at_flash(), self.reads_max()) {
            return self.start_read(cx, p, cx.now);
        }
        if let Err(p) = self.classes.push_read(cx.now, p) {
            self.queue_full += 1;
            cx.fx.send(refusal(&p));
        }
    }
    /// Most reads at the flash or held back before it: of all classes, and of the offline class.
    fn reads_max(&self) -> (usize, usize) {
        let all = if self.io.queues.is_some() { QUEUE_MAX } else { self.reads_in_flight };
        (all, (self.reads_in_flight / OFFLINE_SHARE).max(1))
    }

    /// Starts a read whose turn has come.
    fn start_read(&mut self, cx: &mut Context<'_>, p: Packet, arrived: Time) {
        let net = clamp_lat(p.header.lat) + self.predict[Kind::Read as usize].predict();
        self.io.reading_for = Some(ReadRequest { offline: is_offline(&p), arrived, net });
        self.with(cx, |r, now, store, fx| r.handle_io(now, p, store, fx));
        self.io.reading_for = None;
    }

    /// Starts a mutation that has its tokens, unless it is a write and others wait before it.
    fn start_write(&mut self, cx: &mut Context<'_>, p: Packet) {
        if is_write(&p) && (self.replica.lacks_credit() || !self.held.is_empty()) {
            let net = clamp_lat(p.header.lat) + self.predict[Kind::Write as usize].predict();
            cx.changed = true;
            if let Err(p) = self.held.push(cx.now, p, net) {
                self.queue_full += 1;
                cx.fx.send(refusal(&p));
            }
            return;
        }
        self.with(cx, |r, now, store, fx| r.handle_io(now, p, store, fx));
    }
    /// Starts offline writes as far as there are tokens.
    pub(super) fn start_offline_writes(&mut self, cx: &mut Context<'_>) {
        while let Some(p) = self.classes.pop_write(cx.now) {
            self.start_write(cx, p);
        }
    }
    /// Starts writes that wait for room, until one finds none.
    pub(super) fn start_held_writes(&mut self, cx: &mut Context<'_>) {
        while !self.held.is_empty() && !self.replica.lacks_credit() {
            let Some(p) = self.held.pop(cx.now) else { return };
            self.with(cx, |r, now, store, fx| r.handle_io(now, p, store, fx));
        }
    }

    /// Starts waiting reads as others finish.
    pub(super) fn start_queued(&mut self, cx: &mut Context<'_>) {
        while let Some((p, arrived)) = self.classes.pop_read(self.io.reads_at_flash(), self.reads_max()) {
            self.start_read(cx, p, arrived);
        }
    }
}

/// The first block of a read.
fn first_block(p: &Packet) -> Option<BlockAddr> {
    let Body::Block(Block::Io(IoRequest::Read { range, .. })) = &p.body else { return None };
    let block = u32::try_from(range.first / u64::from(SECTORS_PER_BLOCK)).ok()?;
    Some(BlockAddr::new(range.volume, block))
}

/// "Not here": the client retries at another replica.
fn refusal(p: &Packet) -> Packet {
    let header = Header { op: Op::Reply, epoch: Epoch(0), ..p.header };
    Packet { src: p.dst, dst: p.src, header, body: Body::Block(Block::Reply(IoReply::Failed(IoError::NotServing))) }
}
