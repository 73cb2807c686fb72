//! Parts of requests in one stripe each, and their way to proxies and logs.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::msg::cloud::LogPair;
use rackweave_core::rng::mix64;
use rackweave_core::{Effects, Epoch, NodeId, Payload, Span, Time};

use crate::client::{Route, Router, VDisk};
use crate::config::Config;
use crate::index::Found;
use crate::msg::{Body, Packet, ReadResult};
use crate::trace::{READ_INCOMPLETE, READ_OUTDATED, RESCHEDULED, VOIDED};
use crate::types::{EntryId, Extent, Serial, Write};

/// Doublings of the time after which an unanswered message is sent again: repetitions must not slow down what is slow already.
const BACK_OFF_MAX: u32 = 3;

/// Where a write is.
#[derive(Clone, Debug)]
pub(crate) enum Writing {
    Waiting,
    Stable {
        sequence: u64,
    },
    Append {
        serial: Serial,
        acked: BTreeSet<NodeId>,
        since: Time,
    },
    /// Its serial is being given up. `full`: the log has no room.
    Void {
        serial: Serial,
        acked: BTreeSet<NodeId>,
        full: bool,
    },
    /// It was adopted with one copy, and is done when it is merged.
    Adopted {
        serial: Serial,
        generation: Epoch,
    },
}

/// A read's messages under way, and what has come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    pub parts: BTreeMap<u64, (Extent, Option<EntryId>)>,
    pub got: BTreeMap<u64, Payload>,
    tries: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub request: u64,
    pub extent: Extent,
    write: Option<Write>,
    pub writing: Option<Writing>,
    pub reading: Option<Reading>,
    /// A write's. Also `Stable` once the log had no room.
    route: Route,
    retry_at: Time,
    /// How often its message was sent.
    sent: u32,
}

impl Piece {
    pub fn write(request: u64, write: Write, route: Route) -> Piece {
        Piece {
            request,
            extent: write.extent,
            write: Some(write),
            writing: Some(Writing::Waiting),
            reading: None,
            route,
            retry_at: Time::ZERO,
            sent: 0,
        }
    }
    pub fn read(request: u64, extent: Extent) -> Piece {
        let reading = Some(Reading::default());
        let (route, retry_at) = (Route::Stable, Time::ZERO);
        Piece { request, extent, write: None, writing: None, reading, route, retry_at, sent: 0 }
    }
    pub fn is_write(&self) -> bool {
        self.write.is_some()
    }
    pub fn waits(&self) -> bool {
        matches!(self.writing, Some(Writing::Waiting))
    }
    pub fn is_due(&self, now: Time) -> bool {
        now >= self.retry_at
    }
    /// The serial that is neither on all copies nor void.
    pub fn open_serial(&self) -> Option<Serial> {
        match self.writing {
            Some(Writing::Append { serial, .. } | Writing::Void { serial, .. }) => Some(serial),
            _ => None,
        }
    }
    pub fn adopted_serial(&self) -> Option<Serial> {
        if let Some(Writing::Adopted { serial, .. }) = self.writing { Some(serial) } else { None }
    }
    pub fn generation(&self) -> Option<Epoch> {
        if let Some(Writing::Adopted { generation, .. }) = self.writing { Some(generation) } else { None }
    }
    /// Its message is sent now, and again when it is due.
    fn back_off(&mut self, now: Time, retry: Span) {
        self.retry_at = now + retry * (1 << self.sent.min(BACK_OFF_MAX));
        self.sent += 1;
    }
    /// A new epoch: it begins again.
    pub fn restart(&mut self) {
        if self.writing.is_some() {
            self.writing = Some(Writing::Waiting);
        } else {
            self.reading = Some(Reading::default());
        }
    }
}

