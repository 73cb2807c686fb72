//! A sub-log (DF3): a VDisk's log entries on one server.
//!
//! Data and metadata are apart. Data are appended to files of at most [`LogLimits::file`] bytes; a full file is sealed, and
//! removed when none of its entries is valid. An entry's metadata are one record of fixed size ([`crate::record`]).
//! Each call appends the records that make it durable to `changes`; an append's data and metadata are one atomic write.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::journal::Change;
use rackweave_core::{Epoch, Payload, VolumeId};

use crate::record;
use crate::types::{Contents, EntryId, Extent, Serial, Write};

pub const FILE_BYTES: u32 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLimits {
    /// Most bytes of a data file.
    pub file: u32,
    /// Most bytes of a sub-log's data. Above, appends are refused.
    pub bytes: u64,
    /// Most entries, those without data included.
    pub entries: usize,
}

impl Default for LogLimits {
    fn default() -> LogLimits {
        LogLimits { file: FILE_BYTES, bytes: 64 << 20, entries: 1 << 16 }
    }
}

pub use rackweave_core::msg::cloud::{EntryKind as Kind, EntryMeta as Meta, Position};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The log can take it once entries have been merged.
    #[error("sub-log of {bytes} bytes and {entries} entries is full")]
    Full { bytes: u64, entries: usize },
    #[error("{serial} was given up")]
    Void { serial: Serial },
    /// It is a late repetition.
    #[error("{serial} was merged: the log begins at {head}")]
    Outdated { serial: Serial, head: Serial },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The entry was merged, given up, or never was: trim the index and read again.
    #[error("{serial} is outdated")]
    Outdated { serial: Serial },
    /// Not appended yet: read again later.
    #[error("{serial} is incomplete")]
    Incomplete { serial: Serial },
}

#[derive(Clone, Debug, Default)]
struct File {
    bytes: u32,
    valid: u32,
    sealed: bool,
}

#[derive(Clone, Debug)]
pub struct SubLog {
    volume: VolumeId,
    limits: LogLimits,
    files: BTreeMap<u32, File>,
    data: BTreeMap<Position, Payload>,
    metas: BTreeMap<EntryId, Meta>,
    /// Bytes of data in files.
    bytes: u64,
    current: u32,
    head: Serial,
}

impl SubLog {
    pub fn new(volume: VolumeId, limits: LogLimits) -> SubLog {
        SubLog {
            volume,
            limits,
            files: BTreeMap::new(),
            data: BTreeMap::new(),
            metas: BTreeMap::new(),
            bytes: 0,
            current: 0,
            head: Serial(0),
        }
    }
    /// Records that were saved: data first, then [`SubLog::found`].
    pub fn found_data(&mut self, position: Position, data: Payload) {
        self.data.insert(position, data);
    }
    /// False: its data are not there.
    pub fn found(&mut self, meta: Meta) -> bool {
        self.metas.insert(meta.id, meta);
        if meta.kind != Kind::Data {
            return true;
        }
        // After a restart appends begin a new file: where the last one ended is not known for sure.
        self.current = self.current.max(meta.position.file + 1);
        if !meta.valid {
            return true;
        }
        let bytes = meta.extent.count * rackweave_core::SECTOR;
        let file = self.files.entry(meta.position.file).or_default();
        file.sealed = true;
        file.bytes = file.bytes.max(meta.position.at + bytes);
        file.valid += 1;
        self.bytes += u64::from(bytes);
        self.data.get(&meta.position).is_some_and(|d| d.sectors() == meta.extent.count)
    }
    /// Keys of its records.
    pub fn keys(&self, keys: &mut Vec<Bytes>) {
        keys.extend(self.metas.keys().map(|id| record::meta_key(self.volume, *id)));
        keys.extend(self.data.keys().map(|p| record::data_key(self.volume, *p)));
    }
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    pub fn files(&self) -> usize {
        self.files.len()
    }
    pub fn entries(&self) -> usize {
        self.metas.len()
    }
    pub fn is_full(&self) -> bool {
        self.bytes >= self.limits.bytes || self.metas.len() >= self.limits.entries
    }

    fn place(&mut self, bytes: u32) -> Position {
        let file = self.files.entry(self.current).or_default();
        if file.bytes > 0 && file.bytes + bytes > self.limits.file {
            file.sealed = true;
            self.current += 1;
        }
        let file = self.files.entry(self.current).or_default();
        let at = file.bytes;
        file.bytes += bytes;
        file.valid += 1;
        self.bytes += u64::from(bytes);
        Position { file: self.current, at }
    }
    fn put(&mut self, meta: Meta, changes: &mut Vec<Change>) {
        changes.push((record::meta_key(self.volume, meta.id), Some(record::meta(&meta))));
        self.metas.insert(meta.id, meta);
    }

