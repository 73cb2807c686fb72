//! Keys on a backend with blocking calls: one drive, many requests at a time.

use rackweave_core::device::Backend;
use rackweave_core::kv::Op;
use rackweave_core::request::{self, RequestId};
use rackweave_flash::manager::api::BlockError;
use rackweave_flash::manager::driver::BlockingDrive;

use super::Keys;
use crate::driver::token_of;
use crate::store::{Flash, OpenError, Store, StoreConfig};

/// Keys and the drive that they are on.
///
/// Requests come in by [`KeyDrive::submit`]; [`KeyDrive::turn`], or its two parts, carry them out. All changes that are submitted before a
/// turn are forced by one sync.
#[derive(Debug)]
pub struct KeyDrive<B> {
    drive: BlockingDrive<B>,
    keys: Keys,
}

impl<B: Backend> KeyDrive<B> {
    /// Recovers the store of the vSSD. On an error the drive is returned.
    pub fn open(
        mut drive: BlockingDrive<B>,
        cfg: StoreConfig,
    ) -> Result<KeyDrive<B>, Box<(BlockingDrive<B>, OpenError)>> {
        let (now, manager, out) = drive.parts();
        let store = match Store::open(cfg, &mut Flash { now, manager, out }) {
            Ok(store) => store,
            Err(e) => return Err(Box::new((drive, e))),
        };
        let mut kv = KeyDrive { drive, keys: Keys::new(store) };
        kv.call(|k, fx| k.poll(fx));
        while kv.keys.opened().is_none() && kv.step() {}
        match kv.keys.opened() {
            Some(Ok(())) => {
                kv.keys.store_mut().gather(true);
                Ok(kv)
            }
            Some(Err(e)) => Err(Box::new((kv.drive, e))),
            None => Err(Box::new((kv.drive, BlockError::NotReady.into()))),
        }
    }
    pub fn keys(&self) -> &Keys {
        &self.keys
    }
    /// Ends what is under way and returns the drive, which must be closed.
    pub fn into_drive(mut self) -> BlockingDrive<B> {
        while self.turn() {}
        self.drive
    }
    /// The time in milliseconds since 1970 is this from now on.
    pub fn set_now(&mut self, ms: u64) {
        self.keys.set_now(ms);
    }
    pub fn submit(&mut self, id: RequestId, op: Op) {
        self.call(|k, fx| k.submit(fx, id, op));
    }
    /// As [`Keys::tick`].
    pub fn tick(&mut self) {
        self.call(|k, fx| k.tick(fx));
    }
    pub fn replies(&mut self) -> std::vec::Drain<'_, request::Reply> {
        self.keys.replies()
    }
    /// Reads what is asked for, then forces all changes there are. Whether anything was done; then there may be more.
    pub fn turn(&mut self) -> bool {
        let went = self.look();
        self.force() || went
    }
    /// Reads what is asked for, so that changes that depend on it can still be forced with the others. Whether anything
    /// was done.
    pub fn look(&mut self) -> bool {
        let mut went = false;
        while self.step() {
            went = true;
        }
        went
    }
    /// Forces all changes there are. Whether anything was done.
    pub fn force(&mut self) -> bool {
        self.keys.store_mut().gather(false);
        self.call(|k, fx| k.poll(fx));
        self.keys.store_mut().gather(true);
        self.look()
    }

    fn call<T>(&mut self, f: impl FnOnce(&mut Keys, &mut Flash<'_>) -> T) -> T {
        let (now, manager, out) = self.drive.parts();
        f(&mut self.keys, &mut Flash { now, manager, out })
    }
    fn step(&mut self) -> bool {
        let went = self.drive.step();
        for done in self.drive.take_done() {
            if let Some(token) = token_of(&done)
                && self.keys.store().owns(token)
            {
                self.call(|k, fx| k.handle(fx, done));
            }
        }
        if self.keys.store().wants_poll() {
            self.call(|k, fx| k.poll(fx));
        }
        let (_, _, out) = self.drive.parts();
        went || !out.commands.is_empty() || !out.done.is_empty()
    }
}
