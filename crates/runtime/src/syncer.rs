//! fdatasync outside the event loop: by io_uring where the kernel permits it, otherwise by one helper thread.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use io_uring::{IoUring, opcode, types};

use super::poll::{drain, eventfd, signal};

/// Most syncs in flight: one per device, and racks are small.
const ENTRIES: u32 = 64;

/// Runs fdatasync calls in the background; an event descriptor wakes the loop when some have completed.
pub struct Syncer {
    event: Arc<OwnedFd>,
    way: SyncMethod,
    in_flight: usize,
}

enum SyncMethod {
    Uring(Box<IoUring>),
    Thread { jobs: Option<Sender<(u64, RawFd)>>, done: Receiver<(u64, io::Result<()>)>, worker: Option<JoinHandle<()>> },
}

impl Syncer {
    /// `uring: false` selects the thread.
    pub fn new(uring: bool) -> io::Result<Syncer> {
        let event = Arc::new(eventfd()?);
        let way = match uring.then(|| start_uring(&event)) {
            Some(Ok(ring)) => SyncMethod::Uring(Box::new(ring)),
            _ => start_thread(&event),
        };
        Ok(Syncer { event, way, in_flight: 0 })
    }

    /// Name of the mechanism, for users.
    pub fn name(&self) -> &'static str {
        match self.way {
            SyncMethod::Uring(_) => "io_uring",
            SyncMethod::Thread { .. } => "thread",
        }
    }
    pub fn event_fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Starts an fdatasync of `fd`, which must stay open until [`Syncer::finished`] returns `token`.
    pub fn begin(&mut self, fd: RawFd, token: u64) -> io::Result<()> {
        match &mut self.way {
            SyncMethod::Uring(ring) => {
                let sync = opcode::Fsync::new(types::Fd(fd)).flags(types::FsyncFlags::DATASYNC);
                // SAFETY: the operation refers to no memory, and the descriptor stays open (see above).
                unsafe { ring.submission().push(&sync.build().user_data(token)) }
                    .map_err(|_| io::Error::from(io::ErrorKind::WouldBlock))?;
                ring.submit()?;
            }
            SyncMethod::Thread { jobs, .. } => {
                let jobs = jobs.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
                jobs.send((token, fd)).map_err(|_| io::ErrorKind::BrokenPipe)?;
            }
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Takes the completed syncs.
    pub fn finished(&mut self, into: &mut Vec<(u64, io::Result<()>)>) {
        drain(self.event.as_raw_fd());
        let before = into.len();
        match &mut self.way {
            SyncMethod::Uring(ring) => into.extend(ring.completion().map(|c| {
                let r = if c.result() < 0 { Err(io::Error::from_raw_os_error(-c.result())) } else { Ok(()) };
                (c.user_data(), r)
            })),
            SyncMethod::Thread { done, .. } => into.extend(done.try_iter()),
        }
        self.in_flight -= into.len() - before;
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        if let SyncMethod::Thread { jobs, worker, .. } = &mut self.way {
            *jobs = None;
            if let Some(w) = worker.take() {
                let _ = w.join();
            }
        }
    }
}

fn start_uring(event: &OwnedFd) -> io::Result<IoUring> {
    let ring = IoUring::new(ENTRIES)?;
    ring.submitter().register_eventfd(event.as_raw_fd())?;
    Ok(ring)
}

#[allow(clippy::disallowed_methods, reason = "blocking calls of the driver, not a node")]
fn start_thread(event: &Arc<OwnedFd>) -> SyncMethod {
    let (jobs, todo) = channel::<(u64, RawFd)>();
    let (finished, done) = channel();
    let event = Arc::clone(event);
    let worker = std::thread::spawn(move || {
        for (token, fd) in todo {
            // SAFETY: plain system calls; the descriptors stay open while a job is pending.
            let r = unsafe { libc::fdatasync(fd) };
            let r = if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
            if finished.send((token, r)).is_err() {
                return;
            }
            signal(event.as_raw_fd());
        }
    });
    SyncMethod::Thread { jobs: Some(jobs), done, worker: Some(worker) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::{Interest, Poll};
    use rackweave_core::Span;

    fn syncs_come_back(uring: bool) {
        let path = std::env::temp_dir().join(format!("rackweave-sync-{}-{uring}", std::process::id()));
        let file = std::fs::File::create(&path).expect("temporary file");
        let mut s = Syncer::new(uring).expect("syncer");
        let mut poll = Poll::new().expect("epoll");
        poll.add(s.event_fd(), 1, Interest::READ).expect("add");
        s.begin(file.as_raw_fd(), 7).expect("begin");
        s.begin(-1, 8).expect("begin");
        let (mut ready, mut done) = (Vec::new(), Vec::new());
        // A wait may end early, because completions interrupt it.
        while s.in_flight() > 0 {
            poll.wait(Some(Span::from_secs(1)), &mut ready).expect("wait");
            if !ready.is_empty() {
                s.finished(&mut done);
            }
        }
        done.sort_by_key(|d| d.0);
        assert!(matches!(done[0], (7, Ok(()))), "{done:?}");
        assert_eq!(done[1].1.as_ref().unwrap_err().raw_os_error(), Some(libc::EBADF));
        let _ = std::fs::remove_file(&path);
    }

    #[test]
    fn by_io_uring_or_what_stands_in_for_it() {
        syncs_come_back(true);
    }

    #[test]
    fn by_a_thread() {
        syncs_come_back(false);
    }
}
