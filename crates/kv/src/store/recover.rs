//! Recovery reads the heads of all blocks, the newest complete checkpoint, and the log from its start. It writes nothing.

use std::collections::BTreeMap;

use rackweave_core::map::UnorderedMap;
use rackweave_core::{BLOCK, Payload};
use rackweave_flash::manager::api::{Block, BlockError};

use super::format::{
    Entry, Item, Kind, Pos, Record, Rule, SEGMENT_HEAD, Scanner, SegmentHead, decode_entries, decode_head,
};
use super::{Answer, Broken, Flash, Io, Key, Loc, OpenError, Segment, Store};

/// Heads that are read at a time, enough to use all dies.
const HEADS_MAX: usize = 64;
/// Number of the first segment: every position of the log exceeds the one that stands for no checkpoint.
const FIRST_NUMBER: u64 = 1;

#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    Head { block: Block, written: u32 },
    Chunk,
}

/// A block of a checkpoint.
#[derive(Clone, Copy, Debug)]
struct Part {
    part: u32,
    block: Block,
    written: u32,
    from: Pos,
}

/// The newest record of a key behind the checkpoint.
#[derive(Clone, Copy, Debug)]
enum Change {
    Put(Loc),
    /// Block of the tombstone, and its bytes.
    Delete(u32, u32),
}

#[derive(Debug)]
enum Stage {
    Heads,
    /// Reads the newest checkpoint that may be complete; this is the current part.
    Checkpoint {
        generation: u64,
        parts: Vec<Part>,
        at: usize,
    },
    /// Segments to replay after the current one; the last entry is the next.
    Replay {
        rest: Vec<u64>,
    },
}

#[derive(Debug)]
pub(super) struct Recovery {
    blocks: Vec<(Block, u32)>,
    under_way: usize,
    /// Segments of the log by number: block, bytes written.
    log: BTreeMap<u64, (u32, u32)>,
    checkpoints: BTreeMap<u64, Vec<Part>>,
    /// Blocks of checkpoints that are not the newest complete one, and blocks without contents.
    stale: Vec<Block>,
    stage: Stage,
    /// The block being read.
    reading: u32,
    scanner: Option<Scanner>,
    from: Pos,
    complete: Vec<Block>,
    last_generation: u64,
    /// What the checkpoint's parts read so far have, in ascending order of the keys.
    entries: Vec<(Key, Loc)>,
    /// The newest record of each key that is replayed. They are gathered without order, as most are overwritten or deleted soon, and
    /// merged once with the entries.
    changes: UnorderedMap<Key, Change>,
    replayed: u64,
    error: Option<OpenError>,
}

