//! Flushes and FUA (rule 12), fences (rule 14).

use rackweave_core::VolumeId;
use rackweave_core::msg::{FENCE_ALL, FENCE_REMOVED, IoError, IoReply, LiveVolumes, Peer};

use crate::op::{OpKind, Origin, Persist, Requester, number, slot_of};
use crate::replica::{Cx, Replica};
use crate::store::Store;
use crate::trace;

impl Replica {
    pub(crate) fn start_flush<S: Store>(&mut self, cx: &mut Cx<'_, S>, asker: Requester) {
        if self.ops.len() >= crate::config::OPS_MAX {
            return self.refuse(cx, asker);
        }
        self.stats.flushes += 1;
        let id = self.id();
        let kind = OpKind::Flush { missing: self.others() };
        let slot = self.add_op(id, Origin::Client(asker), true, kind);
        self.send_round(cx, slot);
    }

    pub(crate) fn flush_requested<S: Store>(&mut self, cx: &mut Cx<'_, S>, from: usize, of: u64) {
        if mutant!("replica.flush.early") {
            return self.send(cx, from, of, Peer::FlushAck { ok: true });
        }
        let under_way = |p: &Persist| matches!(p, Persist::Flush { to, request } if (*to, *request) == (from, of));
        if !self.persists.iter().any(|(_, p)| under_way(&p.1)) {
            let token = self.persist_token(Persist::Flush { to: from, request: of });
            cx.store.persist(token);
        }
    }

    pub(crate) fn flush_acknowledged<S: Store>(&mut self, cx: &mut Cx<'_, S>, from: usize, request: u64, ok: bool) {
        // A member whose flash failed is removed: the flush goes on in the next view (rule 12).
        let Some(slot) = self.op_of(request).filter(|_| ok || mutant!("replica.flush.ignore-refusal")) else { return };
        if let OpKind::Flush { missing } = &mut self.ops[slot as usize].kind {
            *missing = if mutant!("replica.flush.one-member") { 0 } else { *missing & !(1 << from) };
            self.advance(cx, slot);
        }
    }

    /// Token of the persist that is about to be submitted to the store.
    pub(crate) fn persist_token(&mut self, p: Persist) -> u64 {
        let id = self.id();
        number(self.persists.insert((id, p)) as u32, id)
    }

    /// The store persisted (or failed to, for good).
    pub(crate) fn persisted<S: Store>(&mut self, cx: &mut Cx<'_, S>, token: u64, ok: bool) {
        let (slot, id) = slot_of(token);
        if self.persists.get(slot as usize).is_none_or(|p| p.0 != id) {
            return;
        }
        let (_, p) = self.persists.remove(slot as usize);
        if !ok && !mutant!("replica.persist.ignore-failure") {
            cx.fx.trace(trace::DEVICE_FAILED, u64::from(self.cfg.vssd.0), 0);
            if let Persist::Flush { to, request } = p {
                self.send(cx, to, request, Peer::FlushAck { ok: false });
            }
            return self.fail();
        }
        match p {
            Persist::Inv { to, request, nacks } => self.acknowledge(cx, to, request, nacks),
            Persist::Flush { to, request } => self.send(cx, to, request, Peer::FlushAck { ok: true }),
            Persist::Own { op, round } => {
                let current = self
                    .ops
                    .get_mut(op.slot as usize)
                    .filter(|o| o.id == op.id && (o.round == round || mutant!("replica.persist.old-round")));
                if let Some(o) = current {
                    o.own_pending = false;
                    self.advance(cx, op.slot);
                }
            }
            Persist::Fill => self.fill_persisted(cx),
        }
    }

    /// Volumes from the metadata service: a set that crashed whole has lost its fences. The list includes deletions
    /// that a member missed; the rest of those volumes is dropped.
    pub fn learn_volumes<S: Store>(&mut self, store: &mut S, live: &LiveVolumes) {
        if self.fences.learn(live) {
            store.know_volumes(&self.fences.known());
            self.recovery_without_deleted();
        }
    }
    /// Accepts only this generation of writers and newer ones from now on; the last generation means that the volume is
    /// deleted. False: no room for another volume now.
    pub(crate) fn raise_fence<S: Store>(&mut self, store: &mut S, volume: VolumeId, attach: u32) -> bool {
        let raised = self.fences.raise(volume, attach);
        if raised && attach == FENCE_ALL {
            store.bury(volume);
            self.recovery_without_deleted();
        }
        raised
    }
    /// Whether the volume is deleted, as far as this replica knows.
    pub(crate) fn is_deleted(&self, volume: VolumeId) -> bool {
        self.fences.of(volume) == FENCE_ALL
    }
    /// Whether the snapshot that a read is of was removed: what it shared may have been given back.
    pub(crate) fn is_removed(&self, snapshot: Option<VolumeId>) -> bool {
        snapshot.is_some_and(|s| self.fences.of(s) >= FENCE_REMOVED)
    }
    /// This replica's volumes, for a shadow.
    pub fn volumes(&self) -> LiveVolumes {
        self.fences.known()
    }
    /// Whether to request the list of volumes from the metadata service.
    pub fn wants_volumes(&self) -> bool {
        self.fences.is_outdated()
    }

    pub(crate) fn client_fence<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        asker: Requester,
        volume: VolumeId,
        attach: u32,
    ) {
        let known = self.fences.of(volume);
        if attach < known && !mutant!("replica.fence.attach-older") {
            cx.fx.trace(trace::FENCE_REFUSED, u64::from(volume.0), u64::from(attach));
            return self.reply(cx, asker, IoReply::Failed(IoError::Fenced { attach: known }));
        }
        if self.ops.len() >= crate::config::OPS_MAX || !self.raise_fence(cx.store, volume, attach) {
            return self.refuse(cx, asker);
        }
        let id = self.id();
        let kind = OpKind::Fence { volume, attach, missing: self.others() };
        let slot = self.add_op(id, Origin::Client(asker), false, kind);
        self.send_round(cx, slot);
    }

    /// Acknowledged once no mutation of older writers is pending here; until then the requester repeats it.
    pub(crate) fn fence_requested<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        request: u64,
        volume: VolumeId,
        attach: u32,
    ) {
        if self.raise_fence(cx.store, volume, attach) && self.settled_below(volume, attach) {
            self.send(cx, from, request, Peer::FenceAck { attach });
        }
    }

    pub(crate) fn fence_acknowledged<S: Store>(&mut self, cx: &mut Cx<'_, S>, from: usize, request: u64, of: u32) {
        let Some(slot) = self.op_of(request) else { return };
        if let OpKind::Fence { attach, missing, .. } = &mut self.ops[slot as usize].kind
            && *attach == of
        {
            *missing = if mutant!("replica.fence.one-member") { 0 } else { *missing & !(1 << from) };
            self.advance(cx, slot);
        }
    }
}