impl<R: Router> VDisk<R> {
    /// Begins a piece, if nothing is in its way.
    pub(crate) fn start(&mut self, now: Time, fx: &mut Effects<Packet>, number: u64) {
        let Some(piece) = self.pieces.get(&number).filter(|_| self.view.is_some()) else { return };
        if piece.waits() {
            let extent = piece.extent;
            let earlier = |p: &Piece| p.is_write() && p.extent.overlaps(extent);
            let blocked = self.pieces.range(..number).any(|(_, p)| earlier(p));
            // Later pieces that overlap wait for this one, so only earlier ones can be under way.
            if !blocked || mutant!("cloud.write.two-paths") {
                self.start_write(now, fx, number);
            }
        } else if piece.reading.as_ref().is_some_and(|r| r.parts.is_empty()) {
            self.start_read(now, fx, number);
        }
    }
    fn start_write(&mut self, now: Time, fx: &mut Effects<Packet>, number: u64) {
        let Some(piece) = self.pieces.get(&number) else { return };
        let (extent, route) = (piece.extent, piece.route);
        let overlaps = self.index.may_overlap(extent);
        let logged = route == Route::Burst || overlaps && !mutant!("cloud.write.not-rescheduled");
        if logged && route == Route::Stable {
            fx.trace(RESCHEDULED, number, 0);
        }
        let writing = if logged {
            let serial = self.serial;
            self.serial = serial.next();
            Writing::Append { serial, acked: BTreeSet::new(), since: now }
        } else {
            self.sequence += 1;
            Writing::Stable { sequence: self.sequence }
        };
        if let Some(piece) = self.pieces.get_mut(&number) {
            piece.writing = Some(writing);
            piece.sent = 0;
        }
        self.send_write(now, fx, number);
    }
    /// Sends what the piece waits for.
    fn send_write(&mut self, now: Time, fx: &mut Effects<Packet>, number: u64) {
        let (closed, depth) = (self.closed(), self.depth());
        let Config { retry, give_up, by_multicast, .. } = self.config;
        let sequences = self.pieces.values().filter_map(|p| match p.writing {
            Some(Writing::Stable { sequence }) => Some(sequence),
            _ => None,
        });
        let floor = sequences.min().unwrap_or(0);
        let Some(view) = self.view.clone() else { return };
        let Some(piece) = self.pieces.get_mut(&number) else { return };
        let first = piece.sent == 0;
        piece.back_off(now, retry);
        if let Some(Writing::Append { since, .. }) = piece.writing {
            piece.retry_at = piece.retry_at.min(since + give_up);
        }
        let Some(write) = piece.write.clone() else { return };
        let pair = |s: Serial| view.pair(s);
        let mut out = Vec::new();
        match &piece.writing {
            Some(Writing::Stable { sequence }) => {
                let owner = view.segments[self.striping.segment_of(write.extent.first) as usize].owner;
                out.push((owner, Body::Write { sequence: *sequence, floor, write, depth }));
            }
            Some(Writing::Append { serial, acked, .. }) => {
                let (serial, all) = (*serial, pair(*serial).collect::<Vec<_>>());
                let by_multicast = by_multicast && (first || mutant!("cloud.append.multicast-alone"));
                let both = if let (true, &[a, b]) = (by_multicast, &all[..]) { LogPair::of(a, b) } else { None };
                let to = match both {
                    Some(both) => vec![both.address()],
                    None => all.into_iter().filter(|n| !acked.contains(n)).collect(),
                };
                out.extend(to.into_iter().map(|n| (n, Body::Append { serial, write: write.clone(), closed, depth })));
            }
            Some(Writing::Void { serial, acked, .. }) => {
                out.extend(pair(*serial).filter(|n| !acked.contains(n)).map(|n| (n, Body::Void { serial: *serial })));
            }
            _ => {}
        }
        out.into_iter().for_each(|(to, body)| self.send(fx, to, body));
    }
    pub(crate) fn retry(&mut self, now: Time, fx: &mut Effects<Packet>, number: u64) {
        let Some(piece) = self.pieces.get_mut(&number) else { return };
        piece.retry_at = now + self.config.retry;
        match &mut piece.writing {
            Some(Writing::Waiting) => self.start(now, fx, number),
            Some(Writing::Append { since, serial, .. }) if now >= *since + self.config.give_up => {
                let serial = *serial;
                self.give_up(now, fx, number, serial, false);
            }
            Some(_) => self.send_write(now, fx, number),
            None if piece.reading.as_ref().is_some_and(|r| r.parts.is_empty() || mutant!("cloud.read.new-numbers")) => {
                self.start_read(now, fx, number);
            }
            None => self.send_read(now, fx, number),
        }
    }
    fn give_up(&mut self, now: Time, fx: &mut Effects<Packet>, number: u64, serial: Serial, full: bool) {
        let Some(piece) = self.pieces.get_mut(&number) else { return };
        piece.writing = Some(Writing::Void { serial, acked: BTreeSet::new(), full });
        piece.sent = 0;
        if mutant!("cloud.void.skipped") {
            if full {
                piece.route = Route::Stable;
            }
            piece.writing = Some(Writing::Waiting);
            return self.start(now, fx, number);
        }
        self.send_write(now, fx, number);
    }

