//! The search behind the check of one sector: is there an order of its operations that explains every answer?
//!
//! Wing and Gong's search done forwards: the set of possible states of the sector is carried from event to event. A
//! state is the value, which pending operations have taken effect, and (where all replicas of the set crashed at some
//! time) the values the sector went through since the last completed flush: a crash may put back any of them. An answered
//! write that a crash undid may come back, as its client sends it again, until the sector is written anew; and by the
//! client's next completed flush it must have.
//!
//! Writes that are never answered multiply the states, as each may take effect at any later time or never. Two things are
//! left out of them, neither of which changes what is refused:
//! - *What nobody can see.* If such a write takes effect after the last answer with its value, or before one but nobody
//!   reads it, the same history without that effect is as good: no read, and no other write's answer, depends on it, and a
//!   crash that puts its value back could as well have put back the one before. So it takes effect no later than that
//!   answer, and one called after it not at all.
//! - *Which of two alike.* Let two of the same value and the same writer's generation be pending, the first called before
//!   the second. Where the second takes effect and the first has not, exchange their names from there on: both were called,
//!   neither is ever answered, and the same fences end both. So the one called first goes first.

use rackweave_core::map::{Map, Set, map, set};

use crate::check::history::{OpId, SectorEvent, What};

/// Operations pending on one sector at once; the workload keeps fewer, and unanswered ones end with the next fence.
const PENDING_MAX: usize = 64;
/// States carried at once, some 400 bytes each. Histories of the fault search need a few dozen, one in thousands half a million.
const STATES_MAX: usize = 1_000_000;

/// Why a sector's history is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    #[error("no order of the operations explains the answer of #{}", .op.0)]
    Unexplained { op: OpId },
    #[error("an answered write is lost, and no order of the operations has it back when flush #{} is done", .op.0)]
    Unflushed { op: OpId },
    #[error("more than {PENDING_MAX} operations pending at once")]
    TooManyPending,
    #[error("more than {STATES_MAX} possible states")]
    TooManyStates,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    value: u64,
    /// Pending operations that have taken effect, a bit a slot.
    done: u64,
    /// Values since the last completed flush, newest last.
    past: Vec<Past>,
    /// (flush, how much of `past` it covers when it completes).
    marks: Vec<(OpId, u16)>,
    /// The newest answered write that a crash undid.
    lost: Option<OpId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Past {
    value: u64,
    /// The slot of the write that made it, while that waits for its answer; else `NONE`.
    slot: u8,
    /// The write that made it.
    op: OpId,
}

const NONE: u8 = u8::MAX;
const NO_OP: OpId = OpId(u32::MAX);

/// What is known of a write after its answer.
#[derive(Clone, Copy, Debug)]
struct Written {
    value: u64,
    client: u32,
    attach: u32,
    answered: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    op: OpId,
    value: u64,
    write: bool,
    answered: Option<u64>,
    came: Option<u64>,
    fua: bool,
    attach: u32,
    /// Unanswered, it takes effect no later.
    until: u64,
    /// Fenced: what has not taken effect will not.
    closed: bool,
}

/// Reused between sectors.
pub(super) struct Search {
    states: Vec<State>,
    next: Vec<State>,
    seen: Set<State>,
    slots: [Option<Slot>; PENDING_MAX],
    /// The sector's set crashed at some time: `past` is kept.
    crashes: bool,
    /// Writes that are answered at some time.
    written: Map<OpId, Written>,
    /// The newest generation attached.
    attach: u32,
    /// When the present event was recorded.
    now: u64,
    /// Nothing is left out.
    plain: bool,
}

impl Search {
    pub fn new(plain: bool) -> Search {
        Search {
            states: Vec::new(),
            next: Vec::new(),
            seen: set(),
            slots: [None; PENDING_MAX],
            crashes: false,
            written: map(),
            attach: 0,
            now: 0,
            plain,
        }
    }

