//! Waiting for sockets: epoll, with the token of whoever is ready.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use rackweave_core::Span;

/// Ready events taken at once.
const BATCH: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    pub read: bool,
    pub write: bool,
}

impl Interest {
    pub const READ: Interest = Interest { read: true, write: false };
    fn bits(self) -> u32 {
        let mut b = libc::EPOLLRDHUP;
        if self.read {
            b |= libc::EPOLLIN;
        }
        if self.write {
            b |= libc::EPOLLOUT;
        }
        b as u32
    }
}

/// Something is ready.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    pub token: u64,
    pub read: bool,
    pub write: bool,
    /// The other side is gone, or the descriptor failed.
    pub closed: bool,
}

#[derive(Debug)]
pub struct Poll {
    fd: OwnedFd,
    exact: bool,
}

impl Poll {
    pub fn new() -> io::Result<Poll> {
        // SAFETY: a new descriptor, owned from here on.
        let fd = unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))? };
        Ok(Poll { fd, exact: true })
    }

    /// Readable when something is ready: one poll can wait for another.
    pub fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
    pub fn add(&self, fd: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)
    }
    pub fn change(&self, fd: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest)
    }
    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, Interest::default())
    }

    fn control(&self, op: i32, fd: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        let mut e = libc::epoll_event { events: interest.bits(), u64: token };
        // SAFETY: `e` lives through the call.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd, &mut e) }).map(|_| ())
    }

    /// Waits at most `timeout` (`None`: without end) and puts what is ready into `into`.
    pub fn wait(&mut self, timeout: Option<Span>, into: &mut Vec<Ready>) -> io::Result<()> {
        into.clear();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        let n = match self.wait_raw(&mut events, timeout) {
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
            Err(e) => return Err(e),
        };
        into.extend(events[..n].iter().map(|e| {
            let bits = e.events as i32;
            let closed = bits & (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) != 0;
            Ready {
                token: e.u64,
                read: bits & libc::EPOLLIN != 0 || closed,
                write: bits & libc::EPOLLOUT != 0,
                closed: bits & (libc::EPOLLHUP | libc::EPOLLERR) != 0,
            }
        }));
        Ok(())
    }

    fn wait_raw(&mut self, events: &mut [libc::epoll_event], timeout: Option<Span>) -> io::Result<usize> {
        let fd = self.fd.as_raw_fd();
        if timeout == Some(Span::ZERO) || timeout.is_none() || !self.exact {
            // Rounded up: a timer must not fire early and then spin.
            let ms = timeout.map_or(-1, |s| i32::try_from(s.0.div_ceil(1_000_000)).unwrap_or(i32::MAX));
            // SAFETY: the kernel writes at most `events.len()` entries.
            return check(unsafe { libc::epoll_wait(fd, events.as_mut_ptr(), events.len() as i32, ms) })
                .map(|n| n as usize);
        }
        let s = timeout.unwrap_or_default();
        let t = libc::timespec { tv_sec: (s.0 / 1_000_000_000) as i64, tv_nsec: (s.0 % 1_000_000_000) as i64 };
        // SAFETY: as above; `t` lives through the call; no signal mask is given.
        let r = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                fd,
                events.as_mut_ptr(),
                events.len() as i32,
                &t as *const libc::timespec,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        match check(r as i32) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                self.exact = false;
                self.wait_raw(events, timeout)
            }
            r => r.map(|n| n as usize),
        }
    }
}

/// # Safety
/// `fd` is a new descriptor that nobody else owns, or the negative answer of a failed call.
pub(super) unsafe fn owned(fd: i32) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn check(r: i32) -> io::Result<i32> {
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r) }
}

/// A counter that wakes the loop.
pub(super) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor, owned from here on.
    unsafe { owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) }
}

/// Takes the counter back to zero.
pub(super) fn drain(fd: RawFd) {
    let mut b = [0u8; 8];
    // SAFETY: eight bytes are what an eventfd writes.
    unsafe { libc::read(fd, b.as_mut_ptr().cast(), 8) };
}

/// Empties a pipe or socket that only wakes.
pub(crate) fn drain_bytes(fd: RawFd) {
    let mut b = [0u8; 64];
    // SAFETY: the kernel writes at most as many bytes as there is room for.
    unsafe { libc::recv(fd, b.as_mut_ptr().cast(), b.len(), libc::MSG_DONTWAIT) };
}