    fn of_serial(&self, serial: Serial) -> Option<u64> {
        self.pieces.iter().find(|(_, p)| p.open_serial() == Some(serial)).map(|(n, _)| *n)
    }
    pub(crate) fn appended(&mut self, now: Time, fx: &mut Effects<Packet>, from: NodeId, serial: Serial) {
        let Some(pair) = self.view.as_ref().map(|v| v.pair(serial).collect::<Vec<_>>()) else { return };
        let Some(number) = self.of_serial(serial) else { return };
        let Some(piece) = self.pieces.get_mut(&number) else { return };
        let Some(Writing::Append { acked, .. }) = &mut piece.writing else { return };
        acked.insert(from);
        if !pair.iter().all(|n| acked.contains(n)) && !mutant!("cloud.append.one-copy") {
            return;
        }
        let (extent, id) = (piece.extent, EntryId { serial, generation: self.epoch() });
        self.complete(id, extent);
        self.finish(now, fx, number, None);
    }
    /// Entries enter the index in serial order.
    fn complete(&mut self, id: EntryId, extent: Extent) {
        self.index.insert(id, extent, false);
    }
    pub(crate) fn append_full(&mut self, now: Time, fx: &mut Effects<Packet>, serial: Serial) {
        let Some(number) = self.of_serial(serial) else { return };
        if matches!(self.pieces[&number].writing, Some(Writing::Append { .. })) {
            self.give_up(now, fx, number, serial, true);
        }
    }
    pub(crate) fn voided(&mut self, now: Time, fx: &mut Effects<Packet>, from: NodeId, serial: Serial) {
        let Some(pair) = self.view.as_ref().map(|v| v.pair(serial).collect::<Vec<_>>()) else { return };
        let Some(number) = self.of_serial(serial) else { return };
        let Some(piece) = self.pieces.get_mut(&number) else { return };
        let Some(Writing::Void { acked, full, .. }) = &mut piece.writing else { return };
        acked.insert(from);
        if !pair.iter().all(|n| acked.contains(n)) && !mutant!("cloud.void.one-copy") {
            return;
        }
        fx.trace(VOIDED, serial.0, 0);
        // If the log is full and an entry overlaps, merging must make room: not at once.
        let again = !*full;
        if !again {
            piece.route = Route::Stable;
        }
        piece.writing = Some(Writing::Waiting);
        piece.retry_at = now + self.config.retry;
        if again {
            self.start(now, fx, number);
        }
    }
    pub(crate) fn written(&mut self, now: Time, fx: &mut Effects<Packet>, sequence: u64) {
        let is = |p: &Piece| matches!(p.writing, Some(Writing::Stable { sequence: s }) if s == sequence);
        if let Some(number) = self.pieces.iter().find(|(_, p)| is(p)).map(|(n, _)| *n) {
            self.finish(now, fx, number, None);
        }
    }

