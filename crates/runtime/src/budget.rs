//! The memory bound shared by all connections of a process (protocol rule 33).
//!
//! Each connection has a share of its own. More is granted from a pool, first come, first served; until then the
//! connection is not read. A connection that holds part of the pool without progress while others wait is closed.
//! Otherwise a few silent clients would block all others that need more than their share.

use std::collections::VecDeque;

use std::sync::OnceLock;

use rackweave_core::{Span, Time};

/// A connection that holds part of the pool while others wait must move [`PROGRESS_BYTES`] in this time.
pub const STALL_MAX: Span = Span::from_secs(10);
/// 100 kB/s: less than the slowest link that a disk is used over.
const PROGRESS_BYTES: usize = 1 << 20;
/// Fraction of the budget that is divided among connections; the rest is the pool.
const SHARED_OUT: (usize, usize) = (7, 8);

static GIVE_BACK: OnceLock<fn()> = OnceLock::new();

/// Sets the function that returns the allocator's free memory to the system. It is called after a peak, on the thread
/// that held the memory.
pub fn give_back_by(allocator: fn()) {
    let _ = GIVE_BACK.set(allocator);
}

pub(super) fn give_back() {
    if let Some(allocator) = GIVE_BACK.get() {
        allocator();
    }
}

/// One connection's part of the budget.
#[derive(Clone, Copy, Debug, Default)]
pub struct Account {
    /// Bytes held when last checked.
    held: usize,
    /// Bytes granted from the pool.
    extra: usize,
    waits: bool,
    /// Bytes moved since the last progress.
    moved: usize,
    since: Time,
}

/// The memory budget of the process.
#[derive(Debug)]
pub struct Budget {
    bytes: usize,
    share: usize,
    pool: usize,
    pool_used: usize,
    held: usize,
    /// Most bytes held since memory was last returned to the system.
    peak: usize,
    /// Connections that wait for the pool, oldest first.
    queue: VecDeque<Waiting>,
    closed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    key: usize,
    /// Bytes of the pool that it holds, and that it needs to continue.
    extra: usize,
    wanted: usize,
}

impl Waiting {
    /// It holds nothing of the pool, so it is served in order. A connection that holds some may be the one that others
    /// wait for.
    fn first_served(&self) -> bool {
        self.extra == 0
    }
}

impl Account {
    /// Records `bytes` sent or received.
    pub fn moved(&mut self, now: Time, bytes: usize) {
        self.moved += bytes;
        if self.moved >= PROGRESS_BYTES {
            (self.moved, self.since) = (0, now);
        }
    }
    /// It has held part of the pool without progress for too long.
    pub fn stalled(&self, now: Time) -> bool {
        self.extra > 0 && now.since(self.since) > STALL_MAX && !mutant!("runtime.budget.stalled-stays")
    }
}

impl Budget {
    /// A budget of `bytes` for at most `connections` connections.
    pub fn new(bytes: usize, connections: usize) -> Budget {
        let shared = bytes / SHARED_OUT.1 * SHARED_OUT.0;
        let (share, pool) = (shared / connections, bytes - shared);
        Budget { bytes, share, pool, pool_used: 0, held: 0, peak: 0, queue: VecDeque::new(), closed: 0 }
    }

    /// Sets the memory that connection `key` may hold; it holds `held` bytes and could continue with `needs`.
    pub fn settle(&mut self, now: Time, key: usize, account: &mut Account, held: usize, needs: Option<usize>) -> usize {
        self.held = self.held - account.held + held;
        self.peak = self.peak.max(self.held);
        account.held = held;
        let others = self.pool_used - account.extra;
        let least = held.saturating_sub(self.share);
        let wanted = needs.map_or(least, |n| n.max(held).saturating_sub(self.share));
        let fits = others + wanted <= self.pool || mutant!("runtime.budget.unbounded");
        let granted = wanted <= least || (fits && (self.is_next(key) || mutant!("runtime.budget.unfair")));
        if account.extra == 0 {
            (account.moved, account.since) = (0, now);
        }
        account.extra = if granted { wanted } else { least };
        self.pool_used = others + account.extra;
        let waiting = Waiting { key, extra: account.extra, wanted };
        match (granted, account.waits) {
            (false, false) => self.queue.push_back(waiting),
            (false, true) => self.queue.iter_mut().filter(|w| w.key == key).for_each(|w| *w = waiting),
            (true, true) => self.queue.retain(|w| w.key != key),
            (true, false) => {}
        }
        account.waits = !granted;
        self.share + account.extra
    }

    /// The connection is closed.
    pub fn leave(&mut self, key: usize, account: &Account) {
        self.held -= account.held;
        self.pool_used -= if mutant!("runtime.budget.leaks") { 0 } else { account.extra };
        if account.waits {
            self.queue.retain(|w| w.key != key);
        }
    }

