//! Reads: of clients, of the bases of partial writes, for other members; and the healing of corrupt blocks.

use rackweave_core::msg::{
    Block, BlockRange, Body, Class, FENCE_ALL, IoError, IoReply, IoRequest, Packet, Peer, SectorRange, ViewState,
    message_of, try_of,
};
use rackweave_core::volume::Extent;
use rackweave_core::{
    BLOCK, BlockAddr, Effects, MESSAGE_MAX, Payload, SECTOR, SECTORS_PER_BLOCK, Time, Timestamp, VolumeId,
};

use crate::config::{EXTENTS_MAX, HEAL_ATTEMPTS, LOST_WAIT};
use crate::op::{Gather, Job, Load, Part, Purpose, Requester, number, slot_of};
use crate::replica::{Cx, Replica};
use crate::store::{ReadStart, Store, StoreError};
use crate::timers::{Ref, Timer, Wait};
use crate::trace;

const PER_BLOCK: u64 = SECTORS_PER_BLOCK as u64;

/// First and last block of a sector range; `None` if it is outside the rules of a message.
pub(crate) fn blocks_of(r: SectorRange) -> Option<(u32, u32)> {
    if r.count == 0 || r.count > MESSAGE_MAX / SECTOR {
        return None;
    }
    let last = r.first.checked_add(u64::from(r.count))? - 1;
    // The last number is not a block: ranges end before it.
    let last = u32::try_from(last / PER_BLOCK).ok().filter(|&b| b < u32::MAX)?;
    Some(((r.first / PER_BLOCK) as u32, last))
}

/// The requested sectors out of whole blocks.
fn cut(blocks: Payload, range: SectorRange) -> Payload {
    match blocks.sectors() == range.count {
        true => blocks,
        false => blocks.slice((range.first % PER_BLOCK) as u32, range.count),
    }
}

impl Replica {
    /// The first block of `first..=last` that is not Valid.
    pub(crate) fn not_valid(&self, volume: VolumeId, first: u32, last: u32) -> Option<BlockAddr> {
        if self.active.is_empty() {
            return None;
        }
        (first..=last)
            .map(|b| BlockAddr::new(volume, b))
            .find(|&a| self.active.slot(a).is_some() || self.active.range_over(a).is_some())
    }

    pub(crate) fn client_read<S: Store>(&mut self, cx: &mut Cx<'_, S>, job: Job) {
        let IoRequest::Read { range, .. } = job.io else { return };
        let Some((first, last)) = blocks_of(range) else {
            return self.reply(cx, job.asker, IoReply::Failed(IoError::Malformed));
        };
        if let Some(a) = self.not_valid(range.volume, first, last).filter(|_| !mutant!("replica.read.unvalidated")) {
            cx.fx.trace(trace::READ_STALLED, a.pack(), job.asker.request);
            if job.asker.original != self.cfg.vssd {
                cx.fx.trace(trace::REDIRECT_DURING_INVALIDATION, a.pack(), 0);
            }
            return self.stall_on(cx, job, a);
        }
        self.stats.reads += 1;
        if first == last {
            // Most reads: no list of parts.
            let gather = self.gathers.vacant_key() as u32;
            let a = BlockAddr::new(range.volume, first);
            match self.load(cx, a, Purpose::Gather { gather, index: 0 }) {
                Some((data, _)) => self.reply(cx, job.asker, IoReply::Data(cut(data, range))),
                None => {
                    self.gathers.insert(Gather { job, parts: vec![None], missing: 1 });
                }
            }
            return;
        }
        self.gather(cx, job, range.volume, first..last + 1);
    }

    /// Whether the request is a further try of a read that is under way here, whose answer its client accepts. It does
    /// not get an answer of its own: the pending read may see an older state than this try
    /// ([`rackweave_core::msg::message_of`]).
    pub fn is_reading(&mut self, p: &Packet) -> bool {
        let (Body::Block(Block::Io(wanted @ IoRequest::Read { .. })), true) = (&p.body, try_of(p.header.request) > 0)
        else {
            return false;
        };
        let message = message_of(p.header.request);
        let same = |g: &Gather| {
            let asker = &g.job.asker;
            g.job.io == *wanted && asker.node == p.src && message_of(asker.request) == message
        };
        let found = self.gathers.iter().any(|(_, g)| same(g));
        self.stats.duplicates += u64::from(found);
        found
    }

