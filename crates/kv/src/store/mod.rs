//! A log-structured key-value store on FlashBlox's calls (FB3, FB10): a log in the blocks of one vSSD, an ordered index
//! of record locations in memory, compaction block by block (§3.5), and checkpoints of the index.
//!
//! - [`format`]: segments and records, byte by byte; [`error`]: errors of requests and of data on flash.
//! - `log`: the head of the log, writes, group commit; `read`: gets and scans.
//! - `space`: the reserve for compaction and checkpoints; `compact`; `checkpoint`; `recover`.
//!
//! Order of calls: [`Store::open`] on a recovered drive; then [`Store::handle`] with each of the drive's answers that
//! [`Store::owns`] accepts, [`Store::poll`] after each of the drive's actions for other users while
//! [`Store::wants_poll`], and requests in between. [`Store::answers`] holds the answers. Time is monotonic.
//!
//! # Power cuts
//! - *Order.* Of two records of a key, the later one in the log counts. Compaction moves a record to the log's head only
//!   while it is its key's newest, so the rule holds for moved records, too.
//! - *Prefix.* A power cut leaves a prefix of the log: a segment is written when all before it is durable, and recovery ends
//!   a segment at its first damaged page. Of changes of several keys, the earlier ones are therefore there.
//! - *Force.* A forced put is answered after a sync that began when every byte of the log up to it was programmed. Gets
//!   of its key wait until then, so no value is returned that a power cut may still undo.
//! - *Compaction.* A block is freed when every byte of the log up to the end of its compaction is programmed: the drive
//!   erases it only after a later sync, so the moved records are durable first. Before the erase, a power cut may bring
//!   the block back, whole or in part. Its records are then older than the moved ones and have no effect.
//!   Its space counts as free only after a sync, so a block that comes back takes no space that was counted as free.
//! - *Deletions.* A tombstone is moved like a record while older records of its key may be replayed, that is, until a
//!   complete checkpoint has begun behind it. Recovery replays only from the start of its checkpoint, and takes only
//!   the checkpoint's entries as the index before that. An older record on flash before that point cannot return.
//! - *Checkpoints.* Entries are written while the store serves requests; changes since the checkpoint began are replayed
//!   from the log anyway. The last record completes it, and is written after a sync that covers all entries and every
//!   record that they refer to. The previous checkpoint is freed after a sync of the last record.
//! - *Batches.* The records of a batch lie behind one that says how many bytes they have, in one segment. Recovery takes
//!   none of them if the segment's written part ends before the batch does. Compaction moves records of a batch only
//!   when it is durable. After that each is a record like any other.
//! - *Recovery* writes nothing, so it can be interrupted and restarted.
//!
//! Memory: the index takes about 60 bytes per key, plus the key's length rounded up to 16 bytes.

mod checkpoint;
mod compact;
pub mod error;
pub mod format;
mod load;
mod log;
mod read;
mod recover;
mod space;

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use rackweave_core::records::StoredRecord;
use rackweave_core::{Time, VssdId};
use rackweave_flash::gc_policy::VictimPolicy;
use rackweave_flash::manager::api::{Block, BlockError};
use rackweave_flash::manager::{Done, FlashManager, ManagerOut};
use slab::Slab;

pub use error::{GetError, OpenError, PutError};
pub use space::{BLOCKS_MIN, Space};

use format::{KEY_MAX, Pos, RECORD_HEAD, VALUE_MAX, record_len, record_max};

pub(crate) type Key = Box<[u8]>;

/// Puts and deletes that wait for space or for the log: more than a client may have outstanding.
pub const HELD_MAX: usize = 65_536;
/// Bytes of their values.
pub const HELD_BYTES_MAX: usize = 16 << 20;
/// Bytes of the log that may be in memory only; beyond that, puts wait (LevelDB's `write_buffer_size`).
pub const UNWRITTEN_BYTES_MAX: usize = 4 << 20;
/// Gets and scans in progress.
pub const GETS_MAX: usize = 65_536;
/// Keys a scan returns at a time.
pub const SCAN_KEYS_MAX: usize = 4096;
/// Bytes of values that a scan returns at a time, without the last value.
pub const SCAN_BYTES_MAX: usize = 16 << 20;

