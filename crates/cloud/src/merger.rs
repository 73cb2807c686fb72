//! Merging (DF4): the owner of a VDisk's first segment gives log entries to the proxies in serial order.
//!
//! It passes no serial that is not closed: a closed one is on all its copies, or given up on all of them, so each copy can
//! testify to it. An entry is invalidated when its merge is acknowledged; the log's head follows the first that is not.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::{MESSAGE_MAX, NodeId, SECTOR, Time};

use crate::config::MergeMode;
use crate::ctx::Ctx;
use crate::log::{Kind, Meta};
use crate::msg::{Body, ReadResult};
use crate::stripe::Striping;
use crate::trace::{MERGE_SUSPENDED, MERGED};
use crate::types::{Contents, EntryId, Extent, Serial, Write};
use crate::view::View;

/// Most serials of a round of `TraverseMeta`.
const ROUND_MAX: u64 = 256;
/// Most entries that are read ahead.
pub(crate) const AHEAD_MAX: usize = 32;

#[derive(Debug)]
struct Entry {
    id: EntryId,
    extent: Extent,
    copies: Vec<NodeId>,
    tries: usize,
    asked: Option<(u64, Time)>,
    contents: Option<Contents>,
    merged: bool,
}

#[derive(Debug)]
struct Round {
    number: u64,
    to: Serial,
    waiting: BTreeSet<NodeId>,
    metas: Vec<Meta>,
}

#[derive(Debug)]
struct Trim {
    number: u64,
    waiting: BTreeSet<NodeId>,
    entries: Vec<EntryId>,
    head: Serial,
}

#[derive(Debug)]
pub(crate) struct Merger {
    striping: Striping,
    view: View,
    /// Entries up to this serial are known, up to `closed` they could be.
    known: Serial,
    closed: Serial,
    entries: BTreeMap<Serial, Entry>,
    counter: u64,
    round: Option<Round>,
    trim: Option<Trim>,
    /// Merges under way, by segment.
    merging: BTreeMap<u32, (Vec<Serial>, Time)>,
    invalid: Vec<EntryId>,
    trimmed: Serial,
    bytes: BTreeMap<NodeId, u64>,
    retry_at: Time,
    suspended: bool,
}

