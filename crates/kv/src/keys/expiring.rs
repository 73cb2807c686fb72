//! Keys that expire, by the time at which they do.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

/// Most keys that are kept; a search of all keys finds the others again.
pub const EXPIRING_MAX: usize = 1 << 20;

#[derive(Debug, Default)]
pub struct Expiring {
    at: BTreeMap<Bytes, u64>,
    order: BTreeSet<(u64, Bytes)>,
    /// Some key was left out.
    overflowed: bool,
}

impl Expiring {
    pub fn len(&self) -> usize {
        self.at.len()
    }
    /// The key's value has this expiry now.
    pub fn set(&mut self, key: &Bytes, expires: Option<u64>) {
        if let Some(old) = self.at.remove(key) {
            self.order.remove(&(old, key.clone()));
        }
        let Some(at) = expires else { return };
        if self.at.len() == EXPIRING_MAX {
            self.overflowed = true;
            return;
        }
        let key = Bytes::copy_from_slice(key);
        self.at.insert(key.clone(), at);
        self.order.insert((at, key));
    }
    pub fn is_due(&self, key: &Bytes, now: u64) -> bool {
        self.at.get(key).is_some_and(|at| *at <= now)
    }
    /// Takes up to `max` keys that are due. They are known again if they are found not to be.
    pub fn take_due(&mut self, now: u64, max: usize) -> Vec<Bytes> {
        let mut due = Vec::new();
        while due.len() < max
            && let Some((_, key)) = self.order.first().filter(|(at, _)| *at <= now).cloned()
        {
            self.set(&key, None);
            due.push(key);
        }
        due
    }
    /// The time at which the next key is due.
    pub fn next(&self) -> Option<u64> {
        self.order.first().map(|(at, _)| *at)
    }
    /// True once after a key was left out, when there is room for others.
    pub fn take_overflow(&mut self) -> bool {
        self.at.len() < EXPIRING_MAX / 2 && std::mem::take(&mut self.overflowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_in_order() {
        let (mut e, k) = (Expiring::default(), |n: u32| Bytes::from(n.to_string()));
        (0..10).for_each(|n| e.set(&k(n), Some(100 - u64::from(n))));
        e.set(&k(9), Some(200));
        e.set(&k(8), None);
        assert_eq!((e.next(), e.len()), (Some(93), 9));
        assert!(e.is_due(&k(7), 93) && !e.is_due(&k(6), 93) && !e.is_due(&k(8), 1000));
        assert_eq!(e.take_due(95, 2), [k(7), k(6)]);
        assert_eq!(e.take_due(95, 2), [k(5)]);
        assert_eq!(e.len(), 6);
    }
}
