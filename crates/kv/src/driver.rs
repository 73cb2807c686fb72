//! A store on a backend with blocking calls, for the command line and other programs that wait.

use bytes::Bytes;
use rackweave_core::device::{Backend, DeviceError};
use rackweave_core::records::StoredRecord;
use rackweave_flash::manager::Done;
use rackweave_flash::manager::api::BlockError;
use rackweave_flash::manager::driver::BlockingDrive;

use crate::store::{Answer, Durability, Flash, GetError, OpenError, PutError, Scan, Store, StoreConfig};

/// A store and the drive it is on.
#[derive(Debug)]
pub struct KvDrive<B> {
    drive: BlockingDrive<B>,
    store: Store,
    token: u64,
}

impl<B: Backend> KvDrive<B> {
    /// Recovers the store of the vSSD; an empty vSSD is an empty store. On an error the drive is returned.
    pub fn open(
        mut drive: BlockingDrive<B>,
        cfg: StoreConfig,
    ) -> Result<KvDrive<B>, Box<(BlockingDrive<B>, OpenError)>> {
        let (now, manager, out) = drive.parts();
        let store = match Store::open(cfg, &mut Flash { now, manager, out }) {
            Ok(store) => store,
            Err(e) => return Err(Box::new((drive, e))),
        };
        let mut kv = KvDrive { drive, store, token: 0 };
        let opened = kv.wait(|a| if let Answer::Opened { result } = a { Some(*result) } else { None });
        match opened {
            Some(Ok(())) => Ok(kv),
            Some(Err(e)) => Err(Box::new((kv.drive, e))),
            None => Err(Box::new((kv.drive, BlockError::NotReady.into()))),
        }
    }
    pub fn store(&self) -> &Store {
        &self.store
    }
    #[cfg(test)]
    pub(crate) fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }
    /// Drops the store, whose forced changes are durable, and returns the drive, which must be closed.
    pub fn into_drive(mut self) -> BlockingDrive<B> {
        while self.step() {}
        self.drive
    }
    /// Stores the value durably.
    pub fn put(&mut self, key: &[u8], value: Bytes) -> Result<(), PutError> {
        let token = self.next_token();
        self.call(|s, fx| s.put(fx, key, value, Durability::Forced, token))?;
        self.wait(|a| match a {
            Answer::Put { token: t, result } if *t == token => Some(*result),
            _ => None,
        })
        .unwrap_or(Err(PutError::Failed(self.unanswered())))
    }
    /// Carries out all changes durably, or none. A change without a value is a deletion.
    pub fn batch(&mut self, changes: Vec<(Bytes, Option<Bytes>)>) -> Result<(), PutError> {
        let token = self.next_token();
        self.call(|s, fx| s.batch(fx, changes, token))?;
        self.wait(|a| match a {
            Answer::Put { token: t, result } if *t == token => Some(*result),
            _ => None,
        })
        .unwrap_or(Err(PutError::Failed(self.unanswered())))
    }
    /// Removes the key durably; returns whether it existed.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, PutError> {
        let token = self.next_token();
        self.call(|s, fx| s.delete(fx, key, Durability::Forced, token))?;
        self.wait(|a| match a {
            Answer::Deleted { token: t, result } if *t == token => Some(*result),
            _ => None,
        })
        .unwrap_or(Err(PutError::Failed(self.unanswered())))
    }
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>, GetError> {
        let token = self.next_token();
        self.call(|s, fx| s.get(fx, key, token))?;
        self.wait(|a| match a {
            Answer::Got { token: t, result } if *t == token => Some(result.clone()),
            _ => None,
        })
        .unwrap_or(Err(GetError::Read(self.unanswered())))
    }
    pub fn scan(&mut self, from: &[u8], limit: usize) -> Result<Scan, GetError> {
        let token = self.next_token();
        self.call(|s, fx| s.scan(fx, from, limit, token))?;
        self.wait(|a| match a {
            Answer::Scanned { token: t, result } if *t == token => Some(result.clone()),
            _ => None,
        })
        .unwrap_or(Err(GetError::Read(self.unanswered())))
    }
    /// All keys and values, in order of the keys; before the first change.
    pub fn load(&mut self) -> Result<Vec<StoredRecord>, GetError> {
        let token = self.next_token();
        self.call(|s, fx| s.load(fx, token))?;
        self.wait(|a| match a {
            Answer::Loaded { token: t, result } if *t == token => Some(result.clone()),
            _ => None,
        })
        .unwrap_or(Err(GetError::Read(self.unanswered())))
    }
    /// Why an answer is missing, though no command is pending.
    fn unanswered(&self) -> BlockError {
        let failed = self.drive.manager().failed().unwrap_or(DeviceError::Backend { os_error: 0 });
        self.store.failed().unwrap_or(failed.into())
    }

    fn next_token(&mut self) -> u64 {
        self.token += 1;
        self.token
    }
    fn call<T>(&mut self, f: impl FnOnce(&mut Store, &mut Flash<'_>) -> T) -> T {
        let (now, manager, out) = self.drive.parts();
        f(&mut self.store, &mut Flash { now, manager, out })
    }
    fn step(&mut self) -> bool {
        let went = self.drive.step();
        for done in self.drive.take_done() {
            if let Some(token) = token_of(&done)
                && self.store.owns(token)
            {
                self.call(|s, fx| s.handle(fx, done));
            }
        }
        if self.store.wants_poll() {
            self.call(|s, fx| s.poll(fx));
        }
        let (_, _, out) = self.drive.parts();
        went || !out.commands.is_empty() || !out.done.is_empty()
    }
    fn wait<T>(&mut self, mut wanted: impl FnMut(&Answer) -> Option<T>) -> Option<T> {
        loop {
            if let Some(found) = self.store.answers().find_map(|a| wanted(&a)) {
                return Some(found);
            }
            if !self.step() {
                return self.store.answers().find_map(|a| wanted(&a));
            }
        }
    }
}

/// Token of the answered call.
pub(crate) fn token_of(done: &Done) -> Option<u64> {
    match done {
        Done::BlockAllocated { token, .. }
        | Done::Written { token, .. }
        | Done::Read { token, .. }
        | Done::Synced { token, .. } => Some(*token),
        _ => None,
    }
}