/// When a put or delete is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When it is durable; one sync covers all that wait.
    #[default]
    Forced,
    /// When it is in memory. A power cut may undo it, unless a later forced change was answered. For experiments, and for
    /// data that can be recreated.
    Buffered,
}

/// A rule that is broken on purpose, for a checker to notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Answers forced puts when they are in memory.
    AckBeforeForce,
    /// Compaction leaves every tombstone behind.
    LoseTombstones,
    /// Frees a block before its moved records are programmed.
    FreeEarly,
    /// Completes a checkpoint without waiting for the records that it refers to.
    CheckpointEarly,
    /// Recovery takes the records of a batch whose end is missing.
    SplitBatch,
    /// Writes pages of a segment before all of the log before it is durable.
    OverlapSegments,
}

#[derive(Clone, Debug)]
pub struct StoreConfig {
    pub vssd: VssdId,
    /// Upper 16 bits of this store's tokens; different for each user of the drive.
    pub user: u16,
    /// The policy that selects the block to compact.
    pub victims: VictimPolicy,
    pub broken: Option<Broken>,
    /// Compacts while [`Store::set_compacting`] permits it, and at no other time.
    pub on_request: bool,
}

impl StoreConfig {
    pub fn new(vssd: VssdId, user: u16) -> StoreConfig {
        let broken = mutant!("kv.store.loses-tombstones").then_some(Broken::LoseTombstones);
        let broken = broken.or(mutant!("kv.store.segments-overlap").then_some(Broken::OverlapSegments));
        let broken = broken.or(mutant!("kv.answer.before-durable").then_some(Broken::AckBeforeForce));
        StoreConfig { vssd, user, victims: VictimPolicy::Greedy, broken, on_request: false }
    }
}

/// The drive, for the duration of a call.
#[derive(Debug)]
pub struct Flash<'a> {
    pub now: Time,
    pub manager: &'a mut FlashManager,
    pub out: &'a mut ManagerOut,
}

/// Result of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// In the order of the keys.
    pub entries: Vec<(Bytes, Bytes)>,
    /// The key from which there may be more.
    pub more: Option<Bytes>,
}

/// An answer, by the token of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// After an error the store cannot be used.
    Opened {
        result: Result<(), OpenError>,
    },
    Put {
        token: u64,
        result: Result<(), PutError>,
    },
    /// Whether the key was there.
    Deleted {
        token: u64,
        result: Result<bool, PutError>,
    },
    Got {
        token: u64,
        result: Result<Option<Bytes>, GetError>,
    },
    Scanned {
        token: u64,
        result: Result<Scan, GetError>,
    },
    /// All keys and values, in order of the keys.
    Loaded {
        token: u64,
        result: Result<Vec<StoredRecord>, GetError>,
    },
}

/// Counters since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Bytes of the records of puts and deletes.
    pub record_bytes: u64,
    /// Bytes written to the drive: records, moved ones, checkpoints, and padding of pages.
    pub written_bytes: u64,
    pub moved_bytes: u64,
    pub checkpoint_bytes: u64,
    pub compactions: u64,
    pub checkpoints: u64,
    /// Syncs for forced puts and deletes.
    pub commits: u64,
    /// Gets answered from memory.
    pub memory_hits: u64,
    pub flash_reads: u64,
    /// Blocks that cannot be compacted because of corrupt data.
    pub corrupt_blocks: u64,
}

impl StoreStats {
    /// Bytes written for each byte of a record; 1 before the first.
    pub fn waf(&self) -> f64 {
        if self.record_bytes == 0 { 1.0 } else { self.written_bytes as f64 / self.record_bytes as f64 }
    }
}

/// Location of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loc {
    block: u32,
    offset: u32,
    len: u32,
}

