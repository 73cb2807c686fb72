//! Requests and answers of clients, recorded per 512-byte sector for the check of protocol rule 11.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use rackweave_core::{Payload, SetId, Time, VolumeId};

use crate::search::{Search, SearchError};

/// An operation of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpKind {
    Write { fua: bool, attach: u32, client: u32 },
    Read,
    Flush { client: u32 },
}

#[derive(Clone, Debug)]
pub(super) struct Op {
    pub kind: OpKind,
    pub volume: VolumeId,
    /// Positions of call and answer in the order of all records.
    pub call: u64,
    pub answer: Option<u64>,
    /// Answered with an error: it may or may not have taken effect.
    pub failed: bool,
    /// It has certainly not taken effect.
    pub refused: bool,
    /// When its client received the answer, if it passed it on later.
    pub held: Option<u64>,
    /// The request that it belongs to, for a trail.
    request: u64,
    first: u64,
    count: u64,
}

/// An operation's part on one sector.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    pub op: OpId,
    /// The value written or read; zero for a zero sector.
    pub value: u64,
}

/// What is durable on every member of a sector's set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    pub volume: VolumeId,
    pub sector: u64,
    pub set: SetId,
    /// Position of the promised write's call in the order of all records.
    since: u64,
}

/// Result of an operation.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    Done,
    Data(&'a Payload),
    /// An error: it may or may not have taken effect.
    Failed,
}

/// All observations of clients in one run.
#[derive(Debug, Default)]
pub struct History {
    now: Time,
    /// When each record was made, for a trail.
    times: Vec<Time>,
    pub(super) ops: Vec<Op>,
    sectors: BTreeMap<(VolumeId, u64), Vec<Touch>>,
    flushes: BTreeMap<VolumeId, Vec<OpId>>,
    /// Crashes of whole sets: position, set, the position from which no earlier answer is in flight, and whether some
    /// replica still had the acknowledged writes.
    crashes: Vec<(u64, SetId, u64, bool)>,
    /// From then on writes of the volume with a lower generation cannot take effect.
    fences: Vec<(u64, VolumeId, u32)>,
}

/// Statistics of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct HistoryStats {
    pub operations: u64,
    pub unanswered: u64,
    pub sectors: u64,
    /// Calls and answers of all sectors.
    pub sector_events: u64,
    pub set_crashes: u64,
}

/// A sector whose history no order of its operations explains.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Violation {
    pub volume: VolumeId,
    pub sector: u64,
    pub reason: SearchError,
    /// The sector's last events, oldest first.
    pub trail: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sector {}: {}", self.volume, self.sector, self.reason)?;
        self.trail.iter().try_for_each(|l| write!(f, "\n    {l}"))
    }
}

/// An operation of more sectors lies in all sets of its volume, if there are several.
const SPLIT_MAX: u64 = 1 << 16;
/// Most lines of a violation's trail.
const TRAIL_MAX: usize = 40;

