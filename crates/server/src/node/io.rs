//! Requests of clients: reads wait for their turn, or go to the replica that does not collect; writes start at once if
//! there is room for them, offline ones as far as they have tokens.

use rackweave_core::msg::{Body, Header, IoError, IoReply, IoRequest, Op, Packet};
use rackweave_core::{BlockAddr, Effects, Epoch, SECTORS_PER_BLOCK, Time};
use rackweave_sched::{Kind, clamp_lat};

use super::Server;
use crate::classes::is_offline;
use crate::trace;
use crate::write_cache::Asked;
use crate::writes::is_write;

impl Server {
    pub(super) fn io(&mut self, now: Time, p: Packet, fx: &mut Effects) {
        let Some(i) = self.place(p.header.vssd, p.header.set) else { return };
        if self.registration.incarnation.is_none() {
            fx.send(refusal(&p));
            return;
        }
        let v = &mut self.vssds[i];
        v.gc.request(now);
        if self.cfg.tells_load && p.header.op == Op::Read {
            v.load.came(now);
        }
        if !v.gc.actions.is_empty() {
            self.touched |= 1 << i;
        }
        let reads = matches!(p.body, Body::Io(IoRequest::Read { .. }));
        if self.cfg.sched.coordinated {
            let kind = if reads { Kind::Read } else { Kind::Write };
            v.predict[kind as usize].came(clamp_lat(p.header.lat));
        }
        if !reads {
            if v.classes.write_at_once(now, &p) {
                return self.start_write(now, i, p, fx);
            }
            self.touched |= 1 << i;
            if let Err(p) = v.classes.push_write(p) {
                fx.send(refusal(&p));
            }
            return;
        }
        if v.replica.is_reading(&p) {
            // One answer is for both.
            return v.load.answered();
        }
        if let Some(p) = v.forwarding.forwarded(v.gc.state(), &p) {
            fx.trace(trace::REDIRECT, u64::from(p.header.original_vssd.0), u64::from(p.header.vssd.0));
            return fx.send(p);
        }
        if p.header.original_vssd != p.header.vssd {
            v.redirected_reads += 1;
        }
        if first_block(&p).is_some_and(|a| v.cache.die_is_full(a, &self.ssd)) {
            v.queue_full += 1;
            return fx.send(refusal(&p));
        }
        if v.classes.at_once(&p, v.cache.reads_at_flash(), v.reads_max(&self.cfg)) {
            return self.start_read(now, i, p, now, fx);
        }
        if let Err(p) = v.classes.push_read(now, p) {
            v.queue_full += 1;
            fx.send(refusal(&p));
        }
    }

    /// A read's turn has come.
    pub(super) fn start_read(&mut self, now: Time, i: usize, p: Packet, came: Time, fx: &mut Effects) {
        let v = &mut self.vssds[i];
        let net = clamp_lat(p.header.lat) + v.predict[Kind::Read as usize].predict();
        v.cache.asking = Some(Asked { offline: is_offline(&p), came, net });
        self.with(now, i, |r, store| r.handle_io(now, p, store, fx));
        self.vssds[i].cache.asking = None;
    }

    /// A mutation has the tokens it needs: it goes, unless it is a write that others wait before.
    fn start_write(&mut self, now: Time, i: usize, p: Packet, fx: &mut Effects) {
        let v = &mut self.vssds[i];
        if is_write(&p) && (v.replica.lacks_credit() || !v.held.is_empty()) {
            let net = clamp_lat(p.header.lat) + v.predict[Kind::Write as usize].predict();
            self.touched |= 1 << i;
            if let Err(p) = v.held.push(now, p, net) {
                v.queue_full += 1;
                fx.send(refusal(&p));
            }
            return;
        }
        self.with(now, i, |r, store| r.handle_io(now, p, store, fx));
    }
    /// Offline writes go as far as there are tokens.
    pub(super) fn start_offline_writes(&mut self, now: Time, i: usize, fx: &mut Effects) {
        while let Some(p) = self.vssds[i].classes.pop_write(now) {
            self.start_write(now, i, p, fx);
        }
    }
    /// Writes that wait for room go on, until one finds none.
    pub(super) fn start_held_writes(&mut self, now: Time, i: usize, fx: &mut Effects) {
        while !self.vssds[i].held.is_empty() && !self.vssds[i].replica.lacks_credit() {
            let Some(p) = self.vssds[i].held.pop(now) else { return };
            self.with(now, i, |r, store| r.handle_io(now, p, store, fx));
        }
    }

    /// Starts waiting reads as others finish.
    pub(super) fn start_queued(&mut self, now: Time, i: usize, fx: &mut Effects) {
        loop {
            let v = &mut self.vssds[i];
            let most = v.reads_max(&self.cfg);
            let Some((p, came)) = v.classes.pop_read(v.cache.reads_at_flash(), most) else { return };
            self.start_read(now, i, p, came, fx);
        }
    }
}

/// Where a read begins.
fn first_block(p: &Packet) -> Option<BlockAddr> {
    let Body::Io(IoRequest::Read { range }) = &p.body else { return None };
    let block = u32::try_from(range.first / u64::from(SECTORS_PER_BLOCK)).ok()?;
    Some(BlockAddr::new(range.volume, block))
}

/// "Not here": the client asks another replica.
fn refusal(p: &Packet) -> Packet {
    let header = Header { op: Op::Reply, epoch: Epoch(0), ..p.header };
    Packet { src: p.dst, dst: p.src, header, body: Body::Reply(IoReply::Failed(IoError::NotServing)) }
}