impl Store {
    pub(super) fn recover(&mut self, fx: &mut Flash<'_>) -> Result<(), OpenError> {
        let vssd = self.cfg.vssd;
        let (mut blocks, mut stale, mut from) = (Vec::new(), Vec::new(), 0);
        while let Some(block) = fx.manager.next_block(vssd, from)? {
            from = block.index + 1;
            match fx.manager.block(block)?.written as u32 {
                0 => stale.push(block),
                written => blocks.push((block, written)),
            }
        }
        self.recovery = Some(Box::new(Recovery::new(blocks, stale)));
        Ok(())
    }
    pub(super) fn recovered(&mut self, _fx: &mut Flash<'_>, asked: Asked, result: Result<Payload, BlockError>) {
        let Some(r) = &mut self.recovery else { return };
        r.under_way -= 1;
        let data = match result {
            Ok(data) => data.to_bytes(),
            Err(e) => {
                r.error = r.error.or(Some(e.into()));
                return;
            }
        };
        match asked {
            Asked::Chunk => {
                if let Some(s) = &mut r.scanner {
                    s.feed(data);
                }
            }
            Asked::Head { block, written } => {
                if let Err(e) = r.take_head(block, written, &data) {
                    r.error = r.error.or(Some(e));
                }
            }
        }
    }
    pub(super) fn recover_on(&mut self, fx: &mut Flash<'_>) {
        let Some(mut r) = self.recovery.take() else { return };
        match self.recover_steps(fx, &mut r) {
            Ok(false) => self.recovery = Some(r),
            Ok(true) => {
                self.recovery_ends(fx, *r);
                self.answers.push(Answer::Opened { result: Ok(()) });
                self.pump(fx);
            }
            Err(e) => {
                self.answers.push(Answer::Opened { result: Err(e) });
            }
        }
    }
    /// Takes the next steps; true once recovery is complete.
    fn recover_steps(&mut self, fx: &mut Flash<'_>, r: &mut Recovery) -> Result<bool, OpenError> {
        loop {
            if let Some(e) = r.error {
                return Err(e);
            }
            if matches!(r.stage, Stage::Heads) {
                self.read_heads(fx, r)?;
                if r.under_way > 0 || !r.blocks.is_empty() {
                    return Ok(false);
                }
                r.next_checkpoint(self.page, self.size);
                continue;
            }
            if r.under_way > 0 {
                return Ok(false);
            }
            let Some(scanner) = &mut r.scanner else {
                if !r.next_segment(self.page, self.size) {
                    return self.checked(r).map(|()| true);
                }
                continue;
            };
            let replay = matches!(r.stage, Stage::Replay { .. });
            match scanner.item() {
                Item::Record(record) => {
                    scanner.advance(&record);
                    if replay && record.kind == Kind::Batch {
                        let whole = scanner.holds_batch(&record);
                        let corrupt = |rule| OpenError::Corrupt {
                            block: Block { vssd: self.cfg.vssd, index: r.reading },
                            offset: record.offset,
                            rule,
                        };
                        // A power cut took the end of the batch, and nothing is behind it.
                        if !whole.map_err(corrupt)? && self.cfg.broken != Some(Broken::SplitBatch) {
                            r.scanner = None;
                        }
                    } else if replay {
                        r.replay(&record);
                    } else {
                        self.take_entries(r, &record)?;
                    }
                }
                Item::More { offset, bytes } => return self.read_chunk(fx, r, (offset, bytes)),
                Item::End | Item::Torn if replay => r.scanner = None,
                Item::End | Item::Torn => {
                    if !r.next_part(self.page, self.size) {
                        r.next_checkpoint(self.page, self.size);
                    }
                }
                Item::Corrupt { offset, rule } => {
                    return Err(OpenError::Corrupt { block: self.block(r.reading), offset, rule });
                }
            }
        }
    }
    fn read_heads(&mut self, fx: &mut Flash<'_>, r: &mut Recovery) -> Result<(), OpenError> {
        while r.under_way < HEADS_MAX {
            let Some(&(block, written)) = r.blocks.last() else { return Ok(()) };
            let token = self.token(Io::Recovery(Asked::Head { block, written }));
            match fx.manager.read(fx.now, (block.vssd, block), (0, u64::from(BLOCK)), token, fx.out) {
                Ok(()) => _ = (r.blocks.pop(), r.under_way += 1),
                Err(e) => {
                    self.refused(token);
                    return if matches!(e, BlockError::QueueFull { .. }) { Ok(()) } else { Err(e.into()) };
                }
            }
        }
        Ok(())
    }
    fn read_chunk(&mut self, fx: &mut Flash<'_>, r: &mut Recovery, at: (u32, u32)) -> Result<bool, OpenError> {
        let token = self.token(Io::Recovery(Asked::Chunk));
        let (block, range) = (self.block(r.reading), (u64::from(at.0), u64::from(at.1)));
        match fx.manager.read(fx.now, (block.vssd, block), range, token, fx.out) {
            Ok(()) => r.under_way += 1,
            Err(e) => {
                self.refused(token);
                if !matches!(e, BlockError::QueueFull { .. }) {
                    return Err(e.into());
                }
            }
        }
        Ok(false)
    }
    /// Takes a record of the checkpoint.
    fn take_entries(&mut self, r: &mut Recovery, record: &Record) -> Result<(), OpenError> {
        let (block, offset) = (self.block(r.reading), record.offset);
        let corrupt = |rule| OpenError::Corrupt { block, offset, rule };
        let Stage::Checkpoint { parts, at, .. } = &r.stage else { return Ok(()) };
        match record.kind {
            Kind::Entries => {
                let entries = decode_entries(&record.value).ok_or_else(|| corrupt(Rule::Entry))?;
                r.take(&entries).ok_or_else(|| corrupt(Rule::Entry))?;
            }
            Kind::End => {
                if record.value[..] != (r.entries.len() as u64).to_le_bytes() || *at + 1 < parts.len() {
                    return Err(corrupt(Rule::Entry));
                }
                r.from = parts[0].from;
                r.complete = parts.iter().map(|p| p.block).collect();
                r.begin_replay();
            }
            Kind::Put | Kind::Delete | Kind::Batch => return Err(corrupt(Rule::Place)),
        }
        Ok(())
    }
    /// Adopts the index, and the segments after a check that it refers to no other.
    fn checked(&mut self, r: &mut Recovery) -> Result<(), OpenError> {
        let tombs = self.merge(r);
        for (&number, &(block, end)) in &r.log {
            let s = Segment { end, ..Segment::new(number, self.now) };
            self.segments.insert(block, s);
        }
        for (key, l) in &self.index {
            let there =
                |s: &Segment| l.offset >= SEGMENT_HEAD && l.offset.checked_add(l.len).is_some_and(|e| e <= s.end);
            let Some(s) = self.segments.get_mut(&l.block).filter(|s| there(s)) else {
                let block = Block { vssd: self.cfg.vssd, index: l.block };
                return Err(OpenError::Corrupt { block, offset: l.offset, rule: Rule::Reference });
            };
            s.live += u64::from(l.len);
            self.live += u64::from(l.len);
            self.index_bytes += (super::format::ENTRY_HEAD + key.len()) as u64;
        }
        for (block, len) in tombs {
            if let Some(s) = self.segments.get_mut(&block) {
                s.tombs += u64::from(len);
                self.tombs += u64::from(len);
            }
        }
        Ok(())
    }
    /// The index: the checkpoint's entries with the changes behind it. Returns the tombstones, by block and bytes.
    fn merge(&mut self, r: &mut Recovery) -> Vec<(u32, u32)> {
        let mut changes: Vec<(Key, Change)> = std::mem::take(&mut r.changes).into_iter().collect();
        changes.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let tombs = changes.iter().filter_map(|(_, c)| match *c {
            Change::Delete(block, len) => Some((block, len)),
            Change::Put(_) => None,
        });
        let tombs = tombs.collect();
        let entries = std::mem::take(&mut r.entries);
        let mut index = Vec::with_capacity(entries.len() + changes.len());
        let mut changes = changes.into_iter().peekable();
        let put = |(key, change)| match change {
            Change::Put(loc) => Some((key, loc)),
            Change::Delete(..) => None,
        };
        for (key, loc) in entries {
            while let Some(before) = changes.next_if(|c| c.0 < key) {
                index.extend(put(before));
            }
            match changes.next_if(|c| c.0 == key) {
                Some(newer) => index.extend(put(newer)),
                None => index.push((key, loc)),
            }
        }
        index.extend(changes.filter_map(put));
        // A map of what is in order is built without a search for each place.
        self.index = index.into_iter().collect();
        tombs
    }
    fn recovery_ends(&mut self, fx: &mut Flash<'_>, r: Recovery) {
        let last = r.log.last_key_value().map_or(0, |(n, _)| *n).max(r.from.segment);
        self.run = (last + 1).max(FIRST_NUMBER);
        self.log.begin(self.run);
        self.checkpoint.restore(r.from, r.complete, r.last_generation + 1, r.replayed);
        self.open = true;
        for block in r.stale {
            match fx.manager.free_block(fx.now, block.vssd, block, fx.out) {
                Ok(()) => self.freed += 1,
                Err(e) => self.fail(e),
            }
        }
    }
}

