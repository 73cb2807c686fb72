//! Who may change a key: one operation at a time, from its look at the value until its change is submitted. First come,
//! first served.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

/// Locked keys, and the numbers of the operations that wait for them.
#[derive(Debug, Default)]
pub struct Locks(BTreeMap<Bytes, VecDeque<usize>>);

impl Locks {
    /// Whether the operation has the lock now; otherwise [`Locks::release`] returns it later.
    pub fn acquire(&mut self, key: &Bytes, who: usize) -> bool {
        if let Some(queue) = self.0.get_mut(key) {
            queue.push_back(who);
            return false;
        }
        self.0.insert(key.clone(), VecDeque::new());
        true
    }
    /// Ends the holder's use; who has the lock now.
    pub fn release(&mut self, key: &Bytes) -> Option<usize> {
        let next = self.0.get_mut(key)?.pop_front();
        if next.is_none() {
            self.0.remove(key);
        }
        next
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_the_order_of_the_requests() {
        let (mut l, k, other) = (Locks::default(), Bytes::from("k"), Bytes::from("other"));
        assert!(l.acquire(&k, 1) && !l.acquire(&k, 2) && !l.acquire(&k, 3) && l.acquire(&other, 4));
        assert_eq!((l.release(&k), l.release(&k), l.release(&other)), (Some(2), Some(3), None));
        assert!(!l.is_empty());
        assert_eq!((l.release(&k), l.is_empty()), (None, true));
    }
}
