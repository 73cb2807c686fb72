//! Waiting for sockets: epoll, with a token for each descriptor.
//!
//! Sleeping and waking cost more than a short message takes through kernel and transport, at both ends: the sender pays
//! for waking the receiver. A loop that expects an answer soon may therefore spin briefly first ([`Poll::look_first`]).
//! Spinning is bounded, and stops where it does not pay or where other threads need the core: there a sleeping thread
//! is scheduled sooner than a spinning one.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use rackweave_core::Span;

use super::clock::nanos_of;

/// Most ready events taken at once.
const BATCH: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    pub read: bool,
    pub write: bool,
}

impl Interest {
    pub const READ: Interest = Interest { read: true, write: false };
    fn bits(self) -> u32 {
        let mut b = 0;
        // A peer that has closed its side would wake a loop that does not read again and again.
        if self.read {
            b |= libc::EPOLLIN | libc::EPOLLRDHUP;
        }
        if self.write {
            b |= libc::EPOLLOUT;
        }
        b as u32
    }
}

/// A ready descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    pub token: u64,
    pub read: bool,
    pub write: bool,
    /// The peer has closed, or the descriptor failed.
    pub closed: bool,
}

/// Time to spin before sleeping: about the cost of falling asleep and being woken at both ends.
const LOOK: Span = Span::from_micros(50);
/// Most hits remembered, and the number that a miss subtracts.
const HITS_MAX: u32 = 8;
const MISS: u32 = 2;
/// Waits without spinning after the hits are used up: initially, at most, and after other threads needed the core.
const REST_MIN: u32 = 16;
const REST_MAX: u32 = 4096;
const REST_CONTENDED: u32 = 16_384;
/// Hits in a row after which contention for the core is checked. This thread has not slept meanwhile, so the time it
/// was off the core went to others. If that exceeds a fraction of the whole, spinning takes from them, and delays this
/// thread's own turn.
const RUN: u32 = 256;
const OTHERS_SHARE: u64 = 8;
/// One of this many spins polls all descriptors, where answers arrive on one.
const ALL_EVERY: u32 = 8;
/// A spin that took this long was preempted: another thread had the core.
const TURN: Span = Span::from_millis(1);

/// Decides whether spinning pays.
#[derive(Debug)]
struct Looks {
    hits: u32,
    rest: u32,
    rest_next: u32,
    /// Hits in a row; the machine's clock and this thread's CPU time when the first began.
    run: u32,
    from: [u64; 2],
}

impl Looks {
    fn new() -> Looks {
        Looks { hits: MISS, rest: 0, rest_next: REST_MIN, run: 0, from: [0; 2] }
    }
    /// Whether to spin in this wait.
    fn look(&mut self, clocks: impl Fn() -> [u64; 2]) -> bool {
        if self.hits == 0 {
            self.rest -= 1;
            self.hits = if self.rest == 0 { MISS } else { 0 };
            return false;
        }
        if self.run == 0 {
            self.from = clocks();
        }
        true
    }
    fn looked(&mut self, found: bool, took: Span, clocks: impl Fn() -> [u64; 2]) {
        if took >= TURN {
            return self.contended();
        }
        // A thread that was off the core for longer did not find the event by spinning.
        if !found || took >= LOOK * 2 {
            self.run = 0;
            self.hits = self.hits.saturating_sub(MISS);
            if self.hits == 0 {
                (self.rest, self.rest_next) = (self.rest_next, (self.rest_next * 2).min(REST_MAX));
            }
            return;
        }
        (self.hits, self.rest_next, self.run) = ((self.hits + 1).min(HITS_MAX), REST_MIN, self.run + 1);
        if self.run == RUN {
            let [machine, own] = clocks();
            let (machine, own) = (machine - self.from[0], own - self.from[1]);
            self.run = 0;
            if machine.saturating_sub(own) > machine / OTHERS_SHARE {
                self.contended();
            }
        }
    }
    fn contended(&mut self) {
        (self.hits, self.rest, self.run) = (0, REST_CONTENDED, 0);
    }
}