impl History {
    pub fn new() -> History {
        History::default()
    }
    /// Sets the time of further records.
    pub fn at(&mut self, now: Time) {
        self.now = now;
    }
    /// Sets the number of the request that `op` belongs to.
    pub fn label(&mut self, op: OpId, request: u64) {
        self.ops[op.0 as usize].request = request;
    }
    fn tick(&mut self) -> u64 {
        self.times.push(self.now);
        self.times.len() as u64
    }
    fn begin(&mut self, kind: OpKind, volume: VolumeId, first: u64, count: u64) -> OpId {
        let call = self.tick();
        let (answer, failed, refused, held, request) = (None, false, false, None, 0);
        self.ops.push(Op { kind, volume, call, answer, failed, refused, held, request, first, count });
        OpId(self.ops.len() as u32 - 1)
    }
    fn op(&self, t: &Touch) -> &Op {
        &self.ops[t.op.0 as usize]
    }
    fn touch(&mut self, volume: VolumeId, sector: u64, op: OpId, value: u64) {
        self.sectors.entry((volume, sector)).or_default().push(Touch { op, value });
    }
    /// A write was passed to the client; returns its number, unique per client incarnation.
    pub fn write(&mut self, client: u32, volume: VolumeId, first: u64, data: &Payload, fua: bool, attach: u32) -> OpId {
        let op = self.begin(OpKind::Write { fua, attach, client }, volume, first, data.sectors().into());
        for i in 0..data.sectors() {
            self.touch(volume, first + u64::from(i), op, data.identity(i));
        }
        op
    }
    /// A trim or write-zeroes was passed to the client; only its sectors in `places` (first, and one past the last)
    /// matter.
    pub fn zero(
        &mut self,
        client: u32,
        volume: VolumeId,
        sectors: Range<u64>,
        places: impl Iterator<Item = Range<u64>>,
        fua: bool,
        attach: u32,
    ) -> OpId {
        let kind = OpKind::Write { fua, attach, client };
        let op = self.begin(kind, volume, sectors.start, sectors.end - sectors.start);
        for place in places {
            for sector in place.start.max(sectors.start)..place.end.min(sectors.end) {
                self.touch(volume, sector, op, 0);
            }
        }
        op
    }
    pub fn read(&mut self, volume: VolumeId, first: u64, count: u32) -> OpId {
        self.begin(OpKind::Read, volume, first, count.into())
    }
    pub fn flush(&mut self, client: u32, volume: VolumeId) -> OpId {
        let op = self.begin(OpKind::Flush { client }, volume, 0, 0);
        self.flushes.entry(volume).or_default().push(op);
        op
    }
    /// The operation was answered, which happens once.
    pub fn answered(&mut self, op: OpId, outcome: Outcome) {
        let at = self.tick();
        let o = &mut self.ops[op.0 as usize];
        o.answer = Some(at);
        o.failed = matches!(outcome, Outcome::Failed);
        let (volume, first, count) = (o.volume, o.first, o.count);
        if let (Outcome::Data(p), OpKind::Read) = (outcome, o.kind) {
            for i in 0..p.sectors().min(count as u32) {
                self.touch(volume, first + u64::from(i), op, p.identity(i));
            }
        }
    }
    /// The read's contents are those of some time before now. [`History::saw`] says which they are.
    pub fn ended(&mut self, op: OpId) {
        self.ops[op.0 as usize].answer = Some(self.tick());
    }
    /// The contents of a read that has ended.
    pub fn saw(&mut self, op: OpId, p: &Payload) {
        let (volume, first) = (self.ops[op.0 as usize].volume, self.ops[op.0 as usize].first);
        for i in 0..p.sectors() {
            self.touch(volume, first + u64::from(i), op, p.identity(i));
        }
    }
    /// The operation's client has received its answer, but passes it on only after another set that crashed has
    /// recovered its lost data.
    pub fn held(&mut self, op: OpId) {
        let at = self.tick();
        self.ops[op.0 as usize].held.get_or_insert(at);
    }
    /// An operation that was answered with an error has certainly not taken effect (protocol rule 9).
    pub fn refused(&mut self, op: OpId) {
        self.ops[op.0 as usize].refused = true;
    }
    /// All replicas of `set` are down now. The returned number is for [`History::silent`].
    pub fn set_crashed(&mut self, set: SetId) -> usize {
        let at = self.tick();
        self.crashes.push((at, set, u64::MAX, false));
        self.crashes.len() - 1
    }
    /// All members of the set's view are down now, but one of a former view holds every acknowledged write: only
    /// unanswered writes may be undone. The returned number is for [`History::silent`].
    pub fn view_crashed(&mut self, set: SetId) -> usize {
        let at = self.tick();
        self.crashes.push((at, set, u64::MAX, true));
        self.crashes.len() - 1
    }
    /// Answers sent before that crash have all arrived: later answers were sent after it.
    pub fn silent(&mut self, crash: usize) {
        self.crashes[crash].2 = self.tick();
    }
    /// A writer with generation `attach` is attached and informed.
    pub fn fenced(&mut self, volume: VolumeId, attach: u32) {
        let at = self.tick();
        self.fences.push((at, volume, attach));
    }

    /// Whether all replicas of some set were ever down together.
    pub fn crashed(&self) -> bool {
        !self.crashes.is_empty()
    }

    /// Checks every sector; `set_of` returns the replica set of a sector.
    ///
    /// # Errors
    /// The first sector whose answers no order explains.
    pub fn check(&self, set_of: impl Fn(VolumeId, u64) -> SetId) -> Result<HistoryStats, Box<Violation>> {
        self.check_by(false, set_of)
    }

    /// `plain`: without reductions, which makes a few unanswered writes infeasible.
    pub(super) fn check_by(
        &self,
        plain: bool,
        set_of: impl Fn(VolumeId, u64) -> SetId,
    ) -> Result<HistoryStats, Box<Violation>> {
        let mut stats = HistoryStats {
            operations: self.ops.len() as u64,
            unanswered: self.ops.iter().filter(|o| o.answer.is_none()).count() as u64,
            sectors: self.sectors.len() as u64,
            set_crashes: self.crashes.len() as u64,
            ..HistoryStats::default()
        };
        let split =
            |o: &Op| (1..o.count.min(SPLIT_MAX)).any(|i| set_of(o.volume, o.first + i) != set_of(o.volume, o.first));
        let split: Vec<bool> = self.ops.iter().map(split).collect();
        let mut search = Search::new(plain);
        for (&(volume, sector), touches) in &self.sectors {
            let set = set_of(volume, sector);
            let events = self.events(volume, set, touches, &split, plain);
            stats.sector_events += events.len() as u64;
            if let Err((at, reason)) = search.run(&events) {
                let relevant = |e: &&SectorEvent| !e.what.is_flush();
                let last = events[..=at].iter().rev().filter(relevant).take(TRAIL_MAX);
                let mut trail: Vec<String> = last.map(|e| self.line(e)).collect();
                trail.reverse();
                return Err(Box::new(Violation { volume, sector, reason, trail }));
            }
        }
        Ok(stats)
    }