    /// Checks one sector, which begins as zeroes. The error names the place of the event that failed.
    pub fn run(&mut self, events: &[SectorEvent]) -> Result<(), (usize, SearchError)> {
        self.slots = [None; PENDING_MAX];
        self.crashes = events.iter().any(|e| matches!(e.what, What::Crash { .. }));
        self.states.clear();
        self.written.clear();
        self.attach = 0;
        let past = if self.crashes { vec![Past { value: 0, slot: NONE, op: NO_OP }] } else { Vec::new() };
        self.states.push(State { value: 0, done: 0, past, marks: Vec::new(), lost: None });
        for (i, e) in events.iter().enumerate() {
            self.now = e.at;
            self.event(e).map_err(|r| (i, r))?;
            if self.states.len() > STATES_MAX {
                return Err((i, SearchError::TooManyStates));
            }
        }
        Ok(())
    }

    fn event(&mut self, e: &SectorEvent) -> Result<(), SearchError> {
        match e.what {
            What::Write { op, value, attach, client, answered, came, fua, until } => {
                if let Some(answered) = answered.filter(|_| self.crashes) {
                    self.written.insert(op, Written { value, client, attach, answered });
                }
                let until = if answered.is_some() { u64::MAX } else { until };
                self.call(Slot { op, value, write: true, answered, came, fua, attach, until, closed: false })
            }
            What::Read { op, value } => {
                let (answered, attach, until, closed) = (Some(0), 0, u64::MAX, false);
                self.call(Slot { op, value, write: false, answered, came: answered, fua: false, attach, until, closed })
            }
            What::Answer { op } => self.answer(op),
            What::FlushCall { op } => {
                self.states.iter_mut().for_each(|s| s.marks.push((op, s.past.len() as u16 - 1)));
                Ok(())
            }
            What::FlushAnswer { op, client, called } => self.flushed(op, client, called),
            What::FlushFailed { op, client, at } => self.flush_failed(op, client, at),
            What::Crash { silent, held } => self.crash(silent, held),
            What::Fence { attach } => self.fence(attach),
        }
    }

    fn call(&mut self, slot: Slot) -> Result<(), SearchError> {
        let free = self.slots.iter_mut().find(|s| s.is_none()).ok_or(SearchError::TooManyPending)?;
        *free = Some(slot);
        Ok(())
    }

    /// Keeps the states in which `op` has taken effect, letting other pending ones go first.
    fn answer(&mut self, op: OpId) -> Result<(), SearchError> {
        let Some(i) = self.slots.iter().position(|s| s.is_some_and(|s| s.op == op)) else { return Ok(()) };
        let slot = self.slots[i].expect("found");
        self.expand(Some(i))?;
        self.states.retain(|s| s.done >> i & 1 == 1);
        if self.states.is_empty() {
            return Err(SearchError::Unexplained { op });
        }
        for s in &mut self.states {
            s.done &= !(1 << i);
            if slot.fua
                && let Some(p) = s.past.iter().position(|p| p.slot == i as u8)
            {
                drop_past(s, p);
            }
            s.past.iter_mut().filter(|p| p.slot == i as u8).for_each(|p| p.slot = NONE);
        }
        self.slots[i] = None;
        self.dedup();
        Ok(())
    }