/// The machine's clock, and this thread's CPU time.
fn clocks() -> [u64; 2] {
    [nanos_of(libc::CLOCK_MONOTONIC), nanos_of(libc::CLOCK_THREAD_CPUTIME_ID)]
}

#[derive(Debug)]
pub struct Poll {
    fd: OwnedFd,
    exact: bool,
    looks: Option<Looks>,
    /// Number of spins, modulo [`ALL_EVERY`].
    turn: u32,
}

/// Takes in what arrived on the descriptor of answers; whether there was anything.
type Look<'a> = &'a mut dyn FnMut() -> io::Result<bool>;

impl Poll {
    pub fn new() -> io::Result<Poll> {
        // SAFETY: a new descriptor, owned from here on.
        let fd = unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))? };
        Ok(Poll { fd, exact: true, looks: None, turn: 0 })
    }

    /// Spins for a moment before sleeping, from now on, while that pays.
    pub fn look_first(&mut self) {
        self.looks = Some(Looks::new());
    }

    /// Readable when a descriptor is ready: one poll can wait for another.
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

    /// Waits at most `timeout` (`None`: forever) and puts the ready descriptors into `into`.
    pub fn wait(&mut self, timeout: Option<Span>, into: &mut Vec<Ready>) -> io::Result<()> {
        self.wait_for(timeout, into, None)
    }

    /// As [`Poll::wait`], but while spinning it calls `look`, which takes in what has arrived; `into` may then stay
    /// empty. This saves a system call. The other descriptors are polled now and then.
    pub fn wait_looking(
        &mut self,
        timeout: Option<Span>,
        into: &mut Vec<Ready>,
        mut look: impl FnMut() -> io::Result<bool>,
    ) -> io::Result<()> {
        self.wait_for(timeout, into, Some(&mut look))
    }

    fn wait_for(&mut self, timeout: Option<Span>, into: &mut Vec<Ready>, look: Option<Look<'_>>) -> io::Result<()> {
        into.clear();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        let n = match self.look_and_wait(&mut events, timeout, look) {
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

    fn look_and_wait(
        &mut self,
        events: &mut [libc::epoll_event],
        timeout: Option<Span>,
        mut at_one: Option<Look<'_>>,
    ) -> io::Result<usize> {
        let look = timeout.unwrap_or(LOOK).min(LOOK);
        let mut looked = Span::ZERO;
        if look > Span::ZERO && self.looks.as_mut().is_some_and(|l| l.look(clocks)) {
            let from = nanos_of(libc::CLOCK_MONOTONIC);
            let (mut n, mut taken, mut past) = (0, false, 0);
            while n == 0 && !taken && past < look.0 {
                self.turn = (self.turn + 1) % ALL_EVERY;
                match &mut at_one {
                    Some(at_one) if self.turn != 0 => taken = at_one()?,
                    _ => n = self.wait_raw(events, Some(Span::ZERO))?,
                }
                past = nanos_of(libc::CLOCK_MONOTONIC) - from;
            }
            if let Some(l) = &mut self.looks {
                l.looked(n > 0 || taken, Span(past), clocks);
            }
            if n > 0 || taken {
                return Ok(n);
            }
            looked = look;
        }
        self.wait_raw(events, timeout.map(|t| Span(t.0 - looked.0)))
    }

    fn wait_raw(&mut self, events: &mut [libc::epoll_event], timeout: Option<Span>) -> io::Result<usize> {
        let fd = self.fd.as_raw_fd();
        if timeout == Some(Span::ZERO) || timeout.is_none() || !self.exact {
            // Rounded up, so that a timer does not fire early and spin.
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

/// Wakes the thread that waits for the counter.
pub(super) fn signal(fd: RawFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: an eventfd takes eight bytes.
    unsafe { libc::write(fd, one.as_ptr().cast(), 8) };
}

/// Resets the counter to zero.
pub(super) fn drain(fd: RawFd) {
    let mut b = [0u8; 8];
    // SAFETY: an eventfd returns eight bytes.
    unsafe { libc::read(fd, b.as_mut_ptr().cast(), 8) };
}

/// Empties a pipe or socket that is only used to wake the loop.
pub fn drain_bytes(fd: RawFd) {
    let mut b = [0u8; 64];
    // SAFETY: the kernel writes at most `b.len()` bytes.
    unsafe { libc::recv(fd, b.as_mut_ptr().cast(), b.len(), libc::MSG_DONTWAIT) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Span = Span::from_micros(5);

    /// Spinning goes on while it hits, ends soon after, and is retried less and less often.
    #[test]
    fn looks_stop_where_they_do_not_pay() {
        let (mut l, still) = (Looks::new(), || [0, 0]);
        for _ in 0..1000 {
            assert!(l.look(still));
            l.looked(true, SOON, still);
        }
        let mut looked = [0; 2];
        for waits in 0..20_000 {
            if l.look(still) {
                l.looked(false, LOOK, still);
                looked[usize::from(waits >= 10_000)] += 1;
            }
        }
        assert!(looked[0] <= 16 && looked[1] <= 4, "{looked:?}");
        // It starts again when it pays again.
        while !l.look(still) {}
        l.looked(true, SOON, still);
        assert!(l.look(still));
    }

    /// Spins hit, but other threads had the core for a fifth of the time.
    #[test]
    fn looks_stop_where_others_want_the_core() {
        let (mut l, time) = (Looks::new(), std::cell::Cell::new(0));
        let clocks = || [time.get() * 10, time.get() * 8];
        let mut looked = 0;
        for _ in 0..REST_CONTENDED {
            time.set(time.get() + 1);
            if l.look(clocks) {
                l.looked(true, SOON, clocks);
                looked += 1;
            }
        }
        assert_eq!(looked, RUN);
        // At once after another thread's turn.
        let mut l = Looks::new();
        assert!(l.look(clocks));
        l.looked(true, TURN, clocks);
        assert!((1..REST_CONTENDED).all(|_| !l.look(clocks)));
    }

    /// A loop that spins on one descriptor still notices all others, however much arrives on that one.
    #[test]
    fn what_else_is_waited_for_has_its_turn() {
        let mut p = Poll::new().expect("epoll");
        p.look_first();
        let (e, mut ready, mut looks) = (eventfd().expect("eventfd"), Vec::new(), 0);
        p.add(e.as_raw_fd(), 7, Interest::READ).expect("add");
        signal(e.as_raw_fd());
        let mut heard = 0;
        for _ in 0..4 * ALL_EVERY {
            let look = || {
                looks += 1;
                Ok(true)
            };
            p.wait_looking(Some(Span::from_secs(1)), &mut ready, look).expect("wait");
            heard += ready.len();
        }
        assert_eq!((heard, looks), (4, 4 * (ALL_EVERY - 1)));
    }

    /// An event during the spin is taken at once; otherwise the wait lasts as long as requested.
    #[test]
    fn a_wait_that_looks_is_as_long_as_any() {
        let mut p = Poll::new().expect("epoll");
        p.look_first();
        let (e, mut ready) = (eventfd().expect("eventfd"), Vec::new());
        p.add(e.as_raw_fd(), 7, Interest::READ).expect("add");
        for span in [Span::from_millis(3), Span::from_micros(10)] {
            let from = nanos_of(libc::CLOCK_MONOTONIC);
            p.wait(Some(span), &mut ready).expect("wait");
            assert!(ready.is_empty() && nanos_of(libc::CLOCK_MONOTONIC) - from >= span.0);
        }
        signal(e.as_raw_fd());
        p.wait(None, &mut ready).expect("wait");
        assert_eq!(ready.iter().map(|r| r.token).collect::<Vec<_>>(), [7]);
    }
}
