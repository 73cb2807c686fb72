//! Who may change a key: one operation that depends on the value, or any number that do not. First come, first served.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Changes the key whatever its value is.
    Shared,
    /// Reads the value and then changes it: nothing else changes the key meanwhile.
    Alone,
}

#[derive(Debug, Default)]
struct Lock {
    shared: u32,
    alone: bool,
    queue: VecDeque<(usize, Mode)>,
}

impl Lock {
    fn admits(&self, mode: Mode) -> bool {
        !self.alone && (mode == Mode::Shared || self.shared == 0)
    }
    fn take(&mut self, mode: Mode) {
        match mode {
            Mode::Shared => self.shared += 1,
            Mode::Alone => self.alone = true,
        }
    }
}

/// Locks of keys, by the numbers of the operations that hold them or wait.
#[derive(Debug, Default)]
pub struct Locks(BTreeMap<Bytes, Lock>);

impl Locks {
    /// Whether the operation has the lock now; otherwise [`Locks::release`] returns it later.
    pub fn acquire(&mut self, key: &Bytes, mode: Mode, who: usize) -> bool {
        let lock = self.0.entry(key.clone()).or_default();
        let now = lock.queue.is_empty() && lock.admits(mode);
        if now {
            lock.take(mode);
        } else {
            lock.queue.push_back((who, mode));
        }
        now
    }
    /// Ends one holder's use; those that have the lock now.
    pub fn release(&mut self, key: &Bytes, mode: Mode) -> Vec<usize> {
        let mut next = Vec::new();
        let Some(lock) = self.0.get_mut(key) else { return next };
        match mode {
            Mode::Shared => lock.shared -= 1,
            Mode::Alone => lock.alone = false,
        }
        while let Some(&(who, mode)) = lock.queue.front().filter(|(_, mode)| lock.admits(*mode)) {
            lock.queue.pop_front();
            lock.take(mode);
            next.push(who);
        }
        if lock.queue.is_empty() && lock.shared == 0 && !lock.alone {
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
        let (mut l, k) = (Locks::default(), Bytes::from("k"));
        assert!(l.acquire(&k, Mode::Shared, 1) && l.acquire(&k, Mode::Shared, 2));
        assert!(!l.acquire(&k, Mode::Alone, 3) && !l.acquire(&k, Mode::Shared, 4) && !l.acquire(&k, Mode::Shared, 5));
        assert!(!l.acquire(&k, Mode::Alone, 6));
        assert!(l.acquire(&Bytes::from("other"), Mode::Alone, 7));
        assert_eq!(l.release(&k, Mode::Shared), []);
        assert_eq!(l.release(&k, Mode::Shared), [3]);
        assert_eq!(l.release(&k, Mode::Alone), [4, 5]);
        assert_eq!(l.release(&k, Mode::Shared), []);
        assert_eq!(l.release(&k, Mode::Shared), [6]);
        assert_eq!(l.release(&k, Mode::Alone), []);
        assert!(!l.is_empty());
        assert_eq!(l.release(&Bytes::from("other"), Mode::Alone), []);
        assert!(l.is_empty());
    }
}
