//! Linearizability of each key: puts with conditions, deletions, gets, and requests without an answer. Wing and Gong's
//! search, which remembers dead ends. Values are unique: one that is overwritten before an operation that saw it has had its
//! turn is a dead end too. Unanswered puts whose values nobody saw are alike.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::map::{Map, map};

type Value = Option<Bytes>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    Always,
    Absent,
    Present,
    Is(Bytes),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `applied`: its answer, if there is one. `expires`: a deletion may follow at any time. It has done so for what begins this many
    /// nanoseconds after the answer, but conditions on versions.
    Put {
        when: When,
        to: Value,
        applied: Option<bool>,
        expires: Option<u64>,
    },
    Get(Option<Value>),
}

#[derive(Clone, Debug)]
pub struct Op {
    pub start: u64,
    /// `u64::MAX`: no answer.
    pub end: u64,
    pub kind: Kind,
}

#[derive(Default)]
pub struct History {
    keys: BTreeMap<Bytes, Vec<Op>>,
}

/// A search that meets more states gives up, loudly.
const STATES_MAX: usize = 4_000_000;

impl History {
    pub fn call(&mut self, key: &Bytes, start: u64, kind: Kind) -> usize {
        let ops = self.keys.entry(key.clone()).or_default();
        ops.push(Op { start, end: u64::MAX, kind });
        ops.len() - 1
    }
    pub fn put_done(&mut self, key: &Bytes, op: usize, end: u64, yes: bool) {
        let op = &mut self.keys.get_mut(key).expect("it was called")[op];
        op.end = end;
        if let Kind::Put { applied, .. } = &mut op.kind {
            *applied = Some(yes);
        }
    }
    /// It had no effect: another part of its batch says why.
    pub fn void(&mut self, key: &Bytes, op: usize) {
        self.keys.get_mut(key).expect("it was called")[op].kind = Kind::Get(None);
    }
    pub fn get_done(&mut self, key: &Bytes, op: usize, end: u64, value: Value) {
        let op = &mut self.keys.get_mut(key).expect("it was called")[op];
        op.end = end;
        op.kind = Kind::Get(Some(value));
    }
    /// Keys and their histories that no order explains.
    pub fn violation(&self) -> Option<String> {
        self.keys.iter().find_map(|(k, ops)| check(ops).err().map(|e| format!("key {k:?}: {e}")))
    }
}

/// A key's value, numbered. Values that no get returned and no condition expects are alike: one that stays, and one that
/// may expire.
type State = u32;
const NONE: State = 0;
const UNSEEN: State = 1;
const UNSEEN_FLEETING: State = 2;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cond {
    Always,
    Absent,
    Present,
    Is(State),
}

/// An operation, as the search knows it.
#[derive(Clone, Copy)]
enum Step {
    Get(State),
    Put { when: Cond, to: State, applied: Option<bool> },
}

impl Step {
    /// The state after it, if it fits.
    fn after(&self, state: State) -> Option<State> {
        match *self {
            Step::Get(got) => (got == state).then_some(state),
            Step::Put { when, to, applied } => {
                let holds = match when {
                    Cond::Always => true,
                    Cond::Absent => state == NONE,
                    Cond::Present => state != NONE,
                    Cond::Is(v) => state == v,
                };
                applied.is_none_or(|a| a == holds).then_some(if holds { to } else { state })
            }
        }
    }
    /// Whether its condition is a version, which counts until it is deleted.
    fn is_of_version(&self) -> bool {
        matches!(self, Step::Put { when: Cond::Is(_), .. })
    }
    /// The value that the key had when it was answered.
    fn saw(&self) -> Option<State> {
        match *self {
            Step::Get(got) => Some(got),
            Step::Put { when: Cond::Is(v), applied: Some(true), .. } => Some(v),
            Step::Put { .. } => None,
        }
    }
}

/// A key's operations by start, without gets that have no answer.
struct Search<'a> {
    ops: Vec<&'a Op>,
    steps: Vec<Step>,
    /// Of each unanswered put, the one before it with the same effect. It can stand wherever the later one can, and goes
    /// first.
    twin: Vec<Option<usize>>,
    /// Of each state that one put alone can bring about, the operations that saw it: once it is left it never returns.
    saw: Vec<Option<Vec<usize>>>,
    fleeting: Vec<bool>,
    /// Of each state, when it has ended for what begins later.
    gone: Vec<u64>,
}

/// States that were met. One is no use if another, equal but for unanswered puts, has fewer of them behind it.
struct Seen {
    answered: Bits,
    met: Map<(Bits, State), Vec<Bits>>,
    count: usize,
}