    fn is_next(&self, key: usize) -> bool {
        !self.queue.iter().take_while(|w| w.key != key).any(Waiting::first_served)
    }

    /// The longest-waiting connection whose request can be granted.
    pub fn next_waiting(&self) -> Option<usize> {
        for w in &self.queue {
            if self.pool_used - w.extra + w.wanted <= self.pool {
                return Some(w.key);
            }
            if w.first_served() {
                return None;
            }
        }
        None
    }
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }
    /// Counts a connection that was closed because others waited.
    pub fn count_closed(&mut self) {
        self.closed += 1;
    }
    pub fn closed(&self) -> u64 {
        self.closed
    }
    pub fn bytes(&self) -> usize {
        self.bytes
    }
    pub fn held(&self) -> usize {
        self.held
    }
    /// True once after usage has fallen far below its peak: the allocator should return memory to the system.
    pub fn has_shrunk(&mut self) -> bool {
        let shrunk = self.peak - self.held > self.bytes / 16;
        if shrunk {
            self.peak = self.held;
        }
        shrunk
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Rng;
    use rackweave_core::rng::seeds;

    use super::*;

    const MIB: usize = 1 << 20;

    /// Connections that hold all they are granted, while they want more.
    struct Crowd {
        budget: Budget,
        all: Vec<(Account, usize)>,
        now: Time,
    }

    impl Crowd {
        fn new(bytes: usize, n: usize) -> Crowd {
            Crowd { budget: Budget::new(bytes, n), all: vec![(Account::default(), 0); n], now: Time::ZERO }
        }
        /// Connection `i` requests `more` bytes; returns whether they were granted.
        fn wants(&mut self, i: usize, more: usize) -> bool {
            let (account, held) = &mut self.all[i];
            let limit = self.budget.settle(self.now, i, account, *held, Some(*held + more));
            let fits = *held + more <= limit;
            if fits {
                *held += more;
                self.budget.settle(self.now, i, account, *held, None);
            }
            fits
        }
        fn frees(&mut self, i: usize) {
            let (account, held) = &mut self.all[i];
            *held = 0;
            self.budget.settle(self.now, i, account, 0, None);
        }
        fn total(&self) -> usize {
            self.all.iter().map(|c| c.1).sum()
        }
    }

    /// A crowd, with the connections whose last request was refused, longest waiting first, and what each requested.
    struct Search {
        c: Crowd,
        rng: Rng,
        waiting: Vec<(usize, usize)>,
    }

    impl Search {
        fn new(seed: u64) -> Search {
            let mut rng = Rng::new(seed);
            let n = rng.between(3, 24) as usize;
            Search { c: Crowd::new(rng.between(8, 160) as usize * MIB, n), rng, waiting: Vec::new() }
        }
        /// No connection is overtaken that holds nothing of the pool.
        fn wants(&mut self, i: usize, more: usize) -> Result<(), String> {
            let place = self.waiting.iter().position(|(j, _)| *j == i);
            let before = self.waiting.iter().take(place.unwrap_or(usize::MAX));
            let passed = before.map(|(j, _)| *j).find(|&j| self.c.all[j].0.extra == 0);
            let of_pool = self.c.all[i].1 + more > self.c.budget.share.max(self.c.all[i].1);
            let granted = self.c.wants(i, more);
            if granted && of_pool && more > 0 && passed.is_some() {
                return Err(format!("{i} gets {more} bytes before {passed:?}"));
            }
            match (granted, place) {
                (true, Some(at)) => _ = self.waiting.remove(at),
                (false, None) => self.waiting.push((i, more)),
                (false, Some(at)) => self.waiting[at].1 = more,
                (true, None) => {}
            }
            Ok(())
        }
        fn frees(&mut self, i: usize) {
            self.c.frees(i);
            self.waiting.retain(|(j, _)| *j != i);
        }
        /// Another connection takes its place.
        fn closes(&mut self, i: usize) {
            let account = self.c.all[i].0;
            self.c.budget.leave(i, &account);
            self.c.all[i] = (Account::default(), 0);
            self.waiting.retain(|(j, _)| *j != i);
        }
        /// As the event loop does once a second, if each connection waits for its client. `connection_tests.rs` has real sessions.
        fn sweep(&mut self) -> Result<(), String> {
            if self.c.budget.waiting() > 0 {
                let now = self.c.now;
                let stalled: Vec<usize> = (0..self.c.all.len()).filter(|i| self.c.all[*i].0.stalled(now)).collect();
                stalled.into_iter().for_each(|i| self.closes(i));
            }
            while let Some(key) = self.c.budget.next_waiting() {
                let Some(&(_, more)) = self.waiting.iter().find(|(j, _)| *j == key) else {
                    return Err(format!("{key} does not wait"));
                };
                let before = self.waiting.len();
                self.wants(key, more)?;
                if self.waiting.len() == before {
                    return Err(format!("{key} is asked in vain"));
                }
            }
            Ok(())
        }
        fn check(&self) -> Result<(), String> {
            let (total, held) = (self.c.total(), self.c.budget.held());
            let extra: usize = self.c.all.iter().map(|a| a.0.extra).sum();
            let sound = total <= self.c.budget.bytes() && total == held && extra == self.c.budget.pool_used;
            if sound && extra <= self.c.budget.pool && self.waiting.len() == self.c.budget.waiting() {
                return Ok(());
            }
            Err(format!("{total} bytes, {extra} of the pool, {} wait: {:?}", self.waiting.len(), self.c.budget))
        }
        fn anything(&mut self) -> Result<(), String> {
            let i = self.rng.below(self.c.all.len() as u64) as usize;
            let most = self.c.budget.share + self.c.budget.pool / 2;
            match self.rng.below(10) {
                0 | 1 => self.frees(i),
                2 => self.closes(i),
                3 => self.c.all[i].0.moved(self.c.now, self.rng.below(2 << 20) as usize),
                4 => {
                    self.c.now += Span::from_millis(self.rng.below(3_000));
                    self.sweep()?;
                }
                _ => {
                    let more = self.rng.below(most as u64) as usize;
                    if self.c.all[i].1 + more <= self.c.budget.share + self.c.budget.pool {
                        self.wants(i, more)?;
                    }
                }
            }
            self.check()
        }
        /// Nobody frees anything any more: those that wait are served nevertheless, or closed.
        fn end(&mut self) -> Result<(), String> {
            for _ in 0..self.c.all.len() * 12 {
                self.c.now += Span::from_secs(1);
                self.sweep()?;
                self.check()?;
            }
            if !self.waiting.is_empty() {
                return Err(format!("{:?} wait for ever", self.waiting));
            }
            (0..self.c.all.len()).for_each(|i| self.closes(i));
            self.check()
        }
    }

    #[test]
    fn connections_get_what_there_is_in_turn_and_no_more_than_the_budget() {
        for seed in seeds(0..100) {
            let mut s = Search::new(seed);
            let found = (0..400).try_for_each(|_| s.anything()).and_then(|()| s.end());
            found.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
    }

    #[test]
    fn each_has_a_share_that_the_others_cannot_take() {
        // Including the overhead beside the data.
        let request = MIB + 4096;
        let mut c = Crowd::new(rackweave_config::MemorySection::default().connections_bytes(), 576);
        for i in 0..575 {
            while c.wants(i, request) {}
        }
        assert_eq!(c.budget.waiting(), 575);
        assert!(c.wants(575, request), "the last one has its share");
        assert!(!c.wants(575, request), "and waits for more");
    }

    #[test]
    fn the_pool_goes_to_who_waits_longest() {
        let mut c = Crowd::new(320 * MIB, 64);
        assert!(c.wants(0, 33 * MIB) && !c.wants(1, 33 * MIB) && !c.wants(2, 8 * MIB));
        assert!(!c.wants(2, 8 * MIB), "what is small does not go first");
        assert!(c.wants(3, MIB) && !c.wants(0, 33 * MIB));
        assert_eq!(c.budget.next_waiting(), None, "nobody is asked in vain");
        c.frees(0);
        assert_eq!(c.budget.next_waiting(), Some(1));
        assert!(!c.wants(2, 8 * MIB) && c.wants(1, 33 * MIB));
        assert_eq!(c.budget.next_waiting(), Some(2), "what is left is enough for it");
        assert!(!c.wants(1, 33 * MIB) && c.wants(2, 8 * MIB), "who has part of the pool keeps nobody waiting");
    }

    #[test]
    fn who_holds_part_of_the_pool_moves_on() {
        let mut c = Crowd::new(320 * MIB, 64);
        let after = |s| Time::ZERO + Span::from_secs(s);
        assert!(c.wants(0, 33 * MIB) && c.wants(1, MIB));
        c.all[0].0.moved(after(4), PROGRESS_BYTES);
        assert!(!c.all[0].0.stalled(after(14)) && c.all[0].0.stalled(after(15)));
        c.all[0].0.moved(after(14), PROGRESS_BYTES - 1);
        assert!(c.all[0].0.stalled(after(15)), "too little");
        assert!(!c.all[1].0.stalled(after(1000)), "its own share is its own");
    }
}
