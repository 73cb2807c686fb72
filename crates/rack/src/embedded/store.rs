//! The metadata service's key-value store: one redb file, one durable commit for each write.

use std::path::Path;

use bytes::Bytes;
use rackweave_core::node::StoreWrite;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

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

#[derive(Debug)]
pub struct Store(Database);

impl Store {
    pub fn open(path: &Path) -> Result<Store, StoreError> {
        Database::create(path).map(Store).map_err(fail)
    }

    /// Everything in it, in the order of the keys.
    pub fn load(&self) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        let txn = self.0.begin_read().map_err(fail)?;
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

    /// All entries of `w` or none; durable when this returns.
    pub fn write(&self, w: &StoreWrite) -> Result<(), StoreError> {
        let txn = self.0.begin_write().map_err(fail)?;
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
        let s = Store::open(&path).expect("open");
        assert_eq!(s.load().expect("load"), vec![]);
        s.write(&StoreWrite { tag: 1, entries: vec![put("b", Some("2")), put("a", Some("1"))] }).expect("write");
        s.write(&StoreWrite { tag: 2, entries: vec![put("b", None), put("c", Some("3"))] }).expect("write");
        drop(s);
        let all = Store::open(&path).expect("open").load().expect("load");
        assert_eq!(all, vec![("a".into(), "1".into()), ("c".into(), "3".into())]);
        std::fs::remove_file(&path).expect("remove");
    }
}
