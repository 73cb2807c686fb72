//! The metadata service's key-value store: one redb file, one durable commit for each write.

use std::fs::File;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rackweave_core::RackId;
use rackweave_core::node::StoreWrite;
use rackweave_device::{io, private};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

/// What is of the rack as a whole and not the metadata service's own. A program that does not know it leaves it alone.
const RACK: TableDefinition<&str, &[u8]> = TableDefinition::new("rack");
const RACK_ID: &str = "id";
/// The keys that fix the rack's layout, as it was made with them.
const MADE: &str = "made";
const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("meta");

/// Why the store could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[error("metadata store: {0}")]
pub struct StoreError(#[from] Box<redb::Error>);

impl StoreError {
    /// An error of the operating system.
    pub fn of(e: std::io::Error) -> StoreError {
        StoreError(Box::new(redb::Error::Io(e)))
    }
}

fn fail(e: impl Into<redb::Error>) -> StoreError {
    StoreError(Box::new(e.into()))
}

fn open(path: &Path) -> Result<Database, StoreError> {
    let file = private::open(path).map_err(StoreError::of)?;
    Database::builder().create_file(file).map_err(fail)
}

/// With less left on the host's disk no change is begun that may wait: what it has is for those that keep the rack going.
const LEFT_MIN: u64 = 1 << 20;

/// After a failed write the database answers nothing but errors until it is opened again (the disk may have been full, and
/// not be any more): it is closed then, and the next write opens it.
///
/// The file's space is allocated as far as it reaches: the database uses its free pages again, so most writes succeed on a full
/// disk, too.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    db: Option<Database>,
    /// Without the lock that the database has: for its space.
    file: File,
    allocated: u64,
}

impl Store {
    pub fn open(path: &Path) -> Result<Store, StoreError> {
        let db = Some(open(path)?);
        let file = private::open(path).map_err(StoreError::of)?;
        let mut store = Store { path: path.into(), db, file, allocated: 0 };
        store.allocate();
        Ok(store)
    }

    /// Allocates what the file has grown by. Where that fails it is tried again after the next write.
    fn allocate(&mut self) {
        let len = self.file.metadata().map_or(0, |m| m.len());
        if len != self.allocated && io::allocate(&self.file, 0, len).is_ok() {
            self.allocated = len;
        }
    }

    /// Why changes that may wait should, if the host's disk is nearly full.
    pub fn short_of_room(&self) -> Option<String> {
        let left = io::bytes_left(&self.file).ok().filter(|left| *left < LEFT_MIN)?;
        Some(format!("{}: only {} KiB are left on the host's disk", self.path.display(), left >> 10))
    }

    fn db(&mut self) -> Result<&Database, StoreError> {
        if self.db.is_none() {
            self.db = Some(open(&self.path)?);
        }
        Ok(self.db.as_ref().expect("opened above"))
    }

    /// Everything in it, in the order of the keys.
    pub fn load(&mut self) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
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

    /// The rack's identity; the first time it is `drawn`, and durable when this returns.
    pub fn rack_id(&mut self, drawn: impl FnOnce() -> RackId) -> Result<RackId, StoreError> {
        let txn = self.db()?.begin_write().map_err(fail)?;
        let id = {
            let mut table = txn.open_table(RACK).map_err(fail)?;
            let kept = table.get(RACK_ID).map_err(fail)?.and_then(|v| v.value().try_into().ok());
            match kept.map(u128::from_be_bytes) {
                Some(id) => RackId(id),
                None => {
                    let id = drawn();
                    table.insert(RACK_ID, &id.0.to_be_bytes()[..]).map_err(fail)?;
                    id
                }
            }
        };
        txn.commit().map_err(fail)?;
        Ok(id)
    }

    /// What the rack was made with, a line for each key that fixes its layout; the first time it is `now`, and durable when this
    /// returns.
    pub fn made_with(&mut self, now: &str) -> Result<String, StoreError> {
        let txn = self.db()?.begin_write().map_err(fail)?;
        let made = {
            let mut table = txn.open_table(RACK).map_err(fail)?;
            let kept = table.get(MADE).map_err(fail)?.map(|v| String::from_utf8_lossy(v.value()).into_owned());
            match kept {
                Some(made) => made,
                None => {
                    table.insert(MADE, now.as_bytes()).map_err(fail)?;
                    now.into()
                }
            }
        };
        txn.commit().map_err(fail)?;
        Ok(made)
    }

    /// All entries of `w` or none; durable when this returns.
    pub fn write(&mut self, w: &StoreWrite) -> Result<(), StoreError> {
        let result = self.commit(w);
        match result {
            Ok(()) => self.allocate(),
            Err(_) => self.db = None,
        }
        result
    }