impl Seen {
    fn new(ops: &[&Op]) -> Seen {
        let mut answered = vec![0; ops.len().div_ceil(64)];
        let of = ops.iter().enumerate().filter(|(_, o)| o.end != u64::MAX);
        of.for_each(|(i, _)| answered[i / 64] |= 1u64 << (i % 64));
        Seen { answered, met: map(), count: 0 }
    }
    /// Whether it is worth a look.
    fn insert(&mut self, done: &Bits, state: State) -> bool {
        let answered = done.iter().zip(&self.answered).map(|(d, a)| d & a).collect();
        let lost: Bits = done.iter().zip(&self.answered).map(|(d, a)| d & !a).collect();
        let met = self.met.entry((answered, state)).or_default();
        let within = |a: &Bits, b: &Bits| a.iter().zip(b).all(|(a, b)| a & !b == 0);
        if met.iter().any(|m| within(m, &lost)) {
            return false;
        }
        met.retain(|m| !within(&lost, m));
        met.push(lost);
        self.count += 1;
        true
    }
}

type Bits = Vec<u64>;
fn has(bits: &Bits, i: usize) -> bool {
    bits[i / 64] >> (i % 64) & 1 != 0
}

/// When the value of a put has ended for what begins later.
fn gone_at(o: &Op) -> u64 {
    match o.kind {
        Kind::Put { expires: Some(span), .. } => o.end.saturating_add(span),
        _ => u64::MAX,
    }
}

impl Search<'_> {
    fn of(ops: &[Op]) -> Search<'_> {
        let counts = |o: &&Op| o.end != u64::MAX || matches!(o.kind, Kind::Put { .. });
        let mut h: Vec<&Op> = ops.iter().filter(counts).collect();
        h.sort_by_key(|o| (o.start, o.end));
        let mut names: BTreeMap<&Bytes, State> = BTreeMap::new();
        for o in &h {
            let mut name = |v| {
                let next = names.len() as State + 3;
                names.entry(v).or_insert(next);
            };
            match &o.kind {
                Kind::Get(Some(Some(v))) | Kind::Put { when: When::Is(v), .. } => name(v),
                _ => {}
            }
            if let Kind::Put { to: Some(v), .. } = &o.kind
                && gone_at(o) != u64::MAX
            {
                name(v);
            }
        }
        let name = |v: &Value| v.as_ref().map_or(NONE, |v| names[v]);
        let mut fleeting = vec![false; names.len() + 3];
        fleeting[UNSEEN_FLEETING as usize] = true;
        let step = |o: &&Op| match &o.kind {
            Kind::Get(got) => Step::Get(name(got.as_ref().expect("it is answered"))),
            Kind::Put { when, to, applied, expires } => {
                let when = match when {
                    When::Always => Cond::Always,
                    When::Absent => Cond::Absent,
                    When::Present => Cond::Present,
                    When::Is(v) => Cond::Is(names[v]),
                };
                let unseen = if expires.is_some() { UNSEEN_FLEETING } else { UNSEEN };
                let to = to.as_ref().map_or(NONE, |v| names.get(v).copied().unwrap_or(unseen));
                Step::Put { when, to, applied: *applied }
            }
        };
        let steps: Vec<Step> = h.iter().map(step).collect();
        let (mut makers, mut gone) = (vec![0; fleeting.len()], vec![u64::MAX; fleeting.len()]);
        let mut last: BTreeMap<(Cond, State), usize> = BTreeMap::new();
        let mut twin = vec![None; h.len()];
        for (i, s) in steps.iter().enumerate() {
            let Step::Put { when, to, applied } = *s else { continue };
            makers[to as usize] += 1;
            fleeting[to as usize] |= matches!(h[i].kind, Kind::Put { expires: Some(_), .. });
            if to > UNSEEN_FLEETING {
                gone[to as usize] = gone_at(h[i]);
            }
            if applied.is_none() {
                twin[i] = last.insert((when, to), i);
            }
        }
        let mut saw: Vec<Option<Vec<usize>>> = makers.iter().map(|n| (*n <= 1).then(Vec::new)).collect();
        saw[..3].fill(None);
        for (i, s) in steps.iter().enumerate() {
            if let Some(Some(list)) = s.saw().map(|v| &mut saw[v as usize]) {
                list.push(i);
            }
        }
        Search { ops: h, steps, twin, saw, fleeting, gone }
    }

    /// Whether the state may be left after these operations.
    fn may_leave(&self, state: State, done: &Bits) -> bool {
        self.saw[state as usize].iter().flatten().all(|i| has(done, *i))
    }

    /// Whether some order explains the history, from no value on; otherwise when it cannot be continued.
    fn run(&self) -> Result<(), u64> {
        let n = self.ops.len();
        let mut seen = Seen::new(&self.ops);
        let mut stack = vec![(vec![0u64; n.div_ceil(64)], NONE)];
        let mut best = 0;
        while let Some((done, state)) = stack.pop() {
            if seen.count > STATES_MAX {
                return Err(u64::MAX);
            }
            let left = |i: &usize| !has(&done, *i);
            let first = (0..n).find(left).unwrap_or(n);
            let ends = (first..n).filter(left).map(|i| self.ops[i].end);
            let Some(must) = ends.filter(|e| *e != u64::MAX).min() else { return Ok(()) };
            best = best.max(must);
            let mut next = Vec::new();
            for i in (first..n).filter(left).take_while(|i| self.ops[*i].start <= must) {
                if self.ops[i].start > self.gone[state as usize] && !self.steps[i].is_of_version() {
                    continue;
                }
                let Some(after) = self.steps[i].after(state) else { continue };
                let answered = self.ops[i].end != u64::MAX;
                if !answered && (after == state || self.twin[i].is_some_and(|t| left(&t))) {
                    continue;
                }
                let mut bits = done.clone();
                bits[i / 64] |= 1 << (i % 64);
                // What is answered and changes nothing may come first: no order is lost.
                if answered && after == state && !matches!(self.steps[i], Step::Put { applied: Some(true), .. }) {
                    next = vec![(answered, (bits, after))];
                    break;
                }
                if after == state || self.may_leave(state, &bits) {
                    next.push((answered, (bits, after)));
                }
            }
            if self.fleeting[state as usize] && self.may_leave(state, &done) {
                next.push((false, (done.clone(), NONE)));
            }
            // Puts without an answer are tried last.
            next.sort_by_key(|(answered, _)| *answered);
            stack.extend(next.into_iter().map(|(_, s)| s).filter(|(bits, state)| seen.insert(bits, *state)));
        }
        Err(best)
    }
}

