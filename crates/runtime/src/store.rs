//! Durable state of the metadata service: an ordered, durable map that the event loop never waits for.
//!
//! [`MetaStore`] is the seam. On one machine it is [`StoreThread`], a thread over one redb file ([`StoreFile`]).

mod file;
mod thread;

pub use file::StoreFile;
pub use thread::StoreThread;

use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use bytes::Bytes;

/// Keys with their new values, or `None` to delete; applied atomically.
pub type Entries = Vec<(Bytes, Option<Bytes>)>;

/// Why the store could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{}: {error}", .file.display())]
    File { file: PathBuf, error: Box<redb::Error> },
    #[error("a node without a store wrote to it")]
    Missing,
}

impl StoreError {
    /// An error of the operating system.
    pub fn of(file: &Path, e: io::Error) -> StoreError {
        StoreError::File { file: file.into(), error: Box::new(redb::Error::Io(e)) }
    }
}

/// State of the oldest write under way.
#[derive(Debug)]
pub enum StoreEvent {
    /// It is durable.
    Stored,
    /// There is no room for it. The store retries it by itself; later writes wait behind it.
    NoRoom(StoreError),
    /// The store has failed and takes no further write. Whether this one is durable is unknown.
    Failed(StoreError),
}

/// An ordered, durable, asynchronous map. Writes become durable in the order in which they were begun.
pub trait MetaStore {
    /// At most [`rackweave_core::node::STORES_MAX`] writes are under way.
    fn begin(&mut self, entries: Entries);
    /// The next event, if there is one. Called while writes are under way.
    fn poll(&mut self) -> Option<StoreEvent>;
    /// Becomes readable with each event; `None` if [`MetaStore::poll`] has an event as soon as a write has begun.
    fn event_fd(&self) -> Option<RawFd> {
        None
    }
    /// Why changes that can wait should: little room is left, or a write hangs.
    fn problem(&self) -> Option<String> {
        None
    }
}

/// The store of nodes that store nothing.
#[derive(Debug)]
pub struct NoStore;

impl MetaStore for NoStore {
    fn begin(&mut self, _: Entries) {}
    fn poll(&mut self) -> Option<StoreEvent> {
        Some(StoreEvent::Failed(StoreError::Missing))
    }
}
