//! Linearizability of one register (a sector): Wing and Gong's search, which remembers dead ends.

use std::collections::BTreeMap;

use rackweave_core::map::{Set, set};

/// One operation on a sector. Each write has a value of its own; zeroes are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub start: u64,
    /// `u64::MAX`: no answer; a write may or may not have taken effect.
    pub end: u64,
    pub write: bool,
    pub value: u64,
    /// The writer's generation.
    pub attach: u32,
    /// A write has no effect after this: its writer was fenced.
    pub until: u64,
}

#[derive(Default)]
pub struct History {
    pub sectors: BTreeMap<u64, Vec<Event>>,
}

impl History {
    pub fn add(&mut self, sector: u64, e: Event) {
        self.sectors.entry(sector).or_default().push(e);
    }
    /// The first sector whose history no order explains, and that history.
    pub fn violation(&self) -> Option<(u64, Vec<Event>)> {
        self.sectors.iter().find(|(_, h)| !linearizable(h)).map(|(s, h)| (*s, h.clone()))
    }
}

/// Whether some order explains the history, starting from zeroes.
pub fn linearizable(events: &[Event]) -> bool {
    // Reads without an answer constrain nothing.
    let mut h: Vec<Event> = events.iter().copied().filter(|e| e.write || e.end != u64::MAX).collect();
    h.sort_by_key(|e| (e.start, e.end));
    let words = h.len().div_ceil(64);
    let mut seen: Set<(Vec<u64>, u64)> = set();
    let mut stack = vec![(vec![0u64; words], 0u64)];
    while let Some((done, value)) = stack.pop() {
        let left = |i: &usize| done[i / 64] >> (i % 64) & 1 == 0;
        let first = (0..h.len()).find(left).unwrap_or(h.len());
        let must: Option<u64> = (first..h.len()).filter(left).map(|i| h[i].end).filter(|&e| e != u64::MAX).min();
        let Some(must) = must else { return true };
        for i in (first..h.len()).filter(left) {
            if h[i].start > must {
                break;
            }
            if !h[i].write && h[i].value != value {
                continue;
            }
            let is_after = |j: usize| (done[j / 64] >> (j % 64) & 1 == 1 || j == i) && h[j].start > h[i].until;
            if h[i].until != u64::MAX && (0..h.len()).any(is_after) {
                continue;
            }
            let mut next = done.clone();
            next[i / 64] |= 1 << (i % 64);
            let value = if h[i].write { h[i].value } else { value };
            if seen.insert((next.clone(), value)) {
                stack.push((next, value));
            }
            if !h[i].write {
                // Putting a matching read first loses no order.
                break;
            }
        }
    }
    false
}

#[test]
fn the_checker_distinguishes_valid_orders() {
    let w = |start, end, value| Event { start, end, write: true, value, attach: 1, until: u64::MAX };
    let r = |start, end, value| Event { write: false, ..w(start, end, value) };
    assert!(linearizable(&[w(0, 10, 1), r(5, 6, 0), r(7, 8, 1)]));
    assert!(!linearizable(&[w(0, 10, 1), r(5, 6, 1), r(7, 8, 0)]), "new, then old");
    assert!(!linearizable(&[w(0, 1, 1), r(2, 3, 0)]), "lost");
    assert!(linearizable(&[w(0, u64::MAX, 1), r(2, 3, 0), r(4, 5, 1)]), "an unanswered write may take effect late");
    assert!(!linearizable(&[w(0, 1, 1), w(2, 3, 2), r(4, 5, 1)]), "resurrected");
    assert!(!linearizable(&[w(0, 9, 1), w(0, 9, 2), r(10, 11, 1), r(12, 13, 2)]));
    assert!(linearizable(&[w(0, 9, 1), w(0, u64::MAX, 2), r(10, 11, 1), r(12, 13, 2)]));
    let fenced = |until, e| Event { until, ..e };
    assert!(linearizable(&[fenced(5, w(0, u64::MAX, 1)), r(2, 6, 1), r(7, 8, 1)]));
    assert!(linearizable(&[fenced(5, w(0, u64::MAX, 1)), r(2, 6, 0), r(7, 8, 0)]), "it was refused");
    assert!(!linearizable(&[fenced(5, w(0, u64::MAX, 1)), r(6, 7, 0), r(8, 9, 1)]), "an effect after the fence");
    assert!(!linearizable(&[fenced(5, w(6, 7, 1))]), "done after the fence");
}