/// Whether some order explains a key's history, from no value on.
pub fn check(ops: &[Op]) -> Result<(), String> {
    let search = Search::of(ops);
    let h = &search.ops;
    let best = match search.run() {
        Ok(()) => return Ok(()),
        Err(u64::MAX) => return Err(format!("the search of {} operations takes too long", h.len())),
        Err(best) => best,
    };
    // Everything since the oldest request that was under way then.
    let open = h.iter().filter(|o| o.end >= best && o.end != u64::MAX && o.start <= best).map(|o| o.start);
    let from = open.min().unwrap_or(best).saturating_sub(20_000_000);
    let near: Vec<String> = h
        .iter()
        .filter(|o| o.end >= from && o.start <= best)
        .map(|o| format!("{}..{}: {:?}", o.start, if o.end == u64::MAX { 0 } else { o.end }, o.kind))
        .collect();
    Err(format!("no order explains what was answered by {best}:\n  {}", near.join("\n  ")))
}

#[test]
fn the_checker_tells_orders_from_disorder() {
    let v = |n: u32| Some(Bytes::from(format!("{n}")));
    let set = |start, end, n: u32| {
        let applied = (end != u64::MAX).then_some(true);
        Op { start, end, kind: Kind::Put { when: When::Always, to: v(n), applied, expires: None } }
    };
    let cas = |start, end, from: u32, n: u32, yes| {
        let when = When::Is(v(from).expect("some"));
        Op { start, end, kind: Kind::Put { when, to: v(n), applied: Some(yes), expires: None } }
    };
    let get = |start, end, value: Value| Op { start, end, kind: Kind::Get(Some(value)) };
    let never = u64::MAX;
    assert!(check(&[set(0, 10, 1), get(5, 6, None), get(7, 8, v(1))]).is_ok());
    assert!(check(&[set(0, 10, 1), get(5, 6, v(1)), get(7, 8, None)]).is_err(), "new, then old");
    assert!(check(&[set(0, 1, 1), get(2, 3, None)]).is_err(), "lost");
    assert!(check(&[set(0, never, 1), get(2, 3, None), get(4, 5, v(1))]).is_ok(), "late effect");
    assert!(check(&[set(0, never, 1), get(2, 3, v(1)), get(4, 5, None)]).is_err());
    assert!(check(&[set(0, 1, 1), cas(2, 9, 1, 2, true), cas(2, 9, 1, 3, true)]).is_err(), "one wins");
    assert!(check(&[set(0, 1, 1), cas(2, 9, 1, 2, true), cas(2, 9, 1, 3, false)]).is_ok());
    let delete = |start, end| {
        let kind = Kind::Put { when: When::Always, to: None, applied: Some(true), expires: None };
        Op { start, end, kind }
    };
    assert!(check(&[set(0, 5, 1), delete(0, 5), get(6, 7, None)]).is_ok(), "in either order");
    assert!(check(&[set(0, 1, 1), set(2, 3, 2), cas(4, 5, 2, 3, false)]).is_err(), "wrongly refused");
    let mut fleeting = set(0, 1, 1);
    let set_for = |span| Kind::Put { when: When::Always, to: v(1), applied: Some(true), expires: Some(span) };
    fleeting.kind = set_for(never);
    assert!(check(&[fleeting.clone(), get(2, 3, v(1)), get(4, 5, None)]).is_ok());
    assert!(check(&[fleeting.clone(), get(2, 3, None), get(4, 5, v(1))]).is_err(), "expired, then back");
    let on = |when, start, yes| {
        let kind = Kind::Put { when, to: v(2), applied: Some(yes), expires: None };
        Op { start, end: start + 1, kind }
    };
    assert!(check(&[fleeting.clone(), on(When::Present, 20, true)]).is_ok(), "by some clock");
    fleeting.kind = set_for(10);
    for (when, there) in [(When::Absent, false), (When::Present, true)] {
        for yes in [false, true] {
            assert!(check(&[fleeting.clone(), on(when.clone(), 5, yes)]).is_ok(), "it may have expired");
            assert_eq!(check(&[fleeting.clone(), on(when.clone(), 20, yes)]).is_ok(), yes != there, "it has expired");
        }
    }
    assert!(check(&[fleeting.clone(), get(20, 21, v(1))]).is_err(), "a get of it");
    assert!(check(&[fleeting, on(When::Is(Bytes::from_static(b"1")), 20, true)]).is_ok(), "its version is there");
}

