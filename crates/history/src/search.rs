//! Linearizability check of one sector: is there an order of its operations that explains every answer?
//!
//! Wing and Gong's search (in Lowe's form, with a memory of failed states): from event to event it follows one possible
//! state of the sector, and the others when that fails. A correct history thus needs memory in proportion to its
//! length, and every history is decided; the memory of failures is bounded, and only saves time. A state is the value,
//! the pending operations that have taken effect, and (if all replicas of the set crashed at some time) the values of
//! the sector since the last completed flush: a crash may restore any of them. An acknowledged write that a crash undid
//! may return, because its client sends it again, until the sector is overwritten; by the client's next completed flush
//! it must have returned. After the last crash earlier values do not count.
//!
//! *Search order* decides between a few steps and millions when many writes are pending. A pending operation takes
//! effect only when an answer, a crash or a fence requires it. Before a write whose value is read later, the search
//! places those that will be answered by then and could only hide it, with the one that is read last as the last.
//!
//! Unanswered writes multiply the states, because each may take effect at any later time or never. Two reductions
//! apply; neither changes what is refused:
//! - *Unobservable effects.* If such a write takes effect after the last answer with its value, or before another write
//!   without a read of it, the same history without that effect is equally valid: no read and no other write's answer
//!   depends on it, and a crash that restores its value could also have restored the previous one. So it takes effect no
//!   later than that answer, and one called after it not at all.
//! - *Symmetric writes.* Let two pending writes have the same value and writer's generation, the first called before
//!   the second. If the second takes effect and the first has not, their names can be exchanged from there on: both were
//!   called, neither is ever answered, and the same fences end both. So the one called first goes first.
//!   neither is ever answered, and the same fences end both. So the one called first goes first.

use rackweave_core::map::{Map, Set, map, set};
use rackweave_core::rng::mix64;

use crate::history::{OpId, SectorEvent, What};

/// Most operations pending on one sector: clients keep a few dozen, and unanswered ones end with the next fence or when
/// they become unobservable.
const PENDING_MAX: usize = 128;
/// Failed states remembered, 16 bytes each. Beyond it they are dropped and may be visited again.
const FAILED_MAX: usize = 2_000_000;

/// Why a sector's history is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    #[error("no order of the operations explains the answer of #{}", .op.0)]
    Unexplained { op: OpId },
    #[error("an answered write is lost, and no order of the operations has it back when flush #{} is done", .op.0)]
    Unflushed { op: OpId },
    #[error("more than {PENDING_MAX} operations pending at once")]
    TooManyPending,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    value: u64,
    /// Pending operations that have taken effect, one bit per slot.
    done: u128,
    /// Values since the last completed flush, newest last.
    past: Vec<Past>,
    /// (flush, length of `past` that it covers when it completes).
    marks: Vec<(OpId, u16)>,
    /// The newest acknowledged write that a crash undid.
    lost: Option<OpId>,
}