    fn commit(&mut self, w: &StoreWrite) -> Result<(), StoreError> {
        let txn = self.db()?.begin_write().map_err(fail)?;
        {
            let mut table = txn.open_table(TABLE).map_err(fail)?;
            for (k, v) in &w.entries {
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
mod tests {
    use super::*;

    #[test]
    fn writes_are_there_after_reopening() {
        let path = std::env::temp_dir().join(format!("rackweave-store-{}.redb", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let put = |k: &'static str, v: Option<&'static str>| (Bytes::from(k), v.map(Bytes::from));
        let mut s = Store::open(&path).expect("open");
        assert_eq!(s.load().expect("load"), vec![]);
        s.write(&StoreWrite { tag: 1, entries: vec![put("b", Some("2")), put("a", Some("1"))] }).expect("write");
        s.write(&StoreWrite { tag: 2, entries: vec![put("b", None), put("c", Some("3"))] }).expect("write");
        assert_eq!(s.rack_id(|| RackId(7)).expect("drawn"), RackId(7));
        drop(s);
        let mut s = Store::open(&path).expect("open");
        let all = s.load().expect("load");
        assert_eq!(all, vec![("a".into(), "1".into()), ("c".into(), "3".into())]);
        assert_eq!(s.rack_id(|| panic!("drawn once")).expect("kept"), RackId(7));
        let made = ["a = 1", "a = 2"].map(|now| s.made_with(now).expect("kept"));
        assert_eq!(made, ["a = 1", "a = 1"], "the first time counts");
        drop(s);
        std::fs::remove_file(&path).expect("remove");
    }

    /// Runs `f` with an empty file system of `bytes` at `at`, which this thread alone sees. `Err`: why that cannot be.
    fn on_a_small_disk(at: &Path, bytes: u64, f: impl FnOnce() + Send) -> Result<(), String> {
        let c = |s: &str| std::ffi::CString::new(s).expect("no zero byte");
        let (root, none, tmpfs) = (c("/"), c("none"), c("tmpfs"));
        let (at, size) = (c(at.to_str().expect("UTF-8")), c(&format!("size={bytes}")));
        let mount = || {
            let check = |r: i32| if r == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().to_string()) };
            // SAFETY: every pointer is to a string that outlives the call; only this thread's mounts change.
            unsafe {
                check(libc::unshare(libc::CLONE_NEWNS))?;
                let private = libc::MS_REC | libc::MS_PRIVATE;
                check(libc::mount(none.as_ptr(), root.as_ptr(), std::ptr::null(), private, std::ptr::null()))?;
                check(libc::mount(tmpfs.as_ptr(), at.as_ptr(), tmpfs.as_ptr(), 0, size.as_ptr().cast()))
            }
        };
        std::thread::scope(|s| s.spawn(|| mount().map(|()| f())).join().expect("the test on it"))
    }

    #[test]
    fn a_full_disk_is_told_and_forgotten_when_there_is_room() {
        let dir = std::env::temp_dir().join(format!("rackweave-full-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("directory");
        let path = dir.join("meta.redb");
        let entry = |n: u32, bytes: usize| StoreWrite {
            tag: 1,
            entries: vec![(Bytes::from(format!("{n:08}")), Some(Bytes::from(vec![n as u8; bytes])))],
        };
        let test = || {
            let mut s = Store::open(&path).expect("open");
            s.write(&entry(0, 100)).expect("there is room");
            let rest = path.with_file_name("filler");
            let mut filler = std::fs::File::create(&rest).expect("filler");
            while std::io::Write::write_all(&mut filler, &[1; 4096]).is_ok() {}
            let mut written = 0;
            let error = loop {
                match s.write(&entry(written + 1, 20_000)) {
                    Ok(()) => written += 1,
                    Err(e) => break e.to_string(),
                }
                assert!(written < 10_000, "the disk is never full");
            };
            assert!(error.contains("No space left"), "{error}");
            let again = s.write(&entry(written + 1, 20_000)).expect_err("still full").to_string();
            assert!(again.contains("No space left"), "the reason is told each time: {again}");
            drop(filler);
            std::fs::remove_file(&rest).expect("removed");
            s.write(&entry(written + 1, 20_000)).expect("there is room again");
            drop(s);
            let all = Store::open(&path).expect("open").load().expect("load");
            assert_eq!(all.len() as u32, written + 2, "nothing acknowledged is lost, nothing refused is there");
        };
        if let Err(why) = on_a_small_disk(&dir, 4 << 20, test) {
            println!("SKIP a_full_disk_is_told_and_forgotten_when_there_is_room: {why}");
        }
        std::fs::remove_dir(&dir).expect("the directory below is empty");
    }
}
