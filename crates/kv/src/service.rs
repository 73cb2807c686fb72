//! A key-value store as a service of a server: one store, with one copy, on a log vSSD of the server's drive.
//!
//! The store's *epoch* is its server's incarnation. A change names it; another epoch is refused with this one. Within an epoch
//! changes are deduplicated ([`changes`](crate::changes)). A change is answered when it is durable. Compaction is collection: it
//! runs while the server's collection monitor, which asks the switch, orders it.

use rackweave_core::msg::control::Standing;
use rackweave_core::msg::kv::KvPut;
use rackweave_core::msg::{Body, Header, Kv, KvError, LiveVolumes, Mutation, Op, Packet, View};
use rackweave_core::{BLOCK, BlockAddr, Epoch, Incarnation, NodeId, SetId, Time, VssdId};
use rackweave_flash::Ssd;
use rackweave_server::bounds::OverBound;
use rackweave_server::report::{StoreStatus, VssdStatus};
use rackweave_server::service::{Admitted, Collect, Context, FlashEvent, Freed, Programs, Room, Service, ServiceLoad};
use rackweave_server::{ServerConfig, VssdConfig};
use slab::Slab;

use crate::changes::{Changes, Outcome, Seen};
use crate::store::{
    Answer, Broken, Durability, Flash, GETS_MAX, GetError, HELD_MAX, OpenError, PutError, Store, StoreConfig,
};
use crate::trace;

/// The only user of its manager.
const USER: u16 = 1;

/// A request of a client.
#[derive(Debug)]
struct Request {
    from: From,
    /// `None`: a get.
    change: Option<Mutation>,
}

/// Who sent a request, and its header.
#[derive(Clone, Copy, Debug)]
struct From {
    client: NodeId,
    header: Header,
}

#[derive(Debug)]
pub struct KvService {
    node: NodeId,
    vssd: VssdId,
    set: SetId,
    store: Option<Store>,
    /// Why the store cannot be opened: it does not serve.
    refused: Option<OpenError>,
    failed: bool,
    requests: Slab<Request>,
    gets_under_way: usize,
    changes: Changes,
    ordered: bool,
    /// Compactions that began without an order.
    unordered: u64,
    /// Free blocks, and whether it compacts, as last reported to the monitor.
    seen: (u32, bool),
    counts: StoreStatus,
}