/// A block of the log.
#[derive(Clone, Copy, Debug)]
struct Segment {
    number: u64,
    /// Bytes appended.
    end: u32,
    /// Bytes of records that the index refers to.
    live: u64,
    /// Bytes of tombstones that no complete checkpoint covers.
    tombs: u64,
    /// Time of the last append or obsolescence of a record.
    changed: Time,
    /// Some of it cannot be read, so it is not compacted.
    corrupt: bool,
    /// End of the last batch that was appended to it in this run; zero: none was.
    batch_end: u32,
}

impl Segment {
    fn new(number: u64, now: Time) -> Segment {
        Segment { number, end: 0, live: 0, tombs: 0, changed: now, corrupt: false, batch_end: 0 }
    }
}

/// A command to the drive.
#[derive(Debug)]
enum Io {
    Recovery(recover::Asked),
    Get(read::Get, Loc),
    Load(Vec<load::Wanted>),
    Write,
    Piece,
    Chunk,
    Alloc,
    PieceAlloc,
    /// `begins`: the segment whose pages may be written then.
    CommitSync {
        covers: Pos,
        freed: u64,
        begins: Option<u64>,
    },
    PieceSync {
        freed: u64,
    },
    FreedSync {
        freed: u64,
    },
}

/// A key-value store on a vSSD. See the [module](self).
#[derive(Debug)]
pub struct Store {
    cfg: StoreConfig,
    /// Bytes of a block and of a page; blocks of the vSSD.
    size: u32,
    page: u32,
    blocks: u32,
    now: Time,
    recovery: Option<Box<recover::Recovery>>,
    open: bool,
    run: u64,
    gathers: bool,
    failed: Option<BlockError>,
    index: BTreeMap<Key, Loc>,
    /// Bytes of the index in a checkpoint.
    index_bytes: u64,
    live: u64,
    tombs: u64,
    segments: BTreeMap<u32, Segment>,
    log: log::Log,
    reads: read::Reads,
    load: Option<load::Load>,
    /// A load was asked for.
    load_begun: bool,
    compaction: Option<compact::Compaction>,
    may_compact: bool,
    /// Blocks to free once the log is programmed up to the position.
    releasing: Vec<(Block, Pos)>,
    /// Blocks freed since the start, and those freed durably.
    freed: u64,
    freed_durably: u64,
    syncing_freed: bool,
    checkpoint: checkpoint::Checkpoints,
    io: Slab<Io>,
    answers: Vec<Answer>,
    stats: StoreStats,
}

