//! A disk's log over all servers, and the client's index of it (DF3, DF5), without contents.

use std::collections::{BTreeMap, VecDeque};

use super::SERVERS;

/// Capacity of a file of a sub-log (§3.3).
pub const FILE: u64 = 1 << 20;
/// Bytes of an index node (§5.5).
pub const NODE_BYTES: usize = 70;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Writing,
    Live,
    Merging,
    Merged,
}

/// One entry of a log.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub offset: u64,
    pub len: u32,
    /// The servers with a copy, `copies` of them, and the file there.
    pub servers: [usize; 2],
    files: [u64; 2],
    pub state: State,
}

#[derive(Clone, Copy, Debug, Default)]
struct File {
    bytes: u64,
    /// Entries that are not merged.
    valid: u32,
}

/// Files of a sub-log: the first has number `first`, the last is open.
#[derive(Clone, Debug, Default)]
struct SubLog {
    first: u64,
    files: VecDeque<File>,
    /// Removed files behind `first` leave a hole: files are removed in any order.
    bytes: u64,
}

/// A disk's log.
#[derive(Clone, Debug)]
pub struct DiskLog {
    copies: usize,
    entries: VecDeque<Entry>,
    /// Serial of the first entry, the log's head, and of the next one to merge.
    head: u64,
    next_merge: u64,
    sub_logs: [SubLog; SERVERS],
    /// Start of a live range → (its end, the entry's serial).
    index: BTreeMap<u64, (u64, u64)>,
    pub nodes_max: usize,
    /// Bytes that wait for a merge.
    pub unmerged: u64,
}

impl DiskLog {
    pub fn new(copies: usize) -> DiskLog {
        DiskLog {
            copies,
            entries: VecDeque::new(),
            head: 0,
            next_merge: 0,
            sub_logs: Default::default(),
            index: BTreeMap::new(),
            nodes_max: 0,
            unmerged: 0,
        }
    }

    pub fn copies(&self) -> usize {
        self.copies
    }
    pub fn nodes(&self) -> usize {
        self.index.len()
    }
    /// Bytes of the files on a server, merged entries included.
    pub fn bytes(&self, server: usize) -> u64 {
        self.sub_logs[server].bytes
    }
    pub fn entry(&self, serial: u64) -> &Entry {
        &self.entries[(serial - self.head) as usize]
    }

    /// Live ranges in a range, as (serial, bytes).
    pub fn overlapping(&self, offset: u64, len: u64) -> Vec<(u64, u64)> {
        let end = offset + len;
        let before = self.index.range(..offset).next_back().filter(|(_, (e, _))| *e > offset);
        let ranges = before.into_iter().chain(self.index.range(offset..end));
        ranges.map(|(start, (e, serial))| (*serial, e.min(&end) - start.max(&offset))).collect()
    }
    pub fn overlaps(&self, offset: u64, len: u64) -> bool {
        let last = self.index.range(..offset + len).next_back();
        last.is_some_and(|(_, (end, _))| *end > offset)
    }

    /// Adds an entry, serial after serial in turn to the servers; returns its serial.
    pub fn append(&mut self, offset: u64, len: u32) -> u64 {
        let serial = self.head + self.entries.len() as u64;
        let server = |copy: u64| ((serial + copy) % SERVERS as u64) as usize;
        let servers = [server(0), server(1)];
        let mut files = [0; 2];
        for c in 0..self.copies {
            files[c] = self.sub_logs[servers[c]].append(u64::from(len));
        }
        self.entries.push_back(Entry { offset, len, servers, files, state: State::Writing });
        self.cut(offset, offset + u64::from(len));
        self.index.insert(offset, (offset + u64::from(len), serial));
        self.nodes_max = self.nodes_max.max(self.index.len());
        serial
    }

    /// Removes a range from the index, splitting ranges at its ends.
    fn cut(&mut self, start: u64, end: u64) {
        let before = self.index.range(..start).next_back().map(|(s, v)| (*s, *v)).filter(|(_, (e, _))| *e > start);
        let inside = self.index.range(start..end).map(|(s, v)| (*s, *v));
        let found: Vec<(u64, (u64, u64))> = before.into_iter().chain(inside).collect();
        for (s, (e, serial)) in found {
            self.index.remove(&s);
            if s < start {
                self.index.insert(s, (start, serial));
            }
            if e > end {
                self.index.insert(end, (e, serial));
            }
        }
    }

    /// The entry is written: it can be merged.
    pub fn written(&mut self, serial: u64) {
        let e = &mut self.entries[(serial - self.head) as usize];
        e.state = State::Live;
        self.unmerged += u64::from(e.len);
    }