impl KvService {
    /// A [`MakeService`](rackweave_server::service::MakeService).
    pub fn make(server: &ServerConfig, vssd: &VssdConfig, _: usize) -> Box<dyn Service> {
        Box::new(KvService::new(server.node, vssd))
    }
    fn new(node: NodeId, vssd: &VssdConfig) -> KvService {
        KvService {
            node,
            vssd: vssd.id,
            set: vssd.set,
            store: None,
            refused: None,
            failed: false,
            requests: Slab::new(),
            gets_under_way: 0,
            changes: Changes::default(),
            ordered: false,
            unordered: 0,
            seen: (0, false),
            counts: StoreStatus::default(),
        }
    }
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }
    /// Why the store cannot be opened.
    pub fn refused(&self) -> Option<OpenError> {
        self.refused
    }
    fn serves(&self) -> bool {
        !self.failed && self.store.as_ref().is_some_and(Store::is_open)
    }

    /// Calls the store, lending it its manager.
    fn with<R>(&mut self, cx: &mut Context<'_>, call: impl FnOnce(&mut Store, &mut Flash<'_>) -> R) -> Option<R> {
        let Some(store) = &mut self.store else { return None };
        cx.changed = true;
        let (now, before) = (cx.now, store.compacting());
        let lent = |manager: &mut _, _, out: &mut _| call(store, &mut Flash { now, manager, out });
        let result = cx.ssd.with_log(now, self.vssd, cx.out, lent);
        let begun = !before && self.store.as_ref().is_some_and(Store::compacting);
        self.unordered += u64::from(begun && !self.ordered);
        result
    }
    fn open(&mut self, cx: &mut Context<'_>) {
        if self.store.is_some() || self.refused.is_some() || self.failed {
            return;
        }
        let now = cx.now;
        let opened = cx.ssd.with_log(now, self.vssd, cx.out, |manager, inner, out| {
            let broken = mutant!("kv.store.loses-tombstones").then_some(Broken::LoseTombstones);
            let cfg = StoreConfig { on_request: true, broken, ..StoreConfig::new(inner, USER) };
            Store::open(cfg, &mut Flash { now, manager, out })
        });
        match opened {
            Some(Ok(store)) => self.store = Some(store),
            Some(Err(e)) => self.refused = Some(e),
            None => {}
        }
        cx.changed = true;
    }

    fn get(&mut self, cx: &mut Context<'_>, from: From, key: &[u8]) {
        self.counts.gets += 1;
        if self.gets_under_way >= GETS_MAX {
            return self.answer(cx, from, Kv::Got(Err(KvError::NotServing)));
        }
        let token = self.requests.insert(Request { from, change: None });
        self.gets_under_way += 1;
        let begun = self.with(cx, |store, fx| store.get(fx, key, token as u64));
        let error = match begun {
            Some(Ok(())) => return,
            Some(Err(e)) => get_error(e),
            None => KvError::NotServing,
        };
        self.requests.remove(token);
        self.gets_under_way -= 1;
        self.answer(cx, from, Kv::Got(Err(error)));
    }
    /// A put, or a delete (`value` is none).
    fn change(
        &mut self,
        cx: &mut Context<'_>,
        from: From,
        (key, value): (&[u8], Option<bytes::Bytes>),
        mutation: Mutation,
    ) {
        if from.header.epoch != epoch(cx.incarnation) && !mutant!("kv.epoch.any") {
            cx.fx.trace(trace::KV_EPOCH_REFUSED, u64::from(self.vssd.0), u64::from(from.header.epoch.0));
            return self.answer(cx, from, Kv::Changed(Err(KvError::Epoch)));
        }
        match self.changes.see(mutation) {
            Seen::New => {}
            _ if mutant!("kv.dedup.drop") => {}
            Seen::Silent => return,
            Seen::Answered(outcome) => {
                cx.fx.trace(trace::KV_ANSWERED_AGAIN, u64::from(self.vssd.0), mutation.sequence);
                return self.answer(cx, from, Kv::Changed(outcome));
            }
            Seen::TooMany => return self.answer(cx, from, Kv::Changed(Err(KvError::NotServing))),
        }
        self.counts.puts += u64::from(value.is_some());
        self.counts.deletes += u64::from(value.is_none());
        let token = self.requests.insert(Request { from, change: Some(mutation) });
        let durability = if mutant!("kv.answer.before-durable") { Durability::Buffered } else { Durability::Forced };
        let begun = self.with(cx, |store, fx| match value {
            Some(value) => store.put(fx, key, value, durability, token as u64),
            None => store.delete(fx, key, durability, token as u64),
        });
        let error = match begun {
            Some(Ok(())) => return,
            Some(Err(e)) => put_error(e),
            None => KvError::NotServing,
        };
        self.requests.remove(token);
        self.changes.forget(mutation);
        self.answer(cx, from, Kv::Changed(Err(error)));
    }

    fn answer(&self, cx: &mut Context<'_>, to: From, body: Kv) {
        let (epoch, incarnation) = (epoch(cx.incarnation), cx.incarnation);
        let header = Header { op: Op::Reply, vssd: self.vssd, epoch, incarnation, ..to.header };
        cx.fx.send(Packet { src: self.node, dst: to.client, header, body: Body::Kv(body) });
    }

    fn take_answers(&mut self, cx: &mut Context<'_>) {
        let answers: Vec<Answer> = self.store.iter_mut().flat_map(Store::answers).collect();
        for a in answers {
            match a {
                Answer::Opened { result: Ok(()) } => cx.fx.trace(trace::KV_OPENED, u64::from(self.vssd.0), 0),
                Answer::Opened { result: Err(e) } => {
                    self.refused = Some(e);
                    self.store = None;
                    return;
                }
                Answer::Put { token, result } => self.changed(cx, token, result.map(|()| true)),
                Answer::Deleted { token, result } => self.changed(cx, token, result),
                Answer::Got { token, result } => {
                    self.gets_under_way -= 1;
                    if let Some(Request { from, .. }) = self.requests.try_remove(token as usize) {
                        self.answer(cx, from, Kv::Got(result.map_err(get_error)));
                    }
                }
                Answer::Scanned { .. } => {}
            }
        }
    }
    fn changed(&mut self, cx: &mut Context<'_>, token: u64, result: Result<bool, PutError>) {
        let Some(Request { from, change }) = self.requests.try_remove(token as usize) else { return };
        if let Err(PutError::Full { .. }) = result {
            self.counts.refused += 1;
            cx.fx.trace(trace::KV_FULL, u64::from(self.vssd.0), 0);
        }
        let outcome: Outcome = result.map_err(put_error);
        change.into_iter().for_each(|m| self.changes.answered(m, outcome));
        self.answer(cx, from, Kv::Changed(outcome));
    }
}