impl Recovery {
    fn new(blocks: Vec<(Block, u32)>, stale: Vec<Block>) -> Recovery {
        Recovery {
            blocks,
            under_way: 0,
            log: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            stale,
            stage: Stage::Heads,
            reading: 0,
            scanner: None,
            from: Pos::default(),
            complete: Vec::new(),
            last_generation: 0,
            entries: Vec::new(),
            changes: UnorderedMap::default(),
            replayed: 0,
            error: None,
        }
    }
    /// Appends entries of the checkpoint. `None`: they are not in ascending order.
    fn take(&mut self, entries: &[Entry<'_>]) -> Option<()> {
        for &(key, (block, offset, len)) in entries {
            if self.entries.last().is_some_and(|(last, _)| key <= &last[..]) {
                return None;
            }
            self.entries.push((key.into(), Loc { block, offset, len }));
        }
        Some(())
    }
    fn replay(&mut self, record: &Record) {
        self.replayed += u64::from(record.len);
        let change = match record.kind {
            Kind::Put => Change::Put(Loc { block: self.reading, offset: record.offset, len: record.len }),
            Kind::Delete => Change::Delete(self.reading, record.len),
            Kind::Entries | Kind::End | Kind::Batch => return,
        };
        match self.changes.get_mut(&record.key[..]) {
            Some(newest) => *newest = change,
            None => _ = self.changes.insert(record.key[..].into(), change),
        }
    }
    fn take_head(&mut self, block: Block, written: u32, data: &[u8]) -> Result<(), OpenError> {
        match decode_head(data).map_err(|error| OpenError::Segment { block, error })? {
            SegmentHead::Log { number } => {
                if self.log.insert(number, (block.index, written)).is_some() {
                    return Err(OpenError::Corrupt { block, offset: 0, rule: Rule::Number });
                }
            }
            SegmentHead::Checkpoint { generation, part, from } => {
                self.last_generation = self.last_generation.max(generation);
                self.checkpoints.entry(generation).or_default().push(Part { part, block, written, from });
            }
        }
        Ok(())
    }
    /// Starts on the newest checkpoint not tried yet; older ones are not needed if it is complete. Without one, the whole
    /// log is replayed.
    fn next_checkpoint(&mut self, page: u32, size: u32) {
        if let Stage::Checkpoint { parts, .. } = &self.stage {
            self.stale.extend(parts.iter().map(|p| p.block));
        }
        self.entries.clear();
        let Some((generation, mut parts)) = self.checkpoints.pop_last() else { return self.begin_replay() };
        parts.sort_by_key(|p| p.part);
        if (0..).zip(&parts).any(|(i, p)| p.part != i || p.from != parts[0].from) {
            self.stale.extend(parts.iter().map(|p| p.block));
            return self.next_checkpoint(page, size);
        }
        (self.reading, self.scanner) =
            (parts[0].block.index, Some(Scanner::new(generation, page, (parts[0].written, size), 0)));
        self.stage = Stage::Checkpoint { generation, parts, at: 0 };
    }
    /// Starts on the checkpoint's next part; false if there is none, so that the checkpoint is incomplete.
    fn next_part(&mut self, page: u32, size: u32) -> bool {
        let Stage::Checkpoint { generation, parts, at } = &mut self.stage else { return false };
        *at += 1;
        let Some(p) = parts.get(*at) else { return false };
        (self.reading, self.scanner) = (p.block.index, Some(Scanner::new(*generation, page, (p.written, size), 0)));
        true
    }
    fn begin_replay(&mut self) {
        self.scanner = None;
        let older = std::mem::take(&mut self.checkpoints);
        self.stale.extend(older.into_values().flatten().map(|p| p.block));
        self.stage = Stage::Replay { rest: self.log.range(self.from.segment..).rev().map(|(n, _)| *n).collect() };
    }
    fn next_segment(&mut self, page: u32, size: u32) -> bool {
        let Stage::Replay { rest } = &mut self.stage else { return false };
        let Some(number) = rest.pop() else { return false };
        let (block, written) = self.log[&number];
        let at = if number == self.from.segment { self.from.offset } else { 0 };
        (self.reading, self.scanner) = (block, Some(Scanner::new(number, page, (written, size), at)));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_out_of_order_are_refused() {
        let at = (0, 0, 0);
        let taken = |pieces: &[&[Entry<'_>]]| {
            let mut r = Recovery::new(Vec::new(), Vec::new());
            pieces.iter().all(|p| r.take(p).is_some()).then_some(r.entries.len())
        };
        assert_eq!(taken(&[&[(b"a", at), (b"b", at)], &[], &[(b"ba", at)]]), Some(3));
        assert_eq!(taken(&[&[(b"a", at), (b"a", at)]]), None, "a key twice");
        assert_eq!(taken(&[&[(b"b", at)], &[(b"a", at)]]), None, "in another piece");
    }
}
