//! The VDisk client: it attaches, cuts requests into pieces of one stripe, and sends each write to a proxy or to the log.
//!
//! A write waits for earlier writes that overlap it, so that two never take two paths at once (rule 26). A read sees what was
//! acknowledged: an entry enters the index when all its copies are durable. A serial that the client gives up is recorded as
//! void on all copies before the write is sent elsewhere. A new epoch says of each append whether it was adopted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rackweave_core::rng::mix64;
use rackweave_core::{Effects, Epoch, Event, Incarnation, Node, NodeId, Payload, SECTOR, Span, Time, VolumeId};

use crate::allocation::{Allocated, Look};
use crate::config::Config;
use crate::index::Index;
use crate::msg::{Body, Packet};
use crate::pieces::{Piece, Reading, Writing};
use crate::stripe::Striping;
use crate::trace::{APPEND_ADOPTED, FENCED};
use crate::types::{Contents, EntryId, Extent, Serial, Write};
use crate::view::View;

/// Most requests of a client under way.
pub const REQUESTS_MAX: usize = 128;
/// Most sectors of a request.
pub const SECTORS_MAX: u32 = (1 << 20) / SECTOR;
/// A client with entries in the log reports what is closed, and its queue depth.
const STATUS_INTERVAL: Span = Span::from_millis(10);

/// Without an answer from proxies for this many times the give-up time of an append, all counts as allocated.
const LOOK_GIVE_UPS: u64 = 4;

/// Where a write goes, decided for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To the proxy of its segment.
    Stable,
    /// To the log.
    Burst,
}

/// A policy that decides so, once for each write, on its submission.
pub trait Router {
    /// `bytes`: the data that it transfers. Discards and write-zeroes transfer none.
    fn route(&mut self, now: Time, extent: Extent, bytes: u32) -> Route;
}

#[derive(Clone, Debug)]
pub enum Op {
    Read {
        extent: Extent,
    },
    /// FUA needs nothing more: every acknowledged write is forced.
    Write {
        first: u64,
        data: Payload,
        fua: bool,
    },
    Zeroes {
        extent: Extent,
    },
    Discard {
        extent: Extent,
    },
    /// What may be allocated of a range of any length.
    Allocation {
        extent: Extent,
    },
    Flush,
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("sectors {first}+{count}: the VDisk has {sectors}, a request 1 to {SECTORS_MAX}")]
    Range { first: u64, count: u32, sectors: u64 },
    #[error("{REQUESTS_MAX} requests are under way; try again when one is finished")]
    Busy,
    #[error("another client has attached the VDisk")]
    Fenced,
}

#[derive(Clone, Debug)]
pub enum Answer {
    Done,
    Data(Payload),
    Allocated(Allocated),
    /// A part of what is read has no sound copy.
    Unreadable,
    /// Another client has attached: a write may have taken effect before, or never will.
    Fenced,
}

/// An answer, with the request's number.
#[derive(Clone, Debug)]
pub struct Done {
    pub at: Time,
    pub request: u64,
    pub answer: Answer,
}

pub(crate) struct Request {
    /// Pieces under way.
    left: usize,
    /// A read's parts, by first sector.
    parts: Option<BTreeMap<u64, Payload>>,
    /// A part of a read has no sound copy.
    pub(crate) unreadable: bool,
}

pub struct VDisk<R> {
    pub(crate) me: NodeId,
    meta: NodeId,
    pub(crate) volume: VolumeId,
    pub(crate) striping: Striping,
    pub(crate) config: Config,
    incarnation: Incarnation,
    router: R,
    pub(crate) view: Option<Arc<View>>,
    fenced: bool,
    pub(crate) index: Index,
    /// The next serial, and sequence of a stable write.
    pub(crate) serial: Serial,
    pub(crate) sequence: u64,
    /// Numbers of requests, pieces and messages.
    pub(crate) counter: u64,
    pub(crate) requests: BTreeMap<u64, Request>,
    pub(crate) pieces: BTreeMap<u64, Piece>,
    pub(crate) looks: BTreeMap<u64, Look>,
    done: Vec<Done>,
    lookup_at: Time,
    /// The latest epoch that a server's refusal named.
    looked_up: Epoch,
    status_at: Time,
    /// The log's head in this epoch, as the merger said last.
    head: Serial,
}