    /// Adds every state reachable by letting pending operations take effect; `until`: not beyond that one's effect.
    fn expand(&mut self, until: Option<usize>) -> Result<(), SearchError> {
        self.seen.clear();
        self.next.clear();
        self.seen.extend(self.states.iter().cloned());
        while let Some(s) = self.states.pop() {
            let finished = until.is_some_and(|i| s.done >> i & 1 == 1);
            if !finished {
                if let Some(after) = self.comes_back(&s)
                    && self.seen.insert(after.clone())
                {
                    self.states.push(after);
                }
                for (i, slot) in self.slots.iter().enumerate() {
                    let may = |p: &Slot| !p.closed && (self.plain || p.until >= self.now) && s.done >> i & 1 == 0;
                    let Some(slot) = slot.filter(|p| may(p) && !self.another_first(&s, p)) else { continue };
                    let Some(after) = take_effect(&s, i, &slot, self.now, self.crashes) else { continue };
                    if self.seen.insert(after.clone()) {
                        self.states.push(after);
                    }
                }
                if self.seen.len() > STATES_MAX {
                    return Err(SearchError::TooManyStates);
                }
            }
            if finished || until.is_none() {
                self.next.push(s);
            }
        }
        std::mem::swap(&mut self.states, &mut self.next);
        Ok(())
    }

    /// One alike, called before, has not taken effect.
    fn another_first(&self, s: &State, slot: &Slot) -> bool {
        let alike = |o: &Slot| (o.value, o.attach) == (slot.value, slot.attach) && o.op < slot.op && !o.closed;
        let unanswered = |o: &Slot| o.write && o.answered.is_none();
        let waits = |(i, o): (usize, &Option<Slot>)| {
            s.done >> i & 1 == 0 && o.as_ref().is_some_and(|o| unanswered(o) && alike(o))
        };
        !self.plain && unanswered(slot) && self.slots.iter().enumerate().any(waits)
    }

    /// Every replica is down: the sector may be any value since the last completed flush. Writes that are undone and
    /// still wait for their answer must take effect again, unless the answer was on its way already. `held`: what was
    /// answered is not undone.
    fn crash(&mut self, silent: u64, held: bool) -> Result<(), SearchError> {
        self.expand(None)?;
        self.next.clear();
        let on_its_way = |s: &Option<Slot>| s.is_some_and(|s| !s.fua && s.came.is_some_and(|at| at < silent));
        let sent = self.slots.iter().enumerate().filter(|(_, s)| on_its_way(s)).fold(0u64, |m, (i, _)| m | 1 << i);
        for s in &self.states {
            for keep in 0..s.past.len() {
                let gone = &s.past[keep + 1..];
                let waits = |p: &&Past| p.slot != NONE;
                if held && !gone.iter().all(|p| waits(&p)) {
                    continue;
                }
                let undone = gone.iter().filter(waits).fold(0u64, |m, p| m | 1 << p.slot);
                let owed = |p: &&Past| p.slot == NONE && p.op != NO_OP;
                let lost = gone.iter().rev().find(owed).map(|p| p.op).or(s.lost);
                let marks = s.marks.iter().map(|m| (m.0, m.1.min(keep as u16))).collect();
                // What survived may not be on flash yet: without a flush another crash may go back further.
                let past = s.past[..=keep].to_vec();
                let after = State { value: s.past[keep].value, done: s.done & !undone, past, marks, lost };
                if undone & sent != 0 && !held {
                    let owed = |p: &&Past| if p.slot == NONE { p.op != NO_OP } else { sent >> p.slot & 1 == 1 };
                    let lost = gone.iter().rev().find(owed).map(|p| p.op);
                    self.next.push(State { done: s.done & !(undone & !sent), lost, ..after.clone() });
                }
                self.next.push(after);
            }
        }
        std::mem::swap(&mut self.states, &mut self.next);
        self.dedup();
        Ok(())
    }

    fn fence(&mut self, attach: u32) -> Result<(), SearchError> {
        let old = |s: &Slot| s.write && s.attach < attach && !s.closed;
        let undone = self.states.iter().any(|s| s.lost.is_some());
        if !undone && !self.slots.iter().flatten().any(old) {
            self.attach = self.attach.max(attach);
            return Ok(());
        }
        self.expand(None)?;
        self.attach = self.attach.max(attach);
        for i in 0..PENDING_MAX {
            let Some(slot) = &mut self.slots[i] else { continue };
            if !old(slot) {
                continue;
            }
            slot.closed = true;
            if slot.answered.is_none() {
                self.slots[i] = None;
                for s in &mut self.states {
                    s.done &= !(1 << i);
                    s.past.iter_mut().filter(|p| p.slot == i as u8).for_each(|p| p.slot = NONE);
                }
            }
        }
        self.dedup();
        Ok(())
    }

