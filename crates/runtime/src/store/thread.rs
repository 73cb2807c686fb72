//! A thread that writes the metadata service's state in order and reports what is durable.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::file::{StoreFile, WriteError};
use super::{Entries, MetaStore, StoreEvent};
use crate::poll::{eventfd, signal};

/// Time until a write that found no room is retried.
const ROOM_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Period of checks of the room on the host's disk.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Most writes in one commit: they share an fsync, but the first must not wait for too many.
const BATCH_MAX: usize = 64;
/// A longer write counts as hanging: operators' changes are refused until it completes.
const HANGS_AFTER: Duration = Duration::from_secs(5);
/// How long closing waits for pending writes. Unanswered writes may be lost, as in a power cut.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// The store, on a thread of its own.
pub struct StoreThread {
    writes: Option<Sender<Entries>>,
    events: Receiver<StoreEvent>,
    event: Arc<OwnedFd>,
    short: Arc<Mutex<Option<String>>>,
    path: PathBuf,
    under_way: usize,
    /// When the oldest pending write became the oldest.
    since: Instant,
}

impl StoreThread {
    pub fn start(file: StoreFile) -> io::Result<StoreThread> {
        StoreThread::retrying_each(file, ROOM_RETRY_INTERVAL)
    }

    #[allow(clippy::disallowed_methods, reason = "a driver")]
    fn retrying_each(file: StoreFile, retry: Duration) -> io::Result<StoreThread> {
        let event = Arc::new(eventfd()?);
        let short = Arc::new(Mutex::new(file.short_of_room()));
        let path = file.path().to_owned();
        let ((writes, begun), (done, events)) = (channel(), channel());
        let worker = Worker {
            file,
            begun,
            waiting: VecDeque::new(),
            done,
            event: Arc::clone(&event),
            short: Arc::clone(&short),
            retry,
        };
        std::thread::Builder::new().name("meta-store".into()).spawn(move || worker.run())?;
        Ok(StoreThread { writes: Some(writes), events, event, short, path, under_way: 0, since: Instant::now() })
    }
}

#[allow(clippy::disallowed_methods, reason = "a driver")]
impl MetaStore for StoreThread {
    fn begin(&mut self, entries: Entries) {
        if self.under_way == 0 {
            self.since = Instant::now();
        }
        self.under_way += 1;
        // The thread ends first only if the store has failed, which it has reported.
        let _ = self.writes.as_ref().map(|w| w.send(entries));
    }
    fn poll(&mut self) -> Option<StoreEvent> {
        let event = self.events.try_recv().ok()?;
        self.since = Instant::now();
        self.under_way -= usize::from(matches!(event, StoreEvent::Stored));
        Some(event)
    }
    fn event_fd(&self) -> Option<RawFd> {
        Some(self.event.as_raw_fd())
    }
    fn problem(&self) -> Option<String> {
        let hangs = self.under_way > 0 && self.since.elapsed() >= HANGS_AFTER;
        if hangs {
            let (path, waits) = (self.path.display(), self.since.elapsed().as_secs());
            return Some(format!("{path}: the host's disk hangs: {} writes wait, for {waits} s", self.under_way));
        }
        self.short.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for StoreThread {
    #[allow(clippy::disallowed_methods, reason = "a driver")]
    fn drop(&mut self) {
        self.writes = None;
        let end = Instant::now() + CLOSE_WAIT;
        // The thread closes the file before the channel.
        while self.events.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok() {}
    }
}

struct Worker {
    file: StoreFile,
    begun: Receiver<Entries>,
    /// Pending writes, oldest first.
    waiting: VecDeque<Entries>,
    done: Sender<StoreEvent>,
    event: Arc<OwnedFd>,
    short: Arc<Mutex<Option<String>>>,
    retry: Duration,
}

impl Worker {
    /// Runs until the store is closed or has failed.
    fn run(mut self) {
        // After a batch without room, the first write alone may still fit.
        let mut batch_max = BATCH_MAX;
        loop {
            let short = self.file.short_of_room();
            *self.short.lock().unwrap_or_else(PoisonError::into_inner) = short;
            if self.waiting.is_empty() {
                match self.begun.recv_timeout(CHECK_INTERVAL) {
                    Ok(w) => self.waiting.push_back(w),
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            self.waiting.extend(self.begun.try_iter());
            let n = self.waiting.len().min(batch_max);
            match self.file.write(&self.waiting.make_contiguous()[..n]) {
                Ok(()) => {
                    batch_max = BATCH_MAX;
                    self.waiting.drain(..n);
                    self.report((0..n).map(|_| StoreEvent::Stored));
                }
                Err(WriteError::NoRoom(_)) if n > 1 => batch_max = 1,
                Err(WriteError::NoRoom(e)) => {
                    self.report([StoreEvent::NoRoom(e)]);
                    if !self.wait_for_room() {
                        return;
                    }
                }
                Err(WriteError::Failed(e)) => return self.report([StoreEvent::Failed(e)]),
            }
        }
    }

    fn report(&self, events: impl IntoIterator<Item = StoreEvent>) {
        for e in events {
            // Nobody receives it while the store is being closed.
            let _ = self.done.send(e);
        }
        signal(self.event.as_raw_fd());
    }

    /// False if the store is being closed.
    #[allow(clippy::disallowed_methods, reason = "a driver")]
    fn wait_for_room(&mut self) -> bool {
        let end = Instant::now() + self.retry;
        loop {
            match self.begun.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(w) => self.waiting.push_back(w),
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }
}

#[cfg(test)]
#[path = "thread_tests.rs"]
mod tests;