impl<R: Router> VDisk<R> {
    /// `incarnation`: greater than in every earlier run of this client (rule 32).
    pub fn new(
        me: NodeId,
        meta: NodeId,
        volume: VolumeId,
        striping: Striping,
        config: Config,
        incarnation: Incarnation,
        router: R,
    ) -> VDisk<R> {
        VDisk {
            me,
            meta,
            volume,
            striping,
            config,
            incarnation,
            router,
            view: None,
            fenced: false,
            index: Index::new(),
            serial: Serial(0),
            sequence: 0,
            // Late answers to an earlier run must match no request of this one.
            counter: incarnation.0 << 32,
            requests: BTreeMap::new(),
            pieces: BTreeMap::new(),
            looks: BTreeMap::new(),
            done: Vec::new(),
            lookup_at: Time::ZERO,
            looked_up: Epoch(0),
            status_at: Time::ZERO,
            head: Serial(0),
        }
    }
    /// The volume has grown: requests may reach its new end.
    pub fn grow(&mut self, bytes: u64) {
        self.striping = self.striping.grown(bytes);
    }
    /// Takes the answers so far.
    pub fn take_done(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.done)
    }
    pub fn under_way(&self) -> usize {
        self.requests.len() + self.looks.len()
    }
    pub fn is_attached(&self) -> bool {
        self.view.is_some()
    }
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }
    pub fn view(&self) -> Option<&View> {
        self.view.as_deref()
    }
    /// What the pieces of requests wait for.
    pub fn waits(&self) -> String {
        format!("{:?}", self.pieces.values().map(|p| (p.extent, &p.writing, &p.reading)).collect::<Vec<_>>())
    }
    pub fn index(&self) -> &Index {
        &self.index
    }
    pub(crate) fn epoch(&self) -> Epoch {
        self.view.as_ref().map_or(Epoch(0), |v| v.epoch)
    }
    pub(crate) fn depth(&self) -> u32 {
        self.requests.len() as u32
    }
    pub(crate) fn next_number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }
    pub(crate) fn send(&self, fx: &mut Effects<Packet>, to: NodeId, body: Body) {
        fx.send(Packet { from: self.me, to, volume: self.volume, epoch: self.epoch(), body });
    }

    /// Begins a request.
    ///
    /// # Errors
    /// Its range is not the VDisk's, too many are under way, or another client has attached.
    pub fn submit(&mut self, now: Time, fx: &mut Effects<Packet>, op: Op) -> Result<u64, RequestError> {
        if self.fenced {
            return Err(RequestError::Fenced);
        }
        if self.under_way() >= REQUESTS_MAX {
            return Err(RequestError::Busy);
        }
        let (extent, contents) = match op {
            Op::Read { extent } => (extent, None),
            Op::Write { first, data, fua: _ } => (Extent::new(first, data.sectors()), Some(Contents::Data(data))),
            Op::Zeroes { extent } => (extent, Some(Contents::Zeroes)),
            Op::Discard { extent } => (extent, Some(Contents::Discarded)),
            Op::Allocation { extent } => {
                self.check(extent, u32::MAX)?;
                let request = self.next_number();
                self.looks.insert(request, Look::of(extent, now + self.config.give_up * LOOK_GIVE_UPS));
                self.begin_look(now, fx, request);
                return Ok(request);
            }
            Op::Flush => {
                // Whatever was acknowledged is forced on all copies, its map records too.
                let request = self.next_number();
                self.answer(now, request, Answer::Done);
                return Ok(request);
            }
        };
        self.check(extent, SECTORS_MAX)?;
        let request = self.next_number();
        let cut: Vec<Extent> = self.striping.pieces(extent).collect();
        let parts = contents.is_none().then(BTreeMap::new);
        // Until a fork proxies take no writes.
        let forks = self.view.as_ref().is_some_and(|v| v.fork.is_some());
        let write = contents.map(|c| {
            let route = self.router.route(now, extent, c.stored() * SECTOR);
            (if forks { Route::Burst } else { route }, c)
        });
        self.requests.insert(request, Request { left: cut.len(), parts, unreadable: false });
        for part in cut {
            let piece = match &write {
                Some((route, c)) => {
                    Piece::write(request, Write { extent: part, contents: c.part(extent, part) }, *route)
                }
                None => Piece::read(request, part),
            };
            let number = self.next_number();
            self.pieces.insert(number, piece);
            self.start(now, fx, number);
        }
        Ok(request)
    }

    fn check(&self, extent: Extent, most: u32) -> Result<(), RequestError> {
        let (Extent { first, count }, sectors) = (extent, self.striping.sectors());
        let sound = self.striping.contains(extent) && count <= most;
        if sound { Ok(()) } else { Err(RequestError::Range { first, count, sectors }) }
    }
    pub(crate) fn answer(&mut self, at: Time, request: u64, answer: Answer) {
        self.done.push(Done { at, request, answer });
    }

    /// A piece is done. Writes that waited for it begin.
    pub(crate) fn finish(&mut self, now: Time, fx: &mut Effects<Packet>, number: u64, data: Option<Payload>) {
        let Some(piece) = self.pieces.remove(&number) else { return };
        if let Some(r) = self.requests.get_mut(&piece.request) {
            r.left -= 1;
            if let (Some(parts), Some(data)) = (&mut r.parts, data) {
                parts.insert(piece.extent.first, data);
            }
            if r.left == 0 {
                let join = |p: BTreeMap<u64, Payload>| Payload::concat(&p.into_values().collect::<Vec<_>>());
                let answer = match self.requests.remove(&piece.request) {
                    Some(Request { unreadable: true, .. }) => Answer::Unreadable,
                    Some(Request { parts: Some(parts), .. }) => Answer::Data(join(parts)),
                    _ => Answer::Done,
                };
                self.answer(now, piece.request, answer);
            }
        }
        if piece.is_write() {
            self.start_waiting(now, fx);
        }
    }
    pub(crate) fn start_waiting(&mut self, now: Time, fx: &mut Effects<Packet>) {
        let waiting: Vec<u64> = self.pieces.iter().filter(|(_, p)| p.waits()).map(|(n, _)| *n).collect();
        waiting.into_iter().for_each(|n| self.start(now, fx, n));
    }

    /// Up to this serial every entry is on all its copies, or void there.
    pub(crate) fn closed(&self) -> Serial {
        let open = self.pieces.values().filter_map(Piece::open_serial).min();
        let end = open.unwrap_or(self.serial);
        if mutant!("cloud.void.passed") { Serial(self.serial.0 - 1) } else { Serial(end.0.saturating_sub(1)) }
    }

    fn on_packet(&mut self, now: Time, packet: Packet, fx: &mut Effects<Packet>) {
        match packet.body {
            Body::View(view) if packet.from == self.meta => return self.adopt(now, *view, fx),
            Body::Fenced { incarnation } if incarnation == self.incarnation => return self.fence(now, fx),
            // One for each of its requests under way: the first asks.
            Body::Outdated if packet.epoch > self.epoch().max(self.looked_up) => {
                self.looked_up = packet.epoch;
                return self.lookup(now, fx);
            }
            _ => {}
        }
        if packet.epoch != self.epoch() || self.view.is_none() {
            return;
        }
        match packet.body {
            Body::Appended { serial } => self.appended(now, fx, packet.from, serial),
            Body::AppendFull { serial } => self.append_full(now, fx, serial),
            Body::Voided { serial } => self.voided(now, fx, packet.from, serial),
            Body::Written { sequence } => self.written(now, fx, sequence),
            Body::ReadReply { request, result } => self.on_read(now, fx, request, result),
            Body::Overlaid { request, extents, end, sets, backing } => {
                self.overlaid(now, request, Allocated { extents, end, sets, backing });
            }
            Body::Head { head } => self.on_head(now, fx, head),
            _ => {}
        }
    }

    fn lookup(&mut self, now: Time, fx: &mut Effects<Packet>) {
        let jitter = mix64(now.0 ^ u64::from(self.me.0)) % self.config.retry.0;
        self.lookup_at = now + Span(self.config.retry.0 + jitter);
        let incarnation = self.incarnation;
        let known = self.view.is_some();
        self.send(fx, self.meta, if known { Body::Lookup { incarnation } } else { Body::Attach { incarnation } });
    }
    fn fence(&mut self, now: Time, fx: &mut Effects<Packet>) {
        if self.fenced {
            return;
        }
        fx.trace(FENCED, self.me.0.into(), self.incarnation.0);
        self.fenced = true;
        self.pieces.clear();
        let looks = std::mem::take(&mut self.looks).into_keys();
        for request in std::mem::take(&mut self.requests).into_keys().chain(looks) {
            self.answer(now, request, Answer::Fenced);
        }
    }

    /// A view of a new epoch, or of the same with other holders.
    fn adopt(&mut self, now: Time, view: View, fx: &mut Effects<Packet>) {
        if (view.client, view.client_incarnation) != (self.me, self.incarnation)
            || self.fenced
            || !view.fits(self.striping.segments())
        {
            return;
        }
        if view.epoch <= self.epoch() {
            if view.epoch == self.epoch() && self.view.as_ref().is_some_and(|v| v.revision < view.revision) {
                self.view = Some(Arc::new(view));
            }
            return;
        }
        let before = self.epoch();
        let adopted: BTreeSet<EntryId> = view.adopted.iter().map(|a| a.id).collect();
        self.index.clear();
        self.head = Serial(0);
        for a in &view.adopted {
            // It may still be lost: it counts when it is merged.
            let single = view.is_short(&a.copies) && !mutant!("cloud.read.single-copy");
            self.index.insert(a.id, a.extent, single);
        }
        self.serial = view.next;
        self.view = Some(Arc::new(view));
        let mut complete = Vec::new();
        for (number, piece) in &mut self.pieces {
            let Some(serial) = piece.open_serial().or(piece.adopted_serial()) else {
                piece.restart();
                continue;
            };
            let generation = piece.generation().unwrap_or(before);
            let id = EntryId { serial, generation };
            if !adopted.contains(&id) {
                // An adopted one that has gone is merged.
                if piece.adopted_serial().is_some() {
                    complete.push(*number)
                } else {
                    piece.restart()
                }
                continue;
            }
            fx.trace(APPEND_ADOPTED, serial.0, 0);
            if self.index.is_incomplete(id) {
                piece.writing = Some(Writing::Adopted { serial, generation });
            } else {
                complete.push(*number);
            }
        }
        complete.into_iter().for_each(|n| self.finish(now, fx, n, None));
        self.pieces.keys().copied().collect::<Vec<_>>().into_iter().for_each(|n| self.start(now, fx, n));
        self.begin_looks_again(now, fx);
        self.status(now, fx);
    }
    fn on_head(&mut self, now: Time, fx: &mut Effects<Packet>, head: Serial) {
        self.index.trim(head);
        self.head = self.head.max(head);
        let merged = |p: &Piece| p.adopted_serial().is_some_and(|s| s < head);
        let done: Vec<u64> = self.pieces.iter().filter(|(_, p)| merged(p)).map(|(n, _)| *n).collect();
        done.into_iter().for_each(|n| self.finish(now, fx, n, None));
        let waits = |p: &Piece| matches!(&p.reading, Some(Reading { parts, .. }) if parts.is_empty());
        let reads: Vec<u64> = self.pieces.iter().filter(|(_, p)| waits(p)).map(|(n, _)| *n).collect();
        reads.into_iter().for_each(|n| self.start(now, fx, n));
    }

    fn status(&mut self, now: Time, fx: &mut Effects<Packet>) {
        self.status_at = now + STATUS_INTERVAL;
        let Some(merger) = self.view.as_ref().map(|v| v.merger) else { return };
        let (closed, depth) = (self.closed(), self.depth());
        // Serials that were given up are in the log until the merger hears that they are closed.
        if !self.index.is_empty() || !self.pieces.is_empty() || self.head <= closed {
            self.send(fx, merger, Body::Status { closed, depth });
        }
    }
    /// When it must have its timer, if nothing comes before.
    pub fn next_tick(&self, now: Time) -> Time {
        if self.fenced {
            Time::MAX
        } else if self.view.is_none() || !self.pieces.is_empty() || !self.looks.is_empty() {
            now + self.config.tick
        } else if !self.index.is_empty() || self.head <= self.closed() {
            self.status_at.max(now + self.config.tick)
        } else {
            Time::MAX
        }
    }
    fn tick(&mut self, now: Time, fx: &mut Effects<Packet>) {
        if self.fenced {
            return;
        }
        if self.view.is_none() && now >= self.lookup_at {
            self.lookup(now, fx);
        }
        let due = |p: &Piece| p.is_due(now);
        let late: Vec<u64> = self.pieces.iter().filter(|(_, p)| due(p)).map(|(n, _)| *n).collect();
        let late_looks = self.looks.values().any(|l| l.is_due(now));
        if (!late.is_empty() || late_looks) && now >= self.lookup_at {
            // The view may have changed.
            self.lookup(now, fx);
        }
        late.into_iter().for_each(|n| self.retry(now, fx, n));
        self.retry_looks(now, fx);
        if now >= self.status_at {
            self.index.flush();
            self.status(now, fx);
        }
    }
}

impl<R: Router> Node<Packet> for VDisk<R> {
    fn handle(&mut self, now: Time, event: Event<Packet>, fx: &mut Effects<Packet>) {
        match event {
            Event::Packet(packet) => self.on_packet(now, packet, fx),
            Event::Timer => {
                self.tick(now, fx);
                fx.wake_at(now + self.config.tick);
            }
            Event::Stored { .. } | Event::Completion(_) | Event::Request(_) => {}
        }
    }
}