    /// An undone write is there again: its client sent it once more.
    fn comes_back(&self, s: &State) -> Option<State> {
        let op = s.lost?;
        let w = self.written.get(&op).filter(|w| w.attach >= self.attach)?;
        let mut after = s.clone();
        after.value = w.value;
        after.past.push(Past { value: w.value, slot: NONE, op });
        after.lost = None;
        Some(after)
    }

    /// What `client` was answered before it asked is there for good, crash or not.
    fn flushed(&mut self, op: OpId, client: u32, called: u64) -> Result<(), SearchError> {
        let owes = |s: &Search, op: OpId| s.written.get(&op).is_some_and(|w| w.client == client && w.answered < called);
        if self.states.iter().any(|s| s.lost.is_some_and(|op| owes(self, op))) {
            self.expand(None)?;
            let mut states = std::mem::take(&mut self.states);
            states.retain(|s| !s.lost.is_some_and(|op| owes(self, op)));
            self.states = states;
            if self.states.is_empty() {
                return Err(SearchError::Unflushed { op });
            }
        }
        let written = &self.written;
        let covered =
            |p: &Past| p.slot == NONE && written.get(&p.op).is_some_and(|w| w.client == client && w.answered < called);
        for s in &mut self.states {
            let own = s.past.iter().rposition(covered).unwrap_or(0);
            flush_done(s, op, own);
        }
        self.dedup();
        Ok(())
    }

    /// The client was told that what it wrote may be lost, and sends nothing of it again from now on.
    fn flush_failed(&mut self, op: OpId, client: u32, at: u64) -> Result<(), SearchError> {
        let told = |s: &Search, op: OpId| s.written.get(&op).is_some_and(|w| w.client == client && w.answered < at);
        if self.states.iter().any(|s| s.lost.is_some_and(|op| told(self, op))) {
            self.expand(None)?;
            let mut states = std::mem::take(&mut self.states);
            for s in &mut states {
                s.lost = s.lost.filter(|&op| !told(self, op));
            }
            self.states = states;
        }
        self.states.iter_mut().for_each(|s| s.marks.retain(|m| m.0 != op));
        self.dedup();
        Ok(())
    }

    fn dedup(&mut self) {
        if self.states.len() > 1 {
            self.seen.clear();
            let seen = &mut self.seen;
            self.states.retain(|s| seen.insert(s.clone()));
        }
    }
}

fn take_effect(s: &State, i: usize, slot: &Slot, now: u64, crashes: bool) -> Option<State> {
    if !slot.write && s.value != slot.value {
        return None;
    }
    let mut after = s.clone();
    after.done |= 1 << i;
    if slot.write {
        after.value = slot.value;
        // What nobody can see any more makes up for nothing.
        after.lost = after.lost.filter(|_| slot.until < now);
        if crashes {
            // One that nobody was answered is owed to nobody.
            let op = if slot.answered.is_some() { slot.op } else { NO_OP };
            after.past.push(Past { value: slot.value, slot: i as u8, op });
        }
    }
    Some(after)
}

/// Forgets the first `n` values: a crash cannot bring them back.
fn drop_past(s: &mut State, n: usize) {
    s.past.drain(..n);
    s.marks.iter_mut().for_each(|m| m.1 = m.1.saturating_sub(n as u16));
}

/// A flush covers what was there when it was asked for, and `own` values at least.
fn flush_done(s: &mut State, op: OpId, own: usize) {
    let marked = s.marks.iter().position(|m| m.0 == op).map_or(0, |i| s.marks.remove(i).1);
    drop_past(s, own.max(usize::from(marked)));
}
