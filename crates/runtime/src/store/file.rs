//! The metadata service's state in one redb file, written by blocking calls.
//!
//! A failed fsync is final (protocol rule 12): the kernel may mark pages clean that never reached the disk. A later
//! fsync then succeeds without them, even after the database is reopened. The store therefore takes no further write,
//! and its process ends. The next start rewrites and syncs every page before it opens the database ([`rewrite`]), so
//! that what it reads is on the disk.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rackweave_core::RackId;
use rackweave_device::{FileIo, OsFile, io as device_io, private};
use redb::backends::FileBackend;
use redb::{BackendError, Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

use super::{Entries, StoreError};

/// Data of the rack as a whole, apart from the metadata service's. A version that does not know it leaves it unchanged.
const RACK: TableDefinition<&str, &[u8]> = TableDefinition::new("rack");
const RACK_ID: &str = "id";
/// The configuration keys that fix the rack's layout, with the values it was created with.
const MADE: &str = "made";
const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("meta");

/// With less room on the host's disk, changes that can wait are refused: the rest is for those that keep the rack
/// running.
const LEFT_MIN: u64 = 1 << 20;
/// Unit of [`rewrite`]; redb's pages are this size or a multiple of it.
const PAGE_BYTES: usize = 4096;
/// Bytes that [`rewrite`] reads at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Why entries were not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The host's disk is full. Nothing was changed, and the write may be retried.
    #[error(transparent)]
    NoRoom(StoreError),
    /// Whether the write is durable is unknown. No further write is taken.
    #[error(transparent)]
    Failed(StoreError),
}

/// The sync function; tests make it fail or wait.
type SyncBy = Arc<dyn Fn(&FileBackend) -> io::Result<()> + Send + Sync>;

/// The database's file, which records a failed fsync.
struct Backend {
    file: FileBackend,
    sync: SyncBy,
    sync_failed: Arc<AtomicBool>,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend").field("file", &self.file).finish_non_exhaustive()
    }
}

type Locked<T> = Result<T, BackendError>;

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        (self.sync)(&self.file).inspect_err(|_| self.sync_failed.store(true, Ordering::Release))
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write(offset, data)
    }
    fn close(&self) -> io::Result<()> {
        self.file.close()
    }
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<bool> {
        self.file.try_lock_range(start, end)
    }
    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<bool> {
        self.file.try_lock_shared_range(start, end)
    }
    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<()> {
        self.file.lock_range(start, end)
    }
    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<()> {
        self.file.lock_shared_range(start, end)
    }
    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<()> {
        self.file.unlock_range(start, end)
    }
    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<bool> {
        self.file.query_lock_range(start, end)
    }
}

/// Makes the file durable as it reads now, regardless of earlier syncs: rewrites every page, then syncs.
fn rewrite(file: &mut impl FileIo) -> io::Result<()> {
    let len = if mutant!("runtime.store.trusts-cache") { 0 } else { file.len()? };
    let mut chunk = vec![0; CHUNK_BYTES];
    for offset in (0..len).step_by(CHUNK_BYTES) {
        let n = (len - offset).min(CHUNK_BYTES as u64) as usize;
        file.read_at(&mut chunk[..n], offset)?;
        for (page, at) in chunk[..n].chunks(PAGE_BYTES).zip((offset..).step_by(PAGE_BYTES)) {
            match file.write_at(&[page], at) {
                // A hole, for which a full disk has no space. It reads as zeroes from the disk too.
                Err(e) if is_full(e.kind()) && page.iter().all(|&b| b == 0) => {}
                written => written?,
            }
        }
    }
    file.sync()
}