impl State {
    /// Two independent sums: no two different states ever visited have the same.
    fn sum(&self, event: usize) -> u128 {
        let mut sums = [event as u64, !(event as u64)];
        let mut add = |n: u64| sums = [mix64(sums[0] ^ n), mix64(sums[1].wrapping_add(n).rotate_left(23))];
        [self.value, self.done as u64, (self.done >> 64) as u64, self.lost.map_or(u64::MAX, |op| u64::from(op.0))]
            .into_iter()
            .for_each(&mut add);
        add((self.past.len() as u64) << 32 | self.marks.len() as u64);
        for p in &self.past {
            add(p.value);
            add(u64::from(p.op.0) << 8 | u64::from(p.slot));
        }
        for m in &self.marks {
            add(u64::from(m.0.0) << 16 | u64::from(m.1));
        }
        u128::from(sums[0]) << 64 | u128::from(sums[1])
    }
    /// The slots may be reused from now on.
    fn release(&mut self, slots: u128) {
        self.done &= !slots;
        self.past.iter_mut().filter(|p| p.slot != NONE && slots >> p.slot & 1 == 1).for_each(|p| p.slot = NONE);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Past {
    value: u64,
    /// The slot of the write that produced it, while its answer is pending; otherwise `NONE`.
    slot: u8,
    /// The write that produced it.
    op: OpId,
}

const NONE: u8 = u8::MAX;
const NO_OP: OpId = OpId(u32::MAX);

/// State of a write after its answer.
#[derive(Clone, Copy, Debug)]
struct Written {
    value: u64,
    client: u32,
    attach: u32,
    answered: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Its slot number and bit.
    at: u8,
    op: OpId,
    value: u64,
    write: bool,
    answered: Option<u64>,
    arrived: Option<u64>,
    fua: bool,
    attach: u32,
    /// The last answer with its value.
    seen: u64,
    /// If unanswered, it takes effect no later.
    until: u64,
    /// Fenced: if it has not taken effect, it never will.
    closed: bool,
}

/// An event, and the common part of all states there.
#[derive(Debug)]
struct Step {
    what: What,
    now: u64,
    /// Operations pending then, including one that the event answers, excluding one that it calls.
    pending: Vec<Slot>,
    /// Slots that are free afterwards.
    freed: u128,
    /// The newest generation attached before.
    attach: u32,
    /// Whether a crash follows, so that the past counts.
    past: bool,
}

/// Reused between sectors.
pub(super) struct Search {
    steps: Vec<Step>,
    /// States to visit; the last comes first.
    open: Vec<(usize, State)>,
    failed: Set<u128>,
    /// Writes that are answered at some time.
    written: Map<OpId, Written>,
    /// Of each value, the times of the last read and of the last write.
    values: Map<u64, (u64, u64)>,
    /// Without reductions.
    plain: bool,
}

impl Search {
    pub fn new(plain: bool) -> Search {
        Search { steps: Vec::new(), open: Vec::new(), failed: set(), written: map(), values: map(), plain }
    }

    /// Checks one sector, which begins as zeroes. The error contains the position of the failing event.
    pub fn run(&mut self, events: &[SectorEvent]) -> Result<(), (usize, SearchError)> {
        self.lay_out(events)?;
        self.open.clear();
        self.failed.clear();
        let crashes = self.steps.first().is_some_and(|s| s.past);
        let past = if crashes { vec![Past { value: 0, slot: NONE, op: NO_OP }] } else { Vec::new() };
        self.open.push((0, State { value: 0, done: 0, past, marks: Vec::new(), lost: None }));
        let mut furthest = 0;
        while let Some((at, state)) = self.open.pop() {
            furthest = furthest.max(at);
            if at == self.steps.len() {
                return Ok(());
            }
            let from = self.open.len();
            self.successors(at, state);
            // The best was found first, and must be on top.
            self.open[from..].reverse();
        }
        let reason = match self.steps[furthest].what {
            What::Answer { op } => SearchError::Unexplained { op },
            What::FlushAnswer { op, .. } => SearchError::Unflushed { op },
            ref other => unreachable!("every state gets past {other:?}"),
        };
        Err((furthest, reason))
    }

    /// Assigns slots, generations and later events, which are the same for every order.
    fn lay_out(&mut self, events: &[SectorEvent]) -> Result<(), (usize, SearchError)> {
        self.steps.clear();
        self.written.clear();
        self.values.clear();
        let last_crash = events.iter().rposition(|e| matches!(e.what, What::Crash { .. }));
        let mut pending: Vec<Slot> = Vec::new();
        let mut attach = 0;
        for (i, e) in events.iter().enumerate() {
            let past = last_crash.is_some_and(|c| i <= c || self.plain);
            let mut step = Step { what: e.what, now: e.at, pending: pending.clone(), freed: 0, attach, past };
            match e.what {
                What::Write { op, value, attach, client, answered, arrived, fua, until } => {
                    if let Some(answered) = answered.filter(|_| last_crash.is_some()) {
                        self.written.insert(op, Written { value, client, attach, answered });
                    }
                    self.values.entry(value).or_default().1 = e.at;
                    let seen = until;
                    let until = if answered.is_some() { u64::MAX } else { until };
                    let (at, write, closed) = (0, true, false);
                    let s = Slot { at, op, value, write, answered, arrived, fua, attach, seen, until, closed };
                    step.freed = call(&mut pending, s, e.at).map_err(|r| (i, r))?;
                }
                What::Read { op, value } => {
                    self.values.entry(value).or_default().0 = e.at;
                    let (answered, arrived, until) = (Some(0), Some(0), u64::MAX);
                    let (at, write, fua, attach, seen, closed) = (0, false, false, 0, 0, false);
                    let s = Slot { at, op, value, write, answered, arrived, fua, attach, seen, until, closed };
                    step.freed = call(&mut pending, s, e.at).map_err(|r| (i, r))?;
                }
                What::Answer { op } => {
                    if let Some(at) = pending.iter().position(|s| s.op == op) {
                        step.freed = 1 << pending.remove(at).at;
                    }
                }
                What::Fence { attach: newest } => {
                    attach = attach.max(newest);
                    for s in pending.iter_mut().filter(|s| s.write && s.attach < newest) {
                        s.closed = true;
                        step.freed |= if s.answered.is_none() { 1 << s.at } else { 0 };
                    }
                    pending.retain(|s| step.freed >> s.at & 1 == 0);
                }
                _ => {}
            }
            self.steps.push(step);
        }
        Ok(())
    }

    /// Adds the possible successors, the likeliest first.
    fn successors(&mut self, at: usize, s: State) {
        let step = &self.steps[at];
        let owes = |client: u32, before: u64| {
            let owed = |op: &OpId| self.written.get(op).is_some_and(|w| w.client == client && w.answered < before);
            s.lost.as_ref().is_some_and(owed)
        };
        match step.what {
            What::Answer { op } => {
                match step.pending.iter().find(|p| p.op == op).copied() {
                    Some(slot) if s.done >> slot.at & 1 == 0 => self.take_effects(at, &s, Some(slot)),
                    slot => self.answer(at, s, slot),
                };
            }
            What::FlushAnswer { client, called, .. } if owes(client, called) => self.take_effects(at, &s, None),
            What::FlushFailed { op, client, at: told } => {
                let owed = owes(client, told);
                let mut after = s.clone();
                after.marks.retain(|m| m.0 != op);
                after.lost = after.lost.filter(|_| !owed);
                self.go_on(at + 1, after);
                if owed {
                    self.take_effects(at, &s, None);
                }
            }
            What::FlushAnswer { op, client, called } => {
                let mut s = s;
                self.flushed(&mut s, op, client, called);
                self.go_on(at + 1, s);
            }
            What::FlushCall { op } => {
                let mut s = s;
                if let Some(last) = s.past.len().checked_sub(1).filter(|_| step.past) {
                    s.marks.push((op, last as u16));
                }
                self.go_on(at + 1, s);
            }
            What::Crash { silent, held } => {
                self.crash(at, &s, silent, held);
                self.take_effects(at, &s, None);
            }
            What::Fence { attach } => {
                let must = |p: &&Slot| p.write && p.attach < attach && p.answered.is_some() && s.done >> p.at & 1 == 0;
                let old = step.pending.iter().any(|p| p.write && p.attach < attach && !p.closed);
                let first = step.pending.iter().filter(|p| !p.closed).find(must).copied();
                let (expands, freed) = (old || s.lost.is_some(), step.freed);
                if first.is_some() {
                    self.take_effects(at, &s, first);
                }
                let mut after = s.clone();
                after.release(freed);
                self.go_on(at + 1, after);
                if expands && first.is_none() {
                    self.take_effects(at, &s, None);
                }
            }
            What::Write { .. } | What::Read { .. } => {
                let freed = step.freed;
                let mut s = s;
                s.release(freed);
                self.go_on(at + 1, s);
            }
        }
    }

    fn go_on(&mut self, at: usize, mut s: State) {
        if !self.steps.get(at).is_some_and(|step| step.past) {
            s.past.clear();
            s.marks.clear();
        }
        if self.failed.len() >= FAILED_MAX {
            self.failed.clear();
        }
        // All open states under it fail as well.
        if self.failed.insert(s.sum(at)) {
            self.open.push((at, s));
        }
    }

    /// The operation has taken effect, and is answered.
    fn answer(&mut self, at: usize, mut s: State, slot: Option<Slot>) {
        if let Some(slot) = slot {
            if slot.fua
                && let Some(p) = s.past.iter().position(|p| p.slot == slot.at)
            {
                drop_past(&mut s, p);
            }
            s.release(1 << slot.at);
        }
        self.go_on(at + 1, s);
    }

    /// Adds every state in which one more pending operation has taken effect; `wanted`: as a step towards this one.
    fn take_effects(&mut self, at: usize, s: &State, wanted: Option<Slot>) {
        let step = &self.steps[at];
        let may = |p: &&Slot| {
            !p.closed
                && (self.plain || p.until >= step.now)
                && s.done >> p.at & 1 == 0
                && !self.another_first(step, s, p)
        };
        let mut able: Vec<Slot> = step.pending.iter().filter(may).copied().collect();
        // The write that a read waits for.
        let made = |p: &&Slot| wanted.is_some_and(|w| !w.write && s.value != w.value && p.write && p.value == w.value);
        let wanted = able.iter().find(made).copied().or(wanted);
        if let Some(w) = wanted {
            let hides = |p: &Slot| p.write && p.op != w.op && w.write && p.answered.is_some_and(|a| a < w.seen);
            able.sort_by_key(|p| match hides(p) {
                true => (0, p.seen, p.op),
                false => (if p.op == w.op { 1 } else { 2 }, p.seen, p.op),
            });
        }
        let (past, now) = (step.past, step.now);
        let back = self.comes_back(step, s);
        let hidden = !self.plain && self.read_for_ever(step, s);
        for slot in able.into_iter().filter(|p| !(hidden && p.write && p.value != s.value)) {
            if let Some(after) = take_effect(s, &slot, now, past) {
                self.go_on(at, after);
            }
        }
        if let Some(after) = back {
            self.go_on(at, after);
        }
    }

    /// Whether the value will be read, and cannot return once it is overwritten.
    fn read_for_ever(&self, step: &Step, s: &State) -> bool {
        let (read, written) = self.values.get(&s.value).copied().unwrap_or_default();
        let pending = |p: &Slot| p.write && p.value == s.value && s.done >> p.at & 1 == 0;
        let asked = |p: &Slot| !p.write && p.value == s.value && s.done >> p.at & 1 == 0;
        let lost = s.lost.and_then(|op| self.written.get(&op)).is_some_and(|w| w.value == s.value);
        (read > step.now || step.pending.iter().any(asked))
            && written <= step.now
            && !step.past
            && !lost
            && !step.pending.iter().any(pending)
    }

    /// Whether a symmetric write, called earlier, has not taken effect.
    fn another_first(&self, step: &Step, s: &State, slot: &Slot) -> bool {
        let alike = |o: &Slot| (o.value, o.attach) == (slot.value, slot.attach) && o.op < slot.op && !o.closed;
        let unanswered = |o: &Slot| o.write && o.answered.is_none();
        let waits = |o: &Slot| s.done >> o.at & 1 == 0 && unanswered(o) && alike(o);
        !self.plain && unanswered(slot) && step.pending.iter().any(waits)
    }

    /// Every replica is down: the sector may have any value since the last completed flush. Undone writes with a
    /// pending answer must take effect again, unless the answer was already in flight. `held`: acknowledged writes are
    /// not undone.
    fn crash(&mut self, at: usize, s: &State, silent: u64, held: bool) {
        let on_its_way = |s: &&Slot| !s.fua && s.arrived.is_some_and(|at| at < silent);
        let sent = self.steps[at].pending.iter().filter(on_its_way).fold(0u128, |m, s| m | 1 << s.at);
        for keep in (0..s.past.len()).rev() {
            let gone = &s.past[keep + 1..];
            let waits = |p: &&Past| p.slot != NONE;
            if held && !gone.iter().all(|p| waits(&p)) {
                continue;
            }
            let undone = gone.iter().filter(waits).fold(0u128, |m, p| m | 1 << p.slot);
            let owed = |p: &&Past| p.slot == NONE && p.op != NO_OP;
            let lost = gone.iter().rev().find(owed).map(|p| p.op).or(s.lost);
            let marks = s.marks.iter().map(|m| (m.0, m.1.min(keep as u16))).collect();
            // The surviving contents may not be on flash yet: without a flush another crash may go back further.
            let past = s.past[..=keep].to_vec();
            let after = State { value: s.past[keep].value, done: s.done & !undone, past, marks, lost };
            if undone & sent != 0 && !held {
                let owed = |p: &&Past| if p.slot == NONE { p.op != NO_OP } else { sent >> p.slot & 1 == 1 };
                let lost = gone.iter().rev().find(owed).map(|p| p.op);
                self.go_on(at + 1, State { done: s.done & !(undone & !sent), lost, ..after.clone() });
            }
            self.go_on(at + 1, after);
        }
    }

    /// An undone write has returned: its client sent it again.
    fn comes_back(&self, step: &Step, s: &State) -> Option<State> {
        let op = s.lost?;
        let w = self.written.get(&op).filter(|w| w.attach >= step.attach)?;
        let mut after = s.clone();
        after.value = w.value;
        if step.past {
            after.past.push(Past { value: w.value, slot: NONE, op });
        }
        after.lost = None;
        Some(after)
    }

    /// Writes acknowledged to `client` before its request are permanent, crash or not.
    fn flushed(&self, s: &mut State, op: OpId, client: u32, called: u64) {
        let covered = |p: &Past| {
            let of_client = |w: &Written| w.client == client && w.answered < called;
            p.slot == NONE && self.written.get(&p.op).is_some_and(of_client)
        };
        let own = s.past.iter().rposition(covered).unwrap_or(0);
        flush_done(s, op, own);
    }
}

/// Gives the operation a slot; returns the slots of others that became unobservable.
fn call(pending: &mut Vec<Slot>, mut slot: Slot, now: u64) -> Result<u128, SearchError> {
    let taken = |pending: &[Slot]| pending.iter().fold(0u128, |m, s| m | 1 << s.at);
    let mut freed = 0;
    if pending.len() == PENDING_MAX {
        let before = taken(pending);
        pending.retain(|s| s.until >= now);
        freed = before & !taken(pending);
    }
    slot.at = taken(pending).trailing_ones() as u8;
    if usize::from(slot.at) >= PENDING_MAX {
        return Err(SearchError::TooManyPending);
    }
    pending.push(slot);
    Ok(freed)
}

fn take_effect(s: &State, slot: &Slot, now: u64, past: bool) -> Option<State> {
    if !slot.write && s.value != slot.value {
        return None;
    }
    let mut after = s.clone();
    after.done |= 1 << slot.at;
    if slot.write {
        after.value = slot.value;
        // An unobservable write does not replace a lost one.
        after.lost = after.lost.filter(|_| slot.until < now);
        if past {
            // An unanswered write is not owed to its client.
            let op = if slot.answered.is_some() { slot.op } else { NO_OP };
            after.past.push(Past { value: slot.value, slot: slot.at, op });
        }
    }
    Some(after)
}

/// Drops the first `n` values: no crash can restore them.
fn drop_past(s: &mut State, n: usize) {
    s.past.drain(..n.min(s.past.len()));
    s.marks.iter_mut().for_each(|m| m.1 = m.1.saturating_sub(n as u16));
}

/// A flush covers the contents at its request, and at least the `own` values.
fn flush_done(s: &mut State, op: OpId, own: usize) {
    let marked = s.marks.iter().position(|m| m.0 == op).map_or(0, |i| s.marks.remove(i).1);
    drop_past(s, own.max(usize::from(marked)));
}
