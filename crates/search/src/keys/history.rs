//! Linearizability of each key of each store: a register that is put, deleted and read. Requests that overlap are tried in every
//! order ("just-in-time linearization", Lowe 2017): when a request ends it must have taken effect in at least one of the orders that
//! explain all answers so far.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::Time;

/// A request of one key. Values are numbers, of which no two puts have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Put(u64),
    /// `existed`: as answered; `None`: unknown.
    Delete {
        existed: Option<bool>,
    },
    Get(Option<u64>),
}

#[derive(Clone, Copy, Debug)]
struct Op {
    kind: Kind,
    span: (Time, Time),
    /// It took effect; otherwise it did within its span, or never.
    sure: bool,
}

/// No order of the requests explains the answers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no order explains {kind:?}, answered at {end:?}; possible values before it were {values:?}")]
pub struct Unlinearizable {
    pub kind: Kind,
    pub end: Time,
    pub values: Vec<Option<u64>>,
}

/// By store and key.
#[derive(Debug, Default)]
pub struct History {
    keys: BTreeMap<(u32, u32), Vec<Op>>,
}

/// An explanation so far: the value, and the requests under way that took effect.
type State = (Option<u64>, BTreeSet<usize>);

impl History {
    /// A request of a key of a store, answered at the end of its span.
    pub fn add(&mut self, of: (u32, u32), kind: Kind, span: (Time, Time), sure: bool) {
        self.keys.entry(of).or_default().push(Op { kind, span, sure });
    }
    /// # Errors
    /// Store and key of the first request that nothing explains.
    pub fn check(&self) -> Result<(), (u32, u32, Unlinearizable)> {
        self.keys.iter().try_for_each(|(&(store, key), ops)| check(ops).map_err(|e| (store, key, e)))
    }
}

fn check(ops: &[Op]) -> Result<(), Unlinearizable> {
    // Of a begin and an end at one time the begin comes first: they may overlap.
    let begins = ops.iter().enumerate().map(|(i, op)| (op.span.0, false, i));
    let ends = ops.iter().enumerate().map(|(i, op)| (op.span.1, true, i));
    let mut events: Vec<(Time, bool, usize)> = begins.chain(ends).collect();
    events.sort_unstable();
    let mut under_way: BTreeSet<usize> = BTreeSet::new();
    let mut states: BTreeSet<State> = [(None, BTreeSet::new())].into();
    for (_, is_end, i) in events {
        if !is_end {
            under_way.insert(i);
            continue;
        }
        let reached = reachable(ops, &under_way, states.clone());
        let took = |s: &State| s.1.contains(&i) || !ops[i].sure;
        let next: BTreeSet<State> = reached.into_iter().filter(took).map(|s| without(s, i)).collect();
        if next.is_empty() {
            let values: BTreeSet<Option<u64>> = states.iter().map(|s| s.0).collect();
            let (kind, end) = (ops[i].kind, ops[i].span.1);
            return Err(Unlinearizable { kind, end, values: values.into_iter().collect() });
        }
        under_way.remove(&i);
        states = next;
    }
    Ok(())
}

fn without((value, mut done): State, i: usize) -> State {
    done.remove(&i);
    (value, done)
}

/// The states, and all to which further requests under way lead.
fn reachable(ops: &[Op], under_way: &BTreeSet<usize>, states: BTreeSet<State>) -> BTreeSet<State> {
    let mut all = states.clone();
    let mut new: Vec<State> = states.into_iter().collect();
    while let Some((value, done)) = new.pop() {
        for &i in under_way.difference(&done) {
            let after = match ops[i].kind {
                Kind::Put(v) => Some(v),
                Kind::Delete { existed } if existed.is_none_or(|e| e == value.is_some()) => None,
                Kind::Get(v) if v == value => value,
                Kind::Delete { .. } | Kind::Get(_) => continue,
            };
            let mut done = done.clone();
            done.insert(i);
            if all.insert((after, done.clone())) {
                new.push((after, done));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(ops: &[(Kind, u64, u64, bool)]) -> Result<(), Unlinearizable> {
        let mut h = History::default();
        ops.iter().for_each(|&(kind, a, b, sure)| h.add((0, 0), kind, (Time(a), Time(b)), sure));
        h.check().map_err(|e| e.2)
    }
    const GONE: Kind = Kind::Get(None);
    const fn deleted(existed: bool) -> Kind {
        Kind::Delete { existed: Some(existed) }
    }

    #[test]
    fn answers_that_an_order_explains() {
        use Kind::{Get, Put};
        assert_eq!(history(&[(Put(1), 0, 5, true), (Get(Some(1)), 6, 7, true), (deleted(true), 8, 9, true)]), Ok(()));
        // Either order of two puts, whose spans overlap.
        for last in [1, 2] {
            let both = [(Put(1), 0, 5, true), (Put(2), 1, 6, true), (Get(Some(last)), 7, 8, true)];
            assert_eq!(history(&both), Ok(()));
        }
        // One in doubt took effect, or did not.
        for found in [None, Some(1)] {
            assert_eq!(history(&[(Put(1), 0, 5, false), (Get(found), 6, 7, true)]), Ok(()));
        }
        assert_eq!(history(&[(Put(1), 0, 9, true), (Get(Some(1)), 1, 2, true), (deleted(false), 0, 9, true)]), Ok(()));
    }

    #[test]
    fn answers_that_no_order_explains() {
        use Kind::{Get, Put};
        let lost = [(Put(1), 0, 5, true), (GONE, 6, 7, true)];
        assert!(history(&lost).is_err_and(|e| e.values == [Some(1)]));
        let back = [(Put(1), 0, 1, true), (deleted(true), 2, 3, true), (Get(Some(1)), 4, 5, true)];
        assert!(history(&back).is_err(), "a deleted value returns");
        let twice = [(Put(1), 0, 9, true), (Put(2), 2, 3, true), (Get(Some(1)), 1, 2, true)];
        assert_eq!(history(&twice), Ok(()));
        let again = [twice.as_slice(), &[(Get(Some(2)), 4, 5, true), (Get(Some(1)), 6, 7, true)]].concat();
        assert!(history(&again).is_err(), "a put takes effect twice");
        let late = [(Put(1), 0, 5, false), (GONE, 6, 7, true), (Get(Some(1)), 8, 9, true)];
        assert!(history(&late).is_err(), "one in doubt takes effect after its answer");
        assert!(history(&[(deleted(true), 0, 1, true)]).is_err());
    }
}