impl Merger {
    pub fn new(striping: Striping, view: &View) -> Merger {
        let known = Serial(view.next.0 - 1);
        let entry = |a: &crate::view::Adopted| {
            let (id, extent) = (a.id, a.extent);
            let copies = a.copies.iter().copied().filter(|n| view.member(*n).is_some()).collect();
            (a.id.serial, Entry { id, extent, copies, tries: 0, asked: None, contents: None, merged: false })
        };
        Merger {
            striping,
            view: view.clone(),
            known,
            closed: known,
            entries: view.adopted.iter().map(entry).collect(),
            counter: 0,
            round: None,
            trim: None,
            merging: BTreeMap::new(),
            invalid: Vec::new(),
            trimmed: Serial(0),
            bytes: BTreeMap::new(),
            retry_at: Time::ZERO,
            suspended: false,
        }
    }
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.known == self.closed
    }
    /// Whether something under way must be repeated, or goes on by itself.
    pub fn is_busy(&self) -> bool {
        !self.entries.is_empty() || self.round.is_some() || self.trim.is_some() || self.closed > self.known
    }
    /// The first serial that is not merged.
    fn head(&self) -> Serial {
        self.entries.iter().find(|(_, e)| !e.merged).map_or(self.known.next(), |(s, _)| *s)
    }
    pub fn on_status(&mut self, ctx: &mut Ctx, from: NodeId, closed: Serial) {
        if from == self.view.client {
            self.closed = self.closed.max(closed);
            let head = self.head();
            ctx.send(from, Body::Head { head });
        }
    }

    /// The last serial that may be merged now.
    fn upto(&self) -> Serial {
        let all = mutant!("cloud.fork.merged-beyond");
        self.view.fork.filter(|_| !all).unwrap_or(Serial(u64::MAX))
    }
    /// Whether merging goes on, and with how many entries at a time.
    fn allowed(&mut self, ctx: &mut Ctx, depth: u32) -> usize {
        let full = self.bytes.values().any(|b| *b > ctx.config.merge_foreground_bytes);
        // What is on one server alone is not left there. The client waits until the head has passed it.
        let single = self.entries.values().any(|e| self.view.is_short(&e.copies));
        let forks = self.view.fork.is_some();
        match ctx.config.merge {
            MergeMode::Never => 0,
            MergeMode::Asap => AHEAD_MAX,
            MergeMode::Limited(n) => n.min(AHEAD_MAX),
            MergeMode::Prioritized if depth == 0 || full || single || forks => {
                self.suspended = false;
                AHEAD_MAX
            }
            MergeMode::Prioritized => {
                if !self.suspended && !self.entries.is_empty() {
                    ctx.trace(MERGE_SUSPENDED, ctx.volume.0.into(), depth.into());
                    self.suspended = true;
                }
                0
            }
        }
    }

    pub fn go_on(&mut self, ctx: &mut Ctx, depth: u32) {
        self.traverse(ctx);
        let ahead = self.allowed(ctx, depth);
        self.read(ctx, ahead);
        self.merge(ctx);
        self.trim(ctx);
    }
    fn traverse(&mut self, ctx: &mut Ctx) {
        if self.round.is_some() || self.closed <= self.known {
            return;
        }
        self.counter += 1;
        let to = Serial(self.closed.0.min(self.known.0.saturating_add(ROUND_MAX)));
        let waiting = self.view.servers.iter().map(|m| m.node).collect();
        self.round = Some(Round { number: self.counter, to, waiting, metas: Vec::new() });
        self.ask(ctx);
    }
    fn ask(&mut self, ctx: &mut Ctx) {
        let Some(r) = &self.round else { return };
        for n in &r.waiting {
            ctx.send(*n, Body::Traverse { round: r.number, from: self.known.next(), to: r.to });
        }
    }
    pub fn on_traversed(&mut self, from: NodeId, round: u64, metas: Vec<Meta>, bytes: u64) {
        self.bytes.insert(from, bytes);
        let Some(r) = self.round.as_mut().filter(|r| r.number == round) else { return };
        if !r.waiting.remove(&from) {
            return;
        }
        r.metas.extend(metas);
        if !r.waiting.is_empty() {
            return;
        }
        let Some(r) = self.round.take() else { return };
        let given_up = |s: Serial| {
            r.metas.iter().any(|m| m.id.serial == s && m.kind == Kind::Void) && !mutant!("cloud.void.merged")
        };
        for m in r.metas.iter().filter(|m| m.valid && !given_up(m.id.serial)) {
            let copies = self.view.copies(m.id);
            let (id, extent) = (m.id, m.extent);
            let new = Entry { id, extent, copies, tries: 0, asked: None, contents: None, merged: false };
            self.entries.entry(m.id.serial).or_insert(new);
        }
        self.known = r.to;
    }

    fn read(&mut self, ctx: &mut Ctx, ahead: usize) {
        let retry = ctx.config.retry;
        let upto = self.upto();
        for e in self.entries.range_mut(..=upto).map(|e| e.1).filter(|e| !e.merged).take(ahead) {
            if e.contents.is_some() || e.asked.is_some_and(|(_, at)| ctx.now < at + retry) {
                continue;
            }
            self.counter += 1;
            // An entry that no server of the view has ends with the merge of those that it hides.
            let Some(&from) = e.copies.get(e.tries % e.copies.len().max(1)) else { continue };
            e.tries += 1;
            e.asked = Some((self.counter, ctx.now));
            ctx.send(from, Body::ReadLog { request: self.counter, id: e.id, part: e.extent, depth: 0 });
        }
    }
    pub fn on_read(&mut self, request: u64, result: ReadResult) {
        let asked = |e: &&mut Entry| e.asked.is_some_and(|(r, _)| r == request);
        if let (Some(e), ReadResult::Data(contents)) = (self.entries.values_mut().find(asked), result) {
            e.contents = Some(contents);
        }
    }

    /// The next entries of each segment, in serial order.
    fn merge(&mut self, ctx: &mut Ctx) {
        let mut next: BTreeMap<u32, Vec<(Serial, Write)>> = BTreeMap::new();
        let mut ended = BTreeSet::new();
        for (serial, e) in self.entries.range(..=self.upto()).filter(|(_, e)| !e.merged).take(AHEAD_MAX) {
            let segment = self.striping.segment_of(e.extent.first);
            if self.merging.contains_key(&segment) || ended.contains(&segment) {
                continue;
            }
            let list = next.entry(segment).or_default();
            let bytes: u32 = list.iter().map(|(_, w)| w.contents.stored() * SECTOR).sum();
            match &e.contents {
                Some(c) if list.is_empty() || bytes + c.stored() * SECTOR <= MESSAGE_MAX => {
                    list.push((*serial, Write { extent: e.extent, contents: c.clone() }));
                }
                _ if mutant!("cloud.merge.out-of-order") => {}
                _ => _ = ended.insert(segment),
            }
        }
        for (segment, entries) in next.into_iter().filter(|(_, l)| !l.is_empty()) {
            let serials: Vec<Serial> = entries.iter().map(|e| e.0).collect();
            if mutant!("cloud.merge.invalidated-early") {
                self.invalid.extend(serials.iter().map(|s| self.entries[s].id));
            }
            self.merging.insert(segment, (serials, ctx.now));
            ctx.send(self.view.segments[segment as usize].owner, Body::Merge { segment, entries });
        }
    }
    pub fn on_merged(&mut self, ctx: &mut Ctx, segment: u32, merged: Serial) {
        let Some((serials, _)) = self.merging.get(&segment) else { return };
        if serials.last().is_some_and(|s| *s > merged) {
            return;
        }
        let before = self.head();
        self.merging.remove(&segment);
        // Those without a copy, too, which the owner had merged before.
        let of_segment = |e: &Entry| {
            let here = e.contents.is_some() || !mutant!("cloud.merge.waits-for-contents");
            here && self.striping.segment_of(e.extent.first) == segment
        };
        for (_, e) in self.entries.range_mut(..=merged).filter(|(_, e)| !e.merged && of_segment(e)) {
            e.merged = true;
            self.invalid.push(e.id);
        }
        let head = self.head();
        if head > before {
            self.entries.retain(|s, _| *s >= head);
            ctx.trace(MERGED, ctx.volume.0.into(), head.0);
            ctx.send(self.view.client, Body::Head { head });
        }
    }

    fn trim(&mut self, ctx: &mut Ctx) {
        let head = self.head();
        if self.trim.is_some() || self.invalid.is_empty() && head <= self.trimmed {
            return;
        }
        self.counter += 1;
        let waiting = self.view.servers.iter().map(|m| m.node).collect();
        let entries = std::mem::take(&mut self.invalid);
        self.trim = Some(Trim { number: self.counter, waiting, entries, head });
        self.send_trim(ctx);
    }
    fn send_trim(&mut self, ctx: &mut Ctx) {
        let Some(t) = &self.trim else { return };
        for n in &t.waiting {
            let (round, entries, head) = (t.number, t.entries.clone(), t.head);
            ctx.send(*n, Body::Invalidate { round, entries, head });
        }
    }
    pub fn on_invalidated(&mut self, from: NodeId, round: u64) {
        let Some(t) = self.trim.as_mut().filter(|t| t.number == round) else { return };
        t.waiting.remove(&from);
        if t.waiting.is_empty() {
            self.trimmed = t.head;
            self.trim = None;
        }
    }

    pub fn tick(&mut self, ctx: &mut Ctx, depth: u32) {
        if ctx.now >= self.retry_at {
            self.retry_at = ctx.now + ctx.config.retry;
            self.ask(ctx);
            self.send_trim(ctx);
            let due = |m: &(Vec<Serial>, Time)| ctx.now >= m.1 + ctx.config.retry;
            // Taken back, the same entries are sent again, perhaps with more behind them.
            let late: Vec<u32> = self.merging.iter().filter(|(_, m)| due(m)).map(|(s, _)| *s).collect();
            late.into_iter().for_each(|s| _ = self.merging.remove(&s));
        }
        self.go_on(ctx, depth);
    }
}