fn is_full(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

type Opened<T> = Result<T, Box<redb::Error>>;

/// Converts any of redb's errors, for `map_err`.
fn fail(e: impl Into<redb::Error>) -> Box<redb::Error> {
    Box::new(e.into())
}

/// The state of a metadata service. After a write without room the database answers only errors until it is reopened,
/// so it is closed, and the next write opens it.
///
/// Space is allocated up to the file's length. The database reuses free pages, so most writes succeed on a full disk.
pub struct StoreFile {
    path: PathBuf,
    db: Option<Database>,
    /// A second handle without the database's lock, to allocate space.
    file: File,
    allocated: u64,
    sync: SyncBy,
    sync_failed: Arc<AtomicBool>,
    failed: bool,
}

impl StoreFile {
    pub fn open(path: &Path) -> Result<StoreFile, StoreError> {
        StoreFile::synced_by(path, Arc::new(FileBackend::sync_data))
    }

    fn synced_by(path: &Path, sync: SyncBy) -> Result<StoreFile, StoreError> {
        let of = |e| StoreError::of(path, e);
        OsFile::open(path).and_then(|mut f| rewrite(&mut f)).map_err(of)?;
        let file = private::open(path).map_err(of)?;
        let sync_failed = Arc::new(AtomicBool::new(false));
        let mut store = StoreFile { path: path.into(), db: None, file, allocated: 0, sync, sync_failed, failed: false };
        store.db().map(drop).map_err(|e| store.error(e))?;
        store.allocate();
        Ok(store)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn error(&self, error: Box<redb::Error>) -> StoreError {
        StoreError::File { file: self.path.clone(), error }
    }

    /// Allocates space for growth. If that fails, the next write tries again.
    fn allocate(&mut self) {
        let len = self.file.metadata().map_or(0, |m| m.len());
        if len != self.allocated && device_io::allocate(&self.file, 0, len).is_ok() {
            self.allocated = len;
        }
    }

    /// Why changes that can wait should, if the host's disk is nearly full.
    pub fn short_of_room(&self) -> Option<String> {
        let left = device_io::bytes_left(&self.file).ok().filter(|left| *left < LEFT_MIN)?;
        Some(format!("{}: only {} KiB are left on the host's disk", self.path.display(), left >> 10))
    }

    fn db(&mut self) -> Opened<&Database> {
        if self.db.is_none() {
            let file = FileBackend::new(private::open(&self.path).map_err(redb::Error::Io)?).map_err(fail)?;
            let backend = Backend { file, sync: Arc::clone(&self.sync), sync_failed: Arc::clone(&self.sync_failed) };
            self.db = Some(Database::builder().create_with_backend(backend).map_err(fail)?);
        }
        Ok(self.db.as_ref().expect("opened above"))
    }

    /// All entries, in the order of the keys.
    pub fn load(&mut self) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.read_all().map_err(|e| self.error(e))
    }

    fn read_all(&mut self) -> Opened<Vec<(Bytes, Bytes)>> {
        let txn = self.db()?.begin_read().map_err(fail)?;
        let table = match txn.open_table(TABLE) {
            Ok(t) => t,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            Err(e) => return Err(fail(e)),
        };
        let mut all = Vec::new();
        for entry in table.iter().map_err(fail)? {
            let (k, v) = entry.map_err(fail)?;
            all.push((Bytes::copy_from_slice(k.value()), Bytes::copy_from_slice(v.value())));
        }
        Ok(all)
    }

    /// The rack's identity. On first use it is drawn, and durable on return.
    pub fn rack_id(&mut self, drawn: impl FnOnce() -> RackId) -> Result<RackId, StoreError> {
        let well = |v: &[u8]| v.try_into().ok().map(u128::from_be_bytes);
        self.keep(RACK_ID, well, || drawn().0, |id| id.to_be_bytes().into()).map(RackId).map_err(|e| self.error(e))
    }

    /// The configuration that the rack was created with, one line per key that fixes its layout. On first use it is
    /// `now`, and durable on return.
    pub fn made_with(&mut self, now: &str) -> Result<String, StoreError> {
        let text = |v: &[u8]| Some(String::from_utf8_lossy(v).into_owned());
        self.keep(MADE, text, || now.into(), |made| made.as_bytes().into()).map_err(|e| self.error(e))
    }

    /// The same, if it is there.
    pub fn made(&mut self) -> Result<Option<String>, StoreError> {
        self.read_made().map_err(|e| self.error(e))
    }
    fn read_made(&mut self) -> Opened<Option<String>> {
        let txn = self.db()?.begin_read().map_err(fail)?;
        let table = match txn.open_table(RACK) {
            Ok(t) => t,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(e) => return Err(fail(e)),
        };
        let made = table.get(MADE).map_err(fail)?;
        Ok(made.map(|v| String::from_utf8_lossy(v.value()).into_owned()))
    }

    /// The rack's value of a key. If `decode` accepts none, `first` is stored.
    fn keep<T>(
        &mut self,
        key: &str,
        decode: impl FnOnce(&[u8]) -> Option<T>,
        first: impl FnOnce() -> T,
        encode: impl FnOnce(&T) -> Vec<u8>,
    ) -> Opened<T> {
        let txn = self.db()?.begin_write().map_err(fail)?;
        let value = {
            let mut table = txn.open_table(RACK).map_err(fail)?;
            let kept = table.get(key).map_err(fail)?.and_then(|v| decode(v.value()));
            match kept {
                Some(value) => value,
                None => {
                    let value = first();
                    table.insert(key, encode(&value).as_slice()).map_err(fail)?;
                    value
                }
            }
        };
        txn.commit().map_err(fail)?;
        Ok(value)
    }

    /// Writes all entries of all writes in order, atomically; durable on return.
    ///
    /// # Errors
    /// After [`WriteError::Failed`] every further call fails.
    pub fn write(&mut self, writes: &[Entries]) -> Result<(), WriteError> {
        if self.failed {
            return Err(WriteError::Failed(self.error(Box::new(redb::Error::PreviousIo))));
        }
        let Err(error) = self.commit(writes) else {
            self.allocate();
            return Ok(());
        };
        // Closing the database may sync.
        self.db = None;
        let full = matches!(&*error, redb::Error::Io(e) if is_full(e.kind()));
        let error = self.error(error);
        self.failed = (!full || self.sync_failed.load(Ordering::Acquire)) && !mutant!("runtime.store.sync-not-final");
        Err(if self.failed { WriteError::Failed(error) } else { WriteError::NoRoom(error) })
    }

    fn commit(&mut self, writes: &[Entries]) -> Opened<()> {
        let txn = self.db()?.begin_write().map_err(fail)?;
        {
            let mut table = txn.open_table(TABLE).map_err(fail)?;
            for (k, v) in writes.iter().flatten() {
                match v {
                    Some(v) => drop(table.insert(k.as_ref(), v.as_ref()).map_err(fail)?),
                    None => drop(table.remove(k.as_ref()).map_err(fail)?),
                }
            }
        }
        txn.commit().map_err(fail)
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
pub(super) mod tests;