    /// The promise of the answer to a flush, or to a write with FUA, for each sector: every member's durable copy is at
    /// least as new as a write that was called at this position. Other operations promise nothing, and neither does a
    /// sector whose set crashed as a whole and may have undone the write.
    pub fn promised(&self, op: OpId, set_of: impl Fn(u64) -> SetId) -> Vec<Promise> {
        let o = &self.ops[op.0 as usize];
        let range = match o.kind {
            OpKind::Flush { .. } => (o.volume, 0)..=(o.volume, u64::MAX),
            OpKind::Write { fua: true, .. } => (o.volume, o.first)..=(o.volume, o.first + o.count - 1),
            OpKind::Write { .. } | OpKind::Read => return Vec::new(),
        };
        let of_flush = matches!(o.kind, OpKind::Flush { .. });
        let promise = |(&(volume, sector), touches): (&(VolumeId, u64), &Vec<Touch>)| {
            let set = set_of(sector);
            let covered = |t: &&Touch| if of_flush { self.survives(t.op, set, o.call) } else { t.op == op };
            // Writes are recorded when they are called, so the last one was called last.
            let since = touches.iter().rev().find(covered).map(|t| self.op(t).call)?;
            Some(Promise { volume, sector, set, since })
        };
        self.sectors.range(range).filter_map(promise).collect()
    }

    /// The volume of the operation.
    pub fn volume(&self, op: OpId) -> VolumeId {
        self.ops[op.0 as usize].volume
    }
    /// Description of the operation, for another checker's report.
    pub fn describe(&self, op: OpId) -> String {
        let o = &self.ops[op.0 as usize];
        let ms = |at: u64| self.times[at as usize - 1].0 as f64 / 1e6;
        let answered = o.answer.map_or("never answered".into(), |a| format!("answered at {:.3} ms", ms(a)));
        format!("request {} (#{}), {:?}, asked at {:.3} ms, {answered}", o.request, op.0, o.kind, ms(o.call))
    }

    /// A write that was answered before this position, and that no crash of the whole set has undone since.
    fn survives(&self, op: OpId, set: SetId, before: u64) -> bool {
        let o = &self.ops[op.0 as usize];
        let OpKind::Write { fua, .. } = o.kind else { return false };
        let Some(answer) = o.answer.filter(|&a| !o.failed && a < before) else { return false };
        // A set's part of an answer may be older than the answer: its client may pass it on only after a flush has
        // reported the loss.
        let arrived = if o.count > 1 || o.held.is_some() { o.call } else { answer };
        let Some(crash) = self.crashes.iter().find(|c| c.1 == set && !c.3 && arrived <= c.2) else { return true };
        let flushes = self.flushes.get(&o.volume).map_or(&[][..], |f| f);
        let flushed = |f: &OpId| {
            let f = &self.ops[f.0 as usize];
            !f.failed && f.call > answer && f.answer.is_some_and(|a| a < crash.0)
        };
        (fua && answer < crash.0) || flushes.iter().any(flushed)
    }

    /// Whether a copy with this value breaks the promise: it was never written, or its write had ended before the
    /// promised one began.
    pub fn breaks(&self, p: &Promise, value: u64) -> bool {
        let touches = self.sectors.get(&(p.volume, p.sector)).map_or(&[][..], |t| t);
        let mut writes = touches.iter().rev().filter(|t| t.value == value).map(|t| self.op(t));
        !writes.any(|o| {
            matches!(o.kind, OpKind::Write { .. }) && (o.failed || o.answer.is_none_or(|answer| answer > p.since))
        })
    }

    /// The last events of a sector, for another checker's report.
    pub fn trail(&self, volume: VolumeId, sector: u64, set: SetId) -> Vec<String> {
        let touches = self.sectors.get(&(volume, sector)).map_or(&[][..], |t| t);
        let events = self.events(volume, set, touches, &vec![false; self.ops.len()], true);
        let last = events.iter().rev().filter(|e| !e.what.is_flush());
        let mut trail: Vec<String> = last.take(TRAIL_MAX).map(|e| self.line(e)).collect();
        trail.reverse();
        trail
    }

    fn line(&self, e: &SectorEvent) -> String {
        let ms = self.times[e.at as usize - 1].0 as f64 / 1e6;
        let request = match e.what {
            What::Write { op, .. } | What::Read { op, .. } => format!(" (request {})", self.ops[op.0 as usize].request),
            _ => String::new(),
        };
        format!("{ms:>12.3} ms {e}{request}")
    }