/// The epoch of the store of a server with this incarnation, which is a counter.
fn epoch(of: Incarnation) -> Epoch {
    Epoch(of.0 as u32)
}

fn put_error(e: PutError) -> KvError {
    match e {
        PutError::NotOpen | PutError::Busy { .. } => KvError::NotServing,
        PutError::KeyLength { len, .. } => KvError::KeyLength { len: len as u32 },
        PutError::ValueTooLong { len, max } => KvError::ValueTooLong { len: len as u32, max: max as u32 },
        // No client sends batches.
        PutError::Full { .. } | PutError::BatchTooLong { .. } => KvError::Full,
        PutError::Failed(_) => KvError::Device,
    }
}
fn get_error(e: GetError) -> KvError {
    match e {
        GetError::NotOpen | GetError::Busy { .. } | GetError::ScanLimit { .. } => KvError::NotServing,
        GetError::KeyLength { len, .. } => KvError::KeyLength { len: len as u32 },
        GetError::Read(e) if e.is_loss() => KvError::Corrupt,
        GetError::Read(_) => KvError::Device,
        GetError::Corrupt { .. } => KvError::Corrupt,
    }
}

impl Service for KvService {
    fn load(&self) -> ServiceLoad {
        let writes_waiting = self.requests.len() - self.gets_under_way;
        ServiceLoad { reads_begun: self.gets_under_way, writes_waiting, ..ServiceLoad::default() }
    }
    fn free_ratio(&self, _: &Ssd) -> f64 {
        self.store.as_ref().filter(|s| s.is_open()).map_or(1.0, Store::free_ratio)
    }
    fn collect(&mut self, cx: &mut Context<'_>, order: Collect) {
        self.ordered = order == Collect::Start;
        let may = self.ordered;
        self.with(cx, |store, fx| store.set_compacting(fx, may));
    }
    fn collecting(&self, _: &Ssd) -> bool {
        self.store.as_ref().is_some_and(Store::compacting)
    }
    /// The manager erases blocks in the background, whoever freed them.
    fn erasing(&self, _: &Ssd) -> bool {
        false
    }
    fn room(&self, ssd: &Ssd) -> Room {
        let (manager, inner) = ssd.log(self.vssd);
        let bytes = inner.and_then(|v| manager.block_bytes(v).ok()).unwrap_or_default();
        let Some(space) = self.store.as_ref().map(Store::space) else { return Room::default() };
        let unit = u64::from(BLOCK);
        Room { capacity: u64::from(space.blocks) * bytes / unit, used: space.live.div_ceil(unit) }
    }
    fn standing(&self) -> Standing {
        Standing { epoch: Epoch(0), complete: self.serves(), failed: self.failed }
    }
    fn status(&self, _: Time, ssd: &Ssd, status: &mut VssdStatus) {
        status.serving = self.serves();
        let mut s = self.counts;
        if let Some(store) = &self.store {
            let (space, stats) = (store.space(), store.stats());
            let (manager, inner) = ssd.log(self.vssd);
            (s.blocks, s.blocks_free, s.live_bytes) = (space.blocks, space.free, space.live);
            s.block_bytes = inner.and_then(|v| manager.block_bytes(v).ok()).unwrap_or_default();
            (s.keys, s.compactions, s.written_bytes) = (store.len() as u64, stats.compactions, stats.written_bytes);
            s.erases = ssd.log_stats(self.vssd).erases;
            (s.write_amplification, s.free_ratio) = (stats.waf(), self.free_ratio(ssd));
        }
        status.store = Some(s);
    }
    fn check(&self, _: &Ssd) -> Result<(), OverBound> {
        let (vssd, waiting, max) = (self.vssd, self.requests.len(), GETS_MAX + 2 * HELD_MAX);
        if waiting > max {
            return Err(OverBound::Queue { vssd, waiting, max });
        }
        if self.unordered > 0 {
            return Err(OverBound::Unordered { vssd, collections: self.unordered });
        }
        Ok(())
    }
    fn wants_volumes(&self) -> bool {
        false
    }
    fn scrub_ready(&self) -> bool {
        true
    }

