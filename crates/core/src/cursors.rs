//! Positions of scans, by number: clients take a cursor for a number, and a position is a key.

use std::collections::BTreeMap;

use bytes::Bytes;

/// Positions that are kept, the newest ones: each page of a scan takes one.
pub const CURSORS_MAX: usize = 4096;

#[derive(Debug)]
pub struct Cursors {
    next: u64,
    positions: BTreeMap<u64, Bytes>,
}

impl Cursors {
    /// `run` keeps cursors of one run from being taken for those of the next.
    pub fn new(run: u64) -> Cursors {
        Cursors { next: (run & 0xff_ffff) << 32 | 1, positions: BTreeMap::new() }
    }
    /// The position of a cursor; that of 0 is the start.
    pub fn position(&self, cursor: u64) -> Option<Bytes> {
        if cursor == 0 { Some(Bytes::new()) } else { self.positions.get(&cursor).cloned() }
    }
    /// The cursor of a position; 0 is the end.
    pub fn cursor(&mut self, position: Option<Bytes>) -> u64 {
        let Some(position) = position else { return 0 };
        let cursor = self.next;
        self.next += 1;
        self.positions.insert(cursor, position);
        if self.positions.len() > CURSORS_MAX {
            self.positions.pop_first();
        }
        cursor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept() {
        let mut c = Cursors::new(7);
        assert_eq!((c.position(0), c.cursor(None)), (Some(Bytes::new()), 0));
        let first = c.cursor(Some("a".into()));
        assert_eq!(c.position(first), Some("a".into()));
        let all: Vec<u64> = (1..=CURSORS_MAX as u32).map(|n| c.cursor(Some(n.to_string().into()))).collect();
        assert_eq!((c.position(first), c.position(all[0])), (None, Some("1".into())));
        assert_eq!(Cursors::new(8).position(all[0]), None);
    }
}