    /// The next entry to merge, in serial order; none while it is being written.
    pub fn take_next(&mut self) -> Option<u64> {
        let serial = self.next_merge;
        let e = self.entries.get_mut((serial - self.head) as usize).filter(|e| e.state == State::Live)?;
        e.state = State::Merging;
        self.unmerged -= u64::from(e.len);
        self.next_merge += 1;
        Some(serial)
    }

    /// The entry is merged: the head moves past merged entries, files without valid entries go, the index is trimmed.
    pub fn merged(&mut self, serial: u64) {
        let i = (serial - self.head) as usize;
        let e = &mut self.entries[i];
        e.state = State::Merged;
        for c in 0..self.copies {
            self.sub_logs[e.servers[c]].invalidate(e.files[c]);
        }
        while let Some(e) = self.entries.front().copied().filter(|e| e.state == State::Merged) {
            self.entries.pop_front();
            let (start, end) = (e.offset, e.offset + u64::from(e.len));
            let trimmed = self.index.range(start..end).filter(|(_, (_, s))| *s == self.head).map(|(s, _)| *s);
            for start in trimmed.collect::<Vec<_>>() {
                self.index.remove(&start);
            }
            self.head += 1;
        }
    }

    /// Whether the entry's first file is full: then it is not written to any more.
    pub fn is_sealed(&self, serial: u64) -> bool {
        let e = self.entry(serial);
        let log = &self.sub_logs[e.servers[0]];
        e.files[0] + 1 < log.first + log.files.len() as u64
    }
    /// The oldest entry that is not yet taken.
    pub fn oldest(&self) -> Option<u64> {
        let waiting = self.entries.get((self.next_merge - self.head) as usize)?;
        (waiting.state == State::Live).then_some(self.next_merge)
    }
}

impl SubLog {
    /// Adds an entry to the open file, or to a new one; returns the file's number.
    fn append(&mut self, len: u64) -> u64 {
        if self.files.back().is_none_or(|f| f.bytes + len > FILE) {
            // A full file without valid entries went when its last one was merged, unless it was open then.
            let i = self.files.len().wrapping_sub(1);
            if self.files.back().is_some_and(|f| f.valid == 0) {
                self.remove(i);
            }
            self.files.push_back(File::default());
        }
        let open = self.files.len() - 1;
        self.files[open].bytes += len;
        self.files[open].valid += 1;
        self.bytes += len;
        self.first + open as u64
    }
    fn invalidate(&mut self, number: u64) {
        let i = (number - self.first) as usize;
        self.files[i].valid -= 1;
        if self.files[i].valid == 0 && i + 1 < self.files.len() {
            self.remove(i);
        }
    }
    fn remove(&mut self, i: usize) {
        self.bytes -= std::mem::take(&mut self.files[i].bytes);
        while self.files.len() > 1 && self.files.front().is_some_and(|f| f.bytes == 0 && f.valid == 0) {
            self.files.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_entry_hides_the_range_of_an_older_one_until_it_is_merged() {
        let mut log = DiskLog::new(1);
        let a = log.append(0, 64);
        let b = log.append(16, 16);
        assert_eq!((a, b, log.nodes()), (0, 1, 3));
        assert_eq!(log.overlapping(8, 40), [(0, 8), (1, 16), (0, 16)]);
        assert!(log.overlaps(63, 9) && !log.overlaps(64, 9));
        log.written(a);
        assert_eq!((log.take_next(), log.take_next()), (Some(a), None), "b is not written yet");
        log.merged(a);
        assert_eq!((log.overlapping(0, 64), log.nodes()), (vec![(1, 16)], 1));
        log.written(b);
        assert_eq!(log.take_next(), Some(b));
        log.merged(b);
        assert_eq!((log.nodes(), log.unmerged), (0, 0));
    }

    #[test]
    fn entries_go_round_the_servers_and_full_files_go_when_all_is_merged() {
        let mut log = DiskLog::new(2);
        for i in 0..50u64 {
            let serial = log.append(i << 20, 512 << 10);
            log.written(serial);
            let e = log.entry(serial);
            assert_eq!(e.servers, [i as usize % SERVERS, (i as usize + 1) % SERVERS]);
        }
        // Twenty entries of half a file each on every server.
        assert_eq!([0, 1, 2, 3, 4].map(|s| log.bytes(s)), [10 << 20; 5]);
        assert!(log.is_sealed(0) && !log.is_sealed(49));
        while let Some(serial) = log.take_next() {
            log.merged(serial);
        }
        // The open files remain.
        assert!((0..SERVERS).all(|s| log.bytes(s) <= FILE), "{log:?}");
        assert_eq!(log.unmerged, 0);
    }
}