    fn handle_packet(&mut self, cx: &mut Context<'_>, p: Packet) -> Admitted {
        let from = From { client: p.src, header: p.header };
        let Body::Kv(request) = p.body else { return Admitted::Taken };
        let refusal = match (self.failed, self.serves() && cx.registered) {
            (true, _) => Some(KvError::Device),
            (false, false) => Some(KvError::NotServing),
            (false, true) => None,
        };
        match (request, refusal) {
            (Kv::Get { .. }, Some(e)) => self.answer(cx, from, Kv::Got(Err(e))),
            (Kv::Put(_) | Kv::Delete(_), Some(e)) => self.answer(cx, from, Kv::Changed(Err(e))),
            (Kv::Get { key }, None) => self.get(cx, from, &key),
            (Kv::Put(put), None) => {
                let KvPut { key, mutation, value } = *put;
                self.change(cx, from, (&key, Some(value)), mutation);
            }
            (Kv::Delete(d), None) => self.change(cx, from, (&d.key, None), d.mutation),
            // Answers are for clients.
            (Kv::Got(_) | Kv::Changed(_), _) => {}
        }
        Admitted::Taken
    }
    fn handle_flash(&mut self, cx: &mut Context<'_>, event: FlashEvent) {
        if let FlashEvent::Log(done) = event {
            self.with(cx, |store, fx| store.handle(fx, done));
        }
        cx.changed = true;
    }
    fn handle_freed(&mut self, _: Freed) {}
    fn handle_timer(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        cx.ssd.with_log(now, self.vssd, cx.out, |manager, _, out| manager.tick(now, out));
        cx.changed = true;
    }
    fn install_view(&mut self, _: &mut Context<'_>, _: &View, _: Incarnation) {}
    fn set_lease(&mut self, _: Time) {}
    fn learn_volumes(&mut self, _: &mut Context<'_>, _: &LiveVolumes) {}
    fn scrub(&mut self, _: &mut Context<'_>, _: BlockAddr) {}
    fn end_scrub(&mut self, _: &mut Context<'_>) {}
    fn fail(&mut self) {
        self.failed = true;
    }
    fn failure_known(&mut self) {}
    fn vacate(&mut self, _: &ServerConfig, free: &VssdConfig) {
        (self.vssd, self.set) = (free.id, free.set);
    }

    fn poll_programs(&mut self, cx: &mut Context<'_>) -> Programs {
        self.open(cx);
        if self.store.as_ref().is_some_and(Store::wants_poll) {
            self.with(cx, |store, fx| store.poll(fx));
            // One poll is enough: what still waits, waits for an answer of the drive.
            cx.changed = false;
        }
        let Some(store) = self.store.as_ref().filter(|s| s.is_open()) else { return Programs::default() };
        let seen = (store.space().free, store.compacting());
        let allocated = std::mem::replace(&mut self.seen, seen) != seen;
        Programs {
            allocated,
            waits_for_block: store.waits_for_space() && !self.ordered,
            no_victim: store.nothing_to_compact(),
        }
    }
    fn poll_answers(&mut self, cx: &mut Context<'_>) -> Time {
        self.take_answers(cx);
        cx.ssd.log(self.vssd).0.wake().unwrap_or(Time::MAX)
    }
}