    /// All events of one sector, in order.
    fn events(&self, volume: VolumeId, set: SetId, touches: &[Touch], split: &[bool], plain: bool) -> Vec<SectorEvent> {
        let mut out = Vec::with_capacity(touches.len() * 2 + 4);
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        for t in touches.iter().filter(|t| self.op(t).kind == OpKind::Read) {
            let last = seen.entry(t.value).or_default();
            *last = self.op(t).answer.unwrap_or(0).max(*last);
        }
        for t in touches {
            let op = self.op(t);
            let answered = op.answer.filter(|_| !op.failed);
            let until = seen.get(&t.value).copied().unwrap_or(0);
            // Unobservable: see `Search`.
            if op.refused || (!plain && answered.is_none() && until < op.call) {
                continue;
            }
            let what = match op.kind {
                OpKind::Write { fua, attach, client } => {
                    // One set's part of a request may have been answered long before the request was.
                    let arrived = answered.map(|at| if split[t.op.0 as usize] { 0 } else { op.held.unwrap_or(at) });
                    What::Write { op: t.op, value: t.value, attach, client, answered, arrived, fua, until }
                }
                OpKind::Read => What::Read { op: t.op, value: t.value },
                OpKind::Flush { .. } => continue,
            };
            out.push(SectorEvent { at: op.call, what });
            if let Some(at) = answered {
                out.push(SectorEvent { at, what: What::Answer { op: t.op } });
            }
        }
        for &(at, v, attach) in self.fences.iter().filter(|f| f.1 == volume) {
            debug_assert_eq!(v, volume);
            out.push(SectorEvent { at, what: What::Fence { attach } });
        }
        let crashes = self.crashes.iter().filter(|c| c.1 == set);
        let before = out.len();
        let crashes = crashes.map(|&(at, _, silent, held)| SectorEvent { at, what: What::Crash { silent, held } });
        out.extend(crashes);
        if out.len() > before {
            for &f in self.flushes.get(&volume).map_or(&[][..], |f| f) {
                let op = &self.ops[f.0 as usize];
                if let (Some(at), OpKind::Flush { client }) = (op.answer, op.kind) {
                    out.push(SectorEvent { at: op.call, what: What::FlushCall { op: f } });
                    let what = match op.failed {
                        false => What::FlushAnswer { op: f, client, called: op.call },
                        true => What::FlushFailed { op: f, client, at },
                    };
                    out.push(SectorEvent { at, what });
                }
            }
        }
        out.sort_by_key(|e| e.at);
        out
    }
}

/// An event in one sector's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SectorEvent {
    pub at: u64,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Write {
        op: OpId,
        value: u64,
        attach: u32,
        client: u32,
        answered: Option<u64>,
        /// The earliest time of the set's part of the answer.
        arrived: Option<u64>,
        fua: bool,
        /// The last answer with this value.
        until: u64,
    },
    Read {
        op: OpId,
        value: u64,
    },
    Answer {
        op: OpId,
    },
    FlushCall {
        op: OpId,
    },
    FlushAnswer {
        op: OpId,
        client: u32,
        called: u64,
    },
    FlushFailed {
        op: OpId,
        client: u32,
        at: u64,
    },
    /// Answers before `silent` may have been sent before the crash. `held`: it undoes no acknowledged write.
    Crash {
        silent: u64,
        held: bool,
    },
    Fence {
        attach: u32,
    },
}

impl What {
    fn is_flush(&self) -> bool {
        matches!(self, What::FlushCall { .. } | What::FlushAnswer { .. } | What::FlushFailed { .. })
    }
}

impl fmt::Display for SectorEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>7} ", self.at)?;
        match self.what {
            What::Write { op, value, attach, client, answered, fua, .. } => write!(
                f,
                "write #{} of {value:016x}, client {client}, generation {attach}{}{}",
                op.0,
                if fua { ", FUA" } else { "" },
                if answered.is_some() { "" } else { ", never answered" }
            ),
            What::Read { op, value } => write!(f, "read #{} begins; its answer will be {value:016x}", op.0),
            What::Answer { op } => write!(f, "#{} answered", op.0),
            What::FlushCall { op } => write!(f, "flush #{} begins", op.0),
            What::FlushAnswer { op, .. } => write!(f, "flush #{} done", op.0),
            What::FlushFailed { op, .. } => write!(f, "flush #{} failed", op.0),
            What::Crash { held: false, .. } => write!(f, "every replica is down"),
            What::Crash { held: true, .. } => write!(f, "every member is down, one of a former view is not"),
            What::Fence { attach } => write!(f, "generation {attach} is attached"),
        }
    }
}