impl Store {
    /// Starts recovery of the vSSD's store, which ends with [`Answer::Opened`].
    pub fn open(cfg: StoreConfig, fx: &mut Flash<'_>) -> Result<Store, OpenError> {
        let (blocks, _) = fx.manager.blocks(cfg.vssd)?;
        let bytes = fx.manager.block_bytes(cfg.vssd)?;
        let (page, dies) = (fx.manager.geometry().page_bytes, fx.manager.dies(cfg.vssd)?);
        let size = space::checked(blocks, bytes, page)?;
        let mut s = Store {
            cfg,
            size,
            page,
            blocks,
            now: fx.now,
            recovery: None,
            open: false,
            run: 0,
            gathers: false,
            failed: None,
            index: BTreeMap::new(),
            index_bytes: 0,
            live: 0,
            tombs: 0,
            segments: BTreeMap::new(),
            log: log::Log::default(),
            reads: read::Reads::new(dies),
            load: None,
            load_begun: false,
            compaction: None,
            may_compact: false,
            releasing: Vec::new(),
            freed: 0,
            freed_durably: 0,
            syncing_freed: false,
            checkpoint: checkpoint::Checkpoints::default(),
            io: Slab::new(),
            answers: Vec::new(),
            stats: StoreStats::default(),
        };
        s.recover(fx)?;
        s.pump(fx);
        Ok(s)
    }
    pub fn is_open(&self) -> bool {
        self.open
    }
    pub fn vssd(&self) -> VssdId {
        self.cfg.vssd
    }
    /// Number of keys.
    pub fn len(&self) -> usize {
        self.index.len()
    }
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }
    pub fn stats(&self) -> StoreStats {
        self.stats
    }
    /// A final failure: puts are refused, gets are still served.
    pub fn failed(&self) -> Option<BlockError> {
        self.failed
    }
    /// Number of unanswered requests.
    pub fn pending(&self) -> usize {
        self.log.held.len() + self.log.waiters() + self.reads.under_way
    }
    /// Whether changes are not in the log yet: they may still be refused.
    pub fn holds_back(&self) -> bool {
        !self.log.held.is_empty()
    }
    /// Whether a block is being compacted.
    pub fn compacting(&self) -> bool {
        self.compaction.is_some() || !self.releasing.is_empty()
    }
    /// Permits compaction, or no further blocks of it ([`StoreConfig::on_request`]).
    pub fn set_compacting(&mut self, fx: &mut Flash<'_>, may: bool) {
        self.now = self.now.max(fx.now);
        self.may_compact = may;
        self.pump(fx);
    }
    /// Whether compaction is permitted, and would free nothing.
    pub fn nothing_to_compact(&self) -> bool {
        self.may_compact
            && self.open
            && !self.compacting()
            && self.freed == self.freed_durably
            && self.log_is_idle()
            && self.victim().is_none()
    }
    /// Whether a change waits until compaction frees a block.
    pub fn waits_for_space(&self) -> bool {
        self.failed.is_none() && !self.log.held.is_empty() && !self.roomy()
    }
    /// Takes the answers.
    pub fn answers(&mut self) -> std::vec::Drain<'_, Answer> {
        self.answers.drain(..)
    }
    /// Whether the token belongs to this store.
    pub fn owns(&self, token: u64) -> bool {
        token >> 48 == u64::from(self.cfg.user)
    }
    /// Whether a command waits because the drive's queues were full.
    pub fn wants_poll(&self) -> bool {
        !self.reads.blocked.is_empty()
            || self.load.as_ref().is_some_and(load::Load::wants_poll)
            || !self.log.queue.is_empty()
            || self.compaction.as_ref().is_some_and(|c| !c.reading)
            || !self.releasing.is_empty()
            || self.checkpoint.wants_poll()
    }

    /// Stores the value. Answered by [`Answer::Put`].
    pub fn put(
        &mut self,
        fx: &mut Flash<'_>,
        key: &[u8],
        value: Bytes,
        durability: Durability,
        token: u64,
    ) -> Result<(), PutError> {
        check_key(key).map_err(|(len, max)| PutError::KeyLength { len, max })?;
        let max = self.value_max(key.len());
        if value.len() > max {
            return Err(PutError::ValueTooLong { len: value.len(), max });
        }
        self.change(fx, log::Change::one(key, Some(value), durability, token))
    }
    /// Removes the key. Answered by [`Answer::Deleted`]. It is never refused for lack of space, unless blocks are damaged.
    pub fn delete(
        &mut self,
        fx: &mut Flash<'_>,
        key: &[u8],
        durability: Durability,
        token: u64,
    ) -> Result<(), PutError> {
        check_key(key).map_err(|(len, max)| PutError::KeyLength { len, max })?;
        self.change(fx, log::Change::one(key, None, durability, token))
    }
    /// Carries out all changes or, after a power cut, none; forced. A change without a value is a deletion. A key has one
    /// change at most. Answered by [`Answer::Put`].
    pub fn batch(
        &mut self,
        fx: &mut Flash<'_>,
        changes: Vec<(Bytes, Option<Bytes>)>,
        token: u64,
    ) -> Result<(), PutError> {
        let mut bytes = log::BATCH_LEN as usize;
        for (key, value) in &changes {
            check_key(key).map_err(|(len, max)| PutError::KeyLength { len, max })?;
            let len = value.as_ref().map_or(0, Bytes::len);
            if len > VALUE_MAX && !mutant!("kv.batch.longer-than-a-record") {
                return Err(PutError::ValueTooLong { len, max: VALUE_MAX });
            }
            bytes = bytes.saturating_add(change_len(key, value.as_ref()) as usize);
        }
        let max = self.batch_max();
        if bytes > max {
            return Err(PutError::BatchTooLong { bytes, max });
        }
        let parts = changes.into_iter().map(|(key, value)| log::Part { key: key[..].into(), value }).collect();
        self.change(fx, log::Change { parts, batch: true, durability: Durability::Forced, token })
    }
    /// Most bytes of the records of a batch: as many as of one record. None of its values is longer than [`VALUE_MAX`].
    pub fn batch_max(&self) -> usize {
        record_max(self.size) as usize
    }
    /// Bytes of the longest value of a key of this length.
    pub fn value_max(&self, key: usize) -> usize {
        VALUE_MAX.min((record_max(self.size) - RECORD_HEAD) as usize - key - 8)
    }
    /// At most this many bytes more than the key's value has, from memory; `None`: the key has none. Changes that are not
    /// durable count.
    pub fn value_bytes(&self, key: &[u8]) -> Option<usize> {
        self.index.get(key).map(|l| l.len as usize - RECORD_HEAD as usize - key.len())
    }
    /// Up to `limit` keys from the key `from` on, from memory; and the one from which there may be more. Changes that are
    /// not durable count.
    pub fn keys(&self, from: &[u8], limit: usize) -> (Vec<Bytes>, Option<Bytes>) {
        let mut all = self.index.range::<[u8], _>((Bound::Included(from), Bound::Unbounded)).map(|(k, _)| k);
        let keys = all.by_ref().take(limit).map(|k| Bytes::copy_from_slice(k)).collect();
        (keys, all.next().map(|k| Bytes::copy_from_slice(k)))
    }
    /// Number of the log's segment that this run began with: greater than that of every segment that there was.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Handles an answer of the drive to this store.
    pub fn handle(&mut self, fx: &mut Flash<'_>, done: Done) {
        self.now = self.now.max(fx.now);
        let token = match &done {
            Done::BlockAllocated { token, .. }
            | Done::Written { token, .. }
            | Done::Read { token, .. }
            | Done::Synced { token, .. } => *token,
            _ => return,
        };
        let id = (token & ((1 << 48) - 1)) as usize;
        if !self.owns(token) || !self.io.contains(id) {
            return;
        }
        self.settle(fx, token, id, done);
        self.pump(fx);
    }
    fn settle(&mut self, fx: &mut Flash<'_>, token: u64, id: usize, done: Done) {
        let io = self.io.remove(id);
        match (io, done) {
            (Io::Recovery(asked), Done::Read { result, .. }) => self.recovered(fx, asked, result),
            (Io::Get(get, loc), Done::Read { result, .. }) => self.got(get, loc, result),
            (Io::Load(records), Done::Read { result, .. }) => self.loaded(&records, result),
            (Io::Chunk, Done::Read { result, .. }) => self.compaction_read(result),
            (Io::Write, Done::Written { result, .. }) => match result {
                Ok(()) => self.log_written(token),
                Err(e) => self.fail(e),
            },
            (Io::Piece, Done::Written { result, .. }) => match result {
                Ok(()) => self.checkpoint.piece_written(),
                Err(e) => self.fail(e),
            },
            (Io::Alloc, Done::BlockAllocated { result, .. }) => match result {
                Ok(block) => self.log.allocated(block),
                Err(e) => self.fail(e),
            },
            (Io::PieceAlloc, Done::BlockAllocated { result, .. }) => match result {
                Ok(block) => self.checkpoint.allocated(block),
                Err(e) => self.fail(e),
            },
            (Io::CommitSync { covers, freed, begins }, Done::Synced { result, .. }) => match result {
                Ok(()) => {
                    self.freed_durably = self.freed_durably.max(freed);
                    self.committed(covers, begins);
                }
                Err(e) => self.fail(e.into()),
            },
            (Io::PieceSync { freed }, Done::Synced { result, .. }) => match result {
                Ok(()) => {
                    self.freed_durably = self.freed_durably.max(freed);
                    self.checkpoint_synced(fx);
                }
                Err(e) => self.fail(e.into()),
            },
            (Io::FreedSync { freed }, Done::Synced { result, .. }) => {
                self.syncing_freed = false;
                match result {
                    Ok(()) => self.freed_durably = self.freed_durably.max(freed),
                    Err(e) => self.fail(e.into()),
                }
            }
            _ => {}
        }
    }
    /// Whether changes wait to be forced together with those to come, until this ends and [`Store::poll`] is called.
    pub fn gather(&mut self, gathers: bool) {
        self.gathers = gathers;
    }
    /// Retries commands that the drive's queues had no room for.
    pub fn poll(&mut self, fx: &mut Flash<'_>) {
        self.now = self.now.max(fx.now);
        self.pump(fx);
    }
    fn pump(&mut self, fx: &mut Flash<'_>) {
        if !self.open {
            return self.recover_on(fx);
        }
        // The log's writes come first: otherwise reads would take every free place in a queue.
        self.write(fx);
        self.read_blocked(fx);
        self.load_on(fx);
        if self.failed.is_some() {
            return;
        }
        self.admit(fx);
        self.compact(fx);
        if self.stuck() {
            self.admit(fx);
        }
        self.write_checkpoint(fx);
        self.commit(fx);
        self.write(fx);
        self.release(fx);
        self.load_on(fx);
    }
    fn token(&mut self, io: Io) -> u64 {
        u64::from(self.cfg.user) << 48 | self.io.insert(io) as u64
    }
    /// The drive refused the request; returns its command.
    fn refused(&mut self, token: u64) -> Io {
        self.io.remove((token & ((1 << 48) - 1)) as usize)
    }
    fn block(&self, index: u32) -> Block {
        Block { vssd: self.cfg.vssd, index }
    }
    /// Stops all further writes.
    fn fail(&mut self, e: BlockError) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some(e);
        let error = PutError::Failed(e);
        self.answers.extend(self.log.give_up(error));
        self.read_all_locked();
    }
    /// Sets or removes the key's location in the index, and updates the accounts of both blocks.
    fn index_set(&mut self, key: Key, to: Option<Loc>) {
        let entry = (format::ENTRY_HEAD + key.len()) as u64;
        let old = match to {
            Some(loc) => {
                self.live += u64::from(loc.len);
                if let Some(s) = self.segments.get_mut(&loc.block) {
                    s.live += u64::from(loc.len);
                }
                let old = self.index.insert(key, loc);
                self.index_bytes += if old.is_none() { entry } else { 0 };
                old
            }
            None => {
                let old = self.index.remove(&key);
                self.index_bytes -= if old.is_some() { entry } else { 0 };
                old
            }
        };
        let Some(old) = old else { return };
        self.live -= u64::from(old.len);
        if let Some(s) = self.segments.get_mut(&old.block) {
            s.live -= u64::from(old.len);
            s.changed = self.now;
        }
    }
    /// Checks the accounts against the index, for tests.
    pub fn check(&self) -> Result<(), String> {
        let mut live: BTreeMap<u32, u64> = BTreeMap::new();
        let mut entries = 0;
        for (k, l) in &self.index {
            *live.entry(l.block).or_default() += u64::from(l.len);
            entries += (format::ENTRY_HEAD + k.len()) as u64;
        }
        for (block, s) in &self.segments {
            let truth = live.remove(block).unwrap_or(0);
            if truth != s.live {
                return Err(format!("block {block} has {truth} live bytes, {} are counted", s.live));
            }
        }
        let tombs: u64 = self.segments.values().map(|s| s.tombs).sum();
        let sum: u64 = self.segments.values().map(|s| s.live).sum();
        if !live.is_empty() || sum != self.live || tombs != self.tombs || entries != self.index_bytes {
            return Err(format!(
                "{live:?} in no segment, {sum} live and {} counted, {tombs} of tombstones and {} counted",
                self.live, self.tombs
            ));
        }
        Ok(())
    }
}

fn check_key(key: &[u8]) -> Result<(), (usize, usize)> {
    if key.is_empty() || key.len() > KEY_MAX { Err((key.len(), KEY_MAX)) } else { Ok(()) }
}

/// Bytes of the record of a change.
fn change_len(key: &[u8], value: Option<&Bytes>) -> u32 {
    record_len(key.len(), value.map_or(0, Bytes::len))
}
