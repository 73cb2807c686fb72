//! Linearizability of each key: puts with conditions, deletions, gets, and requests without an answer. Wing and Gong's
//! search, which remembers dead ends.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::map::{Set, set};
use rackweave_kv_replica::types::{Change, Condition};

type Value = Option<Bytes>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    Always,
    Absent,
    Is(Bytes),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `applied`: its answer, if there is one. `expires`: a deletion may follow at any time.
    Put {
        when: When,
        to: Value,
        applied: Option<bool>,
        expires: bool,
    },
    Get(Option<Value>),
}

impl Kind {
    pub fn put(condition: &Condition, change: &Change) -> Kind {
        let when = match condition {
            Condition::Absent => When::Absent,
            Condition::ValueIs(v) => When::Is(v.clone()),
            _ => When::Always,
        };
        let (to, expires) = match change {
            Change::Set { value, ttl } => (Some(value.clone()), ttl.is_some()),
            Change::Delete => (None, false),
        };
        Kind::Put { when, to, applied: None, expires }
    }
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

/// A search that takes more steps gives up, loudly.
const STEPS_MAX: usize = 4_000_000;

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

/// States after an operation, if it fits.
fn after(kind: &Kind, value: &Value, answered: bool) -> Option<Value> {
    match kind {
        Kind::Get(got) => (got.as_ref() == Some(value)).then(|| value.clone()),
        Kind::Put { when, to, applied, .. } => {
            let holds = match when {
                When::Always => true,
                When::Absent => value.is_none(),
                When::Is(v) => value.as_ref() == Some(v),
            };
            (!answered || *applied == Some(holds)).then(|| if holds { to.clone() } else { value.clone() })
        }
    }
}

/// Whether some order explains a key's history, from no value on.
pub fn check(ops: &[Op]) -> Result<(), String> {
    let mut h: Vec<&Op> = ops.iter().filter(|o| o.end != u64::MAX || matches!(o.kind, Kind::Put { .. })).collect();
    h.sort_by_key(|o| (o.start, o.end));
    let fleeting: Set<Bytes> = h
        .iter()
        .filter_map(|o| match &o.kind {
            Kind::Put { to: Some(v), expires: true, .. } => Some(v.clone()),
            _ => None,
        })
        .collect();
    let mut seen: Set<(Vec<u64>, Value)> = set();
    let mut stack = vec![(vec![0u64; h.len().div_ceil(64)], None)];
    let (mut best, mut steps) = (0, 0);
    while let Some((done, value)) = stack.pop() {
        steps += 1;
        if steps > STEPS_MAX {
            return Err(format!("the search of {} operations takes too long", h.len()));
        }
        let left = |i: &usize| done[i / 64] >> (i % 64) & 1 == 0;
        let first = (0..h.len()).find(left).unwrap_or(h.len());
        let Some(must) = (first..h.len()).filter(left).map(|i| h[i].end).filter(|e| *e != u64::MAX).min() else {
            return Ok(());
        };
        best = best.max(must);
        let mut next = Vec::new();
        for i in (first..h.len()).filter(left).take_while(|i| h[*i].start <= must) {
            let answered = h[i].end != u64::MAX;
            let Some(value_after) = after(&h[i].kind, &value, answered) else { continue };
            let mut bits = done.clone();
            bits[i / 64] |= 1 << (i % 64);
            // A get that fits, or a put that was refused, may come first: no order is lost.
            let idle = answered && matches!(h[i].kind, Kind::Get(_) | Kind::Put { applied: Some(false), .. });
            if idle {
                next.clear();
            }
            next.push((answered, (bits, value_after)));
            if idle {
                break;
            }
        }
        if value.as_ref().is_some_and(|v| fleeting.contains(v)) {
            next.push((false, (done.clone(), None)));
        }
        // Puts without an answer are tried last.
        next.sort_by_key(|(answered, _)| *answered);
        stack.extend(next.into_iter().map(|(_, s)| s).filter(|s| seen.insert(s.clone())));
    }
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
        Op { start, end, kind: Kind::Put { when: When::Always, to: v(n), applied, expires: false } }
    };
    let cas = |start, end, from: u32, n: u32, yes| {
        let when = When::Is(v(from).expect("some"));
        Op { start, end, kind: Kind::Put { when, to: v(n), applied: Some(yes), expires: false } }
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
        let kind = Kind::Put { when: When::Always, to: None, applied: Some(true), expires: false };
        Op { start, end, kind }
    };
    assert!(check(&[set(0, 5, 1), delete(0, 5), get(6, 7, None)]).is_ok(), "in either order");
    assert!(check(&[set(0, 1, 1), set(2, 3, 2), cas(4, 5, 2, 3, false)]).is_err(), "wrongly refused");
    let mut fleeting = set(0, 1, 1);
    fleeting.kind = Kind::Put { when: When::Always, to: v(1), applied: Some(true), expires: true };
    assert!(check(&[fleeting.clone(), get(2, 3, v(1)), get(4, 5, None)]).is_ok());
    assert!(check(&[fleeting, get(2, 3, None), get(4, 5, v(1))]).is_err(), "expired, then back");
}