/// The history of a register whose clients often give up: `ops` operations, of which about a third have no answer.
fn with_lost_answers(seed: u64, ops: usize) -> Vec<Op> {
    let mut rng = rackweave_core::Rng::new(seed);
    let (mut value, mut written): (Value, Vec<Bytes>) = (None, vec![Bytes::from_static(b"none")]);
    let mut history = Vec::new();
    // Each takes effect at a random time after its start, or never.
    let mut pending: Vec<(u64, Op)> = Vec::new();
    let mut now = 0;
    while history.len() + pending.len() < ops || !pending.is_empty() {
        now += 1;
        if history.len() + pending.len() < ops && pending.len() < 60 {
            let lost = rng.chance(0.35);
            let start = now * 10;
            let kind = if rng.chance(0.4) {
                Kind::Get(None)
            } else {
                let when = match rng.below(5) {
                    0 => When::Absent,
                    1 | 2 => When::Is(rng.pick(&written).clone()),
                    _ => When::Always,
                };
                let v = Bytes::from(format!("v{now}"));
                written.push(v.clone());
                let to = (!rng.chance(0.1)).then_some(v);
                Kind::Put { when, to, applied: None, expires: None }
            };
            let at = now + rng.between(1, if lost { 400 } else { 12 });
            pending.push((at, Op { start, end: if lost { u64::MAX } else { 0 }, kind }));
        }
        while let Some(i) = pending.iter().position(|(at, _)| *at <= now) {
            let mut op = pending.remove(i).1;
            let answered = op.end != u64::MAX;
            match &mut op.kind {
                Kind::Get(got) if answered => *got = Some(value.clone()),
                Kind::Get(_) => {}
                Kind::Put { when, to, applied, .. } => {
                    let holds = match when {
                        When::Always => true,
                        When::Absent => value.is_none(),
                        When::Present => value.is_some(),
                        When::Is(v) => value.as_ref() == Some(v),
                    };
                    let happens = answered || rng.chance(0.5);
                    if holds && happens {
                        value = to.clone();
                    }
                    *applied = answered.then_some(holds);
                }
            }
            if answered {
                op.end = now * 10 + rng.below(60);
            }
            history.push(op);
        }
    }
    history
}

#[test]
fn histories_with_many_lost_answers_are_decided() {
    let mut refused = 0;
    for seed in 0..20 {
        let mut h = with_lost_answers(seed, 700);
        assert_eq!(check(&h), Ok(()), "seed {seed}");
        // A get near the end returns the first value of all.
        let first = h.iter().find_map(|o| {
            if let Kind::Put { to: Some(v), applied: Some(true), .. } = &o.kind { Some(v.clone()) } else { None }
        });
        let late = h.iter_mut().rev().find(|o| o.end != u64::MAX && matches!(o.kind, Kind::Get(_))).expect("a get");
        late.kind = Kind::Get(Some(first));
        let error = check(&h).expect_err("a stale get");
        refused += u32::from(error.starts_with("no order"));
    }
    assert_eq!(refused, 20, "none took too long");
}
