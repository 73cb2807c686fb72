//! What a server does with messages of one volume's epoch: its sub-log, and to whom the others go.

use std::collections::BTreeSet;

use rackweave_core::{MESSAGE_MAX, NodeId, SECTOR};

use crate::ctx::Ctx;
use crate::log::{AppendError, ReadError};
use crate::msg::{Body, Packet, ReadResult};
use crate::server::Volume;
use crate::trace::{APPEND_REPEATED, DEAD_ENTRY, LOG_FULL, NO_LEASE};
use crate::types::{Contents, EntryId, Extent, Serial, Write};
use crate::view::View;

/// Most entries of an answer to `TraverseMeta`.
const METAS_MAX: usize = 512;

impl Volume {
    /// Entries of earlier epochs that were not adopted with a copy here are dead for good (rule 25).
    pub(crate) fn adopt(&mut self, ctx: &mut Ctx, view: &View) {
        let here = view.adopted.iter().filter(|a| a.copies.contains(&ctx.me));
        let adopted: BTreeSet<EntryId> = here.map(|a| a.id).collect();
        let dead: Vec<EntryId> =
            self.log.traverse(Serial(0)).map(|m| m.id).filter(|id| !adopted.contains(id)).collect();
        let mut changes = Vec::new();
        for id in dead {
            ctx.fx.trace(DEAD_ENTRY, ctx.volume.0.into(), id.serial.0);
            self.log.forget(id, &mut changes);
        }
        changes.into_iter().for_each(|c| ctx.journal.later(c));
        self.log.begin();
    }

    pub(crate) fn on_packet(&mut self, ctx: &mut Ctx, packet: Packet, depth: u32) {
        let Some(view) = &self.view else { return };
        let (from, client) = (packet.from, view.client);
        let member = view.member(from).is_some();
        match packet.body {
            Body::Append { serial, write, .. } if from == client => self.append(ctx, from, serial, &write),
            Body::Void { serial } if from == client => {
                let (id, mut changes) = (EntryId { serial, generation: ctx.epoch }, Vec::new());
                self.log.void(id, &mut changes);
                ctx.force(changes, from, Body::Voided { serial });
            }
            Body::ReadLog { request, id, part, .. } if from == client || member => {
                self.read_log(ctx, from, request, id, part);
            }
            Body::Traverse { round, from: first, to } if member => {
                let here = self.log.traverse(first).take_while(|m| m.id.serial <= to);
                let metas = here.filter(|m| m.id.generation == ctx.epoch).take(METAS_MAX).copied().collect();
                let bytes = if self.log.is_full() { u64::MAX } else { self.log.bytes() };
                ctx.send(from, Body::Traversed { round, metas, bytes });
            }
            Body::Invalidate { round, entries, head } if from == view.merger => {
                let mut changes = Vec::new();
                entries.iter().for_each(|id| self.log.invalidate(*id, &mut changes));
                self.log.trim(head, &mut changes);
                ctx.force(changes, from, Body::Invalidated { round });
            }
            Body::ReadStore { request, part, .. } if from == client => {
                if !ctx.leased {
                    ctx.trace(NO_LEASE, 0, 0);
                }
                self.on_segment(part.first, |s| s.on_read(ctx, from, request, part));
            }
            Body::ReadOverlay { request, segment, range } if from == client => {
                if let Some(s) = self.segments.get_mut(&segment) {
                    s.on_read_overlay(ctx, from, request, range);
                }
            }
            Body::Write { sequence, floor, write, .. } if from == client => {
                self.on_segment(write.extent.first, |s| s.on_write(ctx, from, sequence, floor, write));
            }
            body => self.on_peer(ctx, from, body, depth),
        }
    }
    fn on_segment(&mut self, sector: u64, what: impl FnOnce(&mut crate::segment::Segment)) {
        let segment = self.striping.segment_of(sector);
        if let Some(s) = self.segments.get_mut(&segment) {
            what(s);
        }
    }
    fn on_peer(&mut self, ctx: &mut Ctx, from: NodeId, body: Body, depth: u32) {
        let segment = match &body {
            Body::Replicate { segment, .. } | Body::Replicated { segment, .. } | Body::Merge { segment, .. } => {
                *segment
            }
            _ => u32::MAX,
        };
        match (body, self.segments.get_mut(&segment), &mut self.merger) {
            (Body::Replicate { number, batch, joins, .. }, Some(s), _) => {
                s.on_replicate(ctx, from, number, batch, joins)
            }
            (Body::Replicated { number, .. }, Some(s), _) => s.on_replicated(ctx, from, number),
            (Body::Merge { entries, .. }, Some(s), _) => s.on_merge(ctx, from, entries),
            (Body::Status { closed, .. }, _, Some(m)) => {
                m.on_status(ctx, from, closed);
                m.go_on(ctx, depth);
            }
            (Body::Traversed { round, metas, bytes }, _, Some(m)) => {
                m.on_traversed(from, round, metas, bytes);
                m.go_on(ctx, depth);
            }
            (Body::ReadReply { request, result }, _, Some(m)) => {
                m.on_read(request, result);
                m.go_on(ctx, depth);
            }
            (Body::Merged { segment, merged }, _, Some(m)) => {
                m.on_merged(ctx, segment, merged);
                m.go_on(ctx, depth);
            }
            (Body::Invalidated { round }, _, Some(m)) => m.on_invalidated(from, round),
            _ => {}
        }
    }

    fn append(&mut self, ctx: &mut Ctx, from: NodeId, serial: Serial, write: &Write) {
        let Some(view) = &self.view else { return };
        let mine = view.pair(serial).any(|n| n == ctx.me) && serial >= view.next;
        let sized = match &write.contents {
            Contents::Data(p) => p.sectors() == write.extent.count,
            Contents::Zeroes | Contents::Discarded => true,
        };
        let sound = self.striping.is_piece(write.extent) && write.extent.count <= MESSAGE_MAX / SECTOR;
        if !mine || !sized || !sound {
            return;
        }
        let (id, mut changes) = (EntryId { serial, generation: ctx.epoch }, Vec::new());
        if ctx.room < u64::from(write.contents.stored() * SECTOR) {
            ctx.trace_serial(LOG_FULL, serial);
            return ctx.send(from, Body::AppendFull { serial });
        }
        match self.log.append(id, write, &mut changes) {
            Ok(new) => {
                if !new {
                    ctx.trace_serial(APPEND_REPEATED, serial);
                }
                if mutant!("cloud.append.acknowledged-early") {
                    ctx.send(from, Body::Appended { serial });
                }
                // The answer to a repetition follows the first one's write, too.
                ctx.force(changes, from, Body::Appended { serial });
            }
            Err(AppendError::Full { .. }) => {
                ctx.trace_serial(LOG_FULL, serial);
                ctx.send(from, Body::AppendFull { serial });
            }
            Err(AppendError::Void { .. } | AppendError::Outdated { .. }) => {}
        }
    }
    fn read_log(&mut self, ctx: &mut Ctx, from: NodeId, request: u64, id: EntryId, part: Extent) {
        if !ctx.leased || part.count == 0 {
            ctx.trace(NO_LEASE, 0, 0);
            return;
        }
        let result = match self.log.read(id, part) {
            Ok(contents) => ReadResult::Data(contents),
            Err(ReadError::Outdated { .. }) => ReadResult::Outdated,
            Err(ReadError::Incomplete { .. }) => ReadResult::Incomplete,
        };
        ctx.send(from, Body::ReadReply { request, result });
    }
}