    fn start_read(&mut self, now: Time, fx: &mut Effects<Packet>, number: u64) {
        let Some(extent) = self.pieces.get(&number).map(|p| p.extent) else { return };
        let found =
            if mutant!("cloud.read.past-log") { vec![Found::Store { part: extent }] } else { self.index.find(extent) };
        let incomplete = |f: &Found| match f {
            Found::Log { id, .. } => Some(id.serial).filter(|_| self.index.is_incomplete(*id)),
            Found::Store { .. } => None,
        };
        let waits = found.iter().find_map(incomplete);
        let retry = self.config.retry;
        let Some(piece) = self.pieces.get_mut(&number) else { return };
        (piece.retry_at, piece.sent) = (now + retry, 0);
        if let Some(serial) = waits {
            return fx.trace(READ_INCOMPLETE, serial.0, 0);
        }
        let part = |f: Found| match f {
            Found::Log { part, id } => (part, Some(id)),
            Found::Store { part } => (part, None),
        };
        let parts = found.into_iter().map(|f| (self.next_number(), part(f))).collect();
        if let Some(r) = self.pieces.get_mut(&number).and_then(|p| p.reading.as_mut()) {
            r.parts = parts;
        }
        self.send_read(now, fx, number);
    }
    /// Sends what the read waits for. A part keeps its number: each answer to it is of a time during the request, and the proxy does
    /// not read twice.
    fn send_read(&mut self, now: Time, fx: &mut Effects<Packet>, number: u64) {
        let (depth, retry) = (self.depth(), self.config.retry);
        let Some(view) = self.view.clone() else { return };
        let Some(piece) = self.pieces.get_mut(&number) else { return };
        piece.back_off(now, retry);
        let Some(reading) = &mut piece.reading else { return };
        let mut out = Vec::new();
        for (&request, &(part, id)) in &reading.parts {
            let Some(id) = id else {
                let owner = view.segments[self.striping.segment_of(part.first) as usize].owner;
                out.push((owner, Body::ReadStore { request, part, depth }));
                continue;
            };
            let copies = view.copies(id);
            // Drawn: parts of one read must not meet a lost server in turn.
            let drawn = mix64(id.serial.0 ^ (reading.tries as u64) << 32) % copies.len().max(1) as u64;
            if let Some(&to) = copies.get(drawn as usize) {
                out.push((to, Body::ReadLog { request, id, part, depth }));
            }
        }
        reading.tries += 1;
        out.into_iter().for_each(|(to, body)| self.send(fx, to, body));
    }
    pub(crate) fn on_read(&mut self, now: Time, fx: &mut Effects<Packet>, request: u64, result: ReadResult) {
        let asked = |p: &Piece| p.reading.as_ref().is_some_and(|r| r.parts.contains_key(&request));
        let Some(number) = self.pieces.iter().find(|(_, p)| asked(p)).map(|(n, _)| *n) else { return };
        let Some(reading) = self.pieces.get_mut(&number).and_then(|p| p.reading.as_mut()) else { return };
        let Some((part, id)) = reading.parts.remove(&request) else { return };
        match result {
            ReadResult::Data(contents) => {
                reading.got.insert(part.first, contents.payload(part.count));
                if reading.parts.is_empty() {
                    let parts: Vec<Payload> = std::mem::take(&mut reading.got).into_values().collect();
                    self.finish(now, fx, number, Some(Payload::concat(&parts)));
                }
            }
            ReadResult::Unreadable => {
                let request = self.pieces.get(&number).map(|p| p.request);
                if let Some(r) = request.and_then(|r| self.requests.get_mut(&r)) {
                    r.unreadable = true;
                }
                self.finish(now, fx, number, None);
            }
            ReadResult::Outdated | ReadResult::Incomplete => {
                reading.parts.clear();
                reading.got.clear();
                // An entry is invalidated after its merge. The head may wait for an entry of another segment, and merging for
                // this read.
                if let Some(id) = id.filter(|_| result == ReadResult::Outdated) {
                    fx.trace(READ_OUTDATED, id.serial.0, 0);
                    self.index.remove(id.serial);
                }
                if let Some(p) = self.pieces.get_mut(&number) {
                    p.retry_at = now + self.config.tick;
                }
            }
        }
    }
}