    /// Reads blocks of a request; goes on in [`Replica::gathered`], at once if the store has them all at hand.
    pub(crate) fn gather<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        job: Job,
        volume: VolumeId,
        blocks: impl ExactSizeIterator<Item = u32> + Clone,
    ) {
        let n = blocks.len();
        let mut parts: Vec<Option<Part>> = Vec::with_capacity(n);
        let gather = self.gathers.vacant_key() as u32;
        let mut missing = 0;
        for (index, block) in blocks.enumerate() {
            let a = BlockAddr::new(volume, block);
            let ready = self.load(cx, a, Purpose::Gather { gather, index });
            missing += usize::from(ready.is_none());
            parts.push(ready.map(|(data, version)| Part { block, version, data }));
        }
        let g = Gather { job, parts, missing };
        if missing == 0 {
            self.gathered(cx, g);
        } else {
            self.gathers.insert(g);
        }
    }

    fn gathered<S: Store>(&mut self, cx: &mut Cx<'_, S>, g: Gather) {
        let Gather { mut job, parts, .. } = g;
        let IoRequest::Read { range, snapshot } = job.io else {
            // The other end's part stays; if each were read alone in turn, both would never be present together.
            job.parts.retain(|p| parts.iter().flatten().all(|new| new.block != p.block));
            job.parts.extend(parts.into_iter().flatten());
            return self.dispatch(cx, job);
        };
        // Its blocks may have gone while they were read.
        if (self.is_deleted(range.volume) || self.is_removed(snapshot)) && !mutant!("replica.read.deleted-meanwhile") {
            return self.reply(cx, job.asker, IoReply::Failed(IoError::Fenced { attach: FENCE_ALL }));
        }
        let whole = match parts.as_slice() {
            [Some(one)] => one.data.clone(),
            _ => {
                let all: Vec<Payload> = parts.into_iter().flatten().map(|p| p.data).collect();
                Payload::concat(&all)
            }
        };
        self.reply(cx, job.asker, IoReply::Data(cut(whole, range)));
    }

    /// Begins to read a block; returns contents that the store has at hand, otherwise [`Replica::loaded`] follows.
    pub(crate) fn load<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        a: BlockAddr,
        purpose: Purpose,
    ) -> Option<(Payload, Timestamp)> {
        let slot = self.loads.vacant_key() as u32;
        let id = self.id();
        match cx.store.read(a, number(slot, id)) {
            ReadStart::Ready(data, version) => Some((data, version)),
            ReadStart::Pending => {
                let version = cx.store.version(a);
                self.loads.insert(Load { id, addr: a, version, purpose, attempts: 0, lost: 0, unreadable: false });
                None
            }
        }
    }

    /// Reads a block only to check it: if it fails its checksum it is healed, as for a client's read.
    pub fn scrub<S: Store>(&mut self, now: Time, a: BlockAddr, store: &mut S, fx: &mut Effects) {
        let mut cx = Cx { now, store, fx };
        if !self.serving(now) || self.not_valid(a.volume, a.block, a.block).is_some() {
            return;
        }
        self.stats.scrubbed += 1;
        if let Some((data, version)) = self.load(&mut cx, a, Purpose::Scrub) {
            // Contents at hand are in the cache, and will be written to flash anew.
            self.scrub_read(&mut cx, a, version, &data);
        }
    }

    pub(crate) fn read_done<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        token: u64,
        version: Timestamp,
        result: Result<Payload, StoreError>,
    ) {
        let (slot, id) = slot_of(token);
        if self.loads.get(slot as usize).is_none_or(|l| l.id != id) {
            return;
        }
        match result {
            Ok(data) => {
                let l = self.loads.remove(slot as usize);
                self.loaded(cx, l, Ok((data, version)));
            }
            Err(why @ (StoreError::Corrupt | StoreError::Unreadable)) => {
                let recovers = self.state != rackweave_core::msg::ViewState::Normal;
                let l = &mut self.loads[slot as usize];
                l.unreadable = why == StoreError::Unreadable;
                if !l.unreadable {
                    cx.fx.trace(trace::CRC_MISMATCH, l.addr.pack(), 0);
                }
                match l.purpose {
                    // A member that heals or recovers queries the others itself. A further query from here would make
                    // two members that both lack the block query each other without end.
                    Purpose::Source { to, request } if request != crate::fill::REQUEST || recovers => {
                        let l = self.loads.remove(slot as usize);
                        self.send_lost(cx, to, request, l.addr, l.version);
                    }
                    Purpose::Fix => {
                        let l = self.loads.remove(slot as usize);
                        self.fix_lost(cx, self.me, l.addr);
                    }
                    _ => self.heal(cx, slot),
                }
            }
            Err(StoreError::Device) => {
                // It fails as a whole, which is reported to clients once the metadata service knows.
                let l = self.loads.remove(slot as usize);
                self.loaded(cx, l, Err(IoError::NotServing));
            }
        }
    }

    /// Requests an intact copy from the next member.
    pub(crate) fn heal<S: Store>(&mut self, cx: &mut Cx<'_, S>, slot: u32) {
        let l = &mut self.loads[slot as usize];
        let attempt = usize::from(l.attempts);
        l.attempts += 1;
        let (addr, id, attempts, lost, unreadable) = (l.addr, l.id, l.attempts, l.lost, l.unreadable);
        let others = self.healers();
        let nobody = others.iter().all(|k| lost & 1 << k != 0 || (lost != 0 && mutant!("replica.heal.first-refusal")));
        if nobody || attempts > HEAL_ATTEMPTS || mutant!("replica.heal.never") {
            let l = self.loads.remove(slot as usize);
            let alone = others.is_empty() && !self.enough_copies() && cx.now.since(self.installed_at) < LOST_WAIT;
            match l.purpose {
                Purpose::Source { .. } if alone => return,
                Purpose::Source { to, request } if nobody => return self.send_lost(cx, to, request, l.addr, l.version),
                _ => {}
            }
            // A lone member knows that others have the block, and that they return or are given up. Silence proves
            // nothing (protocol rule 29): a silent member answers a repeated request, or leaves the view when its lease
            // ends.
            let reads = matches!(l.purpose, Purpose::Gather { .. });
            // Nor does a failed read of the host's file.
            let silent = !nobody && !mutant!("replica.heal.silence-is-loss");
            let waits = silent || others.is_empty() && (unreadable || reads && !self.enough_copies());
            return self.loaded(cx, l, Err(if waits { IoError::NotServing } else { IoError::Corrupt }));
        }
        self.send(cx, others[attempt % others.len()], number(slot, id), Peer::BlockFetch { addr });
        self.timers.set(cx.now, Wait::Retransmit(1), Timer::Heal(Ref { slot, id }));
    }

    /// A member that got the request has no intact copy.
    pub(crate) fn lost_there<S: Store>(&mut self, cx: &mut Cx<'_, S>, from: usize, request: u64, a: BlockAddr) {
        let (slot, id) = slot_of(request);
        let others = self.healers();
        let Some(l) = self.loads.get_mut(slot as usize).filter(|l| l.id == id && l.addr == a) else { return };
        l.lost |= 1 << from;
        if others.get(usize::from(l.attempts.saturating_sub(1)) % others.len().max(1)) == Some(&from) {
            self.heal(cx, slot);
        }
    }

    /// Members that may have an intact copy.
    fn healers(&self) -> Vec<usize> {
        Self::bits(self.others()).filter(|&k| self.members[k].role == rackweave_core::msg::Role::Member).collect()
    }

    /// A copy arrived. The other member's block is Valid there. If it is still Valid here, at the version with which
    /// the read began, and the copy has that version, both hold the same contents. The same holds if a fill stamped
    /// either anew. A member with another version does not have this one.
    pub(crate) fn healed<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        request: u64,
        a: BlockAddr,
        version: Timestamp,
        data: Option<Payload>,
    ) {
        let (slot, id) = slot_of(request);
        let Some(l) = self.loads.get(slot as usize).filter(|l| l.id == id && l.addr == a) else { return };
        // A replay reads a block that is not Valid here yet; if it is Valid there, its contents are the same.
        let replays = matches!(l.purpose, Purpose::Replay { .. }) && !mutant!("replica.heal.no-replay");
        let unsettled = self.not_valid(a.volume, a.block, a.block).is_some() && !replays;
        if (unsettled || cx.store.version(a) != l.version) && !mutant!("replica.heal.overtaken") {
            // Overtaken: read again in its present state, under another number, since answers about the earlier state
            // may still arrive. A client's read waits until the newer write is Valid.
            let l = self.loads.remove(slot as usize);
            if let Purpose::Gather { gather, .. } = l.purpose
                && unsettled
                && !mutant!("replica.heal.overtaken-unvalidated")
            {
                return self.restart_gather(gather);
            }
            let id = self.id();
            match cx.store.read(a, number(slot, id)) {
                ReadStart::Ready(data, version) => self.loaded(cx, l, Ok((data, version))),
                ReadStart::Pending => {
                    let version = cx.store.version(a);
                    let again = self.loads.insert(Load { id, version, attempts: 0, lost: 0, unreadable: false, ..l });
                    debug_assert_eq!(again, slot as usize);
                }
            }
            return;
        }
        let stamped = |v: Timestamp| v.version() <= crate::compare::FILL_VERSION_MAX;
        let mut same = mutant!("replica.heal.any-version")
            || version == l.version
            || data.is_some() && (stamped(version) || stamped(l.version));
        if let Purpose::Agree { crc } = l.purpose {
            same &= data.as_ref().is_some_and(|d| crate::compare::contents_sum(d) == crc);
        }
        if !same {
            return self.lost_there(cx, from, request, a);
        }
        let l = self.loads.remove(slot as usize);
        let data = data.unwrap_or_else(|| Payload::zero(BLOCK));
        if self.available(cx).0 > 0 {
            cx.store.put(a, l.version, data.clone());
            self.stats.healed += 1;
            cx.fx.trace(trace::BLOCK_HEALED, a.pack(), 0);
        }
        let version = l.version;
        self.loaded(cx, l, Ok((data, version)));
    }

    /// A read is over.
    fn loaded<S: Store>(&mut self, cx: &mut Cx<'_, S>, l: Load, result: Result<(Payload, Timestamp), IoError>) {
        match l.purpose {
            Purpose::Gather { gather, index } => self.gather_part(cx, gather, index, &l, result),
            Purpose::Retry { op, index } => match result {
                Ok((data, version)) => self.retry_merge(cx, op, index, data, version),
                Err(e) => self.retry_failed(cx, op, e),
            },
            Purpose::Replay { entry } => {
                if let Ok((data, version)) = result {
                    self.replay_with(cx, l.addr, entry, data, version);
                }
            }
            Purpose::Source { to, request } => {
                if let Ok((data, version)) = result {
                    self.send_block(cx, to, request, l.addr, data, version);
                }
            }
            Purpose::Fix => match result {
                Ok((data, version)) => self.fix_with(cx, self.me, l.addr, version, data),
                Err(_) => self.fix_failed(l.addr),
            },
            Purpose::Scrub => {
                self.stats.scrub_lost += u64::from(matches!(result, Err(IoError::Corrupt)));
                let valid = self.not_valid(l.addr.volume, l.addr.block, l.addr.block).is_none();
                if let Ok((data, version)) = result
                    && valid
                {
                    self.scrub_read(cx, l.addr, version, &data);
                }
            }
            Purpose::Sum { to, request } => self.sum_read(cx, l.addr, (to, request), result.ok()),
            Purpose::Agree { .. } => {}
        }
    }

    fn gather_part<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        gather: u32,
        index: usize,
        l: &Load,
        result: Result<(Payload, Timestamp), IoError>,
    ) {
        let Some(g) = self.gathers.get_mut(gather as usize) else { return };
        let unsure = match result {
            Err(e) => {
                let g = self.gathers.remove(gather as usize);
                self.drop_loads(gather);
                return self.reply(cx, g.job.asker, IoReply::Failed(e));
            }
            Ok((data, version)) => {
                g.parts[index] = Some(Part { block: l.addr.block, version, data });
                g.missing -= 1;
                version != l.version
            }
        };
        if unsure
            && !mutant!("replica.read.newer-unvalidated")
            && self.not_valid(l.addr.volume, l.addr.block, l.addr.block).is_some()
        {
            // The store answered with a newer version, which is not Valid yet.
            return self.restart_gather(gather);
        }
        if self.gathers[gather as usize].missing == 0 {
            let g = self.gathers.remove(gather as usize);
            self.gathered(cx, g);
        }
    }

    /// Restarts the request, which then waits for its blocks to be Valid.
    fn restart_gather(&mut self, gather: u32) {
        if let Some(g) = self.gathers.try_remove(gather as usize) {
            self.drop_loads(gather);
            self.rerun(g.job);
        }
    }

    fn drop_loads(&mut self, of: u32) {
        self.loads.retain(|_, l| !matches!(l.purpose, Purpose::Gather { gather, .. } if gather == of));
    }

    // For other members.

    pub(crate) fn block_requested<S: Store>(&mut self, cx: &mut Cx<'_, S>, from: usize, request: u64, a: BlockAddr) {
        if (self.role != Some(rackweave_core::msg::Role::Member) && !mutant!("replica.copy.of-shadow"))
            || self.not_valid(a.volume, a.block, a.block).is_some()
        {
            return;
        }
        // A shadow gets the answer that the block is absent; a member that compares or heals does not know of the deletion.
        // A leader that does not know of it, either, would repeat its request for ever.
        let leads = matches!(self.state, ViewState::Recovering { .. });
        if self.is_deleted(a.volume) && (leads || request != crate::fill::REQUEST) {
            if leads && !mutant!("replica.recovery.deletion-kept") {
                self.send(cx, from, request, Peer::Fence { volume: a.volume, attach: FENCE_ALL });
            }
            return;
        }
        if let Some((data, version)) = self.load(cx, a, Purpose::Source { to: from, request }) {
            self.send_block(cx, from, request, a, data, version);
        }
    }

    fn send_block<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        to: usize,
        request: u64,
        addr: BlockAddr,
        data: Payload,
        version: Timestamp,
    ) {
        if (self.not_valid(addr.volume, addr.block, addr.block).is_some() && !mutant!("replica.copy.unvalidated"))
            || cx.store.version(addr) != version
        {
            return;
        }
        let data = cx.store.mapped(addr).then_some(data);
        // A filling shadow lets others go first; a healing member has a client waiting.
        let class = if request == crate::fill::REQUEST { Class::Copper } else { Class::Silver };
        self.send_as(class, cx, to, request, Peer::Block { addr, version, data });
    }

    fn send_lost<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        to: usize,
        request: u64,
        addr: BlockAddr,
        version: Timestamp,
    ) {
        if self.not_valid(addr.volume, addr.block, addr.block).is_none() && cx.store.version(addr) == version {
            self.send(cx, to, request, Peer::BlockLost { addr, version });
        }
    }

    pub(crate) fn client_status<S: Store>(&mut self, cx: &mut Cx<'_, S>, asker: Requester, r: BlockRange) {
        if r.count == 0 {
            return self.reply(cx, asker, IoReply::Failed(IoError::Malformed));
        }
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = r.first;
        while at < r.end() && extents.len() < EXTENTS_MAX {
            let rest = BlockRange { volume: r.volume, first: at, count: r.end() - at };
            let (n, mapped) = cx.store.next_extent(rest);
            let n = n.clamp(1, rest.count);
            at += n;
            let len = u64::from(n) * u64::from(BLOCK);
            match extents.last_mut() {
                Some(e) if e.mapped == mapped => e.len += len,
                _ => extents.push(Extent { len, mapped }),
            }
        }
        self.reply(cx, asker, IoReply::Extents(extents.into()));
    }
}