    /// Appends an entry. One that is there already is not appended again: `Ok(false)`.
    ///
    /// # Errors
    /// The log is full, or the serial has passed.
    pub fn append(&mut self, id: EntryId, write: &Write, changes: &mut Vec<Change>) -> Result<bool, AppendError> {
        if id.serial < self.head {
            return Err(AppendError::Outdated { serial: id.serial, head: self.head });
        }
        if let Some(meta) = self.metas.get(&id) {
            let void = meta.kind == Kind::Void;
            return if void { Err(AppendError::Void { serial: id.serial }) } else { Ok(false) };
        }
        if self.is_full() {
            return Err(AppendError::Full { bytes: self.bytes, entries: self.metas.len() });
        }
        let (kind, position) = match &write.contents {
            Contents::Data(data) => {
                let position = self.place(data.len());
                changes.push((record::data_key(self.volume, position), Some(record::payload(data))));
                self.data.insert(position, data.clone());
                (Kind::Data, position)
            }
            Contents::Zeroes => (Kind::Zeroes, Position::default()),
            Contents::Discarded => (Kind::Discarded, Position::default()),
        };
        self.put(Meta { id, extent: write.extent, position, kind, valid: true }, changes);
        Ok(true)
    }

    /// The part's contents, and what kind of entry it is.
    ///
    /// # Errors
    /// The entry does not count, or is not there yet.
    pub fn read(&self, id: EntryId, part: Extent) -> Result<Contents, ReadError> {
        let serial = id.serial;
        let Some(meta) = self.metas.get(&id) else {
            let passed = serial < self.head;
            return Err(if passed { ReadError::Outdated { serial } } else { ReadError::Incomplete { serial } });
        };
        let inside = part.common(meta.extent) == Some(part);
        if !meta.valid || meta.kind == Kind::Void || !inside {
            return Err(ReadError::Outdated { serial });
        }
        Ok(match meta.kind {
            Kind::Data => {
                let data = self.data.get(&meta.position).ok_or(ReadError::Outdated { serial })?;
                Contents::Data(data.clone()).part(meta.extent, part)
            }
            Kind::Zeroes => Contents::Zeroes,
            _ => Contents::Discarded,
        })
    }
    /// Metadata of all entries from this serial on, by serial.
    pub fn traverse(&self, from: Serial) -> impl Iterator<Item = &Meta> {
        self.metas.range(EntryId { serial: from, generation: Epoch(0) }..).map(|(_, m)| m)
    }
    pub fn meta(&self, id: EntryId) -> Option<&Meta> {
        self.metas.get(&id)
    }

    /// Takes an entry's contents away, whether it was appended or not: a later append of it is refused.
    pub fn void(&mut self, id: EntryId, changes: &mut Vec<Change>) {
        if id.serial < self.head || self.metas.get(&id).is_some_and(|m| m.kind == Kind::Void) {
            return;
        }
        self.drop_data(id, changes);
        let (extent, position) = (Extent::new(0, 0), Position::default());
        self.put(Meta { id, extent, position, kind: Kind::Void, valid: false }, changes);
    }
    /// Marks an entry as merged.
    pub fn invalidate(&mut self, id: EntryId, changes: &mut Vec<Change>) {
        let Some(meta) = self.metas.get(&id).copied().filter(|m| m.valid) else { return };
        self.drop_data(id, changes);
        self.put(Meta { valid: false, ..meta }, changes);
    }
    /// A new epoch: its head is not known yet.
    pub fn begin(&mut self) {
        self.head = Serial(0);
    }
    /// All entries before `head` have been merged or given up: their metadata go, too.
    pub fn trim(&mut self, head: Serial, changes: &mut Vec<Change>) {
        self.head = self.head.max(head);
        let end = EntryId { serial: self.head, generation: Epoch(0) };
        for id in self.metas.range(..end).map(|(id, _)| *id).collect::<Vec<_>>() {
            self.forget(id, changes);
        }
    }
    /// Removes an entry that does not count.
    pub fn forget(&mut self, id: EntryId, changes: &mut Vec<Change>) {
        self.drop_data(id, changes);
        if self.metas.remove(&id).is_some() {
            changes.push((record::meta_key(self.volume, id), None));
        }
    }
    /// The entry's data count no more; a sealed file without valid entries goes.
    fn drop_data(&mut self, id: EntryId, changes: &mut Vec<Change>) {
        let Some(meta) = self.metas.get_mut(&id).filter(|m| m.valid) else { return };
        meta.valid = false;
        let (kind, position, bytes) = (meta.kind, meta.position, meta.extent.count * rackweave_core::SECTOR);
        if kind != Kind::Data {
            return;
        }
        self.bytes -= u64::from(bytes);
        let Some(file) = self.files.get_mut(&position.file) else { return };
        file.valid -= 1;
        if file.valid == 0 && file.sealed {
            self.remove_file(position.file, changes);
        } else if file.valid == 0 {
            // The current file without a valid entry is begun anew.
            self.remove_file(position.file, changes);
            self.current += 1;
        }
    }
    fn remove_file(&mut self, file: u32, changes: &mut Vec<Change>) {
        self.files.remove(&file);
        let all = Position { file, at: 0 }..=Position { file, at: u32::MAX };
        for position in self.data.range(all).map(|(p, _)| *p).collect::<Vec<_>>() {
            self.data.remove(&position);
            changes.push((record::data_key(self.volume, position), None));
        }
    }
    pub fn head(&self) -> Serial {
        self.head
    }
}
